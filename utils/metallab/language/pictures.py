"""Language models as pictures: what may come next, what fits, what few bits cost."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from metallab import plots
from metallab.language.bits import Cost
from metallab.language.corpus import CHARACTERS
from metallab.language.decoder import Decoder
from metallab.language.writing import prompt_for

SHARE = 2 / 3
"""Of its memory, what Metal recommends for the GPU of a Mac with up to 36 GB, people report; of larger ones 3/4."""


@torch.no_grad()
def draw_next(model: Decoder, prompt: str, temperature: float, *, label: str, most: int = 12) -> Figure:
    """How likely the ``most`` likeliest next characters are at a temperature, which must be above 0."""
    odds = (model(prompt_for(model, prompt), last=True)[0, -1].float().cpu() / temperature).softmax(0)
    values, indices = odds.topk(most)
    names = [{" ": "space", "\n": "line end"}.get(CHARACTERS[index], CHARACTERS[index]) for index in indices.tolist()]
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 2.6))
        axes.bar(range(most), values.tolist(), color=plots.BLUE)
        axes.set_xticks(range(most), names)
        axes.set_ylim(0, 1)
        axes.set_ylabel("probability")
        plots.title(figure, f"What comes after {prompt[-24:]!r}, temperature {temperature:g}", [label])
    likely = ", ".join(f"{name} {value:.0%}" for name, value in zip(names[:3], values.tolist(), strict=False))
    return plots.described(figure, f"temperature {temperature:g}: {likely}")


BEHIND = {"facecolor": "white", "edgecolor": "none", "pad": 1}
"""Of words that stand on a line."""


def draw_fit(needs: Mapping[str, tuple[float, float]], mac: int) -> Figure:
    """What models need, (GiB of weights, GiB of cache) by name, beside what a Mac with ``mac`` GB gives its GPU."""
    share = SHARE if mac <= 36 else 3 / 4
    limit = share * mac  # a Mac's GB of memory are 2**30 bytes
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 0.9 + 0.45 * len(needs)))
        for row, (weights, cache) in enumerate(needs.values()):
            axes.barh(row, weights, color=plots.BLUE, label="weights" if not row else None)
            axes.barh(row, cache, left=weights, color=plots.ORANGE, label="keys and values" if not row else None)
            fits = "fits" if weights + cache < limit else "does not fit"
            axes.text(weights + cache, row, f" {weights + cache:.1f} GiB, {fits}", va="center", bbox=BEHIND)
        axes.axvline(limit, color=plots.BLACK, linestyle="--", linewidth=1)
        axes.set_yticks(range(len(needs)), list(needs))
        axes.invert_yaxis()
        axes.set_xlim(0, 1.35 * max(limit, *(weights + cache for weights, cache in needs.values())))
        axes.set_xlabel("GiB")
        axes.legend(loc="lower right")
        plots.title(
            figure, f"A Mac with {mac} GB; the line: its GPU's share, some {limit:.1f} GiB", ["counted, not measured"]
        )
    told = [f"{name}: {weights + cache:.1f} GiB of {limit:.1f}" for name, (weights, cache) in needs.items()]
    return plots.described(figure, "; ".join(told))


def draw_costs(costs: Mapping[str, Cost], sizes: Mapping[str, int], *, label: str) -> Figure:
    """What each way to store weights costs in bits a character, with its interval, over its size in bytes."""
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 3.2))
        axes.axhline(0, color=plots.GREY, linewidth=1)
        for (name, cost), colour in zip(costs.items(), plots.COLOURS, strict=False):
            (low, high), size = cost.interval, sizes[name] / 2**20
            axes.errorbar(size, cost.mean, [[cost.mean - low], [high - cost.mean]], fmt="o", color=colour, capsize=4)
            axes.annotate(name, (size, cost.mean), xytext=(8, 6), textcoords="offset points", color=colour)
        axes.set_xlim(0, 1.25 * max(sizes.values()) / 2**20)
        axes.set_xlabel("MiB of weights")
        axes.set_ylabel("more bits a character")
        plots.title(figure, "What smaller weights cost (bars: 95 % interval)", [label])
    return plots.described(figure, "; ".join(map(repr, costs.values())))
