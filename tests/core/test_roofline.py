"""Three numbers of a machine, two counts of a call: what follows from them, on machines that are planted."""

from __future__ import annotations

import dataclasses
import math

import pytest

from metallab import results_made, roofline, timing
from metallab.roofline import Change, Limit, Machine, NewMemory, Probe, Probes, Work

MACHINE = Machine("planted", overhead=10e-6, peak=1e12, bandwidth=100e9)
SHORT = timing.Budget(
    min_samples=3, min_seconds=0.0, max_samples=3, warmup_calls=1, warmup_seconds=0.0
)


class Planted:
    """A machine whose calls take no time, but set a clock forward by what they would take."""

    def __init__(self, machine: Machine, filled_from: int = 1024, slower: float = 1.0) -> None:
        self.machine, self.filled_from, self.slower = machine, filled_from, slower
        self.now = 0

    def clock(self) -> int:
        return self.now

    def call(self, work: Work, share: float = 1.0):
        def run() -> None:
            prediction = self.machine.predict(work)
            seconds = prediction.overhead + max(prediction.arithmetic / share, prediction.memory)
            self.now += round(seconds * self.slower * 1e9)

        return run

    def probe(self, work: Work, share: float = 1.0) -> Probe:
        return Probe(self.call(work, share), work)

    def product(self, power: int) -> Probe:
        """A product of n x n, which has a share of the peak until it fills the device."""
        n = 256 * 2**power
        return self.probe(Work(2 * n**3, 12 * n**2), min(1.0, n / self.filled_from))

    def probes(self) -> Probes:
        tiny, copy = Work(4, 32), Work(0, 2 * 2**28)
        return Probes((self.probe(tiny),), self.product, self.probe(copy))

    def calibrate(self, **options) -> roofline.Bench:
        return roofline.calibrate(
            self.probes(), on=timing.Host("planted"), look=SHORT, clock=self.clock, **options
        )


def test_the_launch_is_added_to_the_longer_of_arithmetic_and_memory():
    prediction = MACHINE.predict(Work(flops=2e9, bytes=100e6))
    assert prediction.arithmetic == pytest.approx(2e-3)
    assert prediction.memory == pytest.approx(1e-3)
    assert prediction.seconds == pytest.approx(2e-3 + 10e-6)


@pytest.mark.parametrize(
    ("work", "limit"),
    [
        pytest.param(Work(1e6, 1e3), Limit.OVERHEAD, id="hardly any work"),
        pytest.param(Work(1e6, 1e9), Limit.MEMORY, id="left of the ridge"),
        pytest.param(Work(1e12, 1e9), Limit.ARITHMETIC, id="right of the ridge"),
    ],
)
def test_the_longest_part_is_the_limit(work, limit):
    assert MACHINE.predict(work).limit is limit


def test_the_roofline_bends_at_the_ridge():
    assert MACHINE.ridge == 10
    assert MACHINE.attainable(5) == 5 * MACHINE.bandwidth
    assert MACHINE.attainable(20) == MACHINE.peak


@pytest.mark.parametrize(
    ("more", "seconds"),
    [
        pytest.param({"functions": 1e6}, 2e-3, id="elementary functions are arithmetic"),
        pytest.param({"new": 1e6}, 2e-3, id="new memory comes on top of the bytes"),
        pytest.param({"new": 1e5}, 1e-3, id="a small result gets memory that was used before"),
        pytest.param({"matrix": 1e8}, 10e-3, id="a skinny product takes longer than its bytes"),
        pytest.param({"matrix": 1e6}, 1e-3, id="unless its bytes take longer"),
    ],
)
def test_three_more_numbers_predict_what_the_textbook_leaves_out(more, seconds):
    """A call of 1 ms by its bytes, on a machine that is slow in three ways."""
    machine = dataclasses.replace(
        MACHINE, overhead=0.0, functions=0.5e9, new_memory=1e9, new_from=5e5, skinny=1e10
    )
    work = Work(flops=1e6, bytes=1e8, **more)

    assert machine.predict(work).seconds == pytest.approx(seconds, rel=1e-2)
    assert machine.textbook.predict(work).seconds == pytest.approx(1e-3)


def test_new_memory_is_a_matter_of_memory():
    machine = dataclasses.replace(MACHINE, new_memory=1e9)
    assert machine.predict(Work(1e6, 1e6, new=1e6)).limit is Limit.MEMORY


