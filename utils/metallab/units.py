"""Numbers as a reader wants them, three significant digits and a unit; names of dtypes; exceptions in a line."""

from __future__ import annotations

import math
import textwrap
from typing import Any

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


class SimulatedNumber(float):
    """A time of the simulated GPU, or what is calculated from it, such as a throughput or a ratio: its text says so.

    It is a number like any other, and Python's arithmetic keeps what it is. What NumPy calculates from it is a plain
    number again, and so is ``float(it)``.

    >>> f"{SimulatedNumber(6) / 4:.2f}"
    '1.50 (simulated)'
    """

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return f"{float(self):{spec}} {SIMULATED_MARK}"

    def __str__(self) -> str:
        return f"{float(self)} {SIMULATED_MARK}"

    __repr__ = __str__

    def __add__(self, other: float) -> SimulatedNumber:
        return SimulatedNumber(float(self) + float(other))

    __radd__ = __add__

    def __sub__(self, other: float) -> SimulatedNumber:
        return SimulatedNumber(float(self) - float(other))

    def __rsub__(self, other: float) -> SimulatedNumber:
        return SimulatedNumber(float(other) - float(self))

    def __mul__(self, other: float) -> SimulatedNumber:
        return SimulatedNumber(float(self) * float(other))

    __rmul__ = __mul__

    def __truediv__(self, other: float) -> SimulatedNumber:
        return SimulatedNumber(float(self) / float(other))

    def __rtruediv__(self, other: float) -> SimulatedNumber:
        return SimulatedNumber(float(other) / float(self))

    def __neg__(self) -> SimulatedNumber:
        return SimulatedNumber(-float(self))

    def __abs__(self) -> SimulatedNumber:
        return SimulatedNumber(abs(float(self)))

    # rounded to a whole number it is still one that was simulated, and no int
    def __round__(self, digits: int | None = None) -> SimulatedNumber:  # type: ignore[override]
        return SimulatedNumber(round(float(self), digits))


SIMULATED_MARK = "(simulated)"
"""What stands behind a number that is one."""


def seconds(value: float) -> str:
    """Return a duration in seconds as text: ``seconds(0.00123)`` is ``'1.23 ms'``."""
    return _scale(value, _SECONDS)


def of_seconds(value: float) -> tuple[float, str]:
    """Return the unit for an axis on which a duration in seconds lies, as seconds and name: ``(0.001, 'ms')``."""
    for scale, unit in _SECONDS:
        if value >= scale:
            return scale, unit
    return _SECONDS[-1]


def size(value: float) -> str:
    """Return a number of bytes as text: ``size(3 * 2**20)`` is ``'3 MiB'``."""
    return _scale(value, _BYTES)


def rate(value: float, unit: str) -> str:
    """Return a rate with an SI prefix.

    Parameters
    ----------
    value
        In the unit, without a prefix.
    unit
        Its name, such as ``"B/s"`` or ``"FLOP/s"``.

    Examples
    --------
    >>> rate(4.1e12, "B/s")
    '4.1 TB/s'
    """
    prefixes = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))
    return _scale(value, tuple((scale, prefix + unit) for scale, prefix in prefixes))


def times(value: float, digits: int = 2) -> str:
    """Return a ratio with about three digits: 0.045, 1.83, 12.3, 123.

    Parameters
    ----------
    value
        The ratio, without unit.
    digits
        Those behind the point of 1.83.
    """
    if value < 0.1:
        return f"{value:.{digits}g}"
    if value < 9.995:
        return f"{value:.{digits}f}"
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun; from 1000 on with commas, as all counts in sentences have them.

    Parameters
    ----------
    number
        How many there are.
    noun
        In the singular.
    plural
        By default the noun with an s.

    Examples
    --------
    >>> count(1, "thread"), count(32896, "copy", "copies")
    ('1 thread', '32,896 copies')
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {plural or f'{noun}s'}"


def dtype_name(dtype: Any) -> str:
    """Return ``'float32'`` for that text and for any framework's dtype of that name, be it an object or a class."""
    name = dtype
    if not isinstance(dtype, str):
        name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype
    return str(name).rsplit(".", 1)[-1]


def _scale(value: float, units: tuple[tuple[float, str], ...]) -> str:
    """Return a number in the largest unit of which it is one or more; the units are the largest first."""
    if isinstance(value, SimulatedNumber):
        return f"{_scale(float(value), units)} {SIMULATED_MARK}"
    if not math.isfinite(value):
        return f"{value} {dict(units)[1]}"

    # 0.9995 of a unit would round to 1000 of the smaller one
    scale, unit = next((pair for pair in units if abs(value) >= 0.9995 * pair[0]), units[-1])
    scaled = value / scale

    # 1000 to 1023 KiB, or more than the largest unit: .3g would write an exponent
    return f"{scaled:.0f} {unit}" if abs(scaled) >= 999.5 else f"{scaled:.3g} {unit}"


def first_line(error: BaseException, *, kind: bool = False) -> str:
    """Return how an exception's text begins, in a line; its kind if it has no text.

    Parameters
    ----------
    error
        The exception.
    kind
        Whether its kind stands before the text: ``ValueError: no such page``.
    """
    name = type(error).__name__
    lines = str(error).strip().splitlines()
    if not lines:
        return name
    return f"{name}: {lines[0]}" if kind else lines[0]


def lines(*texts: Any, width: int = 79) -> str:
    """Return texts below each other, for `print`, in lines that a page need not break inside words.

    A word that is longer than a line, such as a path, stays whole. A text with lines of its own keeps them.

    Parameters
    ----------
    *texts
        Anything that has a text.
    width
        Columns that a line may have; what follows in the next one is indented.

    Examples
    --------
    >>> print(lines("bfloat16 is faster", "float16 takes as long", width=18))
    bfloat16 is faster
    float16 takes as
      long
    """
    filled = []
    for line in "\n".join(map(str, texts)).splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        shown = textwrap.fill(
            line,
            width,
            subsequent_indent=f"{indent}  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        filled.append(shown)

    return "\n".join(filled)
