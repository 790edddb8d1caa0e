"""The command line: ``python -m metallab.verify_mac [--device auto] [--only WORD] [--list]``."""

from __future__ import annotations

import argparse
import datetime
import time
from collections.abc import Sequence
from pathlib import Path

from metallab import machine, paths
from metallab.verify_mac import catalogue, report, runner
from metallab.verify_mac.trial import Trial

MINUTES = 20.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run trials and write the report.

    0 when it came to its end; whatever a Mac answers is a result. 1 if trials were not run, because the time was up or
    it was interrupted, and, where there is no Mac, if one was refuted, raised, crashed or timed out: then the trial's
    code is wrong, or the simulation is. 2 for a mistake on the command line.
    """
    options = _parse(argv)
    chosen = choose(options.only)
    if options.list:
        print("\n".join(f"{each.name:45} {each.on:10} {each.claim}" for each in chosen))
        return 0
    on = runner.device(options.device)
    here, begin = machine.describe(), time.monotonic()
    print(_announcement(on, len(chosen), options.minutes))
    with runner.workplace() as work:
        tell = lambda number, result: print(_line(number, len(chosen), result), flush=True)
        results = runner.run(chosen, on, work, minutes=options.minutes, tell=tell)
    minutes = (time.monotonic() - begin) / 60
    made = report.Report(here, on == "sim", datetime.date.today().isoformat(), minutes, tuple(results))
    path = options.out or paths.BUILD / "verify-mac" / made.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(made), encoding="utf-8")
    print(_ending(made, path))
    return _status(made)


def choose(only: Sequence[str]) -> list[Trial]:
    """The trials of these groups or names, or all. ValueError, with what there is, for a word that is neither."""
    everything = catalogue.trials()
    for word in only:
        if not any(word in (each.name, each.group) for each in everything.values()):
            groups = ", ".join(catalogue.GROUPS)
            raise ValueError(f"--only {word} is no trial and no group; groups are {groups}; --list names all trials")
    return [each for each in everything.values() if not only or {each.name, each.group} & set(only)]


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m metallab.verify_mac", description="Tries on a Mac what this project could not."
    )
    add = parser.add_argument
    add("--device", default="auto", help="auto, mps or sim (default: the Mac's GPU, without a Mac the simulated one)")
    add("--only", action="append", default=[], metavar="WORD", help="a group or a trial; may be repeated")
    add("--minutes", type=float, default=MINUTES, help=f"begin no trial after so many minutes (default: {MINUTES:g})")
    add("--list", action="store_true", help="name the trials and run nothing")
    add("--out", type=Path, help="the report's file (default: in build/verify-mac)")
    options = parser.parse_args(argv)
    options.only = [word for text in options.only for word in text.replace(",", " ").split()]
    try:
        runner.device(options.device)
        choose(options.only)
    except ValueError as error:
        parser.error(str(error))
    return options


def _announcement(on: str, count: int, minutes: float) -> str:
    if on == "sim":
        return f"No Mac here: {count} trials, SIMULATED where they are about a GPU. They show that the code works."
    told = f"{count} trials; none begins after {minutes:g} minutes. Some crash on purpose, in processes of their own:"
    return f"{told}\nif macOS says that Python quit unexpectedly, choose Ignore."


def _line(number: int, count: int, result: runner.Result) -> str:
    width = len(str(count))
    said = result.said if len(result.said) < 110 else f"{result.said[:107]}..."
    return f"[{number:{width}}/{count}] {report.outcome(result):26} {result.seconds:5.1f} s  {result.name}: {said}"


def _ending(made: report.Report, path: Path) -> str:
    counted = ", ".join(f"{count} {outcome}" for outcome, count in made.counts.most_common())
    try:
        shown = path.resolve().relative_to(paths.ROOT)
    except ValueError:
        shown = path
    sent = "" if made.simulated else "\nRead it, then attach it to an issue: docs/first_hour_on_a_mac.md says where."
    return f"\n{counted}.\nThe report: {shown}{sent}"


def _status(made: report.Report) -> int:
    wrong = sum(made.counts[outcome] for outcome in report.LOOK)
    return 1 if made.counts["not run"] or (made.simulated and wrong) else 0
