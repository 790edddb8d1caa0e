"""The exercises of page 43."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from metallab.exercises.judging import exercise, expect


@exercise(
    "43.1",
    hint="the `.name` of the first node whose `.op_type` is Conv, not of one that is called so",
)
def judge_first_convolution(first_convolution: Callable[..., Any], folder: Path) -> bool:
    """Ask for the name of the first convolution of the page's network, and of one in which other nodes sound like one.

    There a node of another kind is named ``Conv_bias``, and the kind of another begins with ``Conv``. ``folder`` has
    the page's network as ``float32.onnx``.
    """
    import onnx

    exported = folder / "float32.onnx"
    nodes = onnx.load(exported).graph.node
    convolutions = [node.name for node in nodes if node.op_type == "Conv"]
    expect("first_convolution('float32.onnx')", first_convolution(exported), convolutions[0])

    make = onnx.helper.make_node
    planted = [
        make("Relu", ["input"], ["a"], "Conv_bias"),
        make("ConvTranspose", ["a", "w"], ["b"], "up"),
        make("Conv", ["b", "w"], ["c"], "stem"),
        make("Conv", ["c", "w"], ["d"], "a second"),
    ]
    graph = onnx.helper.make_graph(planted, "own", [], [])
    with tempfile.TemporaryDirectory(prefix="metallab-check-") as name:
        own = Path(name, "own.onnx")
        onnx.save(onnx.helper.make_model(graph), own)
        told = ", ".join(f"{node.op_type} {node.name!r}" for node in planted)
        expect(f"of the nodes {told} first_convolution", first_convolution(own), "stem")
    return True


@exercise(
    "43.2",
    hint="shown to be faster: the whole interval above 1, or above the other",
)
def judge_ship(ship: Callable[..., Any]) -> bool:
    """Ask about intervals that overlap, share an end, and lie apart."""
    cases = [  # points, int8's interval, the rival's
        (-0.4, (1.5, 1.9), (1.8, 2.2), "int8"),  # the intervals overlap
        (-0.4, (1.5, 1.9), (1.9, 2.2), "int8"),  # they share an end
        (-0.4, (1.5, 1.9), (2.0, 2.2), "16 bits"),
        (-1.0, (1.1, 1.2), (0.8, 1.5), "int8"),
        (+1.5, (1.1, 1.2), (0.8, 0.9), "int8"),
        (-1.4, (1.5, 1.9), (1.05, 1.1), "16 bits"),  # wrong too often
        (-2.0, (1.5, 1.9), (0.9, 1.7), "float32"),
        (+0.2, (0.9, 1.8), (0.7, 0.9), "float32"),  # perhaps faster, perhaps slower
        (+0.2, (1.0, 1.8), (1.0, 1.2), "float32"),
        (+0.2, (0.9, 1.1), (0.5, 0.6), "float32"),  # above the rival alone
        (-0.4, (0.5, 0.8), (0.9, 1.2), "float32"),  # above int8 alone
    ]

    for points, int8, rival, wanted in cases:
        kept = SimpleNamespace(points=points)
        got = ship(kept, _make_ratio(*int8), _make_ratio(*rival))
        expect(f"for {points} points, int8 {int8}, rival {rival}: ship", got, wanted)
    return True


def _make_ratio(low: float, high: float) -> SimpleNamespace:
    """Return a speed-up with its interval."""
    return SimpleNamespace(low=low, median=(low + high) / 2, high=high)
