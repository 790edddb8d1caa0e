"""What agrees passes, what differs is found and named, and no check passes by checking nothing."""

from __future__ import annotations

import collections
import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pretend import pretend

from metallab import checks, judgement, timing
from metallab.device import PyTorchDevice

MPS = PyTorchDevice("mps", "Apple M2 GPU")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def jax_array(values: np.ndarray):
    return pytest.importorskip("jax.numpy").asarray(values)


# --- tolerances ---


@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param("float32", id="a name"),
        pytest.param(np.float32, id="a type of NumPy"),
        pytest.param(np.dtype("float32"), id="a dtype of NumPy"),
        pytest.param(torch.float32, id="a dtype of PyTorch"),
        pytest.param(torch.complex64, id="complex, of two such parts"),
    ],
)
def test_every_way_to_name_a_dtype_has_its_tolerance(dtype):
    assert checks.tolerance(dtype) == checks.TOLERANCES["float32"]


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_a_dtype_of_jax_has_the_same_tolerance(name):
    jnp = pytest.importorskip("jax.numpy")
    assert checks.tolerance(getattr(jnp, name)) == checks.TOLERANCES[name]


def test_bfloat16_of_pytorch_has_its_tolerance():
    assert checks.tolerance(torch.bfloat16) == checks.TOLERANCES["bfloat16"]


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.bool, np.uint8, np.bool_, "qint8", int], ids=str
)
def test_whole_numbers_have_no_tolerance(dtype):
    assert checks.tolerance(dtype) == checks.Tolerance(0, 0)


def test_the_lower_the_precision_the_wider_the_tolerance():
    names = ["float64", "float32", "float16", "bfloat16"]
    allowed = [checks.tolerance(name).relative for name in names]
    assert allowed == sorted(allowed)


def test_a_tolerance_is_told_in_words():
    told = str(checks.tolerance("float16"))
    assert told == "0.01 of the value plus 0.01 of the array's root mean square"


def test_nobody_can_widen_a_tolerance_for_all():
    with pytest.raises(AttributeError):
        checks.tolerance("float16").relative = 1.0


@pytest.mark.parametrize("dtype", ["fp32", "float8_e4m3fn", "torch.floaty", None])
def test_a_dtype_without_tolerance_is_named_before_anything_runs(dtype):
    with pytest.raises(ValueError, match=r"no tolerance for .*float64.* and whole numbers"):
        checks.matches(dtype)


# --- a large matrix product: 1e-4 for each value refuses a right one, 1e-2 lets TensorFloat-32 pass ---


