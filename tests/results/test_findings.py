"""What is said of results: a process counts once, machines stand side by side by ratios only, gaps are told."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

import numpy as np
import pytest
from measurements import make_measurement
from results_files import claim, honest

from metallab import machine, paths, records, timing
from metallab.notebook import Expectation
from metallab.records import record as record_module
from metallab.results import findings
from metallab.timing import Measurement, Reason, Size

HERE = machine.describe()
GPU, CPU = "NVIDIA H200", "Xeon CPU, 16 threads"


MEASUREMENT_FIELDS = {field.name for field in dataclasses.fields(Measurement)} - {
    "name",
    "question",
    "samples",
}


def record(
    variant: str, speed_up: float | None, comparison: str = "c", run: int = 0, **changes
) -> records.Record:
    """Return one process's record of a variant, with a narrow interval; of the baseline if no speed-up is given.

    ``changes`` are fields of `Measurement` or of `records.Compared`, or ``lesson``.
    """
    is_baseline = speed_up is None
    lesson = changes.pop("lesson", "02b_compare")

    measured = make_measurement(
        variant,
        (0.012345,) * 10,
        device=CPU if is_baseline else GPU,
        kind="cpu" if is_baseline else "cuda",
        threads=16 if is_baseline else None,
    )
    of_measurement = {key: changes.pop(key) for key in [*changes] if key in MEASUREMENT_FIELDS}
    compared = records.Compared(
        comparison,
        variant,
        baseline=changes.pop("baseline", "CPU, 16 threads"),
        outcome=changes.pop("outcome", "baseline" if is_baseline else "faster"),
        median=speed_up,
        low=None if is_baseline else speed_up * 0.99,
        high=None if is_baseline else speed_up * 1.01,
        **changes,
    )
    return records.Record(
        lesson,
        f"{lesson}/{comparison}/{variant}",
        f"2026-11-20T10:00:{run:02}+00:00",
        dataclasses.replace(measured, **of_measurement),
        compared,
        None,
        HERE,
    )


def withheld(reason: Reason | None, detail: str, **changes) -> records.Record:
    """Return a record whose page gave no speed-up."""
    return record("mps", 2.0, run=2, outcome="withheld", reason=reason, detail=detail, **changes)


def baseline(comparison: str = "c", **changes) -> records.Record:
    return record("CPU, 16 threads", None, comparison, **{"role": "CPU"} | changes)


def sized(
    n: int, speed_up: float, name: str = "product, n = {n}", **changes
) -> list[records.Record]:
    """A comparison of a series, of its size: a baseline, and a GPU beside it."""
    about = {"series": name.replace("n = {n}", "n").replace("{n}", "n"), "size": Size(n)}
    name = name.format(n=n)
    return [baseline(name, **about), record("cuda", speed_up, name, role="GPU", **about, **changes)]


def numbers(text: str) -> list[str]:
    return re.findall(r"(?<![\w.])\d[\d.]*\b", text)


# --- several processes ---


def conclusion_of_processes(*speed_ups: float) -> findings.Conclusion:
    return findings.conclusion_of(
        [record("mps", speed_up, run=run) for run, speed_up in enumerate(speed_ups)]
    )


def test_processes_that_agree_give_a_verdict():
    agree = conclusion_of_processes(2.0, 2.01, 1.99)
    assert agree.outcome == "faster"
    assert agree.processes == 3


def test_processes_that_vary_give_none_however_narrow_each_one_is():
    apart = conclusion_of_processes(1.0, 2.0, 1.2)
    low, _, high = apart.ratio
    assert apart.outcome == "inconclusive"
    assert low < 0.9
    assert high > 2


BUSY = record("mps", 9.0, run=1, others=3.0)
DRIFTED = withheld(Reason.DRIFTED, "by 77 %")


@pytest.mark.parametrize("disturbed", [BUSY, DRIFTED], ids=["busy", "drifted"])
def test_a_disturbed_process_is_left_out(disturbed):
    together = findings.conclusion_of([record("mps", 2.0), disturbed])
    assert together.ratio == pytest.approx((1.98, 2.0, 2.02))


@pytest.mark.parametrize(
    ("disturbed", "reason"),
    [(BUSY, Reason.BUSY_MACHINE), (DRIFTED, Reason.DRIFTED)],
    ids=["busy", "drifted"],
)
def test_disturbed_processes_alone_give_no_speed_up(disturbed, reason):
    alone = findings.conclusion_of([disturbed])
    assert alone.outcome == "withheld"
    assert alone.answer.reason is reason


def pages_of(gains: dict[str, tuple[float, ...]]) -> Iterator[records.Record]:
    """Yield comparisons of lessons: c0, c1, ... with a speed-up of a GPU each."""
    for lesson, values in gains.items():
        for number, value in enumerate(values):
            yield baseline(f"c{number}", lesson=lesson)
            yield record("v", value, f"c{number}", lesson=lesson, role="GPU")


@pytest.fixture
def sentences():
    """What is said in short of two series of sizes, and of three lessons with two comparisons each."""
    gains = {"03_a": (9.0, 5.0), "04_b": (1.5, 1.25), "05_c": (7.0, 8.0)}
    made = list(pages_of(gains))
    for n, speed_up in ((64, 0.5), (128, 2.0), (256, 4.0)):
        made += [*sized(n, speed_up), *sized(n, 3.0, "copy, n = {n}")]
    return findings.in_short(findings.column(made, "here"))


def test_in_short_has_the_range_of_a_gpu_and_how_often_it_was_faster(sentences):
    assert numbers(sentences[0]) == ["0.50", "9.00", "11", "1"]


def test_in_short_has_the_largest_gain_of_each_of_three_lessons(sentences):
    told = re.findall(r"[\d.]+×|c\d|n = \d+", sentences[1])

    assert told == ["9.00×", "c0", "8.00×", "c1", "4.00×", "n = 256"]


def test_of_simulated_times_alone_nothing_is_said_in_short():
    alone = findings.column([baseline("c"), record("v", 2.0, "c", simulated=True)], "here")

    assert findings.in_short(alone) == []


GOOD = [record("mps", 2.0, run=run) for run in range(2)]
WRONG = withheld(Reason.OUTPUTS_DIFFER, "by 3")
UNEXPLAINED = withheld(None, "no reason")


@pytest.mark.parametrize(
    ("runs", "outcome", "reason"),
    [
        pytest.param([*GOOD, WRONG], "differ", "by 3", id="wrong outputs"),
        pytest.param([*GOOD, UNEXPLAINED], "withheld", "no reason", id="a reason of its own"),
        pytest.param([UNEXPLAINED, WRONG], "differ", "by 3", id="the gravest is told"),
        pytest.param(
            [*GOOD, record("mps", 2.0, run=2, reason=Reason.OUTPUTS_DIFFER, detail="by 3")],
            "differ",
            "by 3",
            id="a file that claims a speed-up all the same",
        ),
    ],
)
def test_one_process_that_may_not_speak_silences_all(runs, outcome, reason):
    silenced = findings.conclusion_of(runs)
    assert silenced.outcome == outcome
    assert silenced.reason == reason
    assert silenced.ratio is None


@pytest.mark.parametrize(
    ("change", "style"), [({"simulated": True}, "simulated"), ({"mode": "fast"}, "fast")]
)
def test_simulated_and_fast_runs_have_styles_of_their_own(change, style):
    got = findings.conclusion_of([record("mps", 2.0, run=run, **change) for run in range(3)])
    assert got.outcome == style
    assert got.ratio is None


# --- machines side by side ---


@pytest.fixture
def build(tmp_path, monkeypatch):
    """A folder for runs and one for reference results."""
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    return tmp_path


def columns(findings, *own: records.Record) -> list:
    here = [findings.column(list(own), "this run")]
    there, _ = findings.references()
    return [*here, *there, *findings.missing_machines([*here, *there])]


@pytest.fixture
def beside_a_gpu(build, monkeypatch):
    """The columns of a simulated run on a Mac, of an NVIDIA GPU's reference results, and of what is missing."""
    monkeypatch.setattr(findings, "REFERENCES", build / "results")
    records.write(build / "results" / "h200.json", honest([baseline(), record("cuda", 2.0)]))

    simulated = record(
        "mps",
        7.7,
        device="simulated Apple GPU",
        simulated=True,
        outcome="withheld",
        reason=Reason.SIMULATED,
    )
    return columns(findings, *on_a_mac(baseline(), simulated))


