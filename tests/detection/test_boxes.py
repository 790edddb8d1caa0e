"""The same boxes are the same, others are not; what is drawn is where it should be."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from metallab.checks import Mismatch
from metallab.detection import boxes

FRAME = np.array(
    [[10, 10, 110, 60, 0.95, 0], [200, 100, 300, 300, 0.80, 1], [205, 100, 305, 300, 0.60, 2], [0, 0, 40, 40, 0.26, 0]]
)


def changed(row, **columns):
    """FRAME with some numbers of one row replaced."""
    copy, names = FRAME.copy(), ("left", "top", "right", "bottom", "score", "kind")
    for name, value in columns.items():
        copy[row, names.index(name)] = value
    return copy


def test_boxes_that_differ_are_told_apart():
    same = boxes.matches("float32")
    for got, message in (
        (changed(1, kind=3), "score 0.800 is missing"),
        (changed(1, left=204), "the nearest overlaps it by 0.96"),
        (changed(0, score=0.90), "score is 0.900 instead of 0.950"),
        (changed(0, score=0.99), "score is 0.990 instead of 0.950"),
        (FRAME[1:], "score 0.950 is missing"),
        (np.concatenate([FRAME, changed(0, left=400, right=500)[:1]]), "score 0.950 is there that should not be"),
    ):
        with pytest.raises(Mismatch, match=f"frame 1: .*{message}"):
            same([FRAME, FRAME], [FRAME, got])
    apart = np.array([[0, 0, 100, 100, 0.9, 0], [40, 0, 140, 100, 0.7, 0], [24, 0, 124, 100, 0.6, 1]])
    for missing in (0, 1, 2):  # no better one of their class is near
        with pytest.raises(Mismatch, match="is missing"):
            same([apart], [np.delete(apart, missing, axis=0)])
    twice = np.concatenate([FRAME, changed(0, left=90, right=190)[:1]])
    with pytest.raises(Mismatch, match=r"score 0\.950 is missing"):
        same([twice], [FRAME])
    with pytest.raises(Mismatch, match="1 frames instead of 2"):
        same([FRAME, FRAME], [FRAME])
    with pytest.raises(Mismatch, match="no box in any frame"):
        same([FRAME[:0]], [FRAME[:0]])


def test_boxes_that_agree_within_their_dtype_do():
    shuffled = torch.tensor(FRAME[[3, 1, 0, 2]], dtype=torch.bfloat16, requires_grad=True)
    boxes.matches("bfloat16")([FRAME, FRAME[:0]], [shuffled, FRAME[:0]])
    boxes.matches("float16")([FRAME], [FRAME[:3]])  # what was at the threshold may be gone
    boxes.matches("float16")([FRAME[:3]], [FRAME])
    boxes.matches(torch.bfloat16)([FRAME], [changed(1, left=208)])
    with pytest.raises(Mismatch):
        boxes.matches("float16")([FRAME], [changed(1, left=208)])
    crowd = np.array([[0, 0, 100, 100, 0.9, 0], [24, 0, 124, 100, 0.7, 0]])  # they overlap by 0.61
    boxes.matches("float16")([crowd], [crowd[:1]])
    boxes.matches("float16")([crowd[:1]], [crowd])
    assert str(boxes.matches("float16")) == (
        "boxes compared at float16 tolerance (overlap at least 0.95, scores within 0.02)"
    )
    with pytest.raises(ValueError, match="no tolerance of boxes for 'int8', only for float32"):
        boxes.matches("int8")


def test_a_score_that_is_no_number_differs():
    unknown = changed(0, score=np.nan)
    for pair in (([FRAME], [unknown]), ([unknown], [FRAME]), ([unknown], [unknown])):
        with pytest.raises(Mismatch, match="score is"):
            boxes.matches("float32")(*pair)


def test_what_has_not_six_columns_holds_no_boxes():
    with pytest.raises(ValueError, match=r"shape \(n, 6\), not \(6, 4\)"):
        boxes.matches("float32")([FRAME], [FRAME.reshape(6, 4)])
