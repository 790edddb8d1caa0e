"""JAX and its plugin. Where the plugin is not, all of it runs on the CPU."""

from __future__ import annotations

import sys

from metallab.verify_mac.trial import Finding, judged, trial

BEFORE = """
import jax, numpy as np, jax.numpy as jnp
from metallab import device
lab = device.pick(framework="jax")
jax.config.update("jax_default_device", lab.jax_device)
x = np.random.default_rng(0).normal(size=(16, 8)).astype("f")
"""
AFTER = """
where = f"{got.dtype} on {got.device.platform}"
error = float(abs(np.asarray(got) - want).max() / abs(want).max())
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
import numpy as np, jax
from metallab import checks, device
from metallab.jax import networks
lab = device.pick(framework="jax")
small = {"MLP": {"batch": 32}, "n-body step": {"bodies": 64}}.get(NAME, {"batch": 4})
network = networks.MEASURED[NAME](**small)
said = []
for what in ("inference", "gradient"):
    got, want = (getattr(network.on(place), what)()() for place in (lab.jax_device, device.jax.devices()["cpu"]))
    try:
        checks.assert_close(*(jax.tree.map(np.asarray, value) for value in (want, got)), "float32")
        said.append(f"{what} agrees")
    except checks.Mismatch as difference:
        said.append(f"{what} DIFFERS: {difference}"[:300])
"""
EXACT = {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}


@trial(on="jax", used_in="notebook 07, metallab.device.jax", seconds=120)
def plugin_computes() -> Finding:
    """jax-metal 0.1.1 loads on JAX 0.4.34 and this macOS, and a product of small whole numbers is exact on its GPU.

    With the names by which JAX knows its devices.
    """
    import jax

    from metallab import device

    lab = device.pick(framework="jax")
    fault = device.probe(lab.kind, "jax")
    seen = [f"{found} ({found.platform})" for found in jax.devices()]
    named = {"devices": seen, "plugin": device.plugin("jax"), "JAX": jax.__version__}
    if lab.kind != "mps" and sys.platform != "darwin":
        return judged(fault is None, "no plugin here: the product is the CPU's", **named)
    return judged(lab.kind == "mps" and fault is None, fault or lab.instead_of or f"exact on {lab.label}", **named)


@trial(on="jax", used_in="notebook 07, programs that may end the process", seconds=400, environment=EXACT)
def risky_programs_are_right_or_refused() -> Finding:
    """FFT, eigh, lstsq, lax.switch, scans, pad, callbacks, complex and float64 are right or raise.

    Public reports say that with jax-metal each of them fails, and that some end the process. Each runs in one of its
    own; how each ended is in ``ended``.
    """
    from metallab import isolated

    ended, bad = {}, []
    for name, text in PROGRAMS.items():
        wide = {"JAX_ENABLE_X64": "1"} if name == "float64" else {}
        source = f"{BEFORE}{text}{AFTER}"
        ran = isolated.run(source, results=["error", "where"], environment=wide, timeout=40)
        right = ran.ok and ran["error"] <= (1e-12 if wide else 1e-4)
        ended[name] = f"{ran['where']}, off by {ran['error']:.1g} of the largest" if ran.ok else str(ran)
        if not right and ran.ended != "raised":
            bad.append(name)
    return judged(not bad, f"wrong, crashed or stopped: {', '.join(bad) or 'none'} of {len(PROGRAMS)}", ended=ended)


@trial(on="jax", used_in="notebook 07, networks", seconds=400, environment=EXACT)
def networks_agree_with_the_cpu() -> Finding:
    """Outputs and gradients of notebook 07's networks on the plugin's GPU agree with JAX's CPU."""
    from metallab import isolated

    said = {}
    for name in ("MLP", "CNN", "ResNet block", "Attention block", "n-body step"):
        ran = isolated.run(f"NAME = {name!r}\n{NETWORK}", results=["said"], timeout=75)
        said[name] = "; ".join(ran["said"]) if ran.ok else str(ran)
    fine = sum(text == "inference agrees; gradient agrees" for text in said.values())
    return judged(fine == len(said), f"{fine} of {len(said)} agree", said=said)
