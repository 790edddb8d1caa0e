"""Results of timed calls are compared in rounds drawn at random, so that a call that was aborted is no fast one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from test_timing_rules import FakeClock

from metallab import inspections, timing

RIGHT, LEFT_AS_IT_WAS = 1.0, 0.0
SECONDS_OF_A_CALL = 0.01


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
        return abs(reference - result) < 0.1


class Watched(inspections.Inspections):
    """Notes which rounds are inspected, and which of them beyond the certain one."""

    rounds: list[int]
    certain: int

    def compare(self, variant: str, result: float) -> None:
        Watched.certain = self.certain_round
        if self.round not in Watched.rounds:
            Watched.rounds.append(self.round)
        super().compare(variant, result)


@pytest.fixture(autouse=True)
def _watched(monkeypatch):
    Watched.rounds = []
    monkeypatch.setattr(timing, "Inspections", Watched)


def compare(
    aborting: str = "",
    *,
    parity_seconds: float = 0.0001,
    seed: int = 0,
    rounding: bool = False,
    rounds: int = 60,
) -> tuple[timing.Comparison, Parity, FakeClock]:
    """Compare two functions, one of which is aborted in a fifth of the rounds: two calls are made in each.

    With ``rounding`` each result differs a little from that of the call before.
    """
    clock = FakeClock()
    parity = Parity(clock, parity_seconds)
    span = {
        name: (rounds - 10, rounds - 10 + 2 * rounds // 5) if name == aborting else (0, -1)
        for name in ("base", "other")
    }
    variants: dict[str, Callable[[], float]] = {
        name: Aborting(clock, *calls) for name, calls in span.items()
    }

    def rounded(fn: Aborting) -> Callable[[], float]:
        return lambda: fn() * (1 + 1e-9 * fn.calls)

    compared = timing.compare(
        {name: rounded(fn) for name, fn in variants.items()} if rounding else variants,
        on=timing.Host(),
        baseline="base",
        parity=parity,
        budget=timing.Budget(min_samples=rounds, max_samples=rounds),
        seed=seed,
        clock=clock,
    )
    return compared, parity, clock


@pytest.mark.parametrize("parity_in_calls", [0.01, 0.2, 1.0, 10.0])
@pytest.mark.parametrize("aborting", ["base", "other"])
def test_an_abort_of_a_fifth_of_the_rounds_is_found_in_19_of_20(aborting, parity_in_calls):
    """However long the parity check takes, since a quick comparison goes before it."""
    seconds = parity_in_calls * SECONDS_OF_A_CALL
    answers = [
        compare(aborting, parity_seconds=seconds, seed=seed)[0].answers["other"]
        for seed in range(20)
    ]
    found = [answer for answer in answers if answer.reason is timing.Reason.OUTPUTS_DIFFER]
    assert len(found) >= 19
    assert all("in round " in answer.withheld.detail for answer in found)


def slow_values(clock: FakeClock, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the quick comparison take some time, too."""
    values_of = inspections._values_of

    def slow(result):
        clock.now += round(seconds * 1e9)
        return values_of(result)

    monkeypatch.setattr(inspections, "_values_of", slow)


def compare_long(
    monkeypatch: pytest.MonkeyPatch, look_in_calls: float, seed: int = 0, rounds: int = 400
) -> list[int]:
    """Return which rounds were inspected, where a look at each result takes so many calls' time."""
    Watched.rounds, clock = [], FakeClock()
    with monkeypatch.context() as patched:
        slow_values(clock, look_in_calls * SECONDS_OF_A_CALL, patched)
        timing.compare(
            {name: Aborting(clock) for name in ("base", "other")},
            on=timing.Host(),
            baseline="base",
            parity=Parity(clock, 0.1),
            budget=timing.Budget(min_samples=rounds, max_samples=rounds, max_seconds=1e6),
            seed=seed,
            clock=clock,
        )
    return Watched.rounds


@pytest.mark.parametrize("seed", range(5))
def test_rounds_are_inspected_from_the_beginning_to_the_end(seed, monkeypatch):
    """Two looks of 1.5 calls take 3 % of 25 rounds, of four calls each; so at least every 40th is inspected."""
    rounds = compare_long(monkeypatch, look_in_calls=1.5, seed=seed)
    distances = np.diff([0, *rounds, 400])
    assert distances.max() <= 40
    assert len(set(distances[1:-1])) > 1, "none is hidden in a cycle"


