"""Results files: what is written is read back, a file is whole or not there, and a stranger's file does no harm."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import getpass
import hashlib
import json
import math
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from measurements import make_measurement
from results_files import claim

from metallab import isolated, machine, paths, records, stored, timing
from metallab.device import PyTorchDevice
from metallab.records import format as records_format
from metallab.records import saving

CPU = PyTorchDevice("cpu", "Xeon CPU, 2 threads", threads=2)
STEADY = settings(
    max_examples=40, deadline=None, derandomize=True, database=None, phases=[Phase.generate]
)


def measurement(
    name: str = "matmul", samples=(1.0, 1.1, 1.2), device=CPU.label, **changes
) -> timing.Measurement:
    return make_measurement(name, samples, device=device, **changes)


def comparison(samples: int = 20) -> timing.Comparison:
    """Eager, a variant twice as fast, and one whose output differs."""
    times = {"eager": 2.0, "fused": 1.0, "wrong": 0.1}
    steps = [1 + 0.001 * i for i in range(samples)]
    measured = {
        key: measurement(key, [time * step for step in steps]) for key, time in times.items()
    }
    made = timing.compare_samples(
        measured, baseline="eager", name="softshrink", parity="outputs compared"
    )
    refused = {"wrong": timing.Withheld(timing.Reason.OUTPUTS_DIFFER, "\n\x1b[31mresult: 3 of 3")}
    return dataclasses.replace(made, paired={"fused": made.paired["fused"]}, refused=refused)


def record(name: str = "matmul", **changes) -> records.Record:
    made = measurement(name, **changes)
    return records.Record(
        "01_a", f"01_a/{name}", "2026-11-20T10:00:00+00:00", made, None, None, machine.describe()
    )


# --- round trip ---

NAMES = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=20)
TIMES = st.floats(1e-9, 1e4)
MEASUREMENTS = st.builds(
    timing.Measurement,
    name=NAMES,
    question=st.sampled_from(["latency", "throughput"]),
    samples=st.lists(TIMES, min_size=1, max_size=30).map(tuple),
    first_call=TIMES,
    block=st.integers(1, 2**26),
    warmup_calls=st.integers(0, 10**6),
    stop_reason=NAMES,
    mode=st.sampled_from(["full", "fast"]),
    device=NAMES.filter(lambda name: "simulated" not in name.lower()),
    simulated=st.booleans(),
    others=st.floats(0, 100),
    kind=st.sampled_from(["cpu", "mps", "cuda"]),
    threads=st.none() | st.integers(1, 100),
    dtype=st.none() | st.sampled_from(["float32", "bfloat16", "int8"]),
    size=st.none()
    | st.builds(timing.Size, number=st.integers(0, 2**40) | st.floats(0, 1e6), unit=NAMES),
)
HEADLINES = st.none() | st.builds(
    records.Headline,
    sentences=st.lists(NAMES, min_size=1, max_size=3).map(tuple),
    picture=st.none() | st.just("01_a.png"),
    alternative_text=NAMES,
)


@st.composite
def comparisons(draw) -> timing.Comparison:
    """Return a comparison with any names and times, of which some variants are refused because outputs differ."""
    first, *names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    sides = {first: draw(MEASUREMENTS)}
    for name in names:  # what is compared has as many samples, of the same question
        times = draw(st.lists(TIMES, min_size=sides[first].n, max_size=sides[first].n))
        sides[name] = dataclasses.replace(
            draw(MEASUREMENTS), samples=tuple(times), question=sides[first].question
        )

    made = timing.compare_samples(sides, baseline=first, name=draw(NAMES), parity=draw(NAMES))
    roles = {name: draw(NAMES) for name in names}
    differs = timing.Withheld(timing.Reason.OUTPUTS_DIFFER, "by 3")
    refused = {name: differs for name in names if draw(st.booleans())}
    paired = {name: ratio for name, ratio in made.paired.items() if name not in refused}
    return dataclasses.replace(
        made, series=draw(NAMES), roles=roles, paired=paired, refused=refused
    )


@st.composite
def pages(draw) -> list[records.Record]:
    """What a page may save: measurements that stand alone, and a comparison with what was refused."""
    lone = draw(st.lists(MEASUREMENTS, min_size=1, max_size=3, unique_by=lambda made: made.name))
    lesson = draw(st.from_regex(r"[0-9]{2}b?_[a-z_]{1,20}", fullmatch=True))
    rows = [row for one in (*lone, draw(comparisons())) for row in saving.list_rows(lesson, one)]
    assume(len({name for name, *_ in rows}) == len(rows))  # two results of a page have two names

    taken = draw(st.datetimes()).isoformat()
    drift = draw(st.none() | st.floats(-0.9, 10))
    headline = draw(HEADLINES)
    return [
        records.Record(lesson, name, taken, measured, compared, drift, machine.describe(), headline)
        for name, measured, compared, _ in rows
    ]


def test_what_is_written_is_read_back():
    @STEADY
    @given(pages())
    def round_trip(made):
        with tempfile.TemporaryDirectory() as folder:
            path = records.write(Path(folder) / "deep" / "results.json", made)
            got = records.load(str(path))
        assert list(map(dataclasses.astuple, got)) == list(map(dataclasses.astuple, made))

    round_trip()


@pytest.fixture
def build(tmp_path, monkeypatch) -> Path:
    """The folder of somebody's own project that runs write into; nothing has made it yet."""
    monkeypatch.delenv("METALLAB_OUT", raising=False)
    monkeypatch.setattr(paths, "BUILD", tmp_path / paths.OWN_BUILD)
    return tmp_path / paths.OWN_BUILD


