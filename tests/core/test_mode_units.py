"""How much work a run does, and numbers and dtypes as a reader wants them."""

from __future__ import annotations

import importlib
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metallab import mode, units


def test_without_a_mode_a_run_is_full(monkeypatch):
    monkeypatch.delenv("METALLAB_MODE", raising=False)
    assert mode.current() == "full"
    assert mode.by_mode(full=1, fast=2) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("full", 1, id="full"),
        pytest.param("fast", 2, id="fast"),
        pytest.param("", 1, id="empty"),
    ],
)
def test_a_knob_follows_the_mode(monkeypatch, name, value):
    monkeypatch.setenv("METALLAB_MODE", name)
    assert mode.by_mode(full=1, fast=2) == value


@pytest.mark.parametrize("name", ["Fast", "quick", "full "])
def test_an_unknown_mode_is_refused(monkeypatch, name):
    monkeypatch.setenv("METALLAB_MODE", name)
    with pytest.raises(ValueError, match=r"METALLAB_MODE is '.*'full' or 'fast'"):
        mode.by_mode(full=1, fast=2)


TIMES = {
    0: "0 ns", 1e-12: "0.001 ns", 4.2e-9: "4.2 ns", 0.00123: "1.23 ms", 12.34e-6: "12.3 µs", 0.99949: "999 ms",
    0.9996: "1 s", 59.96: "60 s", 1234: "1234 s", -0.002: "-2 ms", math.inf: "inf s", math.nan: "nan s",
}  # fmt: skip
SIZES = {
    0: "0 B", 1: "1 B", 1000: "1000 B", 1023: "1023 B", 1024: "1 KiB", 3 * 2**20: "3 MiB", 1023 * 2**20: "1023 MiB",
    1.5 * 2**40: "1.5 TiB", 5 * 2**50: "5120 TiB", -(2**20): "-1 MiB",
}  # fmt: skip


@pytest.mark.parametrize(("seconds", "text"), TIMES.items(), ids=TIMES.values())
def test_a_time_has_three_digits_and_a_unit(seconds, text):
    assert units.seconds(seconds) == text


@pytest.mark.parametrize(("size", "text"), SIZES.items(), ids=SIZES.values())
def test_a_size_has_a_unit_of_1024(size, text):
    assert units.size(size) == text


@pytest.mark.parametrize(
    ("rate", "unit", "text"),
    [(4.1e12, "B/s", "4.1 TB/s"), (1.979e15, "FLOP/s", "1979 TFLOP/s"), (0, "B/s", "0 B/s")],
    ids=["bytes", "operations", "none"],
)
def test_a_rate_has_a_unit_of_1000(rate, unit, text):
    assert units.rate(rate, unit) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 copies"), (1, "1 copy"), (2, "2 copies"), (32896, "32,896 copies")]
)
def test_a_count_has_its_noun_and_commas(number, text):
    assert units.count(number, "copy", "copies") == text


def test_a_long_text_is_broken_between_words_and_goes_on_indented():
    long = "float16 takes 26.4 times as long as float32 (95 % interval 25.2 to 27.3, 20 pairs)"
    first, second, third = units.lines("short", Exception(long)).splitlines()

    assert first == "short"
    assert len(second) <= 79 < len(long)
    assert third.startswith("  ")
    assert f"{second} {third.strip()}" == long


def test_lines_of_a_text_stay_lines():
    broken = units.lines("its own:\n  the second\nthird", width=10)
    assert broken == "its own:\n  the\n    second\nthird"


def test_a_path_is_not_broken_so_that_it_can_be_pasted():
    path = "/".join(["folder"] * 20)
    assert units.lines(f"at {path}") == f"at\n  {path}"


def test_a_word_with_a_hyphen_is_not_broken():
    assert units.lines("the mixed-precision", width=12) == "the\n  mixed-precision"


def test_a_number_can_be_read_back():
    scale = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1}

    @settings(
        deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.integers(1000, 9999), st.integers(-13, 2))
    def reads_back(digits, exponent):
        value = digits * 10.0**exponent
        number, unit = units.seconds(value).split()
        assert "e" not in number
        assert float(number) * scale[unit] == pytest.approx(value, rel=0.00501)

    reads_back()


class DtypeOfTensorFlow:
    """As tf.float32, which prints as <dtype: 'float32'>."""

    name = "float32"


@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param("float32", id="a name"),
        pytest.param("torch.float32", id="PyTorch's name"),
        pytest.param(np.float32, id="NumPy's type"),
        pytest.param(np.dtype("float32"), id="NumPy"),
        pytest.param(DtypeOfTensorFlow(), id="TensorFlow"),
    ],
)
def test_float32_has_one_name_however_it_is_written(dtype):
    assert units.dtype_name(dtype) == "float32"


@pytest.mark.parametrize("module", ["torch", "jax.numpy"])
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_a_dtype_has_one_name_in_every_framework(module, name):
    dtype = getattr(importlib.import_module(module), name)
    assert units.dtype_name(dtype) == name


@pytest.mark.parametrize(
    ("error", "line", "with_kind"),
    [
        pytest.param(ValueError("\na\nb"), "a", "ValueError: a", id="several lines"),
        pytest.param(KeyError(), "KeyError", "KeyError", id="no text"),
        pytest.param(OSError(" "), "OSError", "OSError", id="a space"),
    ],
)
def test_an_exception_is_told_in_a_line(error, line, with_kind):
    assert units.first_line(error) == line
    assert units.first_line(error, kind=True) == with_kind
