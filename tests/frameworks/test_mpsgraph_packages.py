"""MPSGraphPackages with their description: what one process stores another runs, and damage is a sentence."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace

import numpy as np
import pytest

import metalsim.graph
from metallab import mpsgraph
from metallab.mpsgraph import packages

A, B = np.arange(6, dtype=np.float32).reshape(2, 3), np.full((2, 3), 10, np.float32)


@pytest.fixture
def program():
    """A graph of a - b and a + b."""
    here = importlib.util.find_spec("MetalPerformanceShadersGraph") is not None
    if not here:
        metalsim.graph.install()
    import MetalPerformanceShadersGraph as mps

    graph = mps.MPSGraph.alloc().init()
    a, b = (graph.placeholderWithShape_dataType_name_([2, 3], mps.MPSDataTypeFloat32, name) for name in "ab")
    difference = graph.subtractionWithPrimaryTensor_secondaryTensor_name_(a, b, None)
    total = graph.additionWithPrimaryTensor_secondaryTensor_name_(a, b, None)
    yield mpsgraph.compile(graph, [a, b], [difference, total])
    if not here:
        metalsim.graph.uninstall()


def test_inputs_keep_their_order(program, tmp_path):
    packages.store(program, tmp_path / "m.mpsgraphpackage")
    difference, total = packages.load(tmp_path / "m.mpsgraphpackage")(A, B)
    np.testing.assert_array_equal(difference, A - B)
    np.testing.assert_array_equal(total, A + B)
    with pytest.raises(ValueError, match=r"this input is float32 of shape \(2, 3\)"):
        packages.load(tmp_path / "m.mpsgraphpackage")(A.T, B)


def test_outputs_keep_the_order_of_the_executable(program, tmp_path):
    packages.store(replace(program, targets=program.targets[::-1]), tmp_path / "m.mpsgraphpackage")
    first, second = packages.load(tmp_path / "m.mpsgraphpackage")(A, B)
    np.testing.assert_array_equal(first, A + B)
    np.testing.assert_array_equal(second, A - B)


def test_damage_is_a_sentence(program, tmp_path):
    package = tmp_path / "m.mpsgraphpackage"
    beside = packages.store(program, package)
    good = beside.read_text()
    for description in ("{", "{}", "[]", json.dumps(json.loads(good) | {"feeds": [5]})):
        beside.write_text(description)
        with pytest.raises(packages.PackageUnusable, match=r"m\.json cannot be used .*store the package again"):
            packages.load(package)
    beside.write_text(good)
    largest = max(package.rglob("*"), key=lambda file: file.stat().st_size)
    content = largest.read_bytes()
    largest.write_bytes(content[:-1] + bytes([content[-1] ^ 0xFF]))
    with pytest.raises(packages.PackageUnusable, match=f"is damaged: {largest.name} is not as it was written"):
        packages.load(package)


def test_an_older_macos_is_reported(program, tmp_path, monkeypatch):
    if sys.platform == "darwin":
        pytest.skip("a real macOS has one version")
    from MetalPerformanceShadersGraph import MPSGraphExecutable

    package = tmp_path / "m.mpsgraphpackage"
    packages.store(program, package)
    for name in [name for name in vars(MPSGraphExecutable) if name.startswith(("serialize", "initWith"))]:
        monkeypatch.delattr(MPSGraphExecutable, name)  # as in PyObjC on an older macOS
    for work, wanted in (
        (lambda: packages.load(package), "14"),
        (lambda: packages.store(program, package), "14"),
        (lambda: packages.load_core_ml(package, [], []), "15"),
    ):
        with pytest.raises(packages.PackageUnusable, match=f"needs macOS {wanted} or newer"):
            work()


def test_a_damaged_copy_differs_in_a_byte(tmp_path):
    package = tmp_path / "p"
    package.mkdir()
    (package / "large").write_bytes(b"0123")
    (package / "small").write_bytes(b"0")
    package.with_suffix(".json").write_text("{}")
    for _ in range(2):
        packages.damage(package, tmp_path / "q")
    assert (tmp_path / "q" / "large").read_bytes() == b"012\xcc"
    assert (tmp_path / "q" / "small").read_bytes() == b"0"
    assert (package / "large").read_bytes() == b"0123"
