"""Fast sizes beside the full ones, on the page: ``sizes = [64, 256, 1024]  # fast: [16, 32]``.

A reader sees what is measured, and in the comment what a quick trial takes in its place. In a notebook ``import
metallab`` installs `take_fast` as an input transformer of IPython where ``METALLAB_MODE`` is ``fast``; from the next
cell on it puts the second value in the place of the first. It works wherever a kernel of Jupyter runs the page, because
it needs nothing of whoever runs it.

Such a comment counts behind an assignment and behind a keyword argument of a call that ends its line::

    short = timing.Budget(max_seconds=2)  # fast: timing.FAST
    race = timing.compare(
        variants,
        budget=short,  # fast: timing.FAST
    )

Everywhere else, in a text or behind a magic, it is a comment like any other.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MARK = "# fast:"
"""What such a comment begins with."""

_OPEN_END = {ast.Assign: "", ast.AnnAssign: "", ast.keyword: ","}
"""What may stand between each of these and the comment."""


@dataclass(frozen=True)
class FastSize:
    """A value on a page, and the one that fast mode takes. Places are (line, column), from 1 and from 0."""

    begin: tuple[int, int]
    """Behind the ``=`` of the full value."""
    end: tuple[int, int]
    """Behind the full value."""
    value: str
    """The fast value, as an expression of one line."""


def take_fast(lines: list[str]) -> list[str]:
    """Return a cell's lines of Python with the fast values in the place of the full ones, on the same lines.

    Parameters
    ----------
    lines
        Python, each line with its end: what IPython has made of magics.

    Raises
    ------
    SyntaxError
        If what stands behind ``# fast:`` is no expression; it names the line.
    """
    source = "".join(lines)
    found = find_fast(source)
    if not found:
        return lines

    rows = source.split("\n")
    for size in reversed(found):  # from the last on: what is before it keeps its place
        (first, begin), (last, end) = size.begin, size.end
        before, behind = rows[first - 1][:begin], rows[last - 1][end:]
        padding = "\n" * (last - first)  # so that later lines keep their numbers in a traceback
        rows[first - 1 : last] = f"{before} ({size.value}{padding}){behind}".split("\n")
    return "\n".join(rows).splitlines(keepends=True)


def find_fast(source: str) -> list[FastSize]:
    """Return the fast sizes of a cell in their order; none for one that is not Python. SyntaxError as `take_fast`."""
    if MARK not in source:
        return []
    try:
        tree = ast.parse(source)
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (SyntaxError, tokenize.TokenError):
        return []  # running the cell says what is wrong with it

    lines = source.split("\n")
    equals = [token.end for token in tokens if token.type == tokenize.OP and token.string == "="]
    comments = _find_marked_comments(tokens)

    found: list[FastSize] = []
    for node, value in _find_assignments(tree):
        row, end = _end_of(node, lines)
        comment = comments.get(row)
        if comment is None:
            continue
        between = lines[row - 1][end : comment.start[1]].strip()
        if between not in ("", _OPEN_END[type(node)]):
            continue

        start = _start_of(value, lines)
        # the = before the value; what stands between, such as a bracket, is replaced as well
        begin = max(place for place in equals if place <= start)
        found.append(FastSize(begin, (row, end), _read_expression(comment)))
    return _keep_outermost(found)


def _find_marked_comments(tokens: Iterable[tokenize.TokenInfo]) -> dict[int, tokenize.TokenInfo]:
    """Return the comments that name a fast size, by their line."""
    return {
        token.start[0]: token
        for token in tokens
        if token.type == tokenize.COMMENT and token.string.startswith(MARK)
    }


def _find_assignments(
    tree: ast.AST,
) -> Iterator[tuple[ast.Assign | ast.AnnAssign | ast.keyword, ast.expr]]:
    """Yield each assignment and each keyword argument, with its value."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign | ast.AnnAssign | ast.keyword):
            continue
        is_unpacked = isinstance(node, ast.keyword) and node.arg is None  # **options
        if node.value is not None and not is_unpacked:
            yield node, node.value


def _start_of(node: ast.expr, lines: list[str]) -> tuple[int, int]:
    """Return where a node begins, its column in characters: `ast` counts the bytes of UTF-8."""
    line = lines[node.lineno - 1].encode()
    return node.lineno, len(line[: node.col_offset].decode())


def _end_of(node: ast.stmt | ast.keyword, lines: list[str]) -> tuple[int, int]:
    """Return where a node ends, as `_start_of`."""
    row = node.end_lineno or node.lineno
    line = lines[row - 1].encode()
    return row, len(line[: node.end_col_offset].decode())


def _read_expression(comment: tokenize.TokenInfo) -> str:
    """Return the expression of a comment on one line, without what follows it. SyntaxError as `take_fast`."""
    row, column = comment.start
    text = comment.string.removeprefix(MARK).strip()
    try:
        return ast.unparse(ast.parse(text, mode="eval"))
    except (SyntaxError, ValueError):
        raise SyntaxError(
            f"line {row}: {text!r} behind '{MARK}' is no expression; "
            f"write the value that fast mode takes, as in '{MARK} 16'",
            ("<cell>", row, column + 1, comment.line),
        ) from None


def _keep_outermost(found: list[FastSize]) -> list[FastSize]:
    """Return the sizes in their order, without those that stand within another's full value."""
    kept: list[FastSize] = []
    for size in sorted(found, key=lambda size: (size.begin, [-place for place in size.end])):
        if not kept or size.begin >= kept[-1].end:
            kept.append(size)
    return kept
