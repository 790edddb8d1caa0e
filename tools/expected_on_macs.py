"""Does the simulated Apple GPU raise where PyTorch's own Macs do? Compared with the list that PyTorch tests them by.

    python tools/expected_on_macs.py [--only addr,conv3d]

``torch/testing/_internal/common_mps.py``, which is in every wheel, says of each entry of PyTorch's database of
operators and each dtype whether its tests on a Mac are expected to fail. Here samples of an entry are run forward on
the simulated device: it agrees if one of them raises where a failure is expected, and none elsewhere. Where the list
speaks of gradients, they are computed as well. Dtypes other than float32 get one sample, more only where a failure is
expected.

An expected failure may be a wrong number, which raises nothing. Where PyTorch's remark beside it says so, or why it
skips an entry on its Macs, the entry is taken for what the remark says (`DECIDED`); other wrong numbers are in
`DIFFERENCES`, each with its reason. What nothing is known of is left out (`LEFT_OUT`). Ends with code 1 if a
difference has no reason, a reason no difference, or if PyTorch skips what no remark decides.
"""

from __future__ import annotations

import argparse
import copy
import sys
import unittest
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import metalsim

metalsim.install_with_torch()

import torch  # noqa: E402 - torch comes after the simulation is armed
from torch.testing._internal import common_mps  # noqa: E402 - asks for an MPS device when it is imported
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402

DTYPES = (
    "float32",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
    "complex64",
)
"""What a Mac has; the first is looked at more closely."""
FORWARD, GRADIENTS = "forward", "gradients"
MACOS = 15.0
"""The oldest macOS on which PyTorch sees an Apple GPU, and what the lists are asked for, both of them."""

_RUNS, _FAILS, _LEFT_OUT = "runs", "fails", "left out"
_OTHER_NUMBERS = (
    _RUNS,
    "its numbers are compared, and are random or rounded otherwise than the CPU's",
)
_TIES = (_RUNS, "equal numbers may be sorted in any order")
_NOBODY_WROTE = (_RUNS, "memory that nobody wrote is compared")
_RANDOM_OR_ROUNDED = """
alpha_dropout dropout dropout2d dropout3d feature_alpha_dropout.with_train linear_cross_entropy.chunked
linear_cross_entropy.chunked_none scaled_dot_product_attention
"""
DECIDED: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("argsort", "msort", "sort"), _TIES),
    **dict.fromkeys(
        (
            "as_strided.partial_views",
            "empty",
            "empty_like",
            "empty_permuted",
            "empty_strided",
            "new_empty",
        ),
        _NOBODY_WROTE,
    ),
    **{f"nn.functional.{name}": _OTHER_NUMBERS for name in _RANDOM_OR_ROUNDED.split()},
    "logcumsumexp": (_RUNS, "another branch of the logarithm is as right"),
    "new_empty_strided": (_FAILS, "a sample asks for float64, which empty_strided_mps refuses"),
    "nn.functional.grid_sample": (
        _FAILS,
        "a sample is bicubic in 3-D, which is on the list for float32",
    ),
    "pca_lowrank": (_RUNS, "other signs are as right"),
    "sparse.mm.reduce": (_FAILS, "it is on the list, and also for the CPU alone"),
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": (
        _FAILS,
        "an operator of the CPU's",
    ),
}
"""What an entry that is skipped, or expected to fail, does on a Mac by PyTorch's own remark (common_mps.py, and
common_methods_invocations.py for what is skipped there): it runs or fails. As for other dtypes: the list's."""

_OF_CUDA = "made for CUDA alone"
LEFT_OUT: Mapping[str, str] = {
    "bmm.triton_optimized": _OF_CUDA,
    **dict.fromkeys(
        (
            "jiterator_2inputs_2outputs", "jiterator_4inputs_with_extra_args", "jiterator_binary",
            "jiterator_binary_return_by_ref", "jiterator_unary",
        ),
        _OF_CUDA,
    ),
    "nn.functional.conv3d": "fails on some chips and on others not, says PyTorch, and skips it",
    "nn.functional.cross_entropy": "not enabled on Macs yet, says PyTorch, and skips it",
    "nn.functional.multi_head_attention_forward": "random, or refused: PyTorch names an issue and no reason",
    "svd_lowrank": "random, or refused: PyTorch names no reason",
}  # fmt: skip
"""Entries that leave the count in the dtypes in which PyTorch skips them, or expects them to fail."""


