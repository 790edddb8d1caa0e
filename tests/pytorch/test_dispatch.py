"""Watching the dispatcher leaves PyTorch's compiler unloaded, and names the reader's line, not that of a tool.

(Tracing what was compiled: test_trace.py.)
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import metalsim
from metallab import device, isolated
from metallab.pytorch import trace
from metallab.pytorch.dispatch import calling_line, raising_line

LOOKS = """
import sys
import torch
from torch import nn
from metallab import device
from metallab.pytorch import trace

model, x = nn.Sequential(nn.Linear(4, 4), nn.Softshrink()), torch.ones(2, 4)
with trace.record(on=device.cpu()) as recorded:
    model(x).sum().backward()
seen = len(recorded.events)
loaded = "torch._dynamo" in sys.modules
"""


def test_tracing_does_not_load_the_compiler():
    ran = isolated.run(LOOKS, results=["seen", "loaded"])
    assert ran["seen"], "nothing was seen"
    assert not ran["loaded"], "the compiler was loaded, which takes seconds"


class Halved(nn.Module):
    def forward(self, x):
        x = x.clone()
        x[:, 0] *= 0.5  # autograd makes a node for the slice after the operator
        return x


class Shifted(nn.Module):
    def forward(self, x):
        return x + torch.arange(4.0)  # begins with what has no gradient


def test_an_unseen_node_belongs_to_the_module_that_ran():
    x = torch.ones(2, 4, requires_grad=True)
    with trace.record(on=device.cpu()) as recorded:
        loss = nn.Sequential(Halved(), Shifted())(x).sum()
        forward = len(recorded.events)
        loss.backward()
    backward = [event for event in recorded.events[forward:] if event.kind != "view"]
    assert {event.module for event in backward if event.short == "mul"} == {"0"}
    assert "1" not in {event.module for event in backward}, "its one gradient needs no operator"


# ---- whose line it is -----------------------------------------------------------------------------------------------


def go_through_the_simulated_gpu(function):
    """Call a function from a line of the simulated GPU's code, as a planted kernel calls the right one."""
    file = Path(metalsim.__file__).with_name("planting.py")
    names: dict = {}
    exec(compile("def call(function):\n    return function()\n", str(file), "exec"), names)
    return names["call"](function)


def test_a_line_of_the_simulated_gpu_calls_no_operator():
    line = go_through_the_simulated_gpu(calling_line)
    assert Path(line.partition(":")[0]).name == "test_dispatch.py"


def test_an_error_in_the_simulated_gpu_comes_from_the_line_that_called_it():
    with pytest.raises(KeyError) as raised:
        go_through_the_simulated_gpu({}.popitem)
    line = raising_line(raised.value)
    assert Path(line.partition(":")[0]).name == "test_dispatch.py"
