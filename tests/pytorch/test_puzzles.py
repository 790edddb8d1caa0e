"""Metal puzzles: right answers are right, and each wrong one gets the sentence on what is wrong with it."""

from __future__ import annotations

import re
from dataclasses import replace

import nbformat
import puzzle_answers
import pytest
import torch

from metallab import checks, paths, plots
from metallab.pytorch import puzzles
from metallab.pytorch.kernels import nvrtc
from metallab.pytorch.puzzles import draw, run
from metalsim import shader

PAGES = [
    paths.NOTEBOOKS / f"{name}.ipynb"
    for name in ("20_solve_metal_puzzles", "21_share_threadgroup_memory", "22_use_simd_groups")
]
NAMES = [*puzzle_answers.RIGHT]


@pytest.fixture(scope="module")
def defined():
    """The puzzles that the pages define, and their own solutions, by name."""
    space = {"torch": torch, "Puzzle": puzzles.Puzzle}
    for page in PAGES:
        for cell in nbformat.read(page, as_version=4).cells:
            if cell.get("id") == "setup":
                exec(cell.source[cell.source.index("def ") : cell.source.index("\nlab = ")], space)
            elif re.match(r"(puzzle|solution)-\d$", cell.get("id", "")):
                exec(cell.source, space)
    return space


@pytest.fixture(autouse=True)
def needs_compiler():
    try:
        shader.compiler.find_compiler()
    except shader.compiler.NoCompiler as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", NAMES)
def test_each_answer_gets_its_verdict(defined, name):
    puzzle = defined[f"{name}_puzzle"]
    for source in (defined[f"{name}_source"], puzzle_answers.RIGHT[name]):
        verdict = puzzle.grade(source)
        assert verdict.kind == "right", verdict
        assert verdict.score.reads >= puzzle.best[0], "better than the best known"
    assert puzzle.grade(defined[f"{name}_source"]).score == puzzles.Score(*puzzle.best), (
        "the page shows another score"
    )
    for kind, source in puzzle_answers.WRONG[name]:
        verdict = puzzle.grade(source)
        assert verdict.kind == kind, f"{source}\n{verdict}"
        assert re.fullmatch(".{,299}", verdict.sentence), "it is one line"


HEAD = (
    "kernel void k(device float* out, device const float* a, uint i [[thread_position_in_grid]]) { "
)


@pytest.fixture
def puzzle():
    return puzzles.Puzzle(
        "k", lambda a: a + 1, lambda n: [torch.arange(n).float()], sizes=[(4,), (40,)]
    )


@pytest.mark.parametrize(
    ("source", "kind", "sentence"),
    [
        (HEAD + "out[i] = a[i] + ; }", "does not compile", "line 1"),
        (HEAD.replace("void k", "void other") + "out[i] = a[i] + 1; }", "wrong call", "no `kernel void k(...)`"),
        (HEAD.replace("const float* a", "const int* a") + "}", "wrong call", "cannot be called: k: buffer(1)"),
        (HEAD.replace("uint", "device float* b, uint", 1) + "}", "wrong call", "it has 3 arguments"),
        (HEAD + "while (true) out[i] = 0; }", "does not end", "did not end"),
        (HEAD + "if (i < 39) out[i] = a[i] + 1; }", "uninitialised", "at size 40 no thread writes out[39]"),
        (HEAD + "if (i > 0) out[0] = a[0] + 1; else out[i] = a[i] + 1; }", "race", "thread 0 and thread 1 use out[0]"),
        (HEAD + "((device float*)a)[i] = 1; out[i] = 2; }", "wrong value", "writes a[0] (line 1), which is an"),
        (HEAD + "out[i] = i > 0 ? a[i] + 1 : a[i - 1]; }", "out of bounds", "a[4294967295] (line 1), which is -1 as"),
        (HEAD + "float b = a[i + 1]; out[i / 2] = i < 3 ? b : a[i] + 1; }", "out of bounds", "thread 3 reads a[4]"),
        (HEAD + "float b; out[i] = i < 39 ? a[i] + 1 : b; }", "uninitialised", "at size 40 out[39] is nan"),
        (HEAD + "threadgroup float s[9000]; s[i] = 1; out[i] = s[i]; }", "does not compile", "bytes of threadgroup"),
        (HEAD + "threadgroup float s[8]; s[i + 8] = 1; out[i] = a[i] + 1; }", "out of bounds", "thread 0 writes s[8]"),
    ],
)  # fmt: skip
def test_other_faults_are_named(puzzle, source, kind, sentence, monkeypatch):
    monkeypatch.setattr(run, "SECONDS", 2.0)
    verdict = puzzle.grade(source)
    assert (verdict.kind, sentence in verdict.sentence) == (kind, True), verdict


