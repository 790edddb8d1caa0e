"""Film, race and stages of a detector are of the same work; what is slow or wrong is not raced, and says so."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from metallab import device, timing
from metallab.allowance import Allowance
from metallab.detection import pipelines, scenes, video, yolo
from metallab.fake_device import FakeDevice


@pytest.fixture(scope="module")
def frames():
    return [scenes.still(number, (180, 320)).image for number in (7, 8)]


@pytest.fixture(scope="module")
def plain():
    network = yolo.open_model("")
    return pipelines.Pipeline(device.cpu(), network, network.names, height=192, width=320)


@pytest.fixture
def once(monkeypatch):
    """One sample of each way, and no wait for a quiet machine."""
    budget = timing.Budget(min_samples=1, max_samples=1, min_seconds=0.0)
    monkeypatch.setenv("METALLAB_MODE", "fast")
    monkeypatch.setattr(pipelines.timing, "FAST", budget)


def test_a_frame_s_stages_make_what_the_whole_way_makes(plain, frames):
    value = ()
    for stage in plain.stages(frames[0]).values():
        value = (stage(*value),)
    picture, boxes = plain(frames[0])
    assert torch.equal(value[0][0], boxes)
    assert len(boxes)
    assert picture.shape == frames[0].shape
    assert not np.array_equal(picture, frames[0]), "boxes are drawn"


def test_what_is_wrong_or_hopeless_is_not_raced(plain, frames, once, monkeypatch):
    """Ways that see the picture mirrored, and that take too long by a clock that they move."""
    now = [0.0]
    monkeypatch.setattr(pipelines, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def taking(seconds, network=plain.network):
        def compute(x):
            now[0] += seconds
            return network(x)

        return dataclasses.replace(plain, network=compute)

    mirrored = dataclasses.replace(plain, network=lambda x: plain.network(x.flip(-1)))
    ways = {"plain": taking(0.1), "mirrored": mirrored, "slow": taking(0.41), "quick": taking(0.05)}
    race = pipelines.race(ways, frames)
    assert list(race.ways) == list(race.stages) == ["plain", "quick"]
    assert race.boxes["mirrored"].startswith("DIFFERENT, not raced: frame 0: a box")
    assert race.boxes["slow"].endswith("; not raced: 4.10 times the time")
    assert "not raced" not in race.boxes["quick"]
    assert list(race.stages["quick"]) == ["prepare", "transfer", "infer", "select", "draw", "total"]
    with pytest.raises(video.SourceError, match="finds nothing in 1 frames"):
        pipelines.race(ways, [np.zeros((180, 320, 3), np.uint8)])


def test_networks_are_compared_by_their_boxes(plain, frames, once):
    wrong = dataclasses.replace(plain, network=lambda x: plain.network(x.flip(-1)))
    pictures = yolo.prepare(frames, 192, 320)
    ways = {"plain": plain, "same": dataclasses.replace(plain), "wrong": wrong}
    compared = pipelines.compare_networks(ways, pictures, "batch of 2", Allowance(1e6))
    assert (compared.name, list(compared.refused)) == ("batch of 2", ["wrong"])


def test_the_right_pane_is_the_device_or_another_engine(plain):
    cpu = pipelines.two_panes(plain.network, device.cpu())
    assert list(cpu) == [pipelines.PLAIN, "CPU, ONNX Runtime"]
    assert not cpu["CPU, ONNX Runtime"].any_size
    meta = SimpleNamespace(kind="mps", torch_device=torch.device("meta"))
    assert list(pipelines.two_panes(plain.network, meta)) == [pipelines.PLAIN, "mps, float32"]
    assert list(pipelines.rivals(plain.network, meta)) == [pipelines.PLAIN, "mps, float32", "mps, float16"]


def test_stages_of_a_race_are_those_of_its_samples():
    """What a compared pass took is what its stages took; calls that are no samples (the first is slow) are left out."""
    calls = []

    def compute(_: object) -> str:
        calls.append(device.launch(0.003 if calls else 0.1))
        return "done"

    with FakeDevice() as device:
        stages = {"load": lambda: device.launch(0.001), "compute": compute}
        ways = {name: pipelines.Stages(stages, on=device) for name in "ab"}
        same = lambda reference, result: reference == result == "done"
        budget = timing.Budget(min_samples=4, max_samples=4)
        compared = timing.compare(ways, on=device, baseline="a", parity=same, budget=budget)
    assert not compared.refused, "a call returns what the last stage does"
    for name, way in ways.items():
        split = way.split(compared[name])
        assert list(split) == ["load", "compute", "total"]
        assert min(split["load"].samples) >= 0.001
        assert min(split["compute"].samples) >= 0.003
        for load, compute_seconds, total in zip(*(part.samples for part in split.values()), strict=True):
            assert load + compute_seconds <= total
