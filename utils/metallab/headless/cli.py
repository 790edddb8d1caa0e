"""The command line: which notebooks, on which device, progress, ``summary.json``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import filelock

from metallab import mode as modes
from metallab import paths, processes
from metallab.device import NAMES
from metallab.headless.runner import (
    CELL_TIMEOUT,
    ENTRY,
    TIMEOUT,
    USED,
    Interrupted,
    Job,
    NotebookResult,
    UsageError,
    cannot_write,
    execute,
    make_job,
    resolve_device,
)
from metallab.notebook import closing_line, group_gaps
from metallab.outcomes import STATUSES
from metallab.paths import shorten

STRICT = "--strict"
CLEAR_LINE = "\r\x1b[K"
"""Begins the line of a terminal anew."""
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
    """Run the notebooks that the command line asks for, print the closing table, and return the exit code.

    0 if none failed, 1 if one did, 130 if Ctrl-C ended it before the last. UsageError if it cannot begin.
    """
    chosen = choose(options.paths, options.only)
    resolved = resolve_device(options.device)
    jobs = [
        make_job(
            path,
            options.mode,
            resolved["device"],
            cell_timeout=options.cell_timeout,
            timeout=options.timeout,
            strict=options.strict,
        )
        for path in chosen
    ]
    folder = Path(jobs[0].out)
    began = time.monotonic()
    say(f"{_count_notebooks(len(jobs))}, {options.mode} mode, on {resolved['label']}")

    with hold_lock(folder):
        results, is_whole = _run_jobs(jobs, Summary(folder, options.mode, resolved))

    print_table(results, folder, time.monotonic() - began)
    if not is_whole:
        say(f"interrupted; not begun: {_count_notebooks(len(jobs) - len(results))}")
        return 130
    closing = closing_line(result.not_run for result in results if result.status == "incomplete")
    if closing:
        say(f"\n{closing}")
    return int(any(result.status == "failed" for result in results))


def _run_jobs(jobs: Sequence[Job], summary: Summary) -> tuple[list[NotebookResult], bool]:
    """Run jobs one after the other; return the results, and False if Ctrl-C ended it before the last."""
    results: list[NotebookResult] = []
    for number, job in enumerate(jobs, 1):
        # until there is a result, the file says what it means that there is none
        summary.add(NotebookResult(job.name, job.name, reason=UNFINISHED))
        try:
            result = run_job(job, f"{number} of {len(jobs)}")
        except Interrupted as interruption:
            summary.add(interruption.result)
            return [*results, interruption.result], False
        except KeyboardInterrupt:  # between two notebooks
            return results, False

        results.append(result)
        summary.add(result)
        say(line_of(result))
    return results, True


def _count_notebooks(number: int) -> str:
    """Return "1 notebook" or "3 notebooks"."""
    return f"{number} notebook" if number == 1 else f"{number} notebooks"


@contextlib.contextmanager
def hold_lock(folder: Path) -> Iterator[None]:
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
    """``summary.json``: the last result of each notebook; ``started`` and ``seconds`` are those of the latest run.

    Parameters
    ----------
    folder
        Of the run. The results of earlier runs into it stay.
    mode
        ``fast`` or ``full``.
    resolved
        What `resolve_device` returns.

    Raises
    ------
    UsageError
        If the folder has a ``summary.json`` that no run wrote.
    """

    def __init__(self, folder: Path, mode: str, resolved: Mapping[str, Any]) -> None:
        """Read what earlier runs into the folder have left. UsageError if there is a summary that no run wrote."""
        self.path = folder / "summary.json"
        self.head = {
            "mode": mode,
            **resolved,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self.clock = time.monotonic()
        self.entries: dict[str, dict[str, Any]] = {}

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
        content = {**self.head, "seconds": seconds, "notebooks": notebooks}

        text = json.dumps(content, indent=1, ensure_ascii=False)
        try:
            paths.write_atomically(self.path, text + "\n")
        except OSError as error:
            raise cannot_write(self.path, error) from error


def choose(given: Sequence[Path], only: Sequence[str]) -> list[Path]:
    """Return the notebooks to run: those given or all in ``notebooks/``, narrowed by ``only``.

    Parameters
    ----------
    given
        Files; none for all numbered ones.
    only
        Numbers (10 is 10_*) or stems; none for no narrowing.

    Raises
    ------
    UsageError
        If one of ``only`` matches nothing, or if two notebooks have the same name.
    """
    files = given or sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))
    candidates = list(dict.fromkeys(path.absolute() for path in files))
    if not candidates:
        raise UsageError(f"there are no notebooks in {paths.NOTEBOOKS}; name the files to run")

    _assert_different_names(candidates)
    if not only:
        return candidates

    for wanted in only:
        if not any(wanted in _names_of(path) for path in candidates):
            listed = "\n".join(f"  {path.stem}" for path in candidates)
            raise UsageError(
                f"--only {wanted} matches no notebook. A number or a whole name is wanted, of:\n{listed}"
            )
    return [path for path in candidates if _names_of(path) & set(only)]


def _assert_different_names(candidates: Sequence[Path]) -> None:
    """Raise UsageError if two notebooks have the same name: one would be written over the other."""
    names = [path.stem for path in candidates]
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise UsageError(
            f"two notebooks are called {min(repeated)}; run them one after the other, into two folders"
        )


def _names_of(path: Path) -> set[str]:
    """Return what a notebook may be called on the command line: its stem, and its number."""
    return {path.stem, path.stem.split("_")[0]}


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
        type=parse_seconds,
        default=CELL_TIMEOUT,
        metavar="S",
        help="seconds a cell may take",
    )
    add(
        "--timeout",
        type=parse_seconds,
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

    # argparse would take the first page for the value of a bare --strict
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


def parse_seconds(text: str) -> float:
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


def run_job(job: Job, place: str = "") -> NotebookResult:
    """Run a job, and return its result; on a terminal with a line that shows the cell that runs.

    Parameters
    ----------
    job
        What to run.
    place
        Which of how many it is, such as "3 of 33", for that line.
    """
    if not sys.stdout.isatty():
        return execute(job)

    def show(result: NotebookResult, seconds: float) -> None:
        """Replace the line."""
        running = min(result.executed + 1, result.cells)  # after the last cell it is the last
        cell = f"cell {running} of {result.cells}" if result.cells else "starting"
        say(f"{CLEAR_LINE}{place}  {job.name}  {cell}  {seconds:.0f} s", end="")

    result = execute(job, show)
    say(CLEAR_LINE, end="")
    return result


LONGEST_REASON = 100
"""Of a notebook's line of progress, in characters; all of it stands below the closing table."""


