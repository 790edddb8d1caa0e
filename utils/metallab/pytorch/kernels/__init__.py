"""Softshrink as a custom operator on every device, and the sources that notebooks 23 and 24 read.

====================  ==================================================================================
`softshrink`          the operator ``metallab::softshrink``: CPU, MPS and CUDA, with its gradient
``softshrink.metal``  its Metal kernels, one text for every GPU
``softshrink.cpp``    the same on the CPU
``softshrink.mm``     the Metal kernels launched by an Objective-C++ extension, as in the talk
`extension`           builds and loads the C++ and Objective-C++ sources
`nvrtc`               compiles Metal sources for an NVIDIA GPU
`rule`                what every kernel of Softshrink is judged by, and a reader's kernel
====================  ==================================================================================
"""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from types import ModuleType

from metallab import isolated

FOLDER = Path(__file__).parent


class CannotCompile(RuntimeError):
    """A kernel's source cannot be compiled or loaded here; the message says why and what to do."""

    _render_traceback_ = (
        isolated.ChildFailed._render_traceback_
    )  # where it was raised would not help


def source(name: str) -> str:
    """The text of a source file of this folder: ``source("softshrink.metal")``."""
    return (FOLDER / name).read_text(encoding="utf-8")


def cpp_extension() -> ModuleType:
    """`torch.utils.cpp_extension`, without its warning of CUDA's tools on a machine that has no GPU for them."""
    logger = logging.getLogger("torch.utils.cpp_extension")
    logger.disabled = True
    try:
        return importlib.import_module(logger.name)
    finally:
        logger.disabled = False
