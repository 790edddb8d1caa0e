"""Whatever tensors and parity functions go in: a refusal in a line, or the answer of a slow definition in fractions."""

from __future__ import annotations

import itertools
import math
import warnings
from fractions import Fraction

import numpy as np
import torch
from fuzzing import fuzzed
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from metallab import checks, timing

TORCH_DTYPES = (
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "complex64",
    "complex128",
    "int8",
    "int64",
    "uint8",
    "bool",
)


def judged(reference, result, dtype="float32"):
    """True if they agree, False if not, None where it is refused: a TypeError. Both in a line that says of what."""
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


# --- numbers, against the definition in exact arithmetic ---

SPECIAL = (0.0, -0.0, 1.0, -1.0, 1e-7, 1e-30, 1e4, 1e9, -1e9, 6e4, 3e38, 1.7e308, 5e-324, math.inf, -math.inf, math.nan)
INTERESTING = st.sampled_from(SPECIAL)
FLOATS = st.one_of(INTERESTING, st.floats(), st.floats(-3, 3))
CHANGES = st.sampled_from([0.0, 1e-13, 1e-9, 3e-7, 3e-5, 3e-4, 3e-3, 3e-2, 0.3, 3.0])


@st.composite
def pairs_of_floats(draw):
    """Two arrays of one shape in float or complex dtypes; the second is the first, changed somewhere by some amount."""
    dtype = draw(st.sampled_from(["float16", "float32", "float64", "complex64", "complex128"]))
    shape = draw(array_shapes(min_dims=0, max_dims=2, min_side=1, max_side=4))
    count = math.prod(shape)
    draw_all = lambda: np.array(draw(st.lists(FLOATS, min_size=count, max_size=count)))
    with np.errstate(all="ignore"):
        reference = draw_all()
        if dtype.startswith("complex"):
            reference = reference + np.zeros(count, complex)
            reference.imag = draw_all()
        factors = np.array(draw(st.lists(CHANGES, min_size=count, max_size=count)))
        result = reference.copy()
        changed = factors != 0
        result[changed] = reference[changed] * (1 + factors[changed]) + draw(st.sampled_from([0, 1e-9, 1e-3]))
        return reference.astype(dtype).reshape(shape), result.astype(dtype).reshape(shape)


def magnitude(*parts):
    """The root of a sum of squares, to 700 digits."""
    return Fraction(math.isqrt(int(sum(Fraction(part) ** 2 for part in parts) * 10**1400)), 10**700)


def agree(a, b, allowed, size, slack):
    """The definition for two numbers, with a limit times ``slack``: part by part where one is not finite."""
    parts = [(a.real, b.real), (a.imag, b.imag)]
    if any(math.isnan(x) != math.isnan(y) for x, y in parts):
        return False
    finite = [(x, y) for x, y in parts if math.isfinite(x) and math.isfinite(y)]
    others = [(x, y) for x, y in parts if not (math.isfinite(x) and math.isfinite(y))]
    if any(x != y and not math.isnan(x) for x, y in others):
        return False
    known = magnitude(*(x for x, _ in parts if math.isfinite(x)))
    apart = magnitude(*(Fraction(x) - Fraction(y) for x, y in finite))
    if any(math.isinf(x) for x, _ in parts):
        return apart == 0
    limit = Fraction(allowed.relative) * (known + size) + Fraction(allowed.absolute)
    return apart <= limit * slack


@fuzzed(400, pair=pairs_of_floats(), dtype=st.sampled_from(["float16", "float32", "float64", "int64"]))
def test_numbers_agree_as_the_definition_says(pair, dtype):
    """What agrees without the array's size is accepted, what differs with the largest value for its size is not."""
    reference, result = pair
    allowed = checks.tolerance(dtype)
    slack = Fraction(1, 10**4)  # what a comparison in this precision may round away
    values = [(complex(a), complex(b)) for a, b in zip(reference.ravel(), result.ravel(), strict=True)]
    finite = [a for a, _ in values if math.isfinite(a.real) and math.isfinite(a.imag) and a != 0]
    sizes = [magnitude(a.real, a.imag) for a in finite]
    least, most = Fraction(0), max(sizes, default=Fraction(0))
    assume(most < Fraction(float(np.finfo(reference.dtype).max)) / 2)  # no infinity on the way
    if sizes and most <= 5 * min(sizes):  # no mask, so the size is the root mean square of all
        least = most = magnitude(*sizes) / magnitude(len(sizes) ** 0.5)
    accepted = judged(reference, result, dtype)
    if all(agree(a, b, allowed, least, 1 - slack) for a, b in values):
        assert accepted is True
    if not all(agree(a, b, allowed, most, 1 + slack) for a, b in values):
        assert accepted is False
    shared = torch.tensor(reference)
    assert judged(shared, result, dtype) == judged(reference, torch.tensor(result), dtype) == accepted


