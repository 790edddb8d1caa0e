"""What the script that loads other projects' Metal files makes of files that load, differ, raise or do not load."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from metalsim import shader
from metalsim.shader import compiler

sys.path.append(str(Path(__file__).parent / "benchmarks"))
import foreign_kernels

try:
    compiler.find_compiler()
except shader.NoCompiler as error:
    pytest.skip(str(error), allow_module_level=True)

DOUBLED = """\
#include "kernels/op.h"
#include "op.h"
constant bool twice [[function_constant(0)]];
template <typename T> [[kernel]] void scale(device T* x, uint i [[thread_position_in_grid]]) {
  x[i] = twice ? op(x[i]) : x[i];
}
template [[host_name("scale_float")]] [[kernel]] decltype(scale<float>) scale<float>;
template [[host_name("scale_int")]] [[kernel]] decltype(scale<int>) scale<int>;
template [[host_name("scale_short")]] [[kernel]] decltype(scale<short>) scale<short>;
kernel void nothing() {}
"""
OP = """\
#pragma once
#include <metal_stdlib>
using namespace metal;
template <typename T> T op(T x) { return x + x; }
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A project with two Metal files, of which one does not load."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "doubled.metal").write_text(DOUBLED)
    (folder / "op.h").write_text(OP)
    (folder / "broken.metal").write_text("kernel void k() {\n  float x = unknown;\n}")
    monkeypatch.setitem(foreign_kernels.FOLDERS, "candle", "kernels")
    return tmp_path


@pytest.fixture
def judged(checkout, monkeypatch):
    """The row of the file, if NumPy says that the kernel multiplies by a factor."""

    def judge(factor: float) -> foreign_kernels.Row:
        def doubled(file):
            x = foreign_kernels.numbers(9)
            expected = foreign_kernels.exact(x) * factor
            file.library("scale_float").scale_float(x, threads=9)
            yield "scale_float", x, expected
            yield "scale_int", RuntimeError("scale_int: it hangs. scale_int.check(...) says more"), expected

        monkeypatch.setitem(foreign_kernels.CHECKS["candle"], "doubled", doubled)
        return foreign_kernels.looked_at("candle", "kernels/doubled.metal", checkout, each=2)

    return judge


def test_includes_stand_in_their_places_once(checkout):
    text = foreign_kernels.with_includes("kernels/doubled.metal", checkout)
    assert text.count("T op(T x)") == 1
    assert "#pragma once" not in text
    assert text.index("T op(T x)") < text.index("constant bool twice")
    (checkout / "kernels" / "op.h").unlink()
    with pytest.raises(FileNotFoundError, match=r"doubled.metal includes kernels/op.h, which .* does not have"):
        foreign_kernels.with_includes("kernels/doubled.metal", checkout)


def test_a_row_says_what_was_compiled_and_what_is_right(judged):
    row = judged(2)
    assert (row.kernels, row.loaded, row.compared, row.why_not) == (4, 3, 2, "")
    assert row.differ == ("scale_int: raises RuntimeError: it hangs",)
    assert row.line() == "| doubled | 3 of 4 | 1 of 2 right | scale_int: raises RuntimeError: it hangs |"


def test_a_kernel_that_differs_is_told(judged):
    first, _ = judged(2.001).differ
    assert first.startswith("scale_float: differs: Not equal to tolerance rtol=2e-05")


def test_a_file_that_does_not_load_gives_the_reason(checkout):
    row = foreign_kernels.looked_at("candle", "kernels/broken.metal", checkout, each=2)
    assert "SyntaxError: program_source:2:13: error: use of undeclared identifier 'unknown'" in row.line()
    assert row.line().startswith("| broken | no |  |")


@pytest.mark.parametrize(
    ("result", "expected", "right"),
    [
        (torch.tensor([1, 2]), [1, 2], True),
        (torch.tensor([1, 2]), [1, 3], False),
        (torch.tensor([1.0]), [1 + 1e-5], True),
        (torch.tensor([1.0]), [1 + 1e-3], False),
        (torch.tensor([1.0]).half(), [1 + 1e-3], True),
        (torch.tensor([1.0]).bfloat16(), [1 + 1e-2], True),
        (torch.tensor([np.nan]), [1.0], False),
    ],
)
def test_right_depends_on_the_type(result, expected, right):
    assert (foreign_kernels.outcome(result, expected) == foreign_kernels.RIGHT) is right


def test_threefry_gives_the_published_numbers():
    """Known answers of Random123's own tests (kat_vectors), with 20 rounds."""
    counts = np.array([[0, 0xFFFFFFFF, 0x243F6A88], [0, 0xFFFFFFFF, 0x85A308D3]], dtype=np.uint32)
    keys = (0, 0), (0xFFFFFFFF, 0xFFFFFFFF), (0x13198A2E, 0x03707344)
    answers = (0x6B200159, 0x99BA4EFE), (0x1CB996FC, 0xBB002BE7), (0xC4923A9C, 0x483DF7A0)
    for key, count, answer in zip(keys, counts.T[..., None], answers, strict=True):
        assert foreign_kernels.threefry(key, count).ravel().tolist() == list(answer)


def test_a_project_has_its_own_part_of_the_page(tmp_path, monkeypatch):
    page = tmp_path / "FOREIGN.md"
    page.write_text("a\n<!-- candle -->\nold\n<!-- end of candle -->\nb\n<!-- mlx -->\nkept\n<!-- end of mlx -->\n")
    monkeypatch.setattr(foreign_kernels, "TABLES", page)
    foreign_kernels.write("candle", "new\n")
    assert page.read_text().split("\n")[:5] == ["a", "<!-- candle -->", "new", "<!-- end of candle -->", "b"]
    assert "kept" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mlx"], "CHECKOUT is the root of a checkout of mlx"),
        (["candle", "--only", "doubles"], "no doubles among the 2 Metal files"),
        (["candle", "--only", "doubled", "--write"], "--write wants all files"),
        (["candle"], "is no git repository: its revision belongs to the table"),
    ],
)
def test_the_command_says_what_is_wrong(arguments, words, checkout, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["foreign_kernels.py", arguments[0], str(checkout), *arguments[1:]])
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(checkout.parent))
    with pytest.raises(SystemExit):
        foreign_kernels.main()
    assert words in capsys.readouterr().err
