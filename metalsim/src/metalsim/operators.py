"""Which operators have a Metal kernel, read on any machine from the PyTorch that is installed.

Its wheel carries ``native_functions.yaml``, the list that the dispatcher's tables are generated from. What the YAML
does not say stands at the top of this file. Of what a kernel does with a call's arguments `metalsim.refusals` knows.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from metalsim.refusals import versions

Status = Literal["native", "composite", "falls back", "missing", "unknown"]
"""A kernel of its own; made of other operators; on the CPU by PyTorch's own decision; none; not PyTorch's own."""


class Otherwise(NamedTuple):
    """What an operator is on a Mac, where PyTorch's table says something else."""

    status: Status
    until: str = ""
    """The last version of PyTorch in which it is so; empty if it is so in all."""


OTHERWISE = {
    # registered to fall back in PyTorch itself (aten/src/ATen/mps/MPSFallback.mm), as the macOS wheels of 2.11 to 2.15
    # have it
    "aten::embedding_renorm_": Otherwise("falls back"),
    "aten::linalg_svd": Otherwise("falls back", until="2.13"),
}
"""By operator, without its overload. A line ``"aten::trace": Otherwise("missing")`` takes a kernel away from a Mac."""

# torchvision's Mac wheel registers these for MPS from its own sources (torchvision/csrc/ops/mps); all of its operators
# have a CPU kernel, so what is not among them is missing on MPS.
TORCHVISION = (
    "nms",
    "roi_align",
    "_roi_align_backward",
    "roi_pool",
    "_roi_pool_backward",
    "ps_roi_align",
    "_ps_roi_align_backward",
    "ps_roi_pool",
    "_ps_roi_pool_backward",
    "deform_conv2d",  # and nothing for its backward pass
)
WITHOUT_CPU_KERNEL: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "aten::avg_pool3d", "aten::bernoulli", "aten::bernoulli_", "aten::div", "aten::dot", "aten::floor_divide",
            "aten::fmod", "aten::pow", "aten::reflection_pad1d", "aten::reflection_pad2d", "aten::reflection_pad3d",
            "aten::remainder", "aten::replication_pad1d", "aten::replication_pad2d", "aten::replication_pad3d",
            "aten::silu", "aten::threshold", "aten::trace", "aten::vdot",
        ),
        ("Bool",),
    ),
    "aten::histc": ("Byte", "Char", "Int", "Long", "Short"),
    **dict.fromkeys(("aten::gather", "aten::scatter", "aten::scatter_"), ("Float8_e4m3fn",)),
}  # fmt: skip
"""The dtypes that Metal computes with and the CPU does not, as the CPU's errors call them.

PyTorch's own tests say that a Mac computes these (``torch/testing/_internal``: ``dtypesIfMPS``, and ``common_mps.py``
names no failure). What is here is computed, so no rule of `metalsim.refusals.rules` may refuse it: a test asks each.
"""
_COMPUTED_SINCE = {"aten::histc": "2.13"}
"""The first PyTorch whose kernel computes them, where older ones refuse them."""
CONTIGUOUS = (
    "aten::nonzero", "aten::_fft_c2c", "aten::_fft_c2r", "aten::_fft_r2c", "aten::linalg_solve_triangular",
    "aten::_cholesky_solve_helper",
)  # fmt: skip
"""Whose results the Metal kernel makes contiguous, and the CPU's kernel in another layout.

Found by running PyTorch's own samples of all operators (``torch.testing._internal``, float32, contiguous inputs) on the
CPU and looking at the results of operators that have one function for MPS and another one for the CPU; what MPS's
function makes was read in its source (Indexing.mm, FastFourierTransform.mm, LinearAlgebra.mm). Other operators share
the function that makes their results, so that the layout is the same.
"""
WITHOUT_FLOAT8 = ("aten::mm", "aten::addmm", "aten::mul", "aten::abs")
"""Where the CPU computes with float8_e4m3fn and the Metal libraries of PyTorch 2.15's wheel have no function for it."""


def status(operator: str) -> Status:
    """Return how an operator (``aten::softshrink``, ``torchvision::nms``) runs on MPS in the installed PyTorch."""
    namespace, _, name = operator.partition("::")
    if (otherwise := _find_otherwise(operator, versions.find_installed())) is not None:
        return otherwise

    if namespace == "torchvision" and name.split(".")[0] in TORCHVISION:
        return "native"
    if namespace in ("prim", "prims"):
        return "composite"
    if namespace != "aten":
        return _status_of_a_custom_operator(operator)
    return table().get(name.removesuffix(".default"), "unknown")


