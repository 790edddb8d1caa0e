"""Metal puzzles: right answers are right, and each wrong one gets the sentence on what is wrong with it."""

from __future__ import annotations

import math
import re
import types
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


RIGHT = [
    *(pytest.param(name, "the page's", id=f"{name}, the page's") for name in NAMES),
    *(pytest.param(name, "another", id=f"{name}, another") for name in NAMES),
]
WRONG = [
    pytest.param(name, kind, source, id=f"{name}: {kind} {number}")
    for name in NAMES
    for number, (kind, source) in enumerate(puzzle_answers.WRONG[name])
]


@pytest.mark.parametrize(("name", "whose"), RIGHT)
def test_a_right_answer_is_right_and_no_better_than_the_best_known(defined, name, whose):
    puzzle = defined[f"{name}_puzzle"]
    source = defined[f"{name}_source"] if whose == "the page's" else puzzle_answers.RIGHT[name]
    verdict = puzzle.grade(source)
    assert verdict.kind == "right", verdict
    assert verdict.score.reads >= puzzle.best[0]


@pytest.mark.parametrize("name", NAMES)
def test_the_page_shows_the_score_of_its_own_answer(defined, name):
    puzzle = defined[f"{name}_puzzle"]
    assert puzzle.grade(defined[f"{name}_source"]).score == puzzles.Score(*puzzle.best)


@pytest.mark.parametrize(("name", "kind", "source"), WRONG)
def test_a_wrong_answer_gets_its_verdict_in_a_line(defined, name, kind, source):
    verdict = defined[f"{name}_puzzle"].grade(source)
    assert verdict.kind == kind, f"{source}\n{verdict}"
    assert re.fullmatch(".{,299}", verdict.sentence)


HEAD = (
    "kernel void k(device float* out, device const float* a, uint i [[thread_position_in_grid]]) { "
)


@pytest.fixture
def puzzle():
    return puzzles.Puzzle(
        "k", lambda a: a + 1, lambda n: [torch.arange(n).float()], sizes=[(4,), (40,)]
    )


FAULTS = {
    "a syntax error": (HEAD + "out[i] = a[i] + ; }", "does not compile", "line 1"),
    "another name": (
        HEAD.replace("void k", "void other") + "out[i] = a[i] + 1; }",
        "wrong call",
        "no `kernel void k(...)`",
    ),
    "another type": (
        HEAD.replace("const float* a", "const int* a") + "}",
        "wrong call",
        "cannot be called: k: buffer(1)",
    ),
    "another argument": (
        HEAD.replace("uint", "device float* b, uint", 1) + "}",
        "wrong call",
        "it has 3 arguments",
    ),
    "no end": (HEAD + "while (true) out[i] = 0; }", "does not end", "did not end"),
    "a place that nobody writes": (
        HEAD + "if (i < 39) out[i] = a[i] + 1; }",
        "uninitialised",
        "at size 40 no thread writes out[39]",
    ),
    "a race": (
        HEAD + "if (i > 0) out[0] = a[0] + 1; else out[i] = a[i] + 1; }",
        "race",
        "thread 0 and thread 1 use out[0]",
    ),
    "an input that is written": (
        HEAD + "((device float*)a)[i] = 1; out[i] = 2; }",
        "wrong value",
        "writes a[0] (line 1), which is an",
    ),
    "before the first": (
        HEAD + "out[i] = i > 0 ? a[i] + 1 : a[i - 1]; }",
        "out of bounds",
        "a[4294967295] (line 1), which is -1 as",
    ),
    "behind the last": (
        HEAD + "float b = a[i + 1]; out[i / 2] = i < 3 ? b : a[i] + 1; }",
        "out of bounds",
        "thread 3 reads a[4]",
    ),
    "a variable that is not set": (
        HEAD + "float b; out[i] = i < 39 ? a[i] + 1 : b; }",
        "uninitialised",
        "at size 40 out[39] is nan",
    ),
    "too much threadgroup memory": (
        HEAD + "threadgroup float s[9000]; s[i] = 1; out[i] = s[i]; }",
        "does not compile",
        "bytes of threadgroup",
    ),
    "behind the threadgroup memory": (
        HEAD + "threadgroup float s[8]; s[i + 8] = 1; out[i] = a[i] + 1; }",
        "out of bounds",
        "thread 0 writes s[8]",
    ),
}


