"""What owners of Macs measured and published: no Mac of this project measured any of it.

`measurements` reads the numbers that pages quote, `chips` what is known of each chip, and `impossible` ten published
figures that cannot be true, or that say something else. ``data/README.md`` beside this file says where all of it
comes from. `metallab.reported.peaks` says what a chip can do at most, `metallab.reported.figures` which check finds
each of the ten, and `metallab.reported.pictures` draws.

A number of somebody else's Mac has the type `Reported`, which cannot be divided by a number of ours: the two were taken
in different ways, and their ratio would say nothing about either machine.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from metallab import units

DATA = Path(__file__).with_name("data")
"""The folder of the tables, with a README."""

REMEDY = "install metallab again, or fetch it in a checkout, `git checkout -- utils/metallab/reported/data`"
"""What to do where one of the tables is missing or damaged."""

LABEL = "reported by others"
"""What stands beside every such number, wherever it is shown."""


class Sure(StrEnum):
    """How the value was seen before it was copied."""

    FULL = "read in full"
    """In a copy of the file that holds it."""
    EXCERPT = "seen in an excerpt"
    """In a part of the thread or page, which could not be opened whole."""
    SECOND_HAND = "second-hand"
    """In a text that quotes it."""


@dataclass(frozen=True)
class Reported:
    """A value that somebody else measured, with its unit and the address where it stands.

    It can be read and drawn, and divided by another value of the same table and unit, which the same people measured in
    the same way. Any other division raises TypeError.
    """

    value: float
    unit: str
    address: str

    __array_ufunc__ = None  # so that NumPy's numbers leave a division to the methods below

    def __str__(self) -> str:
        return f"{self.value:g} {self.unit} ({LABEL})"

    def __truediv__(self, other: object) -> float:
        if not isinstance(other, Reported):
            raise TypeError(_REFUSAL)

        if (self.address, self.unit) != (other.address, other.unit):
            raise TypeError(
                f"{self} and {other} come from different tables or have different units: they were not measured in "
                "the same way, so their ratio says nothing; show them side by side"
            )
        return self.value / other.value

    def __rtruediv__(self, other: object) -> float:
        raise TypeError(_REFUSAL)


_REFUSAL = (
    "a value that others reported is not divided by one that was measured here, nor the reverse: machine, versions and "
    "way of timing differ, so the ratio says nothing about either; show them side by side"
)


Processor = Literal["GPU", "CPU", "Neural Engine", ""]
Waited = Literal["yes", "no", "unknown"]
Basis = Literal["measured", "listed", "assumed", ""]
Verdict = Literal["impossible", "says something else"]

_Row = TypeVar("_Row")
"""What a row of one of the tables becomes."""


@dataclass(frozen=True)
class Entry:
    """One measurement by the owner of a Mac."""

    topic: str
    """Such as ``matrix product``; each that there is stands in `topics`."""
    chip: str
    """Such as ``M2 Max``."""
    processor: Processor
    """What computed; empty where the framework chose, and nobody says what."""
    gpu_cores: int | None
    memory_gb: int | None
    macos: str
    framework: str
    version: str
    what: str
    """The work."""
    dtype: str
    """The format of the numbers; ``4 bits`` and the like for language models."""
    size: str
    quantity: Reported
    waited: Waited
    """Whether the clock was stopped after the GPU had ended."""
    spread: str
    """What is said of repeats; empty where nothing is."""
    date: str
    """Of the measurement or, where that is unknown, of the copy that was read."""
    licence: str
    """Of the source: an SPDX name, ``issue thread`` or ``none found``."""
    sure: Sure
    note: str

    @property
    def where(self) -> str:
        """Chip, processor, versions and address in a line."""
        software = " ".join(filter(None, [self.framework, self.version]))
        system = f"macOS {self.macos}" if self.macos else "macOS not given"
        machine = f"{self.chip} {self.processor}".strip()
        return f"{machine}, {software}, {system}, {self.quantity.address}"


@dataclass(frozen=True)
class Chip:
    """What sources say of a chip. A cell that no source fills is None or empty."""

    name: str
    """Such as ``M2 Max``."""
    gpu_cores: tuple[int, ...]
    """The numbers of GPU cores that it is sold with, as far as a source names them."""
    memory_gb: tuple[int, ...]
    bandwidth: float | None
    """Of the fastest memory that it is sold with, in bytes per second."""
    clock: float | None
    """The highest of the GPU, in Hz, as one source has it; others may say more (`published`)."""
    clock_basis: Basis
    """Whether the clock was read while the GPU computed, is named in a list, or was taken from another chip."""
    published: float | None
    """Float32 in FLOP/s with the most cores, as one table gives it without saying how."""
    family: str
    """Apple's name of what the GPU can do, such as ``Apple9``."""
    has_matrix_units: bool | None
    """Whether each GPU core has a unit for products of small matrices (Apple: neural accelerator)."""
    sources: Mapping[str, tuple[str, ...]]
    """By the column of the table, the addresses of what fills it."""


