"""Our modules import what is there, and imports run one way: subpackages import the core, and nothing imports back.

`ARROWS` are the imports between subpackages that are allowed; CONTRIBUTING.md lists them.

The core is what lies at the top of `metallab`, `device` among it; any other folder there is a subpackage. The command,
`__main__`, may import all of them, and so may `exercises`, because the exercise of a page asks what the page is about.
Lines count wherever they stand, and so do strings that name a module, because code for a child process is text;
docstrings do not, nor do the lines of a page that `new_page` writes.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

import pytest

from metallab import paths

SOURCES = {
    "metallab": paths.ROOT / "utils",
    "metalsim": paths.ROOT / "metalsim" / "src",
    "metalsim_objc": paths.ROOT / "metalsim" / "objc" / "src",
}
CORE_FOLDERS = {"device", "isolated", "records", "timing"}
ABOVE = {"exercises"}
"""Subpackages that may import the others."""
ARROWS = {
    "classroom": {"authoring"},
    "doctor": {"pytorch"},
    "project": {"doctor", "pytorch"},
    "results": {"authoring"},
}
"""By subpackage, those that it may import beside the core."""
WRITES_PAGES = "metallab.authoring.new_page"
NAMED = re.compile(
    r"\bfrom (meta(?:llab|lsim)[\w.]*) import (\w+(?:, *\w+)*)|\b(?<!\.)(meta(?:llab|lsim)(?:\.\w+)*)"
)
FILES = {
    ".".join(file.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"): file
    for folder in SOURCES.values()
    for file in sorted(folder.rglob("*.py"))
}
TEXTS = {module: file.read_text("utf-8") for module, file in FILES.items()}


def imported(module: str, tree: ast.AST) -> Iterator[tuple[str, str | None]]:
    """Yield what a module imports, wherever the line stands: the other module, and the name from it.

    The name is None for ``import other``. What an import with dots means is written out.
    """
    package = module if FILES[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # one dot is the package itself, and each further one a package above
            above = (
                package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            )
            yield from (
                (".".join([*above, *filter(None, [node.module])]), alias.name)
                for alias in node.names
            )


def named(tree: ast.AST) -> Iterator[str]:
    """Yield our modules that a module's strings name, docstrings aside.

    A string may name one by its dotted name, or be code that imports it: ``from metallab import device, timing``. A
    package at the top is not yielded, since every sentence on the project names it.
    """
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in documentation
        ):
            for base, several, dotted in NAMED.findall(node.value):
                whole = [f"{base}.{one.strip()}" for one in several.split(",")]
                for name in whole if base else [dotted]:
                    module = module_of(name)
                    if "." in module:
                        yield module


def module_of(name: str) -> str:
    """The module of ours that a dotted name lies in; empty if there is none."""
    while name and name not in TEXTS:
        name = name.rpartition(".")[0]
    return name


@functools.cache
def bound(module: str) -> frozenset[str]:
    """What a module binds anywhere: assigned, defined or imported."""
    nodes = list(ast.walk(ast.parse(TEXTS[module])))
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assigned = {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    aliases = {
        (node.asname or node.name).split(".")[0] for node in nodes if isinstance(node, ast.alias)
    }
    return frozenset(defined | assigned | aliases)


def subpackage(module: str) -> str:
    """The subpackage of metallab that a module lies in; empty for the core and for what is not metallab's."""
    top = module.removeprefix("metallab.").partition(".")[0]
    inside = module.startswith("metallab.") and (SOURCES["metallab"] / "metallab" / top).is_dir()
    return top if inside and top not in CORE_FOLDERS else ""


@functools.cache
def read(module: str, text: str) -> tuple[frozenset[tuple[str, str | None]], frozenset[str]]:
    """What `imported` and `named` find in a module's text; what only a type checker imports makes no circle."""
    tree = ast.parse(text)
    return frozenset(imported(module, WithoutTypeChecking().visit(tree))), frozenset(named(tree))


class WithoutTypeChecking(ast.NodeTransformer):
    """Removes the bodies of ``if TYPE_CHECKING:``."""

    def visit_If(self, node):
        return ast.Pass() if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)


