"""The second Jupyter kernel, in which cells ``%%isolated`` run: kept from cell to cell, and ended with the page."""

from __future__ import annotations

import ast
import atexit
import base64
import os
import queue
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from metallab import needs, status_line
from metallab.isolated.answers import unpack
from metallab.isolated.outcome import ChildFailed, Outcome
from metallab.isolated.process import build_environment, describe_timeout
from metallab.processes import describe_exit, find_process, kill_family, mark

_START_SECONDS = 120
_ANSWER_SECONDS = 60
_INTERRUPT_SECONDS = 5
"""Seconds that a cell has to stop after Ctrl-C."""


@dataclass(frozen=True)
class Settings:
    """What a kernel is started with; cells with the same settings share one."""

    device: str | None = None
    threads: int | None = None
    variables: tuple[tuple[str, str], ...] = ()
    """Environment variables of its own, by name."""
    folder: str = ""
    """Its working directory."""


class _Kernel:
    """A second Jupyter kernel."""

    def __init__(self, settings: Settings) -> None:
        """Start it. ChildFailed if it does not answer; then no process is left."""
        from jupyter_client.kernelspec import KernelSpecManager
        from jupyter_client.manager import KernelManager

        self.settings = settings
        environment = build_environment(settings.device, settings.threads, dict(settings.variables))
        if status_line.is_watched():  # what this kernel shows appears in our notebook
            environment[status_line.WATCHED] = "1"
        self._folder = tempfile.TemporaryDirectory(prefix="metallab-kernel-")
        folder = Path(self._folder.name)
        self._mark = folder.name
        log = folder / "log"  # of native code

        self._manager = KernelManager(
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),  # this interpreter
            connection_file=str(folder / "connection.json"),
            transport="ipc",  # by files in this folder: no port that another program may take
            ip=str(folder / "ipc"),
        )
        with log.open("ab") as output:
            self._manager.start_kernel(
                env=mark(environment, self._mark),  # by which `end` finds what it has started
                cwd=os.getcwd(),
                stdout=output,
                stderr=output,
                extra_arguments=[
                    # else IPython would take what native code writes, and lose it where the process crashes
                    "--IPKernelApp.capture_fd_output=False",
                    "--HistoryManager.enabled=False",  # else IPython writes each cell into a file
                ],
            )
        provisioner: Any = self._manager.provisioner  # a local one, which has a process
        self._process = provisioner.process
        self._log = log.open(encoding="utf-8", errors="replace")
        self._client = self._manager.blocking_client()
        self._connect_or_end()

    def _connect_or_end(self) -> None:
        """Wait until it answers, or end it: what a kernel publishes before we are connected is lost.

        ChildFailed if it does not answer in time, or has ended.
        """
        self._client.start_channels()
        try:
            self._client.wait_for_ready(timeout=_START_SECONDS)
        except BaseException as error:
            self.end()
            if isinstance(error, RuntimeError):
                raise ChildFailed(f"the process of this cell did not start: {error}") from None
            raise

    def run(self, cell: str, names: Sequence[str], timeout: float) -> Outcome:
        """Execute a cell and show its output here. After ``crashed`` and ``timeout`` the kernel has to be ended.

        Parameters
        ----------
        cell
            Its code.
        names
            Variables whose values come back.
        timeout
            Seconds after which it is given up.
        """
        reply = self._execute(cell, timeout)
        if isinstance(reply, Outcome):
            return reply

        has_raised = reply["status"] == "error"
        # an expression beside no code: its value comes with the reply, and it leaves no variable among the cells'
        finish = f"__import__('metallab.isolated.child').isolated.child.finish_cell({list(names)}, {has_raised})"
        reply = self._execute("", _ANSWER_SECONDS, answer=finish)
        if isinstance(reply, Outcome):
            return reply

        answer = reply["user_expressions"]["answer"]
        if answer["status"] == "error":  # metallab cannot be imported there
            return Outcome(
                "raised", reason=f"{answer['ename']}: {answer['evalue']}", kinds=(answer["ename"],)
            )
        return unpack(base64.b64decode(ast.literal_eval(answer["data"]["text/plain"])))

    @property
    def is_running(self) -> bool:
        """False once its process has ended."""
        return self._process.poll() is None

    def _execute(self, code: str, timeout: float, **expressions: str) -> dict[str, Any] | Outcome:
        """Execute code, show its outputs here, and return the content of the kernel's reply when it is done.

        An `Outcome` instead if the kernel died (``crashed``), or was not done in time (``timeout``). Ctrl-C interrupts
        the cell, which may then take `_INTERRUPT_SECONDS` more.

        Parameters
        ----------
        code
            What is executed.
        timeout
            Seconds.
        **expressions
            By a name, Python expressions that are evaluated after the code, and whose values are in the reply.
        """
        request = self._client.execute(
            code, store_history=False, user_expressions=expressions, allow_stdin=False
        )
        deadline = time.monotonic() + timeout
        reason_if_late = describe_timeout(timeout)

        while True:
            try:
                message = self._wait_for_message()
            except KeyboardInterrupt:
                self._manager.interrupt_kernel()
                deadline = time.monotonic() + _INTERRUPT_SECONDS
                reason_if_late = "was interrupted and did not stop"
                continue

            self._show_log()
            if message is not None and _is_end_of(request, message):
                return self._receive_reply(request)
            if message is not None and _is_about(request, message):
                _show(message["msg_type"], message["content"])

            # only when no message waits, so that all is shown that came before a crash
            if message is None and not self.is_running:
                how = describe_exit(self._process.returncode)
                return Outcome("crashed", reason=f"the process {how}")
            # after each message as well: code may print without a pause
            if time.monotonic() > deadline:
                return Outcome("timeout", reason=reason_if_late)

    def _wait_for_message(self) -> dict[str, Any] | None:
        """Return the kernel's next message; None if none comes soon."""
        try:
            return self._client.get_iopub_msg(timeout=0.1)
        except queue.Empty:
            return None

    def _receive_reply(self, request: str) -> dict[str, Any]:
        """Return the content of the reply to a request; replies to earlier ones are passed over."""
        while True:
            reply = self._client.get_shell_msg(timeout=_ANSWER_SECONDS)
            if _is_about(request, reply):
                return reply["content"]

    def _show_log(self) -> None:
        """Print what native code has written since."""
        sys.stdout.write(self._log.read())

    def end(self) -> None:
        """End the kernel, and every process that it has started."""
        kill_family(find_process(self._process.pid), self._mark)
        self._process.wait()
        self._show_log()
        self._log.close()
        self._client.stop_channels()
        self._manager.cleanup_resources()
        self._folder.cleanup()


