"""Launch time: how long a model takes from a file to its first answer, in fresh processes, split into its parts.

What happens only once in a process cannot be repeated in it: modules stay imported, kernels stay compiled. So every
sample is a process of its own, started by `metallab.isolated`, which times

* ``import``: the frameworks that a route needs, NumPy among them,
* ``load``: everything up to a function that answers,
* ``first call``: that function's first answer, as a NumPy array, so that nothing is left to wait for,
* ``steady``: its later answers, as `metallab.timing` measures a latency.

``first answer`` is the sum of the first three. Starting Python itself, which all routes have in common, and reading the
input are not in it. Routes take turns, round by round, and each round's fresh processes are one sample of each. The
first launch on a machine also reads the files from the disk: to compare, launch each route once before.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from metallab import checks, device, isolated, mode, plots, timing, turns, units
from metallab.allowance import Allowance
from metallab.timing import Measurement

STAGES = ("import", "load", "first call")
TOTAL, STEADY = "first answer", "steady"

_PROGRAM = """
import sys, time
early = sorted({{"numpy", "onnxruntime", "torch"}} & set(sys.modules))
marks = [time.perf_counter_ns()]
{imports}
import numpy as np
marks.append(time.perf_counter_ns())
{load}
marks.append(time.perf_counter_ns())
x = np.load({x!r})
marks.append(time.perf_counter_ns())
y = answer(x)
marks.append(time.perf_counter_ns())
y = np.array(y)
from metallab import timing
short = {budget}
steady = timing.measure(lambda: answer(x), on=timing.Host(), name="steady", budget=short)
seconds = [(marks[b] - marks[a]) / 1e9 for a, b in ((0, 1), (1, 2), (3, 4))]
steady = (steady.median, steady.others)
"""


@dataclass(frozen=True)
class Route:
    """One way from a file to an answer, as Python text for a process of its own.

    The text finds the files in the folder ``HERE``, and may import modules that lie there.
    """

    imports: str
    """Import statements of the frameworks."""
    load: str
    """Statements that define ``answer``: a function of a NumPy array that returns one."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables; ``{here}`` in a value stands for the folder."""
    emptied: str = ""
    """A folder in ``HERE`` that is deleted before each process: so that its cache is cold."""
    device: str = "cpu"
    """``METALLAB_DEVICE`` of the process; ``mps`` is an Apple GPU, simulated where there is none."""
    spare: bool = False
    """Whether it is left out where nothing is left of an allowance when its turn comes."""


TORCH = """
import torch
import safetensors.torch
import net
"""
EAGER = """
model = net.make()
model.load_state_dict(safetensors.torch.load_file(f"{HERE}/weights.safetensors"))
model.eval()
answer = torch.inference_mode()(lambda x: model(torch.from_numpy(x)).numpy())
"""
COMPILED = EAGER.replace("model.eval()", "model = torch.compile(model.eval())")
ALONE = """
# what aoti_load_package calls, without first importing the compiler
package = torch._C._aoti.AOTIModelPackageLoader(f"{HERE}/model.pt2")
answer = lambda x: package.boxed_run([torch.from_numpy(x)])[0].numpy()
"""
AOT = """
model = torch._inductor.aoti_load_package(f"{HERE}/model.pt2")
answer = torch.inference_mode()(lambda x: model(torch.from_numpy(x)).numpy())
"""
ONNX = """
options = onnxruntime.SessionOptions()
options.add_session_config_entry("session.intra_op.allow_spinning", "0")
session = onnxruntime.InferenceSession(f"{HERE}/model.onnx", options, providers=["CPUExecutionProvider"])
answer = lambda x: session.run(None, {"input": x})[0]
"""
_CACHE = {
    "TORCHINDUCTOR_CACHE_DIR": "{here}/inductor",
    "TRITON_CACHE_DIR": "{here}/inductor/triton",
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",  # they would lie outside of the folder, and not be cold
    "TORCHINDUCTOR_VEC_ISA_OK": "0",  # no trial of each kind of vector instructions, which takes longer than the rest
}

PORTABLE: dict[str, Route] = {
    "eager": Route(TORCH, EAGER),
    "torch.compile, cold": Route(TORCH, COMPILED, _CACHE, emptied="inductor"),
    # in every round it finds the cache that the route before has left
    "torch.compile, warm": Route(TORCH, COMPILED, _CACHE, spare=True),
    "AOTInductor package": Route("import torch", AOT, spare=True),  # its load imports the compiler
    "AOTInductor, loader alone": Route("import torch", ALONE),
    "ONNX Runtime": Route("import onnxruntime", ONNX),
}
"""Ways to run a PyTorch model on the CPU of any machine. Eager comes first. They read these files:

``net.py``, whose ``make()`` gives the model without its weights, and ``weights.safetensors``; ``model.pt2`` of
``torch._inductor.aoti_compile_and_package``; ``model.onnx``, whose input is named ``input``.
"""

