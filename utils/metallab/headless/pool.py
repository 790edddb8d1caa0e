"""The parent's side of the workers: starting, hearing, watching and ending them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from metallab import mode as modes
from metallab.device import NAMES
from metallab.headless.devices import resolve_device
from metallab.headless.jobs import (
    CELL_TIMEOUT,
    INTERRUPTED,
    TIMEOUT,
    Job,
    NotebookResult,
    cannot_write,
    make_job,
)
from metallab.notebook import Failure, check_replaced, show_failure
from metallab.paths import write_atomically
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
    job = make_job(
        path,
        mode,
        kind,
        out,
        failed,
        cell_timeout=cell_timeout,
        timeout=timeout,
        replace=dict(replace or {}),
        allow_errors=allow_errors,
    )
    results: list[NotebookResult] = []
    Pool([job], finished=results.append).run()
    return results[0]


@dataclass
class Pool:
    """Runs jobs, at most ``parallel`` at a time; when it returns, by whatever way, no process of theirs is left."""

    jobs: list[Job]
    parallel: int = 1
    keep: tuple[int, ...] = ()
    """Descriptors that the workers inherit."""
    wake: int | None = None
    """A descriptor that becomes readable when the run shall stop."""
    starting: Callable[[Job], None] = lambda job: None
    progress: Callable[[list[Running]], None] = lambda running: None
    finished: Callable[[NotebookResult], None] = lambda result: None

    def run(self) -> bool:
        """Runs them all; False if it was told to stop. What runs then fails as interrupted, what waits is left."""
        self.running: list[Running] = []
        self.waiting = deque(self.jobs)
        self.stopped = False
        with selectors.DefaultSelector() as self.selector:
            if self.wake is not None:
                self.selector.register(self.wake, selectors.EVENT_READ)
            try:
                while self.waiting or self.running:
                    self._start()
                    self._step()
            finally:
                for running in self.running:  # only if something was raised: the loop ends with none
                    running.kill()
                    running.close()
        return not self.stopped

    def _start(self) -> None:
        while self.waiting and len(self.running) < self.parallel:
            job = self.waiting.popleft()
            self.starting(job)
            job.remove_stale()
            try:
                job.scratch = new_scratch()
                running = Running(job, self.keep)
            except OSError as error:
                if job.scratch:
                    shutil.rmtree(job.scratch, ignore_errors=True)
                raise cannot_write(job.scratch or tempfile.gettempdir(), error) from error
            self.running.append(running)
            self.selector.register(running.events, selectors.EVENT_READ, running)

    def _step(self) -> None:
        """Waits for an event, at most until the next look at memory."""
        for key, _ in self.selector.select(timeout=SAMPLE_EVERY):
            if key.data is None:
                self._stop()
            elif not key.data.listen():
                self._end(key.data)
        for running in list(self.running):
            running.sample()
            if time.monotonic() > running.deadline:
                running.why = running.why or f"the worker did not answer {HANG_GRACE:g} s after the notebook's timeout"
                running.kill()
                running.deadline = float("inf")
        self.progress(self.running)

    def _stop(self) -> None:
        self.stopped = True
        self.selector.unregister(self.wake)
        self.waiting.clear()
        for running in self.running:
            running.stop(INTERRUPTED, STOP_GRACE)

    def _end(self, running: Running) -> None:
        self.selector.unregister(running.events)
        self.running.remove(running)
        self.finished(running.close())


class Running:
    """A worker that runs a job, as the parent sees it."""

    def __init__(self, job: Job, keep: tuple[int, ...]) -> None:
        self.job = job
        self.title, self.cells, self.number, self.index = job.name, 0, 0, None
        self.kernel = None
        self.result: NotebookResult | None = None
        self.why = ""
        self.peak = 0
        self.started = self.sampled = time.monotonic()
        self.deadline = self.started + job.timeout + HANG_GRACE if job.timeout else float("inf")
        self.events, self.pending = -1, b""
        self.process = self._start(keep)

    def _start(self, keep: tuple[int, ...]) -> subprocess.Popen:
        """Starts the worker. It inherits ``keep``, the folder's lock, so that an orphan still guards its folder."""
        scratch = Path(self.job.scratch)
        (scratch / "job.json").write_text(json.dumps(dataclasses.asdict(self.job)))
        self.events, theirs = os.pipe()
        # Without METALLAB_DEVICE: importing metallab would arm the simulation in the worker as well.
        ours = {name: value for name, value in os.environ.items() if name != "METALLAB_DEVICE"}
        command = [sys.executable, "-P", "-m", "metallab.headless.worker", str(scratch / "job.json"), str(theirs)]
        try:
            with (scratch / "worker.log").open("wb") as log:
                return subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env=ours,
                    pass_fds=(theirs, *keep),
                    start_new_session=True,  # Ctrl-C in the terminal is for the parent, which closes the lifeline
                )
        finally:
            os.close(theirs)

    def listen(self) -> bool:
        """Takes in what the worker wrote; False once it has closed its end, which it does by ending."""
        received = os.read(self.events, 1 << 16)
        *lines, self.pending = (self.pending + received).split(b"\n")
        for line in lines:
            self.take(json.loads(line))
        return bool(received)

    def take(self, event: dict) -> None:
        """Takes in one event."""
        match event["event"]:
            case "read":
                self.title, self.cells = event["title"], event["cells"]
            case "kernel":
                self.kernel = find_process(event["pid"])
            case "cell":
                self.number, self.index = event["number"], event["index"]
            case "done":
                path = event["result"].pop("notebook")
                self.result = NotebookResult(**event["result"], notebook=Path(path) if path else None)

    def sample(self) -> None:
        """Looks at the kernel's memory, if it is time to."""
        if self.kernel is not None and time.monotonic() - self.sampled >= SAMPLE_EVERY:
            self.sampled = time.monotonic()
            self.peak = max(self.peak, resident_bytes(self.kernel))

    def stop(self, why: str, grace: float) -> None:
        """Cuts the lifeline, and sets the time after which the worker is killed."""
        self.why = self.why or why
        self.process.stdin.close()
        self.deadline = time.monotonic() + grace

    def kill(self) -> None:
        """Kills the worker and its kernel, with all their descendants."""
        if self.process.poll() is None:
            kill_family(find_process(self.process.pid))
        kill_family(self.kernel, Path(self.job.scratch).name)

    def close(self) -> NotebookResult:
        """Once the worker has ended: leaves no process and no scratch folder behind, and returns the result."""
        self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5)
        self.kill()  # also what a cell left running, which would disturb the next notebook's numbers
        code = self.process.wait()
        os.close(self.events)
        result = self.result or self.lost(code)
        shutil.rmtree(self.job.scratch, ignore_errors=True)
        result.peak_rss_bytes = max(result.peak_rss_bytes, self.peak)
        result.seconds = round(time.monotonic() - self.started, 3)
        return result

    def lost(self, code: int) -> NotebookResult:
        """The failure of a worker that ended without a result: completes the partial notebook it left."""
        log = last_words(Path(self.job.scratch, "worker.log"))
        where = f"cell {self.number}: " if self.number else ""
        reason = self.why or f"{where}the worker process {describe_exit(code)}"
        result = NotebookResult(self.job.name, self.title, reason=reason, cells=self.cells, traceback=log)
        result.cell = self.number or None
        try:
            self._complete(result, log)
        except OSError as error:
            result.reason += f"; and {cannot_write(self.job.failed, error)}"
        return result

    def _complete(self, result: NotebookResult, log: str) -> None:
        if not self.job.partial.exists():
            write_atomically(self.job.note, f"{self.job.path}\n{result.reason}\n{log}\n")
            result.failed_copy = os.path.relpath(self.job.note, self.job.out)
            return
        notebook = json.loads(self.job.partial.read_text(encoding="utf-8"))
        result.executed = sum(1 for cell in notebook["cells"] if cell.get("execution_count"))
        result.notebook, result.failed_copy = self.job.partial, os.path.relpath(self.job.partial, self.job.out)
        show_failure(notebook, Failure(result.reason, index=self.index))
        write_atomically(self.job.partial, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def new_scratch() -> str:
    """A new folder for a worker's job, logs and sockets; its path is short, as those of sockets must be (104 bytes)."""
    usual = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="metallab-", dir=usual if len(usual) < 70 else "/tmp")
