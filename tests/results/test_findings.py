"""What is said of results: a process counts once, machines stand side by side by ratios only, gaps are told."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from results_files import claim, honest

from metallab import machine, paths, records, timing
from metallab.results import findings
from metallab.timing import Measurement, Size

HERE = machine.describe()
GPU, CPU = "NVIDIA H200", "Xeon CPU, 16 threads"


def record(
    variant: str, speed_up: float | None, comparison: str = "c", run: int = 0, **changes
) -> records.Record:
    """One process's record of a variant, with a narrow interval; of the baseline if no speed-up is given."""
    of_measurement = ("device", "mode", "simulated", "others", "kind", "threads", "dtype", "size")
    moved = {key: changes.pop(key) for key in of_measurement if key in changes}
    fields = {
        "question": "latency",
        "first_call": 3.0,
        "block": 1,
        "warmup_calls": 3,
        "stop_reason": "quiet",
    }
    fields |= {"mode": "full", "simulated": False}
    where = (
        {"device": CPU, "kind": "cpu", "threads": 16}
        if speed_up is None
        else {"device": GPU, "kind": "cuda"}
    )
    lesson, baseline = (
        changes.pop("lesson", "02b_compare"),
        changes.pop("baseline", "CPU, 16 threads"),
    )
    measured = Measurement(variant, samples=(0.012345,) * 10, **fields | where | moved)
    ends = (speed_up and speed_up * 0.99, speed_up, speed_up and speed_up * 1.01)
    outcome = changes.pop("outcome", "baseline" if speed_up is None else "faster")
    compared = records.Compared(
        comparison, variant, baseline, outcome, ends[1], ends[0], ends[2], **changes
    )
    name = f"{lesson}/{comparison}/{variant}"
    return records.Record(
        lesson, name, f"2026-11-20T10:00:{run:02}+00:00", measured, compared, None, HERE
    )


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


def test_each_process_counts_once():
    """Three processes that agree say more than one; three that do not say less, however narrow each one's interval."""
    agree = findings.conclusion_of(
        [record("mps", speed_up, run=n) for n, speed_up in enumerate((2.0, 2.01, 1.99))]
    )
    assert (agree.outcome, numbers(agree.reason)) == ("faster", ["2.00", "3"])
    apart = findings.conclusion_of(
        [record("mps", speed_up, run=n) for n, speed_up in enumerate((1.0, 2.0, 1.2))]
    )
    assert apart.outcome == "inconclusive"
    assert apart.ratio[0] < 0.9
    assert apart.ratio[2] > 2
    with_busy = [record("mps", 2.0), record("mps", 9.0, run=1, others=3.0)]
    assert findings.conclusion_of(with_busy).ratio == pytest.approx((1.98, 2.0, 2.02))
    busy = findings.conclusion_of(with_busy[1:])
    assert (busy.outcome, busy.answer.doubt.kind, numbers(busy.reason)) == (
        "withheld",
        "busy machine",
        ["3.0"],
    )
    drifted = record("mps", 9.0, run=2, outcome="withheld", doubt="drifted", withheld="by 77 %")
    assert findings.conclusion_of([*with_busy, drifted]).ratio == pytest.approx((1.98, 2.0, 2.02))
    assert findings.conclusion_of([drifted]).answer.doubt.kind == "drifted"


def test_in_short_has_the_gpu_its_sizes_and_the_largest_gains():
    series = [one for n, value in ((64, 0.5), (128, 2.0), (256, 4.0)) for one in sized(n, value)]
    always = [one for n in (64, 128, 256) for one in sized(n, 3.0, "copy, n = {n}")]
    lessons = [
        one
        for lesson, values in {"03_a": (9.0, 5.0), "04_b": (1.5, 1.25), "05_c": (7.0, 8.0)}.items()
        for number, value in enumerate(values)
        for one in (
            baseline(f"c{number}", lesson=lesson),
            record("v", value, f"c{number}", lesson=lesson, role="GPU"),
        )
    ]
    told = findings.in_short(findings.column([*series, *always, *lessons], "here"))
    assert numbers(told[0]) == ["0.50", "9.00", "11", "1"]
    assert re.findall(r"[\d.]+×|c\d|n = \d+", told[1]) == [
        "9.00×",
        "c0",
        "8.00×",
        "c1",
        "4.00×",
        "n = 256",
    ]
    alone = findings.column([baseline("c"), record("v", 2.0, "c", simulated=True)], "here")
    assert findings.in_short(alone) == []


def test_one_process_that_may_not_speak_silences_all():
    good = [record("mps", 2.0, run=n) for n in range(2)]
    wrong = record("mps", 2.0, run=2, outcome="withheld", doubt="outputs differ", withheld="by 3")
    silenced = findings.conclusion_of([*good, wrong])
    assert (silenced.outcome, silenced.ratio) == ("differ", None)
    refused = record("mps", 2.0, run=2, outcome="withheld", withheld="no reason")
    assert findings.conclusion_of([*good, refused]).reason == "no reason"
    assert findings.conclusion_of([refused, wrong]).outcome == "differ", "the gravest is told"
    liar = record("mps", 2.0, run=2, outcome="faster", doubt="outputs differ", withheld="by 3")
    assert findings.conclusion_of([*good, liar]).outcome == "differ"
    for kind, changes in {"simulated": {"simulated": True}, "fast": {"mode": "fast"}}.items():
        got = findings.conclusion_of([record("mps", 2.0, run=n, **changes) for n in range(3)])
        assert (got.outcome, got.ratio) == (kind, None)


