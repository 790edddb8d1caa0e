"""Finding the operator that is wrong: planted faults are found, minimized and reproduced, sound models are not accused.

Its checks run in a child with the simulated device (support/children.py).
"""

from __future__ import annotations

import copy
import functools
import subprocess
import sys
import warnings
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

CHILD = __name__ == "__main__"

import children  # noqa: E402

import metalsim  # noqa: E402

if CHILD:
    metalsim.install_with_torch()

import pytest  # noqa: E402
import torch  # noqa: E402
from doctor_models import Function, Turned  # noqa: E402
from torch import nn  # noqa: E402

from metallab import device  # noqa: E402
from metallab.device import PyTorchDevice  # noqa: E402
from metallab.doctor import correctness  # noqa: E402
from metallab.doctor.limits import Limits  # noqa: E402
from metallab.pytorch import divergence, networks  # noqa: E402
from metallab.pytorch.divergence import Report, layers, wording  # noqa: E402
from metallab.pytorch.divergence.conditions import (  # noqa: E402
    Fix,
    FixKind,
    MinElements,
    MinSize,
    NoElements,
    NonzeroOffset,
    NotContiguous,
    NotFloat32,
    View,
)
from metallab.pytorch.divergence.differences import StrayWrite, WrongKind, WrongWrite  # noqa: E402
from metallab.pytorch.model import as_model  # noqa: E402
from metalsim import planting  # noqa: E402

if sys.platform == "darwin" and not CHILD:
    pytest.skip("a Mac has no simulated GPU", allow_module_level=True)


# one thread: more wait for each other in work so small
on_simulated = children.open_session(__file__, OMP_NUM_THREADS="1")


# ---- models and faults -----------------------------------------------------------------------------------------------


class After(nn.Module):
    """A function of a layer's outputs."""

    def __init__(self, function, width=4):
        super().__init__()
        self.layer, self.function = nn.Linear(8, width), function

    def forward(self, x):
        return self.function(self.layer(x))


def averaged(y):
    y = y.flatten()
    return torch.addcdiv(y[:64], y[1:65], y[2:66].abs() + 1)


def views(y):
    """Apply operators to an expanded view, to one with gaps, and to one at an offset."""
    return y[:, :1].expand(-1, 4).tanh(), y[:, ::2].tanh(), y[:, 1:].neg()


def rectified():
    return nn.Sequential(nn.Linear(4, 300), nn.ReLU(), nn.Linear(300, 2)), torch.randn(128, 4)


def normalized():
    x = torch.randn(4, 3, 5, 6).to(memory_format=torch.channels_last)
    return nn.BatchNorm2d(3), x


def with_transposed_weight():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    model[0].weight = nn.Parameter(torch.randn(8, 16).t())
    return model, torch.randn(5, 8)


@dataclass(frozen=True)
class Case:
    """A fault of the simulated GPU, a model that has it, and what is found."""

    fault: str
    make: Callable[[], tuple[nn.Module, torch.Tensor]]
    operator: str
    direction: str
    condition: Any
    fix: Fix
    options: Mapping[str, Any] = field(default_factory=dict)


CASES = {
    "transposed input of a convolution": Case(
        "conv2d, non-contiguous input",
        lambda: (Turned(), torch.randn(2, 3, 9, 8)),
        "aten::convolution",
        "forward",
        NotContiguous("input", View.PERMUTED),
        Fix(FixKind.COPY_ARGUMENTS, (("input", "contiguous"),)),
    ),
    "gradient of many elements": Case(
        "ReLU's gradient, above 32768 elements",
        rectified,
        "aten::threshold_backward",
        "backward",
        MinElements(32769),
        Fix(FixKind.FEWER_ELEMENTS),
    ),
    "gradient beside one of zeros": Case(  # that by the bias, whose sum is 0 but for rounding
        "BatchNorm2d's gradient, channels last",
        normalized,
        "aten::native_batch_norm_backward",
        "backward",
        NotContiguous("input", View.PERMUTED),
        Fix(FixKind.COPY_ARGUMENTS, (("input", "contiguous"),)),
    ),
    "odd offset": Case(
        "addcdiv, odd offset",
        lambda: (After(averaged, 9), torch.randn(8, 8)),
        "aten::addcdiv",
        "forward",
        NonzeroOffset("tensor1", is_odd=True),
        Fix(FixKind.COPY_ARGUMENTS, (("tensor1", "clone"),)),
    ),
    "step of a transposed weight": Case(
        "addcdiv_, non-contiguous result",
        with_transposed_weight,
        "aten::addcdiv_",
        "step",
        NotContiguous("self", View.PERMUTED),
        Fix(FixKind.CONTIGUOUS_WEIGHTS),
        {"optimizer": torch.optim.AdamW},
    ),
}
"""By what they are wrong about."""


