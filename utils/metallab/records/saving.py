"""Save what a page or a program measured, with the machine as it is now."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from metallab import device, machine, mode, paths
from metallab.device import Device
from metallab.fields import LESSON_NAME
from metallab.records.format import describe_variant, write
from metallab.records.headlines import put_picture_beside
from metallab.records.record import Compared, Headline, Record
from metallab.timing import Comparison, Measurement


def save(
    lesson: str,
    *results: Measurement | Comparison,
    on: Device,
    headline: Headline | None = None,
    folder: Path | None = None,
) -> Path:
    """Write a lesson's results, and return the file: ``build/<mode>-<device>/results/<lesson>.json``.

    A program calls it; of a notebook the results are saved after each cell (`metallab.session`).

    Parameters
    ----------
    lesson
        The page's name.
    *results
        What it measured.
    on
        The device that the page ran on, which names the folder.
    headline
        What the page found; its picture is written beside the file.
    folder
        Where to write instead.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ValueError
        As `gather`, or if a value could not be read back.
    OSError
        If the file cannot be written; an earlier one is left as it was.
    """
    records = gather(lesson, *results)
    folder = folder or run_folder(on, records[0].measurement.mode) / "results"
    return _store(folder / f"{lesson}.json", records, headline)


def save_page(
    lesson: str,
    results: Sequence[Measurement | Comparison],
    headline: Headline | None,
    without_headline: str = "",
) -> Path:
    """Write the results of a page so far, as `save`, in the folder of the device that the page picked first.

    Parameters
    ----------
    lesson
        The page's name.
    results
        What it measured; a page that picked no device ran on that of the first.
    headline
        What the page found, if it has found it yet.
    without_headline
        Why it has none although its metadata name one.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ValueError, OSError
        As `save`.
    """
    why = machine.one_line(without_headline)
    records = [replace(each, without_headline=why) for each in gather(lesson, *results)]
    first = records[0].measurement

    if device.picked:
        folder = run_folder(device.picked[0], first.mode)
    else:
        folder = paths.run_folder(first.mode, "sim" if first.simulated else first.kind)
    return _store(folder / "results" / f"{lesson}.json", records, headline)


def _store(path: Path, records: list[Record], headline: Headline | None) -> Path:
    """Write records, with the headline in each of them and its picture beside the file; return the file."""
    if headline is not None:
        kept = put_picture_beside(path, headline)
        records = [replace(record, headline=kept) for record in records]
    return write(path, records)


def gather(lesson: str, *results: Measurement | Comparison) -> list[Record]:
    """Return a lesson's results as records of this process, with the machine as it is now.

    Parameters
    ----------
    lesson
        The page's name.
    *results
        What it measured; of a comparison each variant becomes a record.

    Returns
    -------
    list of Record
        In the order of the results, all with the same moment.

    Raises
    ------
    ValueError
        If there is nothing, the lesson cannot name a file, or a measurement's name comes twice.
    """
    if not re.match(LESSON_NAME, lesson):
        raise ValueError(
            f"{lesson!r} cannot name a file; a lesson's name has letters, digits, '_', '-' and '.'"
        )
    rows = [row for result in results for row in list_rows(lesson, result)]
    if not rows:
        raise ValueError(
            f"{lesson}: nothing to save; give save() the measurements and comparisons of the page"
        )
    names = [row.name for row in rows]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(
            f"{sorted(twice)} stand twice among the results; give each measurement its own name"
        )

    described = machine.describe()
    taken = datetime.now(UTC).isoformat(timespec="seconds")
    return [
        Record(lesson, row.name, taken, row.measurement, row.compared, row.drift, described)
        for row in rows
    ]


class Row(NamedTuple):
    """One function's times in the results of a page."""

    name: str
    """As in `Record.name`."""
    measurement: Measurement
    compared: Compared | None
    """The result of its comparison."""
    drift: float | None
    """Of a sentinel around the comparison."""


def list_rows(lesson: str, result: Measurement | Comparison) -> list[Row]:
    """Return a measurement, or each one of a comparison, with what is said of it."""
    if isinstance(result, Measurement):
        return [Row(f"{lesson}/{result.name}", result, None, None)]

    prefix = f"{lesson}/{result.name}"
    return [
        Row(f"{prefix}/{variant}", measured, describe_variant(result, variant), result.drift)
        for variant, measured in result.measurements.items()
    ]


def run_folder(on: Device, of_mode: str = "") -> Path:
    """Return the folder where a page on a device puts the files that it makes: ``build/<mode>-<device>``.

    Parameters
    ----------
    on
        The device.
    of_mode
        ``full`` or ``fast``; by default this run's.
    """
    return paths.run_folder(of_mode or mode.current(), "sim" if on.simulated else on.kind)