SIMULATED = PyTorchDevice("mps", "Apple M2", simulated=True)


@pytest.mark.parametrize(
    ("mode", "on", "folder"),
    [
        pytest.param("full", CPU, "full-cpu", id="full, CPU"),
        pytest.param("fast", SIMULATED, "fast-sim", id="fast, simulated"),
    ],
)
def test_results_lie_in_a_folder_of_the_mode_and_device_that_they_were_made_with(
    build, mode, on, folder
):
    path = records.save("01_a", measurement(mode=mode), on=on)
    assert path == build / folder / "results" / "01_a.json"


@pytest.mark.parametrize("mode", ["full", "fast"])
def test_the_folder_of_a_run_follows_the_mode_of_now(build, monkeypatch, mode):
    monkeypatch.setenv("METALLAB_MODE", mode)
    assert records.run_folder(SIMULATED) == build / f"{mode}-sim"


def test_results_are_hidden_from_the_git_of_somebody_s_own_project(build):
    records.save("01_a", measurement(), on=CPU)
    assert (build / ".gitignore").read_text() == "*\n"


def test_where_a_folder_is_named_no_other_is_made(build, tmp_path):
    records.save("01_a", measurement(), on=CPU, folder=tmp_path / "mine")
    assert not build.exists()


def test_a_speed_up_of_too_few_pairs_is_saved_as_inconclusive(tmp_path):
    path = records.save("02_b", comparison(samples=3), on=CPU, folder=tmp_path)
    few = records.load(path)[1].comparison
    assert few.outcome == "inconclusive"
    assert few.high is None


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> dict[str, records.Record]:
    """The records, by name, of a page with a measurement and a comparison that a sentinel watched."""
    watch = timing.Sentinel(measurement(), measurement(samples=(1.05, 1.155, 1.26)))
    watched = dataclasses.replace(comparison(), sentinels=(watch,))
    folder = tmp_path_factory.mktemp("page")
    path = records.save("01_a", measurement(), watched, on=CPU, folder=folder)
    return {made.name: made for made in records.load(path)}


def test_a_page_has_a_record_of_each_measurement_and_each_variant(page):
    assert list(page) == [
        "01_a/matmul",
        "01_a/softshrink/eager",
        "01_a/softshrink/fused",
        "01_a/softshrink/wrong",
    ]
    assert page["01_a/matmul"].comparison is None


@pytest.mark.parametrize(
    ("variant", "outcome"),
    [("eager", "baseline"), ("fused", "faster"), ("wrong", "withheld")],
    ids=["eager", "fused", "wrong"],
)
def test_a_record_says_how_its_variant_came_out(page, variant, outcome):
    compared = page[f"01_a/softshrink/{variant}"].comparison
    assert compared.variant == variant
    assert compared.outcome == outcome


def test_a_record_has_its_speed_up_and_what_compared_the_outputs(page):
    fused = page["01_a/softshrink/fused"].comparison
    assert [fused.low, fused.median, fused.high] == [2.0, 2.0, 2.0]
    assert fused.parity == "outputs compared"


def test_a_record_has_the_reason_for_no_speed_up_without_what_a_terminal_obeys(page):
    wrong = page["01_a/softshrink/wrong"].comparison
    assert wrong.reason == "outputs differ"
    assert wrong.detail == "  [31mresult: 3 of 3"


def test_a_record_of_a_comparison_has_the_drift_of_its_sentinel(page):
    drifts = [made.sentinel_drift for made in page.values() if made.comparison]
    assert drifts == [pytest.approx(0.05)] * 3


