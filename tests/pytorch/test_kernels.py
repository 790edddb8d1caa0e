"""Softshrink's kernels: the rule to the last bit on every route, and a reason where a route cannot be had."""

from __future__ import annotations

import ctypes
import functools
import math
import types

import pytest
import torch
import torch.nn.functional as F

from metallab import isolated
from metallab.pytorch import kernels
from metallab.pytorch.kernels import extension, nvrtc, rule, softshrink
from metalsim import clang, shader
from metalsim.shader import compiler

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


EVERY_DTYPE = pytest.mark.parametrize("dtype", [*DTYPES.values(), torch.float64], ids=str)
EVERY_LAMBD = pytest.mark.parametrize("lambd", LAMBDS)


@EVERY_LAMBD
@EVERY_DTYPE
def test_the_rule_is_pytorch_s_for_one_number(dtype, lambd):
    x = numbers(dtype)
    assert rule.same_bits(rule.softshrink(x, lambd), one_by_one(F.softshrink, lambd, x))


@EVERY_LAMBD
@EVERY_DTYPE
def test_the_rule_of_the_gradient_is_pytorch_s_for_one_number(dtype, lambd):
    x, grad = numbers(dtype), numbers(dtype).flip(0)
    passed = one_by_one(torch.ops.aten.softshrink_backward, lambd, grad, x)
    assert rule.same_bits(rule.gradient(grad, x, lambd), passed)


def test_any_nan_is_the_same_as_any_other():
    tensor = torch.tensor
    assert rule.same_bits(tensor([1.0, math.nan]), tensor([2.0, -math.nan]) - tensor([1.0, 0.0]))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(torch.tensor([0.0]), torch.tensor([-0.0]), id="signs of zero"),
        pytest.param(torch.tensor([1.0]), torch.tensor([math.nan]), id="a NaN"),
        pytest.param(torch.tensor([math.nan]), torch.tensor([1.0]), id="a NaN in the first"),
        pytest.param(torch.tensor([1.0]), torch.tensor([1.0]).half(), id="dtypes"),
        pytest.param(
            torch.tensor([1.0]),
            torch.nextafter(torch.tensor([1.0]), torch.tensor([2.0])),
            id="the last bit",
        ),
    ],
)
def test_tensors_whose_bits_differ_are_not_the_same(one, other):
    assert not rule.same_bits(one, other)


# ---- a reader's kernel -----------------------------------------------------------------------------------------------


@pytest.fixture
def judge(monkeypatch):
    """A function that judges a reader's kernel by the outcome of its run: of 0.1 it has to make 0."""
    x, wanted = torch.tensor([0.1, math.inf]), torch.tensor([0.0, math.inf])

    def judge_outcome(how, **fields):
        outcome = isolated.Outcome(how, **fields)
        monkeypatch.setattr(rule.isolated, "run", lambda *_, **__: outcome)
        return rule.gives("text", "kernel", x, {0.5: wanted})

    return judge_outcome


def test_a_kernel_that_gives_what_the_rule_gives_is_right(judge):
    assert judge("ok", results={"outs": [[0.0, math.inf]]}) is True


def test_a_kernel_that_gives_another_sign_of_zero_is_wrong(judge):
    with pytest.raises(AssertionError, match=r"of 0\.1 and λ = 0\.5 it makes -0, not 0"):
        judge("ok", results={"outs": [[-0.0, math.inf]]})


def test_without_a_compiler_a_kernel_is_not_judged(judge):
    missing = judge("raised", reason="SimulationUnavailable: no g++")
    assert isinstance(missing, isolated.Skipped)


def test_a_kernel_that_does_not_compile_is_told_with_the_compilers_words(judge):
    with pytest.raises(kernels.CannotCompile, match="undeclared"):
        judge("raised", reason="SyntaxError: undeclared identifier")


# ---- the operator ----------------------------------------------------------------------------------------------------


