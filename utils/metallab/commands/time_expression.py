"""``metallab time 'expression' --setup 'statements'``: one line that tells how long a call takes, and on what.

Which device has to be waited for is seen after the set-up: a framework that it imported brings its device. PyTorch may
compute on several; there it is the accelerator if the set-up used one, and the CPU otherwise. An expression that
begins to use an accelerator only when it is timed was not waited for, and its time is not shown.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from metallab import device, simulation, timing
from metallab.device.base import DEVICE_NAMES, TITLES, Framework, chip

UNAVAILABLE = (device.DeviceUnavailable, simulation.SimulationUnavailable)
"""What is raised where the device that was asked for is not here."""


class Misuse(ValueError):
    """What was asked for cannot be timed; the message says what to do."""


def command(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """Run ``metallab time``, which prints a `metallab.timing.Measurement`, and return its exit code.

    Parameters
    ----------
    parser
        Without arguments yet.
    arguments
        What stands behind the command's name.

    Returns
    -------
    int
        0; 2 if nothing was measured.

    Raises
    ------
    SystemExit
        With 2, if the arguments are wrong, and with 0 after ``--help``, as `argparse` does.
    """
    _add_arguments(parser)
    given = parser.parse_args(arguments)

    try:
        print(_measure(given))
    # a ValueError is a `Misuse`, or a variable that names no device or no mode
    except (ValueError, TypeError, *UNAVAILABLE) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    return 0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add = parser.add_argument
    add("expression", help="a Python expression, quoted; its result is what is waited for")
    once = "statements that run once before; may be repeated"
    add("--setup", action="append", default=[], help=once)

    where = "where the expression computes, which is waited for; else looked up"
    add("--device", choices=DEVICE_NAMES, help=where)
    whose = "whose device it is, where the set-up imports several"
    add("--framework", choices=TITLES, help=whose)
    many = "many calls in a row, instead of each waited for"
    add("--throughput", action="store_true", help=many)


def _measure(given: argparse.Namespace) -> timing.Measurement:
    """Run the set-up, find out what has to be waited for, and time the expression.

    Misuse if the code that was given raises, if it is not clear whose device is waited for, or if the expression used
    an accelerator first while it was timed. One of `UNAVAILABLE` if the device that was asked for is not here.
    """
    wanted = given.device or os.environ.get("METALLAB_DEVICE") or "auto"
    if wanted == "sim":
        simulation.arm(required=True)

    names: dict[str, Any] = {}
    for statements in given.setup:
        _run("--setup", functools.partial(_execute, statements, names))
    # by itself first, since in brackets "1) + (2" would be right; then on a line of its own, where a comment at its end
    # does not hide the bracket
    _run("the expression", lambda: compile(given.expression, "<expression>", "eval"))
    function = eval(f"lambda: (\n{given.expression}\n)", names)

    used = _accelerator_in_use()
    on = _pick_device(given.framework or _find_framework(), wanted, used)
    question: timing.Question = "throughput" if given.throughput else "latency"
    measurement: timing.Measurement = _run(
        "the expression",
        lambda: timing.measure(function, on=on, question=question, name=given.expression),
    )

    if on.kind == "cpu" and (began := _accelerator_in_use()) != used:
        raise Misuse(
            f"the expression computes on {began}, which nobody waited for: add --device {began}"
        )
    return measurement


def _execute(statements: str, names: dict[str, Any]) -> None:
    """Execute statements, which bind names."""
    exec(compile(statements, "<setup>", "exec"), names)


def _run(what: str, do: Callable[[], Any]) -> Any:
    """Return what ``do`` returns; Misuse, with what was raised in one line, if it is the code that was given."""
    try:
        return do()
    except Exception as error:  # somebody's code: whatever it raises is told
        raise Misuse(f"{what} raises {type(error).__name__}: {error}") from error


def _find_framework() -> Framework | None:
    """Return the framework that the set-up imported, or None. Misuse if it imported several."""
    imported = [name for name in TITLES if name in sys.modules]
    if len(imported) > 1:
        raise Misuse(
            f"the set-up imports {' and '.join(imported)}: name whose device it is, --framework {imported[0]}"
        )
    return imported[0] if imported else None


def _pick_device(framework: Framework | None, wanted: str, used: str) -> timing.DeviceLike:
    """Return what is waited for: a framework's device, or this process alone."""
    if framework == "torch" and wanted == "auto":
        wanted = used or "cpu"
    if framework or wanted not in ("auto", "cpu"):
        return device.pick(wanted, framework=framework or "torch")
    return timing.Host(f"{chip()} CPU")


def _accelerator_in_use() -> str:
    """Return the accelerator on which PyTorch has allocated something so far; empty for none."""
    torch = sys.modules.get("torch")
    if torch is None:
        return ""
    if torch.cuda.is_initialized():
        return "cuda"
    has_allocated = torch.backends.mps.is_available() and torch.mps.driver_allocated_memory()
    return "mps" if has_allocated else ""
