"""Run code in another process, where it may abort, hang or have settings of its own; the outcome is a result.

``run(source)`` executes Python text in a fresh interpreter and returns an `Outcome`: its output, the named results, and
how it ended.

In a notebook, after ``%load_ext metallab.isolated``, the cell magic executes a cell in a second Jupyter kernel::

    %%isolated y --device mps
    import torch
    y = torch.arange(3.0, device="mps").cpu().numpy()

Text, tables and figures appear below the cell, and the named results (here ``y``) become variables of the notebook.
``--device mps`` is an Apple GPU: the real one on a Mac, the simulated one elsewhere. Cells with the same ``--device``,
``--threads``, ``--set`` and working directory share a kernel. A cell that ends its kernel, or takes longer than
``--timeout``, raises `ChildFailed` in the notebook. Processes that a cell starts end with it.

``--raises NotImplementedError`` is for a cell that teaches a failure. ``--needs objective-c++`` names a tool that may
be missing (`needs.TOOLS`): then the cell is not run, its results are `Skipped`, and the page is incomplete.
A cell with ``--full`` takes long: fast mode (`metallab.mode`) skips it.
"""

from __future__ import annotations

import argparse
import ast
import atexit
import base64
import contextlib
import functools
import linecache
import os
import pickle
import queue
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from metallab import mode, needs, paths, results_made, units
from metallab.outcomes import Ended
from metallab.processes import (
    adopt_orphans,
    describe_exit,
    find_process,
    kill_descendants,
    kill_family,
    marked,
)

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",  # PyTorch, OpenBLAS
    "VECLIB_MAXIMUM_THREADS": "1",  # Accelerate, which computes PyTorch's matrix products on a Mac
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "NPROC": "1",  # XLA's thread pool, read when JAX starts; newer releases read the second
    "PJRT_NPROC": "1",
}
"""Environment variables that limit frameworks to one thread; read when a framework starts its pools."""


_SOURCE = "<isolated>"
_SECOND = "_METALLAB_ISOLATED"
"""An environment variable of the processes that are started here, and of theirs."""


class ChildFailed(RuntimeError):
    """A child process that did not end ``ok``, or has no such result."""

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: the message, which ends with the child's traceback."""
        return [f"{type(self).__name__}: {self}"]


@dataclass(frozen=True)
class Outcome:
    """How a piece of code in another process ended."""

    ended: Ended
    printed: str = ""
    """Its standard output."""
    reason: str = ""
    """One line; empty if it ended ``ok``."""
    detail: str = ""
    """The traceback, or its standard error."""
    results: Mapping[str, Any] = field(default_factory=dict)
    kinds: tuple[str, ...] = ()
    """The names of the exception's class and its base classes."""
    exit_code: int | None = None
    """The process's own, if it ended without an answer."""

    @property
    def ok(self) -> bool:
        """True if it ended without an exception, and was neither stopped nor ended itself."""
        return self.ended == "ok"

    def __getitem__(self, name: str) -> Any:
        """Return a result; `ChildFailed`, with the reason, if there is none."""
        if name in self.results:
            return self.results[name]
        why = (
            self.reason or f"it was not asked for; results are {', '.join(self.results) or 'none'}"
        )
        raise ChildFailed(
            f"no result {name!r} came back from the child process: {why}\n{self.detail}".rstrip()
        )

    def __str__(self) -> str:
        return f"{self.ended}: {self.reason}" if self.reason else self.ended


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

    Raises
    ------
    ValueError
        For another number of threads or another device.
    ChildFailed
        If the folder for temporary files cannot be written.
    """
    variables = _environment(device, threads, environment or {})
    wish = variables.pop("METALLAB_DEVICE", "")  # the child sets it, and reports errors
    command = [sys.executable, "-P", "-m", "metallab.isolated"]
    try:
        with tempfile.TemporaryDirectory(prefix="metallab-child-") as name:
            folder = Path(name)
            (folder / "task").write_bytes(pickle.dumps((source, tuple(results), wish, threads)))
            with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
                child = subprocess.Popen(
                    [*command, name],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env=marked(variables, folder.name),
                    start_new_session=True,
                )
                late = _wait(child, timeout, folder.name)
            printed, errors = (
                (folder / stream).read_text("utf-8", "replace") for stream in ("out", "err")
            )
            if late:
                return Outcome("timeout", printed, late, errors)
            return _read_answer(folder / "answer", child.returncode, printed, errors)
    except OSError as error:
        where = tempfile.gettempdir()
        raise ChildFailed(
            f"no child process: {where} cannot be written ({error.strerror}); make room there"
        ) from error


def _environment(device: str | None, threads: int | None, own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of another process. ValueError for another number of threads or device."""
    if threads not in (None, 1):
        raise ValueError(f"threads is {threads}; a child process runs on all (None) or on 1")
    if device not in (None, "mps"):
        raise ValueError(
            f"device is {device!r}; a child process has this run's devices (None) or an Apple GPU ('mps')"
        )
    build = {
        "METALLAB_BUILD": str(paths.BUILD)
    }  # this process's, even if it has changed its folder since
    variables = {**os.environ, **build, _SECOND: "1", **(ONE_THREAD if threads else {}), **own}
    if own.get("PYTHONPATH") and os.environ.get("PYTHONPATH"):
        variables["PYTHONPATH"] = f"{own['PYTHONPATH']}{os.pathsep}{os.environ['PYTHONPATH']}"
    if device:
        variables["METALLAB_DEVICE"] = "mps" if sys.platform == "darwin" else "sim"
    return variables


