"""One side's process: it sets a case up, and takes a sample of its time on request.

`metallab.versus.lockstep` starts it by its path with the side's own Python, where Metal Lab may be an older one or
missing: so it needs only Python, and NumPy to transfer outputs. `cases.py` is that of the working tree, whatever
revision the side has. It gets its settings as JSON, and answers each line of JSON with another one: a case to be set
up, or a number of calls to be timed. What a case itself prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import importlib.metadata
import importlib.util
import json
import marshal
import math
import os
import platform
import random
import sys
import time
import traceback
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

PID = os.getpid()
SAMPLE_SECONDS = 0.003
"""A sample takes at least so long. Longer ones are interrupted more often; many short ones have the better median."""
WARM_UP_SECONDS = 0.05
EVERY_CORE = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
"""The cores that this process may use during set-up."""
SLOW_CALL = 0.5
"""Seconds of a call from which on the uncounted call before each sample costs more than it gives."""
PACKAGES = {"numpy", "torch", "jax", "jaxlib", "tensorflow", "mlx"}
"""Those with arrays that `Waiting` can wait for; a subclass of another package may be lazy."""
ITERATIONS, ITEMS = (list.__iter__, tuple.__iter__), (dict.items, OrderedDict.items)
"""How `leaves` finds the parts of an output. What says in a way of its own what it holds may compute it then."""

Settings = Mapping[str, Any]
"""What `lockstep` and `sides` tell a process."""
Function = Callable[[], Any]
"""What is timed."""


def main() -> None:
    """Describe this Python, or serve, as the settings ask; answers go where standard output went."""
    # Python puts the folder of a file that it runs first: `cases` there would be this package's module
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    settings = json.loads(sys.argv[1])
    # what a case prints must not come between the answers: it goes to standard error
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    if "modules" in settings:
        print(json.dumps(describe(settings)), file=answers)
    else:
        serve(settings, answers)


def describe(settings: Settings) -> dict[str, Any]:
    """Return what `metallab.versus.sides.Side` has of this Python: version, packages, files of modules, device."""
    packages: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:  # else it was left by an interrupted installation
            # as in an import, the first on the path counts
            packages.setdefault(name.lower().replace("_", "-"), distribution.version)

    specs = {name: importlib.util.find_spec(name) for name in settings["modules"]}
    device, label = choose_device(settings["device"])
    return {
        "version": platform.python_version(),
        "packages": packages,
        "imported": {name: spec.origin if spec else None for name, spec in specs.items()},
        "device": device,
        "label": label,
    }


def choose_device(wish: str) -> tuple[str, str]:
    """Return the device that is wished for and its name; of ``auto`` the GPU, or the CPU where PyTorch finds none.

    A CPU has an empty name. Both are empty if there is no such device.
    """
    found = {"cpu": ""}  # the first one is that of ``auto``
    if wish != "cpu":
        with contextlib.suppress(ImportError):
            import torch

            if torch.cuda.is_available():
                found = {"cuda": torch.cuda.get_device_name(), **found}
            elif sys.platform == "darwin" and torch.backends.mps.is_available():
                found = {"mps": "Apple GPU", **found}

    fitting = [(device, name) for device, name in found.items() if wish in ("auto", device)]
    return fitting[0] if fitting else ("", "")


def serve(settings: Settings, answers: TextIO) -> None:
    """Answer each line of standard input: set a case up, or take a sample of the current one, until the input ends.

    What a case raises is an answer, ``lacks``, and the next line is read.

    Parameters
    ----------
    settings
        ``cases`` and ``file`` are the paths of `metallab.versus.cases` and of the file of cases; ``seed`` is that of
        what moves this process's memory. `Work` reads the rest.
    answers
        Gets a line of JSON for each line of the input.
    """
    module, chance = load_cases(settings["cases"]), random.Random(settings["seed"])
    # read with the first question, so that what the file raises is an answer too
    cases: dict[str, Any] = {}
    work: Any = None

    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "case" in asked:
                work = None  # its memory is free before the next one's is taken
                cases = cases or module.load(settings["file"])
                work = Work(cases[asked["case"]], settings, asked["output"], chance)
                answer = work.ready
            else:
                answer = {"nanoseconds": work.sample(asked["calls"])}
        except (Exception, SystemExit) as error:  # noqa: BLE001  # a case may raise anything: it is the answer
            answer = {"lacks": describe_error(error)}

        end_if_forked()
        print(end="", flush=True)  # before the next case prints
        print(json.dumps(answer), file=answers)


class Work:
    """A case that is set up and warm."""

    def __init__(self, case: Any, settings: Settings, output: str, chance: random.Random) -> None:
        """Set the case up on every core, write its output into a file, and warm it up on the cores that are timed.

        Parameters
        ----------
        case
            A `metallab.versus.cases.Case`.
        settings
            ``device``, and ``cores``, to which the process is pinned while it is timed; empty for no limit.
        output
            The file for the output, which `lockstep` compares before it asks for a sample.
        chance
            From which the amounts of memory come that move the case's own.
        """
        gc.enable()  # the case before had it switched off
        pin(settings["cores"] and EVERY_CORE)
        # blocks of random sizes, small and large: where the case's memory lies is another place in each process
        self.ballast = [bytearray(chance.randrange(1, 2**size)) for size in (8, 12, 16, 20, 22)]

        random.seed(0)  # both sides draw the same
        self.function: Function = case.prepare(settings["device"])
        start = time.perf_counter_ns()
        result = self.function()
        assert_concrete(result)
        self.wait = Waiting(result, settings["device"])
        self.wait.all(result)
        first = time.perf_counter_ns() - start

        end_if_forked()
        dtypes = save_output(result, output)
        del result

        pin(settings["cores"])
        gc.collect()
        gc.disable()
        self.seconds = warm_up(self.function, self.wait)
        self.ready = {
            "calls": max(1, math.ceil(SAMPLE_SECONDS / self.seconds)),
            "first_call": first / 1e9,
            "dtypes": dtypes,
        }

    def sample(self, calls: int) -> int:
        """Return the nanoseconds of so many calls."""
        return sample(self.function, self.wait, calls, uncounted=self.seconds < SLOW_CALL)


def end_if_forked() -> None:
    """End a child that a case has forked: its parent saves the output, and answers."""
    if os.getpid() != PID:
        os._exit(1)


def load_cases(path: str) -> Any:
    """Import the working tree's module of cases under the names that a file of cases uses."""
    spec = importlib.util.spec_from_file_location("metallab.versus.cases", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules["metallab.versus"] = sys.modules["metallab.versus.cases"] = module
    spec.loader.exec_module(module)
    return module


def describe_error(error: BaseException) -> str:
    """Return an error in one line, with the case's or its callee's line."""
    lines = str(error).strip().splitlines()
    message = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__

    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_others(frame)]
    if frames:
        message += f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})"
    return message


