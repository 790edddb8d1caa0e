"""Watching PyTorch's dispatcher without loading its compiler, and from which module and line an operator is called."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker


def watching(see: Callable[[Any, tuple, dict], Any]) -> TorchDispatchMode:
    """A mode, entered with ``with``, under which each operator becomes ``see(operator, args, kwargs)``.

    ``see`` returns the operator's result; what it calls itself is not seen. PyTorch keeps its compiler away from the
    methods of a mode's class, and loads the compiler for that, which takes seconds. It decides so when the class is
    made. That is here, each time: while no compiler is loaded there is none to keep away.
    """

    class Watching(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return "torch._dynamo" in sys.modules

        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            return see(operator, args, kwargs or {})

    return Watching()


def innermost_module(modules: ModuleTracker) -> str:
    """The path of the innermost module that is at work, forward or backward; empty outside of modules."""
    return max(modules.parents - {"Global"}, key=lambda path: path.count("."), default="")


def calling_line(until: str = "") -> str:
    """The innermost line that runs outside of PyTorch and of this package, ``file:number``; empty if there is none.

    Callers from a function named ``until`` on are not asked.
    """
    inside = (os.path.dirname(torch.__file__) + os.sep, str(Path(__file__).parents[1]) + os.sep, contextlib.__file__)
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != until:
        name = frame.f_code.co_filename
        if not name.startswith((*inside, "<frozen")):
            below = os.path.relpath(name)
            return f"{name if below.startswith('..') else below}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