def _is_about(request: str, message: Mapping[str, Any]) -> bool:
    return message["parent_header"].get("msg_id") == request


def _is_end_of(request: str, message: Mapping[str, Any]) -> bool:
    """Return whether a message says that the kernel is done with a request."""
    if message["msg_type"] != "status" or not _is_about(request, message):
        return False
    return message["content"]["execution_state"] == "idle"


def _show(kind: str, content: Mapping[str, Any]) -> None:
    """Show an output of the second kernel here."""
    from IPython.display import clear_output, publish_display_data

    if kind == "stream":
        print(content["text"], end="", file=getattr(sys, content["name"]))
    elif kind == "clear_output":
        clear_output(content["wait"])
    elif kind in ("display_data", "update_display_data", "execute_result"):
        publish_display_data(
            content["data"],
            content["metadata"],
            transient=content.get("transient", {}),
            update=kind == "update_display_data",
        )
        told = content["data"].get(needs.MIME)
        if told:  # what the cell did not run for lack of a tool counts for this page
            needs.note(told)


# ---- the one that is kept ----------------------------------------------------------------------------------------


class _Keeper:
    """Keeps the second kernel from cell to cell, as long as cells ask for the same settings."""

    def __init__(self) -> None:
        self.kernel: _Kernel | None = None

    def end(self) -> None:
        """End the kernel, if there is one."""
        kernel, self.kernel = self.kernel, None
        if kernel is not None:
            kernel.end()

    def provide(self, settings: Settings) -> _Kernel | Outcome:
        """Return a kernel with these settings: the one that there is, or a new one in its place.

        An `Outcome` if the new one cannot be prepared, for want of the simulated GPU say. ChildFailed if none starts.
        """
        kernel = self.kernel
        if kernel is not None and kernel.is_running and kernel.settings == settings:
            return kernel

        self.end()
        kernel = self.kernel = _Kernel(settings)
        prepare = f"from metallab.isolated import child\nchild.prepare({settings.threads})"
        prepared = kernel.run(prepare, (), _START_SECONDS)
        if not prepared.ok:
            self.end()
            return prepared
        return kernel


_keeper = _Keeper()


@atexit.register
def end_kernel() -> None:
    """End the second kernel, if there is one: the next cell ``%%isolated`` gets a new one."""
    _keeper.end()


def run_in_kernel(
    cell: str,
    *,
    results: Sequence[str],
    timeout: float,
    device: str | None = None,
    threads: int | None = None,
    variables: Mapping[str, str] | None = None,
) -> Outcome:
    """Run a cell in the second kernel, in this process's working directory.

    Parameters
    ----------
    cell
        Its code.
    results
        Variables whose values come back.
    timeout
        Seconds after which the kernel is ended.
    device, threads
        As `metallab.isolated.run` takes them.
    variables
        Environment variables of its own.

    Returns
    -------
    Outcome
        How the cell ended, or why no kernel could be prepared for it. What it printed is shown, and not in it.

    Raises
    ------
    ChildFailed
        If no kernel starts.
    """
    own = tuple(sorted((variables or {}).items()))
    kernel = _keeper.provide(Settings(device, threads, own, os.getcwd()))
    if isinstance(kernel, Outcome):
        return kernel

    outcome = kernel.run(cell, results, timeout)
    # where the simulated GPU could not be prepared, the next cell tries it in a kernel of its own
    if outcome.ended in ("crashed", "timeout") or "SimulationError" in outcome.kinds:
        end_kernel()
    return outcome


def run_again(
    source: str, *, results: Sequence[str], device: Literal["mps"] | None, timeout: float
) -> Outcome:
    """Execute Python text in the second kernel, in which what was imported stays from call to call.

    It has this process's module path.

    Parameters
    ----------
    source, results, device, timeout
        As `metallab.isolated.run` takes them.
    """
    module_path = [path or os.getcwd() for path in sys.path]
    source = f"import sys; sys.path[:] = {module_path}\n{source}"
    return run_in_kernel(source, results=results, timeout=timeout, device=device)
