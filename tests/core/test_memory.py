"""Peak memory: the allocator's own figure where there is one, the process's otherwise, the driver's pool apart.

The allocators of mps and cuda are imitated: what PyTorch's counters count is not checked here.
"""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

from metallab import memory
from metallab.device import PyTorchDevice

CPU = PyTorchDevice("cpu", "CPU")
MB = 1_000_000


class Allocator:
    """Counters as `torch.accelerator` has them; work that was launched allocates when the device is waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.highest, self.launched = 500, 9000, []
        counters = {
            "memory_allocated": lambda: self.now,
            "max_memory_allocated": lambda: self.highest,
            "reset_peak_memory_stats": self.reset,
            "memory_reserved": lambda: 20_000,
        }
        for name, counter in counters.items():
            monkeypatch.setattr(torch.accelerator, name, counter)
        monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 30_000)
        for backend in (torch.mps, torch.cuda):
            monkeypatch.setattr(backend, "synchronize", self.work)

    def reset(self) -> None:
        self.highest = self.now

    def work(self) -> None:
        for size in self.launched:
            self.now += size
            self.highest = max(self.highest, self.now)
        self.launched.clear()


def test_the_allocator_is_asked_where_there_is_one(monkeypatch):
    for kind, pool in (("mps", 30_000), ("cuda", 20_000)):
        allocator = Allocator(monkeypatch)
        allocator.launched = [4000, -4000]  # somebody else's, not finished yet
        with memory.peak(on=PyTorchDevice(kind, "GPU")) as peak:
            assert "has not ended" in str(peak)
            allocator.launched += [1000, 2000, -3000]
            allocator.work()
            allocator.launched += [3500, -500]  # still running when the block ends
        assert (peak.how, peak.bytes, peak.pool_bytes) == ("allocator", 3500, pool)
        assert (
            str(peak)
            == f"peak memory 3.42 KiB above the start (allocator), driver's pool {pool / 1024:.3g} KiB"
        )


def test_out_of_memory_has_a_peak_too(monkeypatch):
    allocator = Allocator(monkeypatch)

    def fails():
        allocator.launched += [7000, -7000]
        allocator.work()
        raise RuntimeError("MPS backend out of memory")

    with (
        pytest.raises(RuntimeError, match="out of memory"),
        memory.peak(on=PyTorchDevice("mps", "GPU")) as peak,
    ):
        fails()
    assert (peak.bytes, peak.pool_bytes) == (7000, 30_000)
    with pytest.raises(ZeroDivisionError), memory.peak(on=CPU) as peak:
        raise ZeroDivisionError
    assert peak.bytes is not None


def test_tensorflow_is_asked_and_where_nobody_knows_it_is_said(monkeypatch):
    """Stand-ins for TensorFlow's counters: on an NVIDIA GPU it has some, a plugin's allocator may have none."""
    counts = {"current": 500, "peak": 9000}
    told = SimpleNamespace(
        get_memory_info=lambda name: dict(counts),
        reset_memory_stats=lambda name: counts.update(peak=counts["current"]),
    )
    config = SimpleNamespace(experimental=told)
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=config))
    monkeypatch.setattr(PyTorchDevice, "synchronize", lambda self: None)
    with memory.peak(on=PyTorchDevice("cuda", "GPU", framework="tensorflow")) as peak:
        counts["peak"] = max(counts["peak"], 3000)
    assert (peak.how, peak.bytes, peak.pool_bytes) == ("allocator", 2500, None)

    def uncounted(name):
        raise ValueError("Allocator stats not available for device 'GPU:0'")

    told.get_memory_info = uncounted
    for framework in ("tensorflow", "jax"):
        with memory.peak(on=PyTorchDevice("mps", "Apple GPU", framework=framework)) as peak:
            pass
        assert peak.how == "sampled", "an Apple GPU's memory is the process's"
        gpu = PyTorchDevice("cuda", "NVIDIA H200", framework=framework)
        with (
            pytest.raises(ValueError, match=f"{framework} does not tell .* on NVIDIA H200"),
            memory.peak(on=gpu),
        ):
            pass


def test_touched_memory_is_seen(monkeypatch):
    """200 MB that are allocated, touched and, once they have been sampled, freed inside the block."""
    sampled = threading.Semaphore(0)

    class Watched(psutil.Process):
        def memory_info(self):
            sampled.release()
            return super().memory_info()

    monkeypatch.setattr(memory.psutil, "Process", Watched)
    with memory.peak(on=CPU) as peak:
        array = np.ones(200 * MB, np.uint8)
        while sampled.acquire(blocking=False):
            continue
        for _ in range(2):  # the first may have been under way
            assert sampled.acquire(timeout=300)
        del array
    assert 190 * MB < peak.bytes < 300 * MB, f"{peak.bytes / MB} MB"
    assert (peak.how, peak.pool_bytes) == ("sampled", None)
    assert "pool" not in str(peak)


class Process:
    """The process's resident memory as the test says."""

    def __init__(self) -> None:
        self.rss = 1000
        self.sampled = threading.Event()

    def memory_info(self):
        read = SimpleNamespace(rss=self.rss)
        if read.rss == 4000:
            self.sampled.set()
        return read


def test_samples_and_the_systems_record_are_put_together(monkeypatch):
    process, record = Process(), [9000]
    monkeypatch.setattr(memory.psutil, "Process", lambda: process)
    monkeypatch.setattr(memory, "_read_highest_ever", lambda: record[0])
    with memory.peak(on=CPU) as peak:
        process.rss = 4000
        process.sampled.wait(300)
        process.rss = 500
    assert peak.bytes == 3000, "a record from before the block is not the block's"
    process.rss = 1000
    with memory.peak(on=CPU) as peak:
        record[0] = 9500  # too short to be sampled
    assert peak.bytes == 8500
    monkeypatch.setattr(memory, "INTERVAL", 1e9)
    with memory.peak(on=CPU) as peak:
        process.rss = 1700
    assert peak.bytes == 700, "the end of the block is looked at"


OLDER = [(16, 15, 10.67), (32, 15, 21.33), (36, 15, 27.0), (64, 15, 48.0)]


@pytest.mark.parametrize(
    ("installed", "macos", "recommended"),
    [*OLDER, (16, 26, 11.84), (36, 26, 28.1), (128, 26, 107.5)],
)
def test_a_macs_limit_is_what_logs_of_metal_say(installed, macos, recommended):
    assert memory.metal_limit(installed * 2**30, macos) / 2**30 == pytest.approx(
        recommended, abs=0.05
    )
