"""Is B slower than A? ``python -m metallab.versus A B [cases.py]``."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from metallab import machine, paths
from metallab.turns import TurnBlocked, TurnExpired
from metallab.versus import cases, lockstep, report, sides
from metallab.versus.lockstep import Settings

CASES = paths.ROOT / "tests" / "versus_cases.py"
"""The project's own: the core of its lessons."""
DEVICES = ("auto", "cpu", "cuda", "mps")


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m metallab.versus``, see `command`."""
    parser = argparse.ArgumentParser(prog="python -m metallab.versus", description=__doc__.splitlines()[0])
    return command(parser, arguments)


def command(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    """0 if B is nowhere slower, 1 if it is, or cannot do what A can, 2 if they cannot be compared or outputs differ.

    130 where it was interrupted: what had been compared until then is told and saved.
    """
    side = "a git revision, '.' for the working tree, a Python or its environment's folder, NAME=value"
    parser.add_argument("a", metavar="A", help=f"the old side: {side}, or several of these with commas between")
    parser.add_argument("b", metavar="B", help="the new side")
    parser.add_argument("cases", metavar="cases.py", nargs="?", type=Path, default=CASES, help="functions with @case")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="a group (02b), or part of a name")
    parser.add_argument("--device", metavar="DEVICE", help=f"{', '.join(DEVICES)}; default: METALLAB_DEVICE, or auto")
    parser.add_argument("--seconds", type=_positive, default=Settings.seconds, help=f"a case ({Settings.seconds:g})")
    parser.add_argument("--threads", type=_threads, default=1, help="of each side: 1, or 0 for as many as it likes")
    parser.add_argument("--factor", type=_factor, default=Settings.factor, help="what is called a difference (1.01)")
    parser.add_argument("--out", type=Path, default=paths.BUILD / "versus", help="folder of versus.json, versus.png")
    parser.add_argument("--list", action="store_true", help="name the cases, and measure nothing")
    try:
        return run(parser.parse_args(arguments))
    except (cases.CaseError, sides.SideError, TurnBlocked, TurnExpired, OSError) as error:
        print(f"versus: {error}", file=sys.stderr)
        return 2


def run(given: argparse.Namespace) -> int:
    """Parse the sides, say what differs, hold them against each other case by case, and save what came of it."""
    chosen = choose(cases.load(given.cases), given.only)
    if given.list:
        print("\n".join(f"{case.group:5}{case.name}" for case in chosen))
        return 0
    wish = given.device or os.environ.get("METALLAB_DEVICE") or "auto"
    if wish not in DEVICES:
        why = "a simulated device's times say nothing" if wish == "sim" else f"there is no device {wish!r}"
        raise sides.SideError(f"{why}: name one of {', '.join(DEVICES)} with --device")
    root = sides.repository(Path.cwd())
    two = {name: sides.parse(text, root) for name, text in (("A", given.a), ("B", given.b))}
    modules = sorted(set.union(*(side.modules for side in two.values())))
    described = {name: sides.describe(side, modules, wish) for name, side in two.items()}
    sides.assert_comparable(two, described)
    settings = Settings(given.cases.resolve(), described["A"].device, given.seconds, given.threads, given.factor)
    device = described["A"].label or machine.describe().chip or "CPU"
    print(sides.differences(two, described))
    for name, its in described.items():
        for module, file in its.modules.items():
            print(f"{name} imports {module} from {file or 'nowhere: it has none'}")
    threads = f"{given.threads or 'as many as they like'} a side"
    print(f"Cases: {len(chosen)}; device: {device}; threads: {threads}; at most {given.seconds:g} s a case", flush=True)
    commands = [side.command for side in two.values()]
    outcomes, is_interrupted = [], False
    try:
        for group in dict.fromkeys(
            case.group for case in chosen
        ):  # frameworks that have not met do not share a process
            for outcome in lockstep.compare([case for case in chosen if case.group == group], commands, settings):
                outcomes.append(outcome)
                print(report.sentence(outcome), flush=True)
    except KeyboardInterrupt:  # minutes of measuring are not lost
        is_interrupted = True
        print(f"interrupted after {len(outcomes)} of {len(chosen)} cases", file=sys.stderr)
    print(report.table(outcomes))
    print(report.summary(outcomes, given.factor))
    if file := report.save(given.out / "versus.json", outcomes, two, described, settings):
        print(f"The samples of both sides: {paths.shown(file)}")
    if not importlib.util.find_spec("matplotlib"):  # nor need it be, where only measuring is installed
        print("There is no picture without matplotlib: pip install matplotlib")
    elif picture := report.draw(outcomes, f"A: {given.a}; B: {given.b}", device):
        picture.savefig(given.out / "versus.png")
        print(f"A picture: {paths.shown(given.out / 'versus.png')}")
    return 130 if is_interrupted else report.exit_code(outcomes)


def choose(all_cases: dict[str, cases.Case], only: Sequence[str]) -> list[cases.Case]:
    """The cases of these groups, and those with one of these texts in their names; all where nothing is named.

    CaseError if there is no such case.
    """
    chosen = [one for one in all_cases.values() if not only or any(_is_meant(one, text) for text in only)]
    if not chosen:
        groups = ", ".join(sorted({one.group for one in all_cases.values()} - {""}))
        raise cases.CaseError(
            f"no case is of {' or '.join(only)}: groups are {groups or 'none'}; --list names all cases"
        )
    return chosen


def _is_meant(one: cases.Case, text: str) -> bool:
    return one.group == text or text in one.name


def _positive(text: str) -> float:
    return _number(text, 1, 86400, "seconds are a number from 1 to 86400")


def _factor(text: str) -> float:
    return _number(text, 1, 100, "a factor is a number from 1 to below 100, such as 1.05 for 5 %")


def _threads(text: str) -> int:
    return int(_number(text, 0, 10_000, "threads are a whole number, 0 for as many as it likes"))


def _number(text: str, low: float, high: float, wanted: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan  # which lies in no range
    if not low <= number < high:
        raise argparse.ArgumentTypeError(wanted)
    return number


if __name__ == "__main__":
    sys.exit(main())