def round_mantissa(values: np.ndarray, *, bits: int) -> np.ndarray:
    """Return float32 with fewer bits of mantissa: 10 are TensorFloat-32, 7 are bfloat16."""
    step = np.uint32(1 << (23 - bits))
    return ((values.view(np.uint32) + step // 2) & ~(step - np.uint32(1))).view(np.float32)


def multiply_one_by_one(a: np.ndarray, b: np.ndarray, *, dtype=np.float32) -> np.ndarray:
    """Return a product whose terms are added one after the other, rounded each time: the worst order there is."""
    total = np.zeros((len(a), b.shape[1]), dtype)
    for k in range(a.shape[1]):
        total += a[:, k : k + 1].astype(dtype) * b[k].astype(dtype)
    return total


@pytest.fixture(scope="module")
def large():
    """Two matrices, and the product that NumPy makes of them."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((128, 8192), dtype=np.float32)
    b = rng.standard_normal((8192, 128), dtype=np.float32)
    return SimpleNamespace(a=a, b=b, product=a @ b)


def test_every_order_of_adding_passes(large):
    checks.assert_close(large.product, multiply_one_by_one(large.a, large.b), "float32")


def test_operands_in_tensorfloat_32_are_no_float32(large):
    a, b = round_mantissa(large.a, bits=10), round_mantissa(large.b, bits=10)
    with pytest.raises(checks.Mismatch):
        checks.assert_close(large.product, a @ b, "float32")


def test_rounding_to_float16_passes_as_float16(large):
    a = large.a.astype(np.float16).astype(np.float32)
    b = large.b.astype(np.float16).astype(np.float32)
    checks.assert_close(large.product, (a @ b).astype(np.float16), "float16")


def test_rounding_to_bfloat16_passes_as_bfloat16(large):
    a, b = round_mantissa(large.a, bits=7), round_mantissa(large.b, bits=7)
    checks.assert_close(large.product, round_mantissa(a @ b, bits=7), "bfloat16")


def test_adding_in_float16_is_refused(large):
    wrong = multiply_one_by_one(large.a[:8], large.b[:, :8], dtype=np.float16)
    with pytest.raises(checks.Mismatch):
        checks.assert_close(large.product[:8, :8], wrong, "float16")


# --- the size of an array ---


@pytest.mark.parametrize("size", [1e-30, 1e-5, 1.0, 1e30])
def test_a_small_part_of_an_array_s_size_is_rounding(rng, size):
    reference = rng.standard_normal(1000).astype(np.float32) * np.float32(size)
    checks.assert_close(reference, reference + np.float32(size * 5e-5), "float32")


@pytest.mark.parametrize("size", [1e-5, 1.0, 1e30])
def test_half_of_an_array_s_size_is_none(rng, size):
    """Small outputs are looked at as closely as large ones."""
    reference = rng.standard_normal(1000).astype(np.float32) * np.float32(size)
    with pytest.raises(checks.Mismatch, match="1000 of 1000 values differ too much"):
        checks.assert_close(reference, reference + np.float32(size / 2), "float32")


def test_what_should_be_zero_may_be_off_by_rounding():
    """The sine of pi and its like."""
    checks.assert_close(np.zeros(3), np.full(3, 5e-7), "float32")


def test_what_should_be_zero_may_not_be_off_by_more():
    with pytest.raises(checks.Mismatch):
        checks.assert_close(np.zeros(3), np.full(3, 5e-6), "float32")


def test_large_values_hide_no_difference_among_the_others(rng):
    values = rng.standard_normal(1000).astype(np.float32)
    values[:300] *= 1e9  # no mask, and not what the others are like
    wrong = values.copy()
    wrong[600] += 0.1
    with pytest.raises(checks.Mismatch, match="1 of 1000 values differ too much"):
        checks.assert_close(values, wrong, "float32")


def test_zeros_make_no_rounding_look_large():
    """After a ReLU most values are 0."""
    sparse = np.zeros(1000, np.float32)
    sparse[:100] = 30.0
    checks.assert_close(sparse, sparse + 1e-3 * (sparse > 0), "float32")


# --- masks ---

MASKS = {
    "-1e9": -1e9,
    "-1e4": -1e4,
    "minus infinity": -np.inf,
    "the lowest of float16": float(np.finfo("float16").min),
    "the lowest of float32": float(np.finfo("float32").min),
    "added once or twice": [-1e9, -2e9],
    "of two kinds": [-1e9, -1e4],
    "positive and negative": [1e9, -1e9],
}
of_any_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
of_any_number = pytest.mark.parametrize("number", [3, 300, 600, 990])
in_two_precisions = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


def make_logits(rng, *, mask, number: int) -> np.ndarray:
    """Return 1000 random logits, so many of which are masked."""
    logits = rng.standard_normal(1000).astype(np.float32)
    logits[:number] = np.resize(mask, number)
    return logits


@of_any_mask
@of_any_number
@in_two_precisions
def test_masked_logits_may_be_rounded(rng, mask, number, dtype):
    logits = make_logits(rng, mask=mask, number=number)
    checks.assert_close(logits, logits * np.float32(1 - 1e-6), dtype)


@of_any_mask
@of_any_number
@in_two_precisions
def test_masks_in_any_number_hide_no_difference(rng, mask, number, dtype):
    """Zeros stand where the other logits should be, which alone carry information."""
    logits = make_logits(rng, mask=mask, number=number)
    wrong = np.where(np.arange(1000) < number, logits, 0).astype(np.float32)
    with pytest.raises(checks.Mismatch, match="values differ too much"):
        checks.assert_close(logits, wrong, dtype)


def test_a_mask_that_was_added_hides_no_difference(rng):
    """The logits below it show, so that no two masked values are equal."""
    added = rng.standard_normal(1000).astype(np.float32)
    added[:600] -= 1e4
    with pytest.raises(checks.Mismatch, match=r"3\d\d of 1000 values differ too much"):
        checks.assert_close(added, np.where(added < -5e3, added, 0), "bfloat16")


def test_a_single_value_beside_masks_is_compared():
    reference, result = np.float32([-1e9, -1e9, -1e9, 0.7]), np.float32([-1e9, -1e9, -1e9, 0.8])
    with pytest.raises(checks.Mismatch, match=r"worst at \(3,\): 0\.8 for 0\.7"):
        checks.assert_close(reference, result, "float32")


def test_what_cancels_among_large_values_carries_their_error(rng):
    """The gradient of the keys' bias is 0 but for rounding."""
    gradient = (rng.uniform(50, 150, 900) * rng.choice([-1, 1], 900)).astype(np.float32)
    gradient[300:600] = rng.standard_normal(300) * 1e-5
    noise = 1e-5 * rng.standard_normal(900).astype(np.float32)
    checks.assert_close(gradient, gradient + noise, "float32")


def test_the_upper_limit_of_an_activation_is_no_mask(rng):
    """ReLU6 makes 6 of whatever is larger."""
    saturated = np.where(np.arange(1000) < 600, 6.0, rng.uniform(-1, 1, 1000))
    assert checks.typical_size(saturated) == pytest.approx(np.sqrt(np.mean(saturated**2)))


def test_the_peaks_of_a_spectrum_are_no_masks():
    """Beside them there is nothing but rounding."""
    tones = sum(np.cos(2 * np.pi * k * np.arange(16) / 16) for k in range(1, 7)) * 1e6
    assert checks.typical_size(np.fft.fft(tones)) > 1e6


# --- what is compared ---

VALUES = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
COMPLEX = torch.complex(torch.tensor(VALUES), torch.tensor(VALUES + 1))

FRAMEWORKS = [
    pytest.param(np.copy, id="NumPy"),
    pytest.param(torch.tensor, id="PyTorch"),
    pytest.param(jax_array, id="JAX"),
]
"""Those that are cheap to import."""
of_any_framework = pytest.mark.parametrize("reference_of", FRAMEWORKS)
with_any_other = pytest.mark.parametrize("result_of", FRAMEWORKS)


@of_any_framework
@with_any_other
def test_arrays_of_any_two_frameworks_agree(reference_of, result_of):
    result = result_of(VALUES + np.float32(1e-6))
    checks.assert_close(reference_of(VALUES), result, "float32")


@of_any_framework
@with_any_other
def test_arrays_of_any_two_frameworks_differ(reference_of, result_of):
    result = result_of(VALUES + np.float32(1e-2))
    with pytest.raises(checks.Mismatch, match="result: 12 of 12 values differ"):
        checks.assert_close(reference_of(VALUES), result, "float32")


@pytest.mark.parametrize(
    ("reference", "result", "dtype"),
    [
        pytest.param(
            VALUES, torch.tensor(VALUES, requires_grad=True), "float32", id="on the graph"
        ),
        pytest.param(VALUES, torch.tensor(VALUES).bfloat16(), "bfloat16", id="bfloat16"),
        pytest.param(np.conj(COMPLEX.numpy()), COMPLEX.conj(), "complex64", id="lazy conjugate"),
        pytest.param(-COMPLEX.imag.numpy(), COMPLEX.conj().imag, "float32", id="lazy negative"),
        pytest.param(COMPLEX, COMPLEX.to(torch.complex32), "complex32", id="complex halves"),
        pytest.param(VALUES, VALUES + np.complex64(1e-6j), "float32", id="real and complex"),
        pytest.param(2.0, np.float64(2.0), "float64", id="numbers"),
        pytest.param(True, np.True_, "float32", id="truth values"),
        pytest.param(True, 1.0, "float32", id="a truth value and a number"),
    ],
)
def test_any_kind_of_number_is_compared(reference, result, dtype):
    checks.assert_close(reference, result, dtype)


def test_bfloat16_of_jax_is_compared():
    checks.assert_close(VALUES, jax_array(VALUES).astype("bfloat16"), "bfloat16")


def test_bfloat16_is_not_near_enough_for_float32():
    with pytest.raises(checks.Mismatch):
        checks.assert_close(VALUES, torch.tensor(VALUES).bfloat16(), "float32")


def test_a_lazy_conjugate_is_told_from_the_number():
    with pytest.raises(checks.Mismatch):
        checks.assert_close(COMPLEX, COMPLEX.conj(), "complex64")


class Eager:
    """As a TensorFlow tensor: an object with a dtype and ``__array__``."""

    def __array__(self, dtype=None):
        return np.ones(3)


def test_whatever_has_an_array_agrees():
    checks.assert_close(Eager(), np.ones(3), "float32")


def test_whatever_has_an_array_may_differ():
    with pytest.raises(checks.Mismatch):
        checks.assert_close(Eager(), np.zeros(3), "float32")


@pytest.mark.parametrize(
    "strange",
    [
        pytest.param({1, 2}, id="set"),
        pytest.param(object(), id="object"),
        pytest.param((letter for letter in "ab"), id="generator"),
        pytest.param(np.array([None, 1]), id="array of objects"),
    ],
)
def test_what_has_no_numbers_is_named(strange):
    message = rf"result\[0\] is a {type(strange).__name__}, which cannot be compared"
    with pytest.raises(TypeError, match=message):
        checks.assert_close([strange], [np.ones(2)], "float32")


# --- objects ---


class Layer:
    """As in a language model's cache: tensors beside settings."""

    __slots__ = ("keys", "name", "next")

    def __init__(self, keys):
        self.keys, self.name, self.next = keys, "a layer", self


class Cache:
    def __init__(self, *layers):
        self.layers, self.length, self.model = list(layers), 7, torch.nn.Linear(2, 2)


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    cache: Cache
    settings: object = dataclasses.field(default_factory=object)


Named = collections.namedtuple("Named", ["logits", "cache"])


@pytest.fixture(
    params=[
        pytest.param(Output, id="dataclass"),
        pytest.param(Named, id="named tuple"),
        pytest.param(lambda logits, cache: {"logits": logits, 1: cache}, id="dictionary"),
    ]
)
def make_output(request):
    """Return what makes a language model's output, with a cache of some library's own."""

    def make(*, logits: float = 1.0, keys: float = 1.0):
        return request.param(torch.ones(2) * logits, Cache(Layer(np.ones(3) * keys)))

    return make


def test_arrays_in_objects_of_any_library_agree(make_output):
    checks.assert_close(make_output(), make_output(keys=1 + 1e-9), "float32")


def test_an_output_with_a_cache_has_no_part_without_arrays(make_output):
    assert checks.without_arrays(make_output()) == []


def test_an_array_deep_in_an_object_is_compared(make_output):
    with pytest.raises(checks.Mismatch, match=r"layers\[0\]\.keys: 3 of 3 values differ too much"):
        checks.assert_close(make_output(), make_output(keys=2), "float32")


def test_what_stands_beside_an_object_is_compared(make_output):
    """A cache was once refused, and with it all that stood beside it."""
    with pytest.raises(checks.Mismatch, match="2 of 2 values differ too much"):
        checks.assert_close(make_output(), make_output(logits=2), "float32")


class Settings:
    def __init__(self, depth):
        self.depth = depth


def test_an_object_without_arrays_is_passed_over():
    checks.assert_close([np.ones(2), Settings(1)], [np.ones(2), Settings(2)], "float32")


def test_what_is_passed_over_is_listed():
    result = [np.ones(2), Settings(1), "a text", 3]
    assert checks.without_arrays(result) == ["result[1] (Settings)"]


def test_an_object_without_arrays_alone_is_refused():
    with pytest.raises(TypeError, match="result is a Settings, which cannot be compared"):
        checks.assert_close(Settings(1), Settings(1), "float32")


# --- parts ---


def make_nested(*, loss: float = 1.0, first=(1.0, 1.0), second=(1.0, 1.0), third=None) -> dict:
    """Return a result of several parts, each in a memory of its own."""
    return {"loss": loss, "layers": [np.array(first), (np.array(second), third)]}


def test_nested_results_agree_part_by_part():
    """The order of a dictionary's keys does not count, and a tuple is as good as a list."""
    near = np.array([1 + 1e-9, 1 + 1e-9])
    result = {"layers": (near.copy(), [near.copy(), None]), "loss": 1.0}
    checks.assert_close(make_nested(), result, "float32")


def test_the_part_that_differs_is_named():
    message = r"result\['layers'\]\[1\]\[0\]: 1 of 2 values differ too much"
    with pytest.raises(checks.Mismatch, match=message):
        checks.assert_close(make_nested(), make_nested(second=(1.0, 2.0)), "float32")


@pytest.mark.parametrize(
    ("result", "message"),
    [
        pytest.param(
            {"loss": 1.0},
            r"only in the reference result\['layers'\]\[0\], .*, only in the result none",
            id="missing",
        ),
        pytest.param(
            make_nested(third=np.ones(2)),
            r"reference none, .* result\['layers'\]\[1\]\[1\]",
            id="too many",
        ),
        pytest.param(
            {"Loss": 1.0, "layers": make_nested()["layers"]},
            r"reference result\['loss'\], .* result\['Loss'\]",
            id="another name",
        ),
    ],
)
def test_a_part_on_one_side_alone_is_named(result, message):
    with pytest.raises(checks.Mismatch, match=message):
        checks.assert_close(make_nested(), result, "float32")


@pytest.mark.parametrize("empty", [None, [], {}, (None, {"a": None})], ids=str)
@pytest.mark.parametrize(
    "pair_with",
    [
        pytest.param(lambda empty: (empty, empty), id="both sides"),
        pytest.param(lambda empty: (empty, np.ones(2)), id="reference"),
        pytest.param(lambda empty: (np.ones(2), empty), id="result"),
    ],
)
def test_nothing_is_no_agreement(empty, pair_with):
    reference, result = pair_with(empty)
    with pytest.raises(checks.Mismatch, match=r"nothing to compare: .* let it return its result"):
        checks.assert_close(reference, result, "float32")


def test_empty_arrays_are_no_agreement():
    with pytest.raises(checks.Mismatch, match="every array is empty"):
        checks.assert_close([np.ones(0)], [np.ones(0)], "float32")


def test_an_empty_array_beside_a_number_agrees():
    checks.assert_close([np.ones(0), 1], [np.ones(0), 1], "float32")


# --- tensors that are not dense ---


def add_up_twice(values: torch.Tensor) -> torch.Tensor:
    """Return a sparse tensor with each value in two halves, which are to be added."""
    once = values.to_sparse()
    indices = torch.cat([once.indices()] * 2, dim=1)
    return torch.sparse_coo_tensor(indices, once.values().repeat(2) / 2, values.shape)


SPARSE = {
    "COO": lambda values: values.to_sparse(),
    "COO, not coalesced": add_up_twice,
    "CSR": lambda values: values.to_sparse_csr(),
    "CSC": lambda values: values.to_sparse_csc(),
    "BSR": lambda values: values.to_sparse_bsr((2, 2)),
    "BSC": lambda values: values.to_sparse_bsc((2, 2)),
}
REFERENCES = {"dense": torch.clone, "NumPy": lambda values: values.numpy()} | SPARSE


@pytest.fixture
def matrix(rng):
    """Half of it zeros, and a 1 first."""
    values = torch.tensor(rng.standard_normal((8, 8)).astype(np.float32))
    values *= torch.rand(8, 8) > 0.5
    values[0, 0] = 1.0
    return values


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("sparse", SPARSE.values(), ids=SPARSE)
@pytest.mark.parametrize("reference", REFERENCES.values(), ids=REFERENCES)
def test_a_sparse_tensor_agrees_with_the_same_numbers_in_any_layout(matrix, sparse, reference):
    checks.assert_close(reference(matrix), sparse(matrix), "float32")


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("sparse", SPARSE.values(), ids=SPARSE)
def test_a_difference_in_a_sparse_tensor_has_its_place_in_the_dense_one(matrix, sparse):
    wrong = matrix.clone()
    wrong[0, 0] = 1.1
    with pytest.raises(checks.Mismatch, match=r"1 of 64 values differ too much, worst at \(0, 0\)"):
        checks.assert_close(wrong, sparse(matrix), "float32")


SIX = torch.arange(6.0).reshape(3, 2)


def quantise_coarsely() -> torch.Tensor:
    return torch.quantize_per_tensor(SIX, 0.5, 3, torch.qint8)


def quantise_finely() -> torch.Tensor:
    return torch.quantize_per_tensor(SIX, 0.25, 0, torch.qint32)


def quantise_each_row() -> torch.Tensor:
    scales, zero_points = torch.full((3,), 0.125), torch.zeros(3, dtype=torch.int64)
    return torch.quantize_per_channel(SIX, scales, zero_points, 0, torch.quint8)


QUANTISED = [
    pytest.param(quantise_coarsely, id="eight bits"),
    pytest.param(quantise_finely, id="32 bits"),
    pytest.param(quantise_each_row, id="a scale for each row"),
]
without_its_warnings = pytest.mark.filterwarnings("ignore")  # PyTorch is about to give them up


@without_its_warnings
@pytest.mark.parametrize("quantise", QUANTISED)
def test_a_quantised_tensor_is_compared_by_value(quantise):
    checks.assert_close(SIX, quantise(), "float32")


@without_its_warnings
@pytest.mark.parametrize("quantise", QUANTISED)
def test_two_quantised_tensors_of_the_same_values_agree(quantise):
    checks.assert_close(quantise_coarsely(), quantise(), "qint8")


@without_its_warnings
@pytest.mark.parametrize("quantise", QUANTISED)
def test_a_quantised_tensor_of_other_values_differs(quantise):
    with pytest.raises(checks.Mismatch, match="6 of 6 values differ"):
        checks.assert_close(SIX + 0.25, quantise(), "float32")


@pytest.fixture
def parts():
    """Two tensors of different shapes."""
    return [torch.ones(2, 3), torch.zeros(4, 3)]


def test_nested_tensors_agree(parts):
    nested = torch.nested.nested_tensor(parts)
    checks.assert_close({"all": nested}, {"all": nested.clone()}, "float32")


def test_the_part_of_a_nested_tensor_that_differs_is_named(parts):
    nested = torch.nested.nested_tensor(parts)
    with pytest.raises(checks.Mismatch, match=r"result\[1\]: 12 of 12 values differ"):
        checks.assert_close([parts[0], parts[1] + 1], nested, "float32")


def test_a_part_that_a_nested_tensor_has_too_many_is_named(parts):
    nested = torch.nested.nested_tensor(parts)
    with pytest.raises(checks.Mismatch, match=r"only in the result result\[1\]"):
        checks.assert_close(parts[:1], nested, "float32")


NUMBERLESS = [
    pytest.param(
        torch.ones(3, device="meta"),
        "on the meta device, which has shapes and no numbers; compute it on a real",
        id="the meta device",
    ),
    pytest.param(
        torch.empty(3, dtype=torch.bits8),
        "a Tensor of bits8 .*, which cannot be compared",
        id="bits alone",
    ),
    pytest.param(
        np.ma.masked_array([1.0, 2.0, 3.0], [True, False, False]),
        "a MaskedArray, which cannot be compared",
        id="under a mask",
    ),
]


@pytest.mark.parametrize(("strange", "message"), NUMBERLESS)
@pytest.mark.parametrize("is_reference", [True, False], ids=["reference", "result"])
def test_an_array_without_numbers_is_refused_in_a_line(strange, message, is_reference):
    pair = (strange, np.ones(3)) if is_reference else (np.ones(3), strange)
    with pytest.raises(TypeError, match=rf"^result is {message}") as refused:
        checks.assert_close(*pair, "float32")
    assert "\n" not in str(refused.value)


# --- one memory: two functions that write into the same ``out=``, of which the second overwrites the first ---

OUT, ARRAY, SQUARE = torch.zeros(4), np.zeros(4), torch.zeros(4, 4)
COORDINATES, ROWS = torch.eye(4).to_sparse(), torch.eye(4).to_sparse_csr()
HALVES = torch.zeros(2, 4)


@pytest.mark.parametrize(
    ("reference", "result"),
    [
        pytest.param(OUT, OUT, id="a tensor"),
        pytest.param(ARRAY, ARRAY, id="an array"),
        pytest.param([ARRAY], [ARRAY], id="in lists"),
        pytest.param(OUT.numpy(), OUT.numpy(), id="a tensor's array"),
        pytest.param(ROWS, ROWS, id="sparse, CSR"),
        pytest.param(COORDINATES, COORDINATES.detach(), id="sparse, COO"),
        pytest.param(OUT, OUT.numpy(), id="a tensor and its array"),
        pytest.param(ARRAY, ARRAY[::-1], id="backwards"),
        pytest.param(OUT, OUT.numpy()[::-1], id="a tensor and its array backwards"),
        pytest.param(ARRAY[:3], ARRAY[1:], id="parts of an array that overlap"),
        pytest.param(OUT[:3], OUT[2:], id="parts of a tensor that overlap"),
        pytest.param(SQUARE, SQUARE.T, id="transposed"),
        pytest.param(ARRAY.reshape(2, 2), ARRAY.reshape(2, 2).T, id="an array transposed"),
        pytest.param(SQUARE[0], SQUARE[:, 0], id="a row and a column"),
    ],
)
def test_one_memory_is_no_agreement(reference, result):
    with pytest.raises(checks.Mismatch, match="the same memory"):
        checks.assert_close(reference, result, "float32")


@pytest.mark.parametrize(
    ("reference", "result"),
    [
        pytest.param(torch.ones(3), torch.ones(3), id="two tensors"),
        pytest.param(HALVES[0], HALVES[1], id="parts of one tensor"),
        pytest.param(ARRAY[:2], ARRAY[2:], id="parts of one array"),
    ],
)
def test_results_with_a_memory_of_their_own_agree(reference, result):
    checks.assert_close(reference, result, "float32")


# --- shapes, NaN, infinities ---

ONES, NAN, INFINITE = np.ones(3), np.array([1, np.nan, 1]), np.array([1, np.inf, 1])


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(NAN, id="NaN"),
        pytest.param(INFINITE, id="infinity"),
        pytest.param(-INFINITE, id="minus infinity"),
        pytest.param(INFINITE * (1 + 1j), id="complex infinity"),
        pytest.param(np.array([complex(np.nan, 5)]), id="complex NaN"),
    ],
)
def test_nan_and_infinities_agree_with_themselves(values):
    checks.assert_close(values, values.copy(), "float32")


