"""Executed pages in the repository: what may be shown, nothing of a machine is left, and they are up to date."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import itertools
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat import v4
from PIL import Image
from test_report import Run, code, entry, png, record, shown

from metallab import machine, needs, notebook, paths, records
from metallab.results import plain, report, show

REVISION = "a" * 40
GAP = needs.MissingTool("the model was not converted", "make packages")


# --- what is stored ---


def faults_of(page: show.Executed) -> Iterator[str]:
    """What is wrong with a stored page. One that is older than its notebook names its revision, and is no fault."""
    executed = nbformat.read(page.path, 4)
    if page.record.machine.git_revision[:7] not in executed.cells[0].source:
        yield "it does not name its revision"
    if show.renew(page) != page.path.read_text(encoding="utf-8"):
        yield "its text has changed since: make show"
    if notebook.fault(executed):
        yield "it did not come to its end"
    outputs = [output for cell in executed.cells for output in cell.get("outputs", [])]
    if traces := plain.leaks("\n".join(plain.texts(outputs))):
        yield f"it names {traces}"
    kinds = {kind for output in outputs for kind in output.get("data", ())}
    if kinds - {"text/plain", "text/html", "image/png", needs.MIME}:
        yield "an output is not for every viewer"
    drawn = page.picture and hashlib.sha256(page.picture.read_bytes()).hexdigest()
    if drawn != page.record.headline.sha256 or not (drawn or page.entry.not_run):
        yield "its picture is missing or another one"


def test_the_stored_pages_are_those_of_the_notebooks():
    stored, faults = show.read_sets(), []
    names = {path.stem for path in paths.NOTEBOOKS.glob("[0-9]*.ipynb")}
    assert {*show.FIRST} <= {name.split("_")[0] for name in names}
    assert [{*each.pages} for each in stored if each.summary.device == "cpu"] == [names]
    for each in stored:
        files = [path for path in each.folder.rglob("*") if path.is_file()]
        texts = [path for path in files if path.suffix == ".json" and plain.leaks(path.read_text(encoding="utf-8"))]
        faults += [f"{path}: it names a machine" for path in texts]
        if sum(path.stat().st_size for path in files) > show.MOST_BYTES:
            faults.append(f"{each.folder}: it is too large")
        for page in each.pages.values():
            faults += [f"{page.path}: {fault}" for fault in faults_of(page)]
    readme, index = (path.read_text(encoding="utf-8") for path in (show.README, show.EXECUTED / "README.md"))
    if (show.with_pages(readme, stored), show.index(stored)) != (readme, index):
        faults.append("README.md or data/executed/README.md: not what is stored: make show")
    assert not faults, "\n".join(["make run DEVICE=cpu && make show RUN=build/full-cpu", *faults])


# --- what is made of a run ---

INTRODUCTION = "# Measure it\n\nSee [the guide](../docs/teaching.md) and [the next](02_b.ipynb)."


def cells(*outputs: dict) -> list[dict]:
    return [v4.new_markdown_cell(INTRODUCTION), code("measure()", *outputs)]


def measured(name: str, revision: str | None = REVISION, path: str = "", **changes) -> list[records.Record]:
    """A page's records, with a headline."""
    headline = records.Headline(
        ("GPU | CPU: equal losses.",), f"{name}.png", "bars; [a] and b", hashlib.sha256(png()).hexdigest()
    )
    one = record("eager", outcome="", **changes)
    described = dataclasses.replace(one.machine, git_revision=revision, git_dirty=False, environment={"TF_X": path})
    return [dataclasses.replace(one, lesson=name, name=f"{name}/eager", machine=described, headline=headline)]


class Finished(Run):
    """A run in full mode of two pages, and the checkout that it is of."""

    def __init__(self, root, patch):
        super().__init__(root)
        self.notebooks, self.executed = root / "notebooks", root / "data" / "executed"
        self.notebooks.mkdir()
        patch.setattr(paths, "NOTEBOOKS", self.notebooks)
        self.summary(entry("01_a"), entry("02_b"))
        for name in ("01_a", "02_b"):
            self.page_of(name, shown(png()))
            self.results(name)
            metadata = {"metallab": {"needs": ["torch", "jax-metal"] if name == "01_a" else ["torch"]}}
            nbformat.write(v4.new_notebook(cells=cells(), metadata=metadata), self.notebooks / f"{name}.ipynb")

    def page_of(self, name: str, *outputs: dict) -> None:
        self.notebook(name, *cells(*outputs))

    def results(self, name: str, **changes) -> None:
        path = records.write(self.folder / "results" / f"{name}.json", measured(name, **changes))
        path.with_suffix(".png").write_bytes(png())

    def make(self):
        return show.make([self.folder], self.executed)

    def shown(self, name: str):
        folder, _ = self.make()
        return nbformat.read(folder / f"{name}.ipynb", 4)