def is_others(frame: traceback.FrameSummary) -> bool:
    """Say whether a line of a traceback is in a file, and in none of this folder."""
    here = os.path.dirname(os.path.abspath(__file__))
    is_file = not frame.filename.startswith("<")
    return is_file and os.path.dirname(os.path.abspath(frame.filename)) != here


def assert_concrete(result: Any) -> None:
    """Raise TypeError for a part of a type that may not be computed after `Waiting`."""
    for name, leaf in leaves(result):
        if not is_concrete(leaf):
            raise TypeError(
                f"{name} is a {type(leaf).__name__}, which may be computed later: return numbers, arrays of NumPy, "
                "PyTorch, JAX, TensorFlow or MLX, or lists, tuples, dicts or dataclasses of them"
            )


def is_concrete(leaf: Any) -> bool:
    """Say whether a part of an output is of a type that nothing computes later."""
    kind = type(leaf)
    if issubclass(kind, (int, float, complex, str, bytes, type(None))):
        return True
    return package(leaf) in PACKAGES or getattr(kind, "__iter__", None) in ITERATIONS


def package(leaf: Any) -> str:
    """Return the package of its type."""
    return type(leaf).__module__.partition(".")[0]


class Waiting:
    """How to wait for results: for each (JAX, MLX), for the device (CUDA, MPS), or not at all."""

    def __init__(self, result: Any, device: str) -> None:
        """Find from one result of a case how to wait for all of them. TypeError for a device that cannot be waited for.

        Only packages that the case has imported are looked at, so that nothing else is imported here.
        """
        parts = [leaf for _, leaf in leaves(result)]
        packages = set(map(package, parts))
        self.evaluate = sys.modules["mlx.core"].eval if "mlx" in packages else None
        self.each = bool(self.evaluate) or any(hasattr(leaf, "block_until_ready") for leaf in parts)

        is_gpu = device in ("cuda", "mps")
        self.synchronize: list[Callable[[], Any]] = []
        if is_gpu and "torch" in sys.modules:
            self.synchronize.append(getattr(sys.modules["torch"], device).synchronize)
        for at in devices_of(parts):
            self.synchronize.append(synchronizer(at))
        if "tensorflow" in packages or (is_gpu and "tensorflow" in sys.modules):
            self.synchronize.append(sys.modules["tensorflow"].test.experimental.sync_devices)

    def all(self, result: Any) -> None:
        """Wait until a result is computed."""
        if self.each:
            parts = [leaf for _, leaf in leaves(result)]
            if self.evaluate:
                self.evaluate(parts)
            for leaf in parts:
                if hasattr(leaf, "block_until_ready"):
                    leaf.block_until_ready()

        for synchronize in self.synchronize:
            synchronize()


