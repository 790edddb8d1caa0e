"""`metallab versus`: what is held against what, and what is told of it. Processes are real, their clock is not."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from metallab import machine, paths, records, turns
from metallab.__main__ import main
from metallab.versus import cases, command, lockstep, report, sides, worker
from metallab.versus.lockstep import Command, Settings

CASES = """
import os, sys, time
from metallab.versus import case

now = [0]
time.perf_counter_ns = lambda: now[0]  # a clock that work moves: a process of this file knows no other
TAKES = int(os.environ.get("TAKES", "1000000"))

def work(output):
    def go():
        now[0] += TAKES
        return output
    return go

@case(group="01", sizes={"n": (2, 3)})
def steady(n, device):
    print("what a case prints is in nobody's way")
    return work({"n": n, "on the CPU": device == "cpu"})

@case
def by_side():
    return work(TAKES)

@case
def nothing():
    return work(None)

@case
def empty():
    return work([])

@case
def new():
    import of_the_new_side
    return work(1)

@case
def crashes():
    calls = []
    def go():
        calls.append(1)
        if TAKES == 2000000 and len(calls) > 8:
            os.kill(os.getpid(), 9)
        return len(calls) > 0
    return go

@case
def no_function():
    return 3

@case
def dtype():
    import numpy as np
    return work(np.zeros(3, np.float64 if TAKES == 1000000 else np.float32))

