"""Student copies hold no solution and run; nobody's work is overwritten."""

from __future__ import annotations

import base64
import platform
import re

import nbformat
import pytest

from metallab import paths
from metallab.authoring import workshop


def lesson(*tags):
    cells = [nbformat.v4.new_markdown_cell("# Do it")]
    for tag in tags:
        cell = nbformat.v4.new_code_cell(f"print('{tag}')", metadata={"tags": tag.split()})
        cell.outputs = [nbformat.v4.new_output("stream", text="42")]
        cells.append(cell)
    return nbformat.v4.new_notebook(cells=cells)


def test_a_copy_keeps_the_stub_and_loses_solution_and_outputs():
    copy = workshop.make_copy(lesson("exercise", "solution"))

    (stub,) = (cell for cell in copy.cells if cell.cell_type == "code")
    assert stub.metadata.tags == ["exercise"]
    assert stub.outputs == []


def test_the_original_of_a_copy_stays_as_it_is():
    original = lesson("exercise", "solution")

    workshop.make_copy(original)

    assert len(original.cells) == 3
    assert original.cells[1].outputs


def test_a_copy_says_of_its_language_what_the_kernel_says():
    """Else JupyterLab adds it, and asks whoever closes the page whether to save."""
    language = workshop.make_copy(lesson("exercise", "solution")).metadata.language_info

    assert language.name == "python"
    assert language.file_extension == ".py"
    assert language.version == platform.python_version()


def test_a_worked_example_stays_as_text_to_unfold():
    original = lesson("exercise", "solution")
    original.cells[2].metadata["tags"].append("worked")
    stub, worked = workshop.make_copy(original).cells[1:]
    assert (stub.cell_type, worked.cell_type) == ("code", "markdown")
    assert "<details>" in worked.source
    assert "print('solution')" in worked.source


@pytest.mark.parametrize(
    "tag", ["solution", "exercise", "solution,exercise", "exercise,exercise", "exercise solution"]
)
def test_exercises_and_solutions_must_pair_up(tag):
    with pytest.raises(workshop.Unpaired, match="must be followed"):
        workshop.make_copy(lesson(*tag.split(",")))


def test_an_unpaired_exercise_is_named_and_nothing_written(tmp_path):
    for name, tags in (("01_good", ("exercise", "solution")), ("02_bad", ("exercise",))):
        nbformat.write(lesson(*tags), tmp_path / f"{name}.ipynb")
    with pytest.raises(workshop.Unpaired, match=r"^02_bad\.ipynb: each cell"):
        workshop.make(sorted(tmp_path.glob("*.ipynb")), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_pictures_travel_with_the_copy(tmp_path, monkeypatch):
    """A student's folder at the hub holds nothing but copies: a picture of this project is put into the cell itself.

    One of another site stays a link.
    """
    folder, picture = tmp_path / "notebooks", tmp_path / "data" / "cat.png"
    for path in (folder, picture.parent):
        path.mkdir()
    picture.write_bytes(b"a cat")
    monkeypatch.setattr(paths, "NOTEBOOKS", folder)
    text = "![A cat](../data/cat.png) and ![a dog](https://example.org/dog.png)"
    page = write_page(folder / "01.ipynb", text)

    (copy,), _ = workshop.make([page], tmp_path / "elsewhere")

    cell, *_ = nbformat.read(copy, 4).cells
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

    assert workshop.main([str(tmp_path / "out")]) == 2

    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("workshop: 02_bad.ipynb: cannot be read as a notebook (")
    assert not (tmp_path / "out").exists()


def test_a_page_that_does_not_say_what_the_course_must_know_is_named(tmp_path, monkeypatch, capsys):
    """The page of contents cannot be made of it."""
    write_page(tmp_path / "01_page.ipynb")
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path)

    assert workshop.main([str(tmp_path / "out")]) == 2

    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("workshop: 01_page.ipynb: metadata.metallab.course has no ")


def write_page(path, text="# Do it"):
    page = lesson("exercise", "solution")
    page.cells[0].source = text
    nbformat.write(page, path)
    return path


def edit(path):
    page = nbformat.read(path, 4)
    page.cells[-1].source = "my work"
    nbformat.write(page, path)


def run(path):
    page = nbformat.read(path, 4)
    page.cells[-1].outputs = [nbformat.v4.new_output("stream", text="1.5 ms")]
    nbformat.write(page, path)


def write_over(path):
    path.write_text("my work")


def make_empty(path):
    path.write_text("")


