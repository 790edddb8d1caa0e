"""Where things are: the checkout, and what a run writes.

Every file that a run writes lies under ``build/``, in a folder of its own for each mode and device
(``build/full-mps``, ``build/fast-cpu``), so that a fast or a simulated result is never taken for another.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The checkout: metallab is installed editable, so its own file tells."""

NOTEBOOKS = ROOT / "notebooks"
BUILD = Path(os.environ.get("METALLAB_BUILD") or ROOT / "build")
"""``METALLAB_BUILD`` names another folder for all that is written, where the checkout is not one's own: a classroom."""
FAILED = BUILD / "failed"
REPORT = BUILD / "report"
CONSTRAINTS = ROOT / "constraints.txt"
PYPROJECT = ROOT / "pyproject.toml"


def run_folder(mode: str, device: str) -> Path:
    """The folder of one run, such as ``build/full-cpu``; ``METALLAB_OUT`` names another one."""
    return Path(os.environ.get("METALLAB_OUT") or BUILD / f"{mode}-{device}")
