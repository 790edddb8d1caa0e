"""the machine, its tools, and what the processor computes"""

from __future__ import annotations

import subprocess
import sysconfig
import threading
from importlib import metadata
from pathlib import Path

import numpy as np
import psutil
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from conformance.claims import find_tool
from metallab import device, isolated, machine, memory, paths

pytestmark = pytest.mark.claim(on="cpu")
H264 = "avc1"
"""OpenCV's name of the format in which page 60 writes its film on a Mac."""
XCODE = ("clang", "metal", "metallib", "xctrace", "mpsgraphtool")
BUSY = """
import time
{setup}
end = time.perf_counter() + 0.3
while time.perf_counter() < end: work()
wall, processor = time.perf_counter(), time.process_time()
while time.perf_counter() - wall < 1: work()
busy = (time.process_time() - processor) / (time.perf_counter() - wall)
"""
WORK = {
    "torch": "import torch\na = torch.rand(700, 700)\nwork = lambda: a @ a",
    "tensorflow": "import tensorflow as tf\n"
    "with tf.device('/CPU:0'): a = tf.random.uniform((700, 700))\n"
    "def work():\n  with tf.device('/CPU:0'): return (a @ a).numpy()",
    "jax": "import jax, numpy as np\na = jax.device_put(np.ones((700, 700), 'f'), jax.devices('cpu')[0])\n"
    "f = jax.jit(lambda a: a @ a)\nwork = lambda: f(a).block_until_ready()",
}
DESCRIBED = (
    *("chip", "gpu", "gpu_cores", "cores_performance", "cores_efficiency", "memory_bytes"),
    *("os_version", "power_source", "low_power_mode", "load_average"),
)


@pytest.mark.claim(on="mac", used_in="metallab.machine, every result's provenance")
def test_description_is_complete(evidence):
    """macOS tells chip, GPU cores, kinds of core, memory, power source and low-power mode by the commands we ask."""
    described = machine.describe()
    for name in DESCRIBED:
        evidence(name, getattr(described, name))
    unknown = [name for name in DESCRIBED if getattr(described, name) is None]
    assert not unknown, f"not found out: {', '.join(unknown)}"


@pytest.mark.claim(on="mac", used_in="notebooks 00, 23 and 40")
def test_tools_of_xcode(evidence):
    """xcrun finds clang; with the whole Xcode also xctrace and mpsgraphtool, and metal if it was downloaded.

    Asks xcrun -f for each, and those that are there for their version. What is missing is recorded; clang alone has to
    be there.
    """
    tools = {name: find_tool(name) for name in XCODE}
    versions = {
        name: _version(path) for name, path in tools.items() if path and name != "mpsgraphtool"
    }
    versions["macOS"] = _version("sw_vers", "-buildVersion")
    versions["developer folder"] = _version("xcode-select", "-p")
    evidence("found", tools)
    evidence("versions", versions)
    evidence("missing", [name for name, path in tools.items() if not path])
    assert tools["clang"]


def _version(*command: str) -> str:
    """Return the first line that a tool answers when it is asked for its version.

    A command of one word gets the option for that. In place of an answer stands the exit code where there is none, and
    the name of the exception where the tool cannot be started or takes 20 seconds.
    """
    line = (
        command
        if len(command) > 1
        else (*command, "version" if command[0].endswith("xctrace") else "--version")
    )
    try:
        asked = subprocess.run(line, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}"
    return next(
        iter((asked.stdout or asked.stderr).strip().splitlines()), f"exit code {asked.returncode}"
    )


