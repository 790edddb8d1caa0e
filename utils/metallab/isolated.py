"""Code that may abort, hang, or needs a setting of its own, in a child process: whatever happens there is a result.

``run(source)`` executes a piece of Python text in a fresh interpreter and returns an `Outcome`: what it printed, the
named results, and how it ended. A crash is a sentence and not a dead kernel.

In a notebook the same is a cell magic, after ``%load_ext metallab.isolated``::

    %%isolated y seconds --device mps
    import torch
    y = torch.arange(3.0, device="mps").cpu().numpy()
    ...

The cell's own text runs in the child. What it printed appears below it, the named results (here ``y`` and
``seconds``) become variables of the notebook, and the `Outcome` is in ``isolated_outcome``. If it does not end well
the cell raises `ChildFailed` in the notebook, as a cell does; the named variables are then removed, so that nothing old
is taken for new. ``--device mps`` is an Apple GPU: the real one on a Mac, the simulated one elsewhere, and the first
line printed says which. On the simulated one the first such cell takes a second or two, for PyTorch; those after it are
forked from a process that has it, where that makes no difference (`metallab.forking`).

``--raises NotImplementedError`` is for a cell that teaches a failure: it has to raise that, or a subclass of it.
``--needs objective-c++`` names a tool that may be missing (`needs.TOOLS`): where it is, the cell is not run, says so,
and the page is incomplete (`needs.incomplete`); its results then show the reason (`NotMade`). With ``--wants
sanitizers`` it runs all the same, without what the tool would have added.

A cell with ``--full`` takes long: a fast run (`metallab.mode`) leaves it out, and says so.

``--module mine`` keeps the cell's text as a file ``mine.py`` would: later cells of the kind may ``import mine``.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import linecache
import os
import pickle
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from metallab import forking, mode, needs, units
from metallab.processes import MARK, adopt_orphans, describe_exit, find_process, kill_descendants, kill_family, marked

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",  # PyTorch, OpenBLAS
    "VECLIB_MAXIMUM_THREADS": "1",  # Accelerate, which computes PyTorch's matrix products on a Mac
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "NPROC": "1",  # XLA's thread pool, read when JAX starts; newer releases read the second
    "PJRT_NPROC": "1",
}
"""Environment variables that hold frameworks to one thread. They are read once, when a framework starts its pools."""

MOST_SHOWN = 100_000
"""Bytes of what a child prints that are brought back."""
_SOURCE = "<isolated>"


class ChildFailed(RuntimeError):
    """A child process did not end as it should, or a result was asked for that it did not bring back."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the message, which ends with the child's own traceback. Our frames help nobody."""
        return [f"{type(self).__name__}: {self}"]


@dataclass(frozen=True)
class Outcome:
    """What became of a piece of code in a child process."""

    ended: Literal["well", "raised", "crashed", "hung", "not run"]
    """``well``; with an exception; by a signal or an exit of its own; stopped, because it took too long; or not begun,
    because a tool is missing."""
    printed: str = ""
    """What it wrote to standard output, up to its end; of more than `MOST_SHOWN` bytes the last ones, after a line that
    says how many are left out."""
    reason: str = ""
    """One line that says what happened; empty if it ended well."""
    detail: str = ""
    """The traceback, or the last words on standard error."""
    results: Mapping[str, Any] = field(default_factory=dict)
    kinds: tuple[str, ...] = ()
    """Of what it raised: the names of the exception's class and of those that this is derived from."""

    @property
    def ok(self) -> bool:
        """True if the code ran to its end and its results came back."""
        return self.ended == "well"

    def __getitem__(self, name: str) -> Any:
        """A named result; `ChildFailed`, with the reason, if there is none."""
        if name in self.results:
            return self.results[name]
        why = self.reason or f"it was not asked for; results are {', '.join(self.results) or 'none'}"
        raise ChildFailed(f"no result {name!r} came back from the child process: {why}\n{self.detail}".rstrip())

    def __str__(self) -> str:
        return f"{self.ended}: {self.reason}" if self.reason else self.ended


