"""A figure in words names its title, its axes and its series."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from metallab.figure_words import describe_figure


@pytest.fixture
def axes():
    figure, made = plt.subplots()
    yield made
    plt.close(figure)


def words_of(axes) -> str:
    return describe_figure(axes.figure)


def test_title_axes_and_legend_are_named(axes):
    axes.plot([1, 2], [3, 4], label="ours")
    axes.set(title="A race\nhere", xlabel="n", ylabel="time [s]", yscale="log")
    assert words_of(axes) == (
        "A race, here. x axis: n. y axis: time [s], logarithmic. series: ours (from 3 to 4)."
    )


def test_bars_are_told_with_their_lengths(axes):
    axes.barh(["eager", "fused"], [2, 3], left=1)
    assert "bars: eager to 3; fused to 4." in words_of(axes)


def test_names_of_rows_are_told_and_numbers_at_ticks_are_not(axes):
    axes.set_yticks([0, 1], ["CPU", "GPU"])
    axes.set_xticks([0, 1], ["0", "$2^{4}$"])
    assert words_of(axes) == "y axis: CPU; GPU."


def test_a_drawing_without_axes_is_told_by_its_texts(axes):
    axes.set_axis_off()
    axes.text(0, 0, "Conv2D + Relu")
    axes.text(0, 1, "12")
    assert words_of(axes) == "text in the picture: Conv2D + Relu."


def test_a_legend_of_the_whole_figure_is_told(axes):
    axes.figure.legend(axes.plot([1, 2]), ["all"])
    assert words_of(axes) == "series: all."


def test_each_of_several_axes_is_told():
    figure, (left, right) = plt.subplots(1, 2)
    figure.suptitle("Both")
    left.set_title("before")
    right.set_title("after")
    assert describe_figure(figure) == "Both. before. after."
    plt.close(figure)


def test_very_many_names_are_told_by_their_number(axes):
    names = [f"run {number}" for number in range(30)]
    axes.plot([[0] * len(names)], label=names)
    assert "series: 30 names from run 0 to run 29." in words_of(axes)


def test_a_figure_that_names_nothing_has_no_words(axes):
    axes.plot([1, 2])
    assert words_of(axes) == ""


def test_bars_that_have_a_name_and_no_bar_have_no_length(axes):
    axes.bar([], [], label="empty")

    assert " to " not in words_of(axes)
