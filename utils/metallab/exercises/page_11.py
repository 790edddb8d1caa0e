"""The exercises of page 11."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from metallab.exercises.judging import exercise, expect, expect_that
from metallab.pytorch import coverage


def _make_network(seed: int) -> nn.Sequential:
    """Return the page's network with other weights."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv3d(1, 4, 3), nn.AdaptiveAvgPool3d(2), nn.Flatten(), nn.Linear(32, 2)
    )


def _sum_squares(gradients: list[torch.Tensor]) -> float:
    return float(sum(gradient.square().sum() for gradient in gradients))


@exercise(
    "11.1",
    hint="the weights stay; the convolution leaves 4 x 4 x 4: what pools it to 2 x 2 x 2?",
)
def judge_repaired(repaired: Callable[..., Any]) -> bool:
    """Repair networks with several weights: they run, give the same result, and can be trained."""
    for seed, count in ((0, 2), (1, 1), (2, 64)):
        model, films = _make_network(seed), torch.rand(count, 1, 6, 6, 6)
        parameters = list(model.parameters())
        wanted, weights = model(films), sum(map(torch.numel, parameters))
        slopes = torch.autograd.grad(wanted.square().sum(), parameters)

        own = repaired(model)
        expect_that(isinstance(own, nn.Module), "repaired(model)", own, "a module")
        asked = coverage.mps_coverage(own, films)
        assert asked.runs, asked.answer
        got = own(films)
        expect(f"of {count} films its module", tuple(got.shape), tuple(wanted.shape))
        off = (got - wanted).abs().max().item()
        assert off < 1e-5, f"of {count} films its result is off by {off:.2g}, expected 0"
        expect("counted, its weights", sum(map(torch.numel, own.parameters())), weights)

        assert got.requires_grad, "it cannot be trained: its result has no gradient"
        own.zero_grad()
        got.square().sum().backward()
        learned = [w.grad for w in own.parameters() if w.grad is not None]
        ratio = _sum_squares(learned) / _sum_squares(list(slopes))
        assert abs(ratio - 1) < 1e-3, "its weights get other gradients"
    return True


def _runs_on_mps(before: int, after: int) -> bool:
    image = torch.rand(1, 1, before, before)
    return bool(coverage.mps_coverage(nn.AdaptiveAvgPool2d(after), image).runs)


@exercise(
    "11.2",
    hint="one size has to divide the other",
)
def judge_pools(pools: Callable[..., Any]) -> bool:
    """Ask about each pair of ten sizes."""
    sizes = (12, 5, 4, 6, 8, 1, 3, 9, 13, 128)
    pools(12, 4)

    for before, after in [(a, b) for a in sizes for b in sizes]:
        got = pools(before, after)
        expect(f"pools({before}, {after})", got, _runs_on_mps(before, after))
    return True
