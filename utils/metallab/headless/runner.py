"""Run one notebook in a process of its own, watch it, and report the result."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any, cast

from metallab import isolated, paths
from metallab.notebook import Failure, count_whole_cells, group_gaps, save, show_failure
from metallab.outcomes import Status
from metallab.processes import describe_exit, find_process, kill_family, last_words, resident_bytes

CELL_TIMEOUT = 600.0
TIMEOUT = 1800.0
STOP_GRACE = 15.0
"""Seconds until a worker is killed after its input was closed."""
HANG_GRACE = 60.0
"""Seconds after the notebook's time limit until a worker that hangs is killed."""
SAMPLE_EVERY = 1.0
"""Seconds between two readings of the kernel's memory, which disturb what is measured."""
INTERRUPTED = "interrupted"
USED = ".lock"
"""The file that marks a folder of runs."""
PICK_SECONDS = 300.0
"""The first search for a device compiles what it imports, and the simulated GPU."""
PICK = """
from metallab import device
picked = device.pick(framework=device.first_framework())
kind = "sim" if picked.simulated else picked.kind
answer = dict(device=kind, label=picked.label, simulated=bool(picked.simulated))
"""


class UsageError(ValueError):
    """A request that cannot be fulfilled; the message says what to do. Exit code 2."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while a notebook ran, whose partial copy is saved and whose processes have ended.

    Parameters
    ----------
    result
        What came of the notebook: it failed.
    """

    def __init__(self, result: NotebookResult) -> None:
        super().__init__(INTERRUPTED)
        self.result = result


@dataclass
class NotebookResult:
    """The result of one notebook: an entry of ``summary.json``, and details."""

    name: str
    """The file's stem, such as ``03_where_it_ran``."""
    title: str = ""
    """Its H1, or the name."""
    status: Status = "failed"
    seconds: float = 0.0
    """Wall time, including the kernel's start and end."""
    reason: str = ""
    """Why it failed, was skipped or is incomplete; empty when it passed."""
    cells: int = 0
    """Code cells that are not blank."""
    executed: int = 0
    """How many of them ended, with or without an error, or with what they lack (`not_run`)."""
    peak_rss_bytes: int = 0
    """Peak resident memory of the kernel and its children."""
    not_run: list[dict[str, Any]] = field(default_factory=list)
    """Cells that did not run because a tool is missing: ``where``, ``what``, how to ``fix`` it, and ``optional`` if a
    page may do without (`needs.OPTIONAL`)."""
    judgements: list[dict[str, str]] = field(default_factory=list)
    """What its checks said: ``exercise``, ``outcome`` (`metallab.outcomes.Judged`) and ``sentence``."""
    failed_copy: str | None = None
    """The partial notebook, or a text with the reason; relative to the folder of ``summary.json``."""
    notebook: Path | None = None
    """The executed notebook, or the partial one of a failure."""
    cell: int | None = None
    """The number of the cell that failed."""
    traceback: str = ""
    """Its traceback, without colours."""

    @property
    def lacking(self) -> str:
        """The cells that did not run and how to fix it, in one line."""
        if not self.not_run:
            return ""
        cells = group_gaps(self.not_run)
        parts = "; ".join(f"{', '.join(where)}: {what}" for what, where in cells.items())
        fixes = ", ".join(dict.fromkeys(gap["fix"] for gap in self.not_run))
        return f"not run: {parts}. To fix it: {fixes}"

    @property
    def whole_cells(self) -> int:
        """How many cells ran and left nothing out."""
        return count_whole_cells(self.executed, self.not_run)

    @property
    def lacks_required(self) -> bool:
        """Whether something did not run that any machine can have the tools for."""
        return any(not gap.get("optional") for gap in self.not_run)

    def entry(self) -> dict[str, Any]:
        """Return the entry for ``summary.json``."""
        return {name: getattr(self, name) for name in ENTRY}


ENTRY = tuple(
    f.name for f in fields(NotebookResult) if f.name not in ("notebook", "cell", "traceback")
)


