"""Drawings for pages: one function a figure, in the style of `metallab.plots`.

A drawing explains, where a plot shows results: boxes for a chip's parts, a time line, a roofline. What stands in it
comes from the arguments, so that a page draws what it has just counted or measured. Each function returns the figure
with words for whoever cannot see it; the page's caption says what to look for.
"""

from metallab.drawings.chip import draw_chip, draw_grid, draw_one_memory
from metallab.drawings.moves import draw_moves
from metallab.drawings.roofs import draw_crossover, draw_roofline, draw_roofs_of_chips
from metallab.drawings.threads import draw_lines, draw_occupancy
from metallab.drawings.times import draw_latency_and_throughput, draw_samples, draw_time_line
from metallab.drawings.traces import draw_steps, draw_traced_times
from metallab.drawings.trees import draw_ways_out

__all__ = [
    "draw_chip",
    "draw_crossover",
    "draw_grid",
    "draw_latency_and_throughput",
    "draw_lines",
    "draw_moves",
    "draw_occupancy",
    "draw_one_memory",
    "draw_roofline",
    "draw_roofs_of_chips",
    "draw_samples",
    "draw_steps",
    "draw_time_line",
    "draw_traced_times",
    "draw_ways_out",
]
