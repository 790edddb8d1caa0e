"""Results of timed calls are compared in rounds drawn at random, so that a call that was aborted is no fast one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from test_timing_rules import FakeClock

from metallab import timing

RIGHT, LEFT_AS_IT_WAS = 1.0, 0.0


class Aborting:
    """A function that takes 10 ms, and returns at once with a wrong result from one of its calls to another."""

    def __init__(self, clock: FakeClock, first: int = 0, last: int = -1) -> None:
        self.clock, self.first, self.last = clock, first, last
        self.calls = 0

    def __call__(self) -> float:
        self.calls += 1
        if self.first <= self.calls <= self.last:
            self.clock.now += 10_000
            return LEFT_AS_IT_WAS
        self.clock.now += 10_000_000
        return RIGHT


class Reusing(timing.Host):
    """A device that keeps the memory of freed results, and gives it to the next ones."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "memory", np.zeros(1))

    def writing(self, computing: Callable[[], float]) -> Callable[[], np.ndarray]:
        """Return a function that writes into this memory what another computes, if that is not aborted."""

        def fn() -> np.ndarray:
            if computing() == RIGHT:
                self.memory[:] = RIGHT
            return self.memory

        return fn

    def overwrite_freed(self, sizes: Sequence[int]) -> None:
        assert sizes == [self.memory.nbytes]
        self.memory[:] = np.nan


class Parity:
    """Equality, which takes some time on a fake clock."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds
        self.calls = 0

    def __call__(self, reference: float, result: float) -> bool:
        self.calls += 1
        self.clock.now += round(self.seconds * 1e9)
        return reference == result


def compare(
    aborting: str = "",
    *,
    parity_seconds: float = 0.0001,
    seed: int = 0,
    on: timing.DeviceLike | None = None,
) -> tuple[timing.Comparison, Parity, FakeClock]:
    """Compare two functions, one of which is aborted in a fifth of some 60 rounds: two calls are made in each."""
    clock = FakeClock()
    parity = Parity(clock, parity_seconds)
    span = {name: (50, 73) if name == aborting else (0, -1) for name in ("base", "other")}
    variants: dict[str, Callable[[], float]] = {
        name: Aborting(clock, *calls) for name, calls in span.items()
    }
    compared = timing.compare(
        variants,
        on=on or timing.Host(),
        baseline="base",
        parity=parity,
        budget=timing.Budget(min_samples=60, max_samples=60),
        seed=seed,
        clock=clock,
    )
    return compared, parity, clock


@pytest.mark.parametrize("aborting", ["base", "other"])
def test_an_abort_of_a_fifth_of_the_rounds_is_found_in_19_of_20(aborting):
    answers = [compare(aborting, seed=seed)[0].answers["other"] for seed in range(20)]
    found = [answer for answer in answers if answer.reason is timing.Reason.OUTPUTS_DIFFER]
    assert len(found) >= 19
    assert all("in round " in answer.withheld.detail for answer in found)


@pytest.mark.parametrize(("overwrites", "found"), [(True, range(19, 21)), (False, [0])])
def test_an_aborted_call_does_not_return_the_right_result_of_an_earlier_one(
    overwrites, found, monkeypatch
):
    """GPUs' allocators hand out memory in which such a result lies: without writing over it nothing shows."""
    if not overwrites:
        monkeypatch.delattr(Reusing, "overwrite_freed")
    differing = 0
    for seed in range(20):
        clock, device = FakeClock(), Reusing()
        fn = device.writing(Aborting(clock, 100, 147))
        compared = timing.compare(
            {"base": fn, "other": fn},
            on=device,
            baseline="base",
            parity=lambda reference, result: bool((reference == result).all()),
            budget=timing.Budget(min_samples=60, max_samples=60),
            seed=seed,
            clock=clock,
        )
        differing += compared.answers["other"].reason is timing.Reason.OUTPUTS_DIFFER
    assert differing in found


def test_memory_of_any_result_is_asked_for_and_views_count_once():
    torch = pytest.importorskip("torch")
    one = torch.ones(4, 4)
    assert timing._memory_of([one, one[0], one.T, 1.5, None]) == [64]
    assert timing._memory_of(torch.ones(1).expand(2**38, 1)) == [4]
    assert timing._memory_of({"sparse": one.to_sparse()}) == []
    timing.measure(one.to_sparse, on=timing.Host(), name="sparse", budget=timing.FAST)


def test_it_says_whose_result_it_was():
    assert "'base' itself" in compare("base")[0].answers["other"].withheld.detail
    assert "'base'" not in compare("other")[0].answers["other"].withheld.detail


def test_an_abort_that_lasts_to_the_end_names_its_round_as_well():
    clock = FakeClock()
    compared = timing.compare(
        {"base": Aborting(clock), "other": Aborting(clock, 50, 10**9)},
        on=timing.Host(),
        baseline="base",
        parity=Parity(clock, 0.0001),
        budget=timing.Budget(min_samples=60, max_samples=60),
        clock=clock,
    )
    detail = compared.answers["other"].withheld.detail
    assert "in the last call" in detail
    assert "the system aborted the call" in detail
    assert "so it was in round " in detail


def test_functions_that_are_right_throughout_are_compared():
    compared, parity, _ = compare()
    assert compared.answers["other"].ratio is not None
    assert parity.calls > 3, "once at first, once or twice in the end, and in between"


@pytest.mark.parametrize("parity_seconds", [1e-6, 1e-4, 1e-3, 3.0])
def test_it_takes_three_per_cent_of_the_time_beyond_the_first_look(parity_seconds):
    """The checks of the first call and of the last are no inspections, nor is that of the first round."""
    _, parity, clock = compare(parity_seconds=parity_seconds)
    others = 1 + 2 + 2
    later = max(0, parity.calls - others) * parity_seconds
    a_round = 2 * parity_seconds
    assert later <= timing.INSPECTION * clock.now / 1e9 + a_round


def test_one_round_is_inspected_however_long_it_takes():
    _, parity, _ = compare(parity_seconds=100.0)
    assert parity.calls == 1 + 2 + 2, "the first result, those of one round, and the last ones"


def test_what_is_not_checked_is_not_inspected():
    compared = timing.compare(
        {"base": lambda: 1.0, "other": lambda: 2.0},
        on=timing.Host(),
        baseline="base",
        parity=timing.Unchecked("two numbers"),
        budget=timing.FAST,
    )
    assert compared.refused == {}


def test_a_result_is_looked_at_before_another_function_writes_over_it():
    clock, buffer = FakeClock(), [0.0]

    def writing(value: float) -> Callable[[], list[float]]:
        def fn() -> list[float]:
            clock.now += 10_000_000
            buffer[0] = value
            return buffer

        return fn

    compared = timing.compare(
        {"base": writing(1.0), "other": writing(1.0 + 1e-9)},
        on=timing.Host(),
        baseline="base",
        parity=lambda reference, result: abs(reference[0] - result[0]) < 1e-6,
        clock=clock,
    )
    assert compared.refused == {}
