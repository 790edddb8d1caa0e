"""The gallery, ``docs/gallery.md``: of each page a picture and its words, what one learns there, and links to copies.

The picture is that of the page's headline, or in place of a few intervals its first other one.
"""

from __future__ import annotations

import base64
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import nbformat

from metallab import paths
from metallab.results.publish import caption, copies, executed, plain
from metallab.results.publish.executed import ExecutedPage, ExecutedSet

GALLERY = paths.ROOT / "docs" / "gallery.md"
README = paths.ROOT / "README.md"
PICTURE_NAME_END = "_gallery.png"
"""How the name of a picture ends that the gallery shows in place of a headline's."""

_INTRODUCTION = """\
# Gallery

The notebooks as they ran, to read before installing anything. No Mac has run them yet:
[yours would be the first](first_hour_on_a_mac.md). `make show` writes this page; what it links to was run in full mode,
from the first cell to the last."""


def render_gallery(sets: Sequence[ExecutedSet], there: str = "../data/executed") -> str:
    """Return the gallery: each page's picture, what it teaches, and links to each machine that ran all of it.

    Parameters
    ----------
    sets
        What is stored. Of several copies of a page `copies.choose_copy` chooses the one whose picture is shown.
    there
        The folder of the sets, seen from the gallery.
    """
    learned = read_lessons()
    parts = [_INTRODUCTION]
    for name, linked in copies.find_linked(sets).items():
        page = copies.choose_copy([each.pages[name] for each in linked])
        if page is None:
            continue

        links = [
            f"[{each.summary.label}]({there}/{each.folder.name}/{name}.ipynb), "
            f"{caption.describe_revision(each.pages[name].record.machine)}"
            for each in linked
        ]
        what = learned.get(f"{name}.ipynb", "")
        parts.append(_render_part(page, what, f"{there}/{page.folder.name}", "; ".join(links)))

    return "\n\n".join(parts) + "\n"


def _render_part(page: ExecutedPage, learned: str, folder: str, links: str) -> str:
    """Return a page's part of the gallery: title, picture and what it says, what one learns, links."""
    lines = [f"## {page.entry.number} {page.entry.title.partition(':')[0]}"]

    picture = find_picture(page)
    if picture is not None:
        shortened = textwrap.shorten(picture.alternative_text, 160, placeholder=" ...")
        # Between the brackets of a picture's link, units such as [ms] stand in round ones.
        words = re.sub(r"[\\|*`<>]", " ", shortened.replace("[", "(").replace("]", ")"))
        lines.append(f"[![{words}]({folder}/results/{picture.name})]({folder}/{page.path.name})")
        if picture.says:
            lines.append(picture.says)

    end = "" if learned.endswith("?") else "."
    lines.append(f"{learned[:1].upper()}{learned[1:]}{end} *{links}*")
    return "\n\n".join(lines)


def read_lessons() -> dict[str, str]:
    """Return what one learns on each page, from README, by file name."""
    rows = re.findall(
        r"^\| \[\w+\]\(notebooks/([\w.]+)\) \|.*\| (.*) \|$",
        README.read_text("utf-8"),
        re.MULTILINE,
    )
    return dict(rows)


# --- a page's picture ---


@dataclass(frozen=True)
class Picture:
    """What the gallery shows of a page."""

    name: str
    """Of the file, in the folder ``results`` of the page's set."""
    alternative_text: str
    says: str
    """The first sentence of its caption; empty if it has none."""
    content: bytes | None = None
    """The PNG; None for that of the headline, whose file is there."""


def find_picture(page: ExecutedPage) -> Picture | None:
    """Return the picture that a page is about; None if all that it has are intervals of speed-ups.

    That is the picture of its headline. A few intervals say little to somebody who looks around, so in their place
    stands the page's first other picture, one with a caption if there is any.
    """
    drawn = _read_pictures(page)
    headline = page.record.headline
    if page.picture and headline and not _shows_intervals(headline.alternative_text):
        words = headline.alternative_text
        same = [each for each in drawn if _read_title(each.alternative_text) == _read_title(words)]
        says = same[0].says if same else ""
        return Picture(page.picture.name, words, says)

    others = [each for each in drawn if not _shows_intervals(each.alternative_text)]
    return min(others, key=_lacks_caption, default=None)


def _read_title(words: str) -> str:
    """Return the title of a picture, with which its alternative text begins; a headline's ends in other numbers."""
    return words.partition(". ")[0]


def _shows_intervals(words: str) -> bool:
    """Return whether a picture is one of intervals of speed-ups, by its alternative text (`plots.speed_ups`)."""
    return words.startswith("Speed-up over") or " times as " in words


def _lacks_caption(picture: Picture) -> bool:
    """Return whether nothing is said of a picture."""
    return not picture.says


def _read_pictures(page: ExecutedPage) -> list[Picture]:
    """Return the pictures in a stored page's outputs that have words, each with the beginning of its caption."""
    name = f"{page.entry.name}{PICTURE_NAME_END}"  # that it gets if the gallery shows it
    cells = nbformat.read(page.path, 4).cells
    drawn = []
    for cell, after in zip(cells, [*cells[1:], None], strict=True):  # a caption is the cell behind
        says = ""
        if after is not None and "caption" in after.metadata.get("tags", ()):
            says = _find_first_sentence(after.source)

        for output in cell.get("outputs", ()):
            content = output.get("data", {}).get("image/png")
            words = output.get("metadata", {}).get("image/png", {}).get("alt", "")
            if content and words:
                drawn.append(Picture(name, words, says, base64.b64decode(content)))
    return drawn


def _find_first_sentence(text: str) -> str:
    """Return the first sentence of a caption, its links as their words."""
    words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(text.split()))
    return re.split(r"(?<=[.?!]) (?=[A-Z*`])", words)[0]


def write_pictures(sets: Sequence[ExecutedSet]) -> None:
    """Write the pictures of the gallery that are no headline's, and remove those of earlier galleries.

    They lie in the folder ``results`` of the set whose copy of the page is shown, beside those of headlines.
    """
    written = set()
    for name, linked in copies.find_linked(sets).items():
        page = copies.choose_copy([each.pages[name] for each in linked])
        picture = find_picture(page) if page is not None else None
        if page is None or picture is None or picture.content is None:
            continue

        target = page.folder / "results" / picture.name
        paths.write_atomically(
            target, plain.make_small_png(picture.content, executed.PICTURE_WIDTH)
        )
        written.add(target)

    for folder in {each.folder for each in sets}:
        for path in (folder / "results").glob(f"*{PICTURE_NAME_END}"):
            if path not in written:
                path.unlink()
