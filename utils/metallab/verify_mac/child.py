"""One trial, in the process that was started for it by `metallab.verify_mac.runner`."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path

from metallab import units
from metallab.verify_mac.trial import Finding, judged

FOLDER = "METALLAB_VERIFY_FOLDER"
"""The variable that names the trial's own folder."""


def conduct(module: str, function: str) -> Finding:
    """Run a trial in its folder, where what it builds lies as well. TypeError if it returns no `Finding`.

    What it raises is printed, with where, and comes through; but a `checks.Mismatch` refutes the claim.
    """
    from metallab import checks, paths

    folder = Path(os.environ[FOLDER])
    os.chdir(folder)
    paths.BUILD = folder / "build"  # extensions are built there
    conducted = getattr(importlib.import_module(module), function)
    try:
        found = conducted()
    except Exception as error:
        traceback.print_exc(file=sys.stdout)  # for the report: what reaches the parent is the last line
        if isinstance(error, checks.Mismatch):
            return judged(False, units.first_line(error, kind=True))
        raise
    if not isinstance(found, Finding):
        raise TypeError(f"the trial {function} returned {found!r}, which is no Finding: a trial says what it found")
    return found
