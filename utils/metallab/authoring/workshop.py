"""Student copies: every notebook without its solutions: ``make lab``.

The notebooks in the repository are complete; what students get is derived from them and never committed, so that the
two cannot drift apart. A copy runs from top to bottom: an exercise that is not attempted says so and raises nothing.
Beside the copies lie a page of contents (`metallab.authoring.contents`) and the documents that they link to
(`metallab.authoring.documents`). ``python -m metallab.authoring.workshop FOLDER`` writes all of it elsewhere.

Nothing that a student changed is overwritten. A notebook's metadata tell what it was when it was written; of documents
the file `RECORD` in the same folder does.
"""

from __future__ import annotations

import base64
import hashlib
import json
import mimetypes
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any

import nbformat
from nbconvert.preprocessors import ClearOutputPreprocessor, TagRemovePreprocessor

from metallab import paths, units
from metallab.authoring import contents, course, documents

WORKSHOP = paths.ROOT / "workshop"
RECORD = ".copies.json"
"""The file in a folder of copies that holds the digest of each document that was written there, by its path."""
OLD_LINKS = ("README.md", "docs", "metalsim", "utils")
"""What earlier versions linked from `WORKSHOP` into the checkout."""
FOR_STUDENTS = (
    *(".venv", ".venv-coreai", ".venv-python"),
    *("classroom", "constraints.txt", "data", "metalsim", "pyproject.toml", "utils"),
)
"""What a student's account reads of the checkout, besides the copies."""
CHECK = re.compile(r"check-\d")
"""The id of a cell that checks an exercise."""
_UNREADABLE = (OSError, ValueError, TypeError, LookupError, RecursionError)
"""What reading something as a student copy raises that is none."""


class Unpaired(ValueError):
    """A notebook whose solutions and exercises do not pair up."""


class Damaged(ValueError):
    """A file that cannot be read as a notebook."""


class Given(Enum):
    """What became of a file that a student is given."""

    WRITTEN = "written"
    UP_TO_DATE = "up to date"
    """The student has this version, or had it and changed it."""
    KEPT = "kept"
    """What lies there is the student's, or an older version that the student has changed."""


@dataclass
class Outcome:
    """What was done to files of a folder of copies: what was up to date is in neither list."""

    written: list[Path] = field(default_factory=list)
    kept: list[Path] = field(default_factory=list)
    """Those of the student's, or changed by the student, of which there is a newer version."""

    def add(self, target: Path, given: Given) -> None:
        """Enter what became of a file."""
        if given is Given.WRITTEN:
            self.written.append(target)
        elif given is Given.KEPT:
            self.kept.append(target)