SLOW_IN_THREE_WAYS = dataclasses.replace(
    MACHINE, functions=1e9, new_memory=2e9, new_from=2**24, skinny=5e9
)


@pytest.fixture(scope="module")
def measured_in_three_ways() -> Machine:
    """Return the numbers that are measured of a machine that is slow in the three ways that the textbook leaves out.

    Those are elementary functions, new memory, and products with few columns.
    """
    planted = Planted(SLOW_IN_THREE_WAYS)

    def writing(size: int) -> NewMemory:
        given, asked = Work(0, size), Work(0, size, new=size)
        return NewMemory(size, asked=planted.call(asked), given=planted.call(given))

    probes = dataclasses.replace(
        planted.probes(),
        functions=[planted.probe(Work(0, 8, functions=n)) for n in (1e3, 1e7)],
        skinny=[planted.probe(Work(0, 2**26, matrix=2**26)) for _ in range(2)],
        new_memory=[writing(2**power) for power in (22, 24, 26)],  # it costs from 2**24 bytes on
    )
    bench = roofline.calibrate(probes, on=timing.Host("planted"), look=SHORT, clock=planted.clock)
    return bench.machine


@pytest.mark.parametrize("number", ["functions", "new_memory", "new_from", "skinny"])
def test_a_further_number_is_measured_as_it_was_planted(measured_in_three_ways, number):
    expected = getattr(SLOW_IN_THREE_WAYS, number)
    assert getattr(measured_in_three_ways, number) == pytest.approx(expected, rel=1e-2)


def test_a_machine_that_keeps_its_memory_says_that_new_memory_costs_nothing():
    planted = Planted(MACHINE)
    writing = planted.call(Work(0, 2**26))
    probes = dataclasses.replace(
        planted.probes(), new_memory=[NewMemory(2**26, asked=writing, given=writing)]
    )
    bench = roofline.calibrate(probes, on=timing.Host("planted"), look=SHORT, clock=planted.clock)

    assert bench.machine.new_memory == math.inf
    assert "costs nothing" in bench.machine.further


def test_functions_that_wait_for_memory_are_as_fast_as_it_delivers():
    """A GPU: what fits into a cache is all launch, and what does not waits for its bytes."""
    planted = Planted(dataclasses.replace(MACHINE, functions=1e12))
    sizes = [planted.probe(Work(0, 8 * n, functions=n)) for n in (1e3, 1e8)]
    probes = dataclasses.replace(planted.probes(), functions=sizes)
    bench = roofline.calibrate(probes, on=timing.Host("planted"), look=SHORT, clock=planted.clock)

    assert bench.machine.functions == math.inf


@pytest.mark.parametrize("number", ["functions", "skinny"])
def test_a_probe_that_is_all_launch_gives_no_number(number):
    planted = Planted(MACHINE)
    little = planted.probe(Work(0, 8, functions=1, matrix=4))
    large = planted.probe(Work(0, 2**26, matrix=2**26))
    probes = dataclasses.replace(planted.probes(), functions=[little], skinny=[little, large])

    bench = roofline.calibrate(probes, on=timing.Host("planted"), look=SHORT, clock=planted.clock)
    assert getattr(bench.machine, number) == math.inf


def test_a_planted_machine_is_measured_as_it_was_planted():
    """Its product fills it from n = 1024 on, and no launch is left in peak and bandwidth."""
    machine = Planted(MACHINE).calibrate().machine
    assert machine.overhead == pytest.approx(MACHINE.overhead, rel=1e-3)
    assert machine.peak == pytest.approx(MACHINE.peak, rel=1e-3)
    assert machine.bandwidth == pytest.approx(MACHINE.bandwidth, rel=1e-3)


def test_a_machine_that_keeps_its_speed_says_nothing_of_it():
    bench = Planted(MACHINE).calibrate()
    assert bench.machine.is_steady
    assert "disturbed" not in str(bench.machine)


