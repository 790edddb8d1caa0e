"""Faults as people reported them of Macs, planted: each is found, explained, and has its smallest program.

Its checks run in a child with the simulated device (support/children.py).
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CHILD = __name__ == "__main__"

import children  # noqa: E402

import metalsim  # noqa: E402

if CHILD:
    metalsim.install_with_torch()

import pytest  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from metallab import device  # noqa: E402
from metallab.doctor import correctness  # noqa: E402
from metallab.doctor.limits import Limits  # noqa: E402
from metallab.pytorch import divergence  # noqa: E402
from metallab.pytorch.divergence import (  # noqa: E402
    Gradients,
    RunMode,
    Search,
    TrainingRun,
    threads,
)
from metallab.pytorch.divergence.compared import ComparedCalls  # noqa: E402
from metallab.pytorch.divergence.conditions import (  # noqa: E402
    FixKind,
    HiddenRow,
    HoldsInteger,
    HoldsNaN,
    NonzeroOffset,
    OnCPU,
    Setting,
)
from metallab.pytorch.divergence.differences import DrawFault  # noqa: E402
from metallab.pytorch.divergence.repeat import BURST  # noqa: E402
from metallab.pytorch.model import as_model  # noqa: E402
from metallab.status_line import AFTER_SECONDS, StatusLine  # noqa: E402
from metalsim import planting  # noqa: E402

if sys.platform == "darwin" and not CHILD:
    pytest.skip("a Mac has no simulated GPU", allow_module_level=True)


# one thread: more wait for each other in work so small
on_simulated = children.open_session(__file__, OMP_NUM_THREADS="1")
LIMITS = Limits(600)


@contextmanager
def planted(*faults: str, calls: range | None = None) -> Iterator[None]:
    """Plant faults without the warning that they are."""
    with warnings.catch_warnings(action="ignore"), metalsim.plant(*faults, calls=calls):
        yield


def find(model: nn.Module, *inputs: torch.Tensor, **options) -> divergence.Report:
    return divergence.find(model, inputs, on=device.pick(), layers=False, **options)


def ask_doctor(model: nn.Module, *inputs: torch.Tensor):
    return correctness.answer(as_model((model, inputs, None), "tests:example"), LIMITS)


# ---- without gradients -----------------------------------------------------------------------------------------------

MASKED = "attention, all keys masked"
ATTENTION = "aten::_scaled_dot_product_attention_math_for_mps"


class Padded(nn.Module):
    """Text that is padded on the left: its first words attend to nothing."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(16, 48)

    def forward(self, x):
        query, key, value = self.project(x).chunk(3, -1)
        is_word = torch.tensor([False, False, True, True], device=x.device)
        mask = is_word & torch.ones(4, 4, device=x.device).tril().bool()
        return F.scaled_dot_product_attention(query, key, value, mask)


def padded() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Padded().eval(), torch.randn(2, 4, 16)


def run_in(mode: RunMode, model: nn.Module, *inputs: torch.Tensor) -> divergence.Report:
    report, _ = Search(device.pick()).compare(
        TrainingRun(model, inputs, divergence.mean_square), mode
    )
    return report


@on_simulated
def test_attention_is_compared_without_gradients():
    with planted(MASKED):
        found = find(*padded()).divergent_call
    assert found is not None
    assert found.operator == ATTENTION
    assert found.mode == RunMode(False, Gradients.NO_GRAD)


@on_simulated.cases({each.value: each for each in (Gradients.NO_GRAD, Gradients.INFERENCE_MODE)})
def test_each_way_without_gradients_is_seen(gradients):
    """In inference mode PyTorch shows operators that consist of others whole."""
    with planted(MASKED):
        report = run_in(RunMode(False, gradients), *padded())
    assert report.divergent_call is not None
    assert report.divergent_call.operator == ATTENTION


@on_simulated
def test_the_doctor_compares_without_gradients():
    with planted(MASKED):
        answer = ask_doctor(*padded())
    assert answer.status == "failed"
    assert answer.result.wrong.operator == ATTENTION
    assert answer.result.runs[-1].way.gradients == "no_grad"


@on_simulated
def test_rows_without_a_key_are_no_fault():
    report = find(*padded())
    assert report.kind == "agrees", report
    assert len(report.modes) == 5


