"""What pages 04 and 04b show of kernels: marked where wrong, withheld where doubtful, and the reason where not made."""

from __future__ import annotations

import math

import pytest
import torch

from metallab import checks, device, isolated
from metallab.pytorch import kernels
from metallab.pytorch.kernels import pictures, roof, routes, rule
from metallab.timing import Comparison, Measurement


def test_what_differs_in_a_bit_is_marked():
    columns = {"x": [-0.3, math.nan, 2.0], "right": [-0.0, math.nan, 1.5], "mine": [0.0, math.nan, 1.5]}
    table = pictures.values(columns | {"theirs": isolated.Skipped("no tool")}, truth="right")
    assert table.headings == ["x", "right", "mine"]
    assert [row[2] for row in table.rows] == ["0 (wrong)", "nan", "1.5"]


def test_a_picture_of_what_was_not_made_is_the_reason():
    figure = pictures.graph(torch.zeros(2), isolated.Skipped("this cell needs a compiler"), "heading")
    assert figure.get_label() == "Nothing to show: this cell needs a compiler."
    assert pictures.graph(torch.zeros(2), torch.ones(2), "heading").get_label().startswith("out goes from 1 to 1")


def measured(mode: str = "full", simulated: bool = False, others: float = 0.0) -> Measurement:
    samples = (0.5, 0.5, 0.5)
    return Measurement("kernel", "latency", samples, 0.5, 1, 1, "enough", mode, "a CPU", simulated, others)


def test_no_rate_is_drawn_of_a_doubtful_time():
    speed = Comparison("c", "latency", "ours", {"ours": measured(), "copy": measured()}, {})
    drawn = pictures.bandwidth(speed, 10**9 // 8, bytes_each=8)
    assert drawn.get_label() == "ours: 2 GB/s; copy: 2 GB/s"
    assert "counting 8 bytes a number" in drawn.axes[0].get_xlabel()
    for doubtful in ({"mode": "fast"}, {"simulated": True}, {"others": 1.9}):
        both = {"ours": measured(**doubtful), "copy": measured(**doubtful)}
        figure = pictures.bandwidth(Comparison("c", "latency", "ours", both, {}), 10**9, 1)
        assert figure.get_label().count("no rate") == 2
        assert not figure.axes[0].patches
    refused = Comparison(
        "c", "latency", "ours", {"ours": measured(), "copy": measured()}, {}, {"copy": "outputs differ"}
    )
    assert "copy: no rate, outputs differ" in pictures.bandwidth(refused, 10**9, 1).get_label()


def test_a_kernel_is_timed_beside_a_copy(monkeypatch):
    asked = {}
    monkeypatch.setattr(roof.timing, "compare", lambda variants, **given: asked.update(given, variants=variants))
    x = torch.arange(1.0, 5.0)
    roof.compare({"mine": lambda: 2 * x, "built-in": lambda: x + x}, x, on=device.cpu(), name="doubled")
    assert list(asked["variants"]) == ["mine", "copy", "built-in"]
    assert torch.equal(asked["variants"]["copy"](), x)
    asked["parity"]["copy"](2 * x, x)
    with pytest.raises(checks.Mismatch):
        asked["parity"]["built-in"](2 * x, x)


# ---- the four routes -------------------------------------------------------------------------------------------------


def test_a_route_is_green_only_where_every_bit_is_right(monkeypatch):
    monkeypatch.setattr(routes.needs, "report_missing", lambda *tools: "objective-c++" in tools)
    ran = lambda *_, **__: isolated.Outcome("well", results={"judgement": rule.RIGHT})
    monkeypatch.setattr(routes.isolated, "run", ran)
    monkeypatch.setattr(routes, "_on_cpu", lambda: rule.RIGHT)
    monkeypatch.setattr(routes.nvrtc, "compile_cuda", lambda *_: (b"", {}))
    tried = routes.try_all(device.cpu())
    assert [route.judgement for route in tried] == [rule.RIGHT, "not run here", "compiled, not run", rule.RIGHT]
    figure = routes.draw(tried)
    edges = [text.get_bbox_patch().get_edgecolor() for text in figure.axes[0].texts if text.get_bbox_patch()]
    green = routes.plots.matplotlib.colors.to_rgba(routes.plots.GREEN)
    assert edges.count(green) == 2


def test_a_route_that_gives_other_bits_is_an_error(monkeypatch):
    monkeypatch.setattr(routes.needs, "report_missing", lambda *_: False)
    failed = isolated.Outcome("raised", reason="Mismatch: not the rule's bits")
    monkeypatch.setattr(routes.isolated, "run", lambda *_, **__: failed)
    with pytest.raises(isolated.ChildFailed, match="not the rule's bits"):
        routes._on_apple(routes._ONE_LINE, "shader-compiler")


def test_an_answer_is_right_wrong_or_not_judged(monkeypatch):
    outcome = lambda *given, **results: isolated.Outcome(*given, results=results)
    x, wanted = torch.tensor([0.1, math.inf]), torch.tensor([0.0, math.inf])

    def given(made):
        monkeypatch.setattr(routes.isolated, "run", lambda *_, **__: made)
        return routes.gives("text", "kernel", x, {0.5: wanted})

    assert given(outcome("well", outs=[[0.0, math.inf]])) is True
    with pytest.raises(AssertionError, match=r"of 0\.1 and λ = 0\.5 it makes -0, not 0"):
        given(outcome("well", outs=[[-0.0, math.inf]]))
    missing = given(isolated.Outcome("raised", reason="SimulationUnavailable: no g++"))
    assert isinstance(missing, isolated.Skipped)
    with pytest.raises(kernels.CannotCompile, match="undeclared"):
        given(isolated.Outcome("raised", reason="SyntaxError: undeclared identifier"))