def assert_follows_the_rule(x: torch.Tensor, lambd: float) -> None:
    """Value and gradient of the operator, bits and strides."""
    leaf = x.detach().requires_grad_()
    grad = numbers(x.dtype, x.numel()).flip(0).reshape(x.shape).to(x.device)

    out = softshrink.softshrink(leaf, lambd)
    (grad_x,) = torch.autograd.grad(out, leaf, grad)

    assert rule.same_bits(out, rule.softshrink(x, lambd))
    assert out.stride() == F.softshrink(x, lambd).stride()
    assert rule.same_bits(grad_x, rule.gradient(grad, x, lambd))


@pytest.mark.processor
@EVERY_LAMBD
@pytest.mark.parametrize("layout", LAYOUTS)
@EVERY_DTYPE
def test_the_operator_follows_the_rule_on_the_cpu(dtype, layout, lambd):
    assert_follows_the_rule(LAYOUTS[layout](numbers(dtype).reshape(22, 14)), lambd)


@pytest.mark.processor
def test_the_operator_follows_the_rule_on_several_threads():
    assert_follows_the_rule(numbers(torch.float32, 200_001), 0.1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here")
@EVERY_LAMBD
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_the_operator_follows_the_rule_on_an_nvidia_gpu(dtype, layout, lambd):
    assert_follows_the_rule(LAYOUTS[layout](numbers(dtype).reshape(22, 14).cuda()), lambd)


@pytest.fixture
def doubles():
    """A matrix in float64 that requires a gradient, as PyTorch's checks want it."""
    return torch.linspace(-2, 2, 20, dtype=torch.float64).reshape(4, 5).requires_grad_()


def test_pytorch_accepts_the_operator(doubles):
    torch.library.opcheck(softshrink.softshrink, (doubles[:, ::2], 0.5))


def test_pytorch_accepts_the_operator_of_the_gradient(doubles):
    grad = torch.randn(5, 4).t().double()
    torch.library.opcheck(softshrink.softshrink_backward, (grad, doubles, 0.5))


@pytest.mark.parametrize(
    "check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck], ids=["first", "second"]
)
def test_derivatives_of_the_operator_are_those_of_its_values(doubles, check):
    assert check(softshrink.softshrink, (doubles, 0.5))


class Shrink(torch.nn.Module):
    def forward(self, x):
        return softshrink.softshrink(x, 0.1)


def test_values_and_gradients_are_right_inside_a_compiled_model():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Shrink())
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = torch.randn(3, 4)

    expected = torch.nn.Sequential(model[0], torch.nn.Softshrink(0.1))(x)
    (want,) = torch.autograd.grad(expected.sum(), model[0].bias)
    (got,) = torch.autograd.grad(compiled(x).sum(), model[0].bias)

    torch.testing.assert_close(compiled(x), expected)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("dtype", "lambd", "error", "words"),
    [
        pytest.param(torch.float32, -1.0, ValueError, "lambd is", id="below 0"),
        pytest.param(torch.float32, math.nan, ValueError, "lambd is", id="NaN"),
        pytest.param(torch.float16, 7e4, ValueError, "65504", id="beyond float16"),
        pytest.param(torch.int64, 0.5, TypeError, "int64", id="integers"),
    ],
)
def test_what_the_operator_does_not_take_is_refused(dtype, lambd, error, words, device):
    with pytest.raises(error, match=words):
        softshrink.softshrink(torch.ones(2, dtype=dtype, device=device), lambd)


# ---- the Metal text --------------------------------------------------------------------------------------------------


@pytest.fixture
def needs_shaders() -> None:
    try:
        shader.compiler.find_compiler()
    except shader.NoCompiler as error:
        pytest.skip(str(error))


@functools.cache
def compile_text(compiler: str) -> softshrink.MetalRoute:
    """Compile softshrink.metal once with each compiler."""
    return softshrink.MetalRoute(shader.compile_shader(kernels.source("softshrink.metal")))


@pytest.fixture(params=["", "zig"], ids=["compiler found", "ziglang"])
def route(request, monkeypatch):
    """The kernels of softshrink.metal, as a compiler made them."""
    if request.param:
        monkeypatch.setenv("METALSIM_CXX", request.param)
    request.getfixturevalue("needs_shaders")
    return compile_text(request.param)