def find_planted(fault: str, model: nn.Module, *inputs, **options) -> Report:
    """Search with a fault planted, on a device that was picked before."""
    torch.manual_seed(0)
    lab = device.pick()
    with warnings.catch_warnings(action="ignore"), metalsim.plant(fault):
        return divergence.find(model, inputs, on=lab, **options)


def report_anew(case: Case) -> Report:
    torch.manual_seed(0)
    model, x = case.make()
    return find_planted(case.fault, model, x, **case.options)


@functools.cache
def report_by_id(case_id: str) -> Report:
    return report_anew(CASES[case_id])


def find_replaced(operator, wrong, model, *inputs, **options) -> Report:
    """Search with one kernel replaced: ``wrong`` is called with the right one and its arguments."""
    metalsim.FAULTS["mine"] = planting.Fault("mine", "", (operator,), wrong)
    report = find_planted("mine", model, *inputs, layers=False, **options)
    assert report.kind == "wrong kernel", report
    assert report.divergent_call.operator == f"aten::{operator.partition('.')[0]}", report
    return report


# ---- planted faults --------------------------------------------------------------------------------------------------

BY_ID = {case_id: case_id for case_id in CASES}


@on_simulated.cases(BY_ID)
def test_the_first_wrong_call_is_found(case_id):
    found = report_by_id(case_id).divergent_call
    assert found.operator == CASES[case_id].operator
    assert found.direction == CASES[case_id].direction


@on_simulated.cases(BY_ID)
def test_what_the_fault_needs_is_found(case_id):
    assert report_by_id(case_id).conditions == (CASES[case_id].condition,)


@on_simulated.cases(BY_ID)
def test_the_fix_fits_the_fault(case_id):
    assert report_by_id(case_id).fix == CASES[case_id].fix


@on_simulated.cases(BY_ID)
def test_a_program_is_short(case_id):
    assert 0 < report_by_id(case_id).program.count("\n") <= 20


def run_with_and_without_its_fault(case_id: str) -> list[str]:
    """Return the lines of a program that runs a report's program twice, and prints how the second run ended."""
    run = f"exec({report_by_id(case_id).program!r}, {{}})"
    return [
        run,
        f"with metalsim.plant({CASES[case_id].fault!r}):",
        "    try:",
        f"        {run}",
        "    except AssertionError as error:",
        f"        print({case_id!r}, '|', 'not close' in str(error))",
    ]


@on_simulated
def test_each_program_fails_only_where_its_fault_is_planted():
    """In another process, which knows nothing of the models."""
    lines = ["import warnings, metalsim", "metalsim.install_with_torch()", "import torch"]
    lines.append("warnings.simplefilter('ignore')")
    lines += [line for case_id in CASES for line in run_with_and_without_its_fault(case_id)]

    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=1800
    )

    assert done.stdout.splitlines() == [f"{case_id} | True" for case_id in CASES], done.stderr


@on_simulated
def test_the_fault_is_planted_after_the_device_was_picked():
    lab = device.pick()
    report = report_by_id("odd offset")
    assert "PLANTED" in report.device
    assert "PLANTED" not in lab.label