def _wait(child: subprocess.Popen, timeout: float, mark: str) -> str:
    """Wait for a child, and end what it has started; return why it was stopped, or ''."""
    head = find_process(child.pid)
    try:
        child.wait(timeout)
    except subprocess.TimeoutExpired:
        return f"took longer than {timeout:g} s and was stopped"
    finally:
        kill_family(head, mark)
        child.wait()
    return ""


def _read_answer(answer: Path, code: int, printed: str, errors: str) -> Outcome:
    """Return the outcome in a child's file; a crash if there is none."""
    if code != 0 or not answer.exists():
        how = f"the process {describe_exit(code)}" + ("" if code else " before it answered")
        return Outcome("crashed", printed, how, errors, exit_code=code)
    outcome = _unpacked(answer.read_bytes())
    return replace(outcome, printed=printed, detail=outcome.detail or errors)


def main(folder: str) -> int:
    """The child: ``python -m metallab.isolated FOLDER`` runs the task in a folder."""
    source, names, device, threads = pickle.loads(Path(folder, "task").read_bytes())
    if device:
        os.environ["METALLAB_DEVICE"] = device
    linecache.cache[_SOURCE] = (len(source), None, source.splitlines(keepends=True), _SOURCE)
    space: dict[str, Any] = {"__name__": "__main__"}
    try:
        _prepare(threads)
        exec(compile(source, _SOURCE, "exec"), space)
    except BaseException as error:  # noqa: BLE001  # whatever it is, it is the answer
        answer = _raised(error, _SOURCE)
    else:
        answer = _packed(space, names)
    part = Path(folder, "part")
    part.write_bytes(answer)
    part.rename(Path(folder, "answer"))
    simulated = os.environ.get("METALLAB_DEVICE") == "sim"
    if simulated:
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError):  # the code may have closed it
            stream.flush()
    kill_descendants()
    if simulated:  # PyTorch's threads for backward passes may hold the device while Python is taken down: do not wait
        os._exit(0)
    return 0


def _prepare(threads: int | None) -> None:
    """Prepare the other process: limit it to one core, and arm the simulated GPU if it is requested."""
    results_made.forget_all()  # the first kernel saves what is sent to it
    adopt_orphans()
    if threads and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if os.environ.get("METALLAB_DEVICE") == "sim":
        from metallab import simulation

        simulation.arm(required=True)


