"""What others reported: its tables keep their rules, and its numbers stay apart from ours."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from operator import truediv

import numpy as np
import pytest
from measurements import make_measurement

from metallab import reported
from metallab.reported import Check, Reported, Sure, figures

ENTRIES = reported.measurements()
NO_LICENCE = ("issue thread", "none found")
OURS = make_measurement("ours", (1e-3, 2e-3), device="a Mac")
THEIRS = ENTRIES[0].quantity


def test_the_table_is_small_enough_to_be_looked_after():
    assert 60 <= len(ENTRIES) <= 120


def test_every_row_has_a_chip_of_the_table_and_none_is_of_a_phone():
    names = {chip.name for chip in reported.chips()}
    assert {entry.chip for entry in ENTRIES} <= names
    told = " ".join(f"{entry.what} {entry.framework} {entry.note}" for entry in ENTRIES)
    assert not re.search(r"iphone|ipad|\bA1\d\b", told, re.IGNORECASE)


def name_of(entry) -> str:
    return f"{entry.chip}, {entry.what}"


EVERY_ENTRY = pytest.mark.parametrize("entry", ENTRIES, ids=name_of)


@EVERY_ENTRY
def test_a_row_has_an_address_a_value_and_a_unit(entry):
    assert entry.quantity.address.startswith("https://")
    assert entry.quantity.value > 0
    assert entry.quantity.unit


@EVERY_ENTRY
def test_the_date_of_a_row_is_a_year_a_month_or_a_day(entry):
    assert re.fullmatch(r"\d{4}(-\d\d){0,2}", entry.date)


@pytest.mark.parametrize(
    ("column", "allowed"),
    [
        pytest.param("processor", {"GPU", "CPU", "Neural Engine", ""}, id="processor"),
        pytest.param("waited", {"yes", "no", "unknown"}, id="waited"),
        pytest.param("licence", {"MIT", "Apache-2.0", "GPL-3.0", *NO_LICENCE}, id="licence"),
        pytest.param("sure", set(Sure), id="sure"),
    ],
)
def test_a_column_has_known_words(column, allowed):
    assert {getattr(entry, column) for entry in ENTRIES} <= allowed


def test_no_table_without_a_licence_gives_more_than_five_numbers():
    taken = Counter(e.quantity.address for e in ENTRIES if e.licence in NO_LICENCE)
    assert max(taken.values()) <= 5, taken.most_common(3)


def test_nothing_comes_from_a_source_that_forbids_adaptation():
    assert not any("guruswami" in entry.quantity.address for entry in ENTRIES)
    assert not any("ND" in entry.licence for entry in ENTRIES)


THREAD = re.compile(r"/(issues|pull)/\d+")
OF_THREADS = [entry for entry in ENTRIES if THREAD.search(entry.quantity.address)]


@pytest.mark.parametrize("entry", OF_THREADS, ids=name_of)
def test_a_thread_was_not_read_in_full_as_files_were_that_were_fetched(entry):
    assert entry.sure is not Sure.FULL


def test_no_row_stands_there_twice():
    assert len(set(ENTRIES)) == len(ENTRIES)


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        pytest.param({"chip": "Apple M1 Pro", "dtype": "bfloat16"}, 1, id="chip and dtype"),
        pytest.param({"chip": "M1 Pro", "dtype": np.float16}, 3, id="a framework's dtype"),
        pytest.param({"topic": "pauses"}, 3, id="topic"),
        pytest.param({"what": "RESIZE"}, 4, id="what"),
        pytest.param({"chip": "M6"}, 0, id="a chip that nobody measured"),
    ],
)
def test_measurements_are_filtered(wanted, count):
    assert len(reported.measurements(**wanted)) == count


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        pytest.param({"chip": "M2 Mx"}, "M2 Max", id="chip"),
        pytest.param({"topic": "matmul"}, "matrix product", id="topic"),
    ],
)
def test_an_unknown_name_is_refused_with_those_that_are_known(wanted, named):
    with pytest.raises(ValueError, match=named):
        reported.measurements(**wanted)


@pytest.mark.parametrize(
    "ours", [1.5, 2, np.float64(3.0), np.ones(2), OURS], ids=lambda ours: type(ours).__name__
)
def test_theirs_is_not_divided_by_ours_nor_ours_by_theirs(ours):
    with pytest.raises(TypeError, match="side by side"):
        truediv(THEIRS, ours)
    with pytest.raises(TypeError, match="side by side"):
        truediv(ours, THEIRS)


def test_two_of_one_table_have_a_ratio():
    half = Reported(THEIRS.value / 2, THEIRS.unit, THEIRS.address)
    assert truediv(THEIRS, half) == 2


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(Reported(1.0, THEIRS.unit, "https://example.org/other"), id="another table"),
        pytest.param(Reported(1.0, "ms", THEIRS.address), id="another unit"),
    ],
)
def test_two_of_different_tables_or_units_have_none(other):
    with pytest.raises(TypeError, match="different"):
        truediv(THEIRS, other)


def test_a_value_says_whose_it_is():
    assert "reported by others" in str(THEIRS)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(None, id="missing"),
        pytest.param("a,b\n", id="no rows"),
        pytest.param("a,b\n1\n", id="a short row"),
        pytest.param("a,b\n1,2\n", id="other columns"),
    ],
)
def test_a_damaged_table_says_what_to_do(tmp_path, monkeypatch, damage):
    if damage is not None:
        (tmp_path / "chips.csv").write_text(damage)
    monkeypatch.setattr(reported, "DATA", tmp_path)
    reported.chips.cache_clear()
    try:
        with pytest.raises(ValueError, match="git checkout"):
            reported.chips()
    finally:
        reported.chips.cache_clear()


# ---------------------------------------------------------------- chips


def test_the_chips_go_from_m1_to_m6():
    names = [chip.name for chip in reported.chips()]
    assert names[0] == "M1"
    assert names[-1] == "M6"
    assert len(set(names)) == len(names)


CELLS = {
    "gpu_cores": lambda chip: bool(chip.gpu_cores),
    "memory": lambda chip: bool(chip.memory_gb),
    "bandwidth": lambda chip: bool(chip.bandwidth),
    "clock": lambda chip: bool(chip.clock),
    "published": lambda chip: bool(chip.published),
    "family": lambda chip: bool(chip.family),
    "matrix_units": lambda chip: chip.has_matrix_units is not None,
}
"""Whether a column of a chip is filled."""
EVERY_CHIP = pytest.mark.parametrize("chip", reported.chips(), ids=lambda chip: chip.name)


@EVERY_CHIP
def test_each_cell_has_a_source_and_no_source_stands_without_its_cell(chip):
    filled = {column: is_filled(chip) for column, is_filled in CELLS.items()}
    assert {column: bool(sources) for column, sources in chip.sources.items()} == filled


@EVERY_CHIP
def test_the_sources_of_a_chip_are_addresses(chip):
    addresses = [address for sources in chip.sources.values() for address in sources]
    assert all(address.startswith("https://") for address in addresses)


@EVERY_CHIP
def test_a_clock_says_whether_it_was_measured(chip):
    assert bool(chip.clock) == (chip.clock_basis in ("measured", "listed", "assumed"))


@pytest.mark.parametrize("name", ["M2", "M3"])
def test_the_bandwidth_of_a_chip_is_the_one_on_its_label(name):
    """Apple sells them with 100 GB/s; 102.4 is what a program calculates from the kind of memory."""
    assert reported.chip(name).bandwidth == 100e9


# ---------------------------------------------------------------- impossible figures


BLIND_COUNTERS = [figure for figure in reported.impossible() if figure.unit == "MHz"]


@pytest.mark.parametrize("figure", BLIND_COUNTERS, ids=lambda figure: figure.name)
def test_a_clock_that_a_blind_counter_showed_is_not_called_measured(figure):
    shown = [mhz * 1e6 for mhz in figure.published]
    called = {each: reported.chip(each).clock_basis for each in figure.chips}
    clocks = [reported.chip(each).clock for each in figure.chips]

    assert clocks == shown
    assert "measured" not in called.values()


EVERY_FIGURE = pytest.mark.parametrize(
    "figure", reported.impossible(), ids=lambda figure: figure.name
)


def test_there_are_ten_impossible_figures():
    assert len(reported.impossible()) == 10


@EVERY_FIGURE
def test_an_impossible_figure_has_a_cause_and_names_no_person(figure):
    assert figure.cause
    assert "http" not in f"{figure.source} {figure.cause} {figure.other_source}"
    assert "@" not in figure.source


@EVERY_FIGURE
def test_each_figure_is_found_by_the_check_that_it_names(figure):
    found = [finding.check for finding in figures.find(figure)]
    assert found == [figure.check]


def test_of_several_figures_none_is_compared_with_another_reading():
    """Which of them somebody else reads otherwise, nothing says."""
    several = next(figure for figure in reported.impossible() if len(figure.published) > 1)

    found = figures.find(dataclasses.replace(several, other=1.0))

    assert Check.ANOTHER_READING not in [finding.check for finding in found]


BY_ARITHMETIC = [
    figure
    for figure in reported.impossible()
    if figure.check in (Check.ARITHMETIC, Check.BANDWIDTH)
]


@EVERY_FIGURE
def test_what_is_called_impossible_is_so_by_arithmetic(figure):
    assert (figure.verdict == "impossible") == (figure in BY_ARITHMETIC)


@pytest.mark.parametrize("figure", BY_ARITHMETIC, ids=lambda figure: figure.name)
def test_the_rate_of_an_impossible_figure_is_above_its_limit(figure):
    assert figures.rate(figure) > figures.at_most(figure).high


def test_the_rate_of_a_prompt_is_its_work():
    prompt = reported.impossible()[0]
    assert figures.rate(prompt) == pytest.approx(426e12, rel=0.01)


def test_a_figure_with_several_times_has_no_rate():
    several = next(each for each in reported.impossible() if len(each.published) > 1)
    with pytest.raises(ValueError, match="no rate"):
        figures.rate(several)
