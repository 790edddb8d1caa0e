"""What stands behind ``# fast:`` on a page takes the place of the full value, and nothing else changes."""

from __future__ import annotations

import pytest

from metallab import fast_sizes


def taken(source: str) -> str:
    return "".join(fast_sizes.take_fast(source.splitlines(keepends=True)))


def value_of_x(source: str) -> object:
    space: dict[str, object] = {"dict": dict}
    exec(taken(source), space)
    return space["x"]


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("x = [64, 256]  # fast: [16]", [16]),
        ("x: int = 64  # fast: 16", 16),
        ("x = (64 +\n  1)  # fast: 16", 16),
        ("x, y = 64, 65  # fast: 1, 2", 1),
        ("é = 'ä'; x = 64  # fast: 16", 16),
        ("x = 64  # fast: 16  # rows and columns", 16),
        ("x = y = 64  # fast: 16", 16),
        ("x = dict(\n    n=64,  # fast: 16\n)", {"n": 16}),
        ("x = dict(\n    n=64  # fast: 16\n)", {"n": 16}),
        ("x = dict(n=64)  # fast: 16", 16),
        ("x = dict(\n    n=64,  # fast: 1\n)  # fast: 2", 2),
    ],
    ids=[
        "list", "annotated", "in-brackets", "two-names", "bytes-of-utf-8", "with-a-comment", "two-targets",
        "argument", "last-argument", "call", "call-with-argument",
    ],
)  # fmt: skip
def test_the_fast_value_takes_the_place_of_the_full_one(source, value):
    assert value_of_x(source) == value


@pytest.mark.parametrize(
    "source",
    [
        "x = 64  # 256 in fast mode",
        'x = "n = 64  # fast: 16"',
        'x = """\nn = 64  # fast: 16\n"""',
        "get_ipython().run_cell_magic('isolated', '', 'n = 64  # fast: 16\\n')",
        "print(64)  # fast: 16",
        "x == 64  # fast: 16",
        "# fast: 16\nx = 64",
        "x = (  # fast: 16",
    ],
    ids=[
        "other-words", "text", "long-text", "magic", "no-assignment", "comparison", "own-line", "no-python",
    ],
)  # fmt: skip
def test_anything_else_stays_as_it_is(source):
    assert taken(source) == source


def test_later_lines_keep_their_numbers():
    source = "x = [\n    64,\n    256,\n]  # fast: [16]\n1 / 0\n"
    assert taken(source).splitlines()[4] == "1 / 0"


def test_an_error_names_the_line():
    with pytest.raises(SyntaxError, match=r"^line 2: 'a trial' .* is no expression"):
        taken("x = 1\ny = 64  # fast: a trial\n")