def _packed(space: Mapping[str, Any], names: Sequence[str]) -> bytes:
    """Return an answer with results, or with the reason why there are none."""
    if unset := [name for name in names if name not in space]:
        return pickle.dumps(
            ("raised", f"the code ended without setting {', '.join(unset)}", "", b"", ())
        )
    try:
        values = pickle.dumps({name: space[name] for name in names})
    except Exception as error:  # noqa: BLE001  # pickling raises whatever an object's own code raises
        why = f"a result cannot be sent back: {units.first_line(error)}; turn it into NumPy arrays and plain values"
        return pickle.dumps(("raised", why, f"{type(error).__name__}: {error}", b"", ()))
    return pickle.dumps(
        ("ok", "", "", values, ())
    )  # what cannot be read of the values does not hide how it ended


def _raised(error: BaseException, source: str) -> bytes:
    """Return an answer with an exception and its traceback in files whose name contains ``source``."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if source in frame.filename
    ]
    shown = [
        traceback.FrameSummary(_SOURCE, frame.lineno, frame.name, line=frame.line)
        for frame in frames
    ]
    detail = "".join(
        [*traceback.format_list(shown), *traceback.format_exception_only(error)]
    ).strip("\n")
    kinds = tuple(kind.__name__ for kind in type(error).__mro__)
    return pickle.dumps(("raised", units.first_line(error, kind=True), detail, b"", kinds))


def _unpacked(answer: bytes) -> Outcome:
    """Return the outcome in our child's answer."""
    ended, reason, detail, values, kinds = pickle.loads(answer)
    try:
        results = pickle.loads(values) if values else {}
    except Exception as error:  # noqa: BLE001  # of a framework's objects, which may want a device that is not here
        wrong = f"a result cannot be read here: {units.first_line(error)}; turn it into NumPy arrays in the cell"
        return Outcome("raised", reason=wrong)
    return Outcome(ended, "", reason, detail, results, kinds)


class _Kernel:
    """A second Jupyter kernel; ``options`` are those that it was started with."""

    def __init__(self, options: tuple, environment: Mapping[str, str]) -> None:
        from jupyter_client.kernelspec import KernelSpecManager
        from jupyter_client.manager import KernelManager

        self.options = options
        self._folder = tempfile.TemporaryDirectory(prefix="metallab-kernel-")
        folder = Path(self._folder.name)
        self._mark = folder.name
        log = folder / "log"  # of native code
        self._manager = KernelManager(
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),  # this interpreter
            connection_file=str(folder / "connection.json"),
            transport="ipc",
            ip=str(folder / "ipc"),
        )
        with log.open("ab") as output:
            self._manager.start_kernel(
                env=marked(environment, self._mark),
                cwd=os.getcwd(),
                stdout=output,
                stderr=output,
                extra_arguments=[
                    "--IPKernelApp.capture_fd_output=False",
                    "--HistoryManager.enabled=False",
                ],
            )
        self._process = self._manager.provisioner.process
        self._log = log.open(encoding="utf-8", errors="replace")
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        try:
            self._client.wait_for_ready(
                timeout=120
            )  # what a kernel publishes before we are connected is lost
        except BaseException as error:
            self.end()
            if isinstance(error, RuntimeError):
                raise ChildFailed(f"the process of this cell did not start: {error}") from None
            raise

    def run(self, cell: str, names: Sequence[str], timeout: float) -> Outcome:
        """Execute a cell and show its output here. After ``crashed`` and ``timeout`` the kernel has to be ended."""
        try:
            raised = self._execute(cell, timeout)["status"] == "error"
            expression = (
                f"__import__('metallab.isolated').isolated._finish({list(names)}, {raised})"
            )
            answer = self._execute("", 60, answer=expression)["user_expressions"]["answer"]
        except _KernelEnded as ended:
            return ended.outcome
        if answer["status"] == "error":  # metallab cannot be imported there
            return Outcome(
                "raised", reason=f"{answer['ename']}: {answer['evalue']}", kinds=(answer["ename"],)
            )
        return _unpacked(base64.b64decode(ast.literal_eval(answer["data"]["text/plain"])))

    @property
    def running(self) -> bool:
        """False once its process has ended."""
        return self._process.poll() is None

    def _execute(self, code: str, timeout: float, **expressions: str) -> dict:
        """Return the kernel's reply. `_KernelEnded` if it died or takes too long."""
        request = self._client.execute(
            code, store_history=False, user_expressions=expressions, allow_stdin=False
        )
        deadline, late = (
            time.monotonic() + timeout,
            f"took longer than {timeout:g} s and was stopped",
        )
        while True:
            try:
                message = self._client.get_iopub_msg(timeout=0.1)
            except queue.Empty:
                self._show_log()
                if not self.running:
                    code = self._process.returncode
                    raise _KernelEnded(
                        Outcome("crashed", reason=f"the process {describe_exit(code)}")
                    ) from None
                if time.monotonic() > deadline:
                    raise _KernelEnded(Outcome("timeout", reason=late)) from None
                continue
            except KeyboardInterrupt:
                self._manager.interrupt_kernel()
                deadline, late = time.monotonic() + 5, "was interrupted and did not stop"
                continue
            self._show_log()
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
            _show(message["msg_type"], message["content"])
        while (reply := self._client.get_shell_msg(timeout=60))["parent_header"].get(
            "msg_id"
        ) != request:
            pass
        return reply["content"]

    def _show_log(self) -> None:
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


