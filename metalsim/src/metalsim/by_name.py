"""The simulated device for who names it, while torch goes on saying that there is none.

`offer` is called before torch is imported, and loads nothing by itself: the library that answers for the accelerator
comes with torch, the device itself with `use`. From then on ``tensor.to("mps")`` works. But
``torch.backends.mps.is_available()`` is False, and ``torch.accelerator`` knows no accelerator, as on any Linux without
a GPU. So a program that asks torch where to compute stays on the CPU, and only what was sent to ``mps`` by its name is
simulated.

The answer that torch's own code in C++ gets is still ``mps``, because a backward pass on the device needs it. So it is
Python's two questions that are answered differently here: those of the binding `_mps_is_available`, and of
`_accelerator_getAccelerator`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from metalsim import device, preload
from metalsim.errors import SimulationError

_ANSWERS: dict[str, Callable[[], Any]] = {
    "_mps_is_available": lambda: False,
    "_accelerator_getAccelerator": lambda: None,
}
"""What bindings of ``torch._C`` answer as long as the device is not announced."""


@dataclass
class _Offer:
    """What has become of the offer in this process."""

    fault: SimulationError | None = None
    """Why the device cannot be had here, once that is known."""
    own_answers: dict[str, Callable[[], Any]] = field(default_factory=dict)
    """The bindings of torch that are replaced."""


_offer: _Offer | None = None


def offer(after_torch: Callable[[], object] | None = None) -> None:
    """Let the device be used by its name in this process, once torch is imported.

    Nothing is built or loaded before that. Then a small library is, because it has to come before torch's own (the
    first time on a machine it is compiled, which takes a second), and CUDA is hidden. If that fails torch is imported
    all the same, and `use` raises the reason.

    Parameters
    ----------
    after_torch
        Called as soon as torch is imported.

    Raises
    ------
    SimulationError
        If torch is imported already.
    """
    global _offer
    if _offer is not None:
        return
    if "torch" in sys.modules:
        raise SimulationError("torch was imported before the simulated Apple GPU was offered")

    _offer = made = _Offer()

    def arm() -> None:
        try:
            preload.load_answer()
        except SimulationError as error:
            made.fault = error

    def keep_quiet() -> None:
        _answer_that_there_is_none(made)
        if after_torch is not None:
            after_torch()

    preload.wrap_import("torch", before=arm, after=keep_quiet)


def is_offered() -> bool:
    """Return whether `offer` was called in this process."""
    return _offer is not None


def fault() -> SimulationError | None:
    """Return why the device cannot be had here, if that is known by now."""
    return _offer.fault if _offer is not None else None


def use() -> str:
    """Install the device for who names it, and return its description; the first time on a machine it is built.

    A device that could not be installed is not tried again: the same error is raised.

    Raises
    ------
    SimulationError
        Without `offer`, or with the reason why the device cannot be had here.
    """
    if _offer is None:
        raise SimulationError("the simulated Apple GPU was not offered before torch was imported")

    import torch  # with it comes the library, or what is wrong with it

    if _offer.fault is not None:
        raise _offer.fault
    if device.is_installed():
        return device.description()

    # installing asks torch's own bindings, and wants to hear of the device
    for name, answer in _offer.own_answers.items():
        setattr(torch._C, name, answer)
    try:
        said = device.install()
        # as CUDA's generator does, which is made with the first tensor: it begins with the seed that was set before
        torch.mps.manual_seed(torch.initial_seed())
    except SimulationError as error:
        _offer.fault = error
        raise
    finally:
        _answer_that_there_is_none(_offer)
    return said


def _answer_that_there_is_none(made: _Offer) -> None:
    """Replace the bindings by which torch's Python asks for the device, and keep its own ones."""
    import torch

    made.own_answers = {name: getattr(torch._C, name) for name in _ANSWERS}
    for name, answer in _ANSWERS.items():
        setattr(torch._C, name, answer)
    torch.backends.mps.is_available.cache_clear()
