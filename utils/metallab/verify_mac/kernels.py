"""Metal kernels and extensions of our own: Apple's compilers, launches, and results to the last bit."""

from __future__ import annotations

import subprocess
from pathlib import Path

from metallab import units
from metallab.verify_mac.trial import Finding, judged, not_applicable, trial

OPCHECKS = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
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


@trial(on="gpu", used_in="notebook 04, route 1")
def shader_is_right_to_the_bit() -> Finding:
    """``softshrink.metal`` through compile_shader gives every bit of the rule, in float, half and bfloat, also for NaN.

    Forward and backward; with one number a thread, and with four.
    """
    import torch

    from metallab.pytorch.kernels import rule, softshrink

    route, wrong, checked = softshrink.route("mps"), [], 0
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.cat([torch.tensor(rule.SPECIAL), torch.randn(1000)]).to("mps", dtype)
        grad = torch.randn(x.numel()).to("mps", dtype)
        for begin in (0, 1):  # a view that begins in the middle cannot be read by fours
            part, slope = x[begin:], grad[begin:]
            out = x.new_empty(x.shape)[begin:]
            route.softshrink_forward(out, part, 0.1)
            if not rule.same_bits(out, rule.softshrink(part.cpu(), 0.1)):
                wrong.append(f"forward, {dtype}, from {begin}")
            route.softshrink_backward(out, slope, part, 0.1)
            if not rule.same_bits(out, rule.gradient(slope.cpu(), part.cpu(), 0.1)):
                wrong.append(f"backward, {dtype}, from {begin}")
            checked += 2
    return judged(not wrong, f"{checked - len(wrong)} of {checked} agree in every bit", wrong=wrong)


@trial(on="gpu", used_in="notebook 04, the missing operator")
def textbook_kernel_loses_nan() -> Finding:
    """The textbook kernel turns NaN into 0 on a GPU, and loses the sign of -0."""
    import torch

    x = torch.tensor([float("nan"), -0.0, 2.0, -2.0]).to("mps")
    out = torch.empty_like(x)
    torch.mps.compile_shader(TEXTBOOK).textbook(out, x, 0.5)
    got = out.cpu()
    lost = got[0].item() == 0 and not torch.signbit(got[1]).item() and got[2:].tolist() == [1.5, -1.5]
    return judged(lost, f"NaN, -0, 2, -2 became {got.tolist()}")


@trial(on="gpu", used_in="notebook 04: the one for MPS until 2026")
def softshrink_of_pytorch_keeps_nan() -> Finding:
    """PyTorch's own Softshrink on the GPU keeps NaN in this release; earlier ones turned it into 0.

    What it does with -0 and with the gradient at NaN is in ``got``.
    """
    import torch

    x = torch.tensor([float("nan"), -0.0, 2.0]).repeat(64).to("mps")
    out = torch.nn.functional.softshrink(x, 0.5).cpu()[:3]
    slope = torch.ops.aten.softshrink_backward(torch.ones_like(x), x, 0.5).cpu()[:3]
    got = {"values": [str(v) for v in out.tolist()], "gradient": slope.tolist()}
    return judged(bool(out[0].isnan()) and out[2].item() == 1.5, f"of NaN, -0 and 2: {got}", got=got)


