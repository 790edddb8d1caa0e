"""Pictures of reported values are hatched, labelled, and described with chip, versions and address."""

from __future__ import annotations

import pytest

from metallab import plots, reported
from metallab.reported import pictures

PRODUCTS = reported.measurements("M1 Pro", topic="matrix product")


def test_every_bar_is_hatched_and_the_legend_says_whose_they_are():
    figure = pictures.bars(PRODUCTS, "Products")
    (axes,) = figure.axes
    assert len(axes.patches) == len(PRODUCTS)
    assert all(patch.get_hatch() == pictures.HATCH for patch in axes.patches)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [reported.LABEL]
    assert axes.get_xlabel() == "[TFLOP/s]"
    assert reported.LABEL in figure.get_suptitle()


@pytest.mark.parametrize("entry", PRODUCTS, ids=lambda entry: f"{entry.framework} {entry.dtype}")
def test_its_description_has_value_chip_version_and_address(entry):
    words = pictures.bars(PRODUCTS, "Products").get_label()
    assert words.startswith(reported.LABEL)
    assert f"{entry.quantity.value:g} TFLOP/s" in words
    assert entry.chip in words
    assert entry.version in words
    assert entry.quantity.address in words


def test_a_bar_can_be_added_to_a_picture_of_ours():
    with plots.picture(2) as (_, axes):
        pictures.bar(axes, 0, PRODUCTS[0], reported.LABEL)
        (patch,) = axes.patches
        assert patch.get_hatch() == pictures.HATCH
        assert patch.get_width() == PRODUCTS[0].quantity.value


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        pytest.param([], "nothing to draw", id="nothing"),
        pytest.param(reported.measurements(topic="YOLO"), "one unit", id="two units"),
    ],
)
def test_what_cannot_be_one_picture_is_refused(entries, words):
    with pytest.raises(ValueError, match=words):
        pictures.bars(entries, "")
