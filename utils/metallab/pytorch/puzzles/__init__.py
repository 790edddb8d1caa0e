"""Metal puzzles: a kernel with a gap, graded in one sentence, with a picture of which thread reads and writes what.

::

    twice = Puzzle("twice", lambda a: 2 * a, inputs=lambda n: [torch.randn(n)], sizes=[(8,), (33,)])
    twice.check("kernel void twice(...) { ... }")

On Linux each access is recorded by `metalsim.shader`. On an Apple or NVIDIA GPU the kernel runs as well, or on a Mac
only, and its time is compared with that of a copy.

===========  ======================================================================
``puzzle``   what is to be written, and `Puzzle.check`, which a page calls
``verdict``  what is said of a kernel: `Verdict`, `Score`
``run``      a kernel at one size
``record``   the accesses of a run, and the names of threads and places
``grade``    the first fault of a run
``draw``     its picture
===========  ======================================================================
"""

from metallab.pytorch.puzzles.puzzle import Puzzle
from metallab.pytorch.puzzles.verdict import Score, Verdict

__all__ = ["Puzzle", "Score", "Verdict"]
