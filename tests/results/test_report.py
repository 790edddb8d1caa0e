"""The report: it shows what a run found, loads nothing, and escapes everything."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from bs4 import BeautifulSoup
from measurements import make_measurement
from nbformat import v4
from results_files import claim, honest
from run_folder import Run, code, entry, error, picture_output, png, record

from metallab import machine, paths, records
from metallab.__main__ import main as command
from metallab.device import Device
from metallab.results import findings, report
from metallab.results.publish import executed
from metallab.timing import Ratio, Reason, Withheld, comparison, why_withheld

STYLE_SHEET = (Path(report.__file__).parent / "templates" / "report.css").read_text(
    encoding="utf-8"
)
HOSTILE = (
    "\"><script>alert(1)</script><img src=x onerror=alert(1)>' javascript:alert(1) {{ 7*7 }} &amp;"
)


@contextlib.contextmanager
def checkout(root: Path) -> Iterator[Run]:
    """Yield a run in a checkout of its own, on a machine whose time is UTC: the report shows local times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "ROOT", root)
        patch.setattr(paths, "BUILD", root / "build")
        patch.setattr(paths, "FAILED", root / "build" / "failed")
        patch.setattr(paths, "REPORT", root / "build" / "report")
        patch.setattr(findings, "REFERENCES", root / "data" / "results")
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield Run(root)

    time.tzset()  # as TZ says now, which is what it was before


@pytest.fixture
def run(tmp_path) -> Iterator[Run]:
    with checkout(tmp_path.resolve()) as made:
        yield made


def text_of(element) -> str:
    return " ".join(element.get_text(" ").split())


# --- what the page shows ---


TRACEBACK = [
    "\x1b[31mTraceback\x1b[0m",
    *map(str, range(report.TRACEBACK_LINES)),
    "ZeroDivisionError: <b>",
]


@pytest.fixture(scope="module")
def with_failures(tmp_path_factory) -> SimpleNamespace:
    """The report, and its folder, of a run with a page that passed, one that failed and one that was skipped."""
    failed = {"reason": "cell 2: division by zero", "failed_copy": "failed/02_b.ipynb"}
    skipped = {"reason": "needs a Mac", "seconds": 0, "executed": 0}

    with checkout(tmp_path_factory.mktemp("run").resolve()) as run:
        run.summary(
            entry("01_a"),
            entry("02_b", status="failed", **failed),
            entry("03_c", status="skipped", **skipped),
        )
        run.notebook("01_a")
        run.notebook("02_b", code("1/0", error(*TRACEBACK)), folder="failed")
        run.records(
            record("eager", outcome="baseline"), record("fused", (1.75, 1.83, 1.9)), record("alone")
        )
        return SimpleNamespace(page=run.page(), folder=run.report)


@pytest.fixture
def page(with_failures) -> BeautifulSoup:
    return with_failures.page


@pytest.mark.parametrize(
    "words",
    [
        *("Some CPU", "full mode", "2026-11-20 10:00 UTC", "3 min 7 s", "1 failed"),
        *("make run ONLY=02", "Skipped (needs a Mac): 03"),
    ],
)
def test_the_head_says_what_ran_and_what_to_run_again(page, words):
    assert words in text_of(page.header)


def test_the_report_has_the_palette(page):
    assert paths.PALETTE.read_text(encoding="utf-8").strip() in page.style.string


def test_the_content_follows_the_head(page):
    assert page.header.find_next_sibling().name == "main"


@pytest.mark.parametrize(
    "words", ["matmul", "fused", "1.83×", "1.75 to 1.90", "faster", "against eager"]
)
def test_the_verdicts_have_each_comparison(page, words):
    assert words in text_of(page.find(id="verdicts"))


def test_a_time_that_was_compared_with_none_is_no_verdict(page):
    assert "alone" not in text_of(page.find(id="verdicts"))


def test_the_machine_is_described(page):
    assert machine.describe().python in text_of(page.find(id="machine"))


@pytest.mark.parametrize("row", machine.find_momentary().values())
def test_what_changes_from_moment_to_moment_has_no_row(row):
    assert row not in dict(report.merge_rows([machine.describe()]))


def test_a_card_leads_to_a_page_that_is_there_unless_it_was_skipped(with_failures):
    cards = with_failures.page.select("#notebooks article")
    links = [card.h3.a and card.h3.a["href"] for card in cards]

    assert links == ["pages/01_a.html", "pages/02_b.html", None]
    assert [link for link in links[:2] if not (with_failures.folder / link).is_file()] == []


