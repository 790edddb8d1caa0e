"""Each extra as somebody installs it: from a checkout, without the lock, in an environment of its own; and then used.

The lock holds all extras together, and what one of them pins keeps another from a version that it does not work with.
Alone an extra gets the newest versions that it allows. uv installs what pip would: it is told of the same registry.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from test_wheels import NOT_ON_A_MAC, PROJECTS, ROOT, copy_checkout

from metallab import bootstrap
from metalsim import building
from metalsim.device import TORCH

UV = [sys.executable, "-I", str(ROOT / "utils" / "metallab" / "bootstrap.py"), "uv"]
LIMIT = 1800  # seconds for one command: PyTorch and what it needs are 4 GB to download
FREE = 12 * 2**30
"""Bytes that the biggest environment takes with what uv keeps of it, where nothing of it is there yet."""
EXTRAS = {
    name: project["project"].get("optional-dependencies", {}) for name, project in PROJECTS.items()
}


# ---------------------------------------------------------------- what each is for

NOTEBOOKS = """
import filelock, ipywidgets, jinja2, packaging, scipy.stats
import pandas
from matplotlib import pyplot
from sklearn import datasets

from metallab import plots

table = pandas.DataFrame({"digit": datasets.load_digits().target}).digit.value_counts()
figure, axes = pyplot.subplots()
axes.bar(table.index, table)
print("largest", table.max(), scipy.stats.t.ppf(0.975, 9).round(2))
"""
PYTORCH = """
import torch
from metallab import device, timing
from metallab.detection import detector
from safetensors.torch import load, save

lab = device.pick("cpu")
x = torch.ones(64, 64, device=lab.torch_device)
assert (x @ x).eq(64).all()
assert (x.numpy() @ x.numpy() == 64).all()
assert load(save({"x": x}))["x"].equal(x)
print(timing.measure(lambda: x @ x, on=lab, name="product"))
(boxes, *_) = detector.build(["ball"]).eval()(torch.zeros(1, 3, 64, 64))
assert boxes.shape == (1, 5, 84)
"""
MODEL = """
import torch


def example():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
    return model, (torch.ones(1, 3, 8, 8),)
"""
TENSORFLOW = """
from metallab import device

lab = device.pick("cpu", framework="tensorflow")
import keras
import numpy as np

keras.utils.set_random_seed(0)
x = np.linspace(-1, 1, 64, dtype="float32")[:, None]
model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
losses = model.fit(x, 2 * x, epochs=20, verbose=0).history["loss"]
assert losses[-1] < losses[0]
"""
JAX = """
from metallab import device

lab = device.pick("cpu", framework="jax")
import jax
import jax.numpy as jnp
import numpy as np

product = jax.jit(lambda x: (x @ x).sum())
assert product(jnp.ones((4, 4))) == 64
assert (np.asarray(jax.grad(product)(jnp.ones((4, 4)))) == 8).all()
assert jax.random.normal(jax.random.key(0), (3,)).shape == (3,)
assert np.allclose(jax.scipy.linalg.cholesky(4 * jnp.eye(3)), 2 * np.eye(3))
"""
MLX = """
import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)
product = mx.ones((4, 4)) @ mx.ones((4, 4))
assert (np.array(product) == 4).all()
"""
CONVERT = """
import numpy as np
import onnx.parser
import onnxruntime

text = '<ir_version: 8, opset_import: ["": 17]> doubled (float[n] x) => (float[n] y) { y = Add(x, x) }'
session = onnxruntime.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
(y,) = session.run(None, {"x": np.float32([1, 2])})
assert y.tolist() == [2, 4]

import coremltools as ct
from coremltools.converters.mil import Builder as mb


@mb.program(input_specs=[mb.TensorSpec(shape=(1, 3))])
def doubled(x):
    return mb.add(x=x, y=x)


