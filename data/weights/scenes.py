"""Scenes to detect things in: six kinds of object over changing backgrounds, drawn the same on every machine.

A scene is a small world that follows from its seed alone: objects move, turn, shrink and grow, pass in front of each
other, behind bars and over the edge of the picture. Each frame comes with the box and the class of every object that
can be seen well enough (`MIN_VISIBLE`, `MIN_SIDE`). Seeds from `FIRST_TRAINING_SEED` on are for training, those below
for everything else.

Only additions, multiplications, divisions and square roots touch a pixel, and the random numbers are PCG64's raw
stream, which NumPy keeps fixed (it promises no such thing for `numpy.random.Generator`'s methods). So a seed gives the
same bytes whatever the processor and the version of NumPy: seen on x86-64 with NumPy 1.26 and 2.5, not yet on a Mac.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy import ndarray as Array

CLASSES = ("ball", "box", "star", "ring", "heart", "arrow")
"""The kinds of object; a class id is an index into this."""

MIN_VISIBLE = 0.4
"""An object has a label if at least this share of its pixels shows. Those beyond the picture's edge count as hidden."""

MIN_SIDE = 8
"""An object has a label if the box of what shows of it is at least this many pixels wide and high."""

FRAMES_PER_SECOND = 30
"""The speed for which the motion is made."""

MOST = 9
"""The most objects that a scene has; some of them may have no label in a frame."""

FIRST_TRAINING_SEED = 1_000_000
"""The shipped weights are trained on seeds from here on; scenes below are new to them."""

FLAT = ("bar", "triangle", "plus", "half", "blob")
"""Shapes that are no object: clutter behind the objects, and bars in front of them."""

Size = int | tuple[int, int]
"""One side or (height, width), in pixels."""
Choice = TypeVar("Choice")


@dataclass(frozen=True)
class Frame:
    """A picture and what is to be found in it."""

    image: Array
    """uint8 (height, width, 3), RGB."""
    boxes: Array
    """float32 (n, 4): left, top, right, bottom of what is visible, in pixels; right and bottom are exclusive."""
    classes: Array
    """int64 (n,): indices into `CLASSES`."""


def still(seed: int, size: Size = 640) -> Frame:
    """Draw one picture of ``size`` pixels, square or (height, width): the first frame of the video of that seed."""
    return Scene(seed, size).frame(0)


def video(seed: int, frames: int, size: Size = (384, 640)) -> Iterator[Frame]:
    """Draw the first ``frames`` frames of a scene, of ``size`` pixels, for `FRAMES_PER_SECOND`."""
    scene = Scene(seed, size)
    return (scene.frame(number) for number in range(frames))


class Dice:
    """Random numbers that depend on the key and on nothing else."""

    def __init__(self, *key: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(key))

    def between(self, low: float, high: float) -> float:
        """Return a number from low (included) to high."""
        share = (int(self._bits.random_raw()) >> 11) * 2.0**-53  # the 53 bits that a float64 holds
        return low + (high - low) * share

    def below(self, n: int) -> int:
        """Return a whole number from 0 to n - 1."""
        return int(self.between(0, n))

    def chance(self, probability: float) -> bool:
        """Return True with that probability."""
        return self.between(0, 1) < probability

    def pick(self, options: Sequence[Choice]) -> Choice:
        """Return one of the options."""
        return options[self.below(len(options))]

    def bytes(self, *shape: int) -> Array:
        """Return uint8 of that shape."""
        count = math.prod(shape)
        words = self._bits.random_raw(math.ceil(count / 8)).astype("<u8")  # of 8 bytes each
        return words.view(np.uint8)[:count].reshape(shape)

    def colour(self, saturation: tuple[float, float], value: tuple[float, float]) -> Array:
        """Return a colour of any hue, its saturation and value from these ranges: float32 (3,), RGB from 0 to 255."""
        hue = self.between(0, 6)
        s = self.between(*saturation)
        v = self.between(*value)

        pure = [min(max(abs((hue + shift) % 6 - 3) - 1, 0), 1) for shift in (0, 4, 2)]
        return np.array([255 * v * (1 - s * (1 - channel)) for channel in pure], np.float32)


