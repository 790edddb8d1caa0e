"""Results files: what is written is read back, a file is whole or not there, and a stranger's file does no harm."""

from __future__ import annotations

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
from pathlib import Path

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from results_files import claim

from metallab import isolated, machine, paths, records, stored, timing
from metallab.device import PyTorchDevice
from metallab.records import format as records_format
from metallab.records import saving

CPU = PyTorchDevice("cpu", "Xeon CPU, 2 threads", threads=2)
STEADY = settings(
    max_examples=40, deadline=None, derandomize=True, database=None, phases=[Phase.generate]
)


def measurement(name: str = "matmul", samples=(1.0, 1.1, 1.2), **changes) -> timing.Measurement:
    fields = {
        "question": "latency",
        "first_call": 3.0,
        "block": 1,
        "warmup_calls": 3,
        "stop_reason": "quiet",
    }
    fields |= {"mode": "full", "device": CPU.label, "simulated": False}
    return timing.Measurement(name=name, samples=tuple(samples), **(fields | changes))


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
def pages(draw) -> list[records.Record]:
    """What a page may save: measurements that stand alone, and a comparison with what was refused."""
    lone = draw(st.lists(MEASUREMENTS, min_size=1, max_size=3, unique_by=lambda made: made.name))
    first, *names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    sides = {first: draw(MEASUREMENTS)}
    for name in names:
        times = draw(st.lists(TIMES, min_size=sides[first].n, max_size=sides[first].n))
        sides[name] = dataclasses.replace(
            draw(MEASUREMENTS), samples=tuple(times), question=sides[first].question
        )
    made = timing.compare_samples(sides, baseline=first, name=draw(NAMES), parity=draw(NAMES))
    made = dataclasses.replace(
        made, series=draw(NAMES), roles={name: draw(NAMES) for name in names}
    )
    refused = {
        name: timing.Withheld(timing.Reason.OUTPUTS_DIFFER, "by 3")
        for name in names
        if draw(st.booleans())
    }
    paired = {name: ratio for name, ratio in made.paired.items() if name not in refused}
    lesson = draw(st.from_regex(r"[0-9]{2}b?_[a-z_]{1,20}", fullmatch=True))
    results = *lone, dataclasses.replace(made, paired=paired, refused=refused)
    rows = [row for one in results for row in saving.list_rows(lesson, one)]
    assume(len({name for name, *_ in rows}) == len(rows))
    taken, drift = draw(st.datetimes()).isoformat(), draw(st.none() | st.floats(-0.9, 10))
    about = drift, machine.describe(), draw(HEADLINES)
    return [
        records.Record(lesson, name, taken, measured, compared, *about)
        for name, measured, compared, _ in rows
    ]


def test_what_is_written_is_read_back():
    @STEADY
    @given(pages())
    def round_trip(made):
        with tempfile.TemporaryDirectory() as folder:
            path = records.write(Path(folder) / "deep" / "results.json", made)
            got = records.load(str(path))
        assert [dataclasses.astuple(one) for one in got] == [
            dataclasses.astuple(one) for one in made
        ]

    round_trip()


def test_a_page_is_saved_with_its_comparisons(tmp_path, monkeypatch):
    monkeypatch.delenv("METALLAB_OUT", raising=False)
    monkeypatch.setattr(paths, "BUILD", build := tmp_path / paths.OWN_BUILD)
    few = records.load(records.save("02_b", comparison(samples=3), on=CPU, folder=tmp_path / "few"))
    assert (few[1].comparison.high, few[1].comparison.outcome) == (None, "inconclusive")
    assert not build.exists()
    watch = timing.Sentinel(measurement(), measurement(samples=(1.05, 1.155, 1.26)))
    watched = dataclasses.replace(comparison(), sentinels=(watch,))
    path = records.save("01_a", measurement(), watched, on=CPU)
    assert path == build / "full-cpu" / "results" / "01_a.json"
    assert (build / ".gitignore").read_text() == "*\n", (
        "somebody's own project has results among its changes"
    )
    got = {made.name: made for made in records.load(path)}
    assert list(got) == [
        "01_a/matmul",
        "01_a/softshrink/eager",
        "01_a/softshrink/fused",
        "01_a/softshrink/wrong",
    ]
    assert got["01_a/matmul"].comparison is None
    verdicts = {
        made.comparison.variant: made.comparison for made in got.values() if made.comparison
    }
    assert [compared.outcome for compared in verdicts.values()] == [
        "baseline",
        "faster",
        "withheld",
    ]
    fused = verdicts["fused"]
    assert (fused.median, fused.low, fused.high, fused.parity) == (
        2.0,
        2.0,
        2.0,
        "outputs compared",
    )
    for one in (got["01_a/matmul"], fused, records.Headline(("a",))):
        with pytest.raises(AttributeError):
            setattr(one, dataclasses.fields(one)[0].name, "another")
    assert (verdicts["wrong"].reason, verdicts["wrong"].detail) == (
        "outputs differ",
        "  [31mresult: 3 of 3",
    )
    assert all(
        made.sentinel_drift == pytest.approx(0.05) for made in got.values() if made.comparison
    )
    simulated = PyTorchDevice("mps", "Apple M2", simulated=True)
    fast = measurement(mode="fast")
    assert records.save("01_a", fast, on=simulated) == build / "fast-sim" / "results" / "01_a.json"
    for current in ("full", "fast"):
        monkeypatch.setenv("METALLAB_MODE", current)
        assert records.run_folder(simulated) == build / f"{current}-sim"