# --- machines side by side ---


@pytest.fixture
def build(tmp_path, monkeypatch):
    """A folder for runs and one for reference results."""
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    return tmp_path


def columns(findings, *own: records.Record) -> list:
    here = [findings.column(list(own), "this run")]
    there, _ = findings.references()
    return [*here, *there, *findings.wanted([*here, *there])]


def test_simulated_and_missing_machines_are_labelled(build, monkeypatch):
    monkeypatch.setattr(findings, "REFERENCES", build / "results")
    records.write(build / "results" / "h200.json", honest([baseline(), record("cuda", 2.0)]))
    mac = dataclasses.replace(HERE, os_name="macOS")
    simulated = {
        "device": "simulated Apple GPU",
        "simulated": True,
        "outcome": "withheld",
        "doubt": "simulated",
    }
    own = [
        dataclasses.replace(one, machine=mac)
        for one in (baseline(), record("mps", 7.7, **simulated))
    ]
    machines = columns(findings, *own)
    assert [column.simulated for column in machines] == [True, False, False]
    assert [column.title for column in machines] == [
        "simulated Apple GPU",
        "NVIDIA H200",
        "Apple GPU",
    ]
    told = dict(findings.provenance(machines))
    assert told["measured on"][0].startswith("SIMULATED")
    assert told["results"][2] == findings.WANTED
    everything = str([told, findings.every(machines)])
    assert "7.7" not in everything
    assert "12.3 ms" not in everything, "an absolute time beside another machine's"
    assert dict(findings.every(machines)).popitem()[1][0] == timing.SIMULATED.short
    real = dataclasses.replace(record("mps", 3.0, device="Apple M2 GPU"), machine=mac)
    assert findings.wanted([findings.column([real], "x")]) == []


def test_a_broken_reference_is_named_and_the_rest_goes_on(build, monkeypatch):
    monkeypatch.setattr(findings, "REFERENCES", build / "results")
    made = honest([baseline(), record("cuda", 2.0)])
    records.write(build / "results" / "good.json", made)
    (build / "results" / "bad.json").write_text("{")
    claim(records.write(build / "results" / "claim.json", made), "cuda", low=3.0)
    references, problems = findings.references()
    assert [column.origin for column in references] == ["reference run, good.json"]
    assert [problem.what for problem in problems] == ["bad.json", "claim.json"]


def test_a_line_says_whether_a_run_may_be_believed():
    good = [baseline(), record("mps", 2.0)]
    assert findings.trust([]) == findings.trust([record("mps", 2.0, mode="fast")]) == ""
    assert findings.trust([record("mps", 2.0, simulated=True)]) == ""
    assert numbers(findings.trust(good)) == ["2"]
    scattered = dataclasses.replace(good[0].measurement, samples=(1.0, 1.0, 2.0, 2.0) * 9)
    noisy = dataclasses.replace(good[0], measurement=scattered)
    assert numbers(findings.trust([noisy])) == ["1", "1", "16", "10"], "16 threads is in its name"
    busy = [baseline("d", others=2.0), record("mps", 2.0, "d", others=2.0)]
    moved = dataclasses.replace(
        record("x", 2.0, lesson="07_jax"), sentinel_drift=0.77, comparison=None
    )
    fast = record("mps", 2.0, "e", mode="fast", others=3.0)
    told = findings.trust([*good, *busy, moved, fast])
    assert numbers(told)[:5] == ["5", "2", "1", "2", "1"], "all, busy, drifted, speed-ups, withheld"
    assert told.endswith("make run ONLY=02b; make run ONLY=07.")
    assert numbers(findings.trust([*good, moved]))[:4] == ["3", "1", "1", "0"], (
        "none was busy: that is not said"
    )
    everywhere = [dataclasses.replace(moved, lesson=f"0{n}_x", name=f"0{n}_x/x") for n in range(5)]
    assert findings.trust(everywhere).endswith("run again: make run.")


def test_the_interval_of_processes_is_student_s():
    medians = [1.0, 1.04, 1.01, 1.02]
    low, median, high = findings._interval(medians)
    half = (
        3.182446 * np.log(medians).std(ddof=1) / 2
    )  # Student's t of three degrees of freedom, from a table
    assert np.log([low, median, high]) == pytest.approx(
        np.log(medians).mean() + half * np.array([-1, 0, 1]), rel=1e-5
    )
    assert findings._interval([1e300, 1e-300])[2] < float("inf")
    assert findings._interval([2.0, 2.0])[0] < 2
