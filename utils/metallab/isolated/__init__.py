"""Run code in another process, where it may abort, hang or have settings of its own; the outcome is a result.

``run(source)`` executes Python text in a fresh interpreter and returns an `Outcome`: its output, the named results, and
how it ended.

In a notebook, after ``%load_ext metallab.isolated``, the cell magic executes a cell in a second Jupyter kernel::

    %%isolated y --device mps
    import torch
    y = torch.arange(3.0, device="mps").cpu().numpy()

Text, tables and figures appear below the cell, and the named results (here ``y``) become variables of the notebook.
``--device mps`` is an Apple GPU: the real one on a Mac, the simulated one elsewhere. Cells with the same ``--device``,
``--threads``, ``--set`` and working directory share a kernel. A cell that ends its kernel, or takes longer than
``--timeout``, raises `ChildFailed` in the notebook. Processes that a cell starts end with it.

``--raises NotImplementedError`` is for a cell that teaches a failure. ``--needs objective-c++`` names a tool that may
be missing (`needs.TOOLS`): then the cell is not run, its results are `Skipped`, and the page is incomplete.
A cell with ``--full`` takes long: fast mode (`metallab.mode`) skips it.

``process`` starts a fresh interpreter, ``child`` is what runs in it, ``answers`` is what goes between the two;
``kernel`` is the second kernel, and ``magic`` the cell magic.
"""

from metallab.isolated.kernel import end_kernel, run_again
from metallab.isolated.magic import Skipped, apple_gpu, load_ipython_extension
from metallab.isolated.outcome import ChildFailed, Outcome
from metallab.isolated.process import ONE_THREAD, is_second_kernel, run

__all__ = [
    "ONE_THREAD",
    "ChildFailed",
    "Outcome",
    "Skipped",
    "apple_gpu",
    "end_kernel",
    "is_second_kernel",
    "load_ipython_extension",
    "run",
    "run_again",
]
