"""`metallab versus`: what is held against what, and what is told of it. Processes are real, their clock is not."""

from __future__ import annotations

import contextlib
import dataclasses
import io
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
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
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


@contextlib.contextmanager
def keep_this_process() -> Iterator[None]:
    """No clock that stands (the file of cases is loaded in this process to be listed), and no folder to import from."""
    path, clock = sys.path.copy(), time.perf_counter_ns
    try:
        yield
    finally:
        sys.path[:], time.perf_counter_ns = path, clock


@pytest.fixture(autouse=True)
def nothing_stays_behind(monkeypatch):
    """Neither a clock that stands, nor a folder to import from, nor a job's summary."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    with keep_this_process():
        yield


def write_cases(folder: Path, more: str = "") -> Path:
    """Write the file of cases, with more at its end."""
    path = folder / "cases.py"
    path.write_text(CASES + more)
    return path


@pytest.fixture
def file(tmp_path):
    return write_cases(tmp_path)


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


@pytest.fixture(scope="module")
def twice_as_long(tmp_path_factory) -> lockstep.Outcome:
    """The outcome of a case that takes 1 ms on side A and 2 ms on side B."""
    folder = tmp_path_factory.mktemp("steady")
    with keep_this_process():
        return outcome(write_cases(folder), "steady[n=3]", side(), side(TAKES="2000000"))


def test_a_ratio_is_that_of_the_sides(twice_as_long):
    assert twice_as_long.answer == "UNSURE"
    assert twice_as_long.speed_up.ratio.median == pytest.approx(0.5)
    assert not twice_as_long.speed_up.ratio.has_interval


def test_a_pair_has_the_seconds_of_a_call_on_each_side(twice_as_long):
    (pair,) = twice_as_long.pairs
    assert set(pair.a) == {0.001}
    assert set(pair.b) == {0.002}
    assert pair.calls == 3


def test_a_sentence_has_the_ratio(twice_as_long):
    assert str(twice_as_long.speed_up.ratio) in report.sentence(twice_as_long)


NOT_COMPARED = [
    ("by_side", "2000000", "DIFFERS", "2000000"),
    ("shapes", "2000000", "DIFFERS", "shapes differ"),
    ("dtype", "2000000", "DIFFERS", "float64 of A and float32 of B"),
    ("parts", "2000000", "DIFFERS", "only in the reference result['result.two']"),
    ("nothing", "1000000", "NEITHER", "the case returns nothing"),
    ("lazy", "1000000", "NEITHER", "TypeError: result.parts.1 is a generator"),
    ("no_function", "1000000", "NEITHER", "TypeError: "),
    ("crashes", "2000000", "LOST", "B: its process was killed by SIGKILL"),
    ("exits", "1000000", "NEITHER", "SystemExit: 0 (cases.py,"),
]


@pytest.mark.parametrize(
    ("name", "takes", "answer", "reason"), NOT_COMPARED, ids=[name for name, *_ in NOT_COMPARED]
)
def test_what_cannot_be_compared_gets_no_ratio(file, name, takes, answer, reason):
    compared = outcome(file, name, side(), side(TAKES=takes))
    assert compared.answer == answer
    assert compared.speed_up.ratio is None
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


NUMBERS = np.arange(6.0).reshape(2, 3)
OUTPUTS = {
    "turned": NUMBERS.T, "swapped": NUMBERS.astype(">f8"), "none": np.zeros((0, 4)), "yes": True, "i": 1j,
    "single": np.float32(0.1), "half": np.ones((2, 1), np.float16), "a number": 98,
}  # fmt: skip


@pytest.mark.parametrize("given", OUTPUTS.values(), ids=OUTPUTS)
def test_an_output_is_read_as_it_was_written(tmp_path, given):
    worker.save_output(given, tmp_path / "output.npz")
    (read,) = worker.load_output(tmp_path / "output.npz").values()
    np.testing.assert_array_equal(read, given)
    assert read.shape == np.shape(given)
    assert read.dtype == np.asarray(given).dtype


def test_parts_of_an_output_keep_their_names_and_their_order(tmp_path):
    given = {f"n{number}": number for number in range(99)}
    worker.save_output(given, tmp_path / "output.npz")
    read = worker.load_output(tmp_path / "output.npz")
    assert read == {f"result.{name}": number for name, number in given.items()}
    assert list(read) == [f"result.{name}" for name in given]


def test_a_tensor_that_is_conjugated_lazily_is_read_by_its_value():
    assert worker.to_numpy(pytest.importorskip("torch").tensor([1j]).conj()) == -1j


def test_a_folder_of_pythonpath_that_is_not_there_is_refused():
    with pytest.raises(sides.SideError, match="no_such"):
        sides._folders("no_such")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(b"\1" + bytes(9), b"\1", id="zeros at the end of bytes"),
        pytest.param([2**70, 1], [2**70, 2], id="numbers beyond 64 bits"),
        pytest.param("a\0", "a", id="a zero at the end of a text"),
    ],
)
def test_what_numpy_would_cut_is_compared_whole(one, other, tmp_path):
    worker.save_output(one, tmp_path / "one.npz")
    worker.save_output(other, tmp_path / "other.npz")
    outputs = [worker.load_output(tmp_path / f"{name}.npz") for name in ("one", "other")]
    with pytest.raises(checks.Mismatch):
        checks.assert_close(*outputs, "float32")


@pytest.fixture
def newer(tmp_path) -> Command:
    """A side that has a module which the other lacks."""
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "of_the_new_side.py").touch()
    return side(PYTHONPATH=str(tmp_path / "newer"))


def test_what_side_a_lacks_is_new_and_the_line_is_named(file, newer):
    compared = outcome(file, "new", side(), newer)
    reason = "A: ModuleNotFoundError: No module named 'of_the_new_side' (cases.py, line "
    assert compared.answer == "NEW"
    assert reason in compared.reason


def test_what_side_b_lacks_is_lost_and_fails(file, newer):
    compared = outcome(file, "new", newer, side())
    assert compared.answer == "LOST"
    assert report.exit_code([compared]) == 1


@dataclasses.dataclass
class Started:
    """A process of a side, and what it was given."""

    process: subprocess.Popen
    told: dict
    environment: dict[str, str]
    has_ended: bool = False
    """Whether it had ended when its pair had been compared."""


@pytest.fixture(scope="module")
def two_pairs(tmp_path_factory) -> list[Started]:
    """The four processes of two pairs, in the order in which they were started.

    Somebody has asked for the simulated GPU in the environment of the process that starts them.
    """
    started, popen = [], subprocess.Popen

    def start(arguments, **options):
        process = popen(arguments, **options)
        told = json.loads(arguments[-1])  # how a process of a side is told what to do
        started.append(Started(process, told, options["env"]))
        return process

    file = write_cases(tmp_path_factory.mktemp("pairs"))
    with pytest.MonkeyPatch.context() as patch, keep_this_process():
        patch.setattr(lockstep.subprocess, "Popen", start)
        patch.setenv("METALLAB_DEVICE", "sim")
        outcome(file, "by_side", side(), side())
        outcome(file, "by_side", side(), side())

    for each in started:
        each.has_ended = each.process.poll() is not None
    return started


def test_processes_of_a_pair_end_with_it(two_pairs):
    assert [each.has_ended for each in two_pairs] == [True] * 4


def test_each_process_has_a_seed_of_its_own(two_pairs):
    assert len({each.told["seed"] for each in two_pairs}) == 4


def test_both_processes_of_a_pair_run_on_the_same_core(two_pairs):
    count = 1 if hasattr(os, "sched_setaffinity") else 0
    assert [len(each.told["cores"]) for each in two_pairs] == [count] * 4
    assert two_pairs[0].told["cores"] == two_pairs[1].told["cores"]


def test_a_process_has_one_thread_and_no_device_that_somebody_asked_for(two_pairs):
    assert {each.environment["OMP_NUM_THREADS"] for each in two_pairs} == {"1"}
    assert not any("METALLAB_DEVICE" in each.environment for each in two_pairs)


class InOrder(lockstep.random.Random):
    """Chance that leaves an order as it is."""

    def sample(self, population, k):
        return list(population)[:k]


@dataclasses.dataclass
class Shared:
    """What came of cases that share processes, and how many processes were started."""

    outcomes: dict[str, lockstep.Outcome]
    started: int


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Shared:
    """Compare four cases, of which one ends its process of side B, where work takes twice as long as on side A.

    They are taken in this order, so that cases come before and after the one that does not survive.
    """
    started, real = [], lockstep._Side
    file = write_cases(tmp_path_factory.mktemp("shared"))

    with pytest.MonkeyPatch.context() as patch, keep_this_process():
        patch.setattr(lockstep, "MOST_ROUNDS", 1)
        patch.setattr(lockstep, "_Side", lambda *given: started.append(given) or real(*given))
        every = cases.load(file)
        given = [every[name] for name in ("steady[n=2]", "crashes", "steady[n=3]", "no_function")]
        sides_of = [side(), side(TAKES="2000000")]
        compared = lockstep.compare(given, sides_of, Settings(file, seconds=ENDLESS), InOrder())
        outcomes = {each.case.name: each for each in compared}  # starts the processes
        return Shared(outcomes, len(started))


def test_cases_outlive_one_that_ends_their_process(shared):
    assert {name: each.answer for name, each in shared.outcomes.items()} == {
        "steady[n=2]": "SLOWER", "steady[n=3]": "SLOWER", "crashes": "LOST", "no_function": "NEITHER",
    }  # fmt: skip
    assert len(shared.outcomes["steady[n=2]"].pairs) == 8
    assert len(shared.outcomes["steady[n=3]"].pairs) == 8


def test_cases_share_processes(shared):
    pairs = 8
    assert shared.started == 2 * (2 + pairs), "what has ended is tried once more"


def test_a_process_that_ended_is_told_without_what_another_case_printed(shared):
    reason = shared.outcomes["crashes"].reason
    assert reason.startswith("B: its process was killed by SIGKILL")


def pair_of(a: float, b: float) -> lockstep.Pair:
    """A pair of processes with one sample each."""
    return lockstep.Pair((a,), (b,), 1, (1.0, 1.0))


BY_SIGKILL = "B: its process was killed by SIGKILL"
KILLED = lockstep._NoRatioError(BY_SIGKILL, "B")
ALIKE = pair_of(1.0, 1.0)
ONCE_FASTER = [pair_of(1.0, 0.98), *[pair_of(1.0, 1.6)] * 9]
FURTHER = f"a further pair of processes failed: {BY_SIGKILL}"


@pytest.fixture
def compare_planted(file, monkeypatch):
    """A function that compares a case with planted pairs of processes."""

    def compare(came, *, is_gone) -> tuple[lockstep.Outcome, int]:
        """Return the outcome, and how many entries of ``came`` were not asked for.

        They are what each pair comes to: its times, or the error with which it ends. ``is_gone`` says whether the
        process of side B has ended with it.
        """
        left = list(came)

        def pair(*_, **__):
            if isinstance(one := left.pop(0), Exception):
                raise one
            return one

        live = contextlib.nullcontext({"B": types.SimpleNamespace(is_gone=is_gone)})
        monkeypatch.setattr(lockstep, "_pair", pair)
        monkeypatch.setattr(lockstep, "_live_pair", lambda *_: live)
        case = cases.load(file)["by_side"]
        (got,) = lockstep.compare([case], [], Settings(file, seconds=ENDLESS))
        return got, len(left)

    return compare


@pytest.mark.parametrize(
    ("came", "is_gone", "answer", "pairs", "reason"),
    [
        pytest.param([KILLED, *[ALIKE] * 8], True, "SAME", 8, "", id="once"),
        pytest.param([KILLED, KILLED], True, "LOST", 0, BY_SIGKILL, id="twice"),
        pytest.param([KILLED], False, "LOST", 0, BY_SIGKILL, id="its process is there"),
        pytest.param([ALIKE, KILLED, KILLED], True, "UNSURE", 1, FURTHER, id="after one pair"),
        pytest.param(
            [*ONCE_FASTER, KILLED, KILLED], True, "SLOWER", 10, FURTHER, id="after ten pairs"
        ),
    ],
)
def test_a_pair_whose_process_is_gone_is_tried_once_more(
    compare_planted, came, is_gone, answer, pairs, reason
):
    """A process may be killed where memory is short, and B has done what it is said to lose then."""
    got, left = compare_planted(came, is_gone=is_gone)
    assert got.answer == answer
    assert len(got.pairs) == pairs
    assert got.reason.startswith(reason)
    assert bool(got.reason) == bool(reason)
    assert left == 0


def test_a_side_that_hangs_is_told(file, monkeypatch):
    monkeypatch.setattr(lockstep, "PATIENCE", 0.01)
    assert "no answer within 0.01 s" in outcome(file, "hangs", side(), side()).reason


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("x = 1", "mark functions with @case", id="no case"),
        pytest.param(
            "import of_no_package",
            "import what a case needs inside of its function",
            id="a package that is missing",
        ),
        pytest.param(
            "from metallab.versus import case\n@case\ndef one(): ...\ntwo = one",
            "two cases",
            id="one twice",
        ),
        pytest.param(
            "from metallab.versus import case\n@case(sizes={'n': 5})\ndef one(): ...",
            r"one: .* write {'n': \(1, 2\)}",
            id="sizes that are no tuple",
        ),
        pytest.param("import sys; sys.exit(3)", "SystemExit: 3", id="it ends"),
    ],
)
def test_a_file_of_cases_that_cannot_be_used_says_why(tmp_path, text, words):
    (tmp_path / "cases.py").write_text(text)
    with pytest.raises(cases.CaseError, match=words):
        cases.load(tmp_path / "cases.py")


def test_a_file_of_cases_that_is_not_there_is_named(tmp_path):
    with pytest.raises(cases.CaseError, match="there is no such file"):
        cases.load(tmp_path / "none.py")


# --- sides ---


NOBODY = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org"]


def git(folder: Path, *arguments: str) -> str:
    """Call git as nobody; what it prints."""
    command = ["git", "-C", folder, *NOBODY, "-c", "commit.gpgsign=false", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@contextlib.contextmanager
def own_project(folder: Path) -> Iterator[Path]:
    """Somebody's own project as the current folder: a repository without a commit."""
    root = folder / "project"
    git(folder, "init", "--quiet", str(root))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        # what imports write is no change of a worktree
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield root


