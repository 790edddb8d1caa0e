"""C++ code that calls a kernel with what the run time supplies, for `metalsim.shader.source`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_INDEX = (
    "thread_position_in_grid",
    "thread_position_in_threadgroup",
    "threadgroup_position_in_grid",
    "threads_per_grid",
    "threads_per_threadgroup",
    "dispatch_threads_per_threadgroup",
    "threadgroups_per_grid",
)
# attribute of a parameter -> what the run time supplies for it; t is a MetalsimThread (abi.h)
SUPPLIED = {name: f"t->{name}" for name in _INDEX} | {
    "thread_index_in_threadgroup": "t->thread_index_in_threadgroup",
    "thread_index_in_simdgroup": "t->thread_index_in_simdgroup",
    "simdgroup_index_in_threadgroup": "t->simdgroup_index_in_threadgroup",
    "threads_per_simdgroup": "32u",
    "thread_execution_width": "32u",
    "simdgroups_per_threadgroup": "metalsim::simdgroups(t->threads_per_threadgroup)",
    "dispatch_simdgroups_per_threadgroup": "metalsim::simdgroups(t->dispatch_threads_per_threadgroup)",
    "thread_index_in_quadgroup": "(t->thread_index_in_simdgroup & 3u)",
    "quadgroup_index_in_threadgroup": "(t->thread_index_in_threadgroup / 4u)",
    "quadgroup_index_in_simdgroup": "(t->thread_index_in_simdgroup / 4u)",
}


@dataclass(frozen=True)
class Parameter:
    """The attribute of a kernel's parameter, `buffer` and its number for instance; both None without one."""

    attribute: str | None
    argument: str | None
    condition: str = ""
    """The function constant without which the parameter is not there."""


@dataclass(frozen=True)
class Kernel:
    """A kernel: the name that the host uses, the C++ expression for it, its parameters, whether its threads may meet.

    `most_threads` is what [[max_total_threads_per_threadgroup(n)]] allows; `file` and `line` say where it was declared.
    """

    name: str
    expression: str
    parameters: tuple[Parameter, ...]
    meets: bool
    most_threads: int
    file: str
    line: int


_CALL = """\
using metalsim_type_{i} = metalsim::signature<decltype(&{expression})>;
template <class F> static inline __attribute__((always_inline)) void metalsim_call_{i}(MetalsimThread* t) {{
  {expression}({arguments});
}}
static void metalsim_thread_{i}(MetalsimThread* t) {{ metalsim_call_{i}<metalsim_type_{i}>(t); }}
static void metalsim_row_{i}(MetalsimThread* first, unsigned threads) {{
  MetalsimThread t = *first;
  for (unsigned k = 0; k < threads; k++) {{
    t.thread_position_in_grid.x = first->thread_position_in_grid.x + k;
    t.thread_position_in_threadgroup.x = k;
    t.thread_index_in_threadgroup = first->thread_index_in_threadgroup + k;
    t.thread_index_in_simdgroup = t.thread_index_in_threadgroup % 32;
    t.simdgroup_index_in_threadgroup = t.thread_index_in_threadgroup / 32;
    metalsim_call_{i}<metalsim_type_{i}>(&t);
  }}
}}
template <class F> struct metalsim_parameters_{i} {{ static constexpr MetalsimParameter list[] = {{{parameters}}}; }};
template <class F> constexpr MetalsimParameter metalsim_parameters_{i}<F>::list[];
"""
_NO_BUFFER = "MetalsimParameter{-1, 0, 0, 0, 0, 0}"
_ENTRY = (
    '{{"{name}", metalsim_thread_{i}, metalsim_row_{i}, metalsim_parameters_{i}<metalsim_type_{i}>::list, {count}, '
    "(const void*)&{expression}}}"
)


