"""Executing a notebook in a fresh kernel. Only a worker imports this: nbconvert takes half a second to load."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import run_sync
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbconvert.preprocessors.execute import ExecutePreprocessor
from traitlets.log import get_logger

from metallab.headless.jobs import INTERRUPTED, Job, NotebookResult, cannot_write
from metallab.notebook import (
    SKIP_TAG,
    Failure,
    OutputLimit,
    first_error,
    first_unexecuted,
    is_code,
    save,
    stopped_output,
    without_colours,
)
from metallab.processes import Lifeline, describe_exit, last_words, marked

KERNEL_START = 120
"""Seconds that a kernel may take to start; on an idle machine it takes half a second."""
SAVE_SECONDS, SAVE_SHARE = 1.0, 0.1
"""What saving after each cell may take: so long in any case, and then this share of the time that has passed. A save is
of the whole notebook, so that of 1000 cells each save takes as long as many cells."""
OUTPUT_GRACE = 60.0
"""Seconds that a cell's outputs may trail its end; nbclient would give up after 4 s and drop the rest in silence."""


class Stopped(Exception):
    """A cell did not come to its end; the failure says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


def execute(
    job: Job, notebook, result: NotebookResult, report: Callable[..., None], lifeline: Lifeline
) -> Failure | None:
    """Runs every cell in a fresh kernel; the failure that stopped it, or that it shows once it is through.

    Counts the executed cells in ``result``.
    """
    quiet_logs()
    runner = Runner(job, notebook, result, report, lifeline)
    try:
        save(notebook, job.partial)
    except OSError as error:
        return Failure(str(cannot_write(job.partial, error)))
    try:
        runner.preprocess(notebook, {"metadata": {"path": str(Path(job.path).parent)}})
    except Stopped as stopped:
        return stopped.failure
    except (RuntimeError, OSError) as error:  # the kernel did not start, or broke between two cells
        if lifeline.cut:
            return Failure(INTERRUPTED, runner.number or None, runner.index)
        words = f"{type(error).__name__}: {error}\n{last_words(runner.kernel_log)}"
        return Failure(f"no kernel: {error}", runner.number or None, runner.index, words)
    return first_error(notebook) or first_unexecuted(notebook)


def quiet_logs() -> None:
    """Silences the libraries' log: the parent says everything that matters, once."""
    get_logger().setLevel(logging.CRITICAL)


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


