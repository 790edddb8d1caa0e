"""A table of answers says what agrees, what differs and what was refused, and calls nothing by another's name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pretend import pretend

from metallab import device, isolated, parity
from metallab.device import PyTorchDevice

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
RNG = np.random.default_rng(0)
REAL, PAIRS = RNG.normal(size=(3, 4)), RNG.normal(size=(3, 8)).view(complex)
CPU = device.cpu()


def told(*arguments, **more) -> str:
    """Return what a table shows of a result beside NumPy's."""
    return str(parity.against_numpy(*arguments, **more))


@pytest.mark.parametrize(
    ("factor", "outcome"),
    [pytest.param(1.0, "agrees", id="agrees"), pytest.param(1.001, "differs", id="differs")],
)
def test_programs_read_a_word_and_no_text(factor, outcome):
    answer = parity.against_numpy(lambda x: factor * torch.exp(x), np.exp, REAL, on=CPU)
    assert answer.outcome == outcome
    assert answer.agrees == (outcome == "agrees")


def test_of_what_was_skipped_the_reason_is_shown():
    assert "no GPU" in str(parity.agreement(REAL, isolated.Skipped("no GPU")))


@pytest.mark.parametrize("array", [REAL, PAIRS], ids=["real", "complex"])
@pytest.mark.parametrize("more", [{}, {"dtype": "float64"}], ids=["float32", "float64"])
def test_outputs_that_differ_by_rounding_alone_agree(array, more):
    assert told(torch.exp, np.exp, array, on=CPU, **more) == "agrees"


@pytest.mark.parametrize("array", [REAL, PAIRS], ids=["real", "complex"])
def test_a_thousandth_is_an_error_in_float32(array):
    answer = told(lambda x: 1.001 * torch.exp(x), np.exp, array, on=CPU)
    assert answer.startswith("DIFFERS: ")
    assert "of 12 values differ" in answer


def test_a_thousandth_is_rounding_in_float16():
    assert told(lambda x: 1.001 * x, lambda x: x, PAIRS, on=CPU, dtype="float16") == "agrees"


def test_the_sign_of_an_imaginary_part_is_compared():
    assert told(torch.conj, lambda x: x, PAIRS, on=CPU).startswith("DIFFERS: 12 of 12")


@pytest.mark.parametrize(
    ("array", "dtype", "given", "reference"),
    [
        pytest.param(REAL, "float16", torch.float16, "float64", id="float16"),
        pytest.param(REAL, "float32", torch.float32, "float64", id="float32"),
        pytest.param(REAL, "float64", torch.float64, "float64", id="float64"),
        pytest.param(PAIRS, "float16", torch.complex32, "complex128", id="complex32"),
        pytest.param(PAIRS, "float32", torch.complex64, "complex128", id="complex64"),
        pytest.param(PAIRS, "float64", torch.complex128, "complex128", id="complex128"),
    ],
)
def test_the_reference_computes_in_64_bits_with_the_rounded_numbers(array, dtype, given, reference):
    """So that a device is not blamed for the rounding of its inputs, which the reference is given as well."""
    seen = []

    def see(x):
        seen.append(x)
        return x

    told(see, see, array, on=CPU, dtype=dtype)
    theirs, ours = seen  # the reference is called first

    assert ours.dtype == given
    assert theirs.dtype.name == reference
    rounded = torch.tensor(array).to(given).to(getattr(torch, reference))
    assert np.array_equal(theirs, rounded.numpy())


def test_whole_numbers_stay_whole():
    whole = np.array([[3, 1]])
    assert told(lambda x: x.cumsum(1), lambda x: np.cumsum(x, 1), whole, on=CPU) == "agrees"


def test_it_is_the_device_that_computes(monkeypatch):
    pretend(monkeypatch, "mps", arrives=lambda tensor: tensor + 1)
    here = PyTorchDevice("mps", "Apple M2 GPU")
    assert told(torch.exp, np.exp, REAL, on=here).startswith("DIFFERS: 12 of 12")


@pytest.mark.parametrize(
    ("function", "answer"),
    [
        pytest.param(lambda x: x.sort(dim=1).values, "agrees", id="alike"),
        pytest.param(lambda x: x.T, "DIFFERS: shapes differ", id="turned"),
    ],
)
def test_of_empty_arrays_the_shapes_are_compared(function, answer):
    nothing = np.zeros((2, 0))
    assert told(function, np.sort, nothing, on=CPU).startswith(answer)


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        pytest.param(NotImplementedError("no kernel\nmore"), "refused: no kernel", id="no kernel"),
        pytest.param(TypeError("no float64 here"), "refused: no float64 here", id="no dtype"),
        pytest.param(RuntimeError(), "refused: RuntimeError", id="no text"),
    ],
)
def test_what_a_device_refuses_is_an_answer(error, answer):
    def refuse(x):
        raise error

    assert told(refuse, np.exp, REAL, on=CPU) == answer


def test_a_call_that_pytorch_does_not_have_raises():
    with pytest.raises(TypeError, match="invalid combination"):
        told(lambda x: x.sort(0, stable=True), np.sort, REAL, on=CPU)


def test_a_mistake_in_the_reference_raises():
    with pytest.raises(ZeroDivisionError):
        told(torch.exp, lambda x: 1 / 0, REAL, on=CPU)