def test_what_two_copies_pay_alike_is_no_part_of_the_bandwidth():
    """Copies that pay only half of the overhead that small calls pay: with it subtracted they would seem too fast."""
    planted = Planted(MACHINE)

    def copy(size: int) -> Probe:
        def run() -> None:  # in place of `Planted.call`, which pays all of it
            planted.now += round((MACHINE.overhead / 2 + size / MACHINE.bandwidth) * 1e9)

        return Probe(run, Work(0, size))

    probes = dataclasses.replace(planted.probes(), copy=copy(2**20), half_copy=copy(2**19))
    bench = roofline.calibrate(probes, on=timing.Host("planted"), look=SHORT, clock=planted.clock)

    assert bench.machine.bandwidth == pytest.approx(MACHINE.bandwidth, rel=0.01)


def test_a_machine_keeps_what_each_small_call_took():
    planted = Planted(MACHINE)
    slower = Probe(lambda: setattr(planted, "now", planted.now + 40_000), Work(4, 32))
    launches = (*planted.probes().launches, slower)
    probes = dataclasses.replace(planted.probes(), launches=launches)

    bench = roofline.calibrate(probes, on=timing.Host("planted"), look=SHORT, clock=planted.clock)

    assert bench.machine.launches == pytest.approx((MACHINE.overhead, 40e-6), rel=0.01)


def test_a_machine_that_changes_its_speed_while_its_numbers_are_taken_says_so():
    planted = Planted(MACHINE)

    def copy() -> None:  # each copy takes longer than the one before
        planted.slower *= 1.1
        planted.call(Work(0, 2 * 2**28))()

    probes = dataclasses.replace(planted.probes(), copy=Probe(copy, Work(0, 2 * 2**28)))
    bench = roofline.calibrate(probes, on=timing.Host("planted"), look=SHORT, clock=planted.clock)

    assert not bench.machine.is_steady
    assert "disturbed" in str(bench.machine)


@pytest.mark.parametrize(
    ("share_of_prediction", "above"),
    [
        pytest.param(0.5, True, id="half of the time that its arithmetic takes"),
        pytest.param(0.9, False, id="within what a prediction allows"),
        pytest.param(2.0, False, id="slower"),
    ],
)
def test_a_call_faster_than_its_work_allows_lies_above_the_roof(share_of_prediction, above):
    planted = Planted(MACHINE)
    bench = planted.calibrate()
    planted.slower = share_of_prediction
    work = Work(flops=1e10, bytes=1e6)

    reading = bench.measure(planted.call(work), work, "a product", SHORT)

    assert reading.is_above_the_roof == above
    assert ("above the roof" in str(reading)) == above


def test_a_look_at_the_machine_is_no_result_of_a_page():
    heard = []

    results_made.listen(heard.append)
    try:
        Planted(MACHINE).calibrate()
    finally:
        results_made.forget(heard.append)

    assert heard == []


def test_a_product_that_takes_long_is_not_doubled():
    """A slow machine that no product fills: 512 x 512 would be the second size."""
    slow = Planted(Machine("slow", 10e-6, peak=1e8, bandwidth=1e9), filled_from=10**6)
    asked = []

    def product(power):
        asked.append(power)
        return slow.product(power)

    probes = dataclasses.replace(slow.probes(), product=product)
    roofline.calibrate(probes, on=timing.Host("slow"), look=SHORT, clock=slow.clock)
    assert set(asked) == {0}


def test_no_look_at_the_machine_is_refused():
    with pytest.raises(ValueError, match="one look"):
        Planted(MACHINE).calibrate(looks=0)


def test_a_call_that_does_what_was_counted_is_predicted():
    planted = Planted(MACHINE)
    work = Work(1e9, 1e9)
    reading = planted.calibrate().measure(planted.call(work), work, "call", SHORT)
    assert reading.ratio == pytest.approx(1, rel=1e-3)
    assert reading.holds
    assert reading.is_steady


def test_a_call_with_something_that_was_not_counted_is_far_from_its_prediction():
    planted = Planted(MACHINE)
    counted, done = Work(1e9, 1e9), Work(1e9, 2e9)
    reading = planted.calibrate().measure(planted.call(done), counted, "call", SHORT)
    assert reading.ratio == pytest.approx(2, rel=1e-2)
    assert not reading.holds


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(Work(1, 1), id="launch"),
        pytest.param(Work(1, 1e9), id="copy"),
        pytest.param(Work(1e12, 1), id="product"),
    ],
)
def test_a_machine_that_has_become_slower_is_seen_by_its_probe(work):
    planted = Planted(MACHINE)
    bench = planted.calibrate()
    planted.slower = 1.5
    reading = bench.measure(planted.call(work), work, "call", SHORT)
    assert reading.speed == pytest.approx(1.5, rel=1e-2)
    assert not reading.is_steady
    assert "1.50 times as long" in str(reading)