@pytest.mark.parametrize("look_in_calls", [0.01, 0.1, 1.0, 30.0, 1000.0])
def test_looks_take_three_per_cent_of_the_time_beyond_the_first_one(look_in_calls, monkeypatch):
    rounds = compare_long(monkeypatch, look_in_calls)
    later = len(rounds) - 1
    calls = 2 * later * look_in_calls
    assert calls <= inspections.INSPECTION * (4 * 400 + calls) + 2 * look_in_calls
    assert rounds[0] == Watched.certain


def test_a_result_that_is_rounded_in_another_way_is_judged_by_the_parity_check():
    compared, parity, _ = compare(rounding=True)
    assert compared.answers["other"].ratio is not None
    assert parity.calls > 20
    exact_calls = compare()[1].calls
    assert exact_calls == 1 + 2 + 2, "the first result, those of the certain round, and the last"


def test_an_abort_among_rounded_results_is_found():
    answers = [compare("other", rounding=True, seed=seed)[0].answers["other"] for seed in range(20)]
    assert sum(answer.reason is timing.Reason.OUTPUTS_DIFFER for answer in answers) >= 19


def test_a_parity_check_that_is_needed_each_time_takes_three_per_cent_as_well():
    _, parity, clock = compare(rounding=True, parity_seconds=0.1)
    later = (parity.calls - (1 + 2 + 2)) * 0.1
    assert later <= inspections.INSPECTION * clock.now / 1e9 + 2 * 0.1


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
    assert inspections.memory_of([one, one[0], one.T, 1.5, None]) == [64]
    assert inspections.memory_of(torch.ones(1).expand(2**38, 1)) == [4]
    assert inspections.memory_of({"sparse": one.to_sparse()}) == []
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
    compared, _, _ = compare()
    assert compared.answers["other"].ratio is not None
    assert len(Watched.rounds) > 20


def test_one_round_is_inspected_however_long_it_takes():
    _, parity, _ = compare(rounding=True, parity_seconds=100.0)
    assert parity.calls == 1 + 2 + 2, "the first result, those of one round, and the last ones"
    assert Watched.rounds == [Watched.certain]


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


@pytest.mark.parametrize(
    "result",
    [
        pytest.param(lambda: np.arange(10**6), id="array"),
        pytest.param(lambda: [np.arange(3.0), {"loss": 1.5, "name": "a"}], id="nested"),
        pytest.param(lambda: np.float32(2.0), id="number"),
        pytest.param(lambda: None, id="nothing"),
    ],
)
def test_values_of_a_result_are_kept(result):
    (values,) = inspections._right_values({"a": result()}).values()
    assert inspections._has_values(result(), values)
    assert not inspections._has_values("something else", values)


@pytest.mark.parametrize(
    "result",
    [
        pytest.param(np.array([1.0, np.nan]), id="not a number"),
        pytest.param(object(), id="object"),
        pytest.param([np.arange(3.0), {1, 2}], id="set"),
    ],
)
def test_what_cannot_be_compared_quickly_is_left_to_the_parity_check(result):
    assert inspections._right_values({"a": result}) == {}


def test_the_last_part_of_an_array_that_was_not_written_is_seen():
    """An abort ends a kernel before its last thread groups have run."""
    size = 10**7
    values = inspections._right_values({"a": np.ones(size)})["a"]
    result = np.ones(size)
    assert inspections._has_values(result, values)
    result[-size // 1000 :] = 0
    assert not inspections._has_values(result, values)


@pytest.mark.parametrize("changed", ["shape", "dtype", "value", "length"])
def test_other_values_are_not_the_right_ones(changed):
    values = inspections._right_values({"a": [np.ones((2, 3))]})["a"]
    others = {
        "shape": [np.ones((3, 2))],
        "dtype": [np.ones((2, 3), np.float32)],
        "value": [np.ones((2, 3)) + 1e-12],
        "length": [np.ones((2, 3))] * 2,
    }
    assert not inspections._has_values(others[changed], values)


@pytest.mark.parametrize("library", ["torch", "jax.numpy", "tensorflow"])
def test_arrays_of_any_library_are_compared_where_they_are(library):
    module = pytest.importorskip(library)
    ones, twos = module.ones((300, 300)), module.ones((300, 300)) + module.ones((300, 300))
    values = inspections._right_values({"a": ones})["a"]
    assert inspections._has_values(module.ones((300, 300)), values)
    assert not inspections._has_values(twos, values)


def test_values_are_copied_from_a_memory_that_is_written_again():
    array = np.ones(10)
    values = inspections._right_values({"a": array})["a"]
    array[:] = 2
    assert not inspections._has_values(array, values)
