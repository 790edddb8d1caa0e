"""Progress is read from saved pages: who solved what, who is stuck and how. What a student saved can do nothing."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime
from html.parser import HTMLParser

import nbformat
import pytest

from metallab import paths
from metallab.authoring import workshop
from metallab.classroom import class_pages, progress
from metallab.judgement import Judgement


def saved(*outputs):
    """A page of which each check left one of these outputs."""
    cells = [
        nbformat.v4.new_code_cell("", id=f"check-{number}") for number in range(1, len(outputs) + 1)
    ]
    for cell, output in zip(cells, outputs, strict=True):
        cell.outputs = [output] if output else []
    return nbformat.v4.new_notebook(cells=cells)


def said(exercise, outcome, sentence):
    """What a check leaves in its cell."""
    return nbformat.v4.new_output(
        "execute_result", Judgement(exercise, outcome, sentence)._repr_mimebundle_()
    )


RIGHT, OPEN = (
    said("Exercise 1", "right", "right"),
    said("Exercise 1", "not attempted", "not attempted yet"),
)
WRONG = nbformat.v4.new_output(
    "error", ename="WrongAnswer", evalue="Exercise 1: 3 is not it. Hint: get it right"
)


@pytest.fixture
def a_class(tmp_path):
    pages = {"ada": saved(RIGHT, RIGHT), "bob": saved(WRONG, OPEN), "cy": saved(None, RIGHT)}
    for name, page in pages.items():
        (tmp_path / name).mkdir()
        nbformat.write(page, tmp_path / name / "01_do_it.ipynb")
        nbformat.write(saved(None, None), tmp_path / name / "02_nobody.ipynb")
    return tmp_path


def rows_of(capsys):
    """The words of each line that was printed."""
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_progress_shows_a_column_for_each_page_that_somebody_ran(a_class, capsys):
    assert progress.main([str(a_class)]) == 0

    assert ["01", "right"] in rows_of(capsys)


@pytest.mark.parametrize(
    "row",
    [["ada", "++", "2"], ["bob", "xo", "0"], ["cy", ".+", "1"], ["all", "right", "1"]],
    ids=lambda row: row[0],
)
def test_progress_shows_who_has_solved_what(a_class, capsys, row):
    progress.main([str(a_class)])

    assert row in rows_of(capsys)


def test_progress_of_one_student_is_shown(a_class, capsys):
    assert progress.main([str(a_class / "ada")]) == 0

    assert "++" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("output", "mark"),
    [
        pytest.param(
            said("map", "right", "right: 1 read and 1 write for each result."), "+", id="a-puzzle"
        ),
        pytest.param(said("map", "wrong", "thread 7 reads a[8]."), "x", id="a-wrong-puzzle"),
        pytest.param(said("Exercise 13.1", "open", "open. 7 times longer."), "~", id="open"),
        pytest.param(said("Step 1", "right", "right"), "+", id="a-step-of-ones-own-project"),
        pytest.param(said("Exercise 1", "not judged", "not judged. No GPU."), "-", id="not-judged"),
        pytest.param(
            nbformat.v4.new_output("stream", text="Exercise 1: right"), ".", id="printed-text"
        ),
    ],
)
def test_progress_reads_what_a_check_left_and_no_text(output, mark, tmp_path, capsys):
    nbformat.write(saved(RIGHT, output), tmp_path / "01_do_it.ipynb")
    assert progress.main([str(tmp_path)]) == 0
    (row,) = (
        line.split()
        for line in capsys.readouterr().out.splitlines()
        if line.split()[:1] == [tmp_path.name]
    )
    assert row[1] == f"+{mark}"


def test_progress_runs_no_student_s_code(a_class, tmp_path):
    page = saved(RIGHT)
    page.cells[0].source = f"open({str(tmp_path / 'ran')!r}, 'w')"
    nbformat.write(page, a_class / "ada" / "01_do_it.ipynb")
    assert progress.Reader().read_student(a_class / "ada").marks("01") == "+"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"cells": [{"id": "check-1", "outputs": 3}]}', '{"cells": [1]}'],
    ids=["empty", "a list", "outputs that are none", "cells that are none"],
)
def test_progress_goes_on_after_a_damaged_page(a_class, text, capsys):
    (a_class / "bob" / "01_do_it.ipynb").write_text(text)

    assert progress.main([str(a_class)]) == 0

    rows = rows_of(capsys)
    assert ["bob", "?", "0"] in rows
    assert ["cy", ".+", "1"] in rows


def test_progress_without_pages_is_refused(tmp_path):
    assert progress.main([str(tmp_path)]) == 2


SECRET = said("Exercise 1", "wrong", "the secret of ada")


def fill(folder, *outputs):
    """A student's folder with one page, saved with these outputs."""
    folder.mkdir(parents=True)
    nbformat.write(saved(*outputs), folder / "01_do_it.ipynb")
    return folder


