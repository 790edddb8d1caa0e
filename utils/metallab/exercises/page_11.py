"""The exercises of page 11."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from metallab.exercises.judging import Right, exercise, expect, expect_that
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
def judge_make_it_run(make_it_run: Callable[..., Any]) -> bool:
    """Give it networks with other weights: what it returns runs on MPS, by PyTorch's tables, and computes the same.

    It has as many weights, and together they get the same gradients, so that it can be trained.
    """
    for seed, count in ((0, 2), (1, 1), (2, 64)):
        model, films = _make_network(seed), torch.rand(count, 1, 6, 6, 6)
        # before the answer has the model, which it may change
        parameters = list(model.parameters())
        wanted, weights = model(films), sum(map(torch.numel, parameters))
        wanted_gradients = torch.autograd.grad(wanted.square().sum(), parameters)

        own = make_it_run(model)
        expect_that(isinstance(own, nn.Module), "make_it_run(model)", own, "a module")
        asked = coverage.mps_coverage(own, films)
        assert asked.runs, asked.answer
        got = own(films)
        expect(f"of {count} films its module", tuple(got.shape), tuple(wanted.shape))
        off = (got - wanted).abs().max().item()
        assert off < 1e-5, f"of {count} films its result is off by {off:.2g}, expected 0"
        expect("counted, its weights", sum(map(torch.numel, own.parameters())), weights)

        assert got.requires_grad, "it cannot be trained: its result has no gradient"
        # the answer may have run a backward pass to try it, and left gradients
        own.zero_grad()
        got.square().sum().backward()
        learned = [w.grad for w in own.parameters() if w.grad is not None]
        # all together: a repair may keep the weights in other shapes or another order
        ratio = _sum_squares(learned) / _sum_squares(list(wanted_gradients))
        assert abs(ratio - 1) < 1e-3, "its weights get other gradients"
    return True


ENOUGH = 8
"""So many guesses of ten have to be right."""


def _ask(call: Sequence[Any]) -> tuple[str, str]:
    """Return what happens to a call on MPS, in the word of the exercise, and what the tool says of it."""
    asked = coverage.mps_coverage(*call)
    for status in ("missing", "refused"):
        for use in asked.having(status):
            return status, f"{use.operator} {use.advice}"
    return "runs", asked.answer


@exercise("11.2", hint="ask coverage.mps_coverage about those that you doubt, and guess once more")
def judge_guesses(guesses: Callable[[], Any], calls: Mapping[str, Sequence[Any]]) -> Right:
    """Compare each guess, *runs*, *missing* or *refused*, with what `coverage.mps_coverage` says of the call.

    `ENOUGH` of them have to be right; the others are then explained in the tool's words. ``calls`` has by name what
    `mps_coverage` is called with: a function and its arguments.
    """
    guessed = guesses()
    is_complete = isinstance(guessed, Mapping) and set(guessed) == set(calls)
    expect_that(is_complete, "guesses()", guessed, f"a word for each of {', '.join(calls)}")
    unknown = [word for word in guessed.values() if word not in ("runs", "missing", "refused")]
    expect_that(not unknown, "guesses()", unknown, "the words runs, missing and refused")

    told = {name: _ask(call) for name, call in calls.items()}
    missed = [name for name, (word, _) in told.items() if guessed[name] != word]
    right = len(calls) - len(missed)
    if right < ENOUGH:
        # which ones are wrong, and not what is right, so that it can be guessed again
        raise AssertionError(
            f"{right} of {len(calls)} are right, and {ENOUGH} are wanted; not {', '.join(missed)}"
        )

    explained = " ".join(f"{name}: {told[name][1].rstrip('.')}." for name in missed)
    return Right(f"{right} of {len(calls)}. {explained}".rstrip())
