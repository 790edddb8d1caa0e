"""What a chip can do at most: computed from the table, a band where sources disagree, refused only above it."""

from __future__ import annotations

import functools
import json

import pytest
import torch

from metallab import paths, reported
from metallab.device import PyTorchDevice
from metallab.reported import peaks

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


CHIPS = reported.chips()


@pytest.mark.parametrize(
    "chip", [chip for chip in CHIPS if chip.clock is not None], ids=lambda chip: chip.name
)
def test_float32_is_cores_times_alus_times_two_times_clock(chip):
    band = peaks.float32(chip.name)
    formula = max(chip.gpu_cores) * 128 * 2 * chip.clock
    assert {band.low, band.high} == {min(formula, chip.published), max(formula, chip.published)}


@pytest.mark.parametrize(
    "chip", [chip for chip in CHIPS if chip.clock is None], ids=lambda chip: chip.name
)
def test_without_a_clock_there_is_no_lower_end(chip):
    band = peaks.float32(chip.name)
    assert band is None or band.low is None


@pytest.mark.parametrize(
    ("chip", "low", "high"),
    [
        pytest.param("M1", 2.60e12, 2.62e12, id="agreed"),
        pytest.param("Apple M2 Max", 13.49e12, 13.61e12, id="agreed, Apple's whole name"),
        pytest.param("M3", 3.42e12, 4.1e12, id="disputed"),
        pytest.param("M5", 4.03e12, 5.7e12, id="disputed, with matrix units"),
    ],
)
def test_a_disputed_peak_is_a_band(chip, low, high):
    band = peaks.float32(chip)
    assert band.low == pytest.approx(low, rel=0.005)
    assert band.high == pytest.approx(high, rel=0.005)


@pytest.mark.parametrize(
    ("chip", "times"),
    [("M1 Ultra", 1), ("M2", 1), ("M3 Max", 2), ("M4", 2)],
)
def test_float16_is_as_fast_as_float32_on_m1_and_m2_and_at_most_twice_as_fast_after(chip, times):
    single = peaks.arithmetic(chip).high
    assert peaks.arithmetic(chip, torch.float16).high == times * single
    assert peaks.arithmetic(chip, "bfloat16").high == times * single


@pytest.mark.parametrize(
    ("dtype", "reached"), [("float16", 70e12), ("float32", 58e12), ("int8", 140e12)]
)
def test_what_matrix_units_of_m5_reach_is_not_refused(dtype, reached):
    peaks.check_arithmetic(reached, "M5 Max", dtype)


def test_matrix_units_raise_the_limit_of_m5():
    assert peaks.arithmetic("M5 Max").high > 3 * peaks.float32("M5 Max").high


@pytest.mark.parametrize(
    ("chip", "dtype"),
    [("M9", "float32"), ("M2", "float64"), ("M2", "int8"), ("M5", "float64")],
)
def test_what_nobody_knows_is_not_limited(chip, dtype):
    assert peaks.arithmetic(chip, dtype) is None
    peaks.check_arithmetic(1e18, chip, dtype)


def test_only_what_lies_above_the_upper_end_is_refused():
    band = peaks.arithmetic("M4")
    peaks.check_arithmetic(band.high, "M4")
    with pytest.raises(peaks.ImpossibleSpeed, match="waited"):
        peaks.check_arithmetic(1.01 * band.high, "M4")


def test_a_bandwidth_may_be_a_little_above_its_rounded_label():
    peaks.check_bandwidth(204.8e9, "M1 Pro")


def test_a_bandwidth_far_above_its_label_is_refused():
    with pytest.raises(peaks.ImpossibleSpeed, match="M1 Pro"):
        peaks.check_bandwidth(220e9, "M1 Pro")


def test_the_bandwidth_of_a_chip_of_another_maker_is_not_limited():
    peaks.check_bandwidth(1e15, "a chip of another maker")