@pytest.mark.claim(used_in="lock.txt")
def test_locked_versions_are_installed(evidence):
    """Every package has the locked version, which was resolved for macOS on Linux and installed there by nobody.

    Of the packages that only the book, the class or the tests in a browser need, those that are installed.
    """
    # of these folders alone: elsewhere on sys.path lie the packages that setuptools brings along
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    installed = {
        canonicalize_name(each.name): each.version
        for each in metadata.distributions(path=list(folders))
    }
    lines = [
        line for line in paths.CONSTRAINTS.read_text().splitlines() if not line.startswith("#")
    ]
    locked = [
        each for each in map(Requirement, lines) if each.marker is None or each.marker.evaluate()
    ]
    pairs = [
        (each.specifier, installed[canonicalize_name(each.name)])
        for each in locked
        if canonicalize_name(each.name) in installed
    ]
    evidence("differ", differ := [f"{have}: {want}" for want, have in pairs if have not in want])

    assert len(pairs) > 50
    assert not differ


@pytest.mark.claim(on="mac", used_in="notebook 60")
def test_films_are_written_in_h264():
    """OpenCV on a Mac writes H.264, which browsers play, and reads it back."""
    import cv2

    writer = cv2.VideoWriter("film.mp4", cv2.VideoWriter_fourcc(*H264), 8.0, (128, 96))
    for k in range(8):
        writer.write(np.full((96, 128, 3), 20 * k, np.uint8))
    writer.release()
    film = cv2.VideoCapture("film.mp4")
    assert sum(film.read()[0] for _ in range(8)) == 8
    assert b"avc1" in Path("film.mp4").read_bytes(), "another format"


@pytest.mark.claim(used_in="notebook 17, metallab.memory")
def test_peak_memory_is_seen(evidence, monkeypatch):
    """The sampled peak of a process's memory sees 200 MB that are used and given back: macOS counts in bytes."""
    # `memory.peak` samples in a thread: each time that it has read the memory, the semaphore counts one up
    read, sampled = psutil.Process.memory_info, threading.Semaphore(0)
    monkeypatch.setattr(
        psutil.Process, "memory_info", lambda self: (read(self), sampled.release())[0]
    )

    with memory.peak(on=device.cpu()) as used:
        block = np.ones(200 * 2**20, np.uint8)
        while sampled.acquire(blocking=False):  # samples from before the memory was written
            continue
        for _ in range(2):  # the first of the next two may have been under way
            sampled.acquire()
        del block

    evidence("bytes", used.bytes)
    assert 0.9 < used.bytes / (200 * 2**20) < 2


@pytest.mark.claim(used_in="notebooks 01, 19 and 53, metallab.isolated", seconds=100, slow=True)
@pytest.mark.parametrize("framework", WORK)
def test_one_thread_holds(framework, evidence):
    """``isolated.run(threads=1)`` holds PyTorch, TensorFlow and JAX to one busy core, on macOS by variables alone.

    Processor time by the clock's time of a second of matrix products, in a process of its own.
    """
    ran = isolated.run(BUSY.format(setup=WORK[framework]), results=["busy"], threads=1, timeout=75)
    if not ran.ok:
        pytest.skip(f"it could not be run: {ran}")
    evidence("cores kept busy", round(ran["busy"], 2))
    assert ran["busy"] < 1.2


@pytest.mark.claim(on="mac", used_in="metallab.device.cpu, the label of one thread", seconds=180)
def test_accelerate_keeps_its_own_threads(evidence):
    """On a Mac ``torch.set_num_threads(1)`` does not hold matrix products: Accelerate computes them on its own threads.

    Processor time by the clock's time of a second of products of 2048 x 2048. ``isolated.run(threads=1)``, whose
    VECLIB_MAXIMUM_THREADS is reported to hold them, is looked into by ``one_thread_holds``.
    """
    work = (
        "import torch\ntorch.set_num_threads(1)\na = torch.rand(2048, 2048)\nwork = lambda: a @ a"
    )
    ran = isolated.run(BUSY.format(setup=work), results=["busy"], timeout=75)
    if not ran.ok:
        pytest.skip(f"it could not be run: {ran}")
    evidence("cores kept busy", round(ran["busy"], 2))
    assert ran["busy"] > 1.2
