"""In a notebook's kernel results save themselves, and a page that ends says where they are.

The pages here are small, lie outside of the checkout, and are run by nbconvert's own executor or by a kernel of
Jupyter alone: nothing of this project's runner takes part.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from nbformat import v4

from metallab import records, results_made, session

LIMIT = 600  # seconds, against a hang
SETUP = "import metallab\nfrom metallab import timing"
MEASURE = """\
count = 64  # fast: 16
work = timing.measure(lambda: sum(range(count)), on=timing.Host(), name=f"sum of {count}")
"""
PICTURE = """\
import matplotlib.pyplot as plt
figure, axes = plt.subplots(figsize=(2, 1))
axes.plot([1, 2], label="ours")
axes.set(title="A race", xlabel="n", ylabel="seconds")
plt.show()"""
END = "metallab.finish()"
FAST = {"METALLAB_MODE": "fast", "METALLAB_STRICT": "0"}


def write_page(path: Path, *sources: str, **told: object) -> Path:
    """Write a notebook with these cells and what ``metadata.metallab`` tells."""
    cells = [v4.new_code_cell(source, id=f"c{number}") for number, source in enumerate(sources)]
    nbformat.write(v4.new_notebook(cells=cells, metadata={"metallab": told}), path)
    return path


def run_by_nbconvert(page: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a page in place, as ``jupyter nbconvert --execute`` does."""
    command = [sys.executable, "-m", "jupyter", "nbconvert", "--to", "notebook", "--inplace"]
    return subprocess.run(
        [*command, "--execute", str(page)],
        env=os.environ | FAST | {"METALLAB_BUILD": str(page.parent / "build")} | environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )


def saved(folder: Path, name: str) -> list[records.Record]:
    (file,) = folder.glob(f"build/*/results/{name}.json")
    return records.load(file)


# --- a page, run by nbconvert ---


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Path:
    """A page with a measurement, a picture and an end, as nbconvert has run it."""
    page = tmp_path_factory.mktemp("elsewhere") / "05_mine.ipynb"
    told = {"headline": {"sentences": ["work", {"text": "It ran."}], "picture": "figure"}}
    write_page(page, SETUP, MEASURE, PICTURE, END, **told)
    done = run_by_nbconvert(page)
    assert done.returncode == 0, done.stderr
    return page


def test_what_a_cell_measured_is_saved_under_the_page_s_name(ran):
    (record,) = saved(ran.parent, "05_mine")
    assert record.name == "05_mine/sum of 16"  # with the fast size
    assert record.measurement.mode == "fast"


def test_the_headline_is_made_of_the_variables_that_the_metadata_name(ran):
    (record,) = saved(ran.parent, "05_mine")
    assert record.headline is not None
    assert record.headline.sentences[0].startswith("sum of 16: ")
    assert record.headline.sentences[1] == "It ran."
    assert record.headline.alternative_text.startswith("A race. x axis: n. y axis: seconds.")


def test_the_results_say_which_name_of_the_headline_no_cell_has_made(tmp_path):
    told = {"headline": {"sentences": ["work", "race.headlines"]}}
    page = write_page(tmp_path / "page.ipynb", SETUP, MEASURE, END, **told)

    assert run_by_nbconvert(page).returncode == 0

    (record,) = saved(tmp_path, "page")
    assert record.headline is None
    assert record.without_headline == "no cell has made race.headlines"
    assert record.without_headline in nbformat.read(page, 4).cells[-1].outputs[0].text


def test_a_figure_is_shown_once_with_words_from_its_axes_and_legend(ran):
    outputs = nbformat.read(ran, 4).cells[2].outputs
    (shown,) = [output for output in outputs if "image/png" in output.get("data", {})]
    assert "series: ours" in shown.metadata["image/png"]["alt"]
    assert shown.metadata["image/png"]["alt"] in shown.data["text/html"]


def test_the_last_line_says_where_the_results_are(ran):
    (said,) = nbformat.read(ran, 4).cells[-1].outputs
    assert "results/05_mine.json" in said.text
    assert str(ran.parent) not in said.text  # no machine's folders stand on a page


