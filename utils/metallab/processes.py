"""Processes: how they ended, what they use, and how to end one with all its descendants."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil

MARK = "_METALLAB_FAMILY"
"""An environment variable: the names of the families that a process belongs to, with a colon before each."""
_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <sys/prctl.h>


def find_process(pid: int) -> psutil.Process | None:
    """Return the process with this number; None if it has ended."""
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def mark(environment: Mapping[str, str], name: str) -> dict[str, str]:
    """Return an environment by which `find_family` finds a process and whatever it starts.

    Parameters
    ----------
    environment
        What the process would be started with.
    name
        Unique, such as that of a temporary folder.
    """
    return {**environment, MARK: f"{environment.get(MARK, '')}:{name}"}


def is_marked(process: psutil.Process, name: str) -> bool:
    """Return True if a process was started with an environment that `mark` made."""
    try:
        return name in process.environ().get(MARK, "").split(":")
    except (psutil.Error, OSError):
        return False


def adopt_orphans() -> bool:
    """Become the parent of every descendant whose parent ends; False where the system cannot do that.

    Linux calls it a subreaper. macOS has none: there `mark` must suffice, which misses processes that have emptied
    their environment, and macOS's own programs.
    """
    if sys.platform != "linux":
        return False
    return ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def find_family(head: psutil.Process | None, name: str = "") -> list[psutil.Process]:
    """Return the running processes of a session leader: itself, descendants, its session, and those with its mark.

    Parameters
    ----------
    head
        The session leader; None if it has ended.
    name
        Of its mark; nothing if it has none.
    """
    members = set()
    if name:
        members |= {process for process in psutil.process_iter() if is_marked(process, name)}

    # else a stranger has the number
    if head is not None and (head.is_running() or not psutil.pid_exists(head.pid)):
        members.add(head)
        members |= _find_session(head.pid)
        with contextlib.suppress(psutil.NoSuchProcess):
            members.update(head.children(recursive=True))
    return [process for process in members if is_alive(process)]


def _find_session(session: int) -> set[psutil.Process]:
    """Return the processes of a session."""
    found = (find_process(pid) for pid in psutil.pids() if is_in_session(pid, session))
    return {process for process in found if process is not None}


def is_alive(process: psutil.Process) -> bool:
    """Return True if the process is running; a zombie is not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_in_session(pid: int, session: int) -> bool:
    """Return True if a process belongs to a session, as far as can be known."""
    try:
        return os.getsid(pid) == session
    except (ProcessLookupError, PermissionError):
        return False


def kill_family(head: psutil.Process | None, name: str = "") -> None:
    """Kill a family, as `find_family` finds it, and wait until it has gone."""
    _kill(lambda: find_family(head, name))


def kill_descendants() -> None:
    """Kill all descendants of this process; orphans as well after `adopt_orphans`."""
    _kill(_find_descendants)


def _find_descendants() -> list[psutil.Process]:
    """Return the running descendants of this process."""
    return [process for process in psutil.Process().children(recursive=True) if is_alive(process)]


def _kill(find: Callable[[], list[psutil.Process]]) -> None:
    """Kill what a function finds, and wait until it has gone, five seconds at most."""
    for _ in range(3):  # what was started while they were being killed comes next
        members = find()
        if not members:
            return

        for process in members:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                process.kill()
        deadline = time.monotonic() + 5
        while any(map(is_alive, members)) and time.monotonic() < deadline:
            time.sleep(0.005)


def resident_bytes(head: psutil.Process) -> int:
    """Return the resident memory of a process and its descendants now, in bytes; 0 if it has gone."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in (head, *head.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                total += process.memory_info().rss
    return total


def describe_exit(code: int | None) -> str:
    """Return ``was killed by SIGKILL`` or ``exited with code 3`` for a return code of subprocess."""
    if code is None:
        return "stopped answering"
    if code >= 0:
        return f"exited with code {code}"

    names = {number.value: number.name for number in signal.Signals}
    name = names.get(-code, f"signal {-code}")  # real-time signals have no name
    if name == "SIGKILL":
        return f"was killed by {name} (often the system, for lack of memory)"
    return f"was killed by {name}"


def last_words(log: Path, lines: int = 12, start: int = 0) -> str:
    """Return the end of a log, or a crash's Python stack, innermost call first; '' without a log.

    Parameters
    ----------
    log
        The file.
    lines
        How many.
    start
        Bytes that are skipped.
    """
    if not log.exists():
        return ""

    log_lines = log.read_bytes()[start:].decode("utf-8", errors="replace").splitlines()
    for number, line in enumerate(log_lines):
        if line.startswith("Fatal Python error"):
            return "\n".join(log_lines[number : number + lines])
    return "\n".join(log_lines[-lines:])


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as Ctrl-C within this block."""
    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
