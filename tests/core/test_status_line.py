"""A line that says how far something has come: when it is shown, and where."""

from __future__ import annotations

import contextlib
import io
from types import SimpleNamespace

import pytest

from metallab import status_line, timing
from metallab.status_line import AFTER_SECONDS, EVERY_SECONDS, StatusLine


class Clock:
    """Gives the seconds that it is set to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def show_at(*seconds: float) -> list[str]:
    """Show a text at each of these seconds, and return what was written."""
    clock, written = Clock(), []
    with StatusLine(written.append, clock=clock) as line:
        line.ending = "done"
        for clock.now in seconds:
            line.show(lambda: f"{clock.now:g} s")
    return written


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        pytest.param([0, AFTER_SECONDS / 2], [], id="quick"),
        pytest.param([AFTER_SECONDS], ["5 s", "done"], id="slow"),
        pytest.param([5, 5 + EVERY_SECONDS / 2, 6], ["5 s", "6 s", "done"], id="not-too-often"),
    ],
)
def test_a_line_is_shown_of_what_is_slow(seconds, written):
    assert show_at(*seconds) == written


@pytest.mark.parametrize(
    ("prints_lines", "printed"),
    [(True, ["5 s", "16 s", "done"]), (False, [])],
    ids=["asked for", "not asked for"],
)
def test_into_a_pipe_lines_are_printed_if_they_are_asked_for(prints_lines, printed, monkeypatch):
    clock, pipe = Clock(), io.StringIO()
    monkeypatch.setattr("sys.stderr", pipe)

    with StatusLine(clock=clock, prints_lines=prints_lines) as line:
        line.ending = "done"
        for clock.now in (4, 5, 9, 14, 16, 17):
            line.show(lambda: f"{clock.now:g} s")
    assert pipe.getvalue().splitlines() == printed


def test_a_text_that_is_not_shown_is_not_made():
    line = StatusLine([].append, clock=Clock())
    line.show(lambda: pytest.fail("it was made"))


def test_a_line_ends_where_an_error_ends_the_work():
    clock, written = Clock(), []
    with contextlib.suppress(KeyError), StatusLine(written.append, clock=clock) as line:
        clock.now = AFTER_SECONDS
        line.show(lambda: "at work")
        raise KeyError
    assert written == ["at work", ""]


class Terminal(io.StringIO):
    """A stream that a person looks at."""

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_line_is_written_over_the_last_one_and_wiped_away(monkeypatch):
    stream, clock = Terminal(), Clock()
    monkeypatch.setattr(status_line.sys, "stderr", stream)
    with StatusLine(clock=clock) as line:
        clock.now = AFTER_SECONDS
        line.show(lambda: "at work " * 1000)
        line.ending = "done"
    first, second = stream.getvalue().split("\r\x1b[K")[1:]
    assert first.startswith("at work")
    assert len(first) < 1000
    assert second == ""


def test_in_a_file_there_is_no_line(monkeypatch):
    monkeypatch.setattr(status_line.sys, "stderr", io.StringIO())
    assert status_line.choose_writer() is None


class Kernel:
    """One whose cell was asked for by a program that lets it ask for input, or not."""

    def __init__(self, allow_stdin):
        self.allow_stdin = allow_stdin

    def get_parent(self):
        return {"content": {"allow_stdin": self.allow_stdin}}


def test_in_a_notebook_at_which_nobody_looks_there_is_no_line(monkeypatch):
    monkeypatch.setattr(status_line.sys, "stderr", Terminal())
    monkeypatch.setattr(status_line, "_find_kernel", lambda: Kernel(allow_stdin=False))
    assert status_line.choose_writer() is None


def test_an_isolated_cell_has_a_line_where_its_notebook_has_one(monkeypatch):
    monkeypatch.setattr(status_line, "_find_kernel", lambda: Kernel(allow_stdin=False))
    monkeypatch.setenv(status_line.WATCHED, "1")
    assert status_line.choose_writer() is not None


def test_in_a_notebook_one_output_is_changed(monkeypatch):
    """A second text goes into the output that the first one has made, and not below it."""
    IPython = pytest.importorskip("IPython")
    done = []

    def update(output, raw):
        done.append(f"changed: {output['text/plain']}")

    def display(output, raw, display_id):
        done.append(f"new: {output['text/plain']}")
        return SimpleNamespace(update=update)

    monkeypatch.setattr(status_line, "_find_kernel", lambda: Kernel(allow_stdin=True))
    monkeypatch.setattr(IPython.display, "display", display)
    write = status_line.choose_writer()
    write("at work")
    write("done")

    assert done == ["new: at work", "changed: done"]


@pytest.fixture
def impatient(monkeypatch):
    """What lines write where each is shown at once."""
    written = []
    monkeypatch.setattr(status_line, "AFTER_SECONDS", 0.0)
    monkeypatch.setattr(status_line, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(status_line, "choose_writer", lambda: written.append)
    return written


def count_up():
    return sum(range(100))


THREE = timing.Budget(min_samples=3, max_samples=3)


def test_a_measurement_tells_how_many_samples_it_has(impatient):
    timing.measure(count_up, on=timing.Host(), name="sum", budget=THREE)
    assert [text.partition(" samples")[0] for text in impatient] == [
        *("sum: 1", "sum: 2", "sum: 3", "sum: 3")
    ]


def test_a_comparison_tells_how_many_rounds_it_has(impatient):
    both = {"one": count_up, "other": count_up}
    unchecked = timing.Unchecked("the same function")
    timing.compare(both, on=timing.Host(), baseline="one", parity=unchecked, budget=THREE)
    rounds = [text for text in impatient if text.startswith("one / other: 3 rounds")]
    assert len(rounds) == 2, "the last round, and what stays"
