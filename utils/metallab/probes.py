"""What computes on this machine: every framework's devices, tried with a real product and compared with NumPy.

Each framework is tried in a process of its own, because some of them abort instead of raising, and because a page that
checks the machine should not have to hold four frameworks in memory.
"""

from __future__ import annotations

import html
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from packaging.requirements import Requirement

from metallab import machine, paths
from metallab.processes import describe_exit
from metallab.tables import Table

if TYPE_CHECKING:
    from metallab.timing import Measurement

ProbeStatus = Literal["works", "wrong", "failed", "absent"]
TIMEOUT = 180
"""Seconds for one framework; its first import on a cold disk can take a minute."""
TOLERANCE = 1e-3
"""Allowed difference of a product of two 64 x 64 standard-normal matrices in float32."""

ANSWER = "metallab-probes:"
"""Begins the line that a framework's process answers with."""


@dataclass(frozen=True)
class ProbeResult:
    """What was found about one device of one framework."""

    framework: str
    version: str
    device: str
    status: ProbeStatus
    detail: str = ""
    remedy: str = ""
    """The command or step that fixes it; empty where nothing is to be done."""


STATUS_WORDS = {"works": "✓ computes", "absent": "– not here", "wrong": "✗ WRONG RESULT", "failed": "✗ failed"}


class ProbeResults(list[ProbeResult]):
    """What was found about several devices; a notebook shows it as a table."""

    def table(self) -> Table:
        """Return a row for each framework and device, with a column for what fixes a fault if something does."""
        rows = [
            (probe.framework, probe.version, probe.device, STATUS_WORDS[probe.status], probe.detail, probe.remedy)
            for probe in self
        ]
        headings = ["framework", "version", "device", "result", "what was found", "to fix"]
        return Table(headings, rows) if any(row[-1] for row in rows) else Table(headings[:-1], [r[:-1] for r in rows])

    def sentence(self) -> str:
        """How many of them compute, which of these are no CPU, and how many compute wrongly or fail."""
        working = [probe for probe in self if probe.status == "works"]
        gpus = sorted({f"{probe.framework} on {probe.device}" for probe in working if probe.device != "cpu"})
        faulty = sum(probe.status in ("wrong", "failed") for probe in self)
        return (
            f"{len(working)} pairs of framework and device compute correctly here, {faulty} wrongly or not at all; "
            f"beyond the CPU: {', '.join(gpus) or 'none'}."
        )

    def __repr__(self) -> str:
        return f"{self.table()}\n{self.sentence()}"

    def _repr_html_(self) -> str:
        return f"{self.table()._repr_html_()}<p>{html.escape(self.sentence())}</p>"


def run_all(frameworks: tuple[str, ...] = ("torch", "tensorflow", "jax", "onnxruntime")) -> ProbeResults:
    """Try every framework, two at a time; never raises for what it finds."""
    with ThreadPoolExecutor(2) as pool:
        return ProbeResults(probe for probes in pool.map(run, frameworks) for probe in probes)


def run(framework: str, timeout: float = TIMEOUT) -> list[ProbeResult]:
    """Try one framework in a process of its own. A crash, a hang or a missing package becomes a probe that says so."""
    command = [sys.executable, "-m", "metallab.probes", framework]
    # jax-metal's plugin refuses a newer jaxlib without the first; the second keeps TensorFlow's start-up notes away
    environment = {**os.environ, "ENABLE_PJRT_COMPATIBILITY": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment.pop("METALLAB_DEVICE", None)
    version = installed(framework) or "-"
    try:
        child = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=timeout
        )
    except subprocess.TimeoutExpired:
        reason = f"no answer within {timeout:.0f} s"
        return [ProbeResult(framework, version, "?", "failed", reason, f"python -m metallab.probes {framework}")]
    # a plugin prints lines of its own, some as late as the process's end
    answers = [line for line in child.stdout.splitlines() if line.startswith(ANSWER)]
    if child.returncode == 0 and answers:
        return [ProbeResult(**row) for row in json.loads(answers[-1].removeprefix(ANSWER))]
    lines = child.stderr.strip().splitlines()
    ended = f"its process {describe_exit(child.returncode)}" + ("" if child.returncode else " before it answered")
    detail = lines[-1] if child.returncode > 0 and lines else ended
    return [ProbeResult(framework, version, "?", "failed", detail, "make setup FORCE=1")]


def installed(package: str) -> str | None:
    """Return the installed version of a package, or None; setuptools' own copies of packages do not count."""
    folders = [folder for folder in sys.path if not folder.endswith("_vendor")]
    return next((each.version for each in metadata.distributions(name=package, path=folders)), None)