@pytest.mark.parametrize(
    ("reference", "result", "message"),
    [
        pytest.param(
            ONES, np.ones((3, 1)), r"shapes differ, \(3,\) and \(3, 1\)", id="another dimension"
        ),
        pytest.param(ONES, np.ones(1), "shapes differ", id="another length"),
        pytest.param(1.0, ONES, "shapes differ", id="a number and an array"),
        pytest.param(ONES, NAN, "1 of 3 values are NaN on one side only", id="NaN in the result"),
        pytest.param(NAN, ONES, "NaN on one side only", id="NaN in the reference"),
        pytest.param(NAN, INFINITE, "NaN on one side only", id="NaN and infinity"),
        pytest.param(
            ONES, INFINITE, r"worst at \(1,\): inf for 1: inf apart", id="infinity in the result"
        ),
        pytest.param(INFINITE, ONES, r"worst at \(1,\): 1 for inf", id="infinity in the reference"),
        pytest.param(
            INFINITE, -INFINITE, r"worst at \(0,\)|worst at \(1,\)", id="infinities of two signs"
        ),
        pytest.param(
            np.array([complex(np.inf, 0)]),
            np.array([complex(np.inf, 5)]),
            "1 of 1 values",
            id="complex infinities",
        ),
        pytest.param(
            np.array([complex(np.nan, 0)]),
            np.array([5j]),
            "1 of 1 values are NaN on one side only",
            id="complex NaN",
        ),
        pytest.param(
            np.float16([6e4, 1]),
            np.float16([-6e4, 1]),
            r"worst at \(0,\): -60000 for 60000",
            id="a difference beyond float16",
        ),
    ],
)
def test_shapes_nan_and_infinities_are_seen(reference, result, message):
    with pytest.raises(checks.Mismatch, match=message):
        checks.assert_close(reference, result, "float32")