@pytest.fixture
def run(tmp_path, monkeypatch):
    return Finished(tmp_path, monkeypatch)


def test_a_set_reads_like_the_folder_of_a_run(run):
    folder, refused = run.make()
    assert (folder.name, refused) == ("some_cpu", {})
    summary, problems = report.read_summary(folder)
    assert problems == []
    assert [(each.name, each.status) for each in summary.notebooks] == [("01_a", "passed"), ("02_b", "passed")]
    (kept,) = records.load(folder / "results" / "01_a.json")
    assert kept.headline.sentences == ("GPU | CPU: equal losses.",)
    picture = (folder / "results" / kept.headline.picture).read_bytes()
    assert hashlib.sha256(picture).hexdigest() == kept.headline.sha256
    top, cell = nbformat.read(folder / "01_a.ipynb", 4).cells
    title, _, caption, _, rest = top.source.split("\n", 4)
    assert title == "# Measure it"
    assert caption.startswith("> ")
    assert all(word in caption for word in ("Some CPU", "20 November 2026", "aaaaaaa"))
    assert "(../../../docs/teaching.md) and [the next](02_b.ipynb)" in rest
    assert cell.source == "measure()"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"mode": "fast"}, "MODE=full"),
        ({"simulated": True}, "simulated"),
        ({"device": "sim"}, "simulated"),
        ({"notebooks": None}, "notebooks"),
        ({"notebooks": [entry("01_a", status="failed", reason="cell 1: Boom")]}, "Boom"),
    ],
)
def test_a_run_is_refused_as_a_whole(run, changes, word):
    run.summary(entry("01_a"), **changes)
    with pytest.raises(show.ShowError, match=word):
        run.make()
    assert not run.executed.exists()


def test_runs_of_two_machines_are_refused(run, tmp_path):
    other = Run(tmp_path / "other")
    other.summary(entry("01_a"), label="Some GPU")
    with pytest.raises(show.ShowError, match="Some CPU and Some GPU"):
        show.make([run.folder, other.folder], run.executed)


PRINTED = v4.new_output("stream", name="stdout", text="in /mnt/disk/somebody/data.txt")
UNFINISHED = v4.new_code_cell("measure()")
RAISED = v4.new_output("error", ename="Boom", evalue="no", traceback=["Boom"])
ATTACHED = v4.new_markdown_cell(INTRODUCTION, attachments={"a.png": {"image/png": "aaaa"}})


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def linked(path: Path) -> None:
    path.symlink_to(path.rename(path.with_name(f"aside{path.suffix}")))


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda run: run.summary(entry("01_a", status="failed", reason="Boom"), entry("02_b")), "Boom; make run"),
        (lambda run: run.page_of("01_a", v4.new_output("display_data", GAP._repr_mimebundle_())), "1 parts"),
        (lambda run: run.summary(entry("01_a", status="incomplete", reason="x"), entry("02_b")), "0 parts"),
        (lambda run: run.notebook("01_a", cells()[0], UNFINISHED), "cell 1"),
        (lambda run: run.page_of("01_a", RAISED), "Boom"),
        (lambda run: run.notebook("01_a", cells()[0], code("other()")), "code"),
        (lambda run: run.notebook("01_a", ATTACHED, cells()[1]), "attachments"),
        (lambda run: run.page_of("01_a", PRINTED), "'/mnt/disk"),
        (lambda run: run.page_of("01_a", v4.new_output("display_data", {"x/y": "?"})), "cell 1"),
        (lambda run: run.results("01_a", mode="fast"), "fast"),
        (lambda run: run.results("01_a", path="/mnt/disk/a"), "'/mnt/disk"),
        (lambda run: run.page_of("01_a", shown(png(500, 500)[:150])), "picture"),
        (lambda run: run.page_of("01_a", v4.new_output("display_data", {"image/png": "a"})), "picture"),
        (lambda run: records.write(run.folder / "results" / "01_a.json", measured("02_b")), "another page"),
        (lambda run: (run.folder / "results" / "01_a.png").write_bytes(png(4, 4)), "01_a.png"),
        (lambda run: (run.notebooks / "01_a.ipynb").unlink(), "notebook"),
    ],
)
def test_one_page_is_refused_and_the_others_are_shown(run, damage, word):
    damage(run)
    folder, refused = run.make()
    assert [*refused] == ["01_a"]
    assert word in refused["01_a"]
    assert sorted(path.name for path in folder.rglob("0*")) == ["02_b.ipynb", "02_b.json", "02_b.png"]