def test_full_mode_takes_the_full_size(tmp_path):
    page = write_page(tmp_path / "page.ipynb", SETUP, "count = 64  # fast: 16\nprint(count)")
    assert run_by_nbconvert(page, METALLAB_MODE="full").returncode == 0
    assert nbformat.read(page, 4).cells[1].outputs[0].text == "64\n"


def test_a_fast_size_in_the_cell_that_imports_metallab_is_an_error(tmp_path):
    page = write_page(tmp_path / "page.ipynb", f"{SETUP}\ncount = 64  # fast: 16")
    done = run_by_nbconvert(page)
    assert done.returncode == 1
    assert "move the line to a later cell" in done.stderr


def test_a_strict_page_that_did_not_run_whole_fails_after_its_results_are_saved(tmp_path):
    gap = "from metallab import needs\nneeds.incomplete('the model was not read', 'buy it')"
    page = write_page(tmp_path / "page.ipynb", SETUP, MEASURE, gap, END)
    done = run_by_nbconvert(page, METALLAB_STRICT="1")
    assert done.returncode == 1
    assert "NotRun: page is incomplete" in done.stderr
    assert "the model was not read" in done.stderr
    assert len(saved(tmp_path, "page")) == 1


def test_a_script_saves_nothing(tmp_path):
    script = f"{SETUP}\ncount = 16\n{MEASURE}\n{END}"
    environment = os.environ | FAST | {"METALLAB_BUILD": str(tmp_path / "build")}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=LIMIT)
    assert not (tmp_path / "build").exists()


def test_importing_it_in_a_kernel_imports_no_framework(tmp_path):
    code = "import metallab, sys\nprint({'torch', 'matplotlib', 'numpy'} & set(sys.modules))"
    page = write_page(tmp_path / "page.ipynb", code)
    assert run_by_nbconvert(page).returncode == 0
    (said,) = nbformat.read(page, 4).cells[0].outputs
    assert "torch" not in said.text
    assert "numpy" not in said.text


