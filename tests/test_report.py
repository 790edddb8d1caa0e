"""The report: it tells what a run found, loads nothing, escapes everything, and survives damaged files."""

from __future__ import annotations

import base64
import dataclasses
import errno
import json
import os
import re
import shutil
import struct
import time
import zlib
from collections.abc import Iterator

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat import v4
from results_files import claim, honest

from metallab import machine, paths, records
from metallab.__main__ import main as command
from metallab.device import Device
from metallab.results import findings, pages, report
from metallab.timing import Measurement

HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(1)>' javascript:alert(1) {{ 7*7 }} &amp;"


def png(width: int = 3, height: int = 2) -> bytes:
    """A grey PNG, made by hand."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(b"".join(b"\x00" + b"\x80" * width for _ in range(height)))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def shown(data: bytes) -> dict:
    """An output with a picture."""
    return v4.new_output("display_data", data={"image/png": base64.b64encode(data).decode(), "text/plain": "<Figure>"})


def code(source: str, *outputs: dict) -> dict:
    return v4.new_code_cell(source, execution_count=1, outputs=list(outputs))


def error(*traceback: str) -> dict:
    return v4.new_output("error", ename="ZeroDivisionError", evalue="division by zero", traceback=list(traceback))


def notebook(*cells: dict):
    """A notebook of the given cells; by default one with a heading and a picture."""
    cells = cells or (v4.new_markdown_cell("# Title\n\n## How `fast`?"), code("plot()", shown(png())))
    return v4.new_notebook(
        cells=list(cells),
        metadata={
            "language_info": {"name": "python"},
            "widgets": {"application/vnd.jupyter.widget-state+json": {"state": {}}},
        },
    )


def entry(name: str, **changes) -> dict:
    """A notebook's entry in summary.json."""
    known = {"name": name, "title": f"Title of {name}", "status": "passed", "seconds": 12.0, "reason": ""}
    return known | {"cells": 4, "executed": 4, "peak_rss_bytes": 3 * 2**20, "failed_copy": None} | changes


def record(name: str, ratio=None, *, outcome="faster", doubt=None, withheld="", **changes) -> records.Record:
    """A record of lesson 01_a: of a comparison's variant if a ratio (low, median, high) or a verdict is given."""
    compared = None
    if ratio or doubt or withheld or outcome == "baseline":
        low, median, high = ratio or (None, None, None)
        compared = records.Compared(
            "matmul", name, "eager", outcome, median, low, high, doubt, withheld, "outputs agree"
        )
    known = {"question": "latency", "samples": (0.001, 0.00101, 0.00102) * 8, "first_call": 0.5, "block": 1}
    known |= {"warmup_calls": 3, "stop_reason": "quiet", "mode": "full", "device": "Some CPU", "simulated": False}
    measured = Measurement(name=name, **known | changes)
    full = f"01_a/matmul/{name}" if compared else f"01_a/{name}"
    return records.Record("01_a", full, "2026-11-20T10:00:00+00:00", measured, compared, None, machine.describe())


class Run:
    """A run's folder under build/, to be filled and reported on."""

    def __init__(self, root):
        self.folder = root / "build" / "full-cpu"
        self.report = root / "build" / "report"
        self.folder.mkdir(parents=True)

    def summary(self, *entries: dict, **changes) -> None:
        known = {"mode": "full", "device": "cpu", "label": "Some CPU", "simulated": False}
        known |= {"started": "2026-11-20T10:00:00+00:00", "seconds": 187.2, "notebooks": list(entries)}
        (self.folder / "summary.json").write_text(json.dumps(known | changes))

    def notebook(self, name: str, *cells: dict, folder: str = ".") -> None:
        (self.folder / folder).mkdir(exist_ok=True)
        nbformat.write(notebook(*cells), self.folder / folder / f"{name}.ipynb")

    def records(self, *made: records.Record, name: str = "01_a"):
        """Write records, with the baselines that they need, and return the file."""
        return records.write(self.folder / "results" / f"{name}.json", honest(made))

    def page(self) -> BeautifulSoup:
        """The index page of a new report."""
        return BeautifulSoup(report.make(self.folder, self.report).read_text(encoding="utf-8"), "html.parser")

    def executed(self, name: str) -> BeautifulSoup:
        return BeautifulSoup((self.report / f"{name}.html").read_text(encoding="utf-8"), "html.parser")


@pytest.fixture
def run(tmp_path, monkeypatch) -> Iterator[Run]:
    for name, path in {"ROOT": ".", "BUILD": "build", "FAILED": "build/failed", "REPORT": "build/report"}.items():
        monkeypatch.setattr(paths, name, (tmp_path / path).resolve())
    monkeypatch.setattr(findings, "REFERENCES", tmp_path.resolve() / "data" / "results")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield Run(tmp_path.resolve())
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def unconverted(monkeypatch):
    """Spare nbconvert's work where a test only asks whether there is a page."""
    monkeypatch.setattr(pages, "to_html", lambda notebook, name, **more: f"<!-- {pages.POLICY} --><p>converted</p>")


def text_of(element) -> str:
    return " ".join(element.get_text(" ").split())