def on_a_mac(*made: records.Record) -> list[records.Record]:
    mac = dataclasses.replace(HERE, os_name="macOS")
    return [dataclasses.replace(each, machine=mac) for each in made]


def test_simulated_and_missing_machines_are_labelled(beside_a_gpu):
    titles = [column.title for column in beside_a_gpu]
    told = dict(findings.provenance(beside_a_gpu))

    assert titles == ["simulated Apple GPU", "NVIDIA H200", "Apple GPU"]
    assert [column.simulated for column in beside_a_gpu] == [True, False, False]
    assert told["measured on"][0].startswith("SIMULATED")
    assert told["results"][2] == findings.WANTED


def test_of_a_simulated_run_no_time_and_no_speed_up_stands_beside_a_gpu(beside_a_gpu):
    rows = findings.every(beside_a_gpu)
    everything = str([findings.provenance(beside_a_gpu), rows])

    assert "7.7" not in everything
    assert "12.3 ms" not in everything
    assert dict(rows).popitem()[1][0] == timing.SIMULATED.label


def test_a_mac_that_was_measured_is_not_missing():
    real = on_a_mac(record("mps", 3.0, device="Apple M2 GPU"))

    assert findings.missing_machines([findings.column(real, "x")]) == []


def test_a_broken_reference_is_named_and_the_rest_goes_on(build, monkeypatch):
    monkeypatch.setattr(findings, "REFERENCES", build / "results")
    made = honest([baseline(), record("cuda", 2.0)])
    records.write(build / "results" / "good.json", made)
    (build / "results" / "bad.json").write_text("{")
    claim(records.write(build / "results" / "claim.json", made), "cuda", low=3.0)
    references, problems = findings.references()
    assert [column.origin for column in references] == ["reference run, good.json"]
    assert [problem.what for problem in problems] == ["bad.json", "claim.json"]