@pytest.mark.parametrize("put", [piped, linked, Path.unlink])
@pytest.mark.parametrize("name", ["summary.json", "01_a.ipynb", "results/01_a.json", "results/01_a.png"])
def test_only_the_run_s_own_files_are_shown(run, name, put):
    put(run.folder / name)
    if name == "summary.json":
        with pytest.raises(show.ShowError):
            run.make()
    else:
        assert [*run.make()[1]] == ["01_a"]


def test_a_headline_is_of_its_page_and_of_its_samples(run):
    (one,) = measured("01_a")
    (run.folder / "results" / "other.png").write_bytes(png(4, 4))
    told = dataclasses.replace(one.headline, sentences=("It is 3 times as fast.", "Nothing is lost."))
    other = dataclasses.replace(told, picture="other.png", sha256=hashlib.sha256(png(4, 4)).hexdigest())
    for headline in (told, other):
        records.write(run.folder / "results" / "01_a.json", [dataclasses.replace(one, headline=headline)])
        folder, refused = run.make()
    assert "01_a.png" in refused["01_a"]
    assert records.load(folder / "results" / "01_a.json")[0].headline.sentences == ("Nothing is lost.",)


def test_a_page_of_one_run_is_shown_where_the_other_failed(run, tmp_path):
    later = Run(tmp_path / "later")
    later.summary(entry("01_a", status="failed", reason="Boom"))
    for runs in ([run.folder, later.folder], [later.folder, run.folder]):
        folder, refused = show.make(runs, run.executed)
        assert refused == {}
        assert (folder / "01_a.ipynb").exists()


def test_an_incomplete_page_names_what_was_not_run(run):
    gap = {"where": "cell 1 (Measure it)", "what": GAP.what, "mend": GAP.fix}
    run.summary(entry("01_a", status="incomplete", reason="not run", not_run=[gap]), entry("02_b"))
    run.page_of("01_a", v4.new_output("display_data", GAP._repr_mimebundle_()))
    assert f"{GAP.what} (cell 1)" in run.shown("01_a").cells[0].source
    assert f"{GAP.what} (cell 1)" in show.index(show.read_sets(run.executed))


def test_a_page_of_another_machine_may_be_of_a_known_revision(run):
    run.summary(entry("01_a"), device="cuda", label="Some GPU")
    run.notebook("01_a", cells()[0], code("older()"))
    assert "aaaaaaa" in run.shown("01_a").cells[0].source
    run.results("01_a", revision=None)
    with pytest.raises(show.ShowError, match="revision"):
        run.make()


def test_a_stored_page_gets_today_s_text_and_keeps_outputs(run):
    folder, _ = run.make()
    before = nbformat.read(folder / "01_a.ipynb", 4)
    for name, program in (("01_a", "measure()"), ("02_b", "changed()")):
        text = [
            v4.new_markdown_cell("# Time it\n\nSee [it](../README.md)."),
            code(program),
            v4.new_markdown_cell("So."),
        ]
        nbformat.write(v4.new_notebook(cells=text), run.notebooks / f"{name}.ipynb")
    readme = run.executed / "top.md"
    readme.write_text(EMPTY)
    other = (folder / "02_b.ipynb").read_text()
    show.update(run.executed, readme)
    top, cell, last = nbformat.read(folder / "01_a.ipynb", 4).cells
    caption = before.cells[0].source.split("\n\n")[1]
    assert (top.source, last.source) == (f"# Time it\n\n{caption}\n\nSee [it](../../../README.md).", "So.")
    assert cell.outputs == before.cells[1].outputs
    assert (folder / "02_b.ipynb").read_text() == other, "of other code the text stays as well"


def test_a_page_that_the_run_lacks_has_a_reason(run):
    run.summary(entry("02_b"))
    run.make()
    (made,) = show.read_sets(run.executed)
    ((name, reason),) = [(each.name, each.reason) for each in made.lacking]
    assert (name, "jax-metal" in reason) == ("01_a", True)
    assert reason in show.index([made])


def test_versions_that_are_not_the_locked_ones_are_named(run):
    (one,) = measured("01_a")
    described = dataclasses.replace(one.machine, versions={"torch": "1.0+cu1", "numpy": one.machine.versions["numpy"]})
    older = [dataclasses.replace(one, machine=described)]
    for needed, named in (("torch", True), ("jax", False)):
        assert ("torch 1.0+cu1 " in show.caption(report.Notebook("01_a", "A", "passed"), older, "", [needed])) is named


