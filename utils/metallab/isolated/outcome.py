"""How a piece of code in another process ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from metallab.outcomes import Ended


class ChildFailed(RuntimeError):
    """A child process that did not end ``ok``, or has no such result."""

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: the message, which ends with the child's traceback."""
        return [f"{type(self).__name__}: {self}"]


@dataclass(frozen=True)
class Outcome:
    """How code in another process ended; ``outcome["y"]`` is a result, ``outcome.ok`` is whether it was well."""

    ended: Ended
    printed: str = ""
    """Its standard output."""
    reason: str = ""
    """One line; empty if it ended ``ok``."""
    detail: str = ""
    """The traceback, or its standard error."""
    results: Mapping[str, Any] = field(default_factory=dict)
    """The variables that were asked for, by name."""
    kinds: tuple[str, ...] = ()
    """The names of the exception's class and its base classes."""
    exit_code: int | None = None
    """The process's own, if it ended without an answer."""

    @property
    def ok(self) -> bool:
        """True if it ended without an exception, and was neither stopped nor ended itself."""
        return self.ended == "ok"

    def __getitem__(self, name: str) -> Any:
        """Return a result; `ChildFailed`, with the reason, if there is none."""
        if name in self.results:
            return self.results[name]

        why = self.reason
        if not why:
            why = f"it was not asked for; results are {', '.join(self.results) or 'none'}"
        raise ChildFailed(
            f"no result {name!r} came back from the child process: {why}\n{self.detail}".rstrip()
        )

    def __str__(self) -> str:
        return f"{self.ended}: {self.reason}" if self.reason else self.ended
