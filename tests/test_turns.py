"""Where several people measure, one measurement runs at a time, in the order in which they came."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from metallab import turns

PATIENCE = 300
"""Seconds after which something that should happen is taken for not happening."""

HOLD = """
import sys
from metallab import turns
with turns.turn():
    print("mine", file=sys.stderr, flush=True)
    sys.stdin.read()
"""
"""A process that takes its turn, says so, and keeps it until its standard input closes."""


class Other:
    """Somebody else's process, which measures or waits for its turn."""

    def __init__(self, source: str, *arguments: str, who: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", source, *arguments],
            env={name: value for name, value in os.environ.items() if name != turns._HELD} | {"JUPYTERHUB_USER": who},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # how it waits
            stderr=subprocess.PIPE,
            text=True,
        )

    def next_line(self) -> str:
        """The next line it prints; it fails if there is none."""
        assert select.select([self.process.stderr], [], [], PATIENCE)[0], "it says nothing"
        return self.process.stderr.readline()

    def leaves(self) -> None:
        self.process.stdin.close()
        self.process.wait(PATIENCE)

    def is_killed(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)


@pytest.fixture(autouse=True)
def interruptible():
    """Interrupts count also where the tests run as a shell's background job, which is born deaf to them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """The folder of a queue that this process and those it starts are in."""
    monkeypatch.setenv(turns.VARIABLE, str(tmp_path))
    monkeypatch.setenv(turns._HELD, "")  # so that it is removed at the end
    monkeypatch.delenv(turns._HELD)
    return tmp_path


@pytest.fixture
def others(queue):
    """Starts other processes by name, and ends those that are left."""
    with contextlib.ExitStack() as left:

        def start(who: str, source: str = HOLD, *arguments: str) -> Other:
            other = Other(source, *arguments, who=who)
            left.callback(other.is_killed)
            return other

        yield start


def until(happened) -> None:
    """Return when something has happened; fail if it does not."""
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def in_a_thread(work) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_without_the_variable_nobody_waits_and_nothing_is_written(tmp_path, monkeypatch, others):
    other = others("ada")
    assert other.next_line() == "mine\n"
    monkeypatch.delenv(turns.VARIABLE)
    before = sorted(tmp_path.iterdir())
    with turns.turn():
        assert sorted(tmp_path.iterdir()) == before


def test_a_folder_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv(turns.VARIABLE, str(tmp_path / "gone"))
    with (
        pytest.raises(NotADirectoryError, match=r"METALLAB_TURNS names .*gone, which is no folder: make it"),
        turns.turn(),
    ):
        pass


COUNT = """
import sys, time
from pathlib import Path
from metallab import turns
folder, who = Path(sys.argv[1]), sys.argv[2]
for _ in range(10):
    with turns.turn():
        (folder / who).touch()
        together = sorted(path.name for path in folder.iterdir())
        time.sleep(0.01)
        (folder / who).unlink()
    assert together == [who], together
"""


def test_two_never_measure_at_once(others, tmp_path_factory):
    place = tmp_path_factory.mktemp("at work")
    people = [others(name, COUNT, str(place), name) for name in ("ada", "bob", "cyd")]
    assert [person.process.wait(PATIENCE) for person in people] == [0, 0, 0]


def test_a_wait_is_seen_and_a_killed_process_keeps_nobody_waiting(queue, others, capsys):
    """The line says for how many and for whom, counts down, and goes away."""
    first = others("ada")
    assert first.next_line() == "mine\n"
    second = others("bob")
    until(lambda: len(os.listdir(queue)) == 2)
    done, shown = [], []

    def measure():
        with turns.turn():
            done.append(True)

    waiting = in_a_thread(measure)
    until(lambda: len(os.listdir(queue)) == 3)
    for before, who in (("2 measurements", "ada"), ("1 measurement", "bob")):
        line = f"Waiting for a turn to measure: {before} before yours; {who} is measuring."
        until(lambda line=line: shown.append(capsys.readouterr().out) or on_screen(shown) == line)
        assert not done
        if who == "ada":
            first.is_killed()
            assert second.next_line() == "mine\n"
    second.leaves()
    waiting.join(PATIENCE)
    assert done == [True]
    assert on_screen([*shown, capsys.readouterr().out]) == ""


def on_screen(printed) -> str:
    """What is to be read in the end, where a carriage return goes back to the start of the line."""
    line = ""
    for piece in "".join(printed).split("\r"):
        line = piece + line[len(piece) :]
    return line.rstrip()


def test_who_comes_first_measures_first(queue, capsys):
    """Also when the first has left, and when the numbers grow by a digit; what a killed process left is removed."""
    (queue / "999999998").touch()
    (queue / "order").touch()
    with contextlib.ExitStack() as left:
        tickets = [contextlib.ExitStack() for _ in range(3)]
        drawn = [left.enter_context(tickets[0]).enter_context(turns._Ticket(queue))]
        assert drawn[0].number == 1
        drawn[0].path.rename(queue / "999999999")
        drawn[0].path, drawn[0].number = queue / "999999999", 999999999
        drawn += [left.enter_context(stack).enter_context(turns._Ticket(queue)) for stack in tickets[1:]]
        assert turns._tickets(queue) == [ticket.path for ticket in drawn]
        tickets[0].close()
        drawn += [left.enter_context(turns._Ticket(queue))]
        assert turns._tickets(queue) == [ticket.path for ticket in drawn[1:]]
        drawn[1].wait()
        assert capsys.readouterr().out == ""
        assert drawn[1].somebody_waits()
        assert not drawn[3].somebody_waits()


def test_a_turn_inside_a_turn_is_the_same_turn(queue, monkeypatch):
    """Also that of a child process; and afterwards the turn is somebody else's."""
    monkeypatch.setattr(turns, "LIMIT", 1.0)
    monkeypatch.setattr(turns, "GRACE", 0.0)
    with turns.turn(), turns.turn():
        assert len(os.listdir(queue)) == 1
        child = subprocess.run(
            [sys.executable, "-c", HOLD], stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE
        )
        assert (child.stdout, child.stderr) == (b"", b"mine\n")
    assert os.listdir(queue) == []
    assert turns._HELD not in os.environ


