"""make bench: several processes of every page in one file, nothing finished is lost, nothing unlike is mixed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from measurements import make_measurement

from metallab import machine, paths, records
from metallab.headless import bench
from metallab.headless.runner import Job, NotebookResult

CPU = {"device": "cpu", "label": "Xeon(R) CPU, 2 threads", "simulated": False}
STEADY = bench._time_loop()
HERE = dataclasses.replace(machine.describe(), power_source="AC", low_power_mode=False)


@pytest.fixture
def shelf(tmp_path, monkeypatch) -> Path:
    """A checkout with two pages and one module, on a machine whose state does not change."""
    folders = {"ROOT": "", "NOTEBOOKS": "notebooks", "BUILD": "build"}
    for name, folder in folders.items():
        monkeypatch.setattr(paths, name, tmp_path / folder)
        (tmp_path / folder).mkdir(exist_ok=True)
    for name in ("01_a", "02_b"):
        (tmp_path / "notebooks" / f"{name}.ipynb").write_text("{}")
    (tmp_path / "utils").mkdir()
    (tmp_path / "utils" / "module.py").write_text("x = 1\n")
    monkeypatch.setattr(machine, "describe", lambda: HERE)
    monkeypatch.delenv("METALLAB_OUT", raising=False)
    return tmp_path


def do_nothing(job: Job) -> None:
    """What happens beside the record that a page writes."""


class Pages:
    """Stands in for running a job: a page writes its record, unless `happens` does something else."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.passed = 0
        self.happens = do_nothing

    def __call__(self, job: Job, place: str) -> NotebookResult:
        self.ran.append(f"{Path(job.out).name} {job.name}")
        return self.happens(job) or self.passes(job)

    def passes(self, job: Job, **changes) -> NotebookResult:
        self.passed += 1
        at = f"2026-11-20T10:00:{self.passed:02}+00:00"
        made = make_measurement("m", (1.0, 1.1), mode=job.mode, device=CPU["label"])
        record = records.Record(job.name, f"{job.name}/m", at, made, None, None, machine.describe())
        records.write(
            Path(job.out, "results", f"{job.name}.json"), [dataclasses.replace(record, **changes)]
        )
        return NotebookResult(job.name, job.name, "passed", seconds=60.0)


@pytest.fixture
def pages(monkeypatch) -> Pages:
    made = Pages()
    monkeypatch.setattr(bench, "run_job", made)
    return made


@pytest.fixture
def run(shelf, pages, monkeypatch) -> Callable[..., int]:
    """The command; ``pages.ran`` tells what ran."""
    monkeypatch.setattr(bench, "resolve_device", lambda name: CPU | {"simulated": name == "sim"})
    monkeypatch.setattr(bench, "_time_loop", lambda: STEADY)

    def run(*arguments: str) -> int:
        pages.ran.clear()
        return bench.main(list(arguments))

    return run


def test_every_page_is_measured_in_several_processes(run, shelf, pages, capsys):
    """Round by round, into one file of that machine, which pyperf's statistics see as several runs."""
    assert run() == 0
    assert pages.ran == [
        f"run-{number} {page}" for number in (1, 2, 3) for page in ("01_a", "02_b")
    ]
    path = shelf / "build" / "bench" / "xeon_r_cpu_2_threads.json"
    runs_of = records.by_name(records.load(path))
    assert {name: len(runs) for name, runs in runs_of.items()} == {"01_a/m": 3, "02_b/m": 3}
    assert "2 benchmarks, 6 measurements" in capsys.readouterr().out


def load_results(shelf: Path) -> list[records.Record]:
    """The measurements in the one file that a bench has left."""
    (path,) = shelf.glob("build/bench/*.json")
    return records.load(path)


def ends(lesson: str, **result) -> Callable[[Job], NotebookResult | None]:
    """A page ends like this; the others pass."""
    return lambda job: NotebookResult(lesson, "", **result) if job.name == lesson else None


def test_a_page_that_lacks_its_tool_leaves_no_results_and_ends_no_bench(run, shelf, pages):
    pages.happens = ends("01_a", status="incomplete")
    assert run("--runs", "1") == 0
    assert pages.ran == ["run-1 01_a", "run-1 02_b"]
    assert {record.name for record in load_results(shelf)} == {"02_b/m"}


def test_what_is_finished_is_not_measured_again(run, pages):
    pages.happens = ends("02_b", status="skipped")
    assert run("--runs", "2") == 0
    assert run("--runs", "2") == 0
    assert pages.ran == []


def test_more_runs_are_added_to_those_that_there_are(run, shelf, pages):
    assert run("--runs", "2") == 0
    assert run("--runs", "3") == 0
    assert pages.ran == ["run-3 01_a", "run-3 02_b"]
    assert len(load_results(shelf)) == 2 * 3


def test_fewer_runs_take_none_away(run, shelf, pages):
    assert run("--runs", "3", "--only", "01") == 0
    assert run("--runs", "1", "--only", "01") == 0
    assert len(load_results(shelf)) == 3


def test_a_run_whose_results_cannot_be_read_is_measured_again(run, shelf, pages):
    assert run("--runs", "3") == 0
    (results,) = shelf.glob("build/bench/full-cpu-*/run-2/results/01_a.json")
    results.write_text("{")
    assert run("--only", "01") == 0
    assert pages.ran == ["run-2 01_a"]


def test_anew_replaces_what_was_measured(run, shelf, pages):
    assert run("--only", "01", "--runs", "3") == 0
    assert run("--only", "01", "--runs", "1", "--anew") == 0
    assert pages.ran == ["run-1 01_a"]
    assert len(load_results(shelf)) == 1


ONCE = ("--runs", "1")


