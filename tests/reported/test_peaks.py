"""What a chip can do at most: computed from the table, a band where sources disagree, refused only above it."""

from __future__ import annotations

import json

import pytest
import torch

from metallab import paths, reported
from metallab.device import PyTorchDevice
from metallab.reported import peaks

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


@pytest.mark.parametrize("chip", reported.chips(), ids=lambda chip: chip.name)
def test_float32_is_cores_times_alus_times_two_times_clock(chip):
    band = peaks.float32(chip.name)
    if chip.clock is None:
        assert band is None or band.low is None
        return
    formula = max(chip.gpu_cores) * 128 * 2 * chip.clock
    assert {band.low, band.high} == {min(formula, chip.published), max(formula, chip.published)}


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
    assert (band.low, band.high) == pytest.approx((low, high), rel=0.005)


@pytest.mark.parametrize(
    ("chip", "times"),
    [("M1 Ultra", 1), ("M2", 1), ("M3 Max", 2), ("M4", 2)],
)
def test_float16_is_as_fast_as_float32_on_m1_and_m2_and_at_most_twice_as_fast_after(chip, times):
    single = peaks.arithmetic(chip).high
    assert peaks.arithmetic(chip, torch.float16).high == times * single
    assert peaks.arithmetic(chip, "bfloat16").high == times * single


def test_matrix_units_raise_every_limit_of_m5():
    for dtype, reached in (("float16", 70e12), ("float32", 58e12), ("int8", 140e12)):
        peaks.check_arithmetic(reached, "M5 Max", dtype)
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
    with pytest.raises(peaks.ImpossibleSpeed, match="M1 Pro"):
        peaks.check_bandwidth(220e9, "M1 Pro")
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


def test_a_larger_chip_has_no_lower_limit():
    by_generation: dict[str, list[peaks.Band]] = {}
    for chip in reported.chips():
        if band := peaks.float32(chip.name):
            by_generation.setdefault(chip.name.split()[0], []).append(band)
    for generation, bands in by_generation.items():
        highs = [band.high for band in bands]
        assert highs == sorted(highs), generation


def test_no_reported_rate_lies_above_its_chip():
    """What others measured and these limits bear each other out."""
    for entry in reported.measurements():
        quantity = entry.quantity
        if entry.processor != "GPU":
            continue
        if quantity.unit == "TFLOP/s":
            peaks.check_arithmetic(quantity.value * 1e12, entry.chip, entry.dtype)
        if quantity.unit == "GB/s":
            peaks.check_bandwidth(quantity.value * 1e9, entry.chip)
        if entry.topic == "matrix units of M5" and quantity.unit in SECONDS:
            rate = 2 * int(entry.size) ** 3 / (quantity.value * SECONDS[quantity.unit])
            peaks.check_arithmetic(rate, entry.chip, entry.dtype)


@pytest.mark.parametrize("chip", reported.chips(), ids=lambda chip: chip.name)
def test_page_01_takes_the_upper_end(chip):
    """It finds impossible speeds, and must not call a true one impossible where reports disagree."""
    page = json.loads((paths.NOTEBOOKS / "01_time_it_right.ipynb").read_text("utf-8"))
    cells = ("".join(cell["source"]) for cell in page["cells"] if cell["cell_type"] == "code")
    source = next(cell for cell in cells if "peaks.arithmetic" in cell)
    names = {"lab": PyTorchDevice("mps", f"Apple {chip.name} GPU"), "torch": torch}
    exec(source, names)

    limit = peaks.arithmetic(chip.name)
    assert names["peak"] == (limit and limit.high / 1e12)


@pytest.mark.parametrize(
    ("chip", "dtype", "low", "high"),
    [
        pytest.param("M1 Pro", "float32", 26, 26.6, id="agreed"),
        pytest.param("M5", "float32", 26.3, 37.2, id="a band"),
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