def test_what_the_page_withholds_the_file_withholds(tmp_path):
    """And keeps the numbers, which a later comparison of files needs: a busy machine is no lost speed-up."""
    quiet = comparison()
    drifted = timing.Sentinel(measurement(), measurement(samples=(2.0, 2.2, 2.4)))
    calls = {name: dataclasses.replace(m, others=1.0) for name, m in quiet.measurements.items()}
    doubts = {
        "busy": dataclasses.replace(quiet, name="busy", measurements=calls),
        "drift": dataclasses.replace(quiet, name="drift", sentinels=(drifted,)),
        "quiet": dataclasses.replace(quiet, name="quiet"),
    }
    got = {
        made.name: made
        for made in records.load(records.save("01_a", *doubts.values(), on=CPU, folder=tmp_path))
    }
    for name, compared in doubts.items():
        for variant in ("fused", "wrong"):
            made = got[f"01_a/{name}/{variant}"]
            expected = compared.withheld.get(variant)
            assert (made.withheld and made.withheld.reason) == (expected and expected.reason), (
                name,
                variant,
            )
        assert got[f"01_a/{name}/fused"].comparison.median == 2.0
        assert got[f"01_a/{name}/wrong"].comparison.median is None
    assert got["01_a/drift/fused"].comparison.outcome == "withheld"
    assert got["01_a/drift/eager"].sentinel_drift == pytest.approx(1.0)
    assert got["01_a/quiet/fused"].sentinel_drift is None
    of_a_stranger = dataclasses.replace(got["01_a/quiet/fused"], measurement=calls["fused"])
    assert of_a_stranger.withheld.reason is timing.Reason.BUSY_MACHINE, (
        "the file's outcome is not asked"
    )


def test_every_speed_up_is_computed_from_the_samples(tmp_path):
    """A file may say what it likes: its reader is given what its numbers say, or the reason why it is refused."""

    def load(of: str = "fused", **claims):
        path = records.save("01_a", comparison(), on=CPU, folder=tmp_path)
        return {made.comparison.variant: made for made in records.load(claim(path, of, **claims))}

    assert load()["fused"].comparison.median == 2.0
    assert (
        load(median=2.0000001, low=2.0, outcome="slower")["fused"].comparison
        == load()["fused"].comparison
    )
    own_reason = timing.Withheld(timing.Reason.OTHER, "it drifted")
    assert load(outcome="withheld", detail="it drifted")["fused"].withheld == own_reason
    assert load(outcome="withheld")["fused"].withheld.detail == "no reason is given"
    for claims, message in (
        (
            {"median": 50.0, "high": 60.0},
            "softshrink/fused' .* of 50, 2, 60, but its samples say 2, 2, 2$",
        ),
        ({"median": None}, "claims a speed-up .* of none, 2, 2, but"),
        ({"high": 9.0}, "of 2, 2, 9, but"),
        ({"high": None}, "of 2, 2, none, but"),
        ({"variant": "fast", "median": 4.0}, "claims to be '01_a/softshrink/fast'"),
        ({"baseline": "compiled"}, "beside 'compiled'"),
        ({"baseline": "wrong"}, "of 2, 2, 2, but its samples say 0.1, "),
        ({"variant": "eager", "outcome": "faster"}, "claims to be"),
    ):
        with pytest.raises(records.RecordError, match=message):
            load(**claims)
    assert load(outcome="baseline")["fused"].comparison == load()["fused"].comparison
    with pytest.raises(records.RecordError, match="01_a/softshrink/eager"):
        load("eager", median=9.0)
    with pytest.raises(
        records.RecordError, match=r"'01_a/softshrink/wrong' claims a speed-up .* of 21, "
    ):
        load("wrong", median=21.0)
    made = comparison()
    other = dataclasses.replace(made.measurements["eager"], question="throughput")
    for baseline, message in (
        (other, "its baseline has other samples"),
        (measurement("eager", [2.0] * 19), "its baseline has other samples"),
        (dataclasses.replace(made.measurements["eager"], simulated=True), "samples say none"),
    ):
        mixed = dataclasses.replace(made, measurements=made.measurements | {"eager": baseline})
        rows = records.gather("01_a", mixed)
        with pytest.raises(ValueError, match=message):
            records.write(
                tmp_path / "mixed.json", [row for row in rows if row.comparison.variant != "wrong"]
            )


