"""The cell magic ``%%isolated``: a notebook's cell in the second kernel, and its results back."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from metallab import mode, needs, results_made
from metallab.isolated.kernel import run_in_kernel
from metallab.isolated.outcome import ChildFailed, Outcome


@dataclass(frozen=True)
class _Options:
    """The first line of a cell."""

    results: Sequence[str]
    device: str | None
    threads: int | None
    timeout: float
    """Seconds."""
    variables: dict[str, str]
    raises: str | None
    needs: Sequence[str]
    is_long: bool
    """True if fast mode skips it."""


class Skipped:
    """Placeholder for a result of a skipped cell: it shows the reason, and so do its attributes, calls and items."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> Skipped:
        if name.startswith("_"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: object, **__: object) -> Skipped:
        """Return itself."""
        return self

    def __getitem__(self, _: object) -> Skipped:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __repr__(self) -> str:
        return f"Nothing to show: {self._reason}."


class Cells:
    """The cells ``%%isolated`` of a notebook, whose shell gets their results.

    Parameters
    ----------
    shell
        IPython's.
    """

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.missing_gpu: needs.MissingTool | None = None
        """What the simulated Apple GPU lacks here, once a cell has met it: later cells would miss that cell's names."""

    def run(self, line: str, cell: str) -> None:
        """Run a cell in the second kernel, and bring its results back as variables of the notebook.

        A cell that fast mode leaves out, or whose tool is missing here, is not run: its results are `Skipped`.

        Parameters
        ----------
        line
            What stands behind ``%%isolated``.
        cell
            The code.

        Raises
        ------
        ValueError
            For a line with another option.
        ChildFailed
            If the cell did not end as its line says.
        """
        options = _read_line(line)
        for name in options.results:  # no old value is left
            self.shell.user_ns.pop(name, None)

        if options.is_long and mode.current() == "fast":
            print("A quick run leaves this cell out.")
            self._skip(options, "a quick run leaves it out")
            return
        missing = self._find_missing(options)
        if missing:
            self._skip(options, "; ".join(each.what for each in missing), *missing)
            return

        if {"c++", "objective-c++"} & set(options.needs):
            needs.use_compiler()  # its variables go to the second kernel with this process's
        if options.device:
            print(f"On {apple_gpu()}.")

        outcome = run_in_kernel(
            cell,
            results=options.results,
            timeout=options.timeout,
            device=options.device,
            threads=options.threads,
            variables=options.variables,
        )
        if "SimulationError" in outcome.kinds:
            # g++ is there, as `_find_missing` has looked: it may be the version of PyTorch
            self.missing_gpu = needs.other_torch()
            if self.missing_gpu is not None:
                self._skip(options, self.missing_gpu.what, self.missing_gpu)
                return

        self.shell.user_ns |= outcome.results
        _announce(outcome.results.values())
        _judge(outcome, options.raises)

    def _find_missing(self, options: _Options) -> list[needs.MissingTool]:
        """Return what a cell needs and this machine lacks."""
        wanted = ["apple-gpu", *options.needs] if options.device else options.needs
        missing = [tool.report for tool in needs.missing(wanted)]
        if not missing and options.device and self.missing_gpu is not None:
            return [self.missing_gpu]
        return missing

    def _skip(self, options: _Options, reason: str, *missing: needs.MissingTool) -> None:
        """Give the reason in place of each result, and show in the cell what was missing."""
        self.shell.user_ns |= {name: Skipped(reason) for name in options.results}
        for each in missing:
            needs.show(each)


def load_ipython_extension(shell: Any) -> None:
    """Offer the cell magic ``%%isolated``, for ``%load_ext metallab.isolated`` in a notebook."""
    cells = Cells(shell)
    shell.register_magic_function(cells.run, "cell", "isolated")


def _read_line(line: str) -> _Options:
    """Return the options in the first line of a cell. ValueError, with the usage, for others."""
    parser = argparse.ArgumentParser(prog="%%isolated", add_help=False, exit_on_error=False)
    parser.add_argument("results", nargs="*", metavar="RESULT")
    parser.add_argument("--device", choices=["mps"])
    parser.add_argument("--threads", type=int, choices=[1])
    # building the simulated GPU may take 2 minutes
    parser.add_argument("--timeout", type=float, default=200.0, metavar="SECONDS")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--raises", metavar="EXCEPTION")
    parser.add_argument("--needs", action="append", default=[], choices=needs.TOOLS)
    parser.add_argument("--full", action="store_true")

    try:
        given, unknown = parser.parse_known_args(shlex.split(line))
        are_names = all(map(str.isidentifier, given.results))
        are_pairs = all("=" in pair for pair in given.set)
        if unknown or not are_names or not are_pairs:
            raise ValueError(" ".join(unknown) or line)
    except (argparse.ArgumentError, ValueError) as error:
        raise ValueError(
            f"%%isolated does not understand {error}; {parser.format_usage().strip()}"
        ) from None

    return _Options(
        results=given.results,
        device=given.device,
        threads=given.threads,
        timeout=given.timeout,
        variables=dict(pair.split("=", 1) for pair in given.set),
        raises=given.raises,
        needs=given.needs,
        is_long=given.full,
    )


def _announce(values: Iterable[Any]) -> None:
    """Let the page save what the second kernel has measured."""
    from metallab.timing import Comparison, Measurement  # imports NumPy, whose import pages time

    for value in values:
        if isinstance(value, Measurement | Comparison):
            results_made.announce(value)


def _judge(outcome: Outcome, expected: str | None) -> None:
    """Raise `ChildFailed`, which fails the page, unless a cell ended as expected."""
    if outcome.ok and expected:
        raise ChildFailed(f"this cell should raise {expected}, and ended without raising anything")

    if outcome.ended == "raised" and expected in outcome.kinds:
        print(f"This cell is meant to raise {expected}, and did:\n{outcome.detail}")
    elif not outcome.ok:
        wanted = f", where it should raise {expected}" if expected else ""
        how = f"this cell's own process: {outcome.ended}{wanted}"
        raise ChildFailed(f"{outcome.reason} ({how})\n{outcome.detail}".rstrip())


def apple_gpu() -> str:
    """Return the Apple GPU of cells with ``--device mps``, in words."""
    is_mac = sys.platform == "darwin"
    if not is_mac:
        return "the simulated Apple GPU, whose times say nothing about a Mac"
    from metallab import machine

    return f"{machine.describe().chip or 'this Mac'} GPU"