def devices_of(parts: Iterable[Any]) -> set[Any]:
    """Return the devices of tensors of PyTorch, except for the CPU."""
    tensors = [leaf for leaf in parts if package(leaf) == "torch" and hasattr(leaf, "device")]
    return {leaf.device for leaf in tensors if leaf.device.type != "cpu"}


def synchronizer(device: Any) -> Callable[[], Any]:
    """Return the function that waits for a device of PyTorch. TypeError if there is none."""
    wait = getattr(getattr(sys.modules["torch"], device.type, None), "synchronize", None)
    if wait is None:
        raise TypeError(
            f"the case returns a tensor on {device}, which cannot be waited for: return a copy on the CPU"
        )
    return wait if device.type == "mps" else functools.partial(wait, device)


def sample(work: Function, wait: Waiting, calls: int, uncounted: bool) -> int:
    """Return the nanoseconds of so many calls; an uncounted one before them restores caches and threads.

    Where results are waited for one by one (JAX, MLX), each call is; otherwise the device is waited for after the last.
    """
    if uncounted:
        wait.all(work())

    if wait.each:
        start = time.perf_counter_ns()
        for _ in range(calls):
            wait.all(work())
        return time.perf_counter_ns() - start

    start = time.perf_counter_ns()
    for _ in range(calls):
        result = work()
    wait.all(result)
    return time.perf_counter_ns() - start


def warm_up(work: Function, wait: Waiting) -> float:
    """Call until the times have settled; return the seconds of the quickest call."""
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < WARM_UP_SECONDS:
        times.append(max(1, sample(work, wait, 1, uncounted=False)) / 1e9)
        if times[-1] > SLOW_CALL:
            break
    return min(times)


def pin(cores: Sequence[int]) -> None:
    """Limit this process with all its threads to some cores, if any are given."""
    for thread in os.listdir("/proc/self/task") if cores else ():
        with contextlib.suppress(ProcessLookupError):  # the thread has ended
            os.sched_setaffinity(int(thread), cores)