@pytest.mark.parametrize("words", ["cell 2: division by zero", "needs a Mac", "failed/02_b.ipynb"])
def test_the_failures_say_where_and_why(page, words):
    assert words in text_of(page.find(id="failures"))


def test_of_a_traceback_the_last_lines_are_shown(page):
    first, second, *_, last = page.find(id="failures").pre.get_text().splitlines()

    assert first == "..."
    assert second == "1"
    assert last == "ZeroDivisionError: <b>"


def test_the_measurements_have_times_first_call_and_count(page):
    rows = [text_of(row) for row in page.select("#measurements details tbody tr")]

    full = [row for row in rows if "1.01 ms" in row and "500 ms" in row and "24" in row]
    assert len(full) == 2
    assert "552 µs" in rows[1], "1.01 ms in 1.83 times"


@pytest.fixture
def incomplete(run):
    """The report of a run of which one page lacked a tool."""
    gap = {"where": "cell 10 (Route 2)", "what": "this cell needs <clang>", "fix": "make packages"}
    run.summary(entry("01_a", status="incomplete", reason="not run", not_run=[gap]), entry("02_b"))
    return run.page()


def test_the_head_says_how_many_pages_are_incomplete_and_what_would_fix_them(incomplete):
    assert "◐ 1 incomplete" in text_of(incomplete.header)
    assert "Incomplete (make packages): 01." in text_of(incomplete.select_one(".trust.doubted"))


def test_the_report_counts_no_cell_as_run_that_was_not(incomplete):
    section = incomplete.find(attrs={"aria-label": "How each notebook went"})
    row, whole = section.tbody.find_all("tr")

    assert "3 of 4" in text_of(row)
    assert "4 of 4" in text_of(whole)


def test_the_card_of_an_incomplete_page_leads_to_what_would_fix_it(incomplete):
    card, passed = incomplete.find(id="notebooks").find_all("article")
    why = incomplete.find(id="why-01_a")

    assert [link["href"] for link in card.find_all("a")] == ["#why-01_a"]
    assert "this cell needs <clang>" in text_of(why.li)
    assert why.li.code.text == "make packages"
    assert passed.find_all("a") == []
    assert incomplete.find(id="why-02_b") is None


def test_what_a_page_expected_and_did_not_find_is_on_the_card(run):
    run.records(record("v", (0.4, 0.5, 0.6), outcome="slower"))
    cell = code("measure()")
    expected = {"expects": "faster", "comparison": "matmul", "variant": "v"}
    cell["metadata"] = {"metallab": expected}
    run.notebook("01_a", cell)
    run.summary(entry("01_a"))

    (card,) = run.page().select("#notebooks article")

    assert "matmul, v: expected to be faster, and found slower" in text_of(card)


def read_page(run, name):
    """The page of HTML that a card leads to."""
    return BeautifulSoup((run.report / "pages" / f"{name}.html").read_text(), "html.parser")


def test_a_card_leads_to_the_page_as_it_ran(run):
    run.summary(entry("01_a"))
    run.notebook("01_a", v4.new_markdown_cell("# Title"), code("print(42)", picture_output(png())))
    run.page()
    read = read_page(run, "01_a")
    assert read.h1.get_text().startswith("Title")
    assert "print(42)" in read.get_text()
    assert read.img["src"].startswith("data:image/png;base64,")
    assert paths.PALETTE.read_text(encoding="utf-8").strip() in read.style.string


def runs(page: BeautifulSoup) -> list[str]:
    """What a browser would run or load of a page: elements, attributes, and links."""
    elements = [each.name for each in page.find_all(["script", "iframe", "object", "link"])]
    attributes = {name for each in page.find_all(True) for name in each.attrs}
    links = [link["href"] for link in page.find_all("a", href=True) if "script" in link["href"]]
    return [*elements, *(name for name in attributes if name.startswith("on")), *links]


def policy_of(page: BeautifulSoup) -> str:
    return page.head.find("meta", attrs={"http-equiv": "Content-Security-Policy"})["content"]


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

    assert runs(read) == []
    assert read.body.find_all("meta") == []
    assert policy_of(read).startswith("default-src 'none'")
    assert "script" not in policy_of(read)