def test_only_runs_that_nothing_speaks_against_are_believed():
    good, busy = process(0), process(1, measurement=measurement(others=2.0))
    fast = process(2, measurement=measurement(mode="fast"))
    differ = timing.Withheld(timing.Reason.OUTPUTS_DIFFER, "by 3")
    compared = records.Compared(
        "c", "x", "b", "withheld", reason=differ.reason, detail=differ.detail
    )
    wrong = process(3, comparison=compared)
    strange = process(
        4, comparison=records.Compared("c", "x", "b", "withheld", detail="a reason of its own")
    )
    assert records.usable_runs([good, busy]) == ([good], None)
    assert records.usable_runs([busy])[1].reason is timing.Reason.BUSY_MACHINE
    assert records.usable_runs([busy, strange, fast, good, wrong]) == ([], differ)
    assert records.usable_runs([good, strange, fast])[1].reason is timing.Reason.FAST_MODE


@pytest.mark.parametrize(
    ("drift", "usable"), [(None, True), (0.05, True), (0.30, False), (-0.30, False)]
)
def test_a_drift_that_is_added_to_a_saved_page_withholds(tmp_path, drift, usable):
    """As `make bench` adds it, whose sentinel stands around the whole page."""
    path = records.save("01_a", comparison(), on=CPU, folder=tmp_path)
    records.write(
        path, [dataclasses.replace(run, sentinel_drift=drift) for run in records.load(path)]
    )
    fused = next(run for run in records.load(path) if run.name == "01_a/softshrink/fused")
    assert (fused.answer.ratio is not None) == usable
    assert fused.answer.reason == (None if usable else timing.Reason.DRIFTED)
    assert bool(records.usable_runs([fused])[0]) == usable


@pytest.mark.parametrize(("drift", "is_withheld"), [(0.05, False), (0.30, True)])
def test_the_headline_of_a_page_gives_no_speed_up_that_is_withheld(tmp_path, drift, is_withheld):
    made = comparison()
    headline = records.Headline(made.headlines[:1])
    path = records.save("01_a", made, on=CPU, folder=tmp_path, headline=headline)
    drifted = [dataclasses.replace(run, sentinel_drift=drift) for run in records.load(path)]
    records.write(path, drifted)
    loaded = records.load(path)
    assert records.headline_is_withheld(loaded) == is_withheld
    assert ("drifted" in records.headline_of(loaded).sentences[0]) == is_withheld


def test_a_page_without_results_or_with_a_bad_name_is_refused(tmp_path):
    with pytest.raises(ValueError, match="01_a: nothing to save; give save"):
        records.save("01_a", on=CPU, folder=tmp_path)
    for lesson in ("../01_a", "", "a/b", ".hidden", "a" * 200):
        with pytest.raises(ValueError, match="cannot name a file"):
            records.save(lesson, measurement(), on=CPU, folder=tmp_path)


def process(number: int, name: str = "x", **changes) -> records.Record:
    """The record that one of several processes made of the same benchmark."""
    made = dataclasses.replace(
        record(name, samples=(number + 1.0,) * 3), taken=f"2026-11-20T10:00:0{number}+00:00"
    )
    return dataclasses.replace(made, **{"machine": elsewhere(), **changes})


def elsewhere(**changes) -> machine.Machine:
    return dataclasses.replace(
        machine.describe(), **{"power_source": "AC", "git_revision": "1" * 40, **changes}
    )


