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
            continue

        around = [source for each in sentences for source in each.sources_for_the_paragraph()]
        for sentence in sentences:
            if _OF_APPLES.search(sentence.text):
                known = sentence.sources() or around
                yield Statement(place, heading, sentence.text, ", ".join(dict.fromkeys(known)))


def _paragraphs(text: str) -> Iterator[tuple[bool, list[Token]]]:
    """Yield whether it is a heading, and the inline tokens, of each paragraph, item, heading and row of a table."""
    row: list[Token] | None = None
    is_heading = False
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "heading_open":
            is_heading = True
        elif token.type == "heading_close":
            is_heading = False
        elif token.type == "tr_open":
            row = []
        elif token.type == "tr_close" and row is not None:
            yield False, row
            row = None
        elif token.type == "inline":
            inline = token.children or []
            if row is None:
                yield is_heading, inline
            else:
                separator = [Token("text", "", 0, content=" | ")] if row else []
                row += [*separator, *inline]


def _sentences(tokens: Sequence[Token]) -> Iterator[_Sentence]:
    """Yield the sentences of a paragraph."""
    # Where a link or a mark begins in the text, so that each can be given to its sentence.
    text, found, emphasis = "", [], None
    for token in tokens:
        if token.type == "link_open":
            found.append((len(text), "link", str(token.attrs["href"])))
        elif token.type == "em_open":
            emphasis = len(text)
        elif token.type == "em_close" and emphasis is not None:
            word = text[emphasis:].strip().rstrip(".,:;").lower()
            if word in MARKS:
                found.append((emphasis, "mark", word))
            emphasis = None
        elif token.type in ("softbreak", "hardbreak"):
            text += " "
        elif token.type in ("text", "code_inline"):
            text += token.content

    start = 0
    ends = [match.end() for match in _END.finditer(text)] if " | " not in text else []
    for end in [*ends, len(text)]:
        own = [(kind, what) for at, kind, what in found if start <= at < end]
        links = tuple(what for kind, what in own if kind == "link")
        marks = tuple(what for kind, what in own if kind == "mark")
        yield _Sentence(" ".join(text[start:end].split()), links, marks)
        start = end


def no_claims() -> list[str]:
    """Return the sentences that name a thing of Apple's and claim nothing of it, in the order of their file."""
    lines = NO_CLAIMS.read_text(encoding="utf-8").splitlines()
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