def test_single_numbers_have_their_precision_too():
    with pytest.raises(checks.Mismatch, match="1 of 1 values differ too much"):
        checks.assert_close(1.0, 1.0 + 1e-9, "float64")


# --- whole numbers and texts: argsort and its like are right or wrong, and no tolerance of a float helps them ---

BIG = np.arange(100_000, 100_003)


def test_equal_whole_numbers_agree():
    checks.assert_close(BIG, torch.tensor(BIG), "float32")


def test_equal_texts_agree():
    checks.assert_close(["cat", "dog"], ["cat", "dog"], "float32")


@pytest.mark.parametrize("dtype", ["bfloat16", "float64", "int64"])
@pytest.mark.parametrize(
    ("reference", "result", "message"),
    [
        pytest.param(
            BIG,
            BIG + np.array([0, 1, 1]),
            r"2 of 3 values differ, first at \(1,\): 100002 for 100001",
            id="large ones",
        ),
        pytest.param(
            np.array([2**62]),
            np.array([2**62 + 1]),
            "4611686018427387905 for 4611686018427387904",
            id="too large for a float",
        ),
        pytest.param(
            np.array([True, False]), np.array([True, True]), "bool must be equal", id="booleans"
        ),
        pytest.param(np.uint8([1]), np.uint8([255]), "255 for 1", id="without a sign"),
        pytest.param("cat", "dog", "dog for cat", id="texts"),
        pytest.param("1", 1, "<U1 cannot be equal to int64", id="a text and a number"),
        pytest.param(
            np.arange(3),
            np.array([0.0, 1.0, 2.0000001]),
            r"2\.0000001 for 2; int64 must be equal",
            id="nearly whole",
        ),
        pytest.param(
            np.arange(3), np.array([0, 1, np.nan]), "nan for 2; int64 must be equal", id="NaN"
        ),
    ],
)
def test_whole_numbers_and_texts_must_be_equal(reference, result, message, dtype):
    with pytest.raises(checks.Mismatch, match=message):
        checks.assert_close(reference, result, dtype)


