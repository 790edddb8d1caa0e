"""Page 41's race of Core ML's units, with a stand-in for what only a Mac has."""

from __future__ import annotations

import importlib
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


CORE_ML = types.SimpleNamespace(
    models=types.SimpleNamespace(MLModel=Model),
    ComputeUnit=types.SimpleNamespace(CPU_ONLY="cpu", CPU_AND_GPU="gpu", CPU_AND_NE="ne"),
)


@pytest.fixture
def race(monkeypatch, tmp_path):
    """Run the page's cell as on some system, beside files with an input and the right scores; return the races."""
    page = nbformat.read(paths.NOTEBOOKS / "41_compile_for_apple_chips.ipynb", as_version=4)
    (cell,) = (cell.source.partition("\n")[2] for cell in page.cells if cell.id == "units-code")

    for name in ("metallab.checks", "metallab.timing"):
        importlib.import_module(name)  # while this is no Mac: what they import looks at the system

    monkeypatch.chdir(tmp_path)
    x = np.arange(4, dtype=np.float32)
    np.save("x.npy", x)
    np.save("expected.npy", 2 * x)

    monkeypatch.setenv("METALLAB_MODE", "fast")
    monkeypatch.setitem(sys.modules, "coremltools", CORE_ML)
    monkeypatch.setitem(sys.modules, "tensorflow", None)  # as the cell has it, and no longer

    def run(platform: str, *, wrong: str = "") -> list:
        monkeypatch.setattr(Model, "wrong", wrong)
        monkeypatch.setattr(sys, "platform", platform)
        space = {}
        exec(cell, space)
        return space["races"]

    return run


@pytest.mark.parametrize(
    ("wrong", "left"),
    [
        pytest.param("", {"GPU", "Neural Engine"}, id="all right"),
        pytest.param("ne", {"GPU"}, id="Neural Engine wrong"),
        pytest.param("cpu gpu ne", set(), id="all wrong"),
    ],
)
def test_core_ml_is_compared_before_it_is_timed(race, wrong, left):
    (compared,) = race("darwin", wrong=wrong)
    assert set(compared.paired) == left


def test_where_core_ml_cannot_run_there_is_no_race(race):
    assert race("linux") == []