def test_a_set_that_is_too_large_is_refused(run, monkeypatch):
    monkeypatch.setattr(show, "MOST_BYTES", 1000)
    with pytest.raises(show.ShowError, match="the largest with"):
        run.make()


def test_a_folder_that_is_no_set_is_left_alone(run):
    (run.executed / "some_cpu").mkdir(parents=True)
    (run.executed / "some_cpu" / "diary.txt").write_text("mine")
    with pytest.raises(show.ShowError, match="move it away"):
        run.make()
    assert (run.executed / "some_cpu" / "diary.txt").read_text() == "mine"


def test_a_page_replaces_itself_and_other_pages_stay(run):
    folder, _ = run.make()
    before = {path.name: path.read_bytes() for path in folder.rglob("01_a.*")}
    run.page_of("02_b", shown(png(5, 5)))
    run.summary(entry("01_a", status="failed", reason="Boom"), entry("02_b"))
    assert [*run.make()[1]] == ["01_a"], "the stored page stays, and the run's is named"
    assert {path.name: path.read_bytes() for path in folder.rglob("01_a.*")} == before
    picture = base64.b64decode(nbformat.read(folder / "02_b.ipynb", 4).cells[1].outputs[0].data["image/png"])
    assert Image.open(io.BytesIO(picture)).size == (5, 5)
    (made,) = show.read_sets(run.executed)
    assert ([*made.pages], made.lacking) == (["01_a", "02_b"], [])


def test_a_page_that_the_checkout_lost_goes(run):
    run.make()
    (run.notebooks / "01_a.ipynb").unlink()
    run.summary(entry("02_b"))
    folder, _ = run.make()
    assert sorted(path.name for path in folder.rglob("*.*")) == ["02_b.ipynb", "02_b.json", "02_b.png", "summary.json"]


# --- README ---

EMPTY = f"# Lab\n\n{show.BEGIN}\n{show.END}\n\n| 01 | [A](notebooks/01_a.ipynb) | to measure |\n"


def test_readme_shows_each_page_of_a_gpu_first(run):
    run.make()
    run.summary(entry("02_b"), device="cuda", label="Some GPU")
    run.make()
    text = show.with_pages(EMPTY, show.read_sets(run.executed))
    first, page = text.index("[**01 Title of 01_a**]"), "(data/executed/some_cpu/01_a.ipynb)"
    assert f"[![bars; (a) and b](data/executed/some_cpu/results/01_a.png)]{page}<br>" in text[:first]
    assert text[first:].startswith(rf"[**01 Title of 01_a**]{page}: GPU \| CPU: equal losses. *Some CPU*")
    assert f"(notebooks/01_a.ipynb)<br>[CPU]{page} |" in text
    assert show.with_pages(text, show.read_sets(run.executed)) == text
    run.results("02_b", others=9.0)
    assert "](data/executed/some_gpu/02_b.ipynb)<br>" in text
    run.make()
    busy, _ = sets = show.read_sets(run.executed)
    assert "busy" in show.index([busy])
    assert "](data/executed/some_cpu/02_b.ipynb)<br>" in show.with_pages(EMPTY, sets), "a quiet machine comes first"


