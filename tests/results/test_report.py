"""The report: it shows what a run found, loads nothing, and escapes everything."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import time
from collections.abc import Iterator

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat import v4
from PIL import Image
from results_files import claim, honest

from metallab import machine, paths, records
from metallab.__main__ import main as command
from metallab.device import Device
from metallab.results import findings, report
from metallab.timing import Measurement, Ratio

HOSTILE = (
    "\"><script>alert(1)</script><img src=x onerror=alert(1)>' javascript:alert(1) {{ 7*7 }} &amp;"
)


def png(width: int = 3, height: int = 2) -> bytes:
    """A grey PNG."""
    file = io.BytesIO()
    Image.new("L", (width, height), 128).save(file, "PNG")
    return file.getvalue()


def shown(data: bytes) -> dict:
    """An output with a picture."""
    return v4.new_output(
        "display_data",
        data={"image/png": base64.b64encode(data).decode(), "text/plain": "<Figure>"},
    )


def code(source: str, *outputs: dict) -> dict:
    return v4.new_code_cell(source, execution_count=1, outputs=list(outputs))


def error(*traceback: str) -> dict:
    return v4.new_output(
        "error", ename="ZeroDivisionError", evalue="division by zero", traceback=list(traceback)
    )


def notebook(*cells: dict):
    """A notebook of the given cells; by default one with a heading and a picture."""
    cells = cells or (
        v4.new_markdown_cell("# Title\n\n## How `fast`?"),
        code("plot()", shown(png())),
    )
    return v4.new_notebook(
        cells=list(cells),
        metadata={
            "language_info": {"name": "python"},
            "widgets": {"application/vnd.jupyter.widget-state+json": {"state": {}}},
        },
    )


def entry(name: str, **changes) -> dict:
    """A notebook's entry in summary.json."""
    known = {
        "name": name,
        "title": f"Title of {name}",
        "status": "passed",
        "seconds": 12.0,
        "reason": "",
    }
    return (
        known
        | {"cells": 4, "executed": 4, "peak_rss_bytes": 3 * 2**20, "failed_copy": None}
        | changes
    )


def record(
    name: str, ratio=None, *, outcome="faster", reason=None, detail="", **changes
) -> records.Record:
    """A record of lesson 01_a: of a comparison's variant if a ratio (low, median, high) or a verdict is given."""
    compared = None
    if ratio or reason or detail or outcome == "baseline":
        low, median, high = ratio or (None, None, None)
        compared = records.Compared(
            "matmul", name, "eager", outcome, median, low, high, reason, detail, "outputs agree"
        )
    known = {
        "question": "latency",
        "samples": (0.001, 0.00101, 0.00102) * 8,
        "first_call": 0.5,
        "block": 1,
    }
    known |= {
        "warmup_calls": 3,
        "stop_reason": "quiet",
        "mode": "full",
        "device": "Some CPU",
        "simulated": False,
    }
    measured = Measurement(name=name, **known | changes)
    full = f"01_a/matmul/{name}" if compared else f"01_a/{name}"
    return records.Record(
        "01_a", full, "2026-11-20T10:00:00+00:00", measured, compared, None, machine.describe()
    )


class Run:
    """A run's folder under build/, to be filled and reported on."""

    def __init__(self, root):
        self.folder = root / "build" / "full-cpu"
        self.report = root / "build" / "report"
        self.folder.mkdir(parents=True)

    def summary(self, *entries: dict, **changes) -> None:
        known = {"mode": "full", "device": "cpu", "label": "Some CPU", "simulated": False}
        known |= {
            "started": "2026-11-20T10:00:00+00:00",
            "seconds": 187.2,
            "notebooks": list(entries),
        }
        (self.folder / "summary.json").write_text(json.dumps(known | changes))

    def notebook(self, name: str, *cells: dict, folder: str = ".") -> None:
        (self.folder / folder).mkdir(exist_ok=True)
        nbformat.write(notebook(*cells), self.folder / folder / f"{name}.ipynb")

    def records(self, *made: records.Record, name: str = "01_a"):
        """Write records, with the baselines that they need, and return the file."""
        return records.write(self.folder / "results" / f"{name}.json", honest(made))

    def page(self) -> BeautifulSoup:
        """The page of a new report."""
        index, _ = report.make(self.folder, self.report)
        return BeautifulSoup(index.read_text(encoding="utf-8"), "html.parser")


