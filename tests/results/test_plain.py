"""What stays of a notebook's outputs where it is shown: plain HTML, and small pictures."""

from __future__ import annotations

import io
import itertools
import random

import pytest
from PIL import Image

from metallab.results.publish import plain


def test_html_keeps_its_words_and_what_was_coloured_is_bold():
    html = (
        "<style>#T_1_row0_col1, #T_1_row1_col0 { color: red }</style><table id='T_1' class='t'><tr>"
        "<td id='T_1_row0_col0' style='x'>1</td><td id='T_1_row0_col1' colspan='2' onclick='go()'>2</td></tr></table>"
        "<script>go()</script><svg><p>kept</p></svg>"
    )
    pictures, made = plain.make_html_plain(html)
    assert pictures == []
    assert made == '<table><tr><td>1</td><td colspan="2"><b>2</b></td></tr></table><p>kept</p>'


def encode(picture: Image.Image, kind: str, **options) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def decode(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


RARE = (250, 40, 40)


@pytest.fixture(scope="module")
def noisy() -> bytes:
    """A picture with many dark colours in its upper half, one bright point among them, and nothing below."""
    dark = random.Random(1)
    picture = Image.new("RGBA", (300, 200), (0, 0, 0, 0))
    for pixel in itertools.product(range(300), range(100)):
        picture.putpixel(pixel, (*dark.choices(range(120), k=3), 255))
    picture.putpixel((1, 1), (*RARE, 255))
    return encode(picture, "PNG")


def test_a_picture_has_few_colours(noisy):
    made = decode(plain.make_small_png(noisy))

    assert made.mode == "P"
    assert made.size == (300, 200)
    assert len(made.getcolors()) <= plain.COLOURS


def test_a_picture_keeps_a_rare_colour_and_stands_on_white(noisy):
    made = decode(plain.make_small_png(noisy)).convert("RGB")

    assert made.getpixel((100, 150)) == (255, 255, 255)
    differences = [abs(one - two) for one, two in zip(made.getpixel((1, 1)), RARE, strict=True)]
    assert max(differences) < 16


def test_a_picture_is_made_as_wide_as_it_is_asked_for(noisy):
    assert decode(plain.make_small_png(noisy, width=150)).size == (150, 100)


@pytest.fixture(scope="module")
def film() -> Image.Image:
    """What a film of 30 pictures and three seconds becomes."""
    first, *rest = (Image.new("RGB", (800, 10), (number * 8, 0, 0)) for number in range(30))
    options = {"save_all": True, "append_images": rest, "duration": 100, "lossless": True}
    return decode(plain.make_small_png(encode(first, "WEBP", **options)))


def duration_of(film: Image.Image, number: int) -> float:
    film.seek(number)
    return film.info["duration"]


def test_a_film_becomes_a_small_png_of_few_pictures(film):
    assert film.format == "PNG"
    assert film.n_frames == plain.MOST_FRAMES
    assert film.width == plain.FILM_WIDTH


def test_a_film_takes_as_long_as_before(film):
    assert sum(duration_of(film, number) for number in range(film.n_frames)) == 3000