@pytest.fixture
def link_to(run):
    """Return a function that gives the address of a link on the page of HTML of a run of two pages."""

    def find(link):
        run.summary(entry("01_a"), entry("02_b"))
        run.notebook("01_a", v4.new_markdown_cell(f"See [it]({link})."))
        run.notebook("02_b")
        run.page()
        return read_page(run, "01_a").find("a", string="it")["href"]

    return find


@pytest.mark.parametrize(
    ("link", "leads"),
    [
        pytest.param("02_b.ipynb#Deeper", "02_b.html#Deeper", id="page-of-the-run"),
        pytest.param("https://example.org/a", "https://example.org/a", id="web"),
    ],
)
def test_links_of_a_page_of_html_lead_somewhere(link_to, link, leads):
    assert link_to(link) == leads


def test_a_link_to_a_document_leads_from_a_page_of_html_into_the_checkout(run, link_to):
    address = link_to("../README.md")

    assert (run.report / "pages" / address).samefile(paths.NOTEBOOKS / "../README.md")


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
    sentence = f"{outcome}. There is no <compiler>."
    judged = [
        {"exercise": "Exercise 1.1", "outcome": "right", "sentence": "right"},
        {"exercise": "Exercise 1.2", "outcome": outcome, "sentence": sentence},
    ]
    run.summary(entry("01_a", judgements=judged))

    (card,) = run.page().select("#notebooks article")

    assert "There is no <compiler>." in text_of(card)
    assert "Exercise 1.1" not in text_of(card)


def card_of(run, *sentences, **fields):
    """The card of a page with a headline of some sentences and a picture, and one measurement."""
    file = run.folder / "drawn.png"
    file.write_bytes(png())
    headline = records.Headline(sentences, file, "a grey picture")

    run.summary(entry("01_a", **fields))
    made = make_measurement("m", (1.0,) * 10)
    on = Device("cpu", "Some CPU")
    records.save("01_a", made, on=on, folder=run.folder / "results", headline=headline)
    return run.page().select_one("#notebooks article")


@pytest.fixture
def card_with_headline(run):
    """The card of a page with a headline of two sentences and a picture."""
    return card_of(run, "It is <b>right</b>.", "Nothing is lost.")


STORED = {"headline_is_withheld": False, "headline_is_replaced": False}
"""What the summary of a stored set tells of a page, and that of a run does not."""
STORED_EARLIER = {"headline_is_withheld": False}
"""The same of a set that was stored before it told whether a headline was replaced."""


def notes_of(card) -> str:
    """What a card says about its headline."""
    return " ".join(text_of(note) for note in card.select("p.faint"))


@pytest.mark.parametrize("stored", [{}, STORED], ids=["run", "stored"])
def test_a_headline_of_the_page_s_own_has_no_excuse(run, stored):
    assert notes_of(card_of(run, "It is <b>right</b>.", "Nothing is lost.", **stored)) == ""


@pytest.mark.parametrize(
    ("sentences", "fields", "reason"),
    [
        pytest.param(["It is 9 times as fast."], {}, "nothing in its results gives", id="run"),
        pytest.param(
            ["It is right.", "It is 9 times as fast."], {}, "left out: 1", id="run, one of two"
        ),
        pytest.param(["It is 9 times as fast."], STORED, "this folder keeps one", id="stored"),
        pytest.param(
            ["It is 9 times as fast."],
            STORED | {"headline_is_replaced": True},
            "nothing in its results gave",
            id="replaced when it was stored",
        ),
        pytest.param(
            ["It is right."],
            STORED | {"headline_left_out": 2},
            "left out when it was stored: 2",
            id="stored, two of three",
        ),
        pytest.param(
            ["It is right."], {"headline_is_withheld": True}, "is withheld", id="withheld"
        ),
    ],
)
def test_a_headline_in_other_words_than_the_page_s_says_why(run, sentences, fields, reason):
    assert reason in notes_of(card_of(run, *sentences, **fields))


def test_a_headline_that_may_be_the_page_s_own_is_called_a_measurement(run):
    """Older sets do not tell a page that says it itself from one whose sentences were replaced by it."""
    (given,) = headline_of([record("m", samples=(1.0,) * 10)], "It is 9 times as fast.").sentences
    run.summary(entry("01_a", **STORED_EARLIER))
    said = records.Headline((given,))
    run.records(dataclasses.replace(record("m", samples=(1.0,) * 10), headline=said))

    (card,) = run.page().select("#notebooks article")

    assert text_of(card.select_one("p.headline")) == given
    assert "was not kept when it was stored" in notes_of(card)


