"""A contributor's file: a good one is shown, a hostile or broken one is refused with the reason in one line."""

from __future__ import annotations

import dataclasses
import json
import os
import random

import jsonschema
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from results_files import claim, texts
from test_records import pages

from metallab import machine, paths, records, timing
from metallab.results import check_results

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
        place = {"CPU": {"device": CPU, "kind": "cpu", "threads": 12}, "mps": {"device": GPU, "kind": "mps"}}
        fields = {"question": "latency", "first_call": 9.0, "block": 1, "warmup_calls": 3, "stop_reason": "quiet"}
        fields |= {"mode": "full", "simulated": False} | changes
        measured = {k: timing.Measurement(k, samples=tuple(v), **place[k] | fields) for k, v in times.items()}
        compared = timing.compare_samples(measured, baseline="CPU", name="product, n = 64", parity="compared")
        for name, measurement, comparison, _ in records._rows("02b_compare", compared):
            taken = f"2026-11-20T10:00:{number:02}+00:00"
            made.append(records.Record("02b_compare", name, taken, measurement, comparison, 0.01, HERE))
    return made


@pytest.fixture
def write(tmp_path):
    """Writes records, and returns the file."""
    return lambda made: records.write(tmp_path / "mine.json", made)


def test_of_a_good_file_is_told_what_would_be_shown(write, capsys):
    assert check_results.main([str(write(contribution()))]) == 0
    printed = capsys.readouterr().out
    for words in (
        "GOOD: it can be shown, as data/results/apple_m2_max_gpu.json",
        "Chip: Apple M2 Max",
        "processes for each: 3",
        "02b_compare: 3.93",
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
    unknown = dataclasses.replace(HERE, chip=None)
    for made, message in (
        (contribution(simulated=True), "only real times of full mode"),
        (contribution(mode="fast"), "only real times of full mode"),
        ([dataclasses.replace(record, machine=unknown) for record in good], "chip or operating system is unknown"),
        ([dataclasses.replace(record, taken="2099-01-01T00:00:00") for record in good[:2]], "taken in the future"),
    ):
        with pytest.raises(records.RecordError, match=f"mine.json: 02b_compare/.*{message}"):
            check_results.check(write(made))
    with pytest.raises(records.RecordError, match=r"mps' claims a speed-up of 40, but its samples say 3\.929"):
        check_results.check(claim(write(good), "mps", median=40.0, high=50.0))


def elsewhere(made: list[records.Record], devices: dict[str, str | tuple], **changes) -> list[records.Record]:
    """The same on another machine, with other devices: a name, or with its kind and threads."""

    def moved(one: records.Record) -> records.Record:
        given = devices.get(one.measurement.device, one.measurement.device)
        device, *about = given if isinstance(given, tuple) else (given,)
        measured = dataclasses.replace(
            one.measurement, device=device, **dict(zip(("kind", "threads"), about, strict=False))
        )
        return dataclasses.replace(one, machine=dataclasses.replace(HERE, **changes), measurement=measured)

    return [moved(one) for one in made]


XEON = {"chip": "Intel(R) Xeon(R)", "os_name": "Debian", "architecture": "x86_64"}
AMD = XEON | {"chip": "AMD EPYC 7B13", "gpu": None}
ULTRA = {GPU: "Apple M9 Ultra GPU", CPU: ("AMD EPYC 7B13 CPU, 2 threads", "cpu", 2)}


def test_a_device_is_one_that_the_machine_has(write):
    """An Apple M9 Ultra does not sit on an AMD processor."""
    good = contribution()
    on_cpu = {GPU: ("AMD EPYC 7B13 CPU, 1 thread", "cpu", 1), CPU: ("AMD EPYC 7B13 CPU, 2 threads", "cpu", 2)}
    nvidia = {GPU: ("NVIDIA H200", "cuda"), CPU: ("Intel(R) Xeon(R) CPU, 2 threads", "cpu", 2)}
    apart = "Apple M2 Max (products: Accelerate's own threads) CPU, 1 thread"
    for devices, changes in (
        ({CPU: (apart, "cpu", 1)}, {}),
        ({CPU: "host"}, {}),
        (on_cpu, AMD),
        (on_cpu | {GPU: ("AMD Radeon Pro", "gpu")}, AMD),
        (nvidia, XEON | {"gpu": "2 × NVIDIA H200, NVIDIA A100"}),
    ):
        assert check_results.check(write(elsewhere(good, devices, **changes)))
    for devices, changes, message in (
        (
            ULTRA,
            AMD,
            "its device is 'Apple M9 Ultra GPU' .mps., and its machine has the chip 'AMD EPYC 7B13' and .* None",
        ),
        (ULTRA | {GPU: ("Apple M9 Ultra GPU", "cuda")}, AMD, "its device is 'Apple M9 Ultra GPU' .cuda."),
        (ULTRA, AMD | {"gpu": "NVIDIA H200"}, "its device is 'Apple M9 Ultra GPU'"),
        (ULTRA, AMD | {"os_name": "macOS"}, "its device is 'Apple M9 Ultra GPU'"),
        ({GPU: "Apple M2 Max Ultra GPU"}, {}, "its device is 'Apple M2 Max Ultra GPU'"),
        ({GPU: ("NVIDIA H200", "cuda")}, {"gpu": "NVIDIA H200"}, "its device is 'NVIDIA H200'"),
        ({CPU: (CPU, "mps")}, {}, "its device is 'Apple M2 Max CPU, 12 threads' .mps., and"),
        ({GPU: (GPU, "cuda")}, {}, "its device is 'Apple M2 Max GPU' .cuda., and"),
        ({GPU: (GPU, "cpu", 1)}, {}, "its device is 'Apple M2 Max GPU' .cpu., and .* 'Apple M2 Max CPU, 1 thread'"),
        (
            nvidia | {GPU: ("NVIDIA H200", "mps")},
            XEON | {"gpu": "NVIDIA H200"},
            "its device is 'NVIDIA H200' .mps., and",
        ),
        (nvidia, XEON | {"gpu": "NVIDIA A100"}, "its device is 'NVIDIA H200'"),
        ({}, {"os_name": "Debian"}, "its chip is 'Apple M2 Max', and its system 'Debian'"),
    ):
        with pytest.raises(records.RecordError, match=f"mine.json: 02b_compare/.*: {message}"):
            check_results.check(write(elsewhere(good, devices, **changes)))


def test_letters_of_another_alphabet_are_refused(write):
    """They look like others, and would pass one device for another."""
    good = contribution()
    for devices, changes, letter in (
        ({GPU: "\N{CYRILLIC CAPITAL LETTER A}pple M2 Max GPU"}, {}, "CYRILLIC CAPITAL LETTER A"),
        ({CPU: "h\N{GREEK SMALL LETTER OMICRON}st"}, {}, "GREEK SMALL LETTER OMICRON"),
        ({}, {"chip": "Apple \N{FULLWIDTH LATIN CAPITAL LETTER M}2 Max"}, "FULLWIDTH LATIN CAPITAL LETTER M"),
        ({}, {"gpu": "Apple M\N{MATHEMATICAL BOLD DIGIT TWO}"}, "MATHEMATICAL BOLD DIGIT TWO"),
        ({}, {"os_version": "\N{CIRCLED LATIN CAPITAL LETTER O}"}, "CIRCLED LATIN CAPITAL LETTER O"),
        ({}, {"environment": {"OMP_X": "e\N{COMBINING ACUTE ACCENT}"}}, "COMBINING ACUTE ACCENT"),
    ):
        with pytest.raises(records.RecordError, match=rf"02b_compare/.* holds .* \({letter}\), which may look like"):
            check_results.check(write(elsewhere(good, devices, **changes)))
    signs = claim(write(good), "mps", parity="within ± 2 × 10 °C – or so …")
    assert check_results.check(signs)


def test_a_simulated_gpu_is_not_passed_for_a_real_one(write):
    path = write(contribution())
    path.write_text(path.read_text().replace(GPU, "simulated Apple GPU (on Apple M2 Max)"))
    with pytest.raises(records.RecordError, match="its device is called simulated, and it is not marked as such"):
        check_results.check(path)


def test_a_file_that_is_not_there_is_told_with_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    missing = tmp_path / "nope.json"
    asked = f"REFUSED {missing}: there is no such file; make bench "
    assert check_results.main([str(missing)]) == 1
    names = f"measures, and names the file that it writes in {tmp_path}/build/bench\n"
    assert capsys.readouterr().err == asked + names
    records.write(tmp_path / "build" / "bench" / "mine.json", contribution())
    assert check_results.main([str(missing)]) == 1
    assert capsys.readouterr().err == f"{asked}wrote {tmp_path}/build/bench/mine.json\n"


def test_only_a_plain_file_is_read(tmp_path, write):
    good = write(contribution())
    link = tmp_path / "link.json"
    link.symlink_to(good)
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    for name, message in (
        ("link", "not a plain file"),
        ("pipe", "not a plain file"),
        ("folder", "not a plain file"),
        ("missing", "no such file"),
        ("mine.json/inside", "Not a directory"),
    ):
        with pytest.raises(records.RecordError, match=message):
            check_results.check(tmp_path / f"{name}.json")


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


MARKUP = "<script>alert(1)</script>"
BEYOND_THE_RULES = {
    "markup in a name": (put("metallab", "comparison", "role", MARKUP), "holds < or >"),
    "markup in a device": (put("metallab", "measurement", "device", MARKUP), "holds < or >"),
    "markup in the chip": (put("machine", "chip", MARKUP), "holds < or >"),
    "a million cores": (put("machine", "cores_logical", 10**6), "`cores_logical`"),
    "memory of an exabyte": (put("machine", "memory_bytes", 2**59), "`memory_bytes`"),
}


def test_what_no_honest_file_holds_is_refused(write):
    good = write(contribution()).read_text()
    for what, (change, message) in BEYOND_THE_RULES.items():
        data = json.loads(good)
        change(data)
        path = write(contribution())
        path.write_text(json.dumps(data))
        with pytest.raises(records.RecordError, match=message) as refused:
            pytest.fail(f"{what} was accepted: {check_results.check(path)}")
        assert str(refused.value).isprintable(), what
        assert len(str(refused.value)) < 700, what


def test_the_command_refuses_in_one_line(tmp_path, capsys):
    for number, content in enumerate((b"", b"\xff\xfe", b"[" * 100_000, b'{"a": NaN}', b"{}", b"\x1b[2J")):
        path = tmp_path / f"{number}.json"
        path.write_bytes(content)
        assert check_results.main([str(path)]) == 1
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith(f"REFUSED {path}: ")
        assert printed.err.count("\n") == 1
        assert printed.err.strip().isprintable()


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
    machines = {text for metadata, key in texts(data) if key == "machine" for text in [metadata[key]]}
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


@pytest.mark.parametrize("path", sorted((paths.ROOT / "data" / "results").glob("*.json")), ids=lambda path: path.stem)
def test_the_reference_results_are_good(path):
    assert check_results.check(path)
