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
from measurements import make_measurement
from results_files import claim, texts
from test_records import pages

from metallab import machine, paths, records, timing
from metallab.records import saving
from metallab.results import check_results

HERE = dataclasses.replace(
    machine.describe(), chip="Apple M2 Max", os_name="macOS", os_version="15.1", git_dirty=False
)
GPU, CPU = "Apple M2 Max GPU", "Apple M2 Max CPU, 12 threads"


def draw_times(chance: random.Random, centre: float) -> tuple[float, ...]:
    return tuple(chance.uniform(centre - 0.1, centre + 0.1) for _ in range(20))


def contribution(processes: int = 3, **changes) -> list[records.Record]:
    """A comparison of GPU and CPU, measured in several processes, as a page saves it; the GPU is four times as fast.

    ``changes`` are fields of each `timing.Measurement`.
    """
    chance, made = random.Random(0), []
    plain = make_measurement("CPU", (), first_call=9.0, device=CPU, kind="cpu", threads=12)
    gpu = dataclasses.replace(plain, name="mps", device=GPU, kind="mps", threads=None)

    for number in range(processes):
        measured = {
            each.name: dataclasses.replace(
                each, **{"samples": draw_times(chance, centre)} | changes
            )
            for each, centre in ((plain, 4.0), (gpu, 1.0))
        }
        compared = timing.compare_samples(
            measured, baseline="CPU", name="product, n = 64", parity="compared"
        )
        taken = f"2026-11-20T10:00:{number:02}+00:00"
        made += [
            records.Record("02b_compare", name, taken, measurement, comparison, 0.01, HERE)
            for name, measurement, comparison, _ in saving.list_rows("02b_compare", compared)
        ]
    return made


def on_machine(made: list[records.Record], **changes) -> list[records.Record]:
    """The same records of a machine with other fields."""
    other = dataclasses.replace(HERE, **changes)
    return [dataclasses.replace(record, machine=other) for record in made]


@pytest.fixture
def write(tmp_path):
    """Writes records, and returns the file."""
    return lambda made: records.write(tmp_path / "mine.json", made)


@pytest.mark.parametrize(
    "words",
    [
        "GOOD: it can be shown, as data/results/apple_m2_max_gpu.json",
        "Chip: Apple M2 Max",
        "processes for each: 3",
        "3.93",
        "(1 faster)",
        "Settings that go along",
    ],
)
def test_of_a_good_file_is_told_what_would_be_shown(write, capsys, words):
    assert check_results.main([str(write(contribution()))]) == 0

    printed = capsys.readouterr().out
    assert words in printed
    assert "Note:" not in printed


@pytest.mark.parametrize(
    "note",
    [
        "2 of 2 benchmarks were measured in fewer than 3 processes",
        "2 of 2 measurements were made while",
    ],
    ids=["few processes", "a busy machine"],
)
def test_what_makes_a_good_file_a_weak_one_is_noted(write, capsys, note):
    busy = write(contribution(processes=1, others=2.0))

    assert check_results.main([str(busy)]) == 0
    assert f"Note: {note}" in capsys.readouterr().out


def test_the_command_wants_a_file():
    assert check_results.main([]) == 2


MIXED = [*contribution()[:-2], *on_machine(contribution()[-2:], gpu="Another GPU")]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (contribution(simulated=True), "only real times of full mode"),
        (contribution(mode="fast"), "only real times of full mode"),
        (on_machine(contribution(), chip=None), "chip or operating system is unknown"),
        (MIXED, "of another machine"),
    ],
    ids=["simulated", "fast mode", "an unknown chip", "two machines"],
)
def test_times_that_cannot_be_shown_are_refused(write, made, message):
    with pytest.raises(records.RecordError, match=f"mine.json: 02b_compare/.*{message}"):
        check_results.check(write(made))


def test_a_speed_up_that_does_not_follow_from_the_samples_is_refused(write):
    false = claim(write(contribution()), "mps", median=40.0, high=50.0)

    with pytest.raises(records.RecordError, match=r"of 40, 3\.814, 50, but its samples say 3\.929"):
        check_results.check(false)


STRANGE = {
    "the file": ('"version":', '"added": "ada.local", '),
    "a benchmark": ('"unit":', '"added": {"host": ["ada.local"]}, '),
    "a name that comes twice": ('"unit":', '"unit": "ada.local", '),
    "another name": ('"unit":', '"name": "ada.local", '),  # each benchmark has its own
    "a run": ('"values":', '"added": "ada.local", '),
    "a machine": (r"\"chip\":", r"\"added\": \"ada.local\", "),
    "a package": (r"\"numpy\":", r"\"ada.local\": \"1\", "),
    "a variable": (r"\"git_dirty\":", r"\"environment\": {\"ADDED\": \"ada.local\"}, "),
}
"""By where it is added: what stands there, and what nothing of ours would write before it."""