@pytest.mark.parametrize(
    ("device", "chip"),
    [
        pytest.param(PyTorchDevice("mps", "Apple M2 Max GPU"), "M2 Max", id="a Mac"),
        pytest.param(PyTorchDevice("mps", "Apple M1 (Virtual) GPU"), "M1", id="a virtual Mac"),
        pytest.param(PyTorchDevice("mps", "Apple M4 Ultra GPU"), None, id="not in the table"),
        pytest.param(PyTorchDevice("mps", "Apple M2 GPU", simulated=True), None, id="simulated"),
        pytest.param(PyTorchDevice("cpu", "Apple M2 CPU", threads=8), None, id="a CPU"),
    ],
)
def test_a_device_is_found_in_the_table(device, chip):
    assert peaks.chip_of(device) == chip


GENERATIONS = sorted({chip.name.split()[0] for chip in CHIPS if peaks.float32(chip.name)})


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_larger_chip_of_a_generation_has_no_lower_limit(generation):
    bands = [peaks.float32(chip.name) for chip in CHIPS if chip.name.split()[0] == generation]
    highs = [band.high for band in bands if band]
    assert highs == sorted(highs)


ON_GPUS = [entry for entry in reported.measurements() if entry.processor == "GPU"]


def entries_in(*units: str) -> list:
    """The measurements on GPUs in these units, as cases with their chip and what was done."""
    return [
        pytest.param(entry, id=f"{entry.chip}, {entry.what}")
        for entry in ON_GPUS
        if entry.quantity.unit in units
    ]


@pytest.mark.parametrize("entry", entries_in("TFLOP/s"))
def test_no_reported_rate_lies_above_its_chip(entry):
    peaks.check_arithmetic(entry.quantity.value * 1e12, entry.chip, entry.dtype)


@pytest.mark.parametrize("entry", entries_in("GB/s"))
def test_no_reported_bandwidth_lies_above_its_chip(entry):
    peaks.check_bandwidth(entry.quantity.value * 1e9, entry.chip)


PRODUCTS_OF_M5 = [
    pytest.param(entry, id=f"{entry.chip}, {entry.size}, {entry.dtype}")
    for entry in ON_GPUS
    if entry.topic == "matrix units of M5" and entry.quantity.unit in SECONDS
]


@pytest.mark.parametrize("entry", PRODUCTS_OF_M5)
def test_no_reported_time_of_a_product_is_below_what_matrix_units_need(entry):
    seconds = entry.quantity.value * SECONDS[entry.quantity.unit]
    peaks.check_arithmetic(2 * int(entry.size) ** 3 / seconds, entry.chip, entry.dtype)


@functools.cache
def read_peak_of_page_01() -> str:
    """The cell of page 01 that looks a chip's peak up."""
    page = json.loads((paths.NOTEBOOKS / "01_time_it_right.ipynb").read_text("utf-8"))
    cells = ("".join(cell["source"]) for cell in page["cells"] if cell["cell_type"] == "code")
    return next(cell for cell in cells if "peaks.arithmetic" in cell)


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_page_01_takes_the_upper_end(chip):
    """It finds impossible speeds, and must not call a true one impossible where reports disagree."""
    names = {"lab": PyTorchDevice("mps", f"Apple {chip.name} GPU"), "torch": torch}
    exec(read_peak_of_page_01(), names)

    limit = peaks.arithmetic(chip.name)
    assert names["peak"] == (limit and limit.high / 1e12)


@pytest.mark.parametrize(
    ("chip", "dtype", "low", "high"),
    [
        pytest.param("M1 Pro", "float32", 26, 26.6, id="agreed"),
        pytest.param("M5", "float32", 26.4, 37.3, id="a band"),
        pytest.param("M5 Max", "float16", 27, 149, id="with matrix units"),
    ],
)
def test_a_ridge_point_is_the_peak_over_the_label_s_bandwidth(chip, dtype, low, high):
    ridge = peaks.ridge(chip, dtype)
    assert low <= ridge.low <= ridge.high <= high
    assert ridge.low == pytest.approx(peaks.float32(chip).low / reported.chip(chip).bandwidth)


@pytest.mark.parametrize(
    ("chip", "dtype"), [pytest.param("M1", "float64", id="no such format"), ("M99", "float32")]
)
def test_no_ridge_point_is_given_where_nothing_is_known(chip, dtype):
    assert peaks.ridge(chip, dtype) is None