def faults(texts: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the imports of modules, whose texts are given by their names.

    Wrong are imports of what is not there, those that `fault_of` forbids, which strings may not name either, and those
    that run in a circle.
    """
    found, graph = [], defaultdict(set)

    for module, text in texts.items():
        imports, strings = read(module, text)
        for other, name in imports:
            if (target := target_of(other, name)) is not None:
                graph[module].add(target)
            if not is_there(other, name):
                found.append(f"{module} imports what is not there: {other}.{name}")

        # the strings of the module that writes pages are lines of pages, which may import anything
        named_there = set() if module == WRITES_PAGES else set(strings)
        for target in (graph[module] | named_there) - {module}:
            if (fault := fault_of(module, target)) is not None:
                found.append(f"{fault}: {module} -> {target}")

    try:
        graphlib.TopologicalSorter({module: graph[module] - {module} for module in texts}).prepare()
    except graphlib.CycleError as circle:
        found.append(f"in a circle: {' -> '.join(reversed(circle.args[1]))}")
    return found


def target_of(other: str, name: str | None) -> str | None:
    """The module of ours that an import reads: the name in it, where that is a module itself."""
    inner = f"{other}.{name}"
    if inner in TEXTS:
        return inner
    return other if other in TEXTS else None


def is_there(other: str, name: str | None) -> bool:
    """Say whether what is imported is there; of packages that are not ours nothing is asked."""
    if other.split(".")[0] not in SOURCES:
        return True
    if other not in TEXTS:
        return False
    return name is None or f"{other}.{name}" in TEXTS or name in bound(other)


def fault_of(module: str, target: str) -> str | None:
    """Say why a module may not know another one, or None if it may."""
    here, there = subpackage(module), subpackage(target)

    if module.startswith("metalsim") and target.startswith("metallab"):
        return "metalsim knows nothing of metallab"
    if target == "metallab.__main__":
        return "nothing imports the command"
    if module == "metallab.__main__" or here in ABOVE:  # these may know every subpackage
        return None
    if there and there not in {here, *ARROWS.get(here, ())}:
        return f"from {here or 'the core'} into {there}"
    return None


def test_the_arrows_are_those_of_the_guide():
    guide = (paths.ROOT / "CONTRIBUTING.md").read_text("utf-8")
    layout = guide.partition("## Layout")[2].partition("\n## ")[0]
    listed = re.findall(r"^- `(\w+)` imports (.*)$", layout, re.MULTILINE)
    assert {importer: set(re.findall(r"`(\w+)`", others)) for importer, others in listed} == ARROWS


def test_imports_run_one_way_and_are_there():
    assert faults(TEXTS) == []


PLANTED = {
    "core-into-a-subpackage": (
        "metallab.device.base",
        "def f():\n    from metallab.mlx import kernels",
        "from the core into mlx",
    ),
    "in-a-text": (
        "metallab.isolated",
        "TEXT = f'{1} python -m metallab.results.report'",
        "from the core into results",
    ),
    "in-words-of-a-command": (
        "metallab.results.report",
        "RUN = ['-m', 'metallab.headless']",
        "from results into headless",
    ),
    "against-an-arrow": (
        "metallab.pytorch.coverage",
        "from metallab.doctor import report",
        "from pytorch into doctor",
    ),
    "against-another-arrow": (
        "metallab.doctor.report",
        "from metallab import project",
        "from doctor into project",
    ),
    "without-an-arrow": (
        "metallab.project.state",
        "from metallab.versus import sides",
        "from project into versus",
    ),
    "out-of-metalsim": (
        "metalsim.errors",
        "from metallab import units",
        "metalsim knows nothing of metallab",
    ),
    "circle": ("metallab.units", "from metallab import timing", "in a circle"),
    "the-command": (
        "metallab.results.report",
        "from metallab.__main__ import Command",
        "nothing imports the command",
    ),
    "a-name-that-is-gone": (
        "metallab.units",
        "def f():\n    from .mode import limits_that_went",
        "not there: metallab.mode.limits_that_",
    ),
}
"""By what is wrong: a module, a line to add to it, and words of the fault."""


@pytest.mark.parametrize(("module", "line", "words"), PLANTED.values(), ids=PLANTED)
def test_a_planted_import_is_found(module, line, words):
    assert words in "\n".join(faults(TEXTS | {module: f"{TEXTS[module]}\n{line}\n"}))
