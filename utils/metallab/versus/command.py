"""Is B slower than A? ``metallab versus A B [cases.py]``."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from metallab import checks, machine, paths, processes
from metallab.device.base import cores
from metallab.measuring_lock import LockTimeout
from metallab.versus import cases, lockstep, report, sides
from metallab.versus.lockstep import Settings
from metallab.versus.sides import Side

CASES = paths.ROOT / "tools" / "versus_cases.py"
"""The project's own: the core of its lessons."""
DEVICES = ("auto", "cpu", "cuda", "mps")
EXIT_CODES = {
    0: "B is nowhere slower, as far as cases were decided",
    1: "B is slower in a case, or cannot do what A can",
    2: "something could not be compared: a mistake, outputs that differ, neither side can do it, or no interval",
    130: "it was interrupted",
}
_ENDS = (KeyboardInterrupt, cases.CaseError, sides.SideError, LockTimeout, OSError)


def command(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """Run ``metallab versus``, and return its exit code. What was compared before an interruption is kept.

    Parameters
    ----------
    parser
        Without arguments yet.
    arguments
        What stands behind the command's name.

    Returns
    -------
    int
        0 if nothing became slower; 1 if a case is slower or lost; 2 if the two sides cannot be compared; 130 if
        interrupted.

    Raises
    ------
    SystemExit
        With 2, if the arguments are wrong, and with 0 after ``--help``, as `argparse` does.
    """
    given = _parse(parser, arguments)
    try:
        with processes.stoppable():
            return run(given)
    except _ENDS as why:
        return _end(why)


def run(given: argparse.Namespace) -> int:
    """Compare case by case, print and save what was found, and return the exit code; with ``--list`` name the cases.

    What `compare` raises before the first outcome, and what is wrong with cases or sides, is raised.
    """
    root = sides.repository(Path.cwd())
    if not given.cases and root.resolve() != paths.ROOT.resolve():
        raise cases.CaseError(
            "name a file of cases behind A and B: functions with @case of metallab.versus"
        )

    file = (given.cases or CASES).resolve()
    chosen = choose(cases.load(file), given.only)
    if given.list:
        print("\n".join(f"{case.group:5}{case.name}" for case in chosen))
        return 0

    described = _describe_sides(given, root)
    settings = Settings(file, described["A"].device, given.seconds, given.threads, given.factor)
    device = described["A"].label or machine.describe().chip or "CPU"
    different = sides.differences(described)
    print(different)
    threads = f"{given.threads} a side" if given.threads else "no limit"
    print(
        f"Cases: {len(chosen)} of {paths.shorten(file)}; device: {device}; threads: {threads}; "
        f"about {given.seconds:g} s a case, at most twice that",
        flush=True,
    )

    load = os.getloadavg()[0]
    outcomes, ended = compare(chosen, [side.command for side in described.values()], settings)
    load = max(load, os.getloadavg()[0])
    summary = f"{report.table(outcomes, load)}\n{report.summary(outcomes, given.factor)}"
    print(summary)

    samples, answers = given.out / "versus.json", given.out / "answers.json"
    if report.save(samples, outcomes, described, settings):
        print(f"The samples of both sides: {paths.shorten(samples)}")
    report.save_answers(answers, outcomes, described, different, settings, load)
    print(f"Answers, intervals, what differs: {paths.shorten(answers)}")
    _draw(given.out / "versus.png", outcomes, f"A: {given.a}; B: {given.b}", device)

    code = report.exit_code(outcomes) if ended is None else ended
    print(f"Exit code {code}: {EXIT_CODES[code]}.")
    _add_to_job_summary(code, [str(different), *map(report.sentence, outcomes), summary])
    return code


def _describe_sides(given: argparse.Namespace, root: Path) -> dict[str, Side]:
    """Make the folder of results, and return what the sides are; SideError if they cannot be compared."""
    device = given.device or os.environ.get("METALLAB_DEVICE") or "auto"
    if device not in DEVICES:
        raise sides.SideError(
            f"times of {device!r} cannot be compared: name one of {', '.join(DEVICES)} with --device"
        )
    paths.make_output(given.out)
    report.assert_own(given.out)

    parsed = {"A": sides.parse(given.a, root), "B": sides.parse(given.b, root)}
    described = {name: sides.describe(side, device) for name, side in parsed.items()}
    sides.assert_comparable(described, given.threads)
    return described


def _draw(file: Path, outcomes: Sequence[lockstep.Outcome], heading: str, device: str) -> None:
    """Save a picture, if there is something to draw; matplotlib is not a core dependency."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    picture = report.draw(outcomes, heading, device)
    if picture is not None:
        picture.savefig(file, metadata={"Software": "metallab versus"})
        print(f"A picture: {paths.shorten(file)}")


def _add_to_job_summary(code: int, lines: Sequence[str]) -> None:
    """Add what was found to the page of a job of GitHub's, if this is one."""
    if job := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(job, "a", encoding="utf-8") as page:
            print(f"### {EXIT_CODES[code]}", "", "```", *lines, "```", sep="\n", file=page)


def compare(
    chosen: Sequence[cases.Case], commands: Sequence[lockstep.Command], settings: Settings
) -> tuple[list[lockstep.Outcome], int | None]:
    """Compare the cases, group by group, and print each outcome; return them all, and the exit code of an early end.

    What ends it before the first outcome is raised.
    """
    outcomes: list[lockstep.Outcome] = []
    groups = dict.fromkeys(case.group for case in chosen)  # each imports its own frameworks

    try:
        for group in groups:
            members = [case for case in chosen if case.group == group]
            for outcome in lockstep.compare(members, commands, settings):
                outcomes.append(outcome)
                print(report.sentence(outcome), flush=True)
    except _ENDS as why:  # minutes of measuring are not lost
        if not outcomes:
            raise
        whole = sum(outcome.stopped != lockstep.INTERRUPTED for outcome in outcomes)
        return outcomes, _end(why, f", after {whole} of {len(chosen)} cases")

    return outcomes, None


def _end(why: BaseException, after: str = "") -> int:
    """Print why it ends early; return the exit code."""
    is_stopped = isinstance(why, KeyboardInterrupt)
    print(f"versus: {'interrupted' if is_stopped else why}{after}", file=sys.stderr)
    return 130 if is_stopped else 2


def choose(all_cases: dict[str, cases.Case], only: Sequence[str]) -> list[cases.Case]:
    """Return the cases of these groups or names, with sizes or without, or else with these texts in their names.

    All of them without ``only``, in the order of the file. CaseError if one of the texts fits none, if there is no case
    at all, or if a case names a tolerance that there is not.
    """
    every = list(all_cases.values())
    found = {text: _find(every, text) for text in only}
    unknown = [text for text in only if not found[text]]
    if unknown or not every:
        groups = ", ".join(sorted({one.group for one in every} - {""})) or "none"
        raise cases.CaseError(
            f"no case is of {' or '.join(unknown)}: groups are {groups}; --list names all cases"
        )

    names = {one.name for each in found.values() for one in each}
    chosen = [one for one in every if one.name in names] if only else every
    for one in chosen:
        _assert_tolerance(one)
    return chosen


def _find(every: Sequence[cases.Case], text: str) -> list[cases.Case]:
    """Return the cases of a group or name, or else those with the text in their names."""
    exact = [one for one in every if text in (one.group, one.name, one.name.partition("[")[0])]
    if exact or re.fullmatch(r"\d+[a-z]?", text):  # 12 is a group, and no part of product[n=512]
        return exact
    return [one for one in every if text in one.name]


def _assert_tolerance(one: cases.Case) -> None:
    """Raise CaseError if there is no tolerance of the name that a case gives."""
    try:
        checks.tolerance(one.tolerance)
    except (TypeError, ValueError) as error:
        raise cases.CaseError(
            f"{one.name}: {error}; name one of these in @case(tolerance=)"
        ) from error


def _parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Give the parser its options, and return what is asked for."""
    codes = [f"  {code:<4} {meaning}" for code, meaning in EXIT_CODES.items()]
    parser.epilog = "\n".join(["exit codes:", *codes, "", parser.epilog or ""])
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    _add_options(parser)

    given = parser.parse_args(arguments)
    if given.list and given.a and not given.b:  # metallab versus --list cases.py
        given.cases = Path(given.a)
    elif not given.list and not given.b:
        parser.error("name two sides, A and B")
    if not 1 <= given.seconds <= 86400 or not 1 <= given.factor < 100:
        parser.error(
            "--seconds is from 1 to 86400, and --factor from 1 to below 100, such as 1.05 for 5 %"
        )
    return given


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Add the two sides, the file of cases and the options.

    `_parse` wants the sides, which argparse cannot, since ``--list`` goes without them: one file behind ``--list``
    lands in ``a``.
    """
    side = (
        "a git revision, '.' for the working tree, a Python or its environment's folder, NAME=value"
    )
    several = "or several of these with commas between ('\\,' is a comma in a value)"
    add = parser.add_argument
    add("a", metavar="A", nargs="?", help=f"the old side: {side}, {several}")
    add("b", metavar="B", nargs="?", help="the new side")
    of_cases = "functions with @case; Metal Lab's own in its checkout"
    add("cases", metavar="cases.py", nargs="?", type=Path, help=of_cases)

    only = "a group, which is a page's number (13), a name, or part of one; again for more"
    add("--only", action="append", default=[], metavar="TEXT", help=only)
    devices = f"{', '.join(DEVICES)}; default: METALLAB_DEVICE, or auto"
    add("--device", metavar="DEVICE", help=devices)
    add("--seconds", type=float, default=Settings.seconds, help=f"a case ({Settings.seconds:g})")
    threads = f"of each side: 1 to {cores()}, the cores here, or 0 for no limit"
    add("--threads", type=int, choices=range(cores() + 1), metavar="N", default=1, help=threads)
    factor = f"a difference beyond it is called, such as 1.05 ({Settings.factor:g})"
    add("--factor", type=float, default=Settings.factor, help=factor)

    folder = "folder for JSON files and picture (%(default)s)"
    add("--out", type=Path, default=paths.BUILD / "versus", help=folder)
    names = "name the cases (A and B may be left out), measure nothing"
    add("--list", action="store_true", help=names)