@pytest.fixture
def run(tmp_path, monkeypatch) -> Iterator[Run]:
    for name, path in {
        "ROOT": ".",
        "BUILD": "build",
        "FAILED": "build/failed",
        "REPORT": "build/report",
    }.items():
        monkeypatch.setattr(paths, name, (tmp_path / path).resolve())
    monkeypatch.setattr(findings, "REFERENCES", tmp_path.resolve() / "data" / "results")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield Run(tmp_path.resolve())
    monkeypatch.undo()
    time.tzset()


def text_of(element) -> str:
    return " ".join(element.get_text(" ").split())


# --- what the page shows ---


def test_the_page_shows_a_run_with_its_failures(run):
    run.summary(
        entry("01_a"),
        entry(
            "02_b",
            status="failed",
            reason="cell 2: division by zero",
            failed_copy="failed/02_b.ipynb",
        ),
        entry("03_c", status="skipped", reason="needs a Mac", seconds=0, executed=0),
    )
    run.notebook("01_a")
    lines = [
        "\x1b[31mTraceback\x1b[0m",
        *map(str, range(report.TRACEBACK_LINES)),
        "ZeroDivisionError: <b>",
    ]
    run.notebook("02_b", code("1/0", error(*lines)), folder="failed")
    run.records(
        record("eager", outcome="baseline"), record("fused", (1.75, 1.83, 1.9)), record("alone")
    )
    page = run.page()
    assert page.header.find_next_sibling().name == "main"
    head = text_of(page.header)
    assert all(
        word in head
        for word in ("Some CPU", "full mode", "2026-11-20 10:00 UTC", "3 min 7 s", "1 failed")
    )
    assert all(word in head for word in ("make run ONLY=02", "Skipped (needs a Mac): 03"))
    verdicts = text_of(page.find(id="verdicts"))
    assert all(
        word in verdicts
        for word in ("matmul", "fused", "1.83×", "1.75 to 1.90", "faster", "against eager")
    )
    assert "alone" not in verdicts
    assert machine.describe().python in text_of(page.find(id="machine"))
    links = [card.h3.a and card.h3.a["href"] for card in page.select("#notebooks article")]
    assert links == ["pages/01_a.html", "pages/02_b.html", None]
    assert all((run.report / link).is_file() for link in links[:2])
    failures = page.find(id="failures")
    assert all(
        word in text_of(failures)
        for word in ("cell 2: division by zero", "needs a Mac", "failed/02_b.ipynb")
    )
    shown = failures.pre.get_text().splitlines()
    assert (shown[0], shown[1], shown[-1]) == ("...", "1", "ZeroDivisionError: <b>")
    rows = [text_of(row) for row in page.select("#measurements details tbody tr")]
    assert [("1.01 ms" in row, "500 ms" in row and "24" in row) for row in rows].count(
        (True, True)
    ) == 2
    assert "552 µs" in rows[1], "1.01 ms in 1.83 times"


def test_an_incomplete_notebook_shows_what_would_fix_it(run):
    gap = {"where": "cell 10 (Route 2)", "what": "this cell needs <clang>", "fix": "make packages"}
    run.summary(entry("01_a", status="incomplete", reason="not run", not_run=[gap]), entry("02_b"))
    page = run.page()
    assert "◐ 1 incomplete" in text_of(page.header)
    assert "Incomplete (make packages): 01." in text_of(page.select_one(".trust.doubted"))
    card, passed = page.find(id="notebooks").find_all("article")
    assert [link["href"] for link in card.find_all("a")] == ["#why-01_a"]
    assert passed.find_all("a") == []
    why = page.find(id="why-01_a")
    assert "this cell needs <clang>" in text_of(why.li)
    assert why.li.code.text == "make packages"
    assert page.find(id="why-02_b") is None