model = ct.convert(doubled, minimum_deployment_target=ct.target.macOS13)
assert model.get_spec().WhichOneof("Type") == "mlProgram"
"""
CONVERT_FROM_PYTORCH = """
import io

import coremltools as ct
import numpy as np
import onnxruntime
import torch


class Flat(torch.nn.Module):
    def forward(self, x):
        n = int(x.shape[2] * x.shape[3])  # a tensor while it is traced: coremltools makes the int
        return x.reshape(x.shape[0], x.shape[1], n)


x = torch.arange(24.0).reshape(1, 2, 3, 4)
traced = torch.jit.trace(Flat().eval(), x)
model = ct.convert(traced, inputs=[ct.TensorType(name="x", shape=x.shape)])
assert model.get_spec().WhichOneof("Type") == "mlProgram"

torch.onnx.export(Flat(), (x,), file := io.BytesIO(), input_names=["x"], dynamo=False)
(y,) = onnxruntime.InferenceSession(file.getvalue()).run(None, {"x": x.numpy()})
assert np.array_equal(y, Flat()(x).numpy())
"""
METAL = """
import Metal
import MetalPerformanceShaders
import MetalPerformanceShadersGraph

assert MetalPerformanceShadersGraph.MPSGraph.new() is not None
print(Metal.MTLCreateSystemDefaultDevice())
"""
DEV_TEST = """
import unittest

import expecttest
import pytest
import timm
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers())
def test_numbers(x):
    assert x + 0 == x


def test_the_class_of_pytorchs_own_tests():
    assert issubclass(expecttest.TestCase, unittest.TestCase)


@pytest.mark.timeout(500)
def test_models_of_other_people():
    assert timm.create_model("resnet18").eval()(torch.ones(1, 3, 64, 64)).shape == (1, 1000)
    config = transformers.LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    model = transformers.LlamaForCausalLM(config)
    assert model(torch.tensor([[1, 2]])).logits.shape == (1, 2, 8)
"""
BROWSER = """
from playwright.sync_api import sync_playwright

with sync_playwright() as started:  # its driver, a program of its own; the browser is the machine's
    assert started.chromium.name == "chromium"
"""
SHADER = """
import torch

library = torch.mps.compile_shader('''
kernel void doubled(device float* x, uint i [[thread_position_in_grid]]) { x[i] *= 2; }
''')
x = torch.ones(4, device="mps")
library.doubled(x)
print(x.tolist())
"""


def notebook(code: str, outputs: tuple = ()) -> str:
    """The text of a notebook with a heading and a cell; ``outputs`` are texts that it printed."""
    printed = [{"output_type": "stream", "name": "stdout", "text": text} for text in outputs]
    count = 1 if outputs else None
    title = {"cell_type": "markdown", "id": "title", "metadata": {}, "source": "# Read a page"}
    cell = {"cell_type": "code", "id": "cell", "metadata": {}, "source": code}
    cell |= {"outputs": printed, "execution_count": count}

    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    page = {"cells": [title, cell], "metadata": {"kernelspec": kernel}}
    return json.dumps(page | {"nbformat": 4, "nbformat_minor": 5})


@dataclass(frozen=True)
class Use:
    """What somebody does with an extra: commands, in a folder with files. Each has to end with 0."""

    commands: tuple[tuple[str | Path, ...], ...]
    files: dict[str, str] = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    """Other packages of the checkout, by their folders."""
    lacks: str = ""
    """Why it cannot be had on this machine."""


def python(code: str) -> tuple[str, ...]:
    return ("python", "-c", code)


IN_NOTEBOOK = (
    "jupyter",
    "nbconvert",
    "--execute",
    "--to=notebook",
    "--output=executed",
    "page.ipynb",
)
ON_A_MAC = "" if sys.platform == "darwin" else "of a Mac alone"
NO_MLX = "" if "mlx" in bootstrap.extras() else "MLX's wheel wants glibc 2.35"
NO_CORE_ML = "coremltools has no wheel for Linux on ARM" if os.uname().machine == "aarch64" else ""

PAGES = """
import IPython, safetensors, scipy.stats
import pandas
from matplotlib import pyplot
from sklearn import datasets