@on_simulated
def test_the_module_is_named():
    assert report_by_id("transposed input of a convolution").divergent_call.module == "second"


@on_simulated
def test_the_errors_of_layers_jump_at_the_fault():
    first, second = report_by_id("transposed input of a convolution").layers
    assert first.forward < 1e-5 < 1e-2 < second.forward
    assert second.forward_cpu < 1e-5


@on_simulated
def test_a_program_has_the_settings_of_the_call():
    program = report_by_id("transposed input of a convolution").program
    assert "stride=[1, 1], padding=[0, 0]" in program


SHOWN = {
    "text": str,
    "page": Report._repr_html_,
    "picture": lambda report: report.draw().get_label(),
}


@on_simulated.cases(SHOWN)
def test_whatever_shows_a_report_names_the_operator(show):
    assert "aten::convolution" in show(report_by_id("transposed input of a convolution"))


# ---- conditions ------------------------------------------------------------------------------------------------------


def off_by_one(when):
    """A wrong kernel of one tensor, and no other tensors."""
    return lambda right, x, *more, **named: right(x, *more, **named) + bool(when(x))


@dataclass(frozen=True)
class WrongWhen:
    """A wrong kernel: when it is wrong, and what may be claimed that it needs."""

    operator: str
    when: Callable[[torch.Tensor], bool]
    conditions: tuple = ()
    in_half: bool = False
    """Whether float32 shows it, which is simpler."""


WRONG_WHEN = {
    "always": WrongWhen("gelu", lambda x: True),
    "bfloat16": WrongWhen("gelu", lambda x: x.dtype == torch.bfloat16, (NotFloat32(),), True),
    "nothing": WrongWhen("sum.dim_IntList", lambda x: not x.numel(), (NoElements(),)),
    "at most nine": WrongWhen("sum.dim_IntList", lambda x: x.numel() < 10),
    "expanded": WrongWhen(
        "tanh", lambda x: 0 in x.stride(), (NotContiguous("self", View.EXPANDED),)
    ),
    "gaps": WrongWhen(
        "tanh",
        lambda x: x.stride()[-1] == 2 and x.numel() > 1,
        (NotContiguous("self", View.GAPS),),
    ),
    "late": WrongWhen("neg", lambda x: x.storage_offset() > 0, (NonzeroOffset("self", False),)),
    "elements": WrongWhen("cos", lambda x: x.numel() >= 1030, (MinElements(1030),)),
    "rows": WrongWhen("cos", lambda x: x.shape[0] >= 1024, (MinSize("self", (0,), 1024),)),
    "values": WrongWhen("cos", lambda x: x.max() > 4.2),
    "values in bfloat16": WrongWhen(
        "gelu", lambda x: x.dtype == torch.bfloat16 and x.max() > 2.5, in_half=True
    ),
}


def model_with(operator: str) -> tuple[nn.Module, torch.Tensor]:
    if operator == "gelu":
        gelu = nn.Sequential(nn.Linear(8, 16), nn.GELU()).bfloat16()
        return gelu, 9 * torch.randn(64, 8).bfloat16()
    if operator == "sum.dim_IntList":
        return After(lambda y: y.sum(0)), torch.randn(0, 8)
    if operator == "cos":
        return After(torch.cos), 9 * torch.randn(1500, 8)
    return After(views), torch.randn(5, 8)


@functools.cache
def report_of(case: WrongWhen) -> Report:
    return find_replaced(case.operator, off_by_one(case.when), *model_with(case.operator))


@on_simulated.cases(WRONG_WHEN)
def test_a_condition_is_claimed_if_seen_on_both_sides(case):
    assert report_of(case).conditions == case.conditions


@on_simulated.cases(WRONG_WHEN)
def test_a_program_is_in_float32_if_that_shows_it(case):
    assert ("bfloat16" in report_of(case).program) <= case.in_half


# ---- what a comparison of values with a fixed tolerance does not see -------------------------------------------------


