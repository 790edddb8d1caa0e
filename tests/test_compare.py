"""Comparing two files: the verdict is right as often as it says, unlike machines are refused, exit codes tell."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mutate import Rules
from results_files import honest

from metallab import machine, records, timing
from metallab.results import compare

RULES = Rules(compare)


def run(number: int, median: float, name: str = "x", speed_up: float | None = None, **changes) -> records.Record:
    """One process's record of a benchmark: of a variant if a speed-up is given, whose pairs are too few to conclude."""
    fields = {"question": "latency", "first_call": 3.0, "block": 1, "warmup_calls": 3, "stop_reason": "quiet"}
    fields |= {"mode": "full", "device": "Xeon CPU, 2 threads", "simulated": False}
    moved = {key: changes.pop(key) for key in tuple(changes) if key in fields or key == "others"}
    measured = timing.Measurement(name, samples=tuple(median * f for f in (0.99, 1.0, 1.01)), **fields | moved)
    compared = speed_up and records.Compared("c", name, "base", "inconclusive", speed_up, 0.0)
    full = f"01_a/c/{name}" if speed_up else f"01_a/{name}"
    made = records.Record("01_a", full, f"2026-11-20T10:00:{number:02}+00:00", measured, compared, None, HERE)
    return dataclasses.replace(made, **changes)


HERE = dataclasses.replace(machine.describe(), chip="Apple M2", os_name="macOS", os_version="15.1", gpu="Apple M2")


def runs(medians, name: str = "x", **changes) -> list[records.Record]:
    return [run(number, median, name, **changes) for number, median in enumerate(medians)]


# --- how often the verdict is right ---

NOISES = {
    "normal": lambda random, spread, shape: random.normal(0, spread, shape),
    "long tails": lambda random, spread, shape: random.standard_t(3, shape) * spread / math.sqrt(3),
    "to one side": lambda random, spread, shape: random.exponential(spread, shape) - spread,
}
"""What one process's median is off by, as a logarithm."""


def shares(compare, noise: str, spread: float, slower: float, processes: int = 3, repeats: int = 100) -> dict:
    """Of many pairs of files with a known truth, the share that got each verdict."""
    random = np.random.default_rng(0)
    sides = np.exp(NOISES[noise](random, spread, (2, repeats, processes)))
    sides[1] *= 1 + slower
    given = [compare.answer(before, after) for before, after in zip(*sides.tolist(), strict=True)]
    return {verdict: given.count(verdict) / repeats for verdict in ("SLOWER", "FASTER", "SAME", "UNSURE")}


@RULES.rule(
    ("if not (speed.low > factor or", "if not (speed.ratio > factor or"),
    ("or speed.high < 1 / factor)", "or speed.ratio < 1 / factor)"),
    ("stdtrit(freedom, 1 - RISK / 2)", "stdtrit(1000.0, 1 - RISK / 2)"),
)
def chance_is_rarely_taken_for_a_change(compare):
    """At 3 % between processes one in three hundred is SLOWER, and one FASTER, by the simulation in compare's head."""
    for noise in NOISES:
        assert shares(compare, noise, 0.01, 0.0)["SLOWER"] == 0, noise
        wild = shares(compare, noise, 0.03, 0.0, repeats=400)
        assert wild["SLOWER"] <= 0.01, f"{noise}: {wild}"
        assert wild["FASTER"] <= 0.01, f"{noise}: {wild}"


@RULES.rule(
    ("_variance(side) / len(side) for side", "_variance(side) for side"),
    ("\nFACTOR = 1.02\n", "\nFACTOR = 1.10\n"),
    ('return "FASTER" if speed.low > factor else "SLOWER"', 'return "SLOWER"'),
)
def planted_regressions_are_found(compare):
    """With three processes a side; by the simulation in compare's head: 65 % of 5 % at 1 %, 98 % of 20 % at 3 %."""
    for noise in NOISES:
        assert shares(compare, noise, 0.003, 0.05)["SLOWER"] >= 0.95, noise
        assert shares(compare, noise, 0.01, 0.05)["SLOWER"] >= 0.5, noise
        assert shares(compare, noise, 0.01, 0.10)["SLOWER"] >= 0.95, noise
        assert shares(compare, noise, 0.03, 0.20)["SLOWER"] >= 0.9, noise
        assert shares(compare, noise, 0.01, -0.10)["FASTER"] >= 0.95, noise
        assert shares(compare, noise, 0.02, 0.05, processes=10)["SLOWER"] >= 0.6, noise


