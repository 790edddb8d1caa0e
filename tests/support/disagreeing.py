"""A model whose operators are all right on an Apple GPU, and which returns something else there."""

from __future__ import annotations

from torch import Tensor, nn


class OtherThere(nn.Module):
    """Takes another way on an Apple GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return two numbers for each row of four."""
        y: Tensor = self.before(x)
        result: Tensor = self.behind(y.relu() if y.device.type == "mps" else y.sigmoid())
        return result
