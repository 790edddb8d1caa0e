"""Any kernel is accepted that is right and touches no more memory than asked: it is counted on the simulated GPU.

A page's exercise names a puzzle (`metallab.pytorch.puzzles.Puzzle`), which compiles a kernel, runs it at several sizes
and compares; and what is counted of each run, such as `count_lines`::

    @exercise("25.1", hint="which thread reads the number beside this one?")
    def judge_row_sums(source, launch):
        return judge_count(ROW_SUMS, source, count_lines, most=2, launch=launch)

A count is the same on every machine, so too much is *wrong*, like a wrong result, and says how much it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from metallab import isolated
from metallab.exercises.judging import NotAttempted, Right
from metallab.pytorch import gpu_counts, puzzles
from metallab.pytorch.puzzles.run import Run, kernel_is_simulated

Count = Callable[[Run], float]
"""What is counted of a run."""


def judge_count(
    puzzle: puzzles.Puzzle,
    source: Any,
    count: Count,
    *,
    most: float,
    launch: Callable[..., dict[str, Any]] | None = None,
) -> Right | isolated.Skipped:
    """Judge a kernel by its results, and by what is counted.

    Parameters
    ----------
    puzzle
        What the kernel has to compute, at several sizes.
    source
        The learner's kernel, as Metal text; one in which ``your code here`` stands is not attempted yet.
    count
        What is counted of each run; its docstring says in its first line what that is.
    most
        The largest count that is accepted.
    launch
        A size to ``threads`` and ``group_size``, if the learner chooses them; by default the puzzle's.

    Returns
    -------
    Right or isolated.Skipped
        With the largest count; skipped where kernels run on a real GPU, which counts nothing.

    Raises
    ------
    AssertionError
        With the first thing that is wrong with the kernel, or with what is counted.
    NotAttempted
        If the source is still the stub of the page.
    """
    if source is ... or "your code here" in str(source):
        raise NotAttempted
    if not isinstance(source, str):
        raise AssertionError(f"the source is no text but a {type(source).__name__}")
    if not kernel_is_simulated():
        return isolated.Skipped("accesses are counted on the simulated GPU, on Linux")

    asked = dataclasses.replace(puzzle, launch=launch) if launch is not None else puzzle
    verdict = asked.grade(source)
    if verdict.kind != "right":
        raise AssertionError(verdict.sentence)

    counted = max(count(asked.run(source, size)) for size in asked.sizes)
    what = (count.__doc__ or "it counts").splitlines()[0].rstrip(".").removeprefix("Return ")
    if counted > most:
        raise AssertionError(
            f"the results are right; {what}: counted {counted:.3g}, expected at most {most:g}"
        )
    return Right(f"The results agree at each size; {what}: {counted:.3g}.")


def count_lines(run: Run) -> float:
    """Return how many lines of 128 bytes a SIMD-group's read of the inputs touches, on average.

    Parameters
    ----------
    run
        A run on the simulated GPU, which recorded each access.

    Returns
    -------
    float
        1 if the 32 threads read 32 numbers of 4 bytes side by side; 32 if each reads from a line of its own; 0 if
        nothing is read. The result's own memory is left out, and so is threadgroup memory.
    """
    if run.record is None:
        raise ValueError("nothing is counted on a real GPU: run it on the simulated one")

    accesses = run.record.accesses
    inputs = range(1, len(run.arrays))
    if not gpu_counts.has_reads(accesses, *inputs):
        return 0.0
    return gpu_counts.lines_a_read(accesses, *inputs)
