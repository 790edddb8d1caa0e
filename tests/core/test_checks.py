"""What agrees passes, what differs is found and named, and no check passes by checking nothing."""

from __future__ import annotations

import collections
import dataclasses
import itertools

import numpy as np
import pytest
import torch
from pretend import pretend

from metallab import checks, judgement, timing
from metallab.device import PyTorchDevice

MPS = PyTorchDevice("mps", "Apple M2 GPU")
RNG = np.random.default_rng(0)


def arrays(value: np.ndarray):
    """The same values as an array of each framework that is cheap to import."""
    import jax.numpy as jnp

    return [value.copy(), torch.tensor(value), jnp.asarray(value)]


# --- tolerances ---


def test_every_way_to_name_a_dtype_has_its_tolerance():
    import jax.numpy as jnp

    for dtype in (
        "float32",
        torch.float32,
        np.float32,
        np.dtype("float32"),
        jnp.float32,
        torch.complex64,
    ):
        assert checks.tolerance(dtype) == checks.TOLERANCES["float32"], dtype
    assert (
        checks.tolerance(jnp.bfloat16)
        == checks.tolerance(torch.bfloat16)
        == checks.TOLERANCES["bfloat16"]
    )
    for dtype in (torch.int64, torch.bool, np.uint8, np.bool_, "qint8", int):
        assert checks.tolerance(dtype) == checks.Tolerance(0, 0), dtype
    order = [
        checks.tolerance(name).relative for name in ("float64", "float32", "float16", "bfloat16")
    ]
    assert order == sorted(order)
    assert (
        str(checks.tolerance("float16"))
        == "0.01 of the value plus 0.01 of the array's root mean square"
    )
    with pytest.raises(AttributeError):
        checks.tolerance("float16").relative = 1.0


def test_a_dtype_without_tolerance_is_named_before_anything_runs():
    for dtype in ("fp32", "float8_e4m3fn", "torch.floaty", None):
        with pytest.raises(ValueError, match=r"no tolerance for .*float64.* and whole numbers"):
            checks.matches(dtype)