@case
def shapes():
    import numpy as np
    return work(np.zeros((TAKES // 1000000, 2)))

@case
def near():
    import numpy as np
    return work(np.array([1.0, TAKES / 1000000]))

@case
def prints():
    print("noise of another case")
    return work(1)

@case
def exits():
    sys.exit(0)

@case
def ends():
    os._exit(7)

left = []

@case
def leaves_something():
    left.append(1)
    return work(1)

@case
def finds_something():
    return work({"found": len(left), "array": __import__("numpy").arange(3.0)})

@case
def parts():
    return work({"one": 1, "two": 2} if TAKES == 1000000 else {"one": 1})
"""


@pytest.fixture(autouse=True)
def nothing_stays_behind(monkeypatch):
    """No clock that stands (the file of cases is loaded in this process to be listed), folder to import from or job."""
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(time, "perf_counter_ns", time.perf_counter_ns)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


@pytest.fixture
def file(tmp_path):
    (tmp_path / "cases.py").write_text(CASES)
    return tmp_path / "cases.py"


def versus(arguments: list[str]) -> int:
    """``metallab versus``, in this process; its exit code."""
    return main(["versus", *arguments])


def side(**variables: str) -> Command:
    """A side in this environment."""
    return Command(Path(sys.executable), {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), **variables})


def outcome(file: Path, name: str, a: Command, b: Command) -> lockstep.Outcome:
    """One pair of processes: the budget is spent then."""
    (one,) = lockstep.compare([cases.load(file)[name]], [a, b], Settings(file, seconds=0.0))
    return one


def test_ratios_are_those_of_the_sides(file):
    compared = outcome(file, "steady[n=3]", side(), side(TAKES="2000000"))
    assert compared.answer == "UNSURE"
    assert compared.interval.speed == pytest.approx(0.5)
    assert compared.reason.startswith("1 of 8 pairs of processes: give it --seconds ")
    (pair,) = compared.pairs
    assert set(pair.a) == {0.001}
    assert set(pair.b) == {0.002}
    assert pair.calls == 3
    assert "0.500 (no interval)" in report.sentence(compared)


@pytest.mark.parametrize(
    ("name", "takes", "answer", "reason"),
    [
        ("by_side", "2000000", "DIFFERS", "first B's 2000000 for A's 1000000; int64 must be equal"),
        ("shapes", "2000000", "DIFFERS", "shapes differ, A's (1, 2) and B's (2, 2)"),
        ("near", "2000000", "DIFFERS", "worst at (1,): B's 2 for A's 1: 1 apart"),
        ("by_side", "2000000", "DIFFERS", "; seed what is random in the case"),
        ("dtype", "2000000", "DIFFERS", "result is float64 of A and float32 of B: if it may be, cast it in the case"),
        ("parts", "2000000", "DIFFERS", "only A returns result.two"),
        ("nothing", "1000000", "NEITHER", "both: TypeError: the case returns None"),
        ("empty", "1000000", "NEITHER", "the case returns nothing"),
        ("no_function", "1000000", "NEITHER", "both: TypeError: the case gives a int: return the function to be timed"),
        ("crashes", "2000000", "LOST", "B: its process was killed by SIGKILL"),
        ("exits", "1000000", "NEITHER", "both: the case ends its process, which it must not: SystemExit: 0 (cases.py,"),
    ],
)
def test_what_cannot_be_compared_gets_no_ratio(file, name, takes, answer, reason):
    compared = outcome(file, name, side(), side(TAKES=takes))
    assert (compared.answer, compared.interval) == (answer, None)
    assert reason in compared.reason


def test_arrays_of_one_dtype_are_compared(file):
    assert outcome(file, "dtype", side(), side()).interval


def test_a_list_of_numbers_is_one_array(tmp_path):
    """However many it has: each part of a result costs time."""
    import numpy as np

    given = {
        "flat": [1, 2.5], "rows": [(1, 2), (3, 4)], "ragged": [[1], [2, 3]], "mixed": [np.float32(1), np.zeros(2)],
    }  # fmt: skip
    dtypes = worker.save_output(given, tmp_path / "output.npz")
    arrays = worker.load_output(tmp_path / "output.npz")
    assert {name: array.shape for name, array in arrays.items()} == {
        "result.flat": (2,), "result.rows": (2, 2), "result.ragged.0": (1,), "result.ragged.1": (2,),
        "result.mixed.0": (), "result.mixed.1": (2,),
    }  # fmt: skip
    assert dtypes == {"result.mixed.0": "float32", "result.mixed.1": "float64"}


def test_an_output_is_read_as_it_was_written(tmp_path):
    """From one array for each dtype: a dictionary of thousands of numbers would take many seconds in as many files."""
    import numpy as np

    numbers = np.arange(6.0).reshape(2, 3)
    given = {
        "turned": numbers.T, "swapped": numbers.astype(">f8"), "none": np.zeros((0, 4)), "yes": True, "i": 1j,
        "single": np.float32(0.1), "half": np.ones((2, 1), np.float16), **{f"n{n}": n for n in range(99)},
    }  # fmt: skip
    worker.save_output(given, tmp_path / "output.npz")
    arrays = worker.load_output(tmp_path / "output.npz")
    assert list(arrays) == [f"result.{name}" for name in given]
    for name, value in given.items():
        np.testing.assert_array_equal(arrays[f"result.{name}"], value)
        assert arrays[f"result.{name}"].shape == np.shape(value)
        assert arrays[f"result.{name}"].dtype == np.asarray(value).dtype.newbyteorder("=")
    with np.load(tmp_path / "output.npz") as file:
        assert set(file.files) == {"index", *(f"of_{dtype}" for dtype in (
            "float64", "bool", "complex128", "float32", "float16", np.asarray(1).dtype.name))}  # fmt: skip


def test_parts_of_one_name_are_refused(tmp_path):
    for given, name in (({"1": 2, 1: 1.0}, "result.1"), ({"a.b": 1, "a": {"b": 2}}, "result.a.b")):
        with pytest.raises(TypeError, match=f"two parts of the output are called {name}: give its keys other names"):
            worker.save_output(given, tmp_path / "output.npz")


def test_a_dtype_has_one_name_in_every_framework(tmp_path):
    import torch

    assert worker.save_output(torch.zeros(2, dtype=torch.bfloat16), tmp_path / "output.npz") == {"result": "bfloat16"}


def test_what_an_old_side_lacks_is_new_and_what_a_new_one_lacks_is_lost(file, tmp_path):
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "of_the_new_side.py").touch()
    newer = side(PYTHONPATH=str(tmp_path / "newer"))
    compared = outcome(file, "new", side(), newer)
    assert (compared.answer, compared.is_finding) == ("NEW", False)
    assert "A: ModuleNotFoundError: No module named 'of_the_new_side' (cases.py, line 34)" in compared.reason
    compared = outcome(file, "new", newer, side())
    assert (compared.answer, compared.is_finding) == ("LOST", True)
    assert report.exit_code([compared]) == 1


def test_a_pair_takes_a_turn(file, tmp_path, monkeypatch):
    monkeypatch.setenv(turns.VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(NotADirectoryError):
        outcome(file, "by_side", side(), side())


def test_processes_are_moved_in_memory_held_to_their_threads_and_gone_afterwards(file, monkeypatch):
    started, real = [], subprocess.Popen
    monkeypatch.setattr(
        lockstep.subprocess, "Popen", lambda *a, **k: started.append((real(*a, **k), a[0], k)) or started[-1][0]
    )
    monkeypatch.setenv("METALLAB_DEVICE", "sim")
    for _ in range(2):
        outcome(file, "by_side", side(), side())
    assert all(process.poll() is not None for process, *_ in started)
    told = [json.loads(arguments[-1]) for _, arguments, _ in started]
    assert len({each["seed"] for each in told}) == 4
    assert [len(each["cores"]) for each in told] == [1 if hasattr(os, "sched_setaffinity") else 0] * 4
    assert told[0]["cores"] == told[1]["cores"]
    environments = [options["env"] for *_, options in started]
    assert len({len(each["METALLAB_VERSUS_PADDING"]) for each in environments}) > 1
    assert {each["OMP_NUM_THREADS"] for each in environments} == {"1"}
    assert not any("METALLAB_DEVICE" in each for each in environments)


class InOrder(lockstep.random.Random):
    """Chance that leaves an order as it is."""

    def sample(self, population, k):
        return list(population)[:k]


def test_cases_share_processes_and_outlive_one_that_ends_them(file, monkeypatch):
    """What a case ends is started again for those that are left."""
    monkeypatch.setattr(lockstep, "MOST_ROUNDS", 1)
    started, real = [], lockstep._started
    monkeypatch.setattr(lockstep, "_started", lambda *given: started.append(given) or real(*given))
    every = cases.load(file)
    given = [every[name] for name in ("crashes", "steady[n=2]", "steady[n=3]", "no_function")]
    chance = InOrder()
    got = {
        outcome.case.name: outcome
        for outcome in lockstep.compare(given, [side(), side(TAKES="2000000")], Settings(file), chance)
    }
    assert {name: outcome.answer for name, outcome in got.items()} == {
        "steady[n=2]": "SLOWER", "steady[n=3]": "SLOWER", "crashes": "LOST", "no_function": "NEITHER",
    }  # fmt: skip
    assert len(got["steady[n=2]"].pairs) == len(got["steady[n=3]"].pairs) == 8
    assert len(started) == 2 * (2 + 8)  # what has ended is tried once more


def test_what_another_case_has_printed_is_not_quoted(file, monkeypatch):
    monkeypatch.setattr(lockstep, "MOST_ROUNDS", 1)
    every = cases.load(file)
    given = [every[name] for name in ("prints", "ends")]
    got = lockstep.compare(given, [side(), side()], Settings(file, seconds=0.0), InOrder())
    reasons = {outcome.case.name: outcome.reason for outcome in got}
    assert reasons["ends"] == "both: its process exited with code 7"


def test_a_case_that_changes_what_another_one_returns_is_told(file, monkeypatch):
    """Both sides are wrong alike then, wherever it came first."""
    monkeypatch.setattr(lockstep, "MOST_ROUNDS", 1)
    every = cases.load(file)
    given = [every[name] for name in ("leaves_something", "finds_something")]
    got = lockstep.compare(given, [side(), side()], Settings(file), lockstep.random.Random(0))
    found = {outcome.case.name: outcome for outcome in got}
    assert {name: outcome.answer for name, outcome in found.items()} == {
        "leaves_something": "SAME", "finds_something": "DIFFERS",
    }  # fmt: skip
    assert "output of a further pair of processes is not A's of the first: result['result.found']: 1 of 1 values" in (
        found["finds_something"].reason
    )


def test_an_output_is_known_by_all_that_it_has():
    """And plain numbers without NumPy, which takes longer to import than Python."""
    import numpy as np
    import torch

    one = {"a": [1, 2.5], "b": np.arange(4.0), "c": torch.ones(2, dtype=torch.bfloat16)}
    others = [
        one | {"a": [1, 2.5000001]}, one | {"b": np.arange(4.0).reshape(2, 2)}, one | {"b": np.arange(4.0) + 1e-9},
        one | {"b": np.arange(4)}, one | {"c": torch.ones(2)}, {"a": [1, 2.5], "b": np.arange(4.0)},
    ]  # fmt: skip
    prints = [worker.fingerprint(each) for each in (one, *others)]
    assert worker.fingerprint(dict(one)) == prints[0]
    assert len(set(prints)) == len(prints)
    code = f"import sys; sys.path.insert(0, {os.fspath(lockstep.WORKER.parent)!r}); import worker; "
    asked = "worker.fingerprint({'a': [1, 2.5]}); assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-S", "-c", code + asked], check=True)


KILLED = lockstep._NoRatioError("LOST", "B: its process was killed by SIGKILL")
ALIKE = lockstep.Pair((1.0,), (1.0,), 1, (1.0, 1.0))
ONCE_FASTER = [lockstep.Pair((1.0,), (0.98,), 1, (1.0, 1.0)), *[lockstep.Pair((1.0,), (1.6,), 1, (1.0, 1.0))] * 9]


@pytest.mark.parametrize(
    ("came", "is_gone", "answer", "pairs", "reason"),
    [
        ([KILLED, *[ALIKE] * 8], True, "SAME", 8, ""),
        ([ALIKE, KILLED, ALIKE, KILLED, *[ALIKE] * 6], True, "SAME", 8, ""),
        ([KILLED, KILLED], True, "LOST", 0, "B: its process was killed by SIGKILL"),
        ([KILLED], False, "LOST", 0, "B: its process was killed by SIGKILL"),
        ([ALIKE, KILLED, KILLED], True, "UNSURE", 1, "a further pair of processes failed: B: its process was killed"),
        ([ALIKE, KILLED, KILLED], False, "UNSURE", 1, "a further pair of processes failed: B: its process was killed"),
        ([*ONCE_FASTER, KILLED, KILLED], True, "SLOWER", 10, "a further pair of processes failed"),
    ],
)
def test_a_pair_that_fails_is_tried_once_more_and_takes_nothing_from_the_others(
    file, monkeypatch, came, is_gone, answer, pairs, reason
):
    """A process may be killed where memory is short, and B has done what it is said to lose then."""
    left = iter(came)

    def pair(*_, **__):
        if isinstance(one := next(left), Exception):
            raise one
        return one

    side = types.SimpleNamespace(is_over=is_gone, is_gone=is_gone)
    monkeypatch.setattr(lockstep, "_pair", pair)
    monkeypatch.setattr(lockstep, "_live_pair", lambda *_: contextlib.nullcontext({"B": side}))
    (got,) = lockstep.compare([cases.load(file)["by_side"]], [], Settings(file, seconds=1e9))
    assert (got.answer, len(got.pairs), next(left, None)) == (answer, pairs, None)
    assert got.reason.startswith(reason)
    assert bool(got.reason) == bool(reason)


def test_a_side_that_hangs_is_told(file, monkeypatch, capsys):
    monkeypatch.setattr(lockstep, "NOTICE", 0.0)
    monkeypatch.setattr(lockstep, "SHORTEST_PATIENCE", 0.01)
    assert "no answer within 0.01 s" in outcome(file, "by_side", side(), side()).reason
    assert "versus: A is waited for, by_side: 0 s more" in capsys.readouterr().err
    assert Settings(file, seconds=1e6).patience == lockstep.PATIENCE


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "mark functions with @case"),
        ("import of_no_package", "import what a case needs inside of its function"),
        ("from metallab.versus import case\n@case\ndef one(): ...\ntwo = one", "two cases have one name"),
        ("from metallab.versus import case\n@case(sizes={'n': 5})\ndef one(): ...", r"one: .* write {'n': \(5,\)}"),
        ("from metallab.versus import case\n@case(sizes=[5])\ndef one(n): ...", r"one: .* write {'n': \[5\]}"),
        ("from metallab.versus import case\n@case(sizes={'n': ()})\ndef one(n): ...", r"one: there are no sizes of n"),
        ("import helper", "write what helper.py beside it has into this file"),
        ("import sys; sys.exit(3)", "SystemExit: 3; let it define cases, and not end the program"),
        ("raise ValueError('one\\ntwo')", "ValueError: one two$"),
        ("from metallab.versus import case\n@case('01')\ndef one(): ...", r"one: .* write @case\(group='01'\)"),
    ],
)
def test_a_file_of_cases_that_cannot_be_used_says_why(tmp_path, text, words):
    (tmp_path / "cases.py").write_text(text)
    (tmp_path / "helper.py").touch()
    with pytest.raises(cases.CaseError, match=words):
        cases.load(tmp_path / "cases.py")
    with pytest.raises(cases.CaseError, match="there is no such file"):
        cases.load(tmp_path / "none.py")
    shutil.copy(tmp_path / "cases.py", tmp_path / "cases")
    with pytest.raises(cases.CaseError, match=r"it is no file of Python: give it a name that ends in \.py"):
        cases.load(tmp_path / "cases")


# --- sides ---


def git(folder: Path, *arguments: str) -> str:
    named = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", folder, *named, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Somebody's own project, the current folder: a repository without a commit."""
    root = tmp_path / "project"
    git(tmp_path, "init", "--quiet", str(root))
    monkeypatch.chdir(root)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # what imports write is no change of a worktree
    return root


def commit(root: Path) -> None:
    """Commit all that lies in a repository."""
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "a state")


@pytest.fixture
def repository(root):
    """The project in two states: the second takes twice the time, and cannot do what the first can."""
    package = root / "src" / "theirs"
    package.mkdir(parents=True)
    (root / "cases.py").write_text(
        CASES
        + """
@case
def theirs():
    import theirs
    go = work(1)
    return lambda: [go() for _ in range(theirs.CALLS)][0]

@case
def lost():
    import theirs
    return work(theirs.OLD)
"""
    )
    (package / "__init__.py").write_text("CALLS, OLD = 1, 1\n")
    commit(root)
    (package / "__init__.py").write_text("CALLS = 2\n")
    commit(root)
    return root


def test_two_revisions_of_somebody_s_project(repository, tmp_path, capsys, monkeypatch):
    """All of it: the worktree, what differs, the files that are imported, the verdict, the results, the exit code."""
    monkeypatch.setattr(lockstep, "MOST_ROUNDS", 3)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "job.md"))
    out = tmp_path / "out"
    given = ["HEAD~1", "HEAD", "cases.py", "--only", "theirs", "--only", "lost", "--device", "cpu", "--out", str(out)]
    assert versus(given) == 1
    told = capsys.readouterr().out
    old = sides.parse("HEAD~1", repository).checkout
    assert old.is_relative_to(tmp_path / "cache" / "metallab")
    assert (old / "src" / "theirs" / "__pycache__").is_dir()
    assert f"A imports theirs from {old / 'src' / 'theirs' / '__init__.py'}" in told
    assert "SLOWER  theirs: 0.500 (0.500 to 0.500) (8 pairs of processes, 24 rounds" in told
    assert "LOST    lost: only A can do it: B: AttributeError: module 'theirs' has no attribute 'OLD'" in told
    assert "Cases: 1 LOST, 1 SLOWER." in told
    assert told.splitlines()[-1] == "Exit code 1: B is slower in a case, or cannot do what A can."
    job = (tmp_path / "job.md").read_text()
    assert job.startswith("### B is slower in a case, or cannot do what A can\n\n```\nwhat differs  A ")
    assert "LOST    lost: only A can do it: B: AttributeError" in job
    assert re.search(r"\nSLOWER  theirs  1\S* ms +2\S* ms +0.500 \(0.500 to 0.500\) +8\n", job)
    assert job.endswith("is the same.\n```\n")
    kept = records.by_name(records.load(out / "versus.json"))
    assert {name: len(runs) for name, runs in kept.items()} == {"versus/theirs/A": 8, "versus/theirs/B": 8}
    a, b = (kept[f"versus/theirs/{name}"][0] for name in "AB")
    assert (a.measurement.median, b.measurement.median) == (0.001, 0.002)
    revisions = [git(repository, "rev-parse", "HEAD~1"), git(repository, "rev-parse", "HEAD")]
    assert [run.machine.git_revision for run in (a, b)] == revisions
    assert (out / "versus.png").read_bytes().startswith(b"\x89PNG")
    answers = json.loads((out / "answers.json").read_text())
    assert [answers["sides"][name]["git_revision"] for name in "AB"] == revisions
    theirs = next(each for each in answers["cases"] if each["name"] == "theirs")
    assert (theirs["answer"], theirs["low"], theirs["high"]) == ("SLOWER", pytest.approx(0.5), pytest.approx(0.5))
    assert "revision" in {each["what differs"] for each in answers["differences"]}


