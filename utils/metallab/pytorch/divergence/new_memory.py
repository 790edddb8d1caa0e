"""Memory that a model asks for, as `torch.empty` returns it: whether it is read before anybody has written to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from metallab.pytorch.dispatch import find_calling_line, watching
from metallab.pytorch.divergence.calls import is_floating

EMPTY = ("empty", "new_empty")
"""How operators begin that return memory which nobody has written to."""
UNSEEN_LINE = "a line that is not known"


@contextlib.contextmanager
def filling_new_memory(value: float) -> Iterator[dict[str, None]]:
    """Write a number into all memory that is asked for; what it held depends on what ran before.

    Parameters
    ----------
    value
        0, so that runs are alike, or NaN, so that a result shows whether it was read.

    Yields
    ------
    dict
        The lines that ask for memory, ``file:number``, in their order; `UNSEEN_LINE` where no line of a reader's does.
    """
    lines: dict[str, None] = {}

    def see(operator: Any, args: tuple, kwargs: dict) -> Any:
        """Run an operator, and fill what it returns if that is new memory."""
        result = operator(*args, **kwargs)
        name = operator.name().rpartition("::")[2]
        if not name.startswith(EMPTY):
            return result

        lines[str(find_calling_line() or UNSEEN_LINE)] = None
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                leaf.fill_(value if is_floating(leaf) else 0)
        return result

    with watching(see):
        yield lines


def has_new_nan(filled: list[Tensor], before: list[Tensor]) -> bool:
    """Return True if a value is NaN that was none before."""
    return any(
        is_floating(value) and bool((value.isnan() & ~other.isnan()).any())
        for value, other in zip(filled, before, strict=False)
        if value.shape == other.shape
    )