def test_the_worst_value_is_the_one_that_is_wrong():
    """The large value differs by more, and may."""
    reference = np.array([1e3, 1.0, 1.0] + [1.0] * 97)
    result = np.array([1e3 + 0.05, 1.0, 1.04] + [1.0] * 97)
    message = (
        r"1 of 100 values .+ \(2,\): 1\.04 for 1: 0\.04 apart, and rounding explains at most \S+$"
    )
    with pytest.raises(checks.Mismatch, match=message):
        checks.assert_close(reference, result, "float32")


# --- in a comparison of times ---


@pytest.fixture(scope="module")
def compared():
    """A comparison of times, of which two variants return something else than the baseline."""
    one = np.ones(3)
    variants = {
        "numpy": lambda: one + 1,
        "torch": lambda: torch.ones(3) + 1,
        "wrong": lambda: one + 1.001,
        "none": lambda: None,
    }
    return timing.compare(
        variants,
        on=timing.Host(),
        baseline="numpy",
        parity=checks.matches(torch.float32),
        budget=timing.FAST,
    )


def test_a_variant_that_agrees_is_compared(compared):
    assert set(compared.paired) == {"torch"}


@pytest.mark.parametrize(
    ("variant", "reason"),
    [
        pytest.param("wrong", "3 of 3 values differ too much", id="another value"),
        pytest.param("none", "nothing to compare", id="no value"),
    ],
)
def test_a_variant_that_differs_is_withheld(compared, variant, reason):
    assert reason in compared.withheld[variant].detail