class Check(StrEnum):
    """What finds that a published figure is wrong, or that it says something else."""

    ARITHMETIC = "arithmetic"
    """More operations a second than the chip can do."""
    BANDWIDTH = "bandwidth"
    """More bytes a second than the memory delivers."""
    SAME_TIME = "same time"
    """The same time on machines of very different speed."""
    REPEATS = "repeats"
    """Nothing was called a second time."""
    ANOTHER_READING = "another reading"
    """Somebody else finds something very different for the same thing."""


@dataclass(frozen=True)
class Figure:
    """A published figure that cannot be true, or that says something else than it seems to."""

    name: str
    chips: tuple[str, ...]
    published: tuple[float, ...]
    """As many as there are chips."""
    unit: str
    dtype: str
    work: float | None
    """FLOP or bytes: behind one of ``unit`` if that is a rate, else in the time given."""
    other: float | None
    """What somebody else finds, in ``unit``, or in TFLOP/s where that is a time."""
    other_source: str
    repeats: int | None
    """Calls of each kind, where that is the fault."""
    check: Check
    verdict: Verdict
    cause: str
    source: str
    """What kind of place it stood in; no address, since these are about mistakes and not about people."""
    date: str
    sure: Sure


def measurements(
    chip: str | None = None,
    what: str | None = None,
    dtype: object | None = None,
    topic: str | None = None,
) -> list[Entry]:
    """The measurements that others reported, in the order of the table.

    Parameters
    ----------
    chip : str, optional
        A chip's whole name, such as ``M2 Max`` or ``Apple M2 Max``: ``M2`` is another chip.
    what : str, optional
        A part of the work's description, in any case.
    dtype : optional
        A name such as ``float16``, or a framework's dtype.
    topic : str, optional
        One of `topics`.

    Returns
    -------
    list of Entry
        Empty where nobody reported such a thing.

    Raises
    ------
    ValueError
        A chip or a topic that the table does not know, so that a typing mistake is no empty picture; or the table is
        missing or damaged.

    Examples
    --------
    >>> for entry in measurements("M1 Pro", dtype="bfloat16"):
    ...     print(entry.quantity, entry.where)
    """
    wanted: dict[str, str] = {}
    if chip is not None:
        wanted["chip"] = chip.removeprefix("Apple ")
        _require(wanted["chip"], {each.name for each in chips()}, "chip")
    if topic is not None:
        wanted["topic"] = topic
        _require(topic, set(topics()), "topic")
    if dtype is not None:
        wanted["dtype"] = units.dtype_name(dtype)

    part = (what or "").lower()
    return [
        entry for entry in _entries() if part in entry.what.lower() and _has_values(entry, wanted)
    ]


def _has_values(entry: Entry, wanted: Mapping[str, str]) -> bool:
    """Return whether the fields that are named hold these values."""
    return all(getattr(entry, field) == value for field, value in wanted.items())


def topics() -> list[str]:
    """The topics of the measurements, in the order of the table."""
    return list(dict.fromkeys(entry.topic for entry in _entries()))


@functools.cache
def chips() -> tuple[Chip, ...]:
    """The chips, from M1 to M6.

    Returns
    -------
    tuple of Chip
        By generation, and in it by size.

    Raises
    ------
    ValueError
        The table is missing or damaged.
    """
    return _read("chips.csv", _chip)


def chip(name: str) -> Chip | None:
    """The chip of a name such as ``M2 Max`` or ``Apple M2 Max``, or None if the table lacks it."""
    name = name.removeprefix("Apple ")
    return next((each for each in chips() if each.name == name), None)


