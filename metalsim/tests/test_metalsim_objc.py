"""Objective-C++ on the simulated device: softshrink.mm is right, and what is wrong with broken copies of it is told.

As in test_metalsim_device.py the checks run in children (children.py). A session builds one extension; what is built
is kept. The broken copies of softshrink.mm are one extension: torch's headers are read once for all of them.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CHILD = __name__ == "__main__"

import pytest  # noqa: E402

# arms the simulation in a child, before torch; on Python 3.10 there is no metallab
pytest.importorskip("metallab", exc_type=ImportError)

import children  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import training  # noqa: E402
from releases import since  # noqa: E402

from metallab.pytorch import kernels  # noqa: E402
from metallab.pytorch.kernels import extension as page_sources  # noqa: E402
from metalsim import SimulationError, building, clang, objc, preload  # noqa: E402
from metalsim_objc import extension, toolchain  # noqa: E402

HOST = kernels.source("softshrink.mm")
OLD: torch.Tensor | None = None
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


in_softshrink, in_program = (
    children.Session(lambda: child("softshrink")),
    children.Session(lambda: child("program")),
)


# ---- in the child: the extension as it is ----------------------------------------------------------------------------


def built(name: str, *sources: Path, flags: Sequence[str] = (), **options: Any) -> Any:
    """An extension, in a folder of metalsim's cache, with the flags that a Mac user writes.

    Each PyTorch has a folder of its own: 2.15 leaves its lock behind, and 2.11 would wait until somebody deletes it. So
    has each compiler, since ninja asks for the flags and the headers alone.
    """
    from torch.utils import cpp_extension

    versions = f"{torch.__version__} {sys.version} {toolchain.find().identity}".encode()
    key = hashlib.sha256(b"\0".join([versions, *(source.read_bytes() for source in sources)]))
    folder = building.cache() / "extensions" / f"{name}-{key.hexdigest()[:16]}"
    with building.seal(folder):
        return cpp_extension.load(
            name=name,
            sources=[str(source) for source in sources],
            extra_cflags=["-std=c++20", *flags],
            extra_ldflags=["-framework", "Metal", "-framework Foundation"],
            build_directory=str(folder),
            **options,
        )


@functools.cache
def softshrink() -> Any:
    """softshrink.mm as the pages load it, with the kernels of softshrink.metal."""
    module = page_sources.load("softshrink.mm")
    with pytest.raises(RuntimeError, match=r"compile\(source\) has to come first"):
        module.forward(torch.ones(3, device="mps"), 0.5)
    module.compile(kernels.source("softshrink.metal"))
    return module


def forward(x: torch.Tensor, lambd: float = 0.5) -> torch.Tensor:
    return softshrink().forward(x, lambd)


def agrees(x: torch.Tensor, lambd: float = 0.5) -> bool:
    """Forward and backward of a device tensor are what PyTorch computes on the CPU."""
    there = x.cpu().requires_grad_()
    expected = F.softshrink(there, lambd)
    grad = torch.randn(x.shape).to(x.dtype)
    (wanted,) = torch.autograd.grad(expected, there, grad)

    y, grad_x = forward(x, lambd), softshrink().backward(grad.to("mps"), x, lambd)

    assert y.shape == x.shape
    assert y.dtype == x.dtype
    assert y.device == x.device
    return torch.equal(y.cpu(), expected) and torch.equal(grad_x.cpu(), wanted)


EVERY_DTYPE = {str(dtype): dtype for dtype in DTYPES}
EVERY_LENGTH = {
    f"{count} of {dtype}": (count, dtype) for dtype in DTYPES for count in (1, 31, 1000, 5001)
}


@since("2.14", "rounding of lambd by PyTorch's own softshrink")
@in_softshrink.cases(EVERY_LENGTH)
def test_values_and_gradients_are_pytorchs_for_every_length(case):
    count, dtype = case
    assert agrees(torch.randn(count, device="mps").to(dtype))


@since("2.14", "rounding of lambd by PyTorch's own softshrink")
@in_softshrink.cases(EVERY_DTYPE)
def test_lambd_is_rounded_to_the_dtype(dtype):
    assert agrees(torch.randn(7, 11, 13, device="mps").to(dtype), 0.1)


@in_softshrink.cases({"a row": (0,), "rows": (3, 0), "a number": ()})
def test_values_and_gradients_are_pytorchs_of_nothing_and_of_one_number(shape):
    assert agrees(torch.randn(shape, device="mps"))


SPECIAL = (float("nan"), float("inf"), -float("inf"), -0.0, 0.0, -0.3, 0.5)


@in_softshrink
def test_nan_infinity_and_the_sign_of_zero_are_kept():
    x = torch.tensor(SPECIAL)
    y = forward(x.to("mps")).cpu()
    # one by one: for long tensors PyTorch's vector instructions lose the sign of zero
    expected = torch.stack([F.softshrink(one) for one in x])
    assert y[0].isnan()
    assert torch.equal(y[1:].view(torch.int32), expected[1:].view(torch.int32))


@in_softshrink
def test_the_gradient_at_nan_and_at_infinity_is_passed_on():
    x, grad = torch.tensor(SPECIAL, device="mps"), torch.ones(7, device="mps")
    assert softshrink().backward(grad, x, 0.5).tolist() == [1, 1, 1, 0, 0, 0, 0]


LAYOUTS = {
    "a slice": lambda b: b[1000:4000],
    "all but the first": lambda b: b[1:],
    "every other one": lambda b: b[::2],
    "transposed": lambda b: b.view(60, 100).t(),
    "a column": lambda b: b.view(60, 100)[:, 3],
    "expanded": lambda b: b[:9].expand(4, 9),
}


@in_softshrink.cases(
    {f"{name} of {dtype}": (layout, dtype) for dtype in DTYPES for name, layout in LAYOUTS.items()}
)
def test_values_and_gradients_are_pytorchs_in_every_layout(case):
    layout, dtype = case
    assert agrees(layout(torch.randn(6000, device="mps").to(dtype)))


@in_softshrink
def test_a_minus_sign_that_is_not_in_memory_is_kept():
    x = torch.randn(9, device="mps")
    put_off = torch.complex(x, x).conj().imag
    assert put_off.is_neg()
    assert agrees(put_off)


def ones(count: int = 3) -> torch.Tensor:
    return torch.ones(count, device="mps")


NOT_TAKEN = {
    "a tensor of the CPU": (lambda: forward(torch.ones(3)), "x is on cpu; move it to mps"),
    "integers": (
        lambda: forward(ones().int()),
        "there are kernels for float32, float16 and bfloat16, not for Int",
    ),
    "a gradient of another shape": (
        lambda: softshrink().backward(ones(2), ones(3), 0.5),
        r"grad is \[2\] and x is \[3\]",
    ),
    "a text that does not compile": (
        lambda: softshrink().compile("kernel void f() {\n  int i = 1\n}"),
        "does not compile: program_source:2:12: error: e",
    ),
}


@in_softshrink.cases(NOT_TAKEN)
def test_what_it_does_not_take_is_told_and_changes_nothing(case):
    call, words = case
    with pytest.raises(RuntimeError, match=words):
        call()
    assert agrees(ones())


@in_softshrink
def test_its_work_and_pytorchs_keep_their_order():
    x = torch.arange(-4.0, 4, device="mps")
    x.mul_(2)
    y = softshrink().forward(x, 1.0)
    x.zero_()
    y.add_(100)
    assert y.tolist() == [93, 95, 97, 99, 100, 101, 103, 105]


class Softshrink(torch.autograd.Function):
    """The extension under autograd."""

    @staticmethod
    def forward(context, x, lambd):
        context.save_for_backward(x)
        context.lambd = lambd
        return softshrink().forward(x, lambd)

    @staticmethod
    def backward(context, grad):
        return softshrink().backward(grad, *context.saved_tensors, context.lambd), None


def curve(shrink: Callable) -> list[float]:
    """Return losses of a small network in training, between whose layers the activation `shrink(x, lambd)` stands."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(*sizes).to("mps") for sizes in ((16, 32), (32, 32), (32, 4))]
    optimiser = torch.optim.SGD([p for layer in layers for p in layer.parameters()], 0.1)
    x, y = torch.randn(64, 16, device="mps"), torch.randint(4, (64,), device="mps")

    def loss() -> torch.Tensor:
        return F.cross_entropy(layers[2](shrink(layers[1](shrink(layers[0](x), 0.1)), 0.1)), y)

    return training.losses(loss, optimiser, 10)


