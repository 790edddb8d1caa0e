"""How many times as fast, with an interval that is honest about both levels: rounds within pairs, pairs of processes.

**What varies.** A process keeps for its life where the system put its memory and what its neighbours are, so all its
times are off together (Mytkowicz and others, *Producing wrong data without doing anything obviously wrong!*, 2009).
More rounds of one pair of processes say nothing about that. So advise Kalibera and Jones, *Rigorous benchmarking in
reasonable time* (2013): repeat at the highest level that varies, and compute the interval from that level. Here each
pair of processes counts once, with the median of its rounds' logarithms of time(A) / time(B). Noise of rounds is in
that number together with noise of processes, so the spread of pairs holds both.

**The interval** is Tukey's, of the signed-rank test: the pairs' numbers and all means of two of them, in order, and of
these the k-th smallest and largest (Hollander, Wolfe and Chicken, *Nonparametric Statistical Methods*, section 3.3).
It is exact for whatever distribution, if that is symmetric about the truth. Which it is: both sides of a pair are
processes of one machine, in random order, so where B takes f times as long as A and is otherwise like it, log f is
added to the difference of two numbers that could be exchanged. Normal noise is not needed, nor that processes come in
one kind. Where B's noise is of another shape than A's, the interval is of the pseudo-median.

**Looking several times** would find a difference by chance sooner or later. So there are at most `LOOKS` looks, at
numbers of pairs that are fixed beforehand or where the budget ends, and each has its share of the 5 % (Bonferroni): the
five intervals of 99 % all hold the truth with at least 95 %, whichever of them is the last.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import statistics
from collections.abc import Sequence

from metallab.timing import Ratio, Sampling

LOOKS = (8, 12, 18, 27, 40)
"""Numbers of pairs at which the interval is looked at. With fewer than eight pairs none has 99 %."""
CONFIDENCE = 0.95


PROCESSES = Sampling("pair of processes", "pairs of processes", fewest=LOOKS[0], digits=3)
"""Each pair is one process of A and one of B."""


def interval(logs: Sequence[float]) -> Ratio:
    """Return how many times as fast B is, 1.1 if A takes 1.1 times B's time, with its 95 % interval over all looks.

    ``logs`` are log(time(A) / time(B)), one from each pair of processes; fewer than eight give no ends.

    ``median`` is that of the same means (Hodges and Lehmann, 1963). ValueError if there is no pair.
    """
    if not logs:
        raise ValueError("an interval needs a pair of processes at least")

    means = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(logs, 2))
    speed = math.exp(statistics.median(means))
    k = _rank(len(logs), (1 - CONFIDENCE) / len(LOOKS))
    low, high = (math.exp(means[k - 1]), math.exp(means[-k])) if k else (0.0, math.inf)

    ratios = tuple(map(math.exp, logs))
    return Ratio("B", "A", speed, low, high, len(logs), ratios, sampling=PROCESSES)


@functools.cache
def _rank(pairs: int, risk: float) -> int:
    """Return the largest k whose k-th smallest and largest mean miss the truth with at most this risk, or 0."""
    counts = [1]  # of the signs of the ranks 1 to n, how many give each sum of the positive ones
    for rank in range(1, pairs + 1):
        zeros = list(itertools.repeat(0, rank))
        negative, positive = [*counts, *zeros], [*zeros, *counts]
        counts = list(map(operator.add, negative, positive))

    both_ends = (2 * count for count in itertools.accumulate(counts))
    return sum(1 for _ in itertools.takewhile(lambda count: count <= risk * 2**pairs, both_ends))
