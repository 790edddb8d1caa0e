"""The live view shows frames with their rates, stops when asked, closes its camera, and loses no error."""

from __future__ import annotations

import base64
import dataclasses
import io
import itertools
import time
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from metallab.detection import live, video
from metallab.timing import Host

FRAME = np.full((96, 160, 3), 100, np.uint8)


@dataclasses.dataclass
class Pane:
    make: Callable
    on: Host = dataclasses.field(default_factory=Host)

    def __call__(self, frame):
        return self.make(frame), []


@pytest.fixture(autouse=True)
def with_a_person(monkeypatch):
    monkeypatch.delenv("METALLAB_OUT", raising=False)


def view(frames, close=lambda: None, is_live=False, taken=(), most=100, **makes):
    panes = {name: Pane(make) for name, make in makes.items()}
    return live.Live(panes, video.Source("x", iter(frames), is_live, close), taken, most)


def test_every_pane_shows_its_picture_of_the_last_frame():
    closed = []
    shown = view([FRAME, FRAME + 100], lambda: closed.append(1), same=lambda f: f, darker=lambda f: f // 2)
    assert shown.start() is shown.widget
    assert shown.report(300) == "The live view showed 2 frames."
    pictures = [np.asarray(Image.open(io.BytesIO(picture.value))) for picture in shown.pictures.values()]
    assert [picture.shape for picture in pictures] == [(384, 640, 3)] * 2
    assert [picture[:300].mean() for picture in pictures] == pytest.approx([200, 100], abs=2)
    assert shown.button.disabled
    assert closed == [1]


def test_every_pane_tells_its_own_rate(monkeypatch):
    """By a clock that the panes move: 0.1 s for each picture of the one, 0.01 s of the other."""
    captions, now = [], [5.0]

    def taking(seconds):
        def make(frame):
            now[0] += seconds
            return frame

        return make

    monkeypatch.setattr(live.boxes, "captioned", lambda picture, words: captions.append(words) or picture)
    monkeypatch.setattr(live, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setenv("METALLAB_MODE", "full")
    busy = SimpleNamespace(BUSY=0.25, Others=lambda: SimpleNamespace(cores=lambda: 0.0))
    monkeypatch.setattr(live, "timing", busy)

    def shown(slow, **about):
        captions.clear()
        shown = view([FRAME], slow=taking(slow), **about)
        shown.start()
        shown.report(300)
        return captions

    assert shown(0.1, quick=taking(0.01)) == ["slow: 10.0 frames/s", "quick: 100.0 frames/s"]
    busy.Others = lambda: SimpleNamespace(cores=lambda: 1.0)
    assert shown(0.1) == ["slow: no rate, busy machine"]
    monkeypatch.setenv("METALLAB_MODE", "fast")
    assert shown(0.1) == ["slow: no rate, fast mode"]


def test_a_button_or_a_second_view_stops_an_endless_one():
    slow = lambda frame: time.sleep(0.01) or frame
    first, second = (view(itertools.repeat(FRAME), is_live=True, slow=slow) for _ in range(2))
    first.start()
    second.start()
    assert not first.thread.is_alive()
    assert second.report(0.05) == "The live view goes on; press Stop."
    second.button.click()
    assert second.report(300).startswith("The live view showed")


def test_an_error_of_a_pane_is_raised():
    def fails(frame):
        raise ValueError("out of memory")

    shown = view([FRAME], a=fails)
    shown.start()
    with pytest.raises(ValueError, match="out of memory"):
        shown.report(300)
    assert shown.state.value == "stopped: ValueError"


def test_frames_come_again_and_a_camera_goes_on(monkeypatch):
    """With what a film has taken; without a person a camera ends as well, and its last pictures are shown."""
    seen = []

    def play(**about):
        seen.clear()
        shown = view(itertools.repeat(FRAME + 2), taken=[FRAME, FRAME + 1], most=3, **about, a=keep)
        shown.start()
        assert shown.report(300) == "The live view showed 3 frames."
        return seen

    def keep(frame):
        seen.append(int(frame[0, 0, 0]))
        return frame

    assert play() == [100, 101, 102]
    shown = view([FRAME], a=keep)
    assert "application/vnd.jupyter.widget-view+json" in shown._repr_mimebundle_()
    shown.report(300)
    monkeypatch.setenv("METALLAB_OUT", "build/x")
    assert play(is_live=True) == [102, 102, 102], "what a camera saw before is over"
    bundle, _ = view([FRAME] * 2, a=keep, b=keep)._repr_mimebundle_()
    assert Image.open(io.BytesIO(base64.b64decode(bundle["image/jpeg"]))).size == (2 * 640 + 8, 384)