def test_threads_of_one_process_take_turns_too(queue):
    done = []

    def measure():
        with turns.turn():
            done.append(True)

    with turns.turn():
        thread = in_a_thread(measure)
        thread.join(0.3)  # one that does not wait comes in between
        assert not done
    thread.join(PATIENCE)
    assert done == [True]


def test_a_measurement_that_hangs_is_interrupted_when_somebody_waits(queue, others, monkeypatch):
    monkeypatch.setattr(turns, "LIMIT", 0.2)
    waiting, ready, somebody_waits = [], threading.Event(), turns._Ticket.somebody_waits
    monkeypatch.setattr(turns._Ticket, "somebody_waits", lambda ticket: ready.is_set() and somebody_waits(ticket))

    def hang():
        with turns.turn():
            waiting.append(others("ada"))
            ready.set()
            time.sleep(2 * PATIENCE)
            pytest.fail("it was not interrupted")

    with pytest.raises(turns.TurnExpired):
        hang()
    (other,) = waiting
    assert other.next_line() == "mine\n"


def test_as_long_as_nobody_waits_a_measurement_may_take_its_time(queue, monkeypatch):
    monkeypatch.setattr(turns, "LIMIT", 0.05)
    looked, somebody_waits = threading.Semaphore(0), turns._Ticket.somebody_waits
    monkeypatch.setattr(turns._Ticket, "somebody_waits", lambda ticket: looked.release() or somebody_waits(ticket))
    with turns.turn():
        for _ in range(3):
            assert looked.acquire(timeout=PATIENCE)


def at_an_hour(monkeypatch, queue, sleep) -> list[float]:
    """A clock, in a list, that begins when the first of the queue has measured for an hour. ``sleep`` is given it."""
    now = [turns._read(turns._tickets(queue)[0])[1] + 3600]
    monkeypatch.setattr(turns, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda s: sleep(now, s)))
    return now


def test_who_comes_late_to_a_long_measurement_waits_until_it_is_interrupted(queue, others, monkeypatch):
    ada = others("ada")
    assert ada.next_line() == "mine\n"
    at_an_hour(monkeypatch, queue, lambda now, seconds: ada.leaves())
    with turns.turn():
        pass  # and not TurnBlocked


def test_who_waits_for_a_frozen_process_is_told_whose_it_is(queue, others, monkeypatch):
    """Be it frozen in its turn or before that; for as long as it was there, and not as one has waited."""
    ada = others("ada")
    assert ada.next_line() == "mine\n"
    ada.process.send_signal(signal.SIGSTOP)

    def sleep(now, seconds):
        now[0] += seconds

    now = at_an_hour(monkeypatch, queue, sleep)
    came = now[0]
    with pytest.raises(turns.TurnBlocked, match=r"^ada "), turns.turn():
        pass
    assert turns.GRACE < now[0] - came < turns.GRACE + 1, "it waited as if ada's turn had just begun"
    ada.is_killed()
    never_began = queue / "000000001"
    never_began.unlink(missing_ok=True)
    never_began.write_text("\x1b[2Jbob\n")
    came = now[0]
    with never_began.open("rb") as held:
        turns.fcntl.flock(held, turns.fcntl.LOCK_EX)
        with pytest.raises(turns.TurnBlocked, match=r"^somebody "), turns.turn():
            pass
    assert turns.LIMIT + turns.GRACE < now[0] - came < turns.LIMIT + turns.GRACE + 1


def test_an_interrupt_while_waiting_leaves_the_queue(queue, others, monkeypatch):
    other = others("ada")
    assert other.next_line() == "mine\n"
    at_an_hour(monkeypatch, queue, lambda now, seconds: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), turns.turn():
        pytest.fail("it is ada's turn")
    assert len(os.listdir(queue)) == 1


def test_other_accounts_see_whether_a_number_is_locked(queue):
    before = os.umask(0o077)
    try:
        with turns.turn():
            (ticket,) = queue.iterdir()
            assert ticket.stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


def test_what_is_no_file_holds_nobody_up(queue):
    (queue / "7").mkdir()
    os.mkfifo(queue / "8")  # to open it would wait for a writer
    with turns.turn():
        assert (queue / "000000009").is_file() or (queue / "000000008").is_file()