@functools.cache
def impossible() -> tuple[Figure, ...]:
    """Ten published figures that cannot be true, or that say something else.

    Returns
    -------
    tuple of Figure
        Which check finds each is `metallab.reported.figures.find`'s to say.

    Raises
    ------
    ValueError
        The table is missing or damaged.
    """
    return _read("impossible.csv", _figure)


@functools.cache
def _entries() -> tuple[Entry, ...]:
    return _read("measurements.csv", _entry)


def _read(name: str, convert: Callable[[dict[str, str]], _Row]) -> tuple[_Row, ...]:
    """Return a table with each row as an object. ValueError, with what to do, if the table is missing or damaged."""
    rows = _rows(name)
    try:
        return tuple(map(convert, rows))
    # a column that is not there, a word or a number that is none
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"{DATA / name} is damaged ({units.first_line(error, kind=True)}): {REMEDY}"
        ) from error


def _rows(name: str) -> list[dict[str, str]]:
    """Read a table, each row by its columns."""
    try:
        with (DATA / name).open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{DATA / name} cannot be read ({error}): {REMEDY}") from error
    if not rows or any(None in row or None in row.values() for row in rows):
        raise ValueError(f"{DATA / name} has no rows, or rows of different length: {REMEDY}")
    return rows


def _entry(row: dict[str, str]) -> Entry:
    """Return a row of the measurements, its cells as numbers and as words of the types that `Entry` names."""
    return Entry(
        topic=row["topic"],
        chip=row["chip"],
        processor=_choose(row["processor"], Processor),
        gpu_cores=_whole(row["gpu_cores"]),
        memory_gb=_whole(row["memory_gb"]),
        macos=row["macos"],
        framework=row["framework"],
        version=row["version"],
        what=row["what"],
        dtype=row["dtype"],
        size=row["size"],
        quantity=Reported(float(row["value"]), row["unit"], row["address"]),
        waited=_choose(row["waited"], Waited),
        spread=row["spread"],
        date=row["date"],
        licence=row["licence"],
        sure=Sure(row["sure"]),
        note=row["note"],
    )


def _chip(row: dict[str, str]) -> Chip:
    """Return a row of the chips in SI units, and by column the addresses that its column ``..._source`` holds."""
    bandwidth, clock, published = (
        _number(row[column]) for column in ("bandwidth_gbs", "clock_ghz", "published_tflops")
    )
    sources = {
        column.removesuffix("_source"): tuple(cell.split())
        for column, cell in row.items()
        if column.endswith("_source")
    }

    return Chip(
        name=row["chip"],
        gpu_cores=tuple(map(int, row["gpu_cores"].split())),
        memory_gb=tuple(map(int, row["memory_gb"].split())),
        bandwidth=bandwidth and bandwidth * 1e9,
        clock=clock and clock * 1e9,
        clock_basis=_choose(row["clock_basis"], Basis),
        published=published and published * 1e12,
        family=row["family"],
        has_matrix_units={"yes": True, "no": False, "": None}[row["matrix_units"]],
        sources=sources,
    )


def _figure(row: dict[str, str]) -> Figure:
    """Return a row of the figures; a cell of several chips has semicolons between, and so has that of their values."""
    return Figure(
        name=row["name"],
        chips=tuple(row["chips"].split(";")),
        published=tuple(map(float, row["published"].split(";"))),
        unit=row["unit"],
        dtype=row["dtype"],
        work=_number(row["work"]),
        other=_number(row["other"]),
        other_source=row["other_source"],
        repeats=_whole(row["repeats"]),
        check=Check(row["check"]),
        verdict=_choose(row["verdict"], Verdict),
        cause=row["cause"],
        source=row["source"],
        date=row["date"],
        sure=Sure(row["sure"]),
    )


def _choose(cell: str, words: Any) -> Any:
    """Return a cell that holds one of the words of a Literal."""
    if cell not in get_args(words):
        raise ValueError(f"{cell!r} is none of {', '.join(get_args(words))}")
    return cell


def _number(cell: str) -> float | None:
    return float(cell) if cell else None


def _whole(cell: str) -> int | None:
    return int(cell) if cell else None


def _require(name: str, known: set[str], kind: str) -> None:
    if name not in known:
        raise ValueError(f"there is no {kind} {name!r} in the table: {', '.join(sorted(known))}")
