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
from typing import cast

from metallab.headless.runner import INTERRUPTED, Job, NotebookResult, cannot_write, fail
from metallab.notebook import (
    Failure,
    fault,
    is_code,
    judgements,
    lacking_tools,
    leave_out,
    make_error_output,
    not_run,
    read_notebook,
    save,
    skip_reason,
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
    mark,
)

# jsonschema would spend 0.8 s building a grammar for a format that no notebook schema contains; it does without.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

from jupyter_client.kernelspec import KernelSpecManager  # noqa: E402
from jupyter_client.manager import AsyncKernelManager  # noqa: E402
from jupyter_client.provisioning.local_provisioner import LocalProvisioner  # noqa: E402
from nbclient import NotebookClient  # noqa: E402
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError  # noqa: E402
from nbformat import NotebookNode  # noqa: E402
from traitlets.log import get_logger  # noqa: E402

KERNEL_START = 120
"""Seconds that a kernel may take to start; on an idle machine it takes half a second."""
INTERRUPT_GRACE = 10.0
"""Seconds that an interrupted cell may take to print its traceback."""
OUTPUT_GRACE = 60
"""Seconds for a cell's outputs after its end; nbclient drops the rest after 4 s without a word."""

QUICK_EXIT = """
def collect_and_freeze():
    import gc

    from IPython import get_ipython

    gc.freeze()  # `reset` collects by itself, before the variables are removed: let it find nothing to look at
    get_ipython().reset(new_session=False)
    gc.unfreeze()
    gc.collect()
    gc.freeze()

__import__("atexit").register(collect_and_freeze)
del collect_and_freeze
"""
"""Code with which a kernel ends sooner: by about three of five seconds where PyTorch is loaded, on two busy cores.

While it ends Python looks for garbage among all objects, again and again. Here garbage is collected before, and Python
does not look at what is left, since it is frozen. The page's variables are removed first, which IPython would do only
afterwards: an object that refers to itself, and closes a file when it ends, ends only by being collected. It all comes
after what the page has registered to be called at the end.
"""


def main() -> int:
    """Run the `Job` on standard input, and write what came of it into `Job.state`; return 0, also for a failed page."""
    parent = os.getppid()
    adopt_orphans()
    job = Job(**json.loads(sys.stdin.readline()))
    result = NotebookResult(job.name, job.name)
    notebook = None

    try:
        notebook = read_notebook(Path(job.path))
        for cell in notebook.cells:
            cell.source = job.replace.get(cell.get("id"), cell.source)
        result.title = title_of(notebook) or job.name
        result.cells = sum(map(is_code, notebook.cells))
        run_or_skip(job, notebook, result)
    except Failure as failure:
        fail(job, result, failure, notebook)
    finally:
        kill_descendants()

    write_state(job, result, done=True)
    if os.getppid() != parent:  # which would have removed it
        shutil.rmtree(job.scratch, ignore_errors=True)
    return 0


def run_or_skip(job: Job, notebook: NotebookNode, result: NotebookResult) -> None:
    """Run a page, unless it says that it cannot run here; note in the result what came of it.

    `Failure` if it did not run as it should.
    """
    reason = skip_reason(notebook, job.device)
    if reason:
        result.status = "skipped"
        result.reason = reason
        return

    lacking = lacking_tools(notebook)
    # the page is about a tool that is missing here: no cell runs, and the first one says so
    if lacking:
        leave_out(notebook, lacking)
        finish(job, result, notebook)
        return

    Page(job, notebook, result).run()


def write_state(job: Job, result: NotebookResult, **more: object) -> None:
    """Write the result so far, for the process that waits."""
    write_atomically(job.state, json.dumps(asdict(result) | more, default=str))


def finish(job: Job, result: NotebookResult, notebook: NotebookNode) -> None:
    """Save a page without an error, and note whether it ran whole.

    `Failure` if it did not and was to be complete, or if it cannot be written.
    """
    result.not_run = not_run(notebook)
    if job.strict and result.lacks_required:
        required = (gap["where"] for gap in result.not_run if not gap.get("optional"))
        cells = ", ".join(dict.fromkeys(required))
        raise Failure(f"a strict run wants every cell to run; these did not: {cells}")

    try:
        save(notebook, job.executed)
    except OSError as error:
        raise Failure(str(cannot_write(job.executed, error))) from error
    job.partial.unlink(missing_ok=True)

    result.status = "passed"
    result.notebook = job.executed
    if result.not_run:
        result.status = "incomplete"
        result.reason = result.lacking


