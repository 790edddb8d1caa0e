"""Fifteen calls of PyTorch whose operations and bytes can be counted on paper, and the probes of a machine.

::

    probes = fifteen_calls.probes(lab.torch_device)
    bench = roofline.calibrate(probes, on=lab)
    for call in fifteen_calls.calls():
        print(call.name, bench.machine.predict(call.work).seconds, call.work.why)

Counted is what the mathematics needs: each input read once, each result written once, and elementary functions such as
the exponential beside the operations. What a library does beyond that is not counted, so that a prediction which fails
says that there is something.

None of the three numbers beyond the textbook's is measured with one of the fifteen calls. Elementary functions are
those of SiLU, x / (1 + exp(-x)), new memory is a fill's, and skinny products have 4 and 16 columns, and another matrix
than those that are predicted.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from metallab.roofline import Change, Limit, NewMemory, Probe, Probes, Work

Make = Callable[[torch.device], Callable[[], Any]]
"""Makes the tensors on a device, and returns what is timed."""

FLOAT = 4
"""Bytes of a float32."""

CHUNKS = 64
"""Into so many pieces a tensor is cut, so that a piece fits into a CPU's cache."""

TILE = 64
"""A product of fewer columns may compute so many all the same: more of them change nothing, whatever its limit is."""

FEW_COLUMNS = (4, 16)
"""Of the skinny products that are probes: between the 2, 8 and 32 of those that are predicted."""


@dataclass(frozen=True)
class Experiment:
    """The call with operations or bytes changed."""

    change: Change
    make: Make


@dataclass(frozen=True)
class Suspect:
    """Something that the count leaves out, and a call with the same operations and bytes that does without it."""

    cause: str
    make: Make
    is_new_memory: bool = False
    """Not to be tried where new memory was measured to cost nothing: pieces cost a GPU a launch each."""


@dataclass(frozen=True)
class Call:
    """A call, what it has to do, and two experiments that show what limits it."""

    name: str
    work: Work
    make: Make
    doubled: Make
    """The same with twice the operations, and nearly twice the bytes: what stays as it is, such as the second matrix of
    a product, is read once. The least is 5/3 times the bytes, of a square product."""
    experiment: Callable[[torch.device], Experiment] | None
    """With only one of the two changed; a CPU and a GPU need different ones. None where none tells the limit."""
    suspects: tuple[Suspect, ...] = ()
    """What may be the cause if the prediction fails."""


