"""Limits of the hardware: the right chip's, none for an unknown one, and consistent in themselves."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from metallab import peaks
from metallab.device import PyTorchDevice


def apple(name: str) -> PyTorchDevice:
    return PyTorchDevice("mps", f"{name} GPU")


def test_the_whole_name_of_a_chip_counts():
    assert peaks.bandwidth(apple("Apple M2 Max")).value == 400e9
    assert peaks.bandwidth(apple("Apple M2")).value == 100e9
    assert peaks.flops(apple("Apple M2 Max"), "float32").value == 13.6e12
    assert peaks.bandwidth(apple("Apple M1 (Virtual)")).value == 68.3e9
    assert peaks.bandwidth(apple("Apple M5 Max")).value == 614e9
    for name in ("Apple M6 Max", "Apple M10", "Apple M4 Ultra", "unknown", "AMD Radeon Pro 5500M"):
        assert peaks.bandwidth(apple(name)) is None, f"{name} has another chip's limit"
        assert peaks.flops(apple(name), "float32") is None


def test_an_nvidia_name_may_go_on():
    for label, bandwidth in (
        ("NVIDIA H200", 4800e9),
        ("NVIDIA H100 80GB HBM3", 3938e9),
        ("NVIDIA A100-SXM4-40GB", 2039e9),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA H20", None),
        ("NVIDIA A100X", None),
    ):
        limit = peaks.bandwidth(PyTorchDevice("cuda", label))
        assert (limit and limit.value) == bandwidth, label
        assert limit is None or limit.source.startswith("NVIDIA")


def test_a_limit_belongs_to_a_dtype():
    m2, h200, cpu = apple("Apple M2"), PyTorchDevice("cuda", "NVIDIA H200"), PyTorchDevice("cpu", "Xeon CPU", threads=1)
    for lab in (m2, h200):
        single, half = (peaks.flops(lab, dtype).value for dtype in (torch.float32, np.float16))
        assert half > 1.9 * single
        assert peaks.flops(lab, torch.bfloat16).value == half
        assert peaks.flops(lab, "int8") is None
    assert peaks.flops(m2, "float64") is None
    assert peaks.flops(h200, "float64").value == 67e12
    assert peaks.flops(h200, "tf32").value > 7 * peaks.flops(h200, "float32").value
    assert peaks.flops(cpu, "float32").value == 2 * peaks.flops(cpu, torch.float64).value
    assert peaks.flops(cpu, "bfloat16") is None


def test_what_has_no_limit_has_none():
    simulated = PyTorchDevice("mps", "Apple M2 GPU", simulated=True)
    fake = SimpleNamespace(kind="fake", label="fake device", threads=1, simulated=False)
    for lab in (simulated, fake):
        assert peaks.flops(lab, "float32") is None
        assert peaks.bandwidth(lab) is None
    assert peaks.bandwidth(PyTorchDevice("cpu", "Apple M2 GPU")) is None


def test_a_cpu_has_a_ceiling_for_its_threads(monkeypatch):
    monkeypatch.setattr(peaks.psutil, "cpu_count", lambda: 8)

    def ceiling(frequency, threads):
        monkeypatch.setattr(peaks.psutil, "cpu_freq", frequency)
        peaks._highest_clock.cache_clear()
        return peaks.flops(PyTorchDevice("cpu", "Xeon CPU", threads=threads), "float32").value

    def raises():
        raise RuntimeError

    try:
        assert ceiling(lambda: None, 1) == 6e9 * 64
        assert ceiling(raises, 3) == 3 * 6e9 * 64
        assert ceiling(lambda: SimpleNamespace(max=0.0, current=2100.0), None) == 8 * 6e9 * 64
        assert ceiling(lambda: SimpleNamespace(max=7000.0, current=2100.0), 1) == 7e9 * 64
    finally:
        peaks._highest_clock.cache_clear()
    assert peaks.flops(PyTorchDevice("cpu", "Apple M2 CPU, 8 threads", threads=8), "float32") is None


def test_the_tables_are_consistent():
    sizes = ("", " Pro", " Max", " Ultra")
    for table in (peaks._APPLE_BANDWIDTH, peaks._APPLE_TFLOPS):
        for chip in {name.split()[0] for name in table}:
            known = [table[chip + size] for size in sizes if chip + size in table]
            assert known == sorted(known), f"{chip}: a larger chip has no lower limit"
    assert set(peaks._APPLE_TFLOPS) <= set(peaks._APPLE_BANDWIDTH)
    for name, rate in peaks._APPLE_TFLOPS.items():
        # all of these have a GPU in proportion to their memory: 26 to 38 FLOP a byte
        assert 24 < rate * 1e3 / peaks._APPLE_BANDWIDTH[name] < 40, name
    for generation, rate in ((1, 68.3), (2, 100), (3, 100), (4, 120), (5, 153)):
        assert peaks._APPLE_BANDWIDTH[f"M{generation}"] == rate
    assert set(peaks._NVIDIA_TFLOPS) == set(peaks._NVIDIA_BANDWIDTH)
    for name, rates in peaks._NVIDIA_TFLOPS.items():
        assert rates["float64"] <= rates["float32"] < rates["tf32"] < rates["float16"] == rates["bfloat16"], name
        assert rates["float16"] == pytest.approx(2 * rates["tf32"], rel=0.01)