class Pose(NamedTuple):
    """A thing in a frame: centre and radius in pixels, cosine and sine of its turn, its width over its height."""

    x: float
    y: float
    radius: float
    cos: float
    sin: float
    narrow: float


@dataclass(frozen=True)
class Motion:
    """A swing about a place, a steady turn and a breathing size; lengths in shorter sides of the picture."""

    centre: tuple[float, float]
    swing: tuple[float, float]
    pace: tuple[float, float, float]
    phase: tuple[float, float, float]
    radius: float
    breath: float
    turn: tuple[float, float]
    narrow: float

    @classmethod
    def draw(
        cls, dice: Dice, radius: tuple[float, float], centre: tuple[float, float], lively: float
    ) -> Motion:
        """Draw a motion about a place; 0 is no motion at all, 1 a lively one."""
        return cls(
            centre=centre,
            swing=(lively * dice.between(0.05, 0.4), lively * dice.between(0.05, 0.25)),
            pace=(dice.between(0.08, 0.2), dice.between(0.08, 0.25), dice.between(0.1, 0.3)),
            phase=(dice.between(0, 1), dice.between(0, 1), dice.between(0, 1)),
            radius=dice.between(*radius),
            breath=lively * dice.between(0, 0.25),
            turn=(dice.between(0, 1), lively * dice.between(-0.25, 0.25)),
            narrow=dice.between(0.72, 1) if dice.chance(0.5) else 1.0,
        )

    def at(self, seconds: float, side: float) -> Pose:
        """Return the pose at a time, in a picture whose shorter side has that many pixels."""
        x, y, size = (
            _sine(pace * seconds + phase) for pace, phase in zip(self.pace, self.phase, strict=True)
        )
        turn = self.turn[0] + self.turn[1] * seconds
        return Pose(
            x=side * (self.centre[0] + self.swing[0] * x),
            y=side * (self.centre[1] + self.swing[1] * y),
            radius=side * self.radius * (1 + self.breath * size),
            cos=_sine(turn + 0.25),
            sin=_sine(turn),
            narrow=self.narrow,
        )


@dataclass(frozen=True)
class Thing:
    """Something that is drawn: an object of a class, or clutter."""

    shape: str
    colour: Array
    motion: Motion
    rim: float
    """What the colour is multiplied with along the outline; 1 is no outline."""