def fetches(soup: BeautifulSoup) -> list[str]:
    """Everything of x.org on a page that a browser would fetch, and all that it would run or follow unasked."""
    found = [str(each) for each in soup.select("script, iframe, object, embed, base, link, meta[http-equiv=refresh i]")]
    found += [str(each) for each in soup.find_all("style") if "x.org" in each.get_text()]
    for element in soup.find_all(True):
        for name, value in element.attrs.items():
            away = name == "style" or not (name == "href" and element.name == "a")
            if name.startswith("on") or re.match(r"\s*javascript:", str(value)) or (away and "//x.org" in str(value)):
                found.append(f"{element.name} {name}={value}")
    return found


# --- what the page tells ---


def test_the_page_tells_a_run_in_order(run):
    run.summary(
        entry("01_a"),
        entry("02_b", status="failed", reason="cell 2: division by zero", failed_copy="failed/02_b.ipynb"),
        entry("03_c", status="skipped", reason="needs a Mac", seconds=0, executed=0),
    )
    run.notebook("01_a")
    run.notebook("02_b", code("1/0", error("\x1b[31mTraceback\x1b[0m", "ZeroDivisionError: <b>")), folder="failed")
    run.records(record("eager", outcome="baseline"), record("fused", (1.75, 1.83, 1.9)), record("alone"))
    page = run.page()
    assert [section["id"] for section in page.find_all("section")] == [
        "notebooks",
        "machines",
        "verdicts",
        "failures",
        "machine",
        "measurements",
    ]
    head = text_of(page.header)
    assert all(word in head for word in ("Some CPU", "full mode", "2026-11-20 10:00 UTC", "3 min 7 s", "1 failed"))
    verdicts = text_of(page.find(id="verdicts"))
    assert all(word in verdicts for word in ("matmul", "fused", "1.83×", "1.75 to 1.90", "faster", "against eager"))
    assert "alone" not in verdicts
    assert machine.describe().python in text_of(page.find(id="machine"))
    card = page.find(id="notebooks").article
    assert text_of(card) == "01 Title of 01_a"
    went = text_of(page.select_one("#machine details"))
    assert all(word in went for word in ("01_a", "passed", "12 s", "3 MiB", "4 of 4"))
    trust = text_of(page.select_one(".trust.doubted"))
    assert all(word in trust for word in ("make run ONLY=02", "Skipped: 03 (needs a Mac)"))
    assert card.a["href"] == "01_a.html"
    failures = text_of(page.find(id="failures"))
    assert all(word in failures for word in ("cell 2: division by zero", "ZeroDivisionError: <b>", "needs a Mac"))
    assert "\x1b" not in failures
    assert "[31m" not in failures
    assert "build/full-cpu/failed/02_b.ipynb" in failures
    rows = [text_of(row) for row in page.select("#measurements details tbody tr")]
    assert len(rows) == 3
    assert [("1.01 ms" in row, "500 ms" in row and "24" in row) for row in rows].count((True, True)) == 2
    assert "552 µs" in rows[1], "1.01 ms in 1.83 times"
    assert "ZeroDivisionError" in text_of(run.executed("02_b"))
    assert not (run.report / "03_c.html").exists()
    assert "needs a Mac" in text_of(page.find(id="why-03_c"))
    assert "could not be read" not in failures


def test_an_incomplete_notebook_is_shown_with_what_would_mend_it(run):
    """Its page and its results are there as a passed one's are; what was not run stands beside the failures."""
    gap = {"where": "cell 10 (Route 2)", "what": "this cell needs <clang>", "mend": "make packages"}
    run.summary(entry("01_a", status="incomplete", reason="not run", not_run=[gap]), entry("02_b"))
    run.notebook("01_a")
    run.notebook("02_b")
    page = run.page()
    assert "◐ 1 incomplete" in text_of(page.header)
    assert "Incomplete: 01 (make packages)." in text_of(page.select_one(".trust.doubted"))
    card, passed = page.find(id="notebooks").find_all("article")
    assert "incomplete" in text_of(card)
    assert [link["href"] for link in card.find_all("a")] == ["01_a.html", "#why-01_a"]
    assert len(passed.find_all("a")) == 1
    why = page.find(id="why-01_a")
    assert text_of(why.li) == "cell 10 (Route 2): this cell needs <clang>. To mend it: make packages"
    assert why.li.code.text == "make packages"
    assert page.find(id="why-02_b") is None
    assert "Nothing failed" not in text_of(page.find(id="failures"))


