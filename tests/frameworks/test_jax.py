"""Pages 51 and 52 with a GPU, and the networks that page 52 times."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest

from metallab import isolated, paths


def cells_of(page):
    notebook = json.loads((paths.NOTEBOOKS / f"{page}.ipynb").read_text("utf-8"))
    return {cell["id"]: "".join(cell["source"]) for cell in notebook["cells"]}


@pytest.fixture(scope="module")
def races():
    """What the page's cell of plain functions defines."""
    import jax

    space = {"np": np, "jax": jax, "jnp": jax.numpy}
    exec(cells_of("52_compile_with_jit")["race-plain"], space)
    return space


def test_two_bodies_of_the_page_fall_towards_each_other(races):
    masses, places = np.array([3.0, 1.0]), np.array([[0.0, 0, 0], [2, 0, 0]])
    at, speed = races["n_body"](masses, places, np.zeros((2, 3)))

    pull = 2 / (4 + 0.0025) ** 1.5
    np.testing.assert_allclose(speed, [[0.01 * pull, 0, 0], [-0.03 * pull, 0, 0]])
    np.testing.assert_allclose(at, [[0.01 * speed[0, 0], 0, 0], [2 + 0.01 * speed[1, 0], 0, 0]])


def test_the_perceptron_of_the_page_is_products_with_a_relu_between_them(races):
    first, last = np.array([[1.0, -1.0]]), np.array([[2.0], [5.0]])
    assert races["mlp"]([first, last], np.array([[3.0], [-3.0]])).tolist() == [[6.0], [15.0]]


PRETEND_MAC = """
import json, jax
from metallab import device
cpus = jax.devices("cpu")
device.jax.devices = lambda: {"cpu": cpus[0], "mps": cpus[1]}
device.plugin = lambda framework: "jax-metal 0.1.1"
device.pick = lambda framework: device.plugins.make("mps", "jax")
space = {"display": print}
for cell in json.load(open(PAGE))["cells"]:
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), cell["id"], "exec"), space)
shown = [value for value in space.values() if isinstance(value, (jax.Array, dict, list))]
arrays = [leaf for leaf in jax.tree.leaves(shown) if isinstance(leaf, jax.Array) and not leaf.is_deleted()]
elsewhere = {str(d) for array in arrays for d in array.devices()} - {str(cpus[1])}
every = [each for group in space.get("raced", {}).values() for each in group]
compared = {c.name: {key: m.device.split(",")[0] for key, m in c.measurements.items()} for c in every}
refused = [c.refused for c in every if c.refused]
"""


@functools.cache
def run_on_an_apple_gpu(page: str, folder: Path) -> isolated.Outcome:
    """Run a page once, with a second CPU device of JAX in the place of a Mac's GPU; its records go into a folder.

    The outcome has ``compared``, by comparison the device of each variant; ``refused``, the variants that are, of each
    comparison that has any; and ``elsewhere``, the devices other than that GPU on which arrays of the page lie.
    AssertionError if the page does not come to its end.
    """
    settings = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "METALLAB_MODE": "fast",
        "MPLBACKEND": "agg",
        "METALLAB_OUT": str(folder),
        "JAX_PLATFORMS": "cpu",
    }
    ran = isolated.run(
        PRETEND_MAC.replace("PAGE", repr(str(paths.NOTEBOOKS / f"{page}.ipynb"))),
        results=["compared", "refused", "elsewhere"],
        environment=settings,
    )
    assert ran.ok, ran.detail
    return ran


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where pages save their records."""
    return tmp_path_factory.mktemp("out")


PAGES = pytest.mark.parametrize("page", ["51_transform_with_jax", "52_compile_with_jit"])


@pytest.mark.nightly
@PAGES
def test_arrays_of_a_page_are_made_on_its_apple_gpu(page, folder):
    assert run_on_an_apple_gpu(page, folder)["elsewhere"] == set()


@pytest.mark.nightly
@PAGES
def test_no_comparison_of_a_page_is_refused_with_an_apple_gpu(page, folder):
    assert run_on_an_apple_gpu(page, folder)["refused"] == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    "task", ["inference, latency", "gradient, latency", "inference, throughput"]
)
def test_a_perceptron_races_on_the_cpu_and_on_an_apple_gpu(task, folder):
    ran = run_on_an_apple_gpu("52_compile_with_jit", folder)
    devices = ran["compared"][f"MLP, {task}"]
    assert devices["CPU"].endswith(" CPU")
    assert devices["GPU"].endswith(" GPU")


@pytest.mark.nightly
def test_a_program_that_ends_its_process_ends_no_page(folder):
    ran = run_on_an_apple_gpu("52_compile_with_jit", folder)
    assert "os.abort(): crashed" in ran.printed
