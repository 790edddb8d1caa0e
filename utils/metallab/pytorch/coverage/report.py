"""What coverage found: operators with their status, problems, and the answer in words."""

from __future__ import annotations

import collections
import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from metallab.tables import Table

How = Literal["native", "composite", "falls back", "missing", "refused", "unknown"]
"""`metalsim.operators.Status`, or a kernel that refuses the arguments of a call."""

WORST_FIRST = ("missing", "refused", "falls back", "unknown", "composite", "native")

ProblemKind = Literal[
    "on the CPU", "on the GPU", "float64", "complex128", "array", "second derivative"
]

FALLBACK_VARIABLE = "PYTORCH_ENABLE_MPS_FALLBACK"

MANY_CALLS = 1000
"""So many calls in a run are worth a word: at 14 µs each, as calculated for an M1, their launches alone take 14 ms."""

WITH_THESE_NUMBERS = "Traced on the CPU with these numbers: what it does with others is not seen."
"""Limits an answer for a model that reads values: a branch that it did not take may do anything."""

WITH_GRADIENTS = "Traced with gradients, as it does not run without them, such as under torch.no_grad(): {error}."
"""Limits an answer for a model that computes gradients itself, of which inference without them was asked."""


@dataclass(frozen=True)
class Use:
    """One operator that a model calls."""

    operator: str
    """Namespace, name and overload: ``aten::add.Tensor``."""
    status: How
    calls: int
    modules: tuple[str, ...]
    """The modules that call it, by their place in the model; ``""`` is the model itself."""
    reason: str = ""
    """Why calls of an operator with a kernel fall back, or a Mac's message of refusal."""
    way_out: str = ""
    """What to do about a refusal, or about a missing operator whose name does not tell where it comes from."""
    lines: tuple[str, ...] = ()
    """The lines outside of PyTorch that call it, ``file:number``; of autograd's calls, those whose gradient it is."""

    @property
    def words(self) -> str:
        """The useful part of the reason."""
        return self.reason.partition(". ")[0]

    @property
    def advice(self) -> str:
        """What to do about it; empty for what runs on the GPU."""
        name = self.operator.partition("::")[2].partition(".")[0]  # add of aten::add.Tensor
        if self.status == "missing":
            better = self.way_out or "replace it, or write a kernel (notebook 23)"
            way_out = f"set {FALLBACK_VARIABLE}=1 before torch is imported to run {name} on the CPU, with copies"
            return f"raises NotImplementedError: {way_out}; better, {better}"
        if self.status == "refused":
            return f'refuses these arguments ("{self.words}"), also with {FALLBACK_VARIABLE}=1: {self.way_out}'
        if self.status == "falls back":
            why = f" ({self.reason})" if self.reason else ""
            return f"PyTorch runs {name} on the CPU{why}: correct, with copies there and back"
        if self.status == "unknown":
            return "not PyTorch's own: ask the package that brings it whether it has an MPS kernel"
        return ""


@dataclass(frozen=True)
class Problem:
    """An error on MPS despite a kernel: a tensor on the wrong device, or of a dtype that MPS lacks."""

    kind: ProblemKind
    text: str
    way_out: str
    operator: str = ""
    """Empty for a parameter, buffer or input."""
    line: str = ""
    modules: tuple[str, ...] = ()

    def __str__(self) -> str:
        places = []
        if any(self.modules):
            places.append(f"in {shorten(self.modules)}")
        if self.line:
            places.append(f"at {self.line}")

        where = f" {', '.join(places)}" if places else ""
        return f"{self.text}{where} ({self.way_out})"


