"""Every page several times, each time in a fresh process: ``make bench``; one file of results to send.

A run of a page is a run of `metallab.headless` in full mode: a new kernel, whose records go into a folder of their own.
Runs go round the pages, first all pages once, then all again, so that what changes slowly (heat, other programs) falls
between the runs of a page and shows in their spread. Around each run a fixed piece of work is timed; where a page has
no sentinel of its own, the drift of that one stands in its records.

What is finished stays. The folder of a bench is named after the state of code and machine that it measures, so runs of
another revision, another setting or another power source are never mixed with it, and an interrupted bench goes on
where it stopped, also after another one. The one file is put together at the end by `metallab.records.merge`.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import shutil
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from metallab import machine, paths, records, timing
from metallab import mode as modes
from metallab.device import NAMES
from metallab.headless.cli import choose
from metallab.headless.devices import resolve_device
from metallab.headless.jobs import ENDED, Job, NotebookResult, UsageError, make_job
from metallab.headless.pool import Pool
from metallab.headless.summary import Console, SummaryWriter, locked
from metallab.paths import results_file, shown

RUNS = 3


class StateChanged(RuntimeError):
    """Code or machine are not as they were when the bench began; the message says what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m metallab.headless.bench``: 0, 1 if a page failed, 2 if it can't be done, 130 if interrupted."""
    given = _parse(arguments)
    try:
        return _run(given)
    except UsageError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except (StateChanged, OSError, ValueError) as error:
        print(f"bench: {error}; what is finished stays, and make bench goes on from there", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before the first run, or after the last
        return 130


def state() -> str:
    """A fingerprint of what a bench measures: the code, and the machine with its settings."""
    # without the load, which changes by the minute, and the GPU, which a Mac may be too busy to name: the device tells
    described = replace(machine.describe(), load_average=None, gpu=None, gpu_cores=None)
    digest = hashlib.sha256(described.to_json().encode())
    for path in sorted(
        [
            *paths.NOTEBOOKS.glob("*.ipynb"),
            *(paths.ROOT / "utils").rglob("*"),
            *(paths.ROOT / "metalsim" / "src").rglob("*"),
        ]
    ):
        inside = path.relative_to(paths.ROOT)
        hidden = any(part.startswith(".") for part in inside.parts)  # what a Mac's Finder and editors leave is no code
        if path.is_file() and not hidden and "__pycache__" not in inside.parts and ".egg-info" not in str(inside):
            digest.update(f"{inside} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:8]


@dataclass
class Bench:
    """The runs of some pages in one state of code and machine: what is finished, what is to do, and doing it."""

    mode: str
    resolved: dict
    """What `resolve_device` says."""
    pages: list[Path]
    runs: int
    root: Path
    """The folder that holds all benches."""
    begun: str = field(default_factory=state)
    before: timing.Measurement | None = None

    @property
    def folder(self) -> Path:
        """The folder of this bench, named after its state."""
        return self.root / f"{self.mode}-{self.resolved['device']}-{self.begun}"

    @functools.cached_property
    def rounds(self) -> list[SummaryWriter]:
        """A summary for each run of all pages."""
        return [self._round(number) for number in range(1, self.runs + 1)]

    def jobs(self) -> list[Job]:
        """What is left to do, run by run."""
        return [
            make_job(page, self.mode, self.resolved["device"], out=summary.path.parent)
            for summary in self.rounds
            for page in self.pages
            if not _is_finished(summary, page.stem)
        ]

    def seconds(self) -> dict[str, float]:
        """How long each page took, where it ran before: in this bench, or by ``make run``."""
        before = SummaryWriter(paths.run_folder(self.mode, self.resolved["device"]), self.mode, self.resolved)
        entries = [entry for summary in [before, *self.rounds] for entry in summary.entries.values()]
        return {entry["name"]: entry["seconds"] for entry in entries if entry["status"] in ENDED}

    def begin(self, job: Job) -> None:
        """Note that a run begins, and time the fixed work."""
        self._summary(job.out).begin(job)
        self.before = _fixed_work() if self.mode == "full" else None

    def finish(self, job: Job, result: NotebookResult) -> None:
        """Take a run in. `StateChanged` if it was not run in the state that this bench measures."""
        path = _results(job.out, job.name)
        if self.before and result.status in ENDED:
            _note_drift(path, timing.Sentinel(self.before, _fixed_work()).drift)
        if state() != self.begun:
            raise StateChanged(
                f"the code, a setting or the power source changed while {job.name} ran, and that run is not kept: "
                "change it back, or let the next bench begin anew"
            )
        self._summary(job.out).add(result)

    def combine(self) -> Path:
        """Write the one file: all that is finished in this state. UsageError if that is nothing."""
        rounds = self._all_rounds()
        files = [
            _results(summary.path.parent, name)
            for name in sorted({name for summary in rounds for name in summary.entries})
            for summary in rounds
            if _has_results(summary, name)
        ]
        if not files:
            raise UsageError("no page left any results")
        name = results_file(self.resolved["label"])
        made = records.merge(files, self.root / (name if self.mode == "full" else f"{self.mode}_{name}"))
        paths.note(made)
        return made

    def _all_rounds(self) -> list[SummaryWriter]:
        """Those of earlier benches of this state as well, which may have had more runs."""
        numbers = [path.name.removeprefix("run-") for path in self.folder.glob("run-*")]
        ours = sorted(int(number) for number in numbers if number.isdecimal())  # and no copy that somebody made
        return [self._round(number) for number in ours]

    def _round(self, number: int) -> SummaryWriter:
        return SummaryWriter(self.folder / f"run-{number}", self.mode, self.resolved)

    def _summary(self, folder: str) -> SummaryWriter:
        return next(summary for summary in self.rounds if str(summary.path.parent) == folder)


def _run(given: argparse.Namespace) -> int:
    pages, resolved = choose([], given.only), resolve_device(given.device)
    if resolved["simulated"]:
        raise UsageError("times of the simulated Apple GPU say nothing: take DEVICE=cpu, or a real one")
    root = (paths.BUILD / "bench").absolute()
    console = Console()
    with locked(root) as lock:
        bench = Bench(given.mode, resolved, pages, given.runs, root)
        if given.anew:
            shutil.rmtree(bench.folder, ignore_errors=True)
        jobs = bench.jobs()
        _announce(bench, len(jobs), console.say)
        outcomes: list[NotebookResult] = []

        def finished(result: NotebookResult) -> None:
            job = jobs[len(outcomes)]  # one at a time, in order
            outcomes.append(result)
            bench.finish(job, result)
            console.say(_line(bench, jobs, outcomes))

        watching = {"starting": bench.begin, "progress": console.progress, "finished": finished}
        if not Pool(jobs, keep=(lock,), stoppable=True, **watching).run():
            finished_runs = sum(result.status != "failed" for result in outcomes)
            console.say(f"interrupted; {finished_runs} runs were finished and stay: make bench goes on from there")
            return 130
        unhappy = [result for result in outcomes if result.status in ("failed", "incomplete")]
        for line in dict.fromkeys(f"{result.status.upper()} {result.name}: {result.reason}" for result in unhappy):
            console.say(line)  # the reason tells what would mend it
        _conclude(bench.combine(), console.say)
    return int(any(result.status == "failed" for result in outcomes))


def _is_finished(summary: SummaryWriter, name: str) -> bool:
    """Whether a page was skipped in that run, or has results."""
    return _status(summary, name) == "skipped" or _has_results(summary, name)


def _has_results(summary: SummaryWriter, name: str) -> bool:
    """Whether a page came to its end in that run, and left results that can be read."""
    if _status(summary, name) not in ENDED:
        return False
    try:
        records.load(_results(summary.path.parent, name))
    except records.RecordError:
        return False
    return True


def _status(summary: SummaryWriter, name: str) -> str | None:
    return summary.entries.get(name, {}).get("status")


def _results(folder: str | Path, name: str) -> Path:
    return Path(folder, "results", f"{name}.json")


def _fixed_work() -> timing.Measurement:
    """A piece of work on the CPU that is the same before and after every run."""
    budget = timing.Budget(min_seconds=0.2, max_seconds=2.0)
    return timing.measure(lambda: sum(i * i for i in range(50_000)), on=timing.Host(), name="sentinel", budget=budget)


def _note_drift(path: Path, drift: float) -> None:
    """Put the drift into the records of a page that has no sentinel of its own."""
    kept = records.load(path)
    if any(record.sentinel_drift is None for record in kept):
        records.write(path, [replace(r, sentinel_drift=drift) if r.sentinel_drift is None else r for r in kept])


# --- what it says ---


def _announce(bench: Bench, jobs: int, say: Callable[[str], None]) -> None:
    here, every = machine.describe(), len(bench.pages) * bench.runs
    say(f"{len(bench.pages)} pages, {bench.runs} runs of each, {bench.mode} mode, on {bench.resolved['label']}")
    if here.power_source == "battery" or here.low_power_mode:
        say("On battery or in low-power mode: plug in and switch it off, or these results say so.")
    if jobs == 0:
        say("Every run is there already; ANEW=1 measures again.")
    elif jobs < every:
        say(f"{every - jobs} runs are there already; {jobs} to do.")
    elif others := sorted({*bench.root.glob(f"{bench.mode}-{bench.resolved['device']}-*")} - {bench.folder}):
        say(f"Begun anew: code or machine are not as they were for {', '.join(map(shown, others))}.")


def _line(bench: Bench, jobs: Sequence[Job], outcomes: Sequence[NotebookResult]) -> str:
    """One line of progress."""
    job, result, known = jobs[len(outcomes) - 1], outcomes[-1], bench.seconds()
    usual = statistics.mean(known.values()) if known else result.seconds
    left = sum(known.get(later.name, usual) for later in jobs[len(outcomes) :])
    number = Path(job.out).name.removeprefix("run-")
    head = f"[{len(outcomes)}/{len(jobs)}] run {number} of {bench.runs}  {result.status:11}{result.name:38}"
    after = f"about {left / 60:.0f} min left" if left >= 60 else f"about {left:.0f} s left"
    return f"{head}{result.seconds:6.0f} s  {after if len(outcomes) < len(jobs) else 'the last one'}"


def _conclude(path: Path, say: Callable[[str], None]) -> None:
    kept = records.load(path)
    flags = Counter(flag for record in kept for flag in record.measurement.flags)
    flagged = ", ".join(f"{count} {flag}" for flag, count in flags.most_common()) or "none"
    say(f"{len(records.by_name(kept))} benchmarks, {len(kept)} measurements (flagged: {flagged}) in {shown(path)}")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m metallab.headless.bench", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--runs", type=int, default=RUNS, help=f"processes for each page (default: {RUNS}, the fewest to compare)")
    add("--only", action="append", default=[], metavar="03", help="only this number or name; may be repeated")
    add("--device", choices=NAMES, default="auto", help="where to run (default: the best device of this machine)")
    add("--mode", choices=modes.MODES, default="full", help="fast is for looking whether it runs")
    add("--anew", action="store_true", help="measure again what is there already")
    given = parser.parse_args(arguments)
    if not 1 <= given.runs <= 100:
        parser.error("--runs is a number from 1 to 100; 3 are the fewest that can be compared")
    return given


if __name__ == "__main__":
    sys.exit(main())