@pytest.mark.usefixtures("unconverted")
def test_a_page_s_headline_is_shown_with_its_picture(run):
    file = run.folder / "drawn.png"
    file.write_bytes(png())
    headline = records.Headline(["It is <b>right</b>.", "Nothing is lost."], file, "a grey picture")
    run.summary(entry("01_a"), entry("02_b"))
    run.notebook("01_a")
    run.notebook("02_b")
    results = run.folder / "results"
    made = Measurement("m", "latency", (1.0,) * 10, 1.0, 1, 3, "quiet", "full", "Some CPU", False)
    for lesson in ("01_a", "02_b"):
        records.save(lesson, made, on=Device("cpu", "Some CPU"), folder=results, headline=headline)
    (results / "02_b.png").write_bytes(png(4, 4))  # of another run
    first, second = run.page().select("#notebooks article")
    shown = first.select_one("img.headline")
    assert (shown["alt"], shown["src"][:22]) == ("a grey picture", "data:image/png;base64,")
    assert text_of(second.select_one("p.headline")) == "It is <b>right</b>."
    assert text_of(first.details) == "1 more Nothing is lost."
    for put in (
        lambda path: path.write_bytes(png(4, 4)),
        lambda path: path.symlink_to(results / "01_a.png"),
        lambda path: os.mkfifo(path),
        lambda path: None,
    ):
        (results / "02_b.png").unlink()
        put(results / "02_b.png")
        page = run.page()
        assert len(page.select("img.headline")) == 1
        assert "02_b.png" in text_of(page.find(id="failures"))


GIVEN = "fused is 1.83 times as fast as eager (95 % interval 1.75 to 1.90, 24 pairs)"


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
    made = [dataclasses.replace(one, headline=found) for one in honest([record("fused", (1.75, 1.83, 1.9))])]
    assert records.headline_of(made).sentences == tuple(sentences[each] for each in kept)


def test_the_samples_speak_where_no_sentence_is_kept(run):
    alone, false = record("alone"), records.Headline(("It is 9 times as fast.",))
    for made, given in ((honest([record("fused", (1.75, 1.83, 1.9))]), f"matmul: {GIVEN}"), ([alone], "1.01 ms")):
        (sentence,) = records.headline_of([dataclasses.replace(one, headline=false) for one in made]).sentences
        assert given in sentence
    assert records.headline_of([alone]) is None


def damaged(data: bytes) -> bytes:
    return data[:40] + bytes([data[40] ^ 1]) + data[41:]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GIF89a", "not a PNG"),
        (damaged(png()), "damaged"),
        (png()[:50], "damaged"),
        (png()[:-12], "damaged"),
        (png() + b"<script>", "does not end where it should"),
        (png(10_001, 1), "10000 pixels"),
        (png()[:8] + png()[33:], "not a PNG"),
    ],
)
def test_only_whole_pngs_are_shown(data, message):
    assert report.png_size(png(4, 5)) == (4, 5)
    with pytest.raises(report.ReportError, match=message):
        report.png_size(data)


def test_a_failure_that_left_only_a_text(run):
    paths.FAILED.mkdir()
    run.summary(entry("02_b", status="failed", reason="malformed", failed_copy="../failed/02_b.txt"))
    (paths.FAILED / "02_b.txt").write_text("".join(f"line {number}\n" for number in range(report.TRACEBACK_LINES + 1)))
    failures = run.page().find(id="failures")
    assert failures.pre.get_text().splitlines()[:2] == ["...", "line 1"]
    assert "build/failed/02_b.txt" in text_of(failures)
    (paths.FAILED / "02_b.txt").unlink()
    os.mkfifo(paths.FAILED / "02_b.txt")
    assert run.page().find(id="failures").pre is None


def test_drift_is_told_on_the_card(run):
    names = ("01_a", "02_b", "03_c")
    run.summary(*map(entry, names))
    drifting = dataclasses.replace(record("x"), sentinel_drift=-0.2)
    run.records(drifting, dataclasses.replace(record("y"), sentinel_drift=0.05))
    run.records(dataclasses.replace(record("x"), sentinel_drift=0.05), name="02_b")
    run.records(dataclasses.replace(record("x", mode="fast"), sentinel_drift=0.5), name="03_c")
    cards = [text_of(card) for card in run.page().select("#notebooks article")]
    assert "took 20 % less time after this notebook" in cards[0]
    assert not any("time after this notebook" in card for card in cards[1:])


def test_without_records_the_machine_is_this_one(run):
    run.summary()
    assert "No record tells" in text_of(run.page().find(id="machine"))


def test_pages_of_an_earlier_run_are_gone(run):
    run.summary(entry("01_a"))
    run.notebook("01_a")
    run.report.mkdir()
    (run.report / "99_old.html").write_text(f"<!-- {pages.POLICY} -->old")
    run.page()
    assert sorted(path.name for path in run.report.iterdir()) == ["01_a.html", "index.html"]


# --- what may be said of a comparison ---


@pytest.mark.parametrize(
    ("made", "kind", "reason"),
    [
        (record("v", (1.2, 1.3, 1.4)), "faster", "1.30 times as fast"),
        (record("v", (0.4, 0.5, 0.6), outcome="slower"), "slower", "takes 2.00 times as long"),
        (record("v", (0.995, 1.0, 1.005), outcome="same"), "same", "below 1%"),
        (record("v", (0.9, 1.0, 1.1), outcome="inconclusive"), "inconclusive", "it may be slower or faster"),
        (record("v", (0.9, 1.5, 2.1), outcome="faster"), "inconclusive", "it may be slower or faster"),  # a false claim
        (record("v", (0.4, 0.5, 1.0), outcome="slower"), "inconclusive", "it may be slower, or as fast within 1%"),
        (record("v", (0.0, 1.5, None), outcome="faster"), "inconclusive", "too few for a 95 % interval, which needs 6"),
        (record("v", doubt="outputs differ", withheld="by 3", outcome="withheld"), "differ", "by 3"),
        (record("v", withheld="no reason", outcome="withheld"), "withheld", "no reason"),
        (record("v", (1.2, 1.3, 1.4), simulated=True), "simulated", "no speed-up is given"),
        (record("v", (1.2, 1.3, 1.4), mode="fast"), "fast", ""),
    ],
)
def test_verdicts(made, kind, reason):
    conclusion = findings.conclusion_of([made])
    assert (conclusion.outcome, reason in conclusion.reason) == (kind, True)
    assert bool(conclusion.speed_up) == (kind in ("faster", "slower", "same") or "it may be" in reason)