@on_simulated
def test_a_small_gradient_is_compared_by_its_size():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 64)).bfloat16()
    x = torch.randn(16, 8).bfloat16()
    find_replaced(
        "threshold_backward",
        lambda right, *a: 0 * right(*a),
        model,
        x,
        loss=lambda y: 1e-6 * y.sum(),
    )


@on_simulated
def test_a_tiny_gradient_is_compared_by_its_size():
    model, x = After(torch.tanh), torch.randn(16, 8)
    find_replaced(
        "tanh_backward", lambda right, *a: 2 * right(*a), model, x, loss=lambda y: 1e-9 * y.sum()
    )


@on_simulated
def test_one_overflow_explains_no_other_error():
    scale = torch.tensor([6e4, 1.0, 1.0, 1.0], dtype=torch.float16)
    model = After(lambda y: y * scale.to(y.device)).half()
    x = 10 * torch.randn(16, 8).half()
    report = find_replaced("mul.Tensor", lambda right, *a: right(*a) + 5, model, x)
    assert report.divergent_call.direction == "forward"


@on_simulated
def test_an_infinity_where_the_cpu_has_none_is_wrong():
    def wrong(right, x):
        return right(x) + torch.inf * (x > 1)

    find_replaced("tanh", wrong, After(torch.tanh), 9 * torch.randn(16, 8))


@on_simulated.cases({"NaN": torch.nan, "other sign": -torch.inf})
def test_another_value_where_the_cpu_has_infinity_is_wrong(value):
    model = After(lambda y: torch.exp(50 * y).clamp(0, 9))

    def wrong(right, x):
        return right(x).masked_fill(x > 90, value)

    find_replaced("exp", wrong, model, 9 * torch.randn(16, 8))


def weighted_loss(dtype):
    """A loss with class weights on the CPU, in a criterion."""
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([0.25, 0.75], dtype=dtype))
    targets = torch.tensor([0, 1])
    return lambda y: criterion(y, targets)


@on_simulated.cases({"float32": torch.float32, "float64": torch.float64})
def test_what_a_loss_has_around_it_is_on_the_device(dtype):
    inputs = (torch.randn(2, 4),)
    report = divergence.find(nn.Linear(4, 2), inputs, weighted_loss(dtype), on=device.pick())

    assert report.kind == "agrees"
    assert report.is_loss_narrowed == (dtype == torch.float64)
    assert len(report.layers) == 1


def loss_with_another_function():
    """A loss that calls another function, behind which a tensor stays on the CPU."""
    weight = torch.ones(2)

    def weigh(y):
        return (weight * y).square()

    return lambda y: weigh(y).mean()


@on_simulated
def test_of_a_loss_that_raises_there_it_is_told_what_to_do():
    report = divergence.find(
        nn.Linear(4, 2), (torch.randn(2, 4),), loss_with_another_function(), on=device.pick()
    )
    assert report.kind == "raised"
    assert report.is_raised_by_loss
    assert "in the loss, at" in report.raised
    assert "what to do" in dict(wording.rows(report))


@on_simulated
def test_running_statistics_are_compared():
    def wrong(right, x, w, b, mean, var, *more):
        return right(x, w, b, mean.clone(), var.clone(), *more)

    report = find_replaced("native_batch_norm", wrong, nn.BatchNorm2d(3), torch.randn(2, 3, 4, 4))
    assert isinstance(report.divergent_call.difference, WrongWrite)
    assert report.divergent_call.difference.argument == "running_mean"


def with_positions(change):
    """A wrong kernel of those that return values and positions."""

    def wrong(right, *arguments, **named):
        values, positions = right(*arguments, **named)
        return values, change(positions)

    return wrong


def sorted_in_reverse(right, x, *more, **named):
    values, positions = right(x.flip(1), *more, **named)
    return values, 7 - positions


@on_simulated
def test_positions_of_a_pool_are_compared():
    pooled = nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2))
    wrong = with_positions(lambda positions: positions.flip(-1))
    find_replaced("max_pool2d_with_indices", wrong, pooled, torch.randn(2, 3, 10, 10))


