"""One measurement at a time on a machine that several people measure on.

Measurements that run at once spoil each other. ``METALLAB_TURNS`` names a folder in which processes queue before they
measure: `make hub` sets it for a class, and `metallab.timing` takes a turn for each measurement, one turn for all
samples of a comparison, and `metallab.launches` one for each round of fresh processes. Without the variable
nothing waits, and nothing is written.

The queue is a ticket lock made of files. A process that wants to measure draws the next number, which is a file in the
folder that it keeps locked with flock(2); the lowest locked number has the turn. So who comes first measures first,
and the operating system itself unlocks the number of a process that is gone: a killed kernel keeps nobody waiting.
All must see the folder on one and the same computer, be it from several accounts or containers; over a network
file system it is not a lock. Work that is not measured does not queue: see ``Measurement.others``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "METALLAB_TURNS"
"""The environment variable that names the folder of the queue."""

LIMIT = 600.0
"""Seconds after which a turn ends if somebody is waiting. The longest measurements of the notebooks take a minute."""

GRACE = 60.0
"""Seconds more that those who wait give a process that could not end its turn itself."""

_HELD = "METALLAB_TURN_HELD"  # for this process and those that it starts: the turn is theirs already
_one_thread = threading.RLock()


class TurnExpired(RuntimeError):
    """A measurement held others up for too long; it was interrupted, and its numbers are not to be trusted."""


class TurnBlocked(TimeoutError):
    """Somebody's measurement hangs, so that no turn can be had."""


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """``with turns.turn(): ...`` waits until nobody else measures, and lets nobody else begin.

    While it waits, a line that says for whom stands below the cell. A turn inside a turn, also one of a child process,
    is the same turn. `TurnExpired` if it took longer than `LIMIT` and others waited; `TurnBlocked`, which names the
    holder, if a turn does not end; NotADirectoryError if ``METALLAB_TURNS`` does not name a folder.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        yield
        return
    with _one_thread:
        if _HELD in os.environ:
            yield
            return
        with _Ticket(Path(folder)) as ticket:
            ticket.wait()
            os.environ[_HELD] = str(os.getpid())
            try:
                with _limited(ticket):
                    yield
            finally:
                del os.environ[_HELD]


class _Ticket:
    """A place in the queue, as long as the ``with`` block lasts.

    The file holds the name of its process's user and, once the process has its turn, the time at which that began.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise NotADirectoryError(f"{VARIABLE} names {folder}, which is no folder: make it, or unset the variable")
        self.folder = folder

    def __enter__(self) -> _Ticket:
        with _locked(self.folder):  # one draws at a time, and none sees a number that is not locked yet
            for path in _tickets(self.folder):
                if not _is_held(path):
                    with contextlib.suppress(OSError):  # somebody else's to remove, or no file
                        path.unlink()
            self.number = 1 + max(map(_number, _tickets(self.folder)), default=0)
            self.path = self.folder / f"{self.number:09}"
            self.file = self.path.open("x", encoding="utf-8")
            os.fchmod(self.file.fileno(), 0o644)  # whatever the umask: others must see whether it is locked
            fcntl.flock(self.file, fcntl.LOCK_EX)
        who = os.environ.get("JUPYTERHUB_USER") or os.environ.get("USER") or f"user {os.getuid()}"
        print(who, file=self.file, flush=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.path.unlink(missing_ok=True)
        self.file.close()

    def wait(self) -> None:
        """Return when no lower number is locked; meanwhile a line says how many are."""
        line, arrived = _Line(), time.monotonic()
        first_seen: dict[Path, float] = {}
        try:
            while before := [path for path in _tickets(self.folder) if _number(path) < self.number and _is_held(path)]:
                who, began = _read(before[0])
                now = time.monotonic()
                lasted = now - (began or first_seen.setdefault(before[0], now))
                if min(lasted - LIMIT, now - arrived) > GRACE:  # a healthy one ends its turn when somebody comes
                    raise TurnBlocked(
                        f"{who} has been measuring for {lasted / 60:.0f} min and cannot be interrupted. Ask {who}, or "
                        "the teacher, to restart that kernel or server, then run this cell again."
                    )
                line.show(_waiting(len(before), who, lasted))
                time.sleep(min(0.05 * len(before) ** 2, 0.5))  # those at the end of the queue disturb least
        finally:
            line.clear()
        print(time.monotonic(), file=self.file, flush=True)

    def somebody_waits(self) -> bool:
        """Is there a process with a higher number?"""
        return any(_number(path) > self.number and _is_held(path) for path in _tickets(self.folder))


@contextlib.contextmanager
def _limited(ticket: _Ticket) -> Iterator[None]:
    """Interrupt what lasts longer than `LIMIT` while somebody waits."""
    ended, expired = threading.Event(), threading.Event()
    thread = threading.get_ident()

    def watch() -> None:
        pause = LIMIT
        while not ended.wait(pause):
            pause = min(LIMIT, 5.0)
            if ticket.somebody_waits():
                expired.set()
                if thread == threading.main_thread().ident:  # only that one can be interrupted
                    signal.pthread_kill(thread, signal.SIGINT)
                return

    watcher = threading.Thread(target=watch, name="metallab-turn", daemon=True)
    watcher.start()
    try:
        yield
        ended.set()
        watcher.join()
    except KeyboardInterrupt:
        if not expired.is_set():
            raise
    finally:
        ended.set()
    if expired.is_set():
        raise TurnExpired(
            f"this measurement had taken more than {LIMIT / 60:.0f} min while others waited, and was interrupted. "
            "Measure less at a time, or when nobody else measures."
        )


class _Line:
    """A line that replaces itself and goes away, in a terminal as below a notebook's cell."""

    def __init__(self) -> None:
        self.text = ""

    def show(self, text: str) -> None:
        if text != self.text:
            print("\r" + text.ljust(len(self.text)), end="", flush=True)
            self.text = text

    def clear(self) -> None:
        if self.text:
            print("\r" + " " * len(self.text) + "\r", end="", flush=True)


def _waiting(before: int, who: str, seconds: float) -> str:
    queue = "1 measurement" if before == 1 else f"{before} measurements"
    doing = f"has been measuring for {seconds / 60:.0f} min" if seconds >= 60 else "is measuring"
    return f"Waiting for a turn to measure: {queue} before yours; {who} {doing}."


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder itself."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _tickets(folder: Path) -> list[Path]:
    """All numbers that lie in the folder, the lowest first, also those of processes that are gone."""
    return sorted((path for path in folder.iterdir() if path.name.isdecimal()), key=_number)


def _number(path: Path) -> int:
    return int(path.name)


def _is_held(path: Path) -> bool:
    """Does the process that drew this number still live, and has not handed it back? A number is a plain file."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return False
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except (BlockingIOError, PermissionError):  # the latter: it is being drawn
        return True
    return False


def _read(path: Path) -> tuple[str, float | None]:
    """Whose number it is, and when the turn began by this computer's monotonic clock; None if it has not yet."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        who, *times = path.read_text(encoding="utf-8").splitlines()
        if who.isprintable():  # it is shown to others
            return who[:40], float(times[0]) if times else None
    return "somebody", None