def test_processes_are_runs_of_one_benchmark(tmp_path):
    """Each with its own samples, times and load; what a machine did not tell contradicts nothing."""
    unknown = process(2, machine=elsewhere(gpu=None, gpu_cores=None, load_average=(9.0, 9.0, 9.0)))
    made = [process(0), process(1, machine=elsewhere(gpu="A GPU")), unknown, process(0, "y")]
    files = [records.write(tmp_path / f"{number}.json", [one]) for number, one in enumerate(made)]
    merged = records.merge(files, tmp_path / "all.json")
    assert [dataclasses.astuple(one) for one in records.load(merged)] == [
        dataclasses.astuple(one) for one in made
    ]
    assert {name: len(runs) for name, runs in records.by_name(made).items()} == {
        "01_a/x": 3,
        "01_a/y": 1,
    }
    with pytest.raises(ValueError, match=r"none\.json: there are no records to write"):
        records.merge([], tmp_path / "none.json")


def test_runs_that_do_not_belong_together_are_not_mixed(tmp_path):
    one = process(0)
    changed = dataclasses.replace(one.measurement, device="GPU")
    for other, message in (
        (one, "the same run is in it twice"),
        (
            dataclasses.replace(one, taken=one.taken.replace("T", " ")),
            "the same run is in it twice",
        ),
        (
            dataclasses.replace(one, taken=one.taken.removesuffix("+00:00")),
            "the same run is in it twice",
        ),
        (process(1, machine=elsewhere(git_revision="0" * 40)), "mixes runs"),
        (process(1, machine=elsewhere(chip="Another CPU")), "mixes runs"),
        (process(1, machine=elsewhere(versions={"torch": "1.0"})), "mixes runs"),
        (process(1, measurement=changed), "mixes runs"),
        (process(1, lesson="02_b"), "mixes runs"),
    ):
        with pytest.raises(ValueError, match=f"nothing is written, .*{message}"):
            records.write(tmp_path / "a.json", [one, other])


def test_what_could_not_be_read_back_is_not_written(tmp_path):
    for changes, message in (
        ({"samples": (math.inf,)}, "not a pyperf file"),
        ({"first_call": math.nan}, "not a pyperf file"),
        ({"question": "speed"}, "question"),
        ({"mode": "slow"}, "mode"),
        ({"device": "two\nlines"}, "device"),
        ({"block": True}, "loops"),
        ({"simulated": "no"}, "simulated"),
        ({"samples": ()}, "values"),
    ):
        with pytest.raises(ValueError, match=f"nothing is written, .*{message}"):
            records.write(tmp_path / "a.json", [record(**changes)])
    with pytest.raises(ValueError, match="nothing is written"):
        records.write(tmp_path / "a.json", [dataclasses.replace(record(), sentinel_drift=math.inf)])
    assert not list(tmp_path.iterdir())


# --- pyperf ---


