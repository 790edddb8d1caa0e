"""``metallab``, or ``python -m metallab``: commands for code of one's own.

A command is a line of `COMMANDS`. Its module is imported when it is asked for; there ``command(parser, arguments)``
adds what it takes to the parser, which has name, description and example already, parses, and returns the exit code.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import os
import sys
from collections.abc import Collection, Sequence
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


EXTRAS = {
    "torch": "pytorch",
    "matplotlib": "notebooks",
    "nbconvert": "notebooks",
    "pandas": "notebooks",
}
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
        ("matplotlib", "nbconvert"),
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
    """Run the command that the first argument names.

    A program ignores Ctrl-C after that, while Python shuts down.

    Parameters
    ----------
    arguments
        Those behind ``metallab``; by default those that this program was started with.
    commands
        Those there are.

    Returns
    -------
    int
        The command's exit code, 2 on misuse, 130 after Ctrl-C; 1 if nobody reads any longer what it prints.

    Raises
    ------
    SystemExit
        For ``--help`` (0), and for arguments that cannot be understood (2).
    """
    try:
        code = _load_and_run(sys.argv[1:] if arguments is None else arguments, commands)
        sys.stdout.flush()
    except BrokenPipeError:  # what reads it has seen enough, such as `head`
        # so that what Python still flushes at its end does not fail again, with a message
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except KeyboardInterrupt:
        interrupts.ignore()
        print("metallab: interrupted", file=sys.stderr)
        code = 130
    finally:
        interrupts.ignore()
    return code


def _load_and_run(arguments: Sequence[str], commands: Sequence[Command]) -> int:
    """Import the command that is asked for, and run it; return its exit code, 2 where it lacks a package.

    Without arguments the help is printed, and 2 returned.
    """
    parser = _make_parser(commands)
    if not arguments:  # somebody looks what there is
        parser.print_help(sys.stderr)
        return 2

    names = {command.name: command for command in commands}
    _suggest_command(parser, arguments[0], names)
    given = parser.parse_args(arguments)
    command = names[given.command]

    # the script `metallab` is in another folder; python -m does the same
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)

    missing = [name for name in command.needs if importlib.util.find_spec(name) is None]
    if missing:
        print(f"metallab {command.name}: {_describe_missing(missing)}", file=sys.stderr)
        return 2

    run = importlib.import_module(command.module).command
    own_parser = argparse.ArgumentParser(
        prog=f"metallab {command.name}",
        description=command.title,
        epilog=f"example: metallab {command.example}",
    )
    # from here on Ctrl-C raises; until now it ended the process (`interrupts.on_interrupt`)
    interrupts.running = True
    return run(own_parser, given.arguments)


def _make_parser(commands: Sequence[Command]) -> argparse.ArgumentParser:
    """Return the parser of a command's name, whose help lists all of them."""
    parser = argparse.ArgumentParser(
        prog="metallab",
        description="Measure, check and trace code of your own.",
        epilog="\n".join(["commands, each with an example:", *map(_describe, commands)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    parser.add_argument(
        "command",
        choices=[command.name for command in commands],
        metavar="COMMAND",
        help="metallab COMMAND --help tells the rest",
    )
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="what the command takes"
    )
    return parser


def _suggest_command(parser: argparse.ArgumentParser, given: str, names: Collection[str]) -> None:
    """End with the name that somebody probably meant, if there is no command of the given one.

    A name that is like none is left to the parser, which lists them all.
    """
    if given in names:
        return
    similar = difflib.get_close_matches(given, names, n=1)
    if similar:
        parser.error(f"there is no command {given!r}; did you mean {similar[0]}?")


def _describe_missing(missing: Sequence[str]) -> str:
    """Say which packages a command lacks, and how to install them."""
    extras = ",".join(dict.fromkeys(EXTRAS[name] for name in missing if name in EXTRAS))
    folders = []
    if extras:
        folders.append(f"'path/to/metal-lab[{extras}]'")
    if "metalsim" in missing:
        folders.append("path/to/metal-lab/metalsim")

    verb = "is" if len(missing) == 1 else "are"
    return (
        f"{' and '.join(missing)} {verb} not installed: pip install {' '.join(folders)}, "
        "or make setup in a checkout"
    )


def _describe(command: Command) -> str:
    """Return a command's lines in the help."""
    return f"  {command.name:<9} {command.title}\n{'':11} metallab {command.example}"


if __name__ == "__main__":
    sys.exit(main())
