"""The command line: which notebooks, on which device, progress, ``summary.json``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import filelock

from metallab import mode as modes
from metallab import paths, processes
from metallab.device import NAMES
from metallab.headless.runner import (
    CELL_TIMEOUT,
    ENTRY,
    TIMEOUT,
    USED,
    Job,
    NotebookResult,
    UsageError,
    cannot_write,
    execute,
    make_job,
    resolve_device,
)
from metallab.notebook import closing_line
from metallab.outcomes import STATUSES
from metallab.paths import shown

STRICT = "--strict"
UNFINISHED = (
    "no result: the run ended while this notebook was running; it was killed, or could not write"
)


def main(argv: list[str] | None = None) -> int:
    """Run the command: 0 if nothing failed, 1 if something did, 2 if it cannot be done, 130 if it was interrupted."""
    try:
        with processes.stoppable():
            return run(parse(argv))
    except UsageError as error:
        print(f"metallab.headless: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before the first notebook, or after the last
        return 130


def run(options: argparse.Namespace) -> int:
    """Run what the command line asks for; return the exit code."""
    chosen = choose(options.paths, options.only)
    resolved = resolve_device(options.device)
    how = {
        "cell_timeout": options.cell_timeout,
        "timeout": options.timeout,
        "strict": options.strict,
    }
    jobs = [make_job(path, options.mode, resolved["device"], **how) for path in chosen]
    folder, began = Path(jobs[0].out), time.monotonic()
    say(f"{len(jobs)} notebooks, {options.mode} mode, on {resolved['label']}")
    results: list[NotebookResult] = []
    with locked(folder):
        summary = Summary(folder, options.mode, resolved)
        try:
            for job in jobs:
                summary.add(NotebookResult(job.name, job.name, reason=UNFINISHED))
                results.append(run_job(job))
                summary.add(results[-1])
                say(line_of(results[-1]))
        except KeyboardInterrupt as error:
            if result := getattr(error, "result", None):
                results.append(result)
                summary.add(result)
            print_table(results, folder, time.monotonic() - began)
            say(f"interrupted; {len(jobs) - len(results)} notebooks were not begun")
            return 130
    print_table(results, folder, time.monotonic() - began)
    if closing := closing_line(r.not_run for r in results if r.status == "incomplete"):
        say(f"\n{closing}")
    return int(any(result.status == "failed" for result in results))


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system frees when this process ends; UsageError if another run has it."""
    try:
        paths.make_folder(folder)
        with filelock.FileLock(folder / USED, timeout=0):
            yield
    except filelock.Timeout:
        raise UsageError(
            f"another run is writing to {folder}; wait until it is through, or end it"
        ) from None
    except OSError as error:
        raise cannot_write(folder, error) from error