def run(
    source: str,
    *,
    results: Sequence[str] = (),
    threads: int | None = None,
    device: Literal["mps"] | None = None,
    environment: Mapping[str, str] | None = None,
    modules: Mapping[str, str] | None = None,
    timeout: float = 120.0,
    forked: bool = False,
) -> Outcome:
    """Execute Python text in a fresh interpreter and wait for it, at most ``timeout`` seconds.

    ``results`` names variables of the text whose values come back; they must survive pickling, so turn a framework's
    arrays into NumPy's. ``environment`` is added to this process's, a ``PYTHONPATH`` before the one there is.
    ``modules`` are texts by name that it can import.
    ``threads=1`` holds frameworks to one CPU thread: by their environment variables, and on Linux also by allowing the
    process one core. ``device="mps"`` gives the text an Apple GPU, where there is none a simulated one; PyTorch's part
    of that comes when the text imports torch. With ``forked=True`` a text that begins with that import may get a
    process that has done it already, and is else as new (`metallab.forking`). ValueError for another
    number of threads or another device, `ChildFailed` if the folder for temporary files cannot be written.
    """
    if threads not in (None, 1):
        raise ValueError(f"threads is {threads}; a child process runs on all (None) or on 1")
    if device not in (None, "mps"):
        raise ValueError(f"device is {device!r}; a child process has this run's devices (None) or an Apple GPU ('mps')")
    environment, modules = environment or {}, modules or {}
    variables = {**os.environ, **(ONE_THREAD if threads else {}), **environment}
    folders = list(filter(None, [environment.get("PYTHONPATH"), os.environ.get("PYTHONPATH")]))
    if folders:
        variables["PYTHONPATH"] = os.pathsep.join(folders)
    wish = variables.pop("METALLAB_DEVICE", "")  # handed over apart: the child says it when it cannot be had
    if device:
        wish = "mps" if sys.platform == "darwin" else "sim"
    try:
        with tempfile.TemporaryDirectory(prefix="metallab-child-") as folder:
            task = Path(folder, "task")
            task.write_bytes(pickle.dumps((source, tuple(results))))
            for name, text in modules.items():
                Path(folder, f"{name}.py").write_text(text, encoding="utf-8")
            arguments = [wish, *(["1"] if threads else [])]
            may_fork = forked and forking.may_serve(source, modules)
            own = {"PYTHONPATH": os.pathsep.join([folder, *folders])} if modules else {}
            own[MARK] = marked(variables, Path(folder).name)[MARK]
            return _outcome(arguments, variables, own, timeout, Path(folder), may_fork)
    except OSError as error:
        where = tempfile.gettempdir()
        raise ChildFailed(f"no child process: {where} cannot be written ({error.strerror}); make room there") from error


def _outcome(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    own: Mapping[str, str],
    timeout: float,
    folder: Path,
    may_fork: bool,
) -> Outcome:
    """What becomes of the task in a folder. ``own`` are the variables that no other task has."""
    python = [sys.executable, "-P", "-m", "metallab.isolated"]
    with (folder / "out").open("w+b") as out, (folder / "err").open("w+b") as err:
        child = None
        if may_fork:
            child = forking.child([*python, "--serve", *arguments], environment, own, folder, (out, err), timeout)
        if child is None:
            child = subprocess.Popen(
                [*python, str(folder), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**environment, **own},
                start_new_session=True,
            )
        head = find_process(child.pid)
        try:
            child.wait(timeout)
        except subprocess.TimeoutExpired:
            hung = f"took longer than {timeout:g} s and was stopped"
        else:
            hung = ""
        finally:
            kill_family(head, folder.name)  # the child itself if it hangs, and whatever it started and left behind
            child.wait()
        printed, errors = (_text(stream) for stream in (out, err))
    if hung:
        return Outcome("hung", printed, hung, errors)
    return _read_answer(folder / "answer", child.returncode, printed, errors)


def _read_answer(answer: Path, code: int, printed: str, errors: str) -> Outcome:
    """The outcome that a child has left in a file, if it has, before it ended with this return code."""
    if code != 0 or not answer.exists():
        how = f"the process {describe_exit(code)}" + ("" if code else " before it answered")
        return Outcome("crashed", printed, how, errors)
    ended, reason, detail, values, kinds = pickle.loads(answer.read_bytes())  # our own child wrote it
    try:
        results = pickle.loads(values)
    except Exception as error:  # noqa: BLE001  # of a framework's objects, which may want a device that is not here
        wrong = f"a result cannot be taken over: {units.first_line(error)}; turn it into NumPy arrays in the cell"
        return Outcome("raised", printed, wrong, errors)
    return Outcome(ended, printed, reason, detail or errors, results, kinds)


def _text(stream) -> str:
    """What a file of a child holds; its end if it is long, after a line that says so."""
    left_out = max(0, stream.seek(0, os.SEEK_END) - MOST_SHOWN)
    stream.seek(left_out)
    text = stream.read().decode("utf-8", "replace")
    return f"[{units.size(left_out)} left out; here is the end]\n{text}" if left_out else text


