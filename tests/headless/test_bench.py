"""make bench: several processes of every page in one file, nothing finished is lost, nothing unlike is mixed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from metallab import machine, paths, records, timing
from metallab.headless import bench
from metallab.headless.runner import Job, NotebookResult

CPU = {"device": "cpu", "label": "Xeon(R) CPU, 2 threads", "simulated": False}
STEADY = bench._time_loop()
HERE = dataclasses.replace(machine.describe(), power_source="AC", low_power_mode=False)


@pytest.fixture
def shelf(tmp_path, monkeypatch) -> Path:
    """A checkout with two pages and one module."""
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


class Pages:
    """Stands in for running a job: a page writes its record, unless `happens` does something else."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.passed = 0
        self.happens = lambda job: None

    def __call__(self, job: Job, place: str) -> NotebookResult:
        self.ran.append(f"{Path(job.out).name} {job.name}")
        return self.happens(job) or self.passes(job)

    def passes(self, job: Job, **changes) -> NotebookResult:
        self.passed += 1
        at = f"2026-11-20T10:00:{self.passed:02}+00:00"
        made = timing.Measurement(
            "m", "latency", (1.0, 1.1), 2.0, 1, 3, "quiet", job.mode, CPU["label"], False
        )
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


def test_a_page_that_lacks_its_tool_leaves_no_results_and_ends_no_bench(run, pages):
    pages.happens = lambda job: (
        NotebookResult("01_a", "", "incomplete") if job.name == "01_a" else None
    )
    assert run("--runs", "1") == 0
    assert pages.ran == ["run-1 01_a", "run-1 02_b"]


def test_what_is_finished_is_not_measured_again(run, shelf, pages, capsys):
    pages.happens = lambda job: (
        NotebookResult("02_b", "", "skipped") if job.name == "02_b" else None
    )
    assert run("--runs", "2") == 0
    assert run("--runs", "2") == 0
    assert pages.ran == []
    assert run("--runs", "3") == 0
    assert pages.ran == ["run-3 01_a", "run-3 02_b"]
    assert run("--runs", "1") == 0
    (path,) = shelf.glob("build/bench/*.json")
    assert len(records.load(path)) == 3, "an earlier bench of this state had more runs"
    (results,) = shelf.glob("build/bench/full-cpu-*/run-2/results/01_a.json")
    results.write_text("{")
    assert run("--only", "01") == 0
    assert pages.ran == ["run-2 01_a"]
    assert run("--only", "01", "--anew", "--runs", "1") == 0
    assert pages.ran == ["run-1 01_a"]
    assert len(records.load(path)) == 1


def test_another_state_of_code_or_machine_is_never_mixed_in(run, shelf, pages, monkeypatch, capsys):
    """A run in which something changed is not kept; the next bench has a folder of its own; going back goes on."""
    module = shelf / "utils" / "module.py"

    def edited(job):
        if job.name == "02_b":
            module.write_text("x = 2\n")

    pages.happens = edited
    assert run() == 1
    assert "changed while 02_b ran, and that run is not kept" in capsys.readouterr().err
    (shelf / "utils" / ".DS_Store").write_text("by a Mac's Finder")
    pages.happens = lambda job: (shelf / "utils" / ".module.py.swp").write_text(job.name) and None
    assert run("--runs", "1") == 0
    assert pages.ran == ["run-1 01_a", "run-1 02_b"]
    module.write_text("x = 1\n")
    assert run("--runs", "1") == 0
    assert pages.ran == ["run-1 02_b"]
    unplugged = dataclasses.replace(HERE, power_source="battery")
    monkeypatch.setattr(machine, "describe", lambda: unplugged)
    assert run("--runs", "1") == 0
    assert len(pages.ran) == 2
    assert "On battery" in capsys.readouterr().out
    busier = dataclasses.replace(unplugged, load_average=(9.0, 9.0, 9.0), gpu=None, gpu_cores=None)
    monkeypatch.setattr(machine, "describe", lambda: busier)
    assert run("--runs", "1") == 0
    assert pages.ran == []


def test_a_page_that_fails_takes_nothing_from_the_others(run, shelf, pages, capsys):
    pages.happens = lambda job: NotebookResult(job.name, "", reason="cell 1: no")
    assert run("--runs", "1") == 2
    printed = capsys.readouterr()
    assert "FAILED 01_a: cell 1: no" in printed.out
    assert "no page left any results" in printed.err
    pages.happens = lambda job: (
        NotebookResult("02_b", "", reason="cell 3: ValueError: no") if job.name == "02_b" else None
    )
    assert run() == 1
    (path,) = shelf.glob("build/bench/*.json")
    assert {record.name for record in records.load(path)} == {"01_a/m"}
    assert "FAILED 02_b: cell 3: ValueError: no" in capsys.readouterr().out
    pages.happens = lambda job: None
    assert run() == 0
    assert pages.ran == [f"run-{number} 02_b" for number in (1, 2, 3)]


def test_the_drift_around_a_page_is_noted_beside_that_of_its_sentinels(
    run, shelf, pages, monkeypatch
):
    times = iter([1.0, 1.5] * 2)

    def one_of_two(job: Job) -> NotebookResult:
        result, path = pages.passes(job), Path(job.out, "results", f"{job.name}.json")
        (made,) = records.load(path)
        records.write(
            path, [made, dataclasses.replace(made, name=f"{job.name}/own", sentinel_drift=0.25)]
        )
        return result

    pages.happens = one_of_two
    monkeypatch.setattr(
        bench, "_time_loop", lambda: dataclasses.replace(STEADY, samples=(next(times),))
    )
    assert run("--runs", "1", "--only", "01") == 0
    (path,) = shelf.glob("build/bench/*.json")
    loaded = records.load(path)
    assert {record.name: record.page_drift for record in loaded} == {"01_a/m": 0.5, "01_a/own": 0.5}
    assert {record.name: record.sentinel_drift for record in loaded} == {
        "01_a/m": None,
        "01_a/own": 0.25,
    }


def test_what_says_nothing_is_not_measured(run, shelf, capsys):
    assert run("--device", "sim") == 2
    assert "times of the simulated Apple GPU say nothing" in capsys.readouterr().err
    assert run("--only", "99") == 2
    with pytest.raises(SystemExit):
        run("--runs", "0")
    assert not list(shelf.glob("build/bench/*.json"))
    assert run("--mode", "fast") == 0
    assert [path.name for path in shelf.glob("build/bench/*.json")] == [
        "fast_xeon_r_cpu_2_threads.json"
    ]
