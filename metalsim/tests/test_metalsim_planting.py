"""Wrong kernels that are planted on the simulated GPU: there when asked for, said, and gone afterwards."""

from __future__ import annotations

import sys
import threading

import pytest

import metalsim

isolated = pytest.importorskip("metallab.isolated", exc_type=ImportError)  # not on Python 3.10

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

def copy_is_lost(keep):
    source = torch.ones(3)
    y = source.to("mps", non_blocking=True)
    if keep:
        y.cpu()
    del source
    return not torch.equal(y.cpu(), torch.ones(3))

def gram(x):
    return x @ x.transpose(1, 2)

def linear(w):
    return torch.nn.functional.linear(torch.ones(2, w.shape[1], device=w.device), w)

def attention(kv):
    q = torch.ones(1, 2, 1, 64, device=kv.device)
    return torch.nn.functional.scaled_dot_product_attention(q, kv, kv)

def masked_attention(mask):
    kv = torch.ones(1, 2, 4, 8, device=mask.device)
    return torch.nn.functional.scaled_dot_product_attention(kv, kv, kv, mask)

def places(x):
    return torch.unique(x, return_inverse=True)[1].float()

def added_product(x):
    return torch.baddbmm(x, torch.ones_like(x), torch.ones_like(x), beta=0)

def norm_gradient(x):
    x = x.detach().requires_grad_()
    layer = torch.nn.BatchNorm2d(3).to(x.device)
    return torch.autograd.grad((layer(x) * x.detach()).square().sum(), x)[0]

def differs(function, x, view=lambda x: x):
    return not torch.allclose(function(view(x)), function(view(x.to("mps"))).cpu(), rtol=1e-3, atol=1e-3)

def wrong():
    torch.manual_seed(0)
    image = torch.rand(2, 3, 4, 5)
    return [
        differs(conv, image), differs(conv, image, lambda x: x.transpose(2, 3)),
        differs(gradient, torch.ones(2**15)), differs(gradient, torch.ones(2**15 + 1)),
        differs(addcdiv, torch.rand(9), lambda x: x[2:]), differs(addcdiv, torch.rand(9), lambda x: x[1:]),
        differs(in_place, torch.rand(3, 4)), differs(in_place, torch.rand(3, 4), lambda x: x.t()),
        copy_is_lost(keep=True), copy_is_lost(keep=False),
        differs(gram, torch.rand(1, 16, 2**15 - 2)), differs(gram, torch.rand(1, 16, 2**15 - 1)),
        differs(linear, torch.rand(4, 4)), differs(linear, torch.rand(4, 4), lambda w: w.t()),
        differs(attention, torch.rand(1, 2, 64, 64)), differs(attention, torch.rand(1, 2, 38, 64)),
        differs(norm_gradient, image), differs(norm_gradient, image.to(memory_format=torch.channels_last)),
        differs(masked_attention, torch.ones(4, 4).bool()), differs(masked_attention, torch.ones(4, 4).tril(-1).bool()),
        differs(places, torch.tensor([2**24 - 1, 2**24])), differs(places, torch.tensor([2**24, 2**24 + 1])),
        differs(added_product, torch.ones(1, 3, 3)), differs(added_product, torch.full((1, 3, 3), torch.nan)),
    ]

lab = pick()

def told():
    return [text.count("PLANTED") for text in (device.description(), lab.label, pick().label)]

before, after, labels, warned, refused = wrong(), {}, [told()], [], []
for name in metalsim.FAULTS:
    with warnings.catch_warnings(record=True) as caught, metalsim.plant(name):
        after[name] = wrong()
        labels.append(told())
    kinds = [type(warning.message).__name__ for warning in caught]
    warned += [kind for kind in kinds if kind == "PlantedFault"]
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
def test_a_planted_kernel_is_wrong_only_as_described():
    names = ("before", "after", "labels", "warned", "together", "refused", "gone", "last")
    outcome = isolated.run(PROGRAM, results=names, device="mps")
    cases = len(outcome["before"])
    assert not any(outcome["before"] + outcome["gone"])
    for number, wrong in enumerate(
        outcome["after"].values()
    ):  # a right case and a wrong one for each of the faults
        assert [place for place in range(cases) if wrong[place]] == [2 * number + 1][
            : 2 * number < cases
        ]
    assert outcome["together"] == [False, True] * (cases // 2)
    assert outcome["labels"] == [[0, 0, 0], *[[1, 1, 1]] * len(outcome["after"])]
    assert outcome["last"] == [0, 0, 0]
    assert outcome["warned"] == ["PlantedFault"] * len(outcome["after"])
    assert [text.split(":")[0] for text in outcome["refused"]] == [
        "there is no fault (none named)", "there is no fault no such fault",
        f"{list(outcome['after'])[-1]} is planted already",
    ]  # fmt: skip


MEETINGS = """
import warnings
import torch
import metalsim
from metalsim import planting

x = torch.ones(4, 4).to("mps")

def long_sums(count):
    for _ in range(count):
        torch.ones(300, 200, device="mps").sum()

def caught(name, use, calls=None):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with metalsim.plant(name, calls=calls):
            use()
    return [str(each.message) for each in told if each.category is planting.FaultNotMet]

linear = torch.nn.functional.linear
not_met = {
    "no call": caught("linear, non-contiguous weight", lambda: None),
    "another kind": caught("linear, non-contiguous weight", lambda: linear(x, x)),
    "met": caught("linear, non-contiguous weight", lambda: linear(x, x.t())),
    "too few": caught("sum, once in many calls", lambda: long_sums(3)),
    "enough": caught("sum, once in many calls", lambda: long_sums(3), calls=range(2, 3)),
    "not known": caught("non_blocking copy, source freed", lambda: None),
}
try:
    with warnings.catch_warnings(record=True) as told, metalsim.plant("bmm, 32767 terms"):
        raise KeyError
except KeyError:
    after_error = [each.category.__name__ for each in told]
"""


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has no simulated GPU")
def test_a_fault_that_no_call_has_met_is_told():
    outcome = isolated.run(MEETINGS, results=("not_met", "after_error"), device="mps")
    told = outcome["not_met"]
    assert [name for name, messages in told.items() if messages] == [
        "no call",
        "another kind",
        "too few",
    ]
    assert "1 call of linear" in told["another kind"][0]
    assert "3 of 3 calls were counted" in told["too few"][0]
    assert outcome["after_error"] == ["PlantedFault"]


def test_nothing_is_planted_without_the_simulated_gpu():
    assert metalsim.list_planted() == ()
    with pytest.raises(metalsim.SimulationError, match="install"), metalsim.plant(*metalsim.FAULTS):
        pass


def test_two_threads_at_once_are_refused():
    wrong, entered, leave = (
        metalsim.FAULTS["two threads at once"].wrong,
        threading.Event(),
        threading.Event(),
    )
    other = threading.Thread(target=lambda: wrong(lambda: (entered.set(), leave.wait())))
    other.start()
    try:
        entered.wait()
        with pytest.raises(RuntimeError, match="two threads"):
            wrong(lambda: None)
    finally:
        leave.set()
        other.join()
    assert wrong(lambda: wrong(lambda: 3)) == 3
