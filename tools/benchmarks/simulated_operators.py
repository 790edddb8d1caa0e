"""Does the simulated Apple GPU compute what the CPU computes? Asked of torch's own database of operators.

    python tools/benchmarks/simulated_operators.py [--only add,mm] [--samples 4]

Each entry of ``torch.testing._internal.common_methods_invocations.op_db`` brings sample inputs. They are run forward
and backward in float32 (in another dtype if the entry has no float32) on the CPU and on the simulated device, from
the same seed, and compared: bitwise, and within torch's tolerances. An entry that calls an operator without a Metal
kernel is expected to raise NotImplementedError, as on a Mac, and samples that a kernel refuses are not compared. Ends
with code 1 if an entry disagrees that is not in `KNOWN`.
"""

from __future__ import annotations

import argparse
import collections
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import metalsim
from metalsim import refusals

metalsim.arm()
metalsim.install()

import torch  # noqa: E402 - torch comes after the simulation is armed

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from conformance.operator_database import brief, invocations, run, tensors  # noqa: E402

# Entries that cannot agree, each with its reason.
_UNWRITTEN = "memory that nobody wrote; on the simulated device it is NaN"
_SPARSE = "sparse tensors are not simulated"
KNOWN: Mapping[str, str] = {
    **dict.fromkeys(
        ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"), _UNWRITTEN
    ),
    **dict.fromkeys(("to_sparse", "sparse.mm.reduce"), _SPARSE),
    "ldexp": "with integers PyTorch picks a kernel by device without an operator; a build for Linux has none for MPS",
    "tensor_split": "wants its indices on the CPU; the samples' indices were moved with everything else",
}  # fmt: skip
MISSING, FLOAT64 = "no Metal kernel", "wants float64 or complex128, which MPS does not have"
REFUSED = "a kernel refuses it, as on a Mac"
NOT_IMPLEMENTED = r"The operator '([^']+)' is not currently implemented for the MPS device"
TOO_WIDE = r"Cannot convert a MPS Tensor to float64|Trying to convert ComplexDouble"
"""How PyTorch's messages begin where MPS lacks a kernel, and where it lacks a dtype."""


@dataclass(frozen=True)
class Outcome:
    """What came of one entry of the database."""

    name: str
    answer: str
    """identical, close, differs, raises, no Metal kernel, skipped."""
    reason: str = ""
    samples: int = 0
    backward: int = 0
    """Samples whose gradients were compared as well."""
    refused: int = 0
    """Samples that want float64, or that a kernel refuses: they raise on MPS."""


def find_entries(only: Iterable[str] = ()) -> list[Any]:
    """Return the entries with these names, or all; variants are named as ``name.variant``."""
    wanted = set(only)
    return [op for op in invocations.op_db if not wanted or {op.name, op.full_name} & wanted]


def find_unknown(names: Iterable[str]) -> list[str]:
    """Return those of the names that no entry of the database has."""
    known = {name for op in invocations.op_db for name in (op.name, op.full_name)}
    return [name for name in names if name not in known]


def check(op: Any, most_samples: int) -> Outcome:
    """Compare an entry on the CPU and on the simulated device, with at most so many samples.

    It is skipped if it has no dtype that MPS has, or if the database cannot make its samples.
    """
    dtype = _choose_dtype(op)
    if dtype is None:
        return Outcome(op.full_name, "skipped", "no dtype that MPS has")
    gradients = op.supports_autograd and dtype.is_floating_point
    try:
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=gradients))[:most_samples]
    except Exception as error:  # noqa: BLE001 - the database is not ours; its troubles are told
        return Outcome(op.full_name, "skipped", f"no samples: {brief(error)}")
    return _compare_samples(op, samples)


def _compare_samples(op: Any, samples: Iterable[Any]) -> Outcome:
    """Compare an entry on samples, up to the first that does not agree, whose answer is the entry's.

    Samples that the CPU does not compute are left out, and those that MPS refuses, or that want float64, are counted
    apart. If none is left the entry is skipped; if all agree it is identical, or close if one of them is.
    """
    worst, backward, compared, refused = "identical", 0, 0, 0
    why_refused = ""
    for sample in samples:
        try:
            results, gradients = run(op, sample, "cpu")
        except Exception:  # noqa: BLE001, S112 - what the CPU refuses tells nothing
            continue

        answer, reason = _compare(op, sample, (results, gradients))
        if answer in (FLOAT64, REFUSED):
            refused += 1
            why_refused = answer
            continue

        compared += 1
        backward += gradients is not None
        if answer not in ("identical", "close"):
            return Outcome(op.full_name, answer, reason, compared, backward, refused)
        if answer == "close":
            worst = "close"

    if not compared:
        reason = why_refused or "no sample runs on the CPU"
        return Outcome(op.full_name, "skipped", reason, refused=refused)
    return Outcome(op.full_name, worst, "", compared, backward, refused)


