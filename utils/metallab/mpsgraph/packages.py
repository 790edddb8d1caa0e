"""MPSGraphPackages that another process can use, each with a JSON file beside it.

An executable that was read from a package does not say in which order it takes its inputs and gives its outputs, nor
their shapes, so the file holds them; and the SHA-256 of the package's files, so that a damaged one is refused, where
MPSGraph may end the process.

Needs macOS 14, Core ML packages macOS 15. As with `metallab.mpsgraph`, use it in a cell
``%%isolated --device mps``.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metallab import mpsgraph

MINIMUM_MACOS = "15.0.0"


class PackageUnusable(RuntimeError):
    """A package that cannot be written or read here; the message says why and what to do."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """Shape and dtype of an input or output, as `metallab.mpsgraph.Program` asks a tensor for them."""

    sizes: tuple[int, ...]
    name: str
    """Of the dtype, as NumPy has it: ``float32``."""

    def shape(self) -> list[int]:
        return list(self.sizes)

    def dataType(self) -> int:
        return mpsgraph.data_type(self.name)


def store(program: mpsgraph.Program, package: Path) -> Path:
    """Serialise a compiled program as ``package``, and describe it in a JSON file beside it, whose path is returned.

    `PackageUnusable` before macOS 14, and if nothing was written.
    """
    import MetalPerformanceShadersGraph as mps
    from Foundation import NSURL

    _need(program.executable, "serializeToMPSGraphPackageAtURL_descriptor_", "14")
    how = mps.MPSGraphExecutableSerializationDescriptor.alloc().init()
    how.setDeploymentPlatform_(mps.MPSGraphDeploymentPlatformMacOS)
    how.setMinimumDeploymentTarget_(MINIMUM_MACOS)
    program.executable.serializeToMPSGraphPackageAtURL_descriptor_(NSURL.fileURLWithPath_(str(package)), how)
    if not package.exists():  # the method returns nothing, whatever happens
        raise PackageUnusable(f"MPSGraph wrote nothing to {package}: is the folder there, and is there room?")
    description = {
        "inputs": [_described(tensor) for tensor in program.inputs],
        "outputs": [_described(tensor) for tensor in program.outputs],
        "feeds": [program.inputs.index(tensor) for tensor in program.feeds],
        "targets": [program.outputs.index(tensor) for tensor in program.targets],
        "sha256": _sums(package),
    }
    beside = package.with_suffix(".json")
    beside.write_text(json.dumps(description, indent=1), encoding="utf-8")
    return beside


def load(package: Path) -> mpsgraph.Program:
    """A package of `store`, from any process: call it with an array for each input, in the order given to `compile`.

    `PackageUnusable` before macOS 14, and for a package that is missing or not as it was written.
    """
    import MetalPerformanceShadersGraph as mps
    from Foundation import NSURL

    empty = mps.MPSGraphExecutable.alloc()
    _need(empty, "initWithMPSGraphPackageAtURL_compilationDescriptor_", "14")
    beside = package.with_suffix(".json")
    try:
        description = json.loads(beside.read_text(encoding="utf-8"))
        inputs, outputs = (
            tuple(Tensor(tuple(each["shape"]), each["dtype"]) for each in description[key])
            for key in ("inputs", "outputs")
        )
        feeds = tuple(inputs[i] for i in description["feeds"])
        targets = tuple(outputs[i] for i in description["targets"])
        sums = dict(description["sha256"])
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise PackageUnusable(f"{beside} cannot be used ({error}): store the package again") from error
    actual = _sums(package)
    if changed := sorted(name for name in sums.keys() | actual.keys() if sums.get(name) != actual.get(name)):
        raise PackageUnusable(f"{package} is damaged: {changed[0]} is not as it was written; store the package again")
    executable = empty.initWithMPSGraphPackageAtURL_compilationDescriptor_(NSURL.fileURLWithPath_(str(package)), None)
    return _program(executable, package, inputs, outputs, feeds, targets)


def damage(package: Path, copy: Path) -> None:
    """A copy of a package, with its JSON file, in which the last byte of the largest file is another one."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(package, copy)
    shutil.copy(package.with_suffix(".json"), copy.with_suffix(".json"))
    largest = max((file for file in copy.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[-1] ^= 0xFF
    largest.write_bytes(content)


def load_core_ml(package: Path, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> mpsgraph.Program:
    """A Core ML package (``.mlpackage``), read by MPSGraph itself; inputs and outputs in the model's order.

    `PackageUnusable` before macOS 15, or if MPSGraph gives nothing back.
    """
    import MetalPerformanceShadersGraph as mps
    from Foundation import NSURL

    empty = mps.MPSGraphExecutable.alloc()
    _need(empty, "initWithCoreMLPackageAtURL_compilationDescriptor_", "15")
    executable = empty.initWithCoreMLPackageAtURL_compilationDescriptor_(NSURL.fileURLWithPath_(str(package)), None)
    inputs, outputs = tuple(inputs), tuple(outputs)
    return _program(executable, package, inputs, outputs, inputs, outputs)


def _program(executable: Any, package: Path, inputs, outputs, feeds, targets) -> mpsgraph.Program:
    if executable is None:
        raise PackageUnusable(f"MPSGraph cannot read {package}: store or convert it again on this macOS")
    return mpsgraph.Program(executable, inputs, outputs, feeds, targets)


def _need(receiver: Any, selector: str, macos: str) -> None:
    """A method that this macOS does not have is missing in PyObjC, too."""
    if not hasattr(receiver, selector):
        raise PackageUnusable(f"this needs macOS {macos} or newer, which has {selector}: update macOS")


def _described(tensor: Any) -> dict[str, Any]:
    shape = [int(size) for size in tensor.shape()]
    return {"shape": shape, "dtype": mpsgraph.dtype_of(tensor).name}


def _sums(package: Path) -> dict[str, str]:
    files = [file for file in sorted(package.rglob("*")) if file.is_file()] if package.is_dir() else []
    return {str(file.relative_to(package)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
