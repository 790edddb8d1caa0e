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

from metallab import isolated, paths, plots
from metallab.timing import (
    SIMULATED,
    Comparison,
    Measurement,
    Ratio,
    Reason,
    Sentinel,
    Withheld,
)


def measurement(name="a", samples=(1e-3, 2e-3, 3e-3), simulated=False, device="Chip X"):
    return Measurement(name, "latency", samples, 0.1, 1, 3, "quiet", "full", device, simulated)


def comparison(ratio=None, withheld=None):
    measured, ratios = (
        {name: measurement(name) for name in ("base", "other")},
        {"other": ratio} if ratio else {},
    )
    return Comparison("softshrink", "latency", "base", measured, ratios, withheld or {}, "checked")


def texts(figure):
    return [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.5, 2.5, "faster"),
        (0.5, 0.9, "slower"),
        (0.9, 2.5, "inconclusive"),
        (0.995, 1.005, "same"),
        (0, math.inf, "inconclusive"),
    ],
)
def test_speedups_draw_the_interval_and_say_the_verdict(low, high, verdict):
    ratio = Ratio("other", "base", {"slower": 0.7, "same": 1.0}.get(verdict, 2.0), low, high, 24)
    figure = plots.speedups([comparison(ratio)])
    assert any(verdict in text for text in texts(figure))
    drawn = [
        segment
        for bars in figure.axes[0].containers
        for line in bars[2]
        for segment in line.get_segments()
    ]
    if math.isfinite(high):
        assert [tuple(point[0] for point in segment) for segment in drawn] == [
            pytest.approx((low, high))
        ]
    else:
        assert not drawn


def test_too_few_pairs_are_not_given_a_verdict():
    few = Ratio("other", "base", 0.05, 0.0, math.inf, 3, (0.05, 0.04, 0.06))
    assert "0.05, inconclusive: 3 pairs; an interval needs 6" in texts(
        plots.speedups([comparison(few)])
    )


def test_what_is_in_doubt_is_not_drawn():
    """Outputs that differ, a busy machine, a sentinel that drifted: the reason stands where the bar would."""
    fine = comparison(Ratio("other", "base", 2.0, 1.5, 2.5, 24))
    busy = {name: dataclasses.replace(m, others=1.0) for name, m in fine.measurements.items()}
    drifted = Sentinel(measurement(), measurement(samples=(2e-3, 4e-3, 6e-3)))
    for doubtful, reason in (
        (
            comparison(withheld={"other": Withheld(Reason.OUTPUTS_DIFFER, "by 3")}),
            Reason.OUTPUTS_DIFFER,
        ),
        (dataclasses.replace(fine, measurements=busy), Reason.BUSY_MACHINE),
        (dataclasses.replace(fine, sentinels=(drifted,)), Reason.DRIFTED),
    ):
        figure = plots.speedups([doubtful])
        assert Withheld(reason).label in texts(figure)
        assert not figure.axes[0].containers
        assert "2.00" not in " ".join(texts(figure)) + figure.get_label()


def test_where_no_speed_up_is_given_the_times_are_drawn_and_marked():
    made = comparison(Ratio("other", "base", 2.0, 1.5, 2.5, 24))
    busy = {name: dataclasses.replace(m, others=1.0) for name, m in made.measurements.items()}
    figure = plots.speedups([dataclasses.replace(made, measurements=busy)])
    assert texts(figure).count("2 ms") == 2, "the medians of both"
    assert Withheld(Reason.BUSY_MACHINE).label in texts(figure)
    assert "BUSY" in figure.get_suptitle()


def test_simulated_times_are_not_drawn_where_no_speed_up_is_given():
    made = comparison(withheld={"other": SIMULATED})
    imitated = {n: dataclasses.replace(m, simulated=True) for n, m in made.measurements.items()}
    figure = plots.speedups([dataclasses.replace(made, measurements=imitated)])
    assert not any(axes.axison for axes in figure.axes)
    assert "2 ms" not in " ".join(texts(figure))


def test_times_of_a_busy_machine_say_so_in_the_title():
    busy = dataclasses.replace(measurement(), others=1.0)
    made = [lambda all: plots.curves({"a": dict(enumerate(all, 1))}, xlabel="n", heading="product")]
    for draw in [*made, lambda all: plots.stages({"p": {"infer": all[0], "total": all[0]}})]:
        assert "BUSY MACHINE: other programs ran meanwhile" in draw([busy]).get_suptitle().replace(
            "\n", " "
        )
        assert "BUSY" not in draw([measurement()]).get_suptitle()


def test_points_without_a_speed_up_are_hollow():
    at = {n: measurement() for n in (1, 2, 8)}
    lines = {"short": at, "whole": at | {4: measurement()}}
    figure = plots.curves(lines, xlabel="n", heading="x", withheld=[4, 8])
    (axes,) = figure.axes
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


def test_a_figure_is_drawn_once_each_time_it_is_shown(notebook, monkeypatch):
    drawn = []
    draw = FigureCanvasBase.print_figure
    monkeypatch.setattr(
        FigureCanvasBase, "print_figure", lambda *a, **k: drawn.append(1) or draw(*a, **k)
    )
    figure = small_figure()
    first, _ = notebook.display_formatter.format(figure)
    assert len(drawn) == 1
    figure.axes[0].plot([2, 1])
    second, _ = notebook.display_formatter.format(figure)
    assert len(drawn) == 2
    assert first["image/png"] != second["image/png"], "it shows what was drawn since"


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
    assert int(the_image(data)["width"]) == metadata["image/png"]["width"] == width_of(data) // 2
    assert metadata["image/png"]["alt"] == "a line"