@pytest.mark.parametrize("work", [edit, run, write_over, make_empty])
def test_work_is_never_overwritten(tmp_path, work):
    page, out = write_page(tmp_path / "01_do_it.ipynb"), tmp_path / "out"
    (made,), _ = workshop.make([page], out)
    work(made)
    before = made.read_bytes()

    write_page(page, "# Do it better")
    written, kept = workshop.make([page], out)

    assert written == []
    assert kept == [made]
    assert made.read_bytes() == before


def test_an_untouched_copy_is_renewed_if_the_page_has_changed(tmp_path):
    page, out = write_page(tmp_path / "01_do_it.ipynb"), tmp_path / "out"
    (made,), _ = workshop.make([page], out)

    write_page(page, "# Do it better")

    assert workshop.make([page], out) == ([made], [])
    assert "better" in made.read_text()


def test_a_copy_that_was_only_looked_at_counts_as_untouched(tmp_path):
    page, out = write_page(tmp_path / "01_do_it.ipynb"), tmp_path / "out"
    (made,), _ = workshop.make([page], out)
    nbformat.write(nbformat.read(made, 4), made)  # as JupyterLab saves it

    assert workshop.make([page], out) == ([], [])
    write_page(page, "# Do it better")
    assert workshop.make([page], out) == ([made], [])


def test_a_copy_is_not_written_through_a_link(tmp_path):
    page, out = write_page(tmp_path / "01_do_it.ipynb"), tmp_path / "out"
    out.mkdir()
    (out / page.name).symlink_to(tmp_path / "elsewhere")
    workshop.make([page], out)
    assert not (tmp_path / "elsewhere").exists()


def test_the_check_of_a_copy_stands_behind_its_stub_and_is_not_folded():
    page = lesson("exercise", "solution")
    page.cells.append(nbformat.v4.new_code_cell('check("15.1", add)', id="check-1"))

    *_, stub, check = workshop.make_copy(page).cells

    assert stub.metadata.tags == ["exercise"]
    assert check.id == "check-1"
    assert "jupyter" not in check.metadata


def test_links_of_copies_lead_to_what_lies_beside_them(tmp_path):
    text = "# Do it\n\nSee [the list](../README.md) and [the next page](02_next.ipynb)."
    page = write_page(tmp_path / "01_do_it.ipynb", text)

    (made,), _ = workshop.make([page], tmp_path / "some" / "where")

    links = re.findall(r"\]\((.*?)\)", nbformat.read(made, 4).cells[0].source)
    assert links == ["README.md", "02_next.ipynb"]


HIDDEN = [
    *("notebooks/01.ipynb", "data/executed/cpu/01.ipynb", "tests/project/test_notebooks.py"),
    *("docs/teaching.md", ".git/HEAD", "workshop/01.ipynb", "build/full-cpu/01.ipynb"),
    *("build/book/01.html", "my_answers.ipynb"),
]
"""Files of a checkout that hold solutions, or may."""

NEEDED = [
    *("utils/metallab/__init__.py", "data/results/a.json", ".venv/bin/python", "pyproject.toml"),
    *("lessons/01.ipynb", "classroom/student_server.py", "metalsim/src/metalsim/__init__.py"),
    ".venv-coreai/lib/main.pth",
]
"""Files that a student's server reads."""


@pytest.fixture
def checkout(tmp_path):
    """A checkout that every account could read, with a link to a folder outside, after its solutions were hidden."""
    root, outside = tmp_path / "checkout", tmp_path / "outside"
    outside.mkdir()
    for name in [*HIDDEN, *NEEDED]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    for path in (root, *root.rglob("*"), outside):
        path.chmod(0o755)
    (root / "link").symlink_to(outside)

    workshop.hide_solutions(root / "lessons", root)
    return root


def is_open(path, root):
    """Say whether other accounts may read a file, through all folders above it."""
    above = [each for each in path.parents if each.is_relative_to(root)]
    return all(each.stat().st_mode & 0o005 == 0o005 for each in (path, *above))


def test_other_accounts_read_no_solutions(checkout):
    assert [name for name in HIDDEN if is_open(checkout / name, checkout)] == []


def test_other_accounts_read_what_a_student_s_server_needs(checkout):
    assert [name for name in NEEDED if not is_open(checkout / name, checkout)] == []


def test_the_owner_of_solutions_keeps_all_rights(checkout):
    modes = {name: (checkout / name).stat().st_mode for name in HIDDEN}

    assert [name for name, mode in modes.items() if mode & 0o700 != 0o700] == []


def test_what_a_link_of_the_checkout_leads_to_is_not_hidden(checkout):
    assert (checkout.parent / "outside").stat().st_mode & 0o777 == 0o755
