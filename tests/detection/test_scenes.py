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


def digest() -> str:
    digest = hashlib.sha256()
    for seed, size in itertools.product(range(40), (320, (384, 640))):
        frame = scenes.Scene(seed, size).frame(3 * seed)
        for array in (frame.image, frame.boxes, frame.classes):
            digest.update(array.tobytes())
    return digest.hexdigest()


def test_the_pictures_are_those_that_the_weights_know():
    assert digest() == DIGEST


def still_life(things, size=(96, 128)):
    """A scene of these things alone, before black, in even light; a thing of colour 1000 is white all over."""
    scene = scenes.Scene(0, size)
    scene._background = np.zeros((*size, 3), np.float32)
    scene._gloom = scene._shadow = scene._noise = 0.0
    scene._tint = [1.0] * 3
    scene.things = things
    return scene


def thing(shape, *, x, y, radius, turn=0.0, narrow=1.0, side=96):
    """A white thing at a place in pixels that does not move."""
    motion = scenes.Motion(
        centre=(x / side, y / side), swing=(0, 0), pace=(0, 0, 0), phase=(0, 0, 0),
        radius=radius / side, breath=0, turn=(turn, 0), narrow=narrow,
    )  # fmt: skip
    return scenes.Thing(shape, np.full(3, 1000, np.float32), motion, 1.0)


def mask(things):
    """The pixels that are at least half white."""
    return still_life(things).frame(0).image[..., 0] >= 128


def box_of(mask):
    rows, columns = np.nonzero(mask)
    return [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


PLACED = {
    "upright": {"x": 64, "y": 48, "radius": 30.3},
    "turned and narrow": {"x": 40.4, "y": 50.7, "radius": 22, "turn": 0.13, "narrow": 0.8},
    "across the left edge": {"x": 20, "y": 48, "radius": 30, "turn": 0.4},
    "across the right edge": {"x": 100, "y": 80.5, "radius": 33, "turn": 0.71, "narrow": 0.75},
}


@pytest.mark.parametrize("place", PLACED.values(), ids=PLACED)
@pytest.mark.parametrize("shape", scenes.CLASSES)
def test_a_box_encloses_its_object_and_nothing_else(shape, place):
    alone = [thing(shape, **place)]
    frame = still_life(alone).frame(0)
    assert frame.boxes.tolist() == [box_of(mask(alone))]
    assert [scenes.CLASSES[index] for index in frame.classes] == [shape]


def test_a_ball_is_a_circle_of_its_radius():
    ball = mask([thing("ball", x=64, y=48, radius=30)])
    assert box_of(ball) == [34, 18, 94, 78]
    assert ball.sum() == pytest.approx(np.pi * 30**2, rel=0.01)


HEART = thing("heart", x=60, y=48, radius=30)


def blob_at(x: int):
    """Something without a label that hides what is behind it."""
    return thing("blob", x=x, y=48, radius=42)


PLACES = range(20, 110, 3)


def draw_behind_a_blob(x: int) -> scenes.Frame:
    return still_life([HEART, blob_at(x)]).frame(0)


@pytest.fixture(scope="module")
def visible():
    """The pixels of the heart that a blob leaves to be seen, by the place of the blob."""
    heart = mask([HEART])
    return {x: heart & ~mask([blob_at(x)]) for x in PLACES}


@pytest.fixture(scope="module")
def seen_well(visible):
    """The places of a blob behind which 40 percent of the heart or more can be seen."""
    whole = mask([HEART]).sum()
    places = [x for x, pixels in visible.items() if pixels.sum() >= 0.4 * whole]
    assert 0 < len(places) < len(PLACES)
    return places


def test_an_object_that_is_hidden_too_much_has_no_label(seen_well):
    assert [x for x in PLACES if len(draw_behind_a_blob(x).boxes)] == seen_well


def test_the_box_of_an_object_encloses_what_can_be_seen_of_it(visible, seen_well):
    boxes = {x: draw_behind_a_blob(x).boxes.tolist() for x in seen_well}
    assert boxes == {x: [box_of(visible[x])] for x in seen_well}


def test_what_is_behind_hides_nothing():
    in_front = [still_life([blob_at(x), HEART]).frame(0) for x in PLACES]
    assert {len(frame.boxes) for frame in in_front} == {1}


@pytest.fixture(scope="module")
def stills():
    """Thirty pictures of 160 x 96 pixels."""
    return [scenes.still(seed, (96, 160)) for seed in range(30)]


def test_a_picture_has_its_size_in_bytes_of_three_colours(stills):
    assert {frame.image.shape for frame in stills} == {(96, 160, 3)}
    assert {frame.image.dtype for frame in stills} == {np.dtype(np.uint8)}


def test_a_picture_of_one_number_is_a_square():
    assert scenes.still(0, 96).image.shape == (96, 96, 3)


def test_each_label_has_a_box_and_a_class(stills):
    assert [frame.boxes.shape for frame in stills] == [(len(f.classes), 4) for f in stills]
    assert {frame.boxes.dtype for frame in stills} == {np.dtype(np.float32)}
    assert {frame.classes.dtype for frame in stills} == {np.dtype(np.int64)}


def test_boxes_lie_in_their_picture_and_are_not_tiny(stills):
    boxes = np.concatenate([frame.boxes for frame in stills])
    assert (boxes >= 0).all()
    assert (boxes <= [160, 96, 160, 96]).all()
    assert (boxes[:, 2:] - boxes[:, :2] >= 8).all()


def test_thirty_pictures_show_each_class(stills):
    seen = {scenes.CLASSES[index] for frame in stills for index in frame.classes}
    assert seen == {"ball", "box", "star", "ring", "heart", "arrow"}


@pytest.mark.parametrize("seed", range(30))
def test_a_scene_has_nine_objects_at_most(seed):
    things = scenes.Scene(seed, 64).things
    assert sum(each.shape in scenes.CLASSES for each in things) <= 9


@pytest.fixture(scope="module")
def video():
    return list(scenes.video(3, 4, (64, 96)))


@pytest.mark.parametrize("number", [3, 0, 2, 1])
def test_a_frame_of_a_video_is_that_of_its_scene_in_any_order(video, number):
    again = scenes.Scene(3, (64, 96)).frame(number)
    assert np.array_equal(again.image, video[number].image)
    assert np.array_equal(again.boxes, video[number].boxes)


def test_a_video_has_as_many_frames_as_asked_for_and_moves(video):
    assert len(video) == 4
    assert not np.array_equal(video[0].image, video[1].image)


def test_a_still_is_the_first_frame_of_its_scene(video):
    assert np.array_equal(scenes.still(3, (64, 96)).image, video[0].image)


def test_a_picture_too_small_is_refused():
    with pytest.raises(ValueError, match="32 x 96 pixels is too small: take at least 64 x 64"):
        scenes.Scene(0, (96, 32))
