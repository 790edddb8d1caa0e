"""The detector finds what is in the scenes, its file is what it says, and ultralytics stays at home."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
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


@pytest.fixture(scope="module")
def unseen():
    """Pictures of which the shipped detector has seen none."""
    return [scenes.still(seed, 320) for seed in range(500_000, 500_024)]


def test_the_shipped_detector_finds_what_it_never_saw(unseen):
    score = train_detector.evaluate(detector.load(), unseen)
    assert score.map50 > 0.93
    assert score.map50_95 > 0.83
    assert set(score.per_class) == set(scenes.CLASSES)
    assert min(score.per_class.values()) > 0.6


def with_mixed_channels(model: nn.Module) -> nn.Module:
    """Put the channels of a detector's head into another order."""
    with torch.no_grad():
        for weight in model.model[-1].parameters():
            weight.copy_(weight.flip(0))
    return model


def test_a_broken_detector_has_a_low_score(unseen):
    broken = with_mixed_channels(detector.load())
    assert train_detector.evaluate(broken, unseen[:4]).map50 < 0.2


RECORD = json.loads(detector.WEIGHTS.with_suffix(".json").read_text(encoding="utf-8"))
README = (DATA / "README.md").read_text(encoding="utf-8")


def test_the_weights_have_the_checksum_that_code_and_record_name():
    assert detector.checksum(detector.WEIGHTS) == detector.SHA256
    assert RECORD["sha256"] == detector.SHA256


@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
def test_the_documents_name_the_checksum_of_a_file(suffix):
    path = detector.WEIGHTS.with_suffix(suffix)
    assert f"{detector.checksum(path)}  weights/{path.name}" in README


