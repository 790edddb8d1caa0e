"""Language models as pictures: what fits, what few bits cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from metallab import plots
from metallab.language.bits import in_words, mean_interval
from metallab.memory import metal_limit

MACS = (8, 16, 24, 32)
"""GB of memory that Macs are sold with; GiB, as Apple counts memory."""


def smallest(total: float, macs: Sequence[int]) -> str:
    """The first of ``macs``, GiB of memory and ascending, whose GPU may have ``total`` GiB; "none" if there is none.

    >>> smallest(6.5, [8, 16]), smallest(12.6, [8, 16])
    ('16 GB', 'none')
    """
    return next((f"{mac} GB" for mac in macs if total * 2**30 <= metal_limit(mac * 2**30)), "none")


def draw_fit(needs: Mapping[str, tuple[float, float, float]], macs: Sequence[int] = MACS) -> Figure:
    """What models need, by name, beside what Macs with so many GiB, ascending, give their GPUs.

    Of each the GiB of weights, of the KV cache, and of one layer's scores, which fused attention does not keep.
    """
    limits = [metal_limit(mac * 2**30) / 2**30 for mac in macs]
    edge = max(*limits, *(sum(parts) for parts in needs.values()))
    labels = ("weights", "KV cache", "scores of a layer")
    words = []
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 1.7 + 0.45 * len(needs)))
        for row, (name, parts) in enumerate(needs.items()):
            left = 0.0
            for part, colour, label in zip(parts, plots.COLOURS, labels, strict=False):
                axes.barh(row, part, left=left, color=colour, label=None if row else label)
                left += part
            mac, fused = smallest(left, macs), smallest(sum(parts[:2]), macs)
            answer = f"{left:.1f} GiB: {mac}" + (f" ({fused} if attention is fused)" if fused != mac else "")
            axes.text(1.06 * edge, row, answer, va="center")
            words.append(f"{name}: {answer}")
        for mac, limit in zip(macs, limits, strict=True):
            axes.axvline(limit, color=plots.BLACK, linestyle="--", linewidth=1)
            axes.text(limit, -0.65, f"{mac} GB", ha="center", va="bottom")
        axes.set_yticks(range(len(needs)), list(needs))
        axes.set_ylim(len(needs) - 0.4, -0.6)
        axes.set_xlim(0, 1.02 * edge)
        axes.set_xlabel("GiB")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.3), ncols=3)
        heading = "Which Mac does it fit into? The lines: what its GPU may have"
        plots.title(figure, heading, ["counted, not measured"])
    return plots.described(figure, "; ".join(words))


def draw_costs(costs: Mapping[str, np.ndarray], sizes: Mapping[str, int], *, label: str) -> Figure:
    """What each way to store weights costs in bits a character, with its interval, over its size in bytes.

    ``costs`` are differences from the exact model, (windows,).
    """
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 3.2))
        axes.axhline(0, color=plots.GREY, linewidth=1)
        drawn = [sizes[name] / 2**20 for name in costs]
        for (name, cost), size, colour in zip(costs.items(), drawn, plots.COLOURS, strict=False):
            mean, (low, high) = cost.mean(), mean_interval(cost)
            axes.errorbar(size, mean, [[mean - low], [high - mean]], fmt="o", color=colour, capsize=4)
            axes.annotate(name, (size, mean), xytext=(7, -3), rotation=30, textcoords="offset points", color=colour)
        axes.set_xlim(0.9 * min(drawn), 1.2 * max(drawn))
        axes.set_xlabel("MiB of weights")
        axes.set_ylabel("more bits a character")
        plots.title(figure, "What smaller weights cost (bars: 95 % interval)", [label])
    return plots.described(figure, "; ".join(f"{name}: {in_words(cost)}" for name, cost in costs.items()))
