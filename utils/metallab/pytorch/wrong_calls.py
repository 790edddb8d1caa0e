"""A call of an operator: copy it to the CPU, shrink it while a device computes it wrongly, write it as a program."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from metallab import checks
from metallab.outcomes import Agreement

# source text for operators that only MPS has; it is part of the program for a bug report
REFERENCES = {
    "aten::_scaled_dot_product_attention_math_for_mps": "torch.ops.aten._scaled_dot_product_attention_math.default",
    "aten::_lstm_mps": "torch.ops.aten.lstm.input",
    "aten::linear_backward": (
        "lambda x, g, w, mask: [value for value, wanted in zip("
        "(g @ w, g.flatten(0, -2).mT @ x.flatten(0, -2), g.flatten(0, -2).sum(0)), mask) if wanted]"
    ),
}
FLOAT32, EMPTY = "not in float32", "a tensor without elements"
OR_MORE = "or more"
SEEDS = 3
"""A condition has to hold with the random numbers of so many seeds."""
LARGE = 16
"""The smallest size that counts as a condition."""


def floats(tensor: Tensor) -> bool:
    """Return True for floating and complex tensors."""
    return tensor.is_floating_point() or tensor.is_complex()


def widened(tensor: Tensor) -> Tensor:
    """Return a floating tensor in float64, a complex one in complex128."""
    return (
        tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
        if floats(tensor)
        else tensor
    )


def whole(tensor: Tensor) -> Tensor:
    """Return the whole memory that a tensor is a view of, in one dimension."""
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)


@dataclass(frozen=True)
class Call:
    """A call of an operator with tensors, or a `Layout` in place of each."""

    operator: Any
    args: tuple
    kwargs: dict

    @property
    def name(self) -> str:
        """``aten::add``."""
        return self.operator.name().partition(".")[0]

    @property
    def arguments(self) -> dict[str, Any]:
        """The given ones, by name."""
        names = [argument.name for argument in self.operator._schema.arguments]
        return dict(zip(names, self.args, strict=False)) | self.kwargs

    @property
    def settings(self) -> dict[str, Any]:
        """All arguments, with defaults."""
        return {
            each.name: each.default_value for each in self.operator._schema.arguments
        } | self.arguments

    @property
    def named(self) -> list[tuple[str, Any]]:
        """Each tensor or layout, with its argument's name."""
        leaves = [
            (name, leaf) for name, value in self.arguments.items() for leaf in tree_leaves(value)
        ]
        return [(name, leaf) for name, leaf in leaves if isinstance(leaf, Tensor | Layout | _Name)]

    @property
    def tensors(self) -> list[Any]:
        """The tensors among the arguments, or their layouts."""
        return [leaf for _, leaf in self.named]

    def mapped(self, kind: Any, change: Callable[[Any], Any]) -> Call:
        """Return the call with each argument of a type changed."""
        return Call(self.operator, *tree_map_only(kind, change, (self.args, self.kwargs)))

    def written(self) -> list[str]:
        """Return the names of the arguments that it writes to."""
        return [
            a.name
            for a in self.operator._schema.arguments
            if a.alias_info is not None and a.alias_info.is_write
        ]

    def moved(self, change: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> Call:
        """Return a copy on the CPU that shares memory as here; ``change`` is applied to the memory."""
        copies: dict[Any, Tensor] = {}

        def move(value: Any) -> Any:
            if isinstance(value, torch.device):
                return torch.device("cpu")
            tensor = value.detach()
            if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
                return change(tensor.to("cpu", copy=True))
            lazily = tensor.is_conj(), tensor.is_neg()  # of a view, whose memory is another's
            key = tensor.device, tensor.untyped_storage().data_ptr(), tensor.dtype, *lazily
            if key not in copies:
                copies[key] = change(
                    whole(tensor).to("cpu", copy=True).resolve_conj().resolve_neg()
                )
            return copies[key].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

        return self.mapped((torch.device, Tensor), move)

    def placed_like(self, other: Call) -> Call:
        """Return a copy with each tensor on the device where it is in ``other``, a call of the same tensors.

        It shares memory as here, and layouts and offsets are those of here.
        """
        mine = iter(self.tensors)
        copies: dict[Any, Tensor] = {}

        def place(there: Tensor) -> Tensor:
            tensor = next(mine)
            if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
                return tensor.to(there.device, copy=True)
            key = there.device, tensor.untyped_storage().data_ptr(), tensor.dtype
            if key not in copies:
                copies[key] = whole(tensor).to(there.device, copy=True)
            return copies[key].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

        return other.mapped(Tensor, place)

    def computed(self) -> Any:
        """Call the operator, or its entry in `REFERENCES`."""
        function = (
            eval(REFERENCES[self.name], {"torch": torch})
            if self.name in REFERENCES
            else self.operator
        )
        return function(*self.args, **self.kwargs)


@dataclass(frozen=True)
class Layout:
    """A tensor's layout; `source` is an expression for such a tensor with random numbers."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    """Its dimensions, that with the largest stride first."""
    gap: bool
    """Not dense: every second element of its innermost dimension."""
    offset: int
    dtype: torch.dtype
    expanded: tuple[int, ...] = ()
    fill: str = "rand"

    @staticmethod
    def of(tensor: Tensor) -> Layout:
        """The layout of a tensor."""
        plain = tuple(range(tensor.dim()))
        if tensor.is_contiguous() or not tensor.numel():
            return Layout(tuple(tensor.shape), plain, False, tensor.storage_offset(), tensor.dtype)
        expanded = tuple(d for d in plain if tensor.stride(d) == 0 and tensor.shape[d] > 1)
        order = tuple(sorted(plain, key=lambda d: -(tensor.stride(d) or math.inf)))
        base = tensor[tuple(slice(0, 1) if d in expanded else slice(None) for d in plain)]
        gap = not base.permute(order).is_contiguous()
        return Layout(
            tuple(tensor.shape), order, gap, tensor.storage_offset(), tensor.dtype, expanded
        )

    @property
    def view(self) -> bool:
        """Whether it is not contiguous."""
        return bool(self.expanded or self.gap or list(self.order) != sorted(self.order))

    @property
    def source(self) -> str:
        inner = [1 if d in self.expanded else self.shape[d] for d in self.order]
        inner[-1:] = [inner[-1] * 2] if self.gap else inner[-1:]
        count = math.prod(inner)
        if self.dtype.is_floating_point:  # drawn in float32 first: the same numbers in each dtype
            cast = "" if self.dtype == torch.float32 else f", {self.dtype}"
            text = f"torch.{self.fill}({self.offset + count}).to(device{cast})"
        else:
            fill = (
                self.fill
                if self.dtype.is_complex
                else "ones"
                if self.dtype == torch.bool
                else "zeros"
            )
            text = f"torch.{fill}({self.offset + count}, dtype={self.dtype}).to(device)"
        text += f"[{self.offset}:]" if self.offset else ""
        text += f".view({inner})" if inner != [count] else ""
        text += "[..., ::2]" if self.gap else ""
        if list(self.order) != sorted(self.order):
            text += f".permute({[self.order.index(d) for d in range(len(self.order))]})"
        return text + (f".expand({list(self.shape)})" if self.expanded else "")


# ---- shrinking ------------------------------------------------------------------------------------------------------


def shrunk(
    call: Call, device: torch.device, until: float = math.inf
) -> tuple[tuple[str, ...], str]:
    """Return the conditions of a wrong call, and a program that shows it; nothing if random numbers do not.

    ``call`` has a `Layout` in place of each tensor. ``until`` is a time of `time.monotonic`.
    """

    def outcome(call: Call, seed: int = 0) -> Agreement:
        return _outcome(call, device, seed) if time.monotonic() < until else "refused"

    def divides(wrong: Call, right: Call) -> bool:
        """Return True if one is wrong and the other right, with all seeds."""
        return all(
            (outcome(wrong, n), outcome(right, n)) == ("differs", "agrees") for n in range(SEEDS)
        )

    filled = [
        call.mapped(Layout, lambda t, fill=fill: dataclasses.replace(t, fill=fill))
        for fill in ("rand", "randn")
    ]
    simpler: Call | None = next((each for each in filled if outcome(each) == "differs"), None)
    if simpler is None:
        return (), ""
    while simpler is not None:
        call, ways = (
            simpler,
            (each for _, each in [*_one_of_each_list(simpler), *_simpler(simpler)]),
        )
        simpler = next((each for each in ways if outcome(each) == "differs"), None)
    shape = call.tensors[0].shape
    if all(t.shape == shape and not t.view for t in call.tensors):
        shapes = _shapes(call, math.prod(shape))
        call = (
            shapes[0]
            if len(shape) > 1 and all(outcome(each) == "differs" for each in shapes)
            else call
        )
    for size in sorted({n for t in call.tensors for n in t.shape if n > 1}, reverse=True):
        passes, fails = 0, size
        while fails - passes > 1:
            middle = 1 if passes == 0 and fails == size else (passes + fails) // 2
            smaller = outcome(_resized(call, size, middle)) == "differs"
            passes, fails = (passes, middle) if smaller else (middle, fails)
        call = _resized(call, size, fails)
    needed = [words for words, other in _simpler(call) if divides(call, other)]
    needed += [words for words, pairs in _limits(call) if all(divides(*pair) for pair in pairs)]
    return tuple(needed), _program(call, str(device))


def _simpler(call: Call) -> Iterator[tuple[str, Call]]:
    """Yield simpler calls, each with the condition that it lacks."""
    halves = (torch.float16, torch.bfloat16)
    in_float32 = lambda t: dataclasses.replace(
        t, dtype=torch.float32 if t.dtype in halves else t.dtype
    )
    with_elements = lambda t: dataclasses.replace(t, shape=tuple(n or 1 for n in t.shape))
    for words, change in ((FLOAT32, in_float32), (EMPTY, with_elements)):
        if (changed := call.mapped(Layout, change)) != call:
            yield words, changed
    for index, (name, tensor) in enumerate(call.named):
        plain: dict[str, dict[str, Any]] = {
            f"{name} is not contiguous (an expanded view)": {"expanded": ()},
            f"{name} is not contiguous (a view with gaps)": {"gap": False},
            f"{name} is not contiguous (a permuted view)": {
                "order": tuple(range(len(tensor.shape)))
            },
        }
        if tensor.offset % 2:
            plain[f"{name} begins at an odd offset in its storage"] = {"offset": 2}
        else:
            plain[f"{name} begins at an offset in its storage"] = {"offset": 0}
        for words, change in plain.items():
            if (changed := dataclasses.replace(tensor, **change)) != tensor:
                yield words, _with(call, index, changed)


def _one_of_each_list(call: Call) -> Iterator[tuple[str, Call]]:
    """Yield calls with one tensor in place of each list."""

    def shortened(value: Any, number: int) -> Any:
        several = (
            isinstance(value, list | tuple) and len(value) > 1 and isinstance(value[0], Layout)
        )
        return list(value[number : number + 1]) if several else value

    for number in range(
        max((len(v) for v in call.arguments.values() if isinstance(v, list | tuple)), default=0)
    ):
        kwargs = {name: shortened(value, number) for name, value in call.kwargs.items()}
        changed = Call(
            call.operator, tuple(shortened(value, number) for value in call.args), kwargs
        )
        if changed.tensors and len(changed.tensors) < len(call.tensors):
            yield "", changed


def _limits(call: Call) -> Iterator[tuple[str, list[tuple[Call, Call]]]]:
    """Yield sizes that may be conditions, with calls that reach them and calls one below."""
    sizes = sorted({n for t in call.tensors for n in t.shape if n >= LARGE}, reverse=True)
    if sizes and {t.shape for t in call.tensors} == {(sizes[0],)}:
        pairs = zip(_shapes(call, sizes[0]), _shapes(call, sizes[0] - 1), strict=True)
        yield f"{sizes[0]} elements {OR_MORE}", list(pairs)
        return
    for size in sizes:
        name, shape = next((name, t.shape) for name, t in call.named if size in t.shape)
        which = " and ".join(f"{name}.shape[{d}]" for d, n in enumerate(shape) if n == size)
        yield f"{which} of {size} {OR_MORE}", [(call, _resized(call, size, size - 1))]


def _shapes(call: Call, count: int) -> list[Call]:
    """Return the call with dense tensors of so many elements, as a vector, a row and a column."""

    def shaped(shape: tuple[int, ...]) -> Call:
        order = tuple(range(len(shape)))
        return call.mapped(Layout, lambda t: dataclasses.replace(t, shape=shape, order=order))

    return [shaped((count,)), shaped((1, count)), shaped((count, 1))]


def _resized(call: Call, old: int, new: int) -> Call:
    def resized(tensor: Layout) -> Layout:
        return dataclasses.replace(
            tensor, shape=tuple(new if n == old else n for n in tensor.shape)
        )

    return call.mapped(Layout, resized)


def _with(call: Call, index: int, tensor: Layout) -> Call:
    count = itertools.count()
    return call.mapped(Layout, lambda t: tensor if next(count) == index else t)


def _outcome(call: Call, device: torch.device, seed: int) -> Agreement:
    """Run a call's program on a device: does it agree with the CPU in float64? ``refused`` if it fails on the CPU."""
    for where in ("cpu", str(device)):
        with torch.random.fork_rng(devices=[]):
            try:
                exec(_program(call, where, seed), {})
            except AssertionError:
                return "refused" if where == "cpu" else "differs"
            except Exception:  # noqa: BLE001 - sizes that do not fit, an argument that has no source text
                return "refused"
    return "agrees"


# ---- programs -------------------------------------------------------------------------------------------------------


def _program(call: Call, device: str, seed: int = 0) -> str:
    """Return a program that asserts that a device agrees with the CPU in float64."""
    tensors, every = call.tensors, [name for name, _ in call.named]
    names = [f"{name}{n}" if every.count(name) > 1 else name for n, name in enumerate(every)]
    left = iter(names)
    returned = _returned(call.mapped(Layout, lambda _: _Name(next(left))))
    dtype = next((t.dtype for t in tensors if t.dtype.is_floating_point), torch.float32)
    alike = [
        (source, len(list(group))) for source, group in itertools.groupby(t.source for t in tensors)
    ]
    sources = [
        source if count == 1 else f"*({source} for _ in range({count}))" for source, count in alike
    ]
    function = f"torch.ops.{call.operator}"
    return "\n".join([
        "import torch", "",
        f"torch.manual_seed({seed})", f'device = "{device}"',
        "tensors = [", *(f"    {source}," for source in sources), "]", "",
        f"def run(operator, {', '.join(names)}):", f"    return {returned}", "",
        "exact = [x.cpu().double() if x.is_floating_point() else x.cpu() for x in tensors]",
        f"right = run({REFERENCES.get(call.name, function)}, *exact)",
        f"result = run({function}, *tensors)",
        "for a, b in zip(right, result):",
        f"    rtol, a, b = {checks.tolerance(dtype).relative:g}, a.double(), b.cpu().double()",
        "    torch.testing.assert_close(b, a, rtol=rtol, atol=rtol * a.abs().nanmean().item() + 1e-6, equal_nan=True)",
    ]) + "\n"  # fmt: skip


def _returned(named: Call) -> str:
    """Return the expression for a list of a call's results."""
    args, kwargs = named.args, named.kwargs
    if named.name not in REFERENCES:  # whose arguments may have other names
        kept = len(args)
        while kept and not any(isinstance(leaf, _Name) for leaf in tree_leaves(args[kept - 1])):
            kept -= 1
        args, kwargs = args[:kept], dict([*named.arguments.items()][kept:])
    settings = ", ".join(f"{key}={_text(value)}" for key, value in kwargs.items())
    given = ",\n        ".join(filter(None, [", ".join(map(_text, args)), settings]))
    written = [leaf for name, leaf in named.named if name in named.written()]
    returns = [str(part.type) for part in named.operator._schema.returns]
    if written:
        return f"(operator({given}), {', '.join(written)})[1:]"
    if returns == ["Tensor"]:
        return f"[operator({given})]"
    if returns == ["number"]:
        return f"[torch.tensor(operator({given}))]"
    return (
        f"[x for x in operator({given}) if x is not None]"  # None: gradients that nothing asked for
    )


class _Name(str):
    __repr__ = str.__str__


def _text(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(list(value)) if isinstance(value, list | tuple) else repr(value)