def test_a_baseline_or_a_lone_measurement_has_no_verdict():
    assert findings.conclusion_of([record("v", outcome="baseline")]) is None
    assert findings.conclusion_of([record("v")]) is None


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"median": 50.0, "high": 60.0}, "claims a speed-up of 50, but its samples say 1.3"),
        ({"low": 1.29}, "claims another interval of its speed-up than its samples say"),
        ({"median": None}, "claims a speed-up of none, but its samples say 1.3"),
    ],
)
def test_a_ratio_that_its_samples_do_not_say_is_named_and_never_shown(run, claims, message):
    run.summary()
    claim(run.records(record("v", (1.2, 1.3, 1.4))), "v", **claims)
    run.records(record("w", (1.2, 1.3, 1.4)), name="02_b")
    page = run.page()
    assert f"'01_a/matmul/v' {message}" in text_of(page.find(id="failures"))
    assert [text_of(row.th) for row in page.select("#verdicts tbody tr")] == ["matmul: w"]
    assert "50" not in text_of(page.find(id="verdicts"))


def test_machines_stand_side_by_side_by_ratios_only(run):
    """This run first, then the reference results, then the Mac that nobody has measured yet."""
    slow = record("v", (1.2, 1.3, 1.4), samples=(0.0123,) * 24, device="Another CPU, 2 threads")
    records.write(findings.REFERENCES / "other.json", honest([slow]))
    (findings.REFERENCES / "broken.json").write_text("{")
    run.summary()
    run.records(record("v", (3.2, 3.3, 3.4)), record("sim", simulated=True))
    page = run.page()
    section = page.find(id="machines")
    heads = [text_of(head) for head in section.select("table")[0].select("thead th")]
    assert heads == ["◌ simulated here, Some CPU", "Another CPU, 2 threads (stored)", "Apple GPU"]
    assert section.select("table")[0].find_parent("details") is None, "seen at once"
    (row,) = section.select("table")[0].select("tbody tr")
    assert text_of(row) == "01 matmul: v over eager 3.30× faster 1.30× faster –"
    shown = text_of(section)
    assert "be the first (make bench; data/results/README.md)" in shown
    assert "3.30×" in shown
    assert "1.30×" in shown
    assert "12.3 ms" not in shown
    assert "1.01 ms" not in shown
    assert "data/results/broken.json" in text_of(page.find(id="failures"))


def test_a_busy_machine_gets_no_speed_up():
    made = record("v", (1.2, 1.3, 1.4))
    busy = dataclasses.replace(made, measurement=dataclasses.replace(made.measurement, others=1.5))
    conclusion = findings.conclusion_of([busy])
    assert (conclusion.outcome, conclusion.ratio) == ("withheld", None)
    assert "1.5 cores" in conclusion.reason


def test_the_first_line_says_whether_the_run_may_be_believed(run):
    run.summary()
    for changes, style in (({"others": 0.9}, ["trust", "doubted"]), ({}, ["trust"])):
        run.records(record("eager", outcome="baseline", **changes), record("v", (1.2, 1.3, 1.4), **changes, block=2))
        page = run.page()
        first = page.select_one(".lead").find_next_sibling()
        assert (first["class"], "make run ONLY=01" in text_of(first)) == (style, bool(changes))
        assert ("1.30" in text_of(page.find(id="verdicts"))) is not bool(changes)
    assert "24, each of 2 calls" in text_of(page.find(id="measurements")), "not: 24 of 2 calls"
    run.records(record("v", (1.2, 1.3, 1.4), mode="fast"))
    assert run.page().select_one(".trust") is None


def test_comparisons_of_one_baseline_share_a_table(run):
    run.summary()
    run.records(record("eager", outcome="baseline"), record("v", (1.2, 1.3, 1.4)), record("w", (1.2, 1.3, 1.4)))
    run.records(record("v", (1.2, 1.3, 1.4)), name="02_b")
    tables = run.page().select("#verdicts table")
    assert [[text_of(name) for name in table.select("tbody th")] for table in tables] == [
        ["matmul: v", "matmul: w"],
        ["matmul: v"],
    ]


def test_outputs_that_differ_get_no_speed_up(run):
    run.summary()
    run.records(record("bug", doubt="outputs differ", withheld="12 of 4096 elements", outcome="withheld"))
    verdicts = text_of(run.page().find(id="verdicts"))
    assert "outputs differ: no speed-up is given 12 of 4096 elements" in verdicts
    assert "×" not in verdicts


