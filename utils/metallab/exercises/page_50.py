"""The exercises of page 50."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np

from metallab.exercises.judging import exercise, expect, expect_that


@exercise(
    "50.1",
    hint="evaluate weights before the first reading, weights and loss before the second",
)
def judge_seconds(seconds: Callable[..., Any]) -> bool:
    """Give it a step that makes a loss and new weights, and look at each reading of a planted clock what is computed.

    MLX computes when it is asked to. Nothing may be left to compute at the first reading, before the step, nor at the
    second and last one, behind it. The clock moves by 2.5 s from one to the other.
    """
    import mlx.core as mx
    from mlx import nn

    layer = nn.Linear(4, 4, bias=False).freeze()  # not trainable; step() changes it
    two = nn.Sequential(layer, nn.Linear(4, 2))
    losses = [mx.array(0.0)]
    read: list[tuple[int, int]] = []
    begun: list[Any] = []

    def make_step() -> Any:
        losses.append(mx.array(1.0) + 1)
        for part in two.layers:
            part.weight = part.weight + 1
        return losses[-1]

    def read_clock() -> float:
        """Note how many steps were made, and operations left to compute."""
        graph = io.StringIO()
        # a drawing of what has still to be computed, in which operations are rectangles
        mx.export_to_dot(graph, losses[-1], *(part.weight for part in two.layers))
        read.append((len(losses) - 1, graph.getvalue().count("shape=rectangle")))
        return 2.5 * len(read)

    def wait(*_: Any) -> None:
        """Compute what async_eval began."""
        mx.eval(begun)

    # MLX's own async_eval may have computed by the next line, or not: this one has not until it is waited for
    with patch.multiple(mx, async_eval=lambda *a: begun.extend(a), synchronize=wait):
        got = seconds(make_step, two, read_clock)

    noted = f"steps, and operations left, at each reading of the clock: {read}"
    assert read == [(0, 0), (1, 0)], f"{noted}, expected [(0, 0), (1, 0)]"
    expect("seconds(step, model, clock)", got, 2.5)
    return True


@exercise(
    "50.2",
    hint="the shape fits and the numbers are a little off? n, or n - 1",
)
def judge_standardize(standardize: Callable[..., Any]) -> bool:
    """Compare with PyTorch, whose deviation divides by n - 1, for features that hardly change and one that never does.

    The latter is NaN, as 0 / 0 is; nothing may be added to a deviation to avoid that. The array has to stay as it is.
    """
    import mlx.core as mx
    import torch

    random = np.random.default_rng(0)
    for shape, size in (((8, 4), 1.0), ((3, 5), 1e-6), ((100, 1), 1.0)):
        table = size * random.normal(50, 2, shape).astype("float32")
        if shape[0] <= 3:
            table[:, 0] = 4  # never changes: NaN
        tensor = torch.tensor(table)
        wanted = ((tensor - tensor.mean(dim=0)) / tensor.std(dim=0)).numpy()

        given = mx.array(table)
        result = standardize(given)
        assert np.array_equal(given, table), "it changes the array that it is given"
        is_array = isinstance(result, mx.array)
        expect_that(is_array, "standardize(x)", type(result), "an array of MLX")

        got = np.asarray(result)
        is_nan_there = (np.isnan(got) == np.isnan(wanted)).all()
        assert is_nan_there, "NaN is wanted for a feature that never changes, and there alone"
        off = np.nanmax(np.abs(got - wanted), initial=0)
        assert off < 1e-5, f"of {shape[0]} examples the result is off by {off:.3g}, expected 0"
    return True