@dataclass
class Job:
    """One notebook to run, and how. Times in seconds; 0 means no limit. All folders are absolute."""

    path: str
    mode: str
    device: str
    out: str
    failed: str
    cell_timeout: float = CELL_TIMEOUT
    timeout: float = TIMEOUT
    replace: dict[str, str] = field(default_factory=dict)
    allow_errors: bool = False
    strict: bool = False
    """Whether it fails if it does not run whole, except for want of an optional tool."""
    scratch: str = ""

    @property
    def name(self) -> str:
        """The file's stem, such as ``03_where_it_ran``."""
        return Path(self.path).stem

    @property
    def executed(self) -> Path:
        """The executed notebook."""
        return Path(self.out, f"{self.name}.ipynb")

    @property
    def partial(self) -> Path:
        """The notebook while it runs, and after a failure."""
        return Path(self.failed, f"{self.name}.ipynb")

    @property
    def state(self) -> Path:
        """The file in which the worker writes fields of `NotebookResult`, ``kernel`` (pid), ``index`` and ``done``."""
        return Path(self.scratch, "state.json")


def make_job(
    path: Path,
    mode: str,
    kind: str,
    out: str | Path | None = None,
    failed: str | Path | None = None,
    **options: Any,
) -> Job:
    """Return the job for one notebook.

    Parameters
    ----------
    path
        The notebook.
    mode, kind
        ``fast`` or ``full``, and the kind of device, such as ``cpu``. They name the default folders.
    out
        The folder of the executed notebook; by default METALLAB_OUT, or one in ``build/``.
    failed
        The folder of the partial one, if it fails.
    **options
        Other fields of `Job`.

    Raises
    ------
    UsageError
        If it would write over the notebook itself, or into a folder with notebooks that belongs to no run.
    """
    elsewhere = out or os.environ.get("METALLAB_OUT")
    folder = Path(out or paths.run_folder(mode, kind)).absolute()
    default = folder / "failed" if elsewhere else paths.FAILED / f"{mode}-{kind}"
    failed_folder = Path(failed or default).absolute()
    job = Job(str(path), mode, kind, str(folder), str(failed_folder), **options)

    if path.resolve() in (job.executed.resolve(), job.partial.resolve()):
        raise UsageError(
            f"{path} is where its executed copy would go; choose another folder for the run"
        )
    is_of_a_run = (folder / USED).exists() or folder.resolve().is_relative_to(paths.BUILD.resolve())
    if not is_of_a_run and any(folder.glob("*.ipynb")):
        raise UsageError(
            f"{folder} holds notebooks that no run wrote: name another folder with METALLAB_OUT"
        )
    return job


def resolve_device(name: str) -> dict[str, Any]:
    """Look for a device with `metallab.device.pick`, in a process of its own.

    Parameters
    ----------
    name
        As in METALLAB_DEVICE; ``auto`` takes the best there is.

    Returns
    -------
    dict
        ``device`` (its kind), ``label`` and ``simulated``.

    Raises
    ------
    UsageError
        If there is no such device, with its message.
    """
    environment = {} if name == "auto" else {"METALLAB_DEVICE": name}
    try:
        found = isolated.run(
            PICK, results=["answer"], environment=environment, timeout=PICK_SECONDS
        )
    except isolated.ChildFailed as error:
        raise UsageError(f"looking for a device failed: {error}") from None

    # what these say is written for the user, and so without the name of the class
    if {"DeviceUnavailable", "ValueError", "SimulationUnavailable"} & set(found.kinds):
        _, _, message = found.reason.partition(": ")
        raise UsageError(message)
    if not found.ok:
        raise UsageError(f"looking for a device failed: {found.reason}; try DEVICE=cpu")
    return found["answer"]