def test_simulated_times_are_never_metal_times(run):
    run.summary(entry("01_a"), simulated=True)
    run.notebook("01_a")
    refused = {
        "outcome": "withheld",
        "doubt": "simulated",
        "withheld": "its times are not those of a Mac",
        "simulated": True,
    }
    run.records(record("v", **refused), record("alone", simulated=True))
    page = run.page()
    assert text_of(page.select_one(".banner.simulated")) == report.SIMULATED
    assert page.title.get_text().startswith("SIMULATED")
    assert report.SIMULATED in text_of(run.executed("01_a").select_one(".metallab-top"))
    rows = page.select("#verdicts tbody tr") + page.select("#measurements tbody tr")
    assert len(rows) == 4
    assert all(row.select_one(".chip.simulated") for row in rows)
    assert "×" not in text_of(page.find(id="verdicts"))


def test_a_simulated_device_is_enough_for_the_banner(run):
    run.summary(device="sim", simulated=None)
    assert run.page().select_one(".banner.simulated")


def test_a_simulated_record_in_a_real_run_is_labelled(run):
    run.summary()
    run.records(record("sim", simulated=True), record("real"))
    page = run.page()
    assert page.select_one(".banner") is None
    assert [bool(row.select(".simulated")) for row in page.select("#measurements tbody tr")] == [True, False]


def test_fast_mode_draws_no_conclusion(run):
    run.summary(mode="fast")
    run.records(record("v", (1.2, 1.3, 1.4), mode="fast"))
    page = run.page()
    assert page.select_one(".banner.fast")
    assert "1.30" not in text_of(page)


def test_the_interval_is_drawn_where_it_lies():
    conclusions = [findings.conclusion_of([record("v", (0.25, 0.5, 8.0))])]
    axis = report.Axis.around([report.Group("n", "b", "latency", "", {}, conclusions)])
    assert (axis.low, axis.high) == (-2, 3)
    assert [axis.at(value) for value in (0.25, 1.0, 8.0, 100.0, 0.0)] == [0, 40, 100, 100, 0]
    assert axis.ticks == [(0, "1/4"), (20, "1/2"), (40, "1"), (60, "2"), (80, "4"), (100, "8")]
    empty = report.Axis.around([])
    assert (empty.low, empty.high) == (-1, 1)
    wide = report.Axis(-5, 10)
    assert "1" in [name for _, name in wide.ticks]
    assert len(wide.ticks) <= 8


# --- nothing leaves the page ---


def reaching_out() -> list[dict]:
    """Cells that try everything to reach the network."""
    html = """<style>@import url(https://x.org/a.css); p { background: URL( "http://x.org/b.png" ) }</style>
      <script src="https://x.org/c.js"></script><script>fetch("https://x.org")</script><link rel="prefetch"
      href="https://x.org/d"><img src="//x.org/e.png" srcset="http://x.org/f 2x"><iframe src="http://x.org"></iframe>
      <video poster="http://x.org/g" src="http://x.org/h"></video><object data="http://x.org/i"></object><p
      style="background: url(http://x.org/j)" onclick="alert(1)">kept</p><base href="http://x.org"><meta
      http-equiv="refresh" content="0;url=http://x.org"><svg><image xlink:href="http://x.org/k"/><use
      href="http://x.org/l"/></svg><form action="http://x.org/m"><input formaction="http://x.org/n"></form>
      <a href="JavaScript:alert(1)" ping="http://x.org/o">link</a><table><tr><td>table</td></tr></table>"""
    widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "a"}, "text/plain": "IntProgress(3)"}
    script = {"application/javascript": 'import("https://x.org/p.js")', "text/plain": "plain"}
    svg = '<svg xmlns="http://www.w3.org/2000/svg"><image href="http://x.org/q"/></svg>'
    return [
        v4.new_markdown_cell(
            "# Out\n![a](https://x.org/r.png) <img src=https://x.org/s.png> $x^2$\n```mermaid\na\n```"
        ),
        code(
            "0",
            *(v4.new_output("display_data", data=data) for data in ({"text/html": html}, widget, script)),
            v4.new_output("display_data", data={"text/vnd.mermaid": "graph", "text/plain": "a graph"}),
            v4.new_output("display_data", data={"image/svg+xml": svg}),
            shown(png()),
        ),
    ]


def test_no_page_asks_the_network_for_anything(run):
    run.summary(entry("01_a"))
    run.notebook("01_a", *reaching_out())
    run.records(record("fused", (1.75, 1.83, 1.9)))
    index = run.page()
    page = run.executed("01_a")
    assert fetches(index) == []
    assert fetches(page) == []
    kept = text_of(page.main)
    assert all(word in kept for word in ("kept", "table", "IntProgress(3)", "plain", "a graph"))
    assert "picture not included: https://x.org/r.png" in kept
    assert not any(link.get("href") for link in page.find_all("a", string="link"))


