"""The PyObjC names and selectors that this project uses, beside those that PyObjC has.

PyObjC's source archives hold what it read from Apple's headers (``metadata/**/arm64-*.fwinfo``). Its wheels hold only
what cannot be learnt from the frameworks of the Mac they run on, and no list of selectors.
"""

from __future__ import annotations

import ast
import json
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODULES = ("Foundation", "Metal", "MetalPerformanceShaders", "MetalPerformanceShadersGraph")
NAME = re.compile(r"(MPS|MTL|NS)[A-Z]\w*")
"""Of a class, a constant or a function of the frameworks."""
SELECTOR = re.compile(r"[A-Za-z]\w*[a-z0-9][A-Z]\w*_|[a-z]+[A-Z]\w*")
"""As Python spells it. One word without arguments (``shape``) could be anything and is not looked at; Python's own
names have no capitals."""
ELSEWHERE = {
    **dict.fromkeys(("instancesRespondToSelector_", "isEqual_"), "NSObject's, in headers of the Objective-C run time"),
    **dict.fromkeys(("blobFileValue", "immediateValue", "mlProgram", "tensorType"), "protocol buffers of Core ML"),
    "PyTorch_": "a label before a number",
    **dict.fromkeys(("macOS13", "mT", "setLevel", "transAxes"), "Python's: coremltools, PyTorch, logging, Matplotlib"),
}
"""What looks like a selector of the frameworks and is none, with what it is."""
KINDS = ("aliases", "classes", "enum", "enum_type", "externs", "formal_protocols", "functions", "literals", "typedefs")


@dataclass
class Frameworks:
    """What PyObjC's metadata of some frameworks says. The same selector may be in several classes."""

    names: set[str] = field(default_factory=set)
    values: dict[str, int] = field(default_factory=dict)
    """Of the constants."""
    methods: dict[str, dict[str, tuple[str, str]]] = field(default_factory=dict)
    """By class or protocol and selector, with ``+`` or ``-``: its arguments' encodings, and the first macOS."""

    def add(self, definitions: Mapping[str, Any]) -> None:
        """Take in the ``definitions`` of a framework."""
        self.names.update(name for kind in KINDS for name in definitions[kind])
        self.values.update({name: each["value"] for name, each in definitions["enum"].items()})
        for owner, each in {**definitions["formal_protocols"], **definitions["classes"]}.items():
            methods = self.methods.setdefault(owner, {})
            parts = [each, *definitions["informal_protocols"].values(), *each.get("categories", ())]
            for method in (method for part in parts if isinstance(part, dict) for method in part.get("methods", ())):
                encodings = " ".join(argument["typestr"] for argument in method["args"])
                sign = "+" if method["class_method"] else "-"
                methods[sign + method["selector"]] = encodings, method.get("introduced") or ""

    @property
    def selectors(self) -> dict[str, str]:
        """The first macOS of each selector, by its name in Python; that of the class which had it first."""
        since_of: dict[str, str] = {}
        for methods in self.methods.values():
            for selector, (_, since) in methods.items():
                name = selector[1:].replace(":", "_")
                since_of[name] = min(since_of.get(name, since), since, key=version)
        return since_of


@dataclass(frozen=True, order=True)
class Use:
    """A name or selector in the project's code."""

    name: str
    where: str
    """``metalsim/src/metalsim/graph/metal.py:12``."""

    @property
    def is_selector(self) -> bool:
        return not NAME.fullmatch(self.name)


def read(archives: Iterable[Path]) -> Frameworks:
    """The metadata in PyObjC's source archives (``.tar.gz``). ValueError for one that has none."""
    frameworks = Frameworks()
    for path in archives:
        with tarfile.open(path) as archive:
            members = [m for m in archive.getmembers() if re.search(r"/metadata/.*/arm64-[\d.]+\.fwinfo$", m.name)]
            if not members:
                raise ValueError(f"{path.name} has no metadata: does PyObjC keep it elsewhere now?")
            for member in members:
                text = archive.extractfile(member).read().decode()
                frameworks.add(json.loads(text[text.index("{") :])["definitions"])
    return frameworks


def uses(source: str, where: str) -> Iterator[Use]:
    """The names and selectors in Python code, that in its strings included."""
    tree = ast.parse(source)
    # the pieces of an f-string are pieces of selectors
    pieces = {piece for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for piece in node.values}
    for node in ast.walk(tree):
        place = f"{where}:{getattr(node, 'lineno', 1)}"
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in pieces:
            yield from _in_a_string(node.value, place)
        names = {
            ast.Attribute: lambda node: [node.attr],
            ast.FunctionDef: lambda node: [node.name],
            ast.ImportFrom: lambda node: [alias.name for alias in node.names] if node.module in MODULES else [],
        }.get(type(node), lambda node: [])(node)
        yield from (Use(name, place) for name in names if NAME.fullmatch(name) or SELECTOR.fullmatch(name))


def _in_a_string(text: str, place: str) -> Iterator[Use]:
    spelled = text.replace(":", "_")
    if re.fullmatch(r"\w+:(\w+:)*|\w+_", text) and SELECTOR.fullmatch(spelled):
        yield Use(spelled, place)
    elif "\n" in text and "import " in text:
        try:
            ast.parse(text)
        except SyntaxError:  # prose
            return
        yield from (Use(use.name, place) for use in uses(text, ""))


def of_the_project(root: Path) -> list[Use]:
    """Each name and selector where it is used first."""
    folders = ("utils/metallab/mpsgraph", "tests/conformance", "metalsim/src/metalsim/graph")
    texts = {path: path.read_text() for folder in folders for path in sorted((root / folder).rglob("*.py"))}
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        lines = [line for cell in cells for line in "".join(cell["source"]).splitlines()]
        texts[path] = "\n".join(re.sub(r"^(\s*)[%!].*", r"\1pass", line) for line in lines)
    uses_of: dict[str, Use] = {}
    for path, text in texts.items():
        for use in uses(text, str(path.relative_to(root))):
            uses_of.setdefault(use.name, use)
    return sorted(use for use in uses_of.values() if use.name not in ELSEWHERE)


def version(text: str) -> tuple[int, ...]:
    """``"15.0"`` as numbers; () if it is not said."""
    return tuple(map(int, re.findall(r"\d+", text)))
