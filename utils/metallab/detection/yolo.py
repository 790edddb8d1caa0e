"""Detectors of the YOLO family as ultralytics runs them: the reader's own weights, and the way of a frame.

ultralytics reads its settings when it is imported; `metallab.detection.detector` keeps it offline, so that one
comes first here.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from metallab import paths, units
from metallab.detection import detector

_DEFAULT = "unset YOLO_WEIGHTS for the detector that comes with this project"


COLOURS = ((0, 114, 178), (230, 159, 0), (0, 158, 115), (213, 94, 0), (204, 121, 167), (86, 180, 233))
"""Of the classes, in RGB; those of Okabe and Ito, as in `metallab.plots`."""


def open_model(weights: str | None = None):
    """The detector of the file that ``YOLO_WEIGHTS`` names (or ``weights``, if given), else the shipped one.

    A `torch.nn.Module` on the CPU, in float32 and evaluation mode, whose ``names`` maps class ids to names. A ``.pt``
    file is a pickle; ultralytics is told to take nothing from it but weights and classes that it knows. One that is not
    there is fetched, into ``build/weights``, only if its name is ultralytics' and ``YOLO_OFFLINE=0`` allows it.
    `detector.BadWeights` says what is wrong, and offers the default.
    """
    text = os.environ.get("YOLO_WEIGHTS", "") if weights is None else weights
    if not text:
        return detector.load()
    import ultralytics

    path = Path(os.path.expanduser(text))  # Path.expanduser raises for a user that is not there
    if path.suffix != ".pt":
        raise detector.BadWeights(f"YOLO_WEIGHTS is {text!r}, which is no .pt file; {_DEFAULT}")
    if not path.is_file() and path.name == text:
        path = paths.BUILD / "weights" / text
    if not path.is_file() and os.environ["YOLO_OFFLINE"].lower() not in ("0", "false"):
        raise detector.BadWeights(
            f"YOLO_WEIGHTS is {text!r}, and there is no such file here: give its whole path, from / on. If it is one "
            f"of ultralytics', set YOLO_OFFLINE=0 as well, and it is fetched; or {_DEFAULT}"
        )
    try:
        model = ultralytics.YOLO(path)
    except Exception as error:  # unpickling and fetching raise whatever they meet
        reason = units.first_line(error)[:160]
        raise detector.BadWeights(
            f"{path} cannot be used: {reason}; delete it if it is damaged, or {_DEFAULT}"
        ) from error
    if type(model.model) is not ultralytics.nn.tasks.DetectionModel:  # those for poses and masks descend from it
        raise detector.BadWeights(f"{path.name} holds a {type(model.model).__name__}, no detector of boxes; {_DEFAULT}")
    return model.model.float().eval()


def to_file(model) -> Path:
    """A detector as a ``.pt`` file in ``build/weights``, in half precision, which ``ultralytics.YOLO(file)`` opens."""
    import torch

    kept = copy.deepcopy(model).half()
    kept.args = {}  # as in a checkpoint of ultralytics
    path = paths.BUILD / "weights" / "detector_of_page_08.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    torch.save({"model": kept}, part)
    part.replace(path)
    return path


def prepare(frames: Sequence[np.ndarray], height: int, width: int) -> np.ndarray:
    """Frames, uint8 (h, w, 3), as a batch: each scaled and padded with grey, together (n, height, width, 3)."""
    from ultralytics.data.augment import LetterBox

    letterbox = LetterBox((height, width))
    return np.stack([letterbox(image=frame) for frame in frames])


def to_frame(boxes: Tensor, frame: np.ndarray, height: int, width: int) -> Tensor:
    """Boxes (n, 6) found in a prepared picture, in the frame's own pixels; a copy."""
    from ultralytics.utils.ops import scale_boxes

    moved = boxes.clone()
    moved[:, :4] = scale_boxes((height, width), moved[:, :4], frame.shape[:2])
    return moved


def draw(frame: np.ndarray, boxes: Tensor, names: Mapping[int, str]) -> np.ndarray:
    """A copy of a frame, uint8 (height, width, 3) in RGB, with its boxes (n, 6), their names and scores."""
    from ultralytics.utils.plotting import Annotator

    annotator = Annotator(np.ascontiguousarray(frame.copy()), line_width=2)
    for *corners, score, kind in boxes.tolist():
        colour = COLOURS[int(kind) % len(COLOURS)]
        letters = (0, 0, 0) if sum(colour) > 380 else (255, 255, 255)  # on light colours black ones
        annotator.box_label(corners, f"{names.get(int(kind), int(kind))} {score:.2f}", colour, letters)
    return annotator.result()
