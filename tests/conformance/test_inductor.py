"""PyTorch's compiler: torch.compile, and packages that are compiled ahead of time"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from conformance.claims import ON_A_MAC
from metallab import checks, isolated

LOAD = """
import os
os.chdir(FOLDER)
import numpy as np, torch, torch._inductor
model = torch._inductor.aoti_load_package("model.pt2")
y = model(torch.from_numpy(np.load("x.npy")).to("mps")).cpu().numpy()
"""


@pytest.fixture
def network():
    layers = nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10), nn.Softmax(-1)
    return nn.Sequential(*layers).eval()


@pytest.mark.claim(
    on="gpu", used_in="notebooks 19 and 23: torch.compile fuses", seconds=180, slow=True
)
def test_torch_compile_is_right(network):
    """``torch.compile`` compiles a network for MPS, inference and gradient, and agrees with the CPU."""
    x = torch.randn(32, 64)
    truth = network(x)
    truth.square().sum().backward()
    gradient = network[0].weight.grad.clone()
    network.zero_grad()

    ours = network.to("mps")
    got = torch.compile(ours)(x.to("mps"))
    got.square().sum().backward()

    checks.assert_close(truth.detach(), got.detach().cpu(), "float32")
    checks.assert_close(gradient, ours[0].weight.grad.cpu(), "float32")


CHANNELS_LAST = torch.channels_last


@pytest.mark.claim(on="gpu", used_in="notebooks 19 and 23: torch.compile fuses", seconds=180)
@pytest.mark.usefixtures("shaders")
def test_compiled_functions_take_any_layout():
    """A compiled function is right for dense tensors of any layout: transposed and channels_last ones."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.relu() + 1

    compiled = torch.compile(f)
    turned = torch.randn(4, 5).t()
    pictures = torch.randn(2, 3, 4, 5).to(memory_format=CHANNELS_LAST)
    checks.assert_close(f(turned), compiled(turned.to("mps")).cpu(), "float32")
    checks.assert_close(f(pictures), compiled(pictures.to("mps")).cpu(), "float32")

    # the second one is compiled for the layout that PyTorch foresees of the first one's result
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 1)).to(memory_format=CHANNELS_LAST)
    truth = layers(pictures).detach()
    got = torch.compile(layers.to("mps"))(pictures.to("mps"))
    got.sum().backward()  # the backward pass is compiled as well, and has to run
    checks.assert_close(truth, got.detach().cpu(), "float32")


@pytest.mark.claim(on="gpu", used_in="notebook 40, AOTInductor", seconds=300, slow=True)
def test_package_runs_in_another_process(network, evidence):
    """An AOTInductor package made for MPS loads in a fresh process and agrees with the CPU.

    aoti_compile_and_package of an exported network on the GPU; aoti_load_package by a process that never saw it.
    """
    x = torch.randn(32, 64)
    truth = network(x).detach()
    np.save("x.npy", x.numpy())
    exported = torch.export.export(network.to("mps"), (x.to("mps"),))
    torch._inductor.aoti_compile_and_package(
        exported, package_path=str(Path("model.pt2").resolve())
    )
    evidence("bytes", Path("model.pt2").stat().st_size)
    ran = isolated.run(
        f"FOLDER = {str(Path.cwd())!r}\n{LOAD}", results=["y"], device="mps", timeout=90
    )
    if not ON_A_MAC and "Unsupported device key" in ran.reason:
        pytest.skip("it was made; to load it takes a PyTorch that is built for macOS")

    assert ran.ok, ran.detail[-3000:]
    checks.assert_close(truth, ran["y"], "float32")


@pytest.mark.claim(
    on="cpu", used_in="notebook 40, AOTInductor and its loader alone", seconds=300, slow=True
)
def test_package_for_the_cpu_is_right(network):
    """AOTInductor compiles for an Apple processor with the system's clang, and both loaders of notebook 40 read it."""
    x, path = torch.randn(32, 64), str(Path("model.pt2").resolve())
    with torch.no_grad():
        torch._inductor.aoti_compile_and_package(
            torch.export.export(network, (x,)), package_path=path
        )
        truth = network(x)
        checks.assert_close(truth, torch._inductor.aoti_load_package(path)(x), "float32")
        alone = torch._C._aoti.AOTIModelPackageLoader(path, "model", False, 1, -1)
        checks.assert_close(truth, alone.boxed_run([x])[0], "float32")


@pytest.mark.nightly
@pytest.mark.claim(on="cpu", used_in="notebook 40, torch.compile", seconds=240)
def test_compiled_for_the_cpu_is_right():
    """``torch.compile`` for an Apple processor needs no OpenMP from elsewhere: what macOS and PyTorch bring will do.

    A function large enough for several threads.
    """

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).relu().sum(-1)

    x = torch.randn(4096, 512)
    checks.assert_close(f(x), torch.compile(f)(x), "float32")
