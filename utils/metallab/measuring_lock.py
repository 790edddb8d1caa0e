"""A lock for measuring: one measurement at a time on a machine that several people measure on.

Measurements that run at once spoil each other. ``METALLAB_TURNS`` names a folder with a lock file: `make hub` sets it
for a class, and `metallab.timing` holds the lock for each measurement, once for all samples of a comparison, and
`metallab.launches` once for each round of fresh processes. Without the variable nothing waits, and nothing is written.

The operating system frees the lock of a process that is gone: a killed kernel keeps nobody waiting. All must see the
folder on one and the same computer, be it from several accounts or containers; over a network file system it is not a
lock. Work that is not measured does not wait: see ``Measurement.others``.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "METALLAB_TURNS"
"""The environment variable that names the folder."""

LIMIT = 600.0
"""Seconds that others wait for one measurement to end. The longest measurements of the notebooks take a minute."""

_HELD = "METALLAB_TURN_HELD"
"""An environment variable of the process that holds the lock, and of those that it starts: it is theirs already."""

_one_thread = threading.RLock()
"""Threads share the variable above, so each waits here for the one that measures; that one may come again."""


class LockTimeout(TimeoutError):
    """One measurement has held the lock for longer than `LIMIT`."""


@contextlib.contextmanager
def hold() -> Iterator[None]:
    """Wait until nobody else measures, and let nobody else begin: ``with measuring_lock.hold(): ...``.

    Where ``METALLAB_TURNS`` is not set there is no lock, and nothing to wait for. Else a line is printed if somebody
    measures. Whoever holds the lock may take it again, also in a child process.

    Raises
    ------
    LockTimeout
        If somebody else's measurement does not end.
    NotADirectoryError
        If ``METALLAB_TURNS`` does not name a folder.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        yield
        return

    with _one_thread:
        if _HELD in os.environ:
            yield
            return
        with _acquire(Path(folder)):
            os.environ[_HELD] = str(os.getpid())  # any text would do: the number is for people
            try:
                yield
            finally:
                del os.environ[_HELD]


def _acquire(folder: Path) -> contextlib.AbstractContextManager:
    """Wait for the lock of a folder, and return what gives it back at the end of a ``with``.

    A line is printed if somebody else has it. LockTimeout after `LIMIT` seconds in which nobody else's measurement
    began: whoever waits for several short ones in turn is not told of a long one.
    """
    from filelock import FileLock, Timeout  # in a class; measuring alone does without

    if not folder.is_dir():
        raise NotADirectoryError(
            f"{VARIABLE} names {folder}, which is no folder: make it, or unset the variable"
        )
    path = folder / "turn.lock"
    arrived = time.time()
    lock = FileLock(path, mode=0o666)  # other accounts take it too

    try:
        held = lock.acquire(blocking=False)
    except Timeout:
        print("Waiting for a turn to measure: somebody else is measuring.", flush=True)
        try:
            # whoever gets the lock sets the time of its file
            held = lock.acquire(
                cancel_check=lambda: time.time() - max(arrived, path.stat().st_mtime) > LIMIT
            )
        except Timeout:
            raise LockTimeout(
                f"one measurement has kept its turn for more than {LIMIT / 60:.0f} min: ask who measures, or the "
                "teacher, to restart that kernel or server, then run this cell again"
            ) from None

    os.utime(path)  # when this measurement began
    return held