class _KernelEnded(Exception):
    """The second kernel has died or has to be ended."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


def _show(kind: str, content: Mapping[str, Any]) -> None:
    """Show an output of the second kernel here."""
    from IPython.display import clear_output, publish_display_data

    if kind == "stream":
        print(content["text"], end="", file=getattr(sys, content["name"]))
    elif kind in ("display_data", "update_display_data", "execute_result"):
        update = kind == "update_display_data"
        identity = content.get("transient", {})
        publish_display_data(
            content["data"], content["metadata"], transient=identity, update=update
        )
        if told := content["data"].get(needs.MIME):
            needs.note(told)
    elif kind == "clear_output":
        clear_output(content["wait"])


def _finish(names: Sequence[str], raised: bool) -> str:
    """In the second kernel, after a cell: end what it has started, and return the answer as text."""
    from IPython import get_ipython

    kill_descendants()
    answer = (
        _raised(sys.last_value, f"ipykernel_{os.getpid()}")
        if raised
        else _packed(get_ipython().user_ns, names)
    )
    return base64.b64encode(answer).decode()


_second: _Kernel | None = None
_absent: needs.MissingTool | None = None
"""What the simulated Apple GPU lacks here, once a cell has met it: later cells would miss that cell's names."""


@atexit.register
def end_kernel() -> None:
    """End the second kernel, if there is one: the next cell ``%%isolated`` gets a new one."""
    global _second
    kernel, _second = _second, None
    if kernel is not None:
        kernel.end()


def _run_in_kernel(cell: str, given: argparse.Namespace) -> Outcome:
    """Run a cell in the second kernel for these options, which is started if necessary."""
    global _second
    options = (given.device, given.threads, tuple(given.set), os.getcwd())
    if _second is None or not _second.running or _second.options != options:
        end_kernel()
        own = dict(pair.split("=", 1) for pair in given.set)
        _second = _Kernel(options, _environment(given.device, given.threads, own))
        prepared = _second.run(
            f"from metallab import isolated\nisolated._prepare({given.threads})", (), 120
        )
        if not prepared.ok:
            end_kernel()
            return prepared
    outcome = _second.run(cell, given.results, given.timeout)
    if outcome.ended in ("crashed", "timeout") or "SimulationError" in outcome.kinds:
        end_kernel()
    return outcome


def run_again(
    source: str, *, results: Sequence[str], device: Literal["mps"] | None, timeout: float
) -> Outcome:
    """As `run`, in the second kernel with this process's module path: what it has imported stays."""
    source = f"import sys; sys.path[:] = {[path or os.getcwd() for path in sys.path]}\n{source}"
    given = argparse.Namespace(
        device=device, threads=None, set=(), results=results, timeout=timeout
    )
    return _run_in_kernel(source, given)


def is_second_kernel() -> bool:
    """Return whether this process was started here, for a cell or by `run`, or by such a process."""
    return _SECOND in os.environ


def load_ipython_extension(shell) -> None:
    """``%load_ext metallab.isolated`` in a notebook: the cell magic ``%%isolated``."""
    shell.register_magic_function(functools.partial(_cell, shell), "cell", "isolated")


