"""What lessons with MLX need (notebook 14). MLX is imported inside functions."""

from __future__ import annotations

import io
from typing import Any


def operations(array: Any) -> int:
    """How many operations are written down, and not computed yet, that make an ``mlx.core.array``: those of its graph.

    >>> operations(mx.ones(3) * 2)
    4
    """
    import mlx.core as mx

    graph = io.StringIO()
    mx.export_to_dot(graph, array)
    return graph.getvalue().count("shape=rectangle")