@in_softshrink
def test_a_network_trains_with_it():
    losses = curve(Softshrink.apply)
    assert losses == curve(F.softshrink)
    assert losses[-1] < losses[0]


@in_softshrink
def test_nothing_is_built_twice():
    """Nor by the next process, which finds the library and leaves it as it is.

    What has been built in a process torch remembers in a versioner. With a new one, and past the cache of `load`, this
    process is like the next.
    """
    from torch.utils import cpp_extension

    library = Path(softshrink().__file__)
    before = library.stat().st_mtime_ns

    cpp_extension.JIT_EXTENSION_VERSIONER = type(cpp_extension.JIT_EXTENSION_VERSIONER)()
    again = page_sources.load.__wrapped__("softshrink.mm")
    assert again.__file__ == str(library)
    assert library.stat().st_mtime_ns == before


# ---- in the child: a Metal program without PyTorch -------------------------------------------------------------------


@functools.cache
def program() -> Any:
    """tests/objective_c/program.mm, with a function that calls one of its functions."""
    import ctypes

    loaded = ctypes.CDLL(
        built("metal_program", HERE / "objective_c/program.mm", is_python_module=False)
    )

    def call(function: str) -> str:
        getattr(loaded, function).restype = ctypes.c_char_p
        return getattr(loaded, function)().decode()

    return call


