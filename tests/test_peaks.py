"""Limits of the hardware: the right chip's, none for an unknown one, and consistent in themselves."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mutate import Rules

from metallab import peaks
from metallab.device import PyTorchDevice

RULES = Rules(peaks)


def apple(name: str) -> PyTorchDevice:
    return PyTorchDevice("mps", f"{name} GPU")


@RULES.rule(
    ('return table.get(chip.removeprefix("Apple "))', "return next((v for k, v in table.items() if k in chip), None)"),
    ('table.get(chip.removeprefix("Apple "))', "table.get(chip.split()[-1])"),
    ('label.removesuffix(" GPU")', "label"),
    ('re.sub(r" \\(.*\\)", "", ', "str("),
)
def the_whole_name_of_a_chip_counts(peaks):
    assert peaks.bandwidth(apple("Apple M2 Max")).value == 400e9
    assert peaks.bandwidth(apple("Apple M2")).value == 100e9
    assert peaks.flops(apple("Apple M2 Max"), "float32").value == 13.6e12
    assert peaks.bandwidth(apple("Apple M1 (Virtual)")).value == 68.3e9
    for name in ("Apple M5 Max", "Apple M10", "Apple M4 Ultra", "unknown", "AMD Radeon Pro 5500M"):
        assert peaks.bandwidth(apple(name)) is None, f"{name} has another chip's limit"
        assert peaks.flops(apple(name), "float32") is None


@RULES.rule((r're.match(rf"{name}\b", label)', "name[:-2] in label"), ("NVIDIA\n    else", "APPLE\n    else"))
def an_nvidia_name_may_go_on(peaks):
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


@RULES.rule(
    ('{"float32": 1, "float16": 2, "bfloat16": 2}', '{"float32": 1, "float16": 1, "bfloat16": 1}'),
    ("units.dtype_name(dtype)", "str(dtype)"),
    ('{"float32": 64, "float64": 32}', '{"float32": 64, "float64": 64}'),
)
def a_limit_belongs_to_a_dtype(peaks):
    m2, h200, cpu = apple("Apple M2"), PyTorchDevice("cuda", "NVIDIA H200"), PyTorchDevice("cpu", "Xeon CPU", threads=1)
    for lab in (m2, h200):
        single, half = (peaks.flops(lab, dtype).value for dtype in (torch.float32, np.float16))
        assert half == pytest.approx(2 * single)
        assert peaks.flops(lab, torch.bfloat16).value == half
        assert peaks.flops(lab, "int8") is None
    assert peaks.flops(m2, "float64") is None
    assert peaks.flops(h200, "float64").value == 67e12
    assert peaks.flops(cpu, "float32").value == 2 * peaks.flops(cpu, torch.float64).value
    assert peaks.flops(cpu, "bfloat16") is None


@RULES.rule(
    ("    if on.simulated:\n", "    if False:\n"),
    ("    if on.simulated or on.kind not in", "    if on.kind not in"),
    (' if on.kind == "cpu" else None', ""),
    ('not in ("cuda", "mps")', 'not in ("cuda", "mps", "cpu", "fake")'),
)
def what_has_no_limit_has_none(peaks):
    simulated = PyTorchDevice("mps", "Apple M2 GPU", simulated=True)
    fake = SimpleNamespace(kind="fake", label="fake device", threads=1, simulated=False)
    for lab in (simulated, fake):
        assert peaks.flops(lab, "float32") is None
        assert peaks.bandwidth(lab) is None
    assert peaks.bandwidth(PyTorchDevice("cpu", "Apple M2 GPU")) is None


@RULES.rule(
    ("cores * _highest_clock() * per_cycle,", "_highest_clock() * per_cycle,"),
    ("on.threads or psutil.cpu_count() or 1", "psutil.cpu_count() or 1"),
    ("on.threads or psutil.cpu_count() or 1", "on.threads or 1"),
    ("max(megahertz * 1e6, 6e9)", "megahertz * 1e6"),
    ("(FileNotFoundError, RuntimeError, NotImplementedError)", "KeyError"),
    ('or "Apple" in on.label', ""),
)
def a_cpu_has_a_ceiling_for_its_threads(peaks, monkeypatch):
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


@RULES.rule(
    ('"M2 Max": 400,', '"M2 Max": 40,'),
    ('"M1 Ultra": 21,', '"M1 Ultra": 2.1,'),
    ('"M4 Pro": 273,', '"M4 Pro": 2730,'),
    ('"M2": 3.6,', '"M2": 36,'),
    ('"NVIDIA A100": 2039', '"NVIDIA A10": 2039'),
    ('"float64": 19.5', '"float64": 195'),
)
def the_tables_are_consistent(peaks):
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
        assert rates["float64"] < rates["float32"] < rates["float16"] == rates["bfloat16"], name
        assert rates["float16"] == pytest.approx(2 * rates["float32"], rel=0.01)


test_rule_holds, test_broken_rule_goes_red = RULES.tests()
