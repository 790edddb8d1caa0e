"""What a test claims of a Mac."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from metallab import isolated

Hardware = Literal["gpu", "cpu", "tensorflow", "jax", "mlx", "mac"]
"""What a claim is about: an Apple GPU through PyTorch or MPSGraph, which is simulated where there is no Mac; this
processor; what TensorFlow, JAX or MLX compute on, which is the CPU where their GPU is not; or what only a Mac has."""
ON_A_MAC = sys.platform == "darwin"


def find_tool(name: str) -> str | None:
    """The path of a tool of Xcode: on PATH, or where ``xcrun`` finds it; None without it."""
    if on_path := shutil.which(name):
        return on_path
    if not (xcrun := shutil.which("xcrun")):
        return None
    asked = subprocess.run([xcrun, "-f", name], capture_output=True, text=True, check=False)
    return (asked.stdout.strip() or None) if asked.returncode == 0 else None


@dataclass(frozen=True)
class Claim:
    """The arguments of the mark ``claim`` of a test, with its docstring."""

    name: str
    """Its group and function: ``mps.float64_is_refused``."""
    about: str
    """What its group is about."""
    claim: str
    how: str
    used_in: str
    """Where this project relies on it."""
    on: Hardware = "gpu"
    """Where there is no Mac, ``gpu`` is the simulated one, and what a ``mac`` alone has is not asked for."""
    seconds: float = 60
    """The time limit."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that are set before the process of its group starts."""
    slow: bool = False
    """Left out by ``make test``, where its page shows the same, unless that is nightly: it takes long."""

    @property
    def evidence(self) -> Literal["Mac", "simulated", "CPU"]:
        """What ran the test: a Mac, the simulated GPU, or a CPU in a GPU's place. The last two say nothing of a Mac."""
        if ON_A_MAC:
            return "Mac"
        return "simulated" if self.on == "gpu" else "CPU"


def claim(item: pytest.Item) -> Claim:
    """Return the claim of a test: what its marks ``claim`` say, and the words of its docstring.

    What several marks say, of the test and of its file, is put together, and the nearest one wins. The docstring's
    first paragraph is what is claimed (without one, the test's name is), and the others are how it is asked.

    Raises
    ------
    pytest.UsageError
        If no mark says where the claim is relied on.
    """
    marks: dict[str, Any] = {}
    for mark in item.iter_markers("claim"):  # the nearest comes first
        marks = mark.kwargs | marks
    if not marks.get("used_in"):
        raise pytest.UsageError(
            f"{item.nodeid} is no claim: say where it is relied on, pytest.mark.claim(used_in=...)"
        )
    words, _, how = (inspect.getdoc(item.function) or "").partition("\n\n")
    name = item.name.removeprefix("test_")
    words = " ".join(words.split()) or f"{name.replace('_', ' ')}."
    about = (item.module.__doc__ or "").strip().partition("\n")[0].rstrip(".:")

    return Claim(
        f"{item.path.stem.removeprefix('test_')}.{name}",
        about,
        words,
        " ".join(how.split()),
        **marks,
    )


def chosen(items: list[pytest.Item], words: set[str], strict: bool) -> list[pytest.Item]:
    """Return the tests whose group or name is in ``words``, or all tests if there are no words.

    If ``strict``, a word that names nothing among these tests is a UsageError.
    """
    names = {item.nodeid: _names(claim(item).name) for item in items}
    if strict and (unknown := words - set().union(*names.values())):
        groups = sorted(
            {name.partition(".")[0] for known in names.values() for name in known if "." in name}
        )
        raise pytest.UsageError(
            f"ONLY={min(unknown)} is no group and no test: groups are {', '.join(groups)}; "
            "pytest tests/conformance --collect-only names all tests"
        )
    return [item for item in items if not words or words & names[item.nodeid]]


def _names(name: str) -> set[str]:
    """Return a test's names: its group, itself, and all cases of it together, with and without the group."""
    together = name.partition("[")[0]
    return {
        name.partition(".")[0],
        name,
        together,
        name.partition(".")[2],
        together.partition(".")[2],
    }


def apart(source: str, results: Sequence[str] = (), **options: Any) -> isolated.Outcome:
    """Run a program on a Mac in a process of its own, which it may end; elsewhere in this one, which starts nothing."""
    if ON_A_MAC:
        return isolated.run(source, results=results, **options)
    space: dict[str, Any] = {"__name__": "__main__"}
    try:
        exec(compile(source, "<apart>", "exec"), space)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is the answer
        return isolated.Outcome(
            "raised", reason=f"{type(error).__name__}: {error}", detail=traceback.format_exc()
        )
    return isolated.Outcome("ok", results={name: space[name] for name in results})
