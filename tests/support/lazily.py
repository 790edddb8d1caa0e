"""Modules that are imported at their first use: to collect the tests of a framework, no worker waits for its import."""

from __future__ import annotations

import importlib
from typing import Any


class Lazily:
    """Stands for a module; what is asked of it is asked of that."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)