def test_a_comparison_says_at_which_tolerance_it_compared(compared):
    assert compared.parity == "outputs compared at float32 tolerance"


# --- against the CPU ---


@pytest.fixture
def asked(monkeypatch):
    """An mps device that computes right; it notes what was asked of it."""
    return pretend(monkeypatch, "mps")


def test_a_function_that_agrees_with_the_cpu_passes(asked):
    checks.assert_matches_cpu(torch.matmul, torch.randn(4, 4), torch.randn(4, 4), on=MPS)
    assert asked.copies == [torch.float32] * 2
    assert asked.waits == 1


def test_tensors_in_lists_and_dictionaries_move_too(asked):
    def multiply(pair, scale):
        return pair["x"] @ pair["y"][0] * scale

    x, y = torch.randn(4, 4), torch.randn(4, 4)
    checks.assert_matches_cpu(multiply, {"x": x, "y": [y]}, 2, on=MPS)
    assert asked.copies == [torch.float32] * 2


def test_a_function_that_differs_from_the_cpu_is_refused(monkeypatch):
    pretend(monkeypatch, "mps", arrives=lambda tensor: tensor * 1.001)
    with pytest.raises(checks.Mismatch, match="result: "):
        checks.assert_matches_cpu(torch.matmul, torch.randn(4, 4), torch.randn(4, 4), on=MPS)