def test_a_measurement_that_the_page_names_as_its_headline_is_its_own(run):
    run.summary(entry("01_a"))
    made = record("m", samples=(1.0,) * 10)
    run.records(dataclasses.replace(made, headline=records.Headline((str(made.measurement),))))

    (card,) = run.page().select("#notebooks article")

    assert text_of(card.select_one("p.headline")) == str(made.measurement)
    assert notes_of(card) == ""


def test_a_page_without_its_headline_says_which_name_is_missing(run):
    run.summary(entry("01_a"))
    run.records(dataclasses.replace(record("x"), without_headline="no cell has made <race>"))

    (card,) = run.page().select("#notebooks article")

    assert card.select_one("p.headline") is None
    assert "Without a headline: no cell has made <race>." in notes_of(card)


@pytest.mark.parametrize(
    ("has_results", "reason"),
    [(True, "metadata.metallab.headline"), (False, "results/01_a.json")],
    ids=["no headline in its results", "no results"],
)
def test_a_page_that_names_no_headline_or_saves_nothing_says_so(run, has_results, reason):
    run.summary(entry("01_a"))
    if has_results:
        run.records(record("x"))

    (card,) = run.page().select("#notebooks article")

    assert reason in notes_of(card)


@pytest.mark.parametrize(
    "fields", [{"status": "skipped", "executed": 0}, {"status": "incomplete", "executed": 0}]
)
def test_nothing_is_said_of_the_headline_of_a_page_that_did_not_run(run, fields):
    run.summary(entry("01_a", **fields))

    assert "headline" not in text_of(run.page().select_one("#notebooks article"))


# --- a stored set ---


GAP = {"where": "cell 10 (Route 2)", "what": "torch 2.11 is too old", "fix": "make setup FORCE=1"}


@pytest.fixture
def stored_set(run):
    """The report of a stored set of two pages, which ran on different days; the first is incomplete."""
    run.summary(
        entry("01_a", status="incomplete", reason="not run", not_run=[GAP], **STORED),
        entry("02_b", **STORED),
        device="cuda",
        label="Some GPU",
    )
    run.records(record("x"))
    run.records(dataclasses.replace(record("y"), taken="2026-11-23T10:00:00+00:00"), name="02_b")
    return run.page()


def test_the_head_of_a_stored_set_says_on_which_days_its_pages_ran(stored_set):
    head = text_of(stored_set.header)

    assert "2026-11-20 to 2026-11-23, 24 s in all" in head
    assert "3 min 7 s" not in head, "of the run that was stored last"


def test_a_stored_set_says_how_a_page_is_renewed_and_not_that_installing_helps(stored_set):
    head = text_of(stored_set.select_one(".trust.doubted"))

    assert "Incomplete: 01." in head
    assert "Some GPU, and there: make run ONLY=01, then make show RUN=build/full-cuda" in head
    assert "FORCE" not in head


def test_a_stored_page_with_a_speed_up_withheld_is_renewed_on_a_machine_at_rest(run):
    run.summary(entry("01_a", **STORED), entry("02_b", **STORED, withheld=2), label="Some CPU")

    words = text_of(run.page().select_one(".trust.doubted"))

    assert "such as 02, let Some CPU rest, and there: make run ONLY=02" in words


def test_the_reasons_of_a_stored_page_are_those_of_its_machine(stored_set):
    why = text_of(stored_set.find(id="why-01_a"))

    assert "missing on that machine, or was of a version that does not fit" in why
    assert "in the words of the revision that ran: make setup FORCE=1" in why


def test_a_headline_s_picture_is_part_of_the_page_and_has_words(card_with_headline):
    picture = card_with_headline.select_one("a.picture img.headline")

    assert picture["alt"] == "a grey picture"
    assert picture["src"].startswith("data:image/png;base64,")


def test_a_headline_s_picture_is_enlarged_by_a_click_and_closed_by_another(card_with_headline):
    enlarge, close = (
        card_with_headline.select_one("a.picture"),
        card_with_headline.select_one("a.close"),
    )

    assert enlarge["href"] == f"#{enlarge['id']}", "it is its own target"
    assert close["href"] == f"#{card_with_headline.h3['id']}"


def test_of_a_headline_the_first_sentence_is_shown_and_the_others_folded(card_with_headline):
    assert text_of(card_with_headline.select_one("p.headline")) == "It is <b>right</b>."
    assert text_of(card_with_headline.details) == "1 more Nothing is lost."


