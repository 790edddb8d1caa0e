"""The live view shows frames with their rates, stops when asked, lets go of its camera, and loses no error."""

from __future__ import annotations

import base64
import io
import itertools
import time
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from metallab.detection import live, video
from metallab.timing import Host

FRAME = np.full((96, 160, 3), 100, np.uint8)


def test_every_pane_shows_its_picture_of_the_last_frame():
    closed = []
    frames = [FRAME, FRAME + 100]
    view = live.Live({"as it is": lambda f: f, "darker": lambda f: f // 2}, frames, close=lambda: closed.append(1))
    assert view.start() is view.widget
    assert view.wait(300) == 2
    shown = [np.asarray(Image.open(io.BytesIO(picture.value))) for picture in view.pictures.values()]
    assert [picture.shape for picture in shown] == [(384, 640, 3)] * 2
    assert [picture[:300].mean() for picture in shown] == pytest.approx([200, 100], abs=2)
    assert list(view.last) == ["as it is", "darker"]
    assert view.button.disabled
    assert closed == [1]


def test_every_pane_tells_its_own_rate(monkeypatch):
    """By a clock that the panes move: 0.1 s for each picture of the one, 0.01 s of the other."""
    shown, now = [], [5.0]

    def taking(seconds):
        def make(frame):
            now[0] += seconds
            return frame

        return make

    monkeypatch.setattr(live.boxes, "captioned", lambda picture, words: shown.append(words) or picture)
    monkeypatch.setattr(live, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    view = live.Live({"slow": taking(0.1), "quick": taking(0.01)}, [FRAME] * 4)
    monkeypatch.setenv("METALLAB_MODE", "full")
    busy = SimpleNamespace(BUSY=0.25, Others=lambda: SimpleNamespace(cores=lambda: 0.0))
    monkeypatch.setattr(live, "timing", busy)
    view.start()
    view.wait(300)
    assert shown == ["slow: 10.0 frames/s", "quick: 100.0 frames/s"] * 4

    def captions(**about):
        shown.clear()
        view = live.Live({"slow": taking(0.1)}, [FRAME], **about)
        view.start()
        view.wait(300)
        return shown

    assert captions(simulated=True) == ["slow: no rate, simulated"]
    busy.Others = lambda: SimpleNamespace(cores=lambda: 1.0)
    assert captions() == ["slow: no rate, busy machine"]
    monkeypatch.setenv("METALLAB_MODE", "fast")
    assert captions() == ["slow: no rate, fast mode"]


def test_the_button_stops_an_endless_view():
    view = live.Live({"slow": lambda f: time.sleep(0.01) or f}, itertools.repeat(FRAME))
    view.start()
    with pytest.raises(TimeoutError, match=r"goes on after 0\.05 s"):
        view.wait(0.05)
    view.button.click()
    view.wait(300)


def test_a_second_view_stops_the_first():
    views = [live.Live({"slow": lambda f: time.sleep(0.01) or f}, itertools.repeat(FRAME)) for _ in range(2)]
    views[0].start()
    views[1].start()
    assert not views[0].thread.is_alive()
    views[1].stop()
    views[1].wait(300)


def test_what_goes_wrong_is_raised():
    def fails(frame):
        raise ValueError("out of memory")

    view = live.Live({"a": fails}, [FRAME])
    view.start()
    with pytest.raises(ValueError, match="out of memory"):
        view.wait(300)
    assert view.state.value == "stopped: ValueError"


def test_progress_is_one_line_that_ends_full(monkeypatch):
    import IPython.display

    states = []
    handle = SimpleNamespace(update=lambda text: states.append(text.data))
    monkeypatch.setattr(IPython.display, "display", lambda text, display_id: states.append(text.data) or handle)
    assert list(live.progress([3, 4, 5], "frames")) == [3, 4, 5]
    assert (states[0], states[-1]) == ("frames: 0 of 3 ", f"frames: 3 of 3 {'#' * 30}")
    assert list(live.progress([], "nothing")) == []


def test_a_view_of_a_source_begins_again_and_a_camera_goes_on(monkeypatch):
    """With what a film has taken; without a person a camera ends as well."""
    shown = []
    make = type("Pane", (), {"on": Host(), "__call__": lambda _, frame: (shown.append(frame[0, 0, 0]) or frame, [])})()
    taken, more = [FRAME, FRAME + 1], itertools.repeat(FRAME + 2)

    def play(most, **about):
        shown.clear()
        view = live.Live.of_source({"a": make}, video.Source("x", iter(more), **about), taken, most)
        view.start()
        return view

    monkeypatch.delenv("METALLAB_OUT", raising=False)
    assert play(3).report() == "The live view showed 3 frames."
    assert shown == [100, 101, 102]
    monkeypatch.setenv("METALLAB_OUT", "build/x")
    assert play(3, live=True).report() == "The live view showed 3 frames."
    assert shown == [102, 102, 102], "what a camera saw before is over"
    view = live.Live({"a": lambda f: f, "b": lambda f: f // 2}, [FRAME] * 2)
    picture = Image.open(io.BytesIO(base64.b64decode(view._repr_mimebundle_()[0]["image/jpeg"])))
    assert picture.size == (2 * 640 + 8, 384), "what a page shows that nobody watched"
    monkeypatch.delenv("METALLAB_OUT")
    assert "application/vnd.jupyter.widget-view+json" in live.Live({"a": lambda f: f}, [FRAME])._repr_mimebundle_()
    view = play(3, live=True)
    assert view.report(0.01) == "The live view goes on after 0.01 s; press Stop, or call stop()."
    view.stop()
    assert view.wait(300) > 0
