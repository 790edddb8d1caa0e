"""Exercises of pages: what a busy machine does makes an answer open, not wrong, and what is wrong is said."""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace

import pytest
import torch

from metallab import checks, isolated
from metallab.exercises import check, page_00, page_01, page_12
from metallab.pytorch.kernels import rule


def test_times_that_are_all_late_are_open():
    def late(launch, synchronize):
        synchronize()
        launch()
        synchronize()
        return 9.8765

    assert check("01.1", late).outcome == "open"


def test_a_kernel_that_does_not_end_in_time_is_open(monkeypatch):
    def stop(*_):
        raise TimeoutError("took longer than 120 s and was stopped")

    monkeypatch.setattr(rule, "gives", stop)
    assert check("23.1", "kernel void hardshrink() {}").outcome == "open"


def bytes_in_lines(stride, line, rest):
    return min(4 * stride, line) + rest


def slower_by(of_8, of_16, of_32, of_64):
    """Return times of strided copies over that of stride 2, where all but the read costs as much as reading 8 bytes."""
    return {1: 0.2, 2: 1.0, 4: 1.5, 8: of_8, 16: of_16, 32: of_32, 64: of_64}


@pytest.mark.parametrize(
    ("slower", "said"),
    [
        pytest.param(slower_by(2.5, 4.5, 4.6, 4.7), "Lines of 64 bytes alone", id="one"),
        pytest.param(slower_by(2.5, 4.5, 8.5, 8.9), "Lines of 128 bytes alone", id="the other"),
        pytest.param(slower_by(2.5, 4.5, 6.0, 6.0), "Both", id="both"),
        pytest.param(slower_by(2.5, 4.5, 8.5, 17.0), "Neither", id="it goes on rising"),
        pytest.param(slower_by(4.4, 4.5, 8.5, 8.5), "do not follow", id="no straight line"),
        pytest.param(slower_by(1.0, 1.0, 1.0, 1.0), "no longer", id="nothing waits for memory"),
    ],
)
def test_page_02_says_which_length_of_a_line_comes_close_to_what_was_measured(slower, said):
    """Whatever stride 1 takes: the others are compared with stride 2."""
    judged = check("02.2", bytes_in_lines, slower)
    assert judged.outcome == "right"
    assert said in judged


def test_page_02_finds_what_a_number_costs_besides_its_read_from_two_strides():
    """Whether a write costs 4 bytes, 8, or none because the result stays in a cache, the verdict is the same."""
    free_writes = {stride: min(4 * stride, 128) / 8 for stride in (1, 2, 4, 8, 16, 32, 64)}
    judged = check("02.2", bytes_in_lines, free_writes)
    assert "reading 0 bytes" in judged
    assert "Lines of 128 bytes alone" in judged


SIMD_SUM = """kernel void row_sums(device float* out, device const float* a, constant long& n,
    uint r [[threadgroup_position_in_grid]], uint l [[thread_index_in_simdgroup]]) {
    float sum = 0; for (long k = l; k < n; k += 32) sum += a[r * n + k];
    sum = simd_sum(sum); if (l == 0) out[r] = sum; }"""


@pytest.mark.skipif(sys.platform == "darwin", reason="only the simulated GPU counts lines")
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        pytest.param((SIMD_SUM.replace("row_sums", "sums"), 32), "row_sums", id="another name"),
        pytest.param((SIMD_SUM.replace("r * n + k", "k"), 32), "should be", id="other sums"),
        pytest.param((SIMD_SUM, 0), "above 0", id="no threads"),
        pytest.param(SIMD_SUM, "for each row", id="no pair"),
    ],
)
def test_page_02_says_what_is_wrong_with_a_kernel(answer, said):
    with pytest.raises(checks.WrongAnswer, match=said):
        check("02.1", lambda: answer)


@pytest.mark.skipif(sys.platform == "darwin", reason="only the simulated GPU counts lines")
def test_page_02_accepts_a_kernel_that_reads_neighbours():
    assert check("02.1", lambda: (SIMD_SUM, 32)).outcome == "right"


def planted_bench(seconds, *, simulated=False):
    """A machine on which each call takes the next of some times."""
    times = iter(seconds)

    def measure(call, *_):
        return SimpleNamespace(measurement=SimpleNamespace(median=next(times)))

    machine = SimpleNamespace(overhead=0.001)
    return SimpleNamespace(
        machine=machine, on=SimpleNamespace(simulated=simulated), measure=measure
    )


