"""The worker process, ``python -m metallab.headless.worker``: runs one notebook in a fresh kernel.

It reads its job, a line of JSON, from its standard input, and tells the parent how it goes on its standard output: in
each line what is new in its `NotebookResult`, the ``kernel`` once it is there, the ``index`` of the cell that runs, and
at last that it is ``done``. Everything else that it or a library prints goes where its errors go.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import resource
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from metallab.headless.jobs import INTERRUPTED, Job, NotebookResult, cannot_write, fail
from metallab.notebook import (
    SKIP_TAG,
    Failure,
    OutputLimit,
    check_kernel_name,
    check_skipped_cells,
    first_error,
    first_unexecuted,
    is_code,
    not_run,
    read_notebook,
    save,
    skip_reason,
    stopped_output,
    title_of,
    without_colours,
)
from metallab.processes import (
    adopt_orphans,
    describe_exit,
    find_process,
    kill_descendants,
    kill_family,
    last_words,
    marked,
)

# jsonschema would spend 0.8 s building a grammar for the format "iri", which no notebook schema contains; it does
# without when the import fails.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

from jupyter_client.kernelspec import KernelSpecManager  # noqa: E402
from jupyter_client.manager import AsyncKernelManager  # noqa: E402
from nbclient import NotebookClient  # noqa: E402
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError  # noqa: E402
from traitlets.log import get_logger  # noqa: E402

KERNEL_START = 120
"""Seconds that a kernel may take to start; on an idle machine it takes half a second."""
SAVE_SECONDS, SAVE_SHARE = 1.0, 0.1
"""What saving after each cell may take: so long in any case, and then this share of the time that has passed. A save is
of the whole notebook, so that of 1000 cells each save takes as long as many cells."""
OUTPUT_GRACE = 60.0
"""Seconds that a cell's outputs may trail its end; nbclient would give up after 4 s and drop the rest in silence."""

Tell = Callable[..., None]


def main() -> int:
    """The worker process: runs the job that it is given. 0 unless it broke."""
    adopt_orphans()
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    job = Job(**json.loads(sys.stdin.readline()))

    def tell(**event: object) -> None:
        with contextlib.suppress(BrokenPipeError):  # the parent has gone; that is the lifeline's business
            print(json.dumps(event, default=str), file=stream, flush=True)

    lifeline = Lifeline()
    try:
        result = work(job, tell, lifeline)
    finally:
        lifeline.kill()  # what a cell left running, which would disturb the next notebook's numbers
    tell(**dataclasses.asdict(result), done=True)
    if lifeline.cut:  # the parent may be gone, and with it the one who removes this folder
        shutil.rmtree(job.scratch, ignore_errors=True)
    return 0


def work(job: Job, tell: Tell, lifeline: Lifeline) -> NotebookResult:
    """Reads, checks and executes one notebook; it goes into the run's folder, or among the failed."""
    result, notebook = NotebookResult(job.name, job.name), None
    try:
        notebook = read_notebook(Path(job.path))
        for cell in notebook.cells:
            cell.source = job.replace.get(cell.get("id"), cell.source)
        result.title, result.cells = title_of(notebook) or job.name, sum(map(is_code, notebook.cells))
        tell(title=result.title, cells=result.cells)
        reason = skip_reason(notebook, job.device)
        check_kernel_name(notebook)
        check_skipped_cells(notebook)
        if reason:
            result.status, result.reason = "skipped", reason
            return result
        Page(job, notebook, result, tell, lifeline).run()
        keep(job, notebook, result)
    except Failure as failure:
        fail(job, result, failure, notebook)
        if notebook is None:
            with contextlib.suppress(OSError):  # it is missing, or there is no room: the reason is told all the same
                shutil.copyfile(job.path, job.unreadable)
    return result


def keep(job: Job, notebook, result: NotebookResult) -> None:
    """Saves a notebook that came to its end, and says so. Failure if it cannot be written."""
    try:
        save(notebook, job.executed)
    except OSError as error:
        raise Failure(f"it came to its end, but {cannot_write(job.executed, error)}") from error
    job.partial.unlink(missing_ok=True)
    result.status, result.notebook = "passed", job.executed
    if result.not_run:
        result.status, result.reason = "incomplete", result.lacking


