"""`metallab versus`: what is held against what, and what is told of it. Processes are real, their clock is not."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import types
from concurrent.futures import Future
from pathlib import Path

import pytest

from metallab import checks, measuring_lock, paths, records, timing
from metallab.__main__ import main
from metallab.versus import cases, command, lockstep, report, sides, worker
from metallab.versus.lockstep import Command, Settings

CASES = """
import os, signal, sys, time
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
    print("what a case prints is in nobody's way", os.fork())  # nor is a child that goes on
    return work({"n": n, "on the CPU": device == "cpu"})

@case
def by_side():
    return work(TAKES)

@case
def nothing():
    return work(None)

@case
def lazy():
    return work({"parts": [1, (number for number in range(3))]})

@case
def hangs():
    return signal.pause

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
def exits():
    sys.exit(0)

left = []

@case
def leaves_something():
    left.append(1)
    return work(1)

@case
def finds_something():
    return work({"found": len(left), "array": __import__("numpy").arange(3.0)})

@case
def light():
    go = work(1.0)
    return lambda: go() if "numpy" not in sys.modules else 1 / 0

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
    return Command(
        Path(sys.executable), {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), **variables}
    )


ENDLESS = 1e9
"""Seconds of a budget that no machine is too busy for."""


def outcome(file: Path, name: str, a: Command, b: Command) -> lockstep.Outcome:
    """One pair of processes: the budget is spent then."""
    (one,) = lockstep.compare([cases.load(file)[name]], [a, b], Settings(file, seconds=0.0))
    return one


def test_ratios_are_those_of_the_sides(file):
    compared = outcome(file, "steady[n=3]", side(), side(TAKES="2000000"))
    assert compared.answer == "UNSURE"
    assert compared.speed_up.ratio.median == pytest.approx(0.5)
    assert not compared.speed_up.ratio.has_interval
    (pair,) = compared.pairs
    assert set(pair.a) == {0.001}
    assert set(pair.b) == {0.002}
    assert pair.calls == 3
    assert str(compared.speed_up.ratio) in report.sentence(compared)


@pytest.mark.parametrize(
    ("name", "takes", "answer", "reason"),
    [
        ("by_side", "2000000", "DIFFERS", "2000000"),
        ("shapes", "2000000", "DIFFERS", "shapes differ"),
        ("dtype", "2000000", "DIFFERS", "float64 of A and float32 of B"),
        ("parts", "2000000", "DIFFERS", "only in the reference result['result.two']"),
        ("nothing", "1000000", "NEITHER", "the case returns nothing"),
        ("lazy", "1000000", "NEITHER", "TypeError: result.parts.1 is a generator"),
        ("no_function", "1000000", "NEITHER", "TypeError: "),
        ("crashes", "2000000", "LOST", "B: its process was killed by SIGKILL"),
        ("exits", "1000000", "NEITHER", "SystemExit: 0 (cases.py,"),
    ],
)
def test_what_cannot_be_compared_gets_no_ratio(file, name, takes, answer, reason):
    compared = outcome(file, name, side(), side(TAKES=takes))
    assert (compared.answer, compared.speed_up.ratio) == (answer, None)
    assert reason in compared.reason


def test_plain_numbers_need_no_numpy_in_a_side(file):
    assert outcome(file, "light", side(), side()).pairs


@dataclasses.dataclass
class Output:
    part: object


class Lazy:
    """It computes when it is asked, and poses as a number."""

    __class__ = property(lambda self: float)
    dtype, shape = "float32", (3,)

    def __array__(self, *_, **__):
        return [1.0, 2.0, 3.0]


# they give other parts than they hold
Liar = type("Liar", (list,), {"__iter__": lambda self: iter((1, 3))})
Items = type("Items", (dict,), {"items": lambda self: {"a": 2}.items()})


