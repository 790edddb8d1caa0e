"""PyTorch's compiler on the GPU: torch.compile, and packages that are compiled ahead of time."""

from __future__ import annotations

from pathlib import Path

from metallab.verify_mac.trial import Finding, judged, not_applicable, simulated, trial

LOAD = """
import numpy as np, torch, torch._inductor
model = torch._inductor.aoti_load_package("model.pt2")
y = model(torch.from_numpy(np.load("x.npy")).to("mps")).cpu().numpy()
np.save("y.npy", y)
"""


def _network():
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10), nn.Softmax(-1)).eval()


@trial(on="gpu", used_in="notebook 02b, torch.compile", seconds=180)
def torch_compile_is_right() -> Finding:
    """``torch.compile`` compiles a network for MPS, inference and gradient, and agrees with the CPU."""
    import torch

    from metallab import checks

    network, x = _network(), torch.randn(32, 64)
    truth = network(x)
    truth.square().sum().backward()
    gradient = network[0].weight.grad.clone()
    network.zero_grad()
    ours = network.to("mps")
    got = torch.compile(ours)(x.to("mps"))
    got.square().sum().backward()
    checks.assert_close(truth.detach(), got.detach().cpu(), "float32")
    checks.assert_close(gradient, ours[0].weight.grad.cpu(), "float32")
    return judged(True, "outputs and the gradient of the first layer agree")


@trial(on="gpu", used_in="notebook 09, AOTInductor", seconds=300)
def package_runs_in_another_process() -> Finding:
    """An AOTInductor package made for MPS loads in a fresh process and agrees with the CPU.

    aoti_compile_and_package of an exported network on the GPU; aoti_load_package by a process that never saw it.
    """
    import numpy as np
    import torch

    from metallab import checks, isolated

    network, x = _network(), torch.randn(32, 64)
    truth = network(x).detach()
    np.save("x.npy", x.numpy())
    exported = torch.export.export(network.to("mps"), (x.to("mps"),))
    torch._inductor.aoti_compile_and_package(exported, package_path=str(Path("model.pt2").resolve()))
    ran = isolated.run(f"import os; os.chdir({str(Path.cwd())!r})\n{LOAD}", device="mps", timeout=90)
    if simulated() and "Unsupported device key" in ran.reason:
        return not_applicable("it was made; to load it takes a PyTorch that is built for macOS", loading=ran.reason)
    if not ran.ok:
        return judged(False, f"the process that loads it {ran}", detail=ran.detail[-3000:])
    checks.assert_close(truth, np.load("y.npy"), "float32")
    return judged(True, "the package, in a process of its own, agrees", bytes=Path("model.pt2").stat().st_size)


@trial(on="cpu", used_in="notebook 09, AOTInductor and its loader alone", seconds=300)
def package_for_the_cpu_is_right() -> Finding:
    """AOTInductor compiles for an Apple processor with the system's clang, and both loaders of notebook 09 read it."""
    import torch

    from metallab import checks

    network, x = _network(), torch.randn(32, 64)
    path = str(Path("model.pt2").resolve())
    with torch.no_grad():
        torch._inductor.aoti_compile_and_package(torch.export.export(network, (x,)), package_path=path)
        truth = network(x)
        checks.assert_close(truth, torch._inductor.aoti_load_package(path)(x), "float32")
        alone = torch._C._aoti.AOTIModelPackageLoader(path, "model", False, 1, -1)
        checks.assert_close(truth, alone.boxed_run([x])[0], "float32")
    return judged(True, "both agree with eager PyTorch")


@trial(on="cpu", used_in="notebook 02b, torch.compile on the CPU", seconds=240)
def compiled_for_the_cpu_is_right() -> Finding:
    """``torch.compile`` for an Apple processor needs no OpenMP from elsewhere: what macOS and PyTorch bring will do.

    A function large enough for several threads.
    """
    import torch

    from metallab import checks

    f = lambda x: (x * 2).relu().sum(-1)
    x = torch.randn(4096, 512)
    checks.assert_close(f(x), torch.compile(f)(x), "float32")
    return judged(True, f"compiled, and right, with {torch.get_num_threads()} threads")