def against_lock(constraints: Path = paths.CONSTRAINTS) -> list[tuple[str, str, str]]:
    """Installed packages whose version is not the locked one: (name, locked, installed).

    A build after a plus sign, as torch reports it, matches where the lock names none.
    """
    differ = []
    for line in constraints.read_text().splitlines():
        text = line.split("#", 1)[0].strip()
        wanted = Requirement(text) if text else None
        if wanted is None or not (wanted.marker is None or wanted.marker.evaluate()):
            continue
        have = installed(wanted.name)
        if have and not wanted.specifier.contains(have, prereleases=True):
            differ.append((wanted.name, str(wanted.specifier).removeprefix("=="), have))
    return differ


def versions() -> Table:
    """Which installed packages differ from the lock, and the command that fixes it."""
    differing = against_lock()
    fix = "To fix: make setup FORCE=1, or with conda: conda env update -f environment.yml."
    note = fix if differing else "Every installed package has its locked version."
    return Table(["package", "locked", "installed"], differing, note)


def programs() -> Table:
    """Compilers and the Mac's command-line tools, as found on the PATH; those of a Mac are listed on a Mac only."""
    mac = sys.platform == "darwin"
    install = "xcode-select --install" if mac else "apt-get install "
    wanted = {"c++": ("builds C++ extensions", "g++"), "git": ("puts the revision beside each number", "git")}
    if mac:
        wanted["xcrun"] = "finds Metal's compiler and mpsgraphtool", ""
    rows = []
    for name, (purpose, package) in wanted.items():
        fix = f"MISSING; to fix: {install if mac else install + package}"
        rows.append((name, "found" if shutil.which(name) else fix, purpose))
    return Table(["program", "on this machine", "what for"], rows)


