"""What Ctrl-C does in the command ``metallab``; the package imports this first, for `metallab.__main__`."""

from __future__ import annotations

import _signal  # what `signal` is made of, without its imports: until this is done, Ctrl-C prints a traceback
import os
import sys
from types import FrameType

_IMPORTING = "<frozen importlib._bootstrap>"
running = False
"""Whether the command has begun, which may clean up and save what it has."""


def on_interrupt(_: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt in a command that runs; else end the process with 130.

    So it does inside of an import, where frameworks turn a KeyboardInterrupt into other errors, or ignore it.
    """
    is_importing = False
    while frame and not is_importing:
        is_importing, frame = frame.f_code.co_filename == _IMPORTING, frame.f_back
    if running and not is_importing:
        raise KeyboardInterrupt
    os.write(2, b"metallab: interrupted\n")
    os._exit(130)


def is_command() -> bool:
    """Whether this process is ``metallab`` or ``python -m metallab``."""
    program = sys.argv[0] if getattr(sys, "argv", None) else ""
    is_module = program == "-m" and ("-m", "metallab") in zip(
        sys.orig_argv, sys.orig_argv[1:], strict=False
    )
    return is_module or os.path.basename(program) == "metallab"


def ignore() -> None:
    """Ignore Ctrl-C from now on, if this process is the command."""
    if _signal.getsignal(_signal.SIGINT) is on_interrupt:
        _signal.signal(_signal.SIGINT, _signal.SIG_IGN)


# a background job ignores it
if is_command() and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, on_interrupt)
