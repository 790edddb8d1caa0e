"""Metal kernels on an NVIDIA GPU: `compile_shader` has the calling convention of torch.mps.compile_shader.

    library = nvrtc.compile_shader(kernels.source("softshrink.metal"))
    library.softshrink_forward_float(out, x, 0.5)

Metal's language and CUDA's are both C++ with a few words more. `translate` replaces those words, and makes a local
variable of a thread's position; the body of a kernel stays as it is. NVIDIA's run-time compiler (NVRTC) makes machine
code of it. Grids of one or two dimensions, threadgroup memory and its barriers are translated; SIMD-groups and what
else a kernel asks for raise SyntaxError.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from metallab.pytorch import kernels

GROUP_SIZE = 256  # threads in a group
PROGRAM = "program_source"  # what Metal calls a library's source in its messages

DTYPES = {
    "float": torch.float32, "half": torch.float16, "bfloat": torch.bfloat16, "long": torch.int64,
    "int": torch.int32, "short": torch.int16, "char": torch.int8, "uchar": torch.uint8, "bool": torch.bool,
}  # fmt: skip
NUMBERS = {
    "float": ctypes.c_float, "long": ctypes.c_int64, "ulong": ctypes.c_uint64, "int": ctypes.c_int32,
    "uint": ctypes.c_uint32, "bool": ctypes.c_bool,
}  # fmt: skip


class NoNvidiaCompiler(kernels.CannotCompile):
    """Nothing can be compiled for an NVIDIA GPU here; the message says why and what to do."""


@dataclass(frozen=True)
class Parameter:
    """A kernel's parameter that the caller fills."""

    name: str
    type: str
    """As written, without address space: ``const T``; in an `Entry` of a template ``const float``."""
    is_memory: bool
    """A pointer to memory; otherwise a number."""

    @property
    def scalar(self) -> str:
        """The type without const."""
        return self.type.removeprefix("const ")


@dataclass(frozen=True)
class Entry:
    """A kernel that can be called: the name that the caller uses, and the C++ expression for it."""

    name: str
    expression: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class Translation:
    """CUDA that stands for a Metal source, and the kernels in it."""

    code: str
    entries: tuple[Entry, ...]


# ---- from Metal to CUDA ----------------------------------------------------------------------------------------------

_KERNEL = re.compile(
    r"(?:template\s*<([^<>]*)>\s*)?(?:\bkernel|\[\[\s*kernel\s*\]\])\s+void\s+(\w+)\s*\("
)
_INSTANCE = re.compile(
    r'template\s*\[\[\s*host_name\s*\(\s*"(\w+)"\s*\)\s*\]\]\s*(?:kernel|\[\[\s*kernel\s*\]\])\s*'
    r"decltype\s*\(\s*(\w+)\s*<([^<>]*)>\s*\)\s*\2\s*<\3>\s*;"
)
_SUPPLIED = {  # attribute -> what stands for its x and y
    "thread_position_in_grid": ("metal_index", "metal_row"),
    "thread_position_in_threadgroup": ("threadIdx.x", "threadIdx.y"),
    "threadgroup_position_in_grid": ("blockIdx.x", "blockIdx.y"),
    "threads_per_threadgroup": ("blockDim.x", "blockDim.y"),
}
_BUFFERS = (("device", "*"), ("constant", "*"), ("constant", "&"))
_PARAMETER = re.compile(
    r"\s*((?:\w+\s+)*\w+)\s*([*&]?)\s*\b(\w+)\s*(?:\[\[\s*(\w+)\s*(?:\(\s*(\d+)\s*\)\s*)?\]\]\s*)?"
)


