"""Files of results with anything in them: whatever goes in, a refusal in one line or a right answer comes out.

Hypothesis takes a good file and changes it: any value in any place, also inside the JSON texts of its metadata; parts
that are missing, doubled or exchanged; texts cut off; bytes. What then reads it (`check_results`, the report) has to
refuse it as it is documented, or to say what an oracle here reads off the samples in the file, which knows nothing of
`metallab.records`.

`make test` gives it some seconds, always with the same changes; `SUITE=fuzz` minutes (`fuzzing`), with new ones.
A failure prints the file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import math
import shutil
import statistics
import time
from collections import Counter
from pathlib import Path

import fuzzing
import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from results_files import claim, texts
from test_check_results import HERE, contribution

from metallab import machine, paths, records
from metallab.results import check_results, findings, report

SECONDS = fuzzing.SECONDS / 2
ROUND = settings(
    max_examples=500,
    deadline=None,
    derandomize=not SECONDS,
    database=None,
    phases=[Phase.generate, Phase.shrink] if SECONDS else [Phase.generate],
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,  # one failure is one exception, not a group
)


def good_file(folder: Path) -> Path:
    """A comparison and a measurement of this machine, by three processes."""
    compared = contribution()
    alone = [
        dataclasses.replace(
            one,
            name="02b_compare/alone",
            comparison=None,
            measurement=dataclasses.replace(one.measurement, name="alone", samples=one.measurement.samples[:5]),
        )
        for one in compared
        if one.comparison.variant == "CPU"
    ]
    return records.write(folder / "good.json", [*compared, *alone])


# --- changes ---

ODD_TEXTS = [
    "",
    " ",
    "x" * 2000,
    "\x00",
    "\x1b[2J",
    "a\nb",
    "<script>",
    "А",
    "\ud800",
    "\u202e",
    "NaN",
    "1e999",
    "../../x",
]
ODD_NUMBERS = [0, -1, 1, 2, 3, 0.5, 1e-300, 5e-324, 1e-17, 1e8, 1e27, 1e308, 2**53, 2**63, 10**400, -0.0]
SCALARS = (
    st.none()
    | st.booleans()
    | st.sampled_from(ODD_NUMBERS)
    | st.sampled_from(ODD_TEXTS)
    | st.sampled_from([math.nan, math.inf, -math.inf])
    | st.floats(allow_nan=False)
    | st.integers()
    | st.text(max_size=5)
)
KNOWN_WORDS = (
    st.sampled_from(["CPU", "mps", "alone", "baseline", "faster", "slower", "withheld", "outputs differ", "drifted"])
    | st.sampled_from(["full", "fast", "latency", "throughput", "second", "1.0", "host", "AMD EPYC", "Debian"])
    | st.sampled_from(["simulated Apple GPU", "Apple M9 Ultra GPU", "2026-11-20T10:00:00", "9999-12-31T23:59:59"])
    | st.sampled_from(["0001-01-01T00:00:00+23:59", "2026-11-20T10:00:01+00:00", "Аpple M2 Max GPU"])
)
VALUES = st.recursive(
    SCALARS | KNOWN_WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | KNOWN_WORDS, inner, max_size=3),
    max_leaves=4,
)


def places(data, above=()) -> list[tuple]:
    """The path to everything in a JSON value."""
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path for key, value in inside for path in [(*above, key), *places(value, (*above, key))]]


@st.composite
def changed_files(draw, good: str) -> bytes:
    """The text of a good file with a change or a few, of a machine that is as fast or not."""
    data = json.loads(good)
    faster = draw(st.sampled_from([1.0, 1.0, 0.5, 2.0]))  # all of it, so that speed-ups stay as they are
    for run in (run for benchmark in data["benchmarks"] for run in benchmark["runs"]):
        run["values"] = [value / faster for value in run["values"]]
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        try:
            _change(draw, data)
        except (KeyError, TypeError, AttributeError, ValueError, IndexError):
            break  # an earlier change left nothing to go into
    content = json.dumps(data).encode()  # with NaN, which JSON has not: a stranger's file may hold it all the same
    for _ in range(draw(st.sampled_from([0] * 9 + [1, 3]))):
        position = draw(st.integers(0, len(content) - 1))
        content = content[:position] + draw(st.binary(max_size=3)) + content[position + draw(st.integers(0, 3)) :]
    return content[: draw(st.integers(0, len(content)))] if draw(st.integers(0, 29)) == 7 else content


def _change(draw, data: dict) -> None:
    """One change of a file; mostly within one of its JSON texts, or in all of a kind."""
    inner = list(texts(data)) if draw(st.integers(0, 3)) else []
    if not inner:
        _change_at(draw, data, draw(st.sampled_from(places(data))))
        return
    metadata, kind = draw(st.sampled_from(inner))
    text = json.loads(metadata[kind])
    path = draw(st.sampled_from(places(text)))
    _change_at(draw, text, path)
    metadata[kind] = json.dumps(text)
    if draw(st.integers(0, 4)):
        for other, same in inner:
            its = json.loads(other[same])
            with contextlib.suppress(KeyError, TypeError, IndexError):  # a comparison, where one has none
                if same == kind:
                    _at(its, path[:-1])[path[-1]] = _at(text, path)
                    other[same] = json.dumps(its)


def _change_at(draw, data, path: tuple) -> None:
    place, last = _at(data, path[:-1]), path[-1]
    what = draw(st.sampled_from(["kin"] * 6 + ["any", "any", "drop", "double", "exchange"]))
    value = place[last]
    if what == "drop":
        del place[last]
    elif what == "double" and isinstance(place, list):
        place.insert(last, _copy(value))
    elif what == "exchange":
        other = draw(st.sampled_from(places(data)))
        holder = _at(data, other[:-1])
        place[last], holder[other[-1]] = _copy(holder[other[-1]]), _copy(value)
    elif what == "kin":
        place[last] = draw(_kin(value))
    else:
        place[last] = draw(VALUES)


def _kin(value) -> st.SearchStrategy:
    """What may stand for a value: of its type."""
    if isinstance(value, bool):
        return st.just(not value)
    if isinstance(value, (int, float)) and abs(value) < 1e300:
        scaled = [value * 0.5, value * (1 + 1e-12), value * 1.1, value * 2, value * 1e6, value + 1]
        return st.sampled_from(scaled) | st.sampled_from(ODD_NUMBERS)
    if isinstance(value, str):
        return KNOWN_WORDS | st.sampled_from([*ODD_TEXTS, value + " ", value.upper(), value.replace("a", "а")])
    if value is None or isinstance(value, (int, float)):
        return SCALARS | KNOWN_WORDS
    if isinstance(value, list):
        return st.permutations(value) | st.sampled_from([value[1:], value * 2, value[:1]])
    return st.just(dict(list(value.items())[1:]))


def _copy(value):
    return json.loads(json.dumps(value))


def _at(data, path: tuple):
    for step in path:
        data = data[step]
    return data


# --- what is right ---


def held(content: bytes) -> dict[tuple[str, str], tuple[dict, dict, list[float]]]:
    """What a file holds, read without metallab: by name and time each description, machine and list of samples."""
    data, runs = json.loads(content), {}
    for benchmark in data["benchmarks"]:
        for run in benchmark["runs"]:
            metadata = data.get("metadata", {}) | benchmark.get("metadata", {}) | run.get("metadata", {})
            about = json.loads(metadata["metallab"])
            runs[metadata["name"], about["taken"]] = about, json.loads(metadata["machine"]), run["values"]
    return runs


def true_speed_ups(content: bytes) -> dict[tuple[str, str], float]:
    """Of each variant that gives a speed-up, the median of the ratios of its samples to those of its baseline."""
    runs = held(content)
    answers = {}
    for (name, taken), (about, _, values) in runs.items():
        compared = about["comparison"]
        if compared and compared["median"] is not None:
            base = f"{about['lesson']}/{compared['name']}/{compared['baseline']}"
            assert (base, taken) in runs, f"{name} is said to be compared with {base}"
            base = runs[base, taken][2]
            answers[name, taken] = statistics.median(b / v for b, v in zip(base, values, strict=True))
    return answers


# --- the readers ---


def said_by(command, *arguments) -> tuple[int, str, str]:
    """Exit code, output and errors of one of our commands."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = command([str(argument) for argument in arguments])
    return code, out.getvalue(), errors.getvalue()


