"""Does the simulated Apple GPU raise where PyTorch's own Macs do? Held against the list that PyTorch tests them by.

    python tests/benchmarks/expected_on_macs.py [--quick] [--only addr,conv3d] [--json FILE]

``torch/testing/_internal/common_mps.py``, which is in every wheel, says of each entry of PyTorch's database of
operators and each dtype whether its tests on a Mac are expected to fail. Here all samples of an entry are run forward
on the simulated device; it agrees if one of them raises where a failure is expected, and none elsewhere. Where the
list speaks of gradients, they are computed as well. With ``--quick`` dtypes other than float32 get one sample, more
only where a failure is expected.

An expected failure may be a wrong number, which raises nothing: such entries stand in `DIFFERENCES`, each with its
reason; the list of gradients is made of little else, and has a figure of its own. What PyTorch does not test on its
Macs (operators of CUDA or the CPU, skipped ones) says nothing and is not counted, nor is what is random
(`NOT_COUNTED`). Ends with code 1 below `LEAST`, or if a difference has no reason, or a reason no difference.
"""

from __future__ import annotations

import argparse
import collections
import copy
import json
import sys
import unittest
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import metalsim

metalsim.install_with_torch()

import torch  # noqa: E402 - torch comes after the simulation is armed
from torch.testing._internal import common_mps  # noqa: E402 - asks for an MPS device when it is imported

from metallab.verify_mac.operator_database import invocations  # noqa: E402

DTYPES = ("float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64")
"""What a Mac has; the first is looked at more closely."""
LEAST = {"float32": 0.995, "other": 0.99}
"""Agreement that is asked for."""
FORWARD, GRADIENTS = "forward", "gradients"

_RANDOM = "expected to fail for other random numbers than the CPU's, or other signs; no Mac refuses it"
_TIES = "expected to fail because equal numbers may be sorted in any order"
NOT_COUNTED: Mapping[str, str] = {
    "as_strided.partial_views": "memory that nobody wrote",
    "argsort": _TIES,
    "logcumsumexp": _RANDOM,
    "msort": _TIES,
    "nn.functional.alpha_dropout": _RANDOM,
    "nn.functional.dropout": _RANDOM,
    "nn.functional.dropout2d": _RANDOM,
    "nn.functional.dropout3d": _RANDOM,
    "nn.functional.feature_alpha_dropout.with_train": _RANDOM,
    "nn.functional.multi_head_attention_forward": _RANDOM,
    "nn.functional.scaled_dot_product_attention": _RANDOM,
    "pca_lowrank": _RANDOM,
    "sort": _TIES,
    "svd_lowrank": _RANDOM,
}
"""Entries that leave the count in the dtypes in which they do not agree."""
MOST_NOT_COUNTED = 70


@dataclass(frozen=True)
class Outcome:
    """What came of an entry in one dtype."""

    name: str
    dtype: str
    of: str
    """forward or gradients."""
    expected: str
    """runs, fails; skipped if PyTorch does not test it on its Macs."""
    raised: str = ""
    """What the first sample raised that did; empty if all ran."""

    @property
    def agrees(self) -> bool:
        """Whether it raised where a failure is expected."""
        return bool(self.raised) == (self.expected == "fails")

    @property
    def counts(self) -> bool:
        """Whether it is a Mac's affair."""
        return self.expected != "skipped" and (self.agrees or self.name not in NOT_COUNTED)


def outcomes(only: Iterable[str] = (), quick: bool = False) -> Iterator[Outcome]:
    """All entries, or those with these names, in every dtype that PyTorch tests them in on a Mac."""
    wanted = set(only)
    plain = [op for op in invocations.op_db if not wanted or {op.name, op.full_name} & wanted]
    listed = common_mps.mps_ops_modifier([copy.copy(op) for op in plain])
    for op in listed:
        for dtype in DTYPES:
            if getattr(torch, dtype) in op.supported_dtypes("mps"):
                yield _forward(op, dtype, quick and dtype != DTYPES[0])
    common_mps.MACOS_VERSION = 15.0  # else it expects what older ones refuse
    with_gradients = common_mps.mps_ops_grad_modifier([copy.copy(op) for op in plain])
    for op, before in zip(with_gradients, plain, strict=True):
        for dtype in DTYPES:
            speaks = len(op.decorators) > len(before.decorators) and _expected(op, dtype) != "runs"
            if speaks and getattr(torch, dtype) in op.supported_backward_dtypes("mps"):
                yield Outcome(op.full_name, dtype, GRADIENTS, _expected(op, dtype), _raised(op, dtype, gradients=True))


def _expected(op: Any, dtype: str) -> str:
    decorators = op.get_decorators("TestConsistency", "test_output_match", "mps", getattr(torch, dtype), {})
    if any(getattr(d, "__qualname__", type(d).__name__) in _ELSEWHERE for d in decorators):
        return "skipped"
    return "fails" if unittest.expectedFailure in decorators else "runs"


_ELSEWHERE = ("skip.<locals>.decorator", "onlyCUDA", "onlyCPU")
"""Decorators that keep an entry from PyTorch's Macs."""


