"""List what pages and documents say of Macs, sentence by sentence, each with its source: the table of a fact check.

``python tools/statements.py`` prints all of them, ``--missing`` those without a source, and ``--draw 40 --seed 7``
some to check, drawn at random. ``--format csv`` is for a spreadsheet.

A sentence counts if it names a thing of Apple's: a Mac, a chip, MPS, Metal, Core ML. Its source is one of these:

* a link to another site, or the number of an issue of PyTorch such as #194074, in the sentence or in its paragraph;
* a link to another page or document of this project, in the sentence itself: the source stands there;
* one of the four `MARKS`, in italics, in the sentence or in its paragraph.

A question claims nothing. Other sentences that name such a thing and claim nothing of it (what to do, what this
project's own code does, what a page is about, a definition) stand in tools/no_claims.txt. A person has put each of them
there: no rule can tell them from claims.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import random
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
from markdown_it import MarkdownIt
from markdown_it.token import Token

from metallab import paths

MARKS = ("simulated", "read in the wheel", "reported", "cannot be checked here")
"""The italics that tell how something of Macs is known where no link does: it ran on the simulated Apple GPU; it was
read in PyTorch's or another library's build for Macs; owners of Macs wrote it; nobody without a Mac can find out."""

DOCUMENTS = ("README.md", "docs/*.md", "classroom/*.md")
NO_CLAIMS = Path(__file__).with_name("no_claims.txt")

_OF_APPLES = re.compile(
    r"\b(Macs?|MacBooks?|macOS|Apple|[Mm][Pp][Ss]|M[1-6]|Metal(?! Lab)|MPSGraph|Xcode|Neural Engine"
    r"|Core ML|Core AI|MLX|Instruments|[Uu]nified memory|Accelerate|AMX)\b"
)
_ISSUE = re.compile(r"(?<![\w/])#\d{4,6}\b")
# A sentence ends before a space and a capital, a digit, a link, code or italics; not behind an abbreviation.
_END = re.compile(
    r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!cf\.)(?<!vs\.)[)*_\"]{0,2}\s+(?=[\"(*`\[]{0,3}[A-Z0-9`\[*])"
)


@dataclass(frozen=True)
class Statement:
    """A sentence that names a thing of Apple's.

    Parameters
    ----------
    place
        The page or document, from the checkout's root.
    heading
        The heading above it.
    text
        The sentence as it is read: links without their addresses.
    source
        Where it is known from: addresses, numbers of issues and `MARKS`, separated by commas; empty if there is none.
    """

    place: str
    heading: str
    text: str
    source: str


@dataclass(frozen=True)
class _Sentence:
    """A piece of a paragraph, with what in it tells a source."""

    text: str
    links: tuple[str, ...]
    marks: tuple[str, ...]

    def sources_for_the_paragraph(self) -> list[str]:
        """Return what vouches for the sentences around it as well."""
        outside = [link for link in self.links if link.startswith("http")]
        return [*outside, *self.marks, *_ISSUE.findall(self.text)]

    def sources(self) -> list[str]:
        """Return what vouches for this sentence."""
        inside = [link for link in self.links if not link.startswith(("http", "#"))]
        return [*self.sources_for_the_paragraph(), *inside]


def documents() -> list[Path]:
    """Return the pages and documents that are read, in order."""
    texts = [path for glob in DOCUMENTS for path in sorted(paths.ROOT.glob(glob))]
    return [*sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb")), *texts]


def markdown(path: Path) -> str:
    """Return the text of a document, or of the text cells of a page."""
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    cells = nbformat.read(path, nbformat.NO_CONVERT).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def statements(text: str, place: str) -> Iterator[Statement]:
    """Yield what a Markdown text says of Macs, claims and others alike.

    Parameters
    ----------
    text
        Markdown.
    place
        Its name, for the results.

    Yields
    ------
    Statement
        Each sentence that names a thing of Apple's, in order. A row of a table is a sentence.
    """
    heading = ""
    for is_heading, tokens in _paragraphs(text):
        sentences = list(_sentences(tokens))
        if is_heading:
            heading = " ".join(sentence.text for sentence in sentences)
        else:
            yield from _statements_of(sentences, place, heading)


def _statements_of(sentences: Sequence[_Sentence], place: str, heading: str) -> Iterator[Statement]:
    """Yield the sentences of a paragraph that name a thing of Apple's."""
    around = [source for each in sentences for source in each.sources_for_the_paragraph()]

    for sentence in sentences:
        if _OF_APPLES.search(sentence.text):
            known = sentence.sources() or around
            yield Statement(place, heading, sentence.text, ", ".join(dict.fromkeys(known)))