@pytest.fixture
def root(tmp_path):
    with own_project(tmp_path) as root:
        yield root


def commit(root: Path) -> None:
    """Commit all that lies in a repository."""
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "a state")


THEIR_CASES = """
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


def commit_two_states(root: Path) -> None:
    """Commit the project twice: the second takes twice the time, and cannot do what the first can."""
    package = root / "src" / "theirs"
    package.mkdir(parents=True)
    write_cases(root, THEIR_CASES)
    (package / "__init__.py").write_text("CALLS, OLD = 1, 1\n")
    commit(root)
    (package / "__init__.py").write_text("CALLS = 2\n")
    commit(root)


@pytest.fixture
def repository(root):
    """The project in two states."""
    commit_two_states(root)
    return root


@dataclasses.dataclass
class Told:
    """What `metallab versus` left of a comparison of two revisions."""

    code: int
    printed: str
    job: str
    out: Path
    cache: Path
    checkout: Path
    revisions: list[str]


THEIRS = ["cases.py", "--only", "theirs", "--only", "lost", "--device", "cpu"]


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> Told:
    """Compare two revisions of a project by the command: at the second one case is slower, and another is lost."""
    folder = tmp_path_factory.mktemp("told")
    out, job = folder / "out", folder / "job.md"
    with own_project(folder) as root, keep_this_process(), pytest.MonkeyPatch.context() as patch:
        commit_two_states(root)
        patch.setattr(lockstep, "MOST_ROUNDS", 3)
        patch.setenv("GITHUB_STEP_SUMMARY", str(job))
        endless = ["--seconds", "86399"]  # no limit of time ends it
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            code = versus(["HEAD~1", "HEAD", *THEIRS, *endless, "--out", str(out)])

        return Told(
            code=code,
            printed=printed.getvalue(),
            job=job.read_text(),
            out=out,
            cache=folder / "cache",
            checkout=sides.parse("HEAD~1", root).checkout,
            revisions=[git(root, "rev-parse", name) for name in ("HEAD~1", "HEAD")],
        )


def test_a_slower_case_is_told_with_its_speed_up(told):
    halved = lockstep.intervals.interval([math.log(0.5)] * 8)
    assert told.code == 1
    assert f"SLOWER  theirs: {halved}; " in told.printed


def test_a_lost_case_is_told_with_its_error(told):
    reason = "B: AttributeError: module 'theirs' has no attribute 'OLD'"
    lost = timing.Withheld(timing.Reason.ONLY_A, reason)
    assert f"LOST    lost: {lost.sentence}" in told.printed


def test_the_summary_of_a_job_has_the_verdicts(told):
    assert {"SLOWER", "LOST"} <= set(told.job.split())


def test_results_have_the_times_of_both_sides_each_with_its_revision(told):
    kept = records.by_name(records.load(told.out / "versus.json"))
    counts = {name: len(runs) for name, runs in kept.items()}
    assert counts == {"versus/theirs/A": 8, "versus/theirs/B": 8}

    first = [kept[f"versus/theirs/{name}"][0] for name in "AB"]
    assert [run.measurement.median for run in first] == [0.001, 0.002]
    assert [run.machine.git_revision for run in first] == told.revisions


def test_answers_have_the_sides_the_speed_up_and_what_differs(told):
    answers = json.loads((told.out / "answers.json").read_text())
    assert [answers["sides"][name]["git_revision"] for name in "AB"] == told.revisions
    assert "revision" in {each["what differs"] for each in answers["differences"]}

    theirs = next(each for each in answers["cases"] if each["name"] == "theirs")
    assert theirs["answer"] == "SLOWER"
    assert theirs["low"] == pytest.approx(0.5)
    assert theirs["high"] == pytest.approx(0.5)


def test_a_comparison_has_a_picture(told):
    assert (told.out / "versus.png").read_bytes().startswith(b"\x89PNG")


def test_a_revision_is_imported_from_a_worktree_in_the_cache(told):
    assert told.checkout.is_relative_to(told.cache / "metallab")
    assert (told.checkout / "src" / "theirs" / "__pycache__").is_dir()


DOCS = (paths.ROOT / "docs" / "your_own_code.md").read_text()


def find_docs_cases() -> str:
    """The file of cases that the docs print."""
    blocks = [block.partition("```")[0] for block in DOCS.split("```python\n")]
    (code,) = (block for block in blocks if block.startswith("# cases.py"))
    return code


def find_docs_arguments() -> list[str]:
    """The arguments of the command that the docs print."""
    command = "metallab versus HEAD~1 . cases.py"
    line = next(line for line in DOCS.splitlines() if line.startswith(command))
    return shlex.split(line)[2:]


def test_the_docs_example_runs_as_it_is_printed(root, capsys, monkeypatch, tmp_path):
    """Its file of cases and its command, in a project whose library has two revisions: both sizes get a verdict."""
    (root / "cases.py").write_text(find_docs_cases())
    (root / "theirs.py").write_text("def total(numbers):\n    return sum(numbers) * 1.0\n")
    commit(root)
    (root / "theirs.py").write_text("def total(numbers):\n    return sum(numbers)\n")
    commit(root)

    monkeypatch.setattr(lockstep, "MOST_ROUNDS", 1)
    arguments = ["--device", "cpu", "--seconds", "1", "--out", str(tmp_path / "out")]
    versus([*find_docs_arguments(), *arguments])  # the verdict is a matter of times

    told = capsys.readouterr().out
    verdicts = r"^(SLOWER|FASTER|SAME|UNSURE) +total\[n={}\]: B "
    assert re.search(verdicts.format(100), told, re.MULTILINE)
    assert re.search(verdicts.format(10000), told, re.MULTILINE)


@pytest.fixture
def head(repository) -> str:
    """The project's revision."""
    return git(repository, "rev-parse", "HEAD")