class Summary:
    """``summary.json``: the last result of each notebook; ``started`` and ``seconds`` are those of the latest run."""

    def __init__(self, folder: Path, mode: str, resolved: dict) -> None:
        self.path = folder / "summary.json"
        self.head = {
            "mode": mode,
            **resolved,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self.clock = time.monotonic()
        self.entries: dict[str, dict] = {}
        with contextlib.suppress(FileNotFoundError):
            try:
                for entry in json.loads(self.path.read_text(encoding="utf-8"))["notebooks"]:
                    self.entries[entry["name"]] = {name: entry[name] for name in ENTRY}
            except (ValueError, KeyError, TypeError) as error:
                raise UsageError(
                    f"{self.path} is not a run's summary: move it away ({error})"
                ) from error

    def add(self, result: NotebookResult) -> None:
        """Add or replace a result, and write the file. UsageError if that fails."""
        self.entries[result.name] = result.entry()
        seconds = round(time.monotonic() - self.clock, 3)
        notebooks = [self.entries[name] for name in sorted(self.entries)]
        text = json.dumps(
            {**self.head, "seconds": seconds, "notebooks": notebooks}, indent=1, ensure_ascii=False
        )
        try:
            paths.write_atomically(self.path, text + "\n")
        except OSError as error:
            raise cannot_write(self.path, error) from error


def choose(given: list[Path], only: list[str]) -> list[Path]:
    """Return the notebooks to run: those given or all in ``notebooks/``, narrowed by ``only``.

    An entry of ``only`` is a number (10 is 10_*) or a stem. UsageError if one matches nothing, or if two
    notebooks have the same name.
    """
    chosen = list(
        dict.fromkeys(
            path.absolute() for path in given or sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))
        )
    )
    if not chosen:
        raise UsageError(f"there are no notebooks in {paths.NOTEBOOKS}; name the files to run")
    names = [path.stem for path in chosen]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise UsageError(
            f"two notebooks are called {min(repeated)}; run them one after the other, into two folders"
        )
    for wanted in only:
        if not any(wanted in (name, name.split("_")[0]) for name in names):
            raise UsageError(f"--only {wanted} matches no notebook; there are: {', '.join(names)}")
    return [path for path in chosen if not only or {path.stem, path.stem.split("_")[0]} & set(only)]


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line; exits with code 2 on a mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m metallab.headless",
        description="Run notebooks without a person.",
        epilog="Exit codes: 0 nothing failed, 1 a notebook failed, 2 it cannot be done (a line says why), "
        "130 it was interrupted.",
    )
    add = parser.add_argument
    add("--mode", choices=modes.MODES, default="full", help="sizes and samples (default: full)")
    add(
        "--device",
        choices=NAMES,
        default="auto",
        help="where to run (default: the best device of this machine)",
    )
    add(
        "--only",
        action="append",
        default=[],
        metavar="14",
        help="only this number or name; may be repeated",
    )
    add(
        "--cell-timeout",
        type=seconds_argument,
        default=CELL_TIMEOUT,
        metavar="S",
        help="seconds a cell may take",
    )
    add(
        "--timeout",
        type=seconds_argument,
        default=TIMEOUT,
        metavar="S",
        help="seconds a notebook may take",
    )
    add(
        STRICT,
        metavar="1",
        help="a page that does not run whole is a failure, 0: it is not (default: METALLAB_STRICT, or 0)",
    )
    add("paths", nargs="*", type=Path, help="notebooks (default: all numbered ones in notebooks/)")
    # without a value it would take the first page for one
    given = sys.argv[1:] if argv is None else map(str, argv)
    options = parser.parse_args([f"{STRICT}=1" if each == STRICT else each for each in given])
    try:
        if options.strict is None:
            options.strict = modes.is_strict()
        else:
            options.strict = modes.read_strict(options.strict, STRICT)
    except ValueError as error:
        parser.error(str(error))
    return options


def seconds_argument(text: str) -> float:
    """Return a time limit from the command line: seconds, 0 for none."""
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError("give a number of seconds, 0 for no limit")


def say(text: str, end: str = "\n") -> None:
    """Print a line; a closed pipe (``make run | head``) does not end the run."""
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run_job(job: Job, execute: Callable = execute) -> NotebookResult:
    """Run a job; on a terminal with a line that shows the cell that runs."""
    if not sys.stdout.isatty():
        return execute(job)
    show = lambda result, seconds: say(
        f"\r\x1b[K{job.name}  cell {result.executed + 1}/{result.cells}  {seconds:.0f} s", end=""
    )
    result = execute(job, show)
    say("\r\x1b[K", end="")
    return result


def line_of(result: NotebookResult) -> str:
    """Return a notebook's line of progress."""
    reason = " ".join(result.reason.split())
    return f"{result.status:<11}{result.name:<42}{result.seconds:>8.1f} s  {reason[:100]}".rstrip()


def print_table(results: Iterable[NotebookResult], folder: Path, seconds: float) -> None:
    """Print the closing table, each failure, what was skipped and why, and what did not run for lack of a tool."""
    say(f"\n{'notebook':<42}{'status':<11}{'time':>10}{'cells':>10}{'peak memory':>14}")
    for r in results:
        ran, memory = f"{r.executed}/{r.cells}", f"{r.peak_rss_bytes / 2**20:.0f} MiB"
        say(f"{r.name:<42}{r.status:<11}{r.seconds:>8.1f} s{ran:>10}{memory:>14}")
    counts = [f"{sum(r.status == s for r in results)} {s}" for s in STATUSES]
    say(f"{', '.join(counts)} in {seconds:.1f} s; {shown(folder / 'summary.json')}")
    for r in results:
        if r.status == "failed":
            say(f"\n{r.name}: {r.reason}")
            for line in r.traceback.splitlines()[-12:]:
                say(f"    {line}")
            if r.failed_copy:
                say(f"  left in {os.path.abspath(folder / r.failed_copy)}")
    for r in results:
        if r.status == "skipped":
            say(f"\n{r.name} was skipped: {r.reason}")
    for r in results:
        if r.not_run:
            say(f"\n{r.name} is incomplete. Not run:")
            for gap in r.not_run:
                say(f"  {gap['where']}: {gap['what']}")
            for fix in dict.fromkeys(gap["fix"] for gap in r.not_run):
                say(f"  to fix it: {fix}")
