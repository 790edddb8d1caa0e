"""Networks of the kinds that frameworks have in common, to test with."""

from __future__ import annotations

from torch import Tensor, nn

from metallab.pytorch.networks import Network, cnn, mlp, seeded


def resnet(batch: int = 8) -> Network:
    import torchvision

    return seeded("ResNet-18", lambda: torchvision.models.resnet18(weights=None), (batch, 3, 64, 64))


def transformer(batch: int = 8, steps: int = 64) -> Network:
    """One encoder block without dropout, so that training is the same on every device."""
    block = lambda: nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    return seeded("Transformer block", block, (batch, steps, 128))


class LastStep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(64, 128, batch_first=True), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def lstm(batch: int = 16) -> Network:
    return seeded("LSTM", LastStep, (batch, 32, 64))


EVERY = (mlp, cnn, resnet, transformer, lstm)
