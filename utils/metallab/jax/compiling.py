"""Count the programs that JAX compiles (notebook 07b)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.monitoring

_counting: list[list[float]] = []
"""The lists that `programs` is filling; JAX keeps a listener for ever, so there is one for all."""


def _compiled(event: str, seconds: float, **_: Any) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        for counted in _counting:
            counted.append(seconds)


jax.monitoring.register_event_duration_secs_listener(_compiled)


@contextlib.contextmanager
def programs() -> Iterator[list[float]]:
    """A list that grows, while the ``with`` lasts, by the seconds that each compiled program took.

    Operations outside `jax.jit` are programs as well, one for each shape. JAX forgets what it has compiled first, so
    the same code gives the same number again.

    >>> double = jax.jit(lambda x: 2 * x)
    >>> with programs() as compiled:
    ...     called = [double(1.0), double(2.0), double(3)]
    >>> len(compiled)  # one for floats, one for integers
    2
    """
    jax.clear_caches()
    counted: list[float] = []
    _counting.append(counted)
    try:
        yield counted
    finally:
        _counting[:] = [one for one in _counting if one is not counted]