@pytest.mark.parametrize("part", ["record", "comparison", "headline"])
def test_what_was_saved_cannot_be_changed(page, part):
    record = page["01_a/softshrink/fused"]
    parts = {
        "record": record,
        "comparison": record.comparison,
        "headline": records.Headline(("a",)),
    }
    first_field, *_ = dataclasses.fields(parts[part])
    with pytest.raises(AttributeError):
        setattr(parts[part], first_field.name, "another")


def make_doubtful_comparisons() -> dict[str, timing.Comparison]:
    """Return one of a busy machine, one of a machine that drifted, and one that nothing speaks against."""
    made = comparison()
    calls = {name: dataclasses.replace(m, others=1.0) for name, m in made.measurements.items()}
    drifted = timing.Sentinel(measurement(), measurement(samples=(2.0, 2.2, 2.4)))
    return {
        "busy": dataclasses.replace(made, name="busy", measurements=calls),
        "drift": dataclasses.replace(made, name="drift", sentinels=(drifted,)),
        "quiet": dataclasses.replace(made, name="quiet"),
    }


DOUBTFUL = make_doubtful_comparisons()


@pytest.fixture(scope="module")
def doubtful(tmp_path_factory) -> dict[str, records.Record]:
    """What was saved of these comparisons, by name."""
    folder = tmp_path_factory.mktemp("doubtful")
    path = records.save("01_a", *DOUBTFUL.values(), on=CPU, folder=folder)
    return {made.name: made for made in records.load(path)}


@pytest.mark.parametrize("variant", ["fused", "wrong"])
@pytest.mark.parametrize("name", DOUBTFUL)
def test_what_the_page_withholds_the_file_withholds_for_the_same_reason(doubtful, name, variant):
    on_the_page = DOUBTFUL[name].withheld.get(variant)
    in_the_file = doubtful[f"01_a/{name}/{variant}"].withheld
    assert (in_the_file and in_the_file.reason) == (on_the_page and on_the_page.reason)


@pytest.mark.parametrize("name", DOUBTFUL)
def test_a_file_keeps_the_numbers_of_what_was_in_doubt_for_a_later_comparison(doubtful, name):
    """A busy machine is no lost speed-up; outputs that differ have none."""
    assert doubtful[f"01_a/{name}/fused"].comparison.median == 2.0
    assert doubtful[f"01_a/{name}/wrong"].comparison.median is None


def test_a_drift_stands_in_the_file_with_what_it_withholds(doubtful):
    assert doubtful["01_a/drift/fused"].comparison.outcome == "withheld"
    assert doubtful["01_a/drift/eager"].sentinel_drift == pytest.approx(1.0)


def test_without_a_sentinel_a_file_knows_of_no_drift(doubtful):
    assert doubtful["01_a/quiet/fused"].sentinel_drift is None


def test_a_busy_machine_withholds_whatever_outcome_the_file_claims(doubtful):
    busy = DOUBTFUL["busy"].measurements["fused"]
    of_a_stranger = dataclasses.replace(doubtful["01_a/quiet/fused"], measurement=busy)
    assert of_a_stranger.withheld.reason is timing.Reason.BUSY_MACHINE


@pytest.fixture
def load_claiming(tmp_path):
    """A function that loads a page whose file makes claims of a variant; it returns that variant's record."""

    def load(variant: str = "fused", /, **claims) -> records.Record:
        path = records.save("01_a", comparison(), on=CPU, folder=tmp_path)
        loaded = records.load(claim(path, variant, **claims))
        return next(made for made in loaded if made.comparison.variant == variant)

    return load


@pytest.mark.parametrize(
    "claims",
    [
        pytest.param({"median": 2.0000001, "low": 2.0, "outcome": "slower"}, id="slower"),
        pytest.param({"outcome": "baseline"}, id="a baseline"),
    ],
)
def test_a_speed_up_and_its_outcome_are_computed_from_the_samples(load_claiming, claims):
    assert load_claiming(**claims).comparison == load_claiming().comparison


def test_a_file_may_withhold_a_speed_up_for_a_reason_of_its_own(load_claiming):
    withheld = load_claiming(outcome="withheld", detail="it drifted").withheld
    assert withheld == timing.Withheld(timing.Reason.OTHER, "it drifted")


def test_a_file_that_withholds_a_speed_up_without_a_reason_is_said_to_give_none(load_claiming):
    assert load_claiming(outcome="withheld").withheld.detail == "no reason is given"