@dataclass(frozen=True)
class Outcome:
    """What came of an entry in one dtype."""

    name: str
    dtype: str
    of: str
    """forward or gradients."""
    expected: str
    """runs, fails or left out; skipped, if PyTorch skips it on its Macs and nothing is decided."""
    raised: str = ""
    """What the first sample raised that did; empty if all ran."""

    @property
    def agrees(self) -> bool:
        """Whether it raised where a failure is expected."""
        return bool(self.raised) == (self.expected == _FAILS)

    @property
    def counts(self) -> bool:
        """Whether it is known what a Mac does."""
        return self.expected in (_RUNS, _FAILS)


def outcomes(only: Iterable[str] = ()) -> Iterator[Outcome]:
    """Yield what came of all entries, or of those with these names, in every dtype that PyTorch tests them in on a Mac.

    First each entry forward; then, with gradients, those whose gradients the list names. The entries are
    copied, because what reads the list writes into them what is expected.
    """
    common_mps.MACOS_VERSION = MACOS  # else it expects what older ones refuse
    wanted = set(only)
    plain = [op for op in op_db if not wanted or {op.name, op.full_name} & wanted]

    for op in common_mps.mps_ops_modifier([copy.copy(op) for op in plain]):
        for dtype in DTYPES:
            if getattr(torch, dtype) in op.supported_dtypes("mps"):
                yield _run_forward(op, dtype, dtype != DTYPES[0])

    with_gradients = common_mps.mps_ops_grad_modifier([copy.copy(op) for op in plain])
    for op, before in zip(with_gradients, plain, strict=True):
        # else the list says nothing of its gradients
        if len(op.decorators) > len(before.decorators):
            yield from _run_backward(op)


_ELSEWHERE = ("skip.<locals>.decorator", "onlyCUDA", "onlyCPU")
"""Decorators that keep an entry from PyTorch's Macs."""


def _backward(results: Any) -> None:
    leaves = [
        leaf for leaf in torch.utils._pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor)
    ]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if wanted:
        torch.autograd.backward(wanted, [torch.ones_like(leaf) for leaf in wanted])


_ANOTHER_NUMBER = "expected to fail, by its numbers it seems: no message of the Mac's library fits"
_KERNELS_TAKE_IT = (
    "expected to fail, PyTorch says not why: each operator of the backward pass has a kernel that takes "
    "its arguments"
)
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
    ("linalg.householder_product", GRADIENTS): _KERNELS_TAKE_IT,
    ("linalg.lstsq", GRADIENTS): _KERNELS_TAKE_IT,
    ("linalg.lstsq.grad_oriented", GRADIENTS): _KERNELS_TAKE_IT,
}
"""Entries that do not agree, and why."""


def describe_agreement(counted: Iterable[Outcome]) -> list[str]:
    """Return how many entries agree, forward and with gradients, a line for each dtype."""
    lines = []
    for of in (FORWARD, GRADIENTS):
        for dtype in DTYPES:
            agree = [o.agrees for o in counted if (o.of, o.dtype) == (of, dtype)]
            if agree:
                lines.append(f"  {of} {dtype}: {sum(agree)} of {len(agree)}")
    return lines


def _run_backward(op: Any) -> Iterator[Outcome]:
    """Yield an entry with its gradients, in each dtype of which the list says something."""
    for dtype in DTYPES:
        is_there = getattr(torch, dtype) in op.supported_backward_dtypes("mps")
        if is_there and _read_list(op, dtype) != _RUNS:
            error = _find_error(op, dtype, gradients=True)
            yield Outcome(op.full_name, dtype, GRADIENTS, _expect(op, dtype), error)