@pytest.fixture
def kept(repository, head) -> Path:
    """The folder of that revision's worktree."""
    return sides.worktree(head, repository)


def test_a_worktree_is_made_once(repository, head, kept):
    before = (kept / ".git").stat().st_mtime_ns
    assert sides.worktree(head, repository) == kept
    assert (kept / ".git").stat().st_mtime_ns == before


def test_a_worktree_that_somebody_changed_is_refused(repository, head, kept):
    (kept / "src" / "theirs" / "__init__.py").write_text("CALLS = 9\n")
    with pytest.raises(sides.SideError, match="remove that folder"):
        sides.worktree(head, repository)


def test_a_worktree_that_somebody_removed_is_made_again(repository, head, kept):
    shutil.rmtree(kept)  # as make clean does
    assert sides.worktree(head, repository) == kept
    assert (kept / "cases.py").exists()


@pytest.fixture
def python(tmp_path) -> Path:
    """The Python of another environment."""
    (tmp_path / "env" / "bin").mkdir(parents=True)
    python = tmp_path / "env" / "bin" / "python"
    python.symlink_to(sys.executable)
    return python


def test_a_side_is_a_revision_an_environment_and_variables(repository, head, python):
    both = sides.parse(f"HEAD,{python.parents[1]},A_B=c=d", repository)
    assert both.revision == head
    assert both.python == python
    assert both.variables == {"A_B": "c=d"}
    assert both.source == both.checkout / "src"


