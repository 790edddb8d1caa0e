"""The worker process, ``python -m metallab.headless.worker``: run one notebook in a fresh kernel with nbclient.

It reads its `runner.Job`, a line of JSON, from its standard input, and keeps `runner.Job.state` up to date. When its
input is closed, it kills the kernel with what that has started, saves the notebook and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import shutil
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

from metallab.headless.runner import INTERRUPTED, Job, NotebookResult, cannot_write, fail
from metallab.notebook import (
    Failure,
    fault,
    is_code,
    judgements,
    lacking_tools,
    leave_out,
    not_run,
    read_notebook,
    save,
    skip_reason,
    stopped_output,
    title_of,
    without_colours,
)
from metallab.paths import write_atomically
from metallab.processes import (
    adopt_orphans,
    describe_exit,
    find_process,
    kill_descendants,
    kill_family,
    last_words,
    marked,
)

# jsonschema would spend 0.8 s building a grammar for a format that no notebook schema contains; it does without.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

from jupyter_client.kernelspec import KernelSpecManager  # noqa: E402
from jupyter_client.manager import AsyncKernelManager  # noqa: E402
from nbclient import NotebookClient  # noqa: E402
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError  # noqa: E402
from traitlets.log import get_logger  # noqa: E402

KERNEL_START = 120
"""Seconds that a kernel may take to start; on an idle machine it takes half a second."""
OUTPUT_GRACE = 60
"""Seconds for a cell's outputs after its end; nbclient drops the rest after 4 s without a word."""


def main() -> int:
    """Run the job on standard input."""
    parent = os.getppid()
    adopt_orphans()
    job = Job(**json.loads(sys.stdin.readline()))
    result, notebook = NotebookResult(job.name, job.name), None
    try:
        notebook = read_notebook(Path(job.path))
        for cell in notebook.cells:
            cell.source = job.replace.get(cell.get("id"), cell.source)
        result.title, result.cells = (
            title_of(notebook) or job.name,
            sum(map(is_code, notebook.cells)),
        )
        if reason := skip_reason(notebook, job.device):
            result.status, result.reason = "skipped", reason
        elif lacking := lacking_tools(notebook):
            leave_out(notebook, lacking)
            finish(job, result, notebook)
        else:
            Page(job, notebook, result).run()
    except Failure as failure:
        fail(job, result, failure, notebook)
    finally:
        kill_descendants()
    write_state(job, result, done=True)
    if os.getppid() != parent:  # which would have removed it
        shutil.rmtree(job.scratch, ignore_errors=True)
    return 0


def write_state(job: Job, result: NotebookResult, **more: object) -> None:
    """Write the result so far, for the process that waits."""
    write_atomically(job.state, json.dumps(asdict(result) | more, default=str))


def finish(job: Job, result: NotebookResult, notebook) -> None:
    """Save a page without an error, and note whether it ran whole.

    `Failure` if it did not and was to be complete, or if it cannot be written.
    """
    result.not_run = not_run(notebook)
    if job.strict and result.lacks_required:
        required = (gap["where"] for gap in result.not_run if not gap.get("optional"))
        raise Failure(
            f"a strict run wants every cell to run; these did not: {', '.join(dict.fromkeys(required))}"
        )
    try:
        save(notebook, job.executed)
    except OSError as error:
        raise Failure(str(cannot_write(job.executed, error))) from error
    job.partial.unlink(missing_ok=True)
    result.status, result.notebook = "passed", job.executed
    if result.not_run:
        result.status, result.reason = "incomplete", result.lacking