# --- what the machine was like ---

QUIET = [baseline(), record("mps", 2.0)]
BUSY_PAIR = [baseline("d", others=2.0), record("mps", 2.0, "d", others=2.0)]
MOVED = dataclasses.replace(record("x", 2.0, lesson="07_jax"), sentinel_drift=0.77, comparison=None)
NOISY = dataclasses.replace(
    QUIET[0],
    measurement=dataclasses.replace(QUIET[0].measurement, samples=(1.0, 1.0, 2.0, 2.0) * 9),
)


def counts(*runs: records.Record) -> dict[str, int]:
    """Return how many records each condition holds for."""
    conditions = findings.Conditions.of(runs)
    return {
        field.name: len(getattr(conditions, field.name)) for field in dataclasses.fields(conditions)
    }


def condition_counts(**given: int) -> dict[str, int]:
    """Return a count for each condition: those that are given, and 0."""
    return {field.name: 0 for field in dataclasses.fields(findings.Conditions)} | given


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        pytest.param(
            QUIET, condition_counts(measured=2, busy=0, drifted=0, unwatched=2, noisy=0), id="quiet"
        ),
        pytest.param(
            [NOISY],
            condition_counts(measured=1, busy=0, drifted=0, unwatched=1, noisy=1),
            id="noisy",
        ),
        pytest.param(
            [*QUIET, *BUSY_PAIR, MOVED],
            condition_counts(measured=5, busy=2, drifted=1, unwatched=4, noisy=0),
            id="busy and drifted",
        ),
        pytest.param(
            [dataclasses.replace(MOVED, sentinel_drift=0.01, page_drift=0.3)],
            condition_counts(measured=1, page_drifted=1),
            id="drifted around the page alone",
        ),
        pytest.param(
            [record("mps", 2.0, mode="fast", others=3.0), record("mps", 2.0, simulated=True)],
            condition_counts(measured=0, busy=0, drifted=0, unwatched=0, noisy=0),
            id="neither fast nor simulated runs count",
        ),
    ],
)
def test_conditions_are_counted(runs, expected):
    assert counts(*runs) == expected


