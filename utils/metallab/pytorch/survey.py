"""Many calls at once: which of them run on MPS, and on a GPU whether values and gradients agree with the CPU's.

::

    survey.of(survey.TALK)          # on any machine: what an Apple GPU takes
    survey.of(survey.TALK, on=lab)  # and on a GPU whether it computes the same
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metallab import checks, tables, units
from metallab.device import Device
from metallab.pytorch import coverage


@dataclass(frozen=True)
class Call:
    """A function or module with what it is given: float32 tensors of small shapes, unless it says otherwise."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    differentiable: bool = True


@dataclass(frozen=True)
class CallResult:
    """What became of a call."""

    name: str
    coverage: coverage.Coverage
    values: str = ""
    """``agrees``, or how the device differs from the CPU; empty where nothing was run."""
    gradients: str = ""
    """The same of the gradients by every input; ``none`` for a call that has none."""

    @property
    def right(self) -> bool:
        """False where the device's values or gradients differ from the CPU's."""
        return {self.values, self.gradients} <= {"", "agrees", "none"}

    @property
    def status(self) -> str:
        """Of the operator with the worst prospects on MPS: see `metallab.pytorch.coverage.How`."""
        return self.coverage.uses[0].status

    @property
    def advice(self) -> str:
        """What to do about it; empty for what runs."""
        return self.coverage.uses[0].advice


@dataclass(frozen=True)
class Survey:
    """The rows of a survey, as a sentence and a table."""

    rows: tuple[CallResult, ...]
    device: str = ""
    """The GPU that the calls were run on; empty if they were run on none."""

    def __str__(self) -> str:
        runs = sum(row.coverage.runs and row.status != "falls back" for row in self.rows)
        version = torch.__version__
        sentence = f"{runs} of {len(self.rows)} calls run on an Apple GPU, by the tables of PyTorch {version}."
        if self.device:
            right = sum(row.right for row in self.rows)
            sentence += f" {right} of {len(self.rows)} agree with the CPU on {self.device}."
        return sentence

    def _repr_html_(self) -> str:
        names = ["call", *(["values", "gradients"] if self.device else []), "on MPS", "what to do"]
        table = tables.Table(names, [self._texts(row) for row in self.rows])
        return f"<p>{html.escape(str(self))}</p>{table._repr_html_()}"

    def _texts(self, row: CallResult) -> list[str]:
        seen = [row.values, row.gradients] if self.device else []
        return [row.name, *seen, row.status, row.advice]


def of(calls: Sequence[Call], on: Device | None = None) -> Survey:
    """Ask coverage of each call, and where ``on`` is a GPU run it there and on the CPU.

    Gradients are those of the weighted sum of the outputs: without weights some, like a normalisation's, are 0 but for
    rounding, and there is nothing to compare. A call that raises on the device is told with its message.
    """
    gpu = on if on and on.kind != "cpu" else None
    return Survey(tuple(_row(call, gpu) for call in calls), gpu.label if gpu else "")


def _row(call: Call, gpu: Device | None) -> CallResult:
    covered = coverage.mps_coverage(call.function, *call.inputs)
    if gpu is None:
        return CallResult(call.name, covered)
    gradients = _agrees(_gradients(call.function), call.inputs, gpu) if call.differentiable else "none"
    return CallResult(call.name, covered, _agrees(call.function, call.inputs, gpu), gradients)


def _agrees(function: Callable[..., Any], inputs: tuple[Tensor, ...], gpu: Device) -> str:
    try:
        checks.assert_matches_cpu(function, *inputs, on=gpu)
    except (checks.Mismatch, RuntimeError, TypeError) as problem:  # a missing kernel is a RuntimeError
        return f"NO: {units.first_line(problem)}"
    return "agrees"


def _gradients(function: Callable[..., Tensor]) -> Callable[..., Any]:
    def backward(*inputs: Tensor) -> tuple[Tensor, ...]:
        inputs = tuple(value.requires_grad_() for value in inputs)
        with torch.enable_grad():
            outputs = function(*inputs)
            weights = torch.linspace(-1, 1, outputs.numel(), device=outputs.device).reshape(outputs.shape)
            return torch.autograd.grad((weights * outputs).sum(), inputs)

    return backward


def _talk() -> tuple[Call, ...]:
    """The operators that the talk of 2023 lists as new on MPS, each with inputs at which it can be differentiated."""
    generator = torch.Generator().manual_seed(0)
    new = lambda *shape: torch.rand(*shape, generator=generator)
    x, y = new(4, 8) + 0.1, new(4, 8) + 0.1
    image, grid = new(1, 2, 6, 6), new(1, 4, 4, 2) * 2 - 1
    triangle = torch.tril(new(4, 4)) + 2 * torch.eye(4)
    of_one = {
        "group_norm": lambda a: F.group_norm(a, 2),
        "topk": lambda a: a.topk(3).values,
        "softshrink": lambda a: F.softshrink(a, 0.3),
        "roll": lambda a: a.roll(2),
        "logit": lambda a: (a / 2).logit(),
        "pixel_shuffle": lambda a: F.pixel_shuffle(a.reshape(1, 8, 2, 2), 2),
        "var_mean": lambda a: torch.stack(torch.var_mean(a)),
        "median": lambda a: a.median(1).values,
        "repeat_interleave": lambda a: a.repeat_interleave(torch.tensor([1, 0, 2, 1], device=a.device), dim=0),
        "cumsum": lambda a: a.cumsum(1),
        "masked_select": lambda a: torch.masked_select(a, a > 0.5),
        "index_fill": lambda a: a.index_fill(1, torch.tensor([0, 2], device=a.device), 3.0),
        "logsigmoid": F.logsigmoid,
        "hardsigmoid": F.hardsigmoid,
        "nansum": torch.nansum,
        "frac": torch.frac,
    }
    of_two = (torch.xlogy, torch.hypot, torch.fmax, torch.fmin, torch.remainder, torch.copysign)
    return (
        *(Call(name, function, (x,)) for name, function in of_one.items()),
        *(Call(function.__name__, function, (x, y)) for function in of_two),
        Call("grid_sample", lambda i, g: F.grid_sample(i, g, align_corners=False), (image, grid)),
        Call("solve_triangular", lambda a, b: torch.linalg.solve_triangular(a, b, upper=False), (triangle, x)),
        Call("histc", lambda a: a.histc(5, 0, 1.2), (x,), differentiable=False),
        Call("signbit", lambda a: (a - 0.5).signbit(), (x,), differentiable=False),
    )


def _refused() -> tuple[Call, ...]:
    """Calls whose operators have a Metal kernel that does not take what it is given here."""
    whole = torch.ones(4, 4, dtype=torch.int64)
    volume = torch.ones(1, 1, 4, 4, 4, dtype=torch.float16)
    queries = torch.ones(1, 1, 4, 8)
    attention = lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.1)
    return (
        Call("AdaptiveAvgPool2d(5) of 12 x 12", nn.AdaptiveAvgPool2d(5), (torch.ones(1, 1, 12, 12),)),
        Call("ConvTranspose3d in float16", nn.ConvTranspose3d(1, 1, 2).half(), (volume,)),
        Call("linear of whole numbers", F.linear, (whole, whole)),
        Call("softmax of whole numbers", lambda a: a.softmax(0), (whole,)),
        Call("attention with dropout, no gradient", attention, (queries,)),
        Call("fftn over 5 dimensions", torch.fft.fftn, (torch.ones(2, 2, 2, 2, 2),)),
    )


TALK = _talk()
REFUSED = _refused()