def test_drift_is_on_the_card(run):
    names = ("01_a", "02_b", "03_c")
    run.summary(*map(entry, names))
    drifting = dataclasses.replace(record("x"), sentinel_drift=-0.2)
    steady = dataclasses.replace(record("y"), sentinel_drift=0.05)
    fast = dataclasses.replace(record("x", mode="fast"), sentinel_drift=0.5)
    for name, made in zip(names, ([drifting, steady], [steady], [fast]), strict=True):
        run.records(*made, name=name)

    cards = [text_of(card) for card in run.page().select("#notebooks article")]

    assert ["drifted: " in card and "20%" in card for card in cards] == [True, False, False]


def test_a_card_gives_the_reason_that_the_comparison_and_the_first_line_give(run):
    """All three name the reason that comes first: a machine that was busy and drifted is called busy, and not both."""
    run.summary(entry("01_a"))
    made = [record("eager", outcome="baseline", others=0.9), record("v", (1, 1, 1), others=0.9)]
    run.records(*(dataclasses.replace(each, sentinel_drift=-0.9) for each in made))

    page = run.page()
    told = {
        "card": text_of(page.select_one("#notebooks article .drift")),
        "comparison": text_of(page.select_one("#verdicts tbody tr")),
        "first line": text_of(page.select_one(".trust")),
    }

    assert [where for where, text in told.items() if "busy" not in text] == []
    assert [where for where, text in told.items() if "drifted" in text] == []


FAR_APART = Withheld(Reason.OTHER, "measured two hours apart; measure both in one run")


@pytest.fixture
def far_apart(monkeypatch):
    """Stands in for a reason that takes two measurements, and that another run may be without."""

    def ask(*measurements, drift=None):
        is_pair = len(measurements) == 2
        return why_withheld(*measurements, drift=drift) or (FAR_APART if is_pair else None)

    monkeypatch.setattr(comparison, "why_withheld", ask)
    transient = property(lambda withheld: withheld.reason is Reason.OTHER)
    monkeypatch.setattr(Withheld, "is_transient", transient)


@pytest.fixture
def apart(run, far_apart):
    """The report of a page whose comparison is withheld a speed-up for a reason of both measurements."""
    run.summary(entry("01_a"))
    run.records(record("eager", outcome="baseline"), record("v", (1.2, 1.3, 1.4)))
    return run.page()


def test_a_reason_that_takes_two_measurements_is_a_disturbance_of_the_run(apart):
    told = first_line(apart)

    assert told["class"] == ["trust", "doubted"]
    assert "1 disturbed, as each comparison says" in text_of(told)
    assert "Do what each comparison says and run again: make run ONLY=01" in text_of(told)


@pytest.mark.parametrize("place", ["#notebooks article .drift", "#verdicts tbody tr"])
def test_a_reason_that_takes_two_measurements_is_told_with_what_to_do(apart, place):
    assert FAR_APART.detail in text_of(apart.select_one(place))


def test_a_record_of_such_a_comparison_is_disturbed(far_apart):
    stated = record("v", (1.2, 1.3, 1.4), outcome="withheld", detail=FAR_APART.detail)

    assert executed.is_disturbed(stated)
    assert not executed.is_disturbed(record("v", (1.2, 1.3, 1.4)))


GIVEN = str(Ratio("fused", "eager", 1.83, 1.75, 1.9, 24))


@pytest.mark.parametrize(
    ("sentences", "kept"),
    [
        (("Nothing is lost.", f"matmul: {GIVEN}", f"Once more, {GIVEN}."), (0, 1, 2)),
        (("float16 fits.", "It is right on 999 of 1000."), (0, 1)),
        (("7B: 13.5 GiB.", "12 ms a call.", "45.4 frames/s", "30 % longer."), (0,)),
        ((GIVEN.replace("1.83", "8.83"), f"matmul: {GIVEN}, and 2.5 with more", "It fits."), (2,)),
        (("It is faster.", "It is Twice as good.", "It fits."), (2,)),
    ],
    ids=["supported", "a count", "times and rates", "another number", "words for a speed-up"],
)
def test_a_sentence_is_kept_if_the_samples_support_it(run, sentences, kept):
    found = records.Headline(sentences)
    made = [
        dataclasses.replace(one, headline=found)
        for one in honest([record("fused", (1.75, 1.83, 1.9))])
    ]
    assert records.headline_of(made).sentences == tuple(sentences[each] for each in kept)