X = torch.tensor([-1.0, 2.0])
CAUSE = "each call asks for new memory"


def predict_launch(machine, _):
    return machine.overhead


def clamp(x, result):
    return torch.clamp(x, min=0, out=result)


@pytest.mark.parametrize(
    ("seconds", "outcome"),
    [
        pytest.param([0.0015], "right", id="it holds"),
        pytest.param([0.01, 0.002], "right", id="explained"),
        pytest.param([0.01, 0.009], "open", id="another cause"),
    ],
)
def test_page_13_judges_a_prediction_by_an_experiment(seconds, outcome):
    judged = check("13.1", predict_launch, CAUSE, clamp, planted_bench(seconds), X)
    assert judged.outcome == outcome


def test_page_13_leaves_a_prediction_open_whose_cause_is_not_named():
    judged = check("13.1", predict_launch, ..., lambda *_: ..., planted_bench([0.01]), X)
    assert judged.outcome == "open"


@pytest.mark.parametrize("seconds", [None, -1.0, 0.0, float("nan"), "5 ms"])
def test_page_13_refuses_what_is_no_time(seconds):
    bench = planted_bench([0.01], simulated=True)
    with pytest.raises(checks.WrongAnswer, match="above 0"):
        check("13.1", lambda *_: seconds, CAUSE, clamp, bench, X)


def test_page_13_refuses_another_computation():
    with pytest.raises(checks.WrongAnswer, match=r"torch\.relu"):
        check("13.1", predict_launch, CAUSE, lambda x, _: x, planted_bench([0.01]), X)


def test_page_13_refuses_an_experiment_that_sets_all_to_zero():
    """The page's own x stays, so that neither this answer nor a later one is compared with the zeros."""
    x = X.clone()
    with pytest.raises(checks.WrongAnswer, match="the numbers of"):
        check("13.1", predict_launch, CAUSE, lambda x, _: x.zero_(), planted_bench([0.01]), x)
    assert x.equal(X)


def test_page_13_takes_an_experiment_that_writes_over_x():
    """In place it needs no new memory; the page's own x stays."""
    x = X.clone()
    bench = planted_bench([0.01, 0.001])
    check("13.1", predict_launch, CAUSE, lambda x, _: x.relu_(), bench, x)
    assert x.equal(X)


def test_page_13_judges_no_time_of_a_simulated_gpu():
    bench = planted_bench([], simulated=True)
    assert check("13.1", predict_launch, CAUSE, clamp, bench, X).outcome == "not judged"


def test_page_13_takes_a_stub_as_not_attempted():
    def stub(*_):
        return ...

    assert check("13.1", stub, ..., stub, planted_bench([]), X).outcome == "not attempted"


HERE = SimpleNamespace(simulated=False)
SIMULATED = SimpleNamespace(simulated=True)


def time_after_pause(call, synchronize, sleep, clock):
    synchronize()
    sleep(0.1)
    start = clock()
    call()
    synchronize()
    return clock() - start


def time_without_rest(call, synchronize, sleep, clock):
    sleep(0.1)
    synchronize()
    start = clock()
    call()
    synchronize()
    return clock() - start


@pytest.fixture
def planted_pause(monkeypatch):
    """A machine on which a call takes three times as long after a pause."""
    monkeypatch.setattr(page_01, "measure_pause", lambda *_: 3.0)


@pytest.mark.parametrize(("guess", "outcome"), [(2.0, "right"), (1.0, "open"), (7, "open")])
def test_page_01_compares_a_prediction_with_this_machine(planted_pause, guess, outcome):
    judged = check("01.3", lambda: guess, time_after_pause, None, HERE)
    assert judged.outcome == outcome
    assert "measured 3 times" in judged


@pytest.mark.parametrize("guess", [None, True, -1, float("inf"), "twice"])
def test_page_01_refuses_a_guess_that_is_no_factor(planted_pause, guess):
    with pytest.raises(checks.WrongAnswer, match="above 0"):
        check("01.3", lambda: guess, time_after_pause, None, HERE)


class _BusyMachine:
    def cores(self):
        return 1.5


