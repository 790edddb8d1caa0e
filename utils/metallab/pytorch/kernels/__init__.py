"""Softshrink as a custom operator on every device, and the sources that notebook 04 reads.

====================  ==================================================================================
`softshrink`          the operator ``metallab::softshrink``: CPU, MPS and CUDA, with its gradient
``softshrink.metal``  its Metal kernels, one text for every GPU
``softshrink.cpp``    the same on the CPU
``softshrink.mm``     the Metal kernels launched by an Objective-C++ extension, as in the talk
``softmax.metal``     row softmax, with threads that wait for each other
`extension`           builds and loads the C++ and Objective-C++ sources
`nvrtc`               compiles Metal sources for an NVIDIA GPU
`rule`                what every kernel of Softshrink is judged by
====================  ==================================================================================
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


class CannotCompile(RuntimeError):
    """A kernel's source cannot be compiled or loaded here; the message says why and what to do."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the message. Where it was raised helps nobody."""
        return [f"{type(self).__name__}: {self}"]


def source(name: str) -> str:
    """The text of a source file of this folder: ``source("softshrink.metal")``."""
    return (FOLDER / name).read_text(encoding="utf-8")
