"""What lies beside the student copies: the page of contents, documents, pictures, source code.

No link of a folder leads nowhere, in `make lab` and in a student's folder on the hub; no copy holds a solution; what a
student changed stays.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
from collections import Counter

import nbformat
import pytest
from markdown_it import MarkdownIt
from served import dead_links, links_of, texts_in

from metallab import paths
from metallab.authoring import contents, documents, workshop

STUDENT_SERVER = paths.ROOT / "classroom" / "student_server.py"
PAGES = sorted(path.name for path in paths.NOTEBOOKS.glob("[0-9]*.ipynb"))


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The folders that JupyterLab serves, of ``make lab`` and of a student of a class, by name."""
    lab, hub = tmp_path_factory.mktemp("lab"), tmp_path_factory.mktemp("student")
    assert workshop.main([str(lab)]) == 0
    runpy.run_path(str(STUDENT_SERVER))["give"](lab, hub)
    return {"lab": lab, "hub": hub}


# ---------------------------------------------------------------- what is there


@pytest.mark.parametrize("where", ["lab", "hub"])
def test_no_link_leads_nowhere(served, where):
    assert dead_links(served[where]) == []
    assert len(texts_in(served[where])) > len(PAGES) + 10, "too little was looked at"


@pytest.mark.parametrize("where", ["lab", "hub"])
def test_copies_are_files_and_no_links(served, where):
    """Of the checkout a student's account on the hub can read a part only."""
    assert [path for path in served[where].rglob("*") if path.is_symlink()] == []


ALIVE = [
    "[a](page.ipynb)",
    "[b](page.ipynb#cell-id=first)",
    "[c](#here)",
    "[d](https://example.org/x)",
    "`[j](code.md)`",
]
DEAD = {
    "[e](no.md)": "no.md",
    "![f](no.png)": "no.png",
    "[g](page.ipynb#A-page)": "page.ipynb#A-page",
    "[h](#there)": "#there",
    '<img src="no.jpg">': "no.jpg",
    "[i](../x.md)": "../x.md",
}
"""Links that lead nowhere, or out of the folder, and their targets."""


@pytest.fixture
def folder(tmp_path):
    """A folder with a page, to which a text leads that the test writes; another text lies beside it."""
    folder = tmp_path / "folder"
    folder.mkdir()
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# A page", id="first")])
    nbformat.write(page, folder / "page.ipynb")
    (tmp_path / "x.md").touch()
    return folder


@pytest.mark.parametrize("link", ALIVE)
def test_a_link_that_leads_somewhere_is_not_dead(folder, link):
    (folder / "text.md").write_text(f'{link}\n\n# Here<a id="here"></a>', encoding="utf-8")

    assert dead_links(folder) == []


@pytest.mark.parametrize(("link", "target"), DEAD.items(), ids=DEAD)
def test_a_dead_link_is_found(folder, link, target):
    (folder / "text.md").write_text(f'{link}\n\n# Here<a id="here"></a>', encoding="utf-8")

    assert dead_links(folder) == [f"text.md: {target}"]


@pytest.mark.parametrize("where", ["lab", "hub"])
def test_the_pictures_of_the_gallery_are_beside_it(served, where):
    gallery = served[where] / "docs" / "gallery.md"
    pictures = [target for target in links_of(gallery) if target.endswith(".png")]
    shown = (paths.ROOT / "docs" / "gallery.md").read_text(encoding="utf-8").count("[![")
    assert len(pictures) == len(set(pictures)) == shown > 25


# ---------------------------------------------------------------- the page of contents


