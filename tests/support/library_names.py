"""Which functions, methods and classes of the library the pages call: what a reader has to look up beside a page."""

from __future__ import annotations

import ast
import collections
import pathlib
import re

import nbformat
import torch
from matplotlib.axes import Axes

from metallab import paths

LIBRARIES = ("metallab", "metalsim")
FOLDERS = ("utils/metallab", "metalsim/src/metalsim")
APPLES = {"graph", "objc"}
"""Folders of metalsim whose names are Apple's: what they simulate is looked up in Apple's documentation."""
COMMON = {name for kind in (str, list, dict, set, pathlib.Path, torch.Tensor, Axes) for name in dir(kind)}
"""Names that objects of Python, PyTorch and Matplotlib have, too: which one is meant, the syntax does not say."""


def called_names() -> dict[str, set[str]]:
    """Find each public name of the library that a page calls.

    Returns
    -------
    dict of str to set of str
        The pages, by their number, that call a name. Names that a page defines itself, that another imported package is
        asked for, or that objects of `COMMON` have as well, are left out.
    """
    public, pages = _public_names(), collections.defaultdict(set)
    for path in sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb")):
        for name in _called(_tree(path), public):
            pages[name].add(path.name.partition("_")[0])
    return dict(pages)


def _public_names() -> set[str]:
    files = [file for folder in FOLDERS for file in (paths.ROOT / folder).rglob("*.py")]
    files = [file for file in files if not APPLES & set(file.relative_to(paths.ROOT).parts)]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text("utf-8")))]
    named = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in nodes if isinstance(node, named) and not node.name.startswith("_")} - COMMON


def _tree(path: pathlib.Path) -> ast.Module:
    cells = [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    return ast.parse("\n".join(re.sub(r"(?m)^(\s*)[%!].*$", r"\1pass", cell) for cell in cells))


def _called(tree: ast.Module, public: set[str]) -> set[str]:
    ours, others, found = set(), set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            module = getattr(node, "module", None)
            for alias in node.names:
                top = (module or alias.name).partition(".")[0]
                known = ours if top in LIBRARIES else others
                known.add(alias.asname or (alias.name if module else top))
                if module and top in LIBRARIES:
                    found.add(alias.name)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            others.add(node.name)
    for node in ast.walk(tree):
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if called and _first_name(node.func) not in others:
            found.add(node.func.attr)
        elif isinstance(node, ast.Attribute) and _first_name(node) in ours:
            found.add(node.attr)
    return (found & public) - others


def _first_name(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
