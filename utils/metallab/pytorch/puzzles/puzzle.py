"""A kernel to write, and how it is judged."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from metallab import checks, judgement, results_made
from metallab.pytorch.puzzles import draw, grade, run
from metallab.pytorch.puzzles.run import Run, write_size
from metallab.pytorch.puzzles.verdict import Score, Verdict, Wrong

if TYPE_CHECKING:
    import torch

    from metallab.device import PyTorchDevice

STUB = "your code here"
"""In a source in which this still stands nothing was written."""


def _take_no_numbers(*_size: int) -> Sequence[int]:
    return ()


def _launch_by_default(*_size: int) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Puzzle:
    """A kernel to write, and how it is judged.

    Parameters
    ----------
    name
        The kernel's name in the source. Its arguments are the result, the inputs, then the numbers.
    reference
        Input tensors -> the tensor that the kernel has to compute.
    inputs
        A size -> the input tensors.
    sizes
        Sizes that are tried, each a tuple of arguments for `inputs`, `numbers` and `launch`; the first is drawn.
    numbers
        A size -> integers after the inputs, each a ``constant long&`` of the kernel.
    launch
        A size -> ``threads`` and ``group_size``; by default a thread for each result.
    tolerance
        Largest error as a share of the expected value, or of 1 where that is smaller; with 0 the numbers have to be
        equal.
    best
        The `Score` of the best known kernel for the first size, as a tuple.
    most_reads
        More reads for each result than this, of the first input or of another of its shape, are too slow.
    steps
        Accesses to arrays of the busiest thread of the best known kernel, for the first size; twice as many are too
        slow.
    large
        The size that is timed on a GPU.
    """

    name: str
    reference: Callable[..., torch.Tensor]
    inputs: Callable[..., Sequence[torch.Tensor]]
    sizes: Sequence[tuple[int, ...]]
    numbers: Callable[..., Sequence[int]] = _take_no_numbers
    launch: Callable[..., dict[str, Any]] = _launch_by_default
    tolerance: float = 0.0
    best: tuple[float, ...] | None = None
    most_reads: float = math.inf
    steps: int | None = None
    large: tuple[int, ...] | None = None

    def check(self, source: Any, on: PyTorchDevice | None = None) -> judgement.Judgement:
        """Judge a kernel, and draw its accesses for the first size in a notebook.

        Parameters
        ----------
        source
            The Metal source. One in which the line with ``your code here`` still stands, or ``...``, is not attempted
            yet.
        on
            The page's device.

        Returns
        -------
        Judgement
            A sentence with the score and, where ``on`` is an Apple or NVIDIA GPU, with its time beside that of a copy
            of as many bytes. A kernel that does not end within `run.SECONDS` is *open*: either it never does, or this
            machine was too busy.

        Raises
        ------
        checks.WrongAnswer
            With the first thing that is wrong.
        """
        if source is ... or STUB in str(source):
            return judgement.Judgement(self.name, "not attempted", "not attempted yet")
        if not isinstance(source, str):
            kind = type(source).__name__
            raise checks.wrong_answer(self.name, f"the source is no text but a {kind}.")

        verdict = self.grade(source, show=True)
        if verdict.kind == "does not end":
            return judgement.Judgement(self.name, "open", f"open. {verdict.sentence}")
        if verdict.kind != "right":
            raise checks.wrong_answer(self.name, verdict.sentence)

        sentence = verdict.sentence
        if on is not None and on.kind != "cpu" and not on.simulated:
            sentence += f" {self._run_on_gpu(source, on)}"
        return judgement.Judgement(self.name, "right", sentence)

    def grade(self, source: str, show: bool = False) -> Verdict:
        """Return the verdict on a kernel: of the first size with a fault, its first one (`grade.judge`).

        A kernel without a fault is right, and its score is that of the first size. It is too slow after all if the
        best known one shares threadgroup memory between threads and this one does so at no size. On a Mac's GPU,
        which records no accesses, there is neither score nor that question.

        Parameters
        ----------
        source
            The Metal source.
        show
            Whether its accesses for the first size are shown in a notebook.
        """
        score: Score | None = None
        shares = False
        try:
            kernel = run.compile_kernel(source, self.name)
            for number, size in enumerate(self.sizes):
                once = self.run(source, size, kernel)
                if show and number == 0:
                    # before it is judged, because the picture shows what is wrong
                    draw.show_run(once)
                grade.judge(once)
                if number == 0:
                    score = once.score()
                shares = shares or once.shares_memory()
        except Wrong as wrong:
            return wrong.verdict

        if not run.kernel_is_simulated():
            sentence = (
                "right on this GPU; races and accesses outside of memory were not looked for."
            )
            return Verdict("right", sentence)
        return self._compare_with_best(score, shares)

    def _compare_with_best(self, score: Score | None, shares: bool) -> Verdict:
        """Return the verdict on a kernel without a fault, whose accesses were recorded, beside the best known one."""
        if self.best is None:
            return Verdict("right", f"right: {score}.", score)

        best = Score(*cast(Any, self.best))
        if best.shared and not shares:
            unused = "no thread reads in threadgroup memory what another has written, which this puzzle is about."
            return Verdict("too slow", f"right, but {unused}", score)
        if best == score:
            return Verdict("right", f"right: {score}.", score)
        return Verdict("right", f"right: {score}; best known: {best}.", score)

    def run(self, source: str, size: tuple[int, ...], kernel: Any = None) -> Run:
        """Run a kernel at one size. What cannot be compiled or called is raised as `Wrong`.

        Parameters
        ----------
        source
            The Metal source.
        size
            One of `sizes`, or another.
        kernel
            The compiled kernel, if there is one.
        """
        return Run(self, kernel or run.compile_kernel(source, self.name), source, size)

    def find_launch(self, size: tuple[int, ...], count: int) -> dict[str, Any]:
        """Return ``threads`` and ``group_size`` for a size with so many results."""
        return {"threads": count, **self.launch(*size)}

    def agrees(self, result: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
        """Return for each result, flat, whether it is right: equal, both NaN, or within the tolerance.

        An infinity has to be equal: any number would be within a share of it.
        """
        got, wanted = result.double().flatten(), expected.double().flatten()
        is_close = (got - wanted).abs() <= self.tolerance * wanted.abs().clamp(min=1.0)
        is_close &= wanted.isfinite()
        return (got == wanted) | is_close | (got.isnan() & wanted.isnan())

    # ---- on a GPU that is there

    def _run_on_gpu(self, source: str, on: PyTorchDevice) -> str:
        """Return what is said of a kernel on a real GPU: that its results are right, and its time.

        That it was not tried, and why, if it cannot be compiled for this GPU: `nvrtc` translates not all of Metal. No
        time without a `large` size. `WrongAnswer` for a wrong result there.
        """
        import torch

        from metallab.pytorch import kernels
        from metallab.pytorch.kernels import nvrtc

        compiler = nvrtc if on.kind == "cuda" else torch.mps
        try:
            kernel = getattr(compiler.compile_shader(run.HEADER + source), self.name)
        except SyntaxError as error:
            message = error.msg.replace("program_source:", "line ")
            return f"Not tried on {on.label}: {message}."
        except kernels.CannotCompile as error:  # without a part of NVIDIA's compiler
            return f"Not tried on {on.label}: {error}."

        for size in self.sizes:
            self._run_at(kernel, size, on)
        if self.large is None:
            return f"Right on {on.label}, too."
        return self._time(*self._run_at(kernel, self.large, on), on)

    def _run_at(
        self, kernel: Any, size: tuple[int, ...], on: PyTorchDevice
    ) -> tuple[Callable[[], Any], int]:
        """Run a kernel at a size on a GPU; return the call, and its arrays' bytes. `WrongAnswer` if it is wrong."""
        import torch

        inputs = [tensor.contiguous() for tensor in self.inputs(*size)]
        expected = self.reference(*inputs)
        arrays = [each.to(on.torch_device) for each in (torch.zeros_like(expected), *inputs)]
        launch = self.find_launch(size, expected.numel())
        call = functools.partial(kernel, *arrays, *self.numbers(*size), **launch)

        call()
        if not bool(self.agrees(arrays[0].cpu(), expected).all()):
            raise checks.wrong_answer(
                self.name, f"at size {write_size(size)} the result is wrong on {on.label}."
            )
        return call, sum(array.nbytes for array in arrays)

    @results_made.unheard()
    def _time(self, call: Callable[[], Any], num_bytes: int, on: PyTorchDevice) -> str:
        """Return the time of a call at the size `large` beside that of a copy that moves as many bytes, in sentences.

        The comparison is a part of the verdict, and unheard: it is no result of the page.
        """
        import torch

        from metallab import timing

        assert self.large is not None
        # a copy reads one half of the bytes and writes the other
        source = torch.empty(num_bytes // 2, dtype=torch.uint8, device=on.torch_device)
        target = torch.empty_like(source)
        # the kernel is the baseline: the sentence says how many times as fast the copy is, as memory allows no more
        compared = timing.compare(
            {self.name: call, "copy": lambda: target.copy_(source)},
            on=on,
            baseline=self.name,
            parity=timing.Unchecked("a copy gives something else, and moves as many bytes"),
            question="throughput",
            name=f"{self.name}, size {write_size(self.large)}",
        )
        return " ".join(compared.sentences)
