"""A trace names the lines that copy between CPU and GPU or fall back to the CPU, in front of its table."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from metallab import paths
from metallab.pytorch import dispatch, trace

LOOP = """
import torch
from torch import nn

model = nn.Linear(4, 3).to("mps")
targets = torch.tensor([0, 1], device="mps")
total = 0.0
for step in range(8):
    x = torch.ones(2, 4).to("mps")
    y = model(x).cpu().to("mps")
    loss = nn.functional.multi_margin_loss(y, targets)
    loss.backward()
    total += loss.item()
"""
"""A training step with copies in both directions, and with an operator that has no kernel."""


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """Return a function that traces the loop, with options of the command, and returns what that prints.

    The operator that has no kernel on MPS falls back to the CPU.
    """
    folder = tmp_path_factory.mktemp("loop")
    (folder / "loop.py").write_text(LOOP)

    def run(*options: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "metallab", "trace", "--device", "sim", *options, "loop.py"],
            env=os.environ
            | {"PYTHONPATH": str(paths.ROOT / "utils"), "PYTORCH_ENABLE_MPS_FALLBACK": "1"},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=1800,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def printed(traced):
    return traced()


def find_told(printed: str, source: str) -> list[str]:
    """Return what is told of a line of the loop: the indented lines behind the one that quotes it."""
    lines = printed.splitlines()
    start = lines.index(f"loop.py:{LOOP.splitlines().index(source) + 1}  {source.strip()}")
    told = []
    for line in lines[start + 1 :]:
        if not line.startswith("    "):
            break
        told.append(line.strip())
    return told


on_the_simulated_gpu = pytest.mark.skipif(
    sys.platform == "darwin", reason="a Mac has a real Apple GPU"
)


@on_the_simulated_gpu
@pytest.mark.parametrize(
    ("source", "told"),
    [
        pytest.param(
            'model = nn.Linear(4, 3).to("mps")', ["2 copies to the device: 60 B"], id="a model"
        ),
        pytest.param(
            '    x = torch.ones(2, 4).to("mps")', ["8 copies to the device: 256 B"], id="an input"
        ),
        pytest.param("    total += loss.item()", ["8 copies to the host: 32 B"], id="a number"),
    ],
)
def test_a_line_that_copies_is_quoted_with_its_copies(source, told, printed):
    assert find_told(printed, source) == told


@on_the_simulated_gpu
def test_a_copy_in_the_backward_pass_is_that_of_the_line_whose_gradient_it_is(printed):
    told = find_told(printed, '    y = model(x).cpu().to("mps")')
    forward, backward = told[:2], told[2:]
    assert [each.partition(":")[0] for each in forward] == [
        "8 copies to the host",
        "8 copies to the device",
    ]
    assert sorted(each.partition(":")[0] for each in backward) == [
        "8 copies to the device, in the backward pass",
        "8 copies to the host, in the backward pass",
    ]


@on_the_simulated_gpu
def test_a_line_that_falls_back_is_quoted_with_its_operators(printed):
    forward, backward = find_told(printed, "    loss = nn.functional.multi_margin_loss(y, targets)")
    assert forward.startswith("8 fallbacks to the CPU, multi_margin_loss:")
    assert backward.startswith(
        "8 fallbacks to the CPU, multi_margin_loss_backward, in the backward pass:"
    )


@on_the_simulated_gpu
def test_the_lines_stand_in_front_of_the_table_the_most_frequent_first(printed):
    lines = printed.splitlines()
    places = [number for number, line in enumerate(lines) if line.startswith("loop.py:")]
    table = next(number for number, line in enumerate(lines) if "total [ms]" in line)

    assert max(places) < table
    assert ".cpu()" in lines[places[0]]
    assert "torch.tensor" in lines[places[-1]]


@on_the_simulated_gpu
def test_of_many_lines_as_many_are_told_as_rows(traced):
    printed = traced("--rows", "2")
    assert printed.count("loop.py:") == 2
    assert "and 4 more lines" in printed


def test_a_line_of_a_package_is_told_with_the_reader_s_line_that_called_it(monkeypatch):
    def find_package(file):
        return "theirs" if file == "theirs.py" else ""

    monkeypatch.setattr(dispatch, "find_package", find_package)
    names: dict = {}
    exec(compile("def call(function):\n    return function()\n", "theirs.py", "exec"), names)
    line = names["call"](dispatch.find_calling_line)

    assert str(line) == "theirs.py:2"
    assert line.own.file == __file__


def test_what_no_line_is_known_of_is_told_as_that():
    event = trace.Event(
        "copy", "aten::copy_", "mps", "float32", ((4,),), 16, 0.0, 1e-3, direction="to host"
    )
    recorded = trace.Trace("GPU", "mps", simulated=False, events=[event], seconds=1e-3)
    *_, place, copies = recorded.describe_crossings()[-1].splitlines()

    assert "not known" in place
    assert copies.strip() == "1 copy to the host: 16 B"


def test_where_nothing_crosses_no_line_is_told():
    assert trace.Trace("CPU", "", simulated=False).describe_crossings() == []
