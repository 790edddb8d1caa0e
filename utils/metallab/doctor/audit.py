"""``metallab doctor --machine``: what this machine has, whether its devices compute right, and whether it is quiet.

Each framework is asked in a process of its own, because some plugins end the whole process where others raise an
error. What a page or a model needs besides is looked up without importing it.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from metallab import device, fitness, isolated, machine, needs, paths, units
from metallab.device import plugins
from metallab.fitness import Fitness
from metallab.outcomes import Agreement

FRAMEWORKS = ("torch", "tensorflow", "jax", "mlx", "onnxruntime")
"""The modules of the frameworks that pages use, in the order in which they are asked."""

SECONDS = 180.0
"""For one framework: on a Mac the first import may take a minute."""

PROVIDERS = ("CPU", "CoreML", "CUDA")
"""What ONNX Runtime may compute with, each the beginning of a provider's name."""

CHILD = "from metallab.doctor import audit\nchecks = audit.try_devices({framework!r})"


@dataclass(frozen=True)
class DeviceCheck:
    """A device of a framework, and whether a product of two matrices on it agrees with NumPy's."""

    framework: str
    """The package's name."""
    device: str
    """The framework's name of it; empty if the framework came to no device."""
    outcome: Agreement
    detail: str = ""
    """How it differs, or why it does not compute."""


@dataclass(frozen=True)
class Difference:
    """A package in another version than the one that was tested together with the others."""

    package: str
    here: str
    tested: str


@dataclass(frozen=True)
class Audit:
    """What was found on a machine."""

    machine: machine.Machine
    checks: tuple[DeviceCheck, ...]
    absent: tuple[str, ...]
    """Frameworks that are not installed."""
    packages: tuple[str, ...]
    """Packages that pages need and that are missing."""
    tools: tuple[needs.MissingTool, ...]
    """Other tools that are missing, each with the command that brings it."""
    compared: int
    """Packages whose version was compared with the tested one."""
    differences: tuple[Difference, ...]
    fitness: Fitness

    @property
    def is_sound(self) -> bool:
        """True if every device that was found computes, and computes right."""
        return all(check.outcome == "agrees" for check in self.checks)


def audit_machine() -> Audit:
    """Look at this machine; it takes some ten seconds, most of them to import the frameworks.

    Returns
    -------
    Audit
        `metallab.doctor.wording.audit_lines` puts it into words.

    Raises
    ------
    DeviceUnavailable
        If ``METALLAB_DEVICE`` names a device that is missing or computes wrongly: it is the one that is judged as to
        whether the machine is quiet enough to measure.
    metallab.simulation.SimulationUnavailable
        If it names the simulated GPU, which cannot be used here.
    metallab.isolated.ChildFailed
        If the folder for temporary files cannot be written.
    """
    # found without an import, since some plugins end the process that imports them
    installed = [name for name in FRAMEWORKS if importlib.util.find_spec(name)]
    # two at once, since importing keeps a core busy, and more would need the memory of as many frameworks
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(check_framework, installed))
    compared, differences = compare_versions()  # with those that were tested together
    best = device.pick(framework=device.first_framework())

    return Audit(
        machine=machine.describe(),
        checks=tuple(check for checks in found for check in checks),
        absent=tuple(name for name in FRAMEWORKS if name not in installed),
        packages=find_missing_packages(),
        tools=find_missing_tools(),
        compared=compared,
        differences=differences,
        fitness=fitness.judge(best),
    )


# ---- devices -----------------------------------------------------------------------------------------------------


def check_framework(framework: str) -> tuple[DeviceCheck, ...]:
    """Try the devices of a framework in a process of its own, which may end as it likes."""
    outcome = isolated.run(CHILD.format(framework=framework), results=["checks"], timeout=SECONDS)
    if outcome.ok:
        return outcome["checks"]
    return (DeviceCheck(framework, "", "refused", outcome.reason),)


def try_devices(framework: str) -> tuple[DeviceCheck, ...]:
    """Multiply two matrices on each device that a framework sees in this process.

    Parameters
    ----------
    framework
        One of `FRAMEWORKS`.

    Returns
    -------
    tuple of DeviceCheck
        The CPU first.

    Raises
    ------
    Exception
        Whatever the framework raises when it is imported or lists its devices; not what a device raises, which is its
        check.
    """
    if framework == "onnxruntime":
        return _try_providers()
    if framework == "torch":
        kinds = _find_torch_kinds()
    else:
        kinds = plugins.FRAMEWORKS[framework].kinds()
    return tuple(
        check_product(framework, kind, functools.partial(_multiply, framework, kind))
        for kind in kinds
    )


def check_product(
    framework: str, name: str, multiply: Callable[[np.ndarray, np.ndarray], Any]
) -> DeviceCheck:
    """Compare a device's product with NumPy's: of small whole numbers, it is exact in any order and any precision.

    Parameters
    ----------
    framework, name
        Of the device, for the result.
    multiply
        Multiplies two float32 matrices of 64 x 64.

    Returns
    -------
    DeviceCheck
        *refused* where the device raises.
    """
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 9, (64, 64)).astype(np.float32) for _ in range(2))
    try:
        product = np.asarray(multiply(a, b))
    except Exception as error:  # noqa: BLE001 - plugins raise whatever they like
        return DeviceCheck(framework, name, "refused", units.first_line(error))

    if np.array_equal(product, a @ b):
        return DeviceCheck(framework, name, "agrees")
    largest = float(np.abs(product - a @ b).max())
    return DeviceCheck(framework, name, "differs", f"{largest:.3g}")


