"""What some programs ask before they use ``mps``, and PyTorch on a Mac has nothing to do with: off unless asked for.

Each pretence is a name that `pretend` takes, ``python -m metalsim --pretend`` and ``pytest --metalsim-pretend``.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from types import MappingProxyType

_pretended: list[str] = []


def pretend(*names: str) -> None:
    """Pretend more of a Mac in this process, from now on. ValueError for a name that is not among `PRETENCES`."""
    for name in names:
        if name not in PRETENCES:
            raise ValueError(f"metalsim cannot pretend {name!r}; it can {', '.join(PRETENCES)}")
        if name not in _pretended:
            PRETENCES[name]()
            _pretended.append(name)


def pretended() -> tuple[str, ...]:
    """What is pretended in this process."""
    return tuple(_pretended)


def _processor() -> None:
    platform.processor = lambda: "arm"  # Lightning looks for it


def _pyobjc() -> None:
    from metalsim import graph

    graph.install()


PRETENCES: Mapping[str, Callable[[], None]] = MappingProxyType(
    {"processor": _processor, "pyobjc": _pyobjc}
)
"""``processor``: `platform.processor` says ``arm``. ``pyobjc``: MPSGraph can be imported (`metalsim.graph`)."""