@in_program
def test_a_program_with_its_own_queue_runs():
    printed = program()("doubles")
    assert printed == "well", printed


@in_program
def test_libraries_and_pipelines_say_what_they_are():
    printed = program()("says_what_is_there")
    assert re.match(
        r"(twice,narrow|narrow,twice),2 64 32 program_source:1:\d+: error: ", printed
    ), printed


REFUSED_BY_METAL = {
    "waits_for_nothing": "it was not committed",
    "commits_twice": "commit an already committed",
    "binds_too_much": r"length\(5000\) must be 1 to 4096",
    "binds_beyond_the_end": r"offset\(16\) must be < the buffer's length, 16",
    "commits_in_a_handler": "left the block: .*commit an already committed",
    "has_too_many_threads": "65 threads, must be <= 64",
    "has_no_threads": "must not have a 0",
    "asks_for_too_long_a_buffer": "a buffer of 8589934591 bytes",
}
"""Functions of the program, and what Metal says of what they do."""


@in_program.cases({function: function for function in REFUSED_BY_METAL})
def test_what_metal_refuses_is_told(function):
    printed = program()(function)
    assert re.search(REFUSED_BY_METAL[function], printed), printed


@in_program
def test_a_program_has_classes_and_categories_of_its_own():
    """Superclasses, properties and +initialize work; a message that nobody understands raises, a Mac ends."""
    printed = program()("has_classes")
    assert printed.startswith("2 2 1 2 3 named -[Derived commit]: unrecognized selector"), printed


@in_program.cases(
    {
        "a good one": ("statuses_of_a_good_one", "01444"),
        "a bad one": ("statuses_of_a_bad_one", "0155!5"),
    }
)
def test_handlers_and_who_asks_see_the_status(case):
    """Not enqueued 0, enqueued 1, completed 4 or error 5; what fails raises behind the handlers."""
    function, statuses = case
    assert program()(function) == statuses


# ---- broken copies of softshrink.mm ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bug:
    """A change of softshrink.mm, and what a user sees of it here."""

    old: str
    new: str
    symptom: str
    """A regular expression: an error's first line, ``wrong values``, or ``right``."""
    on_a_mac: str


