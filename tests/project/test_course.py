"""The course: what pages say of themselves fits together, and what is made from it is as it would be made."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from metallab import paths
from metallab.authoring import course, course_tables, new_page, published

PAGES = course.read()


def test_what_is_made_from_the_pages_descriptions_is_as_it_is_made(capsys):
    assert course_tables.main(["--check"]) == 0, capsys.readouterr().out


def test_an_address_that_is_none_is_said_in_a_line(monkeypatch, capsys):
    """README's entrances are made from the address in pyproject.toml."""

    def find_none():
        raise published.BadAddress("'here' is no address")

    monkeypatch.setattr(published, "find_addresses", find_none)

    assert course_tables.main(["--check"]) == 2
    assert capsys.readouterr().err == "course: 'here' is no address\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.number)
def test_every_page_says_its_question_and_its_time(page):
    assert page.question.endswith("?")
    assert page.minutes > 0
    assert page.without_a_mac


def test_prerequisites_lead_back_to_the_beginning():
    """From any page one gets to 00 or to another page that needs none, by smaller numbers."""
    merged = {page.number for page in PAGES if page.merge is not None}

    pairs = [(page.number, number) for page in PAGES for number in page.after]
    assert [pair for pair in pairs if pair[1] >= pair[0] or pair[1] in merged] == []


def test_the_subjects_of_the_course_are_named_once():
    assert len(set(course.SUBJECTS)) == len(course.SUBJECTS)


def test_most_pages_take_as_long_as_the_guide_says():
    """Whoever plans a new page reads it there, and `make page` writes a number between these."""
    guide = (paths.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    fewest, most = map(int, re.search(r"most pages take (\d+) to (\d+) minutes", guide).groups())

    usual = [page.number for page in PAGES if fewest <= page.minutes <= most]
    assert len(usual) >= 0.8 * len(PAGES)
    assert fewest <= new_page.describe()["minutes"] <= most


def test_every_page_has_its_part():
    parts = {page.number for _, members in course.group(PAGES) for page in members}

    assert parts == {page.number for page in PAGES}


@pytest.mark.parametrize(
    "route", [*course.ROUTES, course.TALK], ids=lambda route: route.name.replace(" ", "-")
)
def test_every_path_has_pages(route):
    assert len(course.find_on_route(PAGES, route)) >= 2


OLD = re.compile(
    r"(?<![0-9A-Za-z])(0[2-9][bc]?|1[0-7][bc]?)_(run_pytorch|compare_cpu|check_your_model|profile_and|write_a_custom|"
    r"make_it_an|train_with_auto|choose_a|train_tensorflow|look_into_tensor|transform_with|compile_with_jit|detect_with|"
    r"find_the_slow|load_models|compile_for|ship_with|quantize_to|take_int8|filter_with|check_edge|compare_machines|"
    r"find_the_layer|compare_with_mlx|run_a_lang|shrink_a|adapt_a|solve_metal|share_memory|use_simd|your_own_project)|"
    r"19_compare_cpu"  # a page that is part of others
)
NEW = {page.name for page in PAGES}


def list_files() -> Iterator[str]:
    """Yield the files that git lists, but for those that tell of old names."""
    command = ["git", "-C", paths.ROOT, "ls-files", "-z"]
    listed = subprocess.run(command, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("no git checkout")

    tell = ("CHANGELOG.md", "tests/project/test_course.py")
    for name in filter(None, listed.stdout.split("\0")):
        if name not in tell and (paths.ROOT / name).is_file():
            yield name


def read_text(name: str) -> str:
    """Return what is written in a file; nothing of one that holds no text."""
    try:
        return (paths.ROOT / name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def has_old_name(text: str) -> bool:
    return any(
        not any(new.startswith(found[0]) for new in NEW)  # a new name may begin like an old one
        for found in OLD.finditer(text)
    )


def test_no_page_is_called_by_an_old_name():
    left = [name for name in list_files() if has_old_name(f"{name}\n{read_text(name)}")]

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
        ({"subjects": {"99 knitting": "setup"}}, "'99 knitting'"),
    ],
    ids=[
        "after-a-later-page",
        "after-no-page",
        "too-many-minutes",
        "no-such-path",
        "no-such-subject",
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


def test_a_number_that_a_page_once_had_is_told(checkout):
    (checkout / "10_run_pytorch_on_mps.ipynb").rename(checkout / "19_run_pytorch_on_mps.ipynb")
    with pytest.raises(course.CourseError, match="is part of 13 and 64"):
        course.read(checkout)


def test_a_document_without_a_place_is_told():
    with pytest.raises(course_tables.NoPlace, match="end of the pages"):
        course_tables.replace_between("# README\n", "the pages", "| |")
