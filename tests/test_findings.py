"""What is said of results: a process counts once, machines stand side by side by ratios only, gaps are told."""

from __future__ import annotations

import dataclasses

import pytest
from mutate import Rules

from metallab import machine, paths, records
from metallab.results import findings
from metallab.timing import Measurement

RULES = Rules(findings)
HERE = machine.describe()
GPU, CPU = "NVIDIA H200", "Xeon CPU, 16 threads"


def record(variant: str, speed_up: float | None, comparison: str = "c", run: int = 0, **changes) -> records.Record:
    """One process's record of a variant, with a narrow interval; of the baseline if no speed-up is given."""
    moved = {key: changes.pop(key) for key in ("device", "mode", "simulated", "others") if key in changes}
    fields = {"question": "latency", "first_call": 3.0, "block": 1, "warmup_calls": 3, "stop_reason": "quiet"}
    fields |= {"mode": "full", "device": CPU if speed_up is None else GPU, "simulated": False}
    lesson, baseline = changes.pop("lesson", "02b_compare"), changes.pop("baseline", "CPU, 16 threads")
    measured = Measurement(variant, samples=(0.012345,) * 10, **fields | moved)
    ends = (speed_up and speed_up * 0.99, speed_up, speed_up and speed_up * 1.01)
    verdict = "baseline" if speed_up is None else changes.pop("verdict", "faster")
    compared = records.Compared(comparison, variant, baseline, verdict, ends[1], ends[0], ends[2], **changes)
    name = f"{lesson}/{comparison}/{variant}"
    return records.Record(lesson, name, f"2026-11-20T10:00:{run:02}+00:00", measured, compared, None, HERE)


def baseline(comparison: str = "c", **changes) -> records.Record:
    return record("CPU, 16 threads", None, comparison, **changes)


@RULES.rule(
    ("compare.interval([median for _, median, _ in ratios])", "compare.Interval(*ratios[0])"),
    ("    if len(ratios) > 1:\n", "    if False:\n"),
    ('quiet = [run for run in runs if "busy machine" not in run.measurement.flags]', "quiet = runs"),
)
def each_process_counts_once(findings):
    """Three processes that agree say more than one; three that do not say less, however narrow each one's interval."""
    agree = findings.verdict_of([record("mps", speed_up, run=n) for n, speed_up in enumerate((2.0, 2.01, 1.99))])
    assert (agree.kind, agree.reason) == ("faster", "2.00 times as fast, 3 processes")
    apart = findings.verdict_of([record("mps", speed_up, run=n) for n, speed_up in enumerate((1.0, 2.0, 1.2))])
    assert apart.kind == "inconclusive"
    assert apart.ratio[0] < 0.9
    assert apart.ratio[2] > 2
    with_busy = [record("mps", 2.0), record("mps", 9.0, run=1, others=3.0)]
    assert findings.verdict_of(with_busy).ratio == pytest.approx((1.98, 2.0, 2.02))
    assert findings.verdict_of(with_busy[1:]).kind == "withheld"


@RULES.rule(
    ("        return \"differ\", \"outputs differ: no speed-up is given\", reason, None\n", "        pass\n"),
    ('    if measured.simulated:\n        return "simulated"', '    if False:\n        return "simulated"'),
    ('if measured.mode != "full":', "if False:"),
    ('if refused := [run for run in runs if run.comparison.verdict == "withheld"]:', "if refused := []:"),
)  # fmt: skip
def one_process_that_may_not_speak_silences_all(findings):
    good = [record("mps", 2.0, run=n) for n in range(2)]
    wrong = record("mps", 2.0, run=2, verdict="withheld", withheld="outputs differ: by 3")
    assert (findings.verdict_of([*good, wrong]).kind, findings.verdict_of([*good, wrong]).ratio) == ("differ", None)
    refused = record("mps", 2.0, run=2, verdict="withheld", withheld="no reason")
    assert findings.verdict_of([*good, refused]).reason == "no reason"
    for changes, kind in (({"simulated": True}, "simulated"), ({"mode": "fast"}, "fast")):
        assert findings.verdict_of([record("mps", 2.0, run=n, **changes) for n in range(3)]).kind == kind