@pytest.mark.parametrize(("source", "kind", "sentence"), FAULTS.values(), ids=FAULTS)
def test_other_faults_are_named(puzzle, source, kind, sentence, monkeypatch):
    monkeypatch.setattr(run, "SECONDS", 2.0)
    verdict = puzzle.grade(source)
    assert verdict.kind == kind, verdict
    assert sentence in verdict.sentence


def test_a_call_whose_error_has_no_text_is_a_wrong_one(puzzle, monkeypatch):
    def fail(self):
        raise TypeError

    monkeypatch.setattr(run.Run, "_run", fail)
    with pytest.raises(run.Wrong, match="it cannot be called: TypeError"):
        run.Run(puzzle, None, HEAD + "out[i] = a[i] + 1; }", (4,))


def test_a_kernel_that_does_not_end_in_time_is_open(puzzle, monkeypatch):
    monkeypatch.setattr(run, "SECONDS", 2.0)
    assert puzzle.check(HEAD + "while (true) out[i] = 0; }").outcome == "open"


def test_a_kernel_without_a_line_is_not_attempted(puzzle):
    assert puzzle.check(HEAD + "// your code here\n}") == "k: not attempted yet"


def test_a_right_kernel_is_told_what_it_uses(puzzle):
    right = puzzle.check(HEAD + "out[i] = a[i] + 1; }")
    assert right.outcome == "right"
    assert right == (
        "k: right: 1 read and 1 write for each result, 0 barriers, 0 bytes of threadgroup memory."
    )


def test_a_wrong_kernel_is_told_its_first_wrong_result(puzzle):
    words = r"^k: at size 4 out\[0\] is 0, and should be 1; 4 of 4 are wrong\.$"
    with pytest.raises(checks.WrongAnswer, match=words):
        puzzle.check(HEAD + "out[i] = a[i]; }")


WITH_COMMENTS = """kernel void k(device float* out,  // the result
    device const float* a, /* and, behind the inputs, */ uint i [[thread_position_in_grid]]) { """


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(WITH_COMMENTS, id="comments between the parameters"),
        pytest.param("// kernel void k(device float* out) {\n" + HEAD, id="another in a comment"),
        pytest.param(HEAD.replace("kernel void", "[[kernel]] void"), id="the attribute"),
        pytest.param(HEAD.rstrip(" {") + ";\n" + HEAD, id="declared before"),
        pytest.param(HEAD.replace("device float*", "float device*"), id="the type first"),
        pytest.param(HEAD.replace("device float*", "volatile device float*"), id="volatile"),
    ],
)
def test_a_right_kernel_is_right_however_its_head_is_written(puzzle, head):
    assert puzzle.grade(head + "out[i] = a[i] + 1; }").kind == "right"


ONE_BIT_OFF = "out[i] = as_type<float>(as_type<int>(a[i] + 1) + 1); }"


def test_a_result_that_is_wrong_in_its_last_bit_is_told_with_the_digits_that_differ(puzzle):
    sentence = puzzle.grade(HEAD + ONE_BIT_OFF).sentence
    assert "out[0] is 1.00000012, and should be 1;" in sentence


@pytest.mark.parametrize("made", [1.0, -math.inf, math.nan])
def test_nothing_but_an_infinity_is_within_the_tolerance_of_one(puzzle, made):
    tolerant = replace(puzzle, tolerance=1e-5)
    infinite = torch.tensor([math.inf])
    assert not tolerant.agrees(torch.tensor([made]), infinite).item()
    assert tolerant.agrees(infinite, infinite).item()


def test_threadgroup_memory_of_a_thread_s_own_is_right_where_no_best_answer_is_known(puzzle):
    verdict = puzzle.grade(HEAD + "threadgroup float s[40]; s[i] = a[i]; out[i] = s[i] + 1; }")
    assert verdict.kind == "right"


