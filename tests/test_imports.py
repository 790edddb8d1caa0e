"""Our own modules import what is there, also on lines that only a Mac reaches."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = {"metallab": ROOT / "utils", "metalsim": ROOT / "metalsim" / "src"}


def module_file(name: str) -> Path | None:
    """The file of a module of ours."""
    path = SOURCES[name.split(".")[0]].joinpath(*name.split("."))
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


@functools.cache
def names(file: Path) -> frozenset[str]:
    """What a module binds anywhere: assigned, defined or imported."""
    bound = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).split(".")[0])
    return frozenset(bound)


def imports(tree: ast.AST, package: str) -> Iterator[tuple[str, str | None, int]]:
    """What a module of a package imports, wherever the line stands: module, name in it, line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            yield from ((module, alias.name, node.lineno) for alias in node.names)


def missing(source: str, package: str) -> Iterator[str]:
    """What a source imports of our own packages, and what is not there."""
    for module, name, _ in imports(ast.parse(source), package):
        if module.split(".")[0] not in ("metallab", "metalsim"):
            continue
        file = module_file(module)
        if not file:
            yield module
        elif name and not module_file(f"{module}.{name}") and name not in names(file):
            yield f"{module}.{name}"


def files() -> dict[tuple[str, ...], Path]:
    """The modules of both packages, by the parts of their names."""
    folders = SOURCES.values()
    return {file.relative_to(folder).with_suffix("").parts: file for folder in folders for file in folder.rglob("*.py")}


def test_what_is_imported_is_there():
    faults = {
        str(file): names
        for parts, file in sorted(files().items())
        if (names := list(missing(file.read_text("utf-8"), ".".join(parts[:-1]))))
    }
    assert faults == {}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def f():\n    from metallab.pytorch import limits_that_went", ["metallab.pytorch.limits_that_went"]),
        ("import metallab.nowhere", ["metallab.nowhere"]),
        ("from metalsim.refusals import outcome, no_such", ["metalsim.refusals.no_such"]),
        ("from .refusals import no_such", ["metalsim.refusals.no_such"]),
        ("from . import refusals\nimport torch", []),
    ],
)
def test_what_is_not_there_is_found(source, names):
    assert list(missing(source, "metalsim")) == names