from metallab import plots

table = pandas.DataFrame({"digit": datasets.load_digits().target}).digit.value_counts()
figure, axes = pyplot.subplots()
axes.bar(table.index, table)
"""

USES = {
    "pages": Use((python(PAGES),)),
    "notebooks": Use(
        (IN_NOTEBOOK, ("jupyter", "lab", "--version")), {"page.ipynb": notebook(NOTEBOOKS)}
    ),
    "pytorch": Use(
        (python(PYTORCH), ("metallab", "coverage", "model:example"), ("ninja", "--version")),
        {"model.py": MODEL},
        beside=("metalsim",),
    ),
    "tensorflow": Use((python(TENSORFLOW),)),
    "jax": Use((python(JAX),)),
    "mlx": Use((python(MLX),), lacks=NO_MLX),
    "convert": Use((python(CONVERT),), lacks=NO_CORE_ML),
    "convert, pytorch": Use((python(CONVERT_FROM_PYTORCH),), lacks=NO_CORE_ML),
    "metal": Use((python(METAL),), lacks=ON_A_MAC),
    "lab": Use(
        (IN_NOTEBOOK, *map(python, (PYTORCH, TENSORFLOW, JAX, CONVERT, CONVERT_FROM_PYTORCH))),
        {"page.ipynb": notebook(NOTEBOOKS)},
        lacks=NO_CORE_ML,
    ),
    "dev": Use(
        (
            ("ruff", "check", "--select", "F", "test_own.py"),
            ("mypy", "test_own.py"),
            ("complexipy", "test_own.py"),
            ("python", "-m", "pytest", "-n", "1", "test_own.py"),
            ("nbstripout", "page.ipynb"),
            ("check-jsonschema", "--builtin-schema", "vendor.github-workflows", "--version"),
            ("zizmor", "--version"),
            ("uv", "--version"),
            python("import lief, packaging, setuptools"),
        ),
        {"test_own.py": DEV_TEST, "page.ipynb": notebook("1")},
    ),
    "book": Use(
        (("python", "-m", "sphinx", "-W", "-q", "-c", ROOT / "book", "-b", "html", ".", "site"),),
        {
            "index.md": "# A book\n\n```{toctree}\nnotebooks/run/page\n```\n\nWith a formula, $x^2$.\n",
            "notebooks/run/page.ipynb": notebook("print(1)", ("1\n",)),
        },
    ),
    "browser": Use((python(BROWSER),)),
    "classroom": Use(
        (
            ("jupyterhub", "--version"),
            ("node", "--version"),
            ("npm", "--version"),
            ("python", "-m", "jupyterhub_idle_culler", "--help"),
        )
    ),
}


def test_each_extra_has_a_use():
    assert {name for names in USES for name in names.split(", ")} == EXTRAS["metal-lab"].keys()
    assert EXTRAS["metalsim"].keys() == {"shaders"}


# ---------------------------------------------------------------- environments


def run(command, cwd=None, env=None) -> str:
    """Run a command, which has to end with 0; its output."""
    words = [*map(str, command)]
    done = subprocess.run(
        words, cwd=cwd, env=env, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def registry(tmp_path_factory):
    """Skip the test where the package registry cannot be reached, or where there is no room for what comes from it."""
    folder = tmp_path_factory.getbasetemp()
    if (free := shutil.disk_usage(folder).free) < FREE:
        pytest.skip(
            f"{folder} has {free / 2**30:.0f} GiB, and an environment may need {FREE / 2**30:.0f}"
        )
    # a small package, and without uv's cache, which would answer where there is no network
    (wanted := folder / "wanted.txt").write_text("msgspec\n")
    command = [*UV, "pip", "compile", "--quiet", "--no-cache", str(wanted)]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    if asked.returncode != 0:
        why = asked.stderr.strip().splitlines()[-1]
        pytest.skip(f"the package registry cannot be reached: {why}")


@pytest.fixture(scope="session")
def checkout(tmp_path_factory) -> Path:
    """A copy of what is installed from: making wheels leaves files beside the sources."""
    return copy_checkout(tmp_path_factory.mktemp("checkout"))


@pytest.fixture
def install(registry, checkout, tmp_path):
    """Yield a function that installs packages into a new environment, and returns one that runs a command in it.

    The command has to end with 0, and its output is returned. It works in an empty folder, with the variables of
    somebody who has nothing else of ours. The environment is deleted after the test: some take gigabytes.
    """
    environment, folder = tmp_path / "environment", tmp_path / "folder"
    folder.mkdir()

    def use(command: tuple[str | Path, ...], **more: str) -> str:
        program, *arguments = command  # the environment's own, and no other that is on PATH
        settings = variables(environment, tmp_path / "home") | more
        return run([environment / "bin" / program, *arguments], cwd=folder, env=settings)

    def made(*wanted: str):
        run([*UV, "venv", "--quiet", "--no-project", "--python", sys.executable, environment])
        run([*UV, "pip", "install", "--quiet", "--python", environment / "bin" / "python", *wanted])
        return use

    yield made
    shutil.rmtree(environment, ignore_errors=True)


def variables(environment: Path, home: Path) -> dict[str, str]:
    """The variables of somebody who has nothing set up but an activated environment."""
    ours = ("METAL", "PYTHON", "PYTEST", "VIRTUAL_ENV", "JUPYTER", "YOLO")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = f"{environment / 'bin'}{os.pathsep}{kept['PATH']}"
    return kept | {
        "PATH": path,
        "HOME": str(home),
        "METALLAB_MODE": "fast",
        "METALSIM_CACHE": str(building.cache()),
    }


def write(folder: Path, files: dict[str, str]) -> None:
    """Write files into a folder, each by its path there."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.mark.nightly
