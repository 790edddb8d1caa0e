"""Start a fresh interpreter for a piece of code, wait for it, and end what it has started."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from metallab import paths
from metallab.isolated.answers import unpack
from metallab.isolated.outcome import ChildFailed, Outcome
from metallab.processes import describe_exit, find_process, kill_family, mark

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",  # PyTorch, OpenBLAS
    "VECLIB_MAXIMUM_THREADS": "1",  # Accelerate, which computes PyTorch's matrix products on a Mac
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "NPROC": "1",  # XLA's thread pool, read when JAX starts; newer releases read the second
    "PJRT_NPROC": "1",
}
"""Environment variables that limit frameworks to one thread; read when a framework starts its pools."""

_SECOND = "_METALLAB_ISOLATED"
"""An environment variable of the processes that are started here, and of theirs."""


def run(
    source: str,
    *,
    results: Sequence[str] = (),
    threads: int | None = None,
    device: Literal["mps"] | None = None,
    environment: Mapping[str, str] | None = None,
    timeout: float = 120.0,
) -> Outcome:
    """Execute Python text in a fresh interpreter and wait for it, at most ``timeout`` seconds.

    Parameters
    ----------
    source
        The text.
    results
        Variables of the text whose values come back, by pickle: turn a framework's arrays into NumPy's.
    threads
        1 limits frameworks to one CPU thread, and on Linux the process to one core; None is no limit.
    device
        ``"mps"`` is an Apple GPU, real or simulated; None is this run's devices.
    environment
        Added to this process's; a ``PYTHONPATH`` is put first.
    timeout
        Seconds after which it is stopped.

    Returns
    -------
    Outcome
        How it ended, what it printed, and the results by name: ``outcome["y"]``.

    Raises
    ------
    ValueError
        For another number of threads or another device.
    ChildFailed
        If the folder for temporary files cannot be written.

    Examples
    --------
    >>> outcome = run("y = 6 * 7", results=["y"])
    >>> outcome["y"]
    42
    >>> print(run("1 / 0"))
    raised: ZeroDivisionError: division by zero
    """
    variables = build_environment(device, threads, environment or {})
    # the child sets it when it can report an error: where it is set from the start, importing metallab prepares it
    wanted = variables.pop("METALLAB_DEVICE", "")
    task = pickle.dumps((source, tuple(results), wanted, threads))
    try:
        with tempfile.TemporaryDirectory(prefix="metallab-child-") as name:
            return _run_in(Path(name), task, variables, timeout)
    except OSError as error:
        where = tempfile.gettempdir()
        raise ChildFailed(
            f"no child process: {where} cannot be written ({error.strerror}); make room there"
        ) from error


def _run_in(folder: Path, task: bytes, variables: Mapping[str, str], timeout: float) -> Outcome:
    """Start the child with a folder for its task, its answer and what it prints, wait for it, and return how it ended.

    Parameters
    ----------
    folder
        An empty folder; its name marks the child and what that starts.
    task
        What the child unpickles: text, names of results, device and threads.
    variables
        Its environment.
    timeout
        Seconds after which it is stopped, and the outcome is ``timeout``.
    """
    (folder / "task").write_bytes(task)
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        child = subprocess.Popen(
            # -P: no module of the working directory takes the place of one of Python's
            [sys.executable, "-P", "-m", "metallab.isolated", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=mark(variables, folder.name),
            start_new_session=True,
        )
        is_late = _wait(child, timeout, folder.name)

    printed = (folder / "out").read_text("utf-8", "replace")
    errors = (folder / "err").read_text("utf-8", "replace")
    if is_late:
        return Outcome("timeout", printed, describe_timeout(timeout), errors)
    return _read_answer(folder / "answer", child.returncode, printed, errors)


def _wait(child: subprocess.Popen, timeout: float, name: str) -> bool:
    """Wait for a child, and end what it has started; return whether it took too long and was stopped."""
    head = find_process(child.pid)
    try:
        child.wait(timeout)
    except subprocess.TimeoutExpired:
        return True
    finally:
        kill_family(head, name)
        child.wait()
    return False


def describe_timeout(seconds: float) -> str:
    """Return why something was stopped that took longer than it may."""
    return f"took longer than {seconds:g} s and was stopped"


def _read_answer(answer: Path, code: int, printed: str, errors: str) -> Outcome:
    """Return the outcome in a child's file; a crash if there is none."""
    if code != 0 or not answer.exists():
        reason = f"the process {describe_exit(code)}"
        if code == 0:
            reason += " before it answered"
        return Outcome("crashed", printed, reason, errors, exit_code=code)

    outcome = unpack(answer.read_bytes())
    return replace(outcome, printed=printed, detail=outcome.detail or errors)


def build_environment(
    device: str | None, threads: int | None, own: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of another process: this one's, with what device and threads ask for.

    Parameters
    ----------
    device, threads
        As `run` takes them.
    own
        Variables that come before all others but METALLAB_DEVICE; a ``PYTHONPATH`` is put before this process's.

    Raises
    ------
    ValueError
        For another number of threads or device.
    """
    if threads not in (None, 1):
        raise ValueError(f"threads is {threads}; a child process runs on all (None) or on 1")
    if device not in (None, "mps"):
        raise ValueError(
            f"device is {device!r}; a child process has this run's devices (None) or an Apple GPU ('mps')"
        )

    variables = dict(os.environ)
    variables["METALLAB_BUILD"] = str(paths.BUILD)  # even if this process has changed its folder
    variables[_SECOND] = "1"
    if threads:
        variables |= ONE_THREAD
    variables |= own

    if own.get("PYTHONPATH") and os.environ.get("PYTHONPATH"):
        variables["PYTHONPATH"] = f"{own['PYTHONPATH']}{os.pathsep}{os.environ['PYTHONPATH']}"
    if device:
        variables["METALLAB_DEVICE"] = "mps" if sys.platform == "darwin" else "sim"
    return variables


def is_second_kernel() -> bool:
    """Return whether this process was started here, for a cell or by `run`, or by such a process."""
    return _SECOND in os.environ
