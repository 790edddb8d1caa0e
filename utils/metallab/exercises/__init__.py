"""What judges the answers to the exercises: a page has one line for each, ``check("13.2", my_function)``.

``page_13.py`` holds the exercises of page 13, each a function with its hint; `judging` says how they are written. Two
kinds of open questions have functions of their own: `predictions` (a guess before the measurement, then an experiment)
and `counting` (any kernel, whose accesses are counted on the simulated GPU). What depends on this machine's clock is
right or *open* there, and never wrong.
"""

from metallab.exercises.judging import check, hint
from metallab.exercises.predictions import explain, predict, reveal, time_on

__all__ = ["check", "explain", "hint", "predict", "reveal", "time_on"]