@pytest.mark.parametrize("name", USES)
def test_an_extra_does_what_it_is_for(name, install, checkout, tmp_path):
    use = USES[name]
    if use.lacks:
        pytest.skip(use.lacks)
    beside = [str(checkout / package) for package in use.beside]
    used = install(f"{checkout}[{name}]", *beside)
    write(tmp_path / "folder", use.files)
    for command in use.commands:
        used(command)


@pytest.mark.nightly
@NOT_ON_A_MAC
def test_metalsims_shaders_need_no_compiler_of_the_machine(install, checkout, tmp_path):
    used = install(f"torch=={TORCH}", "numpy", f"{checkout / 'metalsim'}[shaders]")
    write(tmp_path / "folder", {"shade.py": SHADER})
    assert (
        used(("python", "-m", "metalsim", "shade.py"), METALSIM_CXX="zig")
        == "[2.0, 2.0, 2.0, 2.0]\n"
    )


@pytest.mark.nightly
@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("version", ["3.11", "3.12"])
@pytest.mark.parametrize("extra", EXTRAS["metal-lab"])
def test_an_extra_has_a_wheel_of_everything_for_a_mac(
    extra, version, checkout, tmp_path, monkeypatch
):
    """What cannot be installed here can be asked for: no version is left out, and nothing has to be compiled."""
    monkeypatch.setenv("MACOSX_DEPLOYMENT_TARGET", "15.0")
    listed = tmp_path / "listed.txt"
    there = ["--python-platform=aarch64-apple-darwin", f"--python-version={version}"]
    asked = f"--python={sys.executable}"  # or uv looks for a Python of that version on this machine
    options = ["--quiet", "--only-binary=:all:", asked, *there, f"--output-file={listed}"]
    run([*UV, "pip", "compile", *options, f"--extra={extra}", checkout / "pyproject.toml"])
    assert "numpy==" in listed.read_text()
