"""Modules that are imported at their first use: to collect the tests of a framework, no worker waits for its import."""

from __future__ import annotations

import importlib
from typing import Any


class Lazily:
    """Stands for a module; what is asked of it is asked of that."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith(
            ("_", "pytest")
        ):  # pytest asks each object of a test file whether it is a fixture
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)