def test_a_run_in_which_code_changed_is_told_and_taken_again(run, shelf, pages, capsys):
    """Of the page that ran meanwhile alone: where the code is as before, what was measured of the other one counts."""
    module = shelf / "utils" / "module.py"

    def edit(job: Job) -> None:
        if job.name == "02_b":
            module.write_text("x = 2\n")

    pages.happens = edit
    assert run(*ONCE) == 1
    assert "changed while 02_b ran, and that run is not kept" in capsys.readouterr().err

    pages.happens = do_nothing
    module.write_text("x = 1\n")
    assert run(*ONCE) == 0
    assert pages.ran == ["run-1 02_b"]


def test_code_that_changed_is_measured_again(run, shelf, pages):
    assert run(*ONCE) == 0
    (shelf / "utils" / "module.py").write_text("x = 2\n")
    assert run(*ONCE) == 0
    assert pages.ran == ["run-1 01_a", "run-1 02_b"]


def test_code_that_is_changed_back_goes_on_where_it_was(run, shelf, pages):
    module = shelf / "utils" / "module.py"
    assert run(*ONCE, "--only", "01") == 0
    module.write_text("x = 2\n")
    assert run(*ONCE) == 0
    module.write_text("x = 1\n")
    assert run(*ONCE) == 0
    assert pages.ran == ["run-1 02_b"]


def test_what_an_editor_or_a_finder_leaves_is_no_change_of_code(run, shelf, pages):
    def leave_swap_file(job: Job) -> None:
        (shelf / "utils" / ".module.py.swp").write_text(job.name)

    pages.happens = leave_swap_file
    assert run(*ONCE) == 0
    (shelf / "utils" / ".DS_Store").write_text("by a Mac's Finder")
    assert run(*ONCE) == 0
    assert pages.ran == []


def test_a_machine_on_battery_is_another_state_and_is_told(run, pages, monkeypatch, capsys):
    assert run(*ONCE) == 0
    unplugged = dataclasses.replace(HERE, power_source="battery")
    monkeypatch.setattr(machine, "describe", lambda: unplugged)
    assert run(*ONCE) == 0
    assert pages.ran == ["run-1 01_a", "run-1 02_b"]
    assert "On battery" in capsys.readouterr().out


@pytest.mark.parametrize("changed", [*machine.find_momentary(), "gpu", "gpu_cores"])
def test_what_changes_by_the_minute_and_what_a_busy_mac_does_not_tell_are_no_other_state(
    run, pages, monkeypatch, changed
):
    assert run(*ONCE) == 0
    busier = dataclasses.replace(HERE, **{changed: (9.0, 9.0, 9.0)})
    monkeypatch.setattr(machine, "describe", lambda: busier)
    assert run(*ONCE) == 0
    assert pages.ran == []


def test_where_every_page_fails_there_are_no_results(run, pages, capsys):
    def fail(job: Job) -> NotebookResult:
        return NotebookResult(job.name, "", reason="cell 1: no")

    pages.happens = fail
    assert run("--runs", "1") == 2
    printed = capsys.readouterr()
    assert "FAILED 01_a: cell 1: no" in printed.out
    assert "no page left any results" in printed.err


def test_a_page_that_fails_is_told_and_takes_nothing_from_the_others(run, shelf, pages, capsys):
    pages.happens = ends("02_b", reason="cell 3: ValueError: no")
    assert run("--runs", "1") == 1
    assert {record.name for record in load_results(shelf)} == {"01_a/m"}
    assert "FAILED 02_b: cell 3: ValueError: no" in capsys.readouterr().out


def test_a_page_that_failed_is_measured_when_it_is_mended(run, pages):
    pages.happens = ends("02_b", reason="cell 3: ValueError: no")
    assert run() == 1
    pages.happens = do_nothing
    assert run() == 0
    assert pages.ran == [f"run-{number} 02_b" for number in (1, 2, 3)]


@pytest.fixture
def drifted(run, shelf, pages, monkeypatch) -> dict[str, records.Record]:
    """The records of a page around which the machine became slower, by name; one has a sentinel of its own."""
    loops = iter([1.0, 1.5] * 2)  # what a fixed loop takes before and after each page

    def save_two(job: Job) -> NotebookResult:
        result, path = pages.passes(job), Path(job.out, "results", f"{job.name}.json")
        (made,) = records.load(path)
        watched = dataclasses.replace(made, name=f"{job.name}/own", sentinel_drift=0.25)
        records.write(path, [made, watched])
        return result

    pages.happens = save_two

    def time_loop():
        return dataclasses.replace(STEADY, samples=(next(loops),))

    monkeypatch.setattr(bench, "_time_loop", time_loop)
    assert run("--runs", "1", "--only", "01") == 0
    return {record.name: record for record in load_results(shelf)}


@pytest.mark.parametrize(("name", "own"), [("01_a/m", None), ("01_a/own", 0.25)])
def test_the_drift_around_a_page_is_noted_beside_that_of_its_sentinels(drifted, name, own):
    assert drifted[name].page_drift == 0.5
    assert drifted[name].sentinel_drift == own


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(
            ["--device", "sim"], "times of the simulated Apple GPU say nothing", id="simulated"
        ),
        pytest.param(["--only", "99"], "99", id="no such page"),
    ],
)
def test_what_says_nothing_is_not_measured(run, shelf, capsys, arguments, words):
    assert run(*arguments) == 2
    assert words in capsys.readouterr().err
    assert not list(shelf.glob("build/bench/*.json"))


def test_no_runs_are_refused(run):
    with pytest.raises(SystemExit, match="2"):
        run("--runs", "0")


def test_results_of_fast_mode_have_a_file_of_their_own(run, shelf):
    assert run("--mode", "fast") == 0
    (path,) = shelf.glob("build/bench/*.json")
    assert path.name == "fast_xeon_r_cpu_2_threads.json"