def link_the_page(room):
    (room / "bob").mkdir()
    (room / "bob" / "01_do_it.ipynb").symlink_to(room / "ada" / "01_do_it.ipynb")


def link_the_folder(room):
    (room / "bob").symlink_to(room / "ada")


@pytest.mark.parametrize("link", [link_the_page, link_the_folder])
def test_a_link_to_another_student_s_page_is_not_followed(link, tmp_path):
    fill(tmp_path / "ada", SECRET)
    link(tmp_path)

    bob = progress.Reader().read_student(tmp_path / "bob")

    assert bob.marks("01") == "?"
    assert bob.last_wrong_answer is None


def test_a_link_in_the_middle_of_a_path_is_not_followed(tmp_path):
    fill(tmp_path / "ada", SECRET)
    (tmp_path / "bob").mkdir()
    (tmp_path / "bob" / "more").symlink_to(tmp_path / "ada")
    with (
        pytest.raises(OSError, match="more"),
        paths.open_inside(tmp_path, "bob/more/01_do_it.ipynb"),
    ):
        pass


@pytest.mark.parametrize("name", ["../ada", "/etc/passwd", "bob/../ada", ""])
def test_what_lies_outside_of_a_folder_is_not_opened(name, tmp_path):
    fill(tmp_path / "ada", SECRET)
    with pytest.raises(ValueError, match="inside"), paths.open_inside(tmp_path, name):
        pass


def test_a_pipe_in_place_of_a_page_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "01_do_it.ipynb")
    assert progress.Reader().read_student(tmp_path).marks("01") == "?"


def test_of_a_huge_page_nothing_is_read(tmp_path, monkeypatch):
    huge = fill(tmp_path / "ada", RIGHT) / "01_do_it.ipynb"
    os.truncate(huge, 100 << 20)  # sparse: it takes no room
    monkeypatch.setattr(os, "dup", lambda file: pytest.fail("it was opened to be read"))
    assert progress.Reader().read_student(tmp_path / "ada").marks("01") == "?"


def test_a_saved_state_is_read_once_and_a_new_one_again(tmp_path, monkeypatch):
    reader, folder = progress.Reader(), fill(tmp_path / "ada", RIGHT)
    assert reader.read_student(folder).marks("01") == "+"

    nbformat.write(saved(WRONG, RIGHT), folder / "01_do_it.ipynb")
    assert reader.read_student(folder).marks("01") == "x+"

    monkeypatch.setattr(progress, "read_checks", lambda page: pytest.fail("it was read again"))
    assert reader.read_student(folder).marks("01") == "x+"


def test_the_last_wrong_sentence_is_of_the_page_that_was_saved_last(tmp_path):
    folder = fill(tmp_path / "ada", SECRET)
    nbformat.write(saved(RIGHT, WRONG), folder / "02_more.ipynb")
    os.utime(folder / "02_more.ipynb", (1, 1))

    number, check = progress.Reader().read_student(folder).last_wrong_answer

    assert number == "01"
    assert check.exercise == "Exercise 1"
    assert check.sentence == "the secret of ada"


