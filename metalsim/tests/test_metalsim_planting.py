"""Wrong kernels that are planted on the simulated GPU: there when asked for, said, and gone afterwards."""

from __future__ import annotations

import sys

import pytest

import metalsim
from metallab import isolated

PROGRAM = """
import warnings
import torch
import metalsim
from metalsim import device
from metallab.device import pick

def conv(x):
    return torch.nn.functional.conv2d(x, torch.ones(2, 3, 2, 2, device=x.device))

def gradient(x):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(x.relu().sum(), x)[0]

def addcdiv(x):
    return torch.addcdiv(x * 0, x, x + 1)

def in_place(x):
    return x.clone().addcdiv_(x, x + 1)

def differs(function, x, view=lambda x: x):
    return not torch.equal(function(view(x)), function(view(x.to("mps"))).cpu())

def wrong():
    torch.manual_seed(0)
    image = torch.rand(2, 3, 4, 5)
    return [
        differs(conv, image), differs(conv, image, lambda x: x.transpose(2, 3)),
        differs(gradient, torch.ones(2**15)), differs(gradient, torch.ones(2**15 + 1)),
        differs(addcdiv, torch.rand(9), lambda x: x[2:]), differs(addcdiv, torch.rand(9), lambda x: x[1:]),
        differs(in_place, torch.rand(3, 4)), differs(in_place, torch.rand(3, 4), lambda x: x.t()),
    ]

lab = pick()

def told():
    return [text.count("PLANTED") for text in (device.description(), lab.label, pick().label)]

before, after, labels, warned, refused = wrong(), {}, [told()], [], []
for name in metalsim.FAULTS:
    with warnings.catch_warnings(record=True) as caught, metalsim.plant(name):
        after[name] = wrong()
        labels.append(told())
    warned += [type(warning.message).__name__ for warning in caught]
with warnings.catch_warnings(action="ignore"), metalsim.plant(*metalsim.FAULTS):
    together = wrong()
    for names in ((), ("no such fault",), (name,)):
        try:
            with metalsim.plant(*names):
                pass
        except (ValueError, metalsim.SimulationError) as error:
            refused.append(str(error))
gone, last = wrong(), told()
"""


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has no simulated GPU")
def test_a_planted_kernel_is_wrong_where_its_fault_tells_and_nowhere_else():
    names = ("before", "after", "labels", "warned", "together", "refused", "gone", "last")
    outcome = isolated.run(PROGRAM, results=names, device="mps")
    assert outcome["before"] == outcome["gone"] == [False] * 8
    convolution, gradient, addcdiv, in_place = outcome["after"].values()
    assert convolution == [False, True, False, False, False, False, False, False]
    assert gradient == [False, False, False, True, False, False, False, False]
    assert addcdiv == [False, False, False, False, False, True, False, False]
    assert in_place == [False, False, False, False, False, False, False, True]
    assert outcome["together"] == [False, True, False, True, False, True, False, True]
    assert outcome["labels"] == [[0, 0, 0], *[[1, 1, 1]] * 4]
    assert outcome["last"] == [0, 0, 0]
    assert outcome["warned"] == ["PlantedFault"] * 4
    assert [text.split(":")[0] for text in outcome["refused"]] == [
        "there is no fault (none named)", "there is no fault no such fault",
        "addcdiv_, non-contiguous result is planted already",
    ]  # fmt: skip


def test_nothing_is_planted_without_the_simulated_gpu():
    assert metalsim.planted() == ()
    with pytest.raises(metalsim.SimulationError, match="install"), metalsim.plant(*metalsim.FAULTS):
        pass