def test_a_speed_up_is_of_a_gpu_if_its_baseline_ran_on_a_cpu():
    of_gpu, of_threads = findings.verdicts([baseline(), record("cuda", 2.0), record("CPU, 1 thread", 0.5, device=CPU)])
    assert (of_gpu.by_gpu, of_threads.by_gpu) == (True, False)
    assert findings.is_cpu("host")
    assert (of_gpu.label, of_threads.label) == ("c: GPU over CPU", "c: CPU, 1 thread over CPU")


# --- crossovers and dtypes ---


@RULES.rule(
    ("size > max(lost, default=-1)", "size > min(lost, default=-1)"),
    ('if kinds[last] not in ("faster", "slower"):', "if False:"),
    ("if len(kinds) >= 3", "if True"),
    ("if size and verdict.kind in _KINDS:", "if size and verdict.ratio:"),
    ('f"from n = {size} on" if size > min(kinds)', 'f"from n = {size} on" if True'),
)
def a_crossover_holds_at_every_larger_size(findings):
    def said(*speed_ups: float, **last) -> str:
        made = []
        for power, speed_up in enumerate(speed_ups):
            name = f"product, n = {2**power}"
            made += [baseline(name), record("cuda", speed_up, name)]
        made += [baseline("product, n = 1024"), record("cuda", 3.0, "product, n = 1024", **last)] if last else []
        rows = findings.crossovers([findings.column(made, "a test")])
        return dict(rows).get("02b product, n: GPU over CPU", ("nothing",))[0]

    assert said(0.5, 2.0, 1.0, 2.0, 3.0) == "faster from n = 8 on"
    assert said(2.0, 2.0, 3.0) == "faster at every size, 1 to 4"
    assert said(2.0, 0.5, 0.4) == "slower from n = 2 on"
    assert said(0.5, 2.0, 1.0) == "inconclusive at the largest, n = 4"
    assert said(0.5, 2.0) == "nothing"
    wrong = {"verdict": "withheld", "withheld": "outputs differ"}
    assert said(0.5, 2.0, 2.0, **wrong) == "outputs differ at the largest, n = 1024"


@RULES.rule(
    ("(?:n = )?{size[0]}", "(?:n = )?\\\\d+"),
    (", count=1)", ")"),
    (", key=_in_order)", ")"),
)
def the_first_number_of_a_name_is_its_size_and_rows_are_in_order(findings):
    made = []
    for name in (f"{width} x {width}, batch of {batch}" for batch in (32, 1, 16) for width in (8, 32, 64)):
        made += [baseline(name), record("cuda", 2.0, name)]
    rows = [row for row, _ in findings.crossovers([findings.column(made, "a test")])]
    assert rows == [f"02b n x n, batch of {batch}: GPU over CPU" for batch in (1, 16, 32)]


def test_dtypes_are_compared_on_one_device():
    on_gpu = [record("float32", None, device=GPU, baseline="float32", lesson="05_train")]
    on_gpu += [record("bfloat16", 1.5, baseline="float32", lesson="05_train")]
    mixed = [baseline("both at once"), record("cuda, float16", 9.0, "both at once")]
    rows = findings.dtypes([findings.column([*on_gpu, *mixed], "a test")])
    assert rows == [("05 c: bfloat16 over float32", ("1.50× faster (1.48 to 1.52)",))]


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


@RULES.rule(
    ('f"SIMULATED {self.title}" if self.simulated', "self.title if True"),
    ('        return "SIMULATED: none given"\n', '        return "–"\n'),
    ("    return [] if real else", "    return [] if measured else"),
    ("verdict.by_gpu == by_gpu}", "True}"),
    ("sorted(devices, key=lambda device: (is_cpu(device), -_threads(device)))", "devices"),
)
def what_is_simulated_and_what_is_missing_is_unmistakable(findings, build, monkeypatch):
    monkeypatch.setattr(findings, "REFERENCES", build / "results")
    records.write(build / "results" / "h200.json", [baseline(), record("cuda", 2.0)])
    mac = dataclasses.replace(HERE, os_name="macOS")
    simulated = {"device": "simulated Apple GPU", "simulated": True, "verdict": "withheld", "withheld": "simulated"}
    own = [dataclasses.replace(one, machine=mac) for one in (baseline(), record("mps", 7.7, **simulated))]
    found = columns(findings, *own)
    assert [column.head for column in found] == ["SIMULATED simulated Apple GPU", "NVIDIA H200", "Apple GPU"]
    told = dict(findings.provenance(found))
    assert told["measured on"] == ("SIMULATED: no time of it is compared", "real hardware", "–")
    assert told["results"][1:] == ("reference run, h200.json", findings.WANTED)
    assert findings.by_lesson(found, by_gpu=True) == [
        ("02b_compare", ("SIMULATED: none given", "2.00 (1 faster)", "–"))
    ]
    assert findings.by_lesson(found, by_gpu=False) == []
    tables = [findings.crossovers(found), findings.dtypes(found)]
    everything = str([told, *tables, findings.every(found)])
    assert "7.7" not in everything
    assert "12.3 ms" not in everything, "an absolute time beside another machine's"
    real = dataclasses.replace(record("mps", 3.0, device="Apple M2 GPU"), machine=mac)
    assert findings.wanted([findings.column([real], "x")]) == []


