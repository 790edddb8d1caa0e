"""What another process sends back: how its code ended, and the results, by pickle."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from metallab import units
from metallab.isolated.outcome import Outcome
from metallab.outcomes import Ended

SOURCE = "<isolated>"
"""The name of the text's file in a traceback."""


def pack_results(space: Mapping[str, Any], names: Sequence[str]) -> bytes:
    """Return an answer with results, or with the reason why there are none.

    Parameters
    ----------
    space
        The variables of the code that ran.
    names
        Those that are asked for.
    """
    unset = [name for name in names if name not in space]
    if unset:
        return _pack("raised", reason=f"the code ended without setting {', '.join(unset)}")

    try:
        # by themselves: if they cannot be read there, how the code ended still can
        values = pickle.dumps({name: space[name] for name in names})
    except Exception as error:  # noqa: BLE001  # pickling raises whatever an object's own code raises
        why = f"a result cannot be sent back: {units.first_line(error)}; turn it into NumPy arrays and plain values"
        return _pack("raised", reason=why, detail=f"{type(error).__name__}: {error}")
    return _pack("ok", values=values)


def pack_error(error: BaseException, source: str) -> bytes:
    """Return an answer with an exception and its traceback.

    Parameters
    ----------
    error
        What was raised.
    source
        Only frames of files whose name contains this are shown.
    """
    shown = [
        traceback.FrameSummary(SOURCE, frame.lineno, frame.name, line=frame.line)
        for frame in traceback.extract_tb(error.__traceback__)
        if source in frame.filename
    ]
    lines = [*traceback.format_list(shown), *traceback.format_exception_only(error)]

    return _pack(
        "raised",
        reason=units.first_line(error, kind=True),
        detail="".join(lines).strip("\n"),
        kinds=tuple(kind.__name__ for kind in type(error).__mro__),
    )


def _pack(
    ended: Ended,
    *,
    reason: str = "",
    detail: str = "",
    values: bytes = b"",
    kinds: tuple[str, ...] = (),
) -> bytes:
    return pickle.dumps((ended, reason, detail, values, kinds))


def unpack(answer: bytes) -> Outcome:
    """Return the outcome in an answer of a process that was started here."""
    ended, reason, detail, values, kinds = pickle.loads(answer)
    try:
        results = pickle.loads(values) if values else {}
    except Exception as error:  # noqa: BLE001  # of a framework's objects, which may want a device that is not here
        wrong = f"a result cannot be read here: {units.first_line(error)}; turn it into NumPy arrays in the cell"
        return Outcome("raised", reason=wrong)
    return Outcome(ended, "", reason, detail, results, kinds)