def _choose_dtype(op: Any) -> torch.dtype | None:
    """Return the dtype that an entry is asked with: float32 if it has that, else another that MPS has."""
    supported = op.supported_dtypes("cpu")
    usual = (torch.float32, torch.int64, torch.int32, torch.bool, torch.uint8, torch.complex64)
    return next((dtype for dtype in usual if dtype in supported), None)


def _compare(op: Any, sample: Any, expected: Any) -> tuple[str, str]:
    """Return how the simulated device answers a sample, and the reason if it does not agree.

    ``expected`` are the CPU's results and gradients. Bitwise the same is ``identical``, within PyTorch's tolerances
    ``close``.
    """
    try:
        result = run(op, sample, "mps")
    except Exception as error:  # noqa: BLE001 - a verdict, not a crash
        return _judge_error(error)

    answer = "identical"
    for one, other in zip(tensors(expected), tensors(result), strict=True):
        try:
            torch.testing.assert_close(other, one, rtol=0, atol=0, equal_nan=True)
        except AssertionError:
            answer = "close"
        try:
            torch.testing.assert_close(other, one, equal_nan=True)
        except AssertionError as error:
            return "differs", brief(error)
    return answer, ""


def _judge_error(error: Exception) -> tuple[str, str]:
    """Return what an error on the simulated device means, and the operator that is missing, or the message."""
    if refusals.is_refusal(error):
        return REFUSED, ""

    message = str(error)
    missing = re.match(NOT_IMPLEMENTED, message)
    if isinstance(error, NotImplementedError) and missing:
        return MISSING, missing[1]
    if re.match(TOO_WIDE, message) and not isinstance(error, NotImplementedError):
        return FLOAT64, ""
    return "raises", brief(error)


def report(outcomes: list[Outcome]) -> str:
    """Return how many agree; the others, grouped by their reason."""
    counts = collections.Counter(outcome.answer for outcome in outcomes)
    by_answer = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    samples = sum(outcome.samples for outcome in outcomes)
    backward = sum(outcome.backward for outcome in outcomes)
    refused = sum(outcome.refused for outcome in outcomes)

    lines = [
        f"{len(outcomes)} entries: {by_answer}",
        f"{samples} samples compared, {backward} with gradients; "
        f"{refused} more want float64 or are refused, and raise",
    ]
    for answer in ("differs", "raises", MISSING, "skipped"):
        of_answer = [outcome for outcome in outcomes if outcome.answer == answer]
        lines += _describe_groups(answer, of_answer)
    return "\n".join(lines)


def _describe_groups(answer: str, outcomes: list[Outcome]) -> Iterator[str]:
    """Yield a paragraph for each reason, the most frequent first; reasons that differ in numbers are one."""
    groups: dict[str, list[str]] = {}
    for outcome in outcomes:
        reason = re.sub(r"\d+(\.\d+)?(e[-+]\d+)?", "#", outcome.reason)
        groups.setdefault(reason, []).append(outcome.name)

    for reason, names in sorted(groups.items(), key=lambda item: -len(item[1])):
        why_known = {KNOWN[name] for name in names if name in KNOWN}
        told = ""
        if all(name in KNOWN for name in names):
            told = f" [expected: {'; '.join(sorted(why_known))}]"
        yield f"{answer} ({len(names)}): {reason}{told}\n    {', '.join(names)}"


def main() -> int:
    """Ask the entries that are named, or all, and print the report; return 1 if one disagrees that is not in `KNOWN`.

    Raises
    ------
    SystemExit
        With 2 for a name that no entry has: nothing would be compared, which looks as if it agreed.
    """
    parser = argparse.ArgumentParser(
        prog="python tools/benchmarks/simulated_operators.py",
        description=__doc__.partition("\n")[0],
    )
    parser.add_argument("--only", default="", help="names of entries, with commas")
    parser.add_argument(
        "--samples", type=int, default=4, help="at most so many samples of an entry"
    )
    given = parser.parse_args()
    only = [name for name in given.only.split(",") if name]
    if unknown := find_unknown(only):
        parser.error(f"torch's database has no entry {', '.join(unknown)}")

    warnings.simplefilter("ignore")
    outcomes = []
    for op in find_entries(only):
        outcomes.append(check(op, given.samples))
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{len(outcomes)} {op.full_name:<60}")

    print(report(outcomes))
    wrong = [each for each in outcomes if each.answer in ("differs", "raises")]
    return 1 if any(each.name not in KNOWN for each in wrong) else 0


if __name__ == "__main__":
    sys.exit(main())