def _find_otherwise(operator: str, version: str) -> Status | None:
    """Return what `OTHERWISE` says of an operator in a version of PyTorch; None if it says nothing."""
    otherwise = OTHERWISE.get(operator.partition(".")[0])
    if otherwise is None or not versions.is_between(version, "", otherwise.until):
        return None
    return otherwise.status


def statuses(version: str, folder: Path | None = None) -> dict[str, Status]:
    """Return what is said here of every ATen operator in a version of PyTorch: its table, corrected by `OTHERWISE`.

    Parameters
    ----------
    version
        Such as ``2.13.0``.
    folder
        The one that has this version's ``native_functions.yaml``: the installed PyTorch's if None.
    """
    return {
        name: _find_otherwise(f"aten::{name}", version) or in_table
        for name, in_table in table(folder).items()
    }


def has_kernel(operator: str) -> bool:
    """Return whether an operator runs on MPS as it is, with a kernel of its own or as a composite of others."""
    return status(operator) in ("native", "composite")


def dtypes_without_cpu_kernel(operator: str, version: str | None = None) -> tuple[str, ...]:
    """Return the dtypes of `WITHOUT_CPU_KERNEL` that an operator's Metal kernel computes with in a version of PyTorch.

    Parameters
    ----------
    operator
        Such as ``aten::histc``, without its overload.
    version
        Of PyTorch, such as ``2.13.0``: the installed one if None.
    """
    since = _COMPUTED_SINCE.get(operator, "")
    if not versions.is_between(version or versions.find_installed(), since, ""):
        return ()
    return WITHOUT_CPU_KERNEL.get(operator, ())


def takes_numbers(operator: str) -> bool:
    """Return whether an operator takes a number of the CPU beside tensors of the device, as those that iterate do.

    PyTorch's table says so by ``device_check: NoCheck``, or by the iterator that a structured operator inherits. One
    that it does not have is taken for one of these.
    """
    entry = entries().get(operator.removeprefix("aten::").removesuffix(".default"))
    if entry is None:  # not PyTorch's own, or generated
        return True

    # what a structured operator does not say itself, the variant says that it delegates to
    delegate = entry.get("structured_delegate")
    said = {**(entries()[delegate] if delegate else {}), **entry}
    if said.get("device_check") == "NoCheck":
        return True
    return said.get("structured_inherits") == "TensorIteratorBase"


@functools.cache
def entries(folder: Path | None = None) -> Mapping[str, Mapping[str, Any]]:
    """Return what ``native_functions.yaml`` in a folder says, by operator: the installed PyTorch's if None."""
    import yaml

    path = (folder or find_native_functions()) / "native_functions.yaml"
    listed = yaml.load(
        path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )
    return {entry["func"].split("(", 1)[0]: entry for entry in listed}


def find_native_functions() -> Path:
    """Return the folder of the installed PyTorch that has ``native_functions.yaml``."""
    import torchgen

    return Path(torchgen.__file__).parent / "packaged/ATen/native"


@functools.cache
def table(folder: Path | None = None) -> Mapping[str, Status]:
    """Return the status of every ATen operator, by name and overload (``add.Tensor``).

    It is read from ``native_functions.yaml`` in a folder: the installed PyTorch's if None.
    """
    by_name = entries(folder)
    statuses = {name: _status_of(entry, by_name) for name, entry in by_name.items()}

    for name, entry in by_name.items():
        # variants that are generated from this entry do what it does
        for generated in filter(None, re.split(r",\s*", entry.get("autogen", ""))):
            statuses.setdefault(generated, statuses[name])
    return statuses


def _status_of(entry: Mapping[str, Any], by_name: Mapping[str, Mapping[str, Any]]) -> Status:
    """Return the status of an operator by its entry among all."""
    # a structured operator's kernels stand at the variant that it delegates to
    if delegate := entry.get("structured_delegate"):
        entry = by_name[delegate]

    keys = {key.strip() for keys in entry.get("dispatch", {}) for key in keys.split(",")}
    if "MPS" in keys:
        return "native"
    if not keys or any(key.startswith("Composite") for key in keys):
        return "composite"
    return "missing"


def _status_of_a_custom_operator(operator: str) -> Status:
    """Return the status by what is registered: a kernel for MPS, one for every device, one for the CPU alone."""
    import torch

    def has(key: str) -> bool:
        name = operator.removesuffix(".default")
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))

    try:
        if has("MPS"):
            return "native"
        if has("CompositeExplicitAutograd") or has("CompositeImplicitAutograd"):
            return "composite"
        return "missing" if has("CPU") else "unknown"
    except RuntimeError:  # no such operator any more
        return "unknown"