@trial(on="gpu", used_in="notebook 04, metallab.pytorch.kernels")
def arguments_are_bound_as_said() -> Finding:
    """compile_shader binds a Python float as float and an int as 64 bits, and threads default to the first tensor.

    It refuses tensors of the CPU and tensors that are not contiguous; source that does not compile is a SyntaxError.
    """
    import torch

    library = torch.mps.compile_shader(TEXTBOOK)
    x = torch.arange(8.0).to("mps")
    out = torch.zeros(8).to("mps")
    library.wide(out, x, 5)  # an int for a long
    bound = out.cpu().tolist() == [*(v + 5.0 for v in range(5)), 0.0, 0.0, 0.0]
    refused = {}
    attempts = {
        "CPU tensor": lambda: library.textbook(out, x.cpu(), 0.5),
        "not contiguous": lambda: library.textbook(out[:4], x[::2], 0.5),
        "does not compile": lambda: torch.mps.compile_shader("kernel void broken(device float* x) { x[0] = y; }"),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
            refused[name] = "nothing was raised"
        except Exception as error:  # noqa: BLE001  # which one it is, is the question
            refused[name] = f"{type(error).__name__}: {error}"[:1500]
    syntax = refused["does not compile"].startswith("SyntaxError")
    holds = bound and syntax and "nothing was raised" not in refused.values()
    return judged(holds, f"ints bound as 64 bits: {bound}; {[text[:70] for text in refused.values()]}", refused=refused)


@trial(on="gpu", used_in="notebook 04, route 2", seconds=300)
def objective_cpp_builds_and_is_right() -> Finding:
    """Apple's clang builds ``softshrink.mm`` by cpp_extension.load, and its results are right for views as well.

    On the simulated GPU another clang builds it, with stand-ins for Apple's headers.
    """
    import time

    import torch

    from metallab.pytorch import kernels
    from metallab.pytorch.kernels import extension, rule

    begin = time.perf_counter()
    try:
        ours = extension.load("softshrink.mm")
    except extension.CannotBuild as error:
        if "xcode-select" in str(error) or "clang++" in str(error):
            return not_applicable(units.first_line(error, kind=True))
        raise
    seconds = time.perf_counter() - begin
    ours.compile(kernels.source("softshrink.metal"))
    base = torch.randn(6, 8).to("mps")
    views = {"whole": base, "third row": base[2], "from the second": base.flatten()[1:], "transposed": base.t()}
    views |= {"every other column": base[:, ::2], "half": base.half()}
    wrong = [
        name for name, x in views.items() if not rule.same_bits(ours.forward(x, 0.5), rule.softshrink(x.cpu(), 0.5))
    ]
    return judged(not wrong, f"wrong: {', '.join(wrong) or 'none'} of {len(views)} views", build_seconds=seconds)


@trial(on="cpu", used_in="notebook 04, route 4", seconds=300)
def cpp_kernel_is_right_to_the_bit() -> Finding:
    """``softshrink.cpp`` gives every bit of the rule: on an Apple processor by at::vec's NEON instructions.

    Lengths from 0 to 40 around the vectors' sizes, and 100 000 on several threads; float, half, bfloat, double.
    """
    import torch

    from metallab.pytorch.kernels import extension, rule

    ours, special = extension.load("softshrink.cpp"), torch.tensor(rule.SPECIAL)
    wrong = []
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        for n in (*range(41), 100_000):
            x = torch.cat([special, torch.randn(n)])[:n].to(dtype)
            ours.softshrink_forward(out := torch.empty_like(x), x, 0.1)
            if not rule.same_bits(out, rule.softshrink(x, 0.1)):
                wrong.append(f"{dtype}, {n}")
    said = f"wrong: {', '.join(wrong[:6]) or 'none'}"
    return judged(not wrong, said, wrong=wrong, vectors=torch.backends.cpu.get_cpu_capability())


@trial(on="gpu", used_in="notebook 04, one operator", seconds=120)
def operator_passes_its_checks() -> Finding:
    """``metallab::softshrink`` on the GPU passes opcheck, and keeps the layout of its input.

    All of opcheck but its look at how autograd is registered, which it has for other devices only.
    """
    import torch

    from metallab.pytorch.kernels import rule, softshrink

    x = torch.randn(1, 3, 4, 5).to("mps").to(memory_format=torch.channels_last).requires_grad_()
    passed = torch.library.opcheck(softshrink.softshrink, (x, 0.5), test_utils=OPCHECKS)
    out = softshrink.softshrink(x, 0.1)
    same = rule.same_bits(out, rule.softshrink(x.detach().cpu(), 0.1)) and out.stride() == x.stride()
    fine = same and all(said == "SUCCESS" for said in passed.values())
    return judged(fine, f"opcheck: {passed}; bits and strides: {same}", opcheck=passed)


@trial(on="mac", used_in="notebook 04: Apple's compiler is not the simulation's", seconds=120)
def metal_compiler_takes_our_files() -> Finding:
    """Apple's offline compiler takes softshrink.metal and softmax.metal without an error.

    xcrun metal comes with the whole Xcode; its warnings are kept.
    """
    from metallab import converters
    from metallab.pytorch import kernels

    if not (metal := converters.find_tool("metal")):
        return not_applicable("the metal compiler is not here; it comes with Xcode, not with the command-line tools")
    said, codes = {}, {}
    for name in ("softshrink.metal", "softmax.metal"):
        Path(name).write_text(kernels.source(name))
        ran = subprocess.run(
            [metal, "-Wall", "-c", name, "-o", f"{name}.air"], capture_output=True, text=True, check=False, timeout=50
        )
        said[name], codes[name] = f"{ran.stdout}{ran.stderr}"[:2000], ran.returncode
    return judged(not any(codes.values()), f"exit codes {codes}", said=said)