@on_simulated
def test_positions_of_the_largest_are_compared():
    model = After(lambda y: y.topk(3).values)
    wrong = with_positions(lambda positions: positions.flip(-1))
    find_replaced("topk", wrong, model, torch.randn(16, 8))


@on_simulated
def test_positions_of_another_dtype_are_wrong():
    """Though each of them is equal."""
    model = After(lambda y: y.topk(3).values)
    wrong = with_positions(lambda positions: positions.int())
    report = find_replaced("topk", wrong, model, torch.randn(16, 8))
    assert isinstance(report.divergent_call.difference, WrongKind)


@on_simulated
def test_the_order_of_a_stable_sort_is_compared():
    model = After(lambda y: y.gather(1, y.sign().sort(stable=True, dim=1).indices), 8)
    find_replaced("sort.stable", sorted_in_reverse, model, torch.randn(16, 8))


@on_simulated
def test_positions_without_values_are_compared():
    model = After(lambda y: y + y.argmax(1)[:, None])
    find_replaced("argmax", lambda right, *a: 3 - right(*a), model, torch.randn(16, 8))


def zeroing_its_argument(right, x):
    y = right(x)
    x.zero_()
    return y


def writing_beyond(right, x, *more, **named):
    right(x, *more, **named)
    x.as_strided((1,), (1,), x.storage_offset() + x.numel()).fill_(9)
    return x


@on_simulated
def test_an_argument_that_is_not_to_be_written_is_compared():
    report = find_replaced("tanh", zeroing_its_argument, After(torch.tanh), torch.randn(16, 8))
    assert isinstance(report.divergent_call.difference, StrayWrite)


@on_simulated
def test_memory_behind_a_result_is_compared():
    model = After(lambda y: (y[2:4].add_(1.0), y)[1])
    report = find_replaced("add_.Tensor", writing_beyond, model, torch.randn(16, 8))
    assert report.divergent_call.difference == StrayWrite("self", 1)


@on_simulated
def test_a_result_of_another_dtype_is_wrong():
    def wrong(right, x):
        return right(x).bfloat16()

    report = find_replaced("tanh", wrong, After(torch.tanh), torch.randn(16, 8))
    assert isinstance(report.divergent_call.difference, WrongKind)
    assert report.divergent_call.difference.dtype == torch.bfloat16


@on_simulated
def test_a_truth_value_of_another_dtype_is_wrong():
    model = After(lambda y: y * (y > 0))
    find_replaced("gt.Scalar", lambda right, *a: right(*a).byte(), model, torch.randn(16, 8))


@on_simulated
def test_a_result_of_a_better_dtype_is_wrong():
    def wrong(right, *a, **b):
        return right(*a, **b).float()

    find_replaced("gelu", wrong, After(nn.GELU()).half(), torch.randn(16, 8).half())


@on_simulated
def test_a_number_is_compared():
    model = After(lambda y: y * y.max().item())

    def wrong(right, x):
        return 2 * right(x)

    assert find_replaced("_local_scalar_dense", wrong, model, torch.randn(16, 8)).program


@on_simulated
def test_a_wrong_optimizer_of_lists_is_shown_by_one_of_each():
    def wrong(right, weights, *more, **named):
        right(weights, *more, **named)
        weights[0].add_(1)

    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    fused = functools.partial(torch.optim.AdamW, fused=True)
    report = find_replaced("_fused_adamw_", wrong, model, torch.randn(16, 8), optimizer=fused)
    assert report.divergent_call.direction == "step"
    assert 0 < report.program.count("\n") <= 20


# ---- what is not wrong -----------------------------------------------------------------------------------------------


def image_network(dtype: torch.dtype) -> networks.Network:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(3600, 3)
    )
    return networks.Network(str(dtype), model.to(dtype), (torch.randn(2, 3, 32, 32).to(dtype),))


