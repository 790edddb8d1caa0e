"""Calls that the system aborts, planted on the simulated GPU: compare, divergence and the doctor say what happened.

Its checks run in a child with the simulated device (support/children.py).
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
CHILD = __name__ == "__main__"

import children  # noqa: E402

import metalsim  # noqa: E402

if CHILD:
    metalsim.install_with_torch()

import pytest  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

from metallab import checks, device, timing  # noqa: E402
from metallab.doctor import correctness  # noqa: E402
from metallab.doctor.limits import Limits  # noqa: E402
from metallab.pytorch import divergence  # noqa: E402
from metallab.pytorch.model import as_model  # noqa: E402
from metallab.timing import inspections  # noqa: E402
from metalsim import planting  # noqa: E402

if sys.platform == "darwin" and not CHILD:
    pytest.skip("a Mac has no simulated GPU", allow_module_level=True)


@functools.cache
def outcomes():
    return children.run(__file__, "simulated", on_simulated.checks, ENVIRONMENT)


on_simulated = children.Session(outcomes)
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT / "utils"),
    "METALLAB_DEVICE": "sim",
    "OMP_NUM_THREADS": "1",
}
FAULT = "call aborted by the system"


@contextlib.contextmanager
def aborted(calls: range):
    """Plant aborted calls, without the warning that they are planted."""
    with warnings.catch_warnings(action="ignore"), metalsim.plant(FAULT, calls=calls):
        yield


class Ticking:
    """A clock on which each call takes 10 ms, whatever this machine does meanwhile.

    A quick comparison of a result with the first takes 2 ms, so that there is no time for one in every round, and the
    parity check 300 ms: one look with it takes more than a comparison of 60 rounds may spend.
    """

    now = 0

    def __call__(self) -> int:
        return self.now

    def product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        self.now += 10_000_000
        return a @ b

    def look(self, result: Any) -> list[Any]:
        self.now += 2_000_000
        return VALUES_OF(result)

    def parity(self, reference: torch.Tensor, result: torch.Tensor) -> None:
        self.now += 300_000_000
        checks.assert_close(result, reference, "float32")


VALUES_OF = inspections._values_of


def compared(calls: range, seed: int) -> timing.Answer:
    """Compare a product with itself in 60 rounds, on the simulated GPU."""
    lab, clock = device.pick(), Ticking()
    a, b = torch.ones(16, 4096, device="mps"), torch.ones(4096, 16, device="mps")
    with aborted(calls), mock.patch.object(inspections, "_values_of", clock.look):
        comparison = timing.compare(
            {"mine": lambda: clock.product(a, b), "theirs": lambda: clock.product(a, b)},
            on=lab,
            baseline="theirs",
            parity=clock.parity,
            budget=timing.Budget(min_samples=60, max_samples=60, warmup_calls=2),
            seed=seed,
            clock=clock,
        )
    return comparison.answers["mine"]


@on_simulated
def test_compare_finds_an_abort_of_a_fifth_of_the_rounds_in_19_of_20():
    """Each round makes four calls: of each variant one untimed, which keeps it warm, and a timed one."""
    answers = [compared(range(100, 149), seed) for seed in range(20)]
    found = [each for each in answers if each.reason is timing.Reason.OUTPUTS_DIFFER]
    assert len(found) >= 19
    assert all("in round " in each.withheld.detail for each in found)
    assert all("aborted" in each.withheld.detail for each in found)


@on_simulated
def test_compare_says_simulated_where_no_call_was_aborted():
    answer = compared(range(10**9, 10**9 + 1), 0)
    assert answer.reason is timing.Reason.SIMULATED


@on_simulated
def test_an_aborted_call_leaves_what_lay_in_its_memory():
    """Those before and after it are right, and short ones are never aborted."""
    a = torch.ones(256, 256, device="mps")
    small = torch.ones(8, 8, device="mps")
    with aborted(range(2, 4)):
        is_right = [bool((a @ a == 256).all()) for _ in range(5) if (small @ small == 8).all()]
        assert is_right[0]
        assert is_right[3:] == [True, True]
    with aborted(range(1, 2)):
        device.pick().overwrite_freed([4 * 256 * 256])
        left = a @ a
    assert not (left == 256).all()
    assert left.shape == (256, 256)


class Product(nn.Module):
    """Of its input with itself."""

    def forward(self, x):
        return x @ x.mT


LAYERS = {
    "aten::linear": [
        (nn.Linear(256, 300), (200, 256)),
        (nn.Linear(256, 300, bias=False), (200, 256)),
    ],
    "aten::mm": [(Product(), (200, 256))],
    "aten::bmm": [(Product(), (3, 200, 256))],
    "aten::convolution": [
        (nn.Conv2d(3, 8, 3, padding=1), (4, 3, 64, 64)),
        (nn.Conv2d(3, 8, 3, bias=False).to(memory_format=torch.channels_last), (4, 3, 64, 64)),
        (nn.ConvTranspose2d(3, 8, 3), (4, 3, 64, 64)),
    ],
}
"""By operator: layers that call it with much to do, and shapes of their input."""


@on_simulated
def test_the_call_is_named_and_no_wrong_kernel():
    lab = device.pick()
    for operator, layers in LAYERS.items():
        for layer, shape in layers:
            torch.manual_seed(0)
            with aborted(range(1, 5)):
                verdict = divergence.find(
                    nn.Sequential(layer, nn.ReLU()), (torch.randn(shape),), on=lab
                )
            assert (verdict.kind, verdict.divergent_call.operator) == ("intermittent", operator), (
                verdict
            )
            assert verdict.divergent_call.module == "0"
            assert (verdict.divergent_call.wrong_calls, verdict.divergent_call.right_calls) == (
                4,
                3,
            )
            assert "was wrong in 4 of 7 calls with the same numbers" in verdict.headline
            assert "aborted" in verdict.headline
            assert not verdict.program
            assert "smaller batches" in verdict.advice


@on_simulated
def test_a_call_that_is_wrong_twenty_times_is_a_wrong_kernel():
    lab = device.pick()
    model = nn.Sequential(nn.Linear(256, 300, bias=False))
    for last, kind in ((19, "intermittent"), (20, "wrong kernel")):
        with aborted(range(1, last + 1)):
            verdict = divergence.find(model, (torch.randn(200, 256),), on=lab, layers=False)
        assert verdict.kind == kind, f"{last}: {verdict}"


@on_simulated
def test_a_kernel_that_is_right_at_times_is_intermittent_as_a_race_is():
    lab = device.pick()
    model = nn.Sequential(nn.Linear(256, 300, bias=False))
    with aborted(range(1, 100, 2)):
        verdict = divergence.find(model, (torch.randn(200, 256),), on=lab, layers=False)
    assert (verdict.divergent_call.wrong_calls, verdict.divergent_call.right_calls) == (3, 3)
    assert verdict.kind == "intermittent"


@on_simulated
def test_the_doctor_names_it():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 300), nn.ReLU(), nn.Linear(300, 4))
    examined = as_model((model, (torch.randn(200, 256),), None), "tests:example")
    with aborted(range(3, 9)):
        answer = correctness.answer(examined, Limits())
    assert answer.status == "failed"
    assert answer.sentence.startswith("Not always, with the inputs")
    assert "INTERMITTENT: aten::" in answer.sentence
    assert "What to do: give the GPU less work" in answer.sentence


@on_simulated
def test_calls_are_named_for_faults_that_come_and_go_alone():
    with pytest.raises(ValueError, match=FAULT):
        metalsim.plant("addcdiv, odd offset", calls=range(3)).__enter__()
    assert planting.list_planted() == ()


if CHILD:
    children.answer(on_simulated.checks, Path(sys.argv[2]))