def _paragraphs(text: str) -> Iterator[tuple[bool, list[Token]]]:
    """Yield whether it is a heading, and the inline tokens, of each paragraph, item, heading and row of a table.

    Of a row the cells' tokens with `` | `` between them, by which `_sentences` knows it. Blocks of code have no inline
    tokens.
    """
    is_heading, is_row = False, False
    row: list[Token] = []

    for token in MarkdownIt("commonmark").enable("table").parse(text):
        match token.type:
            case "heading_open" | "heading_close":
                is_heading = token.type == "heading_open"
            case "tr_open":
                is_row, row = True, []
            case "tr_close":
                yield False, row
                is_row = False
            case "inline" if not is_row:
                yield is_heading, token.children or []
            case "inline":
                separator = [Token("text", "", 0, content=" | ")] if row else []
                row += [*separator, *(token.children or [])]


def _sentences(tokens: Sequence[Token]) -> Iterator[_Sentence]:
    """Yield the sentences of a paragraph, each with the links and marks that stand in it; a row of a table is one.

    ``tokens`` are those that `_paragraphs` yields.
    """
    text, links, marks = _flatten(tokens)
    is_table = " | " in text
    ends = [] if is_table else [match.end() for match in _END.finditer(text)]

    for start, end in itertools.pairwise([0, *ends, len(text)]):
        own_links = tuple(link for at, link in links if start <= at < end)
        own_marks = tuple(mark for at, mark in marks if start <= at < end)
        yield _Sentence(" ".join(text[start:end].split()), own_links, own_marks)


_Places = list[tuple[int, str]]
"""Where something begins in a text, and what it is."""


def _flatten(tokens: Sequence[Token]) -> tuple[str, _Places, _Places]:
    """Return the text of a paragraph as it is read, and where in it links and marks begin, with address or word.

    A mark is a word of `MARKS` in italics, without what punctuation stands with it there. Other italics are text.
    """
    text = ""
    links: _Places = []
    marks: _Places = []
    emphasis: int | None = None

    for token in tokens:
        match token.type:
            case "link_open":
                links.append((len(text), str(token.attrs["href"])))
            case "em_open":
                emphasis = len(text)
            case "em_close" if emphasis is not None:
                word = text[emphasis:].strip().rstrip(".,:;").lower()
                marks += [(emphasis, word)] if word in MARKS else []
                emphasis = None
            case "softbreak" | "hardbreak":
                text += " "
            case "text" | "code_inline":
                text += token.content
    return text, links, marks


def no_claims() -> list[str]:
    """Return the sentences that name a thing of Apple's and claim nothing of it, in the order of their file.

    The file says ``{pages}`` where the number of notebooks stands, so that a new one is no change of a sentence.
    """
    text = NO_CLAIMS.read_text(encoding="utf-8")
    pages = len(list(paths.NOTEBOOKS.glob("[0-9]*.ipynb")))
    lines = text.replace("{pages}", str(pages)).splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def claims(found: Iterable[Statement]) -> list[Statement]:
    """Return the statements that are neither questions, nor made by `make course`, nor in `NO_CLAIMS`."""
    others = set(no_claims())
    return [
        each
        for each in found
        if each.text not in others
        and not each.text.rstrip("* |").endswith("?")
        and not each.text.startswith("You need ")
    ]


def everything() -> list[Statement]:
    """Return all sentences of pages and documents that name a thing of Apple's."""
    return [
        statement
        for path in documents()
        for statement in statements(markdown(path), path.relative_to(paths.ROOT).as_posix())
    ]


def main(given: list[str] | None = None) -> int:
    """Print the statements that are asked for; return 0."""
    parser = argparse.ArgumentParser(
        prog="python tools/statements.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--missing", action="store_true", help="only what has no source")
    parser.add_argument(
        "--only", default="", help="only places that contain this, such as 23 or questions"
    )
    parser.add_argument("--draw", type=int, metavar="N", help="only N of them, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="for --draw (default: %(default)s)")
    parser.add_argument("--format", choices=("text", "csv"), default="text")
    wish = parser.parse_args(given)

    chosen = [each for each in claims(everything()) if wish.only in each.place]
    if wish.missing:
        chosen = [each for each in chosen if not each.source]
    if wish.draw is not None:
        chosen = random.Random(wish.seed).sample(chosen, min(wish.draw, len(chosen)))

    if wish.format == "csv":
        rows = csv.writer(sys.stdout)
        rows.writerow(["place", "heading", "statement", "source"])
        rows.writerows([each.place, each.heading, each.text, each.source] for each in chosen)
    else:
        for each in chosen:
            print(
                f"{each.place}, {each.heading}",
                f"  {each.text}",
                f"  source: {each.source or 'NONE'}",
                sep="\n",
            )
        print(f"{len(chosen)} statements")
    return 0


if __name__ == "__main__":
    sys.exit(main())
