"""How much work a run does, and numbers and dtypes as a reader wants them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metallab import mode, units


def test_a_knob_follows_the_mode(monkeypatch):
    monkeypatch.delenv("METALLAB_MODE", raising=False)
    assert (mode.current(), mode.by_mode(full=1, fast=2)) == ("full", 1)
    for name, value in (("full", 1), ("fast", 2), ("", 1)):
        monkeypatch.setenv("METALLAB_MODE", name)
        assert mode.by_mode(full=1, fast=2) == value


def test_an_unknown_mode_is_refused(monkeypatch):
    for name in ("Fast", "quick", "full "):
        monkeypatch.setenv("METALLAB_MODE", name)
        with pytest.raises(ValueError, match=r"METALLAB_MODE is '.*'full' or 'fast'"):
            mode.by_mode(full=1, fast=2)


def test_numbers_have_three_digits_and_a_unit():
    words = {
        0: "0 ns", 1e-12: "0.001 ns", 4.2e-9: "4.2 ns", 0.00123: "1.23 ms", 12.34e-6: "12.3 µs", 0.99949: "999 ms",
        0.9996: "1 s", 59.96: "60 s", 1234: "1234 s", -0.002: "-2 ms", math.inf: "inf s", math.nan: "nan s",
    }  # fmt: skip
    assert {value: units.seconds(value) for value in words} == words
    words = {
        0: "0 B", 1: "1 B", 1000: "1000 B", 1023: "1023 B", 1024: "1 KiB", 3 * 2**20: "3 MiB", 1023 * 2**20: "1023 MiB",
        1.5 * 2**40: "1.5 TiB", 5 * 2**50: "5120 TiB", -(2**20): "-1 MiB",
    }  # fmt: skip
    assert {value: units.size(value) for value in words} == words
    assert units.rate(4.1e12, "B/s") == "4.1 TB/s"
    assert units.rate(1.979e15, "FLOP/s") == "1979 TFLOP/s"
    assert units.rate(0, "B/s") == "0 B/s"


def test_long_texts_are_broken_between_words():
    long = "float16 takes 26.4 times as long as float32 (95 % interval 25.2 to 27.3, 20 pairs)"
    first, second, third = units.lines("short", Exception(long)).splitlines()
    assert (first, f"{second} {third.strip()}") == ("short", long)
    assert len(second) <= 79 < len(long)
    assert third.startswith("  ")
    assert (
        units.lines("its own:\n  the second\nthird", width=10)
        == "its own:\n  the\n    second\nthird"
    )
    path = "/".join(["folder"] * 20)
    assert units.lines(f"at {path}") == f"at\n  {path}", "a path can be pasted"
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


def test_dtypes_of_every_framework_have_one_name():
    import jax.numpy as jnp
    import torch

    class TensorFlows:  # tf.float32 prints as <dtype: 'float32'>
        name = "float32"

    same = (
        "float32",
        "torch.float32",
        torch.float32,
        np.float32,
        np.dtype("float32"),
        jnp.float32,
        TensorFlows(),
    )
    assert [units.dtype_name(dtype) for dtype in same] == ["float32"] * len(same)
    assert units.dtype_name(torch.bfloat16) == units.dtype_name(jnp.bfloat16) == "bfloat16"


def test_an_exception_is_told_in_a_line():
    errors = ValueError("\na\nb"), KeyError(), OSError(" ")
    lines = [(units.first_line(error), units.first_line(error, kind=True)) for error in errors]
    assert lines == [("a", "ValueError: a"), ("KeyError", "KeyError"), ("OSError", "OSError")]
