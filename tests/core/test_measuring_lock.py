"""Where several people measure, one measurement runs at a time."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest

from metallab import measuring_lock

HOLD = """
import sys
from metallab import measuring_lock
with measuring_lock.hold():
    print("mine", file=sys.stderr, flush=True)
    sys.stdin.read()
"""
"""A process that takes its turn, says so, and keeps it until its standard input closes."""

FORKED = HOLD.replace("    print", "    import os; os.fork() or sys.exit(); os.wait()\n    print")
"""The same, with a child process that ends inside the turn."""

COUNT = """
import sys
from pathlib import Path
from metallab import measuring_lock
folder, who = Path(sys.argv[1]), sys.argv[2]
for _ in range(10):
    with measuring_lock.hold():
        (folder / who).touch()
        together = sorted(path.name for path in folder.iterdir())
        (folder / who).unlink()
    assert together == [who], together
"""


class Other:
    """Somebody else's process, which measures or waits for its turn."""

    def __init__(self, source: str, *arguments: str) -> None:
        environment = {
            name: value for name, value in os.environ.items() if name != measuring_lock._HELD
        }
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self.process = subprocess.Popen(
            [sys.executable, "-c", source, *arguments], env=environment, text=True, **pipes
        )

    def next_line(self, stream: str = "stderr") -> str:
        """The next line it prints; it fails if there is none within ten minutes."""
        pipe = getattr(self.process, stream)
        assert select.select([pipe], [], [], 600)[0], "it prints nothing"
        return pipe.readline()

    def leaves(self) -> None:
        self.process.stdin.close()
        self.process.wait(600)

    def is_killed(self) -> None:
        self.process.kill()
        self.process.wait(600)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder that this process and those it starts take turns in."""
    monkeypatch.setenv(measuring_lock.VARIABLE, str(tmp_path))
    monkeypatch.setenv(measuring_lock._HELD, "")  # so that it is removed at the end
    monkeypatch.delenv(measuring_lock._HELD)
    return tmp_path


@pytest.fixture
def start(folder):
    """Starts other processes, and ends those that are left."""
    with contextlib.ExitStack() as left:

        def start(*source: str) -> Other:
            other = Other(*source)
            left.callback(other.is_killed)
            return other

        yield start


@pytest.fixture
def other(start):
    """Somebody who measures."""
    process = start(HOLD)
    assert process.next_line() == "mine\n"
    return process


def is_free(folder: Path) -> bool:
    try:
        with filelock.FileLock(folder / "turn.lock").acquire(blocking=False):
            return True
    except filelock.Timeout:
        return False


def test_without_the_variable_nobody_waits(folder, start, monkeypatch):
    assert start(HOLD).next_line() == "mine\n"
    monkeypatch.delenv(measuring_lock.VARIABLE)
    with measuring_lock.hold():
        assert not is_free(folder)


def test_a_missing_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv(measuring_lock.VARIABLE, str(tmp_path / "gone"))
    with pytest.raises(NotADirectoryError, match="METALLAB_TURNS names"), measuring_lock.hold():
        pass


def test_two_never_measure_at_once(start, tmp_path_factory):
    place = str(tmp_path_factory.mktemp("at work"))
    people = [start(COUNT, place, name) for name in ("ada", "bob", "cyd")]
    assert [person.process.wait(600) for person in people] == [0, 0, 0]


def test_a_wait_is_seen_and_a_killed_process_frees_its_turn(start, other):
    waiting = start(HOLD)
    assert waiting.next_line("stdout").startswith("Waiting for a turn")

    other.is_killed()
    assert waiting.next_line() == "mine\n"


def test_a_turn_inside_a_turn_is_the_same_turn(folder):
    with measuring_lock.hold():
        with measuring_lock.hold():
            pass
        assert not is_free(folder), "the inner turn gave back the outer one"
    assert is_free(folder)


def test_a_process_that_is_started_in_a_turn_has_that_turn(folder):
    with measuring_lock.hold():
        child = subprocess.run(
            [sys.executable, "-c", HOLD], stdin=subprocess.DEVNULL, capture_output=True, timeout=600
        )
        assert not is_free(folder), "the process gave back the turn of its parent"

    assert child.stdout == b"", "it waited"
    assert child.stderr == b"mine\n"


def test_a_process_that_is_started_after_a_turn_takes_its_own(folder):
    with measuring_lock.hold():
        pass
    assert measuring_lock._HELD not in os.environ


def test_a_forked_process_leaves_its_parent_s_turn_to_it(folder, start):
    assert start(FORKED).next_line() == "mine\n"
    assert not is_free(folder)


def test_threads_of_one_process_take_turns_too(folder):
    measured, done = threading.Event(), []

    def measure():
        with measuring_lock.hold():
            done.append(measured.is_set())

    with measuring_lock.hold():
        thread = threading.Thread(target=measure, daemon=True)
        thread.start()
        thread.join(0.2)  # time enough to take the turn of another thread, if it were let
        measured.set()
    thread.join(600)

    assert done == [True], "the other thread did not wait until this one had measured"


def test_a_turn_that_does_not_end_is_an_error(other, monkeypatch):
    monkeypatch.setattr(measuring_lock, "LIMIT", -1.0)
    with pytest.raises(measuring_lock.LockTimeout, match="restart"), measuring_lock.hold():
        pass


TWO_HOURS = 7200.0


def let_time_pass(monkeypatch, *, before: float, meanwhile: Callable[[], None]) -> list[float]:
    """Let the lock's clock be ahead by ``before`` seconds when somebody comes, and by two hours at each later look.

    One hour is the limit of waiting here. ``meanwhile`` is called before each of the later looks. Return the list to
    which each time that the clock gives is added.
    """
    now, told = measuring_lock.time.time, []

    def tell():
        if not told:
            told.append(now() + before)
        else:
            meanwhile()
            told.append(now() + TWO_HOURS)
        return told[-1]

    monkeypatch.setattr(measuring_lock, "LIMIT", TWO_HOURS / 2)
    monkeypatch.setattr(measuring_lock.time, "time", tell)
    return told


def test_a_turn_that_began_long_ago_may_end_now(other, monkeypatch):
    """The limit counts from when somebody came."""
    told = let_time_pass(monkeypatch, before=TWO_HOURS, meanwhile=other.leaves)
    with measuring_lock.hold():
        pass
    assert len(told) > 1, "it did not wait"


def test_many_turns_one_after_the_other_are_no_error(other, folder, monkeypatch):
    """The limit counts from when the last of them began."""
    later = time.time() + TWO_HOURS

    def take_another_turn():
        os.utime(folder / "turn.lock", (later, later))
        other.leaves()

    told = let_time_pass(monkeypatch, before=0.0, meanwhile=take_another_turn)
    with measuring_lock.hold():
        pass
    assert len(told) > 1, "it did not wait"


def test_other_accounts_can_take_the_lock(folder):
    before = os.umask(0o077)
    try:
        with measuring_lock.hold():
            (lock,) = folder.iterdir()
            assert lock.stat().st_mode & 0o777 == 0o666
    finally:
        os.umask(before)