def execute(
    job: Job, progress: Callable[[NotebookResult, float], object] = lambda *_: None
) -> NotebookResult:
    """Run a job to its end in a process of its own, the worker.

    Parameters
    ----------
    job
        What to run; its ``scratch`` folder is made, and removed at the end.
    progress
        Gets the result so far and the seconds, about once a second.

    Returns
    -------
    NotebookResult
        What the worker wrote; a failure if it was killed or did not come to its end.

    Raises
    ------
    Interrupted
        After Ctrl-C, when the partial notebook is saved and all its processes have ended.
    UsageError
        If its folders cannot be written.
    """
    began = time.monotonic()
    _make_room(job)
    log = Path(job.scratch, "worker.log")

    worker, input_ = _start_worker(log)
    watch = _Watch(job, began, progress)
    is_interrupted = False
    try:
        # the worker ends when this pipe closes, with this process
        input_.write(json.dumps(asdict(job)) + "\n")
        input_.flush()
        watch.wait(worker)
    except BrokenPipeError:
        # it ended before it read the job, as where a package cannot be imported
        worker.wait()
    except KeyboardInterrupt:
        is_interrupted = True
        with contextlib.suppress(OSError):
            input_.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(STOP_GRACE)
    finally:
        _end_processes(job, worker)
        with contextlib.suppress(OSError):
            input_.close()

    reason = INTERRUPTED if is_interrupted else watch.reason
    result = _conclude(job, reason, log, worker)
    shutil.rmtree(job.scratch, ignore_errors=True)
    result.peak_rss_bytes = max(result.peak_rss_bytes, watch.peak_bytes)
    result.seconds = round(time.monotonic() - began, 3)
    if is_interrupted:
        raise Interrupted(result)
    return result


