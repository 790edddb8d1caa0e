"""Processes: how they ended, what they use, and how to end one with all its descendants."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

import psutil


def find_process(pid: int) -> psutil.Process | None:
    """The psutil.Process with this number, which remembers who it is when the number is reused; None if it has gone."""
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def family(head: psutil.Process) -> list[psutil.Process]:
    """A session leader, its descendants, and its session: those whose parent has gone stay in that."""
    if not head.is_running() and psutil.pid_exists(head.pid):
        return []  # all gone, and the number belongs to a stranger
    found = {head, *map(find_process, (pid for pid in psutil.pids() if in_session(pid, head.pid)))} - {None}
    with contextlib.suppress(psutil.NoSuchProcess):
        found.update(head.children(recursive=True))
    return list(found)


def in_session(pid: int, session: int) -> bool:
    """Whether a process belongs to a session; one that has gone, or may not be asked, does not."""
    try:
        return os.getsid(pid) == session
    except (ProcessLookupError, PermissionError):
        return False


def kill_family(head: psutil.Process | None) -> None:
    """Kills a session leader with its descendants and its session, and waits up to 5 s until they have gone."""
    found = family(head) if head is not None else []
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(found, timeout=5)


class Lifeline:
    """Kills the kernel once standard input closes: the parent wants this worker to stop, or has gone."""

    def __init__(self) -> None:
        self.cut = False
        self.kernel: psutil.Process | None = None

    def watch(self) -> None:
        """Starts the thread that waits for the end of standard input; nothing is ever written to it."""
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        while os.read(0, 1):
            continue
        self.cut = True
        kill_family(self.kernel)

    def hold(self, kernel: int) -> None:
        """Takes charge of a kernel. It may be cut already; whichever comes second, this or the end, kills it."""
        self.kernel = find_process(kernel)
        if self.cut:
            kill_family(self.kernel)


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


def last_words(log: Path, lines: int = 12) -> str:
    """What a log, if there is one, says of the end: a crash's Python stack, innermost call first, or its last lines."""
    if not log.exists():
        return ""
    found = log.read_text(encoding="utf-8", errors="replace").splitlines()
    crash = next((i for i, line in enumerate(found) if line.startswith("Fatal Python error")), None)
    return "\n".join(found[-lines:] if crash is None else found[crash : crash + lines])
