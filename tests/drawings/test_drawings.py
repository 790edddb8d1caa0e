"""Each drawing is made without a warning, its words do not overlap, and what stands in it comes from its arguments."""

from __future__ import annotations

import itertools
import warnings
from types import SimpleNamespace

import pytest
from matplotlib import text as matplotlib_text
from matplotlib.backends.backend_agg import FigureCanvasAgg
from measurements import make_measurement

from metallab import drawings
from metallab.drawings.chip import ChipParts, GridParts
from metallab.drawings.moves import Moves
from metallab.drawings.roofs import Roof
from metallab.drawings.threads import Held, Strides
from metallab.drawings.times import CallTimes
from metallab.drawings.traces import TracedTime
from metallab.drawings.trees import ANSWERS
from metallab.roofline import Machine, Reading, Work

CPU = Machine("a CPU", overhead=3e-6, peak=120e9, bandwidth=10e9)
GPU = Machine("a GPU", overhead=20e-6, peak=40e12, bandwidth=4e12)
TIMES = CallTimes(prepare=2e-6, work=10e-6, wake=80e-6)


def measurement(name="product", seconds=1e-3):
    samples = tuple(seconds * factor for factor in (1.0, 1.02, 0.98, 1.1, 0.99))
    return make_measurement(name, samples, first_call=2 * seconds)


def reading(name, flops, moved, factor=1.0):
    work = Work(flops, moved)
    prediction = CPU.predict(work)
    return Reading(work, prediction, measurement(name, factor * prediction.seconds), 1.0)


def event(kind="op", device="mps", moved=2**20):
    return SimpleNamespace(kind=kind, device=device, bytes=moved)


STEPS = {
    "as found": [event(), event("copy", moved=384), event(device="cpu", moved=12), event("view")],
    "on the device": [event(), event(moved=0)],
}


def cube(n):
    return Work(2 * n**3, 12 * n**2)


READINGS = [
    reading("doubling", 1e7, 8e7),
    reading("layer norm", 8e7, 8e7, factor=4),
    reading("product", 1e10, 5e7),
    reading("tiny", 1e3, 1e3),
]
FIGURES = {
    "samples": (lambda: drawings.draw_samples(measurement()), "1.1 ms"),
    "chip": (
        lambda: drawings.draw_chip(
            [
                ChipParts("M1", 8, 68.3e9, "8 or 16 GB"),
                ChipParts("M4 Max", 40, 546e9, "36 to 128 GB"),
            ]
        ),
        "546 GB/s",
    ),
    "time line": (lambda: drawings.draw_time_line(TIMES), "368 µs"),
    "grid": (
        lambda: drawings.draw_grid(GridParts(4096, 256, 32, 208 * 1024, 32 * 1024)),
        "16 in the grid",
    ),
    "lines": (lambda: drawings.draw_lines(Strides({1: 1, 2: 2, 32: 32}, 32, 128)), "32 lines"),
    "occupancy": (
        lambda: drawings.draw_occupancy(
            [
                Held("simple", 24 * 1024, 8, 2048, "registers"),
                Held("shared", 32 * 1024, 1, 256, "threadgroup memory"),
            ],
            208 * 1024,
        ),
        "2048 threads",
    ),
    "one memory": (
        lambda: drawings.draw_one_memory(2**26, ['x.to("cpu")'], ["torch.from_numpy(a)"]),
        "64 MiB",
    ),
    "latency": (
        lambda: drawings.draw_latency_and_throughput(CallTimes(2e-3, 2e-3, 0.0)),
        "2.5 ms",
    ),
    "moves": (lambda: drawings.draw_moves(Moves(10 * 2**20, 3096, 20, 3)), "10 MiB"),
    "ways out": (
        lambda: drawings.draw_ways_out({each.name: f"of {each.name}" for each in ANSWERS}),
        "of refused",
    ),
    "roofline": (lambda: drawings.draw_roofline(CPU, READINGS), "layer norm"),
    "chips": (
        lambda: drawings.draw_roofs_of_chips(
            [Roof("M1", 2.6e12, 68e9), Roof("M5 Max, units", 58e12, 614e9, has_matrix_units=True)],
            {"doubling": 0.125, "decode": 1.0, "product": 85.0},
        ),
        "decode",
    ),
    "crossover": (
        lambda: drawings.draw_crossover(
            [CPU, GPU], cube, [{64: 4e-6, 512: 2e-3}, {64: 2e-5, 512: 3e-5}], 107
        ),
        "n = 107",
    ),
    "steps": (lambda: drawings.draw_steps(STEPS, "a GPU"), "copy between the two: 1"),
    "traced": (
        lambda: drawings.draw_traced_times({"as found": TracedTime(0.01, 2.5e-3)}, "a GPU"),
        "2.5 ms without",
    ),
}