@pytest.mark.parametrize(
    ("dtype", "there", "on_cpu"),
    [
        pytest.param(torch.float16, torch.float16, torch.float32, id="float16"),
        pytest.param("bfloat16", torch.bfloat16, torch.float32, id="bfloat16"),
        pytest.param("float64", torch.float64, torch.float64, id="float64"),
        pytest.param(np.float32, torch.float32, torch.float32, id="float32"),
    ],
)
def test_the_device_computes_in_the_dtype_and_the_cpu_no_less_precisely(
    asked, dtype, there, on_cpu
):
    seen = []

    def take_signs(x, indices):
        seen.append((x.dtype, indices.dtype))
        return x[indices].sign()

    x, indices = torch.randn(5), torch.tensor([0, 3])
    checks.assert_matches_cpu(take_signs, x, indices, on=MPS, dtype=dtype)
    assert seen == [(on_cpu, torch.int64), (there, torch.int64)]
    assert asked.copies == [there, torch.int64]


def test_a_dtype_in_which_nothing_is_computed_is_refused(asked):
    with pytest.raises(ValueError, match="not in 'int8'"):
        checks.assert_matches_cpu(torch.sign, torch.randn(5), on=MPS, dtype=torch.int8)


@pytest.fixture
def network():
    """A network in float64 whose statistics a call would change."""
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).double()


def read_state(module: torch.nn.Module) -> dict[str, tuple[torch.dtype, list[float]]]:
    return {name: (value.dtype, value.tolist()) for name, value in module.state_dict().items()}


def test_a_module_is_copied_and_neither_cast_nor_changed(asked, network):
    before = read_state(network)
    checks.assert_matches_cpu(network, torch.randn(8, 4), on=MPS)
    assert read_state(network) == before


def test_a_module_that_differs_from_the_cpu_is_refused(monkeypatch, network):
    pretend(monkeypatch, "mps", arrives=lambda tensor: tensor * 1.01)
    with pytest.raises(checks.Mismatch):
        checks.assert_matches_cpu(network, torch.randn(8, 4), on=MPS)


def test_a_function_may_work_in_place(asked):
    x = torch.ones(3)
    checks.assert_matches_cpu(lambda x: x.add_(1), x, on=MPS)
    assert torch.equal(x, torch.ones(3)), "the caller's tensor was changed"


def test_a_function_in_place_that_differs_is_refused(asked):
    wrong = iter((1.0, 2.0))
    with pytest.raises(checks.Mismatch, match="3 of 3 values"):
        checks.assert_matches_cpu(lambda x: x.add_(next(wrong)), torch.ones(3), on=MPS)


def test_a_function_may_differentiate(asked):
    def gradient(x):
        with torch.enable_grad():
            return torch.autograd.grad((x * x).sum(), x)

    checks.assert_matches_cpu(gradient, torch.ones(3, requires_grad=True), on=MPS)


@dataclasses.dataclass(frozen=True)
class Batch:
    """What a data loader may return."""

    x: torch.Tensor
    names: tuple[str, ...] = ("first",)


def test_tensors_in_objects_move_too(asked):
    checks.assert_matches_cpu(lambda batch: batch.x * 2, Batch(torch.ones(3)), on=MPS)
    assert asked.copies == [torch.float32]


def test_a_packed_sequence_moves_too(asked):
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    checks.assert_matches_cpu(lambda packed: packed.data * 2, packed, on=MPS)
    assert torch.float32 in asked.copies


def test_an_object_without_tensors_stays_the_same(asked):
    settings, seen = Batch(None), []
    checks.assert_matches_cpu(
        lambda x, batch: seen.append(batch) or x, torch.ones(3), settings, on=MPS
    )
    assert seen[0] is settings
    assert seen[1] is settings


def test_inputs_may_have_names(asked):
    def scale(x, *, factor):
        return x * factor

    checks.assert_matches_cpu(scale, torch.ones(3), factor=torch.ones(3), on=MPS)
    assert asked.copies == [torch.float32] * 2


def test_a_name_is_no_device():
    with pytest.raises(TypeError, match=r"device\.pick"):
        checks.assert_matches_cpu(torch.sign, torch.ones(3), on="mps")


def test_inputs_in_a_tuple_are_asked_for_one_by_one(asked):
    with pytest.raises(TypeError, match="one by one"):
        checks.assert_matches_cpu(torch.nn.Linear(4, 3), (torch.ones(2, 4),), on=MPS)


@pytest.mark.parametrize(
    ("training", "is_said"), [(True, True), (False, False)], ids=["training", "evaluation"]
)
def test_of_a_model_in_training_mode_it_is_said_how_to_leave_it(
    monkeypatch, network, training, is_said
):
    pretend(monkeypatch, "mps", arrives=lambda tensor: tensor * 1.01)
    with pytest.raises(checks.Mismatch) as mismatch:
        checks.assert_matches_cpu(network.train(training), torch.randn(8, 4), on=MPS)
    assert ("eval()" in str(mismatch.value)) == is_said