FALSE_CLAIMS = {
    "a larger speed-up": (
        "fused",
        {"median": 50.0, "high": 60.0},
        "softshrink/fused' .* of 50, 2, 60, but its samples say 2, 2, 2$",
    ),
    "no median": ("fused", {"median": None}, "claims a speed-up .* of none, 2, 2, but"),
    "a higher end": ("fused", {"high": 9.0}, "of 2, 2, 9, but"),
    "no end": ("fused", {"high": None}, "of 2, 2, none, but"),
    "another variant": (
        "fused",
        {"variant": "fast", "median": 4.0},
        "claims to be '01_a/softshrink/fast'",
    ),
    "an unknown baseline": ("fused", {"baseline": "compiled"}, "beside 'compiled'"),
    "another baseline": ("fused", {"baseline": "wrong"}, "of 2, 2, 2, but its samples say 0.1, "),
    "to be the baseline": ("fused", {"variant": "eager", "outcome": "faster"}, "claims to be"),
    "a speed-up of the baseline": ("eager", {"median": 9.0}, "01_a/softshrink/eager"),
    "a speed-up of what differs": (
        "wrong",
        {"median": 21.0},
        r"'01_a/softshrink/wrong' claims a speed-up .* of 21, ",
    ),
}


@pytest.mark.parametrize(("variant", "claims", "message"), FALSE_CLAIMS.values(), ids=FALSE_CLAIMS)
def test_a_claim_that_the_samples_contradict_is_refused(load_claiming, variant, claims, message):
    with pytest.raises(records.RecordError, match=message):
        load_claiming(variant, **claims)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"question": "throughput"}, "its baseline has other samples", id="question"),
        pytest.param({"samples": (2.0,) * 19}, "its baseline has other samples", id="one less"),
        pytest.param({"simulated": True}, "samples say none", id="simulated"),
    ],
)
def test_a_speed_up_beside_a_baseline_of_another_kind_is_not_written(tmp_path, changes, message):
    made = comparison()
    baseline = dataclasses.replace(made.measurements["eager"], **changes)
    mixed = dataclasses.replace(made, measurements=made.measurements | {"eager": baseline})
    rows = [r for r in records.gather("01_a", mixed) if r.comparison.variant != "wrong"]

    with pytest.raises(ValueError, match=message):
        records.write(tmp_path / "mixed.json", rows)


DIFFER = timing.Withheld(timing.Reason.OUTPUTS_DIFFER, "by 3")


def make_runs() -> dict[str, records.Record]:
    """Return a good run, and runs of which something speaks against each."""
    differs = records.Compared(
        "c", "x", "b", "withheld", reason=DIFFER.reason, detail=DIFFER.detail
    )
    strange = records.Compared("c", "x", "b", "withheld", detail="a reason of its own")
    return {
        "good": process(0),
        "busy": process(1, measurement=measurement(others=2.0)),
        "fast": process(2, measurement=measurement(mode="fast")),
        "wrong": process(3, comparison=differs),
        "strange": process(4, comparison=strange),
    }


def test_a_good_run_is_believed_beside_one_of_a_busy_machine():
    runs = make_runs()
    assert records.usable_runs([runs["good"], runs["busy"]]) == ([runs["good"]], None)


def test_of_runs_on_a_busy_machine_none_is_believed():
    _, withheld = records.usable_runs([make_runs()["busy"]])
    assert withheld.reason is timing.Reason.BUSY_MACHINE


def test_one_run_whose_outputs_differ_withholds_all():
    assert records.usable_runs(list(make_runs().values())) == ([], DIFFER)


def test_fast_mode_is_named_before_a_reason_that_only_the_file_knows():
    runs = make_runs()
    _, withheld = records.usable_runs([runs["good"], runs["strange"], runs["fast"]])
    assert withheld.reason is timing.Reason.FAST_MODE


@pytest.mark.parametrize(
    ("drift", "reason"),
    [
        pytest.param(None, None, id="not watched"),
        pytest.param(0.05, None, id="small"),
        pytest.param(0.30, timing.Reason.DRIFTED, id="slower"),
        pytest.param(-0.30, timing.Reason.DRIFTED, id="faster"),
    ],
)
def test_a_drift_that_stands_in_a_file_withholds(tmp_path, drift, reason):
    """Although the page itself gave the speed-up, as one did while `timing.DRIFT` was larger."""
    path = records.save("01_a", comparison(), on=CPU, folder=tmp_path)
    drifted = [dataclasses.replace(run, sentinel_drift=drift) for run in records.load(path)]
    records.write(path, drifted)

    fused = next(run for run in records.load(path) if run.name == "01_a/softshrink/fused")
    is_usable = reason is None
    assert fused.answer.reason == reason
    assert (fused.answer.ratio is not None) == is_usable
    assert bool(records.usable_runs([fused])[0]) == is_usable


