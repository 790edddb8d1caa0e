"""``pytest --metalsim``: tests of ``mps`` code run on a simulated Apple GPU. Without the option nothing changes.

The option counts before any ``conftest.py`` is read, and in workers of pytest-xdist, too.
"""

from __future__ import annotations

import pytest

from metalsim import device, pretending, surroundings
from metalsim.errors import SimulationError


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer the three options."""
    group = parser.getgroup("metalsim", "a simulated Apple GPU")
    group.addoption(
        "--metalsim", action="store_true", help="torch has an mps device: a simulated Apple GPU"
    )
    group.addoption(
        "--metalsim-pretend",
        action="append",
        default=[],
        choices=[*pretending.PRETENCES],
        help="more of a Mac",
    )

    group.addoption(
        "--metalsim-keep",
        action="append",
        default=[],
        choices=[*surroundings.SURROUNDINGS],
        help="leave as on Linux that workers are forked, or that PyTorch may have CUDA",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Arm, before anything of the project's own can import torch."""
    given = early_config.known_args_namespace
    if not given.metalsim:
        return

    try:
        device.install_with_torch(required=True)
        pretending.pretend(*given.metalsim_pretend)
        surroundings.set_up(given.metalsim_keep)
    except SimulationError as error:
        raise pytest.UsageError(f"--metalsim: {error}") from error


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what the numbers of this session are worth."""
    if not config.option.metalsim:
        return None

    more = "".join(f", {name} pretended" for name in pretending.list_pretended())
    return f"metalsim: torch's mps device is a simulated Apple GPU, computed by this machine's CPU{more}"