def test_a_right_kernel_that_cannot_be_compiled_for_an_nvidia_gpu_stays_right(puzzle, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # as without NVIDIA's compiler
    gpu = types.SimpleNamespace(kind="cuda", simulated=False, label="an NVIDIA GPU")

    answer = puzzle.check(HEAD + "out[i] = a[i] + 1; }", on=gpu)

    assert answer.outcome == "right"
    assert "Not tried on an NVIDIA GPU" in answer


GRID_HEAD = """
kernel void k(device float* out, device const float* a, uint2 at [[thread_position_in_grid]],
              uint2 sides [[threads_per_grid]]) {
  uint i = at.y * sides.x + at.x;
  out[i] = a[i] + 1;
  if (i == sides.x * sides.y - 1) out[i] = a[i + 1] + 1;
}
"""
LINE = HEAD + "out[i] = i < 1999 ? a[i] + 1 : a[i + 1]; }"


@pytest.mark.parametrize(
    ("source", "count", "launch", "thread"),
    [
        pytest.param(
            GRID_HEAD, 18, {"threads": (6, 3), "group_size": (4, 3)}, "(5, 2)", id="a small group"
        ),
        pytest.param(GRID_HEAD, 18, {"threads": (6, 3)}, "(5, 2)", id="a grid without groups"),
        pytest.param(LINE, 2000, {"threads": 2000}, "1999", id="a line without groups"),
    ],
)
def test_a_thread_is_named_by_its_position_in_the_grid(puzzle, source, count, launch, thread):
    launched = replace(puzzle, sizes=[(count,)], launch=lambda n: launch)
    assert f"thread {thread} reads" in launched.grade(source).sentence


def test_reads_in_threadgroup_memory_are_told_where_the_best_answer_has_some(puzzle):
    about_memory = replace(puzzle, best=(1, 1, 1, 64))
    sentence = about_memory.grade(HEAD + "out[i] = a[i] + 1; }").sentence
    assert "no thread reads in threadgroup memory" in sentence


def test_the_picture_of_a_run_has_what_is_before_and_after_the_barrier_in_words(defined):
    puzzle = defined["reverse_puzzle"]
    figure = draw.draw_run(puzzle.run(puzzle_answers.RIGHT["reverse"], puzzle.sizes[0]))
    words = "thread 0 reads a[0], thread 0 writes shared[0], thread 1 reads a[1]"
    assert len(figure.axes) == 2
    assert words in figure.get_label()


@pytest.fixture
def on_a_mac(monkeypatch):
    """A GPU without records of accesses: `metalsim.shader`, which computes on the CPU, stands for torch.mps."""
    monkeypatch.setattr(run, "kernel_is_simulated", lambda: False)
    monkeypatch.setattr(run, "_compile", shader.compile_shader)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *_, **__: self)


@pytest.mark.usefixtures("on_a_mac")
def test_on_a_mac_it_is_told_that_some_faults_were_not_looked_for(puzzle):
    assert "were not looked for" in puzzle.grade(HEAD + "out[i] = a[i] + 1; }").sentence


@pytest.mark.usefixtures("on_a_mac")
def test_on_a_mac_a_wrong_value_is_found(puzzle):
    assert puzzle.grade(HEAD + "out[i] = a[i]; }").kind == "wrong value"


FIRST_WITH_SIMD_GROUPS = NAMES.index("simd_sum_rows")


def compile_for_nvidia(name: str) -> bytes:
    """Compile a puzzle's answer; a test is skipped where there is no compiler of NVIDIA's."""
    translated = nvrtc.translate(run.HEADER + puzzle_answers.RIGHT[name])
    try:
        code, _ = nvrtc.compile_cuda(translated, "sm_90")
    except nvrtc.NoNvidiaCompiler as error:
        pytest.skip(str(error))
    return code


@pytest.mark.parametrize("name", NAMES[:FIRST_WITH_SIMD_GROUPS])
def test_a_kernel_without_simd_groups_compiles_for_nvidia(name):
    assert compile_for_nvidia(name)


@pytest.mark.parametrize("name", NAMES[FIRST_WITH_SIMD_GROUPS:])
def test_a_kernel_with_simd_groups_is_refused_for_nvidia(name):
    with pytest.raises(SyntaxError):
        compile_for_nvidia(name)


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