class Scene:
    """A world that follows from its seed; ``size`` is one side or (height, width), in pixels."""

    def __init__(self, seed: int, size: Size = 640) -> None:
        self.seed = seed
        self.height, self.width = (size, size) if isinstance(size, int) else size
        if min(self.height, self.width) < 64:
            raise ValueError(
                f"a scene of {self.width} x {self.height} pixels is too small: take at least 64 x 64"
            )
        self._side = float(min(self.height, self.width))

        # What is drawn first decides what comes after it: another order makes another scene of each seed.
        dice = Dice(seed)
        self._background = _draw_background(dice, self.height, self.width)
        self._light = _unit(dice.between(0, 1))  # where it comes from: right and up
        self._gloom = dice.between(0, 0.35)  # how unevenly it falls
        self._tint = [dice.between(0.9, 1.15) for _ in range(3)]  # of red, green and blue
        self._shadow = dice.between(0.2, 0.5) if dice.chance(0.6) else 0.0
        # a standard deviation, of 255
        self._noise = dice.between(2, 11) if dice.chance(0.5) else 0.0
        self.things = self._draw_things(dice)

    def frame(self, number: int) -> Frame:
        """Draw frame ``number`` of the video, counted from 0; the frames may be asked for in any order.

        All things are drawn before any box is found, since a later one may hide an earlier one.
        """
        canvas = self._background.copy()
        # which thing each pixel shows, -1 for none
        owner = np.full((self.height, self.width), -1, np.int16)
        areas = []
        for index, thing in enumerate(self.things):
            pose = thing.motion.at(number / FRAMES_PER_SECOND, self._side)
            areas.append(self._paint(canvas, owner, index, pose))

        boxes, classes = [], []
        for index, (thing, area) in enumerate(zip(self.things, areas, strict=True)):
            box = _find_box(owner, index, area) if thing.shape in CLASSES else None
            if box is not None:
                boxes.append(box)
                classes.append(CLASSES.index(thing.shape))

        image = self._develop(canvas, number)
        return Frame(image, np.array(boxes, np.float32).reshape(-1, 4), np.array(classes, np.int64))

    def _draw_things(self, dice: Dice) -> list[Thing]:
        """Return everything in the scene, from back to front: clutter, half of the objects, bars, the other half.

        Colours, places and motions are drawn by lot; no pixel is touched yet.
        """
        across, down = self.width / self._side, self.height / self._side
        rim = dice.pick((0.45, 0.7, 1.0, 1.0))

        def thing(
            shape: str, radius: tuple[float, float], lively: float, saturation: tuple[float, float]
        ) -> Thing:
            centre = (dice.between(0.05, 0.95) * across, dice.between(0.05, 0.95) * down)
            motion = Motion.draw(dice, radius, centre, lively)
            return Thing(shape, dice.colour(saturation, (0.55, 1)), motion, rim)

        clutter = [
            thing(dice.pick(FLAT), (0.01, 0.07), dice.pick((0, 0, 0.5)), (0.1, 0.8))
            for _ in range(dice.below(15))
        ]
        objects = [
            thing(dice.pick(CLASSES), (0.055, 0.19), 1.0, (0.35, 1))
            for _ in range(4 + dice.below(MOST - 3))
        ]
        bars = [
            thing("bar", (0.25, 0.6), dice.pick((0, 0.5)), (0, 0.5))
            for _ in range(dice.pick((0, 0, 1, 2)))
        ]
        front = len(objects) // 2
        return clutter + objects[:front] + bars + objects[front:]

    def _paint(self, canvas: Array, owner: Array, index: int, pose: Pose) -> int:
        """Draw a thing and note its pixels as its own; return how many it would have with nothing hidden.

        It is computed on a square around it, a little larger than it is, of which what lies in the picture is drawn.
        A pixel on its outline is covered in part, and its own if half of it is. An object, but not clutter, first
        throws its shadow on what is there.
        """
        thing = self.things[index]
        left, top = math.floor(pose.x - pose.radius) - 2, math.floor(pose.y - pose.radius) - 2
        side = 2 * math.ceil(pose.radius) + 5

        # where each pixel lies in radii from its centre, on the screen (x, y) and turned with it (u, v)
        x = (np.arange(left, left + side, dtype=np.float32) + 0.5 - pose.x) / pose.radius
        y = (pose.y - np.arange(top, top + side, dtype=np.float32)[:, None] - 0.5) / pose.radius
        u = (pose.cos * x + pose.sin * y) / pose.narrow
        v = pose.cos * y - pose.sin * x
        distance, shade = SHAPES[thing.shape](u, v, _Light(x, y, self._light))
        coverage = np.clip(0.5 - distance * (pose.radius * pose.narrow), 0, 1)

        if self._shadow and thing.shape in CLASSES:
            self._cast(canvas, np.clip(0.5 - distance * 4, 0, 1), (top, left), pose.radius)

        rows, columns = _overlap(top, side, self.height), _overlap(left, side, self.width)
        there = _shift(rows, top), _shift(columns, left)
        patch = canvas[there]
        rim = thing.rim + (1 - thing.rim) * np.clip(-distance * 14 - 0.3, 0, 1)
        colour = (shade * rim)[rows, columns, None] * thing.colour
        patch += coverage[rows, columns, None] * (np.minimum(colour, 255) - patch)

        own = coverage >= 0.5
        owner[there][own[rows, columns]] = index
        return int(np.count_nonzero(own))

    def _cast(self, canvas: Array, softly: Array, corner: tuple[int, int], radius: float) -> None:
        """Darken what lies behind an object, away from the light."""
        top = corner[0] + round(0.25 * radius * self._light[1])
        left = corner[1] - round(0.25 * radius * self._light[0])

        rows = _overlap(top, len(softly), self.height)
        columns = _overlap(left, len(softly), self.width)
        patch = canvas[_shift(rows, top), _shift(columns, left)]
        patch *= 1 - self._shadow * softly[rows, columns, None]

    def _develop(self, canvas: Array, number: int) -> Array:
        """Return the picture as a camera would give it: lit from one side, tinted, with noise; uint8."""
        x = _ramp(self.width) * (self._gloom * self._light[0])
        y = _ramp(self.height) * (self._gloom * self._light[1])
        lit = (1 - 0.5 * self._gloom) + x - y[:, None]
        for channel, tint in enumerate(self._tint):
            canvas[..., channel] *= lit * tint

        if self._noise:
            grain = Dice(self.seed, number).bytes(2, self.height, self.width, 3).astype(np.float32)
            spread = 104.5  # of the sum of two bytes, as a standard deviation
            canvas += (grain[0] + grain[1] - 255) * (self._noise / spread)
        return np.clip(canvas + 0.5, 0, 255).astype(np.uint8)