def probes(device: torch.device, side: int = 1024, numbers: int = 2**25) -> Probes:
    """Make what a machine's numbers are measured with.

    Parameters
    ----------
    device : torch.device
        Where it runs.
    side : int
        Rows and columns of the smallest product; it is doubled until the device is full.
    numbers : int
        float32 numbers that are copied, and half of them. Their bytes should be more than any cache holds.

    Returns
    -------
    metallab.roofline.Probes
        Each writes into memory that is there.
    """
    source = torch.ones(numbers, device=device)
    target = torch.empty_like(source)
    first, to = source[: numbers // 2], target[: numbers // 2]
    made: dict[int, Probe] = {}

    def product(power: int) -> Probe:
        """Return a product, 2 to the power times the smallest; made once, since the same probe is looked at later."""
        if power not in made:
            n = side * 2**power
            made[power] = Probe(_product(n, n, n)(device), count_product(n, n, n))
        return made[power]

    return Probes(
        launches=_launches(device),
        product=product,
        copy=Probe(lambda: target.copy_(source), Work(0, 2 * source.nbytes)),
        half_copy=Probe(lambda: to.copy_(first), Work(0, 2 * first.nbytes)),
        # a piece that fits into a CPU's cache, then all numbers, for a device that is done with the piece at once
        functions=(_silu(source, target, CHUNKS), _silu(source, target, 1)),
        skinny=tuple(_skinny(device, numbers, columns) for columns in FEW_COLUMNS),
        # from small to large, since memory may be handed out anew from a size on: 1 to 64 MiB of the default numbers
        new_memory=tuple(_new_memory(target[: numbers // part]) for part in (128, 32, 8, 2)),
    )


def _silu(source: torch.Tensor, target: torch.Tensor, pieces: int) -> Probe:
    """Compute an exponential, and four operations, for each number of a piece: small for a CPU's cache, or large."""
    x = source[: source.numel() // pieces]
    out = target[: x.numel()]
    work = Work(4 * x.numel(), 2 * x.nbytes, functions=x.numel())
    return Probe(lambda: torch.ops.aten.silu.out(x, out=out), work)


def _skinny(device: torch.device, numbers: int, columns: int) -> Probe:
    """Multiply a square matrix, of half of the numbers, by few columns."""
    side = math.isqrt(numbers // 2)
    work = _count_skinny(side, side, columns)
    return Probe(_product(side, side, columns)(device), work)


def _new_memory(given: torch.Tensor) -> NewMemory:
    """Fill a tensor that is there, and one that is not."""
    return NewMemory(
        given.nbytes,
        asked=lambda: torch.empty_like(given).fill_(1.0),
        given=lambda: given.fill_(1.0),
    )


def _launches(device: torch.device) -> tuple[Probe, ...]:
    """Calls of five kinds with next to no work: Python and the library do not do the same for each."""
    x, out = torch.ones(16, 16, device=device), torch.empty(16, 16, device=device)
    picture, weights = x[None, None], x[None, None, :3, :3]
    little = Work(x.numel(), 2 * x.nbytes)

    return (
        Probe(lambda: torch.mm(x, x, out=out), little),
        Probe(lambda: torch.add(x, x, out=out), little),
        Probe(lambda: torch.softmax(x, -1, out=out), little),
        Probe(lambda: functional.layer_norm(x, (16,)), little),
        Probe(lambda: functional.conv2d(picture, weights), little),
    )


def count_product(rows: int, inner: int, columns: int) -> Work:
    """Count a matrix product of (rows, inner) and (inner, columns) in float32.

    Returns
    -------
    metallab.roofline.Work
        A multiplication and an addition for each of rows x inner x columns; both inputs read, the result written.
    """
    return Work(
        flops=2 * rows * inner * columns,
        bytes=FLOAT * (rows * inner + inner * columns + rows * columns),
        why="a multiplication and an addition for each row, column and inner index; "
        "two matrices read, one written",
    )


def _count_skinny(rows: int, inner: int, columns: int) -> Work:
    """Count a product whose second matrix has few columns: the first one is nearly all of its bytes."""
    work = count_product(rows, inner, columns)
    why = "as a product; the matrix is nearly all of its bytes"
    return dataclasses.replace(work, why=why, matrix=FLOAT * rows * inner)


def calls(side: int = 4096) -> list[Call]:
    """Return the fifteen calls, in the order of their arithmetic intensity within each kind.

    Parameters
    ----------
    side : int
        Rows of the matrix that multiplies vectors, which has twice as many columns. The tensors of elementwise calls
        have its square of numbers, in rows of a quarter of it; the other sizes follow from it as well. A multiple of
        512. A multiple of 256 alone would do for the calls, but the experiment of the smallest product has fewer
        operations than that product then.

    Returns
    -------
    list of Call
        Nothing is allocated before a call is made on a device.
    """
    products = [_product_call(side // divisor) for divisor in (128, 16, 4, 2)]
    vectors = [_vectors_call(side, 2 * side, count) for count in (2, 8, 32, 128)]

    return [
        *products,
        _doubling_call(side),
        _softmax_call(side),
        _gelu_call(side),
        _layer_norm_call(side),
        _convolution_call("convolution 3 x 3", channels=256, side=side // 64, groups=1),
        _convolution_call("depthwise convolution", channels=64, side=side // 64, groups=64),
        _vector_call(side, 2 * side),
        *vectors,
    ]


# ---- products --------------------------------------------------------------------------------------------------------


def _product(rows: int, inner: int, columns: int) -> Make:
    """Return a product of random matrices, (rows, inner) and (inner, columns), whose result is written over."""

    def make(device: torch.device) -> Callable[[], Any]:
        a = torch.randn(rows, inner, device=device)
        b = torch.randn(inner, columns, device=device)
        out = torch.empty(rows, columns, device=device)
        return lambda: torch.mm(a, b, out=out)

    return make


def _product_call(n: int) -> Call:
    """Describe a product of two matrices of n x n; its experiment has more bytes for the same operations."""
    # as many operations, in a shape with more bytes: a quarter of the inner size, twice the rows and columns
    flat = count_product(2 * n, n // 4, 2 * n)
    square = count_product(n, n, n)
    change = Change(
        "twice the rows and columns, a quarter of the inner size",
        Limit.MEMORY,
        flat.bytes / square.bytes,
    )

    return Call(
        name=f"product, n = {n}",
        work=square,
        make=_product(n, n, n),
        doubled=_product(2 * n, n, n),
        experiment=lambda _any_device: Experiment(change, _product(2 * n, n // 4, 2 * n)),
    )


def _vector_call(rows: int, columns: int) -> Call:
    """Describe the product of a matrix and one vector; its experiments are those of `_rows_call`."""
    work = Work(
        flops=2 * rows * columns,
        bytes=FLOAT * (rows * columns + columns + rows),
        why="two operations for each weight, and each weight is read once: what a language model does for a token",
    )

    def make_with(rows: int) -> Make:
        def make(device: torch.device) -> Callable[[], Any]:
            matrix = torch.randn(rows, columns, device=device)
            vector = torch.randn(columns, device=device)
            out = torch.empty(rows, device=device)
            return lambda: torch.mv(matrix, vector, out=out)

        return make

    def experiment(device: torch.device) -> Experiment:
        if device.type != "cpu":
            return _in_half_precision(_multiply_in_16_bits(rows, columns))
        return _in_chunks(_multiply_pieces(rows, columns))

    return Call("matrix x vector", work, make_with(rows), make_with(2 * rows), experiment)


def _multiply_in_16_bits(rows: int, columns: int) -> Make:
    """Return the same product with half the bytes."""

    def make(device: torch.device) -> Callable[[], Any]:
        matrix = torch.randn(rows, columns, device=device, dtype=torch.float16)
        vector = torch.randn(columns, device=device, dtype=torch.float16)
        out = torch.empty(rows, device=device, dtype=torch.float16)
        return lambda: torch.mv(matrix, vector, out=out)

    return make


def _multiply_pieces(rows: int, columns: int) -> Make:
    """Return what makes a call with as much arithmetic as the whole matrix takes, all of it on one piece of the matrix.

    The piece stays in a CPU's cache.
    """

    def make(device: torch.device) -> Callable[[], Any]:
        matrix = torch.randn(rows // CHUNKS, columns, device=device)
        vector = torch.randn(columns, device=device)
        out = torch.empty(rows // CHUNKS, device=device)

        def call() -> torch.Tensor:
            for _ in range(CHUNKS):
                torch.mv(matrix, vector, out=out)
            return out

        return call

    return make


def _vectors_call(rows: int, columns: int, count: int) -> Call:
    """Describe the product of a matrix and so many vectors, which are the columns of a second one.

    It has an experiment from `TILE` vectors on. Of fewer, twice as many may change nothing, whatever the limit is.
    """
    change = Change("twice as many vectors, the same matrix", Limit.ARITHMETIC, 2.0)

    def as_rows(device: torch.device) -> Callable[[], Any]:
        matrix = torch.randn(rows, columns, device=device)
        vectors = torch.randn(count, columns, device=device)
        out = torch.empty(count, rows, device=device)
        return lambda: torch.mm(vectors, matrix.t(), out=out)

    def experiment(_any_device: torch.device) -> Experiment:
        return Experiment(change, _product(rows, columns, 2 * count))

    return Call(
        name=f"matrix x {count} vectors",
        work=_count_skinny(rows, columns, count),
        make=_product(rows, columns, count),
        doubled=_product(2 * rows, columns, count),
        experiment=experiment if count >= TILE else None,
        suspects=(Suspect("the layout: vectors as rows, as a linear layer has them", as_rows),),
    )


# ---- number by number, and row by row --------------------------------------------------------------------------------


def _doubling_call(side: int) -> Call:
    def build(x: torch.Tensor) -> Callable[[], Any]:
        out = torch.empty_like(x)
        return lambda: torch.mul(x, 2, out=out)

    work = _count_rows(side, 1, "a multiplication a number; read and written")
    return _rows_call("doubling", side, work, build)


def _softmax_call(side: int) -> Call:
    def build(x: torch.Tensor) -> Callable[[], Any]:
        out = torch.empty_like(x)
        return lambda: torch.softmax(x, -1, out=out)

    why = "largest, difference, sum, quotient: 4 a number, and an exponential; read and written"
    return _rows_call("softmax", side, _count_rows(side, 4, why, functions=1), build)


def _gelu_call(side: int) -> Call:
    def build(x: torch.Tensor) -> Callable[[], Any]:
        out = torch.empty_like(x)
        return lambda: torch.ops.aten.gelu.out(x, out=out)

    why = "x / 2 * (1 + erf(x / sqrt 2)): 4 a number, and the error function; read and written"
    return _rows_call("GELU", side, _count_rows(side, 4, why, functions=1), build)


def _layer_norm_call(side: int) -> Call:
    def build(x: torch.Tensor) -> Callable[[], Any]:
        return lambda: functional.layer_norm(x, x.shape[-1:])

    why = "mean, variance, difference, quotient: 8 a number; read and written, into new memory"
    work = _count_rows(side, 8, why, is_new=True)
    new_memory = Suspect("new memory for each result", _norm_in_pieces(side), is_new_memory=True)
    return _rows_call("layer norm", side, work, build, new_memory)


def _norm_in_pieces(side: int) -> Make:
    """Layer norm of a few rows after the other: their result is small, and each gets the memory of the one before."""

    def make(device: torch.device) -> Callable[[], Any]:
        pieces = torch.randn(4 * side, side // 4, device=device).chunk(CHUNKS)

        def call() -> Any:
            for piece in pieces:
                result = functional.layer_norm(piece, piece.shape[-1:])
            return result

        return call

    return make


def _count_rows(
    side: int, operations: int, why: str, *, functions: int = 0, is_new: bool = False
) -> Work:
    """Count a call that reads and writes each of side x side numbers once."""
    numbers = side * side
    return Work(
        flops=operations * numbers,
        bytes=2 * FLOAT * numbers,
        why=why,
        functions=functions * numbers,
        new=FLOAT * numbers if is_new else 0,
    )


def _rows_call(
    name: str,
    side: int,
    work: Work,
    build: Callable[[torch.Tensor], Callable[[], Any]],
    *suspects: Suspect,
) -> Call:
    """Describe a call that reads and writes each of side x side numbers once, in 4 x side rows of side / 4.

    Its experiment has fewer bytes to get from memory. A CPU has a cache that holds a piece of the numbers, which takes
    memory out (`_in_chunks`). A GPU, on which each piece would cost a launch, halves the bytes with 16-bit numbers.

    Parameters
    ----------
    name
        The call's.
    side
        A multiple of 16, so that the rows make `CHUNKS` pieces.
    work
        What it has to do, as `_count_rows` counts it.
    build
        Takes the numbers, and returns what is timed.
    *suspects
        What may be the cause if the prediction fails.
    """
    columns = side // 4

    def make_with(rows: int) -> Make:
        return lambda device: build(torch.randn(rows, columns, device=device))

    def in_half(device: torch.device) -> Callable[[], Any]:
        return build(torch.randn(4 * side, columns, device=device, dtype=torch.float16))

    def in_chunks(device: torch.device) -> Callable[[], Any]:
        once = build(torch.randn(4 * side // CHUNKS, columns, device=device))

        def call() -> Any:
            for _ in range(CHUNKS):
                result = once()
            return result

        return call

    def experiment(device: torch.device) -> Experiment:
        return _in_chunks(in_chunks) if device.type == "cpu" else _in_half_precision(in_half)

    return Call(
        name=name,
        work=work,
        make=make_with(4 * side),
        doubled=make_with(8 * side),
        experiment=experiment,
        suspects=suspects,
    )


def _in_half_precision(make: Make) -> Experiment:
    """Halve the bytes: a GPU keeps the numbers in 16 bits and computes them in 32."""
    return Experiment(Change("the same numbers in 16 bits", Limit.MEMORY, 0.5), make)


def _in_chunks(make: Make) -> Experiment:
    """Take memory out: a piece that fits into the cache, as often as there are pieces."""
    # half the time at most, since a cache delivers at least twice as much a second as memory
    what = f"one piece of {CHUNKS}, which fits into a cache, {CHUNKS} times"
    return Experiment(Change(what, Limit.MEMORY, 0.5, launches=CHUNKS), make)


# ---- convolutions ----------------------------------------------------------------------------------------------------


def _convolution_call(name: str, channels: int, side: int, groups: int) -> Call:
    """Describe a convolution of a square picture with 3 x 3 weights, as many channels out as in, in so many groups.

    Along the edge weights meet zeros, which are counted like other numbers.
    """
    numbers = channels * side * side  # of the picture that is read, and of the one that is written
    inner = channels // groups
    taps = 3 * 3
    work = Work(
        flops=2 * taps * inner * numbers,
        bytes=FLOAT * (2 * numbers + channels * inner * taps),
        why=f"9 multiply-adds for each of {inner} channels a result; picture and weights read, picture written",
        # conv2d has no out=: it asks for the memory of its result
        new=FLOAT * numbers,
    )

    def make_with(
        pictures: int, width: int, layout: torch.memory_format = torch.contiguous_format
    ) -> Make:
        def make(device: torch.device) -> Callable[[], Any]:
            x = torch.randn(pictures, channels, side, side, device=device)
            w = torch.randn(channels, inner, width, width, device=device)
            x, w = x.to(memory_format=layout), w.to(memory_format=layout)
            return lambda: functional.conv2d(x, w, padding=width // 2, groups=groups)

        return make

    def experiment(_any_device: torch.device) -> Experiment:
        change = Change("5 x 5 weights in place of 3 x 3", Limit.ARITHMETIC, 25 / 9)
        return Experiment(change, make_with(pictures=1, width=5))

    layout = Suspect(
        "the layout: a kernel for channels that lie side by side (channels last) does it faster",
        make_with(pictures=1, width=3, layout=torch.channels_last),
    )

    return Call(
        name=name,
        work=work,
        make=make_with(pictures=1, width=3),
        doubled=make_with(pictures=2, width=3),
        experiment=experiment,
        suspects=(layout,),
    )
