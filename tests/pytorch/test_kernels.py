"""Softshrink's kernels: the rule to the last bit on every route, and a reason where a route cannot be had."""

from __future__ import annotations

import ctypes
import math

import pytest
import torch
import torch.nn.functional as F

from metallab import isolated
from metallab.pytorch import kernels
from metallab.pytorch.kernels import extension, nvrtc, rule, softshrink
from metalsim import shader

DTYPES = {"float": torch.float32, "half": torch.float16, "bfloat": torch.bfloat16}
LAMBDS = (0.5, 0.1, 0.0)  # 0.1 is another number in each dtype
LAYOUTS = {
    "contiguous": lambda x: x, "transposed": lambda x: x.t(), "every other column": lambda x: x[:, ::2],
    "begins in the middle": lambda x: x.flatten()[1:], "expanded": lambda x: x[:, :1].expand(22, 7),
    "channels last": lambda x: x.reshape(1, 22, 7, 2).to(memory_format=torch.channels_last),
    "one number": lambda x: x[0, 0], "nothing": lambda x: x[:0],
}  # fmt: skip


def numbers(dtype: torch.dtype, n: int = 22 * 14) -> torch.Tensor:
    """All special numbers, then random ones that are not subnormal, which a GPU may take for zero."""
    x = torch.randn(n, generator=torch.Generator().manual_seed(n))
    x[: len(rule.SPECIAL)] = torch.tensor(rule.SPECIAL)[:n]
    return torch.where(x.abs() < 1e-4, 0.0, x).to(dtype)


def one_by_one(function, lambd: float, *tensors: torch.Tensor) -> torch.Tensor:
    return torch.cat(
        [function(*given, lambd) for given in zip(*(t.split(1) for t in tensors), strict=True)]
    )


# ---- the rule --------------------------------------------------------------------------------------------------------


def test_the_rule_is_pytorch_s_for_one_number():
    for dtype in (*DTYPES.values(), torch.float64):
        x, grad = numbers(dtype), numbers(dtype).flip(0)
        for lambd in LAMBDS:
            assert rule.same_bits(rule.softshrink(x, lambd), one_by_one(F.softshrink, lambd, x))
            passed = one_by_one(torch.ops.aten.softshrink_backward, lambd, grad, x)
            assert rule.same_bits(rule.gradient(grad, x, lambd), passed)


def test_bits_are_compared():
    tensor = torch.tensor
    assert rule.same_bits(tensor([1.0, math.nan]), tensor([2.0, -math.nan]) - tensor([1.0, 0.0]))
    assert not rule.same_bits(tensor([0.0]), tensor([-0.0]))
    assert not rule.same_bits(tensor([1.0]), tensor([math.nan]))
    assert not rule.same_bits(tensor([math.nan]), tensor([1.0]))
    assert not rule.same_bits(tensor([1.0]), tensor([1.0]).half())
    assert not rule.same_bits(tensor([1.0]), torch.nextafter(tensor([1.0]), tensor([2.0])))


# ---- a reader's kernel -----------------------------------------------------------------------------------------------


def test_an_answer_is_right_wrong_or_not_judged(monkeypatch):
    outcome = lambda *given, **results: isolated.Outcome(*given, results=results)
    x, wanted = torch.tensor([0.1, math.inf]), torch.tensor([0.0, math.inf])

    def given(made):
        monkeypatch.setattr(rule.isolated, "run", lambda *_, **__: made)
        return rule.gives("text", "kernel", x, {0.5: wanted})

    assert given(outcome("ok", outs=[[0.0, math.inf]])) is True
    with pytest.raises(AssertionError, match=r"of 0\.1 and λ = 0\.5 it makes -0, not 0"):
        given(outcome("ok", outs=[[-0.0, math.inf]]))
    missing = given(isolated.Outcome("raised", reason="SimulationUnavailable: no g++"))
    assert isinstance(missing, isolated.Skipped)
    with pytest.raises(kernels.CannotCompile, match="undeclared"):
        given(isolated.Outcome("raised", reason="SyntaxError: undeclared identifier"))


