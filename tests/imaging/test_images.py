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


TENSOR = torch.tensor(COLOURS).permute(2, 0, 1).requires_grad_()
STORED = {"array": COLOURS, "tensor": TENSOR, "batch of one": TENSOR[None]}


@pytest.mark.parametrize("picture", STORED.values(), ids=STORED)
def test_every_way_to_store_a_picture_is_drawn_alike(picture, caplog):
    (shown,) = drawn(images.show({"a": picture}, "alike", on=HERE))
    assert np.array_equal(shown, COLOURS.clip(0, 1))
    assert not caplog.records, "matplotlib had to cut values itself"


@pytest.mark.parametrize("shape", [(1, 4, 5), (1, 1, 4, 5)], ids=["a picture", "a batch of one"])
def test_a_picture_of_one_channel_is_drawn_grey(shape):
    (shown,) = drawn(images.show({"grey": torch.full(shape, 0.5)}, "grey", on=HERE))
    assert shown.shape == (4, 5)


GREY = COLOURS[..., 0]
SIMULATED = PyTorchDevice("mps", "Apple GPU", simulated=True)


def test_a_dull_picture_is_drawn_dull():
    figure = images.show({"dull": np.full((4, 5), 0.4)}, "One", on=HERE)
    (image,) = figure.axes[0].get_images()
    shades = image.to_rgba(np.array([[0, 0.4, 1]]))[0, :, 0]
    assert shades == pytest.approx([0, 0.4, 1], abs=1 / 255)


def test_each_picture_stands_under_its_name():
    figure = images.show({"a": GREY, "b": GREY[:2]}, "Two", on=HERE)
    assert [place.get_title(loc="left") for place in figure.axes] == ["a", "b"]
    assert np.array_equal(drawn(figure)[1], GREY[:2].clip(0, 1))


def test_the_title_names_the_device():
    figure = images.show({"a": GREY}, "One", on=HERE)
    assert figure._suptitle.get_text() == "One\nNVIDIA H200"


def test_the_words_for_a_figure_tell_names_and_sizes():
    figure = images.show({"a": GREY, "b": GREY[:2]}, "Two", on=HERE)
    assert figure.get_label() == "Two: a (4 x 5), b (2 x 5)"


def test_pictures_of_a_simulated_gpu_say_so():
    assert "SIMULATED" in images.show({"a": GREY}, "One", on=SIMULATED)._suptitle.get_text()


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        pytest.param("flat", GREY[0], "'flat' has shape", id="one dimension"),
        pytest.param("two", np.zeros((2, 4, 5)), "has shape .2, 4, 5.", id="two channels"),
    ],
)
def test_what_is_no_picture_is_refused(name, array, words):
    with pytest.raises(ValueError, match=words):
        images.show({name: array}, "wrong", on=HERE)


def test_the_middle_is_enlarged():
    picture = np.arange(64.0).reshape(8, 8) / 64
    (middle,) = drawn(images.show({"a": picture}, "zoomed", on=HERE, zoom=2))
    assert np.array_equal(middle, picture[2:6, 2:6])


def test_a_photograph_is_a_batch_of_one_from_0_to_1():
    photograph = images.photograph(torch.device("cpu"), every=4)
    assert photograph.shape == (1, 3, 96, 128)
    assert photograph.dtype == torch.float32
    assert 0 <= photograph.min() < 0.1
    assert 0.9 < photograph.max() <= 1


def test_a_small_photograph_has_every_fourth_pixel_of_the_whole_one():
    whole = images.photograph(torch.device("cpu"))
    small = images.photograph(torch.device("cpu"), every=4)
    assert torch.equal(whole[..., ::4, ::4], small)
