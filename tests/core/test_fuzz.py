"""Whatever a file of results, a pair of tensors or a variant holds: a refusal in a line, or the right answer.

`make test` looks at some hundred examples, the same each time; `make test SUITE=fuzz` at random ones, for
``METALLAB_FUZZ`` minutes, which the fuzzers share. A counter-example is printed in full, and belongs into a test.
"""

from __future__ import annotations

import cmath
import dataclasses
import json
import math
import os
import statistics
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from results_files import texts
from test_check_results import contribution

from metallab import checks, machine, records

SECONDS = 60 * float(os.environ.get("METALLAB_FUZZ") or 0)
_fuzzers: list[str] = []


def fuzzed(examples: int, **strategies: Any) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Return a decorator that makes a test without arguments of a check, whose arguments are drawn.

    The test looks at so many examples, the same each time. With ``METALLAB_FUZZ`` they are random ones, and it takes as
    many again until its share of the time is up.
    """

    def decorate(check: Callable[..., None]) -> Callable[[], None]:
        _fuzzers.append(check.__name__)

        def test() -> None:
            # when a test runs, all fuzzers of this file have been counted
            until = time.monotonic() + SECONDS / len(_fuzzers)
            look = settings(
                max_examples=examples,
                deadline=None,
                derandomize=not SECONDS,
                database=None,
                phases=(Phase.explicit, Phase.generate, Phase.shrink),
                suppress_health_check=list(HealthCheck),
            )(given(**strategies)(check))
            look()
            while time.monotonic() < until:
                look()

        test.__doc__, test.__name__ = check.__doc__, check.__name__
        return test

    return decorate


# --- files of results ---

MACHINE = machine.Machine(
    chip="Apple M2 Max",
    cores_physical=12,
    cores_logical=12,
    cores_performance=8,
    cores_efficiency=4,
    memory_bytes=32 << 30,
    gpu="Apple M2 Max",
    gpu_cores=30,
    os_name="macOS",
    os_version="15.1",
    architecture="arm64",
    virtual=False,
    python="3.11.9",
    versions={"torch": "2.15.0", "jax": None},
    git_revision="0123456789abcdef0123456789abcdef01234567",
    git_dirty=False,
    power_source="AC",
    low_power_mode=False,
    cpu_governor=None,
    load_average=(1.0, 1.5, 2.0),
    environment={"OMP_NUM_THREADS": "8"},
)
"""One machine for all: what is drawn depends on what the file holds, and shall not depend on where the test runs."""

GOOD = [dataclasses.replace(one, machine=MACHINE) for one in contribution()]
ODD = [
    "",
    "\x1b[2J",
    "a\nb",
    "<script>",
    "\ud800",
    "../../x",
    "x" * 2000,
    -1,
    0,
    5e-324,
    2**63,
    10**400,
    math.nan,
]
ODD += [
    "CPU",
    "mps",
    "baseline",
    "faster",
    "full",
    "fast",
    "0001-01-01T00:00:00+23:59",
    None,
    True,
    [],
    {},
    [[1, 2]],
]
VALUES = st.sampled_from(ODD) | st.floats() | st.integers() | st.text(max_size=5)


def places(data: Any, above: tuple = ()) -> list[tuple]:
    """The path to everything in a JSON value."""
    inside = []
    if isinstance(data, dict):
        inside = data.items()
    elif isinstance(data, list):
        inside = enumerate(data)

    return [
        path for key, value in inside for path in [(*above, key), *places(value, (*above, key))]
    ]


@st.composite
def changed_files(draw) -> bytes:
    """A good file with one to three values changed anywhere, also inside of its JSON texts; one in twenty is cut off.

    A value that is changed is scaled, becomes any value at all, is gone, or stands there twice.
    """
    with tempfile.TemporaryDirectory() as folder:
        data = json.loads(records.write(Path(folder) / "good.json", GOOD).read_text())
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        inner = [
            (metadata, kind) for metadata, kind in texts(data) if isinstance(metadata[kind], str)
        ]
        metadata, kind = draw(st.sampled_from(inner))
        whole = draw(st.booleans())
        given = data if whole else json.loads(metadata[kind])
        *path, last = draw(st.sampled_from(places(given)))
        place = given
        for step in path:
            place = place[step]
        value = place[last]
        what = draw(st.sampled_from(["scaled", "scaled", "any", "drop", "twice"]))
        if what == "scaled" and isinstance(value, float):
            place[last] = value * draw(st.sampled_from([0.5, 1 + 1e-12, 1.1, 1e6]))
        elif what == "drop":
            del place[last]
        elif what == "twice" and isinstance(place, list):
            place.insert(last, json.loads(json.dumps(value)))  # a copy: a later change is of one
        else:
            place[last] = draw(VALUES)
        if whole:
            break  # perhaps no JSON text is left for another change
        metadata[kind] = json.dumps(given)

    content = json.dumps(data).encode()
    is_cut_off = draw(st.integers(0, 19)) == 7
    return content[: draw(st.integers(0, len(content)))] if is_cut_off else content


def assert_right(path: Path) -> str:
    """Assert that a file is refused in a line that names it, or that each speed-up follows from samples in the file.

    It is the median of the ratios of the baseline's samples to the variant's. Return ``refused`` or ``read``.
    """
    try:
        loaded = records.load(path)
    except records.RecordError as refused:
        message = str(refused)
        loaded = None
    if loaded is None:
        assert message.startswith(f"{path}: ")
        assert message.isprintable()
        return "refused"

    samples = {(one.name, one.moment): one.measurement.samples for one in loaded}
    for one in loaded:
        if one.comparison and one.comparison.median is not None:
            base = samples[
                f"{one.lesson}/{one.comparison.name}/{one.comparison.baseline}", one.moment
            ]
            ratios = [b / v for b, v in zip(base, one.measurement.samples, strict=True)]
            assert one.comparison.median == pytest.approx(statistics.median(ratios), rel=1e-9)
    return "read"


OUTCOMES: Counter[str] = Counter()


@fuzzed(400, content=changed_files())
def read_any(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "any.json"
        path.write_bytes(content)
        OUTCOMES[assert_right(path)] += 1


def test_whatever_a_file_holds_it_is_refused_or_read_right():
    OUTCOMES.clear()
    read_any()
    assert OUTCOMES["read"] > 10, "nearly every file was refused: what is read was hardly looked at"
    assert OUTCOMES["refused"] > 10


# --- comparisons of tensors ---


def judged(reference, result, dtype="float32"):
    """Return True if two results agree, False if they do not, and None where a TypeError refuses to compare them.

    Assert that what is said of a difference or a refusal is one line that says of what it speaks.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's, of layouts in beta
            checks.assert_close(reference, result, dtype)
    except (checks.Mismatch, TypeError) as refusal:
        message, known = str(refusal), None if isinstance(refusal, TypeError) else False
    else:
        return True
    assert "\n" not in message, f"more than a line: {message}"
    assert "result" in message or "nothing to compare" in message
    assert known is False or "compare" in message or "meta" in message
    return known