class Page(NotebookClient):
    """Execute a notebook: save after every cell, enforce the limits, raise `Failure` if a cell does not end well."""

    def __init__(self, job: Job, notebook, result: NotebookResult) -> None:
        super().__init__(
            notebook,
            allow_errors=job.allow_errors,
            extra_arguments=[f"--IPKernelApp.exec_lines={crash_report(job)}"],
            iopub_timeout=OUTPUT_GRACE,
            raise_on_iopub_timeout=True,
            shell_timeout_interval=1,
            startup_timeout=KERNEL_START,
            timeout_func=self.seconds_for,
            on_notebook_start=self.started,
        )
        self.job, self.result, self.index = job, result, None
        self.kernel_log = Path(job.scratch, "kernel.log")
        self.deadline = time.monotonic() + (job.timeout or float("inf"))
        self.number, self.cut = 0, False

    def run(self) -> None:
        """Run every cell in a fresh kernel, and save the notebook. Failure if it stops."""
        get_logger().setLevel(logging.CRITICAL)  # the command prints everything that matters, once
        try:
            self.save()
            with self.kernel_log.open("ab") as log:
                where = {
                    "cwd": str(Path(self.job.path).parent),
                    "env": kernel_environment(self.job),
                }
                asyncio.run(self.async_execute(stdout=log, stderr=log, **where))
        except (
            RuntimeError,
            OSError,
        ) as error:  # the kernel did not start, or broke between two cells
            words = f"{type(error).__name__}: {error}\n{last_words(self.kernel_log)}"
            raise self.failure(f"no kernel: {error}", words) from error
        finally:
            unit = (
                1 if sys.platform == "darwin" else 1024
            )  # ru_maxrss counts bytes there, KiB elsewhere
            self.result.peak_rss_bytes = (
                resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit
            )
            self.result.not_run = not_run(self.nb)
            self.result.judgements = judgements(self.nb)
        if failure := fault(self.nb):
            raise failure
        finish(self.job, self.result, self.nb)

    def create_kernel_manager(self) -> AsyncKernelManager:
        """Return ipykernel in this interpreter, whatever a kernelspec says, over Unix sockets."""
        scratch = Path(self.job.scratch)
        self.km = AsyncKernelManager(
            kernel_name="python3",
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),
            transport="ipc",
            ip=str(scratch / "k"),
            connection_file=str(scratch / "kernel.json"),
        )
        return self.km

    def started(self, notebook) -> None:
        """End the kernel when this process's input is closed."""
        kernel = self.km.provisioner.pid
        write_state(self.job, self.result, kernel=kernel)

        def end_with_input() -> None:
            while os.read(0, 1):
                continue
            self.cut = True
            kill_family(find_process(kernel))
            kill_descendants()

        threading.Thread(target=end_with_input, daemon=True).start()

    async def async_execute_cell(self, cell, cell_index, **_):
        """Execute one cell; Failure if no other may follow."""
        if not is_code(cell):
            return cell
        self.number, self.index = self.number + 1, cell_index
        self.result.cell = self.number
        write_state(self.job, self.result, kernel=self.km.provisioner.pid, index=cell_index)
        try:
            await super().async_execute_cell(cell, cell_index)
        except CellExecutionError as error:
            self.result.executed += 1
            raise fault(self.nb) or self.failure(
                f"cell {self.number}: {error.ename}", error.traceback
            ) from error
        except CellTimeoutError as error:
            await self.interrupt(cell)
            raise self.timed_out(cell, error) from error
        except DeadKernelError as error:
            process = self.km.provisioner.process
            reason = f"cell {self.number}: the kernel {describe_exit(process.returncode if process else None)}"
            raise self.failure(reason, last_words(self.kernel_log)) from error
        self.result.executed += 1
        self.result.cell = None
        self.save()
        return cell

    def save(self) -> None:
        """Write the notebook as far as it has run. Failure if it cannot be written."""
        try:
            save(self.nb, self.job.partial)
        except OSError as error:
            raise self.failure(str(cannot_write(self.job.partial, error))) from error

    def seconds_for(self, cell) -> float | None:
        """Return this cell's limit: its own, or the rest of the notebook's; None for no limit."""
        seconds = min(self.job.cell_timeout or float("inf"), self.deadline - time.monotonic())
        return (
            None if seconds == float("inf") else max(seconds, 0.001)
        )  # nbclient takes 0 for no limit

    async def interrupt(self, cell) -> None:
        """Interrupt the cell and wait up to ten seconds for its traceback."""
        await self.km.interrupt_kernel()
        end = time.monotonic() + 10
        while time.monotonic() < end and not any(
            output.output_type == "error" for output in cell.outputs
        ):
            await asyncio.sleep(0.1)  # nbclient's task still listens, and adds the output
        kill_family(find_process(self.km.provisioner.pid))  # it may ignore the interrupt

    def failure(self, reason: str, traceback: str = "") -> Failure:
        """Return the failure of the cell that runs."""
        if self.cut:
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
    """Return the kernel's environment variables, without this user's settings of IPython and matplotlib."""
    settings = Path(job.scratch, "matplotlibrc")
    settings.touch()
    ours = {
        "METALLAB_MODE": job.mode,
        "METALLAB_DEVICE": job.device,
        "METALLAB_OUT": job.out,
        "JPY_SESSION_NAME": job.path,  # as JupyterLab names the notebook to its kernel
        "METALLAB_STRICT": "0",  # `finish` looks at all cells; here the last one need not raise
        "IPYTHONDIR": str(Path(job.scratch, "ipython")),
        "MATPLOTLIBRC": str(settings),
    }
    kept = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    return marked(kept, Path(job.scratch).name) | ours


def crash_report(job: Job) -> str:
    """Return code with which a crashing kernel writes its stack into its log, not into ipykernel's pipe."""
    path = str(Path(job.scratch, "kernel.log"))
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    return f"__import__('faulthandler').enable(__import__('os').open({path!r}, {flags}), False)"


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
