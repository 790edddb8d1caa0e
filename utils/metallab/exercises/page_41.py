"""The exercises of page 41."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from metallab.exercises.judging import exercise, expect

CORE_ML, CPU, AZURE = (f"{name}ExecutionProvider" for name in ("CoreML", "CPU", "Azure"))


def _plant_session(computing: Sequence[str]) -> SimpleNamespace:
    """Return a session in which these providers compute."""
    parts = [SimpleNamespace(ep_name=name, get_nodes=lambda: [1]) for name in computing]
    return SimpleNamespace(
        get_providers=lambda: [CORE_ML, CPU], get_provider_graph_assignment_info=lambda: parts
    )


@exercise(
    "41.1",
    hint="ask who computes what, not who is there; else `raise RuntimeError(...)`",
)
def judge_assert_provider(assert_provider: Callable[..., Any], options: Any) -> bool:
    """Ask a session of the page's model, in which the CPU computes, and planted ones in which Core ML does.

    The answer is True for a provider that computes, by its whole name, and RuntimeError for every other, be it one that
    the session has: a session lists providers that compute nothing.
    """
    import onnxruntime

    real = onnxruntime.InferenceSession("model.onnx", options, providers=[AZURE, CPU])

    def ask(session: Any, wanted: str) -> Any:
        try:
            return assert_provider(session, wanted)
        except RuntimeError:
            return "RuntimeError"

    for own in ([CPU], [CPU, CORE_ML], [CORE_ML]):
        session = real if own == [CPU] else _plant_session(own)
        # the last three are parts of names
        for wanted in (CORE_ML, CPU, AZURE, "ML", "CPUExecution", ""):
            got, right = ask(session, wanted), True if wanted in own else "RuntimeError"
            case = f"{own} compute: assert_provider(session, {wanted!r})"
            is_right = str(got) == str(right)  # 1 is no True
            expect(case, got, right, holds=is_right)
    return True


@exercise(
    "41.2",
    hint="an old package may lie there although the tool never ran",
)
def judge_converted(converted: Callable[..., Any]) -> bool:
    """Ask about each exit code, with a package there and without one.

    Converted is what ended with 0 and left a package; None is the code where the tool is missing.
    """
    with tempfile.TemporaryDirectory(prefix="metallab-check-") as folder:
        there, missing = (Path(folder, f"{name}.mpsgraphpackage") for name in ("there", "missing"))
        there.mkdir()  # a package is a folder
        (there / "manifest.plist").touch()

        for code in (0, 1, 134, 256, -6, None):
            for package in (there, missing):
                got = converted(SimpleNamespace(code=code), package)
                case = f"exit code {code}, the package is {package.stem}: converted"
                expect(case, got, (code, package) == (0, there))
    return True