@pytest.mark.parametrize(
    "given",
    [
        Lazy(),
        [1.0, Lazy()],
        Output(Lazy()),
        Future(),
        map(abs, [1]),
        range(3),
        {1},
        print,
        Liar([1, 2]),
        Items(a=1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_may_not_be_computed_is_refused(given):
    with pytest.raises(TypeError, match="return numbers"):
        worker.assert_concrete(given)


def test_an_output_is_read_as_it_was_written(tmp_path):
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
        assert arrays[f"result.{name}"].dtype == np.asarray(value).dtype
    assert worker.to_numpy(pytest.importorskip("torch").tensor([1j]).conj()) == -1j


def test_a_folder_of_pythonpath_that_is_not_there_is_refused():
    with pytest.raises(sides.SideError, match="no_such"):
        sides._folders("no_such")


@pytest.mark.parametrize(
    ("one", "other"), [(b"\1" + bytes(9), b"\1"), ([2**70, 1], [2**70, 2]), ("a\0", "a")]
)
def test_what_numpy_would_cut_is_compared_whole(one, other, tmp_path):
    for name, given in (("one", one), ("other", other)):
        worker.save_output(given, tmp_path / f"{name}.npz")
    with pytest.raises(checks.Mismatch):
        checks.assert_close(
            *(worker.load_output(tmp_path / f"{name}.npz") for name in ("one", "other")), "float32"
        )


def test_what_one_side_lacks_is_new_or_lost(file, tmp_path):
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "of_the_new_side.py").touch()
    newer = side(PYTHONPATH=str(tmp_path / "newer"))
    compared = outcome(file, "new", side(), newer)
    assert compared.answer == "NEW"
    assert (
        "A: ModuleNotFoundError: No module named 'of_the_new_side' (cases.py, line "
        in compared.reason
    )
    compared = outcome(file, "new", newer, side())
    assert compared.answer == "LOST"
    assert report.exit_code([compared]) == 1


def test_processes_keep_their_threads_and_end(file, monkeypatch):
    started, real = [], subprocess.Popen
    monkeypatch.setattr(
        lockstep.subprocess,
        "Popen",
        lambda *a, **k: started.append((real(*a, **k), a[0], k)) or started[-1][0],
    )
    monkeypatch.setenv("METALLAB_DEVICE", "sim")
    for _ in range(2):
        outcome(file, "by_side", side(), side())
    assert all(process.poll() is not None for process, *_ in started)
    told = [json.loads(arguments[-1]) for _, arguments, _ in started]
    assert len({each["seed"] for each in told}) == 4
    assert [len(each["cores"]) for each in told] == [
        1 if hasattr(os, "sched_setaffinity") else 0
    ] * 4
    assert told[0]["cores"] == told[1]["cores"]
    environments = [options["env"] for *_, options in started]
    assert {each["OMP_NUM_THREADS"] for each in environments} == {"1"}
    assert not any("METALLAB_DEVICE" in each for each in environments)


class InOrder(lockstep.random.Random):
    """Chance that leaves an order as it is."""

    def sample(self, population, k):
        return list(population)[:k]


def test_cases_share_processes_and_outlive_one_that_ends_them(file, monkeypatch):
    """What a case ends is started again for those that are left."""
    monkeypatch.setattr(lockstep, "MOST_ROUNDS", 1)
    started, real = [], lockstep._Side
    monkeypatch.setattr(lockstep, "_Side", lambda *given: started.append(given) or real(*given))
    every = cases.load(file)
    given = [every[name] for name in ("steady[n=2]", "crashes", "steady[n=3]", "no_function")]
    compared = lockstep.compare(
        given, [side(), side(TAKES="2000000")], Settings(file, seconds=ENDLESS), InOrder()
    )
    got = {outcome.case.name: outcome for outcome in compared}
    assert {name: outcome.answer for name, outcome in got.items()} == {
        "steady[n=2]": "SLOWER", "steady[n=3]": "SLOWER", "crashes": "LOST", "no_function": "NEITHER",
    }  # fmt: skip
    assert len(got["steady[n=2]"].pairs) == len(got["steady[n=3]"].pairs) == 8
    assert len(started) == 2 * (2 + 8)  # what has ended is tried once more
    assert got["crashes"].reason.startswith(
        "B: its process was killed by SIGKILL"
    )  # without what another case has printed


KILLED = lockstep._NoRatioError("B: its process was killed by SIGKILL", "B")
ALIKE = lockstep.Pair((1.0,), (1.0,), 1, (1.0, 1.0))
ONCE_FASTER = [
    lockstep.Pair((1.0,), (0.98,), 1, (1.0, 1.0)),
    *[lockstep.Pair((1.0,), (1.6,), 1, (1.0, 1.0))] * 9,
]


@pytest.mark.parametrize(
    ("came", "is_gone", "answer", "pairs", "reason"),
    [
        ([KILLED, *[ALIKE] * 8], True, "SAME", 8, ""),
        ([KILLED, KILLED], True, "LOST", 0, "B: its process was killed by SIGKILL"),
        ([KILLED], False, "LOST", 0, "B: its process was killed by SIGKILL"),
        (
            [ALIKE, KILLED, KILLED],
            True,
            "UNSURE",
            1,
            "a further pair of processes failed: B: its process was killed",
        ),
        ([*ONCE_FASTER, KILLED, KILLED], True, "SLOWER", 10, "a further pair of processes failed"),
    ],
)
def test_a_pair_that_fails_is_tried_once_more(
    file, monkeypatch, came, is_gone, answer, pairs, reason
):
    """A process may be killed where memory is short, and B has done what it is said to lose then."""
    left = iter(came)

    def pair(*_, **__):
        if isinstance(one := next(left), Exception):
            raise one
        return one

    side = types.SimpleNamespace(is_gone=is_gone)
    monkeypatch.setattr(lockstep, "_pair", pair)
    monkeypatch.setattr(lockstep, "_live_pair", lambda *_: contextlib.nullcontext({"B": side}))
    (got,) = lockstep.compare([cases.load(file)["by_side"]], [], Settings(file, seconds=ENDLESS))
    assert (got.answer, len(got.pairs), next(left, None)) == (answer, pairs, None)
    assert got.reason.startswith(reason)
    assert bool(got.reason) == bool(reason)


def test_a_side_that_hangs_is_told(file, monkeypatch):
    monkeypatch.setattr(lockstep, "PATIENCE", 0.01)
    assert "no answer within 0.01 s" in outcome(file, "hangs", side(), side()).reason


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "mark functions with @case"),
        ("import of_no_package", "import what a case needs inside of its function"),
        ("from metallab.versus import case\n@case\ndef one(): ...\ntwo = one", "two cases"),
        (
            "from metallab.versus import case\n@case(sizes={'n': 5})\ndef one(): ...",
            r"one: .* write {'n': \(1, 2\)}",
        ),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_a_file_of_cases_that_cannot_be_used_says_why(tmp_path, text, words):
    (tmp_path / "cases.py").write_text(text)
    with pytest.raises(cases.CaseError, match=words):
        cases.load(tmp_path / "cases.py")
    with pytest.raises(cases.CaseError, match="there is no such file"):
        cases.load(tmp_path / "none.py")


# --- sides ---


def git(folder: Path, *arguments: str) -> str:
    named = [
        "-c",
        "user.name=nobody",
        "-c",
        "user.email=nobody@example.org",
        "-c",
        "commit.gpgsign=false",
    ]
    done = subprocess.run(
        ["git", "-C", folder, *named, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Somebody's own project, the current folder: a repository without a commit."""
    root = tmp_path / "project"
    git(tmp_path, "init", "--quiet", str(root))
    monkeypatch.chdir(root)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(
        "PYTHONDONTWRITEBYTECODE", raising=False
    )  # what imports write is no change of a worktree
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
    """All of it: the worktree, what differs, the verdict, the results, the exit code."""
    monkeypatch.setattr(lockstep, "MOST_ROUNDS", 3)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "job.md"))
    out = tmp_path / "out"
    given = [
        "HEAD~1",
        "HEAD",
        "cases.py",
        "--only",
        "theirs",
        "--only",
        "lost",
        "--device",
        "cpu",
        "--out",
        str(out),
    ]
    assert versus([*given, "--seconds", "86399"]) == 1
    told = capsys.readouterr().out
    old = sides.parse("HEAD~1", repository).checkout
    assert old.is_relative_to(tmp_path / "cache" / "metallab")
    assert (old / "src" / "theirs" / "__pycache__").is_dir()
    assert f"SLOWER  theirs: {lockstep.intervals.interval([math.log(0.5)] * 8)}; " in told
    lost = timing.Withheld(
        timing.Reason.ONLY_A, "B: AttributeError: module 'theirs' has no attribute 'OLD'"
    )
    assert f"LOST    lost: {lost.sentence}" in told
    assert {"SLOWER", "LOST"} <= set((tmp_path / "job.md").read_text().split())
    kept = records.by_name(records.load(out / "versus.json"))
    assert {name: len(runs) for name, runs in kept.items()} == {
        "versus/theirs/A": 8,
        "versus/theirs/B": 8,
    }
    a, b = (kept[f"versus/theirs/{name}"][0] for name in "AB")
    assert (a.measurement.median, b.measurement.median) == (0.001, 0.002)
    revisions = [git(repository, "rev-parse", "HEAD~1"), git(repository, "rev-parse", "HEAD")]
    assert [run.machine.git_revision for run in (a, b)] == revisions
    assert (out / "versus.png").read_bytes().startswith(b"\x89PNG")
    answers = json.loads((out / "answers.json").read_text())
    assert [answers["sides"][name]["git_revision"] for name in "AB"] == revisions
    theirs = next(each for each in answers["cases"] if each["name"] == "theirs")
    assert (theirs["answer"], theirs["low"], theirs["high"]) == (
        "SLOWER",
        pytest.approx(0.5),
        pytest.approx(0.5),
    )
    assert "revision" in {each["what differs"] for each in answers["differences"]}


def test_the_docs_example_runs_as_it_is_printed(root, capsys, monkeypatch, tmp_path):
    text = (paths.ROOT / "docs" / "your_own_code.md").read_text()
    (code,) = (
        block.partition("```")[0]
        for block in text.split("```python\n")
        if block.startswith("# cases.py")
    )
    line = next(
        line for line in text.splitlines() if line.startswith("metallab versus HEAD~1 . cases.py")
    )
    (root / "cases.py").write_text(code)
    for total in ("sum(numbers) * 1.0", "sum(numbers)"):
        (root / "theirs.py").write_text(f"def total(numbers):\n    return {total}\n")
        commit(root)
    monkeypatch.setattr(lockstep, "MOST_ROUNDS", 1)
    arguments = ["--device", "cpu", "--seconds", "1", "--out", str(tmp_path / "out")]
    versus([*shlex.split(line)[2:], *arguments])  # the verdict is a matter of times
    told = capsys.readouterr().out
    assert re.search(r"^(SLOWER|FASTER|SAME|UNSURE) +total\[n=100\]: B ", told, re.MULTILINE)
    assert re.search(r"^(SLOWER|FASTER|SAME|UNSURE) +total\[n=10000\]: B ", told, re.MULTILINE)


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


def test_a_side_is_its_parts(repository, tmp_path):
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
    assert tree.state == both.state == (head, False)
    (repository / "src" / "theirs" / "__init__.py").write_text("CALLS = 9\n")
    assert tree.state == (head, True)
    for text, words in (
        ("HEAD,HEAD~1", "more than one revision"),
        (f"{python},{python}", "more than one environment"),
        ("no-such-thing", f"is no revision of {repository}, and no Python"),
    ):
        with pytest.raises(sides.SideError, match=words):
            sides.parse(text, repository)
    with pytest.raises(sides.SideError, match="'HEAD' is no revision"):
        sides.parse("HEAD", tmp_path)


def test_what_differs_is_told(repository):
    two = {"A": "HEAD~1", "B": ".,LEVEL=2"}
    described = {
        name: sides.describe(sides.parse(text, repository), "cpu") for name, text in two.items()
    }
    sides.assert_comparable(described)
    described["A"].packages["torch"] = "2.14.0"
    lines = str(sides.differences(described)).splitlines()
    named = [line.split("  ")[0] for line in lines]
    assert named[:2] == ["what differs", "revision"]
    assert {"variable LEVEL", "package torch", "folder"} <= set(named)
    assert "Python" not in named


FIND = '[tool.setuptools.packages.find]\nwhere = ["lib"]\n'
PACKAGE_DIR = (
    '[tool.setuptools]\npackages = ["model"]\npackage-dir = {"" = "lib", "more" = "lib/more"}\n'
)


@pytest.mark.parametrize(
    ("files", "project", "source", "modules"),
    [
        (
            ["utils/__init__.py", "utils/deeper/__init__.py", "model/__init__.py"],
            "",
            ".",
            {"utils", "model"},
        ),
        (["utils/deeper/__init__.py", "model/__init__.py"], "", ".", {"model"}),
        (["lib/model/__init__.py", "src/gen.py"], FIND, "lib", {"model"}),
        (["lib/model/__init__.py", "src/gen.py"], PACKAGE_DIR, "lib", {"model"}),
        (["src/theirs/model/core.py", "tests/__init__.py"], "", "src", set()),
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


def test_the_same_twice_another_s_code_and_no_device_are_refused(repository, capsys):
    assert versus(["HEAD", "HEAD", "cases.py", "--device", "cpu"]) == 2
    assert "both sides are the same" in capsys.readouterr().err
    a, b = (sides.describe(sides.parse(text, repository), "cpu") for text in ("HEAD~1", "."))
    # what an installed package with a finder of its own does: it wins over the folder
    installed = dataclasses.replace(a, imported=b.imported)
    with pytest.raises(sides.SideError, match=r"A \(HEAD~1\) imports theirs from "):
        sides.assert_comparable({"A": installed, "B": b})
    with pytest.raises(sides.SideError, match="has no such device"):
        sides.assert_comparable({"A": a, "B": dataclasses.replace(b, device="")})
    with pytest.raises(sides.SideError, match="name one device that both have"):
        sides.assert_comparable(
            {"A": a, "B": dataclasses.replace(b, device="cuda", label="NVIDIA")}
        )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "'sim'"),  # the environment's device, see below
        (["--only", "3", "--device", "cpu"], "groups are 01"),
        (["--only", "imprecise", "--device", "cpu"], "float99"),
        (["--device", "cpu", "--out", "cases.py/below"], "takes no files"),
        (["--device", "cpu", "--out", "."], "answers.json"),
        (["--device", "cpu", "--out", "folders"], "versus.png"),
        (["--device", "cpu", "--out", "others"], "pyproject.toml"),
    ],
)
def test_refusals_are_a_line_and_measure_nothing(root, tmp_path, capsys, monkeypatch, given, words):
    imprecise = "\n@case(tolerance='float99')\ndef imprecise(): ...\n"
    (root / "cases.py").write_text(CASES + imprecise * ("imprecise" in given))
    (root / "answers.json").write_text('{"sides": {"left": 1}, "cases": []}')  # somebody's own
    (root / "folders" / "versus.png").mkdir(parents=True)
    (root / "pyproject.toml").write_text("[tool")
    commit(root)
    monkeypatch.setenv("METALLAB_DEVICE", "sim")
    monkeypatch.setattr(lockstep, "compare", lambda *_: pytest.fail("it was measured"))
    assert versus(["HEAD", ".", "cases.py", *given]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert (root / "answers.json").read_text() == '{"sides": {"left": 1}, "cases": []}'


def test_a_whole_name_means_no_longer_one():
    every = {
        name: cases.Case(name, lambda: None, "02")
        for name in ("blur", "unblur", "sum[n=1]", "sum[n=10]", "sum_up")
    }
    chosen = lambda *only: [one.name for one in command.choose(every, only)]
    assert chosen("blur") == ["blur"]
    assert chosen("lur") == ["blur", "unblur"]
    assert chosen("sum") == ["sum[n=1]", "sum[n=10]"]
    assert chosen("sum[n=1]", "sum_") == ["sum[n=1]", "sum_up"]
    assert chosen("02") == list(every)


def test_cases_are_listed_by_group_and_name(repository, capsys):
    assert versus(["HEAD", ".", "cases.py", "--only", "01", "--list"]) == 0
    listed = capsys.readouterr().out
    assert listed.split() == ["01", "steady[n=2]", "01", "steady[n=3]"]
    assert versus(["--list", "cases.py", "--only", "01"]) == 0
    assert capsys.readouterr().out == listed


@pytest.mark.parametrize(("ends", "code"), [("interrupted", 130), ("expired", 2)])
def test_what_was_compared_before_an_end_is_kept(
    repository, tmp_path, capsys, monkeypatch, ends, code
):
    some = lockstep.Pair((0.001,), (0.002,), 3, (0.001, 0.001))

    def compare(given, *_):
        yield lockstep.Outcome(given[0], pairs=[some] * 8)
        if ends == "expired":
            raise measuring_lock.LockTimeout("too long")
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(lockstep, "compare", compare)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # which nothing but the picture needs
    out = tmp_path / "out"
    given = ["HEAD~1", "HEAD", "cases.py", "--only", "01", "--device", "cpu", "--out", str(out)]
    assert versus(given) == code
    assert "1 of 2 cases" in capsys.readouterr().err
    kept = records.by_name(records.load(out / "versus.json"))
    assert set(kept) == {"versus/steady[n=2]/A", "versus/steady[n=2]/B"}


@pytest.mark.parametrize(
    ("answers", "code"),
    [(["SAME", "FASTER", "UNSURE", "NEW"], 0), (["SAME", "NEITHER"], 2), (["LOST", "NEITHER"], 1),
     (["SAME", "SLOWER"], 1), (["SAME", "LOST"], 1), (["SAME", "DIFFERS"], 2),
     (["NEW", "NEITHER"], 2), (["SAME", "no interval"], 2), (["SLOWER", "no interval"], 1)],
)  # fmt: skip
def test_exit_codes(answers, code):
    ratios = {
        "SAME": [1.0] * 8,
        "SLOWER": [0.5] * 8,
        "FASTER": [2.0] * 8,
        "UNSURE": [0.5, 2.0] * 4,
        "no interval": [1.0],
    }
    kinds = {word: kind for kind, word in lockstep.IN_PRINT.items()}
    outcomes = [lockstep.Outcome(cases.Case("one", lambda: None)) for _ in answers]
    for outcome, word in zip(outcomes, answers, strict=True):
        outcome.pairs = [
            lockstep.Pair((ratio,), (1.0,), 1, (1.0, 1.0)) for ratio in ratios.get(word, ())
        ]
        outcome.withheld = None if outcome.pairs else timing.Withheld(kinds[word])
    assert report.exit_code(outcomes) == code


def test_other_words_in_print_change_no_decision(monkeypatch):
    def make(*ratios):
        pairs = [lockstep.Pair((ratio,), (1.0,), 1, (1.0, 1.0)) for ratio in ratios]
        return lockstep.Outcome(cases.Case("one", lambda: None), pairs=pairs)

    for kind in lockstep.IN_PRINT:
        monkeypatch.setitem(lockstep.IN_PRINT, kind, "other words")
    assert report.exit_code([make(*[0.5] * 8)]) == 1
    assert not make(*[0.5, 2.0] * 4).is_decided(budget=60)
    assert "larger --factor" in report.summary([make(*[0.5, 2.0] * 4)], 1.01)


def test_two_parts_of_one_name_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"called result\.1"):
        worker.save_output({1: 1.0, "1": 2.0}, tmp_path / "output.npz")


def test_a_project_inside_a_repository_is_the_side_s(tmp_path, monkeypatch):
    inner = tmp_path / "inner"
    (inner / "package").mkdir(parents=True)
    (inner / "package" / "__init__.py").touch()
    (inner / "pyproject.toml").touch()
    monkeypatch.chdir(inner)
    found = sides.parse(".", tmp_path)
    assert (found.source, found.modules) == (inner, {"package"})