SPECIAL = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    1e-7,
    1e-30,
    1e4,
    1e9,
    -1e9,
    6e4,
    3e38,
    1.7e308,
    5e-324,
    math.inf,
    -math.inf,
    math.nan,
)
INTERESTING = st.sampled_from(SPECIAL)
FLOATS = st.one_of(INTERESTING, st.floats(), st.floats(-3, 3))
CHANGES = st.sampled_from([0.0, 1e-13, 1e-9, 3e-7, 3e-5, 3e-4, 3e-3, 3e-2, 0.3, 3.0])


@st.composite
def pairs_of_floats(draw):
    """Two arrays of one shape in float or complex dtypes; the second is the first, changed somewhere by some amount."""
    dtype = draw(st.sampled_from(["float16", "float32", "float64", "complex64", "complex128"]))
    shape = draw(array_shapes(min_dims=0, max_dims=2, min_side=1, max_side=4))

    count = math.prod(shape)

    def draw_all(numbers=FLOATS):
        return np.array(draw(st.lists(numbers, min_size=count, max_size=count)))

    with np.errstate(all="ignore"):
        reference = draw_all()
        if dtype.startswith("complex"):
            reference = reference + np.zeros(count, complex)
            reference.imag = draw_all()

        factors = draw_all(CHANGES)
        result = reference.copy()
        changed = factors != 0
        result[changed] = reference[changed] * (1 + factors[changed]) + draw(
            st.sampled_from([0, 1e-9, 1e-3])
        )
        return reference.astype(dtype).reshape(shape), result.astype(dtype).reshape(shape)


