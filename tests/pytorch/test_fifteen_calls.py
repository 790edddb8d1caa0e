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
    assert counter.get_total_flops() in (CALLS[name].work.flops, 0)
    assert counter.get_total_flops() or name == "matrix x vector"


@pytest.mark.parametrize("name", ROWS)
def test_a_call_of_rows_returns_all_of_them(name):
    result = CALLS[name].make(CPU)()
    assert result.numel() == 256**2
    assert CALLS[name].work.bytes == 2 * result.nbytes


@pytest.mark.parametrize("name", CALLS)
def test_every_variant_runs(name):
    call = CALLS[name]
    call.doubled(CPU)()
    call.experiment(CPU).make(CPU)()
    for suspect in call.suspects:
        suspect.make(CPU)()


@pytest.mark.parametrize("name", CALLS)
def test_an_experiment_changes_operations_or_bytes(name):
    change = CALLS[name].experiment(CPU).change
    assert change.factor != 1
    assert change.of in (Limit.ARITHMETIC, Limit.MEMORY)


def test_a_gpu_halves_its_bytes_by_16_bits():
    experiment = CALLS["doubling"].experiment(torch.device("meta"))
    assert experiment.make(CPU)().dtype == torch.float16
    assert experiment.change.factor == 0.5


def test_a_product_is_counted():
    assert fifteen_calls.count_product(2, 3, 5) == Work(60, 4 * (6 + 15 + 10), why=_WHY)


_WHY = fifteen_calls.count_product(1, 1, 1).why


def test_probes_write_into_memory_that_is_there():
    probes = fifteen_calls.probes(CPU, side=16, numbers=1024)
    assert probes.copy.call().data_ptr() == probes.copy.call().data_ptr()
    assert probes.product(1).call().shape == (32, 32)
    assert probes.product(1) is probes.product(1)
    for launch in probes.launches:
        launch.call()
