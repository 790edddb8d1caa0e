"""The commands that README and the guides print, and what is known of each: `commands.toml` beside the test.

A command is a line of a block marked ``sh``, or code in a sentence that begins with the name of a program. Blocks
without a language show output or folders.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt

from metallab import paths

LIST = paths.ROOT / "tests" / "project" / "commands.toml"
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "classroom/README.md",
    "data/README.md",
    "data/results/README.md",
    "metalsim/README.md",
    "utils/README.md",
    "utils/metallab/language/data/README.md",
    *sorted(str(path.relative_to(paths.ROOT)) for path in paths.ROOT.glob("docs/*.md")),
)
PROGRAMS = (
    "conda",
    "git",
    "make",
    "metallab",
    "pip",
    "pytest",
    "python",
    "python3",
    "sudo",
    "xcode-select",
    "xcodebuild",
)
_BEGINS = re.compile(rf"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/\S+|{'|'.join(PROGRAMS)}) \S")


@dataclass(frozen=True)
class Documented:
    """A command of the documents that a test runs."""

    command: str
    status: int = 0
    runs: str = ""
    """What is run in its place, where it holds a name that the reader puts in; empty: the command itself."""
    nightly: bool = False
    """It takes long."""

    @property
    def line(self) -> str:
        """What a shell is given."""
        return self.runs or self.command


@dataclass(frozen=True)
class Known:
    """The list: what is run, and what is not, by the reason."""

    run: Sequence[Documented] = ()
    not_run: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def commands(self) -> list[str]:
        """Return each command that the list names, in its order."""
        return [each.command for each in self.run] + [
            each for listed in self.not_run.values() for each in listed
        ]


def read_list(path: Path = LIST) -> Known:
    """Return the list of known commands."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    return Known([Documented(**each) for each in data["run"]], data["not_run"])


def printed(text: str) -> Iterator[str]:
    """Yield the commands that a page of Markdown prints, without their comments."""
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "fence" and token.info.strip() == "sh":
            yield from _lines(token.content)
        for part in token.children or ():
            command = " ".join(part.content.split())
            if part.type == "code_inline" and _BEGINS.match(command):
                yield command


def commented(text: str) -> list[str]:
    """Return the commands of blocks that have a comment: zsh, a Mac's shell, takes it for words of the command."""
    return [
        command
        for token in MarkdownIt("commonmark").parse(text)
        if token.type == "fence" and token.info.strip() == "sh"
        for command in _whole_lines(token.content)
        if shlex.split(command, comments=True) != shlex.split(command)
    ]


def _lines(block: str) -> Iterator[str]:
    """Yield the commands of a block, without their comments."""
    for line in _whole_lines(block):
        if shlex.split(line, comments=True):
            yield _without_comment(line)


def _whole_lines(block: str) -> Iterator[str]:
    """Yield the lines of a block as they stand, those joined that a backslash or an open quotation mark joins."""
    begun = ""
    for line in block.replace("\\\n", " ").splitlines():
        begun = f"{begun}\n{line}" if begun else line
        try:
            shlex.split(begun, comments=True)
        except ValueError:  # a quotation mark is open
            continue
        yield begun
        begun = ""


def _without_comment(line: str) -> str:
    """The line up to a comment; in a text of several lines a comment belongs to the program."""
    if "\n" in line:
        return line.strip()
    return " ".join(re.sub(r"\s#\s.*", "", line).split())
