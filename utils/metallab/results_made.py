"""Who wants to hear of each result that is made: a notebook that runs, which saves them (`metallab.session`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

_listeners: list[Callable[[Any], object]] = []


def listen(listener: Callable[[Any], object]) -> None:
    """Call a function with each measurement and comparison that is made from now on."""
    _listeners.append(listener)


def forget(listener: Callable[[Any], object]) -> None:
    """Call a function no longer."""
    _listeners.remove(listener)


def forget_all() -> None:
    """Call nobody any longer: this process sends its results to another one, which saves them."""
    _listeners.clear()


def announce(result: T) -> T:
    """Tell the listeners of a result, and return it."""
    for listener in _listeners:
        listener(result)
    return result


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Make results in a ``with`` block that are steps of something else and no results of a page."""
    kept = list(_listeners)
    _listeners.clear()
    try:
        yield
    finally:
        _listeners[:] = kept
