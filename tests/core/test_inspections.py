"""Results of timed calls are compared in rounds drawn at random, so that a call that was aborted is no fast one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
from fake_clock import FakeClock

from metallab import timing
from metallab.timing import comparing, inspections

RIGHT, LEFT_AS_IT_WAS = 1.0, 0.0
SECONDS_OF_A_CALL = 0.01
LOOK_IN_CALLS = 0.2
"""What a quick comparison of a result with the first one takes here: so not every round can be inspected."""


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
        return bool((np.abs(reference - result) < 0.5).all())


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
    monkeypatch.setattr(comparing, "Inspections", Watched)


@contextlib.contextmanager
def looks_taking(seconds: float, clock: FakeClock) -> Iterator[None]:
    """Let the quick comparison of a result take some time on a fake clock."""
    values_of = inspections._values_of

    def slow(result):
        clock.now += round(seconds * 1e9)
        return values_of(result)

    with mock.patch.object(inspections, "_values_of", slow):
        yield


def compare(
    aborting: str = "",
    *,
    parity_seconds: float = 0.0001,
    seed: int = 0,
    noise: float = 0.0,
    rounds: int = 60,
    array_of: Callable[[Any], Any] = lambda value: value,
) -> tuple[timing.Comparison, Parity, FakeClock]:
    """Compare two functions in so many rounds; return the comparison, its parity check and its clock.

    Parameters
    ----------
    aborting
        Which of them, ``base`` or ``other``, is aborted in a fifth of the rounds; none if it is empty.
    parity_seconds
        What the parity check takes.
    seed
        Of the rounds that are inspected, and of the noise.
    noise
        By about how much the values of each result differ from those of other calls.
    rounds
        How many.
    array_of
        Makes a result from a number or an array.
    """
    clock = FakeClock()
    parity = Parity(clock, parity_seconds)
    rng = np.random.default_rng(seed)
    # the first and the last call that is aborted, well within the rounds; each function is called twice in a round
    aborted = (rounds - 10, rounds - 10 + 2 * rounds // 5)
    span = {name: aborted if name == aborting else (0, -1) for name in ("base", "other")}

    def returning_arrays(fn: Aborting) -> Callable[[], Any]:
        if not noise:
            return lambda: array_of(fn())
        return lambda: array_of(fn() * (1 + noise * rng.uniform(-1, 1, 100)))

    with looks_taking(LOOK_IN_CALLS * SECONDS_OF_A_CALL, clock):
        compared = timing.compare(
            {name: returning_arrays(Aborting(clock, *calls)) for name, calls in span.items()},
            on=timing.Host(),
            baseline="base",
            parity=parity,
            budget=timing.Budget(min_samples=rounds, max_samples=rounds),
            seed=seed,
            clock=clock,
        )
    return compared, parity, clock


def find_aborts(aborting: str, **how: Any) -> list[timing.Withheld]:
    """Return what was said of 20 comparisons, each with another seed, whose abort was found."""
    answers = [compare(aborting, seed=seed, **how)[0].answers["other"] for seed in range(20)]
    return [
        answer.withheld
        for answer in answers
        if answer.withheld is not None and answer.reason is timing.Reason.OUTPUTS_DIFFER
    ]


SLOW_PARITY = 30 * SECONDS_OF_A_CALL
"""One look with it takes more than 3 % of the time of 60 rounds."""


@pytest.mark.parametrize("parity_in_calls", [0.01, 0.2, 1.0, 30.0])
@pytest.mark.parametrize("noise", [0.0, 1e-6], ids=["equal results", "rounded in another way"])
@pytest.mark.parametrize("aborting", ["base", "other"])
def test_an_abort_of_a_fifth_of_the_rounds_is_found_in_19_of_20(aborting, noise, parity_in_calls):
    """However long the parity check takes, since a quick comparison goes before it."""
    seconds = parity_in_calls * SECONDS_OF_A_CALL
    found = find_aborts(aborting, parity_seconds=seconds, noise=noise)
    assert len(found) >= 19
    assert all("in round " in withheld.detail for withheld in found)


def torch_array(value: Any) -> Any:
    torch = pytest.importorskip("torch")
    return torch.ones(100) * torch.as_tensor(value, dtype=torch.float32)


def jax_array(value: Any) -> Any:
    return pytest.importorskip("jax.numpy").full(100, value, "float32")


def tensorflow_array(value: Any) -> Any:
    tensorflow = pytest.importorskip("tensorflow")
    return tensorflow.ones(100) * tensorflow.convert_to_tensor(value, "float32")


def mlx_array(value: Any) -> Any:
    mlx = pytest.importorskip("mlx.core")
    return mlx.ones(100) * mlx.array(value)


LIBRARIES = [
    pytest.param(lambda value: np.full(100, value, np.float32), id="NumPy"),
    pytest.param(torch_array, id="PyTorch"),
    pytest.param(jax_array, id="JAX"),
    pytest.param(tensorflow_array, id="TensorFlow"),
    pytest.param(mlx_array, id="MLX"),
]


@pytest.mark.parametrize("array_of", LIBRARIES)
@pytest.mark.parametrize("noise", [0.0, 1e-4], ids=["equal results", "rounded in another way"])
@pytest.mark.parametrize("aborting", ["base", "other"])
def test_an_abort_is_found_among_arrays_of_any_library(aborting, noise, array_of):
    """They are compared where they are, and the parity check is asked where they differ by more than rounding."""
    found = find_aborts(aborting, parity_seconds=SLOW_PARITY, noise=noise, array_of=array_of)
    assert len(found) >= 19


def compare_long(look_in_calls: float, seed: int = 0, rounds: int = 400) -> list[int]:
    """Return the numbers of the rounds that were inspected, where a look at a result takes so many calls' time."""
    Watched.rounds, clock = [], FakeClock()
    with looks_taking(look_in_calls * SECONDS_OF_A_CALL, clock):
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
def test_rounds_are_inspected_from_the_beginning_to_the_end(seed):
    """Two looks of 1.5 calls take 3 % of 25 rounds, of four calls each; so at least every 40th is inspected."""
    rounds = compare_long(look_in_calls=1.5, seed=seed)
    distances = np.diff([0, *rounds, 400])
    assert distances.max() <= 40
    assert len(set(distances[1:-1])) > 1, "none is hidden in a cycle"