LAYER = "MTL_DEBUG_LAYER=1 tells; without it anything may happen"
END = "      [encoder endEncoding];\n"
COMMIT = "      torch::mps::commit();"
BUGS = {
    "none": Bug("", "", "right", "right"),
    "encoding is not ended": Bug(
        END, "", "commit.*failed assertion `commit command buffer with uncommitted encoder'", "the process ends",
    ),
    "the offset counts elements": Bug(
        "tensor.storage_offset() * tensor.element_size()", "tensor.storage_offset()", "wrong values", "wrong values",
    ),
    "lambd is not bound": Bug(
        "      [encoder setBytes:&lambd length:sizeof(lambd) atIndex:index];\n", "", r"buffer\(2\) is not bound",
        LAYER,
    ),
    "the storage of a CPU tensor": Bug("{out, in}", "{out, in.cpu()}", "that is no MTLBuffer", "a crash"),
    "a group of too many threads": Bug(
        "std::min(threads, state.maxTotalThreadsPerThreadgroup)", "threads", "3000 threads, must be <= 1024",
        "MTL_DEBUG_LAYER=1 tells; without it the kernel does not run",
    ),
    "no commit": Bug(COMMIT, "", "right", "right: PyTorch commits, when it next waits for the GPU"),
    "committed behind PyTorch's back": Bug(
        COMMIT, "      [commands commit];", "failed assertion `_status < MTLCommandBufferStatusCommitted'",
        "the process ends, at PyTorch's next operator",
    ),
    "an exception leaves the block": Bug(
        END, END + '      TORCH_CHECK(false, "no");\n', "a C\\+\\+ exception left the block: no", "the process ends",
    ),
    "an operator of PyTorch inside the block": Bug(
        END, END + "      tensors[0].clone();\n", "an operator of PyTorch inside the block", "the process ends",
    ),
    "the queue is entered twice": Bug(
        END, END + "      dispatch_sync(torch::mps::get_dispatch_queue(), ^{});\n",
        "dispatch_sync called on queue already owned by current thread", "the process ends",
    ),
    "commit outside of the block": Bug(
        COMMIT, "    }); torch::mps::commit(); dispatch_sync(torch::mps::get_dispatch_queue(), ^{",
        "mps::commit: BUG IN CLIENT OF LIBDISPATCH: Assertion failed", "the process ends, since PyTorch 2.15",
    ),
}  # fmt: skip
NUMBERS = {name: number for number, name in enumerate(BUGS)}

# What PyTorch cannot show: the buffer that a tensor's storage is, read without waiting for anything.
PEEK = """
py::dict peek(const at::Tensor& tensor) {
  const id<MTLBuffer> buffer = __builtin_bit_cast(id<MTLBuffer>, tensor.storage().data());
  py::dict seen;
  seen["length"] = buffer.length;
  seen["first"] = static_cast<const float*>(buffer.contents)[0];
  seen["address"] = buffer.gpuAddress == reinterpret_cast<uint64_t>(buffer.contents);
  seen["class"] = [buffer respondsToSelector:@selector(contents)] && [buffer retainCount] == 1;
  return seen;
}
"""


def planted_source() -> str:
    """One source with all broken copies, each in a namespace and a submodule of its own."""
    includes = "\n".join(
        line for line in HOST.splitlines() if line.startswith(("#include", "#import"))
    )
    body = re.sub(r"(?m)^#(include|import).*\n", "", HOST)
    body = body.replace("PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)", "void bind(py::module_ m)")
    copies, binds = [], []
    for name, bug in BUGS.items():
        assert name == "none" or body.count(bug.old) == 1, (
            f"softshrink.mm has not {bug.old!r} once: adapt the bug"
        )
        copy = body.replace(bug.old, bug.new) if bug.old else body
        copies.append(f"namespace planted_{NUMBERS[name]} {{\n{copy}}}\n")
        binds.append(
            f'  planted_{NUMBERS[name]}::bind(m.def_submodule("planted_{NUMBERS[name]}"));\n'
        )
    binds.append('  m.def("peek", &peek);\n')

    return "".join(
        [
            includes,
            "\n",
            *copies,
            PEEK,
            "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {\n",
            *binds,
            "}\n",
        ]
    )


@functools.cache
def planted() -> Any:
    """The extension with all broken copies."""
    text = planted_source()
    name = hashlib.sha256(text.encode()).hexdigest()[:16]

    # where it stays, and unchanged where it is: ninja builds again what is newer than its result, or lies elsewhere
    kept = building.cache() / "extensions" / f"{name}.mm"
    kept.parent.mkdir(parents=True, exist_ok=True)
    if not kept.exists() or kept.read_text() != text:
        kept.write_text(text)

    return built("planted", kept)


def broken(name: str) -> Any:
    """A broken copy, with its kernels compiled."""
    module = getattr(planted(), f"planted_{NUMBERS[name]}")
    module.compile(kernels.source("softshrink.metal"))
    return module