def test_the_docs_example_runs_as_it_is_printed(root, capsys, monkeypatch, tmp_path):
    text = (paths.ROOT / "docs" / "your_own_code.md").read_text()
    (code,) = (block.partition("```")[0] for block in text.split("```python\n") if block.startswith("# cases.py"))
    line = next(line for line in text.splitlines() if line.startswith("metallab versus HEAD~1 . cases.py"))
    (root / "cases.py").write_text(code)
    for total in ("sum(numbers) * 1.0", "sum(numbers)"):
        (root / "theirs.py").write_text(f"def total(numbers):\n    return {total}\n")
        commit(root)
    monkeypatch.setattr(lockstep, "MOST_ROUNDS", 1)
    arguments = ["--device", "cpu", "--seconds", "1", "--out", str(tmp_path / "out")]
    assert versus([*shlex.split(line)[2:], *arguments]) in (0, 1, 2)  # which is a matter of times
    told = capsys.readouterr().out
    assert re.search(r"^(SLOWER|FASTER|SAME|UNSURE) +total\[n=100\]: \d", told, re.MULTILINE)
    assert re.search(r"^(SLOWER|FASTER|SAME|UNSURE) +total\[n=10000\]: \d", told, re.MULTILINE)


def test_worktrees_are_kept_and_looked_at(repository):
    revision = git(repository, "rev-parse", "HEAD")
    folder = sides.worktree(revision, repository)
    mark = folder / ".git"
    before = mark.stat().st_mtime_ns
    assert sides.worktree(revision, repository) == folder
    assert mark.stat().st_mtime_ns == before
    (folder / "src" / "theirs" / "__init__.py").write_text("CALLS = 9\n")
    with pytest.raises(sides.SideError, match="remove that folder"):
        sides.worktree(revision, repository)
    shutil.rmtree(folder)  # as make clean does
    assert sides.worktree(revision, repository) == folder