@functools.cache
def compare_in_modes(*modes: RunMode) -> list[divergence.Report]:
    """Compare one small model in each mode, in one search."""
    torch.manual_seed(0)
    search = Search(device.pick())
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    run = TrainingRun(model, (torch.randn(2, 4),), divergence.mean_square)
    return [search.compare(run, mode)[0] for mode in modes]


TRAINING, EVALUATION = RunMode(True), RunMode(False)
WITHOUT = RunMode(True, Gradients.NO_GRAD)


@on_simulated
def test_in_the_first_mode_each_kind_of_call_is_compared():
    (first,) = compare_in_modes(TRAINING)
    assert first.compared > 4
    assert first.known == 0


@on_simulated.cases({"without gradients": WITHOUT, "evaluation": EVALUATION})
def test_a_kind_of_call_that_is_known_is_not_compared_in_another_mode(mode):
    _, second = compare_in_modes(TRAINING, mode)
    assert second.compared == 0


@on_simulated
def test_kinds_of_calls_that_are_known_are_counted():
    first, without, evaluation = compare_in_modes(TRAINING, WITHOUT, EVALUATION)
    assert without.known == 2
    assert evaluation.known == first.compared


class Force(nn.Module):
    """Computes a gradient itself, as models of molecules do."""

    def __init__(self):
        super().__init__()
        self.energy = nn.Linear(3, 1)

    def forward(self, x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(self.energy(x).square().sum(), x, create_graph=True)[0]


@on_simulated
def test_a_model_that_needs_gradients_is_not_accused():
    report = find(Force(), torch.randn(4, 3))
    assert report.kind == "agrees", report
    assert {each.mode.gradients for each in report.not_run} == {
        Gradients.NO_GRAD,
        Gradients.INFERENCE_MODE,
    }


class Dropping(nn.Module):
    """Attention with dropout, which MPS refuses where nothing needs a gradient."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 24)

    def forward(self, x):
        query, key, value = self.project(x).chunk(3, -1)
        dropout = 0.1 if self.training else 0.0
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)


@on_simulated
def test_what_is_refused_without_gradients_alone_is_told_and_no_exception():
    report = find(Dropping(), torch.randn(2, 4, 8))
    assert report.kind == "agrees", report
    assert report.raised is None
    assert {each.mode.is_training for each in report.not_run} == {True}


@on_simulated
def test_the_doctor_tells_what_is_refused_without_gradients():
    answer = ask_doctor(Dropping(), torch.randn(2, 4, 8))
    assert answer.status == "passed", answer
    assert {each.way.gradients for each in answer.result.not_tried} == {"no_grad", "inference_mode"}


def test_a_call_that_holds_nan_is_of_another_kind():
    compared = ComparedCalls()
    kind = ("aten::relu", "", (0,))
    compared.add(kind, ((False, False),))
    compared.begin_run()
    assert compared.has_held(kind, ((False, False),))
    assert not compared.has_held(kind, ((False, True),))


# ---- exceptions ------------------------------------------------------------------------------------------------------


def lose_a_row(right, x, indices):
    """Of what a mask keeps the last row is lost."""
    kept = right(x, indices)
    return kept[:-1] if indices[0] is not None and indices[0].dtype == torch.bool else kept


metalsim.FAULTS["mask"] = planting.Fault(
    "x[mask] has too few rows",
    "https://github.com/pytorch/pytorch/issues/181867",
    ("index.Tensor",),
    lose_a_row,
)


class Assigner(nn.Module):
    """Writes the errors of the boxes that a mask keeps where the mask is, as detectors do."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x, is_kept):
        errors = torch.zeros(is_kept.shape, device=x.device)
        errors[is_kept] = self.head(x)[is_kept].square().sum(-1)
        return errors


def assigner() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return Assigner(), torch.randn(2, 9, 8), torch.rand(2, 9) > 0.3


@on_simulated
def test_the_wrong_operator_before_an_exception_is_named():
    with planted("mask"):
        report = find(*assigner())
    assert report.kind == "wrong kernel"
    assert report.divergent_call.operator == "aten::index"
    assert "shape mismatch" in report.raised
    assert report.divergent_call.difference.right_dtype == torch.float32


@on_simulated
def test_the_doctor_names_the_wrong_operator_before_an_exception():
    with planted("mask"):
        answer = ask_doctor(*assigner())
    assert answer.status == "failed"
    assert answer.ended == "ok"
    assert answer.result.wrong.operator == "aten::index"
    assert "shape mismatch" in answer.result.raised


class OnlyOnCPU(nn.Linear):
    """Raises on an Apple GPU after its layer."""

    def forward(self, x):
        y = super().forward(x)
        if y.device.type == "mps":
            raise KeyError("mps")
        return y


@on_simulated
def test_what_was_compared_before_an_exception_is_kept():
    report = find(OnlyOnCPU(4, 4), torch.randn(2, 4))
    assert report.kind == "raised"
    assert "KeyError" in report.raised
    assert report.compared == 1
    assert report.divergent_call is None


@on_simulated
def test_the_doctor_tells_what_agrees_before_an_exception():
    answer = ask_doctor(OnlyOnCPU(4, 4), torch.randn(2, 4))
    assert answer.status == "skipped"
    assert answer.ended == "raised"
    assert answer.result.compared > 0
    assert not answer.result.is_predicted


@on_simulated
def test_what_a_model_raises_on_the_cpu_as_well_is_raised():
    with pytest.raises(RuntimeError, match="shapes"):
        find(nn.Linear(4, 4), torch.randn(2, 5))


# ---- random numbers --------------------------------------------------------------------------------------------------

IMPOSSIBLE = "multinomial, probability 0"


class Sampler(nn.Module):
    """Draws words, of which most have probability 0."""

    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(8, 500)

    def forward(self, x):
        shares = torch.softmax(200 * self.scores(x), -1)
        words = [torch.multinomial(shares, 1) for _ in range(6)]
        return torch.cat([shares.gather(-1, word) for word in words], -1)


def sampler() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Sampler(), torch.randn(1, 8)


@on_simulated
def test_a_draw_of_probability_0_is_found():
    with planted(IMPOSSIBLE, calls=range(4, 5)):
        report = find(*sampler())
    assert report.kind == "intermittent", report
    assert report.divergent_call.operator == "aten::multinomial"
    assert report.divergent_call.difference.fault == DrawFault.IMPOSSIBLE
    assert report.fix.kind is FixKind.DRAW_ON_CPU


@on_simulated
def test_calls_of_a_random_operator_are_named_and_not_counted_as_compared():
    report = find(*sampler())
    assert report.kind == "agrees"
    assert [each.operator for each in report.random] == ["aten::multinomial"]
    assert report.calls - report.compared == 6 * len(report.modes)


@on_simulated
def test_the_doctor_tells_that_a_random_operator_is_not_compared():
    answer = ask_doctor(*sampler())
    assert answer.status == "passed"
    assert list(answer.result.not_compared) == ["aten::multinomial"]
    assert answer.result.compared < answer.result.calls


class Added(nn.Module):
    """Adds what a function draws to a layer's outputs."""

    def __init__(self, draw):
        super().__init__()
        self.layer, self.draw = nn.Linear(9, 9), draw

    def forward(self, x):
        y = self.layer(x)
        return y + self.draw(y)


def fill_with(value):
    """Return a wrong kernel whose results are all one value."""
    return lambda right, *arguments, **settings: right(*arguments, **settings).fill_(value)


@dataclass(frozen=True)
class WrongDrawOf:
    """A function that draws, kernels that it may call, what they draw in place of that, and what is found."""

    draw: Callable[[torch.Tensor], torch.Tensor]
    operators: tuple[str, ...]
    drawn: float
    fault: DrawFault


DRAWS = {
    "a permutation": WrongDrawOf(
        lambda y: torch.randperm(9, device=y.device),
        ("randperm.out", "randperm.generator_out"),
        3,
        DrawFault.REPEATED,
    ),
    "integers": WrongDrawOf(
        lambda y: torch.randint(0, 7, (9,), device=y.device),
        ("random_.from", "random_.to"),
        7,
        DrawFault.OUTSIDE,
    ),
    "normal": WrongDrawOf(
        lambda y: torch.randn(9, device=y.device), ("normal_",), torch.nan, DrawFault.NAN
    ),
    "bernoulli": WrongDrawOf(
        lambda y: torch.bernoulli(torch.zeros_like(y)),
        ("bernoulli.out", "bernoulli_.Tensor", "bernoulli_.float"),
        1,
        DrawFault.IMPOSSIBLE,
    ),
}


@on_simulated.cases(DRAWS)
def test_random_numbers_that_cannot_have_been_drawn_are_found(case):
    metalsim.FAULTS["draw"] = planting.Fault("draw", "", case.operators, fill_with(case.drawn))
    model = Added(case.draw)
    assert find(model, torch.randn(9, 9)).kind == "agrees"
    with planted("draw"):
        found = find(model, torch.randn(9, 9)).divergent_call
    assert found is not None
    assert found.difference.fault == case.fault


# ---- conditions ------------------------------------------------------------------------------------------------------


def read_at_the_start(right, a, b):
    """A number on the CPU is read where its memory begins."""
    is_number = torch.is_tensor(b) and b.device.type == "cpu" and b.dim() == 0
    return right(a, b.as_strided((), (), 0) if is_number else b)


def forget_adjoint(right, factors, pivots, b, *, left=True, adjoint=False):
    del adjoint
    return right(factors, pivots, b, left=left, adjoint=False)


metalsim.FAULTS["number"] = planting.Fault(
    "a number of a table on the CPU is the first of that table",
    "https://github.com/pytorch/pytorch/issues/187117",
    ("mul.Tensor",),
    read_at_the_start,
)
metalsim.FAULTS["adjoint"] = planting.Fault(
    "lu_solve does not solve with the adjoint",
    "https://github.com/pytorch/pytorch/issues/175192",
    ("linalg_lu_solve",),
    forget_adjoint,
)


class Denoiser(nn.Module):
    """Takes the noise of each step from a table on the CPU, as schedulers do."""

    def __init__(self):
        super().__init__()
        self.layer, self.noise = nn.Linear(8, 8), torch.linspace(3.0, 0.1, 4)

    def forward(self, x):
        for step in range(4):
            x = x - torch.tanh(self.layer(x)) * self.noise[step]
        return x


class Sliced(nn.Module):
    """Scores of attention, as diffusers computes them: what baddbmm adds to is not written."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 16)

    def forward(self, x):
        query, key = self.project(x).chunk(2, -1)
        scores = torch.empty(len(x), x.shape[1], x.shape[1], device=x.device)
        return torch.baddbmm(scores, query, key.mT, beta=0, alpha=0.5)


class Welded(nn.Module):
    """Gives points in one cell one number."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        cells = 2**24 + x.argsort()
        return self.scale * torch.unique(cells, return_inverse=True)[1]


class Solver(nn.Module):
    """Solves equations, whose gradient solves them with the adjoint."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(2, 4, 4) + 3 * torch.eye(4))

    def forward(self, b):
        return torch.linalg.solve(self.matrix, b)


@dataclass(frozen=True)
class Explained:
    """A fault, a model that meets it, and what is to be found."""

    fault: str
    make: Callable[[], tuple[nn.Module, torch.Tensor]]
    operator: str
    conditions: set
    fix: FixKind


EXPLAINED = {
    "a number on the CPU": Explained(
        "number",
        lambda: (Denoiser(), torch.randn(3, 8)),
        "aten::mul",
        {OnCPU("other"), NonzeroOffset("other", is_odd=False)},
        FixKind.NUMBER,
    ),
    "memory that nobody wrote": Explained(
        "baddbmm, NaN with beta=0",
        lambda: (Sliced(), torch.randn(2, 5, 8)),
        "aten::baddbmm",
        {HoldsNaN("self", is_unwritten=True), Setting("beta", 0)},
        FixKind.WRITE_FIRST,
    ),
    "integers": Explained(
        "unique, integers above 2**24",
        lambda: (Welded(), torch.randn(40)),
        "aten::_unique2",
        {HoldsInteger("self", 2**24 + 1), Setting("return_inverse", True)},
        FixKind.SMALL_INTEGERS,
    ),
    "a setting of the library": Explained(
        "adjoint",
        lambda: (Solver(), torch.randn(2, 4, 2)),
        "aten::linalg_lu_solve",
        {Setting("adjoint", True)},
        FixKind.OTHER_OPERATORS,
    ),
    "a mask": Explained(MASKED, padded, ATTENTION, {HiddenRow("attn_mask")}, FixKind.ONE_KEY),
}


@functools.cache
def explain(case: str) -> divergence.Report:
    torch.manual_seed(0)
    model, x = EXPLAINED[case].make()
    with planted(EXPLAINED[case].fault):
        report = find(model, x)
    assert report.kind == "wrong kernel", report
    assert report.divergent_call.operator == EXPLAINED[case].operator
    return report


BY_CASE = {case: case for case in EXPLAINED}


@on_simulated.cases(BY_CASE)
def test_what_a_reported_fault_needs_is_found(case):
    assert set(explain(case).conditions) == EXPLAINED[case].conditions, explain(case)


@on_simulated.cases(BY_CASE)
def test_the_fix_of_a_reported_fault_fits(case):
    assert explain(case).fix.kind is EXPLAINED[case].fix, explain(case)


@on_simulated.cases(BY_CASE)
def test_a_reported_fault_has_a_short_program(case):
    assert 0 < explain(case).program.count("\n") <= 20, explain(case)


@on_simulated.cases(BY_CASE)
def test_the_program_of_a_reported_fault_fails_only_with_it(case):
    program = explain(case).program
    exec(program, {})
    with planted(EXPLAINED[case].fault), pytest.raises(AssertionError):
        exec(program, {})


# ---- now and then ----------------------------------------------------------------------------------------------------

SOMETIMES = "sum, once in many calls"


class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.scale * x.mean()


def means() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Mean(), torch.rand(2**16)


@on_simulated
def test_a_sum_that_is_wrong_once_is_found_by_repetition():
    with planted(SOMETIMES, calls=range(9, 10)):
        report = find(*means())
    assert report.kind == "intermittent", report
    assert report.divergent_call.operator == "aten::mean"
    assert report.divergent_call.wrong_calls == 1
    assert report.divergent_call.right_calls == 10


@on_simulated
def test_the_open_thread_about_an_operator_is_named():
    with planted(SOMETIMES, calls=range(9, 10)):
        report = find(*means())
    assert threads.SUMS in report.headline


@on_simulated
def test_less_work_is_no_advice_where_people_report_the_operator():
    with planted(SOMETIMES, calls=range(9, 10)):
        report = find(*means())
    assert report.fix.kind is FixKind.OTHER_OPERATORS


@on_simulated
def test_the_doctor_finds_a_sum_that_is_wrong_once():
    with planted(SOMETIMES, calls=range(30, 31)):
        answer = ask_doctor(*means())
    assert answer.status == "failed"
    assert answer.result.wrong.is_intermittent
    assert answer.result.runs[-1].way.layout == "repeated"


@on_simulated
def test_calls_that_are_right_are_made_again():
    report = find(*means())
    assert report.kind == "agrees"
    assert report.repeated_kinds > 2
    assert report.repeated == 2 * BURST * report.repeated_kinds


@on_simulated
def test_without_time_each_call_is_compared_once():
    run = TrainingRun(means()[0], means()[1:], divergence.mean_square)
    search = Search(device.pick())
    report, _ = search.compare(run, RunMode(True))
    assert search.repeat(report, 2, seconds=-1).repeated == 0


@on_simulated
def test_a_line_says_how_far_a_search_is():
    shown, seconds = [], itertools.count(step=AFTER_SECONDS)
    run = TrainingRun(means()[0], means()[1:], divergence.mean_square)
    with StatusLine(shown.append, clock=lambda: next(seconds)) as line:
        search = Search(device.pick(), line=line, runs=5)
        report, _ = search.compare(run, RunMode(True))
        search.repeat(report, 1, seconds=math.inf)
    assert "run 1 of 5, calls compared: 1; in training mode" in shown[0]
    assert any("made again" in text for text in shown)


metalsim.FAULTS["mask at times"] = planting.Fault(
    "x[mask] has too few rows now and then",
    "https://github.com/pytorch/pytorch/issues/178079",
    ("index.Tensor",),
    lose_a_row,
    counts=lambda x, indices: indices[0] is not None and indices[0].dtype == torch.bool,
)


@on_simulated
def test_a_mask_that_is_wrong_at_times_is_found_after_an_exception():
    with planted("mask at times", calls=range(3, 10**6, 4)):
        report = find(*assigner())
    assert report.kind == "intermittent", report
    assert report.divergent_call.operator == "aten::index"
    assert any("shape mismatch" in each.error for each in report.not_run)


@on_simulated
def test_a_draw_of_probability_0_is_found_by_repetition():
    with planted(IMPOSSIBLE, calls=range(35, 36)):
        report = find(*sampler())
    assert report.divergent_call.difference.fault == DrawFault.IMPOSSIBLE
    assert report.divergent_call.right_calls == BURST


if CHILD:
    children.answer(on_simulated.checks, Path(sys.argv[2]))
