"""Pictures say what they show: device, units, intervals, and what is withheld."""

from __future__ import annotations

import base64
import dataclasses
import gc
import io
import itertools
import math
import pickle
from collections.abc import Iterator
from html.parser import HTMLParser

import nbformat
import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.pylabtools import select_figure_formats
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.collections import PathCollection
from measurements import make_measurement

from metallab import isolated, paths, plots
from metallab.timing import (
    SIMULATED,
    Comparison,
    Ratio,
    Reason,
    Sentinel,
    Withheld,
)


def measurement(name="a", samples=(1e-3, 2e-3, 3e-3), simulated=False, device="Chip X"):
    return make_measurement(name, samples, simulated=simulated, device=device)


def comparison(ratio=None, withheld=None):
    measured = {name: measurement(name) for name in ("base", "other")}
    ratios = {"other": ratio} if ratio else {}
    return Comparison("softshrink", "latency", "base", measured, ratios, withheld or {}, "checked")


def with_measurements(made, **changes):
    """The comparison with the same changes of each of its measurements."""
    changed = {n: dataclasses.replace(m, **changes) for n, m in made.measurements.items()}
    return dataclasses.replace(made, measurements=changed)


def texts(figure):
    return [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]


def ratio(median, *, low, high, n=24):
    return Ratio("other", "base", median, low, high, n)


def drawn_intervals(figure):
    """The two ends of each interval that a figure of speed-ups draws."""
    lines = [line for bars in figure.axes[0].containers for line in bars[2]]
    segments = [segment for line in lines for segment in line.get_segments()]
    return [(start[0], end[0]) for start, end in segments]


@pytest.mark.parametrize(
    ("median", "low", "high", "verdict"),
    [
        pytest.param(2.0, 1.5, 2.5, "faster", id="faster"),
        pytest.param(0.7, 0.5, 0.9, "slower", id="slower"),
        pytest.param(2.0, 0.9, 2.5, "inconclusive", id="inconclusive"),
        pytest.param(1.0, 0.995, 1.005, "same", id="same"),
    ],
)
def test_a_speed_up_is_drawn_with_its_interval_and_its_verdict(median, low, high, verdict):
    figure = plots.speedups([comparison(ratio(median, low=low, high=high))])
    assert drawn_intervals(figure) == [pytest.approx((low, high))]
    assert any(verdict in text for text in texts(figure))


def test_a_speed_up_without_an_interval_has_none_drawn():
    figure = plots.speedups([comparison(ratio(2.0, low=0, high=math.inf))])
    assert drawn_intervals(figure) == []
    assert any("inconclusive" in text for text in texts(figure))


def test_too_few_pairs_are_not_given_a_verdict():
    few = Ratio("other", "base", 0.05, 0.0, math.inf, 3, (0.05, 0.04, 0.06))
    shown = texts(plots.speedups([comparison(few)]))
    assert "0.05, inconclusive: 3 pairs; an interval needs 6" in shown


FASTER = comparison(ratio(2.0, low=1.5, high=2.5))
WITHHELD = {
    Reason.OUTPUTS_DIFFER: comparison(withheld={"other": Withheld(Reason.OUTPUTS_DIFFER, "by 3")}),
    Reason.BUSY_MACHINE: with_measurements(FASTER, others=1.0),
    Reason.DRIFTED: dataclasses.replace(
        FASTER, sentinels=(Sentinel(measurement(), measurement(samples=(2e-3, 4e-3, 6e-3))),)
    ),
}
"""A comparison for each reason to withhold its speed-up."""


@pytest.mark.parametrize(("reason", "doubtful"), WITHHELD.items(), ids=WITHHELD)
def test_where_a_speed_up_is_withheld_its_reason_stands_in_place_of_the_bar(reason, doubtful):
    figure = plots.speedups([doubtful])
    assert Withheld(reason).label in texts(figure)
    assert not figure.axes[0].containers
    assert "2.00" not in " ".join(texts(figure)) + figure.get_label()


def test_where_no_speed_up_is_given_the_times_are_drawn_and_marked():
    figure = plots.speedups([with_measurements(FASTER, others=1.0)])
    assert texts(figure).count("2 ms") == 2, "the medians of both"
    assert Withheld(Reason.BUSY_MACHINE).label in texts(figure)
    assert "BUSY" in figure.get_suptitle()


def test_simulated_times_are_not_drawn_where_no_speed_up_is_given():
    made = comparison(withheld={"other": SIMULATED})
    figure = plots.speedups([with_measurements(made, simulated=True)])
    assert not any(axes.axison for axes in figure.axes)
    assert "2 ms" not in " ".join(texts(figure))


def draw_a_curve(measured):
    return plots.curves({"a": {1: measured}}, xlabel="n", heading="product")


