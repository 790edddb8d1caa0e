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
    """Return a function that runs the page's cell as on a system, and returns the comparisons that it made.

    Of the units that ``wrong`` names Core ML's stand-in computes wrong scores. The cell finds the files that an earlier
    cell of the page writes: an input, and its right scores.
    """
    page = nbformat.read(paths.NOTEBOOKS / "41_compile_for_apple_chips.ipynb", as_version=4)
    (cell,) = (cell.source for cell in page.cells if cell.id == "units-code")
    without_magic = cell.partition("\n")[2]  # its first line would run it in another process

    for name in ("metallab.checks", "metallab.timing"):
        # before `sys.platform` is changed, at which their imports look
        importlib.import_module(name)

    monkeypatch.chdir(tmp_path)
    x = np.arange(4, dtype=np.float32)
    np.save("x.npy", x)
    np.save("expected.npy", 2 * x)

    monkeypatch.setenv("METALLAB_MODE", "fast")
    monkeypatch.setitem(sys.modules, "coremltools", CORE_ML)
    # the cell sets this itself: said here as well, so that it is taken back after the test
    monkeypatch.setitem(sys.modules, "tensorflow", None)

    def run(platform: str, *, wrong: str = "") -> list:
        monkeypatch.setattr(Model, "wrong", wrong)
        monkeypatch.setattr(sys, "platform", platform)
        space = {}
        exec(without_magic, space)
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