NETWORKS = {
    "lstm": lambda: networks.lstm(batch=2),
    "transformer": lambda: networks.transformer(batch=2, steps=16),
    "perceptron": lambda: networks.talk_mlp(8),
    "float32": lambda: image_network(torch.float32),
    "float16": lambda: image_network(torch.float16),
    "bfloat16": lambda: image_network(torch.bfloat16),
}
"""Smaller than pages measure them."""


@functools.cache
def report_of_network(make: Callable[[], networks.Network]) -> Report:
    torch.manual_seed(0)
    network = make()
    # AdamW's epsilon is 0 in float16, and 0 / 0 is NaN: no kernel's fault, but no agreement
    optimizer = torch.optim.AdamW if network.name == "torch.float32" else torch.optim.SGD
    return divergence.find(network.model, network.inputs, optimizer=optimizer, on=device.pick())


@on_simulated.cases(NETWORKS)
def test_no_sound_model_is_accused(make):
    report = report_of_network(make)
    assert report.kind == "agrees", report
    assert report.compared > 10


@on_simulated.cases(NETWORKS)
def test_all_but_recurrent_operators_are_compared(make):
    names = report_of_network(make).not_compared
    assert [name for name in names if "lstm" not in name and "rnn" not in name] == []


@on_simulated.cases(NETWORKS)
def test_the_errors_of_layers_are_known_or_said_to_be_not(make):
    report = report_of_network(make)
    assert len(report.layers) > 1 or report.layers_not_compared is not None


def reversed_sum(right, x, dims, *more, **named):
    return right(x.flip(dims), dims, *more, **named)


def reversed_batch(right, gradient, x, *more):
    first, *others = right(gradient.flip(0), x.flip(0), *more)
    return first.flip(0), *others


@on_simulated.cases({"float32": torch.float32, "bfloat16": torch.bfloat16})
def test_another_order_of_adding_is_not_wrong(dtype):
    sums = planting.Fault("sum", "", ("sum.dim_IntList",), reversed_sum)
    batches = planting.Fault("batch", "", ("native_batch_norm_backward",), reversed_batch)
    metalsim.FAULTS.update(sum=sums, batch=batches)
    summed = Function(lambda x: x.sum((2, 3)))
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), summed, nn.LayerNorm(8))
    x = torch.randn(4, 3, 9, 9).to(dtype)

    with warnings.catch_warnings(action="ignore"), metalsim.plant("sum", "batch"):
        report = divergence.find(model.to(dtype), (x,), on=device.pick())

    assert report.kind == "agrees", report


def with_dropout() -> nn.Module:
    drop = nn.Dropout(0.3)
    return nn.Sequential(nn.Linear(8, 64), drop, drop, nn.Linear(64, 2))


@on_simulated
def test_dropout_is_random_and_not_wrong():
    torch.manual_seed(0)
    report = divergence.find(with_dropout(), (torch.randn(16, 8),), on=device.pick())
    assert report.kind == "agrees", report
    assert [random.operator for random in report.random] == ["aten::native_dropout"]


@on_simulated
def test_dropout_that_keeps_all_is_wrong():
    def wrong(right, x, *more):
        return (x, torch.ones_like(x, dtype=torch.bool))

    find_replaced("native_dropout", wrong, with_dropout(), torch.randn(99, 8))


# ---- words decide nothing --------------------------------------------------------------------------------------------


@contextmanager
def reworded() -> Iterator[None]:
    """Have other words in place of each phrase."""
    phrases = dict(wording.PHRASES)
    wording.PHRASES.update(dict.fromkeys(phrases, "*"))
    try:
        yield
    finally:
        wording.PHRASES.update(phrases)


@on_simulated.cases(BY_ID)
def test_other_words_change_no_report(case_id):
    with reworded():
        other = report_anew(CASES[case_id])
        fix = other.fix
    known = report_by_id(case_id)
    assert fix == known.fix
    # errors of layers may be NaN, which is not equal to itself
    assert replace(other, layers=()) == replace(known, layers=())


