"""Public threads in which people report of Macs that an operator is wrong now and then."""

from __future__ import annotations

SUMS = "https://github.com/pytorch/pytorch/issues/178497"
"""``sum``, ``mean`` and others in rapid succession; open in November 2026."""
MASKS = "https://github.com/pytorch/pytorch/issues/178079"
"""``x[mask]`` has another number of rows than the mask; open in November 2026."""
DRAWS = "https://github.com/pytorch/pytorch/issues/192577"
"""``multinomial`` draws what has probability 0."""

PUBLIC_THREADS = {
    "sum": SUMS,
    "mean": SUMS,
    "nansum": SUMS,
    "count_nonzero": SUMS,
    "trace": SUMS,
    "index": MASKS,
    "nonzero": MASKS,
    "masked_select": MASKS,
    "multinomial": DRAWS,
}
"""The address of a thread by operator, without ``aten::`` and without an overload."""