def test_the_numbers_of_calls_on_one_place_do_not_lie_on_each_other():
    figure = drawings.draw_roofline(CPU, [READINGS[0]] * 3)
    FigureCanvasAgg(figure).draw()
    numbers = [text for axes in figure.axes for text in axes.texts]
    boxes = [text.get_window_extent() for text in numbers]

    assert [text.get_text() for text in numbers] == ["1", "2", "3"]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


@pytest.fixture(params=FIGURES, scope="module")
def drawn(request):
    """A figure, drawn once for all tests, and a word that has to come from its arguments."""
    make, word = FIGURES[request.param]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = make()
        FigureCanvasAgg(figure).draw()
    return figure, word


def words_in(figure):
    """What is seen: a tick outside of the view has a label, too."""
    unseen = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
        unseen |= {tick.label1 for tick in ticks if not low <= tick.get_loc() <= high}

    found = set(figure.findobj(matplotlib_text.Text)) - unseen
    return [each for each in found if each.get_visible() and each.get_text().strip()]


def test_there_is_one_for_each_that_is_offered():
    assert len(FIGURES) == len(drawings.__all__)


def test_words_and_numbers_come_from_the_arguments(drawn):
    figure, word = drawn
    shown = " ".join(each.get_text() for each in words_in(figure))
    assert word in shown or word in figure.get_label()


def test_a_drawing_is_told_to_whoever_cannot_see_it(drawn):
    figure, _ = drawn
    assert figure.get_label()


def test_no_words_overlap(drawn):
    figure, _ = drawn
    renderer = figure.canvas.get_renderer()
    places = [(each.get_text(), each.get_window_extent(renderer)) for each in words_in(figure)]

    overlapping = [
        (one, other)
        for (one, first), (other, second) in itertools.combinations(places, 2)
        if first.shrunk(0.9, 0.7).overlaps(second.shrunk(0.9, 0.7))
    ]
    assert overlapping == []


def is_cut_off(word, figure) -> bool:
    """Return whether a word reaches beyond its figure, to the left or to the right."""
    extent = word.get_window_extent(figure.canvas.get_renderer())
    return extent.x0 < figure.bbox.x0 - 1 or extent.x1 > figure.bbox.x1 + 1


def test_no_words_are_cut_off(drawn):
    """Asked are those that are placed in the figure, and those of several lines."""
    figure, _ = drawn
    words = [
        each
        for each in words_in(figure)
        if each.get_transform() == figure.transFigure or "\n" in each.get_text()
    ]
    assert [each.get_text() for each in words if is_cut_off(each, figure)] == []


def test_a_prediction_that_failed_is_a_hollow_point():
    axes = drawings.draw_roofline(CPU, READINGS).axes[0]
    faces = [line.get_markerfacecolor() for line in axes.lines if line.get_marker() == "o"]
    assert [face == "white" for face in faces] == [False, True, False, False]


def test_a_chain_of_calls_waits_once():
    """Four calls of 10 µs behind the first preparation, and one wait of 80."""
    figure = drawings.draw_time_line(TIMES)
    assert "122 µs" in figure.get_label()


def test_a_step_is_drawn_without_views_and_each_copy_as_a_line():
    found, _ = drawings.draw_steps(STEPS, "a GPU").axes
    assert len(found.patches) == 2, "an operator on either device"
    assert len(found.lines) == 1


def test_a_step_that_moves_nothing_is_drawn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = drawings.draw_steps({"empty": [event(moved=0)]}, "a GPU")
    assert "0 B" in figure.get_label()
