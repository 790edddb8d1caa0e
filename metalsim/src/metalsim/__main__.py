"""``python -m metalsim script.py``: runs a program as ``python`` would, with a simulated Apple GPU as its ``mps``.

``-m package`` and ``-c code`` do what they do for ``python``. Around the GPU the program meets what it meets on a Mac
(`metalsim.surroundings`). Of the processes that it starts, those of Python's multiprocessing have a simulated GPU, too.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Sequence
from types import ModuleType

from metalsim import device, preload, pretending, surroundings
from metalsim.errors import SimulationError


def main(arguments: Sequence[str] | None = None) -> int:
    """Arm this process, then run the script, the module or the code that the arguments name, as ``python`` does.

    Return 0 when that has ended; 2, after a line on stderr, where there can be no simulated GPU. Without a script that
    exists, and for what `argparse` refuses, SystemExit with 2 after the usage. What the program raises, its own
    SystemExit too, is not caught.
    """
    parser = _make_parser()
    given = parser.parse_args(arguments)

    try:
        preload.arm()
        pretending.pretend(*given.pretend)
        surroundings.set_up(given.keep)
    except SimulationError as error:
        print(f"metalsim: {error}", file=sys.stderr)
        return 2

    # a program that never imports torch runs as it would
    preload.after_torch(_install, required=True)

    if given.module:
        _run_module(given)
    elif given.code:
        _run_code(given.code)
    elif given.script and os.path.exists(given.script):
        _run_script(given.script, given.arguments)
    else:
        named = given.script or "nothing"
        parser.error(f"{named}: there is no such file; name a script, -m module or -c code")
    return 0


def _make_parser() -> argparse.ArgumentParser:
    """Return what reads the command line, up to the program's own arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m metalsim",
        description="Run a PyTorch program with a simulated Apple GPU as its mps device. No time of it is a GPU's.",
        epilog="examples: python -m metalsim train.py --epochs 1; python -m metalsim -m pytest tests",
    )
    parser.add_argument(
        "--pretend",
        action="append",
        default=[],
        choices=pretending.PRETENCES,
        help="more of a Mac; may be repeated",
    )
    parser.add_argument(
        "--keep",
        action="append",
        default=[],
        choices=surroundings.SURROUNDINGS,
        help="leave as on Linux that workers are forked, or that PyTorch may have CUDA; may be repeated",
    )

    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "-m",
        dest="module",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="a module, and its arguments",
    )
    what.add_argument(
        "-c", dest="code", nargs=argparse.REMAINDER, metavar="...", help="code, and its arguments"
    )
    what.add_argument("script", nargs="?", help="a script")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="the script's arguments"
    )
    return parser


def _install() -> None:
    """Install the device, and say what is simulated where it does not mix with what the program prints."""
    print(device.install(), file=sys.stderr, flush=True)


def _run_module(given: argparse.Namespace) -> None:
    """Do what ``python -m`` does."""
    sys.argv = _tell_pytest(given.module, given)
    sys.path[0] = os.getcwd()
    runpy.run_module(given.module[0], run_name="__main__", alter_sys=True)


def _run_code(arguments: Sequence[str]) -> None:
    """Do what ``python -c`` does."""
    code, *rest = arguments
    sys.argv = ["-c", *rest]
    sys.path[0] = ""

    main_module = ModuleType("__main__")  # not this one, which a spawned process would import
    sys.modules["__main__"] = main_module
    exec(compile(code, "<string>", "exec"), main_module.__dict__)


def _run_script(script: str, arguments: Sequence[str]) -> None:
    """Do what ``python script.py`` does."""
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")


def _tell_pytest(arguments: list[str], given: argparse.Namespace) -> list[str]:
    """Return the arguments of a module; pytest is told by options what it is to do, and so its workers are."""
    if arguments[0] != "pytest":
        return arguments
    more = [word for name in given.pretend for word in ("--metalsim-pretend", name)]
    more += [word for name in given.keep for word in ("--metalsim-keep", name)]
    return ["pytest", "-p", "metalsim.pytest_plugin", "--metalsim", *more, *arguments[1:]]


if __name__ == "__main__":
    sys.exit(main())