# --- a kernel, as JupyterLab drives it ---


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A function that runs a cell, by its id and its text, in a kernel that knows its notebook as from JupyterLab.

    It waits for the end, and fails if the cell raises. Its first cell, which imports metallab, has run.
    """
    page = write_page(tmp_path / "mine.ipynb", SETUP)  # the rest is not saved yet
    told = FAST | {"METALLAB_BUILD": str(tmp_path / "build"), "JPY_SESSION_NAME": str(page)}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    manager, client = start_new_kernel(cwd=str(tmp_path))

    def run(cell: str, source: str) -> Mapping[str, object]:
        message = client.session.msg(
            "execute_request",
            {"code": source, "silent": False, "store_history": True, "stop_on_error": True},
            metadata={"cellId": cell},
        )
        client.shell_channel.send(message)
        reply = client.get_shell_msg(timeout=LIMIT)
        while reply["parent_header"].get("msg_id") != message["header"]["msg_id"]:
            reply = client.get_shell_msg(timeout=LIMIT)  # what the client asked at its start
        assert reply["content"]["status"] == "ok", reply["content"]
        return reply

    run("c0", SETUP)
    yield run
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def measuring(name: str) -> str:
    return f"made = timing.measure(lambda: 1, on=timing.Host(), name={name!r})"


def test_a_cell_that_is_run_again_replaces_what_it_made(kernel, tmp_path):
    kernel("c1", measuring("first"))
    kernel("c2", measuring("second"))
    kernel("c1", measuring("first, edited"))
    names = [record.name for record in saved(tmp_path, "mine")]
    assert names == ["mine/first, edited", "mine/second"]


def test_of_two_results_with_one_name_the_newer_is_kept(kernel, tmp_path):
    kernel("c1", measuring("both"))
    older = saved(tmp_path, "mine")
    kernel("c2", measuring("both"))
    (newer,) = saved(tmp_path, "mine")
    assert newer.measurement.samples != older[0].measurement.samples


# --- which notebook it is, and what of it counts ---


def test_the_notebook_is_found_by_the_cells_that_ran(tmp_path):
    write_page(tmp_path / "a.ipynb", SETUP, "1")
    write_page(tmp_path / "b.ipynb", SETUP, "2")
    found = session.find_page(tmp_path, {}, {SETUP: None, "2": None})
    assert found is not None
    assert found.name == "b"


def test_it_waits_while_several_notebooks_may_be_it(tmp_path):
    write_page(tmp_path / "a.ipynb", SETUP, "1")
    write_page(tmp_path / "b.ipynb", SETUP, "2")
    assert session.find_page(tmp_path, {}, {SETUP: None}) is None


def test_of_copies_the_one_with_the_shortest_name_is_taken(tmp_path):
    write_page(tmp_path / "mine-Copy1.ipynb", SETUP)
    write_page(tmp_path / "mine.ipynb", SETUP)
    write_page(tmp_path / "mine.nbconvert.ipynb", SETUP)

    found = session.find_page(tmp_path, {}, {SETUP: None})
    assert found is not None
    assert found.name == "mine"


def test_files_that_are_no_notebooks_are_passed_over(tmp_path):
    (tmp_path / "a.ipynb").write_text("[]")
    (tmp_path / "b.ipynb").write_bytes(b"\xff")
    assert session.find_page(tmp_path, {}, {SETUP: None}) is None


def test_a_name_with_spaces_becomes_a_file_s(tmp_path):
    page = session.read_page(write_page(tmp_path / "my page (1).ipynb", SETUP))
    assert page is not None
    assert page.name == "my_page__1_"


@pytest.fixture
def page(tmp_path) -> session.Page:
    """A page whose first cells save all, nothing, and one by name; then an exercise, which ends at the next text."""
    cells = [
        v4.new_code_cell("all()", id="all"),
        v4.new_code_cell("no()", id="no", metadata={"metallab": {"saves": False}}),
        v4.new_code_cell("one()", id="one", metadata={"metallab": {"saves": ["kept"]}}),
        v4.new_code_cell("def f(): ...", id="stub", metadata={"tags": ["exercise"]}),
        v4.new_code_cell("check(f)", id="check"),
        v4.new_markdown_cell("## Recap", id="recap"),
        v4.new_code_cell("last()", id="last"),
    ]
    nbformat.write(v4.new_notebook(cells=cells), tmp_path / "page.ipynb")
    read = session.read_page(tmp_path / "page.ipynb")
    assert read is not None
    return read


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("all()", ["kept", "other"]), ("no()", []), ("one()", ["kept"]), ("check(f)", []),
        ("last()", ["kept", "other"]), ("edited()", ["kept", "other"]),
    ],
    ids=["all", "none", "by-name", "exercise", "after-the-exercise", "not-in-the-file"],
)  # fmt: skip
def test_the_metadata_say_what_of_a_cell_is_the_page_s(page, source, names):
    made = [SimpleNamespace(name=name) for name in ("kept", "other")]
    chosen = session.chosen_results(page, [(session.CellKey(source=source), made)])
    assert [each.name for each in chosen] == names


SPACE = {"race": SimpleNamespace(sentences=["a", "b", "c"]), "by_batch": {128: "d"}, "said": "e"}


@pytest.mark.parametrize(
    ("path", "sentences"),
    [
        ("said", ["e"]), ("race.sentences", ["a", "b", "c"]), ("race.sentences[-1]", ["c"]),
        ("race.sentences[1:]", ["b", "c"]), ("race.sentences[:2]", ["a", "b"]), ("by_batch[128]", ["d"]),
        ({"text": "f"}, ["f"]),
    ],
    ids=["variable", "attribute", "from-the-end", "from", "to", "key", "text"],
)  # fmt: skip
def test_a_headline_s_path_leads_to_its_sentences(path, sentences):
    assert session.sentences_of([path], SPACE) == sentences


@pytest.mark.parametrize(
    "path",
    ["none", "race.none", "by_batch[1]", "said()", "race.__class__"],
    ids=["variable", "attribute", "key", "call", "underscores"],
)
def test_a_path_that_leads_nowhere_is_named(path):
    with pytest.raises(NameError, match=re.escape(path)):
        session.sentences_of([path], SPACE)


def test_results_of_a_tool_are_not_heard():
    heard: list[str] = []
    results_made.listen(heard.append)
    with results_made.unheard():
        results_made.announce("step of a tool")
    results_made.announce("of the page")
    results_made.forget(heard.append)
    assert heard == ["of the page"]