def _forward(op: Any, dtype: str, one_is_enough: bool) -> Outcome:
    expected = _expected(op, dtype)
    raised = _raised(op, dtype, most=1 if one_is_enough and expected != "fails" else None)
    return Outcome(op.full_name, dtype, FORWARD, expected, raised)


def _raised(op: Any, dtype: str, most: int | None = None, gradients: bool = False) -> str:
    """The exception of the first sample that raises, or of making samples."""
    differentiable = getattr(torch, dtype) in op.supported_backward_dtypes("mps")
    try:
        for index, sample in enumerate(op.sample_inputs("mps", getattr(torch, dtype), requires_grad=differentiable)):
            if index == most:
                break
            results = op(sample.input, *sample.args, **sample.kwargs)
            if gradients:
                _backward(sample.output_process_fn_grad(results))
    except Exception as error:  # noqa: BLE001 - a verdict, not a crash
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def _backward(results: Any) -> None:
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor)]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if wanted:
        torch.autograd.backward(wanted, [torch.ones_like(leaf) for leaf in wanted])


_ANOTHER_NUMBER = "expected to fail, by its numbers it seems: no message of the Mac's library fits"
_THE_CPU_FAILS = "there the CPU raises, which the Mac's results are compared with"
DIFFERENCES: Mapping[tuple[str, str], str] = {
    ("addr", FORWARD): _ANOTHER_NUMBER,
    ("block_diag", FORWARD): "makes its samples from float64 numbers",
    (
        "ldexp",
        FORWARD,
    ): "with whole numbers PyTorch picks a kernel by device without an operator; a build for Linux has none for MPS",
    ("linalg.householder_product", FORWARD): _ANOTHER_NUMBER,
    ("log_softmax.with_dtype", FORWARD): _ANOTHER_NUMBER,
    ("max_pool2d_with_indices_backward", FORWARD): "the CPU has no max_pool2d of bool",
    ("nn.functional.conv_transpose2d", FORWARD): _ANOTHER_NUMBER,
    ("nn.functional.max_pool1d", FORWARD): _THE_CPU_FAILS,
    ("to_sparse", FORWARD): "sparse tensors are not simulated",
    ("linalg.householder_product", GRADIENTS): _ANOTHER_NUMBER,
    ("linalg.lstsq", GRADIENTS): _ANOTHER_NUMBER,
    ("linalg.lstsq.grad_oriented", GRADIENTS): _ANOTHER_NUMBER,
    ("nn.functional.conv3d", GRADIENTS): _ANOTHER_NUMBER,
}
"""Entries that do not agree, and why; in `utils/metalsim/README.md` as well."""


def agreement(found: Iterable[Outcome]) -> dict[str, tuple[int, int]]:
    """How many agree, of how many: float32, other dtypes, and gradients."""
    groups: dict[str, list[bool]] = {DTYPES[0]: [], "other": [], GRADIENTS: []}
    for outcome in found:
        group = GRADIENTS if outcome.of == GRADIENTS else outcome.dtype if outcome.dtype in groups else "other"
        if outcome.counts:
            groups[group].append(outcome.agrees)
    return {name: (sum(group), len(group)) for name, group in groups.items()}


def unexplained(found: Iterable[Outcome]) -> list[str]:
    """What differs without a reason, and reasons that explain nothing, a line each."""
    differing = {(o.name, o.of): o for o in found if o.counts and not o.agrees}
    lines = [
        f"{o.name} {o.of} {o.dtype}: expected {o.expected}, {o.raised or 'ran'}"
        for key, o in differing.items()
        if key not in DIFFERENCES
    ]
    return lines + [f"{' '.join(key)}: agrees now, take it from DIFFERENCES" for key in DIFFERENCES.keys() - differing]


def report(found: list[Outcome]) -> str:
    """The figures, and each difference with its reason."""
    lines = [f"{name}: {good} of {all_} agree" for name, (good, all_) in agreement(found).items()]
    left = collections.Counter(NOT_COUNTED[o.name] for o in found if o.expected != "skipped" and not o.counts)
    lines.append(f"{left.total()} not counted: " + "; ".join(f"{count} {why}" for why, count in left.items()))
    lines.append(f"{sum(o.expected == 'skipped' for o in found)} not tested on PyTorch's Macs")
    groups = collections.defaultdict(list)
    for o in found:
        if o.counts and not o.agrees:
            groups[o.name, o.of].append(o.dtype)
    lines += [f"{key[0]} ({key[1]}; {', '.join(d)}): {DIFFERENCES.get(key, '???')}" for key, d in groups.items()]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one sample of what is not float32")
    parser.add_argument("--only", default="", help="names of entries, with commas")
    parser.add_argument("--json", type=Path, help="write the outcomes here")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # the samples are tiny
    only = [name for name in arguments.only.split(",") if name]
    found = list(outcomes(only, arguments.quick))
    print(report(found))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(outcome) for outcome in found], indent=1))
    wrong = unexplained(found) if not only else []
    print("\n".join(wrong))
    figures = agreement(found)
    enough = all(figures[name][0] >= least * figures[name][1] for name, least in LEAST.items())
    return 0 if only or (enough and not wrong) else 1


if __name__ == "__main__":
    sys.exit(main())