def test_the_contents_list_each_page_once_with_its_minutes(served):
    text = (served["lab"] / contents.FILE).read_text(encoding="utf-8")
    listed = re.findall(r"^\| (\w+) \| \[[^]]+\]\(([\w.]+)\) \| (\d+) \|", text, re.MULTILINE)
    assert sorted(file for _, file, _ in listed) == PAGES
    guide = (paths.ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
    planned = re.findall(
        r"^\| (\w+) \| \[[^]]+\]\(\.\./notebooks/[^)]+\) \| (\d+) \|", guide, re.MULTILINE
    )
    assert {(number, minutes) for number, _, minutes in listed} == set(planned)


# ---------------------------------------------------------------- no solutions


def test_each_guide_is_for_learners_or_for_teachers():
    guides = {
        path.relative_to(paths.ROOT).as_posix() for path in (paths.ROOT / "docs").glob("*.md")
    }
    learners = {name for name in documents.FOR_LEARNERS if name.startswith("docs/")}
    assert learners | set(documents.FOR_TEACHERS) == guides
    assert not learners & set(documents.FOR_TEACHERS)


@pytest.fixture
def names(served):
    """The files that are served, by their places."""
    files = [path for path in served["lab"].rglob("*") if path.is_file()]
    return {path.relative_to(served["lab"]).as_posix() for path in files}


def test_documents_for_teachers_are_not_served(names):
    assert names & set(documents.FOR_TEACHERS) == set()


def test_pages_as_they_ran_are_not_served_but_for_their_pictures(names):
    executed = {name for name in names if name.startswith("data/executed/")}

    assert {name for name in names if name.endswith(".ipynb")} == set(PAGES)
    assert {os.path.splitext(name)[1] for name in executed} == {".png"}


def test_tests_and_what_python_compiles_are_not_served(names):
    assert [name for name in names if "/tests/" in f"/{name}" or "__pycache__" in name] == []


def text_of_all(folder, suffix):
    """What is written in all files of a kind."""
    files = [path for path in texts_in(folder) if path.suffix == suffix]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def lines_of_solutions():
    """Yield the lines of the solutions of all pages."""
    for page in PAGES:
        for cell in nbformat.read(paths.NOTEBOOKS / page, 4).cells:
            if "solution" in cell.metadata.get("tags", []):
                yield from map(str.strip, cell.source.splitlines())


def test_no_document_holds_a_solution(served):
    """A line of a solution that is in no copy of a page: long ones, since short ones are anybody's."""
    shown = text_of_all(served["lab"], ".ipynb")
    long = [line for line in lines_of_solutions() if len(line) > 30]
    own = [line for line in long if json.dumps(line)[1:-1] not in shown]

    texts = text_of_all(served["lab"], ".md")
    assert len(own) > 50
    assert [line for line in own if line in texts] == []


# ---------------------------------------------------------------- links in Markdown


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("See [this](a.md) and ![that](b.png).", "See [this](A.MD) and ![that](B.PNG)."),
        ("[![a](a.png)](b.md)", "[![a](A.PNG)](B.MD)"),
        ("[two\nlines `of` code](a.md#x)", "[two\nlines `of` code](A.MD#X)"),
        ("`[code](a.md)` and ``[co`de](a.md)``", "`[code](a.md)` and ``[co`de](a.md)``"),
        ("```\n[code](a.md)\n```\n", "```\n[code](a.md)\n```\n"),
        ("> ~~~\n> [code](a.md)\n> ~~~\n", "> ~~~\n> [code](a.md)\n> ~~~\n"),
        ("Text\n\n    [code](a.md)\n", "Text\n\n    [code](a.md)\n"),
        ("[gone](gone.md), here", "gone, here"),
        ("row ([gone](gone.md)) | next", "row (gone) | next"),
        ("row ([gone](aside.md)) | next", "row | next"),
        ("[![a](a.png)](gone.md)", "![a](A.PNG)"),
    ],
)
def test_links_get_other_targets_and_code_stays(text, changed):
    other = {"gone.md": None, "aside.md": ""}
    assert (
        documents.relink(text, lambda link: other.get(link.target, link.target.upper())) == changed
    )


@pytest.mark.parametrize("name", [name for name in documents.FOR_LEARNERS if name.endswith(".md")])
def test_all_links_of_the_documents_are_found(name):
    """As a Markdown parser finds them."""
    text, parsed = (paths.ROOT / name).read_text(encoding="utf-8"), []
    for block in MarkdownIt("commonmark").enable("table").parse(text):
        found = [token for token in block.children or () if token.type in ("link_open", "image")]
        parsed += [token.attrs.get("href") or token.attrs["src"] for token in found]
    assert Counter(
        MarkdownIt().normalizeLink(link.target) for link in documents.find_links(text)
    ) == Counter(parsed)