def symptom(name: str) -> str:
    """Return what a user sees who calls a broken copy twice, for a view in the middle of a tensor.

    It is the first line of a RuntimeError, ``right``, or ``wrong values``: of the results, or in the tensor that was
    only to be read.
    """
    x = torch.randn(5000, device="mps")[1000:4000]
    before, expected = x.cpu(), F.softshrink(x.cpu(), 0.5)
    try:
        module = broken(name)
        results = []
        for _ in range(2):
            # with an operator of PyTorch behind it, since some bugs show there
            results.append(module.forward(x, 0.5).clone().cpu())
            torch.mps.synchronize()
    except RuntimeError as error:
        return str(error).splitlines()[0]

    right = torch.equal(x.cpu(), before) and all(
        torch.equal(result, expected) for result in results
    )
    return "right" if right else "wrong values"


def first(tensor: torch.Tensor) -> float:
    """The first number in a tensor's buffer, read without waiting for anything."""
    return planted().peek(tensor)["first"]


def shrink_without_commit() -> torch.Tensor:
    """Encode the work of 3.0 becoming 2.5, and commit nothing."""
    return broken("no commit").forward(torch.full((4,), 3.0, device="mps"), 0.5)


def check_committed_work_is_done() -> None:
    assert first(broken("none").forward(torch.full((4,), 3.0, device="mps"), 0.5)) == 2.5


def check_uncommitted_work_waits_until_somebody_waits_for_the_gpu() -> None:
    """Who looks before sees memory that nobody wrote."""
    uncommitted = shrink_without_commit()
    assert first(uncommitted) != 2.5
    torch.mps.synchronize()
    assert first(uncommitted) == 2.5


def check_an_operator_of_pytorch_comes_after_what_was_encoded_before_it() -> None:
    uncommitted = shrink_without_commit()
    assert uncommitted.add(1)[0].item() == 3.5
    assert first(uncommitted) == 2.5


def check_an_event_comes_after_what_was_encoded_before_it() -> None:
    uncommitted = shrink_without_commit()
    torch.mps.Event().record()
    assert first(uncommitted) == 2.5


STORED = {
    "older than Objective-C": lambda: OLD,
    "a view of an older one": lambda: OLD[3:],
    "new": lambda: torch.zeros(10, device="mps"),
    "resized": lambda: torch.zeros(2, device="mps").resize_(10),
}


def check_a_storage_is_a_buffer(kind: str) -> None:
    seen = planted().peek(STORED[kind]())
    assert seen == {"length": 40, "first": 0.0, "address": True, "class": True}, seen


def check_a_result_that_grows_has_a_buffer_of_its_size() -> None:
    grown = torch.zeros(2, device="mps")
    torch.add(torch.zeros(10, device="mps"), 0, out=grown.resize_(0))
    assert planted().peek(grown)["length"] == 40


RAISING = ("encoding is not ended", "an exception leaves the block", "lambd is not bound")


def check_an_error_is_over_when_it_was_told(bug: str) -> None:
    with pytest.raises(RuntimeError):
        broken(bug).forward(ones(), 0.5)
    assert ones().add(1).tolist() == [2, 2, 2]
    assert broken("none").forward(ones(), 0.5).tolist() == [0.5] * 3


PLANTED_CHECKS = {
    **{
        f"a storage is a buffer, {kind}": functools.partial(check_a_storage_is_a_buffer, kind)
        for kind in STORED
    },
    **{
        f"the error is over, {bug}": functools.partial(check_an_error_is_over_when_it_was_told, bug)
        for bug in RAISING
    },
    **{
        check.__name__.removeprefix("check_").replace("_", " "): check
        for check in (
            check_a_result_that_grows_has_a_buffer_of_its_size,
            check_committed_work_is_done,
            check_uncommitted_work_waits_until_somebody_waits_for_the_gpu,
            check_an_operator_of_pytorch_comes_after_what_was_encoded_before_it,
            check_an_event_comes_after_what_was_encoded_before_it,
        )
    },
}
"""By what is checked of the broken copies."""


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_told(name):
    outcome = child("planted")[name]
    assert re.search(BUGS[name].symptom, outcome), outcome


@pytest.mark.parametrize("name", PLANTED_CHECKS)
def test_of_the_broken_copies(name):
    outcome = child("planted")[name]
    assert outcome == "passed", outcome


