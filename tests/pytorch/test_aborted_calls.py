"""Calls that the system aborts, planted on the simulated GPU: compare, divergence and the doctor say what happened.

Its checks run in a child with the simulated device (support/children.py).
"""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

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


# one thread: more wait for each other in work so small
on_simulated = children.open_session(__file__, OMP_NUM_THREADS="1")
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
    """Compare a product with itself in 60 rounds on the simulated GPU, which aborts the calls with these numbers.

    Return what is answered of the one that is not the baseline.
    """
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
def test_calls_before_and_after_aborted_ones_are_right():
    a = torch.ones(256, 256, device="mps")

    with aborted(range(2, 4)):
        is_right = [bool((a @ a == 256).all()) for _ in range(5)]

    assert is_right[0]
    assert is_right[3:] == [True, True]


@on_simulated
def test_short_calls_are_neither_aborted_nor_counted():
    small, large = torch.ones(8, 8, device="mps"), torch.ones(256, 256, device="mps")
    device.pick().overwrite_freed([4 * 8 * 8])

    with aborted(range(2, 10)):
        results = [small @ small for _ in range(3)]
        first_that_counts = large @ large

    assert all((result == 8).all() for result in results)
    assert (first_that_counts == 256).all()


@on_simulated
def test_an_aborted_call_leaves_what_lay_in_its_memory():
    a = torch.ones(256, 256, device="mps")

    with aborted(range(1, 2)):
        device.pick().overwrite_freed([4 * 256 * 256])
        left = a @ a

    assert left.shape == (256, 256)
    assert not (left == 256).all()


class Product(nn.Module):
    """Of its input with itself."""

    def forward(self, x):
        return x @ x.mT


@dataclass(frozen=True)
class MuchToDo:
    """A layer with so much to do that its call may be aborted, the operator that it calls, and its input's shape."""

    operator: str
    layer: nn.Module
    shape: tuple[int, ...]


LAYERS = {
    "linear": MuchToDo("aten::linear", nn.Linear(256, 300), (200, 256)),
    "linear without bias": MuchToDo("aten::linear", nn.Linear(256, 300, bias=False), (200, 256)),
    "product": MuchToDo("aten::mm", Product(), (200, 256)),
    "products of a batch": MuchToDo("aten::bmm", Product(), (3, 200, 256)),
    "convolution": MuchToDo("aten::convolution", nn.Conv2d(3, 8, 3, padding=1), (4, 3, 64, 64)),
    "convolution, channels last": MuchToDo(
        "aten::convolution",
        nn.Conv2d(3, 8, 3, bias=False).to(memory_format=torch.channels_last),
        (4, 3, 64, 64),
    ),
    "transposed convolution": MuchToDo(
        "aten::convolution", nn.ConvTranspose2d(3, 8, 3), (4, 3, 64, 64)
    ),
}


@functools.cache
def find_aborted(case: MuchToDo) -> divergence.Report:
    """Search a layer of which the first four calls are aborted."""
    torch.manual_seed(0)
    model = nn.Sequential(case.layer, nn.ReLU())
    with aborted(range(1, 5)):
        return divergence.find(model, (torch.randn(case.shape),), on=device.pick())


"""By operator: layers that call it with much to do, and shapes of their input."""


@on_simulated.cases(LAYERS)
def test_a_call_that_is_aborted_at_times_is_intermittent_and_no_wrong_kernel(case):
    report = find_aborted(case)
    assert report.kind == "intermittent", report
    assert not report.program


@on_simulated.cases(LAYERS)
def test_an_aborted_call_is_named_with_its_operator_and_module(case):
    found = find_aborted(case).divergent_call
    assert found.operator == case.operator
    assert found.module == "0"


@on_simulated.cases(LAYERS)
def test_calls_that_were_aborted_are_counted(case):
    report = find_aborted(case)
    assert report.divergent_call.wrong_calls == 4
    assert report.divergent_call.right_calls == 3
    assert "was wrong in 4 of 7 calls with the same numbers" in report.headline


@on_simulated.cases(LAYERS)
def test_of_calls_that_may_have_been_aborted_the_advice_is_less_work(case):
    report = find_aborted(case)
    assert "aborted" in report.headline
    assert "smaller batches" in report.advice


@on_simulated.cases({"19 times": (19, "intermittent"), "20 times": (20, "wrong kernel")})
def test_a_call_that_is_wrong_twenty_times_is_a_wrong_kernel(case):
    times, kind = case
    model = nn.Sequential(nn.Linear(256, 300, bias=False))

    with aborted(range(1, times + 1)):
        report = divergence.find(model, (torch.randn(200, 256),), on=device.pick(), layers=False)

    assert report.kind == kind, report


@on_simulated
def test_a_kernel_that_is_right_at_times_is_intermittent_as_a_race_is():
    model = nn.Sequential(nn.Linear(256, 300, bias=False))

    with aborted(range(1, 100, 2)):
        report = divergence.find(model, (torch.randn(200, 256),), on=device.pick(), layers=False)

    assert report.kind == "intermittent"
    assert report.divergent_call.wrong_calls == 3
    assert report.divergent_call.right_calls == 3


@on_simulated
def test_the_doctor_names_a_call_that_is_aborted():
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