# ---- the operator ----------------------------------------------------------------------------------------------------


def assert_follows_the_rule(x: torch.Tensor, lambd: float) -> None:
    """Value and gradient of the operator, bits and strides."""
    leaf, grad = (
        x.detach().requires_grad_(),
        numbers(x.dtype, x.numel()).flip(0).reshape(x.shape).to(x.device),
    )
    out = softshrink.softshrink(leaf, lambd)
    assert rule.same_bits(out, rule.softshrink(x, lambd))
    assert out.stride() == F.softshrink(x, lambd).stride()
    (grad_x,) = torch.autograd.grad(out, leaf, grad)
    assert rule.same_bits(grad_x, rule.gradient(grad, x, lambd))


@pytest.mark.processor
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [*DTYPES.values(), torch.float64], ids=str)
def test_on_the_cpu(dtype, layout):
    x = LAYOUTS[layout](numbers(dtype).reshape(22, 14))
    for lambd in LAMBDS:
        assert_follows_the_rule(x, lambd)


@pytest.mark.processor
def test_on_the_cpu_with_several_threads():
    assert_follows_the_rule(numbers(torch.float32, 200_001), 0.1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_on_an_nvidia_gpu(dtype, layout):
    x = LAYOUTS[layout](numbers(dtype).reshape(22, 14).cuda())
    for lambd in LAMBDS:
        assert_follows_the_rule(x, lambd)


def test_pytorch_accepts_the_operator():
    x = torch.linspace(-2, 2, 20, dtype=torch.float64).reshape(4, 5).requires_grad_()
    torch.library.opcheck(softshrink.softshrink, (x[:, ::2], 0.5))
    torch.library.opcheck(softshrink.softshrink_backward, (torch.randn(5, 4).t().double(), x, 0.5))
    assert torch.autograd.gradcheck(softshrink.softshrink, (x, 0.5))
    assert torch.autograd.gradgradcheck(softshrink.softshrink, (x, 0.5))


class Shrink(torch.nn.Module):
    def forward(self, x):
        return softshrink.softshrink(x, 0.1)


def test_inside_a_compiled_model():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Shrink())
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = torch.randn(3, 4)
    expected = torch.nn.Sequential(model[0], torch.nn.Softshrink(0.1))(x)
    (want,) = torch.autograd.grad(expected.sum(), model[0].bias)
    (got,) = torch.autograd.grad(compiled(x).sum(), model[0].bias)
    torch.testing.assert_close(compiled(x), expected)
    torch.testing.assert_close(got, want)


def test_what_the_operator_refuses():
    for x in (torch.ones(2), torch.ones(2, device="meta")):
        for lambd in (-1.0, math.nan):
            with pytest.raises(ValueError, match="lambd is"):
                softshrink.softshrink(x, lambd)
        with pytest.raises(ValueError, match="65504"):
            softshrink.softshrink(x.half(), 7e4)
        with pytest.raises(TypeError, match="int64"):
            softshrink.softshrink(x.long(), 0.5)


# ---- the Metal text --------------------------------------------------------------------------------------------------


def needs_shaders() -> None:
    try:
        shader.compiler.find_compiler()
    except shader.NoCompiler as error:
        pytest.skip(str(error))


def assert_text_follows_the_rule(text: str) -> None:
    """All kernels of a text like softshrink.metal, on memory that is and that is not aligned, with every tail."""
    route = softshrink.MetalRoute(shader.compile_shader(text))
    for dtype in DTYPES.values():
        for n in (1, 4, 1003):
            for begin in (0, 1):
                x, grad = (
                    numbers(dtype, n + begin)[begin:],
                    numbers(dtype, n + begin).flip(0)[begin:],
                )
                out = torch.full((n + begin,), 7.0, dtype=dtype)[begin:]
                route.softshrink_forward(out, x, 0.1)
                assert rule.same_bits(out, rule.softshrink(x, 0.1))
                route.softshrink_backward(out, grad, x, 0.1)
                assert rule.same_bits(out, rule.gradient(grad, x, 0.1))


