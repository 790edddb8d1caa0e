"""The parent's side of the workers: starting, hearing, watching and ending them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from metallab import mode as modes
from metallab.device import NAMES
from metallab.headless.devices import resolve_device
from metallab.headless.jobs import CELL_TIMEOUT, INTERRUPTED, TIMEOUT, Job, NotebookResult, cannot_write, fail, make_job
from metallab.notebook import Failure, check_replaced
from metallab.processes import describe_exit, find_process, kill_family, last_words, resident_bytes

STOP_GRACE = 15.0
"""Seconds that a worker has to save its notebook and leave once it is told to stop; then it is killed."""
HANG_GRACE = 60.0
"""Seconds after a notebook's own timeout at which a worker that did not act on it is taken for hung."""
SAMPLE_EVERY = 1.0
"""Seconds between two looks at the kernel's memory: seldom, because looking takes time from what is measured."""


def run_notebook(
    path: str | Path,
    *,
    mode: str = "fast",
    device: str = "cpu",
    out: str | Path | None = None,
    failed: str | Path | None = None,
    cell_timeout: float = CELL_TIMEOUT,
    timeout: float = TIMEOUT,
    replace: Mapping[str, str] | None = None,
    allow_errors: bool = False,
) -> NotebookResult:
    """Runs one notebook in a process of its own and waits for it.

    ``out`` is the folder for the executed notebook and its results (default: that of the mode and device),
    ``failed`` the one for a partial notebook (default: ``build/failed/<mode>-<device>``, or ``failed`` in ``out`` if
    that is given). ``cell_timeout`` and ``timeout`` are seconds, 0 means no limit. ``replace`` maps the ids of cells
    to the source they get before the run, an empty one takes the cell out. With ``allow_errors`` it runs on after an
    error; it still fails. Neither summary.json nor the folder's lock is touched: runs that share ``out`` must be of
    different notebooks.

    Raises ValueError on an unknown mode or device, if ``replace`` names a cell that the notebook does not have, or if
    the run would write over the notebook itself; UsageError, which is one, if the device is not there.
    A notebook that fails, or can't be read, is a result.
    """
    if mode not in modes.MODES or device not in NAMES:
        raise ValueError(f"mode is one of {', '.join(modes.MODES)}, device one of {', '.join(NAMES)}")
    path = Path(path).absolute()
    check_replaced(path, replace or {})
    kind = resolve_device(device)["device"] if device == "auto" else device
    limits = {"cell_timeout": cell_timeout, "timeout": timeout}
    job = make_job(path, mode, kind, out, failed, replace=dict(replace or {}), allow_errors=allow_errors, **limits)
    results: list[NotebookResult] = []
    Pool([job], finished=results.append).run()
    return results[0]


@dataclass
class Pool:
    """Runs jobs, at most ``parallel`` at a time; when it returns, by whatever way, no process of theirs is left."""

    jobs: list[Job]
    parallel: int = 1
    keep: tuple[int, ...] = ()
    """Descriptors that the workers inherit: the folder's lock, so that an orphan still guards its folder."""
    stoppable: bool = False
    """Whether Ctrl-C, SIGTERM and a closed terminal stop the run, which takes `STOP_GRACE` at most, instead of raising
    in the middle of a write. What `nohup` ignores stays ignored."""
    starting: Callable[[Job], None] = lambda job: None
    progress: Callable[[list[Running]], None] = lambda running: None
    finished: Callable[[NotebookResult], None] = lambda result: None

    def run(self) -> bool:
        """Runs them all; False if it was told to stop. What runs then fails as interrupted, what waits is left."""
        return asyncio.run(self._run())

    async def _run(self) -> bool:
        self.running: list[Running] = []
        self.waiting = deque(self.jobs)
        self.stopped = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if self.stoppable else ():
            if signal.getsignal(number) != signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(number, self._stop)
        try:
            await asyncio.gather(*(self._lane() for _ in range(self.parallel)))
        finally:
            for running in self.running:  # only if something was raised: the lanes end with none
                running.kill()
                shutil.rmtree(running.job.scratch, ignore_errors=True)
        return not self.stopped

    async def _lane(self) -> None:
        """Runs one job after the other."""
        while self.waiting:
            job = self.waiting.popleft()
            self.starting(job)
            job.remove_stale()
            try:
                job.scratch = new_scratch()
                running = Running(job, await start_worker(job, self.keep))
            except OSError as error:
                shutil.rmtree(job.scratch, ignore_errors=True)
                raise cannot_write(job.scratch or tempfile.gettempdir(), error) from error
            self.running.append(running)
            if self.stopped:  # meanwhile
                running.stop()
            while await running.listen():
                self.progress(self.running)
            result = await running.close()
            self.running.remove(running)
            self.finished(result)

    def _stop(self) -> None:
        self.stopped = True
        self.waiting.clear()
        for running in self.running:
            running.stop()


