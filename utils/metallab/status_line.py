"""A line that says how far something slow has come: on a terminal and in a notebook at which somebody looks.

It is rewritten in place. It appears only after some seconds, so that what is quick shows nothing. At the end it is
wiped away on a terminal; a notebook, which cannot take an output back, keeps a last text. Where the texts go into a
file or a pipe, and cannot be rewritten, what asks for it prints a line now and then. In a notebook at which nobody
looks there is none, so a page that nbconvert or this project's runner executes has the same outputs however long it
took.

That is also why no line says how long any cell runs: each slow cell of a learner's page would keep an empty output.
JupyterLab counts these seconds by itself, in the circle beside the kernel's name.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO

AFTER_SECONDS = 5.0
"""What takes less needs no such line."""
WATCHED = "METALLAB_WATCHED"
"""Is 1 in the environment of a kernel whose output appears in a notebook at which somebody looks."""
EVERY_SECONDS = 0.5
"""So often it is rewritten: more often nobody can read it, and writing takes time itself."""
PRINTED_EVERY_SECONDS = 10.0
"""So often a line of its own is printed where none can be rewritten."""


class StatusLine:
    """A line that is rewritten in place while something runs; use it in a ``with``.

    Parameters
    ----------
    write : callable or None
        Is given each text, and at the end `ending`. By default it is chosen by where the program runs.
    clock : callable
        Returns seconds.
    prints_lines : bool
        Whether lines are printed on stderr where it is a file or a pipe, and none can be rewritten. There is none else.

    Attributes
    ----------
    ending : str
        What a notebook keeps of the line when the ``with`` is left.
    """

    def __init__(
        self,
        write: Callable[[str], object] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        prints_lines: bool = False,
    ) -> None:
        self._write = write if write is not None else choose_writer()
        if self._write is None and prints_lines:
            self._write = _choose_printer()
        is_printed = isinstance(self._write, _PrintedLines)
        self._every = PRINTED_EVERY_SECONDS if is_printed else EVERY_SECONDS
        self._clock = clock
        self._began = clock()
        self._written = -self._every
        """When it was written last, in seconds since it began."""
        self._is_shown = False
        self.ending = ""

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return self._clock() - self._began

    def show(self, make_text: Callable[[], str]) -> None:
        """Show a text in place of the last one, if it is time to; the text is made only then."""
        now = self.seconds
        if self._write is None or now < AFTER_SECONDS or now - self._written < self._every:
            return
        self._written, self._is_shown = now, True
        self._write(make_text())

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._is_shown or self._write is None:
            return
        if isinstance(self._write, _TerminalLine):
            self._write("")
        else:
            self._write(self.ending)


def choose_writer() -> Callable[[str], object] | None:
    """Return what rewrites a line in a notebook or on a terminal; None where that is not possible, or nobody looks."""
    if is_watched():
        return _NotebookLine()
    if _find_kernel() is None and sys.stderr is not None and sys.stderr.isatty():
        return _TerminalLine(sys.stderr)
    return None


def _choose_printer() -> _PrintedLines | None:
    """Return what prints lines on stderr; None in a notebook's kernel, whose outputs would keep them."""
    if _find_kernel() is not None or sys.stderr is None:
        return None
    return _PrintedLines(sys.stderr)


def is_watched() -> bool:
    """Return True in the kernel of a notebook at which somebody looks.

    A request of JupyterLab allows the code to ask for input. One of nbconvert, of papermill or of this project's runner
    does not, because nobody could type it.
    """
    kernel = _find_kernel()
    if kernel is None:
        return False
    if os.environ.get(WATCHED) == "1":
        return True
    request = kernel.get_parent() or {}
    return bool(request.get("content", {}).get("allow_stdin"))


def _find_kernel() -> Any | None:
    """Return the kernel of the notebook that runs this; None elsewhere: IPython itself may run in a terminal."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None)


class _TerminalLine:
    """Writes a line over the last one, cut to the terminal's width: a line that wraps cannot be rewritten."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __call__(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        self.stream.write(f"\r\x1b[K{text[:width]}")  # to the first column, and wipe the line
        self.stream.flush()


class _PrintedLines:
    """Writes each text as a line of its own."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __call__(self, text: str) -> None:
        print(text, file=self.stream, flush=True)


class _NotebookLine:
    """Changes one output of a cell."""

    def __init__(self) -> None:
        self._handle: Any = None  # of the output, once there is one

    def __call__(self, text: str) -> None:
        from IPython.display import display

        output = {"text/plain": text}
        if self._handle is None:
            self._handle = display(output, raw=True, display_id=True)
            return
        self._handle.update(output, raw=True)
