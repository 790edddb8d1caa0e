"""``metallab doctor package.module:factory``, and ``metallab doctor --machine``."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from metallab import device, isolated, paths, simulation
from metallab.doctor import wording
from metallab.doctor.audit import audit_machine
from metallab.doctor.examination import examine
from metallab.doctor.report import Report, name_page
from metallab.pytorch.errors import NotAModel

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""
UNITS = {"M": 2**20, "G": 2**30, "T": 2**40}
"""Memory is sold in these."""
CANNOT_BE_ASKED = (
    device.DeviceUnavailable,
    simulation.SimulationUnavailable,
    isolated.ChildFailed,
)
"""What a machine raises that cannot be asked; the messages say what to do."""


def command(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """Run ``metallab doctor``, and return its exit code.

    Parameters
    ----------
    parser
        Without arguments yet.
    arguments
        What stands behind the command's name.

    Returns
    -------
    int
        0; 1 if an answer is *failed*; 2 if one is missing, the factory makes no model, the folder or the page cannot be
        written, or no process can be started; 130 if interrupted. Of a machine: 1 if one of its devices computes
        wrongly or not at all; 2 if it cannot be asked, for example because ``METALLAB_DEVICE`` names a device that it
        does not have.

    Raises
    ------
    SystemExit
        With 2, if the arguments are wrong, and with 0 after ``--help``, as `argparse` does.
    """
    given = _parse(parser, arguments)
    if given.machine:
        return _print_audit(parser)
    try:
        # before the minutes of asking, in case it cannot be written
        paths.make_output(name_page(given.out).parent)
        report = examine(
            given.factory,
            minutes=given.minutes,
            memory=given.memory,
            process_memory=given.process_memory,
            progress=_print_progress,
        )
    except (OSError, NotAModel, isolated.ChildFailed) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted before the first answer", file=sys.stderr)
        return INTERRUPTED

    print(report)
    try:
        page = report.save(given.out)
    except OSError as error:  # the disk may have become full since; the answers are printed
        print(f"{parser.prog}: the page cannot be written: {error}", file=sys.stderr)
        return 2
    print(f"the page: {page}")
    return exit_code(report)


def _print_audit(parser: argparse.ArgumentParser) -> int:
    """Print what was found on this machine, and return the exit code."""
    try:
        audit = audit_machine()
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except CANNOT_BE_ASKED as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2

    print(*wording.audit_lines(audit), sep="\n")
    return 0 if audit.is_sound else 1


def exit_code(report: Report) -> int:
    """Return the exit code of a report: that of its worst answer."""
    if report.interrupted:
        return INTERRUPTED

    statuses = {answer.status for answer in report.answers}
    if "failed" in statuses:
        return 1
    return 2 if "skipped" in statuses else 0


def _parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command, memory in bytes. SystemExit if they are wrong, with a message."""
    parser.add_argument(
        "factory",
        nargs="?",
        help="package.module:factory; it returns (model, inputs) or (model, inputs, loss)",
    )
    parser.add_argument(
        "--machine",
        action="store_true",
        help="in place of a model: do this machine's devices compute right, what is missing, is it fit for measuring?",
    )
    parser.add_argument(
        "--minutes", type=float, default=3.0, help="for all answers together (%(default)g)"
    )
    parser.add_argument(
        "--memory", type=_parse_size, metavar="16GB", help="does it also fit into such a machine?"
    )
    parser.add_argument(
        "--process-memory", type=_parse_size, metavar="8GB", help="that an answer may need at most"
    )
    out = "a folder for doctor.html and .json (%(default)s), or a file that ends in .html"
    parser.add_argument("--out", type=Path, default=paths.BUILD / "doctor", help=out)

    given = parser.parse_args(arguments)
    is_model = given.factory is not None
    if given.machine == is_model:
        parser.error("name a model as package.module:factory, or ask about --machine, and not both")
    if not 0 < given.minutes < math.inf:
        parser.error("--minutes is a number above 0, such as 3")
    return given


def _parse_size(text: str) -> int:
    """Return the bytes of ``16GB``, which are 16 GiB, as memory is sold. ArgumentTypeError if it is no size above 0."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([MGT])B", text.strip(), re.IGNORECASE)
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write it like 16GB")
    return int(float(match[1]) * UNITS[match[2].upper()])


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
