"""Student copies hold no solution and run; nobody's work is overwritten."""

from __future__ import annotations

import base64
import re

import nbformat
import pytest

from metallab import paths, workshop


def lesson(*tags):
    cells = [nbformat.v4.new_markdown_cell("# Do it")]
    for tag in tags:
        cell = nbformat.v4.new_code_cell(f"print('{tag}')", metadata={"tags": [tag]})
        cell.outputs = [nbformat.v4.new_output("stream", text="42")]
        cells.append(cell)
    return nbformat.v4.new_notebook(cells=cells)


def test_a_copy_keeps_the_stub_and_loses_solution_and_outputs():
    original = lesson("exercise", "solution")
    copy = workshop.student_copy(original)
    assert [cell.get("metadata", {}).get("tags") for cell in copy.cells if cell.cell_type == "code"] == [["exercise"]]
    assert not copy.cells[1].outputs
    assert len(original.cells) == 3, "the original was changed"
    assert original.cells[1].outputs


@pytest.mark.parametrize("tags", [("solution",), ("exercise",), ("solution", "exercise"), ("exercise", "exercise")])
def test_exercises_and_solutions_must_pair_up(tags):
    with pytest.raises(workshop.Unpaired, match="must be followed"):
        workshop.student_copy(lesson(*tags))


def test_an_unpaired_exercise_is_named_and_nothing_written(tmp_path):
    for name, tags in (("01_good", ("exercise", "solution")), ("02_bad", ("exercise",))):
        nbformat.write(lesson(*tags), tmp_path / f"{name}.ipynb")
    with pytest.raises(workshop.Unpaired, match=r"^02_bad\.ipynb: each cell"):
        workshop.make(sorted(tmp_path.glob("*.ipynb")), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_pictures_travel_with_the_copy_and_stay_in_the_original(tmp_path, monkeypatch):
    """A student's folder at the hub holds nothing but copies."""
    folder, picture = tmp_path / "notebooks", tmp_path / "data" / "cat.png"
    for path in (folder, picture.parent):
        path.mkdir()
    picture.write_bytes(b"a cat")
    monkeypatch.setattr(paths, "NOTEBOOKS", folder)
    original = lesson()
    original.cells[0].source = "![A cat](../data/cat.png) and ![a dog](https://example.org/dog.png)"
    nbformat.write(original, folder / "01.ipynb")
    (copy,) = workshop.make([folder / "01.ipynb"], tmp_path / "elsewhere")
    (cell,) = nbformat.read(copy, 4).cells
    assert cell.source == "![A cat](attachment:cat.png) and ![a dog](https://example.org/dog.png)"
    assert cell.attachments == {"cat.png": {"image/png": base64.b64encode(b"a cat").decode()}}


DAMAGED = {
    "empty": "",
    "cut short": '{"cells": [',
    "a list": "[]",
    "no cells": '{"nbformat": 4}',
    "a picture": "\udcff\udcd8",
    "a cell without a source": '{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{}]}',
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_notebook_is_named_and_nothing_written(tmp_path, text, monkeypatch, capsys):
    nbformat.write(lesson("exercise", "solution"), tmp_path / "01_good.ipynb")
    (tmp_path / "02_bad.ipynb").write_text(text, encoding="utf-8", errors="surrogateescape")
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(workshop.make, "__defaults__", (tmp_path / "out",))
    assert workshop.main() == 2
    error = capsys.readouterr().err.rstrip("\n")
    assert error.startswith("workshop: 02_bad.ipynb: cannot be read as a notebook (")
    assert "\n" not in error
    assert not (tmp_path / "out").exists()


def test_work_is_never_overwritten(tmp_path):
    source = tmp_path / "01_do_it.ipynb"
    nbformat.write(lesson("exercise", "solution"), source)
    (made,) = workshop.make([source], tmp_path / "out")
    made.write_text("my work")
    with pytest.raises(FileExistsError, match="somebody's work"):
        workshop.make([source], tmp_path / "out")
    assert made.read_text() == "my work"


def test_links_of_copies_lead_out_of_the_notebooks(tmp_path):
    original = lesson("exercise", "solution")
    original.cells[0].source = "# Do it\n\nSee [the list](../README.md) and [the next page](02_next.ipynb)."
    source = tmp_path / "01_do_it.ipynb"
    nbformat.write(original, source)
    (made,) = workshop.make([source], tmp_path / "some" / "where")
    first, second = re.findall(r"\]\((.*?)\)", nbformat.read(made, 4).cells[0].source)
    assert (made.parent / first).resolve() == paths.ROOT / "README.md"
    assert second == "02_next.ipynb"


def test_a_cell_is_not_its_own_exercise():
    page = lesson("exercise")
    page.cells[1].metadata["tags"] = ["exercise", "solution"]
    with pytest.raises(workshop.Unpaired, match="'exercise and solution'"):
        workshop.student_copy(page)


def test_other_accounts_read_no_solutions(tmp_path):
    files = ["notebooks/01.ipynb", "data/executed/cpu/01.ipynb", "tests/project/test_notebooks.py", "docs/teaching.md"]
    files += [".git/HEAD", "build/full-cpu/01.ipynb", "build/book/01.html", "my_answers.ipynb"]
    needed = ["utils/metallab/__init__.py", "data/results/a.json", ".venv/bin/python", "pyproject.toml"]
    needed += ["build/workshop/01.ipynb", "classroom/student_server.py"]
    for name in [*files, *needed]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755)
    outside = tmp_path.with_name(f"{tmp_path.name}-outside")
    outside.mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(outside)
    workshop.hide_solutions(tmp_path / "build" / "workshop", tmp_path)

    def is_open(name: str) -> bool:
        above = [path for path in (tmp_path / name).parents if path.is_relative_to(tmp_path)]
        return all(path.stat().st_mode & 0o005 == 0o005 for path in (tmp_path / name, *above))

    assert [name for name in files if is_open(name)] == []
    assert [name for name in needed if not is_open(name)] == []
    assert outside.stat().st_mode & 0o777 == 0o755
    assert all((tmp_path / name).stat().st_mode & 0o700 == 0o700 for name in files), "the owner keeps all rights"