@pytest.mark.parametrize("look_in_calls", [0.01, 0.1, 1.0, 30.0, 1000.0])
def test_looks_take_three_per_cent_of_the_time_beyond_the_first_one(look_in_calls):
    rounds = compare_long(look_in_calls)
    later = len(rounds) - 1
    calls = 2 * later * look_in_calls
    assert calls <= inspections.INSPECTION * (4 * 400 + calls) + 2 * look_in_calls
    assert rounds[0] == Watched.certain


EXACT_CALLS = 1 + 2 + 2
"""Of the parity check: for the first result, for those of the round that is inspected in any case, and for the last."""


@pytest.mark.parametrize("noise", [0.0, 1e-6], ids=["equal results", "rounded in another way"])
def test_the_parity_check_is_not_asked_where_results_are_near(noise):
    compared, parity, _ = compare(noise=noise)
    assert compared.answers["other"].ratio is not None
    assert parity.calls == EXACT_CALLS
    assert len(Watched.rounds) > 10


def test_results_that_are_far_apart_each_time_are_judged_by_the_parity_check():
    compared, parity, _ = compare(noise=0.2)
    assert compared.answers["other"].ratio is not None
    assert parity.calls > 2 * EXACT_CALLS


def test_an_abort_among_results_that_are_far_apart_is_found_where_the_parity_check_is_quick():
    assert len(find_aborts("other", noise=0.2)) >= 19


def test_a_parity_check_that_is_needed_each_time_takes_three_per_cent_as_well():
    _, parity, clock = compare(noise=0.2, parity_seconds=0.1, rounds=400)
    later = (parity.calls - EXACT_CALLS) * 0.1
    assert 0 < later <= inspections.INSPECTION * clock.now / 1e9 + 2 * 0.1


def compare_reusing(seed: int) -> timing.Reason | None:
    """Compare a function with itself, which uses one memory again and again, and is aborted in a fifth of the rounds.

    Return why it is withheld a speed-up, or None if all results seemed right.
    """
    clock, device = FakeClock(), Reusing()
    # 12 of 60 rounds: it is called four times in each
    fn = device.writing(Aborting(clock, 100, 147))

    with looks_taking(LOOK_IN_CALLS * SECONDS_OF_A_CALL, clock):
        compared = timing.compare(
            {"base": fn, "other": fn},
            on=device,
            baseline="base",
            parity=Parity(clock, SLOW_PARITY),
            budget=timing.Budget(min_samples=60, max_samples=60),
            seed=seed,
            clock=clock,
        )
    return compared.answers["other"].reason


def test_an_aborted_call_does_not_return_the_right_result_of_an_earlier_one():
    """GPUs' allocators hand out memory in which such a result lies, so it is written over."""
    reasons = [compare_reusing(seed) for seed in range(20)]
    assert reasons.count(timing.Reason.OUTPUTS_DIFFER) >= 19


def test_an_aborted_call_seems_right_where_memory_is_not_written_over(monkeypatch):
    monkeypatch.delattr(Reusing, "overwrite_freed")
    reasons = [compare_reusing(seed) for seed in range(20)]
    assert timing.Reason.OUTPUTS_DIFFER not in reasons


def test_views_of_a_memory_count_once():
    one = pytest.importorskip("torch").ones(4, 4)
    assert inspections.memory_of([one, one[0], one.T, 1.5, None]) == [64]


def test_an_expanded_tensor_has_the_memory_of_one():
    one = pytest.importorskip("torch").ones(1)
    assert inspections.memory_of(one.expand(2**38, 1)) == [4]


def test_the_memory_of_a_sparse_tensor_is_not_known():
    one = pytest.importorskip("torch").ones(4, 4)
    assert inspections.memory_of({"sparse": one.to_sparse()}) == []