def test_every_page_forbids_the_network(run):
    run.summary(entry("01_a"))
    run.notebook("01_a")
    for page in (run.page(), run.executed("01_a")):
        first, second = page.head.find_all("meta")[:2]
        policy = (first if first.get("http-equiv") else second)["content"]
        assert policy.startswith("default-src 'none'")
        assert "http" not in policy
        assert "script" not in policy
        assert page.head.find(["style", "link", "script"]).find_previous("meta", attrs={"http-equiv": True})


def test_formulas_are_pictures_and_money_is_not():
    cell = v4.new_markdown_cell("$O(n^2)$ costs $5 or $6, `$x$`\n\n$$\\frac{a}{b}$$\n\n$\\unknown{x}$")
    page = BeautifulSoup(pages.to_html(notebook(cell), "a"), "html.parser")
    assert [image["alt"] for image in page.select("img.formula")] == ["O(n^2)", "\\frac{a}{b}"]
    assert "costs $5 or $6" in text_of(page.main)
    assert [text_of(plain) for plain in page.main.find_all("code")] == ["$x$", "\\unknown{x}"]


def test_no_page_names_a_folder_of_this_machine(run, monkeypatch):
    monkeypatch.setattr(pages.Path, "home", lambda: pages.Path("/home/somebody"))
    sentence = f"Writing {pages.ROOT}/build/net.py and /home/somebody/.cache/x"
    html = v4.new_output("display_data", {"text/html": f"<b>{sentence}</b>", "text/plain": sentence})
    error = v4.new_output("error", ename="OSError", evalue=sentence, traceback=["OSError", sentence])
    run.notebook("01_a", code("1", v4.new_output("stream", text=sentence), html, error))
    printed, drawn, failed = pages.read_notebook(run.folder / "01_a.ipynb").cells[0].outputs
    wanted = "Writing build/net.py and ~/.cache/x"
    assert (printed.text, drawn.data["text/html"], drawn.data["text/plain"]) == (wanted, f"<b>{wanted}</b>", wanted)
    assert (failed.evalue, failed.traceback) == (wanted, ["OSError", wanted])


def test_links_lead_to_pages_and_files(monkeypatch, tmp_path):
    root = tmp_path.resolve() / "checkout"
    for name, path in {"ROOT": root, "NOTEBOOKS": root / "notebooks", "REPORT": root / "build" / "report"}.items():
        monkeypatch.setattr(pages, name, path)
    root.mkdir()
    for path in (root / "picture.png", root.parent / "secret"):
        path.write_bytes(png())
    targets = ["02_b.ipynb#part", "./02_b.ipynb", "03_c.ipynb", "../picture.png", "../../secret", "https://x.org", "#a"]
    cell = v4.new_markdown_cell(" ".join(f"[x]({target})" for target in targets) + " ![p](../picture.png)")
    page = BeautifulSoup(pages.to_html(notebook(cell), "01_a", pages=["01_a", "02_b"]), "html.parser")
    links = [link.get("href") for link in page.main.find_all("a")]
    assert links == [
        "index.html",
        "02_b.html#part",
        "02_b.html",
        None,
        "../../picture.png",
        None,
        "https://x.org",
        "#a",
    ]
    assert page.main.img["src"] == "data:image/png;base64," + base64.b64encode(png()).decode()


# --- every value is escaped ---


def test_hostile_values_stay_text(run):
    described = dataclasses.replace(machine.describe(), chip=HOSTILE, environment={"OMP_X": HOSTILE})
    made = record(HOSTILE, (1.2, 1.3, 1.4), device=HOSTILE)
    compared = dataclasses.replace(made.comparison, name=HOSTILE, baseline=f"the old {HOSTILE}", parity=HOSTILE)
    made = dataclasses.replace(made, name=f"01_a/{HOSTILE}/{HOSTILE}")
    differs = record("d", outcome="withheld", doubt="outputs differ", withheld=HOSTILE)
    run.records(dataclasses.replace(made, machine=described, comparison=compared), differs)
    (run.folder / "results" / "<img src=x onerror=alert(1)>.json").write_text("{")
    run.summary(
        entry("01_a", title=HOSTILE),
        entry("02_b", status="failed", title=HOSTILE, reason=HOSTILE, failed_copy="failed/02_b.ipynb"),
        entry("03_c", status=HOSTILE),
        entry(HOSTILE),
        mode=HOSTILE,
        device=HOSTILE,
        label=HOSTILE,
    )
    run.notebook("01_a", v4.new_markdown_cell(f"# {HOSTILE}"), code("0", shown(png())))
    run.notebook("02_b", code(HOSTILE, error(HOSTILE)), folder="failed")
    page = run.page()
    assert fetches(page) == []
    assert not page.find_all("img")
    hrefs = {link["href"] for link in page.find_all("a")}
    assert hrefs <= {"01_a.html", "02_b.html", "#why-02_b", *(f"#{part['id']}" for part in page.find_all("section"))}
    assert all(element.name in report_elements() for element in page.find_all(True))
    for place in ("header", "#verdicts", "#machine", "#machines", "#notebooks", "#failures", "#measurements"):
        assert text_of(page.select_one(place)).count("<script>alert(1)</script>") >= 1
    assert "{{ 7*7 }}" in page.h3.get_text()