# Shapes: (right, up) in radii, of float32, -> how far outside (in radii, negative inside) and how bright.


class _Light:
    """The light on a thing: where pixels are on the screen, whatever the thing's turn, and where the light is."""

    def __init__(self, x: Array, y: Array, light: tuple[float, float]) -> None:
        self.x, self.y, self.light = x, y, light

    def round(self, x: Array, y: Array, square: Array) -> Array:
        """Return the brightness of a round surface with the normal (x, y, sqrt(1 - square)), with a highlight."""
        towards = np.sqrt(np.maximum(1 - square, 0))
        lit = 0.6 * (self.light[0] * x + self.light[1] * y) + 0.8 * towards
        return 0.42 + 0.63 * np.maximum(lit, 0) + np.clip((lit - 0.93) * 10, 0, 0.8)

    def flat(self) -> Array:
        """Return the brightness of a flat surface: a little more towards the light."""
        return 0.92 + 0.12 * (self.light[0] * self.x + self.light[1] * self.y)


def _draw_ball(u: Array, v: Array, light: _Light) -> tuple[Array, Array]:
    square = u * u + v * v
    return np.sqrt(square) - 1, light.round(light.x + 0 * light.y, light.y + 0 * light.x, square)


def _draw_box(u: Array, v: Array, light: _Light) -> tuple[Array, Array]:
    """A cube seen along its diagonal: a hexagon with three faces."""
    half = math.sqrt(0.75)
    slant = np.maximum(np.abs(0.5 * u + half * v), np.abs(0.5 * u - half * v))
    face = np.where(v * math.sqrt(3) > np.abs(u), 1.08, np.where(u < 0, 0.78, 0.5))
    return np.maximum(np.abs(u), slant) - half, face.astype(np.float32) * light.flat()


def _draw_star(u: Array, v: Array, light: _Light) -> tuple[Array, Array]:
    """Five points: folded along its axes until one edge is left, from the tip (0, 1) to the notch beside it."""
    turned = u
    u = np.abs(u)
    for turn in (0.3, 0.1):
        across, along = _unit(-turn)
        beyond = np.maximum(across * u + along * v, 0)
        u, v = u - 2 * across * beyond, v - 2 * along * beyond
    facet = np.where((u < 0) != (turned < 0), 0.78, 1.06)

    depth = 0.5  # of the notch: its distance from the centre
    notch_v, notch_u = _unit(0.1)
    x, y = depth * notch_u, depth * notch_v - 1
    distance = (x * (v - 1) - y * np.abs(u)) / math.sqrt(x * x + y * y)
    return distance, facet.astype(np.float32) * light.flat()


def _draw_ring(u: Array, v: Array, light: _Light) -> tuple[Array, Array]:
    radius = np.sqrt(u * u + v * v)
    across = (radius - 0.7) / 0.3
    outward = across / np.maximum(np.sqrt(light.x * light.x + light.y * light.y), 0.01)
    shade = light.round(outward * light.x, outward * light.y, across * across)
    return np.abs(radius - 0.7) - 0.3, shade