def test_a_call_is_timed_again_when_the_machine_is_back():
    """It is slow until the first time has been taken, which is five calls: the first, a warm-up, three samples."""
    planted = Planted(MACHINE)
    bench, work, calls = planted.calibrate(), Work(1, 1e9), []
    planted.slower = 2.0  # as it is when the machine is looked at before the first call

    def call() -> None:
        planted.slower = 2.0 if len(calls) < 5 else 1.0
        calls.append(None)
        planted.call(work)()

    reading = bench.measure(call, work, "call", SHORT)
    assert reading.is_steady
    assert reading.ratio == pytest.approx(1, rel=1e-2)


MORE = Change("twice the operations", Limit.ARITHMETIC, 2.0)
FEWER = Change("half the bytes", Limit.MEMORY, 0.5)


@pytest.mark.parametrize(
    ("doubled", "changed", "change", "limit"),
    [
        pytest.param(1.2e-3, 1.0e-3, MORE, Limit.OVERHEAD, id="twice the work costs little"),
        pytest.param(2.0e-3, 1.9e-3, MORE, Limit.ARITHMETIC, id="follows the operations"),
        pytest.param(2.0e-3, 1.1e-3, MORE, Limit.MEMORY, id="does not follow the operations"),
        pytest.param(2.0e-3, 0.55e-3, FEWER, Limit.MEMORY, id="follows the bytes"),
        pytest.param(2.0e-3, 0.95e-3, FEWER, Limit.ARITHMETIC, id="does not follow the bytes"),
    ],
)
def test_a_limit_is_observed_by_what_the_time_follows(doubled, changed, change, limit):
    assert roofline.observe_limit(MACHINE, 1e-3, doubled, changed, change) is limit


def test_the_launches_of_an_experiment_in_pieces_are_not_its_work():
    """64 pieces in 1.14 ms: 0.64 ms of them are launches."""
    pieces = Change("in pieces", Limit.MEMORY, 0.5, launches=64)
    assert roofline.observe_limit(MACHINE, 1e-3, 2e-3, 1.14e-3, pieces) is Limit.MEMORY


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(Change("nothing", Limit.MEMORY, 1.0), id="by nothing"),
        pytest.param(Change("launches", Limit.OVERHEAD, 2.0), id="of the launch"),
    ],
)
def test_an_experiment_that_tells_nothing_is_refused(change):
    with pytest.raises(ValueError, match="tells nothing"):
        roofline.observe_limit(MACHINE, 1e-3, 2e-3, 1e-3, change)


@pytest.mark.parametrize(
    ("without", "explained"),
    [
        pytest.param(1.1e-3, True, id="the gap is closed"),
        pytest.param(2.5e-3, True, id="half of it"),
        pytest.param(3.5e-3, False, id="hardly any of it"),
        pytest.param(0.2e-3, False, id="as far on the other side"),
    ],
)
def test_an_experiment_explains_if_it_closes_half_of_the_gap(without, explained):
    assert roofline.explains(1e-3, 4e-3, without) is explained


CPU = Machine("CPU", overhead=3e-6, peak=1.227e12, bandwidth=100e9)
GPU = Machine("GPU", overhead=22.4e-6, peak=42.5e12, bandwidth=4e12)


def cube(n: int) -> Work:
    return Work(2 * n**3, 1)


def test_the_gpu_wins_where_it_has_made_up_for_its_launch():
    """19.4 µs later, and 0.79 ps an operation faster."""
    n = roofline.wins_from(cube, CPU, GPU)
    assert n == 231
    assert GPU.predict(cube(n)).seconds < CPU.predict(cube(n)).seconds
    assert GPU.predict(cube(n - 1)).seconds >= CPU.predict(cube(n - 1)).seconds


@pytest.mark.parametrize(
    ("first", "second", "size"),
    [
        pytest.param(GPU, CPU, None, id="never"),
        pytest.param(Machine("slow", 1.0, 1e6, 1e6), GPU, 1, id="always"),
    ],
)
def test_a_machine_may_win_never_or_always(first, second, size):
    assert roofline.wins_from(cube, first, second) == size