@pytest.fixture(params=STRANGE.values(), ids=STRANGE)
def strange(request, write):
    """A good file with something added that we would not write."""
    path, (place, added) = write(contribution()), request.param
    text = path.read_text()
    assert place in text
    path.write_text(text.replace(place, added + place))
    return path


def test_what_we_would_not_write_is_refused(strange):
    with pytest.raises(records.RecordError, match=r"'ada\.local'"):
        check_results.check(strange)


def test_what_we_would_not_write_is_not_shown(strange):
    assert "ada" not in str([record.machine.rows() for record in records.load(strange)])


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"[" * 100_000, b'{"a": NaN}', b"{}", b"\x1b[2J"],
    ids=["empty", "no text", "deep", "not a number", "no benchmarks", "a terminal's command"],
)
def test_the_command_refuses_in_one_line(tmp_path, capsys, content):
    path = tmp_path / "mine.json"
    path.write_bytes(content)

    assert check_results.main([str(path)]) == 1

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"REFUSED {path}: ")
    assert printed.err.count("\n") == 1
    assert printed.err.strip().isprintable()


# --- a file joins the stored ones ---


class Stored:
    """A checkout's results, and the text that lists them."""

    def __init__(self, root):
        self.folder, self.readme = root / "data" / "results", root / "data" / "README.md"
        self.target = self.folder / "apple_m2_max_gpu.json"
        self.folder.mkdir(parents=True)
        shutil.copy(paths.ROOT / "data" / "README.md", self.readme)
        self.before = self.readme.read_text()

    def add(self, path) -> int:
        return check_results.main(["--add", str(path)])

    @property
    def new_lines(self) -> list[str]:
        return sorted(set(self.readme.read_text().splitlines()) - set(self.before.splitlines()))


@pytest.fixture
def stored(tmp_path, monkeypatch):
    made = Stored(tmp_path)
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    return made


@pytest.mark.parametrize(
    "made",
    [
        contribution(mode="fast"),
        contribution(device="..."),
        on_machine(contribution(), environment={"OMP_NUM_THREADS": "/Users/ada/x"}),
    ],
    ids=["fast mode", "a device without a name", "a folder of somebody's"],
)
def test_a_bad_file_does_not_join_the_stored_ones(stored, write, made):
    assert stored.add(write(made)) == 1

    assert stored.new_lines == []
    assert list(stored.folder.iterdir()) == []


def test_a_link_to_a_good_file_does_not_join_the_stored_ones(stored, write, tmp_path):
    link = tmp_path / "link.json"
    link.symlink_to(write(contribution()))

    assert stored.add(link) == 1
    assert list(stored.folder.iterdir()) == []


def test_a_file_is_not_stored_through_a_link(stored, write, tmp_path):
    stored.target.symlink_to(tmp_path / "elsewhere")

    assert stored.add(write(contribution())) == 1
    assert not (tmp_path / "elsewhere").exists()


def test_a_good_file_joins_the_stored_ones_once(stored, write):
    good = write(contribution())

    assert stored.add(good) == 0
    assert list(stored.folder.iterdir()) == [stored.target]
    assert stored.target.read_bytes() == good.read_bytes()
    assert stored.add(good) == 1, "there is one of this machine"


def test_a_stored_file_is_listed_with_its_machine_and_digest(stored, write):
    """In a row of the table whatever the chip calls itself."""
    good = write(on_machine(contribution(), chip="Apple | M2\u2028 <b>[x](y)`"))

    stored.add(good)

    digest, row = sorted(stored.new_lines, key=lambda line: line.startswith("|"))
    assert (
        digest == f"{hashlib.sha256(good.read_bytes()).hexdigest()}  results/{stored.target.name}"
    )
    assert row.startswith(f"| `results/{stored.target.name}` | Apple M2 b x (y) macOS 15.1 Python ")
    assert row.count("|") == 4


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
    machines = {metadata[key] for metadata, key in texts(data) if key == "machine"}
    described = [json.loads(text) for text in machines]

    validator("file").validate(data)
    assert described
    for each in described:
        validator("machine").validate({k: v for k, v in each.items() if k != "schema"})


def test_the_command_prints_the_schema(capsys):
    assert check_results.main(["--schema"]) == 0

    assert json.loads(capsys.readouterr().out) == records.schema()


def test_the_schema_has_each_field_of_a_measurement_with_its_limits():
    measurement = records.schema()["metallab"]["$defs"]["Measurement"]["properties"]

    assert set(measurement) == {field.name for field in dataclasses.fields(timing.Measurement)}
    assert measurement["first_call"]["exclusiveMinimum"] == 1e-18


@pytest.mark.parametrize(
    "path", sorted((paths.ROOT / "data" / "results").glob("*.json")), ids=lambda path: path.stem
)
def test_the_reference_results_are_good(path):
    assert check_results.check(path)