def assert_refused_in_one_line(errors: str, path: Path) -> None:
    assert errors.count("\n") == 1, errors
    assert errors.rstrip("\n").isprintable(), repr(errors)
    assert len(errors) < 1500, errors
    assert str(path) in errors, errors


def assert_right(path: Path, content: bytes) -> str:
    """Whatever reads the file refuses it, or is right about it; which of both, in a word."""
    loaded = None
    with contextlib.suppress(records.RecordError):
        loaded = records.load(path)
    code, out, errors = said_by(check_results.main, path)
    assert code in (0, 1)
    if code:
        assert out == ""
        assert errors.startswith(f"REFUSED {path}: ")
        assert_refused_in_one_line(errors, path)
    else:
        assert loaded is not None
        assert_showable(content)
    accepted = code == 0
    if loaded is not None:
        truth = true_speed_ups(content)
        compared = [one for one in loaded if one.comparison and one.comparison.median]
        given = {(one.name, one.taken): one.comparison.median for one in compared}
        assert given.keys() <= truth.keys()
        assert given == pytest.approx({key: truth[key] for key in given}, rel=1e-9)
    assert_reported(path, loaded)
    return "refused" if loaded is None else "accepted" if accepted else "compared"


def assert_showable(content: bytes) -> None:
    """What `make check-results` calls good: real, of full mode, of one machine that can have it, in plain letters."""
    for about, described, values in held(content).values():
        measured = about["measurement"]
        assert measured["simulated"] is False
        assert measured["mode"] == "full"
        assert "simulated" not in measured["device"].lower()
        if measured["kind"] == "cpu":
            assert measured["device"] == "host" or measured["device"].endswith(("thread", "threads"))
        assert min(values) > 0
        plain = "".join(letter for letter in json.dumps([about, described], ensure_ascii=False) if letter.isalnum())
        assert plain.isascii(), plain
        if measured["device"].startswith("Apple"):
            assert described["os_name"] == "macOS"
            assert measured["device"].startswith(f"{described['chip']} ")