def test_page_01_judges_no_prediction_while_other_programs_are_busy(planted_pause, monkeypatch):
    busy = contextlib.nullcontext(_BusyMachine())
    monkeypatch.setattr(page_01.timing, "quiet", lambda: busy)

    judged = check("01.3", lambda: 3.0, time_after_pause, None, HERE)

    assert judged.outcome == "open"
    assert "1.5 cores" in judged


def test_page_01_wants_the_device_to_rest(planted_pause):
    with pytest.raises(checks.WrongAnswer, match="rest"):
        check("01.3", lambda: 2, time_without_rest, None, HERE)


def test_page_01_times_no_simulated_gpu():
    assert check("01.3", lambda: 2, time_after_pause, None, SIMULATED).outcome == "not judged"


def test_page_01_takes_half_an_answer_as_not_attempted(planted_pause):
    assert check("01.3", lambda: 2, lambda *_: ..., None, HERE).outcome == "not attempted"


def multiply_in_float32(a, b):
    return a.float() @ b.float()


CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("guess", "broken", "outcome"),
    [
        pytest.param(4096, 4096, "right", id="as calculated"),
        pytest.param(2048, 2048, "right", id="as the machine does"),
        pytest.param(4096, 2048, "open", id="another machine"),
        pytest.param(4096, None, "open", id="nothing breaks"),
    ],
)
def test_page_00_compares_a_prediction_with_this_machine(monkeypatch, guess, broken, outcome):
    monkeypatch.setattr(page_00, "find_first_broken", lambda _: broken)
    assert check("00.2", lambda: guess, multiply_in_float32, CPU).outcome == outcome


def test_page_00_finds_where_float16_ends():
    assert page_00.find_first_broken(CPU) == 4096


@pytest.mark.parametrize(
    "repair",
    [
        pytest.param(lambda a, b: (a @ b).float(), id="too late"),
        pytest.param(lambda a, b: 16.0 * a.shape[1], id="no product"),
        pytest.param(lambda a, b: (a.float() @ b.float())[:1], id="another shape"),
    ],
)
def test_page_00_refuses_what_is_no_repair(repair):
    with pytest.raises(checks.WrongAnswer, match="without_it"):
        check("00.2", lambda: 4096, repair, CPU)


def test_page_00_takes_half_an_answer_as_not_attempted():
    assert check("00.2", lambda: 4096, lambda *_: ..., CPU).outcome == "not attempted"


CALLS = {
    **{f"sum {n}": (torch.sum, torch.ones(n)) for n in range(1, 9)},
    "eigvals": (torch.linalg.eigvals, torch.eye(2)),
    "linear": (torch.nn.functional.linear, torch.eye(2).long(), torch.eye(2).long()),
}
"""Eight that run on MPS, one that is missing, one that is refused."""
RIGHT = dict.fromkeys(CALLS, "runs") | {"eigvals": "missing", "linear": "refused"}


def test_page_11_accepts_eight_guesses_of_ten_and_explains_the_others():
    judged = check("11.2", lambda: dict.fromkeys(CALLS, "runs"), CALLS)
    assert judged.outcome == "right"
    assert "8 of 10" in judged
    assert "linalg_eig" in judged
    assert "aten::linear" in judged


def test_page_11_accepts_ten_guesses_of_ten():
    assert "10 of 10" in check("11.2", lambda: RIGHT, CALLS)


@pytest.mark.parametrize(
    ("guessed", "said"),
    [
        pytest.param(dict.fromkeys(CALLS, "missing"), "1 of 10", id="too few"),
        pytest.param(RIGHT | {"sum 1": "native"}, "native", id="another word"),
        pytest.param({"eigvals": "missing"}, "a word for each", id="not all"),
    ],
)
def test_page_11_refuses_other_guesses(guessed, said):
    with pytest.raises(checks.WrongAnswer, match=said):
        check("11.2", lambda: guessed, CALLS)


@pytest.mark.parametrize("hidden", page_12.HIDDEN_FAULTS, ids=lambda hidden: hidden.needs)
@pytest.mark.parametrize("place", page_12.PLACES)
def test_page_12_hides_each_fault_in_each_layer(hidden, place, monkeypatch):
    monkeypatch.setattr(page_12, "choose_fault", lambda name: (hidden, place))
    found = ["Ada", place, hidden.operator, hidden.needs]
    assert check("12.3", found).outcome == "right"


