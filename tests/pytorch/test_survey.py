"""Surveys of calls: what an Apple GPU takes, and on the simulated one whether a wrong result is seen."""

from __future__ import annotations

import sys

import pytest

from metallab import device, isolated
from metallab.pytorch import survey


def test_the_operators_of_the_talk_run_on_an_apple_gpu():
    told = survey.of(survey.TALK, on=device.cpu())
    assert len(told.rows) == 26
    assert {row.status for row in told.rows} <= {"native", "composite"}
    assert "26 of 26 calls run" in str(told)
    assert "agree" not in told._repr_html_(), "the CPU is not compared with itself"
    refused = survey.of(survey.REFUSED)
    assert {row.status for row in refused.rows} == {"refused"}
    assert "0 of 6 calls run" in str(refused)
    assert all(row.advice in told_in_html(refused) for row in refused.rows)


def told_in_html(table):
    import html

    return html.unescape(table._repr_html_())


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac runs page 02c, which asks its real GPU")
def test_values_and_gradients_are_held_against_the_cpu_s():
    outcome = isolated.run(
        "import torch\n"
        "from metallab import device\n"
        "from metallab.pytorch import survey\n"
        "lab = device.pick()\n"
        "x = torch.rand(4)\n"
        "wrong = lambda a: a * (2 if a.device.type == 'mps' else 1)\n"
        "class Backward(torch.autograd.Function):\n"
        "    forward = staticmethod(lambda context, a: a.clone())\n"
        "    backward = staticmethod(lambda context, g: g * (2 if g.device.type == 'mps' else 1))\n"
        "calls = [survey.Call('wrong', wrong, (x,)), survey.Call('backward', Backward.apply, (x,)),\n"
        "         survey.Call('missing', torch.special.ndtri, (x,), differentiable=False)]\n"
        "talk, planted = (survey.of(c, on=lab) for c in (survey.TALK, calls))\n"
        "text, page = str(talk), planted._repr_html_()\n"
        "seen = [(row.values[:8], row.gradients[:8], row.right) for row in planted.rows]\n",
        results=("text", "page", "seen"),
        device="mps",
    )
    assert "26 of 26 agree with the CPU on simulated Apple GPU" in outcome["text"]
    assert outcome["seen"] == [
        ("NO: resu", "NO: resu", False),
        ("agrees", "NO: resu", False),
        ("NO: The ", "none", False),
    ]
    assert "0 of 3 agree" in outcome["page"]
    assert "ndtri" in outcome["page"]
