"""The exercises of page 31."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metallab.exercises.judging import exercise, expect, is_near


@exercise(
    "31.1",
    hint="the two numbers of a group are shared by its weights",
)
def judge_bits_a_weight(bits_a_weight: Callable[..., Any]) -> bool:
    """Ask for groups of several sizes."""
    groups = {16: 6, 32: 5, 48: 4 + 2 / 3, 64: 4.5, 128: 4.25, 256: 4.125}

    for group, wanted in groups.items():
        got = bits_a_weight(group)
        near = is_near(got, wanted, relative=0, absolute=1e-6)
        expect(f"bits_a_weight({group})", got, wanted, holds=near)
    return True


@exercise(
    "31.2",
    hint="begin with 128, and double while it is too small",
)
def judge_padded(padded: Callable[..., Any]) -> bool:
    """Ask for lengths at and beside the powers of two."""
    sizes = {1: 128, 127: 128, 128: 128, 129: 256, 256: 256, 300: 512, 512: 512}
    sizes |= {513: 1024, 1000: 1024, 5000: 8192, 70000: 2**17}
    sizes |= {2**20 + 1: 2**21}

    for length, wanted in sizes.items():
        got = padded(length)
        is_whole = str(got) == str(wanted)  # 128.0 is no whole number
        expect(f"padded({length})", got, wanted, holds=is_whole)
    return True