def launch_code(kernels: tuple[Kernel, ...], threadgroup: Mapping[int, int]) -> str:
    """Return C++ with the table metalsim_kernels: how to call each kernel for a thread, and what its parameters are.

    ``threadgroup`` has the bytes of threadgroup memory that is a parameter.
    """
    calls = [_call(kernel, number, threadgroup) for number, kernel in enumerate(kernels)]
    entries = [
        _ENTRY.format(
            i=number, name=kernel.name, count=len(kernel.parameters), expression=kernel.expression
        )
        for number, kernel in enumerate(kernels)
    ]

    table = ", ".join(entries) or "{nullptr, nullptr, nullptr, nullptr, 0, nullptr}"
    end = f'extern "C" {{ MetalsimKernel metalsim_kernels[] = {{{table}}}; extern const int metalsim_kernel_count; '
    return (
        f'{"".join(calls)}# 1 "launch"\n{end}const int metalsim_kernel_count = {len(kernels)}; }}\n'
    )


def _call(kernel: Kernel, number: int, threadgroup: Mapping[int, int]) -> str:
    """Return C++ that calls a kernel; what is wrong in its lines is wrong in the declaration, so they say its line."""
    arguments, parameters = _arguments(kernel, number)
    memory = _memory(kernel, number, threadgroup)
    call = _CALL.format(
        i=number,
        expression=kernel.expression,
        arguments=", ".join(arguments),
        parameters=", ".join(parameters) or _NO_BUFFER,
    )

    lines = (memory + call).splitlines()
    return "".join(f'# {kernel.line} "{kernel.file}"\n{line}\n' for line in lines)


def lengths(kernel: Kernel, threadgroup: Mapping[int, int]) -> dict[int, int]:
    """Return the bytes of the kernel's threadgroup parameters, by index. SyntaxError for one without a length."""
    indices = [
        int(parameter.argument or 0)
        for parameter in kernel.parameters
        if parameter.attribute == "threadgroup"
    ]
    for index in indices:
        if index not in threadgroup:
            memory = f"the threadgroup memory [[threadgroup({index})]] has no length"
            raise _error(kernel, f"{memory}: threadgroup={{{index}: bytes}} gives one")
    return {index: threadgroup[index] for index in indices}


def _memory(kernel: Kernel, number: int, threadgroup: Mapping[int, int]) -> str:
    """Return C++ that declares the memory of a kernel's threadgroup parameters."""
    return "".join(
        f"METALSIM_SHARED __attribute__((aligned(16))) char metalsim_threadgroup_{number}_{index}[{size}];\n"
        for index, size in lengths(kernel, threadgroup).items()
    )


def _arguments(kernel: Kernel, kernel_number: int) -> tuple[list[str], list[str]]:
    """Return C++ for a kernel's arguments, and for the description of its parameters, which `binding.Parameter` reads.

    A parameter without an attribute, or with [[buffer(n)]], is a buffer, absent where its function constant is false.
    The number of a parameter is its place in the declaration. SyntaxError for an attribute that is not simulated.
    """
    arguments: list[str] = []
    parameters: list[str] = []
    following = "0"  # the index of the next buffer that names none

    for number, parameter in enumerate(kernel.parameters):
        kind = f"typename F::template at<{number}>"
        described = _NO_BUFFER

        if parameter.attribute in SUPPLIED:
            argument = f"metalsim::supply<{kind}>({SUPPLIED[parameter.attribute]})"
        elif parameter.attribute == "threadgroup":
            memory = f"metalsim_threadgroup_{kernel_number}_{int(parameter.argument or 0)}"
            argument = f"metalsim::in_threadgroup<{kind}>({memory})"
        elif parameter.attribute in (None, "buffer"):
            index = f"({parameter.argument})" if parameter.attribute else following
            following = f"{index} + 1"  # left to the compiler: an index may be an expression
            there = f"({parameter.condition or 'true'})"
            buffers = f"{there} ? t->buffers : metalsim::absent"
            argument = f"metalsim::argument<{kind}>::get({buffers}, {index})"
            described = f"{there} ? metalsim::argument<{kind}>::describe({index}) : {_NO_BUFFER}"
        else:
            raise _error(kernel, f"the attribute [[{parameter.attribute}]] is not simulated")

        arguments.append(argument)
        parameters.append(described)
    return arguments, parameters


def _error(kernel: Kernel, message: str) -> SyntaxError:
    """Return the error for a kernel, with the line of its declaration."""
    location = (kernel.file, kernel.line, 1, None)
    return SyntaxError(f"{kernel.file}:{kernel.line}: error: {kernel.name}: {message}", location)