def rounded(values: np.ndarray, bits: int) -> np.ndarray:
    """float32 with fewer bits of mantissa: 10 are TensorFloat-32."""
    step = np.uint32(1 << (23 - bits))
    return ((values.view(np.uint32) + step // 2) & ~(step - np.uint32(1))).view(np.float32)


def product(a: np.ndarray, b: np.ndarray, dtype=np.float32) -> np.ndarray:
    """Terms added one after the other, rounded each time: the worst order there is."""
    total = np.zeros((len(a), b.shape[1]), dtype)
    for k in range(a.shape[1]):
        total += a[:, k : k + 1].astype(dtype) * b[k].astype(dtype)
    return total


def test_every_order_of_adding_passes_and_no_lower_precision():
    """A large matrix product: an absolute tolerance of 1e-4 refuses a right one, of 1e-2 lets TensorFloat-32 pass."""
    a = RNG.standard_normal((128, 8192), dtype=np.float32)
    b = RNG.standard_normal((8192, 128), dtype=np.float32)
    right = a @ b
    checks.assert_close(right, product(a, b), "float32")
    with pytest.raises(checks.Mismatch):
        checks.assert_close(right, rounded(a, 10) @ rounded(b, 10), "float32")
    halves = (
        a.astype(np.float16).astype(np.float32) @ b.astype(np.float16).astype(np.float32)
    ).astype(np.float16)
    checks.assert_close(right, halves, "float16")
    checks.assert_close(right, rounded(rounded(a, 7) @ rounded(b, 7), 7), "bfloat16")
    with pytest.raises(checks.Mismatch):
        checks.assert_close(right[:8, :8], product(a[:8], b[:, :8], np.float16), "float16")


def test_tolerance_goes_with_the_size_of_an_array():
    """Small outputs are looked at as closely as large ones, and a mask does not make any difference look small."""
    for size in (1e-30, 1e-5, 1.0, 1e30):
        values = RNG.standard_normal(1000).astype(np.float32)
        reference = values * np.float32(size)
        if size != 1e-30:  # below the absolute tolerance
            with pytest.raises(checks.Mismatch, match="1000 of 1000 values differ too much"):
                checks.assert_close(reference, reference + np.float32(size / 2), "float32")
        checks.assert_close(reference, reference + np.float32(size * 5e-5), "float32")
    checks.assert_close(np.zeros(3), np.full(3, 5e-7), "float32")  # sin(pi) and its like
    with pytest.raises(checks.Mismatch):
        checks.assert_close(np.zeros(3), np.full(3, 5e-6), "float32")
    values = RNG.standard_normal(1000).astype(np.float32)
    values[:300] *= 1e9  # no mask, and not what the others are like
    with pytest.raises(checks.Mismatch, match="1 of 1000 values differ too much"):
        checks.assert_close(values, values + np.float32(0.1) * (np.arange(1000) == 600), "float32")
    sparse = np.zeros(1000, np.float32)  # after a ReLU most values are 0
    sparse[:100] = 30.0
    checks.assert_close(sparse, sparse + 1e-3 * (sparse > 0), "float32")


LOWEST = {f"the lowest of {dtype}": float(np.finfo(dtype).min) for dtype in ("float16", "float32")}
MASKS = {"-1e9": -1e9, "-1e4": -1e4, "minus infinity": -np.inf, **LOWEST} | {
    "added once or twice": [-1e9, -2e9], "of two kinds": [-1e9, -1e4], "positive and negative": [1e9, -1e9],
}  # fmt: skip


def test_masks_in_any_number_hide_no_difference():
    """600 of 1000 at -1e9 on both sides, the other 400 random against zeros: only those 400 carry information."""
    for (name, mask), share in itertools.product(MASKS.items(), (3, 300, 600, 990)):
        logits = RNG.standard_normal(1000).astype(np.float32)
        logits[:share] = np.resize(mask, share)
        wrong = np.where(np.arange(1000) < share, logits, 0).astype(np.float32)
        for dtype in ("float32", "bfloat16"):
            checks.assert_close(logits, logits * np.float32(1 - 1e-6), dtype)
            with pytest.raises(checks.Mismatch, match="values differ too much"):
                raise AssertionError(
                    f"{share} times {name}: {checks.assert_close(logits, wrong, dtype)}"
                )
    added = RNG.standard_normal(1000).astype(np.float32)
    added[:600] -= 1e4  # the logits below show: no two are equal
    with pytest.raises(checks.Mismatch, match=r"3\d\d of 1000 values differ too much"):
        checks.assert_close(added, np.where(added < -5e3, added, 0), "bfloat16")
    few = np.float32([-1e9, -1e9, -1e9, 0.7])
    with pytest.raises(checks.Mismatch, match=r"worst at \(3,\): 0\.8 for 0\.7"):
        checks.assert_close(few, np.float32([-1e9, -1e9, -1e9, 0.8]), "float32")


def test_what_is_no_mask_counts():
    """What cancels among large values carries their error, whether these are alike or not."""
    gradient = (RNG.uniform(50, 150, 900) * RNG.choice([-1, 1], 900)).astype(np.float32)
    gradient[300:600] = RNG.standard_normal(300) * 1e-5  # of the keys' bias: 0 but for rounding
    checks.assert_close(
        gradient, gradient + 1e-5 * RNG.standard_normal(900).astype(np.float32), "float32"
    )
    saturated = np.where(np.arange(1000) < 600, 6.0, RNG.uniform(-1, 1, 1000))
    assert checks.typical_size(saturated) == pytest.approx(np.sqrt(np.mean(saturated**2)))
    tones = sum(np.cos(2 * np.pi * k * np.arange(16) / 16) for k in range(1, 7)) * 1e6
    spectrum = np.fft.fft(tones)
    assert checks.typical_size(spectrum) > 1e6, f"some of it is rounding: {np.abs(spectrum)}"


# --- what is compared ---


def test_arrays_of_every_framework_are_compared():
    import jax.numpy as jnp

    values = RNG.standard_normal((3, 4)).astype(np.float32)
    for reference in arrays(values):
        for result in arrays(values + np.float32(1e-6)):
            checks.assert_close(reference, result, "float32")
        for result in arrays(values + np.float32(1e-2)):
            with pytest.raises(checks.Mismatch, match="result: 12 of 12 values differ"):
                checks.assert_close(reference, result, "float32")
    checks.assert_close(values, torch.tensor(values, requires_grad=True), "float32")
    checks.assert_close(values, torch.tensor(values).bfloat16(), "bfloat16")
    checks.assert_close(values, jnp.asarray(values, jnp.bfloat16), "bfloat16")
    with pytest.raises(checks.Mismatch):
        checks.assert_close(values, torch.tensor(values).bfloat16(), "float32")
    complex_ = torch.complex(torch.tensor(values), torch.tensor(values + 1))
    checks.assert_close(np.conj(complex_.numpy()), complex_.conj(), "complex64")
    checks.assert_close(-complex_.imag.numpy(), complex_.conj().imag, "float32")
    with pytest.raises(checks.Mismatch):
        checks.assert_close(complex_, complex_.conj(), "complex64")
    checks.assert_close(complex_, complex_.to(torch.complex32), "complex32")
    checks.assert_close(values, values + np.complex64(1e-6j), "float32")
    checks.assert_close(2.0, np.float64(2.0), "float64")
    checks.assert_close(True, np.True_, "float32")


class Eager:
    """As a TensorFlow tensor: an object with a dtype and ``__array__``."""

    def __array__(self, dtype=None):
        return np.ones(3)


def test_anything_with_an_array_is_compared_and_nothing_else():
    checks.assert_close(Eager(), np.ones(3), "float32")
    with pytest.raises(checks.Mismatch):
        checks.assert_close(Eager(), np.zeros(3), "float32")
    for strange in ({1, 2}, object(), (n for n in "ab"), np.array([None, 1])):
        with pytest.raises(
            TypeError, match=rf"result\[0\] is a {type(strange).__name__}, which cannot be compared"
        ):
            checks.assert_close([strange], [np.ones(2)], "float32")


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


@pytest.mark.parametrize(
    "output", [Output, Named, lambda logits, cache: {"logits": logits, 1: cache}]
)
def test_the_arrays_of_objects_are_compared_whatever_library_defines_them(output):
    """A language model's cache was refused, and with it all that stood beside it."""

    def made(of_logits, of_keys):
        return output(torch.ones(2) * of_logits, Cache(Layer(np.ones(3) * of_keys)))

    checks.assert_close(made(1, 1), made(1, 1 + 1e-9), "float32")
    assert checks.without_arrays(made(1, 1)) == []
    with pytest.raises(checks.Mismatch, match=r"layers\[0\]\.keys: 3 of 3 values differ too much"):
        checks.assert_close(made(1, 1), made(1, 2), "float32")
    with pytest.raises(checks.Mismatch, match="2 of 2 values differ too much"):
        checks.assert_close(made(1, 1), made(2, 1), "float32")


def test_an_object_without_arrays_is_named_and_passed_over():
    class Settings:
        def __init__(self, depth):
            self.depth = depth

    checks.assert_close([np.ones(2), Settings(1)], [np.ones(2), Settings(2)], "float32")
    assert checks.without_arrays([np.ones(2), Settings(1), "a text", 3]) == ["result[1] (Settings)"]
    with pytest.raises(TypeError, match="result is a Settings, which cannot be compared"):
        checks.assert_close(Settings(1), Settings(1), "float32")


def test_nested_results_are_compared_part_by_part():
    one = np.ones(2)
    reference = {"loss": 1.0, "layers": [one, (one, None)]}
    checks.assert_close(
        reference, {"layers": (one + 1e-9, [one + 1e-9, None]), "loss": 1.0}, "float32"
    )
    with pytest.raises(
        checks.Mismatch, match=r"result\['layers'\]\[1\]\[0\]: 1 of 2 values differ too much"
    ):
        checks.assert_close(
            reference, {"loss": 1.0, "layers": [one + 0, (np.array([1.0, 2.0]), None)]}, "float32"
        )
    for wrong, only in (
        (
            {"loss": 1.0},
            r"only in the reference result\['layers'\]\[0\], .*, only in the result none",
        ),
        (
            {"loss": 1.0, "layers": [one + 0, (one + 0, one + 0)]},
            r"reference none, .* result\['layers'\]\[1\]\[1\]",
        ),
        (
            {"Loss": 1.0, "layers": [one + 0, (one + 0, None)]},
            r"reference result\['loss'\], .* result\['Loss'\]",
        ),
    ):
        with pytest.raises(checks.Mismatch, match=only):
            checks.assert_close(reference, wrong, "float32")


def test_nothing_is_no_agreement():
    for empty in (None, [], {}, (None, {"a": None})):
        for a, b in ((empty, empty), (empty, np.ones(2)), (np.ones(2), empty)):
            with pytest.raises(
                checks.Mismatch, match=r"nothing to compare: .* let it return its result"
            ):
                checks.assert_close(a, b, "float32")
    with pytest.raises(checks.Mismatch, match="every array is empty"):
        checks.assert_close([np.ones(0)], [np.ones(0)], "float32")
    checks.assert_close([np.ones(0), 1], [np.ones(0), 1], "float32")


def kinds_of_tensors(values: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same numbers, a matrix with as many rows as columns, in each kind of tensor that is not dense."""
    layouts = {"COO": {}, "CSR": {"layout": torch.sparse_csr}, "CSC": {"layout": torch.sparse_csc}}
    layouts |= {
        name: {"layout": getattr(torch, f"sparse_{name.lower()}"), "blocksize": (2, 2)}
        for name in ("BSR", "BSC")
    }
    made = {name: values.to_sparse(**options) for name, options in layouts.items()}
    indices = torch.cat([made["COO"].indices()] * 2, dim=1)  # each twice, to be added
    made["COO, not coalesced"] = torch.sparse_coo_tensor(
        indices, made["COO"].values().repeat(2) / 2, values.shape
    )
    return made


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_are_compared_as_dense_ones():
    values = torch.tensor(RNG.standard_normal((8, 8)).astype(np.float32)) * (torch.rand(8, 8) > 0.5)
    values[0, 0] = 1.0
    wrong = values.clone()
    wrong[0, 0] = 1.1
    for name, sparse in kinds_of_tensors(values).items():
        for reference in (values, values.numpy(), *kinds_of_tensors(values).values()):
            checks.assert_close(reference, sparse, "float32")
        with pytest.raises(
            checks.Mismatch, match=r"1 of 64 values differ too much, worst at \(0, 0\)"
        ):
            raise AssertionError(f"{name}: {checks.assert_close(wrong, sparse, 'float32')}")


@pytest.mark.filterwarnings("ignore")  # of quantised tensors, which PyTorch is about to give up
def test_quantised_tensors_are_compared_by_value():
    values = torch.arange(6.0).reshape(3, 2)
    whole = torch.quantize_per_tensor(values, 0.5, 3, torch.qint8)
    finer = torch.quantize_per_tensor(values, 0.25, 0, torch.qint32)
    rows = torch.quantize_per_channel(
        values, torch.full((3,), 0.125), torch.zeros(3, dtype=torch.int64), 0, torch.quint8
    )
    for quantised in (whole, finer, rows):
        checks.assert_close(values, quantised, "float32")
        checks.assert_close(whole, quantised.clone(), "qint8")
        with pytest.raises(checks.Mismatch, match="6 of 6 values differ"):
            checks.assert_close(values + 0.25, quantised, "float32")


def test_nested_tensors_are_compared_part_by_part():
    parts = [torch.ones(2, 3), torch.zeros(4, 3)]
    nested = torch.nested.nested_tensor(parts)
    checks.assert_close({"all": nested}, {"all": nested.clone()}, "float32")
    with pytest.raises(checks.Mismatch, match=r"result\[1\]: 12 of 12 values differ"):
        checks.assert_close([parts[0].clone(), parts[1] + 1], nested, "float32")
    with pytest.raises(checks.Mismatch, match=r"only in the result result\[1\]"):
        checks.assert_close(parts[:1], nested, "float32")


def test_what_has_no_numbers_is_refused_in_a_line():
    """Of the meta device, in a dtype of bits alone, or hidden under a mask."""
    for strange, message in (
        (
            torch.ones(3, device="meta"),
            "on the meta device, which has shapes and no numbers; compute it on a real",
        ),
        (torch.empty(3, dtype=torch.bits8), "a Tensor of bits8 .*, which cannot be compared"),
        (
            np.ma.masked_array([1.0, 2.0, 3.0], [True, False, False]),
            "a MaskedArray, which cannot be compared",
        ),
    ):
        for pair in ((strange, np.ones(3)), (np.ones(3), strange)):
            with pytest.raises(TypeError, match=rf"^result is {message}") as refused:
                checks.assert_close(*pair, "float32")
            assert "\n" not in str(refused.value)


def test_one_memory_is_no_agreement():
    """Two functions that write into the same ``out=``, whole or in part: the second overwrites what the first found."""
    out, array, square = torch.zeros(4), np.zeros(4), torch.zeros(4, 4)
    pairs = [
        (shared, shared)
        for shared in (out, array, [array], out.numpy(), torch.eye(4).to_sparse_csr())
    ]
    pairs += [
        (out, out.numpy()),
        (array, array[::-1]),
        (out, out.numpy()[::-1]),
        (array[:3], array[1:]),
    ]
    pairs += [
        (square, square.T),
        (square[0], square[:, 0]),
        (array.reshape(2, 2), array.reshape(2, 2).T),
    ]
    coordinates = torch.eye(4).to_sparse()
    pairs += [(coordinates, coordinates.detach()), (out[:3], out[2:])]
    for first, second in pairs:
        with pytest.raises(checks.Mismatch, match="the same memory"):
            checks.assert_close(first, second, "float32")
    apart = torch.zeros(2, 4)  # one buffer, of which each has its own part
    for first, second in (
        (torch.ones(3), torch.ones(3)),
        (apart[0], apart[1]),
        (array[:2], array[2:]),
    ):
        checks.assert_close(first, second, "float32")


def test_shapes_nan_and_infinities_are_seen():
    ones, nan, inf = np.ones(3), np.array([1, np.nan, 1]), np.array([1, np.inf, 1])
    for good in (nan, inf, -inf, inf * (1 + 1j), np.array([complex(np.nan, 5)])):
        checks.assert_close(good, good.copy(), "float32")
    for reference, result, message in (
        (ones, np.ones((3, 1)), r"shapes differ, \(3,\) and \(3, 1\)"),
        (ones, np.ones(1), "shapes differ"),
        (1.0, ones, "shapes differ"),
        (ones, nan, "1 of 3 values are NaN on one side only"),
        (nan, ones, "NaN on one side only"),
        (nan, inf, "NaN on one side only"),
        (ones, inf, r"worst at \(1,\): inf for 1: inf apart"),
        (inf, ones, r"worst at \(1,\): 1 for inf"),
        (inf, -inf, r"worst at \(0,\)|worst at \(1,\)"),
        (np.array([complex(np.inf, 0)]), np.array([complex(np.inf, 5)]), "1 of 1 values"),
        (np.array([complex(np.nan, 0)]), np.array([5j]), "1 of 1 values are NaN on one side only"),
        (np.float16([6e4, 1]), np.float16([-6e4, 1]), r"worst at \(0,\): -60000 for 60000"),
    ):
        with pytest.raises(checks.Mismatch, match=message):
            checks.assert_close(reference, result, "float32")
    with pytest.raises(checks.Mismatch, match="1 of 1 values differ too much"):
        checks.assert_close(1.0, 1.0 + 1e-9, "float64")  # single numbers have their precision, too


def test_whole_numbers_and_texts_must_be_equal():
    """argsort and its like are right or wrong: no tolerance of a float helps them."""
    big = np.arange(100_000, 100_003)
    checks.assert_close(big, torch.tensor(big), "float32")
    checks.assert_close(["cat", "dog"], ["cat", "dog"], "float32")
    for reference, result, message in (
        (
            big,
            big + np.array([0, 1, 1]),
            r"2 of 3 values differ, first at \(1,\): 100002 for 100001",
        ),
        (np.array([2**62]), np.array([2**62 + 1]), "4611686018427387905 for 4611686018427387904"),
        (np.array([True, False]), np.array([True, True]), "bool must be equal"),
        (np.uint8([1]), np.uint8([255]), "255 for 1"),
        ("cat", "dog", "dog for cat"),
        ("1", 1, "<U1 cannot be equal to int64"),
        (np.arange(3), np.array([0.0, 1.0, 2.0000001]), r"2\.0000001 for 2; int64 must be equal"),
        (np.arange(3), np.array([0, 1, np.nan]), "nan for 2; int64 must be equal"),
    ):
        for dtype in ("bfloat16", "float64", "int64"):
            with pytest.raises(checks.Mismatch, match=message):
                checks.assert_close(reference, result, dtype)
    checks.assert_close(True, 1.0, "float32")


def test_the_worst_value_is_the_one_that_is_wrong():
    """The large value differs by more, and may."""
    reference, result = (
        np.array([1e3, 1.0, 1.0] + [1.0] * 97),
        np.array([1e3 + 0.05, 1.0, 1.04] + [1.0] * 97),
    )
    message = (
        r"1 of 100 values .+ \(2,\): 1\.04 for 1: 0\.04 apart, and rounding explains at most \S+$"
    )
    with pytest.raises(checks.Mismatch, match=message):
        checks.assert_close(reference, result, "float32")


def test_a_parity_check_for_the_timer_withholds_what_differs():
    parity = checks.matches(torch.float32)
    assert str(parity) == "outputs compared at float32 tolerance"
    one = np.ones(3)
    compared = timing.compare(
        {
            "numpy": lambda: one + 1,
            "torch": lambda: torch.ones(3) + 1,
            "wrong": lambda: one + 1.001,
            "none": lambda: None,
        },
        on=timing.Host(), baseline="numpy", parity=parity, budget=timing.FAST,
    )  # fmt: skip
    assert set(compared.paired) == {"torch"}
    assert "3 of 3 values differ too much" in compared.withheld["wrong"].detail
    assert "nothing to compare" in compared.withheld["none"].detail
    assert compared.parity == str(parity)


# --- against the CPU ---


def test_a_function_is_compared_with_the_cpu(monkeypatch):
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    asked = pretend(monkeypatch, "mps")
    checks.assert_matches_cpu(torch.matmul, x, y, on=MPS)
    assert asked.copies == [torch.float32] * 2
    assert asked.waits == 1
    checks.assert_matches_cpu(
        lambda pair, scale: pair["x"] @ pair["y"][0] * scale, {"x": x, "y": [y]}, 2, on=MPS
    )
    assert len(asked.copies) == 4, "tensors in lists and dicts move too"
    pretend(monkeypatch, "mps", arrives=lambda tensor: tensor * 1.001)
    with pytest.raises(checks.Mismatch, match="result: "):
        checks.assert_matches_cpu(torch.matmul, x, y, on=MPS)


def test_dtypes_are_those_asked_for(monkeypatch):
    asked, seen = pretend(monkeypatch, "mps"), []

    def fn(x, indices):
        seen.append((x.dtype, indices.dtype))
        return x[indices].sign()

    for dtype in (torch.float16, "bfloat16", "float64", np.float32):
        asked.copies.clear(), seen.clear()
        wanted = getattr(torch, checks.units.dtype_name(dtype))
        exact = torch.float64 if wanted == torch.float64 else torch.float32
        checks.assert_matches_cpu(fn, torch.randn(5), torch.tensor([0, 3]), on=MPS, dtype=dtype)
        assert seen == [(exact, torch.int64), (wanted, torch.int64)]
        assert asked.copies == [wanted, torch.int64]
    with pytest.raises(ValueError, match="not in 'int8'"):
        checks.assert_matches_cpu(fn, torch.randn(5), on=MPS, dtype=torch.int8)


def test_a_module_is_copied_and_not_moved(monkeypatch):
    pretend(monkeypatch, "mps")
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).double()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    checks.assert_matches_cpu(net, torch.randn(8, 4), on=MPS)
    for name, value in net.state_dict().items():
        assert value.dtype == before[name].dtype, f"{name} was cast"
        assert torch.equal(value, before[name]), f"{name} was changed"
    pretend(monkeypatch, "mps", arrives=lambda tensor: tensor * 1.01)
    with pytest.raises(checks.Mismatch):
        checks.assert_matches_cpu(net, torch.randn(8, 4), on=MPS)


def test_functions_may_work_in_place_and_differentiate(monkeypatch):
    pretend(monkeypatch, "mps")
    x = torch.ones(3)
    checks.assert_matches_cpu(lambda x: x.add_(1), x, on=MPS)
    assert torch.equal(x, torch.ones(3)), "the caller's tensor was changed"
    wrong = iter((1.0, 2.0))
    with pytest.raises(checks.Mismatch, match="3 of 3 values"):
        checks.assert_matches_cpu(lambda x: x.add_(next(wrong)), x, on=MPS)

    def gradient(x):
        with torch.enable_grad():
            return torch.autograd.grad((x * x).sum(), x)

    checks.assert_matches_cpu(gradient, torch.ones(3, requires_grad=True), on=MPS)


def test_outputs_wrong_alike_are_found_by_a_third_result():
    right, wrong = np.arange(5.0), np.arange(5.0) / 2
    known = checks.matches("float32", truth=right)
    known(right.copy(), right.copy())
    assert str(known) == "outputs compared with a result from elsewhere at float32 tolerance"
    checks.matches("float32")(wrong, wrong.copy())
    with pytest.raises(checks.Mismatch, match="the baseline's is wrong"):
        known(wrong, right.copy())
    with pytest.raises(checks.Mismatch, match="the variant's is wrong"):
        known(right.copy(), wrong)


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