def main(folder: str, device: str = "", threads: str = "") -> int:
    """The child: ``python -m metallab.isolated FOLDER DEVICE [1]`` runs the task that lies in a folder."""
    _leave_nobody_behind()
    _settle(device, threads)
    source, names = pickle.loads(Path(folder, "task").read_bytes())
    answer = _prepared() or _answer(source, names)
    part = Path(folder, "part")
    part.write_bytes(answer)
    part.rename(Path(folder, "answer"))
    if os.environ.get("METALLAB_DEVICE") == "sim":
        # PyTorch's threads for backward passes may hold the simulated device while Python is taken down: do not wait
        # for that. What a Mac prints at its end is printed.
        atexit._run_exitfuncs()
        _flush()
        os._exit(0)
    _flush()
    return 0


def _serve(device: str, threads: str = "") -> int:
    """The server of `forking`: ``python -m metallab.isolated --serve DEVICE [1]``."""

    def prepare() -> None:
        _settle(device, threads)
        if _prepared() is not None:
            sys.exit(1)  # the fresh interpreter that comes instead tells why
        import torch  # noqa: F401  # and the simulated GPU with it

    def work(folder: str) -> int:
        import numpy
        import torch

        numpy.random.seed()  # Python does this by itself
        torch.default_generator.seed()
        code = main(folder, device, threads)
        atexit._run_exitfuncs()
        return code

    forking.serve(prepare, work)
    return 0


def _settle(device: str, threads: str) -> None:
    if device:
        os.environ["METALLAB_DEVICE"] = device
    if threads and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _leave_nobody_behind() -> None:
    """Go on in a child of this process, which waits for it, kills what it left running, and ends as it ended.

    On Linux: this process adopts whatever would get away with a session of its own. Elsewhere nothing would come of it.
    Nothing is imported yet that has threads, so that a fork is safe.
    """
    if not adopt_orphans():
        return
    child = os.fork()
    if child == 0:
        return
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    kill_descendants()
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has left its core, if it may
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError):  # the code may have closed it
            stream.flush()


def _prepared() -> bytes | None:
    """Arm the simulated GPU where one is asked for; the answer that says why that failed, or None.

    PyTorch's device is built and switched on when torch is imported; MPSGraph, which PyTorch computes, needs none.
    """
    if os.environ.get("METALLAB_DEVICE") != "sim":
        return None
    from metallab import simulation

    try:
        simulation.arm(required=True)
    except simulation.SimulationUnavailable as error:
        return _raised(error)
    return None


def _answer(source: str, names: Sequence[str]) -> bytes:
    """How the task ended, its reason and detail, and its results, pickled."""
    linecache.cache[_SOURCE] = (len(source), None, source.splitlines(keepends=True), _SOURCE)
    space: dict[str, Any] = {"__name__": "__main__"}
    try:
        exec(compile(source, _SOURCE, "exec"), space)
    except BaseException as error:  # noqa: BLE001  # whatever it is, it is the answer
        return _raised(error)
    if unset := [name for name in names if name not in space]:
        return _answered("raised", f"the code ended without setting {', '.join(unset)}")
    try:
        return _answered("well", values={name: space[name] for name in names})
    except Exception as error:  # noqa: BLE001  # pickling raises whatever an object's own code raises
        why = f"a result cannot be sent back: {units.first_line(error)}; turn it into NumPy arrays and plain values"
        return _answered("raised", why, f"{type(error).__name__}: {error}")  # no kinds: not the text raised it