def _find_torch_kinds() -> tuple[str, ...]:
    """Return the kinds of device that PyTorch sees."""
    import torch

    has = {"mps": torch.backends.mps.is_available(), "cuda": torch.cuda.is_available()}
    return ("cpu", *(kind for kind, is_there in has.items() if is_there))


def _multiply(framework: Any, kind: str, a: np.ndarray, b: np.ndarray) -> Any:
    """Multiply two matrices on a device of PyTorch, TensorFlow, JAX or MLX."""
    if framework == "torch":
        import torch

        return (torch.tensor(a, device=kind) @ torch.tensor(b, device=kind)).cpu()

    on = plugins.make(kind, framework)
    with on.active():
        return plugins.FRAMEWORKS[framework].product(a, b)


def _try_providers() -> tuple[DeviceCheck, ...]:
    """Run a network of one product, saved as ONNX, with each of `PROVIDERS` that ONNX Runtime has.

    One with which no session starts is *refused*. One in whose place ONNX Runtime takes the CPU is left out, since the
    CPU has a check of its own.
    """
    import onnxruntime
    from onnx import parser

    text = '<ir_version: 8, opset_import: ["": 17]> '
    text += "g (float[64, 64] a, float[64, 64] b) => (float[64, 64] c) { c = MatMul(a, b) }"
    network = parser.parse_model(text).SerializeToString()

    checks = []
    for name in PROVIDERS:
        provider = f"{name}ExecutionProvider"
        if provider not in onnxruntime.get_available_providers():
            continue
        try:
            session = onnxruntime.InferenceSession(network, providers=[provider])
        except Exception as error:  # noqa: BLE001 - providers raise whatever they like
            refused = DeviceCheck("onnxruntime", provider, "refused", units.first_line(error))
            checks.append(refused)
            continue

        if session.get_providers()[0] != provider:
            continue
        run = functools.partial(_run_session, session)
        checks.append(check_product("onnxruntime", provider, run))
    return tuple(checks)


def _run_session(session: Any, a: np.ndarray, b: np.ndarray) -> Any:
    """Run the network of one product."""
    return session.run(None, {"a": a, "b": b})[0]


# ---- what is installed -------------------------------------------------------------------------------------------


def find_missing_packages(folder: Path = paths.NOTEBOOKS) -> tuple[str, ...]:
    """Return the packages that pages or some of their cells import, by their metadata, and that are not installed.

    Nothing is missing where the folder has no pages, as outside of a checkout.
    """
    wanted: set[str] = set()
    for page in sorted(folder.glob("[0-9]*.ipynb")):
        wanted.update(json.loads(page.read_text("utf-8"))["metadata"]["metallab"]["needs"])
    installed = _list_installed()
    return tuple(sorted(name for name in wanted if _normalize(name) not in installed))


def find_missing_tools() -> tuple[needs.MissingTool, ...]:
    """Return the tools besides packages that some cells need and this machine lacks, each with what brings it."""
    lacking = [tool.report_for("a page") for tool in needs.missing(needs.TOOLS)]
    for program in ["git", *(["xcrun"] if sys.platform == "darwin" else [])]:
        if shutil.which(program) is None:
            lacking.append(needs.MissingTool(f"there is no {program}", "make packages"))
    return tuple(lacking)


def compare_versions(file: Path = paths.CONSTRAINTS) -> tuple[int, tuple[Difference, ...]]:
    """Compare what is installed with the versions that were tested together.

    Parameters
    ----------
    file
        Names each tested version; outside of a checkout there is none, and nothing is compared.

    Returns
    -------
    count
        How many packages were compared.
    differences
        Those that are installed in another version.
    """
    if not file.is_file():
        return 0, ()
    from packaging.requirements import Requirement  # a checkout has it, the core does without

    lines = re.findall(r"^[^#\s].*$", file.read_text("utf-8"), re.MULTILINE)
    installed = _list_installed()
    tested = [each for each in map(Requirement, lines) if _normalize(each.name) in installed]
    # a line may be for another system, or for another version of Python
    tested = [each for each in tested if each.marker is None or each.marker.evaluate()]

    differences = []
    for each in tested:
        here = metadata.version(each.name)
        if not each.specifier.contains(here, prereleases=True):
            differences.append(Difference(each.name, here, str(each.specifier)))
    return len(tested), tuple(differences)


def _list_installed() -> set[str]:
    """Return the names of the packages that are installed, each as `_normalize` writes it."""
    return {_normalize(each.name) for each in metadata.distributions() if each.name}


def _normalize(name: str) -> str:
    """Return a package's name as indexes compare it: ``Typing_Extensions`` is ``typing-extensions``."""
    return re.sub(r"[-_.]+", "-", name).lower()
