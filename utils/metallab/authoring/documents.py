"""Documents for learners: copies of what the pages link to, beside the student copies, with links that lead there.

A folder of student copies is all that JupyterLab serves a learner, and on the hub all that a student's account has. So
README, guides, the licence, pictures and source code are copied there, at the paths that they have in the checkout;
the pages themselves lie at the top of the folder. What holds solutions stays behind: the pages as they ran, the
teacher's documents, the tests. A link to it becomes plain text.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import nbformat
from markdown_it import MarkdownIt
from markdown_it.token import Token

from metallab import paths
from metallab.authoring import contents

FOR_LEARNERS = (
    "README.md",
    "docs/questions.md",
    "docs/glossary.md",
    "docs/gallery.md",
    "docs/your_own_code.md",
    "docs/versus.md",
    "docs/paths.md",
    "docs/talks.md",
    "docs/test_mps_on_linux.md",
    "docs/first_hour_on_a_mac.md",
    "docs/setup.md",
    "docs/try_it.md",
    "metalsim/README.md",
    "data/README.md",
    "data/results/README.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "metalsim/LICENSE",
)
"""Documents that hold no solutions, in the order in which the page of contents lists those that are Markdown."""
FOR_TEACHERS = ("docs/half_day.md", "docs/quiz.md", "docs/teaching.md")
"""Documents that hold answers, wrong ones too: they are not copied."""
SOURCES = ("metalsim/src", "utils/metallab")
"""Folders of source code, none of which holds a solution. Of these everything but what Python makes is copied."""
_MADE_BY_PYTHON = re.compile(r"(^|/)(__pycache__|[^/]*\.egg-info|\.[^/]*)(/|$)")

_LINK = re.compile(
    r"""
    (?P<picture>!?)
    \[(?P<words>(?: [^][] | !\[[^][]*\]\([^()\s]*\) | \[[^][]*\] )*)\]
    \((?P<target>[^()\s]+(?:\([^()\s]*\)[^()\s]*)*)(?P<title>\s+"[^"]*")?\)
    """,
    re.VERBOSE,
)
_BLOCKS = MarkdownIt("commonmark").disable("inline")
"""Finds headings and blocks of code, and does not look into paragraphs."""
_MARKDOWN = MarkdownIt("commonmark")
_AS_THEY_RAN = "data/executed/"
_NOTHING = ""
"""In place of a target: the link goes, with its words."""
_CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`)((?:(?!\n[ \t]*\n).)+?)(?<!`)\1(?!`)", re.DOTALL)


@dataclass(frozen=True)
class Link:
    """A link or a picture in a text."""

    words: str
    """Its text, as Markdown; of a picture the alternative text."""
    target: str
    is_picture: bool = False
    is_aside: bool = False
    """It stands alone in parentheses."""


class Documents:
    """The documents of a checkout that go with student copies.

    Attributes
    ----------
    names : list of str
        Documents, pictures and source files that are copied, by their paths in the checkout, which are those of the
        copies in the folder as well. Those of `FOR_LEARNERS` come first.

    Raises
    ------
    OSError
        If one of `FOR_LEARNERS` is missing.
    """

    def __init__(self, root: Path = paths.ROOT) -> None:
        self.root = root
        texts = [*FOR_LEARNERS, *self._find_sources()]
        self.names = list(dict.fromkeys([*texts, *self._find_pictures(texts)]))
        self._copied = set(self.names)
        self._cells: dict[str, dict[str, str]] = {}

    def make_copy(self, name: str) -> bytes:
        """Return a document's copy: Markdown with links that lead to other copies, anything else as it is."""
        content = (self.root / name).read_bytes()
        if not name.endswith(".md"):
            return content

        text = content.decode()
        changed = self.relink(text, source=name, place=name)
        has_lost = len(find_links(changed)) < len(find_links(text))
        return (_describe_copy(name, has_lost=has_lost) + _add_anchors(changed)).encode()

    def read_titles(self) -> dict[str, str]:
        """Return the first heading of each Markdown document of `FOR_LEARNERS`, by its name."""
        texts = {
            name: (self.root / name).read_text(encoding="utf-8")
            for name in FOR_LEARNERS
            if name.endswith(".md")
        }
        return {name: found[0] for name, text in texts.items() if (found := find_headings(text))}

    def relink(self, text: str, source: str, place: str) -> str:
        """Return a Markdown text with links that lead to copies; of those that lead to none the words remain.

        Parameters
        ----------
        text
            The Markdown.
        source
            The path in the checkout of the file in which the text stands, such as ``notebooks/01_time_it_right.ipynb``.
        place
            The path of that file's copy in the folder, such as ``01_time_it_right.ipynb``.
        """
        return relink(text, lambda link: self._lead(link, source, place))

    def _find_sources(self) -> Iterator[str]:
        """Find the files of source code."""
        for folder in SOURCES:
            for path in sorted((self.root / folder).rglob("*")):
                name = path.relative_to(self.root).as_posix()
                if path.is_file() and not path.is_symlink() and not _MADE_BY_PYTHON.search(name):
                    yield name

    def _find_pictures(self, texts: Iterable[str]) -> Iterator[str]:
        """Find the pictures that documents show."""
        for name in texts:
            if name.endswith(".md"):
                for link in find_links((self.root / name).read_text(encoding="utf-8")):
                    target, _ = resolve(name, link.target)
                    if link.is_picture and target and (self.root / target).is_file():
                        yield target

    def _lead(self, link: Link, source: str, place: str) -> str | None:
        """Return where a link leads from a copy; None where its target is not copied.

        `_NOTHING` for an aside, a link alone in parentheses, to a page as it ran: it goes with its words.
        """
        target, fragment = resolve(source, link.target)
        # an address elsewhere, or a heading of the document itself
        if target is None or target == source:
            return link.target

        page = _find_page(target, link)
        if page:
            return _relate(place, page) + self._lead_to_cell(page, fragment)
        if target in self._copied:
            return _relate(place, target) + fragment
        return _NOTHING if link.is_aside and target.startswith(_AS_THEY_RAN) else None

    def _lead_to_cell(self, page: str, fragment: str) -> str:
        """Return a link's heading of a page as its cell: JupyterLab finds headings only of a page that is open."""
        cell = self._find_cells(page).get(fragment.removeprefix("#"))
        return f"#cell-id={cell}" if cell else fragment

    def _find_cells(self, page: str) -> dict[str, str]:
        """Return the id of the cell in which each heading of a page stands, by the name that JupyterLab gives it."""
        if page in self._cells:
            return self._cells[page]

        path = self.root / "notebooks" / page
        found: dict[str, str] = {}
        for cell in nbformat.read(path, 4).cells if path.is_file() else ():
            words = find_headings(cell.source) if cell.cell_type == "markdown" else []
            for heading in words:
                found.setdefault(heading.replace(" ", "-"), cell.id)
        self._cells[page] = found
        return found


def resolve(source: str, target: str) -> tuple[str | None, str]:
    """Return the file of the checkout that a link of a document names, and the rest of the link, from its ``#`` on.

    The file is None for an address elsewhere, and for a heading of the document itself.
    """
    file, mark, heading = target.partition("#")
    if not file or re.match(r"[a-z][a-z0-9+.-]*:", file):
        return None, mark + heading
    return os.path.normpath(PurePosixPath(source).parent / file), mark + heading


def _find_page(target: str, link: Link) -> str | None:
    """Return the page to whose copy a link leads; None if it leads to none.

    A picture that leads to a page as it ran leads to the reader's copy. Words do not: they promise what was printed.
    """
    folder, _, name = target.rpartition("/")
    is_page = name.endswith(".ipynb") and folder == "notebooks"
    is_picture_of_page = (
        name.endswith(".ipynb") and folder.startswith(_AS_THEY_RAN) and link.words.startswith("![")
    )
    return name if is_page or is_picture_of_page else None


def _relate(place: str, target: str) -> str:
    """Return a path in the folder as a link of the file at ``place``."""
    return PurePosixPath(os.path.relpath(target, PurePosixPath(place).parent)).as_posix()


def _describe_copy(name: str, *, has_lost: bool) -> str:
    """Return the line above a copied document: where one is, and what is not here."""
    line = f"*[{contents.FILE}]({_relate(name, contents.FILE)}) / {name}"
    if has_lost:
        line += ". Words that led to pages with solutions or to documents for teachers are no links here."
    return f"{line}*\n\n"


# ---------------------------------------------------------------- Markdown


def find_links(text: str) -> list[Link]:
    """Return the links and pictures of a Markdown text, those in code left out; a picture comes after its link."""
    found = []

    def look(link: Link) -> str:
        found.append(link)
        return link.target

    relink(text, look)
    return found


def relink(text: str, new_target: Callable[[Link], str | None]) -> str:
    """Return a Markdown text with other targets of its links and pictures; what is code stays as it is.

    Parameters
    ----------
    text
        The Markdown.
    new_target
        Returns the target that a link gets; None for one of which only the words remain, and an empty text for an
        aside that goes.
    """
    parts, done = [], 0
    # links are found where code is masked, which changes no place; their words, which may hold code, are the text's own
    for found in _LINK.finditer(_mask_code(text)):
        start, end = found.span()
        words, target = (text[slice(*found.span(group))] for group in ("words", "target"))
        is_aside = text[start - 2 : start] == " (" and text[end : end + 1] == ")"
        new = new_target(Link(words, target, is_picture=bool(found["picture"]), is_aside=is_aside))
        if "![" in words:  # a picture that is a link: it has a target of its own
            words = relink(words, new_target)

        if is_aside and new == _NOTHING:
            # with its parentheses and the space before them
            start, end, shown = start - 2, end + 1, ""
        elif new is None:
            shown = words
        else:
            shown = f"{found['picture']}[{words}]({new}{found['title'] or ''})"
        parts += [text[done:start], shown]
        done = end
    return "".join([*parts, text[done:]])


def find_headings(text: str) -> list[str]:
    """Return the words of a Markdown text's headings."""
    return [words for _, words in _walk_headings(text)]


def _walk_headings(text: str) -> Iterator[tuple[Token, str]]:
    """Find the headings: the token that opens each, and its words."""
    opened = None
    for token in _MARKDOWN.parse(text):
        if opened is not None:
            parts = token.children or []
            words = [part.content for part in parts if part.type in ("text", "code_inline")]
            yield opened, "".join(words)
        opened = token if token.type == "heading_open" else None


def _mask_code(text: str) -> str:
    """Return a text of the same length with an x for each character of code."""
    lines = text.splitlines(keepends=True)
    for token in _BLOCKS.parse(text):
        if token.type in ("fence", "code_block") and token.map is not None:
            for number in range(*token.map):
                lines[number] = re.sub(r"[^\n]", "x", lines[number])
    return _CODE_SPAN.sub(lambda found: re.sub(r"[^\n]", "x", found[0]), "".join(lines))


def _add_anchors(text: str) -> str:
    """Name each heading as GitHub names it, which links to headings rely on: JupyterLab's own names are others."""
    lines = text.splitlines(keepends=True)
    seen: Counter[str] = Counter()

    for token, words in _walk_headings(text):
        if not token.markup.startswith("#") or token.map is None:  # an underlined heading
            continue

        name = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        number, line = seen[name], token.map[0]
        seen[name] += 1
        anchor = f'<a id="{name}-{number}"></a>' if number else f'<a id="{name}"></a>'
        lines[line] = f"{lines[line].rstrip()}{anchor}\n"
    return "".join(lines)
