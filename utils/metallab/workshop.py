"""Student copies: every notebook without its solutions, ``python -m metallab.workshop``.

The notebooks in the repository are complete; what students get is derived from them and never committed, so that the
two cannot drift apart. A copy runs from top to bottom: an exercise that is not attempted says so and raises nothing.
"""

from __future__ import annotations

import base64
import mimetypes
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbconvert.preprocessors import ClearOutputPreprocessor, TagRemovePreprocessor

from metallab import paths, units

WORKSHOP = paths.BUILD / "workshop"
FOR_STUDENTS = (".venv", ".venv-python", "classroom", "constraints.txt", "data", "pyproject.toml", "utils")
"""What a student's account reads of the checkout, besides the copies."""


class Unpaired(ValueError):
    """A notebook whose solutions and exercises do not pair up."""


class Damaged(ValueError):
    """A file that cannot be read as a notebook."""


def student_copy(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A copy without the cells tagged ``solution`` and without outputs.

    `Unpaired` unless each solution follows a cell tagged ``exercise``: what it leaves behind is that stub.
    """
    tagged = [{"exercise", "solution"} & set(cell.metadata.get("tags", [])) for cell in notebook.cells]
    order = [" and ".join(sorted(tags)) for tags in tagged if tags]
    if order != ["exercise", "solution"] * (len(order) // 2):
        raise Unpaired(f"each cell tagged 'exercise' must be followed by one tagged 'solution'; found {order}")
    copy = nbformat.from_dict(notebook)
    for step in (TagRemovePreprocessor(remove_cell_tags={"solution"}, enabled=True), ClearOutputPreprocessor()):
        copy, _ = step.preprocess(copy, {})
    return copy


def make(notebooks: Sequence[Path], folder: Path = WORKSHOP) -> list[Path]:
    """Write a student copy of each notebook into a folder, and return the files.

    A copy that is there already, and may hold a student's work, is never overwritten: FileExistsError names it. Nothing
    is written if one of the notebooks is `Unpaired` or `Damaged`.
    """
    targets = [folder / path.name for path in notebooks]
    if there := [target for target in targets if target.exists()]:
        raise FileExistsError(f"{there[0]} is there already and may hold somebody's work; move {folder} away first")
    copies = []
    for path, target in zip(notebooks, targets, strict=True):
        try:
            copies.append((target, student_copy(_read(path))))
        except (Unpaired, Damaged) as fault:
            raise type(fault)(f"{path.name}: {fault}") from None
    folder.mkdir(parents=True, exist_ok=True)
    checkout = os.path.relpath(paths.ROOT, folder)
    for target, copy in copies:
        for cell in copy.cells:
            if cell.cell_type == "markdown":  # links to other pages stay: those lie beside the copy as well
                _embed_pictures(cell)
                cell.source = cell.source.replace("](../", f"]({checkout}/")
        nbformat.write(copy, target)
    return targets


def hide_solutions(copies: Path, checkout: Path = paths.ROOT) -> None:
    """Close a checkout to other accounts, except for `FOR_STUDENTS` and a folder of student copies.

    Solutions are in its notebooks, executed pages, tests, documents, history and ``build``. OSError if rights cannot be
    changed. Links are left as they are.
    """
    needed = [checkout / name for name in FOR_STUDENTS] + [Path(os.path.abspath(copies))]
    for path in (*checkout.iterdir(), *checkout.glob("build/*"), checkout / "data" / "executed"):
        if path.exists() and not path.is_symlink() and not any(each.is_relative_to(path) for each in needed):
            path.chmod(path.stat().st_mode & ~0o007)


def _embed_pictures(cell: nbformat.NotebookNode) -> None:
    """Pictures of the checkout become attachments: a student's folder at the hub has no way to them."""

    def embed(found: re.Match[str]) -> str:
        picture = paths.NOTEBOOKS / found[2]
        kind, _ = mimetypes.guess_type(picture)
        of_cell = cell.setdefault("attachments", nbformat.NotebookNode())
        of_cell[picture.name] = {kind: base64.b64encode(picture.read_bytes()).decode()}
        return f"{found[1]}(attachment:{picture.name})"

    cell.source = re.sub(r"(!\[[^]]*\])\((\.\./[^)]+)\)", embed, cell.source)


def _read(path: Path) -> nbformat.NotebookNode:
    try:
        notebook = nbformat.read(path, 4)
        nbformat.validate(notebook)
    except Exception as error:  # noqa: BLE001 - nbformat raises whatever its code meets in a damaged file
        raise Damaged(
            f"cannot be read as a notebook ({units.first_line(error, kind=True)[:200]}); restore it"
        ) from None
    return notebook


def main() -> int:
    """0, or 2 with a message."""
    try:
        made = make(sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb")))
    except (Unpaired, Damaged, FileExistsError) as error:
        print(f"workshop: {error}", file=sys.stderr)
        return 2
    print(
        f"{len(made)} student copies in {os.path.relpath(WORKSHOP)}; "
        f"open them with make lab LAB={os.path.relpath(WORKSHOP)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
