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


def marked(environment: Mapping[str, str], name: str) -> dict[str, str]:
    """Return an environment by which `family` finds a process and whatever it starts.

    ``name`` is unique, such as that of a temporary folder.
    """
    return {**environment, MARK: f"{environment.get(MARK, '')}:{name}"}


def has_mark(process: psutil.Process, name: str) -> bool:
    """Return True if a process was started with an environment that is `marked` so."""
    try:
        return name in process.environ().get(MARK, "").split(":")
    except (psutil.Error, OSError):
        return False


def adopt_orphans() -> bool:
    """Become the parent of every descendant whose parent ends; False where the system cannot do that.

    Linux calls it a subreaper. macOS has none: there `marked` must suffice, which misses processes that have emptied
    their environment, and macOS's own programs.
    """
    if sys.platform != "linux":
        return False
    return ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def family(head: psutil.Process | None, name: str = "") -> list[psutil.Process]:
    """Return the running processes of a session leader: itself, descendants, its session, and those with its mark."""
    members = {process for process in psutil.process_iter() if name and has_mark(process, name)}
    if head is not None and (
        head.is_running() or not psutil.pid_exists(head.pid)
    ):  # else a stranger has the number
        members |= {
            head,
            *map(find_process, (pid for pid in psutil.pids() if in_session(pid, head.pid))),
        } - {None}
        with contextlib.suppress(psutil.NoSuchProcess):
            members.update(head.children(recursive=True))
    return [process for process in members if runs(process)]


def runs(process: psutil.Process) -> bool:
    """Return True if the process is running; a zombie is not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def in_session(pid: int, session: int) -> bool:
    """Return True if a process belongs to a session, as far as can be known."""
    try:
        return os.getsid(pid) == session
    except (ProcessLookupError, PermissionError):
        return False


def kill_family(head: psutil.Process | None, name: str = "") -> None:
    """Kill a `family` and wait until it has gone."""
    _kill(lambda: family(head, name))


def kill_descendants() -> None:
    """Kill all descendants of this process; orphans as well after `adopt_orphans`."""
    _kill(
        lambda: [process for process in psutil.Process().children(recursive=True) if runs(process)]
    )


def _kill(find: Callable[[], list[psutil.Process]]) -> None:
    for _ in range(3):  # what was started while they were being killed comes next
        if not (members := find()):
            return
        for process in members:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                process.kill()
        deadline = time.monotonic() + 5
        while any(map(runs, members)) and time.monotonic() < deadline:
            time.sleep(0.005)


def resident_bytes(head: psutil.Process) -> int:
    """Resident memory of a process and its descendants now, in bytes; 0 if it has gone."""
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
    known = {number.value: number.name for number in signal.Signals}
    name = known.get(-code, f"signal {-code}")  # real-time signals have no name
    return f"was killed by {name}" + (
        " (often the system, for lack of memory)" if name == "SIGKILL" else ""
    )


def last_words(log: Path, lines: int = 12, start: int = 0) -> str:
    """Return the end of a log, or a crash's Python stack, innermost call first; '' without a log.

    Its first ``start`` bytes are skipped.
    """
    if not log.exists():
        return ""
    log_lines = log.read_bytes()[start:].decode("utf-8", errors="replace").splitlines()
    crash = next(
        (i for i, line in enumerate(log_lines) if line.startswith("Fatal Python error")), None
    )
    return "\n".join(log_lines[-lines:] if crash is None else log_lines[crash : crash + lines])


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