# ---- running the child -----------------------------------------------------------------------------------------------


def checks_of(session: str) -> dict[str, Callable[[], str | None]]:
    """Everything of a session."""
    if session == "planted":
        return {name: functools.partial(symptom, name) for name in BUGS} | PLANTED_CHECKS
    return {"softshrink": in_softshrink, "program": in_program}[session].checks


@functools.cache
def child(session: str) -> dict[str, str]:
    """What came of a session."""
    environment = {
        "METALSIM_CACHE": str(building.cache()),
        **os.environ,
        "METALLAB_DEVICE": "sim",
        "PYTHONPATH": str(ROOT / "tests"),
    }
    return children.run(__file__, session, checks_of(session), environment)


def why_not() -> str:
    """Why nothing of this can run here; empty if it can."""
    if (platform.system(), platform.machine()) != preload.SYSTEM:
        return "simulated on Linux and x86-64 only"
    try:
        toolchain.find()
    except SimulationError as error:
        return str(error)
    return ""


if not CHILD:
    pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")


# ---- without a child -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "kept"),
    [
        pytest.param(["-framework", "Metal", "-lm"], ["-lm"], id="two arguments"),
        pytest.param(["-L/some where", "-framework Foundation"], ["-L/some where"], id="one"),
        pytest.param(["-Wl,-framework,Metal", "-lm"], ["-lm"], id="for the linker"),
        pytest.param(["-framework"], [], id="without a name"),
    ],
)
def test_frameworks_are_dropped_and_nothing_else(flags, kept):
    assert extension.without_frameworks(flags) == kept


def test_a_missing_package_is_named_where_an_mm_file_comes(monkeypatch):
    monkeypatch.setitem(sys.modules, "metalsim_objc", None)  # as if it were not installed
    torch_s = types.SimpleNamespace(_write_ninja_file=lambda **build: None)
    objc._teach(torch_s, connect=print)

    torch_s._write_ninja_file(sources=["host.cpp"], ldflags=[])
    with pytest.raises(SimulationError, match=r"Objective-C\+\+ .* metalsim-objc"):
        torch_s._write_ninja_file(sources=["host.mm"], ldflags=[])


def test_a_missing_compiler_is_named_with_the_command(monkeypatch):
    from metalsim.shader import compiler

    def refuse():
        raise clang._no_compiler("none")

    monkeypatch.setattr(compiler, "find_compiler", refuse)
    with pytest.raises(SimulationError, match=r"Objective-C\+\+ .*pip install ziglang"):
        toolchain.find()


@pytest.fixture
def build_runtime(monkeypatch, tmp_path):
    """Building the run time by compilers that succeed and compile nothing; it returns the folder."""
    monkeypatch.setenv("METALSIM_CACHE", str(tmp_path))
    monkeypatch.setattr(toolchain, "_run", lambda command, tools: None)

    def build(compiler=("clang++",), gxx="g++", identity="clang 19, g++ 12"):
        tools = toolchain.Toolchain(compiler, gxx, identity)
        vars(tools)["cflags"] = ["-fblocks"]  # in place of asking g++ for its folders
        return toolchain.build_runtime(tools).parent

    return build


def test_a_run_time_of_the_same_tools_is_not_built_anew(build_runtime):
    assert build_runtime() == build_runtime()


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"identity": "clang 19, g++ 13"}, id="version"),
        pytest.param({"compiler": ("clang++", "-march=x86_64")}, id="option of the compiler"),
        pytest.param({"gxx": "/opt/bin/g++"}, id="linker"),
    ],
)
def test_with_other_tools_the_run_time_is_built_anew(build_runtime, changed):
    assert build_runtime(**changed) != build_runtime()


@pytest.mark.parametrize("flags", ["RUNTIME_FLAGS", "LINK_FLAGS"])
def test_with_another_flag_the_run_time_is_built_anew(build_runtime, flags, monkeypatch):
    first = build_runtime()

    monkeypatch.setattr(toolchain, flags, ("-O3",))

    assert build_runtime() != first


if CHILD:
    OLD = torch.zeros(10, device="mps")  # before there is Objective-C
    children.answer(checks_of(sys.argv[1]), Path(sys.argv[2]))