def make_copy(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a copy without solutions and outputs: behind each stub stands the line that checks it.

    A solution tagged ``worked`` stays as text to unfold. `Unpaired` unless each solution follows a cell tagged
    ``exercise``: what it leaves behind is that stub.
    """
    _assert_paired(notebook)

    copy = nbformat.from_dict(notebook)
    copy.cells = [
        _fold(cell) if "worked" in cell.metadata.get("tags", []) else cell for cell in copy.cells
    ]

    without_solutions = TagRemovePreprocessor(remove_cell_tags={"solution"}, enabled=True)
    for step in (without_solutions, ClearOutputPreprocessor()):
        copy, _ = step.preprocess(copy, {})
    copy.metadata["language_info"] = nbformat.from_dict(describe_language())
    return copy


def describe_language() -> dict[str, Any]:
    """Return what the kernel says of its language, as JupyterLab writes it into a notebook that it opens.

    A copy that lacks it is changed by being opened, and whoever closes it without a word typed is asked to save it.
    """
    from ipykernel.ipkernel import IPythonKernel

    return dict(IPythonKernel.language_info)


def make(notebooks: Sequence[Path], folder: Path = WORKSHOP) -> tuple[list[Path], list[Path]]:
    """Write the student copies that a folder lacks, and renew those that no student has edited or run.

    Returns the files written, and those kept although their page has changed since. Nothing is written if one of the
    notebooks is `Unpaired` or `Damaged`.
    """
    copies = []
    for path in notebooks:
        try:
            copies.append((folder / path.name, make_copy(_read(path))))
        except (Unpaired, Damaged) as fault:
            raise type(fault)(f"{path.name}: {fault}") from None

    shelf = documents.Documents()
    for target, copy in copies:
        for cell in copy.cells:
            if cell.cell_type == "markdown":
                _embed_pictures(cell)
                cell.source = shelf.relink(
                    cell.source, source=f"notebooks/{target.name}", place=target.name
                )

    folder.mkdir(parents=True, exist_ok=True)
    outcome = Outcome()
    for target, copy in copies:
        outcome.add(target, give(copy, target))
    return outcome.written, outcome.kept


def make_documents(folder: Path = WORKSHOP) -> tuple[Outcome, list[str]]:
    """Write the page of contents and the documents beside a folder's student copies; renew what no student changed.

    Links into the checkout that an earlier version made are replaced by copies; nothing is written through any link.

    Returns
    -------
    Outcome
        The files written, and those kept.
    list of str
        The names of the links that were replaced.

    Raises
    ------
    OSError
        If a document cannot be read, or the folder takes no files.
    course.CourseError
        If a page does not say what the course has to know of it.
    """
    shelf = documents.Documents()
    pages = [page for page in course.read() if (folder / page.file).is_file()]
    page = contents.render(pages, shelf.read_titles()) if pages else ""
    copies = {contents.FILE: page.encode(), **{name: shelf.make_copy(name) for name in shelf.names}}

    links = [folder / name for name in OLD_LINKS if _is_old_link(folder / name)]
    for link in links:
        link.unlink()
    return give_documents(copies, folder), [link.name for link in links]


def _is_old_link(path: Path) -> bool:
    """Return True for a link that an earlier version made: one with this very target."""
    return path.is_symlink() and os.readlink(path) == os.path.join(os.pardir, path.name)


def _assert_paired(notebook: nbformat.NotebookNode) -> None:
    """Raise Unpaired unless exercises and solutions stand in turn, an exercise first and as many of both."""
    tagged = [
        {"exercise", "solution"} & set(cell.metadata.get("tags", [])) for cell in notebook.cells
    ]
    order = [" and ".join(sorted(tags)) for tags in tagged if tags]

    exercises, solutions = order[::2], order[1::2]
    is_paired = len(exercises) == len(solutions)
    if not is_paired or {*exercises} - {"exercise"} or {*solutions} - {"solution"}:
        raise Unpaired(
            f"each cell tagged 'exercise' must be followed by one tagged 'solution'; found {order}"
        )


def _fold(cell: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a solution tagged ``worked`` as text to unfold: an example, as a student's own answer is another one."""
    text = f"<details><summary>In the worked example</summary>\n\n```python\n{cell.source}\n```\n\n</details>"
    return nbformat.v4.new_markdown_cell(text, id=cell.id.replace("solution", "worked"))


def find_copies(folder: Path) -> list[Path]:
    """Return the files that a class gets from a folder of copies: its notebooks, and the documents of its record."""
    recorded = [folder / name for name in _read_record(folder)]
    there = [path for path in recorded if path.is_file() and not path.is_symlink()]
    return sorted([*folder.glob("*.ipynb"), *there])


def hand_out(lessons: Path, folder: Path) -> Outcome:
    """Give a student what is new in a folder of copies, notebooks and documents; return what was written and kept.

    What the student changed stays as it is.

    Parameters
    ----------
    lessons
        The folder of copies.
    folder
        The student's.
    """
    outcome = Outcome()
    texts: dict[str, bytes] = {}
    for path in find_copies(lessons):
        if path.parent == lessons and path.suffix == ".ipynb":
            page = json.loads(path.read_text(encoding="utf-8"))
            outcome.add(folder / path.name, give(page, folder / path.name))
        else:
            texts[path.relative_to(lessons).as_posix()] = path.read_bytes()

    given = give_documents(texts, folder)
    return Outcome(outcome.written + given.written, outcome.kept + given.kept)


def give_documents(copies: Mapping[str, bytes], folder: Path) -> Outcome:
    """Put documents into a folder, by their paths there, and enter them into its record."""
    record, outcome = _read_record(folder), Outcome()
    before = dict(record)
    for name, content in copies.items():
        outcome.add(folder / name, _give_document(content, folder, name, record))

    if record != before:
        paths.write_atomically(folder / RECORD, json.dumps(record, indent=0) + "\n")
    return outcome


def _give_document(content: bytes, folder: Path, name: str, record: dict[str, str]) -> Given:
    """Put a document there, unless there is this version, or something that is the student's; return what became of it.

    Parameters
    ----------
    content
        The newest version.
    folder
        The student's.
    name
        The document's path in it.
    record
        The digest of each document that was written there, by its path: what has another one now, the student has
        changed. This document's is entered.
    """
    target = folder / name
    if any((folder / above).is_symlink() for above in PurePosixPath(name).parents):
        return Given.KEPT  # a folder that the student linked there: what lies behind it is not ours

    try:
        there = hashlib.sha256(paths.read_regular(target)).hexdigest()
    except FileNotFoundError:
        there = None
    except OSError:  # a link, a folder, or a file in place of a folder: the student's
        return Given.KEPT

    new, was = hashlib.sha256(content).hexdigest(), record.get(name)
    if there == new:
        record[name] = new
        return Given.UP_TO_DATE
    if there is not None and there != was:  # the student has changed it
        return Given.UP_TO_DATE if was == new else Given.KEPT

    paths.write_atomically(target, content)
    record[name] = new
    return Given.WRITTEN


def _read_record(folder: Path) -> dict[str, str]:
    """Return the digests of the documents that were written to a folder, by their paths in it."""
    try:
        record = json.loads(paths.read_regular(folder / RECORD))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def give(page: dict[str, Any], target: Path) -> Given:
    """Put a student copy there, unless there is this version, or an older one that was worked on; return what was done.

    Its metadata get the digest of its cells as ``student_copy``: where the cells have another one now, somebody has
    changed or run them since. What cannot be read as such a copy is the student's.
    """
    new = _digest_state(page)
    try:
        there = json.loads(paths.read_regular(target))
        was = there["metadata"]["student_copy"]
        is_worked_on = was != _digest_state(there)
    except FileNotFoundError:
        was, is_worked_on = None, False
    except _UNREADABLE:  # a link, a file of the student's
        return Given.KEPT

    if was == new:
        return Given.UP_TO_DATE
    if is_worked_on:
        return Given.KEPT

    page["metadata"]["student_copy"] = new
    paths.write_atomically(target, nbformat.writes(nbformat.from_dict(page)) + "\n")
    return Given.WRITTEN


def _digest_state(notebook: dict[str, Any]) -> str:
    """Return a digest of what a student changes: the cells' text, and whether they have run."""
    cells = [
        (cell["cell_type"], "".join(cell["source"]), bool(cell.get("outputs")))
        for cell in notebook["cells"]
    ]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()


def find_classroom() -> Path:
    """Return the folder that keeps everything of a class at the hub; ``METALLAB_CLASSROOM`` names another one."""
    above = Path("/srv") if os.geteuid() == 0 else Path.home()
    return Path(os.environ.get("METALLAB_CLASSROOM") or above / "metal-lab-classroom")


def hide_solutions(copies: Path, checkout: Path = paths.ROOT) -> None:
    """Close a checkout to other accounts, except for `FOR_STUDENTS` and a folder of student copies.

    Solutions are in its notebooks, executed pages, tests, documents, history and ``build``. OSError if rights cannot be
    changed. Links are left as they are.
    """
    needed = [checkout / name for name in FOR_STUDENTS] + [Path(os.path.abspath(copies))]

    # what is needed may lie in build, and data is needed without its executed pages: so both are looked into
    for path in (*checkout.iterdir(), *checkout.glob("build/*"), checkout / "data" / "executed"):
        is_needed = any(each.is_relative_to(path) for each in needed)
        if path.exists() and not path.is_symlink() and not is_needed:
            path.chmod(path.stat().st_mode & ~0o007)


def _embed_pictures(cell: nbformat.NotebookNode) -> None:
    """Make attachments of the checkout's pictures that a text cell shows, and let it show these.

    A student's folder at the hub has no way to the checkout. OSError if a picture is missing.
    """

    def embed(found: re.Match[str]) -> str:
        picture = paths.NOTEBOOKS / found[2]
        kind, _ = mimetypes.guess_type(picture)
        of_cell = cell.setdefault("attachments", nbformat.NotebookNode())
        of_cell[picture.name] = {kind: base64.b64encode(picture.read_bytes()).decode()}
        return f"{found[1]}(attachment:{picture.name})"

    cell.source = re.sub(r"(!\[[^]]*\])\((\.\./[^)]+)\)", embed, cell.source)


def _read(path: Path) -> nbformat.NotebookNode:
    """Return a notebook; Damaged if it is none."""
    try:
        notebook = nbformat.read(path, 4)
        nbformat.validate(notebook)
    except Exception as error:  # noqa: BLE001 - nbformat raises whatever its code meets in a damaged file
        raise Damaged(
            f"cannot be read as a notebook ({units.first_line(error, kind=True)[:200]}); restore it"
        ) from None
    return notebook


def main(arguments: Sequence[str]) -> int:
    """Write the student copies and what lies beside them; return 0, or 2 with a message.

    What a student changed is kept.
    """
    if arguments and (len(arguments) > 1 or arguments[0].startswith("-")):
        print("usage: python -m metallab.authoring.workshop [FOLDER]", file=sys.stderr)
        return 2

    folder = Path(arguments[0]) if arguments else WORKSHOP
    try:
        pages = Outcome(*make(sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb")), folder))
        texts, links = make_documents(folder)
    except (Unpaired, Damaged, course.CourseError, OSError) as error:
        print(f"workshop: {error}", file=sys.stderr)
        return 2

    _report(folder, pages, texts, links)
    return 0


def _report(folder: Path, pages: Outcome, texts: Outcome, links: Sequence[str]) -> None:
    """Print what was written to a folder of student copies, what was kept and why, and where to begin.

    Parameters
    ----------
    folder
        The folder.
    pages, texts
        What became of the notebooks, and of the documents beside them.
    links
        The names of links into the checkout that copies have replaced.
    """
    shown = paths.shorten(folder)
    if links:
        print(f"In {shown} copies took the place of links into the checkout: {', '.join(links)}.")

    if pages.written:
        print(f"Pages written to {shown}: {len(pages.written)}.")
    if texts.written:
        print(f"Documents, pictures and source files written there: {len(texts.written)}.")
    if not (pages.written or texts.written):
        print(f"Nothing in {shown} had to be written.")

    if pages.kept:
        numbers = ", ".join(path.stem.partition("_")[0] for path in pages.kept)
        print(
            f"Kept, since you worked on them: {numbers}. For the newest version rename yours, then run this again."
        )
    if texts.kept:
        names = ", ".join(str(path.relative_to(folder)) for path in texts.kept)
        print(
            f"Kept, since they are yours or you changed them: {names}. For ours rename yours, then run this again."
        )
    print(f"The first page is {paths.shorten(folder / contents.FILE)}.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