WITH_COMPILER = ("torch.compile, cold", "torch.compile, warm", "AOTInductor package", "AOTInductor, loader alone")
"""Those of them that PyTorch's compiler has to work for, which takes long."""


def portable(on: device.Device) -> dict[str, Route]:
    """The ways of `PORTABLE`, and if ``on`` is a GPU eager PyTorch there, whose answer is copied back.

    A fast run (`metallab.mode`) leaves out those `WITH_COMPILER`.
    """
    ways = {name: route for name, route in PORTABLE.items() if mode.current() == "full" or name not in WITH_COMPILER}
    if on.kind == "cpu":
        return ways
    exact = "torch.backends.cudnn.allow_tf32 = False  # NVIDIA: let float32 mean float32\n"
    load = EAGER.replace("model.eval()", f"model.eval().to({on.kind!r})")
    load = load.replace("torch.from_numpy(x)).numpy()", f"torch.from_numpy(x).to({on.kind!r})).cpu().numpy()")
    return ways | {f"eager on {on.kind}": Route(TORCH, exact + load, device=on.kind)}


@dataclass(frozen=True)
class Launch:
    """What the fresh processes of one route gave."""

    name: str
    parts: Mapping[str, Measurement]
    """By stage, and ``first answer`` and ``steady``. A sample is one process; ``first_call`` is that of the first."""
    output: np.ndarray

    @property
    def simulated(self) -> bool:
        """True if its times say nothing about the hardware."""
        return self.parts[TOTAL].simulated

    def __str__(self) -> str:
        if self.simulated:
            return f"{self.name}: simulated: no time"
        seconds = {stage: self.parts[stage].median for stage in STAGES}
        longest = max(seconds, key=seconds.__getitem__)
        share = seconds[longest] / sum(seconds.values())
        busy = " (busy machine: too long)" if self.parts[TOTAL].others > timing.BUSY else ""
        return f"{self.name}: the first answer takes {spread(self.parts[TOTAL])}, {share:.0%} of it the {longest}{busy}"

    def measurements(self) -> list[Measurement]:
        """All parts, named ``route: part``, for `metallab.records.save`."""
        return [replace(part, name=f"{self.name}: {stage}") for stage, part in self.parts.items()]


@dataclass(frozen=True)
class _Sample:
    seconds: Mapping[str, float]
    others: float
    output: np.ndarray


def measure(
    routes: Mapping[str, Route], here: Path, *, processes: int, on: device.Device, within: Allowance | None = None
) -> dict[str, Launch]:
    """Launch each route in ``processes`` fresh processes, in turns.

    A route on the simulated Apple GPU gets one process: its times are never shown. ``here`` is the folder with the
    routes' files and the input, ``x.npy``; ``on`` is the page's device, and a route on another one takes that one's
    name. Six processes are the fewest that give an interval at 95 %. Where several people measure, each round waits for
    its turn (`metallab.turns`).

    ``within`` is the time for all of it: each route that is not ``spare`` gets one process in any case, and what that
    took decides how many follow; what is left out is noted there.

    `metallab.isolated.ChildFailed`, with the route and the reason, if a process does not end well. ValueError for fewer
    than one process.
    """
    if processes < 1:
        raise ValueError(f"{processes} processes: a launch is measured in at least one")
    hardware = {name: _hardware(route, on) for name, route in routes.items()}
    asked = {name: 1 if simulated else processes for name, (_, simulated) in hardware.items()}
    wanted, by_route = dict(asked), {name: [] for name in routes}
    while waiting := [name for name in by_route if len(by_route[name]) < wanted[name]]:
        first, seconds = not any(by_route.values()), {}
        with turns.turn():  # its processes have it too: a turn inside a turn is the same
            for name in waiting:
                if within and first and routes[name].spare and not within.left:
                    del by_route[name]
                    within.left_out.append(name)
                else:
                    seconds[name] = _timed_launch(name, routes[name], here.resolve(), by_route[name])
        if within and first:
            more = within.counts("processes", seconds, {name: wanted[name] - 1 for name in seconds}, reserve=0.25)
            wanted = {name: 1 + count for name, count in more.items()}
    launches = {}
    for name, samples in by_route.items():
        label, simulated = hardware[name]
        made = {"question": "latency", "block": 1, "warmup_calls": 0, "mode": mode.current()}
        made |= {"device": label, "simulated": simulated, "kind": routes[name].device}
        launches[name] = _summary(name, samples, asked[name], made)
    return launches