def test_a_worktree_is_made_by_one_command_at_a_time(repository, monkeypatch):
    """Another one that asks meanwhile gets it whole."""
    revision, asked, second = git(repository, "rev-parse", "HEAD"), [], threading.Event()
    real = sides._git

    def slow(folder, *arguments):
        if arguments[:2] == ("worktree", "add"):
            asked.append(arguments)
            second.wait(0.5) if len(asked) == 1 else second.set()
        return real(folder, *arguments)

    monkeypatch.setattr(sides, "_git", slow)
    with ThreadPoolExecutor(2) as pool:
        folders = set(pool.map(sides.worktree, [revision] * 2, [repository] * 2))
    assert len(asked) == len(folders) == 1


def test_folders_to_import_from_are_those_of_the_current_folder(repository, tmp_path, monkeypatch):
    """A side's processes have another one, whose folder of that name would be taken."""
    (repository / "src" / "old").mkdir()
    monkeypatch.chdir(repository / "src")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "kept").mkdir()
    of = lambda folders: sides.parse(f"HEAD,PYTHONPATH={folders}", repository).variables["PYTHONPATH"]
    assert of("old") == str(repository / "src" / "old")
    assert of(f"~/kept{os.pathsep}..") == f"{tmp_path / 'kept'}{os.pathsep}{repository}"
    with pytest.raises(sides.SideError, match=f"PYTHONPATH names {repository / 'src' / 'new'}, which is not there"):
        of("new")


