"""Will my model run on MPS? Which of its operators have a Metal kernel, told on any machine.

Two things are put together. *Which operators exist on MPS* is read from the installed PyTorch: its wheel carries
``native_functions.yaml``, the list that the dispatcher's tables are generated from. *Which operators a model calls* is
found by running it once on the ``meta`` device, where shapes are computed and numbers are not, so that a large model
costs no memory. A model that needs real numbers on its way (``nonzero``, ``nms``) is run on the CPU instead.

A prediction, not a proof: a kernel may exist and refuse a dtype. `confirm` runs the model on a real Apple GPU.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import functools
import html
import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal["native", "composite", "falls back", "missing", "unknown"]

# Registered to fall back to the CPU in PyTorch itself (aten/src/ATen/mps/MPSFallback.mm); the YAML does not say so.
FALLS_BACK_BY_ITSELF = ("aten::_linalg_svd", "aten::embedding_renorm_", "aten::linalg_svd")
# torchvision's Mac wheel registers these for MPS from its own sources (torchvision/csrc/ops/mps).
TORCHVISION = ("nms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool")
# Where PyTorch has one operator for the whole on MPS, which a trace elsewhere sees in pieces.
WHOLE_ON_MPS = {
    "lstm": "aten::_lstm_mps",
    "scaled_dot_product_attention": "aten::_scaled_dot_product_attention_math_for_mps",
}
FALLBACK_VARIABLE = "PYTORCH_ENABLE_MPS_FALLBACK"


class TraceFailed(RuntimeError):
    """The model could not be run with the inputs given, neither on the meta device nor on the CPU."""


@dataclass(frozen=True)
class Use:
    """One operator that a model calls."""

    operator: str
    """Namespace, name and overload: ``aten::add.Tensor``."""
    status: Status
    calls: int
    modules: tuple[str, ...]
    """Which modules call it, by their place in the model; ``""`` is the model itself."""

    @property
    def advice(self) -> str:
        """What to do about it; empty for what runs on the GPU."""
        name = self.operator.split("::")[1].split(".")[0]
        if self.status == "missing":
            return (
                f"raises NotImplementedError. Set {FALLBACK_VARIABLE}=1 before Python starts to run {name} on the CPU, "
                "with a copy there and back; better, replace it, or write a kernel (notebook 04)"
            )
        if self.status == "falls back":
            return f"PyTorch itself runs {name} on the CPU: correct, with a copy there and back"
        if self.status == "unknown":
            return "not PyTorch's own: ask the package that brings it whether it has an MPS kernel"
        return ""


@dataclass(frozen=True)
class Coverage:
    """Every operator that a model called, the problematic ones first."""

    model: str
    uses: tuple[Use, ...]
    torch_version: str
    traced_on: str
    float64: tuple[str, ...] = field(default=())
    """Parameters, buffers and inputs in a dtype that MPS does not have."""

    def having(self, *statuses: Status) -> tuple[Use, ...]:
        """The uses with one of these statuses."""
        return tuple(use for use in self.uses if use.status in statuses)

    @property
    def runs(self) -> bool:
        """True if nothing raises: no missing operator, no float64."""
        return not self.having("missing") and not self.float64

    @property
    def verdict(self) -> str:
        """One line."""
        missing, slow = self.having("missing"), self.having("falls back", "unknown")
        if self.float64:
            return f"No: MPS has no float64, but {', '.join(self.float64)} is; call .float() first."
        if missing:
            return f"No: {_listed(missing)} has no MPS kernel. With {FALLBACK_VARIABLE}=1 it runs there on the CPU."
        if slow:
            return f"Yes, with care: {_listed(slow)} may leave the GPU."
        return f"Yes: all {len(self.uses)} operators run on MPS in PyTorch {self.torch_version}."

    def __str__(self) -> str:
        rows = [(use.operator, use.status, str(use.calls), _shortened(use.modules)) for use in self.uses]
        head = ("operator", "status", "calls", "called by")
        widths = [max(len(row[i]) for row in [head, *rows]) for i in range(3)]
        lines = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d}".rstrip() for a, b, c, d in [head, *rows]]
        advice = [f"{use.operator}: {use.advice}." for use in self.uses if use.advice]
        return "\n".join([f"{self.model}: {self.verdict}", "", *lines, *([""] if advice else []), *advice])

    def _repr_html_(self) -> str:
        colours = {"missing": "#d55e00", "falls back": "#e69f00", "unknown": "#e69f00"}

        def row(use: Use) -> str:
            colour = colours.get(use.status, "inherit")
            cells = (use.operator, use.status, use.calls, _shortened(use.modules), use.advice)
            return f'<tr style="color:{colour}">' + "".join(f"<td>{html.escape(str(c))}</td>" for c in cells) + "</tr>"

        head = "".join(f"<th>{name}</th>" for name in ("operator", "status", "calls", "called by", "what to do"))
        rows = "".join(map(row, self.uses))
        said = f"<p><b>{html.escape(self.model)}</b>: {html.escape(self.verdict)}</p>"
        return f"{said}<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def mps_coverage(model: Callable[..., Any], *inputs: Any, training: bool = False) -> Coverage:
    """Which operators ``model(*inputs)`` calls, and whether each runs on MPS.

    ``model`` is an `nn.Module` (traced as a copy: yours stays where it is) or any function of tensors. With
    ``training`` the backward pass of the summed outputs is traced as well. `TraceFailed` if the model does not run.
    """
    import torch

    float64 = _float64(model, inputs)
    traced_on, calls = _trace(model, inputs, training)
    uses = [
        Use(operator, status(operator), sum(modules.values()), tuple(modules)) for operator, modules in calls.items()
    ]
    worst_first = ("missing", "falls back", "unknown", "composite", "native")
    uses.sort(key=lambda use: (worst_first.index(use.status), use.operator))
    name = type(model).__name__ if isinstance(model, torch.nn.Module) else getattr(model, "__name__", str(model))
    return Coverage(name, tuple(uses), torch.__version__, traced_on, float64)


def status(operator: str) -> Status:
    """How an operator (``aten::softshrink``, ``torchvision::nms``) runs on MPS in the installed PyTorch."""
    namespace, _, name = operator.partition("::")
    if any(operator.split(".")[0] == one for one in FALLS_BACK_BY_ITSELF):
        return "falls back"
    if namespace == "torchvision":
        return "native" if name.split(".")[0].removeprefix("_").removesuffix("_backward") in TORCHVISION else "unknown"
    if namespace in ("prim", "prims"):
        return "composite"
    if namespace != "aten":
        return _status_of_a_custom_operator(operator)
    return table().get(name.removesuffix(".default"), "unknown")


@functools.cache
def table() -> Mapping[str, Status]:
    """Status of every ATen operator, by name and overload (``add.Tensor``), read from the installed PyTorch."""
    import torchgen
    import yaml

    path = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    entries = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    by_name = {entry["func"].split("(", 1)[0]: entry for entry in entries}
    found = {name: _status_of(entry, by_name) for name, entry in by_name.items()}
    for name, entry in by_name.items():
        # variants that are generated from this entry do what it does
        for generated in filter(None, re.split(r",\s*", entry.get("autogen", ""))):
            found.setdefault(generated, found[name])
    return found


def confirm(coverage: Coverage, model: Callable[..., Any], *inputs: Any) -> str:
    """Run the model on this machine's MPS device and say whether the prediction held.

    RuntimeError where there is no MPS device.
    """
    import torch

    if not torch.backends.mps.is_available():
        raise RuntimeError("there is no MPS device here; a prediction can be confirmed on a Mac only")
    device = torch.device("mps")
    try:
        with torch.no_grad():
            _moved(model, device)(*_moved(inputs, device))
        torch.mps.synchronize()
    except (NotImplementedError, TypeError) as error:
        held = "as predicted" if not coverage.runs else "NOT predicted"
        return f"It raised, {held}: {str(error).splitlines()[0]}"
    return f"It ran, {'as predicted' if coverage.runs else 'NOT predicted'}."


def _status_of(entry: Mapping[str, Any], by_name: Mapping[str, Mapping[str, Any]]) -> Status:
    # a structured operator's kernels stand at the variant that it delegates to
    if delegate := entry.get("structured_delegate"):
        entry = by_name[delegate]
    keys = {key.strip() for keys in entry.get("dispatch", {}) for key in keys.split(",")}
    if "MPS" in keys:
        return "native"
    if not keys or any(key.startswith("Composite") for key in keys):
        return "composite"
    return "missing"


def _status_of_a_custom_operator(operator: str) -> Status:
    import torch

    name = operator.removesuffix(".default")
    try:
        return "native" if torch._C._dispatch_has_kernel_for_dispatch_key(name, "MPS") else "unknown"
    except RuntimeError:  # no such operator any more
        return "unknown"


def _trace(model: Callable, inputs: Sequence[Any], training: bool) -> tuple[str, dict[str, collections.Counter]]:
    """Where it was traced, and for each operator how often which module called it."""
    reasons = []
    for device in ("meta", "cpu"):
        try:
            return device, _traced_on(device, model, inputs, training)
        except (NotImplementedError, RuntimeError, TypeError, ValueError, IndexError) as error:
            reasons.append(f"on {device}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
    raise TraceFailed(f"the model could not be run with these inputs ({'; '.join(reasons)}); do they fit it?")


def _traced_on(device: str, model: Callable, inputs: Sequence[Any], training: bool) -> dict[str, collections.Counter]:
    import torch

    subject, arguments = _moved(model, device), _moved(tuple(inputs), device)
    place = _Place()
    recorder = _Recorder(place)
    # the fused encoder of the CPU does not exist on MPS: keep to the path that an MPS run takes
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with place.following(subject), torch.set_grad_enabled(training), recorder.recording():
            outputs = subject(*arguments)
            if training:
                _summed(outputs).backward()
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
    return recorder.calls


class _Place:
    """Which module is running: the innermost one whose forward has begun and not ended."""

    def __init__(self) -> None:
        self.stack = [""]

    @contextlib.contextmanager
    def following(self, subject: Any) -> Iterator[None]:
        """Keep the stack up to date while the block runs."""
        import torch

        hooks = []
        if isinstance(subject, torch.nn.Module):
            for name, module in subject.named_modules():
                hooks.append(module.register_forward_pre_hook(functools.partial(self._enter, name)))
                hooks.append(module.register_forward_hook(self._leave))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    # a hook that returns anything but None would replace the module's inputs or outputs

    def _enter(self, name: str, *_: Any) -> None:
        self.stack.append(name)

    def _leave(self, *_: Any) -> None:
        self.stack.pop()


class _Recorder:
    """Counts operators by the module that calls them, and takes for one what is one operator on MPS."""

    def __init__(self, place: _Place) -> None:
        self.place = place
        self.calls: dict[str, collections.Counter] = {}
        self.inside_a_whole = False

    def note(self, operator: str) -> None:
        """Count a call, unless it is a piece of a whole that was counted."""
        if not self.inside_a_whole:
            self.calls.setdefault(operator, collections.Counter())[self.place.stack[-1]] += 1

    def call(self, function: Callable, *args: Any, **kwargs: Any) -> Any:
        """Call a function, counting it once if it is one operator on MPS."""
        whole = WHOLE_ON_MPS.get(getattr(function, "__name__", ""))
        if whole is None or self.inside_a_whole:
            return function(*args, **kwargs)
        self.note(whole)
        self.inside_a_whole = True
        try:
            return function(*args, **kwargs)
        finally:
            self.inside_a_whole = False

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Watch the dispatcher, and above it the functions that fall into pieces on the way to it."""
        from unittest import mock

        import torch
        from torch.overrides import TorchFunctionMode
        from torch.utils._python_dispatch import TorchDispatchMode

        recorder = self

        class Operators(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                recorder.note(function.name() + ("" if "." in function.name() else ".default"))
                return function(*args, **(kwargs or {}))

        class Functions(TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                return recorder.call(function, *args, **(kwargs or {}))

        # Functions is off inside a function of PyTorch's own that it has seen, such as multi_head_attention_forward
        attention = functools.partial(self.call, torch.nn.functional.scaled_dot_product_attention)
        patched = mock.patch.object(torch.nn.functional, "scaled_dot_product_attention", attention)
        with patched, Functions(), Operators():
            yield


def _moved(value: Any, device: Any) -> Any:
    """Tensors on a device, modules as a copy there, in any nesting of lists, tuples and dicts."""
    import torch

    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).to(device)
    if isinstance(value, torch.Tensor):
        return value.detach().to(device)
    if isinstance(value, Mapping):
        return {key: _moved(item, device) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_moved(item, device) for item in value)
    return value


def _summed(outputs: Any) -> Any:
    """The sum of all differentiable outputs; TraceFailed's ValueError if there is none."""
    import torch

    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if not wanted:
        raise ValueError("training=True, but no output depends on a parameter that requires a gradient")
    return sum(leaf.sum() for leaf in wanted)


def _float64(model: Any, inputs: Sequence[Any]) -> tuple[str, ...]:
    """Names of parameters, buffers and inputs that MPS cannot hold."""
    import torch

    refused = (torch.float64, torch.complex128)
    named: list[tuple[str, Any]] = [(f"input {i}", value) for i, value in enumerate(inputs)]
    if isinstance(model, torch.nn.Module):
        named += [*model.named_parameters(), *model.named_buffers()]
    return tuple(name for name, value in named if isinstance(value, torch.Tensor) and value.dtype in refused)


def _listed(uses: Sequence[Use]) -> str:
    return ", ".join(use.operator.split("::")[1].removesuffix(".default") for use in uses)


def _shortened(modules: Sequence[str], most: int = 3) -> str:
    names = [name or "(the model)" for name in modules]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m metallab.coverage package.module:factory``: 0 if the model runs on MPS, 1 if not, 2 on misuse."""
    parser = argparse.ArgumentParser(prog="python -m metallab.coverage", description=__doc__.splitlines()[0])
    parser.add_argument("factory", help="package.module:factory; the factory returns (model, inputs)")
    parser.add_argument("--training", action="store_true", help="trace the backward pass as well")
    given = parser.parse_args(arguments)
    module, _, name = given.factory.partition(":")
    try:
        model, inputs = getattr(importlib.import_module(module), name)()
        found = mps_coverage(model, *inputs, training=given.training)
    except (ImportError, AttributeError, TypeError, ValueError, TraceFailed) as error:
        print(
            f"coverage: {given.factory}: {error}; name it package.module:factory, where the factory returns "
            "(model, inputs) and inputs is a tuple",
            file=sys.stderr,
        )
        return 2
    print(found)
    return 0 if found.runs else 1


if __name__ == "__main__":
    sys.exit(main())