@pytest.fixture
def room(tmp_path):
    """A class of four at the hub: two have worked, one has come, one never did."""
    (tmp_path / "passwords").write_text("teacher t0\nada a1\nbob b2\ncy c3\nanna-maria d4\n")
    fill(tmp_path / "students" / "ada", RIGHT)
    fill(tmp_path / "students" / "bob", said("map", "wrong", "thread 7 reads a[8]."))
    fill(tmp_path / "students" / "cy", None)
    fill(tmp_path / "students" / "teacher", RIGHT)
    return tmp_path


def test_those_who_never_came_are_listed(room):
    students = {student.name: student for student in progress.read_room(room)}
    assert [*students] == ["ada", "anna-maria", "bob", "cy"]
    assert [name for name, student in students.items() if not student.has_come] == ["anna-maria"]


def test_progress_names_who_is_stuck_and_who_never_came(room, monkeypatch, capsys):
    monkeypatch.setattr(workshop, "find_classroom", lambda: room)
    assert progress.main([]) == 0
    printed = capsys.readouterr().out
    assert "bob, page 01, map: thread 7 reads a[8]." in printed
    assert "Never came: anna-maria." in printed


class Elements(HTMLParser):
    """The elements of a page, and all text in it."""

    def __init__(self, page):
        super().__init__()
        self.names, self.attributes, self.text = set(), set(), ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text += data


EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>"
NOW = datetime(2026, 11, 29, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    "outputs",
    [
        pytest.param(
            [
                said(EVIL, "wrong", EVIL),
                nbformat.v4.new_output("error", ename="WrongAnswer", evalue="no"),
            ],
            id="judgement",
        ),
        pytest.param([nbformat.v4.new_output("error", ename=EVIL, evalue=EVIL)], id="error"),
    ],
)
def test_a_saved_output_is_text_on_the_page_of_progress(outputs, room):
    page = saved(None)
    page.cells[0].outputs = outputs
    nbformat.write(page, room / "students" / "ada" / "01_do_it.ipynb")

    shown = Elements(class_pages.render_progress(progress.read_room(room), NOW))

    assert EVIL in shown.text
    assert not shown.names & {"script", "img"}
    assert not [name for name in shown.attributes if name.startswith("on")]


def test_the_policy_of_the_page_of_progress_allows_its_style_and_nothing_else():
    policy = dict(part.split(maxsplit=1) for part in class_pages.make_policy().split("; "))

    assert "unsafe" not in policy.pop("style-src")
    assert policy == {
        "default-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }


def test_the_page_of_progress_has_one_style():
    assert class_pages.render_progress([], NOW).count("<style>") == 1


@pytest.fixture
def slips(room):
    """The file with a slip for each student, to be cut up."""
    passwords = progress.read_passwords(room / "passwords")
    return class_pages.write_slips(passwords, "http://127.0.0.1:8000/", room / "build")


def test_a_wrong_answer_is_on_the_page_of_progress_within_ten_seconds():
    assert class_pages.SECONDS_UNTIL_SAVED + class_pages.SECONDS < 10


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(class_pages.render_progress([], NOW, title=EVIL), id="progress"),
        pytest.param(class_pages.render_slips({"ada": "a1"}, "http://hub/", EVIL), id="slips"),
    ],
)
def test_the_name_of_a_class_is_text_on_its_pages(page):
    assert EVIL in Elements(page).text
    assert "script" not in Elements(page).names


def test_slips_are_for_their_owner_alone_and_under_build(room, slips):
    assert slips.is_relative_to(room / "build")
    assert slips.stat().st_mode & 0o777 == 0o600


def test_a_slip_has_name_password_and_address_and_the_teacher_gets_none(slips):
    text = Elements(slips.read_text()).text

    assert all(word in text for word in ("anna-maria", "d4", "http://127.0.0.1:8000/"))
    assert "t0" not in text


def test_slips_are_never_on_the_stick():
    """A stick holds what git lists, and git does not list what it ignores."""
    slips = paths.ROOT / "build" / class_pages.SLIPS
    command = ["git", "check-ignore", "--quiet", str(slips)]
    assert subprocess.run(command, cwd=paths.ROOT).returncode == 0