@pytest.mark.parametrize(
    ("drift", "is_withheld"), [(0.05, False), (0.30, True)], ids=["small", "large"]
)
def test_the_headline_of_a_page_gives_no_speed_up_that_is_withheld(tmp_path, drift, is_withheld):
    made = comparison()
    headline = records.Headline(made.headlines[:1])
    path = records.save("01_a", made, on=CPU, folder=tmp_path, headline=headline)
    drifted = [dataclasses.replace(run, sentinel_drift=drift) for run in records.load(path)]
    records.write(path, drifted)

    loaded = records.load(path)
    assert records.headline_is_withheld(loaded) == is_withheld
    assert ("drifted" in records.headline_of(loaded).sentences[0]) == is_withheld


def test_a_page_without_results_is_refused(tmp_path):
    with pytest.raises(ValueError, match="01_a: nothing to save; give save"):
        records.save("01_a", on=CPU, folder=tmp_path)


@pytest.mark.parametrize(
    "lesson",
    ["../01_a", "", "a/b", ".hidden", "a" * 200],
    ids=["above", "empty", "below", "hidden", "long"],
)
def test_a_name_that_is_no_file_s_is_refused(tmp_path, lesson):
    with pytest.raises(ValueError, match="cannot name a file"):
        records.save(lesson, measurement(), on=CPU, folder=tmp_path)


def process(number: int, name: str = "x", **changes) -> records.Record:
    """The record that one of several processes made of the same benchmark."""
    made = record(name, samples=(number + 1.0,) * 3)
    taken = f"2026-11-20T10:00:0{number}+00:00"
    return dataclasses.replace(made, **{"taken": taken, "machine": elsewhere(), **changes})


def elsewhere(**changes) -> machine.Machine:
    return dataclasses.replace(
        machine.describe(), **{"power_source": "AC", "git_revision": "1" * 40, **changes}
    )


def merge(folder: Path, *made: records.Record) -> list[records.Record]:
    """Save each record in a file of its own, merge the files, and load what came of it."""
    files = [records.write(folder / f"{number}.json", [one]) for number, one in enumerate(made)]
    return records.load(records.merge(files, folder / "all.json"))


def test_processes_are_runs_of_one_benchmark(tmp_path):
    """Each with its own samples and times."""
    made = [process(0), process(1), process(2), process(0, "y")]

    merged = merge(tmp_path, *made)
    counts = {name: len(runs) for name, runs in records.by_name(merged).items()}

    assert counts == {"01_a/x": 3, "01_a/y": 1}
    assert list(map(dataclasses.astuple, merged)) == list(map(dataclasses.astuple, made))


def test_what_a_machine_did_not_tell_contradicts_nothing_and_neither_does_its_load(tmp_path):
    known = process(0, machine=elsewhere(gpu="A GPU"))
    unknown = elsewhere(gpu=None, gpu_cores=None, load_average=(9.0, 9.0, 9.0))

    merged = merge(tmp_path, known, process(1, machine=unknown))
    assert [run.machine.gpu for run in merged] == ["A GPU", None]


def test_no_files_are_not_merged(tmp_path):
    with pytest.raises(ValueError, match=r"none\.json: there are no records to write"):
        records.merge([], tmp_path / "none.json")