def test_what_a_page_expected_and_did_not_find_is_on_the_card(run):
    run.records(record("v", (0.4, 0.5, 0.6), outcome="slower"))
    cell = code("measure()")
    cell["metadata"] = {
        "metallab": {"expects": "faster", "comparison": "matmul", "variant": "v"},
    }
    run.notebook("01_a", cell)
    run.summary(entry("01_a"))
    (card,) = run.page().select("#notebooks article")
    assert "matmul, v: expected to be faster, and found slower" in text_of(card)


def read_page(run, name):
    """The page of HTML that a card leads to."""
    return BeautifulSoup((run.report / "pages" / f"{name}.html").read_text(), "html.parser")


def test_a_card_leads_to_the_page_as_it_ran(run):
    run.summary(entry("01_a"))
    run.notebook("01_a", v4.new_markdown_cell("# Title"), code("print(42)", shown(png())))
    run.page()
    read = read_page(run, "01_a")
    assert read.h1.get_text().startswith("Title")
    assert "print(42)" in read.get_text()
    assert read.img["src"].startswith("data:image/png;base64,")


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(v4.new_markdown_cell(f"{HOSTILE} <meta http-equiv=refresh>"), id="text"),
        pytest.param(
            code("x", v4.new_output("display_data", data={"text/html": HOSTILE})), id="html"
        ),
        pytest.param(code("x", v4.new_output("stream", text=HOSTILE)), id="printed"),
        pytest.param(code("x", error(HOSTILE)), id="error"),
    ],
)
def test_nothing_in_an_output_runs_on_the_page_of_html(run, cell):
    run.summary(entry("01_a", title=HOSTILE))
    run.notebook("01_a", cell)
    run.page()
    read = read_page(run, "01_a")
    assert not read.find_all(["script", "iframe", "object", "link"])
    assert not read.body.find_all("meta")
    attributes = {name for each in read.find_all(True) for name in each.attrs}
    assert not [name for name in attributes if name.startswith("on")]
    policy = read.head.find("meta", attrs={"http-equiv": "Content-Security-Policy"})["content"]
    assert policy.startswith("default-src 'none'")
    assert "script" not in policy


@pytest.mark.parametrize(
    ("link", "leads"),
    [
        pytest.param("02_b.ipynb#Deeper", "02_b.html#Deeper", id="page-of-the-run"),
        pytest.param("../README.md", "README.md", id="document"),
        pytest.param("https://example.org/a", "https://example.org/a", id="web"),
    ],
)
def test_links_of_a_page_of_html_lead_somewhere(run, link, leads):
    run.summary(entry("01_a"), entry("02_b"))
    run.notebook("01_a", v4.new_markdown_cell(f"See [it]({link})."))
    run.notebook("02_b")
    run.page()
    address = read_page(run, "01_a").find("a", string="it")["href"]
    assert address.endswith(leads)
    is_file = leads == "README.md"
    assert not is_file or (run.report / "pages" / address).samefile(paths.NOTEBOOKS / link)


def test_a_page_that_was_skipped_is_called_no_failure(run):
    run.summary(entry("01_a"), entry("02_b", status="skipped", reason="needs a Mac"))
    navigation = text_of(run.page().nav)
    assert "Skipped (1)" in navigation
    assert "ail" not in navigation


def test_a_page_that_cannot_be_read_keeps_no_report_back(run):
    run.summary(entry("01_a"), entry("02_b"))
    (run.folder / "01_a.ipynb").write_text("{")
    assert len(run.page().select("#notebooks article")) == 2


@pytest.mark.parametrize("outcome", ["not judged", "open"])
def test_an_exercise_that_was_not_judged_or_stayed_open_is_on_the_card(run, outcome):
    judged = [
        {"exercise": "Exercise 1.1", "outcome": "right", "sentence": "right"},
        {
            "exercise": "Exercise 1.2",
            "outcome": outcome,
            "sentence": f"{outcome}. There is no <compiler>.",
        },
    ]
    run.summary(entry("01_a", judgements=judged))
    (card,) = run.page().select("#notebooks article")
    assert "There is no <compiler>." in text_of(card)
    assert "Exercise 1.1" not in text_of(card)


