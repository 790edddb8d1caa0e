"""Which versions of PyTorch a rule is of.

A version stands as major and minor number, such as ``2.13``: what a kernel refuses changes with those two only.
"""

from __future__ import annotations


def find_installed() -> str:
    """Return the version of the PyTorch that is installed, such as ``2.13.0+cpu``."""
    import torch

    return str(torch.__version__)


def release(version: str) -> tuple[int, int]:
    """Return major and minor number of a version."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def is_between(version: str, since: str, until: str) -> bool:
    """Return True if a version is neither before `since` nor after `until`; an empty one is no limit."""
    if since and release(version) < release(since):
        return False
    return not until or release(version) <= release(until)
