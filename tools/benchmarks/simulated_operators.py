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
from collections.abc import Iterable, Mapping
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


def entries(only: Iterable[str] = ()) -> list[Any]:
    """The entries with these names, or all; variants are named as ``name.variant``."""
    wanted = set(only)
    return [op for op in invocations.op_db if not wanted or {op.name, op.full_name} & wanted]


def check(op: Any, most_samples: int) -> Outcome:
    """Compare an entry on both sides."""
    dtype = _dtype(op)
    if dtype is None:
        return Outcome(op.full_name, "skipped", "no dtype that MPS has")
    gradients = op.supports_autograd and dtype.is_floating_point
    try:
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=gradients))[:most_samples]
    except Exception as error:  # noqa: BLE001 - the database is not ours; its troubles are told
        return Outcome(op.full_name, "skipped", f"no samples: {brief(error)}")
    worst, backward, compared, refused = "identical", 0, 0, 0
    for sample in samples:
        try:
            expected = run(op, sample, "cpu")
        except Exception:  # noqa: BLE001, S112 - what the CPU refuses tells nothing
            continue
        answer, reason = _compare(op, sample, expected)
        if answer in (FLOAT64, REFUSED):
            refused += 1
            continue
        compared += 1
        backward += expected[1] is not None
        if answer not in ("identical", "close"):
            return Outcome(op.full_name, answer, reason, compared, backward)
        worst = "close" if answer == "close" else worst
    if not compared:
        return Outcome(
            op.full_name,
            "skipped",
            answer if refused else "no sample runs on the CPU",
            refused=refused,
        )
    return Outcome(op.full_name, worst, "", compared, backward, refused)


def _dtype(op: Any) -> torch.dtype | None:
    supported = op.supported_dtypes("cpu")
    usual = (torch.float32, torch.int64, torch.int32, torch.bool, torch.uint8, torch.complex64)
    return next((dtype for dtype in usual if dtype in supported), None)


def _compare(op: Any, sample: Any, expected: Any) -> tuple[str, str]:
    try:
        result = run(op, sample, "mps")
    except NotImplementedError as error:
        if refusals.is_refusal(error):
            return REFUSED, ""
        missing = re.match(
            r"The operator '([^']+)' is not currently implemented for the MPS device", str(error)
        )
        return (MISSING, missing[1]) if missing else ("raises", brief(error))
    except Exception as error:  # noqa: BLE001 - a verdict, not a crash
        wide = re.match(
            r"Cannot convert a MPS Tensor to float64|Trying to convert ComplexDouble", str(error)
        )
        if refusals.is_refusal(error):
            return REFUSED, ""
        return (FLOAT64, "") if wide else ("raises", brief(error))
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


def report(outcomes: list[Outcome]) -> str:
    """How many agree; the others, grouped by their reason."""
    counts = collections.Counter(outcome.answer for outcome in outcomes)
    lines = [
        f"{len(outcomes)} entries: "
        + ", ".join(f"{count} {name}" for name, count in counts.most_common())
    ]
    lines.append(
        f"{sum(o.samples for o in outcomes)} samples compared, {sum(o.backward for o in outcomes)} with gradients; "
        f"{sum(o.refused for o in outcomes)} more want float64 or are refused, and raise"
    )
    for answer in ("differs", "raises", MISSING, "skipped"):
        groups: dict[str, list[str]] = {}
        for outcome in outcomes:
            if outcome.answer == answer:
                groups.setdefault(
                    re.sub(r"\d+(\.\d+)?(e[-+]\d+)?", "#", outcome.reason), []
                ).append(outcome.name)
        for reason, names in sorted(groups.items(), key=lambda item: -len(item[1])):
            known = {KNOWN.get(name) for name in names}
            told = "" if None in known else f" [expected: {'; '.join(sorted(known))}]"
            lines.append(f"{answer} ({len(names)}): {reason}{told}\n    {', '.join(names)}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python tools/benchmarks/simulated_operators.py",
        description=__doc__.partition("\n")[0],
    )
    parser.add_argument("--only", default="", help="names of entries, with commas")
    parser.add_argument(
        "--samples", type=int, default=4, help="at most so many samples of an entry"
    )
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    outcomes = []
    for op in entries(filter(None, arguments.only.split(","))):
        outcomes.append(check(op, arguments.samples))
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{len(outcomes)} {op.full_name:<60}")
    print(report(outcomes))
    wrong = [o.name for o in outcomes if o.answer in ("differs", "raises") and o.name not in KNOWN]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