@RULES.rule(("if number > 1 else one", "if number > 2 else one"), ("seen[one.title] += 1", "seen[one.title] = 1"))
def two_machines_of_one_kind_keep_their_own_names(findings):
    mac = findings.Column("Apple M2 GPU", "mine")
    other, third = dataclasses.replace(mac, origin="a friend's"), dataclasses.replace(mac, origin="another's")
    named = findings.distinct([mac, findings.Column("NVIDIA H200", "b"), other, third])
    assert [one.title for one in named] == ["Apple M2 GPU", "NVIDIA H200", "Apple M2 GPU (2)", "Apple M2 GPU (3)"]
    assert [one.origin for one in named] == ["mine", "b", "a friend's", "another's"]


@RULES.rule(("        except ValueError as error:\n", "        except ZeroDivisionError as error:\n"))
def a_broken_reference_is_named_and_the_rest_goes_on(findings, build, monkeypatch):
    monkeypatch.setattr(findings, "REFERENCES", build / "results")
    records.write(build / "results" / "good.json", [baseline(), record("cuda", 2.0)])
    (build / "results" / "bad.json").write_text("{")
    claim = dataclasses.replace(
        record("cuda", 2.0), comparison=dataclasses.replace(record("cuda", 2.0).comparison, low=3)
    )
    records.write(build / "results" / "claim.json", [claim])
    found, problems = findings.references()
    assert [column.origin for column in found] == ["reference run, good.json"]
    assert [problem.what for problem in problems] == ["bad.json", "claim.json"]
    assert problems[1].reason == "the speed-up lies outside its interval"


@RULES.rule(
    ("max(found, key=lambda run: run[0])", "found[0]"),
    ("        if any(_is_of(record, here) for record in records):\n", "        if records:\n"),
    ("    except ValueError:  #", "    except ZeroDivisionError:  #"),
    ('same and measured.mode == "full" and not measured.simulated', "same"),
    ('for path in build.glob("bench/*.json"):', "for path in ():"),
)
def this_machine_s_latest_run_is_found(findings, build):
    def file(place: str, run: int, described=HERE, **changes) -> None:
        made = [baseline(run=run, **changes), record("cuda", 2.0, run=run, **changes)]
        records.write(paths.BUILD / place, [dataclasses.replace(one, machine=described) for one in made])

    assert findings.latest() is None
    file("bench/fast_cpu.json", 9, mode="fast")
    file("full-sim/results/02b.json", 8, simulated=True)
    file("full-mps/results/02b.json", 7, dataclasses.replace(HERE, chip="Apple M9"))
    claim = dataclasses.replace(record("cuda", 2.0).comparison, low=3.0)
    records.write(paths.BUILD / "bench" / "claim.json", [dataclasses.replace(record("cuda", 2.0), comparison=claim)])
    (paths.BUILD / "full-broken" / "results").mkdir(parents=True)
    (paths.BUILD / "full-broken" / "results" / "02b.json").write_text("{")
    assert findings.latest() is None
    file("full-cuda/results/02b.json", 3)
    file("full-cuda/results/07.json", 4, lesson="07_jax")
    assert findings.latest().origin == "this machine, full-cuda"
    file("bench/cpu.json", 5)
    assert findings.latest().origin == "this machine, bench/cpu.json"
    file("full-cuda/results/07.json", 6, lesson="07_jax")
    assert findings.latest().origin == "this machine, full-cuda"


test_rule_holds, test_broken_rule_goes_red = RULES.tests()