@fuzzed(
    150,
    informative=st.lists(st.floats(0.3, 2).map(lambda x: float(np.float32(x))), min_size=1, max_size=20),
    masks=st.lists(st.sampled_from([-1e9, -2e9, -1e4, 1e9, -65504.0, -3e38, 300.0]), min_size=1, max_size=3),
    times=st.integers(3, 40),
    change=st.sampled_from([0.2, 0.5, 1.5, 3.0, 100.0]),
    seed=st.integers(0, 100),
)
def test_masks_are_no_size(informative, masks, times, change, seed):
    """However many there are: a change by a share of what is allowed passes, by a multiple of it not."""
    reference = np.float32(informative + masks * times)
    index = seed % len(informative)
    size = math.sqrt(sum(x * x for x in informative) / len(informative))
    allowed = 1e-4 * (abs(informative[index]) + size) + 1e-6
    result = reference.copy()
    result[index] += np.float32(change * allowed)
    order = np.random.default_rng(seed).permutation(len(reference))
    assert judged(reference[order], result[order]) == (change < 1)


WHOLE = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.builds(lambda p, d: 2**p + d, st.sampled_from([23, 24, 52, 53, 54, 62, 63]), st.integers(-2, 2)),
)


@st.composite
def whole_and_any(draw):
    """A whole number in a dtype that holds it, and a number near it in any dtype, as a number of Python as well."""
    whole = draw(WHOLE)
    signed = np.int64(whole) if -(2**63) <= whole < 2**63 else np.uint64(whole)
    near = draw(st.sampled_from([whole, whole + 1, whole - 1, float(whole), float(whole) + 0.5, math.nan, math.inf, 0]))
    if isinstance(near, int):
        assume(-(2**63) <= near < 2**64)
        return signed, np.int64(near) if near < 2**63 else np.uint64(near)
    with np.errstate(over="ignore"):
        return signed, np.dtype(draw(st.sampled_from(["float32", "float64", "complex128", "float16"]))).type(near)


@fuzzed(300, pair=whole_and_any(), dtype=st.sampled_from(["float32", "bfloat16", "int64", "float64"]))
def test_whole_numbers_are_equal_exactly(pair, dtype):
    """Whatever stands beside them, and on whichever side."""
    whole, other = (np.asarray([value]) for value in pair)
    exact = complex(pair[1]) if other.dtype.kind == "c" else pair[1].item()
    if isinstance(exact, complex):
        exact = exact.real
    equal = (isinstance(exact, int) or math.isfinite(exact)) and Fraction(exact) == int(pair[0])
    assert judged(whole, other, dtype) == judged(other, whole, dtype) == equal


# --- memory ---


@st.composite
def views(draw, buffer):
    """A part of a buffer of NumPy, its elements in any order that strides can give."""
    start, stop = sorted(draw(st.tuples(st.integers(0, len(buffer)), st.integers(0, len(buffer)))))
    view = buffer[start : stop : draw(st.integers(1, 3))]
    view = view[:: draw(st.sampled_from([1, -1]))]
    for rows in (2, 3):
        if view.size and view.size % rows == 0 and draw(st.booleans()):
            view = view.reshape(rows, -1)
            return view.T if draw(st.booleans()) else view
    return view