class Running:
    """A worker that runs a job, as the parent sees it."""

    def __init__(self, job: Job, process: asyncio.subprocess.Process) -> None:
        self.job, self.process = job, process
        self.known: dict = {"name": job.name, "title": job.name}
        """What the worker has told: fields of `NotebookResult`, and more (see `metallab.headless.worker`)."""
        self.kernel: psutil.Process | None = None
        self.why = ""
        self.peak = 0
        self.started = self.sampled = time.monotonic()
        self.deadline = self.started + job.timeout + HANG_GRACE if job.timeout else float("inf")

    async def listen(self) -> bool:
        """Takes in what the worker tells next, if it is soon; False once it has closed its end, by ending."""
        try:
            line = await asyncio.wait_for(self.process.stdout.readline(), SAMPLE_EVERY)
        except TimeoutError:
            line = b"{}\n"
        if line.endswith(b"\n"):  # else it was killed in the middle of it
            self.known |= json.loads(line)
        if "kernel" in self.known and self.kernel is None:
            self.kernel = find_process(self.known["kernel"])
        now = time.monotonic()
        if self.kernel and now - self.sampled >= SAMPLE_EVERY:
            self.sampled, self.peak = now, max(self.peak, resident_bytes(self.kernel))
        if now > self.deadline:
            self.why = self.why or f"the worker did not answer {HANG_GRACE:g} s after the notebook's timeout"
            self.deadline = float("inf")
            self.kill()
        return bool(line)

    def stop(self) -> None:
        """Cuts the lifeline, and sets the time after which the worker is killed."""
        self.why = self.why or INTERRUPTED
        self.process.stdin.close()
        self.deadline = time.monotonic() + STOP_GRACE

    def kill(self) -> None:
        """Kills the worker and its kernel, with all their descendants."""
        if self.process.returncode is None:
            kill_family(find_process(self.process.pid))
        kill_family(self.kernel, Path(self.job.scratch).name)

    async def close(self) -> NotebookResult:
        """Once the worker has ended: leaves no process and no scratch folder behind, and returns the result."""
        self.process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), 5)
        self.kill()  # also what a cell left running, which would disturb the next notebook's numbers
        code = await self.process.wait()
        fields = {field.name for field in dataclasses.fields(NotebookResult)}
        result = NotebookResult(**{name: value for name, value in self.known.items() if name in fields})
        if "done" not in self.known:
            log = last_words(Path(self.job.scratch, "worker.log"))
            where = f"cell {result.cell}: " if result.cell else ""
            reason = self.why or f"{where}the worker process {describe_exit(code)}"
            fail(self.job, result, Failure(reason, result.cell, self.known.get("index"), log))
        shutil.rmtree(self.job.scratch, ignore_errors=True)
        result.peak_rss_bytes = max(result.peak_rss_bytes, self.peak)
        result.seconds = round(time.monotonic() - self.started, 3)
        return result


async def start_worker(job: Job, keep: tuple[int, ...]) -> asyncio.subprocess.Process:
    """A worker for a job, which lies in its standard input."""
    # Without METALLAB_DEVICE: importing metallab would arm the simulation in the worker as well.
    environment = {name: value for name, value in os.environ.items() if name != "METALLAB_DEVICE"}
    with Path(job.scratch, "worker.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "metallab.headless.worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            limit=1 << 30,  # of a line, which may hold a long traceback
            env=environment,
            pass_fds=keep,
            start_new_session=True,  # Ctrl-C in the terminal is for the parent, which closes the lifeline
        )
    process.stdin.write(json.dumps(dataclasses.asdict(job)).encode() + b"\n")
    return process


def new_scratch() -> str:
    """A new folder for a worker's log and sockets; its path is short, as those of sockets must be (104 bytes)."""
    usual = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="metallab-", dir=usual if len(usual) < 70 else "/tmp")
