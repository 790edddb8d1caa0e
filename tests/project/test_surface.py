"""What others rely on is still there: ``surface.txt`` lists it, and a name may only be added.

A name that is taken away deliberately is taken out of ``surface.txt`` in the same commit.
``python tests/project/test_surface.py`` prints today's list.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import metalsim
from metallab import __main__ as command
from metallab import paths
from metalsim import pytest_plugin, shader

FROZEN = Path(__file__).with_name("surface.txt")
GUIDES = sorted(paths.ROOT.glob("docs/*.md"))
PAGES = ("README.md", "CONTRIBUTING.md", "classroom/README.md", "metalsim/README.md", *GUIDES)
MAKEFILE = (paths.ROOT / "Makefile").read_text("utf-8")


def options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))


def help_of(*arguments: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        command.main([*arguments, "--help"])
    return printed.getvalue()


class _Group:
    """Stands in for pytest's parser, and keeps the names of the options."""

    def __init__(self) -> None:
        self.options: set[str] = set()

    def getgroup(self, *_: str) -> _Group:
        return self

    def addoption(self, name: str, **_: object) -> None:
        self.options.add(name)


def surface() -> Iterator[tuple[str, set[str]]]:
    """(where, names) of all that is public."""
    for each in command.COMMANDS:
        yield f"metallab {each.name}", options(help_of(each.name))
    pytest_plugin.pytest_addoption(plugin := _Group())
    yield "pytest", plugin.options
    yield "metalsim", {*metalsim.__all__, *metalsim.FAULTS}
    yield "metalsim.shader", {*shader.__all__}
    texts = "\n".join((paths.ROOT / page).read_text("utf-8") for page in PAGES)
    yield "variables", set(re.findall(r"\bMETAL(?:LAB|SIM)_[A-Z_]+\b", texts))
    yield "make targets", set(re.findall(r"^([a-z][a-z-]*):.*##", MAKEFILE, re.MULTILINE))
    yield "make variables", set(re.findall(r"^([A-Z]+) +\?=", MAKEFILE, re.MULTILINE))


def test_no_public_name_is_lost():
    now = dict(surface())
    lost = {}
    for line in FROZEN.read_text("utf-8").splitlines():
        where, _, names = line.partition(": ")
        if missing := set(names.split(" | ")) - now.get(where, set()):
            lost[where] = sorted(missing)
    assert lost == {}


if __name__ == "__main__":
    for where, names in surface():
        print(f"{where}: {' | '.join(sorted(names))}")