@RULES.rule(
    ("    if 1 / factor <= speed.low and speed.high <= factor:\n", "    if False:\n"),
    ("    if 1 / factor <= speed.low and", "    if"),
    ("    if 1 / factor <= speed.low and speed.high <= factor:", "    if 1 / factor <= speed.low:"),
)
def sameness_is_said_where_the_interval_shows_it(compare):
    assert shares(compare, "normal", 0.003, 0.0)["SAME"] >= 0.95
    assert shares(compare, "normal", 0.01, 0.0, processes=10)["SAME"] >= 0.95
    for slower in (0.05, -0.05):
        assert shares(compare, "normal", 0.01, slower)["SAME"] <= 0.01


@RULES.rule(
    ("    if min(len(before), len(after)) < MIN_RUNS:\n", "    if False:\n"),
    ("_LEAST_VARIANCE = 0.001**2", "_LEAST_VARIANCE = 0.0"),
    (" or not _ranks_differ(before, after):", ":"),
    ("max(RISK, surest) * (1 + 1e-9)", "RISK"),
)
def a_verdict_needs_three_processes_and_their_ranks(compare):
    assert compare.answer([1.0, 1.0], [2.0, 2.0]) == "UNSURE"
    assert compare.answer([1.0, 1.01, 1.02], [2.0, 2.01, 2.02]) == "SLOWER"
    # equal to the last digit by accident: no surer than processes are
    assert compare.ratio([1.0] * 3, [1.02] * 3).high > 0.982
    # far apart by Student's t, and yet one of the fast is slower than one of the slow
    overlapping = [1.0, 1.01, 1.02, 1.2], [1.1, 1.29, 1.3, 1.4]
    assert compare.ratio(*overlapping).high < 1 / 1.02
    assert compare.answer(*overlapping) == "UNSURE"


@RULES.rule(
    ("    mean = math.fsum(sides[0]) / len(before)", "    mean = -math.fsum(sides[0]) / len(before)"),
    ("sum(parts) ** 2 / sum(", "1 / sum("),
    ("math.sqrt(_variance(logs) / len(logs)), len(logs) - 1", "math.sqrt(_variance(logs) / len(logs)), len(logs)"),
)
def the_interval_of_a_ratio_is_welch_s(compare):
    """As scipy's own test computes it on the logarithms."""
    from scipy.stats import ttest_ind

    before, after = [1.0, 1.04, 1.01, 1.02], [1.1, 1.2, 1.13]
    welch = ttest_ind(np.log(before), np.log(after), equal_var=False).confidence_interval()
    interval = compare.ratio(before, after)
    assert (interval.low, interval.high) == pytest.approx((math.exp(welch.low), math.exp(welch.high)))
    one = compare.interval(before)
    half = 3.182446 * np.log(before).std(ddof=1) / 2  # Student's t of three degrees of freedom, from a table
    assert math.log(one.high / one.ratio) == pytest.approx(half, rel=1e-5)
    assert compare.interval([3.0]) == compare.Interval(3.0, 0.0, math.inf)


# --- files ---


@RULES.rule(("factor, lambda run: run.measurement.median)", "factor, lambda run: 1.0)"))
def only_what_both_files_have_is_compared(compare):
    before, after = [*runs([1.0] * 3), *runs([1.0] * 3, "y")], [*runs([2.0] * 4, "y"), *runs([1.0] * 3, "z")]
    [change] = compare.times(before, after)
    assert (change.name, change.answer, change.runs, change.speed.ratio) == ("01_a/y", "SLOWER", (3, 4), 0.5)
    with pytest.raises(records.RecordError, match="share no benchmark"):
        compare.times(runs([1.0]), runs([1.0], "z"))


