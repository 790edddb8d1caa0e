"""A program as a folder: what the simulation writes for an MPSGraphPackage, in a format of its own.

``manifest.json`` names the format, its version and the SHA-256 of the other files; ``graph.json`` holds the steps;
``constants.safetensors`` the weights. Nothing in it is executed when it is read. A Mac cannot read it, and a Mac's
packages cannot be read here.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from metalsim.graph import contract
from metalsim.graph.errors import PackageError
from metalsim.graph.operations import Properties
from metalsim.graph.program import Input, Program, Ref, Step

FORMAT, VERSION = "metalsim MPSGraphPackage", 1
MANIFEST, GRAPH, CONSTANTS = "manifest.json", "graph.json", "constants.safetensors"
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


def write(program: Program, folder: Path, minimum_macos: str) -> None:
    """Store a program. What lies there is replaced only when the new package is complete.

    `PackageError` for a folder that cannot be written, or that is something else than a package.
    """
    if minimum_macos:
        contract.version(minimum_macos)
    if folder.exists() and not (folder / MANIFEST).is_file():
        raise PackageError(f"{folder} exists and is no package of the simulation; it is not overwritten")
    try:
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
            part = Path(temporary, "package")
            part.mkdir()
            _write(program, part, minimum_macos)
            if folder.exists():
                shutil.rmtree(folder)
            part.rename(folder)
    except OSError as error:
        raise PackageError(f"the package cannot be written to {folder}: {error.strerror}") from error


def _write(program: Program, folder: Path, minimum_macos: str) -> None:
    graph = {
        "inputs": [
            {"name": each.name, "shape": each.shape, "dtype": _dtype_name(each.dtype)} for each in program.inputs
        ],
        "constants": [_dtype_name(each.dtype) for each in program.constants],
        "steps": [
            {
                "selector": step.selector,
                "arguments": [_encoded(each) for each in step.arguments],
                "results": step.results,
            }
            for step in program.steps
        ],
        "outputs": [ref.number for ref in program.outputs],
    }
    (folder / GRAPH).write_text(json.dumps(graph, indent=1), encoding="utf-8")
    tensors = {str(number): _storable(each) for number, each in enumerate(program.constants)}
    safetensors.torch.save_file(tensors, folder / CONSTANTS)
    sums = {name: _sum(folder / name) for name in (GRAPH, CONSTANTS)}
    manifest = {"format": FORMAT, "version": VERSION, "minimum_macos": minimum_macos, "sha256": sums}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def read(folder: Path) -> Program:
    """The program of a package. `PackageError` says what is wrong with one that is missing, foreign or damaged."""
    _check(folder)
    try:
        graph = json.loads((folder / GRAPH).read_text(encoding="utf-8"))
        stored = safetensors.torch.load_file(folder / CONSTANTS)
        program = Program(
            inputs=tuple(Input(each["name"], tuple(each["shape"]), DTYPES[each["dtype"]]) for each in graph["inputs"]),
            constants=tuple(_restored(stored[str(i)], DTYPES[name]) for i, name in enumerate(graph["constants"])),
            steps=tuple(
                Step(each["selector"], tuple(_decoded(value) for value in each["arguments"]), each["results"])
                for each in graph["steps"]
            ),
            outputs=tuple(Ref(number) for number in graph["outputs"]),
        )
        program.verify()
    except (KeyError, TypeError, ValueError, SafetensorError) as error:
        raise PackageError(f"{folder} is damaged: {error}") from error
    return program


def _check(folder: Path) -> None:
    if not folder.is_dir():
        raise PackageError(f"there is no package at {folder}")
    if not (folder / MANIFEST).is_file():
        foreign = " it looks like a Mac's, which only a Mac can read" if (folder / "manifest.plist").exists() else ""
        raise PackageError(f"{folder} is no package of the simulation: it has no {MANIFEST};{foreign}".rstrip(";"))
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        known = manifest["format"] == FORMAT
        version, needs, sums = manifest["version"], manifest["minimum_macos"], dict(manifest["sha256"])
        contract.version(needs or "0")  # raises for what is none
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PackageError(f"{folder / MANIFEST} is damaged: {error}") from error
    if not known or version != VERSION:
        raise PackageError(
            f"{folder} is of format {manifest['format']!r}, version {version}; this reads {FORMAT!r}, {VERSION}"
        )
    if needs and contract.version(needs) > contract.macos():
        raise PackageError(
            f"{folder} needs macOS {needs}; this is a simulated macOS {contract.version_text(contract.macos())}"
        )
    for name in (GRAPH, CONSTANTS):
        if not (folder / name).is_file():
            raise PackageError(f"{folder} is damaged: {name} is missing")
        if _sum(folder / name) != sums.get(name):
            raise PackageError(f"{folder} is damaged: {name} is not what was written (its SHA-256 differs)")


def _sum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _storable(tensor: Tensor) -> Tensor:
    tensor = tensor.contiguous()
    return torch.view_as_real(tensor).clone() if tensor.is_complex() else tensor.clone()


def _restored(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.view_as_complex(tensor) if dtype.is_complex else tensor


def _encoded(argument: Any) -> Any:
    """An argument of a step as JSON."""
    if isinstance(argument, Ref):
        return {"tensor": argument.number}
    if isinstance(argument, tuple) and argument and isinstance(argument[0], Ref):
        return {"tensors": [ref.number for ref in argument]}
    if isinstance(argument, torch.dtype):
        return {"dtype": _dtype_name(argument)}
    if isinstance(argument, Properties):
        return {"descriptor": {name: value for name, value in vars(argument).items() if _plain(value)}}
    return list(argument) if isinstance(argument, tuple) else argument


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _decoded(argument: Any) -> Any:
    if isinstance(argument, list):
        return tuple(argument)
    if not isinstance(argument, dict):
        return argument
    ((kind, value),) = argument.items()
    if kind == "tensor":
        return Ref(value)
    if kind == "tensors":
        return tuple(Ref(number) for number in value)
    if kind == "dtype":
        return DTYPES[value]
    return Properties(**value)