@pytest.mark.processor
@pytest.mark.parametrize("begin", [0, 1], ids=["aligned", "not aligned"])
@pytest.mark.parametrize("n", [1, 4, 1003])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_the_metal_text_follows_the_rule(route, dtype, n, begin):
    x = numbers(dtype, n + begin)[begin:]
    grad = numbers(dtype, n + begin).flip(0)[begin:]
    out, grad_x = (torch.full((n + begin,), 7.0, dtype=dtype)[begin:] for _ in range(2))

    route.softshrink_forward(out, x, 0.1)
    route.softshrink_backward(grad_x, grad, x, 0.1)

    assert rule.same_bits(out, rule.softshrink(x, 0.1))
    assert rule.same_bits(grad_x, rule.gradient(grad, x, 0.1))


class Noted:
    """A library of kernels that notes which is called, on how many threads."""

    def __init__(self):
        self.called = []

    def __getattr__(self, name):
        return lambda *args, threads: self.called.append((name, threads))


MEMORY = torch.zeros(20)
TAKEN_AT_ONCE = {
    "ten numbers": (MEMORY[:10], MEMORY[10:], [("softshrink_forward_float", 10)]),
    "seven numbers, aligned": (MEMORY[:7], MEMORY[8:15], [("softshrink_forward_vec4_float", 2)]),
    "none": (MEMORY[:0], MEMORY[:0], []),
}
"""The result, the input, and the call that is made of them."""


@pytest.mark.parametrize(("out", "x", "called"), TAKEN_AT_ONCE.values(), ids=TAKEN_AT_ONCE)
def test_four_elements_are_read_at_once_only_where_they_may_be(out, x, called):
    assert MEMORY.data_ptr() % 16 == 0
    library = Noted()
    softshrink.MetalRoute(library).softshrink_forward(out, x, 0.5)
    assert library.called == called


def test_the_gradient_reads_four_elements_at_once_where_all_of_its_tensors_are_aligned():
    library = Noted()
    route = softshrink.MetalRoute(library)
    route.softshrink_backward(MEMORY[4:8], MEMORY[8:12], MEMORY[12:16].half(), 0.5)
    assert library.called == [("softshrink_backward_vec4_float", 1)]


def test_of_no_elements_no_kernel_of_the_gradient_is_called():
    library = Noted()
    softshrink.MetalRoute(library).softshrink_backward(MEMORY[:0], MEMORY[:0], MEMORY[:0], 0.5)
    assert library.called == []


# ---- building --------------------------------------------------------------------------------------------------------


@pytest.fixture
def build(monkeypatch):
    """Building a source without its memory, and without calling a compiler."""
    monkeypatch.setattr("torch.utils.cpp_extension.load", lambda **_: None)
    return extension.load.__wrapped__


def test_where_ninja_is_missing_it_is_named_with_its_command(build, monkeypatch):
    monkeypatch.setattr("torch.utils.cpp_extension.is_ninja_available", lambda: False)
    words = r"softshrink.cpp cannot be built: ninja.*pip install ninja"
    with pytest.raises(extension.CannotBuild, match=words):
        build("softshrink.cpp")


