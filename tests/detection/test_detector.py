"""The detector finds what is in the scenes, its file is what it says, and ultralytics stays at home."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from concurrent.futures import Executor
from pathlib import Path

import cv2
import numpy as np
import pytest
import scenes
import torch
from lazily import Lazily
from safetensors import safe_open
from torch import nn

from metallab import paths
from metallab.detection import detector

train_detector, ultralytics = Lazily("train_detector"), Lazily("ultralytics")
DATA = paths.ROOT / "data"


@pytest.fixture(autouse=True)
def one_thread():
    """Small networks, and other tests beside these: more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# The shipped weights.


def test_the_shipped_detector_finds_what_it_never_saw():
    frames = [scenes.still(seed, 320) for seed in range(500_000, 500_024)]
    score = train_detector.evaluate(detector.load(), frames)
    assert score.map50 > 0.93
    assert score.map50_95 > 0.83
    assert set(score.per_class) == set(scenes.CLASSES)
    assert min(score.per_class.values()) > 0.6
    model = detector.load()
    with torch.no_grad():
        for weight in model.model[-1].parameters():
            weight.copy_(weight.flip(0))  # the channels of the head in another order
    broken_score = train_detector.evaluate(model, frames[:4])
    assert broken_score.map50 < 0.2, "even a broken model passes"