@RULES.rule(
    ("    if different := old.machine.differences(new.machine):", "    if different := []:"),
    ('("device", "mode", "question", "simulated")', '("mode", "question", "simulated")'),
    ('("device", "mode", "question", "simulated")', '("device", "question", "simulated")'),
    ('("device", "mode", "question", "simulated")', '("device", "mode", "simulated")'),
    ('("device", "mode", "question", "simulated")', '("device", "mode", "question")'),
    ("    if old.measurement.simulated:", "    if False:"),
    ('    if old.measurement.mode != "full":', "    if False:"),
)  # fmt: skip
def unlike_machines_are_not_compared(compare):
    there = lambda **fields: run(0, 1.0, machine=dataclasses.replace(HERE, **fields))
    assert compare.times([run(0, 1.0)], [there(os_version="15.2", load_average=None, power_source="AC")])
    versions = HERE.versions
    for other, message in (
        (there(chip="Apple M2 Max"), "Apple M2 / .*Apple M2 Max"),
        (there(os_version="16.0"), "macOS 15 / .*macOS 16"),
        (there(versions={**versions, "torch": "2.13.0"}), f"torch {versions['torch']} / torch 2.13.0"),
    ):
        with pytest.raises(compare.DifferentMachines, match=f"not compared .*{message}"):
            compare.times([run(0, 1.0)], [other])
    with pytest.raises(compare.DifferentMachines, match="chip unknown"):
        compare.times([there(chip=None)], [there(chip=None)])
    for changes, message in (
        ({"device": "GPU"}, "device differs: Xeon CPU, 2 threads / GPU"),
        ({"mode": "fast"}, "mode differs: full / fast"),
        ({"question": "throughput"}, "question differs"),
        ({"simulated": True}, "simulated differs"),
    ):
        with pytest.raises(compare.DifferentMachines, match=message):
            compare.times([run(0, 1.0)], [run(0, 1.0, **changes)])
    for changes in ({"simulated": True}, {"mode": "fast"}):
        with pytest.raises(compare.DifferentMachines, match="not compared"):
            compare.times([run(0, 1.0, **changes)], [run(0, 1.0, **changes)])


def speeds(values, name: str = "x", scale: float = 1.0) -> list[records.Record]:
    """Processes with these speed-ups, on a machine that is slower by a scale."""
    return [run(number, scale, name, speed_up=value) for number, value in enumerate(values)]


@RULES.rule(
    ("    return 1 / run.comparison.median\n", "    return run.comparison.median\n"),
    ("    if doubt_now:\n", "    if False:\n"),
    ("if any(map(has_speed_up, runs))}", "}"),
    ("        _assert_comparable(old[0], new[0])\n", "        pass\n"),
    ("    if not given.keys() & theirs.keys():\n", "    if False:\n"),
)
def a_gate_looks_at_speed_ups_and_not_at_times(compare):
    """A machine that became slower as a whole stops nobody; a speed-up that is given no more does."""
    before = speeds([4.0, 4.02, 3.98])
    verdict_on = lambda *after: compare.speed_ups(before, after)[0].answer
    assert verdict_on(*speeds([4.01, 4.0, 3.99], scale=3.0)) == "SAME"
    assert verdict_on(*speeds([3.0, 3.02, 2.98])) == "SLOWER"
    assert verdict_on(*speeds([5.0, 5.02, 4.98])) == "FASTER"
    assert verdict_on(*speeds([3.9, 3.92, 3.88])) == "SAME", "3 % are less than a gate asks for"
    [change] = compare.speed_ups(before, [*speeds([4.0, 4.0]), of_outputs_that_differ(before[2])])
    assert (change.answer, change.why) == ("LOST", "outputs differ: 3 of 9")
    both = compare.speed_ups([*before, *runs([1.0] * 3, "lone")], [*before, *runs([9.0] * 3, "lone")])
    assert [change.name for change in both] == ["01_a/c/x"]
    with pytest.raises(records.RecordError, match="share no speed-up"):
        compare.speed_ups(runs([1.0] * 3), runs([1.0] * 3))
    elsewhere = [dataclasses.replace(r, machine=dataclasses.replace(HERE, chip="Apple M9")) for r in before]
    with pytest.raises(compare.DifferentMachines, match="Apple M9"):
        compare.speed_ups(before, elsewhere)


def of_outputs_that_differ(made: records.Record) -> records.Record:
    """The same, after the page's check of outputs went red."""
    refused = records.Compared("c", "x", "base", "withheld", doubt="outputs differ", withheld="3 of 9")
    return dataclasses.replace(made, comparison=refused)


