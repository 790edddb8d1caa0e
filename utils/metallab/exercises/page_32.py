"""The exercises of page 32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from metallab.exercises.judging import exercise, expect


@exercise(
    "32.1",
    hint="A is (rank, inputs), B is (outputs, rank)",
)
def judge_numbers(numbers: Callable[..., Any]) -> bool:
    """Ask for adapters of several ranks and shapes."""
    block = [(576, 192), (192, 192), (1024, 192), (192, 512)]
    cases = [(block, 8, 24576), ([(10, 20)], 1, 30), ([(3, 5), (7, 2), (3, 5)], 4, 100)]

    for shapes, rank, wanted in cases:
        expect(f"numbers({shapes}, {rank})", numbers(shapes, rank), wanted)
    return True


@exercise(
    "32.2",
    hint="rank 2 beside rank 3 makes rank 5: rows of A, columns of B",
)
def judge_joined(joined: Callable[..., Any]) -> bool:
    """Join two adapters of equal and of other ranks, and compare the change of the matrix with the sum of theirs.

    The first matrix that is returned has to hold each row of A1 and A2 as it is, so that a product which is right by
    other factors is no answer.
    """
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inputs, outputs = 6, 10
    for rank1, rank2 in ((2, 2), (3, 1), (1, 8)):  # 1 + 8 is more than the matrix has
        a1, b1 = draw(rank1, inputs), draw(outputs, rank1)
        a2, b2 = draw(rank2, inputs), draw(outputs, rank2)
        change = b1 @ a1 + b2 @ a2
        # copies: of an answer that changes them, the rows would be compared with what it made of them
        a, b = joined(*(each.clone() for each in (a1, b1, a2, b2)))

        case = "joined(A1, B1, A2, B2), as the shape of A,"
        expect(case, tuple(a.shape), (rank1 + rank2, inputs))
        is_kept = all((row == a).all(1).any() for row in (*a1, *a2))
        assert is_kept, "a row of A1 or A2 is not in A"
        off = (b @ a - change).abs().max().item()
        assert off < 1e-12, f"ranks {rank1}, {rank2}: the change is off by {off:.3g}, expected 0"
    return True