@dataclass(frozen=True)
class Coverage:
    """Every operator that a model called, the problematic ones first."""

    model: str
    uses: tuple[Use, ...]
    traced_on: str
    problems: tuple[Problem, ...] = ()
    """Errors despite a kernel."""
    not_followed: str = ""
    """Why it is not known where tensors would lie, so that one on the wrong device was not looked for; empty if it
    is."""
    needs_gradients: str = ""
    """What it raises without gradients, as inference is traced; empty if it does not, or was asked about training."""

    def having(self, *statuses: How) -> tuple[Use, ...]:
        """Return the uses with one of these statuses."""
        return tuple(use for use in self.uses if use.status in statuses)

    @property
    def runs(self) -> bool:
        """True if nothing raises, as far as known; see `is_sure`."""
        return not (self.having("missing", "refused") or self.problems)

    @property
    def runs_with_fallback(self) -> bool:
        """True if nothing raises with ``PYTORCH_ENABLE_MPS_FALLBACK=1``, which runs missing operators on the CPU."""
        return not (self.having("refused") or self.problems)

    @property
    def is_sure(self) -> bool:
        """True if all that may raise was looked for; what was found is found in any case."""
        return not self.not_followed

    @property
    def answer(self) -> str:
        """One line: yes, yes with care, no, or not known, with the reason and what limits the answer."""
        caveat = self._describe_caveats()
        wrong = [*self._describe_problems(), *self._describe_operators()]
        if wrong:
            if not self.is_sure:
                wrong.append(self._describe_what_was_missed())
            return f"No: {'; '.join(wrong).removesuffix('.')}.{caveat}"

        leaving = list_names(self.having("falls back", "unknown"))
        if not self.is_sure:
            return f"Not known: {self._describe_what_is_not_known(leaving)}.{caveat}"
        if leaving:
            return f"Yes, with care: {leaving} may leave the GPU.{caveat}"
        return f"Yes: {self._count_operators()} on MPS in PyTorch {torch.__version__}.{caveat}"

    def _describe_caveats(self) -> str:
        """Return what limits the answer in any case, in parentheses; empty if nothing does."""
        caveats = []
        if self.traced_on == "cpu":
            caveats.append(WITH_THESE_NUMBERS)
        if self.needs_gradients:
            caveats.append(WITH_GRADIENTS.format(error=self.needs_gradients))
        return f" ({' '.join(caveats)})" if caveats else ""

    def _describe_problems(self) -> list[str]:
        """Return the first problem of each kind, and how many more there are.

        What the model holds (parameters, buffers and inputs of a dtype that MPS lacks) is a kind of its own.
        """
        by_kind: dict[tuple[str, bool], list[Problem]] = collections.defaultdict(list)
        for problem in self.problems:
            is_held = not problem.operator
            by_kind[problem.kind, is_held].append(problem)

        described = []
        for first, *others in by_kind.values():
            more = f", and {len(others)} more" if others else ""
            described.append(f"{first}{more}")
        return described

    def _describe_operators(self) -> list[str]:
        """Return what is said of the operators that have no kernel, and of those that refuse."""
        described = []
        if missing := self.having("missing"):
            has = "has" if len(missing) == 1 else "have"
            ways_out = [f"with {FALLBACK_VARIABLE}=1 it runs on the CPU"]
            ways_out += [f"better, {use.way_out}" for use in missing if use.way_out]
            described.append(f"{list_names(missing)} {has} no MPS kernel ({'; '.join(ways_out)})")

        for use in self.having("refused"):
            described.append(f'{list_names([use])} refuses these arguments, "{use.words}"')
        return described

    def _describe_what_is_not_known(self, leaving: str) -> str:
        found = f"{leaving} may leave the GPU" if leaving else f"{self._count_operators()} on MPS"
        return f"{found}, but {self._describe_what_was_missed()}"

    def _describe_what_was_missed(self) -> str:
        """Return what a trace in which the model could not be followed did not look for, and what to do."""
        missed = "a tensor that is left on the CPU, which raises there, was not looked for"
        way_out = "try it on a Mac, or on the simulated GPU"
        return f"{missed}, as the model cannot be followed ({self.not_followed}); {way_out}"

    def _count_operators(self) -> str:
        if len(self.uses) == 1:
            return "its one operator runs"
        return f"all {len(self.uses)} operators run"

    @property
    def calls(self) -> int:
        """How many calls of operators there were."""
        return sum(use.calls for use in self.uses)

    @property
    def advice_on_calls(self) -> str:
        """What to think of where there are very many calls; empty where there are not."""
        if self.calls < MANY_CALLS:
            return ""
        return (
            f"{self.calls:,} calls in one run, each of them a launch: where they are small, launching takes longer "
            "than the work (notebook 13 predicts how long). Fewer and larger calls help: nn.LSTM is one operator on "
            "MPS, while nn.GRU, nn.RNN and every packed sequence are computed step by step"
        )

    def list_places(self) -> list[str]:
        """Return every place of everything that does not run on MPS, or may leave it.

        Returns
        -------
        list of str
            Each names what it is, the line where there is one, and all modules that were met there.
        """
        places = []
        for problem in self.problems:
            if not problem.operator:  # a parameter, buffer or input
                places.append(f"{problem.text}: made before the trace, so look where it is made")
                continue
            places.append(_describe_place(problem.text, [problem.line], problem.modules))
        for use in self.having("missing", "refused", "falls back", "unknown"):
            what = f"{use.operator} ({use.status})"
            places.append(_describe_place(what, use.lines, use.modules))
        return places

    def __str__(self) -> str:
        """Return the answer, a table of the operators, and what to do about each that may leave the GPU or raises."""
        rows = [
            (use.operator, use.status, f"{use.calls:,}", shorten(use.modules)) for use in self.uses
        ]
        table = repr(Table(["operator", "status", "calls", "called by"], rows))

        lines = [f"{self.model}: {self.answer}", "", table]
        advice = [f"{use.operator}: {use.advice}." for use in self.uses if use.advice]
        if self.advice_on_calls:
            advice.append(f"{self.advice_on_calls}.")
        if advice:
            lines += ["", *advice]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [
            (list_names([use]), use.status, f"{use.calls:,}", shorten(use.modules), use.advice)
            for use in self.uses
        ]
        table = Table(["operator", "status", "calls", "called by", "what to do"], rows)
        model, answer = html.escape(self.model), html.escape(self.answer)
        return f"<p><b>{model}</b>: {answer}</p>{table._repr_html_()}"


def list_names(uses: Sequence[Use]) -> str:
    """Return the names of operators, as a reader searches for them: ``add.Tensor, softmax``."""
    return ", ".join(use.operator.split("::")[1].removesuffix(".default") for use in uses)


def _describe_place(what: str, lines: Sequence[str], modules: Sequence[str]) -> str:
    """Return one line of a list of places."""
    at = ", ".join(line for line in lines if line) or "a line that is not known"
    called_by = ", ".join(name or "(the model)" for name in modules) or "(the model)"
    return f"{what}: at {at}, in {called_by}"


def shorten(modules: Sequence[str], most: int = 3) -> str:
    """Return the names of the first modules, and how many more there are."""
    names = [name or "(the model)" for name in modules]
    listed = ", ".join(names[:most])
    return f"{listed} and {len(names) - most} more" if len(names) > most else listed