@RULES.rule(
    ("believed(old), believed(new) if new", "(old, ''), (new, '') if new"),
    ("    if doubt_then:\n", "    if doubt_then and not doubt_now:\n"),
    ("    if doubt_now:\n", "    if doubt_now and not new:\n"),
    ('return self.answer in ("LOST", "SLOWER")', 'return self.answer == "SLOWER"'),
    ("    if any(change.is_finding for change in changes):\n        return 1\n", ""),
)
def times_of_what_was_withheld_get_no_verdict(compare, file, capsys):
    """Wrong results in half of the time are not FASTER: they are a finding."""
    good, quick = speeds([4.0] * 3), [run(n, 0.5, speed_up=8.0) for n in range(3)]
    wrong = [*quick[:2], of_outputs_that_differ(quick[2])]
    assert compare.main(["times", file("good", *good), file("quick", *quick)]) == 0
    assert "FASTER" in capsys.readouterr().out
    assert compare.main(["times", file("good", *good), file("wrong", *wrong)]) == 1
    printed = capsys.readouterr().out
    assert "FASTER" not in printed
    assert re.search(r"LOST .* 01_a/c/x: outputs differ: 3 of 9\n", printed)
    busy = [dataclasses.replace(one, measurement=dataclasses.replace(one.measurement, others=2.0)) for one in quick]
    assert compare.main(["times", file("good", *good), file("busy", *busy)]) == 1
    printed = capsys.readouterr().out
    assert "FASTER" not in printed
    assert "busy machine: other programs used 2.0 cores meanwhile: close them and run again" in printed
    assert compare.main(["times", file("wrong", *wrong), file("wrong too", *wrong)]) == 0, "a page may show a mistake"
    assert "WITHHELD " in capsys.readouterr().out


@RULES.rule(
    ("        for name, runs in given.items()\n", "        for name, runs in given.items() if name in theirs\n"),
    ("_over(runs[0].comparison.baseline, theirs.get(name, []))", "theirs.get(name, [])"),
    ('([], "it is not there any more")', '([], "")'),
    ("    return [r for r in records if not only or ", "    return [r for r in records if True or "),
)
def a_gate_sees_a_speed_up_that_vanished(compare, file, capsys):
    good, other = speeds([4.0, 4.02, 3.98]), speeds([2.0, 2.01, 1.99], "y")
    elsewhere = [
        dataclasses.replace(one, lesson="02_b", name=one.name.replace("01_a", "02_b"))
        for one in honest(speeds([3.0, 3.01, 2.99], "z"))
    ]
    reference = str(records.write(Path(file("any", *good)).parent / "reference.json", [*honest(good), *elsewhere]))
    assert compare.main(["gate", reference, reference]) == 0
    for now, lost in (
        (file("other", *good), "02_b/c/z"),
        (str(records.write(Path(reference).with_name("only.json"), elsewhere)), "01_a/c/x"),
    ):
        capsys.readouterr()
        assert compare.main(["gate", reference, now]) == 1
        assert re.search(f"LOST .* {lost}: it is not there any more\n", capsys.readouterr().out)
        assert compare.main(["gate", reference, now, "--only", "02" if "01_a" in lost else "01_a"]) == 0
    assert compare.main(["gate", file("both", *good), file("renamed", *other, *runs([1.0], "lone"))]) == 2
    assert "share no speed-up" in capsys.readouterr().err
    turned = [
        dataclasses.replace(one, comparison=dataclasses.replace(one.comparison, baseline="other"), name="01_a/c/x")
        for one in good
    ]
    [change] = compare.speed_ups(good, turned)
    assert (change.answer, change.why) == ("LOST", "it is not there any more"), "against another baseline"


@RULES.rule(
    ("    given = [record for record in records if has_speed_up(record)]", "    given = records"),
    ("[record for record in given if not record.doubt]", "given"),
    ("    if different := believable[0].machine.differences(machine.describe()):\n", "    if different := []:\n"),
    ('    if given.command == "reference":\n', "    if False:\n"),
    ("assert_reference(of_lessons(load(given.before), given.only))", "assert_reference(load(given.before))"),
    ("        return 2\n    return 0\n\n\ndef latest", "        return 0\n    return 0\n\n\ndef latest"),
)
def a_gate_is_refused_before_it_measures(compare, file, tmp_path, capsys):
    here = machine.describe()
    mine = [dataclasses.replace(one, machine=here) for one in speeds([4.0] * 3)]
    assert compare.main(["reference", file("mine", *mine)]) == 0
    assert capsys.readouterr() == ("", "")
    page = tmp_path / "README.md"
    page.write_text("# Metal Lab\n")
    busy = [dataclasses.replace(one, measurement=dataclasses.replace(one.measurement, others=2.0)) for one in mine]
    another = "it is not of this machine as it is now \\(the file's / now: chip Apple M2 / "
    for path, only, message in (
        (str(page), [], "not a pyperf file: Expecting value"),
        (f"{page}.missing", [], "there is no such file"),
        (file("lone", *runs([1.0] * 3, machine=here)), [], "it holds no speed-up to hold this machine against"),
        (
            file("busy", *busy),
            [],
            "none of its 3 speed-ups may be concluded from \\(busy machine: 3\\): measure it again",
        ),
        (file("mine", *mine), ["--only", "02"], "it holds no speed-up"),
        (file("there", *speeds([4.0] * 3)), [], another if here.chip != "Apple M2" else "it is not of this machine"),
    ):
        assert compare.main(["reference", path, *only]) == 2, path
        err = capsys.readouterr().err
        assert re.match(f"gate: {re.escape(path)}: {message}", err), err
        assert err.count("\n") == 1