def _hardware(route: Route, on: device.Device) -> tuple[str, bool]:
    """The name of what a route computes on, and whether that is simulated."""
    if route.device == on.kind:
        return on.label, on.simulated
    if route.device == "cpu":
        return device.cpu().label, False
    return isolated.apple_gpu(), sys.platform != "darwin"


def _timed_launch(name: str, route: Route, here: Path, samples: list[_Sample]) -> float:
    """Add a launch to the samples of a route; how long it took with everything around it, in seconds."""
    start = time.perf_counter()
    try:
        samples.append(_launch(route, here))
    except isolated.ChildFailed as error:
        raise isolated.ChildFailed(f"{name}: {error}") from None
    return time.perf_counter() - start


def _launch(route: Route, here: Path) -> _Sample:
    if route.emptied:
        shutil.rmtree(here / route.emptied, ignore_errors=True)
    load = f"HERE = {str(here)!r}\n{route.load}"
    source = _PROGRAM.format(imports=route.imports, load=load, x=str(here / "x.npy"), budget=f"timing.{_budget()}")
    environment = {name: value.format(here=here) for name, value in route.environment.items()}
    environment |= {"PYTHONPATH": str(here)}
    if route.device != "mps":
        environment["METALLAB_DEVICE"] = route.device  # and not the page's own, which may be simulated
    outcome = isolated.run(
        source,
        results=["early", "seconds", "steady", "y"],
        device="mps" if route.device == "mps" else None,
        environment=environment,
        timeout=600,
    )
    early, seconds, (steady, busy) = outcome["early"], outcome["seconds"], outcome["steady"]
    if early and route.device != "mps":
        raise RuntimeError(f"{', '.join(early)} had been imported before the clock started: no import is measured")
    stages = dict(zip(STAGES, seconds, strict=True))
    return _Sample({**stages, TOTAL: sum(seconds), STEADY: steady}, busy, outcome["y"])


def _budget() -> timing.Budget:
    """For the steady latency: each process is one sample of it; long enough to see whether others are at work."""
    return replace(timing.FULL, min_seconds=0.2, max_seconds=0.25) if mode.current() == "full" else timing.FAST


def _summary(name: str, samples: list[_Sample], processes: int, made: Mapping) -> Launch:
    """A route's launch from its samples."""
    first = samples[0]
    for repeated in samples[1:]:
        checks.assert_close(first.output, repeated.output, "float32")
    few = f"{len(samples)} of {processes} processes: there was no time for more"
    made = {**made, "stop_reason": f"{processes} processes, as asked" if len(samples) == processes else few}
    load = statistics.median(sample.others for sample in samples)
    columns = {stage: tuple(sample.seconds[stage] for sample in samples) for stage in first.seconds}
    parts = {
        stage: Measurement(stage, samples=column, first_call=column[0], others=load, **made)
        for stage, column in columns.items()
    }
    return Launch(name, parts, first.output)


def describe(launches: Mapping[str, Launch], variant: str, baseline: str, part: str = TOTAL) -> str:
    """How many times faster a part of one route is than of another, paired by rounds, or why that is not known.

    `metallab.checks.Mismatch` if their outputs differ by more than float32's tolerance.
    """
    checks.assert_close(launches[baseline].output, launches[variant].output, "float32")
    parts = {name: launches[name].parts[part] for name in (baseline, variant)}
    count = min(measured.n for measured in parts.values())  # the slower may have had time for fewer processes
    paired = {name: replace(measured, samples=measured.samples[:count]) for name, measured in parts.items()}
    parity = "outputs compared at float32's tolerance"
    return timing.compare_samples(paired, baseline=baseline, name=part, parity=parity).headlines[0]


def spread(measured: Measurement) -> str:
    """A median with its 95 % interval over fresh processes; what each showed if they are too few; no simulated time."""
    if measured.simulated:
        return "simulated: no time"
    low, high = timing.median_interval(measured.samples)
    interval = f" ({units.seconds(low)} to {units.seconds(high)})" if np.isfinite(high) else ""
    if not interval and measured.n > 1:
        interval = f" (each of {measured.n}: {', '.join(map(units.seconds, measured.samples))})"
    return f"{units.seconds(measured.median)}{interval}"


def picture(launches: Iterable[Launch], *, heading: str) -> Figure:
    """Time to the first answer, a piece for each stage; a simulated launch has no bar and is named."""
    launches = list(launches)
    real = {each.name: {stage: each.parts[stage] for stage in STAGES} for each in launches if not each.simulated}
    simulated = ", ".join(each.name for each in launches if each.simulated)
    if not real:
        return plots.reason(f"SIMULATED, no time is shown: {simulated}")
    return plots.stages(real, heading=f"{heading} (simulated, no time: {simulated})" if simulated else heading)
