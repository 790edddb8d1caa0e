"""``metallab``, or ``python -m metallab``: commands for code of one's own.

A command is a line of `COMMANDS`. Its module is imported when it is asked for; there ``command(parser, arguments)``
adds what it takes to the parser, which has name, description and example already, parses, and returns the exit code.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from metallab import interrupts


@dataclass(frozen=True)
class Command:
    """What ``metallab NAME`` does."""

    name: str
    module: str
    """Where its ``command(parser, arguments)`` is."""
    title: str
    example: str
    """What stands behind ``metallab`` in a line that somebody would type."""
    needs: tuple[str, ...] = ()
    """The packages, `metalsim` or one of `EXTRAS`, without which it cannot do anything."""


EXTRAS = {"torch": "pytorch", "matplotlib": "notebooks", "pandas": "notebooks"}
"""What brings a package that the core does not have."""

COMMANDS = (
    Command(
        "coverage",
        "metallab.pytorch.coverage",
        "will a model run on MPS?",
        "coverage my_project.model:example",
        ("torch", "metalsim"),
    ),
    Command(
        "doctor",
        "metallab.doctor",
        "does a model run on MPS, is it right, is it fast?",
        "doctor my_project.model:example",
        ("torch", "metalsim"),
    ),
    Command(
        "report",
        "metallab.results.report",
        "one page of a run's results",
        "report build/full-cpu",
        ("matplotlib",),
    ),
    Command(
        "time",
        "metallab.commands.time_expression",
        "time an expression",
        "time 'sorted(a)' --setup 'a = [2, 1]'",
    ),
    Command(
        "trace",
        "metallab.pytorch.trace_script",
        "each operator, copy and fallback of a script",
        "trace train.py",
        ("torch", "pandas", "metalsim"),
    ),
    Command("versus", "metallab.versus.command", "is B slower than A?", "versus HEAD~1 . cases.py"),
)


def main(arguments: Sequence[str] | None = None, commands: Sequence[Command] = COMMANDS) -> int:
    """Run the command that the first argument names; its exit code, 2 on misuse, 130 after Ctrl-C.

    A program ignores Ctrl-C after that, while Python shuts down.
    """
    try:
        code = _load(arguments, commands)
        if callable(code):
            interrupts.running = True
            code = code()
        sys.stdout.flush()
    except BrokenPipeError:  # what reads it has seen enough, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except KeyboardInterrupt:
        interrupts.ignore()
        print("metallab: interrupted", file=sys.stderr)
        code = 130
    finally:
        interrupts.ignore()
    return code


def _load(arguments: Sequence[str] | None, commands: Sequence[Command]) -> Callable[[], int] | int:
    """The command that is asked for, imported, with its arguments; an exit code where it lacks a package."""
    parser = argparse.ArgumentParser(
        prog="metallab",
        description="Measure, check and trace code of your own.",
        epilog="\n".join(["commands, each with an example:", *map(_line, commands)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = {command.name: command for command in commands}
    parser.add_argument(
        "command", choices=names, metavar="COMMAND", help="metallab COMMAND --help tells the rest"
    )
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="what the command takes"
    )
    given = parser.parse_args(arguments)
    if (
        here := os.getcwd()
    ) not in sys.path:  # the script `metallab` is in another folder; python -m does the same
        sys.path.insert(0, here)
    chosen = names[given.command]
    if missing := [name for name in chosen.needs if importlib.util.find_spec(name) is None]:
        extras = ",".join(EXTRAS[name] for name in missing if name in EXTRAS)
        folders = [f"'path/to/metal-lab[{extras}]'"] * bool(extras) + [
            "path/to/metal-lab/metalsim"
        ] * ("metalsim" in missing)
        fix = f"pip install {' '.join(folders)}"
        what = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        print(
            f"metallab {chosen.name}: {what}: {fix}, or make setup in a checkout", file=sys.stderr
        )
        return 2
    own = argparse.ArgumentParser(
        prog=f"metallab {chosen.name}",
        description=chosen.title,
        epilog=f"example: metallab {chosen.example}",
    )
    command = importlib.import_module(chosen.module).command
    return lambda: command(own, given.arguments)


def _line(command: Command) -> str:
    return f"  {command.name:<9} {command.title}\n{'':11} metallab {command.example}"


if __name__ == "__main__":
    sys.exit(main())
