"""MLX and its Metal kernels; where Metal is not, MLX runs on the CPU and its kernels on the simulated GPU's"""

from __future__ import annotations

import pytest
import torch

from conformance.claims import ON_A_MAC, apart
from metallab import device
from metallab.pytorch.kernels import rule

mx = pytest.importorskip("mlx.core", reason="set-up leaves MLX out where glibc is older than 2.35")
kernels = pytest.importorskip("metallab.mlx.kernels")

pytestmark = pytest.mark.claim(on="mlx", seconds=120)
BODY = """
    uint i = thread_position_in_grid.x;
    float v = x[i];
    out[i] = T(v > lambd ? v - lambd : v < -lambd ? v + lambd : 0.0f * v);
"""
TEXT = """\
template <typename T>
[[kernel]] void custom_kernel_softshrink__float16_t_float16_t_floats_float16_t(
  const device float16_t* x [[buffer(0)]],
  const constant float& lambd [[buffer(1)]],
  device float16_t* out [[buffer(2)]],
  uint3 thread_position_in_grid [[thread_position_in_grid]]) {

    uint i = thread_position_in_grid.x;
    float v = x[i];
    out[i] = T(v > lambd ? v - lambd : v < -lambd ? v + lambd : 0.0f * v);

}

template [[host_name("custom_kernel_softshrink__float16_t_float16_t_floats_float16_t")]] [[kernel]] decltype(\
custom_kernel_softshrink__float16_t_float16_t_floats_float16_t<float16_t>) \
custom_kernel_softshrink__float16_t_float16_t_floats_float16_t<float16_t>;
"""
"""What MLX 0.32.4 writes for float16, in its build for Linux."""


def softshrink(x, **more):
    """What notebook 50 does with `mx.fast.metal_kernel`."""
    names = {"input_names": ["x", "lambd"], "output_names": ["out"]}
    kernel = mx.fast.metal_kernel(name="softshrink", source=BODY, **names)
    return kernel(inputs=[x, 0.5], **call_for(x), **more)[0]


def call_for(x):
    return {
        "template": [("T", x.dtype)],
        "grid": (x.size, 1, 1),
        "threadgroup": (256, 1, 1),
        "output_shapes": [x.shape],
        "output_dtypes": [x.dtype],
    }


@pytest.fixture
def metal(monkeypatch):
    """Kernels of MLX run, be it on this CPU."""
    monkeypatch.setattr(mx.fast, "metal_kernel", mx.fast.metal_kernel)  # back at the end
    return kernels.install()


@pytest.mark.claim(used_in="notebook 50")
def test_mlx_computes(evidence):
    """MLX takes a Mac's GPU by itself, and a product of small whole numbers is exact there."""
    lab = device.pick(framework="mlx")
    evidence("MLX", mx.__version__)
    evidence("its devices", device.mlx.kinds())
    evidence("says of its device", dict(mx.device_info()))
    assert device.probe(lab.kind, "mlx") is None
    if not ON_A_MAC:
        pytest.skip(f"there is no GPU of MLX's here; it has the {lab.kind}")
    assert lab.kind == "mps", lab.instead_of
    assert mx.default_device() == mx.Device(mx.gpu)


@pytest.mark.claim(used_in="notebook 50, the text that MLX writes")
def test_text_around_a_kernel_is_that_of_linux(evidence):
    """MLX writes the same signature around the body of a kernel on a Mac as in its build for Linux."""
    names = {"input_names": ["x", "lambd"], "output_names": ["out"]}
    kernel = kernels.written_by_mlx(name="softshrink", source=BODY, **names)
    x = mx.ones(1001, dtype=mx.float16)
    text = kernels.generate(kernel, [x, 0.5], **call_for(x))
    evidence("text", text)
    assert text == TEXT


@pytest.mark.claim(used_in="notebook 50, the kernel of page 23")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_softshrink_is_right_to_the_bit(metal, dtype, evidence):
    """A Softshrink through ``mx.fast.metal_kernel`` gives each bit of the rule, also for NaN and the two zeros."""
    evidence("run by", metal)
    numbers = torch.cat([torch.tensor(rule.SPECIAL), torch.randn(999)]).to(getattr(torch, dtype))
    x = mx.array(numbers.float().numpy()).astype(getattr(mx, dtype))
    out = torch.from_dlpack(softshrink(x).astype(mx.float32))
    assert rule.same_bits(out, rule.softshrink(numbers, 0.5).float())


@pytest.mark.claim(used_in="notebook 50, what a kernel has not")
def test_kernel_has_no_gradient(metal):
    """The gradient of a kernel of one's own is refused with a ValueError, not silently 0."""
    with pytest.raises(ValueError, match="Not implemented for CustomKernel"):
        mx.eval(mx.grad(lambda x: softshrink(x).sum())(mx.ones(3)))


PRODUCT = """
import mlx.core as mx, numpy as np
rng = np.random.default_rng(0)
a, b = (rng.standard_normal((512, 512), dtype=np.float32) for _ in range(2))
exact = a.astype(np.float64) @ b.astype(np.float64)
error = float(np.abs(np.asarray(mx.array(a) @ mx.array(b)) - exact).max() / np.abs(exact).max())
"""


@pytest.mark.claim(used_in="notebook 50, TF32")
@pytest.mark.parametrize("setting", ["0", "1"])
def test_float32_is_float32_where_tf32_is_off(setting, evidence):
    """With MLX_ENABLE_TF32=0 a product of float32 is as exact as float32; with 1, the default, 11 bits at least."""
    ran = apart(PRODUCT, ["error"], environment={"MLX_ENABLE_TF32": setting}, timeout=100)
    assert ran.ok, f"{ran}\n{ran.detail}"
    evidence("off by, of the largest", ran["error"])
    assert ran["error"] <= (1e-5 if setting == "0" else 2e-3)
