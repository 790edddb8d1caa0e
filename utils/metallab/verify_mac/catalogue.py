"""Every trial there is, in the order in which they run: what is quick and basic first."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from metallab.verify_mac.trial import TRIALS, Trial

GROUPS = {
    "machines": "the machine, its tools, and what the processor computes",
    "mps": "PyTorch on the GPU: errors, memory, events, number formats",
    "profiler": "signposts, captures and the log of PyTorch's profiler",
    "kernels": "Metal kernels and extensions of our own",
    "fidelity": "arithmetic on the GPU where the simulation has to guess",
    "inductor": "PyTorch's compiler on the GPU",
    "graphs": "MPSGraph from Python",
    "converting": "mpsgraphtool, Core ML, ONNX Runtime",
    "tensor_flow": "TensorFlow, Keras and the Metal plugin's remapper",
    "jax_metal": "JAX and its plugin",
    "operators": "every operator of PyTorch's own database, against what coverage predicts",
}
"""The modules that hold trials, and what each is about."""


def trials() -> Mapping[str, Trial]:
    """All trials by name."""
    for group in GROUPS:
        importlib.import_module(f"metallab.verify_mac.{group}")
    return TRIALS
