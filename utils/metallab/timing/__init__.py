"""Time code so that the number is true, and say what may be concluded from it.

`measure` times one function, and `compare` several side by side, which is how a speed-up is found. `sentinel` watches
whether the machine keeps its speed, and `within` ends a sweep on a page when its time is over. Each name is used from
here: ``from metallab import timing``, then ``timing.compare``.

Two questions are kept apart. **Latency** is the time of one call whose result is waited for: every call is
synchronised. **Throughput** is the time of a call in a long row: ``block`` calls, then one synchronisation. On a device
that works while Python runs ahead the two differ.

This package knows no framework. It is given a function and, in ``on``, the device where the function runs (see
`DeviceLike`). ``on`` has no default, because forgetting to wait is the commonest mistake of a timer.

The method follows `triton.testing.do_bench`, nvbench, pyperf and `torch.utils.benchmark`: synchronise around each
sample, warm up until the times have settled, stop when the noise is known, report order statistics instead of a mean.

A number comes about in this order, a module each: ``devices`` (what is waited for), ``budget`` (how long), ``sampler``
(one sample), ``stopping`` (when there are enough), ``measuring`` (one function), ``rounds`` (which rounds of a
comparison count), ``outputs`` and ``inspections`` (did the functions return the same), ``comparing``; then what is
concluded: ``measurement``, ``sentinels``, ``verdicts`` (the rules, with each threshold) and ``comparison``. The words
are in `metallab.wording`.
"""

from metallab.timing.budget import (
    FAST,
    FULL,
    FULL_COMPARISON,
    PAGE_SENTINEL,
    SHORTEST,
    Budget,
    Clock,
    assert_time,
    shorten,
    within,
)
from metallab.timing.comparing import compare, compare_samples
from metallab.timing.comparison import Comparison, pair_samples
from metallab.timing.devices import DeviceLike, Host
from metallab.timing.load import BackgroundLoad, quiet
from metallab.timing.measurement import (
    BUSY,
    NOISY,
    UNRELIABLE,
    Measurement,
    Question,
    Size,
    noise,
)
from metallab.timing.measuring import measure, sentinel
from metallab.timing.outputs import ParityCheck, Unchecked
from metallab.timing.sentinels import Sentinel
from metallab.timing.verdicts import (
    COLD_ROUNDS,
    DRIFT,
    FAST_MODE,
    FEWEST_PAIRS,
    SIMULATED,
    SMALLEST_DIFFERENCE,
    Answer,
    Ratio,
    Reason,
    Sampling,
    Withheld,
    choose_sampling,
    crossover,
    has_drifted,
    median_interval,
    not_counted,
    verdict,
    why_withheld,
)

__all__ = [
    "BUSY",
    "COLD_ROUNDS",
    "DRIFT",
    "FAST",
    "FAST_MODE",
    "FEWEST_PAIRS",
    "FULL",
    "FULL_COMPARISON",
    "NOISY",
    "PAGE_SENTINEL",
    "SHORTEST",
    "SIMULATED",
    "SMALLEST_DIFFERENCE",
    "UNRELIABLE",
    "Answer",
    "BackgroundLoad",
    "Budget",
    "Clock",
    "Comparison",
    "DeviceLike",
    "Host",
    "Measurement",
    "ParityCheck",
    "Question",
    "Ratio",
    "Reason",
    "Sampling",
    "Sentinel",
    "Size",
    "Unchecked",
    "Withheld",
    "assert_time",
    "choose_sampling",
    "compare",
    "compare_samples",
    "crossover",
    "has_drifted",
    "measure",
    "median_interval",
    "noise",
    "not_counted",
    "pair_samples",
    "quiet",
    "sentinel",
    "shorten",
    "verdict",
    "why_withheld",
    "within",
]