# --- a third result ---

RIGHT, WRONG = np.arange(5.0), np.arange(5.0) / 2


def test_outputs_that_agree_with_a_third_result_pass():
    parity = checks.matches("float32", truth=RIGHT)
    parity(RIGHT.copy(), RIGHT.copy())
    assert str(parity) == "outputs compared with a result from elsewhere at float32 tolerance"


def test_without_a_third_result_outputs_wrong_alike_pass():
    checks.matches("float32")(WRONG, WRONG.copy())


@pytest.mark.parametrize(
    ("reference", "result", "whose"),
    [
        pytest.param(WRONG, RIGHT.copy(), "the baseline's", id="the baseline"),
        pytest.param(RIGHT.copy(), WRONG, "the variant's", id="the variant"),
        pytest.param(WRONG, WRONG.copy(), "the baseline's", id="both alike"),
    ],
)
def test_a_third_result_shows_whose_output_is_wrong(reference, result, whose):
    with pytest.raises(checks.Mismatch, match=f"{whose} is wrong"):
        checks.matches("float32", truth=RIGHT)(reference, result)


# ---- what is not to be compared --------------------------------------------------------------------------------------

SCORES = np.array([[1.0, -1e9], [0.5, 2.0]], np.float32)
"""Of attention; the first row may not look at its second column."""
MASKED = SCORES < -1e8
DIFFERENTLY_MASKED = np.array([[1.0, -3e38], [0.5, 2.0]], np.float32)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (DIFFERENTLY_MASKED, "differ too much"),
        (np.where(MASKED, np.nan, SCORES), "NaN on one side"),
    ],
    ids=["another number", "NaN"],
)
def test_what_a_mask_hides_is_proposed_to_be_ignored(result, words):
    with pytest.raises(checks.Mismatch, match=f"{words}.* pass ignore="):
        checks.assert_close(SCORES, result, "float32")
    checks.assert_close(SCORES, result, "float32", ignore=MASKED)


def test_nan_beside_what_memory_held_is_not_said_to_be_a_mask():
    held = np.array([[1.0, 4e27], [0.5, 2.0]], np.float32)

    with pytest.raises(checks.Mismatch, match="4 of 4 values are NaN") as mismatch:
        checks.assert_close(held, np.full_like(held, np.nan), "float32")
    assert "ignore" not in str(mismatch.value)


def test_a_difference_of_usual_size_is_not_said_to_be_a_mask():
    with pytest.raises(checks.Mismatch) as mismatch:
        checks.assert_close(SCORES, SCORES + ~MASKED, "float32")
    assert "ignore" not in str(mismatch.value)


def test_what_is_not_ignored_is_compared_at_its_own_size():
    """The mask makes no difference beside it look small."""
    result = np.where(MASKED, 0, SCORES)
    result[1, 1] += 0.01
    with pytest.raises(checks.Mismatch, match=r"1 of 3 values differ too much, worst at \(1, 1\)"):
        checks.assert_close(SCORES, result, "float32", ignore=MASKED)


@pytest.mark.parametrize("framework", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_a_mask_is_broadcast(framework):
    scores, column = np.stack([SCORES, SCORES]), np.array([False, True])
    result = scores.copy()
    result[..., 1] = 0
    checks.assert_close(framework(scores), framework(result), "float32", ignore=framework(column))


def test_whole_numbers_are_ignored_as_well():
    checks.assert_close([1, -1], [1, 99], "int64", ignore=[False, True])


def test_several_outputs_have_masks_in_the_same_containers():
    reference = {"scores": SCORES, "sum": np.float32(3)}
    result = {"scores": DIFFERENTLY_MASKED, "sum": np.float32(3)}
    checks.assert_close(reference, result, "float32", ignore={"scores": MASKED, "sum": None})


@pytest.mark.parametrize(
    ("ignore", "error", "words"),
    [
        (MASKED.astype(int), TypeError, "give booleans"),
        (np.zeros(3, bool), ValueError, "cannot be broadcast"),
        ({"scores": MASKED}, ValueError, "has masks for"),
        (np.ones((2, 2), bool), checks.Mismatch, "leaves nothing"),
    ],
    ids=["numbers", "shape", "containers", "everything"],
)
def test_a_mask_that_fits_nothing_is_refused(ignore, error, words):
    with pytest.raises(error, match=words):
        checks.assert_close(SCORES, SCORES.copy(), "float32", ignore=ignore)


def test_one_mask_for_several_outputs_is_refused():
    with pytest.raises(ValueError, match="2 parts"):
        checks.assert_close(
            [SCORES, SCORES], [SCORES.copy(), SCORES.copy()], "float32", ignore=MASKED
        )


def test_a_comparison_of_variants_ignores_what_it_is_told_to():
    parity = checks.matches("float32", ignore=MASKED)
    parity(SCORES, DIFFERENTLY_MASKED)
    assert "masked" in str(parity)


def test_a_wrong_answer_stands_in_its_cell_for_programs_alone(monkeypatch):
    """Its reader sees the error; the same in a second output would be a text in quotes."""
    IPython = pytest.importorskip("IPython")
    shown = []
    monkeypatch.setattr(IPython, "get_ipython", object)
    monkeypatch.setattr(IPython.display, "display", lambda data, raw: shown.append((*data, raw)))
    checks.wrong_answer("Exercise 1", "3 is not it")
    assert shown == [(judgement.MIME, True)]