def report_elements() -> set[str]:
    """The elements that the template itself uses."""
    source = (pages.TEMPLATES / "report.html.j2").read_text(encoding="utf-8")
    return set(re.findall(r"<([a-z][a-z0-9]*)", source))


def test_letters_that_cannot_be_seen_are_replaced(run):
    run.summary(entry("01_a", title="a\u202eb\x00c\ud800d\u200be"))
    assert run.page().select_one("#notebooks h3").get_text() == "01 a�b�c�d�e"


# --- damaged and missing files ---


@pytest.mark.usefixtures("unconverted")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no such file"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "holds list"),
        ("{}", "notebooks must be list"),
        ('{"notebooks": [], "mode": 3}', "device must be str"),
        ('{"notebooks": [], "mode": 3, "device": "cpu"}', "mode must be str"),
        ('{"notebooks": [], "mode": "full", "device": "cpu", "started": "now"}', "started is no time"),
        ('{"notebooks": [], "mode": "full", "device": "cpu", "started": 1e300}', "started is no time"),
        ('{"notebooks": [], "mode": "full", "device": "cpu", "started": []}', "started must be a time"),
        ('{"notebooks": [], "mode": "full", "device": "cpu", "seconds": NaN}', "seconds must be a number"),
        ('{"notebooks": [], "mode": "full", "device": "cpu", "simulated": "no"}', "simulated must be bool"),
    ],
)
def test_a_damaged_summary_is_named_and_the_rest_goes_on(run, text, message):
    if text is not None:
        (run.folder / "summary.json").write_text(text)
    run.notebook("01_a")
    run.records(record("v", (1.2, 1.3, 1.4)))
    page = run.page()
    problem = text_of(page.select_one("#failures li"))
    assert problem.startswith("summary.json : ")
    assert message in problem
    assert "1.30×" in text_of(page.find(id="verdicts"))
    assert page.find(id="notebooks").article.a["href"] == "01_a.html"
    assert "full mode" in text_of(page.header)


def test_a_damaged_summary_of_a_simulated_run_still_says_simulated(run):
    folder = run.folder.rename(run.folder.with_name("fast-sim"))
    (folder / "summary.json").write_text("{")
    run.folder = folder
    assert {banner["class"][1] for banner in run.page().select(".banner")} == {"simulated", "fast"}


@pytest.mark.usefixtures("unconverted")
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("text", "not an object"),
        (entry("../../evil"), "cannot be a page's"),
        (entry("index"), "cannot be a page's"),
        (entry("Index"), "cannot be a page's"),  # a Mac's disk does not tell the two apart
        (entry("01_a"), "stands twice"),
        (entry("02_b", status="exploded"), "status is 'exploded'"),
        (entry("02_b", not_run=["a text"]), "an entry of not_run is not an object"),
        (entry("02_b", not_run=[{"what": 1}]), "what must be str"),
        (entry("02_b", title=3), "title must be str"),
        (entry("02_b", seconds=-1), "seconds must be a number"),
        (entry("02_b", cells=True), "cells must be a number"),
        ({"name": "02_b"}, "status must be str"),
    ],
)
def test_a_bad_entry_is_named_and_the_rest_goes_on(run, bad, message):
    run.summary(entry("01_a"), bad)
    run.notebook("01_a")
    page = run.page()
    assert message in text_of(page.select_one("#failures li"))
    assert len(page.select("#notebooks article")) == 1
    assert sorted(path.name for path in run.report.iterdir()) == ["01_a.html", "index.html"]


@pytest.mark.usefixtures("unconverted")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file"),
        ("{", "is not JSON"),
        ("[]", "not a notebook of format 4"),
        ('{"nbformat": 3}', "not a notebook of format 4"),
        ('{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": {}}', "not a valid notebook"),
        ('{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [3]}', "not a valid notebook"),
    ],
)
def test_a_damaged_notebook_is_named_and_the_rest_goes_on(run, text, message):
    run.summary(entry("01_a"), entry("02_b"))
    run.notebook("01_a")
    if text is not None:
        (run.folder / "02_b.ipynb").write_text(text)
    page = run.page()
    problem = text_of(page.select_one("#failures li"))
    assert problem.startswith("02_b : ")
    assert message in problem
    assert [bool(card.a) for card in page.select("#notebooks article")] == [True, False]


def test_damaged_results_are_named_and_the_rest_goes_on(run):
    run.summary()
    run.records(record("v", (1.2, 1.3, 1.4)))
    good = (run.folder / "results" / "01_a.json").read_text()
    (run.folder / "results" / "02_cut.json").write_text(good[:100])
    (run.folder / "results" / "03_strange.json").write_text(good.replace("metallab", "metalbar"))
    (run.folder / "results" / "04_machine.json").write_text(good.replace("cores_logical", "cores_illogical"))
    page = run.page()
    problems = [text_of(problem) for problem in page.select("#failures li")]
    assert [problem.split()[0] for problem in problems] == [
        f"results/{name}.json" for name in ("02_cut", "03_strange", "04_machine")
    ]
    assert "cores_illogical" in problems[2]
    assert not any(str(run.folder) in problem for problem in problems), "a path may name a person"
    assert "1.30×" in text_of(page.find(id="verdicts"))