LOOK_FOR_ALL = """
import metallab.device
from metallab.exercises import page_12
from metallab.pytorch import divergence

gpu = metallab.device.pick("mps")
found = {}
for hidden in page_12.HIDDEN_FAULTS:
    for place in page_12.PLACES:
        page_12.choose_fault = lambda name: (hidden, place)
        with page_12.hide_fault("Ada") as (model, inputs):
            report = divergence.find(model, inputs, on=gpu, layers=False)
        call = report.divergent_call
        kinds = [type(condition).__name__ for condition in report.conditions]
        found[hidden.needs, place] = call.module, call.operator, kinds
"""


CONDITIONS = {
    "weight layout": "NotContiguous",
    "input layout": "NotContiguous",
    "offset": "NonzeroOffset",
    "size": "MinElements",
}
"""By what a hidden fault needs: the condition of metalsim that says so."""


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has no simulated GPU")
def test_page_12_s_hidden_faults_are_found_where_they_are_hidden():
    operators = {hidden.needs: hidden.operator for hidden in page_12.HIDDEN_FAULTS}

    outcome = isolated.run(LOOK_FOR_ALL, results=["found"], device="mps")

    assert outcome.ok, outcome.detail
    assert outcome["found"] == {
        (needs, place): (place, operators[needs], [CONDITIONS[needs]])
        for needs in operators
        for place in page_12.PLACES
    }


def test_page_12_gives_neighbours_other_faults():
    names = [f"student {number}" for number in range(100)]
    chosen = {(hidden.needs, place) for hidden, place in map(page_12.choose_fault, names)}
    assert len(chosen) == len(page_12.HIDDEN_FAULTS) * len(page_12.PLACES)


def test_page_12_gives_a_name_the_same_fault_each_time():
    assert page_12.choose_fault("Ada") == page_12.choose_fault(" ada ")


@pytest.mark.parametrize("name", ["", "  ", 3], ids=repr)
def test_page_12_wants_a_name(name):
    with pytest.raises(ValueError, match="name"), page_12.hide_fault(name):
        pass


def traced(simulated=False, **seconds):
    """A trace of operators that took so long."""
    events = [
        SimpleNamespace(short=name, duration=each, kind="view" if name == "view" else "op")
        for name, each in seconds.items()
    ]
    return SimpleNamespace(events=events, simulated=simulated)


STEP = {"mm": 5.0, "mul": 3.0, "add_": 2.0, "div": 1.0, "sqrt": 0.8, "exp": 0.7, "sin": 0.1}
STEP["view"] = 9.0  # which computes nothing, and is left out


@pytest.mark.parametrize(
    ("five", "outcome"),
    [
        pytest.param(["mm", "mul", "add_", "div", "sqrt"], "right", id="the longest"),
        pytest.param(["mm", "mul", "add_", "div", "exp"], "right", id="nearly"),
        pytest.param(["mul", "add_", "div", "exp", "sin"], "open", id="without the longest"),
    ],
)
def test_page_14_judges_five_operators_by_their_time(five, outcome):
    assert check("14.1", five, traced(**STEP)).outcome == outcome


def test_page_14_names_the_longest_operator_that_was_not_named():
    judged = check("14.1", ["mul", "add_", "div", "exp", "sin"], traced(**STEP))
    assert "Why is mm so long" in judged


@pytest.mark.parametrize(
    ("five", "said"),
    [
        pytest.param(["mm", "mul", "add_", "div"], "five names", id="four"),
        pytest.param(["mm", "mm", "mul", "add_", "div"], "different", id="twice"),
        pytest.param(["mm", "mul", "add_", "div", "conv"], "conv", id="not there"),
        pytest.param(["mm", "mul", "add_", "div", "view"], "views", id="a view"),
    ],
)
def test_page_14_refuses_what_is_no_answer(five, said):
    with pytest.raises(checks.WrongAnswer, match=said):
        check("14.1", five, traced(**STEP))


def test_page_14_judges_no_time_of_a_simulated_gpu():
    five = ["mm", "mul", "add_", "div", "sqrt"]
    assert check("14.1", five, traced(simulated=True, **STEP)).outcome == "not judged"


def test_page_14_takes_a_stub_as_not_attempted():
    assert check("14.1", [...] * 5, traced(**STEP)).outcome == "not attempted"