@fuzzed(200, data=st.data(), torches=st.tuples(st.booleans(), st.booleans()), same=st.booleans())
def test_memory_is_shared_if_an_element_is(data, torches, same):
    """The oracle: views of a buffer of addresses, cut alike."""
    addresses = np.arange(24)
    places = data.draw(views(addresses)), data.draw(views(addresses))
    assume(all(place.size for place in places) and places[0].shape == places[1].shape)
    buffers = [np.zeros(24, np.float32)] * 2 if same else [np.zeros(24, np.float32), np.zeros(24, np.float32)]
    base = addresses.__array_interface__["data"][0]
    made = []
    for place, buffer, with_torch in zip(places, buffers, torches, strict=True):
        offset = (place.__array_interface__["data"][0] - base) // 8
        strides = [stride // 2 for stride in place.strides]
        if with_torch and min(strides) >= 0:
            elements = [stride // 4 for stride in strides]
            made.append(torch.as_strided(torch.from_numpy(buffer), place.shape, elements, int(offset)))
        else:
            made.append(np.ndarray(place.shape, np.float32, buffer, int(offset) * 4, strides))
    shared = same and bool(set(places[0].ravel().tolist()) & set(places[1].ravel().tolist()))
    assert judged(*made) == (not shared)


# --- every kind of tensor ---


def as_kind(values, kind):
    """The same numbers, (4, 4) of float32, in another kind; and what is left of them."""
    if kind == "meta":
        return values.to("meta")
    if kind == "nested":
        return torch.nested.nested_tensor(list(values))
    if kind == "jagged":
        return torch.nested.nested_tensor(list(values), layout=torch.jagged)
    if kind == "quantised":
        return torch.quantize_per_tensor(values, 0.25, 0, torch.qint32)
    if kind in ("numpy", "list"):
        return values.numpy().copy() if kind == "numpy" else list(values.clone())
    if kind == "conjugate":
        return torch.complex(values, torch.zeros(4, 4)).conj()
    if kind in TORCH_DTYPES:
        return values.to(getattr(torch, kind))
    block = {"blocksize": (2, 2)} if kind in ("bsr", "bsc") else {}
    return values.to_sparse(layout=getattr(torch, f"sparse_{kind}"), **block)


PARTS = ("nested", "jagged", "list")
KINDS = ("meta", *PARTS, "quantised", "numpy", "conjugate", *TORCH_DTYPES, "coo", "csr", "csc", "bsr", "bsc")


@fuzzed(
    300,
    quarters=st.lists(st.integers(-3, 3), min_size=16, max_size=16),
    change=st.sampled_from([0, 0, 1]),
    kinds=st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS)),
    dtype=st.sampled_from(["float32", "float16", "int8"]),
)
def test_every_kind_of_tensor_is_compared_or_refused(quarters, change, kinds, dtype):
    """Multiples of 1/4, which every kind holds exactly; whole ones where a kind holds no others."""
    whole = any(kind in ("int8", "int64", "uint8", "bool") for kind in kinds)
    values = torch.tensor(quarters, dtype=torch.float32).reshape(4, 4) / (1 if whole else 4)
    if any(kind in ("uint8", "bool") for kind in kinds):
        values = values.abs()
    if "bool" in kinds:
        values = values.bool().float()
    other = values.clone()
    other[0, 0] = 1 - other[0, 0] if "bool" in kinds else other[0, 0] + change
    equal = torch.equal(values, other)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pair = as_kind(values, kinds[0]), as_kind(other, kinds[1])
    got = judged(*pair, dtype)
    if "meta" in kinds:
        assert not got
    elif (kinds[0] in PARTS) != (kinds[1] in PARTS):
        assert got is False, "parts against a whole"
    else:
        assert got is equal


@st.composite
def structures(draw):
    """A nesting of lists, tuples and dicts with small arrays."""
    leaf = st.lists(st.integers(0, 2), min_size=0, max_size=2).map(lambda values: np.array(values, np.float32))
    return draw(
        st.recursive(
            st.one_of(st.none(), leaf, st.integers(-3, 3), st.sampled_from(["a", "b"])),
            lambda inner: st.one_of(
                st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
            ),
            max_leaves=5,
        )
    )


def flat(value, path=()):
    if isinstance(value, dict):
        return {p: v for key, item in value.items() for p, v in flat(item, (*path, "key", key)).items()}
    if isinstance(value, list | tuple):
        return {p: v for index, item in enumerate(value) for p, v in flat(item, (*path, "index", index)).items()}
    return {} if value is None else {path: value}


def equal(a, b):
    if isinstance(a, str) or isinstance(b, str):
        return isinstance(a, str) and isinstance(b, str) and a == b
    return np.shape(a) == np.shape(b) and bool(np.all(np.asarray(a) == np.asarray(b)))


