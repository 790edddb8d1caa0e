"""A contributor's file: a good one is shown, a hostile or broken one is refused with the reason in one line."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import shutil

import jsonschema
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from results_files import claim, texts
from test_records import pages

from metallab import machine, paths, records, timing
from metallab.records import saving
from metallab.results import check_results

HERE = dataclasses.replace(
    machine.describe(), chip="Apple M2 Max", os_name="macOS", os_version="15.1", git_dirty=False
)
GPU, CPU = "Apple M2 Max GPU", "Apple M2 Max CPU, 12 threads"


def contribution(processes: int = 3, **changes) -> list[records.Record]:
    """A comparison of GPU and CPU, measured in several processes, as a page saves it."""
    chance, made = random.Random(0), []
    for number in range(processes):
        times = {
            "CPU": [chance.uniform(3.9, 4.1) for _ in range(20)],
            "mps": [chance.uniform(0.9, 1.1) for _ in range(20)],
        }
        place = {
            "CPU": {"device": CPU, "kind": "cpu", "threads": 12},
            "mps": {"device": GPU, "kind": "mps"},
        }
        fields = {
            "question": "latency",
            "first_call": 9.0,
            "block": 1,
            "warmup_calls": 3,
            "stop_reason": "quiet",
        }
        fields |= {"mode": "full", "simulated": False} | changes
        measured = {
            k: timing.Measurement(k, samples=tuple(v), **place[k] | fields)
            for k, v in times.items()
        }
        compared = timing.compare_samples(
            measured, baseline="CPU", name="product, n = 64", parity="compared"
        )
        for name, measurement, comparison, _ in saving.list_rows("02b_compare", compared):
            taken = f"2026-11-20T10:00:{number:02}+00:00"
            made.append(
                records.Record("02b_compare", name, taken, measurement, comparison, 0.01, HERE)
            )
    return made


@pytest.fixture
def write(tmp_path):
    """Writes records, and returns the file."""
    return lambda made: records.write(tmp_path / "mine.json", made)


def test_of_a_good_file_is_told_what_would_be_shown(write, capsys):
    assert check_results.main([str(write(contribution()))]) == 0
    printed = capsys.readouterr().out
    good = "GOOD: it can be shown, as data/results/apple_m2_max_gpu.json"
    for words in (
        good,
        "Chip: Apple M2 Max",
        "processes for each: 3",
        "3.93",
        "(1 faster)",
        "Settings that go along",
    ):
        assert words in printed
    assert "Note:" not in printed
    busy = contribution(processes=1, others=2.0)
    assert check_results.main([str(write(busy))]) == 0
    printed = capsys.readouterr().out
    assert "Note: 2 of 2 benchmarks were measured in fewer than 3 processes" in printed
    assert "Note: 2 of 2 measurements were made while other programs ran" in printed
    assert check_results.main([]) == 2


def test_what_a_file_claims_must_follow_from_its_numbers(write):
    good = contribution()
    unknown, other = (
        dataclasses.replace(HERE, chip=None),
        dataclasses.replace(HERE, gpu="Another GPU"),
    )
    for made, message in (
        (contribution(simulated=True), "only real times of full mode"),
        (contribution(mode="fast"), "only real times of full mode"),
        (
            [dataclasses.replace(record, machine=unknown) for record in good],
            "chip or operating system is unknown",
        ),
        (
            [*good[:-2], *(dataclasses.replace(record, machine=other) for record in good[-2:])],
            "of another machine",
        ),
    ):
        with pytest.raises(records.RecordError, match=f"mine.json: 02b_compare/.*{message}"):
            check_results.check(write(made))
    with pytest.raises(records.RecordError, match=r"of 40, 3\.814, 50, but its samples say 3\.929"):
        check_results.check(claim(write(good), "mps", median=40.0, high=50.0))


def test_what_we_would_not_write_is_refused_and_not_shown(write):
    text = (path := write(contribution())).read_text()
    for place, added in (
        ('"version":', '"added": "ada.local", '),
        ('"unit":', '"added": {"host": ["ada.local"]}, '),
        ('"unit":', '"unit": "ada.local", '),  # a name that comes twice
        ('"unit":', '"name": "ada.local", '),  # each benchmark has its own
        ('"values":', '"added": "ada.local", '),
        (r"\"chip\":", r"\"added\": \"ada.local\", "),
        (r"\"numpy\":", r"\"ada.local\": \"1\", "),
        (r"\"git_dirty\":", r"\"environment\": {\"ADDED\": \"ada.local\"}, "),
    ):
        assert place in text
        path.write_text(text.replace(place, added + place))
        with pytest.raises(records.RecordError, match=r"'ada\.local'"):
            check_results.check(path)
        assert "ada" not in str([record.machine.rows() for record in records.load(path)]), place


def test_the_command_refuses_in_one_line(tmp_path, capsys):
    for number, content in enumerate(
        (b"", b"\xff\xfe", b"[" * 100_000, b'{"a": NaN}', b"{}", b"\x1b[2J")
    ):
        path = tmp_path / f"{number}.json"
        path.write_bytes(content)
        assert check_results.main([str(path)]) == 1
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith(f"REFUSED {path}: ")
        assert printed.err.count("\n") == 1
        assert printed.err.strip().isprintable()


def test_a_good_file_joins_the_stored_ones(write, tmp_path, monkeypatch):
    folder, readme = tmp_path / "data" / "results", tmp_path / "data" / "README.md"
    folder.mkdir(parents=True)
    shutil.copy(paths.ROOT / "data" / "README.md", readme)
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    before, target, link = (
        readme.read_text(),
        folder / "apple_m2_max_gpu.json",
        tmp_path / "link.json",
    )
    sent = lambda **of: write(
        [dataclasses.replace(r, machine=dataclasses.replace(HERE, **of)) for r in contribution()]
    )
    link.symlink_to(sent())
    refused = lambda path: (
        (check_results.main(["--add", str(path)]), readme.read_text()) == (1, before)
    )
    assert refused(link)
    assert refused(write(contribution(mode="fast")))
    assert refused(write(contribution(device="...")))
    assert refused(sent(environment={"OMP_NUM_THREADS": "/Users/ada/x"}))
    assert not list(folder.iterdir())
    target.symlink_to(tmp_path / "elsewhere")
    assert refused(sent())
    assert not (tmp_path / "elsewhere").exists()
    target.unlink()
    good = sent(chip="Apple | M2\u2028 <b>[x](y)`")
    assert check_results.main(["--add", str(good)]) == 0
    assert ([*folder.iterdir()], target.read_bytes()) == ([target], good.read_bytes())
    row, digest = sorted(
        set(readme.read_text().splitlines()) - set(before.splitlines()), reverse=True
    )
    assert row.startswith(f"| `results/{target.name}` | Apple M2 b x (y) macOS 15.1 Python ")
    assert (row.count("|"), digest) == (
        4,
        f"{hashlib.sha256(good.read_bytes()).hexdigest()}  results/{target.name}",
    )
    assert check_results.main(["--add", str(good)]) == 1, "there is one of this machine"


# --- the published schema is made of the classes ---


def validator(part: str):
    return jsonschema.Draft202012Validator(records.schema()[part])


@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(made=pages())
def test_what_we_write_is_as_the_published_schema_says(tmp_path, made):
    data = json.loads(records.write(tmp_path / "any.json", made).read_text())
    validator("file").validate(data)
    machines = {
        text for metadata, key in texts(data) if key == "machine" for text in [metadata[key]]
    }
    assert machines
    for text in machines:
        validator("machine").validate({k: v for k, v in json.loads(text).items() if k != "schema"})


def test_the_command_prints_the_schema(capsys):
    assert check_results.main(["--schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == records.schema()
    measurement = printed["metallab"]["$defs"]["Measurement"]["properties"]
    assert set(measurement) == {field.name for field in dataclasses.fields(timing.Measurement)}
    assert measurement["first_call"]["exclusiveMinimum"] == 1e-18


@pytest.mark.parametrize(
    "path", sorted((paths.ROOT / "data" / "results").glob("*.json")), ids=lambda path: path.stem
)
def test_the_reference_results_are_good(path):
    assert check_results.check(path)