def test_the_weights_are_small_and_in_half_precision():
    assert detector.WEIGHTS.stat().st_size <= 6_000_000
    with safe_open(detector.WEIGHTS, "pt") as file:
        dtypes = {file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118
    assert dtypes == {torch.float16, torch.int64}


def test_the_record_says_where_the_detector_was_trained():
    assert RECORD["device"] == "NVIDIA H200"


def test_no_scene_was_trained_on_and_held_out():
    assert min(RECORD["training_seeds"]) >= scenes.FIRST_TRAINING_SEED
    assert max(RECORD["held_out_seeds"]) < scenes.FIRST_TRAINING_SEED


@pytest.mark.parametrize("size", RECORD["held_out"])
def test_the_documents_have_the_scores_of_the_record(size):
    score = RECORD["held_out"][size]
    assert score["map50"] >= 0.9
    assert score["map50_95"] >= 0.7
    row = f"| {size.replace('x', ' x ')} | {score['map50']:.3f} | {score['map50_95']:.3f} |"
    assert row in README


# Loading and saving.


@pytest.fixture
def changed(tmp_path):
    """A file of weights with another bit."""
    path, data = tmp_path / "changed.safetensors", bytearray(detector.WEIGHTS.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    return path


def test_changed_weights_are_refused(changed):
    with pytest.raises(ValueError, match="instead of " + detector.SHA256):
        detector.load(changed)


def test_weights_of_ones_own_are_loaded_without_a_checksum(changed):
    assert not detector.load(changed, sha256=None).training


def read_film() -> Iterator[np.ndarray]:
    film = cv2.VideoCapture(str(detector.FILM))
    while (read := film.read())[0]:
        yield read[1]


def test_ultralytics_opens_the_file_and_finds_things_in_the_film():
    model = ultralytics.YOLO(detector.to_file())
    found = [model.predict(frame, device="cpu", verbose=False)[0] for frame in read_film()]
    assert len(found) == 30
    assert min(len(each.boxes) for each in found) >= 3
    assert list(model.names.values()) == list(scenes.CLASSES)


@pytest.fixture(scope="module")
def mine():
    """A detector that knows nothing yet."""
    return detector.build(scenes.CLASSES)


@pytest.fixture(scope="module")
def saved(mine, tmp_path_factory):
    """Its file, in a folder that was not there, with its checksum."""
    path = tmp_path_factory.mktemp("detector") / "new" / "mine.safetensors"
    return path, train_detector.save(mine, path)


def test_saved_weights_come_back_in_half_precision(mine, saved):
    back = detector.load(*saved).state_dict()
    expected = {
        name: tensor.half().float() if tensor.is_floating_point() else tensor
        for name, tensor in mine.state_dict().items()
    }
    assert back.keys() == expected.keys()
    assert [name for name in back if not torch.equal(back[name], expected[name])] == []


def test_a_loaded_detector_is_ready_to_be_asked(saved):
    back = detector.load(*saved)
    assert not back.training
    assert next(back.parameters()).dtype == torch.float32
    assert back.names == {0: "ball", 1: "box", 2: "star", 3: "ring", 4: "heart", 5: "arrow"}


def test_loading_moves_no_random_numbers_of_the_caller(saved):
    state = torch.get_rng_state()
    detector.load(*saved)
    assert torch.equal(torch.get_rng_state(), state)


# The score.


class Knowing(nn.Module):
    """A network that has been told the answers: some of the boxes, moved by a share of their width."""

    def __init__(self, frames, *, shift=0.0, every=1, turn=0, score=0.9):
        super().__init__()
        self.frames, self.shift, self.every = list(frames), shift, every
        self.turn, self.score = turn, score
        self.seen = 0

    def forward(self, images):
        frames = self.frames[self.seen : self.seen + len(images)]
        sizes = [frame.image.shape[:2] for frame in frames]
        assert [tuple(image.shape[1:]) for image in images] == sizes
        self.seen += len(images)

        outputs = torch.zeros(len(images), 4 + 6, 12)
        for output, frame in zip(outputs, frames, strict=True):
            self.write(output, frame)
        return outputs, {}

    def write(self, output, frame):
        """Write the boxes of a frame, and a score for each."""
        boxes = torch.from_numpy(frame.boxes)[:: self.every]
        classes = (torch.from_numpy(frame.classes)[:: self.every] + self.turn) % 6
        size = boxes[:, 2:] - boxes[:, :2]
        centre = (boxes[:, :2] + boxes[:, 2:]) / 2 + self.shift * size * torch.tensor([1, 0])

        output[:2, : len(boxes)] = centre.T
        output[2:4, : len(boxes)] = size.T
        output[4 + classes, torch.arange(len(boxes))] = self.score


@pytest.fixture(scope="module")
def frames():
    sizes = [64, 96, 96, (64, 96)] * 10
    return [scenes.still(seed, size) for seed, size in enumerate(sizes)]


def test_every_picture_is_shown_once(frames):
    shown = []

    class Noting(Knowing):
        def forward(self, images):
            shown.append(len(images))
            return super().forward(images)

    train_detector.evaluate(Noting(frames), iter(frames), batch=3)

    assert sum(shown) == len(frames)


def test_the_score_of_a_perfect_detector_is_1_however_sure_it_is(frames):
    """ultralytics' curve gives it 0.995."""
    perfect = train_detector.evaluate(Knowing(frames, score=0.3), frames, batch=3)
    assert perfect.map50 == pytest.approx(1, abs=0.01)
    assert perfect.map50_95 == pytest.approx(1, abs=0.01)
    assert set(perfect.per_class) == set(scenes.CLASSES)


def test_boxes_beside_their_objects_count_at_low_thresholds_alone(frames):
    """Moved by a quarter of the width they share 0.75 of 1.25: the thresholds 0.5, 0.55 and perhaps 0.6 count."""
    moved = train_detector.evaluate(Knowing(frames, shift=0.25), frames)
    assert moved.map50 > 0.95
    assert 0.19 < moved.map50_95 < 0.32
    assert np.mean(list(moved.per_class.values())) == pytest.approx(moved.map50_95)


@pytest.mark.parametrize(
    ("mistake", "low", "high"),
    [
        pytest.param({"every": 2}, 0.4, 0.8, id="every other one is found"),
        pytest.param({"turn": 1}, 0.0, 0.05, id="another class"),
        pytest.param({"score": 0.0}, 0.0, 0.0, id="nothing is found"),
    ],
)
def test_the_score_is_the_share_of_what_was_found(frames, mistake, low, high):
    assert low <= train_detector.evaluate(Knowing(frames, **mistake), frames).map50 <= high


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


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A process that has built a detector, and has ended, with the folder that holds its home and all it writes to.

    It would end with 1 if it asked for the network.
    """
    place = tmp_path_factory.mktemp("alone")
    copy = place / "copy_of_detector.py"
    copy.write_text(Path(detector.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    (place / "home").mkdir()
    (place / "here").mkdir()

    set_by_tests = ("YOLO", "XDG", "OMP_NUM", "MPLCONFIG")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(set_by_tests)
    }
    environment |= {
        "HOME": str(place / "home"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    program = f"BUILD, COPY = {str(place / 'build')!r}, {str(copy)!r}\n{ALONE}"
    command = [sys.executable, "-c", program]
    ran = subprocess.run(
        command, env=environment, cwd=place / "here", capture_output=True, text=True
    )
    return ran, place


def test_ultralytics_asks_no_network_and_installs_nothing(alone):
    ran, _ = alone
    assert ran.stdout == "False False False None 1\n", ran.stderr


@pytest.mark.parametrize("folder", ["home", "here"])
def test_ultralytics_writes_nothing_where_it_is_not_at_home(alone, folder):
    _, place = alone
    assert list((place / folder).rglob("*")) == []


def test_ultralytics_keeps_its_settings_under_build(alone):
    _, place = alone
    assert (place / "build" / "ultralytics" / "Ultralytics" / "settings.json").is_file()


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


def gather(seeds, size):
    return train_detector.gather(
        train_detector.draw(Serial(), seeds, size), count=len(seeds), size=size
    )


def corners(boxes):
    """The corners of boxes that are given by centre and size."""
    centre, extent = boxes.split(2, 1)
    return torch.cat([centre - extent / 2, centre + extent / 2], 1)


@pytest.fixture(scope="module")
def batch():
    """The third and the first of three scenes, with seeds from 7 on."""
    return gather(range(7, 10), (96, 96)).batch(torch.tensor([2, 0]))


PLACES = pytest.mark.parametrize(("place", "seed"), [(0, 9), (1, 7)])


@PLACES
def test_a_batch_holds_the_pictures_of_its_scenes(batch, place, seed):
    picture = (batch["img"][place] * 255).round().numpy().transpose(1, 2, 0)
    assert np.array_equal(picture, scenes.still(seed, (96, 96)).image)


@PLACES
def test_a_batch_holds_the_boxes_of_its_scenes(batch, place, seed):
    frame = scenes.still(seed, (96, 96))
    mine = batch["batch_idx"] == place
    assert batch["cls"][mine].tolist() == frame.classes.tolist()
    assert corners(batch["bboxes"][mine]).numpy() * 96 == pytest.approx(frame.boxes)


def test_boxes_of_a_wide_scene_are_shares_of_its_width():
    wide = gather(range(7, 8), (64, 96))
    right = (wide.boxes[0, :, 0] + wide.boxes[0, :, 2] / 2).max() * 96
    assert wide.images.shape == (1, 3, 64, 96)
    assert right == pytest.approx(scenes.still(7, (64, 96)).boxes[:, 2].max())


def one_bright_box():
    """A batch of a dark picture with a bright box that is centred at (8, 4) of 40 x 20 pixels."""
    image = torch.full((1, 3, 20, 40), 0.2)
    image[:, :, 2:6, 4:12] = 0.9
    return {"img": image, "bboxes": torch.tensor([[8 / 40, 4 / 20, 8 / 40, 4 / 20]])}


def bright_centre(batch) -> list[float]:
    """Where the bright pixels of a batch's picture are centred."""
    picture = batch["img"][0, 0]
    rows, columns = torch.nonzero(picture > picture.float().mean() + 0.05, as_tuple=True)
    return [columns.float().mean().item() + 0.5, rows.float().mean().item() + 0.5]


def box_centre(batch) -> list[float]:
    return (batch["bboxes"][0, :2] * torch.tensor([40, 20])).tolist()


@pytest.fixture(scope="module")
def variations():
    """Twenty variations of one picture, as training sees it."""
    random, given = torch.Generator().manual_seed(0), one_bright_box()
    return [train_detector.vary(given, random) for _ in range(20)]


def test_boxes_turn_with_their_picture(variations):
    boxes = [box_centre(each) for each in variations]
    assert boxes == [pytest.approx(bright_centre(each), abs=1e-3) for each in variations]


def test_a_picture_is_turned_in_four_ways(variations):
    assert len({tuple(map(round, box_centre(each))) for each in variations}) == 4


def test_varying_a_picture_leaves_the_stored_boxes_as_they_are():
    given = one_bright_box()
    random = torch.Generator().manual_seed(0)
    varied = [train_detector.vary(given, random) for _ in range(20)]
    assert [box_centre(given)] * 20 != [box_centre(each) for each in varied]
    assert box_centre(given) == pytest.approx([8, 4])


def test_the_training_script_writes_weights_that_load_and_their_record(monkeypatch, tmp_path):
    """After two steps on four pictures of one size, drawn in this process."""
    monkeypatch.setattr("train_detector.SIZES", ((96, 128),))
    monkeypatch.setattr("train_detector.ProcessPoolExecutor", lambda *_: Serial())
    wish = ["--device", "cpu", "--steps", "2", "--images", "4", "--batch", "2", "--held-out", "2"]

    train_detector.main([*wish, "--out", str(tmp_path)])

    record = json.loads((tmp_path / "scenes_yolov5n.json").read_text())
    assert not detector.load(tmp_path / record["file"], record["sha256"]).training
    assert record["training_seeds"] == [1_000_000, 1_000_003]
    assert record["held_out_seeds"] == [0, 1]
    assert record["held_out"]["128x96"]["map50"] < 0.2, "two steps cannot teach it"
    assert record["settings"] == {"steps": 2, "batch": 2, "images": 4, "rate": 0.002, "seed": 0}