def test_a_headline_is_shown_with_its_picture(run):
    file = run.folder / "drawn.png"
    file.write_bytes(png())
    headline = records.Headline(["It is <b>right</b>.", "Nothing is lost."], file, "a grey picture")
    run.summary(entry("01_a"))
    made = Measurement("m", "latency", (1.0,) * 10, 1.0, 1, 3, "quiet", "full", "Some CPU", False)
    records.save(
        "01_a", made, on=Device("cpu", "Some CPU"), folder=run.folder / "results", headline=headline
    )
    card = run.page().select_one("#notebooks article")
    picture = card.select_one("a.picture img.headline")
    enlarge, close = card.select_one("a.picture"), card.select_one("a.close")
    assert enlarge["href"] == f"#{enlarge['id']}", "it is no target of its own"
    assert close["href"] == f"#{card.h3['id']}"
    assert (picture["alt"], picture["src"][:22]) == ("a grey picture", "data:image/png;base64,")
    assert text_of(card.select_one("p.headline")) == "It is <b>right</b>."
    assert text_of(card.details) == "1 more Nothing is lost."


def test_drift_is_on_the_card(run):
    names = ("01_a", "02_b", "03_c")
    run.summary(*map(entry, names))
    drifting = dataclasses.replace(record("x"), sentinel_drift=-0.2)
    run.records(drifting, dataclasses.replace(record("y"), sentinel_drift=0.05))
    run.records(dataclasses.replace(record("x"), sentinel_drift=0.05), name="02_b")
    run.records(dataclasses.replace(record("x", mode="fast"), sentinel_drift=0.5), name="03_c")
    cards = [text_of(card) for card in run.page().select("#notebooks article")]
    assert ["drifted: " in card and "20%" in card for card in cards] == [True, False, False]


GIVEN = str(Ratio("fused", "eager", 1.83, 1.75, 1.9, 24))


@pytest.mark.parametrize(
    ("sentences", "kept"),
    [
        (("Nothing is lost.", f"matmul: {GIVEN}", f"Once more, {GIVEN}."), (0, 1, 2)),
        (("float16 fits.", "It is right on 999 of 1000."), (0,)),
        ((GIVEN.replace("1.83", "8.83"), f"matmul: {GIVEN}, and 2.5 with more", "It fits."), (2,)),
        (("It is faster.", "It is Twice as good.", "It fits."), (2,)),
    ],
)
def test_a_sentence_is_kept_if_the_samples_support_it(run, sentences, kept):
    found = records.Headline(sentences)
    made = [
        dataclasses.replace(one, headline=found)
        for one in honest([record("fused", (1.75, 1.83, 1.9))])
    ]
    assert records.headline_of(made).sentences == tuple(sentences[each] for each in kept)


def test_the_samples_speak_where_no_sentence_is_kept(run):
    alone, false = record("alone"), records.Headline(("It is 9 times as fast.",))
    for made, given in (
        (honest([record("fused", (1.75, 1.83, 1.9))]), f"matmul: {GIVEN}"),
        ([alone], "1.01 ms"),
    ):
        (sentence,) = records.headline_of(
            [dataclasses.replace(one, headline=false) for one in made]
        ).sentences
        assert given in sentence
    assert records.headline_of([alone]) is None


# --- what may be said of a comparison ---