@pytest.mark.processor
@pytest.mark.parametrize("asked", ["", "zig"], ids=["compiler found", "ziglang"])
def test_the_metal_text_follows_the_rule(asked, monkeypatch):
    if asked:
        monkeypatch.setenv("METALSIM_CXX", asked)
    needs_shaders()
    assert_text_follows_the_rule(kernels.source("softshrink.metal"))


def test_four_elements_are_read_at_once_only_where_they_may_be():
    called = []

    class Library:
        def __getattr__(self, name):
            return lambda *args, threads: called.append((name, threads))

    route, memory = softshrink.MetalRoute(Library()), torch.zeros(20)
    assert memory.data_ptr() % 16 == 0
    route.softshrink_forward(memory[:10], memory[10:], 0.5)
    route.softshrink_forward(memory[:7], memory[8:15], 0.5)
    route.softshrink_backward(memory[4:8], memory[8:12], memory[12:16].half(), 0.5)
    route.softshrink_backward(memory[:0], memory[:0], memory[:0], 0.5)
    assert called == [
        ("softshrink_forward_float", 10),
        ("softshrink_forward_vec4_float", 2),
        ("softshrink_backward_vec4_float", 1),
    ]


# ---- building --------------------------------------------------------------------------------------------------------


def test_what_is_missing_is_told(monkeypatch):
    from torch.utils import cpp_extension

    load = extension.load.__wrapped__  # without its memory
    monkeypatch.setattr(cpp_extension, "load", lambda **_: None)
    with monkeypatch.context() as patch:
        patch.setattr(cpp_extension, "is_ninja_available", lambda: False)
        with pytest.raises(
            extension.CannotBuild, match=r"softshrink.cpp cannot be built: ninja.*pip install ninja"
        ):
            load("softshrink.cpp")
    with monkeypatch.context() as patch:
        patch.setenv("CXX", "no-such-compiler -m64")
        with pytest.raises(
            extension.CannotBuild, match=r"no C\+\+ compiler \(no-such-compiler\)\. `.+`"
        ):
            load("softshrink.cpp")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(extension.CannotBuild, match=r"Apple GPU.*%%isolated --device mps"):
        load("softshrink.mm")


def test_a_source_that_does_not_compile_is_a_line(monkeypatch, tmp_path):
    (tmp_path / "wrong.cpp").write_text("int f() {\n  return nonsense;\n}\n")
    monkeypatch.setattr(extension.kernels, "FOLDER", tmp_path)
    monkeypatch.setattr(extension.paths, "BUILD", tmp_path)
    with pytest.raises(
        extension.CannotBuild, match=r"wrong.cpp cannot be built.*wrong.cpp:2.*error:.*nonsense"
    ):
        extension.load("wrong.cpp")


# ---- Metal on NVIDIA -------------------------------------------------------------------------------------------------


def needs_nvrtc() -> None:
    try:
        nvrtc._bindings("nvrtc")
        nvrtc._headers()
    except nvrtc.NoNvidiaCompiler as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("architecture", ["sm_75", "sm_90"])
def test_the_metal_text_compiles_for_nvidia(architecture):
    name = "softshrink.metal"
    needs_nvrtc()
    translated = nvrtc.translate(kernels.source(name))
    code, names = nvrtc.compile_cuda(translated, architecture)
    assert code.startswith(b"\x7fELF")
    assert sorted(names) == sorted(
        kernel.name for kernel in shader.compiler.msl.find_kernels(kernels.source(name))
    )
    assert all(lowered.encode() in code for lowered in names.values())


KERNEL = """
#include <metal_stdlib>
using namespace metal;
template <typename T>
kernel void scale(device T* out [[buffer(0)]], device const T* x [[buffer(2)]], constant float& by [[buffer(1)]],
                  constant uint& n, uint at [[thread_position_in_grid]]) {
  out[at] = T(by * float(x[at]));
}
template [[host_name("scale_half")]] [[kernel]] decltype(scale<half>) scale<half>;
"""