class Page(NotebookClient):
    """Executes a notebook: saves after every cell, keeps the limits, and turns whatever stops a cell into a `Failure`.

    Counts the executed cells in ``result``.
    """

    def __init__(self, job: Job, notebook, result: NotebookResult, tell: Tell, lifeline: Lifeline) -> None:
        super().__init__(
            notebook,
            allow_errors=job.allow_errors,
            extra_arguments=[f"--IPKernelApp.exec_lines={crash_report(job)}"],
            iopub_timeout=max(1, round(min(OUTPUT_GRACE, job.cell_timeout or OUTPUT_GRACE))),
            raise_on_iopub_timeout=True,
            shell_timeout_interval=1,
            startup_timeout=KERNEL_START,
            timeout_func=self.seconds_for,
            on_notebook_start=self.hold_kernel,
        )
        self.job, self.result, self.tell, self.lifeline = job, result, tell, lifeline
        self.kernel_log = Path(job.scratch, "kernel.log")
        self.began, self.saving = time.monotonic(), 0.0
        self.deadline = self.began + (job.timeout or float("inf"))
        self.number, self.index = 0, None
        self.limit = OutputLimit()

    def run(self) -> None:
        """Runs every cell in a fresh kernel. Failure: what stopped it, or what it shows once it is through."""
        get_logger().setLevel(logging.CRITICAL)  # the parent says everything that matters, once
        try:
            self.save()
            with self.kernel_log.open("ab") as log:
                where = {"cwd": str(Path(self.job.path).parent), "env": kernel_environment(self.job)}
                asyncio.run(self.async_execute(stdout=log, stderr=log, **where))
        except (RuntimeError, OSError) as error:  # the kernel did not start, or broke between two cells
            words = f"{type(error).__name__}: {error}\n{last_words(self.kernel_log)}"
            raise self.failure(f"no kernel: {error}", words) from error
        finally:
            unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss counts bytes there, KiB elsewhere
            self.result.peak_rss_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit
            self.result.not_run = not_run(self.nb)
        if failure := first_error(self.nb) or first_unexecuted(self.nb):
            raise failure

    def create_kernel_manager(self) -> AsyncKernelManager:
        """For ipykernel in this interpreter, whatever a kernelspec named python3 says; over Unix sockets, whose names
        parallel runs never race for."""
        scratch = Path(self.job.scratch)
        self.km = AsyncKernelManager(
            kernel_name="python3",
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),
            transport="ipc",
            ip=str(scratch / "k"),
            connection_file=str(scratch / "kernel.json"),
        )
        return self.km

    def hold_kernel(self, notebook) -> None:
        """The kernel is there: from now on the lifeline's end is its end, and the parent looks at its memory."""
        self.lifeline.hold(self.km.provisioner.pid)
        self.tell(kernel=self.km.provisioner.pid)

    async def async_execute_cell(self, cell, cell_index, **_):
        """Executes one cell; Failure if no other may follow. Its number is the kernel's, and not nbclient's count."""
        if not is_code(cell):
            return cell
        self.number, self.index = self.number + 1, cell_index
        self.tell(cell=self.number, index=cell_index, executed=self.result.executed)
        self.limit.begin()
        if SKIP_TAG in cell.metadata.get("tags", []):
            text = f"skipped: {cell.metadata.reason}\n"
            cell.outputs = [type(cell)(output_type="stream", name="stdout", text=text)]
            return cell
        try:
            await super().async_execute_cell(cell, cell_index)
        except CellExecutionError as error:
            self.result.executed += 1
            reason = f"cell {self.number}: {error.ename}: {error.evalue}"
            raise first_error(self.nb) or self.failure(reason, error.traceback) from error
        except CellTimeoutError as error:
            await self.interrupt(cell)
            raise self.timed_out(cell, error) from error
        except DeadKernelError as error:
            process = self.km.provisioner.process
            reason = f"cell {self.number}: the kernel {describe_exit(process.returncode if process else None)}"
            raise self.failure(reason, last_words(self.kernel_log)) from error
        finally:
            self.limit.end(cell)
        self.result.executed += 1
        self.save()
        return cell

    def save(self) -> None:
        """Saves the partial notebook, unless too much of the time has gone into that; whoever ends the run saves it."""
        begun = time.monotonic()
        if self.saving > SAVE_SECONDS + SAVE_SHARE * (begun - self.began):
            return
        try:
            save(self.nb, self.job.partial)
        except OSError as error:
            where = f"cell {self.number}: " if self.number else ""
            raise self.failure(f"{where}{cannot_write(self.job.partial, error)}") from error
        self.saving += time.monotonic() - begun

    def output(self, outs, msg, display_id, cell_index):
        """Takes in what a cell puts out, and cuts it as it comes: memory is limited, too."""
        output = super().output(outs, msg, display_id, cell_index)
        if output is not None and not self.limit.fit(output) and not display_id:
            outs.pop()  # with an id it keeps its place: the cell may update it
        return output

    def clear_output(self, outs, msg, cell_index) -> None:
        super().clear_output(outs, msg, cell_index)
        self.limit.begin()

    def seconds_for(self, cell) -> float | None:
        """What this cell may take: its own limit, or what is left of the notebook's. None is no limit."""
        seconds = min(self.job.cell_timeout or float("inf"), self.deadline - time.monotonic())
        return None if seconds == float("inf") else max(seconds, 0.001)  # nbclient takes 0 for no limit

    async def interrupt(self, cell) -> None:
        """Interrupt the cell and give its traceback ten seconds to arrive: it shows where the cell hung."""
        await self.km.interrupt_kernel()
        end = time.monotonic() + 10
        while time.monotonic() < end and not any(output.output_type == "error" for output in cell.outputs):
            await asyncio.sleep(0.1)  # lets nbclient's task, which still listens, add the output
        self.lifeline.kill()  # it may ignore the interrupt, and nbclient would wait 5 s for it

    def failure(self, reason: str, traceback: str = "") -> Failure:
        """What stopped the cell that runs; where the lifeline was cut, that did."""
        if self.lifeline.cut:
            reason, traceback = INTERRUPTED, ""
        return Failure(reason, self.number or None, self.index, without_colours(traceback))

    def timed_out(self, cell, error: CellTimeoutError) -> Failure:
        reason = f"cell {self.number} took longer than {self.job.cell_timeout:g} s (--cell-timeout)"
        if "IOPub" in str(error):
            reason = f"cell {self.number} ended, but its outputs did not all arrive in {self.iopub_timeout} s"
        elif time.monotonic() >= self.deadline:
            reason = f"cell {self.number}: the notebook took longer than {self.job.timeout:g} s (--timeout)"
        failure = self.failure(reason)
        where = [line for output in cell.outputs for line in output.get("traceback", [])]
        cell.outputs.append(type(cell)(stopped_output(failure.reason)))
        failure.traceback = without_colours("\n".join([*where, failure.reason]))
        return failure


