"""``metallab time 'expression' --setup 'statements'``: one line that tells how long a call takes, and on what.

Which device has to be waited for is seen after the set-up: a framework that it imported brings its device. PyTorch may
compute on several; there it is the accelerator if the set-up used one, and the CPU otherwise. An expression that
begins to use an accelerator only when it is timed was not waited for, and its time is not shown.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from metallab import device, simulation, timing
from metallab.device.base import NAMES, TITLES, chip


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
    parser.add_argument(
        "expression", help="a Python expression, quoted; its result is what is waited for"
    )
    parser.add_argument(
        "--setup",
        action="append",
        default=[],
        help="statements that run once before; may be repeated",
    )
    parser.add_argument(
        "--device",
        choices=NAMES[1:],
        help="where the expression computes, which is waited for; else looked up",
    )
    parser.add_argument(
        "--framework", choices=TITLES, help="whose device it is, where the set-up imports several"
    )
    parser.add_argument(
        "--throughput", action="store_true", help="many calls in a row, instead of each waited for"
    )
    given = parser.parse_args(arguments)
    try:
        print(_measured(given))
    except (Misuse, device.DeviceUnavailable, simulation.SimulationUnavailable, TypeError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    return 0


def _measured(given: argparse.Namespace) -> timing.Measurement:
    wanted = given.device or os.environ.get("METALLAB_DEVICE", "auto")
    if wanted == "sim":
        simulation.arm(required=True)
    names: dict[str, Any] = {}
    for statements in given.setup:
        _ran("--setup", lambda text=statements: exec(compile(text, "<setup>", "exec"), names))
    _ran("the expression", lambda: compile(given.expression, "<expression>", "eval"))
    function = eval(f"lambda: (\n{given.expression}\n)", names)
    framework = given.framework or _framework()
    used = _accelerator_in_use()
    on = _device(framework, wanted, used)
    question = "throughput" if given.throughput else "latency"
    measurement = _ran(
        "the expression",
        lambda: timing.measure(function, on=on, question=question, name=given.expression),
    )
    if on.kind == "cpu" and (began := _accelerator_in_use()) != used:
        raise Misuse(
            f"the expression computes on {began}, which nobody waited for: add --device {began}"
        )
    return measurement


def _ran(what: str, do: Callable[[], Any]) -> Any:
    """What ``do`` returns; Misuse, with what was raised in one line, if it is the code that was given."""
    try:
        return do()
    except Exception as error:  # somebody's code: whatever it raises is told
        raise Misuse(f"{what} raises {type(error).__name__}: {error}") from error


def _framework() -> str:
    """The framework that the set-up imported; empty for none."""
    imported = [name for name in TITLES if name in sys.modules]
    if len(imported) > 1:
        raise Misuse(
            f"the set-up imports {' and '.join(imported)}: name whose device it is, --framework {imported[0]}"
        )
    return "".join(imported)


def _device(framework: str, wanted: str, used: str) -> timing.DeviceLike:
    if framework == "torch" and wanted == "auto":
        wanted = used or "cpu"
    if framework or wanted not in ("auto", "cpu"):
        return device.pick(wanted, framework or "torch")
    return timing.Host(f"{chip()} CPU")


def _accelerator_in_use() -> str:
    """The accelerator on which PyTorch has allocated something so far; empty for none."""
    torch = sys.modules.get("torch")
    if torch is None:
        return ""
    if torch.cuda.is_initialized():
        return "cuda"
    return (
        "mps" if torch.backends.mps.is_available() and torch.mps.driver_allocated_memory() else ""
    )
