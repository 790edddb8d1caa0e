"""``metallab coverage package.module:factory``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from metallab.pytorch.coverage.report import Coverage
from metallab.pytorch.coverage.tracing import TraceFailed, predict_coverage
from metallab.pytorch.errors import NotAModel
from metallab.pytorch.model import load_model

NO_PLACE = "no line has anything that does not run on MPS; what it copies to the CPU on its way, metallab trace counts"
NOT_FOLLOWED = (
    "lines that leave a tensor on the CPU are not listed, since the model cannot be followed: run it on a Mac, or on "
    "the simulated GPU, whose error names the first one"
)


def command(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """Run ``metallab coverage package.module:factory``, and return its exit code.

    Parameters
    ----------
    parser
        Without arguments yet.
    arguments
        What stands behind the command's name.

    Returns
    -------
    int
        0 if the model runs on MPS; 1 if not; 2 if that is not known: the factory makes no model, its operators cannot
        be listed, or it cannot be followed where its tensors lie.

    Raises
    ------
    SystemExit
        With 2, if the arguments are wrong, and with 0 after ``--help``, as `argparse` does.
    """
    parser.add_argument(
        "factory",
        help="package.module:factory; it returns (model, inputs) or (model, inputs, loss); the loss is not looked at",
    )
    parser.add_argument("--training", action="store_true", help="trace the backward pass as well")
    parser.add_argument(
        "--places",
        action="store_true",
        help="list every line and module where something does not run",
    )
    given = parser.parse_args(arguments)

    try:
        subject = load_model(given.factory)
        # not `mps_coverage`, for which an input by the name ``training`` would be a setting of its own
        coverage = predict_coverage(
            subject.model, subject.inputs, subject.named, training=given.training
        )
    except (NotAModel, TraceFailed) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2

    print(coverage)
    if given.places:
        print("", *_describe_places(coverage), sep="\n")
    if not coverage.runs:
        return 1
    return 0 if coverage.is_sure else 2


def _describe_places(coverage: Coverage) -> list[str]:
    """Return every place that was found, and whether there may be others."""
    places = coverage.list_places()
    if not coverage.is_sure:
        return [*places, NOT_FOLLOWED]
    return places or [NO_PLACE]