def test_a_heading_of_a_page_is_named_by_its_cell(served):
    """JupyterLab does not find a heading of a notebook that it has just opened; a cell it does."""
    links = links_of(served["lab"] / "docs" / "questions.md")
    assert "../01_time_it_right.ipynb#cell-id=questions-read" in links


# ---------------------------------------------------------------- what a student changed stays


def files_of(folder):
    """What is written in each file below a folder, the record aside, by its path there."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != workshop.RECORD]
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8", errors="replace")
        for path in files
    }


def test_documents_are_renewed_unless_they_were_changed(tmp_path):
    workshop.give_documents({"docs/one.md": b"one", "docs/two.md": b"two"}, tmp_path)
    (tmp_path / "docs" / "two.md").write_text("my notes")

    better = {"docs/one.md": b"one, better", "docs/two.md": b"two, better"}
    outcome = workshop.give_documents(better, tmp_path)

    assert files_of(tmp_path) == {"docs/one.md": "one, better", "docs/two.md": "my notes"}
    assert outcome.written == [tmp_path / "docs" / "one.md"]
    assert outcome.kept == [tmp_path / "docs" / "two.md"]


def test_what_is_up_to_date_is_not_written_again(tmp_path):
    copies = {"docs/one.md": b"one", "docs/two.md": b"two"}
    workshop.give_documents(copies, tmp_path)
    (tmp_path / "docs" / "two.md").write_text("my notes")
    assert workshop.give_documents(copies, tmp_path) == workshop.Outcome()


def test_a_document_that_was_deleted_comes_again(tmp_path):
    copies = {"docs/one.md": b"one"}
    workshop.give_documents(copies, tmp_path)
    (tmp_path / "docs" / "one.md").unlink()
    workshop.give_documents(copies, tmp_path)
    assert files_of(tmp_path) == {"docs/one.md": "one"}


@pytest.mark.parametrize("record", [None, "", "[]", '{"README.md": 3}', "\udcff"])
def test_without_a_record_every_other_text_is_the_students(tmp_path, record):
    (tmp_path / "README.md").write_text("mine")
    if record is not None:
        (tmp_path / workshop.RECORD).write_text(record, encoding="utf-8", errors="surrogateescape")
    outcome = workshop.give_documents({"README.md": b"theirs"}, tmp_path)
    assert outcome.kept == [tmp_path / "README.md"]
    assert files_of(tmp_path) == {"README.md": "mine"}


def make_file(path):
    path.write_text("mine")


def make_folder(path):
    path.mkdir()


def make_link(path):
    elsewhere = path.parent.parent / "elsewhere"
    elsewhere.mkdir()
    path.symlink_to(elsewhere)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (make_file, "docs"),
        (make_link, "docs"),
        (make_file, "docs/one.md"),
        (make_folder, "docs/one.md"),
        (make_link, "docs/one.md"),
    ],
)
def test_nothing_is_written_in_place_of_what_a_student_made(tmp_path, make, name):
    folder = tmp_path / "workshop"
    (folder / name).parent.mkdir(parents=True)
    make(folder / name)
    before = files_of(tmp_path)

    outcome = workshop.give_documents({"docs/one.md": b"one"}, folder)

    assert outcome.kept == [folder / "docs" / "one.md"]
    assert files_of(tmp_path) == before


def test_a_folder_that_a_student_made_takes_the_documents_of_its_name(tmp_path):
    (tmp_path / "docs").mkdir()

    workshop.give_documents({"docs/one.md": b"one"}, tmp_path)

    assert files_of(tmp_path) == {"docs/one.md": "one"}


@pytest.fixture
def linked(tmp_path):
    """A folder ``workshop`` of an earlier version: a student's page, and links to files and folders of the checkout."""
    for name in workshop.OLD_LINKS:
        path = tmp_path / name
        file = path if path.suffix else path / "questions.md"
        file.parent.mkdir(exist_ok=True)
        file.write_text("the checkout's")

    folder = tmp_path / "workshop"
    folder.mkdir()
    (folder / "mine.ipynb").write_text("mine")
    for name in workshop.OLD_LINKS:
        (folder / name).symlink_to(f"../{name}")
    return folder


