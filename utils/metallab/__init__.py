"""Metal Lab: measure, check, record and draw machine learning on an Apple GPU, or on whatever machine there is.

Import this package before any framework: a simulated device has to be armed before torch is loaded.
Importing it is instant; the modules below import a framework only inside the functions that need one. In a notebook's
kernel it lets plain cells use ``device="mps"`` (`metallab.plain_cells`); nowhere else does it change anything.
"""

import os
import sys

# ONNX Runtime would send usage data and keep a device id in the home folder, from its import on.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # PyTorch's profiler prints its starts and stops

from metallab import interrupts as interrupts
from metallab.mode import by_mode

if os.environ.get("METALLAB_DEVICE") == "sim":
    from metallab import simulation

    simulation.arm()

__all__ = ["by_mode", "finish"]


def finish() -> None:
    """End a page: say what did not run, and where its results are; the last line of a notebook.

    Raises
    ------
    NotRun
        With ``METALLAB_STRICT=1``, if a tool is missing that is not optional. The results are written before.
    """
    from metallab import session

    session.finish()


def _join_notebook() -> None:
    """Add to a notebook's kernel what `session` and `plain_cells` do; to a script, a program or a test nothing."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if hasattr(shell, "kernel"):
        from metallab import plain_cells, session

        session.install(shell)
        plain_cells.prepare()


_join_notebook()
