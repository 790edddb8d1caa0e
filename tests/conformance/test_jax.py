"""JAX and its plugin; where the plugin is not, all of it runs on the CPU"""

from __future__ import annotations

import contextlib

import pytest

from conformance.claims import ON_A_MAC, apart
from metallab import device

BEFORE = """
import jax, numpy as np, jax.numpy as jnp
from metallab import device
lab = device.pick(framework="jax")
jax.config.update("jax_default_device", lab.jax_device)
x = np.random.default_rng(0).normal(size=(16, 8)).astype("f")
"""
AFTER = """
where = f"{got.dtype} on {got.device.platform}"
# of another shape NumPy makes the difference all the same, or refuses it, which would count as JAX's refusal
error = float(abs(np.asarray(got) - want).max() / abs(want).max()) if got.shape == want.shape else float("inf")
"""
PROGRAMS = {
    "FFT": "got, want = jnp.fft.fft(x), np.fft.fft(x)",
    "eigh": "got, want = jnp.linalg.eigh(x.T @ x)[0], np.linalg.eigh(x.T @ x)[0]",
    "lstsq": "got, want = jnp.linalg.lstsq(x, x.sum(1))[0], np.ones(8)",
    "lax.switch": "got, want = jax.jit(lambda i: jax.lax.switch(i, [jnp.sin, jnp.cos], x))(1), np.cos(x)",
    "associative_scan": "got, want = jax.lax.associative_scan(jnp.add, x), np.cumsum(x, 0)",
    "pad": "got, want = jnp.pad(x, 2), np.pad(x, 2)",
    "pure_callback": "got, want = jax.pure_callback(lambda x: np.sin(np.asarray(x)), x, x), np.sin(x)",
    "complex product": "got, want = jnp.dot(x * 1j, x.T), x @ x.T * 1j",
    "float64": "got, want = jnp.asarray(x, 'float64') / 3, x.astype('float64') / 3",
}
NETWORK = """
import json, numpy as np, jax, jax.numpy as jnp
from functools import partial
import metallab.device
from metallab import checks, paths
lab = metallab.device.pick(framework="jax")
page = json.loads((paths.NOTEBOOKS / "52_compile_with_jit.ipynb").read_text("utf-8"))
for cell in page["cells"]:
    if cell["id"] in ("race-plain", "race-layers", "race-networks", "race-run"):
        exec("".join(cell["source"]))
network, *given = networks[NAME]
for fn in (network, gradient_of(network)):
    got, want = (jax.jit(fn)(*jax.device_put(given, one)) for one in (lab.jax_device, cpu.jax_device))
    checks.assert_close(*(jax.tree.map(np.asarray, value) for value in (want, got)), "float32")
"""
NETWORKS = ["MLP", "CNN", "ResNet block", "attention", "n-body"]
"""Without a plugin it is the CPU against itself, which the first shows to work."""
EXACT = {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}
pytestmark = pytest.mark.claim(on="jax", seconds=120)


@pytest.mark.claim(used_in="notebooks 51 and 52")
def test_plugin_computes(evidence):
    """jax-metal 0.1.1 loads on JAX 0.4.34 and this macOS, and a product of small whole numbers is exact on its GPU.

    With the names by which JAX knows its devices.
    """
    import jax

    lab = device.pick(framework="jax")
    evidence("devices", [f"{each} ({each.platform})" for each in jax.devices()])
    evidence("plugin", device.plugin("jax"))
    evidence("JAX", jax.__version__)
    assert device.probe(lab.kind, "jax") is None
    if not ON_A_MAC:
        pytest.skip(f"there is no plugin here; JAX has the {lab.kind}")
    assert lab.kind == "mps", lab.instead_of


@pytest.mark.claim(used_in="notebook 52, a program that ends the process")
@pytest.mark.parametrize("program", PROGRAMS)
def test_risky_programs_are_right_or_refused(program, evidence):
    """FFT, eigh, lstsq, lax.switch, scans, pad, callbacks, complex and float64 are right or raise.

    Public reports say that with jax-metal each of them fails, and that some end the process. On a Mac each runs in
    one of its own.
    """
    from jax.experimental import enable_x64

    wide = {"JAX_ENABLE_X64": "1"} if program == "float64" else {}
    source = f"{BEFORE}{PROGRAMS[program]}{AFTER}"
    # without a Mac the program runs in this process, where JAX has read its variables already
    with enable_x64() if wide else contextlib.nullcontext():
        ran = apart(source, ["error", "where"], environment=EXACT | wide, timeout=100)
    evidence("ended", str(ran))
    if ran.ended == "raised":  # refused, which is as good as right
        return
    assert ran.ok
    evidence("where", ran["where"])
    evidence("off by, of the largest", ran["error"])
    assert ran["error"] <= (1e-12 if wide else 1e-4)


@pytest.mark.claim(used_in="notebook 52, five small networks")
@pytest.mark.parametrize("network", NETWORKS if ON_A_MAC else NETWORKS[:1])
def test_networks_agree_with_the_cpu(network):
    """Outputs and gradients of notebook 52's networks on the plugin's GPU agree with JAX's CPU."""
    ran = apart(f"NAME = {network!r}\n{NETWORK}", environment=EXACT, timeout=100)
    assert ran.ok, f"{ran}\n{ran.detail}"


DERIVATIVES = """
import jax, numpy as np, jax.numpy as jnp
from metallab import device
jax.config.update("jax_default_device", device.pick(framework="jax").jax_device)
x = np.linspace(-2, 2, 41, dtype=np.float32).astype(np.float64)
t = np.tanh(x)
z = np.linspace(-1, 1, 8, dtype=np.float32).astype(np.float64)
p = np.exp(z) / np.exp(z).sum()
M = np.arange(64.0).reshape(8, 8) / 64

def nth(f, n):
    for _ in range(n):
        f = jax.grad(f)
    return jax.vmap(f)(jnp.asarray(x, jnp.float32))

z32 = jnp.asarray(z, jnp.float32)
pairs = {
    "tanh, first": (nth(jnp.tanh, 1), 1 - t**2),
    "tanh, second": (nth(jnp.tanh, 2), -2 * t * (1 - t**2)),
    "tanh, third": (nth(jnp.tanh, 3), (1 - t**2) * (6 * t**2 - 2)),
    "sin, fourth": (nth(jnp.sin, 4), np.sin(x)),
    "log-sum-exp, grad": (jax.grad(lambda z: jnp.log(jnp.exp(z).sum()))(z32), p),
    "softmax, jacfwd": (jax.jacfwd(jax.nn.softmax)(z32), np.diag(p) - np.outer(p, p)),
    "softmax, jacrev": (jax.jacrev(jax.nn.softmax)(z32), np.diag(p) - np.outer(p, p)),
    "z M z / 2, hessian": (jax.hessian(lambda z: z @ jnp.asarray(M, jnp.float32) @ z / 2)(z32), (M + M.T) / 2),
}
errors = {name: float(abs(np.asarray(got, np.float64) - want).max()) for name, (got, want) in pairs.items()}
"""


@pytest.mark.claim(used_in="notebook 51")
def test_derivatives_have_their_closed_forms(evidence):
    """First to fourth derivatives, Jacobians both ways and a Hessian are within 0.00001 of their closed forms."""
    ran = apart(DERIVATIVES, ["errors"], environment=EXACT, timeout=100)
    assert ran.ok, f"{ran}\n{ran.detail}"
    evidence("largest error", max(ran["errors"].values()))
    assert len(ran["errors"]) == 8
    assert all(error <= 1e-5 for error in ran["errors"].values()), ran["errors"]