def headline_of(made: list[records.Record], sentence: str) -> records.Headline | None:
    """The headline of records whose page has said something."""
    false = records.Headline((sentence,))
    return records.headline_of([dataclasses.replace(one, headline=false) for one in made])


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (honest([record("fused", (1.75, 1.83, 1.9))]), f"matmul: {GIVEN}"),
        ([record("alone")], "1.01 ms"),
    ],
    ids=["a comparison", "a time"],
)
def test_the_samples_speak_where_no_sentence_is_kept(made, words):
    (sentence,) = headline_of(made, "It is 9 times as fast.").sentences

    assert words in sentence


def test_a_page_that_says_nothing_has_no_headline():
    assert records.headline_of([record("alone")]) is None


# --- what may be said of a comparison ---


@pytest.mark.parametrize(
    ("made", "kind", "reason"),
    [
        pytest.param(record("v", (1.2, 1.3, 1.4)), "faster", "1.30 times as", id="faster"),
        pytest.param(
            record("v", (0.4, 0.5, 0.6), outcome="slower"), "slower", "2.00 times as", id="slower"
        ),
        pytest.param(
            record("v", (0.995, 1.0, 1.005), outcome="same"), "same", "within 1%", id="same"
        ),
        pytest.param(
            record("v", (0.9, 1.0, 1.1), outcome="inconclusive"),
            "inconclusive",
            "it may be slower or faster",
            id="inconclusive",
        ),
        pytest.param(
            record("v", (0.9, 1.5, 2.1), outcome="faster"),
            "inconclusive",
            "it may be slower or faster",
            id="a false claim",
        ),
        pytest.param(
            record("v", (0.4, 0.5, 1.0), outcome="slower"),
            "inconclusive",
            "it may be slower, or as fast within 1%",
            id="up to as fast",
        ),
    ],
)
def test_what_was_measured_has_a_verdict_and_a_speed_up(made, kind, reason):
    conclusion = findings.conclusion_of([made])

    assert conclusion.outcome == kind
    assert reason in conclusion.reason
    assert conclusion.speed_up


@pytest.mark.parametrize(
    ("made", "kind", "reason"),
    [
        pytest.param(
            record("v", (0.0, 1.5, None), outcome="faster"),
            "inconclusive",
            "too few for a 95 % interval, which needs 6",
            id="too few",
        ),
        pytest.param(
            record("v", reason="outputs differ", detail="by 3", outcome="withheld"),
            "differ",
            "by 3",
            id="outputs differ",
        ),
        pytest.param(
            record("v", detail="no reason", outcome="withheld"),
            "withheld",
            "no reason",
            id="withheld",
        ),
        pytest.param(
            record("v", (1.2, 1.3, 1.4), simulated=True), "simulated", "its times", id="simulated"
        ),
        pytest.param(record("v", (1.2, 1.3, 1.4), mode="fast"), "fast", "", id="fast mode"),
    ],
)
def test_what_may_not_be_compared_has_a_reason_and_no_speed_up(made, kind, reason):
    conclusion = findings.conclusion_of([made])

    assert conclusion.outcome == kind
    assert reason in conclusion.reason
    assert not conclusion.speed_up


@pytest.fixture
def every_reason(run):
    """The report of a comparison with a variant for each reason to withhold its speed-up."""
    run.summary()
    named = [reason for reason in Reason if reason is not Reason.OTHER]
    refused = {"outcome": "withheld", "detail": "a detail"}
    run.records(
        *(record(reason.value, reason=reason, **refused) for reason in named),
        record(Reason.OTHER.value, **refused),
    )
    return run.page()


@pytest.mark.parametrize("reason", Reason)
def test_each_reason_is_shown_with_a_sign_in_a_style_that_there_is(every_reason, reason):
    """A reason that is missing in ``signs`` of the template, where its style stands, ends the report with an error."""
    (row,) = [
        row
        for row in every_reason.select("#verdicts tbody tr")
        if text_of(row.th) == f"matmul: {reason.value}"
    ]
    verdict = row.select_one("td strong, td .chip")
    styles = set(verdict["class"]) - {"chip"}

    assert text_of(verdict.select_one("[aria-hidden]")), "no sign"
    assert styles
    assert {style for style in styles if not re.search(rf"\.{style}\b", STYLE_SHEET)} == set()