@pytest.mark.parametrize(
    ("made", "kind", "reason"),
    [
        (record("v", (1.2, 1.3, 1.4)), "faster", "1.30 times as"),
        (record("v", (0.4, 0.5, 0.6), outcome="slower"), "slower", "2.00 times as"),
        (record("v", (0.995, 1.0, 1.005), outcome="same"), "same", "within 1%"),
        (
            record("v", (0.9, 1.0, 1.1), outcome="inconclusive"),
            "inconclusive",
            "it may be slower or faster",
        ),
        (
            record("v", (0.9, 1.5, 2.1), outcome="faster"),
            "inconclusive",
            "it may be slower or faster",
        ),  # a false claim
        (
            record("v", (0.4, 0.5, 1.0), outcome="slower"),
            "inconclusive",
            "it may be slower, or as fast within 1%",
        ),
        (
            record("v", (0.0, 1.5, None), outcome="faster"),
            "inconclusive",
            "too few for a 95 % interval, which needs 6",
        ),
        (
            record("v", reason="outputs differ", detail="by 3", outcome="withheld"),
            "differ",
            "by 3",
        ),
        (record("v", detail="no reason", outcome="withheld"), "withheld", "no reason"),
        (record("v", (1.2, 1.3, 1.4), simulated=True), "simulated", "its times"),
        (record("v", (1.2, 1.3, 1.4), mode="fast"), "fast", ""),
    ],
)
def test_verdicts(made, kind, reason):
    conclusion = findings.conclusion_of([made])
    assert (conclusion.outcome, reason in conclusion.reason) == (kind, True)
    assert bool(conclusion.speed_up) == (
        kind in ("faster", "slower", "same") or "it may be" in reason
    )


def test_a_false_speed_up_is_never_shown(run, capsys):
    """The file that claims it is left out, named, and the report's exit code is 2."""
    run.summary()
    claim(run.records(record("v", (1.2, 1.3, 1.4))), "v", median=50.0, high=60.0)
    run.records(record("w", (1.2, 1.3, 1.4)), name="02_b")
    page = run.page()
    assert "of 50, 1.2, 60, but its samples say 1.3" in text_of(page.find(id="failures"))
    assert [text_of(row.th) for row in page.select("#verdicts tbody tr")] == ["matmul: w"]
    assert command(["report", str(run.folder)]) == 2
    assert "results/01_a.json" in capsys.readouterr().err


def test_machines_stand_side_by_side_by_ratios_only(run):
    """This run first, then the reference results, then the Mac that nobody has measured yet."""
    slow = record("v", (1.2, 1.3, 1.4), samples=(0.0123,) * 24, device="Another CPU, 2 threads")
    records.write(findings.REFERENCES / "other.json", honest([slow]))
    (findings.REFERENCES / "broken.json").write_text("{")
    run.summary()
    run.records(record("v", (3.2, 3.3, 3.4)), record("sim", simulated=True))
    page = run.page()
    section = page.find(id="machines")
    table = section.find_all("table")[-1]
    heads = [text_of(head) for head in table.select("thead th")]
    assert heads == ["◌ simulated here, Some CPU", "Another CPU, 2 threads (stored)", "Apple GPU"]
    (row,) = table.select("tbody tr")
    assert (
        text_of(row)
        == "01 matmul: v over eager 3.30× faster (3.20 to 3.40) 1.30× faster (1.20 to 1.40) –"
    )
    shown = text_of(section)
    assert findings.WANTED in shown
    assert "12.3 ms" not in shown
    assert "1.01 ms" not in shown
    assert "data/results/broken.json" in text_of(page.find(id="failures"))


def test_the_first_line_says_whether_the_run_may_be_believed(run):
    run.summary()
    for changes, style in (({"others": 0.9}, ["trust", "doubted"]), ({}, ["trust"])):
        run.records(
            record("eager", outcome="baseline", **changes),
            record("v", (1.2, 1.3, 1.4), **changes, block=2),
        )
        page = run.page()
        first = page.select_one(".lead").find_next_sibling()
        assert (first["class"], "make run ONLY=01" in text_of(first)) == (style, bool(changes))
        assert ("1.30" in text_of(page.find(id="verdicts"))) is not bool(changes)
    assert "24, each of 2 calls" in text_of(page.find(id="measurements")), "not: 24 of 2 calls"
    run.records(record("v", (1.2, 1.3, 1.4), mode="fast"))
    assert run.page().select_one(".trust") is None


def test_simulated_times_are_never_metal_times(run):
    run.summary(entry("01_a"), simulated=True)
    refused = {
        "outcome": "withheld",
        "reason": "simulated",
        "detail": "not of a Mac",
        "simulated": True,
    }
    run.records(record("v", **refused), record("alone", simulated=True))
    page = run.page()
    assert text_of(page.select_one(".banner.simulated")) == report.SIMULATED
    assert page.title.get_text().startswith("SIMULATED")
    rows = page.select("#verdicts tbody tr") + page.select("#measurements tbody tr")
    assert len(rows) == 4
    assert all(row.select_one(".chip.simulated") for row in rows)
    assert "×" not in text_of(page.find(id="verdicts"))