def test_a_side_is_its_parts(repository, tmp_path, monkeypatch):
    (tmp_path / "env" / "bin").mkdir(parents=True)
    python = tmp_path / "env" / "bin" / "python"
    python.symlink_to(sys.executable)
    both = sides.parse(f"HEAD,{tmp_path / 'env'},A_B=c=d", repository)
    head = git(repository, "rev-parse", "HEAD")
    assert (both.revision, both.python, both.variables) == (head, python, {"A_B": "c=d"})
    assert sides.parse(r"A=b\,c,D=e", repository).variables == {"A": "b,c", "D": "e"}
    assert both.source == both.checkout / "src"
    tree = sides.parse(".", repository)
    assert (tree.revision, tree.checkout, tree.python) == (None, repository, Path(sys.executable))
    for text, words in (
        ("HEAD,HEAD~1", "more than one revision"),
        (f"{python},{python}", "more than one environment"),
        ("no-such-thing", f"is no revision of {repository}, and no Python .*; a variable is NAME=value"),
        (".,FOO", "'FOO' is no revision .*; a variable is FOO=value"),
    ):
        with pytest.raises(sides.SideError, match=words):
            sides.parse(text, repository)
    with pytest.raises(sides.SideError, match=r"'HEAD' is no revision \(.* lies in no git repository\)"):
        sides.parse("HEAD", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(sides.SideError, match="git is needed for revisions, and is not there"):
        sides.parse("HEAD", repository)


def test_what_differs_is_told(repository):
    two = {"A": "HEAD~1", "B": ".,LEVEL=2"}
    described = {name: sides.describe(sides.parse(text, repository), "cpu") for name, text in two.items()}
    sides.assert_comparable(described)
    described["A"].packages["torch"] = "2.14.0"
    lines = str(sides.differences(described)).splitlines()
    named = [line.split("  ")[0] for line in lines]
    assert named[:2] == ["what differs", "revision"]
    assert {"variable LEVEL", "package torch", "folder"} <= set(named)
    assert "Python" not in named
    described["A"].packages.update({f"one{number:02}": "1" for number in range(30)})
    lines = str(sides.differences(described)).splitlines()
    assert lines[-1] == f"and {30 + len(named) - 1 - sides.MOST_DIFFERENCES} more"
    packages = [line.split()[1] for line in lines if line.startswith("package")]
    assert packages == ["torch", *sorted(packages[1:])]


def test_environments_that_run_one_working_tree_are_told_so(repository, tmp_path):
    """Each may have another version of it installed, and who compares environments may mean these."""
    (tmp_path / "python").symlink_to(sys.executable)
    of = {name: sides.parse(text, repository) for name, text in (("A", "."), ("B", str(tmp_path / "python")))}
    described = {name: sides.Description(side, "3", {}, {"theirs": ""}, "cpu", "") for name, side in of.items()}
    told = str(sides.differences(described)).splitlines()[-1]
    assert told.startswith(
        f"Both run theirs of {repository / 'src'}. To compare what environments have installed of it"
    )
    described["B"] = dataclasses.replace(described["A"], side=sides.parse("HEAD", repository))
    assert "Both run" not in str(sides.differences(described))


def test_a_clean_working_tree_has_the_files_of_its_commit(repository):
    of = {name: sides.parse(text, repository) for name, text in (("A", "HEAD"), ("B", "."))}
    described = {name: sides.Description(side, "3", {}, {}, "cpu", "") for name, side in of.items()}
    told = lambda: str(sides.differences(described)).splitlines()[-1]
    commit_of_both = git(repository, "rev-parse", "HEAD")[:12]
    assert told() == (
        "Both sides have the same files, but for those that git ignores: the working tree is a clean checkout of "
        f"{commit_of_both}."
    )
    (repository / "src" / "theirs" / "__init__.py").write_text("CALLS = 9\n")
    assert "the same files" not in told()
    git(repository, "checkout", "--quiet", "src")
    described["A"] = dataclasses.replace(described["A"], side=sides.parse("HEAD~1", repository))
    assert "the same files" not in told()


def test_what_differs_is_what_processes_have(repository, capsys, monkeypatch):
    """Not what was written: a variable of this process is also the other side's."""
    monkeypatch.setenv("LEVEL", "1")
    assert versus([".", ".,LEVEL=1", "cases.py", "--device", "cpu"]) == 2
    assert "both sides are the same" in capsys.readouterr().err
    two = {"A": ".", "B": ".,LEVEL=2"}
    described = {name: sides.describe(sides.parse(text, repository), "cpu") for name, text in two.items()}
    sides.assert_comparable(described)
    assert ["variable LEVEL", "1", "2"] in sides.differences(described).rows


def test_numbers_of_threads_are_compared_without_holding_them(repository, capsys):
    assert versus([".", ".,OMP_NUM_THREADS=2", "cases.py", "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert "B (.,OMP_NUM_THREADS=2) sets OMP_NUM_THREADS, but each side is held to 1 thread" in error
    assert "compare numbers of threads with --threads 0" in error
    more = sides.parse(".,OMP_NUM_THREADS=2", repository)
    sides.assert_held({"A": more, "B": more}, 0)
    assert lockstep.environment(more.command, 0)["OMP_NUM_THREADS"] == "2"


FIND = '[tool.setuptools.packages.find]\nwhere = ["lib"]\n'
PACKAGE_DIR = '[tool.setuptools]\npackages = ["model"]\npackage-dir = {"" = "lib", "more" = "lib/more"}\n'


@pytest.mark.parametrize(
    ("files", "project", "source", "modules"),
    [
        (["utils/__init__.py", "utils/deeper/__init__.py", "model/__init__.py"], "", ".", {"utils", "model"}),
        (["utils/deeper/__init__.py", "model/__init__.py"], "", ".", {"model"}),
        (["lib/model/__init__.py", "src/gen.py"], FIND, "lib", {"model"}),
        (["lib/model/__init__.py", "src/gen.py"], PACKAGE_DIR, "lib", {"model"}),
        (["src/model/__init__.py", "utils/__init__.py"], FIND, "src", {"model"}),  # of another revision
        (["src/theirs/model/core.py", "tests/__init__.py"], "", "src", set()),
        (["src/kernels.c", "model/__init__.py"], "", ".", {"model"}),
        (["src/__init__.py", "src/deeper/__init__.py"], "", ".", {"src"}),
        (["model.py"], "", ".", set()),
    ],
)
def test_packages_lie_where_pip_finds_them(tmp_path, files, project, source, modules):
    (tmp_path / "pyproject.toml").write_text(project)
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    one = sides.Side(".", tmp_path, None, Path(sys.executable))
    assert (one.source, one.modules) == (tmp_path / source, modules)


def test_a_repository_may_have_its_project_in_a_folder(repository, monkeypatch):
    (repository / "python" / "theirs").mkdir(parents=True)
    (repository / "python" / "theirs" / "__init__.py").touch()
    (repository / "python" / "pyproject.toml").touch()
    assert sides.parse(".", repository).source == repository / "src"
    monkeypatch.chdir(repository / "python" / "theirs")
    for one in (sides.parse(text, repository) for text in (".", "HEAD")):
        assert one.source == one.checkout / "python"


def test_a_project_s_file_that_is_none_is_told_in_a_line(repository, capsys):
    (repository / "pyproject.toml").write_text("[tool")
    assert versus(["HEAD~1", ".", "cases.py", "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert f"versus: {repository / 'pyproject.toml'}: " in error
    assert error.count("\n") == 1


def test_the_same_twice_another_s_code_and_no_device_are_refused(repository, capsys):
    assert versus(["HEAD", "HEAD", "cases.py", "--device", "cpu"]) == 2
    assert "both sides are the same and import theirs from " in capsys.readouterr().err
    a, b = (sides.describe(sides.parse(text, repository), "cpu") for text in ("HEAD~1", "."))
    # what an installed package with a finder of its own does: it wins over the folder
    installed = dataclasses.replace(a, modules=b.modules)
    with pytest.raises(sides.SideError, match=r"A \(HEAD~1\) imports theirs from .*: uninstall it"):
        sides.assert_comparable({"A": installed, "B": b})
    with pytest.raises(sides.SideError, match="has no such device"):
        sides.assert_comparable({"A": a, "B": dataclasses.replace(b, device="")})
    with pytest.raises(sides.SideError, match="name one device that both have"):
        sides.assert_comparable({"A": a, "B": dataclasses.replace(b, device="cuda", label="NVIDIA")})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "a simulated device's times say nothing"),  # the environment's, see below
        (["--device", "sim"], "a simulated device's times say nothing: name one of auto, cpu, cuda, mps"),
        (["--device", "tpu"], "there is no device 'tpu'"),
        (["--only", "99"], "no case is of 99: groups are 01; --list names all cases"),
        (["--only", "3"], "no case is of 3: groups are 01"),
    ],
)
def test_what_is_asked_for_in_vain_is_told_in_a_line(repository, capsys, monkeypatch, given, words):
    monkeypatch.setenv("METALLAB_DEVICE", "sim")
    assert versus(["HEAD~1", ".", "cases.py", *given]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


PLAIN = """
import sys
from pathlib import Path
from metallab.versus import case
LEAD

@case
def imported():
    import mine
    return lambda: mine.VALUE
"""


@pytest.mark.parametrize(
    ("lead", "in_old", "answer"),
    [
        ("", True, "A imports mine from {old}/mine.py"),
        ("sys.path.insert(0, str(Path(__file__).parent))", True, "A imports mine from {root}/mine.py, and not"),
        ("sys.path.append(str(Path(__file__).parent))", False, "NEW     imported: only B can do it: A: mine is not in"),
    ],
)
def test_a_side_runs_its_own_files(root, tmp_path, monkeypatch, capsys, lead, in_old, answer):
    """Modules without a package, and a path that leads both sides to one state, as a .pth of an environment does."""
    (root / "cases.py").write_text(PLAIN.replace("LEAD", lead))
    (root / ("mine.py" if in_old else "another.py")).write_text("VALUE = 1\n")
    commit(root)
    (root / "mine.py").write_text("VALUE = 1 + 0\n")
    monkeypatch.setattr(lockstep, "MOST_ROUNDS", 1)
    out = ["--device", "cpu", "--seconds", "1", "--out", str(tmp_path / "out")]
    assert versus(["HEAD", ".", "cases.py", *out]) != 1
    old = sides.parse("HEAD", root).checkout
    told = capsys.readouterr()
    assert answer.format(old=old, root=root) in told.out + told.err


def test_what_only_the_environment_has_is_no_comparison_of_revisions(root, tmp_path, monkeypatch, capsys):
    """Packages in a folder that nothing names, and both sides import the installed one; and what to do is right."""
    (root / "cases.py").write_text(CASES.replace("import of_the_new_side", "import theirs"))
    for folder in (root / "lib", tmp_path / "installed"):
        (folder / "theirs").mkdir(parents=True)
        (folder / "theirs" / "__init__.py").write_text("VALUE = 1\n")
    commit(root)
    (root / "lib" / "theirs" / "__init__.py").write_text("VALUE = 1 + 0\n")
    installed = filter(None, [os.environ.get("PYTHONPATH"), str(tmp_path / "installed")])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(installed))
    monkeypatch.setattr(lockstep, "MOST_ROUNDS", 1)
    out = tmp_path / "out"
    given = ["cases.py", "--only", "new", "--device", "cpu", "--out", str(out)]
    assert versus(["HEAD", ".", *given]) == 2
    told = capsys.readouterr().out
    assert f"; {lockstep.NO_OWN_FILE}\n" in told
    assert json.loads((out / "answers.json").read_text())["cases"][0]["reason"] == lockstep.NO_OWN_FILE
    assert told.splitlines()[-1] == f"Exit code 2: something could not be compared: {lockstep.NO_OWN_FILE}."
    a, b = re.search(r"each side's packages: A,(\S+) and B,(\S+); and", told).groups()
    assert versus([f"HEAD,{a}".replace("FOLDER", "lib"), f".,{b}".replace("FOLDER", "lib"), *given]) == 0
    told = capsys.readouterr().out
    assert f"B imports theirs from {root}/lib/theirs/__init__.py" in told
    assert lockstep.NO_OWN_FILE not in told
    versus([".", ".,LEVEL=2", *given, "--seconds", "1"])
    told = capsys.readouterr().out
    assert "LEVEL" in told
    assert lockstep.NO_OWN_FILE not in told, "no revision was named"


def test_a_case_beside_others_may_import_nothing(file):
    """What another case has loaded into their processes is not its own, in whatever order they came."""
    every = cases.load(file)
    here = Path(__file__).resolve().parent
    live = {name: types.SimpleNamespace(folder=here, is_over=False) for name in "AB"}
    files: dict[str, dict[str, str]] = {}
    for loaded in ({"theirs": f"{here}/theirs.py"}, {}, {"theirs": f"{here}/theirs.py"}):
        ready = {name: {"files": loaded} for name in "AB"}
        lockstep._assert_own_code(live, ready, (here,), files)
    both, theirs = Settings(file, watched=(here, here.parent)), {"A": {}, "B": {"theirs": "theirs.py"}}
    of = lambda files, settings: lockstep._Progress(every["new"], [ALIKE] * 8, files=files).outcome(settings, "why")
    of_nothing, of_theirs, of_one_state = of(files, both), of(theirs, both), of(files, Settings(file, watched=(here,)))
    assert [one.same_code for one in (of_nothing, of_theirs, of_one_state)] == [lockstep.NO_OWN_FILE, "", ""]
    assert [one.reason for one in (of_nothing, of_theirs)] == [f"{lockstep.NO_OWN_FILE}; why", "why"]
    assert report.exit_code([of_nothing, of_theirs]) == 0
    assert report.exit_code([of_nothing, dataclasses.replace(of_nothing, answer="SLOWER")]) == 2
    assert report.exit_code([of_one_state]) == 0


def test_no_more_is_said_of_a_case_without_imports_than_was_seen(repository, tmp_path, monkeypatch, capsys):
    """Nothing is installed, and more seconds do not help."""
    monkeypatch.setattr(lockstep, "MOST_ROUNDS", 1)
    out = ["--device", "cpu", "--seconds", "1", "--out", str(tmp_path / "out")]
    assert versus(["HEAD~1", "HEAD", "cases.py", "--only", "steady[n=2]", *out]) == 2
    told = capsys.readouterr().out
    assert "what they import is installed" not in told
    assert "If they do, they have found it elsewhere" in told
    assert "--seconds" not in told


@pytest.fixture
def environments(tmp_path, monkeypatch):
    """Of one Python, with editable installs of ``mine``: A and C of one folder, B of another. We are in a third."""
    import numpy

    installed = Path(numpy.__file__).parents[1]
    python = Path(sys.executable).resolve()
    for name, checkout in (("A", "one"), ("B", "other"), ("C", "one")):
        (tmp_path / checkout).mkdir(exist_ok=True)
        (tmp_path / checkout / "mine.py").write_text("VALUE = 1\n")
        folder = tmp_path / name
        site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        site.mkdir(parents=True)
        (site / "mine.pth").write_text(f"{tmp_path / checkout}\n{installed}\n")
        (folder / "bin").mkdir()
        (folder / "bin" / "python").symlink_to(python)
        (folder / "pyvenv.cfg").write_text(f"home = {python.parent}\n")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(lockstep, "MOST_ROUNDS", 1)
    (tmp_path / "here" / "cases.py").write_text(PLAIN.replace("LEAD", ""))
    return tmp_path


def test_environments_that_run_the_same_files_are_not_compared(environments, capsys):
    """Each has what the other has, from one folder, as editable installs have."""
    given = ["cases.py", "--device", "cpu", "--seconds", "1", "--out", str(environments / "out")]
    assert versus([str(environments / "A"), str(environments / "C"), *given]) == 2
    told = capsys.readouterr().out
    assert f"\nA and B import mine from the same file: {environments}/one/mine.py\n" in told
    assert f"; {lockstep.SAME_FILES}\n" in told
    assert "install each into an environment of its own" in told
    assert told.splitlines()[-1] == f"Exit code 2: something could not be compared: {lockstep.SAME_FILES}."


def test_files_of_two_environments_are_listed(environments, capsys):
    given = ["cases.py", "--device", "cpu", "--seconds", "1", "--out", str(environments / "out")]
    versus([str(environments / "A"), str(environments / "B"), *given])
    told = capsys.readouterr().out
    imports = [line for line in told.splitlines() if " imports " in line]
    assert imports == [
        f"A imports mine from {environments}/one/mine.py", f"B imports mine from {environments}/other/mine.py",
    ]  # fmt: skip
    assert lockstep.SAME_FILES not in told


@pytest.mark.parametrize(
    ("of_b", "different", "is_same"),
    [
        ("one.py", [], True),
        ("one.py", ["package my-one"], True),  # an editable install keeps the version that its files had
        ("one.py", ["package torch"], False),
        ("one.py", ["variable LEVEL"], False),
        ("other.py", [], False),
    ],
)
def test_the_same_files_are_compared_where_something_else_differs(file, of_b, different, is_same):
    settings = Settings(file, watched=(Path("/"),), different=frozenset(different))
    files = {"A": {"my_one": "one.py"}, "B": {"my_one": of_b}}
    got = lockstep._Progress(cases.load(file)["new"], [ALIKE], files=files).outcome(settings, "", "more")
    assert (got.same_code, got.reason) == ((lockstep.SAME_FILES,) * 2 if is_same else ("", "more"))


def test_environments_of_two_pythons_differ(repository, tmp_path):
    (tmp_path / "python").symlink_to(sys.executable)
    (tmp_path / "another").touch(mode=0o755)
    of = lambda *pythons: sides.different({
        str(python): sides.Description(sides.parse(str(python), repository), "3", {}, {}, "cpu", "")
        for python in pythons
    })  # fmt: skip
    assert of(sys.executable, tmp_path / "python") == set()
    assert of(sys.executable, tmp_path / "another") == {"environment"}


def test_what_an_installed_package_writes_is_not_listed(tmp_path, monkeypatch):
    """As torch.compile does, and TensorFlow, which calls its files ``__autograph_generated_file``."""
    for name in ("pytest.written", "__written", "mine"):
        module = types.ModuleType(name)
        module.__file__ = str(tmp_path / f"{name}.py")
        monkeypatch.setitem(sys.modules, name, module)
    listed = worker.loaded_files(["/"], str(tmp_path / "cases.py"))
    assert {name: file for name, file in listed.items() if str(tmp_path) in file} == {"mine": f"{tmp_path}/mine.py"}
    assert not {"os", "pytest", "numpy"} & listed.keys()


def test_what_asks_is_no_module_of_a_side(root, tmp_path, monkeypatch, capsys):
    """Metal Lab's own revisions have the file that runs both sides, which multiprocessing lists by another name."""
    (root / "cases.py").write_text(PLAIN.replace("LEAD", "").replace("import mine", "import mine, multiprocessing"))
    (root / "mine.py").write_text("VALUE = 1\n")
    monkeypatch.setattr(lockstep, "WORKER", Path(shutil.copy(lockstep.WORKER, root)))
    commit(root)
    (root / "mine.py").write_text("VALUE = 1 + 0\n")
    commit(root)
    monkeypatch.setattr(lockstep, "MOST_ROUNDS", 1)
    given = ["--device", "cpu", "--seconds", "1", "--out", str(tmp_path / "out")]
    versus(["HEAD~1", "HEAD", "cases.py", *given])
    printed = capsys.readouterr()
    assert "UNSURE  imported: " in printed.out, printed.err
    old, new = (sides.parse(text, root).checkout for text in ("HEAD~1", "HEAD"))
    imports = [line for line in printed.out.splitlines() if " imports " in line]
    assert imports == [f"A imports mine from {old}/mine.py", f"B imports mine from {new}/mine.py"]


def test_only_files_that_there_are_are_listed(tmp_path, monkeypatch):
    """PyTorch gives some of its modules the path ``_ops.py``, which is a file of nobody's folder."""
    import torch

    monkeypatch.chdir(tmp_path)
    assert torch.ops.__file__ == "_ops.py"
    assert worker.loaded_files([str(tmp_path)], str(tmp_path / "cases.py")) == {}


def test_another_case_is_not_blamed_for_what_a_process_has_loaded(repository, monkeypatch):
    """A package that only B has, and a path that leads A to it: NEW, and the next case has processes of its own."""
    (repository / "src" / "fresh.py").touch()
    (repository / "cases.py").write_text(
        CASES.replace("import of_the_new_side", "import sys; sys.path.append(os.environ['AT']); import fresh")
    )
    monkeypatch.setattr(lockstep, "MOST_ROUNDS", 1)
    two = [sides.parse(text, repository) for text in ("HEAD", f".,AT={repository / 'src'}")]
    both = [dataclasses.replace(each, variables={"AT": str(repository / "src")}).command for each in two]
    every = cases.load(repository / "cases.py")
    settings = Settings(repository / "cases.py", seconds=0.0, watched=tuple(each.checkout.resolve() for each in two))
    got = lockstep.compare([every[name] for name in ("new", "by_side")], both, settings, InOrder())
    assert {outcome.case.name: outcome.answer for outcome in got} == {"new": "NEW", "by_side": "UNSURE"}


def test_a_working_tree_s_commit_is_its_own(repository):
    """Not that of Metal Lab."""
    head = git(repository, "rev-parse", "HEAD")
    (repository / "src" / "theirs" / "__init__.py").write_text("CALLS = 9\n")
    assert sides.parse(".", repository).state == (head, True)
    assert sides.parse("HEAD", repository).state == (head, False)


def test_a_python_that_cannot_hand_over_anything_is_refused(repository, tmp_path):
    without = {"python": "3", "packages": {}, "modules": {"numpy": None}, "device": "cpu", "label": ""}
    python = tmp_path / "python"
    for program, words in (
        ("exit 3", "does not run what is asked of it: exited with code 3"),
        ("echo hello", "answers 'hello', which is no answer of Python's"),
        (f"echo '{json.dumps(without)}'", "has no NumPy"),
    ):
        python.write_text(f"#!/bin/sh\n{program}\n")
        python.chmod(0o755)
        with pytest.raises(sides.SideError, match=words):
            sides.describe(sides.parse(str(python), repository), "cpu")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["B", "--threads", "1.7"], "threads are a whole number from 1 to"),
        (["B", "--threads", "100000"], "the cores here"),
        (["B", "--threads", "-1"], "or 0 for as many"),
        (["B", "--factor", "0.9"], "a factor is a number from 1 to below 100"),
        (["B", "--seconds", "soon"], "seconds are a number from 1 to 86400"),
        ([], "name two sides, A and B"),
    ],
)
def test_mistakes_on_the_command_line(capsys, given, words):
    with pytest.raises(SystemExit):
        versus(["A", *given])
    assert words in capsys.readouterr().err