def test_where_the_compiler_is_missing_it_is_named_with_a_command(build, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    words = r"no C\+\+ compiler \(no-such-compiler\)\. `.+`"
    with pytest.raises(extension.CannotBuild, match=words):
        build("softshrink.cpp")


def test_without_an_apple_gpu_the_way_to_the_simulated_one_is_named(build, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(extension.CannotBuild, match=r"Apple GPU.*%%isolated --device mps"):
        build("softshrink.mm")


def test_a_source_that_does_not_compile_is_a_line(monkeypatch, tmp_path):
    (tmp_path / "wrong.cpp").write_text("int f() {\n  return nonsense;\n}\n")
    monkeypatch.setattr(extension.kernels, "FOLDER", tmp_path)
    monkeypatch.setattr(extension.paths, "BUILD", tmp_path)

    words = r"wrong.cpp cannot be built.*wrong.cpp:2.*error:.*nonsense"
    with pytest.raises(extension.CannotBuild, match=words):
        extension.load("wrong.cpp")


@pytest.fixture
def find_folder(monkeypatch, tmp_path):
    """Return a function that names the folder that softshrink.cpp is built in; nothing is compiled.

    It is given what the compiler says of its version, and which instructions PyTorch uses on this CPU.
    """
    command, folders = tmp_path / "c++", []
    monkeypatch.setenv("CXX", str(command))
    monkeypatch.setattr(extension.paths, "BUILD", tmp_path)

    def note(*, build_directory, **_options):
        folders.append(build_directory)

    monkeypatch.setattr("torch.utils.cpp_extension.load", note)

    def find(version="g++ 12", capability="AVX2"):
        command.write_text(f"#!/bin/sh\necho '{version}'\n")
        command.chmod(0o755)
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
        # past the cache, so that each call chooses a folder anew
        extension.load.__wrapped__("softshrink.cpp")
        return folders[-1]

    return find


def test_by_the_same_compiler_for_the_same_processor_a_source_is_not_built_anew(find_folder):
    assert find_folder() == find_folder()


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"version": "g++ 13"}, id="version of the compiler"),
        pytest.param({"capability": "AVX512"}, id="flags"),
    ],
)
def test_by_another_compiler_or_with_other_flags_a_source_is_built_anew(find_folder, changed):
    assert find_folder(**changed) != find_folder()


def test_by_another_compiler_of_the_simulated_gpu_objective_cpp_is_built_anew(monkeypatch):
    monkeypatch.setattr(extension.simulation, "running", lambda: True)

    def name_folder(identity):
        chosen = clang.Compiler(("clang++",), "clang", identity)
        monkeypatch.setattr(compiler, "find_compiler", lambda: chosen)
        return extension._folder("softshrink.mm", [])

    assert name_folder("clang 19") != name_folder("clang 20")


# ---- Metal on NVIDIA -------------------------------------------------------------------------------------------------


@pytest.fixture
def needs_nvrtc() -> None:
    try:
        nvrtc._bindings("nvrtc")
        nvrtc._headers()
    except nvrtc.NoNvidiaCompiler as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("needs_nvrtc")
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90"])
def test_the_metal_text_compiles_for_nvidia(architecture):
    text = kernels.source("softshrink.metal")
    expected = [kernel.name for kernel in shader.compiler.msl.find_kernels(text)]

    code, names = nvrtc.compile_cuda(nvrtc.translate(text), architecture)

    assert code.startswith(b"\x7fELF")
    assert sorted(names) == sorted(expected)
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


def test_an_instantiation_has_its_host_name_and_its_expression():
    (scale,) = nvrtc.translate(KERNEL).entries
    assert scale.name == "scale_half"
    assert scale.expression == "scale<half>"


def test_a_kernel_s_parameters_are_understood_in_the_order_of_their_buffers():
    (scale,) = nvrtc.translate(KERNEL).entries
    assert [(p.name, p.scalar, p.is_memory) for p in scale.parameters] == [
        ("out", "half", True),
        ("by", "float", False),
        ("x", "half", True),
        ("n", "uint", False),
    ]


def test_a_comment_that_is_left_out_joins_no_words():
    translated = nvrtc.translate(f"{KERNEL}kernel void k(device/* of x */float* x) {{}}\n")
    assert ("k", "float") in [(each.name, each.parameters[0].scalar) for each in translated.entries]


def test_an_instantiation_that_is_left_out_keeps_its_lines():
    on_two_lines = KERNEL.replace(" decltype", "\ndecltype")
    translated = nvrtc.translate(f"{on_two_lines}kernel void k(device float* x) {{}}\nhere")
    text = translated.code.partition(f'#line 1 "{nvrtc.PROGRAM}"\n')[2]
    assert text.partition("here")[0].count("\n") == KERNEL.count("\n") + 2


@pytest.mark.usefixtures("needs_nvrtc")
def test_an_error_keeps_its_line():
    text = f"// one line\n/* and\ntwo */{KERNEL}kernel void k(device float* x) {{\n  x[0] = nonsense;\n}}"
    with pytest.raises(SyntaxError, match="nonsense") as caught:
        nvrtc.compile_cuda(nvrtc.translate(text), "sm_90")
    assert caught.value.lineno == text[: text.index("nonsense")].count("\n") + 1


