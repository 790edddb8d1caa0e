"""Will my model run on MPS? Ask on any machine which of its operators have a Metal kernel.

Which operators exist on MPS is read from the installed PyTorch (`metalsim.operators`). What their kernels refuse, or
leave to the CPU, is known by dtype, shape and setting (`metalsim.refusals`). Which operators a model calls, and with
what, is found by running it once on the ``meta`` device, where shapes are computed and numbers are not; there
``x.device`` is ``mps``. A model that needs numbers (``nonzero``, ``nms``), or fails on ``meta`` for another reason,
runs on the CPU instead. There it is followed where each tensor would lie: ``x.cpu()`` leaves the GPU, and what is
computed from it needs no kernel. A tensor that comes from outside of the model and its inputs stays on the CPU.

A prediction: a kernel may compute something else.

================  =================================================================
``tracing``       runs the model: `mps_coverage`
``recorder``      counts what it calls, and finds what would raise
``whereabouts``   says where each tensor would lie
``report``        the answer: `Coverage`, `Use`, `Problem`
``shell``         ``metallab coverage``
================  =================================================================
"""

from metallab.pytorch.coverage.report import FALLBACK_VARIABLE, Coverage, Problem, Use
from metallab.pytorch.coverage.shell import command
from metallab.pytorch.coverage.tracing import TraceFailed, mps_coverage, predict_coverage

__all__ = [
    "FALLBACK_VARIABLE",
    "Coverage",
    "Problem",
    "TraceFailed",
    "Use",
    "command",
    "mps_coverage",
    "predict_coverage",
]