def _start_worker(log: Path) -> tuple[subprocess.Popen[str], IO[str]]:
    """Start the process that runs a notebook, and return it with its input; what it prints goes into a file."""
    # without METALLAB_DEVICE: importing metallab would arm the simulation in the worker as well
    environment = {name: value for name, value in os.environ.items() if name != "METALLAB_DEVICE"}
    environment["METALLAB_BUILD"] = str(paths.BUILD)  # this command's, wherever the notebook lies
    with log.open("wb") as output:
        worker = subprocess.Popen(
            # -P: no module of the working directory takes the place of one of Python's
            [sys.executable, "-P", "-m", "metallab.headless.worker"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=environment,
            text=True,
            start_new_session=True,  # Ctrl-C reaches this process alone, which closes the worker's input then
        )
    return worker, cast(IO[str], worker.stdin)


@dataclass
class _Watch:
    """Follow a worker until it ends."""

    job: Job
    began: float
    """By `time.monotonic`."""
    progress: Callable[[NotebookResult, float], object]
    peak_bytes: int = 0
    """The most memory of the kernel that was seen."""
    reason: str = ""
    """Why the worker was killed; empty if it was not."""

    def wait(self, worker: subprocess.Popen[str]) -> None:
        """Return when the worker has ended; kill it `HANG_GRACE` after the notebook's limit, and note that as reason.

        About once a second the kernel's memory is read and ``progress`` called.
        """
        head = find_process(worker.pid)
        while worker.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(SAMPLE_EVERY)

            known = _read_state(self.job)
            kernel = find_process(known.get("kernel", 0))
            if kernel:
                self.peak_bytes = max(self.peak_bytes, resident_bytes(kernel))

            seconds = time.monotonic() - self.began
            self.progress(_make_result(self.job, known), seconds)
            if self.job.timeout and seconds > self.job.timeout + HANG_GRACE:
                self.reason = (
                    f"the worker did not answer {HANG_GRACE:g} s after the notebook's timeout"
                )
                kill_family(head)


def _end_processes(job: Job, worker: subprocess.Popen[str]) -> None:
    """End the worker, the kernel, and what cells left running."""
    if worker.poll() is None:
        kill_family(find_process(worker.pid))
    kernel = _read_state(job).get("kernel")
    kill_family(find_process(kernel) if kernel else None, Path(job.scratch).name)


def _conclude(job: Job, reason: str, log: Path, worker: subprocess.Popen[str]) -> NotebookResult:
    """Return what the worker wrote; a failure if it did not come to its end.

    Parameters
    ----------
    job
        What ran.
    reason
        Why this process ended the worker; empty if it did not.
    log
        What the worker printed.
    worker
        The process, which has ended.
    """
    known = _read_state(job)
    result = _make_result(job, known)
    if "done" in known:
        return result

    words = ""
    if not reason:
        where = f"cell {result.cell}: " if result.cell else ""
        reason = f"{where}the worker process {describe_exit(worker.wait())}"
        words = last_words(log)
    return fail(job, result, Failure(reason, result.cell, known.get("index"), words))


def _make_room(job: Job) -> None:
    """Remove what an earlier run of this notebook left, and make the job's folders, a new one for ``scratch``.

    UsageError if a file cannot be removed, or a folder not be made.
    """
    results = Path(job.out, "results", f"{job.name}.json")
    picture = results.with_suffix(".png")
    usual = tempfile.gettempdir()
    # sockets are made in it, whose paths have at most 104 bytes
    scratch_root = usual if len(usual) < 70 else "/tmp"

    try:
        for old in (job.executed, job.partial, job.partial.with_suffix(".txt"), results, picture):
            old.unlink(missing_ok=True)
        paths.make_folder(Path(job.out))
        # tells the next run that these notebooks may be written over
        Path(job.out, USED).touch()
        job.scratch = tempfile.mkdtemp(prefix="metallab-", dir=scratch_root)
    except OSError as error:
        raise cannot_write(error.filename or job.out, error) from error


def _remove_results(job: Job) -> None:
    """Remove what a page saved: half of its results would be taken for all of them."""
    for part in ("json", "png"):
        Path(job.out, "results", f"{job.name}.{part}").unlink(missing_ok=True)


def fail(
    job: Job, result: NotebookResult, failure: Failure, notebook: Mapping | None = None
) -> NotebookResult:
    """Note in a result why its notebook failed, and keep the partial copy, or else a text with the reason.

    Parameters
    ----------
    job
        What ran.
    result
        It is changed, and returned.
    failure
        Why it failed, and in which cell.
    notebook
        As far as it ran; by default what lies at ``job.partial``. Without either the text is written.
    """
    result.status = "failed"
    result.reason = failure.reason
    result.cell = failure.cell
    result.traceback = failure.traceback

    left = job.partial
    try:
        if not job.allow_errors:  # else the cells after an error ran, too
            _remove_results(job)
        if notebook is None and left.exists():
            notebook = json.loads(left.read_text(encoding="utf-8"))
        if notebook is None:
            left = left.with_suffix(".txt")
            paths.write_atomically(left, f"{job.path}\n{failure.reason}\n{failure.traceback}\n")
        else:
            show_failure(notebook, failure)
            save(notebook, left)
    except OSError as error:
        if "cannot be written" not in failure.reason:  # else the page failed for the same reason
            result.reason += f"; and {cannot_write(left, error)}"

    if left.exists():
        result.failed_copy = os.path.relpath(left, job.out)
        result.notebook = left if left == job.partial else None
    return result


def cannot_write(path: str | Path, error: OSError) -> UsageError:
    """Return the error for a file that cannot be written."""
    return UsageError(
        f"{path} cannot be written ({error.strerror or error}): make room, or name another folder with METALLAB_OUT"
    )


def _read_state(job: Job) -> dict[str, Any]:
    """Return what the worker has written so far."""
    with contextlib.suppress(OSError):
        return json.loads(job.state.read_text(encoding="utf-8"))
    return {}


def _make_result(job: Job, known: Mapping[str, Any]) -> NotebookResult:
    """Return the result that a worker has written, as far as it has."""
    names = {field.name for field in fields(NotebookResult)}
    written = {name: known[name] for name in known if name in names}
    result = NotebookResult(**{"name": job.name} | written)
    result.title = result.title or job.name
    result.notebook = Path(result.notebook) if result.notebook else None
    return result
