"""Core AI in front of this environment, and the cell of notebook 42 that only a Mac runs, with stand-ins."""

from __future__ import annotations

import sys

import coreai_page
import pytest
import torch

from metallab import isolated, needs, notebook

with_core_ai = pytest.mark.skipif(not needs.TOOLS["coreai"].is_here(), reason="make setup COREAI=1")


@pytest.fixture
def page():
    return notebook.read_notebook(coreai_page.PAGE)


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """A folder for Core AI in which an installation has begun; it has ended as soon as there is `main.pth`."""
    folder = tmp_path / "lib" / "python" / "site-packages"
    folder.mkdir(parents=True)
    monkeypatch.setattr(needs, "CORE_AI", folder)
    monkeypatch.setattr(needs, "CORE_AI_FAILED", tmp_path / "failed")
    return folder


@pytest.mark.usefixtures("installed")
def test_the_page_names_what_installs_core_ai_where_that_has_not_ended(page):
    (lacking,) = notebook.lacking_tools(page)
    assert lacking.fix == "make setup COREAI=1"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("has_wheel", [True, False], ids=["with a wheel", "without one"])
def test_the_page_is_skipped_without_core_ai_where_it_cannot_be_had(page, monkeypatch, has_wheel):
    monkeypatch.setattr(needs.bootstrap, "loads_core_ai", lambda: has_wheel)
    assert (notebook.skip_reason(page, "cpu") == "") is has_wheel


@pytest.mark.parametrize("has_wheel", [True, False], ids=["with a wheel", "without one"])
def test_the_page_runs_where_core_ai_is_wholly_installed(page, installed, monkeypatch, has_wheel):
    monkeypatch.setattr(needs.bootstrap, "loads_core_ai", lambda: has_wheel)
    (installed / "main.pth").touch()
    assert notebook.lacking_tools(page) == []
    assert notebook.skip_reason(page, "cpu") == ""


def test_the_page_is_skipped_on_the_simulated_gpu(page, installed):
    (installed / "main.pth").touch()
    assert notebook.skip_reason(page, "sim")


def test_importing_it_names_the_command_that_installs_it():
    ran = isolated.run(
        "from metallab import needs\nneeds.CORE_AI /= 'missing'\nimport metallab.coreai"
    )
    assert ran.kinds[0] == "ImportError"
    assert "make setup COREAI=1" in ran.reason


@with_core_ai
def test_it_takes_our_pytorch():
    ran = isolated.run("import metallab.coreai, torch\nfile = torch.__file__", results=["file"])
    assert ran["file"] == torch.__file__


@with_core_ai
def test_it_is_refused_after_numpy():
    ran = isolated.run("import numpy\nimport metallab.coreai")
    assert ran.kinds[0] == "ImportError"
    assert "metallab.coreai first" in ran.reason


UNITS = """
import coreai.runtime
from types import SimpleNamespace
opened, kept = [], []
async def load(path, options):  # as a Mac's run time does, which reads the file itself
    opened.append(options)
    kept.append(AIModelAsset.load(path).executable())
    return await kept[-1].__aenter__()
coreai.runtime.AIModel = SimpleNamespace(load=load)
coreai.runtime.ComputeUnitKind = SimpleNamespace(gpu=lambda: "gpu", neural_engine=lambda: "neural engine")
coreai.runtime.SpecializationOptions = SimpleNamespace(
    is_supported=lambda: True, cpu_only=lambda: "cpu only", from_preferred_compute_unit_kind=lambda kind: kind
)
"""


SMALL_NETWORK = """
x = torch.randn(2, 8)
twelve = {"ResNet-18": (nn.Linear(8, 4).requires_grad_(False), x)}
"""


@with_core_ai
@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac runs the page's cell")
def test_a_mac_s_units_are_compared_in_turns(tmp_path):
    """The cell as it stands, with a small network in ResNet-18's place and Linux's run time for each unit."""
    made = 'convert(twelve["ResNet-18"][0], (x,), "ResNet-18")'
    cells = (UNITS, SMALL_NETWORK, made, "units-code", "units-run")
    shown = ['str(races[0]["Neural Engine"])', "opened"]
    ran = coreai_page.run(tmp_path, *cells, results=shown)
    assert ran.ok, ran.detail

    measured, opened = ran["answers"]
    assert "Neural Engine" in measured
    assert opened == ["cpu only", "gpu", "neural engine"]