def draw_stages(measured):
    return plots.stages({"p": {"infer": measured, "total": measured}})


@pytest.mark.parametrize("draw", [draw_a_curve, draw_stages])
def test_times_of_a_busy_machine_say_so_in_the_title(draw):
    title = draw(dataclasses.replace(measurement(), others=1.0)).get_suptitle()
    assert "BUSY MACHINE" in title.replace("\n", " ")


@pytest.mark.parametrize("draw", [draw_a_curve, draw_stages])
def test_times_of_a_quiet_machine_have_no_warning_in_the_title(draw):
    assert "BUSY" not in draw(measurement()).get_suptitle()


def test_points_without_a_speed_up_are_hollow():
    at = {n: measurement() for n in (1, 2, 8)}
    lines = {"short": at, "whole": at | {4: measurement()}}
    (axes,) = plots.curves(lines, xlabel="n", heading="x", withheld=[4, 8]).axes

    assert [list(line.get_xdata()) for line in axes.lines] == [[1, 2, 8], [1, 2, 4, 8]]
    (hollow,) = (each for each in axes.collections if isinstance(each, PathCollection))
    assert sorted(x for x, _ in hollow.get_offsets()) == [4, 8, 8]
    assert hollow.get_label() == "no speed-up is given here"


def test_a_curve_with_speed_ups_throughout_has_no_hollow_points():
    figure = plots.curves({"a": {1: measurement(), 2: measurement()}}, xlabel="n", heading="x")
    assert not any(isinstance(each, PathCollection) for each in figure.axes[0].collections)


def test_a_simulated_device_is_named_so_in_every_title():
    fake = measurement(simulated=True, device="simulated Apple GPU")
    figure = plots.curves({"a": {1: fake, 2: fake}}, xlabel="n", heading="product")
    assert "SIMULATED: simulated Apple GPU" in figure.get_suptitle()


# --- as a notebook shows them ---


@pytest.fixture
def notebook() -> Iterator[InteractiveShell]:
    """IPython with the settings that matplotlib makes in a notebook."""
    shell = InteractiveShell.instance()
    select_figure_formats(shell, {"png"}, bbox_inches="tight")
    yield shell
    InteractiveShell.clear_instance()


class Images(HTMLParser):
    """The attributes of each picture in a piece of HTML."""

    def __init__(self, html):
        super().__init__()
        self.found = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        if tag == "img":
            self.found.append(dict(attributes))


def the_image(data):
    (image,) = Images(data["text/html"]).found
    return image


def small_figure(words="a line"):
    figure, axes = plots.plt.subplots(figsize=(2, 1))
    axes.plot([1, 2])
    return plots.describe(figure, words)


def small_multiples():
    return plots.multiples(lambda _: small_figure(), [1])


@pytest.mark.parametrize("make", [small_figure, small_multiples])
def test_a_notebook_gets_one_picture_as_html_with_words_and_as_a_png(notebook, make):
    data, metadata = notebook.display_formatter.format(make())
    image = the_image(data)
    assert image["alt"] == "a line"
    assert image["src"] == f"data:image/png;base64,{data['image/png']}"
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert metadata["image/png"]["alt"] == "a line"


def test_words_of_a_figure_begin_with_its_title():
    figure = plots.curves({"a": {8: measurement()}}, xlabel="n", heading="Work")
    words = the_image(figure._repr_mimebundle_()[0])["alt"]
    assert words.startswith("Work, Chip X. ")
    assert words.endswith(" time a call over n: a: 2 ms at 8 [unreliable, few samples]")


@pytest.mark.parametrize(
    "words",
    ['"><script>go()</script>', "a < b & 'c' > \"d\"", "&lt;"],
    ids=["tag", "signs", "entity"],
)
def test_words_stay_words(notebook, words):
    data, metadata = notebook.display_formatter.format(small_figure(words))
    assert the_image(data)["alt"] == words
    assert metadata["image/png"]["alt"] == words
    assert "<script" not in data["text/html"]


@pytest.fixture
def drawings(monkeypatch) -> list[int]:
    """A list that grows by one whenever a figure is drawn."""
    drawn = []
    draw = FigureCanvasBase.print_figure
    monkeypatch.setattr(
        FigureCanvasBase, "print_figure", lambda *a, **k: drawn.append(1) or draw(*a, **k)
    )
    return drawn


def test_a_figure_is_drawn_once_for_both_forms_in_which_it_is_shown(notebook, drawings):
    notebook.display_formatter.format(small_figure())
    assert len(drawings) == 1


