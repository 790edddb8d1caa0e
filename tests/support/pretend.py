"""Devices that this machine does not have, as far as PyTorch's Python side can tell.

Code for mps and cuda runs here with them: tensors "on" a pretended device lie in the CPU's memory, copies to it can be
changed on the way, and what is asked of the device is noted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch


def pretend_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Python believe that this is macOS. What asks `platform` instead is not told."""
    monkeypatch.setattr(sys, "platform", "darwin")


def pretend(
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    *,
    arrives: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
    name: str = "NVIDIA H200",
) -> SimpleNamespace:
    """Make PyTorch see a device of a kind, ``mps`` or ``cuda``, for the time of a test.

    Only copies by ``tensor.to(device, ...)`` get there, with the device as the first argument.

    Parameters
    ----------
    monkeypatch
        Of the test.
    kind
        As PyTorch calls it.
    arrives
        Changes each floating tensor that is copied there, as a device that computes wrongly would.
    name
        What PyTorch says of a ``cuda`` device.

    Returns
    -------
    SimpleNamespace
        What was asked of the device so far: ``copies``, a list of the dtypes that arrived, and ``waits``, how often it
        was waited for.
    """
    asked = SimpleNamespace(copies=[], waits=0)
    to = torch.Tensor.to

    def is_there(place):
        return isinstance(place, str | torch.device) and torch.device(place).type == kind

    def copy(tensor, *args, **kwargs):
        if not args or not is_there(args[0]):
            return to(tensor, *args, **kwargs)
        there = to(tensor, "cpu", *args[1:], **kwargs)
        asked.copies.append(there.dtype)
        return arrives(there) if there.is_floating_point() else there

    def wait():
        asked.waits += 1

    monkeypatch.setattr(torch.Tensor, "to", copy)
    monkeypatch.setattr(
        {"mps": torch.backends.mps, "cuda": torch.cuda}[kind], "is_available", lambda: True
    )
    monkeypatch.setattr(getattr(torch, kind), "synchronize", wait)
    if kind == "cuda":
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    return asked
