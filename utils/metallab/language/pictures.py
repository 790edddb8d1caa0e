"""Language models as pictures: what fits, what few bits cost."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from metallab import plots
from metallab.language.bits import Cost

SHARE = 2 / 3
"""Of its memory, what Metal recommends for the GPU of a Mac with up to 36 GB, people report; of larger ones 3/4."""


def fits(parts: tuple[float, float, float], limit: float) -> str:
    """Whether weights, KV cache and scores fit into ``limit``, in the same unit; within 10 % of it, barely.

    >>> fits((3.5, 2.0, 1.0), 8.0), fits((3.5, 2.0, 2.0), 8.0), fits((3.5, 2.0, 3.0), 8.0), fits((9.0, 2.0, 1.0), 8.0)
    ('yes', 'yes, barely', 'if attention is fused', 'no')
    """
    for total, condition in ((sum(parts), ""), (sum(parts[:2]), "if attention is fused")):
        if total < limit:
            return ", ".join(filter(None, (condition or "yes", "barely" if total > 0.9 * limit else "")))
    return "no"


def draw_fit(needs: Mapping[str, tuple[float, float, float]], mac: int) -> Figure:
    """What models need, by name, beside what a Mac with ``mac`` GiB gives its GPU.

    Of each the GiB of weights, of the KV cache, and of one layer's scores, which fused attention does not keep.
    """
    limit = (SHARE if mac <= 36 else 3 / 4) * mac
    totals = [sum(parts) for parts in needs.values()]
    edge = max(limit, *totals)
    labels = ("weights", "KV cache", "scores of a layer, unless attention is fused")
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 1.5 + 0.45 * len(needs)))
        for row, parts in enumerate(needs.values()):
            left = 0.0
            for part, colour, label in zip(parts, plots.COLOURS, labels, strict=False):
                axes.barh(row, part, left=left, color=colour, label=None if row else label)
                left += part
            axes.text(1.03 * edge, row, f"{left:.1f} GiB: {fits(parts, limit)}", va="center")
        axes.axvline(limit, color=plots.BLACK, linestyle="--", linewidth=1)
        axes.set_yticks(range(len(needs)), list(needs))
        axes.invert_yaxis()
        axes.set_xlim(0, 1.6 * edge)
        axes.set_xlabel("GiB")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.3), ncols=3)
        heading = f"Does it fit into a Mac with {mac} GiB? The line: its GPU's share, some {limit:.1f} GiB"
        plots.title(figure, heading, ["counted, not measured"])
    told = [f"{name}: {total:.1f} GiB of {limit:.1f}" for name, total in zip(needs, totals, strict=True)]
    return plots.described(figure, "; ".join(told))


def draw_costs(costs: Mapping[str, Cost], sizes: Mapping[str, int], *, label: str) -> Figure:
    """What each way to store weights costs in bits a character, with its interval, over its size in bytes."""
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 3.2))
        axes.axhline(0, color=plots.GREY, linewidth=1)
        drawn = [sizes[name] / 2**20 for name in costs]
        for (name, cost), size, colour in zip(costs.items(), drawn, plots.COLOURS, strict=False):
            low, high = cost.interval
            axes.errorbar(size, cost.mean, [[cost.mean - low], [high - cost.mean]], fmt="o", color=colour, capsize=4)
            axes.annotate(
                name, (size, cost.mean), xytext=(7, -3), rotation=30, textcoords="offset points", color=colour
            )
        axes.set_xlim(0.9 * min(drawn), 1.2 * max(drawn))
        axes.set_xlabel("MiB of weights")
        axes.set_ylabel("more bits a character")
        plots.title(figure, "What smaller weights cost (bars: 95 % interval)", [label])
    return plots.described(figure, "; ".join(map(repr, costs.values())))
