"""Pages 51 and 52 with a GPU, and the networks that page 52 times."""

from __future__ import annotations

import json

import numpy as np
import pytest

from metallab import isolated, paths


def cells_of(page):
    notebook = json.loads((paths.NOTEBOOKS / f"{page}.ipynb").read_text("utf-8"))
    return {cell["id"]: "".join(cell["source"]) for cell in notebook["cells"]}


def test_networks_of_the_page_compute_what_they_say():
    """Two bodies fall towards each other, and a perceptron is products with a ReLU between them."""
    import jax

    space = {"np": np, "jax": jax, "jnp": jax.numpy}
    exec(cells_of("52_compile_with_jit")["race-plain"], space)
    at, speed = space["n_body"](
        np.array([3.0, 1.0]), np.array([[0.0, 0, 0], [2, 0, 0]]), np.zeros((2, 3))
    )
    pull = 2 / (4 + 0.0025) ** 1.5
    np.testing.assert_allclose(speed, [[0.01 * pull, 0, 0], [-0.03 * pull, 0, 0]])
    np.testing.assert_allclose(at, [[0.01 * speed[0, 0], 0, 0], [2 + 0.01 * speed[1, 0], 0, 0]])
    first, last = np.array([[1.0, -1.0]]), np.array([[2.0], [5.0]])
    assert space["mlp"]([first, last], np.array([[3.0], [-3.0]])).tolist() == [[6.0], [15.0]]


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
every = space.get("every", [])
compared = {c.name: {key: m.device.split(",")[0] for key, m in c.measurements.items()} for c in every}
refused = [c.refused for c in every if c.refused]
"""


@pytest.mark.nightly
@pytest.mark.parametrize("page", ["51_transform_with_jax", "52_compile_with_jit"])
def test_pages_run_with_an_apple_gpu(page, tmp_path):
    """A second CPU device of JAX stands in for the GPU; not run on a Mac."""
    settings = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "METALLAB_MODE": "fast",
        "MPLBACKEND": "agg",
    }
    ran = isolated.run(
        PRETEND_MAC.replace("PAGE", repr(str(paths.NOTEBOOKS / f"{page}.ipynb"))),
        results=["compared", "refused", "elsewhere"],
        environment=settings | {"METALLAB_OUT": str(tmp_path), "JAX_PLATFORMS": "cpu"},
    )
    assert ran.ok, ran.detail
    assert ran["elsewhere"] == set(), "new arrays went elsewhere than to the page's device"
    assert ran["refused"] == []
    assert list(tmp_path.rglob(f"{page}.json")), "its records are saved"
    if page.startswith("07_"):
        return
    for task in ("inference, latency", "gradient, latency", "inference, throughput"):
        devices = ran["compared"][f"MLP, {task}"]
        assert (devices["CPU"][-4:], devices["GPU"][-4:]) == (" CPU", " GPU"), task
    assert "os.abort(): crashed" in ran.printed