def test_a_call_whose_error_has_no_text_is_a_wrong_one(puzzle, monkeypatch):
    def fail(self):
        raise TypeError

    monkeypatch.setattr(run.Run, "_run", fail)
    with pytest.raises(run.Wrong, match="it cannot be called: TypeError"):
        run.Run(puzzle, None, HEAD + "out[i] = a[i] + 1; }", (4,))


def test_a_kernel_that_does_not_end_in_time_is_open(puzzle, monkeypatch):
    monkeypatch.setattr(run, "SECONDS", 2.0)
    assert puzzle.check(HEAD + "while (true) out[i] = 0; }").outcome == "open"


def test_a_check_is_an_exercise(puzzle):
    assert puzzle.check(HEAD + "// your code here\n}") == "k: not attempted yet"
    right = puzzle.check(HEAD + "out[i] = a[i] + 1; }")
    said = (
        "k: right: 1 read and 1 write for each result, 0 barriers, 0 bytes of threadgroup memory."
    )
    assert (right.outcome, right) == ("right", said)
    with pytest.raises(
        checks.WrongAnswer,
        match=r"^k: at size 4 out\[0\] is 0, and should be 1; 4 of 4 are wrong\.$",
    ):
        puzzle.check(HEAD + "out[i] = a[i]; }")
    about_memory = replace(puzzle, best=(1, 1, 1, 64))
    assert (
        "no thread reads in threadgroup memory"
        in about_memory.grade(HEAD + "out[i] = a[i] + 1; }").sentence
    )


def test_its_picture_is_described(defined):
    puzzle = defined["reverse_puzzle"]
    figure = draw.draw_run(puzzle.run(puzzle_answers.RIGHT["reverse"], puzzle.sizes[0]))
    assert len(figure.axes) == 2, "before and after the barrier"
    assert (
        "thread 0 reads a[0], thread 0 writes shared[0], thread 1 reads a[1]" in figure.get_label()
    )


def draw_doubled(puzzle, body):
    """The picture of a kernel with this body at the first size."""
    return draw.draw_run(puzzle.run(HEAD + body, puzzle.sizes[0]))


def test_what_lies_outside_of_an_array_has_a_dashed_box(puzzle):
    figure = draw_doubled(puzzle, "out[i] = a[i + 1] + 1; }")
    boxed = [text for text in figure.axes[0].texts if text.get_bbox_patch() is not None]
    (outside,) = boxed
    assert outside.get_text() == "4 \N{MULTIPLICATION SIGN}"
    assert outside.get_bbox_patch().get_linestyle() == "--"


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        pytest.param("out[i] = a[i] + 1; }", [], id="right"),
        pytest.param("out[i] = a[i] + (i == 2 ? 3 : 1); }", [2], id="one-is-wrong"),
    ],
)
def test_wrong_results_have_a_red_box(body, wrong, puzzle):
    lines = draw_doubled(puzzle, body).axes[0].get_lines()
    red = [line for line in lines if line.get_markeredgecolor() == plots.RED]
    assert [int(line.get_xdata()[0]) for line in red if line.get_marker() == "s"] == wrong


def test_a_mac_runs_it_on_its_gpu(puzzle, monkeypatch):
    """Without records of accesses: `metalsim.shader`, which computes on the CPU, stands for torch.mps."""
    monkeypatch.setattr(run, "kernel_is_simulated", lambda: False)
    monkeypatch.setattr(run, "_compile", shader.compile_shader)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *_, **__: self)
    assert "were not looked for" in puzzle.grade(HEAD + "out[i] = a[i] + 1; }").sentence
    assert puzzle.grade(HEAD + "out[i] = a[i]; }").kind == "wrong value"


@pytest.mark.parametrize("name", NAMES)
def test_kernels_without_simd_groups_run_on_nvidia(name):
    source = run.HEADER + puzzle_answers.RIGHT[name]
    if NAMES.index(name) >= NAMES.index("simd_sum_rows"):
        with pytest.raises(SyntaxError):
            nvrtc.compile_cuda(nvrtc.translate(source), "sm_90")
        return
    try:
        code, _ = nvrtc.compile_cuda(nvrtc.translate(source), "sm_90")
    except nvrtc.NoNvidiaCompiler as error:
        pytest.skip(str(error))
    assert code