@pytest.mark.parametrize(
    "taken",
    ["2026-11-20T10:00:00+00:00", "2026-11-20 10:00:00+00:00", "2026-11-20T10:00:00"],
    ids=["as it is", "with a space", "without a zone"],
)
def test_one_run_is_not_written_twice_however_its_time_is_written(tmp_path, taken):
    again = process(0, taken=taken)
    with pytest.raises(ValueError, match=r"nothing is written, .*the same run is in it twice"):
        records.write(tmp_path / "a.json", [process(0), again])


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"git_revision": "0" * 40}, id="revision"),
        pytest.param({"chip": "Another CPU"}, id="chip"),
        pytest.param({"versions": {"torch": "1.0"}}, id="versions"),
    ],
)
def test_runs_of_unlike_machines_are_not_mixed(tmp_path, changes):
    other = process(1, machine=elsewhere(**changes))
    with pytest.raises(ValueError, match=r"nothing is written, .*mixes runs"):
        records.write(tmp_path / "a.json", [process(0), other])


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"measurement": measurement("x", device="GPU")}, id="device"),
        pytest.param({"lesson": "02_b"}, id="page"),
    ],
)
def test_runs_of_unlike_benchmarks_are_not_mixed(tmp_path, changes):
    with pytest.raises(ValueError, match=r"nothing is written, .*mixes runs"):
        records.write(tmp_path / "a.json", [process(0), process(1, **changes)])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"samples": (math.inf,)}, "not a pyperf file", id="an endless time"),
        pytest.param({"first_call": math.nan}, "not a pyperf file", id="a time that is none"),
        pytest.param({"question": "speed"}, "question", id="question"),
        pytest.param({"mode": "slow"}, "mode", id="mode"),
        pytest.param({"device": "two\nlines"}, "device", id="a device in two lines"),
        pytest.param({"block": True}, "loops", id="a block that is no number"),
        pytest.param({"simulated": "no"}, "simulated", id="simulated is a text"),
        pytest.param({"samples": ()}, "values", id="no samples"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(tmp_path, changes, message):
    with pytest.raises(ValueError, match=f"nothing is written, .*{message}"):
        records.write(tmp_path / "a.json", [record(**changes)])
    assert not list(tmp_path.iterdir())


def test_an_endless_drift_is_not_written(tmp_path):
    drifted = dataclasses.replace(record(), sentinel_drift=math.inf)
    with pytest.raises(ValueError, match="nothing is written"):
        records.write(tmp_path / "a.json", [drifted])
    assert not list(tmp_path.iterdir())


# --- pyperf ---


def pyperf(*arguments: object) -> str:
    command = [sys.executable, "-m", "pyperf", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pyperf_counts_processes_as_runs(tmp_path):
    several = records.write(tmp_path / "several.json", [process(0), process(1), process(2)])
    assert "Number of run with values: 3" in pyperf("stats", several)


def test_pyperf_s_statistics_are_those_of_our_samples(tmp_path):
    path = records.save("01_a", measurement(), comparison(), on=CPU, folder=tmp_path)
    stats = pyperf("stats", path)
    assert "Mean +- std dev: 1.10 sec +- 0.10 sec" in stats
    assert "Median +- MAD:   1.10 sec" in stats
    assert "01_a/softshrink/fused" in stats


def test_pyperf_compares_two_of_our_files(tmp_path):
    slower = measurement(samples=(2.0, 2.2, 2.4))
    before = records.save("01_a", measurement(), on=CPU, folder=tmp_path / "a")
    after = records.save("01_a", slower, on=CPU, folder=tmp_path / "b")
    compared = pyperf("compare_to", before, after, "--table")
    assert "01_a/matmul" in compared
    assert "2.00x slower" in compared


def test_pyperf_shows_a_file_of_one_sample(tmp_path):
    single = records.save("01_a", measurement(samples=(1.0,)), on=CPU, folder=tmp_path)
    assert pyperf("show", single) == "1.00 sec\n"


@pytest.fixture
def written_by_anna(tmp_path, monkeypatch) -> str:
    """The text of a file that Anna has saved on her laptop."""
    monkeypatch.setattr(socket, "gethostname", lambda: "annas-laptop")
    monkeypatch.setenv("USER", "anna")
    assert getpass.getuser() == "anna"
    return records.save("01_a", measurement(), on=CPU, folder=tmp_path).read_text()


def test_a_file_tells_of_its_machine_what_we_keep_and_nothing_that_pyperf_adds(written_by_anna):
    metadata = json.loads(written_by_anna)["metadata"]
    assert sorted(metadata) == ["loops", "machine", "metallab", "name", "unit"]


PRIVATE = {
    "a host": "annas-laptop",
    "a user": '"anna',
    "a key of pyperf": "hostname",
    "this home": os.path.expanduser("~") + "/",
    "this host": os.uname().nodename,
}


@pytest.mark.parametrize("private", PRIVATE.values(), ids=PRIVATE)
def test_a_file_names_no_host_and_no_person(written_by_anna, private):
    assert len(private) < 4 or private not in written_by_anna


# --- a page's headline ---


def picture(words: str = "a line that rises"):
    from metallab import plots

    figure, axes = plots.plt.subplots(figsize=(2, 1))
    axes.plot([1, 2])
    return plots.describe(figure, words)


@pytest.fixture
def save_headline(tmp_path):
    """A function that saves a page with a headline, and returns the headline that the file has then."""

    def save(*given, **more) -> records.Headline:
        headline = records.Headline(*given, **more)
        path = records.save("01_a", measurement(), on=CPU, folder=tmp_path, headline=headline)
        (read,) = records.load(path)
        return read.headline

    return save


@pytest.fixture
def drawn(tmp_path) -> Path:
    """A file with a picture."""
    picture().savefig(tmp_path / "drawn.png")
    return tmp_path / "drawn.png"


def test_a_page_s_headline_goes_with_its_records(save_headline):
    read = save_headline(["It is 2 times as fast.", "Nothing\nis lost."])
    assert read.sentences == ("It is 2 times as fast.", "Nothing is lost.")
    assert read.picture is None


def test_a_headline_s_picture_lies_beside_the_file_with_its_words(save_headline, tmp_path):
    read = save_headline(["One."], picture())
    content = (tmp_path / "01_a.png").read_bytes()

    assert content.startswith(b"\x89PNG")
    assert read.picture == "01_a.png"
    assert read.alternative_text == "a line that rises"
    assert read.sha256 == hashlib.sha256(content).hexdigest()


def test_a_picture_that_lies_in_a_file_is_given_words(save_headline, drawn):
    assert save_headline(["One."], drawn, alternative_text="a line").alternative_text == "a line"


def test_a_long_sentence_of_a_headline_is_cut(save_headline):
    assert save_headline(["a" * 301]).sentences == ("a" * 299 + "…",)


def test_a_headline_of_what_was_skipped_has_the_reason_and_no_picture(save_headline):
    missing = isolated.Skipped("no GPU")
    read = save_headline([missing.headline], missing)
    assert read.sentences == ("Nothing to show: no GPU.",)
    assert read.picture is None


def test_a_page_without_a_headline_has_none(page):
    assert page["01_a/matmul"].headline is None


@pytest.mark.parametrize(
    "sentences", [["a", "b", "c", "d"], "abc"], ids=["four sentences", "a text"]
)
def test_a_headline_has_one_to_three_sentences(save_headline, sentences):
    with pytest.raises(ValueError, match="one to three sentences"):
        save_headline(sentences)


def test_a_file_of_a_picture_without_words_is_refused(save_headline, drawn):
    with pytest.raises(ValueError, match="alternative_text="):
        save_headline(["a"], drawn)


def test_a_figure_without_words_is_refused(save_headline):
    with pytest.raises(ValueError, match="alternative_text="):
        save_headline(["a"], picture(""))


def test_a_picture_that_is_no_png_is_refused(save_headline, tmp_path):
    (tmp_path / "page.html").write_text("<script>")
    with pytest.raises(ValueError, match="is a PNG of at most 4 MiB"):
        save_headline(["a"], tmp_path / "page.html", alternative_text="x")


# --- whole or not at all ---


@contextlib.contextmanager
def limit_file_size(most: int) -> Iterator[None]:
    """The system refuses to write larger files, as a full disk would."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_leaves_the_earlier_file(tmp_path):
    """And no part of the new one beside it; the error is the system's."""
    path = records.write(tmp_path / "a.json", [record("before")])
    before = path.read_bytes()

    with (
        limit_file_size(len(before) // 2),
        pytest.raises(OSError, match="too large") as refused,
    ):
        records.write(path, [record("after")])

    assert refused.value.errno == errno.EFBIG
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"], "litter"


# --- strangers' files ---


def about(data: dict, change, kind: str = "metallab") -> None:
    """Change the JSON text that the metadata hold."""
    text = json.loads(data["metadata"].get(kind, "{}"))
    change(text)
    data["metadata"][kind] = json.dumps(text)


def change(field: str, value) -> callable:
    """Replace a field of what we keep under ``metallab``."""
    return lambda data: about(data, lambda text: text.update({field: value}))


def measured(field: str, value) -> callable:
    """Replace a field of the measurement."""
    return lambda data: about(data, lambda text: text["measurement"].update({field: value}))


def headline(**fields) -> callable:
    return lambda data: about(
        data, lambda text: text.update({"sentences": ["It is faster."], **fields}), "headline"
    )


def put(*path_and_value) -> callable:
    """Replace something in the file: keys and indices, then the value."""
    *path, last, value = path_and_value

    def changed(data):
        for step in path:
            data = data[step]
        data[last] = value

    return changed


RUN = ("benchmarks", 0, "runs", 0)
HOSTILE = {
    "list instead of an object": (lambda data: [], "not a pyperf file"),
    "too many runs": (
        lambda data: put(*RUN[:-1], data["benchmarks"][0]["runs"] * 101)(data),
        "length <= 100 ",
    ),
    "too many benchmarks": (
        lambda data: data.update(benchmarks=data["benchmarks"] * 1001),
        "length <= 1000",
    ),
    "unknown version": (put("version", "9"), "version"),
    "a run twice": (
        lambda data: data["benchmarks"][0]["runs"].append(data["benchmarks"][0]["runs"][0]),
        "twice",
    ),
    "value is zero": (put(*RUN, "values", [0]), "values"),
    "huge value": (put(*RUN, "values", [1e300]), "values"),
    "bytes, not seconds": (put("metadata", "unit", "byte"), "unit"),
    "unprintable name": (put("metadata", "name", "01_a/\x1b[2J"), "name"),
    "not ours": (lambda data: data["metadata"].pop("metallab"), "metallab"),
    "ours is cut off": (put("metadata", "metallab", '{"schema"'), "not a record of ours"),
    "older schema": (change("schema", 1), "another version of metallab"),
    "a million cores": (
        lambda data: about(data, lambda text: text.update(cores_logical=10**6), "machine"),
        "cores",
    ),
    "lesson is a path": (change("lesson", "../../etc"), "lesson"),
    "taken is no time": (change("taken", "yesterday"), "yesterday"),
    "simulated is text": (measured("simulated", "false"), "simulated"),
    "a field too few": (
        lambda data: about(data, lambda text: text["measurement"].pop("mode")),
        "mode",
    ),
    "unknown reason": (
        change("comparison", {"reason": "mood"}),
        f"'mood', .*{', '.join(timing.Reason)}",
    ),
    "reason is a list": (change("comparison", {"reason": ["drifted"] * 999}), "reason is"),
    "headline of four sentences": (headline(sentences=["a"] * 4), "sentences"),
    "headline's picture elsewhere": (headline(picture="../../etc/passwd.png"), "picture"),
}


@pytest.mark.parametrize(("changed", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_strangers_file_is_refused_with_the_reason(tmp_path, changed, message):
    path = records.write(tmp_path / "bad.json", [record()])
    data = json.loads(path.read_text())
    replaced = changed(data)
    path.write_text(json.dumps(replaced if replaced == [] else data))
    with pytest.raises(records.RecordError, match=message) as refused:
        records.load(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 700


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "not a pyperf file", id="empty"),
        pytest.param(b"\xff\xfe", "cannot be read", id="no text"),
        pytest.param(b"[" * 100_000, "not a pyperf file: ", id="deep"),
        pytest.param(b" " * (2**20 + 1), "larger than 1 MiB", id="large"),
    ],
)
def test_what_is_no_file_of_results_is_refused_with_the_reason(
    tmp_path, monkeypatch, content, message
):
    monkeypatch.setattr(records_format, "_BYTES_LIMIT", 2**20)
    path = tmp_path / "strange.json"
    path.write_bytes(content)

    with pytest.raises(records.RecordError, match=message) as refused:
        records.load(path)
    assert str(refused.value).startswith(f"{path}: ")


def test_a_file_that_is_not_there_is_refused_by_its_name(tmp_path):
    with pytest.raises(records.RecordError, match=r"missing\.json: .*no such file"):
        records.load(tmp_path / "missing.json")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(records.RecordError, match=r"pipe: .*not a regular file"):
        records.load(tmp_path / "pipe")


def test_what_cannot_be_written_names_the_file_and_another_place(tmp_path):
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "mine.json"
    words = rf"{path} cannot be written \(.+\): make room, or name another place, folder= or METALLAB_BUILD"
    with pytest.raises(OSError, match=words):
        records.write(path, [record()])


def test_without_the_stored_results_a_sentence_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "RESULTS", tmp_path / "not there")
    said = stored.comparison("14_find_where_the_time_goes", "Softshrink MLP, batch 4096")
    assert said.startswith("Softshrink MLP, batch 4096, ")
    assert not re.search(r"\d times", said)


NETWORK = "14_find_where_the_time_goes"
MACHINES = "64_compare_machines"
LSTM = "LSTM, inference, latency"


def test_a_reference_machine_is_quoted_by_its_name():
    name = "Softshrink MLP, batch 4096"
    faster = timing.Ratio("native", "the round trip", 20.9, 18.2, 23.7, 2)
    sentence = faster.sentence("median of 2 processes, 18.2 to 23.7")

    quoted = stored.comparison(NETWORK, name)
    assert quoted == f"Measured before on an NVIDIA H200, {name}: {sentence}."


def test_a_comparison_of_two_roles_is_quoted_with_both():
    quoted = stored.comparison(NETWORK, "the network")
    assert re.search(r"traced .* 8\.08 .* not traced", quoted)


def test_of_a_comparison_between_devices_each_is_quoted():
    assert len(stored.comparison(MACHINES, LSTM).splitlines()) == 2, "one thread, and the GPU"


def test_of_a_comparison_between_devices_one_may_be_asked_for():
    (of_gpu,) = stored.comparison(MACHINES, LSTM, "cuda").splitlines()
    assert re.search(r"cuda .* 2\.74 .* CPU, 16 threads \(one process\)\.$", of_gpu)


def test_a_speed_up_that_every_process_withholds_is_quoted_with_the_reason():
    xeon = "intel_r_xeon_r_processor_cpu_2_threads.json"
    quoted = stored.comparison(MACHINES, "ResNet-18, inference, latency", file=xeon)
    assert re.search(r"CPU, 1 thread: no speed-up is given \(drifted\): ", quoted)


def test_a_comparison_that_nobody_stored_is_refused():
    with pytest.raises(ValueError, match=r"has no comparison 'sorting' of 64"):
        stored.comparison(MACHINES, "sorting")
