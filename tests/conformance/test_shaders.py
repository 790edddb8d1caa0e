"""Metal kernels and extensions of our own"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_kernels import LAYOUTS, assert_follows_the_rule, numbers

from conformance.claims import find_tool
from metallab import units
from metallab.pytorch import kernels
from metallab.pytorch.kernels import extension, rule, softshrink

OPCHECKS = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TEXTBOOK = """
#include <metal_stdlib>
using namespace metal;
kernel void textbook(device float* out, device const float* x, constant float& lambd,
                     uint i [[thread_position_in_grid]]) {
  float v = x[i];
  out[i] = v > lambd ? v - lambd : (v < -lambd ? v + lambd : 0.0f);
}
kernel void wide(device float* out, device const float* x, constant long& n, uint i [[thread_position_in_grid]]) {
  if (i < n) out[i] = x[i] + float(n);
}
"""
pytestmark = pytest.mark.claim(on="gpu")


@pytest.fixture(scope="module")
def library(shaders):
    return torch.mps.compile_shader(TEXTBOOK)


@pytest.mark.claim(used_in="notebook 24: inputs that break kernels")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_shader_is_right_to_the_bit(shaders, dtype, layout):
    """``softshrink.metal`` gives every bit of the rule, in float, half and bfloat, whatever the layout, also for NaN.

    Value and gradient of the operator that launches it, and strides. A view that begins in the middle cannot be read
    by fours.
    """
    assert_follows_the_rule(LAYOUTS[layout](numbers(dtype).reshape(22, 14).to("mps")), 0.1)


@pytest.mark.claim(used_in="notebook 24, what the operator refuses")
def test_operator_refuses_integers():
    """``metallab::softshrink`` refuses tensors of integers on the GPU with a TypeError that says what it takes."""
    with pytest.raises(TypeError, match="floating-point"):
        softshrink.softshrink(torch.ones(2, dtype=torch.int32, device="mps"))


@pytest.mark.claim(used_in="notebook 23: is it right?")
def test_textbook_kernel_loses_nan(library, evidence):
    """The textbook kernel turns NaN into 0 on a GPU, and loses the sign of -0."""
    x = torch.tensor([float("nan"), -0.0, 2.0, -2.0]).to("mps")
    library.textbook(out := torch.empty_like(x), x, 0.5)
    got = out.cpu()
    evidence("NaN, -0, 2, -2 became", got.tolist())
    assert got.tolist() == [0, 0, 1.5, -1.5]
    assert not torch.signbit(got[1])


@pytest.mark.claim(used_in="notebook 23: the one for MPS until 2026")
def test_softshrink_of_pytorch_keeps_nan(evidence):
    """PyTorch's own Softshrink on the GPU keeps NaN in this release; earlier ones turned it into 0.

    What it does with -0 and with the gradient at NaN is recorded.
    """
    x = torch.tensor([float("nan"), -0.0, 2.0]).repeat(64).to("mps")
    out = torch.nn.functional.softshrink(x, 0.5).cpu()[:3]
    slope = torch.ops.aten.softshrink_backward(torch.ones_like(x), x, 0.5).cpu()[:3]
    evidence("of NaN, -0 and 2", [str(v) for v in out.tolist()])
    evidence("gradient", slope.tolist())
    assert out[0].isnan()
    assert out[2] == 1.5


@pytest.mark.claim(used_in="notebook 23, metallab.pytorch.kernels")
def test_integers_are_bound_as_64_bits(library):
    """compile_shader binds a Python float as float and an int as 64 bits, and threads default to the first tensor."""
    x = torch.arange(8.0).to("mps")
    library.wide(out := torch.zeros(8).to("mps"), x, 5)  # an int for a long
    assert out.tolist() == [*(v + 5.0 for v in range(5)), 0.0, 0.0, 0.0]


@pytest.mark.claim(used_in="notebook 23, metallab.pytorch.kernels")
@pytest.mark.parametrize("what", ["CPU tensor", "not contiguous"])
def test_tensors_are_refused(library, what, evidence):
    """compile_shader refuses tensors of the CPU and tensors that are not contiguous."""
    x = torch.arange(8.0).to("mps")
    out = torch.zeros(8).to("mps")
    arguments = {"CPU tensor": (out, x.cpu()), "not contiguous": (out[:4], x[::2])}[what]
    with pytest.raises((RuntimeError, TypeError, ValueError)) as refused:
        library.textbook(*arguments, 0.5)
    evidence("words", f"{refused.type.__name__}: {refused.value}"[:1500])


@pytest.mark.claim(used_in="notebook 23, metallab.pytorch.kernels")
def test_source_that_does_not_compile_is_a_syntax_error(evidence):
    """compile_shader raises SyntaxError for source that does not compile."""
    with pytest.raises(SyntaxError) as refused:
        torch.mps.compile_shader("kernel void broken(device float* x) { x[0] = y; }")
    evidence("words", str(refused.value)[:1500])


@pytest.mark.claim(used_in="notebook 24: the route of 2023, Objective-C++", seconds=300)
def test_objective_cpp_builds_and_is_right(shaders):
    """Apple's clang builds ``softshrink.mm`` by cpp_extension.load, and its results are right for views as well.

    On the simulated GPU another clang builds it, with stand-ins for Apple's headers.
    """
    try:
        ours = extension.load("softshrink.mm")
    except extension.CannotBuild as error:
        # a missing compiler; what a compiler or linker that is there complains of is no reason to skip
        missing = ("there is no C++ compiler", "Objective-C++ (.mm) needs")
        if any(words in str(error) for words in missing):
            pytest.skip(units.first_line(error, kind=True))
        raise
    ours.compile(kernels.source("softshrink.metal"))

    wrong = [name for name, layout in LAYOUTS.items() if not _follows_the_rule(ours, layout)]
    assert wrong == []


def _follows_the_rule(ours: Any, layout: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Return whether values and gradients of an extension have every bit of the rule, for tensors of a layout."""
    x = layout(numbers(torch.float32).reshape(22, 14).to("mps"))
    grad = torch.randn(x.shape).to("mps")
    values, gradients = ours.forward(x, 0.1), ours.backward(grad, x, 0.1)
    return rule.same_bits(values, rule.softshrink(x.cpu(), 0.1)) and rule.same_bits(
        gradients, rule.gradient(grad.cpu(), x.cpu(), 0.1)
    )