@dataclass(frozen=True)
class LessonNeeds:
    """A notebook and the packages it cannot do without, from its own metadata."""

    name: str
    title: str
    needs: tuple[str, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """Those of its packages that are not installed."""
        return tuple(package for package in self.needs if installed(package) is None)


def lessons(folder: Path = paths.NOTEBOOKS) -> list[LessonNeeds]:
    """Return every numbered notebook with what it needs; its name is the title of one that begins with none.

    ValueError, with the name of the file, for one that cannot be read as a notebook.
    """
    pages = []
    for path in sorted(folder.glob("[0-9]*.ipynb")):
        try:
            notebook = json.loads(path.read_text(encoding="utf-8"))  # nbformat takes 2 s to import, in each child
            texts = ("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
            title = next(texts, "").partition("\n")[0].lstrip("# ") or path.stem
            pages.append(
                LessonNeeds(path.stem, title, tuple(notebook["metadata"].get("metallab", {}).get("needs", [])))
            )
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"{path.name} cannot be read as a notebook ({error}); restore it") from None
    return pages


def lessons_here() -> Table:
    """Return every notebook, and the packages that it needs and this machine lacks."""
    every = lessons()
    rows = [(each.name.split("_")[0], each.title, ", ".join(each.missing) or "nothing") for each in every]
    ready = sum(not each.missing for each in every)
    return Table(["page", "title", "missing here"], rows, f"{ready} of {len(rows)} pages have all that they need.")


def fitness(measurement: Measurement) -> str:
    """Return what to fix on this machine before a measurement is trusted: power, load, the measurement's flags."""
    here = machine.describe()
    reasons = [f"the measurement is flagged '{flag}'" for flag in measurement.flags]
    if here.power_source == "battery":
        reasons.append("on battery: plug it in")
    if here.low_power_mode:
        reasons.append("low-power mode is on: switch it off")
    if here.load_average and here.load_average[0] > (here.cores_logical or 1):
        reasons.append(f"load average {here.load_average[0]:.1f}: something else ran in the last minute")
    return "Before you measure: " + ("; ".join(reasons) or "nothing to fix") + "."


def _tried(
    framework: str, name: str, product: Callable[[np.ndarray, np.ndarray], Any], remedy: str = ""
) -> ProbeResult:
    """Multiply on a device and compare with NumPy."""
    version = installed(framework) or "-"
    a, b = np.random.default_rng(0).standard_normal((2, 64, 64), dtype=np.float32)
    try:
        result = np.asarray(product(a, b))
    except Exception as error:  # noqa: BLE001 - whatever a plugin raises is the finding
        return ProbeResult(framework, version, name, "failed", f"{type(error).__name__}: {error}"[:300], remedy)
    difference = float(np.abs(result - a @ b).max())
    if not difference <= TOLERANCE:  # NaN is wrong too
        return ProbeResult(framework, version, name, "wrong", f"differs from NumPy by {difference:.3g}", remedy)
    agrees = f"largest difference from NumPy {difference:.1g}" if difference else "equal to NumPy to the last bit"
    return ProbeResult(framework, version, name, "works", agrees)


def _torch() -> Iterator[ProbeResult]:
    import torch

    def product_on(kind: str) -> Callable:
        return lambda a, b: (torch.from_numpy(a).to(kind) @ torch.from_numpy(b).to(kind)).cpu()

    yield _tried("torch", "cpu", product_on("cpu"))
    for kind, backend in (("mps", torch.backends.mps), ("cuda", torch.cuda)):
        if backend.is_available():
            yield _tried("torch", kind, product_on(kind))
        else:
            detail, remedy = f"PyTorch sees no {kind} device on this machine", ""
            if kind == "mps" and sys.platform == "darwin":
                remedy = "PyTorch's MPS device needs Apple silicon, macOS 15 or newer, and a native (arm64) Python"
            yield ProbeResult("torch", installed("torch") or "-", kind, "absent", detail, remedy)


def _tensorflow() -> Iterator[ProbeResult]:
    import tensorflow as tf

    def product_on(name: str) -> Callable:
        def product(a, b):
            with tf.device(name):
                return tf.linalg.matmul(tf.constant(a), tf.constant(b)).numpy()

        return product

    yield _tried("tensorflow", "cpu", product_on("/CPU:0"))
    gpus = tf.config.list_physical_devices("GPU")
    for index, _ in enumerate(gpus):
        yield _tried("tensorflow", f"gpu:{index}", product_on(f"/GPU:{index}"))
    if not gpus:
        yield _no_plugin("tensorflow", tf.__version__, "gpu", "TensorFlow sees no GPU on this machine")


def _no_plugin(framework: str, version: str, device: str, detail: str) -> ProbeResult:
    if sys.platform == "darwin":
        return ProbeResult(framework, version, device, "absent", "the Metal plugin is not loaded", "make setup FORCE=1")
    return ProbeResult(framework, version, device, "absent", detail)


def _jax() -> Iterator[ProbeResult]:
    import jax

    def product(a, b):
        # JAX rounds float32 products to TensorFloat-32 on an NVIDIA GPU unless it is told not to
        return jax.numpy.matmul(a, b, precision="highest")

    yield _tried("jax", "cpu", lambda a, b: jax.jit(product, backend="cpu")(a, b))
    gpus = [gpu for gpu in jax.devices() if gpu.platform.lower() != "cpu"]
    for gpu in gpus:
        name = gpu.platform.lower()
        yield _tried("jax", name, lambda a, b, d=gpu: jax.jit(product)(*jax.device_put((a, b), d)))
    if not gpus:
        yield _no_plugin("jax", jax.__version__, "accelerator", "JAX sees no accelerator on this machine")


def _onnxruntime() -> Iterator[ProbeResult]:
    import onnxruntime
    from onnx import TensorProto, helper

    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 64]) for name in "abc"]
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["c"])], "product", tensors[:2], tensors[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def product_on(provider: str) -> Callable:
        def product(a, b):
            session = onnxruntime.InferenceSession(model.SerializeToString(), providers=[provider])
            # a provider that cannot start is replaced by the CPU without a word
            if session.get_providers()[0] != provider:
                raise RuntimeError(f"asked for {provider}, got {session.get_providers()}")
            return session.run(None, {"a": a, "b": b})[0]

        return product

    for provider in onnxruntime.get_available_providers():
        if provider in ("CPUExecutionProvider", "CoreMLExecutionProvider", "CUDAExecutionProvider"):
            yield _tried("onnxruntime", provider.removesuffix("ExecutionProvider").lower(), product_on(provider))


FRAMEWORKS: Mapping[str, Callable[[], Iterator[ProbeResult]]] = {
    "torch": _torch,
    "tensorflow": _tensorflow,
    "jax": _jax,
    "onnxruntime": _onnxruntime,
}


def main() -> int:
    """``python -m metallab.probes torch``: the findings as one line of JSON after `ANSWER`."""
    name = sys.argv[1] if len(sys.argv) == 2 else ""
    if name not in FRAMEWORKS:
        print(f"usage: python -m metallab.probes {{{','.join(FRAMEWORKS)}}}", file=sys.stderr)
        return 2
    try:
        importlib.import_module(name)
    except ImportError as error:
        missing = ProbeResult(
            name, installed(name) or "-", "-", "failed", f"cannot be imported: {error}"[:300], "make setup FORCE=1"
        )
        outcomes = [missing]
    else:
        outcomes = list(FRAMEWORKS[name]())
    print(ANSWER + json.dumps([asdict(probe) for probe in outcomes]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
