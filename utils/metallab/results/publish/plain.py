"""Make executed notebooks plain: no styles, scripts or widgets, and nothing of this machine, as a host's viewer shows.

Pictures become PNGs of at most 256 colours on white, films animated PNGs, HTML the few elements that every viewer
keeps. A picture's alternative text stands in its output's metadata, as ``alt``: GitHub cleans HTML, and a picture that
ran as HTML with the same PNG beside it (`plots.describe`) is kept as that PNG alone. What was coloured in a table is
bold. `pages.read_notebook` has removed the paths.
"""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from metallab import judgement, needs, redact
from metallab.notebook import number_cells, without_colours
from metallab.results.publish import pages

if TYPE_CHECKING:
    from bs4 import BeautifulSoup
    from nbformat import NotebookNode
    from PIL import Image

MOST_FRAMES = 10
FILM_WIDTH = 640
"""Pixels, at most."""
COLOURS = 256

KEPT = (
    "text/plain",
    "text/html",
    "text/markdown",
    "text/latex",
    "image/png",
    needs.MIME,
    judgement.MIME,
)
_ELEMENTS = {
    *("table", "thead", "tbody", "tr", "th", "td", "p", "div", "pre", "br", "ul", "ol", "li"),
    *("b", "strong", "i", "em", "code", "sub", "sup"),
}
_COLOURED = re.compile(r"#(T_\w+_row\d+_col\d+)\b")


class PlainError(ValueError):
    """An executed page that a host cannot show, or that names this machine; the message says where."""


def make_plain(notebook: NotebookNode) -> NotebookNode:
    """Change an executed notebook to what a host's viewer shows, and return it.

    PlainError if it has an output that no viewer shows, or one that names this machine, its user or a folder.
    """
    _keep_metadata(notebook, ("kernelspec", "language_info", "metallab"))
    for cell in notebook.cells:
        _keep_metadata(cell, ("tags",))

    for number, _, cell in number_cells(notebook):
        shown = [each for output in cell.outputs for each in _make_output_plain(output)]
        if cell.outputs and not shown:
            raise PlainError(f"cell {number} shows nothing that a host's viewer can show")
        cell.outputs = shown

        if traces := redact.find_private("\n".join(pages.find_texts(shown))):
            raise PlainError(
                f"cell {number} would show {traces[0]!r}, which is of the machine that it ran on"
            )
    return notebook


def _make_output_plain(output: NotebookNode) -> Iterator[NotebookNode]:
    """Yield an output as a viewer shows it: its pictures, then the rest."""
    if output.output_type == "stream":
        output.text = without_colours(output.text)
        yield output
    elif output.output_type == "error":
        output.traceback = [without_colours(line) for line in output.traceback]
        yield output
    else:
        yield from _make_data_plain(output)


def _keep_metadata(place: NotebookNode, names: Sequence[str]) -> None:
    """Remove all metadata of a notebook or a cell but these."""
    kept = {name: place.metadata[name] for name in names if name in place.metadata}
    place.metadata = type(place)(kept)


def _make_data_plain(output: NotebookNode) -> Iterator[NotebookNode]:
    """Yield the pictures inside an output's HTML, each as an output of its own, then the output with what is kept.

    An output that has no kind of `KEPT` yields nothing. PlainError for a picture that cannot be read.
    """
    data, metadata = dict(output.data), output.metadata
    _make_png(data, metadata)

    words = metadata.get("image/png", {}).get("alt")
    if words and "text/html" in data and _is_picture(data["text/html"], words):
        del data["text/html"]  # the picture of image/png once more
    if "text/html" in data:
        pictures, data["text/html"] = make_html_plain(data["text/html"])
        for picture, alternative in pictures:
            yield type(output)(
                output_type="display_data",
                data={"image/png": _encode(picture)},
                metadata={"image/png": {"alt": alternative}},
            )

    if data.get("text/html") or "image/png" in data:
        data.pop("text/plain", None)  # such as <Figure size 640x480>, which says less
    data = {kind: value for kind, value in data.items() if kind in KEPT and value}
    if data:
        kept = {kind: about for kind, about in metadata.items() if kind in data}
        output.data = type(output)(data)
        output.metadata = type(output)(kept)
        yield output


def _make_png(data: dict[str, Any], metadata: dict[str, Any]) -> None:
    """Turn an output's picture, if it has one, into a small PNG; what is known of it goes with it."""
    if "image/jpeg" in data:
        data["image/png"] = data.pop("image/jpeg")
        metadata["image/png"] = metadata.pop("image/jpeg", {})
    if "image/png" in data:
        data["image/png"] = _encode(make_small_png(_decode(data["image/png"])))


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except ValueError as problem:
        raise PlainError("a picture of it cannot be read: run the page again") from problem


