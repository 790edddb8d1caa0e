"""Wrong kernels that are planted on the simulated GPU: there when asked for, said, and gone afterwards."""

from __future__ import annotations

import contextlib
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


NAMES = ("before", "after", "labels", "warned", "together", "refused", "gone", "last")
on_the_simulated_gpu = pytest.mark.skipif(
    sys.platform == "darwin", reason="a Mac has no simulated GPU"
)
RIGHT_AND_WRONG = 24
"""The cases of the program: a right one and a wrong one for each of the faults whose values can be compared."""


@pytest.fixture(scope="module")
def planted():
    """What the program tells of each fault: which of its cases are wrong, and what is said of it."""
    return isolated.run(PROGRAM, results=NAMES, device="mps")


@on_the_simulated_gpu
def test_nothing_is_wrong_before_a_fault_is_planted_and_when_it_is_gone(planted):
    assert planted["before"] == [False] * RIGHT_AND_WRONG
    assert planted["gone"] == [False] * RIGHT_AND_WRONG


@on_the_simulated_gpu
def test_a_planted_kernel_is_wrong_only_as_described(planted):
    """Each fault makes its own case wrong, which is the second of its pair, and no other.

    The pairs stand in the faults' order. Those behind the last pair need two threads, or more calls than the program
    has, and make no case wrong.
    """
    wrong = [
        [number for number, is_wrong in enumerate(cases) if is_wrong]
        for cases in planted["after"].values()
    ]
    each_its_own = [[2 * number + 1] for number in range(RIGHT_AND_WRONG // 2)]
    others = [[] for _ in wrong[len(each_its_own) :]]
    assert wrong == each_its_own + others


@on_the_simulated_gpu
def test_all_faults_may_be_planted_at_once(planted):
    assert planted["together"] == [False, True] * (RIGHT_AND_WRONG // 2)


@on_the_simulated_gpu
def test_every_label_of_the_device_says_that_a_fault_is_planted(planted):
    assert planted["labels"] == [[0, 0, 0], *[[1, 1, 1]] * len(planted["after"])]
    assert planted["last"] == [0, 0, 0]


@on_the_simulated_gpu
def test_planting_a_fault_warns(planted):
    assert planted["warned"] == ["PlantedFault"] * len(planted["after"])


@on_the_simulated_gpu
def test_a_fault_that_is_unknown_or_planted_already_is_refused(planted):
    last = [*planted["after"]][-1]
    assert [text.split(":")[0] for text in planted["refused"]] == [
        "there is no fault (none named)",
        "there is no fault no such fault",
        f"{last} is planted already",
    ]


MEETINGS = """
import dataclasses
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

transposed = torch.arange(16.0).view(4, 4).t()

def is_right():
    return torch.equal(linear(x, transposed.to("mps")).cpu(), linear(x.cpu(), transposed))

bmm = planting.FAULTS["bmm, 32767 terms"]
planting.FAULTS = {**planting.FAULTS, "without a kernel": dataclasses.replace(bmm, operators=("mode",))}
try:
    with metalsim.plant("linear, non-contiguous weight", "without a kernel"):
        pass
except metalsim.SimulationError as error:
    after_refusal = is_right()  # while the error is at hand, and with it whatever its traceback holds
    said = str(error)
"""


@pytest.fixture(scope="module")
def meetings():
    """What is told of faults that calls have met or have not met."""
    return isolated.run(
        MEETINGS, results=("not_met", "after_error", "after_refusal", "said"), device="mps"
    )


@on_the_simulated_gpu
def test_a_fault_that_no_call_has_met_is_told(meetings):
    told = [name for name, messages in meetings["not_met"].items() if messages]
    assert told == ["no call", "another kind", "too few"]


@on_the_simulated_gpu
def test_how_many_calls_a_fault_has_nearly_met_is_told(meetings):
    assert "1 call of linear" in meetings["not_met"]["another kind"][0]
    assert "3 of 3 calls were counted" in meetings["not_met"]["too few"][0]


@on_the_simulated_gpu
def test_after_an_exception_it_is_not_told_that_a_fault_was_not_met(meetings):
    assert meetings["after_error"] == ["PlantedFault"]


@on_the_simulated_gpu
def test_where_one_fault_cannot_be_planted_no_other_one_is(meetings):
    assert "without a kernel cannot be planted" in meetings["said"]
    assert meetings["after_refusal"]


def test_without_the_simulated_gpu_nothing_is_planted():
    assert metalsim.list_planted() == ()


def test_without_the_simulated_gpu_nothing_can_be_planted():
    with pytest.raises(metalsim.SimulationError, match="install"), metalsim.plant(*metalsim.FAULTS):
        pass


@contextlib.contextmanager
def another_thread_inside(wrong):
    """Have another thread in a call of a planted kernel."""
    entered, leave = threading.Event(), threading.Event()
    other = threading.Thread(target=lambda: wrong(lambda: (entered.set(), leave.wait())))
    other.start()
    entered.wait()
    try:
        yield
    finally:
        leave.set()
        other.join()


def test_two_threads_at_once_are_refused():
    wrong = metalsim.FAULTS["two threads at once"].wrong
    with another_thread_inside(wrong), pytest.raises(RuntimeError, match="two threads"):
        wrong(lambda: None)


def test_a_call_within_a_call_of_one_thread_is_not_refused():
    wrong = metalsim.FAULTS["two threads at once"].wrong
    assert wrong(lambda: wrong(lambda: 3)) == 3