def _arguments(line: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="%%isolated", add_help=False, exit_on_error=False)
    parser.add_argument("results", nargs="*", metavar="RESULT")
    parser.add_argument("--device", choices=["mps"])
    parser.add_argument("--threads", type=int, choices=[1])
    # building the simulated GPU may take 2 minutes
    parser.add_argument("--timeout", type=float, default=200.0, metavar="SECONDS")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--raises", metavar="EXCEPTION")
    parser.add_argument("--needs", action="append", default=[], choices=needs.TOOLS)
    parser.add_argument("--full", action="store_true")
    try:
        known, unknown = parser.parse_known_args(shlex.split(line))
        if (
            unknown
            or not all(map(str.isidentifier, known.results))
            or not all("=" in pair for pair in known.set)
        ):
            raise ValueError(" ".join(unknown) or line)
    except (argparse.ArgumentError, ValueError) as error:
        raise ValueError(
            f"%%isolated does not understand {error}; {parser.format_usage().strip()}"
        ) from None
    return known


def _cell(shell, line: str, cell: str) -> None:
    """Run a notebook's cell in the second kernel, and bring its results back."""
    given = _arguments(line)
    for name in given.results:  # no old value is left
        shell.user_ns.pop(name, None)
    if given.full and mode.current() == "fast":
        print("A quick run leaves this cell out.")
        return _skip(shell, given.results, "a quick run leaves it out")
    lacking = [
        tool.report
        for tool in needs.missing([*(["apple-gpu"] if given.device else []), *given.needs])
    ]
    if lacking:
        return _skip(shell, given.results, "; ".join(each.what for each in lacking), *lacking)
    if {"c++", "objective-c++"} & set(given.needs):
        needs.use_compiler()
    global _absent
    if given.device and _absent:
        return _skip(shell, given.results, _absent.what, _absent)
    if given.device:
        print(f"On {apple_gpu()}.")
    outcome = _run_in_kernel(cell, given)
    if "SimulationError" in outcome.kinds and (other := needs.other_torch()):
        _absent = other
        return _skip(shell, given.results, other.what, other)
    shell.user_ns |= outcome.results
    _announce(outcome.results.values())
    _judge(outcome, given.raises)


def _announce(values: Iterable[Any]) -> None:
    """Let the page save what the second kernel has measured."""
    from metallab.timing import Comparison, Measurement  # imports NumPy, whose import pages time

    for value in values:
        if isinstance(value, Measurement | Comparison):
            results_made.announce(value)


def _skip(shell, names: Sequence[str], reason: str, *missing: needs.MissingTool) -> None:
    """Give the reason in place of each result, and show in the cell what was missing."""
    shell.user_ns |= {name: Skipped(reason) for name in names}
    for each in missing:
        needs.show(each)


class Skipped:
    """Placeholder for a result of a skipped cell: it shows the reason, and so do its attributes, calls and items."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> Skipped:
        if name.startswith("_"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: object, **__: object) -> Skipped:
        return self

    def __getitem__(self, _: object) -> Skipped:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __repr__(self) -> str:
        return f"Nothing to show: {self._reason}."


def _judge(outcome: Outcome, expected: str | None) -> None:
    """Raise `ChildFailed`, which fails the page, unless a cell ended as expected."""
    if outcome.ok and expected:
        raise ChildFailed(f"this cell should raise {expected}, and ended without raising anything")
    if outcome.ended == "raised" and expected in outcome.kinds:
        print(f"This cell is meant to raise {expected}, and did:\n{outcome.detail}")
    elif not outcome.ok:
        wanted = f", where it should raise {expected}" if expected else ""
        how = f"this cell's own process: {outcome.ended}{wanted}"
        raise ChildFailed(f"{outcome.reason} ({how})\n{outcome.detail}".rstrip())


def apple_gpu() -> str:
    """Return the Apple GPU of cells with ``--device mps``, in words."""
    if sys.platform != "darwin":
        return "the simulated Apple GPU, whose times say nothing about a Mac"
    from metallab import machine

    return f"{machine.describe().chip or 'this Mac'} GPU"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
