"""The detector of notebooks 60 and 61: ultralytics' YOLOv5n, trained by ``data/weights/train_detector.py``.

Importing this module sets ultralytics up so that it stays offline, installs nothing, sends nothing and writes its
settings under ``build/`` instead of the user's home. It reads that from the environment when it is imported, so import
this module before ultralytics. Variables that are set already stay as they are.

ultralytics is AGPL-3.0; `data/README.md` says what that means for these weights.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import torch
import torchvision  # noqa: F401  # ultralytics takes torchvision's NMS only where it finds it imported
from safetensors import safe_open

from metallab import paths

OFFLINE = {
    "YOLO_OFFLINE": "1",
    "YOLO_AUTOINSTALL": "false",
    "YOLO_CONFIG_DIR": str(paths.BUILD / "ultralytics"),
    "YOLO_VERBOSE": "false",
    "ULTRALYTICS_SAFE_LOAD": "1",  # a .pt file may hold weights and known classes, and no code to run
}
"""ultralytics' settings, unless the environment has others."""

_threads = os.environ.get("OMP_NUM_THREADS")
for _name, _value in OFFLINE.items():
    os.environ.setdefault(_name, _value)
if os.environ["YOLO_CONFIG_DIR"] == OFFLINE["YOLO_CONFIG_DIR"]:
    with contextlib.suppress(OSError):  # ultralytics says so, and takes another folder
        paths.make_folder(paths.BUILD / "ultralytics")
from ultralytics import settings  # noqa: E402
from ultralytics.nn.tasks import DetectionModel  # noqa: E402

if _threads is None:
    os.environ.pop(
        "OMP_NUM_THREADS", None
    )  # ultralytics sets it to 1: processes started later would use one core
if settings["sync"] and os.environ["YOLO_CONFIG_DIR"] == OFFLINE["YOLO_CONFIG_DIR"]:
    settings.update(
        {"sync": False}
    )  # ultralytics' word for sending usage data; a user's own settings stay as they are

WEIGHTS = paths.ROOT / "data" / "weights" / "scenes_yolov5n.safetensors"
"""The weights that come with the project."""

SHA256 = "93adf8d78863dba2c077f9e3589de4ca7e8a057feb9303a6c364d15061fc6bd2"
"""Their checksum, as in data/README.md."""

ARCHITECTURE = "yolov5n.yaml"

FILM = paths.ROOT / "data" / "images" / "drawn_scenes.mp4"
"""What the pages detect things in, unless a reader names a film or webcam."""


def build(classes: Sequence[str]) -> DetectionModel:
    """Return an untrained YOLOv5n for these classes, on the CPU, in float32; from torch's random numbers."""
    model = DetectionModel(ARCHITECTURE, nc=len(classes), verbose=False)
    model.names = dict(enumerate(classes))
    model.args = SimpleNamespace(
        box=7.5, cls=0.5, dfl=1.5
    )  # weights of the loss: ultralytics' defaults
    return model


def load(path: str | Path = WEIGHTS, sha256: str | None = SHA256) -> DetectionModel:
    """Return the trained detector, on the CPU, in float32 and evaluation mode.

    Parameters
    ----------
    path
        A file of weights that ``data/weights/train_detector.py`` wrote.
    sha256
        Its checksum, or None to leave that check out.

    Raises
    ------
    ValueError
        If the file has another checksum.
    OSError
        If it cannot be read.
    """
    if sha256 is not None and (actual := checksum(path)) != sha256:
        raise ValueError(
            f"{path} has sha256 {actual} instead of {sha256}: fetch it again with `git checkout -- data/weights`"
        )
    with safe_open(path, framework="pt") as file:
        classes = json.loads(file.metadata()["classes"])
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping: it has keys only
    # what build() draws is overwritten, so the caller's random numbers need not move on
    with torch.random.fork_rng(devices=[]):
        model = build(classes)
    model.load_state_dict(state)
    return model.eval()


def checksum(path: str | Path) -> str:
    """Return the sha256 of a file, in hexadecimal digits."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def to_file() -> Path:
    """Write the trained detector into ``build/weights`` as a ``.pt`` file, which ``ultralytics.YOLO(file)`` opens.

    Return the file. Another process may read or write it meanwhile: it takes its name when it is complete.
    """
    model = load().half()
    model.args = {}  # as in a checkpoint of ultralytics
    path = paths.BUILD / "weights" / "scenes_yolov5n.pt"
    paths.make_folder(path.parent)

    part = path.with_suffix(f".{os.getpid()}")  # no other process has this name
    torch.save({"model": model}, part)
    return part.replace(path)
