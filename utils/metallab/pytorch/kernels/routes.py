"""Four ways from a kernel's text to numbers, tried on this machine; and a reader's own text on an Apple GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from torch import Tensor

from metallab import isolated, needs, plots
from metallab.device import Device
from metallab.pytorch import kernels
from metallab.pytorch.kernels import extension, nvrtc, rule

_ON_APPLE = """
import torch
from metallab.pytorch import kernels
from metallab.pytorch.kernels import extension, rule
x = torch.cat([torch.tensor(rule.SPECIAL), torch.randn(1000)]).to("mps")
text = kernels.source("softshrink.metal")
{launch}
judgement = rule.judged(out, rule.softshrink(x.cpu(), 0.5))
"""
_ONE_LINE = """
out = torch.empty_like(x)
torch.mps.compile_shader(text).softshrink_forward_float(out, x, 0.5)
"""
_OBJECTIVE_C = """
ours = extension.load("softshrink.mm")
ours.compile(text)
out = ours.forward(x, 0.5)
"""
_ONE_KERNEL = """
from math import inf, nan  # which are no literals
import torch
x = torch.tensor({x!r}, device="mps")
kernel = torch.mps.compile_shader({text!r}).{name}
outs = []
for lambd in {lambds!r}:
    out = torch.full_like(x, 7)
    kernel(out, x, lambd)
    outs.append(out.tolist())
"""
NOT_RUN = "not run here"


class RouteResult(NamedTuple):
    """One way from a text to numbers, and how it went."""

    text: str
    """The file that holds the kernel."""
    call: str
    """What compiles it."""
    device: str
    """Where it runs, in words."""
    judgement: str
    """`rule.RIGHT`; else what was done instead, or `NOT_RUN`."""
    serves_operator: bool = True
    """`softshrink.softshrink` computes by it."""


def draw(routes: Sequence[RouteResult]) -> Figure:
    """From the text on the left to one operator on the right, with the judgement of each route."""
    with plots.plt.rc_context(plots.STYLE | {"axes.grid": False}):
        figure, axes = plots.plt.subplots(figsize=(7.5, 0.8 + 0.8 * len(routes)))
        axes.set_axis_off()
        axes.set_xlim(0, 10)
        axes.set_ylim(len(routes) - 0.4, -0.6)
        middle = (len(routes) - 1) / 2
        operator = _box(axes, 9.2, middle, "one operator:\nsoftshrink,\nwith its\ngradient", plots.PURPLE)
        for row, route in enumerate(routes):
            colour = plots.GREEN if route.judgement == rule.RIGHT else plots.GREY
            text = _box(axes, 1.0, row, route.text, plots.BLUE)
            call = _box(axes, 3.7, row, route.call.replace(", ", ",\n"), plots.BLUE)
            device = _box(axes, 6.6, row, f"{route.device}\n{route.judgement}", colour)
            _arrow(axes, text, call)
            _arrow(axes, call, device)
            if route.serves_operator:
                _arrow(axes, device, operator)
        plots.title(figure, "From a text to an operator", ["green: ran here, and every bit is right"])
    return plots.described(figure, "; ".join(f"{r.text} by {r.call} on {r.device}: {r.judgement}" for r in routes))


def _box(axes: Axes, x: float, y: float, words: str, colour: str) -> Text:
    box = {"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": colour, "linewidth": 1.5}
    return axes.text(x, y, words, ha="center", va="center", fontsize=8, bbox=box)


def _arrow(axes: Axes, start: Text, end: Text) -> None:
    """From the edge of one box to the edge of another, on the line between their middles."""
    ends = {"patchA": start.get_bbox_patch(), "patchB": end.get_bbox_patch(), "shrinkA": 0, "shrinkB": 0}
    style = {"arrowstyle": "->", "color": plots.BLACK}
    axes.annotate("", end.get_position(), start.get_position(), arrowprops=style | ends)


def try_all(on: Device) -> list[RouteResult]:
    """Run Softshrink by every route that this machine has the tools for, on special and random numbers.

    What needs an Apple GPU runs in processes of their own, where there is none on the simulated one. A tool that this
    kind of machine can have and lacks makes the page incomplete (`needs`). `checks.Mismatch` or `isolated.ChildFailed`
    for a route that runs and gives other bits.
    """
    apple = isolated.apple_gpu().split(",")[0].removeprefix("the ")
    metal = "softshrink.metal"
    return [
        RouteResult(metal, "compile_shader", apple, _on_apple(_ONE_LINE, "shader-compiler")),
        RouteResult(metal, "softshrink.mm, Objective-C++", apple, _on_apple(_OBJECTIVE_C, "objective-c++"), False),
        RouteResult(metal, "translated, NVRTC", "NVIDIA GPU", _on_nvidia(on)),
        RouteResult("softshrink.cpp", "C++ extension", "CPU", _on_cpu()),
    ]


def _on_apple(launch: str, tool: str) -> str:
    if needs.report_missing("apple-gpu", tool):
        return NOT_RUN
    outcome = isolated.run(_ON_APPLE.format(launch=launch), results=["judgement"], device="mps", timeout=600)
    return outcome["judgement"]


def _on_nvidia(on: Device) -> str:
    try:
        if on.kind != "cuda":
            nvrtc.compile_cuda(nvrtc.translate(kernels.source("softshrink.metal")), "sm_90")
            return "compiled, not run"
        library = nvrtc.compile_shader(kernels.source("softshrink.metal"))
    except nvrtc.NoNvidiaCompiler:
        needs.report_missing("nvidia-compiler")
        return NOT_RUN
    x = _numbers().cuda()
    out = torch.empty_like(x)
    library.softshrink_forward_float(out, x, 0.5)
    return rule.judged(out, rule.softshrink(x, 0.5))


def _on_cpu() -> str:
    try:
        route = extension.load("softshrink.cpp")
    except extension.CannotBuild as reason:
        needs.incomplete("the C++ route was not built", str(reason))
        return NOT_RUN
    x = _numbers()
    out = torch.empty_like(x)
    route.softshrink_forward(out, x, 0.5)
    return rule.judged(out, rule.softshrink(x, 0.5))


def _numbers() -> Tensor:
    return torch.cat([torch.tensor(rule.SPECIAL), torch.randn(1000)])


def gives(text: str, name: str, x: Tensor, expected: Mapping[float, Tensor]) -> bool | isolated.Skipped:
    """True if the kernel ``name(out, x, lambd)`` of a Metal text gives the bits that are expected for each λ.

    ``x`` and the expected tensors are float32 (n,) on the CPU. It runs on the Apple GPU, be it simulated, in a process
    of its own; `isolated.Skipped` where none can be had. AssertionError that names the first number that is wrong;
    `kernels.CannotCompile` for a text that does not compile or a kernel that cannot be run.

    >>> gives(my_text, "hardshrink", torch.tensor([1.0, 0.1]), {0.5: torch.tensor([1.0, 0.0])})
    True
    """
    program = _ONE_KERNEL.format(x=x.tolist(), text=text, name=name, lambds=[*expected])
    outcome = isolated.run(program, results=["outs"], device="mps")
    if outcome.ok:
        for (lambd, wanted), out in zip(expected.items(), outcome["outs"], strict=True):
            for number, got, right in zip(x, torch.tensor(out), wanted, strict=True):
                assert rule.same_bits(got, right), f"of {number:g} and λ = {lambd:g} it makes {got:g}, not {right:g}"
        return True
    if outcome.reason.startswith(("Simulation", "NoCompiler")):
        return isolated.Skipped(outcome.reason)
    raise kernels.CannotCompile(outcome.reason)