def test_a_side_may_be_the_working_tree(repository):
    tree = sides.parse(".", repository)
    assert tree.revision is None
    assert tree.checkout == repository
    assert tree.python == Path(sys.executable)


def test_a_comma_in_a_variable_has_a_backslash(repository):
    assert sides.parse(r"A=b\,c,D=e", repository).variables == {"A": "b,c", "D": "e"}


@pytest.mark.parametrize("text", ["HEAD", "."], ids=["a revision", "the working tree"])
def test_a_side_without_changes_has_the_state_of_its_revision(repository, head, text):
    assert sides.parse(text, repository).state == (head, False)


def test_a_working_tree_with_changes_says_so(repository, head):
    (repository / "src" / "theirs" / "__init__.py").write_text("CALLS = 9\n")
    assert sides.parse(".", repository).state == (head, True)


def test_a_side_has_one_revision(repository):
    with pytest.raises(sides.SideError, match="more than one revision"):
        sides.parse("HEAD,HEAD~1", repository)


def test_a_side_has_one_environment(repository, python):
    with pytest.raises(sides.SideError, match="more than one environment"):
        sides.parse(f"{python},{python}", repository)


def test_what_is_no_part_of_a_side_is_refused(repository):
    words = f"is no revision of {repository}, and no Python"
    with pytest.raises(sides.SideError, match=words):
        sides.parse("no-such-thing", repository)


