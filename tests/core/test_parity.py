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


def test_outputs_are_compared_at_the_tolerance_of_the_dtype():
    for array in (REAL, PAIRS):
        assert told(torch.exp, np.exp, array, on=CPU) == "agrees"
        assert told(torch.exp, np.exp, array, on=CPU, dtype="float64") == "agrees"
        answer = told(lambda x: 1.001 * torch.exp(x), np.exp, array, on=CPU)
        assert answer.startswith("DIFFERS: ")
        assert "of 12 values differ" in answer
    assert told(lambda x: 1.001 * x, lambda x: x, PAIRS, on=CPU, dtype="float16") == "agrees"
    assert told(torch.conj, lambda x: x, PAIRS, on=CPU).startswith("DIFFERS: 12 of 12")


def test_both_sides_see_the_same_rounded_numbers():
    """A device is not blamed for the rounding of its inputs, and the reference computes in 64 bits."""
    for dtype, pairs in (
        ("float16", torch.complex32),
        ("float32", torch.complex64),
        ("float64", torch.complex128),
    ):
        for array, wanted, wide in (
            (REAL, getattr(torch, dtype), "float64"),
            (PAIRS, pairs, "complex128"),
        ):
            seen = []
            told(
                lambda x, seen=seen: seen.append(x) or x,
                lambda x, seen=seen: seen.append(x) or x,
                array,
                on=CPU,
                dtype=dtype,
            )
            theirs, ours = seen
            assert (ours.dtype, theirs.dtype.name) == (wanted, wide)
            assert np.array_equal(
                theirs, torch.tensor(array).to(wanted).to(getattr(torch, wide)).numpy()
            )
    whole = np.array([[3, 1]])
    assert told(lambda x: x.cumsum(1), lambda x: np.cumsum(x, 1), whole, on=CPU) == "agrees"


def test_it_is_the_device_that_computes(monkeypatch):
    pretend(monkeypatch, "mps", arrives=lambda tensor: tensor + 1)
    here = PyTorchDevice("mps", "Apple M2 GPU")
    assert told(torch.exp, np.exp, REAL, on=here).startswith("DIFFERS: 12 of 12")


def test_of_empty_arrays_the_shapes_are_compared():
    nothing = np.zeros((2, 0))
    assert told(lambda x: x.sort(dim=1).values, np.sort, nothing, on=CPU) == "agrees"
    assert told(lambda x: x.T, np.sort, nothing, on=CPU).startswith("DIFFERS: shapes differ")


def test_refusals_are_reported_and_mistakes_raise():
    def refuse(error):
        def function(x):
            raise error

        return told(function, np.exp, REAL, on=CPU)

    assert refuse(NotImplementedError("no kernel\nlong text")) == "refused: no kernel"
    assert refuse(TypeError("no float64 here")) == "refused: no float64 here"
    assert refuse(RuntimeError()) == "refused: RuntimeError"
    with pytest.raises(TypeError, match="invalid combination"):
        told(lambda x: x.sort(0, stable=True), np.sort, REAL, on=CPU)
    with pytest.raises(ZeroDivisionError):
        told(torch.exp, lambda x: 1 / 0, REAL, on=CPU)