def test_a_kernel_s_parameters_are_understood():
    (scale,) = nvrtc.translate(KERNEL).entries
    assert (scale.name, scale.expression) == ("scale_half", "scale<half>")
    assert [(p.name, p.scalar, p.is_memory) for p in scale.parameters] == [
        ("out", "half", True),
        ("by", "float", False),
        ("x", "half", True),
        ("n", "uint", False),
    ]


def test_what_is_left_out_joins_no_words_and_keeps_lines():
    end = "device/* of x */float* x) {}\n"
    translated = nvrtc.translate(
        f"{KERNEL.replace(' decltype', chr(10) + 'decltype')}kernel void k({end}here"
    )
    assert ("k", "float") in [(each.name, each.parameters[0].scalar) for each in translated.entries]
    after = translated.code.partition(f'#line 1 "{nvrtc.PROGRAM}"\n')[2]
    assert after.partition("here")[0].count("\n") == KERNEL.count("\n") + 2


def test_an_error_keeps_its_line():
    needs_nvrtc()
    text = f"// one line\n/* and\ntwo */{KERNEL}kernel void k(device float* x) {{\n  x[0] = nonsense;\n}}"
    with pytest.raises(SyntaxError, match="nonsense") as caught:
        nvrtc.compile_cuda(nvrtc.translate(text), "sm_90")
    assert caught.value.lineno == text[: text.index("nonsense")].count("\n") + 1


def test_what_is_not_understood_is_refused():
    for text, message in {
        "": "no kernel",
        "kernel void k(texture2d<float> x) {}": "not understood",
        "\nkernel void k(device float* x, uint i [[thread_index_in_quadgroup]]) {}": "2: .*cannot be had",
        "kernel void k(device float* x, uint3 p [[thread_position_in_grid]]) {}": "cannot be had",
        "kernel void k(device float& x) {}": "cannot be had",
        "#define K kernel void k(device float* x) {}\nK": "write kernels and instantiations out",
        "kernel void k(device float* x [[buffer(1)]]) {}": "number them from 0",
    }.items():
        with pytest.raises(SyntaxError, match=message):
            nvrtc.translate(text)


def test_a_call_is_a_launch(monkeypatch):
    launched = []
    (scale,) = nvrtc.translate(KERNEL).entries
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda device: type("Stream", (), {"cuda_stream": 5})
    )
    here = torch.device("cpu")  # stands for the GPU
    run = nvrtc.Kernel(scale, here, lambda *how: launched.append(how))
    out, x = (torch.zeros(600, dtype=torch.half) for _ in range(2))
    run(out, 2.0, x, 7)
    run(out, 2.0, x, 7, threads=10)
    run(out, 2.0, x, 7, threads=0)
    run(out, 2.0, x, 7, threads=(9, 12), group_size=(8, 4))
    pointer, word, number = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_float
    types = (pointer, number, pointer, word, word, word)
    start = (out.data_ptr(), 2.0, x.data_ptr(), 7)
    assert launched == [
        (3, 1, 1, 256, 1, 1, 0, 5, ((*start, 600, 1), types), 0),
        (1, 1, 1, 256, 1, 1, 0, 5, ((*start, 10, 1), types), 0),
        (2, 3, 1, 8, 4, 1, 0, 5, ((*start, 9, 12), types), 0),
    ]
    for by, memory, *n in (
        (2, x, 7),
        (2.0, x, 7.0),
        (2.0, x.float(), 7),
        (2.0, x[::2], 7),
        (2.0, x),
    ):
        with pytest.raises(TypeError):
            run(out, by, memory, *n)
    (entry,) = nvrtc.translate("kernel void k(constant float& by, device float* x) {}").entries
    with pytest.raises(TypeError, match="say how many threads"):
        nvrtc.Kernel(entry, here, lambda *how: None)(2.0, torch.zeros(4))