def test_a_figure_that_is_shown_again_shows_what_was_drawn_since(notebook, drawings):
    figure = small_figure()
    first, _ = notebook.display_formatter.format(figure)
    figure.axes[0].plot([2, 1])
    second, _ = notebook.display_formatter.format(figure)

    assert first["image/png"] != second["image/png"]
    assert len(drawings) == 2


def test_another_figure_is_shown_as_ever_after_one_with_words_is_gone(notebook):
    printers = notebook.display_formatter.formatters["image/png"].singleton_printers
    figure = small_figure()
    notebook.display_formatter.format(figure)
    assert id(figure) in printers
    del figure
    gc.collect()
    assert not printers


def width_of(data):
    """In pixels."""
    return plots.plt.imread(io.BytesIO(base64.b64decode(data["image/png"]))).shape[1]


def test_a_figure_keeps_its_size_on_a_sharp_screen(notebook):
    usual, _ = notebook.display_formatter.format(small_figure())
    select_figure_formats(notebook, {"retina"}, bbox_inches="tight")
    data, metadata = notebook.display_formatter.format(small_figure())

    assert width_of(data) > 1.9 * width_of(usual)
    assert int(the_image(data)["width"]) == width_of(data) // 2
    assert metadata["image/png"]["width"] == width_of(data) // 2
    assert metadata["image/png"]["alt"] == "a line"


def test_a_notebook_set_to_svg_shows_svg_with_words(notebook):
    select_figure_formats(notebook, {"svg"}, bbox_inches="tight")
    data, metadata = notebook.display_formatter.format(small_figure())
    image = the_image(data)
    kind, _, encoded = image["src"].partition(";base64,")

    assert kind == "data:image/svg+xml"
    assert base64.b64decode(encoded).decode() == data["image/svg+xml"]
    assert image["alt"] == "a line"
    assert metadata["image/svg+xml"]["alt"] == "a line"


def test_a_figure_has_its_picture_outside_of_a_notebook():
    data, _ = DisplayFormatter().format(small_figure())
    assert the_image(data)["src"].endswith(data["image/png"])


def test_a_reason_is_a_picture_too(notebook):
    data, _ = notebook.display_formatter.format(plots.reason("no GPU"))
    assert the_image(data)["alt"] == "no GPU"


def test_a_figure_with_words_goes_through_pickle():
    copy = pickle.loads(pickle.dumps(small_figure()))
    assert the_image(copy._repr_mimebundle_()[0])["alt"] == "a line"


def draw_losses(scale):
    """Losses, or a figure without words where the scale is 0."""
    if scale == 0:
        return plots.plt.subplots(figsize=(2, 1))[0]
    return plots.losses({"a": [[scale, 1.0]]}, device="Chip X")


@pytest.fixture(scope="module")
def three_multiples():
    return plots.multiples(draw_losses, [8.0, 0, 1.0])