# --- text is escaped, and files that cannot be read are named ---


def test_hostile_values_stay_text(run):
    described = dataclasses.replace(
        machine.describe(), chip=HOSTILE, environment={"OMP_X": HOSTILE}
    )
    made = record(HOSTILE, (1.2, 1.3, 1.4), device=HOSTILE)
    compared = dataclasses.replace(
        made.comparison, name=HOSTILE, baseline=f"the old {HOSTILE}", parity=HOSTILE
    )
    made = dataclasses.replace(made, name=f"01_a/{HOSTILE}/{HOSTILE}")
    run.records(dataclasses.replace(made, machine=described, comparison=compared))
    run.summary(
        entry("01_a", title=HOSTILE),
        entry(
            "02_b", status="failed", title=HOSTILE, reason=HOSTILE, failed_copy="failed/02_b.ipynb"
        ),
        mode=HOSTILE,
        device=HOSTILE,
        label=HOSTILE,
    )
    run.notebook("02_b", code(HOSTILE, error(HOSTILE)), folder="failed")
    page = run.page()
    assert not page.find_all(["img", "script", "iframe", "object", "link"])
    assert not [
        each for each in page.find_all(True) if any(name.startswith("on") for name in each.attrs)
    ]
    assert not [link for link in page.find_all("a") if "script" in link["href"]]
    for place in (
        "header",
        "#verdicts",
        "#machine",
        "#machines",
        "#notebooks",
        "#failures",
        "#measurements",
    ):
        assert text_of(page.select_one(place)).count("<script>alert(1)</script>") >= 1
    assert "{{ 7*7 }}" in page.h3.get_text()


def test_the_page_forbids_the_network(run):
    run.summary()
    policy = run.page().head.find("meta", attrs={"http-equiv": "Content-Security-Policy"})[
        "content"
    ]
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


@pytest.mark.parametrize(
    "text", [None, "{", "[]", '{"mode": "full"}', '{"mode": 3, "device": "cpu"}']
)
def test_a_summary_that_cannot_be_read_is_an_error(run, text, capsys):
    if text is not None:
        (run.folder / "summary.json").write_text(text)
    assert command(["report", str(run.folder)]) == 2
    assert "summary.json" in capsys.readouterr().err
    assert not run.report.exists()


def test_no_folder_of_this_machine_is_shown(run):
    run.summary(entry("01_a", status="skipped", reason="see /home/somebody/.cache/x"))
    page = text_of(run.page())
    assert "~/.cache/x" in page
    assert "somebody" not in page


# --- the command ---


def test_nothing_to_report_on_is_an_error(run, capsys):
    assert command(["report"]) == 2
    assert "make run" in capsys.readouterr().err
    assert not run.report.exists()


def test_the_run_that_started_last_is_reported_on(run, capsys):
    """Not the one written last: runs may overlap, and files get copied."""
    times = {
        "full-mps": "2026-11-20T11:00:00+00:00",
        "fast-cpu": "2026-11-20T12:00:00+02:00",
        "full-cpu": None,
    }
    for name, started in times.items():
        run.folder = paths.BUILD / name
        run.folder.mkdir(exist_ok=True)
        run.summary(label=f"on {name}", started=started)
    assert command(["report"]) == 0
    assert capsys.readouterr().out == f"report: {paths.REPORT / 'index.html'}\n"
    assert "on full-mps" in (paths.REPORT / "index.html").read_text()


def test_the_command_ends_with_how_many_pages_are_incomplete(run, capsys):
    gap = {"where": "cell 2", "what": "a step", "fix": "buy it"}
    run.summary(
        entry("01_a", status="incomplete", not_run=[gap]),
        entry("02_b", status="incomplete", not_run=[gap | {"optional": True}]),
    )
    assert command(["report"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("2 pages are incomplete, see above; a strict run")