def test_the_command_names_what_it_refused(run, monkeypatch, capsys, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(EMPTY)
    monkeypatch.setattr(show, "EXECUTED", run.executed)
    monkeypatch.setattr(show, "README", readme)
    run.summary(entry("01_a"), entry("02_b", status="failed", reason="Boom"))
    assert show.main([str(run.folder)]) == 1
    assert "make run ONLY=02" in capsys.readouterr().err
    assert "some_cpu/01_a.ipynb" in readme.read_text()
    readme.write_text("# Lab")
    assert show.main([]) == 2
    assert show.BEGIN in capsys.readouterr().err
    run.summary(mode="fast")
    assert show.main([str(run.folder)]) == 2
    assert "make run MODE=full" in capsys.readouterr().err


# --- outputs as a viewer shows them ---


def test_html_keeps_its_words_and_what_was_coloured_is_bold():
    html = (
        "<style>#T_1_row0_col1, #T_1_row1_col0 { color: red }</style><table id='T_1' class='t'><tr>"
        "<td id='T_1_row0_col0' style='x'>1</td><td id='T_1_row0_col1' colspan='2' onclick='go()'>2</td></tr></table>"
        "<script>go()</script><svg><p>kept</p></svg>"
    )
    pictures, made = plain.plain_html(html)
    assert pictures == []
    assert made == '<table><tr><td>1</td><td colspan="2"><b>2</b></td></tr></table><p>kept</p>'


def test_a_picture_inside_html_becomes_one_of_its_own():
    source = base64.b64encode(png()).decode()
    ((picture, words),), made = plain.plain_html(f"<img src='data:image/png;base64,{source}' alt='a film'><p>1</p>")
    assert words == "a film"
    assert Image.open(io.BytesIO(picture)).size == (3, 2)
    assert made == "<p>1</p>"


def test_a_picture_has_few_colours_on_white_and_a_rare_one_is_not_lost():
    dark = random.Random(1)
    picture = Image.new("RGBA", (300, 200), (0, 0, 0, 0))
    for pixel in itertools.product(range(300), range(100)):
        picture.putpixel(pixel, (*dark.choices(range(120), k=3), 255))
    picture.putpixel((1, 1), (250, 40, 40, 255))
    given = io.BytesIO()
    picture.save(given, "PNG")
    made = Image.open(io.BytesIO(plain.small_png(given.getvalue())))
    assert (made.mode, made.size) == ("P", (300, 200))
    assert len(made.getcolors()) <= plain.COLOURS
    made = made.convert("RGB")
    assert made.getpixel((100, 150)) == (255, 255, 255)
    assert max(abs(one - two) for one, two in zip(made.getpixel((1, 1)), (250, 40, 40), strict=True)) < 16
    assert Image.open(io.BytesIO(plain.small_png(given.getvalue(), width=150))).size == (150, 100)


def test_a_film_becomes_a_short_one_that_takes_as_long():
    frames = [Image.new("RGB", (800, 10), (number * 8, 0, 0)) for number in range(30)]
    given = io.BytesIO()
    frames[0].save(given, "WEBP", save_all=True, append_images=frames[1:], duration=100, lossless=True)
    made = Image.open(io.BytesIO(plain.small_png(given.getvalue())))
    assert (made.format, made.n_frames, made.width) == ("PNG", plain.MOST_FRAMES, plain.FILM_WIDTH)
    lengths = []
    for number in range(made.n_frames):
        made.seek(number)
        lengths.append(made.info["duration"])
    assert sum(lengths) == 3000


def test_a_widget_becomes_its_picture(run):
    output = shown(png())
    output.data["application/vnd.jupyter.widget-view+json"] = {"model_id": "1"}
    run.page_of("01_a", output)
    assert [*run.shown("01_a").cells[1].outputs[0].data] == ["image/png"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/srv/ci/lab/.venv/lib/torch/nn.py:20: Warning", ".venv/lib/torch/nn.py:20: Warning"),
        ("see /home/ann/lab/build/full-cpu/a.json", "see build/full-cpu/a.json"),
        ("/tmp/ipykernel_20032/3823037951.py:3: UserWarning", "cell:3: UserWarning"),
        ("/opt/conda/lib/python3.12/site-packages/jax/a.py", ".venv/jax/a.py"),
        ("/Users/ann/films/a.mp4", "~/films/a.mp4"),
        ("https://example.org/docs/build/a and GB/s", "https://example.org/docs/build/a and GB/s"),
    ],
)
def test_paths_begin_at_the_checkout(text, expected):
    assert plain.without_paths(text) == expected
    assert plain.leaks(expected) == []


def test_what_tells_of_a_machine_is_told(monkeypatch):
    monkeypatch.setattr(plain, "_names", lambda: ("annes-laptop", "anne"))
    assert plain.leaks("on annes-laptop, by anne: /mnt/a/b.txt") == ["/mnt/a", "annes-laptop", "anne"]
    assert plain.leaks("anneal /usr/lib/x.so {here}/tmp/x /0/Conv </td>/") == []


def test_names_of_nobody_are_no_traces(monkeypatch):
    monkeypatch.setattr(plain.platform, "node", lambda: "vm.example.org")
    monkeypatch.setattr(machine, "user_names", lambda: {"root", "Anne Smith"})
    assert plain._names.__wrapped__() == ("Anne Smith", "vm.example.org")


def test_the_summary_names_no_path(run):
    run.summary(entry("01_a", status="skipped", reason="see /srv/x/build/log.txt"), entry("02_b"))
    folder, _ = run.make()
    text = (folder / "summary.json").read_text()
    assert json.loads(text)["notebooks"][0]["reason"] == "see build/log.txt"