def _draw_heart(u: Array, v: Array, light: _Light) -> tuple[Array, Array]:
    """A square on its corner, and a disc on each of its upper edges."""
    half = 2 / (1 + math.sqrt(2))
    u, v = np.abs(u), v + 0.25 * (math.sqrt(2) - 1) * half
    square = (u + np.abs(v) - half) / math.sqrt(2)
    disc = np.sqrt((u - half / 2) ** 2 + (v - half / 2) ** 2) - half / math.sqrt(2)
    distance = np.minimum(square, disc)
    return distance, light.flat() * (0.75 + 0.3 * np.clip(-distance * 4, 0, 1))


def _draw_arrow(u: Array, v: Array, light: _Light) -> tuple[Array, Array]:
    """A triangle on a shaft, pointing up."""
    u = np.abs(u)
    head = np.maximum(0.05 - v, (0.95 * u + 0.75 * (v - 1)) / math.sqrt(0.95**2 + 0.75**2))
    shaft = np.maximum(u - 0.3, np.abs(v + 0.4) - 0.55)
    distance = np.minimum(head, shaft)
    return distance, light.flat() * (0.8 + 0.25 * np.clip(-distance * 6, 0, 1))


def _draw_bar(u: Array, v: Array, light: _Light) -> tuple[Array, Array]:
    return np.maximum(np.abs(u) - 0.12, np.abs(v) - 0.95), light.flat() * (1.05 - 1.5 * np.abs(u))


def _draw_triangle(u: Array, v: Array, light: _Light) -> tuple[Array, Array]:
    return np.maximum(-0.5 - v, math.sqrt(0.75) * np.abs(u) + 0.5 * v - 0.5), light.flat()


def _draw_plus(u: Array, v: Array, light: _Light) -> tuple[Array, Array]:
    u, v = np.abs(u), np.abs(v)
    return np.maximum(np.maximum(u, v) - 0.9, np.minimum(u, v) - 0.22), light.flat()


def _draw_half(u: Array, v: Array, light: _Light) -> tuple[Array, Array]:
    return np.maximum(np.sqrt(u * u + v * v) - 0.95, 0.1 - v), light.flat()


def _draw_blob(u: Array, v: Array, light: _Light) -> tuple[Array, Array]:
    """A flat square with round corners."""
    x, y = np.maximum(np.abs(u) - 0.4, 0), np.maximum(np.abs(v) - 0.4, 0)
    return np.sqrt(x * x + y * y) - 0.3, light.flat()


SHAPES: dict[str, Callable[[Array, Array, _Light], tuple[Array, Array]]] = {
    "ball": _draw_ball,
    "box": _draw_box,
    "star": _draw_star,
    "ring": _draw_ring,
    "heart": _draw_heart,
    "arrow": _draw_arrow,
    "bar": _draw_bar,
    "triangle": _draw_triangle,
    "plus": _draw_plus,
    "half": _draw_half,
    "blob": _draw_blob,
}


# Backgrounds: patterns of numbers from 0 to 1, then coloured.


def _draw_background(dice: Dice, height: int, width: int) -> Array:
    """Draw a pattern between two quiet colours, with a haze over it: float32 (height, width, 3)."""
    dark, bright = dice.colour((0, 0.6), (0.08, 0.55)), dice.colour((0, 0.5), (0.35, 1))

    draw_pattern = dice.pick(
        (_draw_gradient, _draw_clouds, _draw_checks, _draw_stripes, _draw_dots, _draw_bricks)
    )
    pattern = draw_pattern(dice, height, width)
    draw_haze = _draw_clouds if dice.chance(0.5) else _draw_gradient
    pattern = 0.7 * pattern + 0.3 * draw_haze(dice, height, width)
    return dark + pattern[..., None] * (bright - dark)


