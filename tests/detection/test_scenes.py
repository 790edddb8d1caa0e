"""The scenes are the same everywhere, and every label says exactly what can be seen."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
import scenes

# Of the pictures below, seen with NumPy 1.26.4 and 2.5.2, with and without AVX2, AVX-512 and FMA. The shipped weights
# were trained on scenes of this look: whoever changes it on purpose trains them anew.
DIGEST = "384179bc0a3a53e3e319fa8b655293eff808688c4ff35770e5a72d5d70b5a18b"


def digest(scenes) -> str:
    digest = hashlib.sha256()
    for seed, size in itertools.product(range(40), (320, (384, 640))):
        frame = scenes.Scene(seed, size).frame(3 * seed)
        for array in (frame.image, frame.boxes, frame.classes):
            digest.update(array.tobytes())
    return digest.hexdigest()


def test_the_pictures_are_those_that_the_weights_know():
    assert digest(scenes) == DIGEST


def still_life(scenes, things, size=(96, 128)):
    """A scene of these things alone, before black, in even light; a thing of colour 1000 is white all over."""
    scene = scenes.Scene(0, size)
    scene._background = np.zeros((*size, 3), np.float32)
    scene._gloom = scene._shadow = scene._noise = 0.0
    scene._tint = [1.0] * 3
    scene.things = things
    return scene


def thing(scenes, shape, x, y, radius, turn=0.0, narrow=1.0, side=96):
    """A white thing at a place in pixels that does not move."""
    motion = scenes.Motion(
        centre=(x / side, y / side), swing=(0, 0), pace=(0, 0, 0), phase=(0, 0, 0),
        radius=radius / side, breath=0, turn=(turn, 0), narrow=narrow,
    )  # fmt: skip
    return scenes.Thing(shape, np.full(3, 1000, np.float32), motion, 1.0)


def mask(scenes, things):
    """The pixels that are at least half white."""
    return still_life(scenes, things).frame(0).image[..., 0] >= 128


def box_of(mask):
    rows, columns = np.nonzero(mask)
    return [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


def test_a_box_encloses_its_object_and_nothing_else():
    layouts = [
        (64, 48, 30.3, 0.0, 1.0),
        (40.4, 50.7, 22, 0.13, 0.8),
        (20, 48, 30, 0.4, 1.0),
        (100, 80.5, 33, 0.71, 0.75),
    ]
    for shape, layout in itertools.product(scenes.CLASSES, layouts):
        alone = [thing(scenes, shape, *layout)]
        frame = still_life(scenes, alone).frame(0)
        assert frame.boxes.tolist() == [box_of(mask(scenes, alone))], (shape, layout)
        assert [scenes.CLASSES[index] for index in frame.classes] == [shape]
    ball = mask(scenes, [thing(scenes, "ball", 64, 48, 30)])
    assert box_of(ball) == [34, 18, 94, 78]
    assert ball.sum() == pytest.approx(np.pi * 30**2, rel=0.01)


def test_an_object_that_is_hidden_too_much_has_no_label():
    labelled = []
    for x in range(20, 110, 3):
        heart, blob = thing(scenes, "heart", 60, 48, 30), thing(scenes, "blob", x, 48, 42)
        visible = mask(scenes, [heart]) & ~mask(scenes, [blob])
        share = visible.sum() / mask(scenes, [heart]).sum()
        frame = still_life(scenes, [heart, blob]).frame(0)
        assert len(frame.boxes) == (share >= 0.4), (x, share)
        assert frame.boxes.tolist() == ([box_of(visible)] if share >= 0.4 else [])
        assert len(still_life(scenes, [blob, heart]).frame(0).boxes) == 1, (
            "what is behind hides nothing"
        )
        labelled.append(len(frame.boxes))
    assert 0 < sum(labelled) < len(labelled)


def test_frames_are_what_is_promised():
    seen = set()
    for seed in range(30):
        frame = scenes.still(seed, (96, 160))
        assert frame.image.shape == (96, 160, 3)
        assert (frame.image.dtype, frame.boxes.dtype, frame.classes.dtype) == (
            np.uint8,
            np.float32,
            np.int64,
        )
        assert frame.boxes.shape == (len(frame.classes), 4)
        assert (frame.boxes >= 0).all()
        assert (frame.boxes <= [160, 96, 160, 96]).all()
        assert (frame.boxes[:, 2:] - frame.boxes[:, :2] >= 8).all()
        seen |= {scenes.CLASSES[index] for index in frame.classes}
        assert sum(it.shape in scenes.CLASSES for it in scenes.Scene(seed, 64).things) <= 9
    assert seen == {"ball", "box", "star", "ring", "heart", "arrow"}
    assert scenes.still(0, 96).image.shape == (96, 96, 3)


def test_a_video_is_the_frames_of_its_scene():
    frames = list(scenes.video(3, 4, (64, 96)))
    assert len(frames) == 4
    scene = scenes.Scene(3, (64, 96))
    for number in (3, 0, 2, 1):
        again = scene.frame(number)
        assert np.array_equal(again.image, frames[number].image)
        assert np.array_equal(again.boxes, frames[number].boxes)
    assert np.array_equal(scenes.still(3, (64, 96)).image, frames[0].image)
    assert not np.array_equal(frames[0].image, frames[1].image)


def test_a_picture_too_small_is_refused():
    with pytest.raises(ValueError, match="32 x 96 pixels is too small: take at least 64 x 64"):
        scenes.Scene(0, (96, 32))
