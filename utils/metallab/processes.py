"""Processes: how they ended, what they use, and how to end one with all its descendants."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

MARK = "_METALLAB_FAMILY"
"""An environment variable: the names of the families that a process belongs to, with a colon before each."""
_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <sys/prctl.h>


def run(command: Sequence[str | Path], timeout: float | None = None, **options: Any) -> subprocess.CompletedProcess:
    """Run a command in a session of its own, and end everything that it started when it ends or takes too long.

    `subprocess.run` kills the command alone: a compiler that it had started would go on.

    Parameters
    ----------
    command : sequence of str or Path
    timeout : float, optional
        Seconds.
    **options
        Those of `subprocess.Popen`.

    Returns
    -------
    subprocess.CompletedProcess

    Raises
    ------
    subprocess.TimeoutExpired
        If it did not end in time, or something that it started holds its output open.
    """
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        head = find_process(process.pid)
        try:
            output, errors = process.communicate(timeout=timeout)
        finally:
            kill_family(head)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def find_process(pid: int) -> psutil.Process | None:
    """The psutil.Process with this number, which remembers who it is when the number is reused; None if it has gone."""
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def marked(environment: Mapping[str, str], name: str) -> dict[str, str]:
    """An environment by which `family` knows a process and whatever it starts; a family inside a family has both names.

    ``name`` is one that no other process has, such as that of a temporary folder.
    """
    return {**environment, MARK: f"{environment.get(MARK, '')}:{name}"}


def has_mark(process: psutil.Process, name: str) -> bool:
    """Whether a process was started with an environment that is `marked` so; one that does not tell was not."""
    try:
        return name in process.environ().get(MARK, "").split(":")
    except (psutil.Error, OSError):
        return False


def adopt_orphans() -> bool:
    """From now on a descendant of this process whose parent ends becomes its child; False where that can't be had.

    Linux calls it a subreaper. So nothing that a child starts gets away, whatever session it makes for itself and
    whatever environment. macOS has nothing like it: there `marked` has to do, which does not find what has emptied its
    environment, and none of macOS's own programs, whose environment it does not tell.
    """
    if sys.platform != "linux":
        return False
    return ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def family(head: psutil.Process | None, name: str = "") -> list[psutil.Process]:
    """A session leader, its descendants, its session, and what has its mark: those whose parent has gone stay in these.

    Those that have ended already are left out.
    """
    members = {process for process in psutil.process_iter() if name and has_mark(process, name)}
    if head is not None and (head.is_running() or not psutil.pid_exists(head.pid)):  # else a stranger has the number
        members |= {head, *map(find_process, (pid for pid in psutil.pids() if in_session(pid, head.pid)))} - {None}
        with contextlib.suppress(psutil.NoSuchProcess):
            members.update(head.children(recursive=True))
    return [process for process in members if runs(process)]


def runs(process: psutil.Process) -> bool:
    """Whether a process has not ended; one that nobody has asked for its exit status yet has."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def in_session(pid: int, session: int) -> bool:
    """Whether a process belongs to a session; one that has gone, or may not be asked, does not."""
    try:
        return os.getsid(pid) == session
    except (ProcessLookupError, PermissionError):
        return False


def kill_family(head: psutil.Process | None, name: str = "") -> None:
    """Kills a `family`, and waits until it has gone, up to 5 s each time that there is more of it."""
    _kill(lambda: family(head, name))


def kill_descendants() -> None:
    """Kills all that this process and its descendants have started; orphans among them after `adopt_orphans`."""
    _kill(lambda: [process for process in psutil.Process().children(recursive=True) if runs(process)])


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
    """``was killed by SIGKILL`` or ``exited with code 3``, from a return code as subprocess gives it."""
    if code is None:
        return "stopped answering"
    if code >= 0:
        return f"exited with code {code}"
    known = {number.value: number.name for number in signal.Signals}
    name = known.get(-code, f"signal {-code}")  # real-time signals have no name
    return f"was killed by {name}" + (" (often the system, for lack of memory)" if name == "SIGKILL" else "")


def last_words(log: Path, lines: int = 12, start: int = 0) -> str:
    """What a log, if there is one, says of the end: a crash's Python stack, innermost call first, or its last lines.

    Its first ``start`` bytes are not looked at.
    """
    if not log.exists():
        return ""
    log_lines = log.read_bytes()[start:].decode("utf-8", errors="replace").splitlines()
    crash = next((i for i, line in enumerate(log_lines) if line.startswith("Fatal Python error")), None)
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
