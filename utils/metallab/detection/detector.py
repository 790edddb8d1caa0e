"""The detector of notebooks 08 and 08b: ultralytics' YOLOv5n with weights of our own, for the things in `scenes`.

Importing this module sets ultralytics up so that it stays offline, installs nothing, sends nothing and writes its
settings under ``build/`` instead of the user's home. It reads that from the environment when it is imported, so import
this module before ultralytics. Variables that are set already stay as they are.

ultralytics is AGPL-3.0; `data/README.md` says what that means for these weights.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torchvision  # noqa: F401  # ultralytics takes torchvision's NMS only where it finds it imported
from safetensors import SafetensorError, safe_open
from torch import Tensor

from metallab import paths
from metallab.detection.boxes import CONFIDENCE, SUPPRESSION
from metallab.detection.scenes import CLASSES

OFFLINE = {
    "YOLO_OFFLINE": "1",
    "YOLO_AUTOINSTALL": "false",
    "YOLO_CONFIG_DIR": str(paths.BUILD / "ultralytics"),
    "YOLO_VERBOSE": "false",
    "ULTRALYTICS_SAFE_LOAD": "1",  # a .pt file may hold weights and known classes, and no code to run
}
"""What ultralytics is told, unless the environment says something else."""


@contextmanager
def _threads_kept():
    """Importing ultralytics sets OMP_NUM_THREADS to 1: processes started later would compute on one core."""
    before = os.environ.get("OMP_NUM_THREADS")
    yield
    if before is None:
        os.environ.pop("OMP_NUM_THREADS", None)


for _name, _value in OFFLINE.items():
    os.environ.setdefault(_name, _value)
with _threads_kept():
    from ultralytics import settings
    from ultralytics.nn.tasks import DetectionModel
    from ultralytics.utils.nms import non_max_suppression
if settings["sync"] and os.environ["YOLO_CONFIG_DIR"] == OFFLINE["YOLO_CONFIG_DIR"]:
    settings.update({"sync": False})  # ultralytics' word for sending usage data; a user's own settings stay as they are

WEIGHTS = paths.ROOT / "data" / "weights" / "scenes_yolov5n.safetensors"
"""The weights that come with the project."""

SHA256 = "93adf8d78863dba2c077f9e3589de4ca7e8a057feb9303a6c364d15061fc6bd2"
"""Their checksum, as in data/README.md."""

ARCHITECTURE = "yolov5n.yaml"
STRIDE = 32
"""Heights and widths of pictures are multiples of this."""

_REMEDY = "fetch it again with `git checkout -- data/weights`, or train it: `python data/weights/train_detector.py`"


class BadWeights(ValueError):
    """A file of weights that is missing, damaged, or made for something else."""


def build() -> DetectionModel:
    """An untrained YOLOv5n for the classes of `scenes`, on the CPU, in float32; from torch's random numbers."""
    model = DetectionModel(ARCHITECTURE, nc=len(CLASSES), verbose=False)
    model.names = dict(enumerate(CLASSES))
    model.args = SimpleNamespace(box=7.5, cls=0.5, dfl=1.5)  # weights of the loss: ultralytics' defaults
    return model


def load(path: str | Path = WEIGHTS, sha256: str | None = SHA256) -> DetectionModel:
    """The trained detector, on the CPU, in float32 and evaluation mode.

    For a file of your own, which ``data/weights/train_detector.py`` writes, pass ``path`` and ``sha256`` (or None, to
    leave that check out).
    `BadWeights` if the file is missing, damaged, or made for other classes or another network.
    """
    path = Path(path)
    if not path.is_file():
        raise BadWeights(f"there are no weights at {path}: {_REMEDY}")
    if sha256 is not None and (actual := checksum(path)) != sha256:
        raise BadWeights(f"{path} has sha256 {actual} instead of {sha256}, so it is damaged or another file: {_REMEDY}")
    try:
        with safe_open(path, framework="pt") as file:
            classes = json.loads((file.metadata() or {}).get("classes", "null"))
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping: it has keys only
    except (SafetensorError, ValueError, OSError) as error:
        raise BadWeights(f"{path} cannot be read as safetensors ({error}): {_REMEDY}") from error
    if classes != list(CLASSES):
        raise BadWeights(f"{path} is for the classes {classes}, but the scenes have {list(CLASSES)}: {_REMEDY}")
    with torch.random.fork_rng(devices=[]):  # what build() draws is overwritten
        model = build()
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        lines = str(error).splitlines()
        raise BadWeights(
            f"{path} does not fit {ARCHITECTURE} of this ultralytics ({' '.join(lines[:2])}): {_REMEDY}"
        ) from error
    return model.eval()


def checksum(path: str | Path) -> str:
    """The sha256 of a file, in hexadecimal digits."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def to_input(images: Sequence[np.ndarray]) -> Tensor:
    """Pictures of one size, uint8 (height, width, 3) in RGB, as the network wants them: float32 (n, 3, h, w), 0 to 1.

    ValueError if a side is no multiple of `STRIDE`, or the sizes differ.
    """
    if len({image.shape for image in images}) != 1:
        raise ValueError(f"a batch has one size, not {len({image.shape for image in images})}: make one per size")
    height, width = images[0].shape[:2]
    if height % STRIDE or width % STRIDE:
        raise ValueError(f"{width} x {height} pixels: sides must be multiples of {STRIDE}; resize or pad the picture")
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255


def detections(outputs: Tensor | tuple, confidence: float = CONFIDENCE, overlap: float = SUPPRESSION) -> list[Tensor]:
    """What the network's outputs say is in each picture: float32 (n, 6), best first, on the outputs' device.

    Columns are left, top, right, bottom (pixels), score and class. Of boxes of one class that overlap by more than
    ``overlap`` (intersection over union) only the best is kept. This is ultralytics' non-maximum suppression, without
    its time limit, after which it would drop pictures.
    """
    outputs = outputs[0] if isinstance(outputs, tuple) else outputs
    return non_max_suppression(outputs.float(), confidence, overlap, max_time_img=float("inf"))
