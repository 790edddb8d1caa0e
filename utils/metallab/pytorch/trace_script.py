"""``metallab trace script.py``: a script runs as it would by itself, and what PyTorch did is told at its end.

What a trace sees, and what it does not, stands in `metallab.pytorch.trace`.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metallab import device, paths, simulation, units
from metallab.device.base import NAMES

PICTURES = (".png", ".svg", ".pdf")


def command(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """Run ``metallab trace``, and return its exit code.

    Parameters
    ----------
    parser
        Without arguments yet.
    arguments
        What stands behind the command's name.

    Returns
    -------
    int
        The script's own; 1 if it raises; 2 if it cannot be traced.

    Raises
    ------
    SystemExit
        With 2, if the arguments are wrong, and with 0 after ``--help``, as `argparse` does.
    """
    given = _parse(parser, arguments)
    if not given.script.is_file():
        print(
            f"{parser.prog}: {given.script}: there is no such file; name a Python script",
            file=sys.stderr,
        )
        return 2

    try:
        _require_files(given)
        lab = _pick_device(given.device)
    except (device.DeviceUnavailable, simulation.SimulationUnavailable, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    return _trace(given, lab)


def _parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Return what the command line asks for."""
    parser.add_argument(
        "--device",
        choices=NAMES,
        default="auto",
        help="whose work is waited for; the best by default",
    )
    parser.add_argument(
        "--rows",
        type=_read_rows,
        default=20,
        help="of the table, the longest first, and lines that copy or fall back, the most frequent first (%(default)s)",
    )
    parser.add_argument(
        "--chrome", type=Path, metavar="FILE.json", help="also a time line, for ui.perfetto.dev"
    )
    parser.add_argument(
        "--picture", type=Path, metavar="FILE.png", help="also the time line as a picture"
    )

    parser.add_argument("script", type=Path, help="a Python script")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="the script's own arguments"
    )
    return parser.parse_args(arguments)


def _read_rows(text: str) -> int:
    """Return a number of rows from the command line; ArgumentTypeError for anything but a whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError("give a number of rows, 1 or more")
    return int(text)


def _require_files(given: argparse.Namespace) -> None:
    """Raise OSError unless the files that are to be written can be: before the script takes its time."""
    for option, file in (("--chrome", given.chrome), ("--picture", given.picture)):
        if file is not None:
            _require_file(option, file)
    if given.picture and given.picture.suffix.lower() not in PICTURES:
        raise OSError(f"{given.picture} is no picture: let its name end with {', '.join(PICTURES)}")


def _require_file(option: str, file: Path) -> None:
    """Raise OSError, with what to do, if a file cannot be written; its folder is made."""
    if file.is_dir():
        raise OSError(f"{file} is a folder: name a file with {option}")
    paths.make_output(file.parent, option)


def _pick_device(name: str) -> device.Device:
    """Return the device that is waited for; the script, and what it starts, pick the same."""
    if name != "auto":
        os.environ["METALLAB_DEVICE"] = name
    if name == "sim":
        simulation.arm(required=True)
    return device.pick(name)


def _trace(given: argparse.Namespace, lab: Any) -> int:
    """Run the script while it is traced, print the table and write the files; return its exit code.

    That the script failed is said first, because a table of half a script looks like one of a whole.
    """
    from metallab.pytorch import trace  # imports torch, which a simulated device has to come before

    with trace.record(on=lab) as recorded:
        status, failure = _run(given.script, given.arguments)
    sys.stdout.flush()

    if failure is not None:
        print(
            f"{given.script} did not end well: {failure}. What follows is of what ran until then.\n"
        )
    # copies and fallbacks come first, because they are what is mended first
    print(recorded, *recorded.describe_crossings(given.rows), sep="\n")

    table = recorded.table()
    rows = table.head(given.rows).to_string(index=False, formatters=trace.FORMATTERS)
    print("", rows, sep="\n")
    left_out = len(table) - given.rows
    if left_out > 0:
        print(f"and {units.count(left_out, 'more row')}, which --rows {len(table)} shows")

    if given.chrome:
        print(f"open in ui.perfetto.dev: {recorded.save_chrome(given.chrome)}")
    if given.picture:
        recorded.timeline().savefig(given.picture)
        print(f"the time line: {given.picture}")
    return status


def _run(script: Path, arguments: Sequence[str]) -> tuple[int, str | None]:
    """Run a script as ``python script`` would.

    Returns
    -------
    status : int
        Its exit code; 1 if it raises, with the traceback on stderr.
    failure : str or None
        What it raised and at which line, or its exit code if that is not 0; None if it ended well.
    """
    from metallab.pytorch.dispatch import explain

    arguments_before, path_before = sys.argv, sys.path[:]
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))

    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        return status, f"it ended with the exit code {status}" if status else None
    except Exception as error:  # noqa: BLE001 - somebody's script: what ran until then is told all the same
        traceback.print_exc()
        return 1, f"it raised {explain(error)}"
    finally:
        sys.argv = arguments_before
        sys.path[:] = path_before

    return 0, None
