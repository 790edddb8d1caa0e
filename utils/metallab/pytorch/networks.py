"""Small, named networks that several lessons measure: the same weights and inputs on every machine.

Each maker returns a `Network` on the CPU in float32, whatever the defaults are, from the same random numbers each time,
so that a name always stands for the same network. None is trained: what is measured is how fast they compute, not what.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Network:
    """A model with a batch of inputs; it is trained towards outputs of zero, so there are no targets."""

    name: str
    model: nn.Module
    inputs: tuple[Tensor, ...]

    def to(self, device: torch.device | str) -> Network:
        """Return a copy on a device; this one stays where it is."""
        inputs = tuple(each.to(device) for each in self.inputs)
        return Network(self.name, _copy_model(self.model).to(device), inputs)

    def replace(self, old: type[nn.Module], new: Callable[[], nn.Module]) -> Network:
        """Return a copy in which each layer of one kind is a new one of another.

        It looks at the layers of an `nn.Sequential`, not inside them. Layers of other kinds keep their weights; the new
        ones have those that ``new`` gives them.

        Parameters
        ----------
        old
            The kind of layer that is replaced.
        new
            Makes a layer.

        Raises
        ------
        ValueError
            If there is no layer of that kind.
        TypeError
            If the model is no `nn.Sequential`, such as the LSTM's.
        """
        if not any(isinstance(layer, old) for layer in self.model):
            raise ValueError(f"{self.name} has no layer of the kind {old.__name__}")

        layers = [new() if isinstance(layer, old) else copy.deepcopy(layer) for layer in self.model]
        return Network(self.name, nn.Sequential(*layers), self.inputs)

    def inference(self) -> Callable[[], Tensor]:
        """Return a function that computes the outputs, without gradients, on a copy in evaluation mode."""
        model, inputs = _copy_model(self.model).eval(), self.inputs

        def infer() -> Tensor:
            with torch.no_grad():
                return model(*inputs)

        return infer

    def training_step(self, learning_rate: float = 0.0) -> Callable[[], Tensor]:
        """Return a function that makes a step of SGD on the mean square of the outputs, on a copy, and gives the loss.

        At a rate of 0 nothing is learned, and all is computed: each step is the same work with the same loss, which can
        be compared after the last step as after the first. A network that learns its batch by heart gets subnormal
        gradients, with which a CPU computes many times more slowly: the time would depend on how long was measured.
        """
        model, inputs = _copy_model(self.model).train(), self.inputs
        optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)

        def step() -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = model(*inputs).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step


class LastStep(nn.Module):
    """An LSTM over a sequence, and a linear layer on its last step: (batch, steps, features) -> (batch, classes)."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the classes' scores."""
        outputs, _ = self.lstm(x)  # (batch, steps, hidden)
        return self.head(outputs[:, -1])


def mlp(batch: int = 256, width: int = 512) -> Network:
    """Make three linear layers with ReLU: 784 -> width -> width -> 10."""

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Linear(784, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 10),
        )

    return _make_network("MLP", make, (batch, 784))


def talk_mlp(batch: int = 256) -> Network:
    """Make the PyTorch Conference 2023 talk's example: 784-256-256-256-10 with Softshrink between."""

    def make() -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise((784, 256, 256, 256)):
            layers += [nn.Linear(before, after), nn.Softshrink()]
        return nn.Sequential(*layers, nn.Linear(256, 10))

    return _make_network("Softshrink MLP", make, (batch, 784))


def cnn(batch: int = 32, channels: int = 32, size: int = 32) -> Network:
    """Make two convolutions with batch norm and pooling, and a linear layer."""

    def make() -> nn.Module:
        def stage(before: int, after: int) -> list[nn.Module]:
            return [
                nn.Conv2d(before, after, 3, padding=1),
                nn.BatchNorm2d(after),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]

        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * channels, 10)]
        return nn.Sequential(*stage(3, channels), *stage(channels, 2 * channels), *head)

    return _make_network("CNN", make, (batch, 3, size, size))


def resnet(batch: int = 8, size: int = 64) -> Network:
    """Make torchvision's ResNet-18, untrained."""
    import torchvision

    return _make_network(
        "ResNet-18", lambda: torchvision.models.resnet18(weights=None), (batch, 3, size, size)
    )


def transformer(batch: int = 8, steps: int = 64, width: int = 128) -> Network:
    """Make one Transformer encoder block without dropout, so that training is the same on every device."""
    return _make_network(
        "Transformer block",
        lambda: nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True),
        (batch, steps, width),
    )


def lstm(batch: int = 16, steps: int = 32, hidden: int = 128) -> Network:
    """Make one LSTM layer with a linear head."""
    return _make_network("LSTM", lambda: LastStep(64, hidden, 10), (batch, steps, 64))


def _copy_model(model: nn.Module) -> nn.Module:
    """Return a copy whose recurrent layers' weights lie in one piece again, as cuDNN wants them: a copy's do not."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()
    return model


def _make_network(name: str, make: Callable[[], nn.Module], *shapes: tuple[int, ...]) -> Network:
    """Return a network whose weights and inputs depend on nothing but its maker: on the CPU, in float32, from one seed.

    Parameters
    ----------
    name
        Its name.
    make
        Makes the model.
    shapes
        Of the inputs: standard normal numbers.

    Notes
    -----
    The caller may have another default device and dtype. These, and the caller's random numbers, stay as they were.
    """
    default = torch.get_default_dtype()

    # devices=[]: no GPU's random numbers are kept, since none of them is drawn
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(0)  # torch.manual_seed would reseed a GPU's as well
        torch.set_default_dtype(torch.float32)
        try:
            model = make()
            return Network(name, model, tuple(torch.randn(shape) for shape in shapes))
        finally:
            torch.set_default_dtype(default)
