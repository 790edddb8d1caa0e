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
        """Take the place of PyTorch's counters, and of waiting for a GPU, for the time of a test."""
        self.now, self.highest = 500, 9000  # bytes; the peak is one of earlier work
        self.launched = []
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


@pytest.fixture
def allocator(monkeypatch) -> Allocator:
    return Allocator(monkeypatch)


def run_block(allocator: Allocator, *, kind: str) -> memory.PeakMemory:
    """Run a block that holds 3500 bytes at most, after somebody else's work."""
    allocator.launched = [4000, -4000]  # somebody else's, not finished yet
    with memory.peak(on=PyTorchDevice(kind, "GPU")) as peak:
        allocator.launched += [1000, 2000, -3000]
        allocator.work()
        allocator.launched += [3500, -500]  # still running when the block ends
    return peak


@pytest.mark.parametrize("kind", ["mps", "cuda"])
def test_a_gpu_s_peak_is_the_allocator_s_until_all_that_was_launched_is_done(allocator, kind):
    peak = run_block(allocator, kind=kind)
    assert peak.how == "allocator"
    assert peak.bytes == 3500


@pytest.mark.parametrize(("kind", "pool"), [("mps", 30_000), ("cuda", 20_000)], ids=["mps", "cuda"])
def test_the_driver_s_pool_is_told_apart_from_the_peak(allocator, kind, pool):
    peak = run_block(allocator, kind=kind)
    assert peak.pool_bytes == pool
    assert "3.42 KiB" in str(peak)
    assert f"{pool / 1024:.3g} KiB" in str(peak)


def test_a_block_that_is_still_open_has_no_peak_yet(allocator):
    with memory.peak(on=PyTorchDevice("mps", "GPU")) as peak:
        assert "has not ended" in str(peak)


def test_out_of_memory_has_a_peak_too(allocator):
    def fails():
        allocator.launched += [7000, -7000]
        allocator.work()
        raise RuntimeError("MPS backend out of memory")

    gpu = PyTorchDevice("mps", "GPU")
    with pytest.raises(RuntimeError, match="out of memory"), memory.peak(on=gpu) as peak:
        fails()

    assert peak.bytes == 7000
    assert peak.pool_bytes == 30_000


def test_a_block_that_raises_on_the_cpu_has_a_peak_too():
    with pytest.raises(ZeroDivisionError), memory.peak(on=CPU) as peak:
        raise ZeroDivisionError
    assert peak.bytes is not None


@pytest.fixture
def tensorflow(monkeypatch) -> SimpleNamespace:
    """A stand-in for TensorFlow's counters: on an NVIDIA GPU it has some, a plugin's allocator may have none."""
    counts = {"current": 500, "peak": 9000}
    counters = SimpleNamespace(
        counts=counts,
        get_memory_info=lambda name: dict(counts),
        reset_memory_stats=lambda name: counts.update(peak=counts["current"]),
    )
    config = SimpleNamespace(experimental=counters)
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=config))
    monkeypatch.setattr(PyTorchDevice, "synchronize", lambda self: None)
    return counters


@pytest.fixture
def uncounted(tensorflow) -> None:
    """TensorFlow's allocator has no counters."""

    def refuse(name):
        raise ValueError("Allocator stats not available for device 'GPU:0'")

    tensorflow.get_memory_info = refuse


def test_tensorflow_s_counters_are_asked(tensorflow):
    with memory.peak(on=PyTorchDevice("cuda", "GPU", framework="tensorflow")) as peak:
        tensorflow.counts["peak"] = max(tensorflow.counts["peak"], 3000)

    assert peak.how == "allocator"
    assert peak.bytes == 2500
    assert peak.pool_bytes is None


@pytest.mark.parametrize("framework", ["tensorflow", "jax"])
def test_an_apple_gpu_s_memory_is_the_process_s_where_nothing_counts_it(uncounted, framework):
    with memory.peak(on=PyTorchDevice("mps", "Apple GPU", framework=framework)) as peak:
        pass
    assert peak.how == "sampled"


@pytest.mark.parametrize("framework", ["tensorflow", "jax"])
def test_another_gpu_whose_memory_nothing_counts_is_named(uncounted, framework):
    gpu = PyTorchDevice("cuda", "NVIDIA H200", framework=framework)
    with (
        pytest.raises(ValueError, match=f"{framework} does not tell .* on NVIDIA H200"),
        memory.peak(on=gpu),
    ):
        pass


@pytest.fixture
def wait_for_sample(monkeypatch):
    """A function that waits until the process's memory has been read after the call."""
    sampled = threading.Semaphore(0)

    class Watched(psutil.Process):
        def memory_info(self):
            sampled.release()
            return super().memory_info()

    def wait() -> None:
        while sampled.acquire(blocking=False):
            continue
        for _ in range(2):  # the first may have been under way
            assert sampled.acquire(timeout=300)

    monkeypatch.setattr(memory.psutil, "Process", Watched)
    return wait


def test_memory_that_a_block_touches_and_frees_is_in_its_peak(wait_for_sample):
    with memory.peak(on=CPU) as peak:
        array = np.ones(200 * MB, np.uint8)
        wait_for_sample()
        del array

    assert peak.how == "sampled"
    assert 190 * MB < peak.bytes < 300 * MB, f"{peak.bytes / MB} MB"


def test_the_cpu_has_no_driver_s_pool():
    with memory.peak(on=CPU) as peak:
        pass
    assert peak.pool_bytes is None
    assert "pool" not in str(peak)


class Process:
    """A process whose resident memory, and the system's record of it, are as the test says."""

    def __init__(self) -> None:
        self.rss = 1000
        self.record = 9000
        self.sampled = threading.Event()

    def memory_info(self):
        read = SimpleNamespace(rss=self.rss)
        if read.rss == 4000:
            self.sampled.set()
        return read


@pytest.fixture
def process(monkeypatch) -> Process:
    made = Process()
    monkeypatch.setattr(memory.psutil, "Process", lambda: made)
    monkeypatch.setattr(memory, "_read_highest_ever", lambda: made.record)
    return made


def test_a_record_from_before_the_block_is_not_the_block_s(process):
    with memory.peak(on=CPU) as peak:
        process.rss = 4000
        process.sampled.wait(300)
        process.rss = 500
    assert peak.bytes == 3000


def test_a_record_of_the_block_counts_that_was_too_short_to_be_sampled(process):
    with memory.peak(on=CPU) as peak:
        process.record = 9500
    assert peak.bytes == 8500


def test_memory_at_the_end_of_a_block_counts(process, monkeypatch):
    monkeypatch.setattr(memory, "INTERVAL", 1e9)
    with memory.peak(on=CPU) as peak:
        process.rss = 1700
    assert peak.bytes == 700


OLDER = [(16, 15, 10.67), (32, 15, 21.33), (36, 15, 27.0), (64, 15, 48.0)]


@pytest.mark.parametrize(
    ("installed", "macos", "recommended"),
    [*OLDER, (16, 26, 11.84), (36, 26, 28.1), (128, 26, 107.5)],
)
def test_a_macs_limit_is_what_logs_of_metal_say(installed, macos, recommended):
    assert memory.metal_limit(installed * 2**30, macos) / 2**30 == pytest.approx(
        recommended, abs=0.05
    )