def test_a_revision_outside_of_a_repository_is_refused(tmp_path):
    with pytest.raises(sides.SideError, match="'HEAD' is no revision"):
        sides.parse("HEAD", tmp_path)


def describe(repository: Path, text: str) -> sides.Side:
    """Describe a side of the project on the CPU."""
    return sides.describe(sides.parse(text, repository), "cpu")


def test_what_differs_is_told(repository):
    a, b = describe(repository, "HEAD~1"), describe(repository, ".,LEVEL=2")
    sides.assert_comparable({"A": a, "B": b})
    a.packages["torch"] = "2.14.0"

    lines = str(sides.differences({"A": a, "B": b})).splitlines()
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
        pytest.param(
            ["utils/__init__.py", "utils/deeper/__init__.py", "model/__init__.py"],
            "",
            ".",
            {"utils", "model"},
            id="two packages",
        ),
        pytest.param(
            ["utils/deeper/__init__.py", "model/__init__.py"],
            "",
            ".",
            {"model"},
            id="a folder that is no package",
        ),
        pytest.param(
            ["lib/model/__init__.py", "src/gen.py"], FIND, "lib", {"model"}, id="packages.find"
        ),
        pytest.param(
            ["lib/model/__init__.py", "src/gen.py"],
            PACKAGE_DIR,
            "lib",
            {"model"},
            id="package-dir",
        ),
        pytest.param(
            ["src/theirs/model/core.py", "tests/__init__.py"], "", "src", set(), id="a namespace"
        ),
        pytest.param(["model.py"], "", ".", set(), id="a module"),
    ],
)
def test_packages_lie_where_pip_finds_them(tmp_path, files, project, source, modules):
    write_files(tmp_path, files)
    (tmp_path / "pyproject.toml").write_text(project)
    one = sides.Side(".", tmp_path, None, Path(sys.executable))
    assert one.source == tmp_path / source
    assert one.modules == modules