# --- the command ---


@pytest.fixture
def file(tmp_path):
    """Writes records into a file of that name, with the baselines that they need, and returns its path as text."""
    return lambda name, *made: str(records.write(tmp_path / f"{name}.json", honest(made)))


@RULES.rule(
    ('    if all(change.answer == "WITHHELD" for', '    if False and all(change.answer == "WITHHELD" for'),
    ('    if all(change.answer == "WITHHELD" for', '    if any(change.answer == "WITHHELD" for'),
)
def nothing_compared_is_not_nothing_slower(compare, file, capsys):
    """A gate does not pass on a first file of which nothing can be believed."""
    good = [run(n, 1.0, speed_up=4.0) for n in range(3)]
    disturbed = [dataclasses.replace(one, measurement=dataclasses.replace(one.measurement, others=2.0)) for one in good]
    busy, now = file("busy", *disturbed), file("now", *good)
    for command in ("gate", "times"):
        assert compare.main([command, busy, now]) == 2
        printed = capsys.readouterr()
        assert f"nothing of {busy} may be concluded from: measure it again" in printed.err
        assert "WITHHELD" in printed.out
    only = honest([of_outputs_that_differ(one) for one in good])
    assert compare.main(["times", file("wrong", *only), file("wrong too", *only)]) == 0, "a page may show a mistake"


