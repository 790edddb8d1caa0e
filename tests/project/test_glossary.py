"""The glossary: each word is on the page that it names, once, and in the order of the alphabet."""

from __future__ import annotations

import re

import nbformat
import pytest

from metallab import paths

TEXT = (paths.ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| \*\*(.+?)\*\* \| (.+) \| \[(\w+)\]\(\.\./notebooks/([\w.]+)\) \|$", TEXT, re.MULTILINE
)
"""Word, sentence, number and file of the page."""


def holds(page, word):
    """Whether a notebook's text uses a word, in any of its forms and in capitals or not."""
    cells = nbformat.read(paths.NOTEBOOKS / page, nbformat.NO_CONVERT).cells
    text = " ".join(cell.source for cell in cells)
    return re.search(rf"(?<!\w){re.escape(word)}", re.sub(r"\s+", " ", text), re.IGNORECASE)


@pytest.mark.parametrize(
    ("word", "page"), [(row[0], row[3]) for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_the_page_of_a_word_uses_it(word, page):
    assert holds(page, word)


def test_a_word_that_is_not_on_its_page_is_found():
    assert holds("13_predict_a_calls_time.ipynb", "roofline")
    assert not holds("13_predict_a_calls_time.ipynb", "grappler")


def test_each_row_is_read():
    lines = [line for line in TEXT.splitlines() if line.startswith("| **")]
    assert len(lines) == len(ROWS) > 60


def test_a_page_goes_by_its_number():
    assert [number for _, _, number, file in ROWS if not file.startswith(f"{number}_")] == []


def test_words_stand_in_order_and_once():
    words = [row[0].lower() for row in ROWS]
    assert words == sorted(set(words))


def test_each_word_has_a_sentence():
    assert [row[0] for row in ROWS if not row[1].rstrip().endswith((".", ".)"))] == []


def test_readers_are_led_to_it():
    readme = (paths.ROOT / "README.md").read_text(encoding="utf-8")
    assert "](docs/glossary.md)" in readme
