"""Watching PyTorch's dispatcher without loading its compiler."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


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