@RULES.rule(
    ('return self.answer in ("LOST", "SLOWER")', 'return self.answer == "LOST"'),
    ("    except RecordError as error:\n        print(f", "    except ZeroDivisionError as error:\n        print(f"),
    ("    if not any(min(change.runs) >= MIN_RUNS for change in changes):\n", "    if False:\n"),
    ("its - set.intersection(*names.values()) - shown", "shown"),
)
def the_exit_code_says_slower_or_not_comparable(compare, file, capsys):
    before = file("before", *runs([1.0, 1.01, 0.99]), *runs([1.0], "gone"))
    for scale, code, verdict in ((1.0, 0, "UNSURE"), (0.5, 0, "FASTER"), (2.0, 1, "SLOWER")):
        after = file("after", *runs([scale, 1.01 * scale, 0.99 * scale]), *runs([1.0], "new"))
        assert compare.main(["times", before, after]) == code
        out = capsys.readouterr().out
        assert verdict in out.splitlines()[1]
        assert f"{1 / scale:.2f} (" in out
        assert f"only in {before}: 01_a/gone" in out
        assert "01_a/new" in out
        assert f"1 compared by time: 1 {verdict}" in out
    assert compare.main(["times", file("one", *runs([1.0])), file("other", *runs([2.0]))]) == 2
    printed = capsys.readouterr()
    assert "0.50 (no interval)" in printed.out
    assert "a side needs 3 processes" in printed.err
    assert compare.main(["times", before, before + ".missing"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err[:7]) == ("", "times: ")


@RULES.rule(
    ("for run in believed(runs)[0] if has_speed_up(run)] for runs in sides]", "for run in runs] for runs in sides]"),
    ("        _offer_ratios(before, after)\n", "        pass\n"),
    (
        "        _offer_ratios(before, after)\n        return 2\n",
        "        _offer_ratios(before, after)\n        return 1\n",
    ),
)
def unlike_machines_are_shown_their_ratios_and_never_their_times(compare, file, capsys):
    there = dataclasses.replace(HERE, chip="Apple M9")
    other = [dataclasses.replace(made, machine=there) for made in [*speeds([2.0, 2.0, 2.1]), *runs([1.0], "lone")]]
    here = [*speeds([4.0, 4.1, 3.9]), *runs([1.0], "lone")]
    assert compare.main(["times", file("here", *here), file("there", *other)]) == 2
    printed = capsys.readouterr()
    assert "absolute times of unlike machines are not compared (chip Apple M2 / chip Apple M9)" in printed.err
    [head, row] = printed.out.splitlines()
    assert "which machine is better is not said" in head
    assert row.split() == ["4.00", "(3.76", "to", "4.26)", "2.03", "(1.90", "to", "2.18)", "01_a/c/x"]
    busy = [dataclasses.replace(made, measurement=dataclasses.replace(made.measurement, others=1.0)) for made in here]
    assert compare.main(["times", file("busy", *busy), file("there", *other)]) == 2
    assert "4.00" not in capsys.readouterr().out, "a ratio of a busy machine"


@RULES.rule(("record.measurement.others > BUSY", "False"), ("abs(record.sentinel_drift or 0)", "0"))
def doubts_are_told(compare, file, capsys):
    quiet = file("quiet", *runs([1.0] * 3))
    compare.main(["times", quiet, quiet])
    assert "Doubtful" not in capsys.readouterr().out
    busy = [run(3, 9.0, others=1.5), *runs([1.0] * 3, sentinel_drift=-0.2)]
    assert compare.main(["times", quiet, file("busy", *busy)]) == 0, "three processes of four were not disturbed"
    printed = capsys.readouterr().out
    assert "while 1 of the benchmarks were measured, other programs ran" in printed
    assert "moved by more than 10%" in printed


@RULES.rule(
    ("given.after = given.after or latest()", "given.after = given.after or given.before"),
    ('if not path.name.startswith("fast_")', "if True"),
)
def a_gate_takes_what_was_measured_last(compare, tmp_path, file, monkeypatch, capsys):
    monkeypatch.setattr(compare.paths, "BUILD", tmp_path / "build")
    reference = file("reference", *speeds([4.0, 4.02, 3.98]))
    assert compare.main(["gate", reference]) == 2
    assert "nothing was measured here yet: make bench" in capsys.readouterr().err
    for age, (name, speed_up) in enumerate((("fast_cpu", 9.0), ("cpu", 3.0), ("older", 4.0))):
        made = honest(speeds([speed_up, speed_up * 1.01, speed_up]))
        path = records.write(tmp_path / "build" / "bench" / f"{name}.json", made)
        os.utime(path, (1e9 - age, 1e9 - age))
    assert compare.main(["gate", reference]) == 1
    assert "SLOWER" in capsys.readouterr().out
    assert compare.main(["gate", reference, "--factor", "2"]) == 0
    for wrong in ("0.9", "5 %"):
        with pytest.raises(SystemExit):
            compare.main(["gate", reference, "--factor", wrong])
        assert "a factor is a number from 1 to below 100" in capsys.readouterr().err


def test_pyperf_sees_the_same_direction(file):
    """Of the changes that both call, by its own test of all samples."""
    changed = {"faster": 0.8, "slower": 1.25, "much slower": 3.0}
    before = file("before", *(one for name in changed for one in runs([1.0, 1.01, 0.99], name)))
    after = file("after", *(one for name, f in changed.items() for one in runs([f, 1.01 * f, 0.99 * f], name)))
    command = [sys.executable, "-m", "pyperf", "compare_to", before, after]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    theirs = {
        line.split(":")[0]: line.split()[-1].upper() for line in done.stdout.splitlines() if "Mean +- std" in line
    }
    changes = compare.times(records.load(before), records.load(after))
    assert {change.name: change.answer for change in changes} == theirs
    assert set(theirs.values()) == {"FASTER", "SLOWER"}


def test_the_command_line_runs(file):
    path = file("a", *runs([1.0, 1.0, 1.0]))
    done = subprocess.run(
        [sys.executable, "-m", "metallab.results.compare", "times", path, path],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].startswith("SAME     1.00 (1.00 to 1.00)")


def test_a_file_cannot_make_the_numbers_overflow(file):
    """Nothing that a file may claim raises anything but its own error."""
    text = json.dumps([1e-17, 1e8, 1e-17])
    wild = runs(json.loads(text))
    assert compare.times(wild, wild)[0].answer == "UNSURE"
    assert compare.times(wild[:2], wild[:2])[0].speed.high > 1e9


test_rule_holds, test_broken_rule_goes_red = RULES.tests()
