"""Which pages of a run are stored, and what is kept of them."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import os
import shutil

import nbformat
import pytest
from nbformat import v4
from PIL import Image
from results_files import honest
from run_folder import entry, picture_output, png, record
from stored_pages import cells, measured, write_page

from metallab import paths, records
from metallab.results import report
from metallab.results.publish import caption, executed, show


def test_a_set_reads_like_the_folder_of_a_run(stored):
    statuses = {each.name: each.status for each in report.read_summary(stored).notebooks}

    assert stored.name == "some_cpu"
    assert statuses == {"01_a": "passed", "02_b": "passed"}


def test_a_set_keeps_the_headline_of_a_page_and_its_picture(stored):
    (kept,) = records.load(stored / "results" / "01_a.json")

    assert kept.headline.sentences == ("GPU | CPU: equal losses.",)
    picture = (stored / "results" / kept.headline.picture).read_bytes()
    assert hashlib.sha256(picture).hexdigest() == kept.headline.sha256


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"mode": "fast"}, "MODE=full"),
        ({"simulated": True}, "simulated"),
        ({"device": "sim"}, "simulated"),
        ({"notebooks": [entry("01_a", status="failed", reason="Boom")]}, "Boom"),
    ],
)
def test_a_run_is_refused_as_a_whole(finished_run, changes, word, capsys):
    finished_run.summary(entry("01_a"), **changes)
    assert show.main([str(finished_run.folder)]) == 2
    assert word in capsys.readouterr().err
    assert not finished_run.executed.exists()


def change_records(run, name, **changes):
    """Change fields of the records of one page of a run."""
    path = run.folder / "results" / f"{name}.json"
    picture = path.with_suffix(".png").read_bytes()
    records.write(path, [dataclasses.replace(each, **changes) for each in records.load(path)])
    path.with_suffix(".png").write_bytes(picture)


@pytest.mark.parametrize(
    ("sentence", "is_replaced"),
    [("152 of 155 cases agree.", False), ("It is 9 times as fast.", True)],
    ids=["a count", "a speed-up that nothing gives"],
)
def test_a_set_says_whether_a_page_s_own_sentences_were_replaced(
    finished_run, sentence, is_replaced
):
    change_records(finished_run, "01_a", headline=records.Headline((sentence,)))

    folder, _ = finished_run.store()

    entries = {each.name: each for each in report.read_summary(folder).notebooks}
    (kept,) = records.load(folder / "results" / "01_a.json")
    assert entries["01_a"].headline_is_replaced == is_replaced
    assert (sentence not in kept.headline.sentences) == is_replaced


def test_a_set_says_why_a_page_has_no_headline(finished_run):
    change_records(finished_run, "01_a", headline=None, without_headline="no cell has made it")

    folder, _ = finished_run.store()

    (kept,) = records.load(folder / "results" / "01_a.json")
    assert kept.headline is None
    assert kept.without_headline == "no cell has made it"


def test_the_summary_of_a_set_says_no_time_of_one_run(stored):
    summary = report.read_summary(stored)

    assert summary.is_stored
    assert summary.started is None
    assert summary.seconds is None


def test_the_summary_of_a_run_is_not_taken_for_that_of_a_set(finished_run):
    assert not report.read_summary(finished_run.folder).is_stored


def test_a_set_counts_the_speed_ups_that_its_caption_calls_withheld(finished_run):
    """Those that another run may give: not the one whose outputs differ, which they would do again."""
    made = honest(
        [
            record("fused", (1.2, 1.3, 1.4), others=9.0),
            record("wrong", reason="outputs differ", detail="by 3", outcome="withheld", others=9.0),
        ]
    )
    headline = records.Headline(("Nothing is lost.",))
    records.write(
        finished_run.folder / "results" / "01_a.json",
        [dataclasses.replace(each, headline=headline) for each in made],
    )

    page = finished_run.stored("01_a")

    folder = finished_run.executed / "some_cpu"
    told = {each.name: each for each in report.read_summary(folder).notebooks}
    assert told["01_a"].withheld == 1
    assert "Speed-ups: 2, 1 of them withheld" in caption.read_caption(page.cells[0].source)


def set_versions(run, name, **versions):
    """Let the machine on which one page of a run was measured have these packages; None for one that is missing."""
    (one,) = records.load(run.folder / "results" / f"{name}.json")
    described = dataclasses.replace(one.machine, versions={"torch": "2.15.0"} | versions)
    change_records(run, name, machine=described)


def test_a_caption_names_other_versions_than_the_locked_ones_of_what_the_page_needs(
    finished_run, tmp_path, monkeypatch
):
    """Also of what belongs to a package that it needs, and of no other one."""
    locked = tmp_path / "constraints.txt"
    locked.write_text("jax==0.8\njaxlib==0.8\nnumpy==2.3\ntorch==2.15.0\n")
    monkeypatch.setattr(paths, "CONSTRAINTS", locked)
    notebook = finished_run.notebooks / "01_a.ipynb"
    write_page(notebook, *cells(), packages=["torch", "jax"])
    set_versions(finished_run, "01_a", torch="2.15.0+cpu", jax="0.8", jaxlib="0.9", numpy="2.4")

    page = finished_run.stored("01_a")

    words = caption.read_caption(page.cells[0].source)
    assert "\n> Other versions than the locked ones: jaxlib 0.9 (locked: 0.8).\n" in words


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ({"mlx": None}, {"mlx": None}, "it was not run there, where mlx was not installed"),
        ({"mlx": "0.32"}, {"mlx": None}, "it was not run there"),
        ({"mlx": None}, {"mlx": "0.32"}, "it was not run there"),
        ({}, {}, "it was not run there"),
    ],
    ids=["never there", "removed", "installed later", "not recorded"],
)
def test_a_package_is_called_missing_where_no_page_of_the_set_had_it(
    finished_run, first, second, reason
):
    set_versions(finished_run, "01_a", **first)
    set_versions(finished_run, "02_b", **second)
    write_page(finished_run.notebooks / "03_c.ipynb", *cells(), packages=["torch", "mlx"])

    folder, _ = finished_run.store()

    told = {each.name: each for each in report.read_summary(folder).notebooks}
    assert told["03_c"].status == "skipped"
    assert told["03_c"].reason == reason


PRIVATE = v4.new_output("stream", text="in /mnt/disk/somebody/data.txt")


UNKNOWN = v4.new_output("display_data", {"x/y": "?"})


def replace_by_a_pipe(run):
    (run.folder / "01_a.ipynb").unlink()
    os.mkfifo(run.folder / "01_a.ipynb")


DAMAGES = {
    "failed": (
        lambda run: run.summary(entry("01_a", status="failed", reason="Boom"), entry("02_b")),
        "Boom; make run",
    ),
    "a folder of somebody's": (lambda run: run.page_of("01_a", PRIVATE), "'/mnt/disk"),
    "an unknown output": (lambda run: run.page_of("01_a", UNKNOWN), "cell 1"),
    "fast mode": (lambda run: run.results("01_a", mode="fast"), "fast"),
    "a folder in a variable": (
        lambda run: run.results("01_a", env={"XLA_FLAGS": "/mnt/disk/a"}),
        "'/mnt/disk",
    ),
    "half a picture": (
        lambda run: run.page_of("01_a", picture_output(png(500, 500)[:50])),
        "picture",
    ),
    "another picture": (
        lambda run: (run.folder / "results" / "01_a.png").write_bytes(png(4, 4)),
        "01_a.png",
    ),
    "no notebook": (lambda run: (run.folder / "01_a.ipynb").write_text("{"), "01_a.ipynb"),
    "another page's results": (
        lambda run: records.write(run.folder / "results" / "01_a.json", measured("02_b")),
        "another page's",
    ),
    "another device": (
        lambda run: run.results("01_a", env={"METALLAB_DEVICE": "cuda"}),
        "another device",
    ),
    "another page's notebook": (
        lambda run: shutil.copy(run.folder / "02_b.ipynb", run.folder / "01_a.ipynb"),
        "notebook is another page's",
    ),
    "a pipe": (replace_by_a_pipe, "regular"),
}
"""What may be wrong with a page of a run, and a word of the refusal."""


@pytest.mark.parametrize(("damage", "word"), DAMAGES.values(), ids=DAMAGES)
def test_one_page_is_refused_and_the_others_are_shown(finished_run, damage, word):
    damage(finished_run)

    folder, refused = finished_run.store()

    assert [*refused] == ["01_a"]
    assert word in refused["01_a"]
    assert [*executed.read_sets(finished_run.executed)[0].pages] == ["02_b"]
    assert not (folder / "01_a.ipynb").exists()


def test_a_page_that_lacked_its_tool_is_left_out_with_the_reason(finished_run):
    """The summary calls it skipped, and it is not refused for having no results: none of its cells ran."""
    lacking = entry("01_a", status="incomplete", reason="needs Core AI", executed=0)
    (finished_run.folder / "results" / "01_a.json").unlink()
    finished_run.summary(lacking, entry("02_b"))

    folder, refused = finished_run.store()

    assert refused == {}
    assert not (folder / "01_a.ipynb").exists()
    kept = {each.name: each for each in report.read_summary(folder).notebooks}
    assert kept["01_a"].status == "skipped"
    assert kept["01_a"].reason == "needs Core AI"


def files_of(folder, page):
    """The files of a stored page, and what is in them."""
    return {path.name: path.read_bytes() for path in folder.rglob(f"{page}.*")}


@pytest.mark.parametrize(
    ("first", "refused"),
    [
        ([], []),
        ([entry("01_a")], ["01_a"]),
        ([entry("01_a", status="failed", reason="Boom")], ["01_a"]),
    ],
    ids=["not run", "with another picture", "failed"],
)
def test_a_page_that_is_not_renewed_stays_as_it_is(finished_run, stored, first, refused):
    before = files_of(stored, "01_a")
    (finished_run.folder / "results" / "01_a.png").write_bytes(png(4, 4))  # of another run
    finished_run.summary(*first, entry("02_b"))

    assert [*finished_run.store()[1]] == refused

    assert files_of(stored, "01_a") == before
    assert [*executed.read_sets(finished_run.executed)[0].pages] == ["01_a", "02_b"]


def test_a_page_that_ran_again_replaces_itself(finished_run, stored):
    finished_run.page_of("02_b", picture_output(png(5, 5)))
    finished_run.summary(entry("02_b"))

    finished_run.store()

    _, cell = nbformat.read(stored / "02_b.ipynb", 4).cells
    picture = base64.b64decode(cell.outputs[0].data["image/png"])
    assert Image.open(io.BytesIO(picture)).size == (5, 5)