def test_links_of_an_earlier_version_become_copies(linked):
    outcome, replaced = workshop.make_documents(linked)

    assert replaced == list(workshop.OLD_LINKS)
    assert outcome.kept == []
    assert [name for name in workshop.OLD_LINKS if (linked / name).is_symlink()] == []
    assert "the checkout's" not in (linked / "docs" / "questions.md").read_text(encoding="utf-8")


def test_what_links_of_an_earlier_version_led_to_stays(linked):
    workshop.make_documents(linked)

    checkout = files_of(linked.parent)
    assert (linked / "mine.ipynb").read_text() == "mine"
    beside = {text for name, text in checkout.items() if not name.startswith("workshop/")}
    assert beside == {"the checkout's"}


def test_a_students_own_link_of_such_a_name_stays(tmp_path):
    folder, notes = tmp_path / "workshop", tmp_path / "notes"
    folder.mkdir()
    notes.mkdir()
    (folder / "docs").symlink_to(notes)

    outcome, replaced = workshop.make_documents(folder)

    assert replaced == []
    assert folder / "docs" / "questions.md" in outcome.kept
    assert os.readlink(folder / "docs") == str(notes)
    assert list(notes.iterdir()) == []


def test_make_lab_says_what_it_wrote_and_what_it_kept(served, tmp_path, capsys):
    folder = shutil.copytree(served["lab"], tmp_path / "workshop")
    (folder / PAGES[0]).unlink()
    (folder / "README.md").write_text("mine")
    record = json.loads((folder / workshop.RECORD).read_text())
    (folder / workshop.RECORD).write_text(json.dumps(record | {"README.md": "an older version's"}))

    assert workshop.main([str(folder)]) == 0
    written, *_, kept, first = capsys.readouterr().out.splitlines()
    assert written.endswith(": 1.")
    assert "README.md" in kept
    assert contents.FILE in first


# ---------------------------------------------------------------- a class


@pytest.fixture
def lessons(tmp_path):
    """A teacher's folder: the contents are edited, a document is as it was given, a file is the teacher's own."""
    lessons = tmp_path / "lessons"
    workshop.give_documents({contents.FILE: b"our plan", "docs/questions.md": b"fifty"}, lessons)
    (lessons / contents.FILE).write_text("the teacher's plan")
    (lessons / "answers.md").write_text("for the teacher")
    return lessons


@pytest.fixture
def student(lessons, tmp_path):
    """The folder of a student who has got the lessons."""
    folder = tmp_path / "student"
    folder.mkdir()
    workshop.hand_out(lessons, folder)
    return folder


def test_a_student_gets_what_the_teacher_edited_and_nothing_of_the_teachers_own(student):
    assert files_of(student) == {contents.FILE: "the teacher's plan", "docs/questions.md": "fifty"}


def test_a_student_keeps_notes_where_the_teacher_has_a_newer_document(lessons, student):
    (student / "docs" / "questions.md").write_text("my notes")
    workshop.give_documents({"docs/questions.md": b"fifty-one"}, lessons)

    outcome = workshop.hand_out(lessons, student)

    assert outcome.kept == [student / "docs" / "questions.md"]
    assert files_of(student)["docs/questions.md"] == "my notes"


@pytest.mark.parametrize("has_contents", [True, False])
def test_a_students_server_opens_the_contents_if_there_are_any(tmp_path, monkeypatch, has_contents):
    monkeypatch.setenv("JUPYTERHUB_DEFAULT_URL", "/lab")
    if has_contents:
        (tmp_path / contents.FILE).touch()
    runpy.run_path(str(STUDENT_SERVER))["choose_first_page"](tmp_path)
    assert os.environ["JUPYTERHUB_DEFAULT_URL"].endswith(contents.FILE) == has_contents
