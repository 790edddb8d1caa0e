"""Watching the dispatcher leaves PyTorch's compiler unloaded. (Tracing what was compiled: test_trace.py.)"""

from __future__ import annotations

from metallab import isolated

LOOKS = """
import sys
import torch
from torch import nn
from metallab import device
from metallab.pytorch import precision, trace

model, x = nn.Sequential(nn.Linear(4, 4), nn.Softshrink()), torch.ones(2, 4)
with trace.record(on=device.cpu()) as recorded:
    model(x).sum().backward()
seen = len(recorded.events), len(precision.choices("cpu"))
loaded = "torch._dynamo" in sys.modules
"""


def test_neither_a_trace_nor_autocast_s_choices_load_the_compiler():
    ran = isolated.run(LOOKS, results=["seen", "loaded"])
    assert all(ran["seen"]), "nothing was seen"
    assert not ran["loaded"], "the compiler was loaded, which takes seconds"