def pyperf(*arguments: object) -> str:
    command = [sys.executable, "-m", "pyperf", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pyperf_reads_our_files(tmp_path):
    before = records.save("01_a", measurement(), comparison(), on=CPU, folder=tmp_path / "a")
    after = records.save(
        "01_a", measurement(samples=(2.0, 2.2, 2.4)), comparison(), on=CPU, folder=tmp_path / "b"
    )
    several = records.write(tmp_path / "several.json", [process(0), process(1), process(2)])
    assert "Number of run with values: 3" in pyperf("stats", several)
    assert "Mean +- std dev: 1.10 sec +- 0.10 sec" in pyperf("show", before)
    stats = pyperf("stats", before)
    assert "Median +- MAD:   1.10 sec" in stats
    assert "01_a/softshrink/fused" in stats
    compared = pyperf("compare_to", before, after, "--table")
    assert "01_a/matmul" in compared
    assert "2.00x slower" in compared
    single = records.save("01_a", measurement(samples=(1.0,)), on=CPU, folder=tmp_path / "c")
    assert pyperf("show", single) == "1.00 sec\n"


def test_a_file_names_no_host_and_no_person(tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "annas-laptop")
    monkeypatch.setenv("USER", "anna")
    text = records.save("01_a", measurement(), on=CPU, folder=tmp_path).read_text()
    metadata = json.loads(text)["metadata"]
    assert sorted(metadata) == ["loops", "machine", "metallab", "name", "unit"]
    for private in ("annas-laptop", "hostname", os.path.expanduser("~") + "/", os.uname().nodename):
        assert len(private) < 4 or private not in text, private
    assert getpass.getuser() == "anna"
    assert '"anna' not in text


# --- a page's headline ---


def picture(words: str = "a line that rises"):
    from metallab import plots

    figure, axes = plots.plt.subplots(figsize=(2, 1))
    axes.plot([1, 2])
    return plots.describe(figure, words)


def test_a_page_s_headline_goes_with_its_records(tmp_path):
    """At most three sentences, a picture as a PNG beside the file, and words for whoever cannot see it."""
    save = lambda *given, **more: records.save(
        "01_a", measurement(), on=CPU, folder=tmp_path, headline=records.Headline(*given, **more)
    )
    (read,) = records.load(save(["It is 2 times as fast.", "Nothing\nis lost."], picture()))
    content = (tmp_path / "01_a.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert dataclasses.astuple(read.headline) == (
        ("It is 2 times as fast.", "Nothing is lost."),
        "01_a.png",
        "a line that rises",
        hashlib.sha256(content).hexdigest(),
    )
    file = tmp_path / "drawn.png"
    file.write_bytes(content)
    assert (
        records.load(save(["One."], file, alternative_text="a line"))[0].headline.alternative_text
        == "a line"
    )
    assert records.load(save(["One."]))[0].headline.picture is None
    assert records.load(save(["a" * 301]))[0].headline.sentences == ("a" * 299 + "…",)
    missing = isolated.Skipped("no GPU")
    (read,) = records.load(save([missing.headline], missing))
    assert dataclasses.astuple(read.headline)[:2] == (("Nothing to show: no GPU.",), None)
    assert (
        records.load(records.save("01_a", measurement(), on=CPU, folder=tmp_path))[0].headline
        is None
    )
    (tmp_path / "page.html").write_text("<script>")
    for arguments, more, message in (
        ((["a", "b", "c", "d"],), {}, "one to three sentences"),
        (("abc",), {}, "one to three sentences"),
        ((["a"], file), {}, "alternative_text="),
        ((["a"], picture("")), {}, "alternative_text="),
        ((["a"], tmp_path / "page.html"), {"alternative_text": "x"}, "is a PNG of at most 4 MiB"),
    ):
        with pytest.raises(ValueError, match=message):
            save(*arguments, **more)


# --- whole or not at all ---


def test_a_full_disk_leaves_the_earlier_file(tmp_path):
    """The system refuses to write more than half of it, as a full disk would."""
    path = records.write(tmp_path / "a.json", [record("before")])
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        with pytest.raises(OSError, match="too large") as refused:
            records.write(path, [record("after")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
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
        r"'mood', .*outputs differ, simulated, fast mode, busy machine, drifted",
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


def test_what_is_no_file_of_results_is_refused_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(records_format, "_BYTES_LIMIT", 2**20)
    cases = {
        "missing": (None, "no such file"),
        "pipe": (os.mkfifo(tmp_path / "pipe"), "not a regular file"),
    }
    cases |= {"empty": (b"", "not a pyperf file"), "bytes": (b"\xff\xfe", "cannot be read")}
    cases |= {
        "deep": (b"[" * 100_000, "not a pyperf file: "),
        "long": (b" " * (2**20 + 1), "larger than 1 MiB"),
    }
    for name, (content, message) in cases.items():
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(records.RecordError, match=message) as refused:
            records.load(path)
        assert str(refused.value).startswith(f"{path}: ")


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


def test_a_reference_machine_is_quoted_by_its_name():
    network = ("14_find_where_the_time_goes", "Softshrink MLP, batch 4096")
    faster = timing.Ratio("native", "the round trip", 20.9, 18.2, 23.7, 2)
    told = faster.sentence("median of 2 processes, 18.2 to 23.7")
    assert (
        stored.comparison(*network)
        == f"Measured before on an NVIDIA H200, Softshrink MLP, batch 4096: {told}."
    )
    assert re.search(r"traced .* 8\.08 .* not traced", stored.comparison(network[0], "the network"))
    lstm = ("64_compare_machines", "LSTM, inference, latency")
    (of_gpu,) = stored.comparison(*lstm, "cuda").splitlines()
    assert re.search(r"cuda .* 2\.74 .* CPU, 16 threads \(one process\)\.$", of_gpu)
    assert len(stored.comparison(*lstm).splitlines()) == 2, "one thread, and the GPU"
    xeon = "intel_r_xeon_r_processor_cpu_2_threads.json"
    two = stored.comparison(lstm[0], "ResNet-18, inference, latency", file=xeon)
    assert re.search(r"CPU, 1 thread: no speed-up is given \(drifted\): ", two), "in every process"
    with pytest.raises(ValueError, match=r"has no comparison 'sorting' of 64"):
        stored.comparison(lstm[0], "sorting")
