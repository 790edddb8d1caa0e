"""What a kernel says of a tensor that was left on the CPU, beside tensors of the device.

PyTorch checks no devices before it calls a kernel of MPS, so each kernel finds out in its own way, and has its own
words. Most iterate over elements, and the iterator says *found at least two devices*. A kernel written in Metal finds a
tensor without a buffer, one made of MPSGraph a placeholder without storage, and some look first.

Which kernel says what was read from the machine code of PyTorch 2.15's wheel for macOS (which checks a function and the
blocks in it reach), for ``gather``, ``scatter``, ``index_select`` and products from their source; the words are in the
wheels of all versions from `Sentence.since` on. An operator that is not named here is taken for one that iterates;
of these, `cat`, `where` with a condition on the CPU, and batch normalisation were not established. None of it was run
on a Mac.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metalsim.refusals import versions

TWO_DEVICES = (
    "Expected all tensors to be on the same device, but found at least two devices, mps:0 and cpu!"
)
NO_BUFFER = "Passed CPU tensor to MPS op"
NO_PLACEHOLDER = "Placeholder storage has not been allocated on MPS device!"
IS_MPS = (
    "Expected {}.is_mps() to be true, but got false.  (Could this error message be improved?  If so, please report an "
    "enhancement request to PyTorch.)"
)
MASK = "expected self and mask to be on the same device, but got mask on {mask} and self on {self}"
INDEXED = "indices should be either on cpu or on the same device as the indexed tensor ({self})"
SAMPLED = "grid_sampler(): expected input and grid to be on same device, but input is on {input} and grid is on {grid}"
SEARCHED = (
    "torch.searchsorted(): boundaries and input value tensors should have same device type, but got boundaries tensor "
    "device type {boundaries} and input value tensor device type {self}"
)
SORTED = (
    "torch.searchsorted(): sorter and boundary tensors should have same device type, but got sorter tensor device type "
    "{sorter} and input value tensor device type {boundaries}"
)
MULTIPLIED = "Expected all tensors to be on the same device. Found: {self}, {other}"


@dataclass(frozen=True)
class Words:
    """What a kernel says of a call."""

    texts: tuple[str, ...]
    """All that it may say, some with fields for `str.format`."""
    choose: Callable[[Mapping[str, Any]], str]
    """A function of the call's arguments, by the names of the schema, that returns what is said of them."""


@dataclass(frozen=True)
class Sentence:
    """What some operators say."""

    operators: tuple[str, ...]
    """Without namespace, overload and the underscore of an in-place form."""
    words: Words
    since: str = ""
    """The first version of PyTorch, such as ``2.13``; empty: all known ones."""


def _fill(text: str, arguments: Mapping[str, Any]) -> str:
    """Return a text with the devices of arguments in the fields of their names."""
    tensors = {name: given for name, given in arguments.items() if hasattr(given, "device")}
    return text.format(**{name: tensor.device for name, tensor in tensors.items()})


def _say(text: str) -> Words:
    """Return words that are always this text, with the devices of the call."""
    return Words((text,), lambda arguments: _fill(text, arguments))


def _say_which_is_not(*looked_at: str, schema: Mapping[str, str] | None = None) -> Words:
    """Return words that name the first of these arguments that is on the CPU.

    `schema` has the names of the schema where the kernel's function has others.
    """

    def name_it(arguments: Mapping[str, Any]) -> str:
        for name in looked_at:
            tensor = arguments.get((schema or {}).get(name, name))
            if getattr(tensor, "is_cpu", False):
                return IS_MPS.format(name)
        return TWO_DEVICES

    return Words((*map(IS_MPS.format, looked_at), TWO_DEVICES), name_it)


def _index(arguments: Mapping[str, Any]) -> str:
    """Indices of the device refuse a tensor of the CPU; other tensors meet in an iterator."""
    return _fill(INDEXED, arguments) if arguments["self"].is_cpu else TWO_DEVICES


def _search(arguments: Mapping[str, Any]) -> str:
    """Boundaries are called a sorted sequence by one of the two operators."""
    named = dict(arguments)
    if "sorted_sequence" in named:
        named["boundaries"] = named["sorted_sequence"]

    if getattr(named["self"], "device", named["boundaries"].device) != named["boundaries"].device:
        return _fill(SEARCHED, named)
    if named.get("sorter") is not None:
        return _fill(SORTED, named)
    return TWO_DEVICES


def _multiply(arguments: Mapping[str, Any]) -> str:
    """The second of two vectors has another name in `dot` than in `vdot`."""
    named = dict(arguments)
    if "tensor" in named:
        named["other"] = named["tensor"]
    return _fill(MULTIPLIED, named)


SENTENCES = (
    Sentence(("masked_fill",), _say(MASK)),
    Sentence(("index", "_index_put_impl_", "index_put"), Words((INDEXED, TWO_DEVICES), _index)),
    Sentence(("grid_sampler", "grid_sampler_2d", "grid_sampler_3d"), _say(SAMPLED)),
    Sentence(("searchsorted", "bucketize"), Words((SEARCHED, SORTED, TWO_DEVICES), _search)),
    Sentence(("mm", "addmm", "bmm"), _say(NO_PLACEHOLDER)),
    Sentence(
        ("baddbmm", "addbmm"),
        _say_which_is_not("input", "batch1", "batch2", schema={"input": "self"}),
    ),
    Sentence(("addmv",), _say_which_is_not("mat", "vec")),
    Sentence(("dot", "vdot"), Words((MULTIPLIED,), _multiply)),
    Sentence(("gather", "scatter", "scatter_add", "scatter_reduce"), _say(NO_BUFFER), "2.13"),
    Sentence(("index_select",), _say(NO_BUFFER), "2.14"),
    Sentence(
        (
            "native_layer_norm",
            "nll_loss_forward",
            "nll_loss_backward",
            "index_add",
            "index_copy",
            "index_reduce",
            "max_unpool2d",
            "max_unpool3d",
            "adaptive_max_pool2d_backward",
            "reflection_pad1d_backward",
            "reflection_pad2d_backward",
            "reflection_pad3d_backward",
            "replication_pad2d_backward",
            "replication_pad3d_backward",
        ),
        _say(NO_BUFFER),
        "2.15",
    ),
)


def words(operator: str, arguments: Mapping[str, Any], version: str | None = None) -> str:
    """Return what a call says, some of whose tensors are on the device and some, wrongly, on the CPU.

    Parameters
    ----------
    operator
        Such as ``aten::mm``, with or without its overload.
    arguments
        The call's, by the names of the operator's schema.
    version
        Of PyTorch, such as ``2.13.0``: the installed one if None.
    """
    plain = operator.removeprefix("aten::").partition(".")[0]
    names: Sequence[str] = (plain, plain.removesuffix("_"))
    for sentence in SENTENCES:
        if not versions.is_between(version or versions.find_installed(), sentence.since, ""):
            continue
        if any(name in sentence.operators for name in names):
            return sentence.words.choose(arguments)
    return TWO_DEVICES


def texts_of(version: str) -> set[str]:
    """Return all that kernels say in a version of PyTorch, some with fields for `str.format`."""
    said = [
        sentence.words.texts
        for sentence in SENTENCES
        if versions.is_between(version, sentence.since, "")
    ]
    return {TWO_DEVICES, *(text for texts in said for text in texts)}