@pytest.mark.parametrize(
    "runs", [[], [record("mps", 2.0, mode="fast")], [record("mps", 2.0, simulated=True)]]
)
def test_nothing_is_said_of_trust_where_nothing_was_measured(runs):
    assert findings.trust(runs) == ""


def watched(runs, drift=0.01):
    return [dataclasses.replace(run, sentinel_drift=drift) for run in runs]


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        pytest.param(watched(QUIET), "the machine's speed was constant.", id="watched"),
        pytest.param(QUIET, "was not watched", id="not watched"),
        pytest.param([*QUIET, *watched(QUIET)], "2 of them; around 2", id="half of them watched"),
        pytest.param([NOISY], "1 time (c/CPU, 16 threads) varies", id="noisy"),
    ],
)
def test_trust_says_what_is_known_of_a_quiet_machine(runs, words):
    assert words in findings.trust(runs)


def test_trust_says_from_which_spread_on_times_vary(monkeypatch):
    monkeypatch.setattr(timing, "NOISY", 0.125)
    assert "by more than 12.5 %" in findings.trust([NOISY])


def test_a_drift_around_the_page_advises_and_withholds_nothing():
    runs = [dataclasses.replace(run, page_drift=0.3) for run in watched(QUIET)]
    assert "which withholds nothing" in findings.trust(runs)
    (conclusion,) = findings.conclusions(runs)
    assert conclusion.answer.withheld is None


@pytest.mark.parametrize(("drift", "is_watched"), [(0.01, True), (None, False)])
def test_a_conclusion_says_whether_the_machine_s_speed_was_watched(drift, is_watched):
    (conclusion,) = findings.conclusions(watched(QUIET, drift))
    assert conclusion.is_watched is is_watched


def test_trust_names_what_was_lost_and_what_to_run_again():
    told = findings.trust([*QUIET, *BUSY_PAIR, MOVED])
    assert "Speed-ups: 2, 1 of them withheld" in told
    assert told.endswith("make run ONLY=02b; make run ONLY=07.")


@pytest.fixture
def other_may_pass(monkeypatch):
    """Let `Reason.OTHER` stand for a reason that another run may be without and that has no words of its own."""
    transient = {Reason.BUSY_MACHINE, Reason.DRIFTED, Reason.OTHER}
    is_transient = property(lambda withheld: withheld.reason in transient)
    monkeypatch.setattr(timing.Withheld, "is_transient", is_transient)


FAR_APART = "measured two hours apart; measure both in one run"
MOON = [baseline("moon"), withheld(Reason.OTHER, FAR_APART, comparison="moon")]
"""A comparison that states a reason which none of its measurements shows alone."""


@pytest.mark.usefixtures("other_may_pass")
def test_a_reason_that_only_the_comparison_knows_is_a_disturbance():
    told = findings.trust(watched(MOON))
    assert "of them 1 disturbed, as each comparison says" in told
    assert "No other program was busy" not in told
    assert "Speed-ups: 1, 1 of them withheld" in told


@pytest.mark.usefixtures("other_may_pass")
def test_a_reason_that_one_measurement_shows_is_a_disturbance(monkeypatch):
    reason = timing.Withheld(Reason.OTHER, "the moon is full")
    monkeypatch.setattr(record_module, "why_withheld", lambda *measured, drift: reason)
    assert "of them 2 disturbed" in findings.trust(watched(QUIET))


def test_a_reason_that_stays_is_no_disturbance():
    assert not findings.Conditions.of(watched([WRONG, UNEXPLAINED])).is_disturbed


