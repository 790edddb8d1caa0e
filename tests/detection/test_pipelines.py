"""Film, race and stages of a detector are of the same work; what is slow or wrong is not raced, and says so."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from metallab import device, timing
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
    told = dict(race.agreement.rows)
    assert told["mirrored"].startswith("DIFFERENT, not raced: frame 0: a box")
    assert told["slow"].endswith("; not raced: 4.10 times the time")
    assert "not raced" not in told["quick"]
    assert len(race.measurements) == 2 * 6
    assert race.limits == ["No share of the network is told: fast mode: a look whether it runs, and no conclusion"]
    assert len(race.sentences) == 2
    with pytest.raises(video.SourceError, match="finds nothing in 1 frames"):
        pipelines.race(ways, [np.zeros((180, 320, 3), np.uint8)])


def test_a_limit_is_amdahl_s_and_calculated_bars_are_called_so():
    quiet = {"question": "latency", "first_call": 1.0, "block": 1, "warmup_calls": 1, "stop_reason": "enough"}
    quiet |= {"mode": "full", "others": 0.0, **timing.described(timing.Host("Chip X"))}
    parts = {
        name: timing.Measurement(name, samples=(seconds,) * 8, **quiet)
        for name, seconds in {"prepare": 0.02, "infer": 0.08, "total": 0.1}.items()
    }
    compared = timing.compare_samples({"a": parts["total"]}, baseline="a", name="race", parity="-")
    race = pipelines.Race(None, compared, {"a": parts}, {})
    assert race.limits == [
        "a: of a frame's 100 ms 20 ms are not the network; if it took no time a frame would be done "
        "5.00 times as fast, and no faster"
    ]
    words = race.imagine("infer", 4.0)
    assert words.get_label() == "a: prepare 20 ms, infer 20 ms"
    assert words.get_suptitle().startswith("CALCULATED, with infer 4.00 times as fast")


def test_only_ways_that_take_any_size_and_are_not_slower_are_followed(plain):
    fixed = dataclasses.replace(plain, any_size=False)
    ways = {"plain": plain, "a": plain, "fixed": fixed, "b": plain, "c": plain}
    follow = lambda **speeds: list(
        pipelines.Race(
            None,
            SimpleNamespace(ratios={name: SimpleNamespace(median=m) for name, m in speeds.items()}, baseline="plain"),
            {},
            ways,
        ).follow()
    )
    assert follow() == ["plain", "a", "b"], "as given where speeds are withheld"
    assert follow(a=0.5, fixed=9.0, b=2.0, c=3.0) == ["plain", "c", "b"]
    assert follow(a=0.5, b=2.0, c=0.9) == ["plain", "b"]


def test_a_sweep_compares_boxes_at_every_size_and_says_what_is_left_out(plain, frames, once, monkeypatch):
    """With a way that is wrong at one of two sizes."""
    wrong = dataclasses.replace(plain, network=lambda x: plain.network(x.flip(-1) if x.shape[-1] == 320 else x))
    monkeypatch.setattr(timing.Others, "cores", lambda self: 0.0)
    eight = timing.Budget(min_samples=8, max_samples=8, min_seconds=0.0)
    monkeypatch.setenv("METALLAB_MODE", "full")
    with monkeypatch.context() as patched:
        patched.setattr(pipelines, "by_mode", lambda full, fast: eight)
        swept = pipelines.sweep_sizes({"plain": plain, "wrong": wrong}, frames, [256, 320], seconds=1e6)
    assert list(swept.comparisons) == [256, 320]
    lines = repr(swept).splitlines()
    assert lines[0].startswith("plain, 256 x 256 pixels to 320 x 320 pixels: 1.56 times the pixels take ")
    assert lines[1].startswith("wrong: outputs differ: frame 0")
    assert len(lines) == 2, "of the wrong way no time is told"
    assert swept.figure.get_label().count("plain: ") == 3, "the line's name, and two measurements"
    assert swept.figure.get_label().count("wrong: ") == 2, "one where its boxes differ is not drawn"
    monkeypatch.setenv("METALLAB_MODE", "fast")
    short = pipelines.sweep_batches({"plain": plain}, frames, [1, 2], seconds=1e-6)
    assert list(short.comparisons) == [1]
    assert repr(short).startswith("No times are told: fast mode: ")
    assert "frames in a batch 2 (the one before took" in repr(short)
    assert short.figure is None


def test_boxes_at_other_sizes_are_set_against_the_race_s(plain, frames):
    """With a network that sees the picture mirrored where it is square."""

    def mirrored(x):
        return plain.network(x.flip(-1) if x.shape[-1] == x.shape[-2] else x)

    compared = SimpleNamespace(baseline="plain")
    table = pipelines.boxes_by_size(pipelines.Race(None, compared, {}, {"plain": plain}), frames[0], [320])
    count = len(plain(frames[0])[1])
    assert [row[0] for row in table.rows] == ["320 x 192", "320 x 320"]
    assert table.rows[0][1] == str(count)
    boxes, missing, more = map(int, table.rows[1][1:])
    assert (missing, boxes - more) < (count, count + 1)
    wrong = dataclasses.replace(plain, network=mirrored)
    mirror = pipelines.boxes_by_size(pipelines.Race(None, compared, {}, {"plain": wrong}), frames[0], [320])
    assert int(mirror.rows[1][2]) > missing
    assert int(mirror.rows[1][3]) > more


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
