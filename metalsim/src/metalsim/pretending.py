"""What some programs ask before they use ``mps``, and PyTorch on a Mac has nothing to do with: off unless asked for.

Each pretence is a name that `pretend` takes, ``python -m metalsim --pretend`` and ``pytest --metalsim-pretend``.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from types import MappingProxyType

_pretended: list[str] = []


def pretend(*names: str) -> None:
    """Pretend more of a Mac in this process, from now on.

    Parameters
    ----------
    names
        Of `PRETENCES`; one that is pretended already changes nothing.

    Raises
    ------
    ValueError
        For a name that is not among them.
    SimulationError
        Where a pretence cannot be: ``pyobjc`` on a Mac, which has it.
    """
    for name in names:
        if name not in PRETENCES:
            raise ValueError(f"metalsim cannot pretend {name!r}; it can {', '.join(PRETENCES)}")
        if name not in _pretended:
            PRETENCES[name]()
            _pretended.append(name)


def list_pretended() -> tuple[str, ...]:
    """Return the names of what is pretended in this process."""
    return tuple(_pretended)


def _pretend_processor() -> None:
    """Have `platform.processor` say ``arm``, which Lightning looks for."""

    def processor() -> str:
        return "arm"

    platform.processor = processor


def _pretend_pyobjc() -> None:
    """Let the modules of PyObjC that MPSGraph needs be imported."""
    from metalsim import graph

    graph.install()


PRETENCES: Mapping[str, Callable[[], None]] = MappingProxyType(
    {"processor": _pretend_processor, "pyobjc": _pretend_pyobjc}
)
"""``processor``: `platform.processor` says ``arm``. ``pyobjc``: MPSGraph can be imported (`metalsim.graph`)."""