def _encode(picture: bytes) -> str:
    return base64.b64encode(picture).decode()


def _is_picture(html: str, words: str) -> bool:
    """Return True if HTML holds nothing but one picture, with these words."""
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(html, "html.parser")
    elements = soup.find_all(True)
    if [each.name for each in elements] != ["img"] or soup.get_text().strip():
        return False
    return bool(elements[0].get("alt") == words)


def make_html_plain(html: str) -> tuple[list[tuple[bytes, str]], str]:
    """Return the pictures inside HTML, each a PNG with its alternative text, and the HTML in the few elements we keep.

    What a style marked by a colour or its weight is bold instead: a viewer removes styles, and the mark with them.
    """
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(html, "html.parser")
    coloured: set[str] = set()  # ids of cells of a table, as pandas names them in its style sheet
    for style in soup.find_all("style"):
        coloured.update(_COLOURED.findall(style.get_text()))
    for element in soup.find_all(["style", "script"]):
        element.decompose()

    pictures = _take_pictures(soup)

    for element in soup.find_all(True):
        if element.get("id") in coloured or "font-weight" in str(element.get("style", "")):
            bold = soup.new_tag("b")
            bold.extend(list(element.contents))
            element.append(bold)
        element.attrs = {
            name: value for name, value in element.attrs.items() if name in ("colspan", "rowspan")
        }
        if element.name not in _ELEMENTS:
            element.unwrap()  # what it holds stays
    return pictures, re.sub(r"\s*\n\s*", "\n", str(soup)).strip()


def _take_pictures(soup: BeautifulSoup) -> list[tuple[bytes, str]]:
    """Take the pictures out of HTML; return those that it holds itself, with their alternative texts."""
    pictures = []
    for picture in soup.find_all("img"):
        kind, _, encoded = str(picture.get("src", "")).partition(";base64,")
        if kind.startswith("data:image/"):
            pictures.append((make_small_png(_decode(encoded)), str(picture.get("alt", ""))))
        picture.decompose()
    return pictures


def make_small_png(picture: bytes, width: int | None = None) -> bytes:
    """Return a picture as a PNG of at most 256 colours on white; a film as an animated PNG of `MOST_FRAMES` frames.

    ``width`` limits its width in pixels. PlainError if it is no picture.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(picture)) as opened:
            if getattr(opened, "n_frames", 1) > 1:
                return _make_film(opened, width)
            return _save([_put_on_white(opened, width)])
    except (OSError, SyntaxError, ValueError) as problem:
        raise PlainError("a picture of it cannot be read: run the page again") from problem


def _make_film(opened: Image.Image, width: int | None) -> bytes:
    """Return a film as an animated PNG of at most `MOST_FRAMES` frames, each `FILM_WIDTH` wide or less.

    Each frame that is kept lasts as long as those that it stands for: itself and the ones up to the next that is kept.
    """
    from PIL import ImageSequence

    step = math.ceil(opened.n_frames / MOST_FRAMES)
    frames, waits = [], []
    for number, frame in enumerate(ImageSequence.Iterator(opened)):
        waits.append(frame.info.get("duration") or 100)  # milliseconds
        if number % step == 0:
            frames.append(_put_on_white(frame, min(width or FILM_WIDTH, FILM_WIDTH)))

    milliseconds = [sum(waits[start : start + step]) for start in range(0, len(waits), step)]
    return _save(frames, milliseconds)


def _put_on_white(picture: Image.Image, width: int | None) -> Image.Image:
    """Return a picture without transparency, at most so many pixels wide."""
    from PIL import Image

    white = Image.new("RGBA", picture.size, "white")
    white.alpha_composite(picture.convert("RGBA"))
    flat = white.convert("RGB")

    if width and flat.width > width:
        height = round(flat.height * width / flat.width)
        flat = flat.resize((width, height), Image.Resampling.LANCZOS)
    return flat


def _save(frames: list[Image.Image], milliseconds: list[int] | None = None) -> bytes:
    """Return one frame as a PNG, or several as an animated one, with one palette: a PNG has room for no other."""
    from PIL import Image

    # one below the other, so that all of them are reduced to the same colours
    width, height = frames[0].size
    every = Image.new("RGB", (width, height * len(frames)))
    for number, frame in enumerate(frames):
        every.paste(frame, (0, number * height))

    # this method keeps rare colours, and smooth shades
    few = every.quantize(COLOURS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    tops = range(0, every.height, height)
    first, *rest = [few.crop((0, top, width, top + height)) for top in tops]

    file = io.BytesIO()
    if rest:
        first.save(
            file,
            "PNG",
            optimize=True,
            save_all=True,
            append_images=rest,
            duration=milliseconds,
            loop=0,
        )
    else:
        first.save(file, "PNG", optimize=True)
    return file.getvalue()