@pytest.mark.parametrize(
    ("runs", "advice"),
    [
        pytest.param(BUSY_PAIR, "Close other programs and run again", id="busy"),
        pytest.param([MOVED], "Let the machine rest and run again", id="slower"),
        pytest.param([dataclasses.replace(MOVED, sentinel_drift=-0.5)], "Run again", id="faster"),
        pytest.param(MOON, "Do what each comparison says and run again", id="another reason"),
        pytest.param(
            [*BUSY_PAIR, MOVED, *MOON],
            "Close other programs, let the machine rest, do what each comparison says and run again",
            id="all of them",
        ),
    ],
)
@pytest.mark.usefixtures("other_may_pass")
def test_each_disturbance_has_its_advice(runs, advice):
    assert f" {advice}: make run ONLY=" in findings.trust(runs)


BUSY_AND_MOVED = [dataclasses.replace(each, sentinel_drift=-0.9) for each in BUSY_PAIR]


def test_a_busy_machine_whose_speed_moved_is_counted_once_for_the_reason_that_its_answer_gives():
    assert counts(*BUSY_AND_MOVED) == condition_counts(measured=2, busy=2)
    assert BUSY_AND_MOVED[1].answer.reason is Reason.BUSY_MACHINE


def test_disturbances_are_listed_once_for_each_reason():
    listed = findings.list_disturbances([*BUSY_AND_MOVED, MOVED, *QUIET])
    assert [each.reason for each in listed] == [Reason.BUSY_MACHINE, Reason.DRIFTED]


def test_a_reason_with_a_style_of_its_own_counts_among_the_speed_ups_that_are_lost(monkeypatch):
    monkeypatch.setitem(findings.STYLES, Reason.BUSY_MACHINE, "busy")
    assert "Speed-ups: 1, 1 of them withheld" in findings.trust(BUSY_PAIR)


def test_many_pages_are_run_again_by_one_command():
    everywhere = [dataclasses.replace(MOVED, lesson=f"0{n}_x", name=f"0{n}_x/x") for n in range(5)]
    assert findings.trust(everywhere).endswith("run again: make run.")


def test_the_interval_of_processes_is_student_s():
    logs = np.log([1.0, 1.04, 1.01, 1.02])
    quantile = 3.182446  # Student's t of three degrees of freedom, from a table

    interval = findings._interval(list(np.exp(logs)))

    half = quantile * logs.std(ddof=1) / 2
    assert np.log(interval) == pytest.approx(logs.mean() + half * np.array([-1, 0, 1]), rel=1e-5)


def test_the_interval_of_processes_that_differ_without_bounds_is_finite():
    assert findings._interval([1e300, 1e-300])[2] < float("inf")


def test_the_interval_of_equal_processes_has_a_width():
    assert findings._interval([2.0, 2.0])[0] < 2


# --- what a page expects ---


def expecting(verdict: str, comparison: str = "matmul", variant: str = "mps") -> Expectation:
    return Expectation(comparison, variant, verdict)


@pytest.mark.parametrize(
    ("expected", "sentences"),
    [
        pytest.param([expecting("faster")], 0, id="met"),
        pytest.param([expecting("slower")], 1, id="the-other-way-round"),
        pytest.param([expecting("same")], 1, id="not-the-same"),
        pytest.param([expecting("slower", comparison="softmax")], 0, id="not-measured-here"),
        pytest.param([expecting("slower", variant="cuda")], 0, id="no-such-variant-here"),
    ],
)
def test_what_a_page_expects_and_does_not_find_is_said(expected, sentences):
    found = [findings.conclusion_of([record("mps", 2.0)])]
    name = found[0].comparison
    expected = [
        dataclasses.replace(each, comparison=name) if each.comparison == "matmul" else each
        for each in expected
    ]
    assert len(findings.unmet(expected, found)) == sentences


def test_an_expectation_whose_speed_up_is_withheld_says_so():
    found = [findings.conclusion_of([record("mps", 2.0, others=3.0)])]
    (told,) = findings.unmet([expecting("faster", comparison=found[0].comparison)], found)
    assert "busy machine" in told