def translate(source: str) -> Translation:
    """Return CUDA for the text of a Metal source, and the kernels that can be called.

    A kernel template is called by the names of its instantiations, written as
    ``template [[host_name("f_float")]] [[kernel]] decltype(f<float>) f<float>;``. SyntaxError for a kernel that is
    declared in another way, for a parameter that is not translated, such as a thread's lane, and for a source without
    a kernel.

    Each line of the source keeps its number, so that an error of NVIDIA's compiler names it: what is taken out leaves
    its line breaks.
    """
    # comments first: what is looked for below may stand in one
    text = re.sub(r"//[^\n]*|/\*.*?\*/", lambda match: f" {_keep_lines(match)}", source, flags=re.S)
    if match := re.search(r"(?m)^\s*#\s*define\b.*\b(?:kernel|host_name)\b", text):
        raise _error(
            text,
            match.start(),
            "write kernels and instantiations out: macros are expanded too late",
        )

    # Metal's own headers: prelude.cuh stands for them
    text = re.sub(
        r"(?m)^[ \t]*#[ \t]*(?:include[ \t]*<metal_\w+>|pragma[ \t]+METAL\b[^\n]*)", "", text
    )
    # NVRTC makes the instantiations for whose names it is asked (`compile_cuda`)
    instances = [match.groups() for match in _INSTANCE.finditer(text)]
    text = _INSTANCE.sub(_keep_lines, text)

    code, entries, position = [], [], 0
    for match in _KERNEL.finditer(text):
        end = _closing(text, match.end() - 1, "(", ")")
        brace = text.find("{", end)
        template, name = match[1], match[2]
        taken, supplied = _parameters(text, match.end(), end)
        declared = [*map(_declaration, taken), "uint metal_threads", "uint metal_rows"]

        # without a template the name is kept as it is, as C has it
        head = f"template <{template}> " if template else 'extern "C" '
        lines = "\n" * text.count("\n", match.start(), brace)
        code += [
            text[position : match.start()],
            f"{head}__global__ void {name}({', '.join(declared)}) {lines}",
        ]
        # CUDA launches whole groups: METAL_THREAD (prelude.cuh) ends threads beyond the grid of the last two parameters
        code += [f"{{ METAL_THREAD {supplied}"]
        position = brace + 1
        entries += _entries(name, template, taken, instances)

    code.append(text[position:])
    if not entries:
        raise SyntaxError("there is no kernel in this source")
    return Translation(
        f'{kernels.source("prelude.cuh")}#line 1 "{PROGRAM}"\n{"".join(code)}', tuple(entries)
    )


def _parameters(text: str, begin: int, end: int) -> tuple[list[Parameter], str]:
    """Return the parameters between two positions that a caller fills, and declarations for those the GPU supplies.

    The first are in the order of their buffers, which a parameter without a number gets by its place. The second are
    local variables for the beginning of the kernel's body, in CUDA. SyntaxError for a parameter that is none of both,
    and for numbers of buffers with a gap.
    """
    taken: dict[int, Parameter] = {}
    supplied = ""
    behind = begin  # the comma of the parameter before, where the text of this one begins
    for part in text[begin:end].split(","):
        place = behind + len(part) - len(part.lstrip())
        behind += len(part) + 1

        match = _PARAMETER.fullmatch(part)
        if not match:
            raise _error(text, place, f"the parameter `{part.strip()}` is not understood")
        words, sign, name, attribute, number = match.groups()
        # what stands before the type but const: an address space, or none
        *spaces, kind = [word for word in words.split() if word != "const"]
        if attribute in _SUPPLIED and kind in ("uint", "uint2") and not sign:
            x, y = _SUPPLIED[attribute]
            supplied += f"const {kind} {name} = {x if kind == 'uint' else f'{{{x}, {y}}}'}; "
        elif attribute in (None, "buffer") and (*spaces, sign) in _BUFFERS:
            const = "const " if "const" in words else ""  # `constant` is const as well
            taken[int(number) if number else len(taken)] = Parameter(
                name, const + kind, sign == "*"
            )
        else:
            message = f"the parameter `{part.strip()}` is not translated to CUDA here"
            raise _error(text, place, message)
    if sorted(taken) != list(range(len(taken))):
        raise _error(text, begin, f"buffers {sorted(taken)}: number them from 0, without gaps")
    return [taken[number] for number in sorted(taken)], supplied


