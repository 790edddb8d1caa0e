"""The words for how something ended: five lists, and no module has another one.

A word says what happened; why it happened stands beside it, such as a `metallab.timing.Withheld`. What is printed
or written to a file may have a word of its own for one of these, which is found in a table beside the printing.
"""

from __future__ import annotations

from typing import Literal, get_args

Status = Literal["passed", "incomplete", "failed", "skipped"]
"""Of a page that was run, and of a question about a model; ``incomplete``: something is missing, or wants a look."""

Verdict = Literal["faster", "slower", "same", "inconclusive", "withheld"]
"""Of a speed-up; ``inconclusive``: its interval decides nothing; ``withheld``: none is given, for a reason."""

Agreement = Literal["agrees", "differs", "refused"]
"""Of two results; ``refused``: one of the two sides does not compute it."""

Ended = Literal["ok", "raised", "crashed", "timeout"]
"""Of code in another process: well; with an exception; by a signal or its own exit; stopped after the time limit."""

Judged = Literal["right", "wrong", "open", "not attempted", "not judged"]
"""Of an answer to an exercise; ``open``: this machine's clock does not bear it out, which makes it no mistake; ``not
judged``: something is missing that its check needs."""

STATUSES: tuple[Status, ...] = get_args(Status)
REACHED_THE_END: tuple[Status, ...] = STATUSES[:2]
"""Statuses of a page whose last cell was reached."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
