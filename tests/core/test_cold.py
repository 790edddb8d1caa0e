"""Cold comparisons: caches are cleared before every sample and outside of its time, and the results say so."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
from fake_clock import FakeClock

from metallab import caches, device, records, timing
from metallab.fake_device import FakeDevice

WARM, COLD, CLEARING = 0.010, 0.030, 0.200
"""Seconds of a call, of one whose data lie in memory, and of clearing the caches."""


@dataclass
class Processor:
    """A device on a fake clock whose calls take longer where its cache was cleared, with a log of what it did."""

    kind: str = "cpu"
    label: str = "a planted processor"
    simulated: bool = False
    waits_for_results: bool = False
    clock: FakeClock = field(default_factory=FakeClock)
    log: list[str] = field(default_factory=list)
    is_cold: bool = False
    clearers: int = 0

    def synchronize(self, *results: object) -> None:
        pass

    def active(self):
        return timing.Host().active()

    def cache_clearer(self) -> Callable[[], None]:
        self.clearers += 1
        return self._clear

    def _clear(self) -> None:
        self.log.append("clear")
        self.is_cold = True
        self.clock.now += round(CLEARING * 1e9)

    def call(self) -> float:
        self.log.append("call")
        self.clock.now += round((COLD if self.is_cold else WARM) * 1e9)
        self.is_cold = False
        return 1.0

    def overwrite_freed(self, sizes: list[int]) -> None:
        self.log.append("overwrite")
        self.is_cold = False  # what was written lies in the cache


def compare(processor: Processor, **options) -> timing.Comparison:
    usual = {
        "on": processor,
        "baseline": "a",
        "parity": timing.Unchecked("clocks"),
        "clock": processor.clock,
        "budget": timing.Budget(min_samples=6, max_samples=6),
    }
    return timing.compare({"a": processor.call, "b": processor.call}, **usual | options)


@pytest.mark.parametrize(("cold", "seconds"), [(True, COLD), (False, WARM)], ids=["cold", "warm"])
def test_every_sample_is_cold_where_that_is_asked_for_and_clearing_is_not_timed(cold, seconds):
    measurements = compare(Processor(), cold=cold).measurements
    assert measurements["a"].samples == pytest.approx([seconds] * 6)
    assert measurements["b"].samples == pytest.approx([seconds] * 6)


def test_caches_are_cleared_once_a_sample():
    processor = Processor()
    compared = compare(processor, cold=True)
    samples = sum(measured.n for measured in compared.measurements.values())
    assert processor.log.count("clear") == samples


def test_caches_are_cleared_right_before_a_call():
    processor = Processor()
    compare(processor, cold=True)
    steps = itertools.pairwise(processor.log)
    assert {after for before, after in steps if before == "clear"} == {"call"}


def test_caches_are_cleared_after_the_memory_of_inspected_results_was_written():
    processor = Processor()
    compared = compare(processor, cold=True, parity=operator.eq)
    assert "overwrite" in processor.log
    assert min(compared["b"].samples) == pytest.approx(COLD)


def test_variants_on_one_kind_of_device_share_a_buffer():
    processor = Processor()
    compare(processor, cold=True)
    assert processor.clearers == 1


def test_a_cold_result_says_so():
    compared = compare(Processor(), cold=True, budget=timing.Budget(min_samples=20))
    assert all(measured.cold for measured in compared.measurements.values())
    assert "cold caches" in str(compared["a"])
    assert "pairs with cold caches" in compared.sentences[0]


def test_a_warm_result_is_not_called_cold():
    assert not any(measured.cold for measured in compare(Processor()).measurements.values())


def test_a_cold_comparison_in_a_file_is_still_cold(tmp_path):
    compared = compare(Processor(), cold=True, name="c")
    path = records.save("99_page", compared, on=device.Device("cpu", "x"), folder=tmp_path)
    (baseline, variant) = records.load(path)
    assert baseline.measurement.cold
    assert variant.answer.ratio.sampling is timing.COLD_ROUNDS


def test_a_cold_comparison_is_withheld_by_the_same_rule(monkeypatch):
    processor = Processor(simulated=True, kind="mps")
    assert compare(processor, cold=True).answers["b"].reason is timing.Reason.SIMULATED


def test_a_row_of_calls_cannot_be_cold():
    with pytest.raises(ValueError, match="question='latency'"):
        compare(Processor(), cold=True, question="throughput")


def test_a_device_that_cannot_clear_its_caches_is_named():
    with FakeDevice() as fake, pytest.raises(caches.CachesNotCleared, match="fake device"):
        compare(Processor(), on=fake, cold=True)


@pytest.mark.parametrize("framework", ["jax", "tensorflow", "mlx"])
def test_a_device_of_another_framework_cannot(framework):
    other = device.plugins.FRAMEWORKS[framework].DEVICE("cpu", "some CPU")
    with pytest.raises(caches.CachesNotCleared, match=r"leave cold=True out"):
        compare(Processor(), on=other, cold=True)


# ---- the buffers -------------------------------------------------------------------------------------------------


@pytest.fixture
def cpu_caches(tmp_path, monkeypatch):
    """Where Linux describes the caches; return what writes their sizes."""

    def write(*sizes: str) -> None:
        for number, size in enumerate(sizes):
            folder = tmp_path / f"index{number}"
            folder.mkdir()
            (folder / "size").write_text(f"{size}\n")

    monkeypatch.setattr(caches, "CPU_CACHES", tmp_path)
    return write


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        pytest.param(["48K", "32K", "2048K", "307200K"], 300 * 2**20, id="three levels"),
        pytest.param(["64M"], 64 * 2**20, id="in MiB"),
        pytest.param(["unknown", ""], None, id="no sizes"),
        pytest.param([], None, id="no description"),
    ],
)
def test_the_largest_cache_is_found(cpu_caches, sizes, found):
    cpu_caches(*sizes)
    assert caches.find_cpu_cache() == found


@pytest.mark.parametrize(
    ("cache", "size"),
    [
        pytest.param(None, caches.UNKNOWN, id="unknown"),
        pytest.param(2**20, caches.UNKNOWN, id="small"),
        pytest.param(2**30, 3 * 2**29, id="large"),
    ],
)
def test_a_buffer_is_larger_than_the_cache(cache, size):
    assert caches.size_buffer(cache) == size


def test_a_buffer_for_which_there_is_no_memory_is_refused(monkeypatch):
    monkeypatch.setattr(caches.psutil, "virtual_memory", lambda: SimpleNamespace(available=2**28))
    with pytest.raises(caches.CachesNotCleared, match="leave cold=True out"):
        caches.make_numpy_clearer()


def test_the_host_reads_all_of_a_buffer_that_was_written(cpu_caches, monkeypatch):
    monkeypatch.setattr(caches, "UNKNOWN", 2**12)
    cpu_caches("8K")
    assert timing.Host().cache_clearer()() == 1.5 * 2**13 / 4


def test_pytorch_s_cpu_reads_all_of_a_buffer(cpu_caches, monkeypatch):
    monkeypatch.setattr(caches, "UNKNOWN", 2**12)
    cpu_caches("8K")
    assert device.cpu().cache_clearer()().item() == 1.5 * 2**13 / 4


def test_the_simulated_gpu_clears_the_caches_of_the_cpu(cpu_caches, monkeypatch):
    monkeypatch.setattr(caches, "UNKNOWN", 2**12)
    simulated = device.PyTorchDevice("mps", "simulated", simulated=True)
    assert simulated.cache_clearer()().device.type == "cpu"


def test_samples_of_plain_python_are_cold():
    """With the real clock and real caches, of which the other tests have stand-ins; no time is judged."""
    numbers = np.arange(1000.0)

    compared = timing.compare(
        {"sum": numbers.sum, "again": numbers.sum},
        on=timing.Host(),
        baseline="sum",
        parity=operator.eq,
        budget=timing.FAST,
        cold=True,
    )

    assert compared["again"].cold
    assert not compared.refused  # no result differs from the other