def test_a_function_with_a_sparse_result_is_measured():
    one = pytest.importorskip("torch").ones(4, 4)
    timing.measure(one.to_sparse, on=timing.Host(), name="sparse", budget=timing.FAST)


def test_it_says_whose_result_it_was():
    assert "'base' itself" in compare("base")[0].answers["other"].withheld.detail
    assert "'base'" not in compare("other")[0].answers["other"].withheld.detail


def test_an_abort_that_lasts_to_the_end_names_its_round_as_well():
    """The last call shows it as well, but not since when; a round that was inspected by chance tells more."""
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
    assert "random numbers" in detail
    assert "so it was in round " in detail


def test_functions_that_are_right_throughout_are_compared():
    compared, _, _ = compare()
    assert compared.answers["other"].ratio is not None
    assert len(Watched.rounds) > 10


def test_one_round_is_inspected_however_long_it_takes():
    _, parity, _ = compare(noise=0.2, parity_seconds=100.0)
    assert parity.calls == EXACT_CALLS
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


def write_into(buffer: list[float], value: float, clock: FakeClock) -> Callable[[], list[float]]:
    """Return a function that takes 10 ms, and returns a memory that others write into as well."""

    def fn() -> list[float]:
        clock.now += 10_000_000
        buffer[0] = value
        return buffer

    return fn


def test_a_result_is_looked_at_before_another_function_writes_over_it():
    """The parity check sees each function's own number, in a round and after the last, though both share a memory."""
    clock, buffer, judged = FakeClock(), [0.0], []
    base, other = write_into(buffer, 1.0, clock), write_into(buffer, 2.0, clock)

    def note_result(reference: list[float], result: list[float]) -> bool:
        judged.append(result[0])
        return True

    compared = timing.compare(
        {"base": base, "other": other},
        on=timing.Host(),
        baseline="base",
        parity=note_result,
        clock=clock,
    )

    assert compared.refused == {}
    # the first is asked about the first results, before the rounds
    _, *in_the_certain_round = judged[:3]
    assert sorted(in_the_certain_round) == [1.0, 2.0]
    assert judged[-2:] == [1.0, 2.0]


def known_of(result: Any) -> Any:
    """Return what is known of right results after the first one."""
    return inspections._right_values({"a": result})["a"]


def includes(known: Any, result: Any) -> bool:
    return known.includes(inspections._values_or_none(result))


def learn(known: Any, result: Any) -> bool:
    return known.learn(inspections._values_or_none(result))


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
    known = known_of(result())
    assert includes(known, result())
    assert not includes(known, "something else")


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
    known = known_of(np.ones(size))
    result = np.ones(size)
    assert includes(known, result)
    result[-size // 1000 :] = 0
    assert not includes(known, result)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param([np.ones((3, 2))], id="shape"),
        pytest.param([np.ones((2, 3), np.float32)], id="dtype"),
        pytest.param([np.ones((2, 3)) + 1e-12], id="value"),
        pytest.param([np.ones((2, 3))] * 2, id="length"),
    ],
)
def test_other_values_are_not_the_right_ones(other):
    assert not includes(known_of([np.ones((2, 3))]), other)


@pytest.mark.parametrize("library", ["torch", "jax.numpy", "tensorflow", "mlx.core"])
def test_arrays_of_any_library_are_compared_where_they_are(library):
    module = pytest.importorskip(library)
    ones, twos = module.ones((300, 300)), module.ones((300, 300)) + module.ones((300, 300))
    known = known_of(ones)
    assert includes(known, module.ones((300, 300)))
    assert not includes(known, twos)


def test_values_are_copied_from_a_memory_that_is_written_again():
    array = np.ones(10)
    known = known_of(array)
    array[:] = 2
    assert not includes(known, array)


def test_results_as_near_as_an_accepted_one_are_like_it_and_others_are_not():
    right = np.array([1.0, 2.0, 3.0])
    known = known_of(right)
    assert not includes(known, right + 1e-6)

    assert learn(known, right + 1e-6)
    assert includes(known, right - 2e-6)
    assert not includes(known, right + 1e-4)
    assert not includes(known, np.full(3, np.nan))


@pytest.mark.parametrize(
    "accepted",
    [
        pytest.param(np.array([1.0, 2.5]), id="far away"),
        pytest.param(np.array([1.0, np.nan]), id="not a number"),
        pytest.param(np.array([1.0, 2.0, 3.0]), id="shape"),
        pytest.param(np.array([1.0, 2.0], np.float32), id="dtype"),
        pytest.param([np.array([1.0, 2.0]), 3.0], id="parts"),
        pytest.param(object(), id="object"),
    ],
)
def test_nothing_is_learned_from_a_result_that_is_not_near(accepted):
    known = known_of(np.array([1.0, 2.0]))
    assert not learn(known, accepted)
    assert known.distances == [0.0]


def test_nothing_is_learned_from_whole_numbers():
    """255 and 0 in uint8 are 1 apart by subtraction."""
    known = known_of(np.full(100, 255, np.uint8))
    assert not learn(known, np.array([254] + [255] * 99, np.uint8))
    assert not includes(known, np.zeros(100, np.uint8))
