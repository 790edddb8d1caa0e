"""A call of an operator as a program for a bug report."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from metallab import checks
from metallab.pytorch.divergence.calls import REFERENCES, Call, Placeholder, count_comparable
from metallab.pytorch.divergence.compare import POSITION_OPERATORS
from metallab.pytorch.divergence.layouts import Layout
from metallab.pytorch.divergence.unwritten import count_written_whole

SHORT = 60
"""Characters of arguments that stand on one line."""


def write_program(call: Call, device: str, seed: int = 0) -> str:
    """Return a program that asserts that a device agrees with the CPU in float64.

    Parameters
    ----------
    call
        With a `Layout` in place of each tensor.
    device
        As PyTorch names it, ``"mps"``.
    seed
        Of the random numbers.

    Returns
    -------
    str
        16 lines, and one for each tensor, or for tensors in a row that are alike: at most 20, unless a call takes more
        than four that differ. They need nothing but PyTorch, and end with an AssertionError if the device is wrong.

    Raises
    ------
    ValueError
        If the dtype of the first floating tensor has no tolerance, as those of 8 bits.
    """
    # the call with names in place of tensors, which are the parameters of a function `run`
    names = _name_parameters(call)
    unused_names = iter(names)
    returned = _write_results(call.replace(Layout, lambda _: Placeholder(next(unused_names))))

    sources = _write_arguments(call.tensors)
    function = f"torch.ops.{call.operator}"
    reference = REFERENCES.get(call.name, function)
    if device == "cpu":  # which may not have it
        function = reference

    # Numbers near 0 may be as far off as those of average size, of which they may be differences. In the average NaN
    # and infinities count as 0, and `max` makes 0 of that of a result without elements, which is NaN. The 1e-6 is for a
    # result that is 0 everywhere, of which no share is an error that may be allowed.
    relative = _tolerance(call)

    # `run` is called with the operator on the device, and on the CPU with one that computes the same there
    lines = [
        "import torch",
        f"torch.manual_seed({seed})",
        f'device = "{device}"',
        "tensors = [",
        *(f"    {source}," for source in sources),
        "]",
        "",
        f"def run(operator, {', '.join(names)}):",
        f"    return {returned}",
        "",
        "exact = [x.cpu().double() if x.is_floating_point() else x.cpu() for x in tensors]",
        f"right = run({reference}, *exact)",
        f"result = run({function}, *tensors)",
        "for a, b in zip(right, result):",
        f"    rtol, a, b = {relative:g}, a.double(), b.cpu().double()",
        "    size = max(0, a.nan_to_num(0, 0, 0).abs().mean().item())",
        "    torch.testing.assert_close(b, a, rtol=rtol, atol=rtol * size + 1e-6, equal_nan=True)",
    ]
    return "\n".join(lines) + "\n"


def _tolerance(call: Call) -> float:
    """Return the relative tolerance: 0 of integers, but for positions, which may be others where values are equal.

    That of floating tensors is the first one's; ValueError if its dtype has none. Without a tensor, and of complex
    ones, it is that of float32.
    """
    floating = [tensor.dtype for tensor in call.tensors if tensor.dtype.is_floating_point]
    if floating:
        return checks.tolerance(floating[0]).relative

    is_complex = any(tensor.dtype.is_complex for tensor in call.tensors)
    if not call.tensors or is_complex or call.short_name in POSITION_OPERATORS:
        return checks.tolerance(torch.float32).relative
    return 0.0


def _name_parameters(call: Call) -> list[str]:
    """Return a name for each tensor: its argument's, with a number if the argument is a list."""
    names = [name for name, _ in call.named_tensors]
    return [
        f"{name}{number}" if names.count(name) > 1 else name for number, name in enumerate(names)
    ]


def _write_arguments(layouts: Sequence[Layout]) -> list[str]:
    """Return expressions for tensors, one for those in a row that are alike."""
    sources = []
    for source, group in itertools.groupby(layout.source for layout in layouts):
        count = len(list(group))
        sources.append(source if count == 1 else f"*({source} for _ in range({count}))")
    return sources


def _write_results(call: Call) -> str:
    """Return an expression for a list of all tensors that a call computes: what it returns, or what it writes to.

    The call has names in place of tensors.
    """
    calling = f"operator({_write_settings(call)})"

    # it returns the arguments that it writes to, or nothing: they are listed by their names
    written = [leaf for name, leaf in call.named_tensors if name in call.written_arguments]
    if written:
        return f"({calling}, {', '.join(written)})[1:]"

    types = [str(part.type) for part in call.operator._schema.returns]
    if types == ["Tensor"]:
        return f"[{calling}]"
    if types == ["number"]:
        return f"[torch.tensor({calling})]"

    # leave out the result that is written in part: in the rest of it lies memory as it was, other numbers in each run
    whole = count_written_whole(call)
    if whole is not None:
        return f"list({calling}[:{whole}])"

    # leave out what an operator keeps for its gradient, each device in a form of its own
    comparable = None if call.name in REFERENCES else count_comparable(call)
    if comparable is not None:
        return f"list({calling}[:{comparable}])"

    # a gradient that nothing asked for is None
    return f"[x for x in {calling} if x is not None]"


def _write_settings(call: Call) -> str:
    """Return all arguments of a call; those by name have a line of their own where one line would be long."""
    positional, by_name = _split_arguments(call)
    by_position = ", ".join(map(_write_value, positional))
    settings = ", ".join(f"{name}={_write_value(value)}" for name, value in by_name.items())

    is_short = len(by_position + settings) <= SHORT
    separator = ", " if is_short else ",\n        "
    return separator.join(filter(None, [by_position, settings]))


def _split_arguments(call: Call) -> tuple[tuple, dict[str, Any]]:
    """Return the arguments that are written by position, up to the last tensor, and those by name."""
    if call.name in REFERENCES:  # whose arguments may have other names
        return call.args, call.kwargs

    count = len(call.args)
    while count and not _has_tensor(call.args[count - 1]):
        count -= 1
    return call.args[:count], dict([*call.arguments.items()][count:])


def _has_tensor(argument: Any) -> bool:
    return any(isinstance(leaf, Placeholder) for leaf in tree_leaves(argument))


def _write_value(value: Any) -> str:
    """Return an argument as source code."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, torch.device):
        return "device"
    return repr(list(value)) if isinstance(value, list | tuple) else repr(value)