def kernel_environment(job: Job) -> dict[str, str]:
    """The kernel's environment variables.

    IPython's own folder is a fresh one: a start-up file or an extension of this user must not change the numbers, nor
    settings of matplotlib the pictures. MPLBACKEND would keep pictures out of the notebook if the caller had set it for
    itself.
    """
    settings = Path(job.scratch, "matplotlibrc")
    settings.touch()
    ours = {
        "METALLAB_MODE": job.mode,
        "METALLAB_DEVICE": job.device,
        "METALLAB_OUT": job.out,
        "IPYTHONDIR": str(Path(job.scratch, "ipython")),
        "MATPLOTLIBRC": str(settings),
    }
    kept = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    return marked(kept, Path(job.scratch).name) | ours


def crash_report(job: Job) -> str:
    """Code that makes a crashing kernel write the Python stack into its log.

    PYTHONFAULTHANDLER would not do: ipykernel replaces the standard error stream by a pipe that dies with it.
    """
    path = str(Path(job.scratch, "kernel.log"))
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    return f"__import__('faulthandler').enable(__import__('os').open({path!r}, {flags}), False)"


class Lifeline:
    """Kills the kernel once standard input closes: the parent wants this worker to stop, or has gone."""

    def __init__(self) -> None:
        self.cut = False
        self.kernel: psutil.Process | None = None
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        while os.read(0, 1):  # nothing is written to it after the job
            continue
        self.cut = True
        self.kill()

    def hold(self, kernel: int) -> None:
        """Takes charge of a kernel. It may be cut already; whichever comes second, this or the end, kills it."""
        self.kernel = find_process(kernel)
        if self.cut:
            self.kill()

    def kill(self) -> None:
        """Kills the kernel and whatever it has started."""
        kill_family(self.kernel)
        kill_descendants()


if __name__ == "__main__":
    sys.exit(main())