@pytest.mark.parametrize("place", ["../../../etc/passwd", "/etc/passwd", "../../secret.ipynb", "a\0b"])
def test_a_failed_copy_is_read_only_from_the_run(run, place):
    nbformat.write(notebook(code("0", error("SECRET"))), paths.ROOT / "secret.ipynb")
    run.summary(entry("02_b", status="failed", failed_copy=place))
    page = run.page()
    assert "its partial copy" in text_of(page.select_one("#failures li"))
    assert "SECRET" not in text_of(page)


def test_a_link_out_of_the_run_is_not_followed(run):
    nbformat.write(notebook(code("0", error("SECRET"))), paths.ROOT / "secret.ipynb")
    os.symlink(paths.ROOT / "secret.ipynb", run.folder / "copy.ipynb")
    run.summary(entry("02_b", status="failed", failed_copy="copy.ipynb"))
    assert "SECRET" not in text_of(run.page())


# --- the command ---


def test_nothing_to_report_on_is_an_error(run, capsys):
    assert command(["report"]) == command(["report", str(run.folder)]) == 2
    assert "make run" in capsys.readouterr().err
    assert not run.report.exists()


def test_a_run_that_starts_in_the_future_is_not_the_latest(run):
    for name, started in (("full-cpu", "2099-01-01"), ("full-mps", "2026-11-20"), ("full-cuda", "1970-01-01")):
        run.folder = paths.BUILD / name
        run.folder.mkdir(exist_ok=True)
        run.summary(started=f"{started}T00:00:00+00:00")
    assert report.latest_run(paths.BUILD).name == "full-mps"


def test_the_run_that_started_last_is_reported_on(run, capsys):
    """Not the one written last: runs may overlap, and files get copied."""
    times = {
        "full-mps": "2026-11-20T11:00:00+00:00",
        "fast-cpu": "2026-11-20T12:00:00+02:00",
        "full-cpu": 1_700_000_000,
    }
    for name, started in times.items():
        run.folder = paths.BUILD / name
        run.folder.mkdir(exist_ok=True)
        run.summary(label=f"on {name}", started=started)
    assert report.latest_run(paths.BUILD).name == "full-mps"
    assert command(["report"]) == 0
    assert capsys.readouterr().out == f"report: {paths.REPORT / 'index.html'}\n"
    assert "on full-mps" in (paths.REPORT / "index.html").read_text()


def test_a_report_deletes_and_overwrites_only_what_a_report_wrote(run, unconverted, tmp_path):
    """Never through a link, be it the file or the folder."""
    run.summary(entry("01_a"), entry("02_b"))
    run.notebook("01_a", code("1"))
    run.notebook("02_b", code("1"))
    run.page()
    theirs = run.report / "notes.html"
    theirs.write_text("somebody's own")
    aside = tmp_path / "elsewhere.html"
    aside.write_text((run.report / "02_b.html").read_text())
    (run.report / "linked.html").symlink_to(aside)
    run.summary(entry("01_a"))
    (run.folder / "02_b.ipynb").unlink()
    run.page()
    assert sorted(path.name for path in run.report.iterdir()) == [
        *("01_a.html", "index.html", "linked.html", "notes.html")
    ]
    assert theirs.read_text() == "somebody's own"
    assert aside.exists()

    for put in (lambda path: path.write_text("mine"), lambda path: path.symlink_to(aside)):
        (run.report / "index.html").unlink()
        put(run.report / "index.html")
        before = (run.report / "index.html").read_text()
        with pytest.raises(report.ReportError, match=r"index\.html is there already, and no report wrote it"):
            run.page()
        assert (run.report / "index.html").read_text() == before
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "index.html").write_text(aside.read_text())
    shutil.rmtree(run.report)
    run.report.symlink_to(tmp_path / "there")
    with pytest.raises(report.ReportError, match="is a link: nothing is deleted or written through it"):
        run.page()
    assert (tmp_path / "there" / "index.html").exists()


def test_a_full_disk_leaves_no_half_a_report(run, unconverted, monkeypatch, capsys):
    run.summary(entry("01_a"))
    run.notebook("01_a", code("1"))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "index.html")

    with monkeypatch.context() as patch:
        patch.setattr(paths.os, "replace", full)
        assert command(["report", str(run.folder)]) == 2
    assert "index.html" in capsys.readouterr().err
    assert list(run.report.iterdir()) == []
    assert command(["report", str(run.folder)]) == 0


def test_a_page_that_prints_too_much_is_cut_and_the_report_says_so(run):
    """Also one that was executed by something else, which cuts nothing."""
    run.summary(entry("01_a"))
    flood = v4.new_output("stream", name="stdout", text="x" * (3 << 20))
    run.notebook("01_a", code("1"), code("2", flood))
    index = run.page()
    note = f"{2 << 20}"
    assert note in text_of(run.executed("01_a"))
    assert (run.report / "01_a.html").stat().st_size < 2 << 20
    assert "01_a, cell 2" in text_of(index)
    assert note in text_of(index)