@pytest.fixture
def false_claim(run):
    """A run with two files, of which one claims more than its samples say."""
    run.summary()
    claim(run.records(record("v", (1.2, 1.3, 1.4))), "v", median=50.0, high=60.0)
    run.records(record("w", (1.2, 1.3, 1.4)), name="02_b")
    return run


def test_a_false_speed_up_is_never_shown(false_claim):
    page = false_claim.page()

    assert [text_of(row.th) for row in page.select("#verdicts tbody tr")] == ["matmul: w"]
    assert "of 50, 1.2, 60, but its samples say 1.3" in text_of(page.find(id="failures"))


def test_the_command_names_a_file_that_claims_a_false_speed_up(false_claim, capsys):
    assert command(["report", str(false_claim.folder)]) == 2
    assert "results/01_a.json" in capsys.readouterr().err


@pytest.fixture
def beside_another(run):
    """The report of a run beside the reference results of another machine, and a file that is broken."""
    slow = record("v", (1.2, 1.3, 1.4), samples=(0.0123,) * 24, device="Another CPU, 2 threads")
    records.write(findings.REFERENCES / "other.json", honest([slow]))
    (findings.REFERENCES / "broken.json").write_text("{")
    run.summary()
    run.records(record("v", (3.2, 3.3, 3.4)), record("sim", simulated=True))
    return run.page()


def test_machines_stand_side_by_side_the_run_first_and_a_mac_that_nobody_measured_last(
    beside_another,
):
    section = beside_another.find(id="machines")

    heads = [text_of(head) for head in section.find_all("table")[-1].select("thead th")]
    assert heads == ["◌ simulated here, Some CPU", "Another CPU, 2 threads (stored)", "Apple GPU"]
    assert findings.WANTED in text_of(section)


def test_machines_are_compared_by_ratios_and_no_times(beside_another):
    section = beside_another.find(id="machines")

    (row,) = section.find_all("table")[-1].select("tbody tr")
    ratios = "3.30× faster (3.20 to 3.40) 1.30× faster (1.20 to 1.40) –"
    assert text_of(row) == f"01 matmul: v over eager {ratios}"
    assert "12.3 ms" not in text_of(section)
    assert "1.01 ms" not in text_of(section)


def test_a_broken_file_of_another_machine_is_among_the_failures(beside_another):
    assert "data/results/broken.json" in text_of(beside_another.find(id="failures"))


@pytest.fixture
def measure(run):
    """Return a function that gives the report of a comparison, measured under some conditions."""

    def report_on(**changes):
        run.summary()
        run.records(
            record("eager", outcome="baseline", **changes),
            record("v", (1.2, 1.3, 1.4), **changes, block=2),
        )
        return run.page()

    return report_on


def first_line(page):
    return page.select_one(".lead").find_next_sibling()


def test_the_first_line_says_that_a_run_may_be_believed(measure):
    page = measure()

    assert first_line(page)["class"] == ["trust"]
    assert "make run ONLY=01" not in text_of(first_line(page))
    assert "1.30" in text_of(page.find(id="verdicts"))


def test_the_first_line_says_of_a_busy_machine_what_to_run_again(measure):
    page = measure(others=0.9)

    assert first_line(page)["class"] == ["trust", "doubted"]
    assert "make run ONLY=01" in text_of(first_line(page))
    assert "1.30" not in text_of(page.find(id="verdicts"))


def test_a_sample_of_several_calls_is_counted_once(measure):
    assert "24, each of 2 calls" in text_of(measure().find(id="measurements"))


def test_the_measurements_say_that_caches_were_cold(measure):
    cells = measure(cold=True).select("#measurements tbody td")
    assert [text_of(cell) for cell in cells if "latency" in text_of(cell)] == [
        "latency with cold caches",
        "latency with cold caches",
    ]


def test_of_a_run_in_fast_mode_nothing_is_said_of_trust(run):
    run.summary()
    run.records(record("v", (1.2, 1.3, 1.4), mode="fast"))

    assert run.page().select_one(".trust") is None


@pytest.fixture
def simulated(run):
    """The report of a run on the simulated GPU."""
    run.summary(entry("01_a"), simulated=True)
    refused = {"outcome": "withheld", "reason": "simulated", "detail": "not of a Mac"}
    run.records(record("v", **refused, simulated=True), record("alone", simulated=True))
    return run.page()


