"""The course: what pages say of themselves fits together, and what is made from it is as it would be made."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from metallab import paths
from metallab.authoring import course, course_tables

PAGES = course.read()


def test_what_is_made_from_the_pages_descriptions_is_as_it_is_made(capsys):
    assert course_tables.main(["--check"]) == 0, capsys.readouterr().out


def test_every_page_says_its_question_and_its_time():
    for page in PAGES:
        assert page.question.endswith("?"), page.file
        assert page.minutes > 0, page.file
        assert page.without_a_mac, page.file


def test_prerequisites_lead_back_to_the_beginning():
    """From any page one gets to 00 or to another page that needs none, by smaller numbers."""
    by_number = {page.number: page for page in PAGES}
    for page in PAGES:
        for number in page.after:
            assert number < page.number
            assert by_number[number].merge is None


def test_every_subject_is_still_shown():
    shown = course.collect_subjects(PAGES)
    assert [name.split()[0] for name in shown] == [
        "1",
        "2",
        "2b",
        *map(str, range(3, 27)),
    ]


def test_every_page_is_found_by_a_path_or_by_its_part():
    parts = {page.number for _, members in course.group(PAGES) for page in members}
    assert parts == {page.number for page in PAGES}
    for route in (*course.ROUTES, course.TALK):
        assert len(course.find_on_route(PAGES, route)) >= 2, route.name


OLD = re.compile(
    r"(?<![0-9A-Za-z])(0[2-9][bc]?|1[0-7][bc]?)_(run_pytorch|compare_cpu|check_your_model|profile_and|write_a_custom|"
    r"make_it_an|train_with_auto|choose_a|train_tensorflow|look_into_tensor|transform_with|compile_with_jit|detect_with|"
    r"find_the_slow|load_models|compile_for|ship_with|quantize_to|take_int8|filter_with|check_edge|compare_machines|"
    r"find_the_layer|compare_with_mlx|run_a_lang|shrink_a|adapt_a|solve_metal|share_memory|use_simd|your_own_project)|"
    r"19_compare_cpu"  # a page that is part of others
)
NEW = {page.name for page in PAGES}


def test_no_page_is_called_by_an_old_name():
    listed = subprocess.run(
        ["git", "-C", paths.ROOT, "ls-files", "-z"], capture_output=True, text=True
    )
    if listed.returncode != 0:
        pytest.skip("no git checkout")
    left = []
    for name in filter(None, listed.stdout.split("\0")):
        path = paths.ROOT / name
        if name in ("CHANGELOG.md", "tests/project/test_course.py") or not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            text = ""
        if any(
            not any(new.startswith(found[0]) for new in NEW)
            for found in OLD.finditer(f"{name}\n{text}")
        ):
            left.append(name)
    assert left == []


# ---- faults ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path):
    """A folder with three pages, to be spoiled."""
    for name in ("00_check_your_machine", "01_time_it_right", "10_run_pytorch_on_mps"):
        shutil.copy(paths.NOTEBOOKS / f"{name}.ipynb", tmp_path)
    return tmp_path


def change(folder, name, **told):
    path = folder / f"{name}.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    notebook["metadata"]["metallab"]["course"].update(told)
    path.write_text(json.dumps(notebook), encoding="utf-8")


def test_pages_that_fit_are_read(checkout):
    assert [page.number for page in course.read(checkout)] == ["00", "01", "10"]


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        ({"after": ["10"]}, "01_time_it_right.ipynb comes after 10"),
        ({"after": ["02"]}, "name a page that is there"),
        ({"exercises": 99}, "a part of the minutes"),
        ({"routes": ["quick"]}, "'quick'"),
    ],
)
def test_what_does_not_fit_is_told(checkout, told, fault):
    change(checkout, "01_time_it_right", **told)
    with pytest.raises(course.CourseError, match=re.escape(fault)):
        course.read(checkout)


def test_nothing_comes_after_a_page_that_is_to_be_merged(checkout):
    change(checkout, "01_time_it_right", merge="13")
    change(checkout, "10_run_pytorch_on_mps", after=["01"])
    with pytest.raises(course.CourseError, match="not to be merged"):
        course.read(checkout)


def test_a_page_without_a_description_is_told(checkout):
    path = checkout / "01_time_it_right.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    del notebook["metadata"]["metallab"]["course"]["question"]
    path.write_text(json.dumps(notebook), encoding="utf-8")
    with pytest.raises(course.CourseError, match="has no 'question'"):
        course.read(checkout)


def test_a_number_of_no_part_is_told(checkout):
    (checkout / "01_time_it_right.ipynb").rename(checkout / "71_time_it_right.ipynb")
    with pytest.raises(course.CourseError, match="the first that of a part"):
        course.read(checkout)


def test_a_document_without_a_place_is_told():
    with pytest.raises(course_tables.NoPlace, match="end of the pages"):
        course_tables.replace_between("# README\n", "the pages", "| |")