def ask_doctor(model: nn.Module, fault: str, x: torch.Tensor):
    torch.manual_seed(0)
    examined = as_model((model, (x,), None), "tests:example")
    with warnings.catch_warnings(action="ignore"), metalsim.plant(fault):
        return correctness.answer(examined, Limits())


@on_simulated
def test_other_words_change_no_answer_of_the_doctor():
    torch.manual_seed(0)
    model, x, fault = Turned(), torch.randn(2, 3, 9, 8), "conv2d, non-contiguous input"

    known = ask_doctor(model, fault, x)
    with reworded():
        other = ask_doctor(model, fault, x)

    assert other.status == known.status
    assert other.on == known.on
    assert other.ended == known.ended
    assert [each.title for each in other.evidence] == [each.title for each in known.evidence]


# ---- without the simulated device ------------------------------------------------------------------------------------


def test_rounding_is_no_fault_where_sums_cancel():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Function(lambda x: (x + 1e4).var(0, correction=0)))
    assert divergence.find(model, (torch.randn(64, 4),), on=device.cpu()).kind == "agrees"


def test_what_is_not_compared_for_time_is_counted():
    report = divergence.find(After(torch.tanh), (torch.randn(5, 8),), on=device.cpu(), seconds=-1)
    assert report.kind == "agrees"
    assert report.compared == 0
    assert report.skipped > 5


@dataclass
class Batch:
    x: torch.Tensor


class Unpacked(nn.Linear):
    def forward(self, batch):
        return super().forward(batch.x)


def normed_linear() -> nn.Module:
    return nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))


@pytest.mark.parametrize(
    ("make", "x", "optimizer"),
    [
        pytest.param(lambda: Unpacked(8, 8), Batch(torch.ones(5, 8)), None, id="dataclass"),
        pytest.param(
            normed_linear,
            torch.ones(5, 8),
            functools.partial(torch.optim.LBFGS, max_iter=1),
            id="closure",
        ),
        pytest.param(lambda: nn.Linear(8, 8), torch.ones(0, 8), None, id="empty"),
    ],
)
def test_unusual_models_inputs_and_optimizers_are_compared(make, x, optimizer):
    assert divergence.find(make(), (x,), optimizer=optimizer, on=device.cpu()).kind == "agrees"


COMPLEX = torch.complex(torch.randn(4, 4), torch.randn(4, 4))
SPARSE = torch.eye(5).to_sparse()


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda y: torch.fft.irfft(torch.fft.rfft(y)), id="fft"),
        pytest.param(lambda y: y * torch.mm(COMPLEX, COMPLEX.mH).real.sum(), id="complex"),
        pytest.param(lambda y: torch.sparse.mm(SPARSE, y), id="sparse"),
    ],
)
def test_complex_and_sparse_tensors_are_not_wrong(function):
    report = divergence.find(After(function), (torch.randn(5, 8),), on=device.cpu())
    assert report.kind == "agrees"


