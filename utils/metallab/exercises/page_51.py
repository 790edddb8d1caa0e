"""The exercises of page 51."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from metallab.exercises.judging import exercise, expect


def _clip_each(
    loss: Callable[..., Any], weights: Any, images: Any, labels: Any, limit: float
) -> Iterator[np.ndarray]:
    """Yield the clipped gradient of each example."""
    import jax

    for image, label in zip(images, labels, strict=True):
        gradient = np.asarray(jax.grad(loss)(weights, image, label))
        norm = np.linalg.norm(gradient)
        yield gradient * min(1.0, limit / norm) if norm else gradient


@exercise(
    "51.1",
    hint="norms of each example, (n, 1, 1); clip first, mean last",
)
def judge_clipped_mean(
    clipped_mean: Callable[..., Any],
    loss: Callable[..., Any],
    weights: Any,
    images: Any,
    labels: Any,
) -> bool:
    """Clip the gradient of each example, and compare the mean with that of a loop over the examples.

    The cases have many gradients longer than the limit, none, and one that is 0, which cannot be divided by its norm: a
    blank picture gives it. ``loss`` is the page's, of weights, an image and a label.
    """
    blank = images[5:12].at[2].set(0)
    cases = {
        "20 digits, limit 0.5": (weights, images[:20], labels[:20], 0.5),
        "7 digits, one blank, limit 0.1": (2 * weights, blank, labels[101:108], 0.1),
        "1 digit, limit 100": (weights, images[30:31], labels[30:31], 100.0),
    }

    for case, arguments in cases.items():
        wanted = np.mean(list(_clip_each(loss, *arguments)), axis=0)
        got = np.asarray(clipped_mean(*arguments))
        expect(f"clipped_mean of {case}, as shape,", got.shape, wanted.shape)
        off, most = np.abs(got - wanted).max(), np.abs(wanted).max()
        assert off < 1e-5, f"{case}: off by {off:.2g}, expected 0; the largest is {most:.2g}"
    return True


@exercise(
    "51.2",
    hint="the outer vmap makes the first axis: it goes over the models",
)
def judge_losses_of_all(
    losses_of_all: Callable[..., Any],
    loss: Callable[..., Any],
    weights: Any,
    images: Any,
    labels: Any,
) -> bool:
    """Compare the losses of several models for several examples with one loss after the other.

    The result has a row for each model. A Python loop is refused: the program that JAX makes of it has the more
    operations the more models and examples there are.
    """
    import jax
    import jax.numpy as jnp

    models = jnp.stack([weights, weights[::-1] - 1, 1000 * weights])

    def count_operations(count: int, n: int) -> int:
        """Return how many the program has, in which a loop is written out."""
        arguments = models[:count], images[:n], labels[:n]
        return len(jax.make_jaxpr(losses_of_all)(*arguments).eqns)

    for count, n in ((3, 4), (1, 5), (3, 1), (3, 3)):
        data = images[50 : 50 + n], labels[90 : 90 + n]
        pairs = list(zip(*data, strict=True))
        wanted = np.array([loss(each, *pair) for each in models[:count] for pair in pairs])

        got = losses_of_all(models[:count], *data)
        case = f"losses_of_all of {count} models and {n} examples"
        expect(f"{case}, as shape,", np.shape(got), (count, n))
        right = wanted.reshape(count, n)
        off = np.abs(got - right).max()
        assert np.allclose(got, right, rtol=1e-4), f"{case} is off by up to {off:.3g}, expected 0"

    has_no_loop = count_operations(3, 8) == count_operations(2, 4)
    assert has_no_loop, "a Python loop makes one operation after the other"
    return True