def _declaration(parameter: Parameter) -> str:
    return f"{parameter.type}{'*' if parameter.is_memory else ''} {parameter.name}"


def _entries(
    name: str,
    template: str | None,
    taken: Sequence[Parameter],
    instances: list[tuple[str, str, str]],
) -> list[Entry]:
    """Return the names by which a kernel can be called, with the types that each name stands for.

    A kernel without a template has one, its own. A template has the host name of each of its instances: host name,
    instantiated kernel and types, as text. Where it has none it cannot be called.
    """
    if not template:
        return [Entry(name, name, tuple(taken))]

    placeholders = [words.split()[-1] for words in template.split(",")]
    entries = []
    for host_name, instantiated, arguments in instances:
        if instantiated == name:
            types = dict(zip(placeholders, map(str.strip, arguments.split(",")), strict=True))
            made = tuple(
                Parameter(p.name, types.get(p.scalar, p.scalar), p.is_memory) for p in taken
            )
            entries.append(Entry(host_name, f"{name}<{arguments}>", made))
    return entries


def _closing(text: str, opening: int, left: str, right: str) -> int:
    """Position of the bracket that closes the one at a position."""
    depth = 0
    for position in range(opening, len(text)):
        depth += (text[position] == left) - (text[position] == right)
        if depth == 0:
            return position
    raise _error(text, opening, f"no '{right}' closes this '{left}'")


def _keep_lines(match: re.Match[str]) -> str:
    """Return the line breaks of what is left out, so that an error after it names the line of the source."""
    return "\n" * match[0].count("\n")


def _error(text: str, position: int, message: str) -> SyntaxError:
    """Return an error with the line of the source, counted from the last ``#line 1`` in front of it."""
    first = text.rfind("#line 1\n", 0, position)
    begin = 0 if first < 0 else text.index("\n", first) + 1
    line = text.count("\n", begin, position) + 1
    return SyntaxError(f"{PROGRAM}:{line}: error: {message}", (PROGRAM, line, 1, None))


# ---- compiling -------------------------------------------------------------------------------------------------------


def compile_shader(source: str) -> Library:
    """Compile the text of a Metal source for the current NVIDIA GPU; kernels are attributes of what comes back.

    SyntaxError, with the line, for what cannot be translated or does not compile; `NoNvidiaCompiler` where the GPU or
    the compiler is missing.
    """
    if not torch.cuda.is_available():
        raise NoNvidiaCompiler(
            "PyTorch sees no NVIDIA GPU here. On an Apple GPU use torch.mps.compile_shader"
        )
    translation = translate(source)
    major, minor = torch.cuda.get_device_capability()
    return Library(translation.entries, *compile_cuda(translation, f"sm_{major}{minor}"))


def compile_cuda(translation: Translation, architecture: str) -> tuple[bytes, dict[str, str]]:
    """Return machine code for an architecture such as ``sm_90``, and the kernels' names in it. It needs no GPU.

    The second is by the name that a caller uses. SyntaxError, with the line of the source, for what does not compile;
    `NoNvidiaCompiler` where the compiler or its headers are missing; RuntimeError for any other failure of it.
    """
    nvrtc = _bindings("nvrtc")
    done, program = nvrtc.nvrtcCreateProgram(
        translation.code.encode(), f"{PROGRAM}.cu".encode(), 0, [], []
    )
    _check(nvrtc, done)
    try:
        # a template is compiled for the types in these expressions; C++ gives its machine code another name, which is
        # asked for below
        for entry in translation.entries:
            _check(nvrtc, *nvrtc.nvrtcAddNameExpression(program, entry.expression.encode()))

        # -default-device: functions are for the GPU without a word that says so, which Metal has not; -w: no warnings
        options = [
            f"-arch={architecture}",
            f"-I{_headers()}",
            "-default-device",
            "-std=c++17",
            "-w",
        ]
        (done,) = nvrtc.nvrtcCompileProgram(
            program, len(options), [option.encode() for option in options]
        )
        if done == nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION:
            raise _refused(_filled(nvrtc, "ProgramLog", program).rstrip(b"\0").decode())
        _check(nvrtc, done)

        names = {}
        for entry in translation.entries:
            done, lowered = nvrtc.nvrtcGetLoweredName(program, entry.expression.encode())
            _check(nvrtc, done)
            names[entry.name] = lowered.decode()
        return _filled(nvrtc, "CUBIN", program), names
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _filled(nvrtc: Any, what: str, program: Any) -> bytes:
    done, size = getattr(nvrtc, f"nvrtcGet{what}Size")(program)
    _check(nvrtc, done)
    data = b" " * size
    _check(nvrtc, *getattr(nvrtc, f"nvrtcGet{what}")(program, data))
    return data