class ThisInterpreter(KernelSpecManager):
    """Knows one kernel: ipykernel in this interpreter."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(**get_kernel_dict())


def kernel_manager(scratch: Path) -> AsyncKernelManager:
    """A manager for ipykernel in this interpreter, whatever the kernelspec named python3 says, over Unix sockets."""
    return AsyncKernelManager(
        kernel_name="python3",
        kernel_spec_manager=ThisInterpreter(),
        transport="ipc",
        ip=str(scratch / "k"),
        connection_file=str(scratch / "kernel.json"),
    )


class Runner(ExecutePreprocessor):
    """Saves after every cell, keeps the time limits, and turns whatever stops a cell into a Failure."""

    def __init__(
        self, job: Job, notebook, result: NotebookResult, report: Callable[..., None], lifeline: Lifeline
    ) -> None:
        super().__init__(
            allow_errors=job.allow_errors,
            extra_arguments=[f"--IPKernelApp.exec_lines={crash_report(job)}"],
            iopub_timeout=max(1, round(min(OUTPUT_GRACE, job.cell_timeout or OUTPUT_GRACE))),
            raise_on_iopub_timeout=True,
            shell_timeout_interval=1,
            skip_cells_with_tag=SKIP_TAG,
            startup_timeout=KERNEL_START,
            timeout_func=self.seconds_for,
        )
        self.job, self.notebook, self.result = job, notebook, result
        self.report, self.lifeline = report, lifeline
        self.kernel_log = Path(job.scratch, "kernel.log")
        self.deadline = time.monotonic() + (job.timeout or float("inf"))
        self.number, self.index = 0, None
        self.limit = OutputLimit()
        self.began, self.saving = time.monotonic(), 0.0
        self.unsaved: OSError | None = None

    def create_kernel_manager(self):
        self.km = kernel_manager(Path(self.job.scratch))
        return self.km

    def start_new_kernel(self, **kwargs) -> None:
        with self.kernel_log.open("ab") as log:
            super().start_new_kernel(stdout=log, stderr=log, env=kernel_environment(self.job), **kwargs)
        self.lifeline.hold(self.km.provisioner.pid)
        self.report(event="kernel", pid=self.km.provisioner.pid)

    def save(self) -> None:
        """Saves the partial notebook, unless too much of the time has gone into that; whoever ends the run saves it."""
        begun = time.monotonic()
        if self.saving > SAVE_SECONDS + SAVE_SHARE * (begun - self.began):
            return
        try:
            save(self.notebook, self.job.partial)
            self.unsaved = None
        except OSError as error:
            self.unsaved = error
        self.saving += time.monotonic() - begun

    def output(self, outs, msg, display_id, cell_index):
        """Takes in what a cell puts out, and cuts it as it comes: memory is limited, too."""
        found = super().output(outs, msg, display_id, cell_index)
        if found is not None and not self.limit.fit(found) and not display_id:
            outs.pop()  # with an id it keeps its place: the cell may update it
        return found

    def clear_output(self, outs, msg, cell_index) -> None:
        super().clear_output(outs, msg, cell_index)
        self.limit.begin()

    def seconds_for(self, cell) -> float | None:
        """What this cell may take: its own limit, or what is left of the notebook's. None is no limit."""
        seconds = min(self.job.cell_timeout or float("inf"), self.deadline - time.monotonic())
        return None if seconds == float("inf") else max(seconds, 0.001)  # nbclient takes 0 for no limit

    def preprocess_cell(self, cell, resources, index):
        if not is_code(cell):
            return cell, resources
        self.number, self.index = self.number + 1, index
        self.report(event="cell", number=self.number, index=index)
        self.limit.begin()
        if SKIP_TAG in cell.metadata.get("tags", []):
            text = f"skipped: {cell.metadata.reason}\n"
            cell.outputs = [type(cell)(output_type="stream", name="stdout", text=text)]
            return cell, resources
        try:
            super().preprocess_cell(cell, resources, index)
            self.result.executed += 1
        except CellExecutionError as error:
            self.result.executed += 1
            raise Stopped(self.raised(error)) from error
        except CellTimeoutError as error:
            self.interrupt(cell)
            raise Stopped(self.timed_out(cell, error)) from error
        except DeadKernelError as error:
            raise Stopped(self.died()) from error
        finally:
            self.limit.end(cell)
            self.save()
        if self.unsaved is not None:
            raise Stopped(self.failure(f"cell {self.number}: {cannot_write(self.job.partial, self.unsaved)}"))
        return cell, resources

    def failure(self, reason: str, traceback: str = "") -> Failure:
        return Failure(reason, self.number, self.index, without_colours(traceback))

    def raised(self, error: CellExecutionError) -> Failure:
        found = first_error(self.notebook)
        return found or self.failure(f"cell {self.number}: {error.ename}: {error.evalue}", error.traceback)

    def interrupt(self, cell) -> None:
        """Interrupts the cell and gives its traceback two seconds to arrive: it shows where the cell hung."""

        async def wait() -> None:
            await self.km.interrupt_kernel()
            for _ in range(20):
                await asyncio.sleep(0.1)  # lets nbclient's task, which still listens, add the output
                if any(output.output_type == "error" for output in cell.outputs):
                    return

        run_sync(wait)()
        self.lifeline.kill()  # it may ignore the interrupt, and nbclient would wait 5 s for it

    def timed_out(self, cell, error: CellTimeoutError) -> Failure:
        if self.lifeline.cut:
            return self.failure(INTERRUPTED)
        reason = f"cell {self.number} took longer than {self.job.cell_timeout:g} s (--cell-timeout)"
        if "IOPub" in str(error):
            reason = f"cell {self.number} ended, but its outputs did not all arrive in {self.iopub_timeout} s"
        elif time.monotonic() >= self.deadline:
            reason = f"cell {self.number}: the notebook took longer than {self.job.timeout:g} s (--timeout)"
        where = [line for output in cell.outputs for line in output.get("traceback", [])]
        cell.outputs.append(type(cell)(stopped_output(reason)))
        return self.failure(reason, "\n".join([*where, reason]))

    def died(self) -> Failure:
        if self.lifeline.cut:
            return self.failure(INTERRUPTED)
        process = self.km.provisioner.process
        how = describe_exit(process.returncode if process else None)
        return self.failure(f"cell {self.number}: the kernel {how}", last_words(self.kernel_log))


def crash_report(job: Job) -> str:
    """Code that makes a crashing kernel write the Python stack into its log.

    PYTHONFAULTHANDLER would not do: ipykernel replaces the standard error stream by a pipe that dies with it.
    """
    path = str(Path(job.scratch, "kernel.log"))
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    return f"__import__('faulthandler').enable(__import__('os').open({path!r}, {flags}), False)"