def test_the_file_is_what_the_documents_say():
    record = json.loads(detector.WEIGHTS.with_suffix(".json").read_text(encoding="utf-8"))
    readme = (DATA / "README.md").read_text(encoding="utf-8")
    assert detector.checksum(detector.WEIGHTS) == detector.SHA256 == record["sha256"]
    name = f"weights/{detector.WEIGHTS.name}"
    assert f"{detector.SHA256}  {name}" in readme
    assert (
        f"{detector.checksum(detector.WEIGHTS.with_suffix('.json'))}  weights/{detector.WEIGHTS.stem}.json"
        in readme
    )
    assert detector.WEIGHTS.stat().st_size <= 6_000_000
    assert record["device"] == "NVIDIA H200"
    assert (
        min(record["training_seeds"]) >= scenes.FIRST_TRAINING_SEED > max(record["held_out_seeds"])
    )
    for size, score in record["held_out"].items():
        assert score["map50"] >= 0.9
        assert score["map50_95"] >= 0.7
        row = f"| {size.replace('x', ' x ')} | {score['map50']:.3f} | {score['map50_95']:.3f} |"
        assert row in readme, f"data/README.md lacks {row}"
    with safe_open(detector.WEIGHTS, "pt") as file:
        dtypes = {file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118
    assert dtypes == {torch.float16, torch.int64}


# Loading and saving.


def test_changed_weights_are_refused(tmp_path):
    path, data = tmp_path / "changed.safetensors", bytearray(detector.WEIGHTS.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="instead of " + detector.SHA256):
        detector.load(path)
    detector.load(path, sha256=None)


def test_ultralytics_opens_the_file_and_finds_things_in_the_film():
    film = cv2.VideoCapture(str(detector.FILM))
    model = ultralytics.YOLO(detector.to_file())
    counts = []
    while (read := film.read())[0]:
        counts.append(len(model.predict(read[1], device="cpu", verbose=False)[0].boxes))
    assert len(counts) == 30
    assert min(counts) >= 3
    assert list(model.names.values()) == list(scenes.CLASSES)


def test_what_was_saved_comes_back(tmp_path):
    path = tmp_path / "new" / "mine.safetensors"
    mine = detector.build(scenes.CLASSES)
    sha256 = train_detector.save(mine, path)
    state = torch.get_rng_state()
    back = detector.load(path, sha256)
    assert torch.equal(torch.get_rng_state(), state), "the caller's random numbers moved on"
    assert not back.training
    assert next(back.parameters()).dtype == torch.float32
    assert back.names == {0: "ball", 1: "box", 2: "star", 3: "ring", 4: "heart", 5: "arrow"}
    for name, tensor in mine.state_dict().items():
        expected = tensor.half().float() if tensor.is_floating_point() else tensor
        assert torch.equal(back.state_dict()[name], expected), name


# The score.


class Knowing(nn.Module):
    """A network that has been told the answers: some of the boxes, moved by a share of their width."""

    pictures = 0

    def __init__(self, frames, shift=0.0, every=1, turn=0, score=0.9):
        super().__init__()
        self.frames, self.shift, self.every, self.turn, self.score = (
            list(frames),
            shift,
            every,
            turn,
            score,
        )
        self.seen = 0

    def forward(self, images):
        frames = self.frames[self.seen : self.seen + len(images)]
        assert [tuple(image.shape[1:]) for image in images] == [
            frame.image.shape[:2] for frame in frames
        ]
        self.seen += len(images)
        Knowing.pictures += len(images)
        outputs = torch.zeros(len(images), 4 + 6, 12)
        for output, frame in zip(outputs, frames, strict=True):
            boxes = torch.from_numpy(frame.boxes)[:: self.every]
            classes = (torch.from_numpy(frame.classes)[:: self.every] + self.turn) % 6
            size = boxes[:, 2:] - boxes[:, :2]
            places = torch.arange(len(boxes))
            output[:2, : len(boxes)] = (
                (boxes[:, :2] + boxes[:, 2:]) / 2 + self.shift * size * torch.tensor([1, 0])
            ).T
            output[2:4, : len(boxes)] = size.T
            output[4 + classes, places] = self.score
        return outputs, {}


@pytest.fixture(scope="module")
def frames():
    sizes = [64, 96, 96, (64, 96)] * 10
    return [scenes.still(seed, size) for seed, size in enumerate(sizes)]


def test_the_score_is_the_share_of_what_was_found(frames):
    """ultralytics' curve gives a perfect detector 0.995."""
    Knowing.pictures = 0
    perfect = train_detector.evaluate(Knowing(frames, score=0.3), iter(frames), batch=3)
    assert Knowing.pictures == len(frames)
    assert perfect.map50 == pytest.approx(1, abs=0.01)
    assert perfect.map50_95 == pytest.approx(1, abs=0.01)
    assert set(perfect.per_class) == set(scenes.CLASSES)
    # moved by a quarter of the width: the boxes share 0.75 of 1.25, so the thresholds 0.5, 0.55 (and 0.6, or not) count
    moved = train_detector.evaluate(Knowing(frames, shift=0.25), frames)
    assert moved.map50 > 0.95
    assert 0.19 < moved.map50_95 < 0.32
    assert np.mean(list(moved.per_class.values())) == pytest.approx(moved.map50_95)
    half = train_detector.evaluate(Knowing(frames, every=2), frames)
    assert 0.4 < half.map50 < 0.8
    assert train_detector.evaluate(Knowing(frames, turn=1), frames).map50 < 0.05
    assert train_detector.evaluate(Knowing(frames, score=0.0), frames).map50 == 0


# ultralytics at home: in a process of its own, with a home, a folder and a build/ of its own.

ALONE = """
import importlib.util, os, socket, sys, threading
from pathlib import Path

def no_network(*_, **__):
    print("the network was asked", flush=True)
    os._exit(1)

socket.getaddrinfo = socket.socket.connect = socket.create_connection = no_network
from metallab import paths
paths.BUILD = Path(BUILD)
spec = importlib.util.spec_from_file_location("copy_of_detector", COPY)
sys.modules["copy_of_detector"] = detector = importlib.util.module_from_spec(spec)
spec.loader.exec_module(detector)
model = detector.build(["a", "b"])
import torch, ultralytics, ultralytics.utils
print(ultralytics.settings["sync"], ultralytics.utils.ONLINE, ultralytics.utils.AUTOINSTALL,
      os.environ.get("OMP_NUM_THREADS"), len(model.eval()(torch.zeros(1, 3, 64, 64))[0]))
"""


def test_ultralytics_stays_at_home(tmp_path):
    home, build, here, copy = (
        tmp_path / name for name in ("home", "build", "here", "copy_of_detector.py")
    )
    home.mkdir()
    here.mkdir()
    copy.write_text(Path(detector.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    set_by_tests = ("YOLO", "XDG", "OMP_NUM", "MPLCONFIG")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(set_by_tests)
    }
    environment |= {
        "HOME": str(home),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    program = f"BUILD, COPY = {str(build)!r}, {str(copy)!r}\n{ALONE}"
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=here, capture_output=True, text=True
    )
    assert ran.stdout == "False False False None 1\n", ran.stderr
    assert not list(home.rglob("*"))
    assert not list(here.rglob("*"))
    assert (build / "ultralytics" / "Ultralytics" / "settings.json").is_file()


def test_a_reader_s_own_settings_stay(monkeypatch):
    monkeypatch.setenv("YOLO_OFFLINE", "0")
    monkeypatch.setenv("YOLO_CONFIG_DIR", "/somewhere")
    monkeypatch.setattr("ultralytics.settings", own := {"sync": True})
    runpy.run_path(detector.__file__)
    assert own == {"sync": True}
    assert os.environ["YOLO_OFFLINE"] == "0"
    assert os.environ["YOLO_CONFIG_DIR"] == "/somewhere"


# Training.


class Serial(Executor):
    """A pool without processes."""

    def map(self, function, *columns, chunksize=1):
        return map(function, *columns)


def test_a_batch_holds_the_scenes_and_their_boxes():
    size, seeds = (96, 96), range(7, 10)
    data = train_detector.gather(train_detector.draw(Serial(), seeds, size), 3, size)
    batch = data.batch(torch.tensor([2, 0]))
    for place, seed in enumerate((9, 7)):
        frame = scenes.still(seed, size)
        assert np.array_equal(
            (batch["img"][place] * 255).round().numpy().transpose(1, 2, 0), frame.image
        )
        mine = batch["batch_idx"] == place
        assert batch["cls"][mine].tolist() == frame.classes.tolist()
        centre, extent = batch["bboxes"][mine].split(2, 1)
        assert torch.cat(
            [centre - extent / 2, centre + extent / 2], 1
        ).numpy() * 96 == pytest.approx(frame.boxes)
    wide = train_detector.gather(train_detector.draw(Serial(), range(7, 8), (64, 96)), 1, (64, 96))
    assert wide.images.shape == (1, 3, 64, 96)
    right = (wide.boxes[0, :, 0] + wide.boxes[0, :, 2] / 2).max() * 96
    assert right == pytest.approx(scenes.still(7, (64, 96)).boxes[:, 2].max())


def test_boxes_turn_with_their_picture():
    image = torch.full((1, 3, 20, 40), 0.2)
    image[:, :, 2:6, 4:12] = 0.9
    batch = {"img": image, "bboxes": torch.tensor([[8 / 40, 4 / 20, 8 / 40, 4 / 20]])}
    random, places = torch.Generator().manual_seed(0), set()
    for _ in range(20):
        got = train_detector.vary(batch, random)
        rows, columns = torch.nonzero(
            got["img"][0, 0] > got["img"][0, 0].float().mean() + 0.05, as_tuple=True
        )
        x, y = got["bboxes"][0, 0] * 40, got["bboxes"][0, 1] * 20
        assert (columns.float().mean() + 0.5).item() == pytest.approx(x.item(), abs=1e-3)
        assert (rows.float().mean() + 0.5).item() == pytest.approx(y.item(), abs=1e-3)
        places.add((round(x.item()), round(y.item())))
    assert len(places) == 4
    assert batch["bboxes"][0, 0] == 8 / 40, "the stored boxes were changed"


def test_the_training_script_writes_weights_that_load(monkeypatch, tmp_path):
    monkeypatch.setattr("train_detector.SIZES", ((96, 128),))
    monkeypatch.setattr("train_detector.ProcessPoolExecutor", lambda *_: Serial())
    wish = ["--device", "cpu", "--steps", "2", "--images", "4", "--batch", "2", "--held-out", "2"]
    train_detector.main([*wish, "--out", str(tmp_path)])
    record = json.loads((tmp_path / "scenes_yolov5n.json").read_text())
    detector.load(tmp_path / record["file"], record["sha256"])
    assert record["training_seeds"] == [1_000_000, 1_000_003]
    assert record["held_out_seeds"] == [0, 1]
    assert record["held_out"]["128x96"]["map50"] < 0.2, "two steps cannot teach it"
    assert record["settings"] == {"steps": 2, "batch": 2, "images": 4, "rate": 0.002, "seed": 0}