def _refused(log: str) -> SyntaxError:
    match = re.search(rf"{PROGRAM}\((\d+)\): error: (.*)", log)
    line = int(match[1]) if match else None
    return SyntaxError(
        f"{PROGRAM}:{line}: error: {match[2]}" if match else log.strip(), (PROGRAM, line, 1, None)
    )


def _bindings(part: str) -> Any:
    """``cuda.bindings.nvrtc`` or ``.driver``, which PyTorch's CUDA build brings along."""
    try:
        return importlib.import_module(f"cuda.bindings.{part}")
    except ImportError as error:
        raise NoNvidiaCompiler(
            "cuda-bindings is not here: NVIDIA's Python package, which PyTorch's CUDA build for Linux brings along. "
            "`pip install cuda-bindings`"
        ) from error


@functools.cache
def _headers() -> str:
    """The folder with cuda_fp16.h: of the packages that PyTorch's CUDA build brings along, or of a CUDA toolkit."""
    from cuda import pathfinder  # comes with cuda-bindings

    if not (folder := pathfinder.find_nvidia_header_directory("cudart")):
        raise NoNvidiaCompiler(
            "CUDA's headers are not here. `pip install nvidia-cuda-runtime`, or set CUDA_HOME to a CUDA toolkit"
        )
    return folder


def _check(bindings: Any, done: Any) -> None:
    """RuntimeError unless a call of NVRTC or of the driver succeeded."""
    if int(done) != 0:
        raise RuntimeError(f"{bindings.__name__.rpartition('.')[2]} says {done.name}")


# ---- calling ---------------------------------------------------------------------------------------------------------


class Library:
    """The kernels of a Metal source on the NVIDIA GPU that was current when it was made, each an attribute."""

    def __init__(self, entries: Sequence[Entry], code: bytes, names: dict[str, str]) -> None:
        self._entries, self._names = {entry.name: entry for entry in entries}, names
        self._device = torch.device("cuda", torch.cuda.current_device())
        driver = _bindings("driver")
        torch.cuda.synchronize()  # PyTorch makes its context on this GPU here, if it has none yet
        done, self._context = driver.cuCtxGetCurrent()
        _check(driver, done)
        done, self._module = driver.cuModuleLoadData(code)
        _check(driver, done)

    def __getattr__(self, name: str) -> Kernel:
        """Return a kernel by its name, and keep it as an attribute, so that this is not called again for it.

        AttributeError, with the names that there are, for another one.
        """
        # with an underscore: what __init__ has not set yet would be looked for here for ever
        if name.startswith("_") or name not in self._entries:
            raise AttributeError(
                f"there is no kernel {name!r}; the library has {', '.join(dir(self))}"
            )
        driver = _bindings("driver")
        _check(driver, *driver.cuCtxSetCurrent(self._context))
        done, function = driver.cuModuleGetFunction(self._module, self._names[name].encode())
        _check(driver, done)

        def launch(*how: Any) -> None:
            # autograd's threads have no context before PyTorch has launched something from them
            _check(driver, *driver.cuCtxSetCurrent(self._context))
            _check(driver, *driver.cuLaunchKernel(function, *how))

        self.__dict__[name] = Kernel(self._entries[name], self._device, launch)
        return self.__dict__[name]

    def __dir__(self) -> list[str]:
        return list(self.__dict__.get("_entries", ()))