@fuzzed(150, pair=st.tuples(structures(), structures()), alike=st.booleans())
def test_nested_results_are_compared_part_by_part(pair, alike):
    """And nothing against nothing is no agreement."""
    import copy

    reference, result = pair
    result = copy.deepcopy(reference) if alike else result
    expected, got = flat(reference), flat(result)
    agrees = expected.keys() == got.keys() and all(equal(expected[path], got[path]) for path in expected)
    assert judged(reference, result) == (agrees and any(np.size(value) for value in expected.values()))


# --- parity functions ---


class Answer:
    """A check that answers always the same, and the truth that this stands for: None if for none."""

    def __init__(self, value, truth):
        self.value, self.truth = value, truth

    def __repr__(self):
        return f"Answer({self.value!r})"

    def __call__(self, reference, result):
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


YES = st.sampled_from([None, True, np.True_, 1, torch.tensor(True), np.array([True])])
NO = st.sampled_from([False, np.False_, 0, torch.tensor(False), np.array([False]), AssertionError("a\n\n b")])
NEITHER = st.sampled_from(
    [NotImplemented, "yes", "", (False, "why"), (), 0.0, 3.7, np.array([True, True]), torch.ones(2)]
)
ANSWERS = st.one_of(
    st.builds(Answer, YES, st.just(True)),
    st.builds(Answer, NO, st.just(False)),
    st.builds(Answer, st.text(max_size=20).map(AssertionError), st.just(False)),
    st.builds(Answer, NEITHER, st.none()),
)
NAMES = ("base", "other", "third")


def compared(functions, parity):
    """As quickly as it can be, by a clock that ticks at every look."""
    ticks = itertools.count(step=1_000_000)
    budget = timing.Budget(
        min_samples=2, max_samples=2, min_seconds=0.0, warmup_calls=1, warmup_seconds=0.0, warmup_limit=0.0
    )
    variants = dict(zip(NAMES, functions, strict=True))
    told = {"on": timing.Host(), "baseline": "base", "budget": budget, "clock": lambda: next(ticks)}
    return timing.compare(variants, parity=parity, **told)


@fuzzed(150, answers=st.tuples(ANSWERS, ANSWERS))
def test_whatever_a_check_answers_is_judged_by_its_truth(answers):
    """What is neither true nor false is refused, in a line."""
    judges = dict(zip(NAMES[1:], answers, strict=True))
    try:
        got = compared([lambda: np.ones(2)] * 3, judges)
    except TypeError as error:
        refusal = str(error)
        assert None in {answer.truth for answer in answers}, refusal
        reasons = [refusal]
        assert "neither true nor false" in refusal
    else:
        assert set(got.paired) == {name for name, answer in judges.items() if answer.truth}
        reasons = list(got.refused.values())
        assert all(reason.startswith("outputs differ: ") for reason in reasons)
        assert len(got.paired) + len(reasons) == 2
    assert not any("\n" in reason for reason in reasons)


@fuzzed(
    150,
    wrong_from=st.tuples(*[st.sampled_from([None, None, None, 0, 1, 4])] * 3),
    buffered=st.booleans(),
    answer=st.sampled_from([np.array_equal, checks.matches("float32"), lambda a, b: bool(np.all(a == b))]),
)
def test_a_speed_up_is_given_if_first_and_last_outputs_agree(wrong_from, buffered, answer):
    """Whichever of three functions gives other numbers from its n-th call on, also into memory of its own each time."""

    def variant(since):
        calls, out = itertools.count(), np.zeros(2)

        def fn():
            value = 1.0 if since is None or next(calls) < since else 2.0
            if not buffered:
                return np.full(2, value)
            out[:] = value
            return out

        return fn

    base, *others = wrong_from
    got = compared([variant(since) for since in wrong_from], answer)
    # a function that is wrong from the first call on never changes: it is held against the others
    right = {None: 1.0, 0: 2.0}
    fits = {name for name, since in zip(NAMES[1:], others, strict=True) if since in right and since == base}
    if buffered and base in (0, 1):  # what was wrong from the warm-up on had overwritten the first result
        fits = {name for name, since in zip(NAMES[1:], others, strict=True) if since in (0, 1)}
    assert set(got.paired) == fits
    assert set(got.refused) == {*NAMES[1:]} - fits
