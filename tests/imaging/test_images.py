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
    for shape in ((1, 4, 5), (1, 1, 4, 5)):
        assert drawn(images.show({"grey": torch.full(shape, 0.5)}, "grey", on=HERE))[0].shape == (
            4,
            5,
        )


def test_names_device_and_sizes_are_told():
    grey = COLOURS[..., 0]
    figure = images.show(
        {"dull": np.full((4, 5), 0.4), "b": grey, "c": grey, "d": grey[:2]}, "Four", on=HERE
    )
    axes = figure.axes
    assert np.array_equal(drawn(figure)[1], grey.clip(0, 1))
    shades = axes[0].get_images()[0].to_rgba(np.array([[0, 0.4, 1]]))[0, :, 0]
    assert shades == pytest.approx([0, 0.4, 1], abs=1 / 255), "a dull picture is drawn dull"
    assert [place.get_title(loc="left") for place in axes] == ["dull", "b", "c", "d"]
    assert figure._suptitle.get_text() == "Four\nNVIDIA H200"
    assert figure.get_label() == "Four: dull (4 x 5), b (4 x 5), c (4 x 5), d (2 x 5)"
    simulated = images.show(
        {"a": grey}, "One", on=PyTorchDevice("mps", "Apple GPU", simulated=True)
    )
    assert "SIMULATED" in simulated._suptitle.get_text()
    two = {"two": np.zeros((2, 4, 5))}
    for wrong, message in (({"flat": grey[0]}, "'flat' has shape"), (two, "has shape .2, 4, 5.")):
        with pytest.raises(ValueError, match=message):
            images.show(wrong, "wrong", on=HERE)


def test_the_middle_is_enlarged():
    picture = np.arange(64.0).reshape(8, 8) / 64
    (middle,) = drawn(images.show({"a": picture}, "zoomed", on=HERE, zoom=2))
    assert np.array_equal(middle, picture[2:6, 2:6])


def test_a_photograph_is_a_batch_of_one_from_0_to_1():
    photograph = images.photograph(torch.device("cpu"), every=4)
    assert (photograph.shape, photograph.dtype) == ((1, 3, 96, 128), torch.float32)
    assert 0 <= photograph.min() < 0.1
    assert 0.9 < photograph.max() <= 1
    assert torch.equal(images.photograph(torch.device("cpu"))[..., ::4, ::4], photograph)
