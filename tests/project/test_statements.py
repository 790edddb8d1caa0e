"""What pages and documents say of Macs has a source, which tools/statements.py finds."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import Counter

import pytest

from metallab import paths


def _tool():
    spec = importlib.util.spec_from_file_location("statements", paths.ROOT / "tools/statements.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where a dataclass looks its annotations up
    spec.loader.exec_module(module)
    return module


statements = _tool()
A_RESULT = re.compile(r"\d\s*(?:%|times (?:as|its|the)|µs|ms\b|GB/s|TFLOP|GFLOP|TOPS|tokens/s)")


def told(text: str) -> list[tuple[str, str]]:
    """The statements of a text, each with its source."""
    return [(each.text, each.source) for each in statements.statements(text, "a.md")]


SOURCES = {
    "a link in the sentence": (
        "A Mac [copies](https://a.org/b).",
        [("A Mac copies.", "https://a.org/b")],
    ),
    "a link in the paragraph": (
        "A Mac copies. [See](https://a.org).",
        [("A Mac copies.", "https://a.org")],
    ),
    "a link in another paragraph": (
        "A Mac copies.\n\n[See](https://a.org).",
        [("A Mac copies.", "")],
    ),
    "a mark": ("A Mac waits (*reported*).", [("A Mac waits (reported).", "reported")]),
    "a mark for what follows": (
        "*Reported*: a Mac waits. So does macOS.",
        [("Reported: a Mac waits.", "reported"), ("So does macOS.", "reported")],
    ),
    "other italics": ("A *Mac* waits, *rumoured*.", [("A Mac waits, rumoured.", "")]),
    "the word without italics": (
        "A Mac waits, as reported.",
        [("A Mac waits, as reported.", "")],
    ),
    "an issue of PyTorch": ("On `mps` it raises (#194074).", [("On mps it raises (#194074).", "#194074")]),
    "a page of ours, in the sentence": (
        "An M1 is slow: [page](02.ipynb#a). An M2, too.",
        [("An M1 is slow: page.", "02.ipynb#a"), ("An M2, too.", "")],
    ),
    "a heading of the same page": ("A Mac waits: [below](#below).", [("A Mac waits: below.", "")]),
    "a row of a table": (
        "| chip | *reported* |\n|---|---|\n| M1 | 68 |\n| M2. Pro | [100](https://a.org) |",
        [("M1 | 68", ""), ("M2. Pro | 100", "https://a.org")],
    ),
    "a heading, code, other things": ("# On a Mac\n\n```sh\nmake mac # Mac\n```\n\nNo metal here.", []),
    "an abbreviation": ("Use a Mac, e.g. M1 or M2, today.", [("Use a Mac, e.g. M1 or M2, today.", "")]),
    "our own name": ("Metal Lab is free.", []),
}  # fmt: skip
"""What is written, and the statements of it with their sources."""


@pytest.mark.parametrize(("text", "expected"), SOURCES.values(), ids=SOURCES)
def test_a_source_is_found_where_a_reader_finds_it(text, expected):
    assert told(text) == expected


def test_the_heading_and_the_place_are_told():
    (found,) = statements.statements("# A\n\nText.\n\n## B *c*\n\nA Mac.", "docs/a.md")

    assert found.place == "docs/a.md"
    assert found.heading == "B c"


def test_each_claim_on_macs_has_a_source():
    missing = [each for each in statements.claims(statements.everything()) if not each.source]
    assert not missing, (
        "give each a link or one of the marks; if it claims nothing of a Mac, it belongs in tools/no_claims.txt"
    )


def test_what_claims_nothing_stands_once():
    listed = Counter(statements.no_claims())

    assert [line for line, times in listed.items() if times > 1] == []


def test_what_claims_nothing_is_still_there():
    there = {each.text for each in statements.everything()}

    assert [line for line in statements.no_claims() if line not in there] == []


def test_a_result_is_a_claim():
    assert [line for line in statements.no_claims() if A_RESULT.search(line)] == []


@pytest.fixture
def draw(capsys):
    """Return a function that draws five statements, and returns what is printed."""

    def print_draw(seed):
        assert statements.main(["--draw", "5", "--seed", seed]) == 0
        return capsys.readouterr().out

    return print_draw


def test_a_draw_is_repeated_by_its_seed(draw):
    first = draw("1")

    assert first.endswith("5 statements\n")
    assert draw("1") == first
    assert draw("2") != first