def leaves(result: Any, name: str = "result") -> Iterator[tuple[str, Any]]:
    """Yield name and value of each part of a nested result; a list of numbers is one part.

    So is a list or a dict with an iteration of its own, which `assert_concrete` refuses.
    """
    kind = type(result)
    parts: Iterable[tuple[Any, Any]]
    if dataclasses.is_dataclass(kind):
        parts = ((field.name, getattr(result, field.name)) for field in dataclasses.fields(kind))
    elif getattr(kind, "items", None) in ITEMS:
        parts = dict.items(result)
    elif getattr(kind, "__iter__", None) in ITERATIONS and not is_numbers(result):
        parts = enumerate(result)
    else:
        yield name, result
        return

    for key, part in parts:
        yield from leaves(part, f"{name}.{key}")


def is_numbers(result: Iterable[Any]) -> bool:
    """Return whether a list holds only numbers that fit into one NumPy array."""
    numbers = all(issubclass(type(part), (int, float, complex)) for part in result)
    return numbers and all(-(2**63) <= part < 2**63 for part in result if isinstance(part, int))


def to_numpy(leaf: Any) -> Any:
    """Return an array, number or text as a NumPy array; None is an empty one. TypeError for anything else."""
    import numpy as np

    array = np.asarray(readable_by_numpy(leaf))
    if array.dtype.kind == "V" and array.dtype.names is None:  # bfloat16 of JAX and TensorFlow
        array = array.astype(np.float32)

    if array.dtype.kind not in "biufcSU":
        raise TypeError(
            f"the case returns a {type(leaf).__name__} of {array.dtype}: let it return numbers"
        )
    return array


def readable_by_numpy(leaf: Any) -> Any:
    """Return a part of an output as something that NumPy reads without changing it."""
    if leaf is None:
        return []
    if isinstance(leaf, (str, bytes)) or (type(leaf) is int and not -(2**63) <= leaf < 2**63):
        return repr(leaf)  # NumPy drops zeros at the end of bytes, and has no larger integers
    if hasattr(leaf, "detach"):
        tensor = leaf.detach().cpu().resolve_conj().resolve_neg()
        return tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor
    if str(getattr(leaf, "dtype", "")) == "mlx.core.bfloat16":
        return leaf.astype(sys.modules["mlx.core"].float32)
    return leaf


def save_output(result: Any, path: str) -> dict[str, str]:
    """Write an output for `load_output`; return the dtype of each array by the part's name. Python's numbers have none.

    TypeError if two parts have one name, or one is neither numbers nor text.
    """
    parts: dict[str, Any] = {}
    for name, leaf in leaves(result):
        if name in parts:
            raise TypeError(f"two parts of the output are called {name}: give its keys other names")
        parts[name] = leaf

    every_dtype = {name: getattr(leaf, "dtype", None) for name, leaf in parts.items()}
    dtypes = {name: dtype for name, dtype in every_dtype.items() if dtype is not None}
    if not dtypes:  # plain numbers need no NumPy, which takes time to be imported
        # marshal refuses what is only derived from a number or a text; NumPy reads that
        with contextlib.suppress(ValueError), open(path, "wb") as file:
            marshal.dump(parts, file)
            return {}

    import numpy as np

    np.savez(path, **{name: to_numpy(leaf) for name, leaf in parts.items()})
    # PyTorch's dtype has no name
    return {
        name: getattr(each, "name", None) or str(each).rpartition(".")[2]
        for name, each in dtypes.items()
    }


def load_output(path: Path) -> dict[str, Any]:
    """Return the parts of an output that `save_output` wrote, by name."""
    import numpy as np

    if not zipfile.is_zipfile(path):
        plain = marshal.loads(path.read_bytes())
        return {name: to_numpy(leaf) for name, leaf in plain.items()}
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


if __name__ == "__main__":
    main()
