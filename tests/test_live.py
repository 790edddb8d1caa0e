"""The live view shows frames, stops when asked, and loses no error."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from mutate import Rules

from metallab import live

RULES = Rules(live)
FRAME = np.full((32, 48, 3), 100, np.uint8)


@RULES.rule(
    ("self.pictures[name].value = video.jpeg(make(frame))", "make(frame)"),
    ("make(frame))", "frame)"),
    ("                self.shown += 1\n", ""),
    ("            self.button.disabled = True", "            pass"),
)
def every_pane_shows_its_picture_of_the_last_frame(live):
    import io

    from PIL import Image

    view = live.Live({"as it is": lambda f: f, "darker": lambda f: f // 2}, [FRAME, FRAME + 100])
    assert view.start() is view.widget
    assert view.wait(20) == 2
    means = [np.asarray(Image.open(io.BytesIO(picture.value))).mean() for picture in view.pictures.values()]
    assert means == pytest.approx([200, 100], abs=2)
    assert view.button.disabled


@RULES.rule(
    ("self.button.on_click(lambda _: self.stop())", "pass"),
    ("                if self.stopped.is_set():\n                    break\n", ""),
    ("        if self.thread.is_alive():\n", "        if False:\n"),
)
def the_button_stops_an_endless_view(live):
    view = live.Live({"slow": lambda f: time.sleep(0.01) or f}, itertools.islice(itertools.repeat(FRAME), 300))
    view.start()
    with pytest.raises(TimeoutError, match=r"goes on after 0\.05 s"):
        view.wait(0.05)
    view.button.click()
    assert view.wait(10) < 250


@RULES.rule(
    ("            self.problem = error\n", ""),
    ("        if self.problem:\n            raise self.problem\n", ""),
    ('f"stopped: {type(error).__name__}"', '""'),
)
def what_goes_wrong_is_raised(live):
    def fails(frame):
        raise ValueError("out of memory")

    view = live.Live({"a": fails}, [FRAME])
    view.start()
    with pytest.raises(ValueError, match="out of memory"):
        view.wait(10)
    assert view.state.value == "stopped: ValueError"


test_rule_holds, test_broken_rule_goes_red = RULES.tests()