class Page(NotebookClient):
    """Execute a notebook: save after every cell, enforce the limits, raise `Failure` if a cell does not end well."""

    def __init__(self, job: Job, notebook: NotebookNode, result: NotebookResult) -> None:
        """Take what to run, where to note what comes of it, and the limits: the page's begins now.

        `run` changes ``notebook``, which gets the outputs, and ``result``.
        """
        super().__init__(
            notebook,
            allow_errors=job.allow_errors,
            extra_arguments=[
                f"--IPKernelApp.exec_lines={line}" for line in (crash_report(job), QUICK_EXIT)
            ],
            iopub_timeout=OUTPUT_GRACE,
            raise_on_iopub_timeout=True,
            shell_timeout_interval=1,
            startup_timeout=KERNEL_START,
            timeout_func=self.seconds_for,
            on_notebook_start=self.follow_kernel,
        )
        self.job = job
        self.result = result
        self.kernel_log = Path(job.scratch, "kernel.log")
        self.deadline = time.monotonic() + (job.timeout or float("inf"))

        self.number = 0
        """How many code cells have begun."""
        self.index: int | None = None
        """Which cell of the notebook runs."""
        self.is_cut = False
        """Whether the process that waits has gone, or wants an end."""

    def run(self) -> None:
        """Run every cell in a fresh kernel, and save the notebook. Failure if it stops."""
        get_logger().setLevel(logging.CRITICAL)  # the command prints everything that matters, once
        try:
            self.save()
            with self.kernel_log.open("ab") as log:
                cells = self.async_execute(
                    stdout=log,
                    stderr=log,
                    cwd=str(Path(self.job.path).parent),
                    env=kernel_environment(self.job),
                )
                asyncio.run(cells)
        except (RuntimeError, OSError) as error:
            # the kernel did not start, or broke between two cells
            words = f"{type(error).__name__}: {error}\n{last_words(self.kernel_log)}"
            raise self.make_failure(f"no kernel: {error}", words) from error
        finally:
            self.result.peak_rss_bytes = peak_bytes_of_children()
            self.result.not_run = not_run(self.nb)
            self.result.judgements = judgements(self.nb)

        failure = fault(self.nb)
        if failure:
            raise failure
        finish(self.job, self.result, self.nb)

    def create_kernel_manager(self) -> AsyncKernelManager:
        """Return ipykernel in this interpreter, whatever a kernelspec says, over Unix sockets."""
        scratch = Path(self.job.scratch)
        self.manager = AsyncKernelManager(
            kernel_name="python3",
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),
            transport="ipc",
            ip=str(scratch / "k"),
            connection_file=str(scratch / "kernel.json"),
        )
        self.km = self.manager  # where nbclient looks for it
        return self.manager

    @property
    def kernel(self) -> LocalProvisioner:
        """What started the kernel's process, and knows it."""
        return cast(LocalProvisioner, self.manager.provisioner)

    @property
    def kernel_pid(self) -> int:
        """The number of the kernel's process; 0 before it has started."""
        return self.kernel.pid or 0

    def follow_kernel(self, notebook: NotebookNode) -> None:
        """Note the kernel's process, and end it when this process's input is closed."""
        kernel = self.kernel_pid
        write_state(self.job, self.result, kernel=kernel)

        def end_with_input() -> None:
            while os.read(0, 1):
                continue
            self.is_cut = True
            kill_family(find_process(kernel))
            kill_descendants()

        threading.Thread(target=end_with_input, daemon=True).start()

    async def async_execute_cell(
        self, cell: NotebookNode, cell_index: int, *_: object, **__: object
    ) -> NotebookNode:
        """Execute one cell; Failure if no other may follow."""
        if not is_code(cell):
            return cell

        self.number += 1
        self.index = cell_index
        self.result.cell = self.number
        write_state(self.job, self.result, kernel=self.kernel_pid, index=cell_index)

        try:
            await super().async_execute_cell(cell, cell_index)
        except CellExecutionError as error:
            self.result.executed += 1
            raised = self.make_failure(f"cell {self.number}: {error.ename}", error.traceback)
            raise fault(self.nb) or raised from error  # the outputs tell it with its message
        except CellTimeoutError as error:
            await self.interrupt(cell)
            raise self.note_timeout(cell, error) from error
        except DeadKernelError as error:
            process = self.kernel.process
            end = describe_exit(process.returncode if process else None)
            reason = f"cell {self.number}: the kernel {end}"
            raise self.make_failure(reason, last_words(self.kernel_log)) from error

        self.result.executed += 1
        self.result.cell = None
        self.save()
        return cell

    def save(self) -> None:
        """Write the notebook as far as it has run. Failure if it cannot be written."""
        try:
            save(self.nb, self.job.partial)
        except OSError as error:
            raise self.make_failure(str(cannot_write(self.job.partial, error))) from error

    def seconds_for(self, cell: NotebookNode) -> float | None:
        """Return this cell's limit: its own, or the rest of the notebook's; None for no limit.

        It also notes which of the two it is. When the cell has been stopped the clock would not tell: the limits may
        lie close together, and interrupting the cell takes seconds.
        """
        rest = self.deadline - time.monotonic()
        own = self.job.cell_timeout or float("inf")
        self.is_page_limit = rest <= own
        seconds = min(own, rest)
        if seconds == float("inf"):
            return None
        return max(seconds, 0.001)  # nbclient takes 0 for no limit

    async def interrupt(self, cell: NotebookNode) -> None:
        """Interrupt the cell and wait up to `INTERRUPT_GRACE` for its traceback; then end the kernel."""
        await self.manager.interrupt_kernel()
        end = time.monotonic() + INTERRUPT_GRACE
        while time.monotonic() < end and not has_error(cell):
            await asyncio.sleep(0.1)  # nbclient's task still listens, and adds the output

        kill_family(find_process(self.kernel_pid))  # it may ignore the interrupt

    def make_failure(self, reason: str, traceback: str = "") -> Failure:
        """Return the failure of the cell that runs."""
        if self.is_cut:
            reason, traceback = INTERRUPTED, ""
        return Failure(reason, self.number or None, self.index, without_colours(traceback))

    def note_timeout(self, cell: NotebookNode, error: CellTimeoutError) -> Failure:
        """Add to a cell's outputs that it was stopped; return the failure, which names the limit.

        Parameters
        ----------
        cell
            The cell, which has been interrupted.
        error
            What nbclient raised.
        """
        # nbclient's words where it waited for outputs; behind them it quotes the cell, which may hold any word
        if "The message was: Timeout waiting for IOPub output" in str(error):
            reason = f"cell {self.number} ended, but its outputs did not all arrive in {self.iopub_timeout} s"
        elif self.is_page_limit:
            reason = f"cell {self.number}: the notebook took longer than {self.job.timeout:g} s (--timeout)"
        else:
            reason = (
                f"cell {self.number} took longer than {self.job.cell_timeout:g} s (--cell-timeout)"
            )

        failure = self.make_failure(reason)
        where = [line for output in cell.outputs for line in output.get("traceback", [])]
        cell.outputs.append(type(cell)(make_error_output(failure.reason)))
        failure.traceback = without_colours("\n".join([*where, failure.reason]))
        return failure


def has_error(cell: NotebookNode) -> bool:
    """Return whether a cell's outputs have a traceback."""
    return any(output.output_type == "error" for output in cell.outputs)


def peak_bytes_of_children() -> int:
    """Return the most memory that one child process of this one has used."""
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # bytes there, KiB elsewhere


def kernel_environment(job: Job) -> dict[str, str]:
    """Return the kernel's environment variables: this process's, what the job asks for, and a mark of this run.

    Without this user's settings of IPython and matplotlib, so that a page looks the same wherever it runs. By the mark
    what the kernel has started is found, and ended.
    """
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

    # it would come before IPython's, which draws into the notebook
    kept = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    return mark(kept, Path(job.scratch).name) | ours


def crash_report(job: Job) -> str:
    """Return code with which a crashing kernel writes its stack into its log, not into ipykernel's pipe."""
    path = str(Path(job.scratch, "kernel.log"))
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    return f"__import__('faulthandler').enable(__import__('os').open({path!r}, {flags}), False)"


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
