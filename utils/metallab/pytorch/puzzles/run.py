"""One run of a kernel at one size."""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from metallab import units
from metallab.pytorch.puzzles.record import READ, WRITE, Record
from metallab.pytorch.puzzles.verdict import Score, Wrong

if TYPE_CHECKING:
    import torch

    from metallab.pytorch.puzzles.puzzle import Puzzle
    from metalsim.shader import Accesses

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n#line 1\n"

SECONDS = 4.0
"""For one run; a right answer takes less than one."""

UNSET = -(2**30)
"""What a result of whole numbers holds before the run; floating ones hold NaN."""


def kernel_is_simulated() -> bool:
    """Say whether kernels run on the simulated GPU, which records their accesses; on a Mac they run on its GPU."""
    return sys.platform != "darwin"


def compile_kernel(source: str, name: str) -> Any:
    """Compile a source, and return the kernel of a name.

    `Wrong` for a source that does not compile or has no such kernel. What is no fault of the source is raised as it is:
    metalsim's NoCompiler where there is no compiler for it.
    """
    try:
        library = _compile(HEADER + source)
    except SyntaxError as error:
        first = units.first_line(error).replace("program_source:", "line ")
        raise Wrong("does not compile", f"it does not compile: {first}") from error

    try:
        return getattr(library, name)
    except AttributeError as error:
        raise Wrong("wrong call", f"there is no `kernel void {name}(...)` in it.") from error
    except RuntimeError as error:  # too much threadgroup memory, for instance
        raise Wrong("does not compile", f"{error}.") from error


def _compile(source: str) -> Any:
    if kernel_is_simulated():
        from metalsim import shader

        return shader.compile_shader(source)

    from torch import mps

    return mps.compile_shader(source)


class Run:
    """One run of a kernel at one size, and what can be said of it.

    Parameters
    ----------
    puzzle
        What the kernel has to compute.
    kernel
        As `compile_kernel` returns it.
    source
        Its text.
    size
        Arguments of the puzzle's functions.

    Raises
    ------
    Wrong
        If the kernel cannot be called.
    """

    def __init__(self, puzzle: Puzzle, kernel: Any, source: str, size: tuple[int, ...]) -> None:
        import torch

        self.puzzle = puzzle
        self.source = source
        self.size = size
        self._kernel = kernel

        inputs = [tensor.contiguous() for tensor in puzzle.inputs(*size)]
        self.expected = puzzle.reference(*inputs).contiguous()
        unset = math.nan if self.expected.is_floating_point() else UNSET
        self.arrays = [torch.full_like(self.expected, unset), *inputs]
        """The result before the run, and the inputs."""

        self.names = find_parameters(source, puzzle.name)
        self._numbers = puzzle.numbers(*size)
        self._require_arguments(len(self.arrays) + len(self._numbers))

        self._launch = puzzle.find_launch(size, self.expected.numel())
        self.threads = _to_three(self._launch["threads"])

        self.record: Record | None = None
        """Its accesses, where they can be recorded."""

        try:
            self.result = self._run()
            """What the kernel computed; unset, as it was before the run, where a fault ended the run."""
        except (RuntimeError, TypeError) as error:
            first = units.first_line(error)
            raise Wrong("wrong call", f"it cannot be called: {first}") from error

    def _require_arguments(self, given: int) -> None:
        """Raise `Wrong` unless the kernel has as many arguments in memory as it is given."""
        if given != len(self.names):
            raise Wrong(
                "wrong call", f"it has {len(self.names)} arguments in memory; {given} are passed."
            )

    @functools.cached_property
    def group(self) -> tuple[int, int, int]:
        """Threads along each side of a threadgroup.

        Where the puzzle does not give them they are chosen as PyTorch chooses them: as many as there may be, along x.
        """
        given = self._launch.get("group_size")
        if given is not None:
            return _to_three(given)
        most: int = self._kernel.max_threads_per_threadgroup
        return min(self.threads[0], most), 1, 1

    def _run(self) -> torch.Tensor:
        """Run the kernel, record its accesses where that is possible, and return the result."""
        import torch

        out = self.arrays[0]
        if not kernel_is_simulated():
            arguments = [tensor.to("mps") for tensor in self.arrays]
            self._kernel(*arguments, *self._numbers, **self._launch)
            return arguments[0].cpu()

        accesses = self.record_accesses()
        self.record = Record(self, accesses)
        data = accesses.memory.get(0)
        if data is None:  # a fault ended the run
            return out
        return torch.frombuffer(bytearray(data), dtype=out.dtype).view_as(out)

    def record_accesses(self, unset: str = "pattern") -> Accesses:
        """Run the kernel once more, and return its accesses.

        Parameters
        ----------
        unset
            What variables hold that the kernel has not set: a pattern with which a number is NaN, or ``"zero"``.
        """
        arguments = [tensor.to("cpu") for tensor in self.arrays]
        return self._kernel.accesses(
            *arguments, *self._numbers, timeout=SECONDS, unset=unset, **self._launch
        )

    def score(self) -> Score:
        """Return what the kernel costs at this size; zeros where accesses were not recorded."""
        if self.record is None:
            return Score(0, 0)

        buffers = range(len(self.arrays))
        return Score(
            reads=sum(self.record.count_moved(index, READ) for index in buffers),
            writes=sum(self.record.count_moved(index, WRITE) for index in buffers),
            barriers=int(self.record.accesses.lines["interval"].max(initial=0)),
            shared=self._kernel.static_thread_group_memory_length,
        )

    def shares_memory(self) -> bool:
        """Say whether a thread reads what another has written to threadgroup memory, as far as that was recorded."""
        return self.record is not None and self.record.sharing.is_found

    def name_result(self, element: int) -> str:
        """Return the name of a result, ``out[3]``; of a matrix with its row and column."""
        named = f"{self.names[0]}[{element}]"
        shape = list(self.expected.shape)
        if len(shape) < 2:
            return named
        row, column = divmod(element, shape[-1])
        return f"{named} (row {row}, column {column})"


def find_parameters(source: str, kernel: str) -> list[str]:
    """Return the names of a kernel's buffers in order; none if the source has no such kernel.

    Parameters
    ----------
    source
        The Metal source.
    kernel
        The kernel's name.
    """
    # a comment between parameters would be taken for a part of one, and one that holds a kernel for the kernel
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.DOTALL)
    qualifier = r"(?:\bkernel|\[\[\s*kernel\s*\]\])"
    # no ; and no brace between: a declaration before the definition is passed over
    head = re.search(rf"{qualifier}\s+void\s+{kernel}\s*\(([^;{{}}]*)\)\s*\{{", text)
    if head is None:
        return []

    # without attributes, such as [[buffer(0)]]
    inside = re.sub(r"\[\[.*?\]\]", "", head[1], flags=re.DOTALL)
    parts = [part.strip() for part in inside.split(",")]
    # What has no address space is supplied by the GPU, such as the thread's position, and threadgroup memory is no
    # buffer of the call. The two words may stand behind const, volatile or the type, and are no names.
    buffers = [part for part in parts if re.search(r"\b(device|constant)\b", part)]
    return [re.findall(r"\w+", part)[-1] for part in buffers]


def write_size(size: tuple[int, ...]) -> str:
    """Return a size as it is read: ``64 x 32``."""
    return " x ".join(map(str, size))


def _to_three(value: Any) -> tuple[int, int, int]:
    """Return a number of threads in three dimensions."""
    sides = [*value] if isinstance(value, Sequence) else [value]
    x, y, z, *_ = [*sides, 1, 1]
    return x, y, z
