"""Tests about what came with a release of PyTorch: skipped under older ones, which lack it."""

from __future__ import annotations

import pytest
import torch

from metalsim import device


def since(release: str, what: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test under a PyTorch older than a release, which brought something."""
    is_older = device.release(torch.__version__) < device.release(release)
    return pytest.mark.skipif(is_older, reason=f"{what} came with PyTorch {release}")


def is_followed() -> bool:
    """Return whether this PyTorch is the release that the simulated GPU follows."""
    return device.release(torch.__version__) == device.release(device.TORCH)