def write_files(folder: Path, names: list[str]) -> None:
    """Make empty files, and the folders above them."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_the_same_side_twice_is_refused(repository, capsys):
    assert versus(["HEAD", "HEAD", "cases.py", "--device", "cpu"]) == 2
    assert "both sides are the same" in capsys.readouterr().err


@pytest.fixture(scope="module")
def comparable(tmp_path_factory) -> dict[str, sides.Side]:
    """Two sides that can be compared: a revision, and the working tree of another."""
    with own_project(tmp_path_factory.mktemp("comparable")) as root:
        commit_two_states(root)
        return {"A": describe(root, "HEAD~1"), "B": describe(root, ".")}


def test_a_side_that_imports_the_code_of_the_other_is_refused(comparable):
    """As an installed package with a finder of its own makes it: it wins over the folder."""
    a, b = comparable.values()
    installed = dataclasses.replace(a, imported=b.imported)
    with pytest.raises(sides.SideError, match=r"A \(HEAD~1\) imports theirs from "):
        sides.assert_comparable({"A": installed, "B": b})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"device": ""}, "has no such device", id="none"),
        pytest.param(
            {"device": "cuda", "label": "NVIDIA"}, "name one device that both have", id="unlike"
        ),
    ],
)
def test_sides_without_a_device_that_both_have_are_refused(comparable, changes, words):
    a, b = comparable.values()
    with pytest.raises(sides.SideError, match=words):
        sides.assert_comparable({"A": a, "B": dataclasses.replace(b, **changes)})


SOMEBODY_S = '{"sides": {"left": 1}, "cases": []}'
"""A file that is no answer of ours."""
IMPRECISE = "\n@case(tolerance='float99')\ndef imprecise(): ...\n"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param([], "'sim'", id="the environment's device"),
        pytest.param(["--only", "3", "--device", "cpu"], "groups are 01", id="no such group"),
        pytest.param(
            ["--only", "01", "--only", "tpyo", "--device", "cpu"], "tpyo", id="one of two matches"
        ),
        pytest.param(["--only", "imprecise", "--device", "cpu"], "float99", id="no such tolerance"),
        pytest.param(
            ["--device", "cpu", "--out", "cases.py/below"], "takes no files", id="below a file"
        ),
        pytest.param(["--device", "cpu", "--out", "."], "answers.json", id="somebody's answers"),
        pytest.param(["--device", "cpu", "--out", "folders"], "versus.png", id="a folder"),
        pytest.param(["--device", "cpu", "--out", "others"], "pyproject.toml", id="settings"),
    ],
)
def test_a_refusal_is_a_line_and_measures_nothing(root, capsys, monkeypatch, given, words):
    """It ends with 2, and files that are not ours are left as they are."""
    # where it is in the file the command is refused in any case
    has_imprecise = "imprecise" in given
    write_cases(root, IMPRECISE if has_imprecise else "")
    (root / "answers.json").write_text(SOMEBODY_S)
    (root / "folders" / "versus.png").mkdir(parents=True)
    (root / "pyproject.toml").write_text("[tool")
    commit(root)
    monkeypatch.setenv("METALLAB_DEVICE", "sim")
    monkeypatch.setattr(lockstep, "compare", lambda *_: pytest.fail("it was measured"))

    assert versus(["HEAD", ".", "cases.py", *given]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert (root / "answers.json").read_text() == SOMEBODY_S


@pytest.mark.parametrize(
    ("only", "names"),
    [
        pytest.param(["blur"], ["blur"], id="a whole name"),
        pytest.param(["lur"], ["blur", "unblur"], id="a part of names"),
        pytest.param(["sum"], ["sum[n=1]", "sum[n=10]"], id="a name without its sizes"),
        pytest.param(["sum[n=1]", "sum_"], ["sum[n=1]", "sum_up"], id="two"),
        pytest.param(["02"], ["blur", "unblur", "sum[n=1]", "sum[n=10]", "sum_up"], id="a group"),
    ],
)
def test_a_whole_name_means_no_longer_one(only, names):
    named = ("blur", "unblur", "sum[n=1]", "sum[n=10]", "sum_up")
    every = {name: cases.Case(name, lambda: None, "02") for name in named}
    assert [one.name for one in command.choose(every, only)] == names


def test_cases_are_listed_by_group_and_name(repository, capsys):
    assert versus(["HEAD", ".", "cases.py", "--only", "01", "--list"]) == 0
    assert capsys.readouterr().out.split() == ["01", "steady[n=2]", "01", "steady[n=3]"]


def test_cases_are_listed_without_sides_as_well(repository, capsys):
    assert versus(["--list", "cases.py", "--only", "01"]) == 0
    assert capsys.readouterr().out.split() == ["01", "steady[n=2]", "01", "steady[n=3]"]


def raise_sigterm():
    os.kill(os.getpid(), signal.SIGTERM)


def raise_lock_timeout():
    raise measuring_lock.LockTimeout("too long")


@pytest.mark.parametrize(
    ("end", "code"),
    [
        pytest.param(raise_sigterm, 130, id="interrupted"),
        pytest.param(raise_lock_timeout, 2, id="expired"),
    ],
)
def test_what_was_compared_before_an_end_is_kept(
    repository, tmp_path, capsys, monkeypatch, end, code
):
    """Of two cases the first is saved, where the command is ended before it comes to the second."""

    def compare(given, *_):
        yield lockstep.Outcome(given[0], pairs=[pair_of(1.0, 2.0)] * 8)
        end()

    monkeypatch.setattr(lockstep, "compare", compare)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # which nothing but the picture needs
    out = tmp_path / "out"
    given = ["HEAD~1", "HEAD", "cases.py", "--only", "01", "--device", "cpu", "--out", str(out)]

    assert versus(given) == code
    assert "1 of 2 cases" in capsys.readouterr().err
    kept = records.by_name(records.load(out / "versus.json"))
    assert set(kept) == {"versus/steady[n=2]/A", "versus/steady[n=2]/B"}


RATIOS = {
    "SAME": [1.0] * 8,
    "SLOWER": [0.5] * 8,
    "FASTER": [2.0] * 8,
    "UNSURE": [0.5, 2.0] * 4,
    "no interval": [1.0],
}


def outcome_called(word: str) -> lockstep.Outcome:
    """An outcome that is called so: by its pairs, or for the reason that there are none."""
    case = cases.Case("one", lambda: None)
    if word in RATIOS:
        return lockstep.Outcome(case, pairs=[pair_of(ratio, 1.0) for ratio in RATIOS[word]])
    reasons = {word: reason for reason, word in lockstep.IN_PRINT.items()}
    return lockstep.Outcome(case, withheld=timing.Withheld(reasons[word]))


@pytest.mark.parametrize(
    ("answers", "code"),
    [(["SAME", "FASTER", "UNSURE", "NEW"], 0), (["SAME", "NEITHER"], 2), (["LOST", "NEITHER"], 1),
     (["SAME", "SLOWER"], 1), (["SAME", "LOST"], 1), (["SAME", "DIFFERS"], 2),
     (["NEW", "NEITHER"], 2), (["SAME", "no interval"], 2), (["SLOWER", "no interval"], 1)],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)  # fmt: skip
def test_the_exit_code_is_that_of_the_worst_outcome(answers, code):
    assert report.exit_code([outcome_called(word) for word in answers]) == code


@pytest.fixture
def other_words(monkeypatch) -> None:
    """Outcomes are called by other words."""
    for kind in lockstep.IN_PRINT:
        monkeypatch.setitem(lockstep.IN_PRINT, kind, "other words")


def test_other_words_in_print_change_no_exit_code(other_words):
    assert report.exit_code([outcome_called("SLOWER")]) == 1


def test_other_words_in_print_do_not_end_a_comparison(other_words):
    assert not outcome_called("UNSURE").is_decided(budget=60)


def test_other_words_in_print_take_away_no_advice(other_words):
    assert "larger --factor" in report.summary([outcome_called("UNSURE")], 1.01)


def test_two_parts_of_one_name_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"called result\.1"):
        worker.save_output({1: 1.0, "1": 2.0}, tmp_path / "output.npz")


def test_a_project_inside_a_repository_is_the_side_s(tmp_path, monkeypatch):
    inner = tmp_path / "inner"
    write_files(inner, ["package/__init__.py", "pyproject.toml"])
    monkeypatch.chdir(inner)
    found = sides.parse(".", tmp_path)
    assert found.source == inner
    assert found.modules == {"package"}