def test_a_tolerance_that_there_is_not_is_told_in_a_line(repository, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "job.md"))
    (repository / "cases.py").write_text(
        "from metallab.versus import case\n@case(tolerance='float99')\ndef one(): ...\n"
    )
    assert versus(["HEAD~1", ".", "cases.py"]) == 2
    assert "one: there is no tolerance for 'float99'" in capsys.readouterr().err
    job = (tmp_path / "job.md").read_text()
    assert job.startswith("### something could not be compared: a mistake, ")
    assert "\n```\nversus: one: there is no tolerance for 'float99'" in job


def test_an_interruption_before_anything_is_told_in_a_line(repository, tmp_path, capsys, monkeypatch):
    def compare(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        yield

    monkeypatch.setattr(lockstep, "compare", compare)
    given = ["HEAD~1", "HEAD", "cases.py", "--device", "cpu", "--out", str(tmp_path / "out")]
    assert versus(given) == 130
    assert capsys.readouterr().err == "versus: interrupted before anything was compared\n"


def test_what_was_decided_before_a_blocked_turn_is_kept(file, monkeypatch):
    @contextlib.contextmanager
    def turn():
        yield
        raise turns.TurnBlocked("too long")

    monkeypatch.setattr(lockstep.turns, "turn", turn)
    got = lockstep.compare([cases.load(file)["nothing"]], [side(), side()], Settings(file))
    assert next(got).answer == "NEITHER"
    with pytest.raises(turns.TurnBlocked):
        next(got)


def test_a_folder_that_takes_no_files_is_refused_before_anything_is_measured(repository, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(lockstep, "compare", lambda *_: pytest.fail("it was measured"))
    (tmp_path / "a_file").touch()
    assert versus(["HEAD~1", "HEAD", "cases.py", "--out", str(tmp_path / "a_file" / "below")]) == 2
    error = capsys.readouterr().err
    assert (
        error
        == f"versus: {tmp_path / 'a_file' / 'below'} takes no files (Not a directory): name another folder with --out\n"
    )


def test_a_whole_name_means_no_longer_one():
    every = {
        name: cases.Case(name, lambda: None, "02") for name in ("blur", "unblur", "sum[n=1]", "sum[n=10]", "sum_up")
    }
    chosen = lambda *only: [one.name for one in command.choose(every, only)]
    assert chosen("blur") == ["blur"]
    assert chosen("lur") == ["blur", "unblur"]
    assert chosen("sum") == ["sum[n=1]", "sum[n=10]"]
    assert chosen("sum[n=1]", "sum_") == ["sum[n=1]", "sum_up"]
    assert chosen("02") == list(every)


def test_somebody_s_project_is_not_timed_by_the_cases_of_metal_lab(repository, capsys):
    assert versus(["HEAD~1", "."]) == 2
    assert capsys.readouterr().err.startswith("versus: name a file of cases behind A and B: ")


def test_help_tells_what_the_exit_codes_mean(capsys):
    with pytest.raises(SystemExit):
        versus(["--help"])
    told = capsys.readouterr().out
    assert "  1    B is slower in a case, or cannot do what A can\n" in told
    assert "example: metallab versus HEAD~1 . cases.py" in told


def test_cases_are_listed_by_group_and_name(repository, capsys):
    assert versus(["HEAD", ".", "cases.py", "--only", "01", "--list"]) == 0
    listed = capsys.readouterr().out
    assert listed.split() == ["01", "steady[n=2]", "01", "steady[n=3]"]
    assert versus(["--list", "cases.py", "--only", "01"]) == 0
    assert capsys.readouterr().out == listed


@pytest.mark.parametrize(
    ("error", "code", "reason"), [(KeyboardInterrupt(), 130, ""), (turns.TurnBlocked("too long"), 2, ": too long")]
)
def test_what_was_compared_before_an_end_is_kept(repository, tmp_path, capsys, monkeypatch, error, code, reason):
    some = lockstep.Pair((0.001,), (0.002,), 3, (0.001, 0.001))

    def compare(given, *_):
        yield lockstep.Outcome(given[0], "SLOWER", lockstep.Interval(0.5, 0.4, 0.6), (some,) * 8)
        raise error

    monkeypatch.setattr(lockstep, "compare", compare)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # which nothing but the picture needs
    out = tmp_path / "out"
    given = ["HEAD~1", "HEAD", "cases.py", "--only", "01", "--device", "cpu", "--out", str(out)]
    assert versus(given) == code
    printed = capsys.readouterr()
    assert printed.err == f"interrupted after 1 of 2 cases{reason}\n"
    assert printed.out.count(report.RATIO) == 1
    assert "There is no picture without matplotlib: pip install matplotlib" in printed.out
    kept = records.by_name(records.load(out / "versus.json"))
    assert set(kept) == {"versus/steady[n=2]/A", "versus/steady[n=2]/B"}


def test_the_pairs_of_a_case_under_way_outlive_an_interruption(repository, tmp_path, capsys, monkeypatch):
    some = lockstep.Pair((0.001,), (0.002,), 3, (0.001, 0.001))
    pairs = iter([some] * 5)  # of two cases

    def pair(*_, **__):
        if taken := next(pairs, None):
            return taken
        raise KeyboardInterrupt

    monkeypatch.setattr(lockstep, "_pair", pair)
    monkeypatch.setattr(lockstep, "_live_pair", lambda *_: contextlib.nullcontext({}))
    monkeypatch.setattr(report, "draw", lambda *_: None)
    out = tmp_path / "out"
    given = ["HEAD~1", "HEAD", "cases.py", "--only", "01", "--device", "cpu", "--out", str(out)]
    assert versus(given) == 130
    assert capsys.readouterr().err == "interrupted after 0 of 2 cases\n"
    kept = json.loads((out / "answers.json").read_text())["cases"]
    assert [(each["answer"], each["reason"]) for each in kept] == [("UNSURE", "interrupted")] * 2
    assert sorted(each["pairs"] for each in kept) == [2, 3]


def test_a_second_interruption_leaves_what_the_first_one_leaves(repository, tmp_path, capsys, monkeypatch):
    def compare(given, *_):
        yield lockstep.Outcome(given[0], "NEITHER", reason="it fails")
        raise KeyboardInterrupt

    def save_answers(*given):
        os.kill(os.getpid(), signal.SIGINT)
        return real(*given)

    real = report.save_answers
    monkeypatch.setattr(lockstep, "compare", compare)
    monkeypatch.setattr(report, "save_answers", save_answers)
    before = signal.getsignal(signal.SIGINT)
    given = ["HEAD~1", "HEAD", "cases.py", "--device", "cpu", "--out", str(tmp_path / "out")]
    assert versus(given) == 130
    assert "Cases: 1 NEITHER." in capsys.readouterr().out
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("answers", "code"),
    [(["SAME", "FASTER", "UNSURE", "NEW"], 0), (["SAME", "NEITHER"], 2), (["LOST", "NEITHER"], 1),
     (["SAME", "SLOWER"], 1), (["SAME", "LOST"], 1), (["SAME", "DIFFERS"], 2),
     (["NEW", "NEITHER"], 2), (["SAME", "no interval"], 2), (["SLOWER", "no interval"], 1)],
)  # fmt: skip
def test_exit_codes(answers, code):
    some = lockstep.Interval(1.0, 0.9, 1.1)
    one = cases.Case("one", lambda: None)
    intervals = {"SAME": some, "SLOWER": some, "FASTER": some, "UNSURE": some, "no interval": lockstep.Interval(1.0)}
    of = [
        lockstep.Outcome(one, "UNSURE" if answer == "no interval" else answer, intervals.get(answer))
        for answer in answers
    ]
    assert report.exit_code(of) == code


def test_code_2_says_the_reason_that_applies(repository, tmp_path, capsys, monkeypatch):
    outcome = lambda answer, of=None: lockstep.Outcome(cases.Case("one", lambda: None), answer, of)
    assert report.not_compared([outcome("NEW")]) == ["no case could be timed on both sides"]
    assert report.not_compared([outcome("NEW"), outcome("DIFFERS")]) == ["outputs differ"]
    assert report.not_compared([outcome("NEITHER"), outcome("UNSURE", lockstep.Interval(1.0))]) == [
        "neither side can do a case", "too few pairs of processes for an interval",
    ]  # fmt: skip
    assert report.not_compared([outcome("NEW"), outcome("SAME", lockstep.Interval(1.0, 0.9, 1.1))]) == []
    monkeypatch.setattr(lockstep, "compare", lambda given, *_: iter([outcome("NEW")]))
    given = ["HEAD~1", "HEAD", "cases.py", "--only", "new", "--device", "cpu", "--out", str(tmp_path / "out")]
    assert versus(given) == 2
    told = capsys.readouterr().out
    assert told.endswith("\nExit code 2: something could not be compared: no case could be timed on both sides.\n")


def test_what_is_not_decided_is_said_last():
    one = cases.Case("one", lambda: None)
    of = [lockstep.Outcome(one, "UNSURE", lockstep.Interval(1.0, *ends)) for ends in ((), (0.9, 1.1))]
    assert report.summary(of, 1.01).splitlines()[-1] == (
        "2 of 2 were not decided, 1 without an interval; more --seconds or a quieter machine may decide them."
    )


def test_a_busy_machine_is_told_below_the_table(repository, tmp_path, capsys, monkeypatch):
    """A minute's load average above the number of cores, when it begins or when it ends."""
    here = machine.describe()
    busy, quiet = (dataclasses.replace(here, load_average=(load, 0.0, 0.0), cores_logical=2) for load in (7.93, 2.0))
    unknown = dataclasses.replace(here, load_average=None, cores_logical=2)
    assert report.Load.between(quiet, busy).note.startswith("The load average was 7.93 on 2 cores: the longer sample")
    assert report.Load.between(quiet, quiet).note == report.Load.between(unknown, quiet).note == ""
    given = ["HEAD~1", "HEAD", "cases.py", "--device", "cpu", "--out", str(tmp_path / "out")]
    timed = lambda one: lockstep.Outcome(one, "SAME", lockstep.Interval(1.0, 0.999, 1.001), (ALIKE,) * 8)
    for outcome, code in ((lambda one: lockstep.Outcome(one, "NEITHER"), 2), (timed, 0)):
        monkeypatch.setattr(lockstep, "compare", lambda given, *_, outcome=outcome: iter([outcome(given[0])]))
        moments = iter([here, busy])
        monkeypatch.setattr(command.machine, "describe", lambda moments=moments: next(moments, quiet))
        assert versus(given) == code
        assert ("\nThe load average was 7.93 on 2 cores: " in capsys.readouterr().out) == (outcome is timed)
    load = json.loads((tmp_path / "out" / "answers.json").read_text())["load_average"]
    assert (load["began"], load["ended"], load["cores"]) == (7.93, 2.0, 2)
    assert load["note"].startswith("The load average was 7.9")


def test_seconds_are_not_advised_where_all_pairs_were_taken():
    some = lockstep.Pair((0.001,), (0.001,), 3, (0.001, 0.001))
    full = lockstep.Outcome(cases.Case("one", lambda: None), "UNSURE", lockstep.Interval(1.0, 0.9, 1.1), (some,) * 40)
    assert report.summary([full], 1.01).splitlines()[-1] == (
        "1 of 1 were not decided; 1 had all 40 pairs, which no --seconds add to: a quieter machine may decide, or a "
        "larger --factor."
    )


def test_the_picture_shows_every_case_and_no_ratio_hides_another():
    some = lockstep.Pair((0.001,), (0.001,), 3, (0.001, 0.001))
    one = lambda name, answer, *of: lockstep.Outcome(
        cases.Case(name, lambda: None), answer, lockstep.Interval(*of) if of else None, (some,), "it fails"
    )
    compared = [
        one("near", "SLOWER", 0.95, 0.94, 0.96),
        one("far", "FASTER", 40.0, 39.0, 41.0),
        one("few", "UNSURE", 1.0),
    ]
    figure = report.draw([*compared, one("blur[n=2]", "LOST"), one("fresh", "NEW")], "A: x; B: y", "CPU")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "near\nSLOWER", "far\nFASTER", "few\nUNSURE, no interval",
    ]  # fmt: skip
    assert figure.get_supxlabel() == "Without a ratio: blur[n=2] LOST, fresh NEW"
    low, high = axes.get_xlim()
    assert low < report._position(0.94) < report._position(41) < high
    assert report._position(1) - report._position(0.95) > (high - low) / 10
    ticks = {float(label.get_text()): at for label, at in zip(axes.get_xticklabels(), axes.get_xticks(), strict=True)}
    assert {1, 5} <= ticks.keys()
    assert all(at == report._position(ratio) for ratio, at in ticks.items())
    assert report.draw([one("blur", "LOST")], "A: x; B: y", "CPU") is None