def test_a_simulated_run_says_so_first(simulated):
    assert text_of(simulated.select_one(".banner.simulated")) == report.SIMULATED
    assert simulated.title.get_text().startswith("SIMULATED")


def test_each_row_of_a_simulated_run_is_marked_and_none_has_a_speed_up(simulated):
    rows = simulated.select("#verdicts tbody tr") + simulated.select("#measurements tbody tr")

    assert len(rows) == 4
    assert [row for row in rows if not row.select_one(".chip.simulated")] == []
    assert "×" not in text_of(simulated.find(id="verdicts"))


# --- text is escaped, and files that cannot be read are named ---


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> BeautifulSoup:
    """The report of a run whose texts, each name, title and reason among them, are a piece of HTML."""
    made = record(HOSTILE, ratio=(1.2, 1.3, 1.4), device=HOSTILE)
    # one of machine.VARIABLES: reading drops every other variable
    variables = {"OMP_NUM_THREADS": HOSTILE}
    described = dataclasses.replace(made.machine, chip=HOSTILE, environment=variables)
    baseline = f"the old {HOSTILE}"
    compared = dataclasses.replace(made.comparison, name=HOSTILE, baseline=baseline, parity=HOSTILE)
    page_comparison_variant = f"01_a/{HOSTILE}/{HOSTILE}"
    made = dataclasses.replace(made, name=page_comparison_variant, machine=described)
    failed = {"status": "failed", "reason": HOSTILE, "failed_copy": "failed/02_b.ipynb"}
    pages = [entry("01_a", title=HOSTILE), entry("02_b", title=HOSTILE, **failed)]

    with checkout(tmp_path_factory.mktemp("hostile").resolve()) as run:
        run.records(dataclasses.replace(made, comparison=compared))
        run.summary(*pages, mode=HOSTILE, device=HOSTILE, label=HOSTILE)
        run.notebook("02_b", code(HOSTILE, error(HOSTILE)), folder="failed")
        return run.page()


def test_no_value_runs_or_loads_anything(hostile):
    assert runs(hostile) == []
    assert hostile.find_all("img") == []


@pytest.mark.parametrize(
    "place",
    [
        *("header", "#verdicts", "#machine", "#machines", "#notebooks", "#failures"),
        "#measurements",
    ],
)
def test_a_hostile_value_is_shown_as_text(hostile, place):
    assert "<script>alert(1)</script>" in text_of(hostile.select_one(place))


def test_a_hostile_variable_is_shown_as_text(hostile):
    machine = text_of(hostile.select_one("#machine"))
    assert re.search(r"OMP_NUM_THREADS\W+script>alert\(1\)</script>", machine)


def test_no_value_is_taken_for_a_template(hostile):
    assert "{{ 7*7 }}" in hostile.h3.get_text()


def test_the_page_forbids_the_network(run):
    run.summary()

    policy = policy_of(run.page())

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


STARTED = {
    "full-mps": "2026-11-20T11:00:00+00:00",
    "fast-cpu": "2026-11-20T12:00:00+02:00",
    "full-cpu": None,
}
"""By the folder of a run, when it began: the first is the latest, since the second is told in another zone."""


def test_the_run_that_started_last_is_reported_on(run, capsys):
    """Not the one written last: runs may overlap, and files get copied."""
    for name, started in STARTED.items():
        run.folder = paths.BUILD / name
        run.folder.mkdir(exist_ok=True)
        run.summary(label=f"on {name}", started=started)

    assert command(["report"]) == 0

    assert capsys.readouterr().out == f"report: {paths.REPORT / 'index.html'}\n"
    assert "on full-mps" in (paths.REPORT / "index.html").read_text()


def test_the_command_ends_with_how_many_pages_are_incomplete(run, capsys):
    gap = {"where": "cell 2", "what": "a step", "fix": "buy it"}
    gaps = {"01_a": gap, "02_b": gap | {"optional": True}}
    run.summary(*(entry(name, status="incomplete", not_run=[one]) for name, one in gaps.items()))

    assert command(["report"]) == 0

    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("2 pages are incomplete, the report says why; a strict run")


def test_of_a_stored_set_the_command_does_not_speak_of_a_strict_run(run, capsys):
    run.summary(entry("01_a", status="incomplete", not_run=[GAP], **STORED))

    assert command(["report", str(run.folder)]) == 0

    assert capsys.readouterr().out.splitlines()[-1] == "1 page is incomplete, the report says why"
