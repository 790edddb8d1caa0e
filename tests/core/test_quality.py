"""No loss has to be shown, a loss is found, and advice needs both time and quality."""

from __future__ import annotations

import math

import numpy as np
import pytest

from metallab import quality
from metallab.timing import Ratio


def of(*accuracies: float, name: str = "x") -> quality.Training:
    return quality.Training(name, np.zeros((len(accuracies), 1)), np.array(accuracies) / 100)


def test_no_loss_is_shown_and_a_loss_is_found():
    spread = np.array([90, 91, 92, 93, 94, 95, 96, 97, 98.0])
    base = quality.Training("float32", np.zeros((9, 1)), spread / 100)
    verdict = lambda change: quality.compare(base, of(*(spread + change))).conclusion
    assert verdict(np.zeros(9)) == "no loss"
    assert verdict(np.array([-0.9, 0.1, 0, 0.4, -0.2, 0.3, 0.1, -0.3, 0.2])) == "no loss", "though seeds differ by 8"
    assert verdict(np.full(9, -0.5)) == "no loss", "a small loss is within the margin"
    assert verdict(np.full(9, -2.0)) == "loss"
    assert verdict(np.full(9, +2.0)) == "no loss"
    assert verdict(np.array([-3, -3, 0, 0, 0, 0, 0, 0, 0.0])) == "inconclusive"
    assert verdict(np.array([-3, -3, -3, -3, -3, -3, -3, -0.5, -0.2])) == "inconclusive"
    few = quality.compare(of(*[95] * 5), of(*[95] * 5))
    assert few.conclusion == "inconclusive"
    assert "inconclusive (an interval needs 6 seeds): median difference +0.0 points, 5 seeds" in str(few)
    ignorant = quality.compare(of(*[10.0] * 9, name="float32"), of(*[10.0] * 9))
    assert ignorant.conclusion == "inconclusive"
    assert "float32 itself recognises only 10%" in str(ignorant)
    assert quality.compare(base, of(*(spread - 4)), margin=5.0).conclusion == "no loss"
    with pytest.raises(ValueError, match="x has 5 seeds, float32 9"):
        quality.compare(base, of(*[95] * 5))


def test_advice_needs_time_and_quality():
    judged = lambda change: quality.compare(of(*[95.0] * 9), of(*[95.0 + c for c in change]))
    good, bad, open_ = judged([0] * 9), judged([-5] * 9), judged([0] * 4 + [-5] * 5)
    fast, slow, unclear = (
        Ratio("a", "b", *numbers, 20) for numbers in ((2, 1.9, 2.1), (0.5, 0.4, 0.6), (1.1, 0.9, 1.4))
    )
    four = Ratio("a", "b", 0.12, 0.0, math.inf, 4, (0.11, 0.12, 0.13, 0.12))
    assert quality.advice(fast, good) == "use x: it is faster"
    assert quality.advice(fast, open_) == "use x: it is faster, but that quality holds is not shown"
    for ratio in (fast, slow, None):
        assert quality.advice(ratio, bad) == "do not use x: quality is lost"
    for ratio in (slow, four):
        assert quality.advice(ratio, good) == "x costs time: float32 is the better choice here"
    assert quality.advice(unclear, good) == "x is not shown to be faster: float32 is the better choice here"
    assert quality.advice(None, good) == "no advice on x: its time may not be compared"
