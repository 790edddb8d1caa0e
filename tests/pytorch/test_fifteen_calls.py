"""The calls do what is counted of them, and their variants change what they say."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from metallab.pytorch import fifteen_calls
from metallab.roofline import Limit, Work

CPU = torch.device("cpu")
CALLS = {call.name: call for call in fifteen_calls.calls(side=256)}
PRODUCTS = [name for name in CALLS if "product" in name or "matrix" in name or "conv" in name]
ROWS = ["doubling", "softmax", "GELU", "layer norm"]


def test_there_are_fifteen_with_a_reason_each():
    assert len(CALLS) == 15
    assert all(call.work.why for call in CALLS.values())


@pytest.mark.parametrize("name", PRODUCTS)
def test_pytorch_counts_as_many_operations(name):
    call = CALLS[name].make(CPU)
    with FlopCounterMode(display=False) as counter:
        call()

    # PyTorch counts no matrix x vector, which is a product with one column
    expected = 0 if name == "matrix x vector" else CALLS[name].work.flops
    assert counter.get_total_flops() == expected


@pytest.mark.parametrize("name", ROWS)
def test_a_call_of_rows_returns_all_of_them(name):
    result = CALLS[name].make(CPU)()
    assert result.numel() == 256**2
    assert CALLS[name].work.bytes == 2 * result.nbytes


@pytest.mark.parametrize("name", CALLS)
def test_a_call_with_twice_its_work_runs(name):
    CALLS[name].doubled(CPU)()


@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if call.experiment])
def test_an_experiment_runs(name):
    CALLS[name].experiment(CPU).make(CPU)()


SUSPECTS = [
    pytest.param(suspect, id=f"{name} {number}")
    for name, call in CALLS.items()
    for number, suspect in enumerate(call.suspects)
]


@pytest.mark.parametrize("suspect", SUSPECTS)
def test_a_suspect_runs(suspect):
    suspect.make(CPU)()


def test_products_that_fill_no_tile_have_no_experiment_for_their_limit():
    without = [name for name, call in CALLS.items() if call.experiment is None]
    assert without == ["matrix x 2 vectors", "matrix x 8 vectors", "matrix x 32 vectors"]


@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if call.experiment])
def test_an_experiment_changes_operations_or_bytes(name):
    change = CALLS[name].experiment(CPU).change
    assert change.factor != 1
    assert change.of in (Limit.ARITHMETIC, Limit.MEMORY)


def test_a_gpu_halves_its_bytes_by_16_bits():
    experiment = CALLS["doubling"].experiment(torch.device("meta"))
    assert experiment.make(CPU)().dtype == torch.float16
    assert experiment.change.factor == 0.5


@pytest.mark.parametrize(
    ("name", "functions", "new", "matrix"),
    [
        pytest.param("doubling", 0, 0, 0, id="neither function nor new memory"),
        pytest.param("softmax", 256**2, 0, 0, id="an exponential a number"),
        pytest.param("GELU", 256**2, 0, 0, id="an error function a number"),
        pytest.param("layer norm", 0, 4 * 256**2, 0, id="a new result"),
        pytest.param("matrix x 8 vectors", 0, 0, 4 * 256 * 512, id="a skinny product"),
        pytest.param("product, n = 128", 0, 0, 0, id="a square product"),
    ],
)
def test_what_the_textbook_leaves_out_is_counted(name, functions, new, matrix):
    work = CALLS[name].work
    assert work.functions == functions
    assert work.new == new
    assert work.matrix == matrix


@pytest.mark.parametrize("name", ["layer norm", "convolution 3 x 3", "depthwise convolution"])
def test_a_call_that_is_counted_as_new_returns_new_memory(name):
    call = CALLS[name].make(CPU)
    first, second = call(), call()
    assert first.data_ptr() != second.data_ptr()
    assert CALLS[name].work.new == first.nbytes


def _count_columns(work: Work) -> float:
    """Return the columns of a skinny product: a multiplication and an addition for each, and each weight."""
    return work.flops / 2 / (work.matrix / fifteen_calls.FLOAT)


def test_no_skinny_probe_has_the_columns_of_a_call():
    probes = fifteen_calls.probes(CPU, side=16, numbers=2 * 256**2)
    of_probes = {_count_columns(probe.work) for probe in probes.skinny}
    of_calls = {_count_columns(call.work) for call in CALLS.values() if call.work.matrix}
    assert len(of_probes) == 2
    assert of_probes.isdisjoint(of_calls)


def test_a_product_is_counted():
    assert fifteen_calls.count_product(2, 3, 5) == Work(60, 4 * (6 + 15 + 10), why=_WHY)


_WHY = fifteen_calls.count_product(1, 1, 1).why


@pytest.fixture(scope="module")
def probes():
    return fifteen_calls.probes(CPU, side=16, numbers=1024)


def test_a_copy_that_is_probed_writes_into_memory_that_is_there(probes):
    assert probes.copy.call().data_ptr() == probes.copy.call().data_ptr()


def test_the_probe_of_a_product_is_made_once(probes):
    assert probes.product(1).call().shape == (32, 32)
    assert probes.product(1) is probes.product(1)


@pytest.mark.parametrize("kind", ["launches", "functions", "skinny"])
def test_each_probe_of_a_kind_can_be_called(probes, kind):
    results = [probe.call() for probe in getattr(probes, kind)]
    assert results


def test_new_memory_is_asked_for(probes):
    addresses = [_addresses_of(size.asked) for size in probes.new_memory]
    assert all(first != second for first, second in addresses)


def test_memory_that_is_given_is_used_again(probes):
    addresses = [_addresses_of(size.given) for size in probes.new_memory]
    assert all(first == second for first, second in addresses)


def test_the_bytes_of_new_memory_are_those_of_the_result(probes):
    assert [size.bytes for size in probes.new_memory] == [
        size.asked().nbytes for size in probes.new_memory
    ]


def _addresses_of(call) -> tuple[int, int]:
    """Return the addresses of two results that are there at once."""
    first, second = call(), call()
    return first.data_ptr(), second.data_ptr()
