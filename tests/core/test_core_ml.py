"""Page 41's race of Core ML's units, with a stand-in for what only a Mac has."""

from __future__ import annotations

import sys
import types

import nbformat
import numpy as np
import pytest

from metallab import paths


class Model:
    """A stand-in for coremltools' MLModel, which computes wrongly where it is told to."""

    wrong = ""

    def __init__(self, path, compute_units):
        self.units = compute_units

    def predict(self, inputs):
        return {"scores": inputs["x"] * (3 if self.units in self.wrong else 2)}


UNITS = types.SimpleNamespace(CPU_ONLY="cpu", CPU_AND_GPU="gpu", CPU_AND_NE="ne")


@pytest.mark.parametrize(
    ("wrong", "left"),
    [("", {"GPU", "Neural Engine"}), ("ne", {"GPU"}), ("cpu gpu ne", set())],
    ids=["", "ne", "all"],
)
def test_core_ml_is_compared_before_it_is_timed(monkeypatch, tmp_path, wrong, left):
    page = nbformat.read(paths.NOTEBOOKS / "41_compile_for_apple_chips.ipynb", as_version=4)
    (cell,) = (cell.source.partition("\n")[2] for cell in page.cells if cell.id == "units-code")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("METALLAB_MODE", "fast")
    coremltools = types.SimpleNamespace(
        models=types.SimpleNamespace(MLModel=Model), ComputeUnit=UNITS
    )
    monkeypatch.setitem(sys.modules, "coremltools", coremltools)
    monkeypatch.setitem(
        sys.modules, "tensorflow", None
    )  # as the cell has it, and as it was afterwards
    monkeypatch.setattr(Model, "wrong", wrong)
    x = np.arange(4, dtype=np.float32)
    np.save("x.npy", x)
    np.save("expected.npy", 2 * x)
    for platform, races in (("linux", 0), ("darwin", 1)):
        monkeypatch.setattr(sys, "platform", platform)
        space = {}
        exec(cell, space)
        assert len(space["races"]) == races
    assert set(space["races"][0].paired) == left
