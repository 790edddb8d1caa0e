"""Student copies: every notebook without its solutions, with hints to unfold: ``make lab``.

The notebooks in the repository are complete; what students get is derived from them and never committed, so that the
two cannot drift apart. A copy runs from top to bottom: an exercise that is not attempted says so and raises nothing.
``python -m metallab.workshop FOLDER`` writes copies elsewhere.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import html
import json
import mimetypes
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbconvert.preprocessors import ClearOutputPreprocessor, TagRemovePreprocessor

from metallab import paths, units

WORKSHOP = paths.ROOT / "workshop"
LINKED = ("README.md", "docs", "metalsim", "utils")
"""What pages link to, and JupyterLab shows beside the copies; none of it holds solutions."""
FOR_STUDENTS = (
    *(".venv", ".venv-coreai", ".venv-python"),
    *("classroom", "constraints.txt", "data", "metalsim", "pyproject.toml", "utils"),
)
"""What a student's account reads of the checkout, besides the copies."""
CHECK = re.compile(r"check-\d")
"""The id of a cell that checks an exercise."""


class Unpaired(ValueError):
    """A notebook whose solutions and exercises do not pair up."""


class Damaged(ValueError):
    """A file that cannot be read as a notebook."""


def student_copy(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A copy without solutions and outputs; before each check, whose code is folded, its hint to unfold.

    `Unpaired` unless each solution follows a cell tagged ``exercise``: what it leaves behind is that stub.
    """
    tagged = [{"exercise", "solution"} & set(cell.metadata.get("tags", [])) for cell in notebook.cells]
    order = [" and ".join(sorted(tags)) for tags in tagged if tags]
    if order != ["exercise", "solution"] * (len(order) // 2):
        raise Unpaired(f"each cell tagged 'exercise' must be followed by one tagged 'solution'; found {order}")
    copy = nbformat.from_dict(notebook)
    copy.cells = [_folded(cell) if "worked" in cell.metadata.get("tags", []) else cell for cell in copy.cells]
    for step in (TagRemovePreprocessor(remove_cell_tags={"solution"}, enabled=True), ClearOutputPreprocessor()):
        copy, _ = step.preprocess(copy, {})
    cells, copy.cells = copy.cells, []
    for cell in cells:
        if CHECK.fullmatch(cell.get("id", "")):
            cell.metadata["jupyter"] = {"source_hidden": True}
            if hint := _hint(cell.source):
                folded = f"<details><summary>Hint</summary>{html.escape(hint, quote=False)}</details>"
                copy.cells.append(nbformat.v4.new_markdown_cell(folded, id=cell.id.replace("check", "hint")))
        copy.cells.append(cell)
    return copy


def _folded(cell: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A solution tagged ``worked`` as text to unfold: an example, where a student's own answer is another one."""
    text = f"<details><summary>In the worked example</summary>\n\n```python\n{cell.source}\n```\n\n</details>"
    return nbformat.v4.new_markdown_cell(text, id=cell.id.replace("solution", "worked"))


def _hint(check: str) -> str:
    """The hint that a check gives, where it is a text and not computed."""
    nodes = list(ast.walk(ast.parse(check)))
    named = {ast.unparse(node.targets[0]): node.value for node in nodes if isinstance(node, ast.Assign)}
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "exercise" and len(node.args) == 4:
            hint = named.get(ast.unparse(node.args[3]), node.args[3])
            return str(hint.value) if isinstance(hint, ast.Constant) else ""
    return ""


def make(notebooks: Sequence[Path], folder: Path = WORKSHOP) -> tuple[list[Path], list[Path]]:
    """Write the student copies that a folder lacks, and renew those that no student has edited or run.

    Returns the files written, and those kept although their page has changed since. Nothing is written if one of the
    notebooks is `Unpaired` or `Damaged`.
    """
    copies = []
    for path in notebooks:
        try:
            copies.append((folder / path.name, student_copy(_read(path))))
        except (Unpaired, Damaged) as fault:
            raise type(fault)(f"{path.name}: {fault}") from None
    folder.mkdir(parents=True, exist_ok=True)
    checkout = os.path.relpath(paths.ROOT, folder)
    for _, copy in copies:
        for cell in copy.cells:
            if cell.cell_type == "markdown":  # links to other pages stay: those lie beside the copy as well
                _embed_pictures(cell)
                cell.source = cell.source.replace("](../", f"]({checkout}/")
    outcomes = {target: give(copy, target) for target, copy in copies}
    return tuple([target for target, given in outcomes.items() if given is answer] for answer in (True, False))


def give(page: dict, target: Path) -> bool | None:
    """Put a student copy there: True if it was written, None if it is there, False if an older one was worked on.

    Its metadata tell what it was when it was written, and so whether anybody has changed it since.
    """
    new = _state(page)
    try:
        there = json.loads(paths.read_regular(target))
        was = there["metadata"]["student_copy"]
        worked_on = was != _state(there)
    except FileNotFoundError:
        was, worked_on = None, False
    except (OSError, ValueError, TypeError, LookupError, RecursionError):  # a link, a file of the student's
        return False
    if was == new:
        return None
    if not worked_on:
        page["metadata"]["student_copy"] = new
        paths.write_atomically(target, nbformat.writes(nbformat.from_dict(page)) + "\n")
    return not worked_on


def _state(notebook: dict) -> str:
    """A digest of what a student changes: the cells' text, and whether they have run."""
    cells = [(cell["cell_type"], "".join(cell["source"]), bool(cell.get("outputs"))) for cell in notebook["cells"]]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()


def classroom() -> Path:
    """The folder that keeps everything of a class at the hub; ``METALLAB_CLASSROOM`` names another one."""
    above = Path("/srv") if os.geteuid() == 0 else Path.home()
    return Path(os.environ.get("METALLAB_CLASSROOM") or above / "metal-lab-classroom")


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


def main(arguments: Sequence[str]) -> int:
    """0, or 2 with a message."""
    if arguments and (len(arguments) > 1 or arguments[0].startswith("-")):
        print("usage: python -m metallab.workshop [FOLDER]", file=sys.stderr)
        return 2
    folder = Path(arguments[0]) if arguments else WORKSHOP
    try:
        written, kept = make(sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb")), folder)
        for name in () if arguments else LINKED:
            if not os.path.lexists(folder / name):
                (folder / name).symlink_to(Path(os.pardir, name))
    except (Unpaired, Damaged, OSError) as error:
        print(f"workshop: {error}", file=sys.stderr)
        return 2
    if written:
        print(f"{len(written)} pages written to {paths.shown(folder)}.")
    if kept:
        names = ", ".join(path.stem.partition("_")[0] for path in kept)
        print(f"Kept, since you worked on them: {names}. For the newest version rename yours, then run this again.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
