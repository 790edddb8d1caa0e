"""`make page` writes a notebook that runs, with its rows and links; `make format` takes its wrong answers out."""

from __future__ import annotations

import os
import shutil

import nbformat
import pytest
from nbformat import v4
from one_page import run_notebook

from metallab import paths, records
from metallab.authoring import course, course_tables, exercise_cells, new_page


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A copy of what `make page` changes, and of the modules among which it puts one."""
    for name in ("README.md", "docs", "notebooks"):
        (shutil.copytree if (paths.ROOT / name).is_dir() else shutil.copy)(
            paths.ROOT / name, tmp_path / name
        )
    shutil.copytree(paths.ROOT / "utils", tmp_path / "utils", ignore=shutil.ignore_patterns("*pyc"))
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "utils"), prepend=os.pathsep)
    return tmp_path


PAGES = course.read()


@pytest.fixture
def write(checkout, capsys):
    """Return a function that makes a page with a number; it returns its path, and what was printed."""

    def make(number):
        assert new_page.main([f"{number}_do_this"]) == 0
        return paths.NOTEBOOKS / f"{number}_do_this.ipynb", capsys.readouterr().out

    return make


@pytest.mark.parametrize("number", ["18", "99"], ids=["between two", "last"])
def test_a_new_page_has_all_that_is_made_from_pages(checkout, write, number):
    _, printed = write(number)

    assert f"test ONLY={number}" in printed
    assert course_tables.find_stale() == []
    file = f"notebooks/{number}_do_this.ipynb"
    readme = (checkout / "README.md").read_text("utf-8")
    assert f" {len(PAGES) + 1} notebooks" in readme
    assert f"| [{number}]({file}) | [Do this]({file}) | 40 |" in readme


OF_EVERY_PAGE = {"setup", "own", "own-check", "finish"}
"""Cells that stay as `make page` writes them."""


def is_open(cell):
    """Whether somebody has to write what stands in a cell of a new page."""
    is_text_or_result = cell.cell_type == "markdown" or cell.id == "result"
    return is_text_or_result and cell.id not in OF_EVERY_PAGE


def test_each_text_of_a_new_page_says_that_it_is_to_be_written(write):
    page, _ = write("18")

    cells = nbformat.read(page, 4).cells
    asked = {cell.id for cell in cells if is_open(cell)}
    assert {"title", "result", "result-caption", "wrong", "own-1", "own-2", "recap"} <= asked
    assert asked == {cell.id for cell in cells if new_page.UNWRITTEN in cell.source}


@pytest.mark.parametrize(
    ("file", "count"),
    [
        pytest.param("utils/metallab/exercises/page_18.py", 2, id="a hint for each exercise"),
        pytest.param("README.md", 1, id="the question"),
        pytest.param("docs/teaching.md", 2, id="the row and the paragraph"),
    ],
)
def test_what_a_new_page_leaves_to_be_written_elsewhere_is_found(checkout, write, file, count):
    write("18")

    assert len(new_page.find_unwritten(checkout / file)) == count


def test_a_sentence_about_what_is_to_be_written_is_no_placeholder(tmp_path):
    document = tmp_path / "guide.md"
    document.write_text(f"What is *{new_page.UNWRITTEN}* is red.\n**18.** {new_page.UNWRITTEN}.\n")

    assert new_page.find_unwritten(document) == [f"**18.** {new_page.UNWRITTEN}."]


@pytest.mark.parametrize(
    ("number", "following"),
    [
        ("18", next(page.file for page in PAGES if page.number > "18")),
        ("99", "../README.md#pages"),
    ],
    ids=["between two", "last"],
)
def test_a_new_page_stands_between_the_page_before_it_and_the_next(
    checkout, write, number, following
):
    before = max((page for page in PAGES if page.number < number), key=lambda page: page.number)

    page, _ = write(number)

    led = (paths.NOTEBOOKS / before.file).read_text("utf-8")
    assert f"**Next**: [Do this]({page.name})" in led
    assert f"]({following})." in page.read_text("utf-8")
    paragraphs = (checkout / "docs" / "teaching.md").read_text("utf-8").split("\n\n")
    row = next(i for i, text in enumerate(paragraphs) if text.startswith(f"**{number}.** "))
    assert paragraphs[row - 1].startswith(f"**{before.number}.** ")


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_a_new_page_runs_and_measures_on_its_device(checkout, write, device):
    page, _ = write("18")

    result = run_notebook(page, device=device, out=checkout / "out")

    if result.lacking:
        pytest.skip(result.lacking)
    assert result.status == "passed", result.reason
    saved = records.load(checkout / "out" / "results" / f"{page.stem}.json")
    assert saved[0].headline.picture
    assert [record.measurement.simulated for record in saved] == [device == "sim"]


def test_a_number_of_no_part_is_refused(checkout, capsys):
    with pytest.raises(SystemExit):
        new_page.main(["71_do_this"])
    assert "4 Shipping" in capsys.readouterr().err
    assert not (paths.NOTEBOOKS / "71_do_this.ipynb").exists()


def test_a_number_that_a_page_once_had_is_refused(checkout, capsys):
    with pytest.raises(SystemExit):
        new_page.main(["19_do_this"])
    assert "is part of 13 and 64" in capsys.readouterr().err
    assert not (paths.NOTEBOOKS / "19_do_this.ipynb").exists()


def test_a_new_page_brings_what_checks_its_exercises(checkout):
    new_page.main(["18_do_this"])
    module = (checkout / "utils" / "metallab" / "exercises" / "page_18.py").read_text("utf-8")
    page = nbformat.read(paths.NOTEBOOKS / "18_do_this.ipynb", 4)
    checks = [cell.source for cell in page.cells if cell.id.startswith("check-")]
    assert checks == ['check("18.1", double1)', 'check("18.2", double2)']
    assert all(f'"18.{number}"' in module for number in (1, 2))


def test_make_format_folds_solutions(tmp_path):
    page = v4.new_notebook(cells=[v4.new_code_cell("f = 1", metadata={"tags": ["solution"]})])
    path, answers = tmp_path / "15_do_this.ipynb", tmp_path / "wrong_answers.txt"
    nbformat.write(page, path)
    answers.touch()
    exercise_cells.tidy(tmp_path, answers)
    assert nbformat.read(path, 4).cells[0].metadata.jupyter == {"source_hidden": True}


def tagged(source, *tags):
    return v4.new_code_cell(source, metadata={"tags": list(tags)})


def exercise(name):
    """The cells of an exercise as somebody writes it, with a wrong answer."""
    return [
        tagged(f"{name} = ...", "exercise"),
        tagged(f"{name} = 1", "solution"),
        v4.new_code_cell(f'check("15.1", {name})'),
        tagged(f"{name} = 2\n", "wrong"),
    ]


@pytest.fixture
def tidied(tmp_path):
    """A page with two exercises that make format has tidied, and the wrong answers of other pages and its own."""
    cells = [v4.new_code_cell("import metallab", id="setup"), *exercise("f"), *exercise("g")]
    path, answers = tmp_path / "15_do_this.ipynb", tmp_path / "wrong_answers.txt"
    nbformat.write(v4.new_notebook(cells=cells), path)
    answers.write_text("== 14_a 1\nx = 0\n== 23_b 1\nx = 0\n")
    exercise_cells.tidy(tmp_path, answers)
    return path, answers


def test_exercises_are_numbered(tidied):
    page, _ = tidied

    assert [cell.id for cell in nbformat.read(page, 4).cells] == [
        *("setup", "exercise-1", "solution-1", "check-1", "exercise-2", "solution-2", "check-2")
    ]


def test_wrong_answers_leave_a_page_for_their_place_among_the_others(tidied):
    _, answers = tidied

    new = "== 15_do_this 1\nf = 2\n== 15_do_this 2\ng = 2\n"
    assert answers.read_text() == f"== 14_a 1\nx = 0\n{new}== 23_b 1\nx = 0\n"


def test_a_tidy_page_and_its_wrong_answers_stay_as_they_are(tidied):
    page, answers = tidied
    before = page.read_bytes(), answers.read_bytes()

    exercise_cells.tidy(page.parent, answers)

    assert (page.read_bytes(), answers.read_bytes()) == before


@pytest.mark.parametrize(
    ("kept", "place"),
    [
        pytest.param(["23_b 1", "15_do_this 1", "14_a 1"], 2, id="behind-its-own-exercise"),
        pytest.param(["23_b 1", "14_a 2", "14_a 1"], 2, id="behind-the-exercise-before-it"),
        pytest.param(["23_b 1", "16_c 1"], 0, id="first"),
    ],
)
def test_a_new_wrong_answer_leaves_the_others_where_they_are(tmp_path, kept, place):
    wrong = v4.new_code_cell("f = 2", metadata={"tags": ["wrong"]})
    stub = v4.new_code_cell("f = ...", metadata={"tags": ["exercise"]})
    nbformat.write(v4.new_notebook(cells=[stub, wrong]), tmp_path / "15_do_this.ipynb")
    answers = tmp_path / "wrong_answers.txt"
    before = [f"== {name}\nx = 0\n" for name in kept]
    answers.write_text("".join(before))

    exercise_cells.tidy(tmp_path, answers)

    before.insert(place, "== 15_do_this 1\nf = 2\n")
    assert answers.read_text() == "".join(before)


@pytest.mark.parametrize(
    "name", ["15", "15b_do_this", "make", "3_x", "01_time_it_right", "01_other_words"]
)
def test_bad_names_and_existing_pages_are_refused(name, capsys):
    with pytest.raises(SystemExit) as ended:
        new_page.main([name])
    assert ended.value.code == 2
    assert name in capsys.readouterr().err