def _expect(op: Any, dtype: str) -> str:
    """Return what an entry does on a Mac: runs, fails, left out or skipped."""
    listed = _read_list(op, dtype)
    if listed == _RUNS:
        return _RUNS
    if op.full_name in LEFT_OUT:
        return _LEFT_OUT
    return DECIDED.get(op.full_name, (listed,))[0]


def _read_list(op: Any, dtype: str) -> str:
    """Return what PyTorch's list says of an entry: runs, fails or skipped."""
    decorators = op.get_decorators(
        "TestConsistency", "test_output_match", "mps", getattr(torch, dtype), {}
    )
    if any(getattr(d, "__qualname__", type(d).__name__) in _ELSEWHERE for d in decorators):
        return "skipped"
    return _FAILS if unittest.expectedFailure in decorators else _RUNS


def _run_forward(op: Any, dtype: str, one_is_enough: bool) -> Outcome:
    """Return what came of an entry in a dtype; of one sample if that is enough and no failure is expected."""
    expected = _expect(op, dtype)
    error = _find_error(op, dtype, most=1 if one_is_enough and expected != _FAILS else None)
    return Outcome(op.full_name, dtype, FORWARD, expected, error)


def _find_error(op: Any, dtype: str, most: int | None = None, gradients: bool = False) -> str:
    """Return the exception of the first sample that raises, or of making samples; empty if there is none.

    Numbers are not compared. ``most`` limits how many samples run; with ``gradients`` their backward pass runs as well.
    """
    kind = getattr(torch, dtype)
    is_differentiable = kind in op.supported_backward_dtypes("mps")

    try:
        samples = op.sample_inputs("mps", kind, requires_grad=is_differentiable)
        for index, sample in enumerate(samples):
            if index == most:
                break
            results = op(sample.input, *sample.args, **sample.kwargs)
            if gradients:
                _backward(sample.output_process_fn_grad(results))
    except Exception as error:  # noqa: BLE001 - a verdict, not a crash
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def find_unexplained(outcomes: Iterable[Outcome], every: bool) -> list[str]:
    """Return what differs without a reason, what is skipped undecided, and reasons that explain nothing, a line each.

    ``every`` says that all entries were asked: only then is it known that a reason explains nothing.
    """
    differing = [o for o in outcomes if o.counts and not o.agrees]
    lines = [
        f"{o.name} {o.of} {o.dtype}: expected {o.expected}, {o.raised or 'ran'}"
        for o in differing
        if (o.name, o.of) not in DIFFERENCES
    ]
    lines += [
        f"{o.name} {o.of} {o.dtype}: PyTorch skips it: see why, and say so in DECIDED or LEFT_OUT"
        for o in outcomes
        if o.expected == "skipped"
    ]

    unused = DIFFERENCES.keys() - {(o.name, o.of) for o in differing} if every else set()
    return lines + [f"{' '.join(key)}: agrees now, take it from DIFFERENCES" for key in unused]


def find_unknown(names: Iterable[str]) -> list[str]:
    """Return those of the names that no entry of PyTorch's database has."""
    known = {name for op in op_db for name in (op.name, op.full_name)}
    return [name for name in names if name not in known]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print how many entries agree, and what differs; return 1 if something differs without a reason, else 0.

    Raises
    ------
    SystemExit
        With 2 for a name that no entry has: nothing would be compared, which looks as if it agreed.
    """
    parser = argparse.ArgumentParser(
        prog="python tools/expected_on_macs.py", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--only", default="", help="names of entries, with commas")
    only = [name for name in parser.parse_args(arguments).only.split(",") if name]
    if unknown := find_unknown(only):
        parser.error(f"PyTorch's database has no entry {', '.join(unknown)}")

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # the samples are tiny
    judged = list(outcomes(only))
    counted = [outcome for outcome in judged if outcome.counts]
    agreeing = sum(outcome.agrees for outcome in counted)
    print(f"{agreeing} of {len(counted)} agree, {len(judged) - len(counted)} left out")
    print("\n".join(describe_agreement(counted)))

    wrong = find_unexplained(judged, every=not only)
    print("\n".join(wrong))
    return 1 if wrong or not counted else 0


if __name__ == "__main__":
    sys.exit(main())