def assert_reported(path: Path, loaded: list[records.Record] | None) -> None:
    """The report names the file, or shows the verdicts that follow from its samples."""
    summary, problems = report.RunSummary("full", "cpu", "", False, None, None, ()), []
    page = report.ReportPage(summary, problems=problems)
    report._add_records(page, path.parent.parent)
    html = report.render(page)
    assert "<script>" not in html.replace("<script", "<script", 1) or "<script>alert" not in html
    mine = [problem for problem in page.problems if problem.what == f"results/{path.name}"]
    assert len(mine) == (loaded is None)
    for group in page.groups:
        for conclusion in group.conclusions:
            runs = [one for one in loaded if one.comparison and one.comparison.variant == conclusion.variant]
            ratios = [one.comparison.median for one in runs if not one.doubt]
            if conclusion.ratio:
                assert min(ratios) * (1 - 1e-9) <= conclusion.ratio[1] <= max(ratios) * (1 + 1e-9)


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A run's folder with a file to change, no reference results, and where the good one lies."""
    monkeypatch.setattr(findings, "REFERENCES", tmp_path / "none")
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    (tmp_path / "run" / "results").mkdir(parents=True)
    return tmp_path


def fuzz(place: Path, seed: int | None = None) -> dict[str, int]:
    """A round of changed files; how many of them were refused, compared, accepted."""
    good = good_file(place)
    path, outcomes = place / "run" / "results" / "02b.json", {"refused": 0, "compared": 0, "accepted": 0}

    def try_one(content: bytes) -> None:
        path.write_bytes(content)
        try:
            outcomes[assert_right(path, content)] += 1
        except BaseException:
            shutil.copy(path, place / "failed.json")
            print(f"the file that failed: {place / 'failed.json'}")
            raise

    try_all = ROUND(given(changed_files(good.read_text()))(try_one))
    (hypothesis.seed(seed)(try_all) if seed is not None else try_all)()
    return outcomes


def test_whatever_a_file_holds_it_is_refused_or_read_right(place):
    if not SECONDS:
        outcomes = Counter(fuzz(place))
        for seed in range(4):  # which end a round reaches depends on the fields that a file has
            if min(outcomes.values()) == 0:
                outcomes.update(fuzz(place, seed))
        assert min(outcomes.values()) > 0, f"a fuzzer that reaches only one end: {outcomes}"
        return
    end, total = time.monotonic() + SECONDS, 0
    for seed in itertools.count(time.time_ns() % 2**32):
        if time.monotonic() > end:
            break
        print(f"seed {seed}")
        total += sum(fuzz(place, seed).values())
    print(f"{total} files")


def readers(path: Path) -> dict[str, str]:
    """What each reader of a file says, by its name."""
    page = report.ReportPage(report.RunSummary("full", "cpu", "", False, None, None, ()))
    report._add_records(page, path.parent.parent)
    answers = {"report": page.problems}
    answers["check-results"] = said_by(check_results.main, path)
    answers["notebook 12: references"] = findings.references()[1]
    answers["notebook 12: this machine's latest run"] = f"that claims a speed-up: {findings.latest()}"
    return {name: str(answer) for name, answer in answers.items()}


def test_no_reader_believes_a_claim_that_the_samples_do_not_say(place, monkeypatch):
    """50 times as fast, says the file, beside samples that say 3.9."""
    good, path = good_file(place), place / "run" / "results" / "02b.json"
    for other in (path, place / "none" / "02b.json", place / "build" / "full-mps" / "results" / "02b.json"):
        other.parent.mkdir(parents=True, exist_ok=True)
        claim(Path(shutil.copy(good, other)), "mps", median=50.0, high=60.0)
    monkeypatch.setattr(machine, "describe", lambda: HERE)
    for name, answer in readers(path).items():
        if "latest" in name:
            assert answer.endswith(": None"), name
        else:
            assert "claims a speed-up of 50, but its samples say 3.9" in answer, f"{name}: {answer}"
        assert "50.0" not in answer, name
    for other in (path, place / "none" / "02b.json", place / "build" / "full-mps" / "results" / "02b.json"):
        shutil.copy(good, other)
    answers = readers(path)
    assert "None" not in answers.pop("notebook 12: this machine's latest run")[-6:]
    assert not any("claims" in answer for answer in answers.values())


def test_the_oracle_finds_a_reader_that_believes_a_claim(place, monkeypatch):
    """The fuzzer itself can fail: with a reader that takes speed-ups from the file it does."""
    monkeypatch.setattr(records, "_computed", lambda run, runs: run)
    with pytest.raises((AssertionError, TypeError)):  # it believes, or stumbles over what no right reader hands on
        fuzz(place)