class Kernel:
    """A kernel of a library: ``kernel(*args, threads=None, group_size=None)``."""

    def __init__(self, entry: Entry, device: torch.device, launch: Callable[..., None]) -> None:
        self._entry, self._device, self._launch = entry, device, launch

    def __call__(
        self,
        *args: Any,
        threads: int | tuple[int, ...] | None = None,
        group_size: int | tuple[int, ...] = GROUP_SIZE,
    ) -> None:
        """Run the kernel over ``threads`` threads in all, by default one for each element of the first argument.

        With two numbers, columns and rows of a grid. ``group_size`` is that of a threadgroup, in as many dimensions.

        Arguments bind to buffers 0, 1, ... in order: contiguous tensors on this GPU, of the dtype that the kernel
        declares, and numbers. It returns at once, as PyTorch's own operators do. TypeError for arguments that do not
        fit.
        """
        values, types = _bound(self._entry, self._device, args)
        if threads is None and not (args and isinstance(args[0], torch.Tensor)):
            raise TypeError(
                f"{self._entry.name}: its first argument is no tensor, so say how many threads it takes"
            )

        total = _two(args[0].numel() if threads is None else threads)
        group = _two(group_size)
        if 0 not in total:  # CUDA refuses to launch no groups
            stream = torch.cuda.current_stream(self._device).cuda_stream
            # the sides of the grid come last: `translate` adds these parameters to each kernel
            passed = ((*values, *total), (*types, ctypes.c_uint32, ctypes.c_uint32))
            groups = [-(-n // size) for n, size in zip(total, group, strict=True)]
            self._launch(*groups, 1, *group, 1, 0, stream, passed, 0)


def _two(extent: int | tuple[int, ...]) -> tuple[int, int]:
    return tuple([*([extent] if isinstance(extent, int) else extent), 1][:2])


def _bound(entry: Entry, device: torch.device, args: Sequence[Any]) -> tuple[tuple, tuple]:
    """Return the values for a launch, and their C types: addresses of tensors, and numbers.

    TypeError for another number of arguments than the kernel has parameters, and for one that does not fit. A tensor of
    a type that `DTYPES` does not have may be of any dtype; a number of a type that `NUMBERS` does not have is refused.
    """
    if len(args) != len(entry.parameters):
        wanted = ", ".join(parameter.name for parameter in entry.parameters)
        raise TypeError(
            f"{entry.name} takes {len(entry.parameters)} arguments ({wanted}), {len(args)} were given"
        )

    for parameter, value in zip(entry.parameters, args, strict=True):
        if parameter.is_memory:
            wanted = f"a contiguous tensor of {parameter.scalar} on {device}"
            fits = (
                isinstance(value, torch.Tensor) and value.device == device and value.is_contiguous()
            )
            fits = fits and DTYPES.get(parameter.scalar, value.dtype) == value.dtype
        else:
            wanted = f"a number: {parameter.scalar}"
            fits = parameter.scalar in NUMBERS and isinstance(
                value, float if parameter.scalar == "float" else int
            )
        if not fits:
            given = (
                f"{value.dtype} on {value.device}"
                if isinstance(value, torch.Tensor)
                else repr(value)
            )
            raise TypeError(f"{entry.name}: {parameter.name} takes {wanted}; {given} was given")

    memory = [parameter.is_memory for parameter in entry.parameters]
    values = (
        value.data_ptr() if is_memory else value
        for value, is_memory in zip(args, memory, strict=True)
    )
    types = (ctypes.c_void_p if p.is_memory else NUMBERS[p.scalar] for p in entry.parameters)
    return tuple(values), tuple(types)