def _axes(dice: Dice, height: int, width: int, *, is_turned: bool = True) -> tuple[Array, Array]:
    """Return where pixels lie, in shorter sides of the picture, along two axes that may be turned."""
    side = float(min(height, width))
    x = np.arange(width, dtype=np.float32) / side
    y = np.arange(height, dtype=np.float32)[:, None] / side
    cos, sin = _unit(dice.between(0, 1)) if is_turned else (1.0, 0.0)
    return cos * x + sin * y, cos * y - sin * x


def _draw_gradient(dice: Dice, height: int, width: int) -> Array:
    along, _ = _axes(dice, height, width)
    return (along - along.min()) / (along.max() - along.min())


def _draw_clouds(dice: Dice, height: int, width: int) -> Array:
    """Smooth noise: random values on three grids, each finer and fainter, with straight lines between."""
    total = np.zeros((height, width), np.float32)
    for cells, weight in ((3, 0.55), (8, 0.3), (24, 0.15)):
        grid = dice.bytes(cells + 2, cells + 2).astype(np.float32) / 255
        total += weight * _stretch(_stretch(grid, height).T, width).T
    return total


def _stretch(grid: Array, length: int) -> Array:
    """Draw the grid's first axis (of n + 2 values) out to so many points, linearly: columns stay as they are."""
    at = np.arange(length, dtype=np.float32) * ((len(grid) - 2) / length)
    low = at.astype(np.int64)
    part = (at - low.astype(np.float32))[:, None]
    return grid[low] * (1 - part) + grid[low + 1] * part


def _draw_checks(dice: Dice, height: int, width: int) -> Array:
    u, v = _axes(dice, height, width)
    count = dice.between(4, 14)
    return ((np.floor(u * count) + np.floor(v * count)) % 2).astype(np.float32)


def _draw_stripes(dice: Dice, height: int, width: int) -> Array:
    u, _ = _axes(dice, height, width)
    wave = u * dice.between(3, 20)
    return np.abs(2 * (wave - np.floor(wave)) - 1)


def _draw_dots(dice: Dice, height: int, width: int) -> Array:
    u, v = _axes(dice, height, width)
    count, radius = dice.between(6, 20), dice.between(0.15, 0.4)
    u, v = u * count, v * count
    u, v = u - np.floor(u) - 0.5, v - np.floor(v) - 0.5
    return np.clip((radius - np.sqrt(u * u + v * v)) * 12, 0, 1)


def _draw_bricks(dice: Dice, height: int, width: int) -> Array:
    u, v = _axes(dice, height, width, is_turned=False)
    count = dice.between(6, 16)
    row = np.floor(v * count)
    u, v = u * (count / 2) + 0.5 * (row % 2), v * count - row
    return np.minimum(np.clip(v * 12 - 0.5, 0, 1), np.clip((u - np.floor(u)) * 24 - 0.5, 0, 1))


# Small things.


def _sine(turns: float) -> float:
    """Return the sine of an angle in turns, rounded: the last bits of a sine differ between machines."""
    return round(math.sin(2 * math.pi * turns), 9)


def _unit(turns: float) -> tuple[float, float]:
    """Return the unit vector at an angle in turns."""
    return _sine(turns + 0.25), _sine(turns)


def _ramp(length: int) -> Array:
    """Return numbers from about -1 to about 1, float32."""
    return (2 * np.arange(length, dtype=np.float32) + 1 - length) / length


def _overlap(start: int, length: int, limit: int) -> slice:
    """Return which of ``length`` pixels from ``start`` lie within a picture of ``limit``, counted from the start."""
    first = min(max(-start, 0), length)
    return slice(first, max(min(length, limit - start), first))


def _shift(part: slice, by: int) -> slice:
    """Return a part that lies elsewhere."""
    return slice(by + part.start, by + part.stop)


def _find_box(owner: Array, index: int, area: int) -> tuple[int, int, int, int] | None:
    """Return the box of what shows of a thing, or None if too little does."""
    own = owner == index
    if area == 0 or np.count_nonzero(own) < MIN_VISIBLE * area:
        return None

    rows, columns = np.flatnonzero(own.any(axis=1)), np.flatnonzero(own.any(axis=0))
    box = int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
    return box if min(box[2] - box[0], box[3] - box[1]) >= MIN_SIDE else None
