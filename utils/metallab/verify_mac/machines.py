"""The machine, its tools, and what its processor computes."""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import sys
from pathlib import Path

from metallab.verify_mac.trial import Finding, judged, not_applicable, trial

SCENES = "f17ebba02cd8095837ce4fdad41547fb11ae9f7334ce19247e20f692c781612a"
"""SHA-256 of eight scenes, drawn on x86-64."""
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


@trial(on="mac", used_in="metallab.machine, every result's provenance")
def description_is_complete() -> Finding:
    """macOS tells chip, GPU cores, kinds of core, memory, power source and low-power mode by the commands we ask."""
    from metallab import machine

    found = machine.describe()
    wanted = (
        *("chip", "gpu", "gpu_cores", "cores_performance", "cores_efficiency", "memory_bytes"),
        *("os_version", "power_source", "low_power_mode", "load_average"),
    )
    unknown = [name for name in wanted if getattr(found, name) is None]
    said = f"not found out: {', '.join(unknown)}" if unknown else "all of it was found out"
    return judged(not unknown, said, **{name: getattr(found, name) for name in wanted})


@trial(on="mac", used_in="notebooks 00, 04 and 09")
def tools_of_xcode() -> Finding:
    """xcrun finds clang; with the whole Xcode, and not its command-line tools alone, also metal, xctrace, mpsgraphtool.

    Asks xcrun -f for each, and those that are there for their version.
    """
    from metallab import converters

    found = {name: converters.find_tool(name) for name in XCODE}
    versions = {name: _version(path) for name, path in found.items() if path and name != "mpsgraphtool"}
    versions["macOS"] = _version("sw_vers", "-buildVersion")
    versions["developer folder"] = _version("xcode-select", "-p")
    missing = [name for name, path in found.items() if not path]
    said = f"missing: {', '.join(missing)}" if missing else "all are there"
    return judged("clang" not in missing, said, found=found, versions=versions)


@trial(on="cpu", used_in="constraints.txt")
def locked_versions_are_installed() -> Finding:
    """Every package has the locked version, which was resolved for macOS on Linux and installed there by nobody.

    Of the packages that only the book, the class or the tests in a browser need, those that are installed.
    """
    from metallab import probes

    differ = probes.against_lock()
    return judged(not differ, f"{len(differ)} packages differ from the lock", differ=differ)


@trial(on="cpu", used_in="notebook 08, metallab.detection.scenes")
def scenes_have_the_same_bytes() -> Finding:
    """Generated scenes are the same bytes on every processor: the detector was trained on them."""
    from metallab.detection import scenes

    found = hashlib.sha256()
    for seed, size in itertools.product(range(4), (320, (384, 640))):
        found.update(scenes.Scene(seed, size).frame(3 * seed).image.tobytes())
    digest = found.hexdigest()
    return judged(digest == SCENES, "the same bytes" if digest == SCENES else "other bytes", digest=digest)


@trial(on="mac", used_in="notebook 08, metallab.detection.video")
def films_are_written_in_h264() -> Finding:
    """OpenCV on a Mac writes H.264, which browsers play, and reads it back."""
    import numpy as np

    from metallab.detection import video

    frames = [np.full((96, 128, 3), 20 * k, np.uint8) for k in range(8)]
    video.write_film(Path("film.mp4"), frames, 8.0)
    kind = b"avc1" in Path("film.mp4").read_bytes()
    import cv2

    film = cv2.VideoCapture("film.mp4")
    read = sum(film.read()[0] for _ in range(8))
    return judged(kind and read == 8, f"{'H.264' if kind else 'another format'}, {read} of 8 frames came back")


@trial(on="cpu", used_in="notebooks 02, 05 and 08, metallab.memory")
def peak_memory_is_seen() -> Finding:
    """The sampled peak of a process's memory sees 200 MB that are used and given back: macOS counts in bytes."""
    import numpy as np

    from metallab import device, memory

    with memory.peak(on=device.cpu()) as used:
        block = np.ones(200 * 2**20, np.uint8)
        del block
    share = used.bytes / (200 * 2**20)
    return judged(0.9 < share < 2, f"the peak was {share:.2f} times what was used", bytes=used.bytes)


@trial(on="cpu", used_in="notebooks 01, 02b, 06 and 07, metallab.isolated", seconds=240)
def one_thread_holds() -> Finding:
    """``isolated.run(threads=1)`` holds PyTorch, TensorFlow and JAX to one busy core, on macOS by variables alone.

    Processor time by the clock's time of a second of matrix products, in three processes.
    """
    from metallab import isolated

    busy, trouble = {}, {}
    for name, setup in WORK.items():
        ran = isolated.run(BUSY.format(setup=setup), results=["busy"], threads=1, timeout=75)
        if ran.ok:
            busy[name] = round(ran["busy"], 2)
        else:
            trouble[name] = str(ran)
    if not busy:
        return not_applicable(f"none of them could be run: {trouble}")
    said = ", ".join(f"{name} kept {cores} cores busy" for name, cores in busy.items())
    return judged(max(busy.values()) < 1.2 and not trouble, said, busy=busy, trouble=trouble, platform=sys.platform)


@trial(on="mac", used_in="metallab.device.cpu, the label of one thread", seconds=180)
def accelerate_keeps_its_own_threads() -> Finding:
    """On a Mac ``torch.set_num_threads(1)`` does not hold matrix products: Accelerate computes them on its own threads.

    Processor time by the clock's time of a second of products of 2048 x 2048. ``isolated.run(threads=1)``, whose
    VECLIB_MAXIMUM_THREADS is reported to hold them, is looked into by ``one_thread_holds``.
    """
    from metallab import isolated

    work = "import torch\ntorch.set_num_threads(1)\na = torch.rand(2048, 2048)\nwork = lambda: a @ a"
    ran = isolated.run(BUSY.format(setup=work), results=["busy"], timeout=75)
    if not ran.ok:
        return not_applicable(f"it could not be run: {ran}")
    return judged(ran["busy"] > 1.2, f"products kept {ran['busy']:.2f} cores busy", busy=ran["busy"])


def _version(*command: str) -> str:
    """The first line of what a tool says of its version."""
    line = command if len(command) > 1 else (*command, "version" if command[0].endswith("xctrace") else "--version")
    try:
        asked = subprocess.run(line, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}"
    return next(iter((asked.stdout or asked.stderr).strip().splitlines()), f"exit code {asked.returncode}")