@pytest.mark.claim(on="cpu", used_in="notebook 24: four routes, softshrink.cpp", seconds=300)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_cpp_kernel_is_right_to_the_bit(dtype, evidence):
    """``softshrink.cpp`` gives every bit of the rule: on an Apple processor by at::vec's NEON instructions.

    Lengths from 0 to 40 around the vectors' sizes, and 100 000 on several threads. The first numbers are the special
    ones, NaN and the two zeros among them.
    """
    ours, special = extension.load("softshrink.cpp"), torch.tensor(rule.SPECIAL)
    evidence("vectors", torch.backends.cpu.get_cpu_capability())

    def is_right(n: int) -> bool:
        x = torch.cat([special, torch.randn(n)])[:n].to(dtype)
        ours.softshrink_forward(out := torch.empty_like(x), x, 0.1)
        return rule.same_bits(out, rule.softshrink(x, 0.1))

    wrong = [n for n in (*range(41), 100_000) if not is_right(n)]
    assert wrong == [], "these lengths"


@pytest.mark.claim(used_in="notebook 24, the operator", seconds=120)
def test_operator_passes_its_checks(shaders):
    """``metallab::softshrink`` on the GPU passes opcheck, and keeps the layout of its input.

    All of opcheck but its look at how autograd is registered, which it has for other devices only.
    """
    x = torch.randn(1, 3, 4, 5).to("mps").to(memory_format=torch.channels_last).requires_grad_()
    passed = torch.library.opcheck(softshrink.softshrink, (x, 0.5), test_utils=OPCHECKS)
    assert set(passed.values()) == {"SUCCESS"}, passed
    out = softshrink.softshrink(x, 0.1)
    assert rule.same_bits(out, rule.softshrink(x.detach().cpu(), 0.1))
    assert out.stride() == x.stride()


@pytest.mark.claim(
    on="mac", used_in="notebook 23: Apple's compiler is not the simulation's", seconds=120
)
def test_metal_compiler_takes_our_files(evidence):
    """Apple's offline compiler takes softshrink.metal without an error.

    xcrun metal is a download of its own since Xcode 26; its warnings are kept.
    """
    if not (metal := find_tool("metal")):
        pytest.skip("the metal compiler is not here: xcodebuild -downloadComponent MetalToolchain")
    Path("softshrink.metal").write_text(kernels.source("softshrink.metal"))
    command = [metal, "-Wall", "-c", "softshrink.metal", "-o", "softshrink.air"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    evidence("its words", f"{ran.stdout}{ran.stderr}"[:2000])
    assert ran.returncode == 0