def line_of(result: NotebookResult) -> str:
    """Return a notebook's line of progress."""
    reason = textwrap.shorten(result.reason, LONGEST_REASON, placeholder=" ...")
    if result.status == "incomplete":
        fixes = ", ".join(dict.fromkeys(gap["fix"] for gap in result.not_run))
        reason = f"{result.whole_cells} of {result.cells} cells ran; to fix it: {fixes}"
    return f"{result.status:<11}{result.name:<42}{result.seconds:>8.1f} s  {reason}".rstrip()


def print_table(results: Sequence[NotebookResult], folder: Path, seconds: float) -> None:
    """Print the closing table, each failure, what was skipped and why, and what did not run for lack of a tool."""
    say(f"\n{'notebook':<42}{'status':<11}{'time':>10}{'cells':>10}{'peak memory':>14}")
    for result in results:
        cells = f"{result.whole_cells}/{result.cells}"
        memory = f"{result.peak_rss_bytes / 2**20:.0f} MiB"
        say(f"{result.name:<42}{result.status:<11}{result.seconds:>8.1f} s{cells:>10}{memory:>14}")

    statuses = [result.status for result in results]
    counts = [f"{statuses.count(status)} {status}" for status in STATUSES]
    say(f"{', '.join(counts)} in {seconds:.1f} s; {shorten(folder / 'summary.json')}")

    for result in results:
        if result.status == "failed":
            _print_failure(result, folder)
    for result in results:
        if result.status == "skipped":
            say(f"\n{result.name} was skipped: {result.reason}")
    for result in results:
        if result.not_run:
            _print_gaps(result)


def _print_failure(result: NotebookResult, folder: Path) -> None:
    """Print why a notebook failed, the end of its traceback, and where its partial copy is."""
    say(f"\n{result.name}: {result.reason}")
    for line in result.traceback.splitlines()[-12:]:
        say(f"    {line}")
    if result.failed_copy:
        say(f"  left in {os.path.abspath(folder / result.failed_copy)}")


def _print_gaps(result: NotebookResult) -> None:
    """Print which cells of a notebook did not run for lack of a tool, and how to get it."""
    say(f"\n{result.name} is incomplete. Not run:")
    for what, cells in group_gaps(result.not_run).items():
        if len(cells) == 1:
            say(f"  {cells[0]}: {what}")
        else:
            say("\n    ".join([f"  {what}:", *cells]))
    for fix in dict.fromkeys(gap["fix"] for gap in result.not_run):
        say(f"  to fix it: {fix}")
