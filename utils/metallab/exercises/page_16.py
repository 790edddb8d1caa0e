"""The exercises of page 16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from metallab.exercises.judging import exercise, expect

Step = Callable[..., Any]
BATCHES = (slice(0, 64), slice(64, 128))


class _Bench:
    """Two batches of the page's digits, on which steps are tried."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels
        self.device = images.device

    def copy_batches(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return copies of the pictures and the labels of each batch.

        A step that changed the page's own would change those that the exact step is tried on afterwards.
        """
        return [(self.images[at].clone(), self.labels[at].clone()) for at in BATCHES]

    def try_step(self, step: Step) -> tuple[torch.Tensor, list[Any], set[torch.dtype]]:
        """Train one linear layer with a step on each of the two batches.

        Returns
        -------
        weights : torch.Tensor
            Those of the layer after both steps.
        losses : list
            What the step returned for each batch.
        formats : set of torch.dtype
            Those of the model's outputs, in which it computed.
        """
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).to(self.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        # so low that the check notices gradients that were not cleared
        scaler = torch.amp.GradScaler(self.device.type, init_scale=0.25)
        formats: set[torch.dtype] = set()

        # a hook is given the module, its inputs and its outputs
        model.register_forward_hook(lambda *passed: formats.add(passed[2].dtype))
        losses = [step(model, *batch, optimizer, scaler) for batch in self.copy_batches()]
        return model[1].weight.detach(), losses, formats

    def compare_steps(self, step: Step, exact: Step, *, most: float) -> None:
        """Raise AssertionError unless a step computes in float16, with the losses and the weights of an exact step.

        Losses may be 1 % off, and the weights by less than ``most``, the norm of their difference.
        """
        weights, losses, formats = self.try_step(step)
        exact_weights, exact_losses, _ = self.try_step(exact)

        expect("the format in which it computes", formats, {torch.float16})
        for n, (loss, wanted) in enumerate(zip(losses, exact_losses, strict=True)):
            is_close = abs(float(loss) / float(wanted) - 1) < 0.01
            when = f"after {n} of your steps it" if n else "it"
            expect(when, loss, float(wanted), holds=is_close)
        off = (weights - exact_weights).norm().item()
        assert off < most, f"the weights are off by {off:.2g}, expected less than {most:g}"

    def train(self, step: Step, scale: float) -> tuple[list[torch.Tensor], float]:
        """Return a network's weights and biases after a step on each batch, and the scaler's factor after them.

        The scaler begins with the factor ``scale``, and doubles it after two steps whose gradients were finite.
        """
        torch.manual_seed(0)
        layers = nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)
        model = nn.Sequential(*layers).to(self.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scaler = torch.amp.GradScaler(self.device.type, init_scale=scale, growth_interval=2)

        for batch in self.copy_batches():
            step(model, *batch, optimizer, scaler)
        return [weight.detach() for weight in model.parameters()], scaler.get_scale()

    def compare_scaled(self, step: Step, exact: Step, *, most: float) -> None:
        """Compare weights and the scaler's factor under two scales, of which the second makes gradients infinite.

        With finite gradients the weights have to be those of the exact step, each within ``most``, and the factor has
        doubled. With infinite ones the scaler leaves both steps out, so that the weights stay as they began, and has
        halved its factor twice. Raises AssertionError where that is not so.
        """
        for scale, right, last in ((1024.0, exact, 2048.0), (2.0**40, _leave_out, 2.0**38)):
            weights, _ = self.train(right, scale)
            got, factor = self.train(step, scale)
            off = max(
                (own - other).abs().max().item() for own, other in zip(got, weights, strict=True)
            )
            case = f"with a scale of {scale:g}"
            assert off < most, f"{case} weights are off by {off:.2g}, expected less than {most:g}"
            expect(f"{case} the scaler after two steps", factor, last)


def _leave_out(*_: Any) -> None:
    """Do nothing, as a scaler does in a step whose gradients are infinite."""


def _step_in_float32(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, optimizer: Any, _: Any
) -> torch.Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


def _clip_in_float32(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, optimizer: Any, _: Any
) -> torch.Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    return loss.detach()


def _dim(step: Step) -> Step:
    """Return the step on pictures so dark that gradients are shorter than 0.1."""
    return lambda model, images, *rest: step(model, images / 10, *rest)


@exercise(
    "16.1",
    hint="zero_grad, autocast, scale and backward, unscale_, clip, step, update",
)
def judge_clipped_step(step: Step, images: torch.Tensor, labels: torch.Tensor) -> bool:
    """Clip gradients that are longer than 0.1 and, on dim pictures, shorter ones; then under two other scales."""
    bench = _Bench(images, labels)
    bench.compare_steps(step, _clip_in_float32, most=0.005)
    bench.compare_steps(_dim(step), _dim(_clip_in_float32), most=0.005)
    bench.compare_scaled(step, _clip_in_float32, most=0.002)
    return True


class _InParts:
    """A step that hands each batch to the answer in so many parts, and notes what the answer does with them."""

    def __init__(self, accumulated_step: Step, count: int) -> None:
        self.step, self.count = accumulated_step, count
        self.seen: list[tuple[list[str], int]] = []
        """Of each call the passes, ``forward`` and ``backward`` in their order, and how many parts are left in the
        list."""

    def __call__(
        self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, *tools: Any
    ) -> Any:
        """Return the loss that the answer returns; ``tools`` are the optimizer and the scaler."""
        size = len(images) // self.count
        parts = list(zip(images.split(size), labels.split(size), strict=True))
        passes: list[str] = []

        forward = model.register_forward_hook(lambda *_: passes.append("forward"))
        # it is called once in each backward pass, when this weight's gradient is computed
        weight = next(model.parameters())
        backward = weight.register_hook(lambda _: passes.append("backward"))
        loss = self.step(model, parts, *tools)
        forward.remove()
        backward.remove()
        self.seen.append((passes, len(parts)))
        return loss


@exercise(
    "16.2",
    hint="a batch's mean is the mean of its parts' means; one step, one update, no clip",
)
def judge_accumulated_step(step: Step, images: torch.Tensor, labels: torch.Tensor) -> bool:
    """Accumulate over four, two and eight parts, each with its backward pass before the next one's forward pass.

    Loss, weights and scaler have to be those of a step on the whole batch, and the list of parts stays as it is.
    """
    bench = _Bench(images, labels)
    for count in (4, 2, 8):
        in_parts = _InParts(step, count)
        bench.compare_steps(in_parts, _step_in_float32, most=0.02)
        for passes, left in in_parts.seen:
            expect(f"of {count} parts the list afterwards", left, count)
            # in turns, so that what one forward pass keeps is released before the next one keeps more
            ways = set(passes[::2]), set(passes[1::2])
            takes_turns = len(passes) == 2 * count and ways == ({"forward"}, {"backward"})
            assert takes_turns, (
                f"for {count} parts it goes {' '.join(passes)}, expected forward and backward in turns"
            )

    bench.compare_scaled(_InParts(step, 2), _step_in_float32, most=0.01)
    return True
