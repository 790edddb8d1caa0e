"""The command line."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from pathlib import Path

from metallab import mode as modes
from metallab import paths
from metallab.device import NAMES
from metallab.headless.devices import resolve_device
from metallab.headless.jobs import CELL_TIMEOUT, TIMEOUT, NotebookResult, UsageError, make_job
from metallab.headless.pool import Pool
from metallab.headless.summary import Console, SummaryWriter, locked


def main(argv: list[str] | None = None) -> int:
    """The command: 0 if nothing failed, 1 if something did, 2 if it can't be done, 130 if it was interrupted.

    What can't be done is said in one line: a mistake on the command line, a device that is not here, another run in the
    same folder, a folder that can't be written, a full disk. A notebook that is incomplete, because a tool is missing
    here, did not fail: the last lines name what to install.
    """
    try:
        return run(parse(argv))
    except UsageError as error:
        print(f"metallab.headless: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before the first notebook, or after the last: nothing to clean up
        return 130


def run(options: argparse.Namespace) -> int:
    """Runs what the command line asks for; the exit code."""
    chosen = choose(options.paths, options.only)
    resolved = resolve_device(options.device)
    limits = {"cell_timeout": options.cell_timeout, "timeout": options.timeout}
    jobs = [make_job(path, options.mode, resolved["device"], **limits) for path in chosen]
    folder = Path(jobs[0].out)
    results: list[NotebookResult] = []
    console = Console()
    with locked(folder) as lock:
        summary = SummaryWriter(folder, options.mode, resolved)
        paths.note(folder)
        console.say(f"{len(jobs)} notebooks, {options.mode} mode, on {resolved['label']}")

        def finished(result: NotebookResult) -> None:
            results.append(result)
            console.finished(result)
            summary.add(result)

        watching = {"starting": summary.begin, "progress": console.progress, "finished": finished}
        through = Pool(jobs, options.jobs, keep=(lock,), stoppable=True, **watching).run()
        console.summary(results, folder, time.monotonic() - summary.clock)
    if not through:
        console.say(f"interrupted; {len(jobs) - len(results)} notebooks were not begun")
        return 130
    return int(any(result.status == "failed" for result in results))


def choose(given: list[Path], only: list[str]) -> list[Path]:
    """The notebooks to run: those given or all in ``notebooks/``, narrowed by ``only``.

    An entry of ``only`` is a number (02 is 02_*, not 02b_*) or a stem. UsageError if one matches nothing, or if two
    notebooks have the same name and would overwrite each other.
    """
    chosen = list(dict.fromkeys(path.absolute() for path in given or sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))))
    if not chosen:
        raise UsageError(f"there are no notebooks in {paths.NOTEBOOKS}; name the files to run")
    names = [path.stem for path in chosen]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"two notebooks are called {min(repeated)}; run them one after the other, into two folders")
    for wanted in only:
        if not any(wanted in (name, name.split("_")[0]) for name in names):
            raise UsageError(f"--only {wanted} matches no notebook; there are: {', '.join(names)}")
    return [path for path in chosen if not only or {path.stem, path.stem.split("_")[0]} & set(only)]


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line; exits with code 2 on a mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m metallab.headless",
        description="Runs notebooks without a person.",
        epilog="Exit codes: 0 nothing failed, 1 a notebook failed, 2 it can't be done (a line says why: a mistake, no "
        "such device, nothing can be written), 130 it was interrupted.",
    )
    add = parser.add_argument
    add("--mode", choices=modes.MODES, default="full", help="sizes and samples (default: full)")
    add("--device", choices=NAMES, default="auto", help="where to run (default: the best device of this machine)")
    add("--only", action="append", default=[], metavar="03", help="only this number or name; may be repeated")
    add("--cell-timeout", type=seconds_argument, default=CELL_TIMEOUT, metavar="S", help="seconds a cell may take")
    add("--timeout", type=seconds_argument, default=TIMEOUT, metavar="S", help="seconds a notebook may take")
    add("--jobs", type=int, default=1, metavar="N", help="notebooks at a time, in fast mode only")
    add("paths", nargs="*", type=Path, help="notebooks (default: all numbered ones in notebooks/)")
    options = parser.parse_args(argv)
    if options.jobs < 1:
        parser.error("--jobs must be 1 or more")
    if options.jobs > 1 and options.mode == "full":
        parser.error(
            "measuring in parallel would make the notebooks disturb each other's numbers; JOBS is for make test"
        )
    return options


def seconds_argument(text: str) -> float:
    """A time limit from the command line: seconds, 0 for none."""
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError("give a number of seconds, 0 for no limit")