NOT_UNDERSTOOD = {
    "no kernel": ("", "no kernel"),
    "a texture": ("kernel void k(texture2d<float> x) {}", "not understood"),
    "a place in a quad": (
        "\nkernel void k(device float* x, uint i [[thread_index_in_quadgroup]]) {}",
        "2: .*is not translated to CUDA",
    ),
    "a place of another type": (
        "kernel void k(device float* x, uint3 p [[thread_position_in_grid]]) {}",
        "is not translated to CUDA",
    ),
    "a place in a SIMD-group, on its line behind a header": (
        "#include <metal_stdlib>\n#line 1\n\nkernel void k(\n"
        "device float* x, uint lane [[thread_index_in_simdgroup]]) {}",
        "program_source:3: .*uint lane",
    ),
    "a reference to device memory": (
        "kernel void k(device float& x) {}",
        "is not translated to CUDA",
    ),
    "a kernel of a macro": (
        "#define K kernel void k(device float* x) {}\nK",
        "write kernels and instantiations out",
    ),
    "buffers from 1 on": (
        "kernel void k(device float* x [[buffer(1)]]) {}",
        "number them from 0",
    ),
}


@pytest.mark.parametrize(("text", "words"), NOT_UNDERSTOOD.values(), ids=NOT_UNDERSTOOD)
def test_what_is_not_understood_is_refused(text, words):
    with pytest.raises(SyntaxError, match=words):
        nvrtc.translate(text)


class Launched:
    """The kernel `scale` of KERNEL, whose launches are noted, with tensors that it takes; the CPU stands for a GPU."""

    def __init__(self):
        (scale,) = nvrtc.translate(KERNEL).entries
        self.launches = []
        self.run = nvrtc.Kernel(scale, torch.device("cpu"), lambda *how: self.launches.append(how))
        self.out, self.x = (torch.zeros(600, dtype=torch.half) for _ in range(2))


@pytest.fixture
def launched(monkeypatch):
    stream = types.SimpleNamespace(cuda_stream=5)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    return Launched()


@pytest.mark.parametrize(
    ("settings", "grid", "group", "threads"),
    [
        pytest.param({}, (3, 1, 1), (256, 1, 1), (600, 1), id="one for each element"),
        pytest.param({"threads": 10}, (1, 1, 1), (256, 1, 1), (10, 1), id="some"),
        pytest.param(
            {"threads": (9, 12), "group_size": (8, 4)}, (2, 3, 1), (8, 4, 1), (9, 12), id="a grid"
        ),
    ],
)
def test_a_call_is_a_launch(launched, settings, grid, group, threads):
    launched.run(launched.out, 2.0, launched.x, 7, **settings)

    pointer, word, number = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_float
    types_given = (pointer, number, pointer, word, word, word)
    given = (launched.out.data_ptr(), 2.0, launched.x.data_ptr(), 7, *threads)
    assert launched.launches == [(*grid, *group, 0, 5, (given, types_given), 0)]


def test_a_call_of_no_threads_launches_nothing(launched):
    launched.run(launched.out, 2.0, launched.x, 7, threads=0)
    assert launched.launches == []


X = torch.zeros(600, dtype=torch.half)
WRONG_ARGUMENTS = {
    "an integer for a float": (2, X, 7),
    "a float for an integer": (2.0, X, 7.0),
    "another dtype": (2.0, X.float(), 7),
    "a view with gaps": (2.0, X[::2], 7),
    "one too few": (2.0, X),
}


@pytest.mark.parametrize("arguments", WRONG_ARGUMENTS.values(), ids=WRONG_ARGUMENTS)
def test_a_call_with_wrong_arguments_launches_nothing(launched, arguments):
    with pytest.raises(TypeError):
        launched.run(launched.out, *arguments)
    assert launched.launches == []


def test_a_kernel_whose_first_argument_is_a_number_wants_to_know_how_many_threads():
    (entry,) = nvrtc.translate("kernel void k(constant float& by, device float* x) {}").entries
    run = nvrtc.Kernel(entry, torch.device("cpu"), lambda *how: None)
    with pytest.raises(TypeError, match="say how many threads"):
        run(2.0, torch.zeros(4))
