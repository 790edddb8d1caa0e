"""Imports run one way: the rooms import the hallway, and nothing runs back, across, or in a circle.

The hallway is what lies at the top of `metallab`, `device` among it; a room is any other folder there. The command,
`__main__`, is the door: it leads into every room, and nothing leads to it. Lines count wherever they stand, and so do
strings that name a module: code for a child process is text. Docstrings do not, because nothing executes them; nor do
strings make a circle. ``python tests/test_architecture.py`` prints the drawing.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pytest
from test_imports import ROOT, files, imports

HALLWAY_FOLDERS = {"device"}
DOOR = "metallab.__main__"
NAMED = re.compile(r"\bfrom (meta(?:llab|lsim)[\w.]*) import (\w+(?:, *\w+)*)|\b(?<!\.)(meta(?:llab|lsim)(?:\.\w+)*)")


class Arrow(NamedTuple):
    """One module imports or names another, at a line."""

    source: str
    target: str
    line: int
    imported: bool
    """And not only named in a string."""

    def __str__(self) -> str:
        return f"{self.source} -> {self.target} (line {self.line})"


def sources() -> dict[str, str]:
    """Our own modules and their text."""
    return {
        ".".join(parts).removesuffix(".__init__"): file.read_text("utf-8") for parts, file in sorted(files().items())
    }


def arrows(texts: Mapping[str, str]) -> list[Arrow]:
    """Every arrow between modules."""
    return [arrow for source, text in texts.items() for arrow in _from(source, text, frozenset(texts))]


@functools.cache
def _from(source: str, text: str, modules: frozenset[str]) -> list[Arrow]:
    """The arrows that start at one module."""
    tree = ast.parse(text)
    package = source if any(name.startswith(f"{source}.") for name in modules) else source.rpartition(".")[0]
    drawn = [*_imported(tree, package, modules), *_named(tree, modules)]
    return [Arrow(source, *rest) for rest in drawn if rest[0] != source]


def _imported(tree: ast.AST, package: str, modules: frozenset[str]) -> Iterator[tuple[str, int, bool]]:
    for module, name, line in imports(tree, package):
        target = f"{module}.{name}" if f"{module}.{name}" in modules else module
        if target in modules:
            yield target, line, True


def _named(tree: ast.AST, modules: frozenset[str]) -> Iterator[tuple[str, int, bool]]:
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            for base, several, dotted in NAMED.findall(node.value):
                for name in [f"{base}.{one.strip()}" for one in several.split(",")] if base else [dotted]:
                    while name and name not in modules:
                        name = name.rpartition(".")[0]
                    if "." in name:
                        yield name, node.lineno, False


def room(module: str) -> str:
    """The room that a module of metallab lies in; empty for the hallway and for what is not metallab's."""
    top, _, rest = module.removeprefix("metallab.").partition(".")
    folder = (ROOT / "utils" / "metallab" / top).is_dir() or rest
    return top if module.startswith("metallab.") and folder and top not in HALLWAY_FOLDERS else ""


def wrong(drawn: list[Arrow]) -> list[str]:
    """What is wrong with a drawing, arrow by arrow."""
    faults = []
    for arrow in drawn:
        here, there = room(arrow.source), room(arrow.target)
        if arrow.source.startswith("metalsim") and arrow.target.startswith("metallab"):
            faults.append(f"the simulation knows nothing of metallab: {arrow}")
        elif arrow.target == DOOR:
            faults.append(f"the door is no part of the house: {arrow}")
        elif there and here != there and arrow.source != DOOR:
            faults.append(f"from {f'the room {here}' if here else 'the hallway'} into the room {there}: {arrow}")
    graph = defaultdict(set)
    for arrow in drawn:
        if arrow.imported:
            graph[arrow.source].add(arrow.target)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as circle:
        faults.append(f"in a circle: {' -> '.join(reversed(circle.args[1]))}")
    return faults


def test_imports_run_one_way():
    assert wrong(arrows(sources())) == []


@pytest.mark.parametrize(
    ("module", "line", "words"),
    [
        ("metallab.units", "import metallab.results", "from the hallway into the room results: metallab.units -> "),
        ("metallab.device.base", "def f():\n    from metallab.jax import networks", "the hallway into the room jax"),
        ("metallab.units", "from .headless import cli", "from the hallway into the room headless"),
        ("metallab.isolated", "TEXT = 'import os; from metallab import units, mpsgraph'", "into the room mpsgraph"),
        ("metallab.isolated", "TEXT = f'{1} python -m metallab.results.report'", "hallway into the room results"),
        ("metallab.detection.boxes", "from metallab import quantization", "the room detection into the room quant"),
        ("metallab.results.report", "RUN = ['-m', 'metallab.headless']", "the room results into the room headless"),
        ("metalsim.errors", "from metallab import units", "the simulation knows nothing of metallab: metalsim.errors"),
        ("metalsim.errors", "TEXT = 'import metallab.paths'", "the simulation knows nothing of metallab"),
        ("metalsim.graph.tensors", "from metalsim.graph import coreml", "in a circle: metalsim.graph"),
        ("metallab.units", "from metallab import timing", "in a circle: metallab."),
        ("metallab.results.report", "from metallab.__main__ import Command", "the door is no part of the house"),
    ],
)
def test_an_arrow_that_was_planted_is_named(module, line, words):
    texts = sources()
    told, *_ = wrong(arrows(texts | {module: f"{texts[module]}\n{line}\n"}))
    assert words in told
    assert module in told


def test_what_is_only_told_is_no_arrow():
    texts = sources()
    docstring = (
        '"""As `metallab.headless` does."""\nONE = 1\n"""See `metallab.results`."""\nNAME = "vnd.metallab.results"'
    )
    assert wrong(arrows(texts | {"metallab.units": docstring})) == []


if __name__ == "__main__":
    targets = defaultdict(set)
    for arrow in arrows(sources()):
        if arrow.source.startswith("metallab.") and arrow.target.startswith("metallab.") and not room(arrow.target):
            targets[room(arrow.source) or arrow.source].add(arrow.target.split(".")[1])
    for name, named in sorted(targets.items()):
        print(f"{name} -> {', '.join(sorted(named))}")
