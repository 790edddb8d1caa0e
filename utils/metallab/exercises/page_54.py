"""The exercises of page 54."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from metallab.exercises.judging import exercise, expect

NAN, INFINITY = float("nan"), float("inf")


def _plant_gap(eager: Any, gap: Any) -> Any:
    """Return the first, and as a graph the sum of both."""
    import tensorflow as tf

    return eager + gap if tf.inside_function() else tf.identity(eager)


@exercise(
    "54.1",
    hint="the largest difference counts; every comparison with NaN is False",
)
def judge_agrees(agrees: Callable[..., Any]) -> bool:
    """Ask whether a function gives the same as a graph, of one that is off there by a planted gap.

    It agrees if no difference is larger than a thousandth of the largest number that it gives eagerly, and no number is
    NaN.
    """
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")  # hide that much is traced
    cases: list[tuple[list, list, bool]] = [  # eagerly, gap, do they agree?
        ([1.0, 2.0, 9.0], [0.0, 0.0, 0.0], True),
        ([1.0, 2.0, 9.0], [1.0, -1.0, 0.0], False),
        ([9.0, 9.0, 9.0, 9.0], [0.0, 0.0, 0.015, 0.0], False),
        ([-9.0, 0.0, 0.0, 1.0], [0.008, 0.008, 0.008, 0.008], True),
        ([[-9e6], [1e6]], [[0.0], [-2e4]], False),
        ([[-9e6], [1e6]], [[0.0], [5e3]], True),
        ([10.0, -10.0], [0.010005, 0.0], False),  # of what is given eagerly
        ([1e-12, 3e-12], [1e-12, 0.0], False),
        ([0.0, 0.0], [0.0, 0.0], True),
        ([1.0, 2.0], [0.0, NAN], False),
        ([1.0, 2.0], [0.0, INFINITY], False),
        ([NAN, 2.0], [0.0, 0.0], False),
    ]

    for eager, gap, wanted in cases:
        got = agrees(_plant_gap, tf.constant(eager), tf.constant(gap))
        expect(f"of {eager}, as a graph plus {gap}: agrees", got, wanted)
    return True


class Node(NamedTuple):
    """A node of a graph, as the page's table has it."""

    op: str
    parts: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.op}{self.parts}" if self.parts else self.op


@exercise(
    "54.2",
    hint="one node besides _Arg and _Retval, and that has parts, whatever its name",
)
def judge_wholly_fused(wholly_fused: Callable[..., Any]) -> bool:
    """Ask about graphs with one fused node, several, and others beside it."""
    argument, result = Node("_Arg"), Node("_Retval")
    fused, bias = Node("_FusedConv2D", ("BiasAdd", "Relu")), Node("_FusedConv2D", ("BiasAdd",))
    plain, onednn = Node("Conv2D"), Node("_MklConv2D")
    others = [onednn, *(Node(op) for op in ("Tanh", "Const", "Identity", "NoOp"))]
    cases = [
        ([argument, fused, result], True),
        ([argument, argument, argument, fused, result], True),
        ([argument, argument, bias, result], True),
        ([argument, result], False),
        ([argument, Node("FusedBatchNormV3"), result], False),
        *(([argument, other, fused, result], False) for other in others),
        ([argument, plain, result], False),
        ([argument, fused, fused, result], False),
        ([result, Node("_MklFusedMatMul", ("BiasAdd",)), argument, result], True),
    ]

    for nodes, wanted in cases:
        given = list(nodes)
        case = ", ".join(map(str, nodes))
        expect(f"for {case} wholly_fused", wholly_fused(given), wanted)
        assert given == nodes, f"the list of {case} is changed"
    return True
