"""What MPSGraph computes, by PyTorch on the CPU: importing this fills the table of operations."""

from metalsim.graph import contract
from metalsim.graph.operations import (  # noqa: F401
    arithmetic,
    fourier,
    indexing,
    linear,
    quantisation,
    reductions,
    sampling,
    shapes,
)
from metalsim.graph.operations.registry import OPERATIONS, Operation, Properties, add_tensor_variants

add_tensor_variants({method.selector for method in contract.methods("MPSGraph").values()})

__all__ = ["OPERATIONS", "Operation", "Properties"]