def test_a_notebook_set_to_svg_shows_svg_with_words(notebook):
    select_figure_formats(notebook, {"svg"}, bbox_inches="tight")
    data, metadata = notebook.display_formatter.format(small_figure())
    image = the_image(data)
    kind, _, encoded = image["src"].partition(";base64,")
    assert (kind, image["alt"]) == ("data:image/svg+xml", "a line")
    assert base64.b64decode(encoded).decode() == data["image/svg+xml"]
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


def test_multiples_are_one_picture_with_the_words_of_all():
    def draw(scale):
        return (
            plots.losses({"a": [[scale, 1.0]]}, device="Chip X")
            if scale
            else plots.plt.subplots(figsize=(2, 1))[0]
        )

    made = plots.multiples(draw, [8.0, 0, 1.0])
    pixels = plots.plt.imread(io.BytesIO(made.data))
    (height, width, _), ink = pixels.shape, pixels[..., :3].min(axis=2) < 0.9
    assert ink[: height // 2, : width // 2].any()
    assert ink[height // 2 :, : width // 2].any()
    assert not ink[height // 2 :, width // 2 :].any(), "there is no fourth"
    words = "median training loss at the end: a: 1"
    first, second = made.words.split(" 0 ")  # one without a name is told by its value
    assert first.endswith(words)
    assert second.endswith(words)


# --- what each shows ---


def test_stages_are_pieces_of_a_bar_as_long_as_their_medians():
    def parts(**seconds):
        return {name: measurement(name, (value,)) for name, value in seconds.items()}

    figure = plots.stages(
        {"left": parts(load=1e-3, compute=3e-3, total=4e-3), "right": parts(load=2e-3, total=2e-3)}
    )
    axes = figure.axes[0]
    pieces = {
        bars.get_label(): [(bar.get_x(), bar.get_width()) for bar in bars]
        for bars in axes.containers
    }
    assert pieces == {
        "load": [(0, pytest.approx(1)), (0, pytest.approx(2))],
        "compute": [(pytest.approx(1), pytest.approx(3)), (pytest.approx(2), 0)],
    }
    shown = " ".join(texts(figure))
    assert "[ms]" in shown
    assert "Chip X" in shown
    assert [label.get_text() for label in axes.get_yticklabels()] == ["left", "right"]
    assert "left: load 1 ms, compute 3 ms, total 4 ms; right: load 2 ms" in figure.get_label()


def test_losses_are_a_line_and_a_band_over_seeds():
    runs = {"float32": [[2.0, 1.0], [4.0, 0.5], [3.0, 0.8]], "bf16": np.array([[3.0, 1.5]])}
    figure = plots.losses(runs, device="Chip X")
    axes = figure.axes[0]
    assert [list(line.get_ydata()) for line in axes.lines] == [[3.0, 0.8], [3.0, 1.5]]
    band = axes.collections[0].get_paths()[0].get_extents()
    assert (band.ymin, band.ymax) == (0.5, 4.0)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["float32", "bf16"]
    assert figure.get_label() == "median training loss at the end: float32: 0.8; bf16: 1.5"
    assert "Chip X" in figure.get_suptitle()


def test_a_picture_of_what_was_not_made_says_why():
    missing = isolated.Skipped("no GPU")
    words = "Nothing to show: no GPU."
    assert plots.losses({"CPU": [missing], "GPU": [missing]}, device=missing).get_label() == words
    late = [[2.0, 1.0], missing]  # the second seed alone
    assert plots.losses({"GPU": late}, device="Chip X").get_label() == words
    some = plots.losses({"CPU": [[2.0, 1.0]], "GPU": [missing]}, device="Chip X")
    assert some.get_label() == "median training loss at the end: CPU: 1"


@pytest.mark.parametrize("nowhere", [0, -4, math.nan])
def test_no_point_is_lost_beside_a_logarithmic_axis(nowhere):
    with pytest.raises(ValueError, match=r"'a' at .* no place on a logarithmic axis"):
        plots.curves(
            {"a": {nowhere: measurement(), 1: measurement()}}, xlabel="n", heading="product"
        )


def test_the_axis_names_small_speed_ups_as_fractions():
    figure = plots.speedups([comparison(Ratio("other", "base", 1 / 70, 1 / 75, 1 / 66, 6))])
    figure.draw_without_rendering()
    assert "1/64" in texts(figure)


def test_words_beside_a_speed_up_end_within_the_picture():
    figure = plots.speedups([comparison(Ratio("other", "base", 400.0, 360.0, 440.0, 24))])
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
    names = dict(zip(("base", "second", "other"), samples, strict=True))
    compared = comparison(withheld={name: Withheld(Reason.FAST_MODE) for name in names})
    measured = {name: measurement(name, (time,) * 3) for name, time in names.items()}
    figure = plots.speedups([dataclasses.replace(compared, measurements=measured)])
    figure.canvas.draw()
    axis = figure.axes[0].xaxis
    labels = [label for label in axis.get_ticklabels(which="both") if label.get_text()]
    low, high = sorted(axis.get_view_interval())
    boxes = sorted(
        (label.get_window_extent() for label in labels if low <= label.get_position()[0] <= high),
        key=lambda box: box.x0,
    )
    assert boxes
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))
