"""A contributor's file: a good one is shown, a hostile or broken one is refused with the reason in one line."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from mutate import Rules
from test_records import HOSTILE, RECORDS

from metallab import machine, paths, records, timing
from metallab.results import check_results

RULES = Rules(check_results)
HERE = dataclasses.replace(machine.describe(), chip="Apple M2 Max", os_name="macOS", os_version="15.1", git_dirty=False)
GPU, CPU = "Apple M2 Max GPU", "Apple M2 Max CPU, 12 threads"


def contribution(processes: int = 3, **changes) -> list[records.Record]:
    """A comparison of GPU and CPU, measured in several processes, as a page saves it."""
    chance, made = random.Random(0), []
    for number in range(processes):
        times = {
            "CPU": [chance.uniform(3.9, 4.1) for _ in range(20)],
            "mps": [chance.uniform(0.9, 1.1) for _ in range(20)],
        }
        place = {"CPU": CPU, "mps": GPU}
        fields = {"question": "latency", "first_call": 9.0, "block": 1, "warmup_calls": 3, "stop_reason": "quiet"}
        fields |= {"mode": "full", "simulated": False} | changes
        measured = {k: timing.Measurement(k, samples=tuple(v), device=place[k], **fields) for k, v in times.items()}
        ratio = timing._ratio("product", "mps", "CPU", times["mps"], times["CPU"])
        compared = timing.Comparison("product, n = 64", "latency", "CPU", measured, {"mps": ratio}, {}, "compared")
        for name, measurement, said, _ in records._rows("02b_compare", compared):
            taken = f"2026-11-20T10:00:{number:02}+00:00"
            made.append(records.Record("02b_compare", name, taken, measurement, said, 0.01, HERE))
    return made


def variant(made: list[records.Record], **changes) -> list[records.Record]:
    """The same with changes to what the first GPU record claims of its comparison."""
    index = next(i for i, record in enumerate(made) if record.comparison.variant == "mps")
    claimed = dataclasses.replace(made[index].comparison, **changes)
    return [*made[:index], dataclasses.replace(made[index], comparison=claimed), *made[index + 1 :]]


@pytest.fixture
def write(tmp_path):
    """Writes records, and returns the file."""
    return lambda made: records.write(tmp_path / "mine.json", made)


@RULES.rule(
    ("_show(findings.column(found", "(lambda *_: None)(findings.column(found"),
    ("    for note in _notes(one.records):\n", "    for note in ():\n"),
    ("number < compare.MIN_RUNS", "number"),
)
def of_a_good_file_is_told_what_would_be_shown(check_results, write, capsys):
    assert check_results.main([str(write(contribution()))]) == 0
    said = capsys.readouterr().out
    for words in (
        "GOOD: it can be shown, as data/results/apple_m2_max_gpu.json",
        "Chip: Apple M2 Max",
        "processes for each: 3",
        "02b_compare: 3.93",
        "(1 faster)",
        "Settings that go along",
    ):
        assert words in said
    assert "Note:" not in said
    busy = contribution(processes=1, others=2.0)
    assert check_results.main([str(write(busy))]) == 0
    said = capsys.readouterr().out
    assert "Note: 2 of 2 benchmarks were measured in fewer than 3 processes" in said
    assert "Note: 2 of 2 measurements were made while other programs ran" in said
    assert check_results.main([]) == 2


@RULES.rule(
    ('run.measurement.simulated or run.measurement.mode != "full"', 'run.measurement.mode != "full"'),
    ('run.measurement.simulated or run.measurement.mode != "full"', "run.measurement.simulated"),
    ("if not run.machine.chip or not run.machine.os_name:", "if False:"),
    ("> datetime.now(UTC) + timedelta(days=1)", "is None"),
    ("        if compare.has_speed_up(run):\n", "        if False:\n"),
    ("    if baseline is None:\n", "    if False:\n"),
    ("    if len(ours) != len(theirs):\n", "    if False:\n"),
    ("    if None in claimed or not np.allclose(", "    if False and np.allclose("),
    ("next(_against_claims(found), None)", "None"),
)
def what_a_file_claims_must_follow_from_its_numbers(check_results, write):
    good = contribution()
    unknown = dataclasses.replace(HERE, chip=None)
    without_baseline = [record for record in good if record.comparison.variant == "mps"]
    short = dataclasses.replace(good[0].measurement, samples=good[0].measurement.samples[1:])
    for made, said in (
        (contribution(simulated=True), "only real times of full mode"),
        (contribution(mode="fast"), "only real times of full mode"),
        ([dataclasses.replace(record, machine=unknown) for record in good], "chip or operating system is unknown"),
        ([dataclasses.replace(record, taken="2099-01-01T00:00:00") for record in good[:2]], "taken in the future"),
        (without_baseline, "claims a speed-up over CPU, which the file does not hold"),
        ([dataclasses.replace(good[0], measurement=short), *good[1:]], "has 20 samples for 19 of its baseline"),
        (variant(good, median=40.0, high=50.0), "claims a speed-up of 40, but its samples say 3.929"),
        (variant(good, low=3.9), "claims a speed-up of 3.929"),
        (variant(good, low=None), "claims a speed-up of 3.929"),
    ):
        with pytest.raises(records.RecordError, match=f"mine.json: 02b_compare/.*{said}"):
            check_results.check(write(made))


@RULES.rule(
    ("stat.S_ISREG(path.lstat().st_mode)", "True"),
    ("path.lstat()", "path.stat()"),
    ("    except OSError as error:\n", "    except ZeroDivisionError as error:\n"),
)
def only_a_plain_file_is_read(check_results, tmp_path, write):
    good = write(contribution())
    link = tmp_path / "link.json"
    link.symlink_to(good)
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    for name, said in (
        ("link", "not a plain file"),
        ("pipe", "not a plain file"),
        ("folder", "not a plain file"),
        ("missing", "No such file"),
    ):
        with pytest.raises(records.RecordError, match=said):
            check_results.check(tmp_path / f"{name}.json")


def texts(data: dict) -> list[tuple[dict, str]]:
    """Where a file keeps JSON texts: the metadata and its key."""
    levels = [data, *data["benchmarks"], *(run for one in data["benchmarks"] for run in one["runs"])]
    return [
        (level["metadata"], key)
        for level in levels
        for key in ("metallab", "machine")
        if key in level.get("metadata", ())
    ]


def put(kind: str, *path_and_value):
    """Change something in every JSON text of a kind."""
    *path, last, value = path_and_value

    def changed(data: dict) -> None:
        for metadata, key in texts(data):
            if key == kind:
                text = json.loads(metadata[key])
                place = text
                for step in path:
                    place = place[step]
                place[last] = value
                metadata[key] = json.dumps(text)

    return changed


def rename(name: str):
    def changed(data: dict) -> None:
        data["benchmarks"][0]["metadata"]["name"] = name

    return changed


MARKUP = "<script>alert(1)</script>"
BEYOND_THE_RULES = {
    "markup in a name": (rename(MARKUP), "benchmarks\\[0\\].metadata.name is not as the schema says"),
    "markup in a device": (put("metallab", "device", MARKUP), "in metallab: .*device"),
    "markup in a variant": (put("metallab", "comparison", "variant", MARKUP), "in metallab: .*variant|different work"),
    "markup in the chip": (put("machine", "chip", MARKUP), "in machine: .*chip"),
    "a million cores": (put("machine", "cores_logical", 10**6), "in machine: .*cores_logical"),
    "memory of an exabyte": (put("machine", "memory_bytes", 2**59), "in machine: .*memory_bytes"),
    "metadata of another tool": (lambda data: data["metadata"].update(hostname="annas-laptop"), "hostname"),
    "something at the top": (lambda data: data.update(owner="anna"), "owner"),
}


@RULES.rule(
    ("    yield from _faults(data)\n", ""),
    ('(("metallab", "measurement"), ("machine", "machine"))', '(("machine", "machine"),)'),
    ('(("metallab", "measurement"), ("machine", "machine"))', '(("metallab", "measurement"),)'),
    ("next(_against_schema(path), None)", "None"),
)
def what_the_schema_does_not_allow_is_refused(check_results, write):
    """Beyond what `records.load` refuses anyway."""
    good = write(contribution()).read_text()
    for what, (change, said) in BEYOND_THE_RULES.items():
        data = json.loads(good)
        change(data)
        path = write(contribution())
        path.write_text(json.dumps(data))
        with pytest.raises(records.RecordError, match=said) as refused:
            pytest.fail(f"{what} was accepted: {check_results.check(path)}")
        assert str(refused.value).isprintable(), what
        assert len(str(refused.value)) < 700, what


@RULES.rule(("        return 1\n", "        return 0\n"), ("file=sys.stderr)\n        return 1", ")\n        return 1"))
def the_command_refuses_in_one_line(check_results, tmp_path, capsys):
    for number, content in enumerate((b"", b"\xff\xfe", b"[" * 100_000, b'{"a": NaN}', b"{}", b"\x1b[2J")):
        path = tmp_path / f"{number}.json"
        path.write_bytes(content)
        assert check_results.main([str(path)]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith(f"REFUSED {path}: ")
        assert said.err.count("\n") == 1
        assert said.err.strip().isprintable()


# --- the schema says what the code does ---


@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(record=RECORDS)
def test_what_we_write_is_as_the_schema_says(tmp_path, record):
    path = records.write(tmp_path / "any.json", [record])
    assume(not re.search("[<>]", path.read_text()))  # markup, which only a contributor's file may not hold
    assert list(check_results._against_schema(path)) == []


@pytest.mark.parametrize("what", HOSTILE)
def test_the_schema_alone_refuses_what_the_code_refuses(what, tmp_path):
    """But for what no schema can say: a text that cannot be printed, a time that is none, two runs that are one."""
    from test_records import record

    beyond = (
        "unprintable name",
        "device has two lines",
        "parity has an escape",
        "taken is no time",
        "a run twice",
        "a benchmark twice",
    )
    beyond += ("other schema", "no machine", "no name", "not ours", "ours is cut off", "ours has NaN")
    data = json.loads(records.write(tmp_path / "good.json", [record()]).read_text())
    change, _ = HOSTILE[what]
    replaced = change(data)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(replaced if isinstance(replaced, list) and not replaced else data))
    try:
        refused = bool(list(check_results._against_schema(path)))
    except (ValueError, KeyError, TypeError, AttributeError):
        refused = True  # not even the shape that the checks begin with
    assert refused or what in beyond


def test_every_field_is_in_the_schema():
    definitions = json.loads(check_results.SCHEMA.read_text())["$defs"]
    assert set(definitions["machine"]["properties"]) == {f.name for f in dataclasses.fields(machine.Machine)} | {
        "schema"
    }
    in_run = {"samples", "first_call", "block", "record"}  # samples, warm-up, loops and name of pyperf's run
    ours = (set(records._ABOUT) | set(records._MEASURED)) - in_run | {"schema"}
    assert set(definitions["measurement"]["properties"]) == ours
    assert set(definitions["comparison"]["properties"]) == set(records._COMPARED)
    assert definitions["machine"]["properties"]["power_source"]["enum"] == [*machine.POWER_SOURCES, None]


@pytest.mark.parametrize("path", sorted((paths.ROOT / "data" / "results").glob("*.json")), ids=lambda path: path.stem)
def test_the_reference_results_are_good(path):
    assert check_results.check(path)


test_rule_holds, test_broken_rule_goes_red = RULES.tests()