def test_multiples_are_one_picture_in_rows_of_two(three_multiples):
    pixels = plots.plt.imread(io.BytesIO(three_multiples.data))
    height, width, _ = pixels.shape
    ink = pixels[..., :3].min(axis=2) < 0.9

    assert ink[: height // 2, : width // 2].any()
    assert ink[height // 2 :, : width // 2].any()
    assert not ink[height // 2 :, width // 2 :].any(), "there is no fourth"


def test_multiples_have_the_words_of_all_and_one_without_words_its_value(three_multiples):
    words = "median training loss at the end: a: 1"
    first, second = three_multiples.words.split(" 0 ")
    assert first.endswith(words)
    assert second.endswith(words)


# --- what each shows ---


def stages(**seconds):
    """Stages that take so many seconds each."""
    return {name: measurement(name, (value,)) for name, value in seconds.items()}


@pytest.fixture(scope="module")
def two_bars():
    left = stages(load=1e-3, compute=3e-3, total=4e-3)
    right = stages(load=2e-3, total=2e-3)
    return plots.stages({"left": left, "right": right})


def place_and_length(bars):
    return [(pytest.approx(bar.get_x()), pytest.approx(bar.get_width())) for bar in bars]


def test_stages_are_pieces_of_a_bar_as_long_as_their_medians(two_bars):
    load, compute = two_bars.axes[0].containers
    assert load.get_label() == "load"
    assert place_and_length(load) == [(0, 1), (0, 2)]
    assert compute.get_label() == "compute"
    assert place_and_length(compute) == [(1, 3), (2, 0)]


def test_a_picture_of_stages_names_its_bars_its_unit_and_its_device(two_bars):
    labels = two_bars.axes[0].get_yticklabels()
    shown = " ".join(texts(two_bars))
    assert [label.get_text() for label in labels] == ["left", "right"]
    assert "[ms]" in shown
    assert "Chip X" in shown


def test_words_of_stages_have_their_times(two_bars):
    words = "left: load 1 ms, compute 3 ms, total 4 ms; right: load 2 ms"
    assert words in two_bars.get_label()


@pytest.fixture(scope="module")
def two_losses():
    runs = {"float32": [[2.0, 1.0], [4.0, 0.5], [3.0, 0.8]], "bf16": np.array([[3.0, 1.5]])}
    return plots.losses(runs, device="Chip X")


def test_losses_are_a_line_of_medians_and_a_band_over_seeds(two_losses):
    (axes,) = two_losses.axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[3.0, 0.8], [3.0, 1.5]]
    band = axes.collections[0].get_paths()[0].get_extents()
    assert band.ymin == 0.5
    assert band.ymax == 4.0


def test_a_picture_of_losses_names_its_lines_and_its_device(two_losses):
    legend = two_losses.axes[0].get_legend().get_texts()
    assert [text.get_text() for text in legend] == ["float32", "bf16"]
    assert "Chip X" in two_losses.get_suptitle()


def test_words_of_losses_have_the_last_of_each_line(two_losses):
    words = "median training loss at the end: float32: 0.8; bf16: 1.5"
    assert two_losses.get_label() == words


NO_GPU = isolated.Skipped("no GPU")


@pytest.mark.parametrize(
    ("runs", "device"),
    [
        pytest.param({"CPU": [NO_GPU], "GPU": [NO_GPU]}, NO_GPU, id="nothing"),
        pytest.param({"GPU": [[2.0, 1.0], NO_GPU]}, "Chip X", id="not the second seed"),
    ],
)
def test_a_picture_of_what_was_not_made_says_why(runs, device):
    assert plots.losses(runs, device=device).get_label() == "Nothing to show: no GPU."


def test_a_picture_of_losses_leaves_out_a_device_that_was_skipped():
    some = plots.losses({"CPU": [[2.0, 1.0]], "GPU": [NO_GPU]}, device="Chip X")
    assert some.get_label() == "median training loss at the end: CPU: 1"


@pytest.mark.parametrize("nowhere", [0, -4, math.nan])
def test_no_point_is_lost_beside_a_logarithmic_axis(nowhere):
    with pytest.raises(ValueError, match=r"'a' at .* no place on a logarithmic axis"):
        plots.curves(
            {"a": {nowhere: measurement(), 1: measurement()}}, xlabel="n", heading="product"
        )


def test_the_axis_names_small_speed_ups_as_fractions():
    figure = plots.speedups([comparison(ratio(1 / 70, low=1 / 75, high=1 / 66, n=6))])
    figure.draw_without_rendering()
    assert "1/64" in texts(figure)


def test_words_beside_a_speed_up_end_within_the_picture():
    figure = plots.speedups([comparison(ratio(400.0, low=360.0, high=440.0))])
    figure.draw_without_rendering()
    (words,) = figure.axes[0].texts
    assert words.get_window_extent().x1 <= figure.bbox.x1


DRAWING = [path for path in paths.NOTEBOOKS.glob("*.ipynb") if "pyplot" in path.read_text("utf-8")]


@pytest.mark.parametrize("path", DRAWING, ids=lambda path: path.stem)
def test_a_page_that_draws_uses_the_style_of_all_pictures(path):
    cells = [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    first = next(source for source in cells if "pyplot" in source)
    assert 'plt.style.use("metallab.style")' in first


def test_the_style_has_the_colours_of_the_library():
    assert plots.STYLE["axes.prop_cycle"].by_key()["color"] == list(plots.COLOURS)


@pytest.mark.parametrize(
    "samples",
    [
        pytest.param((0.09, 0.1, 0.15), id="less-than-a-decade"),
        pytest.param((14e-6, 40e-6, 97e-6), id="a-decade"),
        pytest.param((2e-3, 2e-2, 0.2), id="two-decades"),
    ],
)
def test_labels_of_times_do_not_touch(samples):
    """On the axis of a picture of times, which stands in place of speed-ups where all are withheld."""
    seconds = dict(zip(("base", "second", "other"), samples, strict=True))
    compared = comparison(withheld={name: Withheld(Reason.FAST_MODE) for name in seconds})
    measured = {name: measurement(name, (time,) * 3) for name, time in seconds.items()}
    figure = plots.speedups([dataclasses.replace(compared, measurements=measured)])
    figure.canvas.draw()  # places the labels

    axis = figure.axes[0].xaxis
    labels = [label for label in axis.get_ticklabels(which="both") if label.get_text()]
    low, high = sorted(axis.get_view_interval())
    boxes = sorted(
        (label.get_window_extent() for label in labels if low <= label.get_position()[0] <= high),
        key=lambda box: box.x0,
    )

    assert boxes
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))
