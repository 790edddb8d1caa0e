"""Run every page several times, each time in a fresh process (``make bench``), into one file of results to send.

First all pages run once, then all again, so that slow changes (heat, other programs) show in the spread of a page's
runs. Around each run a fixed piece of work is timed on the CPU, and its drift is written into the page's records. The
folder is named after the state of code and machine: an interrupted bench goes on where it stopped, and runs of
different states are never mixed.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from metallab import machine, paths, processes, records, timing
from metallab import mode as modes
from metallab.device import NAMES
from metallab.headless.cli import Summary, choose, hold_lock, line_of, run_job, say
from metallab.headless.runner import NotebookResult, UsageError, make_job, resolve_device
from metallab.outcomes import REACHED_THE_END

RUNS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m metallab.headless.bench``, and return its exit code.

    0; 1 if a page failed, or if the code changed or a file could not be written meanwhile; 2 if it cannot begin, or no
    page left results; 130 if it was interrupted.
    """
    given = _parse(arguments)

    try:
        with processes.stoppable():
            return _run(given)
    except UsageError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        print(
            f"bench: {error}; what is finished stays, and make bench goes on from there",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print(
            "interrupted; what is finished stays, and make bench goes on from there",
            file=sys.stderr,
        )
        return 130


def state() -> str:
    """Return a fingerprint of what a bench measures: the code, and the machine with its settings."""
    # without what changes by the minute, and the GPU, which a busy Mac may fail to name
    described = replace(machine.describe().without_momentary(), gpu=None, gpu_cores=None)
    digest = hashlib.sha256(described.to_json().encode())

    code = [*(paths.ROOT / "utils").rglob("*"), *(paths.ROOT / "metalsim" / "src").rglob("*")]
    for path in sorted([*paths.NOTEBOOKS.glob("*.ipynb"), *code]):
        inside = path.relative_to(paths.ROOT)
        if path.is_file() and not any(map(_is_made, inside.parts)):
            digest.update(f"{inside} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:8]


def _is_made(part: str) -> bool:
    """Return whether a part of a path is no source: hidden, of an installation, or Python's cache."""
    return part.startswith((".", "__pycache__")) or part.endswith(".egg-info")


def _run(given: argparse.Namespace) -> int:
    """Run each page as often as the command line asks, write the one file of results, and say what is in it.

    Returns 1 if a page failed, else 0. UsageError on a simulated device; ValueError if code or machine changed
    meanwhile.
    """
    pages = choose([], given.only)
    resolved = resolve_device(given.device)
    if resolved["simulated"]:
        raise UsageError(
            "times of the simulated Apple GPU say nothing: take DEVICE=cpu, or a real one"
        )

    root = (paths.BUILD / "bench").absolute()
    with hold_lock(root):
        begun = state()
        folder = root / f"{given.mode}-{resolved['device']}-{begun}"
        if given.anew:
            shutil.rmtree(folder, ignore_errors=True)

        say(
            f"{len(pages)} pages, {given.runs} runs of each, {given.mode} mode, on {resolved['label']}"
        )
        _warn_of_power()
        unhappy = _run_rounds(given, pages, resolved, folder, begun)
        for result in unhappy:
            say(f"{result.status.upper()} {result.name}: {result.reason}")
        _conclude(_combine(root, folder, given.mode, resolved))
    return int(any(result.status == "failed" for result in unhappy))


def _warn_of_power() -> None:
    """Say if the machine saves energy, which the results will say as well."""
    here = machine.describe()
    if here.power_source == "battery" or here.low_power_mode:
        say("On battery or in low-power mode: plug in and switch it off, or these results say so.")


def _run_rounds(
    given: argparse.Namespace,
    pages: Sequence[Path],
    resolved: Mapping[str, Any],
    folder: Path,
    begun: str,
) -> list[NotebookResult]:
    """Run each page once a round, those that are not finished; return what failed or did not run whole.

    Parameters
    ----------
    given
        The command line: how many rounds, and in which mode.
    pages
        The notebooks.
    resolved
        The device, as `resolve_device` describes it.
    folder
        It gets a folder for each round, ``run-1`` and so on, where an earlier bench may have left finished pages.
    begun
        The `state` of code and machine at the beginning. ValueError if it is another one after a page.
    """
    unhappy: dict[str, NotebookResult] = {}  # a page that fails in each round is said once
    for number in range(1, given.runs + 1):
        summary = Summary(folder / f"run-{number}", given.mode, resolved)
        for page in pages:
            if _is_finished(summary, page.stem):
                continue
            place = f"run {number} of {given.runs}"
            result = _measure(page, summary, resolved["device"], given.mode, begun, place)
            say(f"{place}  {line_of(result)}")
            if result.status in ("failed", "incomplete"):
                unhappy[f"{result.status} {result.name}"] = result
    return list(unhappy.values())


def _measure(
    page: Path, summary: Summary, device: str, mode: str, begun: str, place: str
) -> NotebookResult:
    """Run a page, add it to its round's summary, and return its result.

    In full mode the drift of the machine's speed around the page is written into its records. ValueError, and nothing
    in the summary, if `state` is not as it was when the bench had begun: the page is run again by the next bench.
    """
    job = make_job(page, mode, device, out=summary.path.parent)
    before = _time_loop() if mode == "full" else None
    result = run_job(job, place)

    results = _results(summary, page.stem)
    if before and result.status in REACHED_THE_END and results.exists():  # not without its tool
        _note_drift(results, timing.Sentinel(before, _time_loop()).drift)

    if state() != begun:
        raise ValueError(
            f"the code, a setting or the power source changed while {job.name} ran, and that run is not kept: "
            "change it back, or let the next bench begin anew"
        )
    summary.add(result)
    return result


def _is_finished(summary: Summary, name: str) -> bool:
    """Return True if a page was skipped in that run, or left results that can be read."""
    status = summary.entries.get(name, {}).get("status")
    if status not in REACHED_THE_END:
        return status == "skipped"
    try:
        records.load(_results(summary, name))
    except records.RecordError:
        return False
    return True


def _combine(root: Path, folder: Path, mode: str, resolved: Mapping[str, Any]) -> Path:
    """Merge the results of all finished pages of all rounds into one file, and return it. UsageError if there are none.

    Parameters
    ----------
    root
        Where the file is written. It is named after the device, and of a run in fast mode after that as well.
    folder
        The rounds, as `_run_rounds` leaves them.
    mode, resolved
        As the rounds ran.
    """
    rounds = [
        Summary(path.parent, mode, resolved) for path in sorted(folder.glob("run-*/summary.json"))
    ]
    names = sorted({name for summary in rounds for name in summary.entries})

    files = []
    for name in names:
        for summary in rounds:
            path = _results(summary, name)
            if _is_finished(summary, name) and path.exists():
                files.append(path)
    if not files:
        raise UsageError("no page left any results")

    name = paths.results_file(resolved["label"])
    return records.merge(files, root / (name if mode == "full" else f"{mode}_{name}"))


def _results(summary: Summary, name: str) -> Path:
    """Return the file of results of a page in a round."""
    return summary.path.parent / "results" / f"{name}.json"


def _time_loop() -> timing.Measurement:
    """Time a loop in Python, the same before and after every page.

    The work of a device's sentinel, which watches comparisons, is a product of matrices by its framework. This process
    imports no framework, as it would take memory and threads from the page that is measured.
    """
    return timing.measure(
        lambda: sum(i * i for i in range(50_000)),
        on=timing.Host(),
        name="sentinel",
        budget=timing.PAGE_SENTINEL,
    )


def _note_drift(path: Path, drift: float) -> None:
    """Put the drift around a page into its records."""
    kept = records.load(path)
    records.write(path, [replace(record, page_drift=drift) for record in kept])


def _conclude(path: Path) -> None:
    """Say how much was measured, and how many measurements are flagged."""
    kept = records.load(path)
    flags = Counter(flag for record in kept for flag in record.measurement.flags)
    flagged = ", ".join(f"{count} {flag}" for flag, count in flags.most_common()) or "none"
    say(
        f"{len(records.by_name(kept))} benchmarks, {len(kept)} measurements (flagged: {flagged}) "
        f"in {paths.shorten(path)}"
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; exits with code 2 on a mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m metallab.headless.bench", description=__doc__.splitlines()[0]
    )

    add = parser.add_argument
    add(
        "--runs",
        type=int,
        choices=range(1, 101),
        default=RUNS,
        metavar="N",
        help=f"processes a page ({RUNS})",
    )
    add(
        "--only",
        action="append",
        default=[],
        metavar="14",
        help="only this number or name; may be repeated",
    )
    add(
        "--device",
        choices=NAMES,
        default="auto",
        help="where to run (default: the best device of this machine)",
    )
    add("--mode", choices=modes.MODES, default="full", help="fast is for looking whether it runs")
    add("--anew", action="store_true", help="measure again what is there already")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