class Mixed(nn.Module):
    """A layer in bfloat16 and one in float32; its second argument has a name."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(8, 8).bfloat16(), nn.LayerNorm(8)

    def forward(self, x, *, scale):
        return self.norm(self.layer(x).to(self.norm.weight.dtype)) * scale


def test_arguments_may_have_names_and_dtypes_may_be_mixed():
    # as a tokenizer returns them
    given = UserDict(x=torch.randn(4, 8).bfloat16(), scale=torch.tensor(2.0))
    report = divergence.find(Mixed(), given, on=device.cpu())
    assert report.kind == "agrees", report
    assert [layer.module for layer in report.layers] == ["layer", "norm"]
    assert all(layer.forward == layer.forward_cpu < 0.1 for layer in report.layers)


def test_operators_are_compared_where_the_model_has_no_float64():
    model = After(lambda y: y @ torch.ones(4, 2))
    report = divergence.find(model, (torch.randn(5, 8),), on=device.cpu())
    assert report.kind == "agrees"
    assert report.layers_not_compared.reason == "own dtype"
    assert report.compared > 2


def test_a_tensor_of_its_own_dtype_is_named_with_its_line_and_the_way_out():
    model = After(lambda y: y @ torch.ones(4, 2, device=y.device))
    told = str(divergence.find(model, (torch.randn(5, 8),), on=device.cpu()))
    line = model.function.__code__.co_firstlineno
    assert f"test_divergence.py:{line})" in told
    assert "x.new_zeros" in told


def find_in_root(x: torch.Tensor, loss: Callable) -> Report:
    root = Function(lambda x: (x - 1).sqrt() * 2)
    report = divergence.find(root, (x,), loss, on=device.cpu())
    assert report.kind == "NaN", report
    return report


def test_a_nan_has_a_birthplace():
    found = find_in_root(torch.tensor([4.0, 0.5]), torch.sum).divergent_call
    assert found.operator == "aten::sqrt"
    assert found.direction == "forward"


def test_a_nan_of_the_backward_pass_has_a_birthplace():
    found = find_in_root(torch.ones(2).requires_grad_(), lambda y: 0 * y.sum()).divergent_call
    assert found.direction == "backward"


def test_a_nan_is_followed_to_its_first_infinity():
    model = nn.Sequential(After(lambda y: y * 1e38 * 1e38), nn.Linear(4, 4))
    report = divergence.find(model, (torch.randn(5, 8),), on=device.cpu())

    assert report.kind == "NaN"
    assert report.divergent_call.operator == "aten::addmm"
    assert report.infinity.operator == "aten::mul"
    assert report.infinity.module == "0"


def with_buffer_of_float64() -> nn.Module:
    layer = nn.Linear(2, 2)
    layer.register_buffer("scale", torch.ones(2, dtype=torch.float64))
    return layer


@pytest.mark.parametrize(
    ("model", "inputs", "on", "error", "words"),
    [
        pytest.param(
            nn.Linear(2, 2), torch.ones(1, 2), device.cpu(), TypeError, "tuple", id="no-tuple"
        ),
        pytest.param(
            nn.Identity(),
            (torch.ones(2, dtype=torch.int64),),
            device.cpu(),
            ValueError,
            "nothing",
            id="integers",
        ),
        pytest.param(
            nn.Linear(2, 2).double(),
            (torch.ones(1, 2).double(),),
            PyTorchDevice("mps", "Apple M2 GPU"),
            ValueError,
            "float64",
            id="float64",
        ),
        pytest.param(
            with_buffer_of_float64(),
            (torch.ones(1, 2),),
            PyTorchDevice("mps", "Apple M2 GPU"),
            ValueError,
            "float64",
            id="float64 of a buffer",
        ),
    ],
)
def test_bad_input_is_refused(model, inputs, on, error, words):
    with pytest.raises(error, match=words):
        divergence.find(model, inputs, on=on)


def test_the_weights_stay_as_they_are():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = copy.deepcopy(model.state_dict())
    divergence.find(model, (torch.randn(8, 4),), on=device.cpu())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_the_model_gets_no_gradients():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    divergence.find(model, (torch.randn(8, 4),), on=device.cpu())
    assert all(parameter.grad is None for parameter in model.parameters())


TENSORS = [
    pytest.param(torch.arange(8.0)[1:], id="dense"),
    pytest.param(torch.rand(3, 4, 5).mT[1:], id="permuted"),
    pytest.param(torch.zeros(3, 0)[1:], id="empty"),
]


@pytest.mark.parametrize("tensor", TENSORS)
def test_an_input_is_moved_with_its_layout(tensor):
    """To another device, be it one without numbers."""
    there = layers.move_to(tensor, "meta")
    assert there.shape == tensor.shape
    assert there.stride() == tensor.stride()
    assert there.storage_offset() == (tensor.storage_offset() if tensor.numel() else 0)


@pytest.mark.parametrize("tensor", TENSORS)
def test_an_input_that_is_on_the_device_is_not_copied(tensor):
    assert layers.move_to(tensor, "cpu").data_ptr() == tensor.data_ptr()


if CHILD:
    children.answer(on_simulated.checks, Path(sys.argv[2]))
