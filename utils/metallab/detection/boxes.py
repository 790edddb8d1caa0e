"""Boxes that a detector found: whether two runs found the same ones.

A frame's boxes are an array (n, 6): left, top, right, bottom in pixels, score from 0 to 1, class id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metallab import units
from metallab.checks import Mismatch

CONFIDENCE = 0.25
"""The score from which a box counts, unless another is given."""

SUPPRESSION = 0.6
"""The overlap from which only the better of two boxes of one class is kept, unless another is given."""


@dataclass(frozen=True)
class BoxTolerance:
    """How far the boxes of one object may lie apart in two runs."""

    overlap: float
    """Least intersection over union."""
    score: float
    """Largest difference of scores."""


TOLERANCES = {
    # YOLOv5n on 24 generated scenes, against float32 on the same CPU: in float32 with another memory layout and with
    # fused batch norms all overlaps were above 0.99999; in float16 0.97 and scores within 0.005; in bfloat16 0.92 and
    # 0.02. Beyond 512 pixels float16 counts in steps of half a pixel: a box of 20 pixels may then miss 0.95.
    "float32": BoxTolerance(overlap=0.99, score=0.005),
    "float16": BoxTolerance(overlap=0.95, score=0.02),
    "bfloat16": BoxTolerance(overlap=0.85, score=0.05),
}
"""By the dtype of the computation: 24, 11 and 8 bits of mantissa."""


def matches(dtype: Any, confidence: float = CONFIDENCE, suppression: float = SUPPRESSION) -> SameBoxes:
    """A parity check for `metallab.timing.compare`: both found the same boxes, within the tolerance of ``dtype``.

    ``confidence`` is the score from which boxes were kept, ``suppression`` the overlap from which only the better of
    two boxes of one class was. A box so near to one of these edges that rounding decides may be missing. ValueError
    for a dtype that has no tolerance.
    """
    name = units.dtype_name(dtype)
    if name not in TOLERANCES:
        raise ValueError(f"there is no tolerance of boxes for {name!r}, only for {', '.join(TOLERANCES)}")
    return SameBoxes(name, confidence, suppression)


@dataclass(frozen=True)
class SameBoxes:
    """``same(reference, result)`` raises `metallab.checks.Mismatch` unless two lists of frames hold the same boxes."""

    dtype: str
    confidence: float
    suppression: float

    def __call__(self, reference: Sequence[Any], result: Sequence[Any]) -> None:
        if len(reference) != len(result):
            raise Mismatch(f"{len(result)} frames instead of {len(reference)}")
        if not any(len(frame) for frame in reference):
            raise Mismatch("the reference found no box in any frame, so nothing is compared")
        for number, (expected, got) in enumerate(zip(reference, result, strict=True)):
            if differences := self.differences(_array(expected), _array(got)):
                raise Mismatch(f"frame {number}: {'; '.join(differences[:3])}")

    def differences(self, expected: np.ndarray, got: np.ndarray) -> list[str]:
        """What differs between the boxes of one frame, in words; nothing if they agree.

        Each box, best first, takes the box of the same class in the other run that overlaps it most; none is taken
        twice.
        """
        allowed, sentences, free = TOLERANCES[self.dtype], [], list(range(len(got)))
        for number in np.argsort(-expected[:, 4], kind="stable"):
            box = expected[number]
            rivals = [i for i in free if got[i, 5] == box[5]]
            overlaps = iou(box[None, :4], got[rivals, :4])[0]
            if not rivals or overlaps.max() < allowed.overlap:
                nearest = f", the nearest overlaps it by {overlaps.max():.3f}" if rivals else ""
                if not self.may_be_missing(expected, number):
                    sentences.append(f"a box with score {box[4]:.3f} is missing{nearest}")
                continue
            best = rivals[int(overlaps.argmax())]
            free.remove(best)
            if not abs(got[best, 4] - box[4]) <= allowed.score:  # NaN differs, too
                sentences.append(f"a score is {got[best, 4]:.3f} instead of {box[4]:.3f}")
        more = [i for i in free if not self.may_be_missing(got, i)]
        return sentences + [f"a box with score {got[i, 4]:.3f} is there that should not be" for i in more]

    def may_be_missing(self, boxes: np.ndarray, number: int) -> bool:
        """Could rounding alone have taken a box away: by its score, or its overlap with a better one of its class?"""
        allowed, box = TOLERANCES[self.dtype], boxes[number]
        if box[4] < self.confidence + allowed.score:
            return True
        better = (boxes[:, 5] == box[5]) & (boxes[:, 4] >= box[4])
        better[number] = False
        overlaps = iou(box[None, :4], boxes[better, :4])
        return bool((overlaps > self.suppression - (1 - allowed.overlap)).any())

    def __str__(self) -> str:
        allowed = TOLERANCES[self.dtype]
        return (
            f"boxes compared at {self.dtype} tolerance "
            f"(overlap at least {allowed.overlap:g}, scores within {allowed.score:g})"
        )


def iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Intersection over union of each box of ``a`` (n, 4) with each of ``b`` (m, 4): (n, m), 0 where they are apart."""
    import torch
    from torchvision.ops import box_iou

    return np.nan_to_num(box_iou(torch.from_numpy(a), torch.from_numpy(b)).numpy())  # of two empty ones it is 0 / 0


def captioned(frame: np.ndarray, caption: str) -> np.ndarray:
    """A copy of a frame, uint8 (height, width, 3), with words in its lower left corner."""
    import cv2

    drawn, scale = np.ascontiguousarray(frame.copy()), 1.5 * max(0.4, frame.shape[1] / 1280)
    (width, height), below = cv2.getTextSize(caption, cv2.FONT_HERSHEY_SIMPLEX, scale, 1)
    bottom = len(drawn)
    cv2.rectangle(drawn, (0, bottom - height - below - 4), (width + 4, bottom), (0, 0, 0), -1)
    place = 2, bottom - below - 1
    return cv2.putText(drawn, caption, place, cv2.FONT_HERSHEY_SIMPLEX, scale, (255, 255, 255), 1, cv2.LINE_AA)


def _array(boxes: Any) -> np.ndarray:
    """Boxes as NumPy's float64 (n, 6), from any framework and device. ValueError for another shape."""
    if hasattr(boxes, "detach"):
        boxes = boxes.detach().float().cpu().numpy()
    array = np.asarray(boxes, dtype=np.float64)
    if array.size and array.shape[1:] != (6,):
        raise ValueError(f"a frame's boxes have shape (n, 6), not {array.shape}")
    return array.reshape(-1, 6)
