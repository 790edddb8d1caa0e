"""What notebook 04's kernels reach: memory bandwidth beside a copy, and speed beside PyTorch's own ways.

    python tests/benchmarks/softshrink_routes.py

On an NVIDIA GPU softshrink.metal through NVRTC, on an Apple GPU through torch.mps.compile_shader, and on every machine
the C++ extension on the CPU. Outputs are allocated before; all variants of a row take turns. The bars (`BARS`) are
printed and never asserted: run it on a quiet machine. It needs PyTorch, NumPy and psutil, and the sources:
``PYTHONPATH=utils python3 tests/benchmarks/softshrink_routes.py`` will do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from metallab import checks, device, timing, units
from metallab.pytorch.kernels import softshrink

LAMBD = 0.5
# at least so many times the speed of each; for the fastest of our kernels in float32
BARS = {
    "cuda": {"copy": 0.95, "composite": 6.0},
    "mps": {"copy": 0.95, "composite": 6.0},
    "cpu": {"copy": 0.60, "built-in": 0.60, "composite": 5.0},
}
NUMBERS = {"cuda": 2**26, "mps": 2**26, "cpu": 2**24}


def composite(x: torch.Tensor) -> torch.Tensor:
    """Softshrink of PyTorch's elementary operators, as one writes it without a kernel."""
    return torch.where(x > LAMBD, x - LAMBD, torch.where(x < -LAMBD, x + LAMBD, 0 * x))


def variants(x: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    """Functions of no argument, ours first, each with an output of its own where it takes one."""
    route, n = softshrink.route(x.device), x.numel()
    name = softshrink.METAL_NAMES[x.dtype]
    outs = {key: torch.empty_like(x) for key in ("ours", "one a thread", "copy", "built-in")}

    def into(key: str, function: Callable[..., object], *arguments: object, **keywords: object):
        def run() -> torch.Tensor:
            function(outs[key], *arguments, **keywords)
            return outs[key]

        return run

    made = {"ours": into("ours", route.softshrink_forward, x, LAMBD)}
    if x.device.type != "cpu":
        scalar = getattr(route.library, f"softshrink_forward_{name}")
        made["one a thread"] = into("one a thread", scalar, x, LAMBD, threads=n)
    made["copy"] = into("copy", torch.Tensor.copy_, x)
    made["built-in"] = lambda: torch._C._nn.softshrink(x, LAMBD, out=outs["built-in"])
    made["composite"] = functools.partial(composite, x)
    return made


def row(lab: device.Device, dtype: torch.dtype) -> timing.Comparison:
    """All variants on a device in a dtype, ours the baseline."""
    x = torch.randn(NUMBERS[lab.kind], device=lab.torch_device).to(dtype)
    every = variants(x)
    judge = checks.matches(dtype)
    parity = dict.fromkeys(every, judge) | {"copy": timing.Unchecked("a copy computes nothing: it is the limit")}
    name = f"{units.dtype_name(dtype)}, {x.numel()} numbers"
    return timing.compare(every, on=lab, baseline="ours", parity=parity, question="throughput", name=name)


def report(lab: device.Device, compared: timing.Comparison, bytes_moved: int, bars: dict[str, float]) -> None:
    """A line for each variant, and one for each bar."""
    print(f"\n{lab.label}: {compared.name}")
    for name, measured in compared.measurements.items():
        rate = units.rate(bytes_moved / measured.median, "B/s")
        flags = f"  [{', '.join(measured.flags)}]" if measured.flags else ""
        print(f"  {name:14} {units.seconds(measured.median):>9}  {rate:>9}{flags}")
    for name, why in compared.withheld.items():
        print(f"  {name}: {why}")
    for name, bar in bars.items():
        if name in compared.ratios:
            ratio = compared.ratios[name]
            low, median, high = (1 / max(value, 1e-9) for value in (ratio.high, ratio.median, ratio.low))
            speed_up = f"{median:.3f} (95 % interval {low:.3f} to {high:.3f})"
            print(f"  {'met' if median >= bar else 'MISSED'}: ours has {speed_up} times the speed of {name}, bar {bar}")


def main() -> None:
    """The best device of this machine, then its CPU."""
    best = device.pick()
    for lab in dict.fromkeys([best, device.cpu()]):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            compared = row(lab, dtype)
            moved = 2 * NUMBERS[lab.kind] * dtype.itemsize
            report(lab, compared, moved, BARS[lab.kind] if dtype == torch.float32 else {})
    print(f"\nPyTorch {torch.__version__}, {torch.get_num_threads()} CPU threads")


if __name__ == "__main__":
    main()
