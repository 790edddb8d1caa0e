"""Pictures are drawn as they are, with their names, and with the device that made them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from metallab.device import PyTorchDevice
from metallab.imaging import images

HERE = PyTorchDevice("cuda", "NVIDIA H200")
COLOURS = np.linspace(-0.5, 1.5, 4 * 5 * 3).reshape(4, 5, 3)


def drawn(figure):
    return [np.asarray(image.get_array()) for axes in figure.axes for image in axes.get_images()]


def test_every_way_to_store_a_picture_is_drawn_alike(caplog):
    tensor = torch.tensor(COLOURS).permute(2, 0, 1).requires_grad_()
    panels = {"array": COLOURS, "tensor": tensor, "batch of one": tensor[None]}
    for picture in drawn(images.show(panels, "alike", on=HERE)):
        assert np.array_equal(picture, COLOURS.clip(0, 1))
    assert not caplog.records, "matplotlib had to cut values itself"


def test_names_device_and_sizes_are_told():
    grey = COLOURS[..., 0]
    figure = images.show({"dull": np.full((4, 5), 0.4), "b": grey, "c": grey, "d": grey[:2]}, "Four", on=HERE)
    axes = figure.axes
    assert np.array_equal(drawn(figure)[1], grey.clip(0, 1))
    shades = axes[0].get_images()[0].to_rgba(np.array([[0, 0.4, 1]]))[0, :, 0]
    assert shades == pytest.approx([0, 0.4, 1], abs=1 / 255), "a dull picture is drawn dull"
    assert [place.get_title(loc="left") for place in axes] == ["dull", "b", "c", "d"]
    assert figure._suptitle.get_text() == "Four\nNVIDIA H200"
    assert figure.get_label() == "Four: dull (4 x 5), b (4 x 5), c (4 x 5), d (2 x 5)"
    simulated = images.show({"a": grey}, "One", on=PyTorchDevice("mps", "Apple GPU", simulated=True))
    assert "SIMULATED" in simulated._suptitle.get_text()
    two = {"two": np.zeros((2, 4, 5))}
    for wrong, said in (({}, "no picture"), ({"flat": grey[0]}, "'flat' has shape"), (two, "has shape .2, 4, 5.")):
        with pytest.raises(ValueError, match=said):
            images.show(wrong, "wrong", on=HERE)


@pytest.mark.parametrize("shape", [(1, 4, 5), (1, 1, 4, 5)])
def test_a_grey_picture_may_be_a_batch_of_one(shape):
    (picture,) = drawn(images.show({"grey": torch.full(shape, 0.5)}, "grey", on=HERE))
    assert picture.shape == (4, 5)