def _raised(error: BaseException) -> bytes:
    """An answer that tells of an exception, with the part of the traceback that lies in the task's text."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _SOURCE]
    where = "".join(traceback.format_list(frames))
    words = "".join(traceback.format_exception_only(error)).strip()
    kinds = tuple(kind.__name__ for kind in type(error).__mro__)
    return _answered("raised", units.first_line(error, kind=True), f"{where}{words}", kinds=kinds)


def _answered(
    ended: str,
    reason: str = "",
    detail: str = "",
    values: Mapping[str, Any] | None = None,
    kinds: tuple[str, ...] = (),
) -> bytes:
    """The results are pickled apart: what cannot be read of them shall not hide how it ended."""
    return pickle.dumps((ended, reason, detail, pickle.dumps(dict(values or {})), kinds))


def load_ipython_extension(shell) -> None:
    """``%load_ext metallab.isolated`` in a notebook: the cell magic ``%%isolated``."""
    shell.register_magic_function(functools.partial(_cell, shell), "cell", "isolated")


def _arguments(line: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="%%isolated", add_help=False, exit_on_error=False)
    parser.add_argument("results", nargs="*")
    parser.add_argument("--device", choices=["mps"])
    parser.add_argument("--threads", type=int, choices=[1])
    # longer than `run`'s: on a busy machine that has not built the simulated GPU yet, that alone took 2 minutes
    parser.add_argument("--timeout", type=float, default=200.0)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--raises", metavar="EXCEPTION")
    parser.add_argument("--module")
    parser.add_argument("--needs", action="append", default=[], choices=needs.TOOLS)
    parser.add_argument("--wants", action="append", default=[], choices=needs.TOOLS)
    parser.add_argument("--full", action="store_true")
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise argparse.ArgumentError(None, f"{line}: {error}") from error
    known, unknown = parser.parse_known_args(words)
    if not known.timeout > 0:
        raise argparse.ArgumentError(None, f"--timeout {known.timeout:g}, which is no time")
    names = [*known.results, *([known.module] if known.module is not None else [])]
    if unknown or not all(map(str.isidentifier, names)) or not all("=" in pair for pair in known.set):
        raise argparse.ArgumentError(None, f"{' '.join(unknown) or line}")
    return known


_USAGE = (
    "%%isolated [RESULT ...] [--device mps] [--threads 1] [--timeout SECONDS] [--set NAME=VALUE] [--raises EXCEPTION] "
    "[--needs TOOL] [--wants TOOL] [--module NAME] [--full]"
)


def _cell(shell, line: str, cell: str) -> None:
    """Run a notebook's cell in a child process, show what it printed, and take its results over."""
    try:
        given = _arguments(line)
    except argparse.ArgumentError as error:
        raise ValueError(f"%%isolated does not understand {error}; it takes: {_USAGE}") from None
    for name in (*given.results, "isolated_outcome"):  # whatever comes now, nothing old is taken for new
        shell.user_ns.pop(name, None)
    if given.full and mode.current() == "fast":
        print("A quick run leaves this cell out.")
        return _not_run(shell, given.results, [], "a quick run leaves it out")
    gaps = [tool.gap for tool in needs.missing([*(["apple-gpu"] if given.device else []), *given.needs])]
    if gaps:
        return _not_run(shell, given.results, gaps, "; ".join(gap.what for gap in gaps))
    modules = shell.user_ns.setdefault("isolated_modules", {})
    if given.module:
        modules[given.module] = cell
    if given.device:
        print(f"On {apple_gpu()}:")
    outcome = run(
        cell,
        results=given.results,
        device=given.device,
        threads=given.threads,
        environment=dict(pair.split("=", 1) for pair in given.set),
        modules=modules,
        timeout=given.timeout,
        forked=bool(given.device),
    )
    if "SimulationError" in outcome.kinds and (gap := needs.other_torch()):
        return _not_run(shell, given.results, [gap], gap.what)
    shell.user_ns |= {"isolated_outcome": outcome, **outcome.results}
    print(outcome.printed, end="")
    _judge(outcome, given.raises)
    for tool in needs.missing(given.wants):
        needs.incomplete(f"the part of this cell that needs {tool.name}", tool.mend())


def _not_run(shell, names: Sequence[str], gaps: Sequence[needs.Gap], reason: str) -> None:
    """Give the reason in place of each result, and say in the cell what was missing."""
    shell.user_ns["isolated_outcome"] = Outcome("not run", reason=reason)
    shell.user_ns |= {name: NotMade(reason) for name in names}
    for gap in gaps:
        needs.incomplete(gap.what, gap.mend)


class NotMade:
    """Stands for a result of a cell that was not run for lack of a tool, so that later cells need not ask.

    It shows as the reason, and so does whatever is called on it or asked of it by a key; a loop over it has no rounds.
    To compute with it is a TypeError.
    """

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> NotMade:
        if name.startswith("_"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: object, **__: object) -> NotMade:
        return self

    def __getitem__(self, _: object) -> NotMade:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __repr__(self) -> str:
        return f"Nothing to show: {self._reason}."


def _judge(outcome: Outcome, expected: str | None) -> None:
    """Say how a cell ended. `ChildFailed`, which fails the page, unless it ended as it should."""
    if outcome.ok and not expected:
        print(outcome.detail, end="", file=sys.stderr)  # warnings
    elif outcome.ok:
        raise ChildFailed(f"this cell should raise {expected}, and ended without raising anything")
    elif outcome.ended == "raised" and expected in outcome.kinds:
        print(f"This cell is meant to raise {expected}, and did:\n{outcome.detail}")
    else:
        wanted = f", where it should raise {expected}" if expected else ""
        how = f"this cell {outcome.ended} in its own process{wanted}"
        raise ChildFailed(f"{outcome.reason} ({how})\n{outcome.detail}".rstrip())


def apple_gpu() -> str:
    """Which Apple GPU a cell with ``--device mps`` runs on: this Mac's, or the simulated one."""
    if sys.platform != "darwin":
        return "the simulated Apple GPU, whose times say nothing about a Mac"
    from metallab import machine

    return f"{machine.describe().chip or 'this Mac'} GPU"


if __name__ == "__main__":
    sys.exit(_serve(*sys.argv[2:]) if sys.argv[1] == "--serve" else main(*sys.argv[1:]))