def magnitude(*parts):
    """The root of a sum of squares, to 700 digits."""
    return Fraction(math.isqrt(int(sum(Fraction(part) ** 2 for part in parts) * 10**1400)), 10**700)


def agree(a, b, allowed, size, slack):
    """Return whether two numbers agree by the definition in `metallab.checks`, reckoned exactly.

    Numbers that are not finite have to be the same, and then the finite parts of complex ones as well.

    Parameters
    ----------
    a, b
        The known number and the other one, complex.
    allowed
        The tolerance of the dtype.
    size
        Of the array that the known number is from: the tolerance has a share of it.
    slack
        By which the limit is multiplied.
    """
    if cmath.isnan(a) or cmath.isnan(b):
        return cmath.isnan(a) == cmath.isnan(b)
    parts = [(a.real, b.real), (a.imag, b.imag)]
    finite = [(x, y) for x, y in parts if math.isfinite(x) and math.isfinite(y)]
    if any(x != y for x, y in parts if not (math.isfinite(x) and math.isfinite(y))):
        return False

    known = magnitude(*(x for x, _ in parts if math.isfinite(x)))
    apart = magnitude(*(Fraction(x) - Fraction(y) for x, y in finite))
    if any(math.isinf(x) for x, _ in parts):
        return apart == 0
    limit = Fraction(allowed.relative) * (known + size) + Fraction(allowed.absolute)
    return apart <= limit * slack


def list_sizes(reference):
    """Return the sizes of an array's values that may count for its own: those that are finite and not 0."""
    values = [complex(value) for value in reference.ravel()]
    finite = [a for a in values if math.isfinite(a.real) and math.isfinite(a.imag) and a != 0]
    return [magnitude(a.real, a.imag) for a in finite]


def bound_size(sizes):
    """Return the least and the most that an array's size is by the definition, for the sizes of its values."""
    if not sizes:
        return Fraction(0), Fraction(0)
    if max(sizes) <= 5 * min(sizes):  # no mask, so the size is the root mean square of all
        size = magnitude(*sizes) / magnitude(len(sizes) ** 0.5)
        return size, size
    return Fraction(0), max(sizes)


SLACK = Fraction(1, 10**4)
"""What a comparison in the precision of an array may round away, of the limit."""


@fuzzed(
    400, pair=pairs_of_floats(), dtype=st.sampled_from(["float16", "float32", "float64", "int64"])
)
def test_numbers_agree_as_the_definition_says(pair, dtype):
    """Pairs that agree by the least size that the definition gives are accepted, those that differ by the most are not.

    What lies between the two is left open; PyTorch's tensors are judged as NumPy's arrays are.
    """
    reference, result = pair
    sizes = list_sizes(reference)
    largest = Fraction(float(np.finfo(reference.dtype).max))
    assume(max(sizes, default=0) < largest / 2)  # no infinity on the way

    accepted = judged(reference, result, dtype)

    allowed = checks.tolerance(dtype)
    least, most = bound_size(sizes)
    both = [map(complex, array.ravel()) for array in (reference, result)]
    pairs = list(zip(*both, strict=True))
    if all(agree(a, b, allowed, least, 1 - SLACK) for a, b in pairs):
        assert accepted is True
    if not all(agree(a, b, allowed, most, 1 + SLACK) for a, b in pairs):
        assert accepted is False

    assert judged(torch.tensor(reference), result, dtype) == accepted
    assert judged(reference, torch.tensor(result), dtype) == accepted
