"""Every notebook runs: as it is, and then with a wrong answer to each of its exercises, which must go red.

Each page runs once, in fast mode: 00, 10, 12, ... on the simulated Apple GPU, and 11, 13, 17, ... on the best device
of this machine, as do the pages that are not simulated, and all pages on a Mac. What is marked nightly runs each on the
other device, too. `headless` itself fails a notebook in which any code cell was not executed.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import symtable
import sys
import warnings

import cv2
import nbformat
import numpy as np
import pytest
import scenes
import scope
from IPython.core.inputtransformer2 import TransformerManager
from nbformat.v4 import new_code_cell
from one_page import run_notebook
from wrong_answers import WRONG_ANSWERS

from metallab import (
    fast_sizes,
    headless,
    isolated,
    judgement,
    needs,
    notebook,
    paths,
    plain_cells,
    records,
    wording,
)
from metallab.authoring import workshop
from metallab.classroom import progress
from metallab.exercises import check, judging

NOTEBOOKS = sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))
RAISES = "return ...", 'raise OSError("all\\n" * 40)'  # an answer that raises, in many lines
LIMITS = {"cell_timeout": 1800, "timeout": 3600}  # seconds, against a hang


def wrong_answers(path):
    """A page's, by the id of the cell with the solution."""
    assert path.stem in WRONG_ANSWERS, (
        f"give it two in tests/support/wrong_answers.txt, each below '== {path.stem} 1'"
    )
    return WRONG_ANSWERS[path.stem]


def notebook_id(path):
    return path.stem


def is_code(cell):
    return cell.cell_type == "code"


def global_names(source):
    """The global names that a cell assigns, and those that it uses."""
    top = symtable.symtable(TransformerManager().transform_cell(source), "cell", "exec")
    assigned = {
        symbol.get_name()
        for symbol in top.get_symbols()
        if symbol.is_assigned() or symbol.is_imported()
    }
    used, tables = (
        {symbol.get_name() for symbol in top.get_symbols() if symbol.is_referenced()},
        top.get_children(),
    )
    while tables:
        table = tables.pop()
        used |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
        tables += table.get_children()
    return assigned, used


@pytest.fixture(scope="session")
def kind():
    """The device that `make test DEVICE=` names, or the best of this machine, as the runner finds it."""
    return headless.resolve_device(os.environ.get("METALLAB_TEST_DEVICE") or "auto")["device"]


ON_THE_DEVICE = [
    "02",
    "11",
    "13",
    "17",
    "21",
    "22",
    "24",
    "31",
    "32",
    "41",
    "44",
    "52",
    "54",
    "61",
    "65",
]
"""About half of the pages, so that both are tried; those that measure nothing on the simulated GPU are among them."""


def devices_of(page, path, kind):
    """The device that a page runs on, and the other one: a Mac runs all on its GPU."""
    if (
        "sim" in page.metadata.metallab.get("skip", {}).get("device", [])
        or sys.platform == "darwin"
    ):
        return kind, "sim"
    return (kind, "sim") if path.stem[:2] in ON_THE_DEVICE else ("sim", kind)


NIGHTLY = [
    pytest.mark.nightly,
    pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has a real Apple GPU"),
]


@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=NIGHTLY)], ids=["own", "other"])
@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_runs_from_top_to_bottom_and_its_checks_go_red(path, turn, kind, tmp_path):
    """The page as it is; behind its last cell each exercise again, untouched and with a plausible mistake.

    One run for three questions: executing a page is what this file spends its time on.
    """
    page = nbformat.read(path, as_version=4)
    device, skip = devices_of(page, path, kind)[turn], page.metadata.metallab.get("skip", {})
    cells = {cell.id: cell for cell in page.cells}
    wanted = {}
    for solution, mistakes in wrong_answers(path).items():
        number = solution.removeprefix("solution-")
        stub = cells[f"exercise-{number}"].source
        mistakes = [
            *mistakes,
            *(stub.replace(*each) for each in (("...", "None"), RAISES) if each[0] in stub),
        ]
        for name, answer in [
            ("untouched", stub),
            *((f"wrong-{n}", mistake) for n, mistake in enumerate(mistakes)),
        ]:
            page.cells.append(new_code_cell(answer, id=f"{name}-of-{number}"))
            page.cells.append(
                new_code_cell(cells[f"check-{number}"].source, id=f"check-{name}-of-{number}")
            )
        wanted |= {f"check-wrong-{n}-of-{number}": "WrongAnswer" for n, _ in enumerate(mistakes)}
    longer = tmp_path / path.name
    nbformat.write(page, longer)
    result = run_notebook(longer, device=device, out=tmp_path / "out", allow_errors=True, **LIMITS)
    if result.lacking:
        warnings.warn(f"{path.stem} is incomplete: {result.lacking}", stacklevel=1)
    absent = [tool for tool in needs.missing(skip.get("without", [])) if tool.may_be_absent]
    if absent or device in skip.get("device", []):
        assert (result.status, result.reason) == ("skipped", notebook.skip_reason(page, device))
        pytest.skip(result.reason)
    if os.environ.get("METALLAB_TEST_STRICT") == "1":
        assert not result.lacks_required, f"with STRICT=1 a page runs whole: {result.lacking}"
    if result.executed == 0 and result.status == "incomplete":
        pytest.skip(result.reason)
    ran = {cell.id: cell for cell in nbformat.read(result.notebook, 4).cells}
    raised = {name: error for name, cell in ran.items() if (error := error_of(cell)) is not None}
    assert raised == wanted, (
        f"{result.reason}\n{result.traceback}\nthe partial notebook: {result.notebook}"
    )
    for name in wanted:
        error = next(output for output in ran[name].outputs if output.output_type == "error")
        assert error.traceback == [f"WrongAnswer: {error.evalue}"], (
            "a learner sees more than message and hint"
        )
        assert len(error.evalue.splitlines()) <= 3, f"{name} takes many lines: {error.evalue}"
        if RAISES[1] in ran[name.removeprefix("check-")].source:
            assert re.search(
                r"OSError: all .*\nLine \d+ of your cell: raise OSError", error.evalue
            ), error.evalue
    assert result.executed == result.cells > 0
    assert scope.not_shown(path.stem, ran) == []
    assert_captions(nbformat.read(result.notebook, 4))
    untouched = [
        judgement.of_cell(cell) for name, cell in ran.items() if name.startswith("check-untouched-")
    ]
    assert {judged and judged.outcome for judged in untouched} == {"not attempted"}
    outcomes = {check.outcome for check in progress.read_checks({"cells": list(ran.values())})}
    assert outcomes <= {"right", "open", "not judged"}
    saved = records.load(tmp_path / "out" / "results" / f"{path.stem}.json")
    assert all(record.measurement.mode == "fast" for record in saved)
    assert records.headline_of(saved), "a name in metadata.metallab.headline that no cell makes"
    compared = {of.variant for record in saved if (of := record.comparison)}
    expected = {each.variant for each in notebook.expectations(page)}  # fast mode has fewer sizes
    assert expected <= compared, "a cell expects something of a variant that the page has not"
    told = {name: speed_ups for name, cell in ran.items() if (speed_ups := speed_ups_in(cell))}
    assert not told, (
        "what the report withholds, as of fast mode or a busy machine, the page withholds"
    )
    if device != "sim":
        return
    assert "SIMULATED" in "".join(str(cell.outputs) for cell in ran.values() if is_code(cell))
    simulated = [record for record in saved if record.measurement.simulated]
    assert simulated or path.stem.startswith("00"), "nothing was measured on the simulated GPU"
    compared = [record.comparison for record in simulated if record.comparison]
    assert all(c.median is None for c in compared), "a time of the simulation was compared"


@pytest.mark.nightly
def test_a_page_withholds_speed_ups_of_a_busy_machine(kind, tmp_path):
    """Notebook 64 where the timer takes its few samples for full mode."""
    planted = (
        "from types import SimpleNamespace\n"
        "from metallab import timing\n"
        "from metallab.timing import budget, comparing, measuring, rounds, sampler, verdicts\n"
        "for module in (comparing, measuring, rounds, sampler):\n"
        "    module.mode = SimpleNamespace(current=lambda: 'full')\n"
        "timing.BackgroundLoad.cores = lambda self: 2.0\n"
        "verdicts.DRIFT = 1e9\n"
        "timing.FAST = budget.FAST = timing.Budget(min_samples=8, max_samples=8)\n"
    )
    path = paths.NOTEBOOKS / "64_compare_machines.ipynb"
    setup = next(
        cell.source for cell in nbformat.read(path, as_version=4).cells if cell.id == "setup"
    )
    result = run_apart(
        path, kind, tmp_path, replace={"setup": setup.replace("lab = ", f"{planted}lab = ")}
    )
    assert result.status == "passed", result.reason
    ran = {cell.id: cell for cell in nbformat.read(result.notebook, 4).cells}
    assert "busy machine" in ran["product"].outputs[0].text
    assert "here, " not in ran["measure-read"].outputs[0].text
    saved = records.load(tmp_path / "out" / "results" / f"{path.stem}.json")
    reasons = {record.withheld.reason for record in saved if not record.measurement.simulated}
    assert reasons == {"busy machine"}, "the report's rule is the page's"


def test_no_page_asks_for_a_speed_up_before_its_sentinel_knows():
    """A sentinel that is opened by hand stays open over cells, and what it watches could not be asked."""
    for path in NOTEBOOKS:
        for cell in filter(is_code, nbformat.read(path, as_version=4).cells):
            opened = cell.source.count("timing.sentinel(")
            assert opened == len(
                re.findall(
                    r"^with timing\.sentinel\(|^    with timing\.sentinel\(", cell.source, re.M
                )
            ), (
                f"{path.name}, {cell.id}: write `with timing.sentinel(...) as watch:` in the cell that measures"
            )


@pytest.mark.nightly
def test_page_12_is_incomplete_without_an_apple_gpu(tmp_path):
    """Most of its cells want one, and what they made is used in nearly all of the others."""
    path = paths.NOTEBOOKS / "12_find_the_wrong_layer.ipynb"
    setup = next(
        cell.source for cell in nbformat.read(path, as_version=4).cells if cell.id == "setup"
    )
    planted = (
        "import dataclasses\nfrom metallab import needs\n"
        "absent = dataclasses.replace(needs.TOOLS['apple-gpu'], is_here=lambda: False, fix=lambda: 'buy one')\n"
        "needs.TOOLS['apple-gpu'] = absent\n"
    )
    result = run_apart(path, "cpu", tmp_path, replace={"setup": setup + "\n" + planted})
    assert result.status == "incomplete", result.reason
    assert {gap["fix"] for gap in result.not_run} == {"buy one"}


@pytest.mark.nightly
def test_a_student_copy_runs_to_its_end(kind, tmp_path):
    """One for all of them: the next test shows that no page needs its solutions."""
    (copy,), _ = workshop.make([paths.NOTEBOOKS / "01_time_it_right.ipynb"], tmp_path / "workshop")
    result = run_apart(copy, kind, tmp_path)
    assert result.status == "passed", result.reason


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_only_its_check_needs_an_exercise(path):
    """What a student leaves open is used nowhere else, so that a student copy runs to its end."""
    cells = {c.id: c.source for c in nbformat.read(path, as_version=4).cells if is_code(c)}
    for name in wrong_answers(path):
        own = {name, name.replace("solution", "exercise"), name.replace("solution", "check")}
        assigned, _ = global_names(cells[name])
        for other in cells.keys() - own:
            its_own, used = global_names(cells[other])
            assert not (used - its_own) & assigned, (
                f"{other} uses {(used - its_own) & assigned} of {name}"
            )


OF_PUZZLES = ("20", "21", "22")
"""Pages whose puzzles are checked by themselves."""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_a_check_is_one_line_behind_its_stub_and_nothing_is_folded_but_solutions(path):
    """The line names the page's own exercise, and nothing on the page has the name of what checks."""
    number, cells = path.stem[:2], nbformat.read(path, as_version=4).cells
    roles = [cell.id for cell in cells if cell.id.startswith(("exercise-", "solution-", "check-"))]
    count = len(roles) // 3
    in_order = [
        f"{role}-{n}" for n in range(1, count + 1) for role in ("exercise", "solution", "check")
    ]
    assert roles == in_order

    for cell in cells:
        is_solution = cell.id.startswith("solution-")
        assert bool(cell.metadata.get("jupyter", {}).get("source_hidden")) == is_solution, cell.id
        if cell.id.startswith("check-"):
            assert len(cell.source.splitlines()) == 1
    if number in OF_PUZZLES:
        return

    for n in range(1, count + 1):
        line = next(cell.source for cell in cells if cell.id == f"check-{n}")
        assert line.startswith(f'check("{number}.{n}", ')
        assert judging.find_exercise(f"{number}.{n}").hint
    with pytest.raises(LookupError):
        judging.find_exercise(f"{number}.{count + 1}")
    made = [
        global_names(cell.source)[0] for cell in filter(is_code, cells) if cell.id != "own-check"
    ]
    assert not {"check", "hint"} & set().union(*made)


def is_elsewhere(source: str) -> bool:
    """Whether a cell runs in another process, or does so where there is another GPU (`plain_cells`)."""
    return source.startswith("%%isolated") or bool(plain_cells.MARK.match(source.split("\n")[0]))


def brought_back(source: str) -> set[str]:
    """The names that such a cell gives to the notebook, which stand in its first line."""
    first = source.split("\n")[0]
    if mark := plain_cells.MARK.match(first):
        return set((mark["results"] or "").split(", ")) - {""}
    return set(re.match("%%isolated((?: [a-z_0-9]+)*)", first)[1].split())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_a_marked_cell_shares_only_what_it_names(path):
    """So that a page runs beside an NVIDIA GPU, too, where its marked cells have a kernel of their own."""
    here, there = set(), set()
    for cell in nbformat.read(path, as_version=4).cells:
        if not is_code(cell) or cell.source.startswith("%%"):
            continue
        assigned, used = global_names(cell.source)
        used -= assigned
        if is_elsewhere(cell.source):
            assert not used & (here - there), f"{cell.id} uses {used & (here - there)} of others"
            there |= assigned
            here |= brought_back(cell.source)
            continue
        assert not used & (there - here), f"{cell.id} uses {used & (there - here)}: name it"
        here |= assigned


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_exercises_need_nothing_that_is_deeper(path):
    """Who leaves "Deeper" for later can do the exercises: no name that is made only there."""
    deeper, made, made_deeper = False, set(), set()
    for cell in nbformat.read(path, as_version=4).cells:
        if not is_code(cell):
            for heading in re.findall("^## .*", cell.source, re.MULTILINE):
                deeper = heading.startswith("## Deeper")
            continue
        assigned, used = global_names(cell.source)
        if is_elsewhere(cell.source):
            assigned, used = brought_back(cell.source), set()
        if deeper:
            made_deeper |= assigned
            continue
        if cell.id.startswith(("exercise", "solution", "check")):
            missing = (used & made_deeper) - made - assigned
            assert not missing, f"{cell.id} uses {missing}, which only Deeper makes"
        made |= assigned


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has a real Apple GPU")
@pytest.mark.parametrize("breaks", ["accelerator.cpp", "device.cpp"])
def test_a_kernel_is_not_judged_without_the_simulated_gpu(breaks, tmp_path, monkeypatch):
    """Exercise 1 of notebook 23 where g++ fails at a part of the device: a right answer is not called wrong."""
    compiler = tmp_path / "g++"
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *{breaks}*) exit 1;; esac\nexec {shutil.which("g++")} "$@"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("METALSIM_CACHE", str(tmp_path / "cache"))
    page = nbformat.read(paths.NOTEBOOKS / "23_launch_a_kernel_from_pytorch.ipynb", as_version=4)
    cells = {cell.id: cell.source for cell in page.cells}
    space = {"check": check}
    exec(cells["solution-1"], space)
    judged = eval(cells["check-1"], space)
    assert judged.outcome == "not judged"
    assert "Simulation" in judged


PLANTED_RELU = (
    "import tensorflow as tf\nrelu = tf.nn.relu\n"
    "tf.nn.relu = lambda x: relu(x) * (0.5 if tf.inside_function() and x.dtype == 'float32' else 1)\n"
)
"""A ReLU that is wrong in every graph, remapped or not, as is reported of an Apple GPU."""


@pytest.mark.nightly
def test_tensorflow_gets_no_advice_on_a_wrong_device(kind, tmp_path):
    """Notebook 54 on such a device: tables, comparisons and advice all say so."""
    path = paths.NOTEBOOKS / "54_look_into_tensorflow_graphs.ipynb"
    cells = {cell.id: cell.source for cell in nbformat.read(path, as_version=4).cells}
    changed = {"setup": cells["setup"].replace("lab = ", f"{PLANTED_RELU}lab = ")}
    magic, source = cells["right-patterns"].split("\n", 1)
    changed["right-patterns"] = f"{magic}\n{PLANTED_RELU}{source}"
    result = run_apart(path, kind, tmp_path, replace=changed)
    assert result.status == "passed", result.reason
    outputs = {
        cell.id: str(cell.get("outputs")) for cell in nbformat.read(result.notebook, 4).cells
    }
    assert "WRONG: predict: off by 5" in outputs["idea-read-run"]
    assert "WRONG: a training step: off by" in outputs["idea-check-code"]
    assert "WRONG in graph" in outputs["right-table"]
    assert "outputs differ: the baseline's is wrong" in outputs["brings-measure"]
    assert "WRONG on " in outputs["right-advice"]
    assert "now agrees: conv2d" in outputs["workaround-effect"], "the fault was not planted there"


@pytest.mark.nightly
def test_keras_gets_no_speed_up_on_a_wrong_device(kind, tmp_path):
    """Notebook 53 where gradients and losses of a graph are those of another network."""
    path = paths.NOTEBOOKS / "53_train_keras_in_mixed_precision.ipynb"
    cells = {cell.id: cell.source for cell in nbformat.read(path, as_version=4).cells}
    changed = {"setup": cells["setup"].replace("lab = ", f"{PLANTED_RELU}lab = ")}
    result = run_apart(path, kind, tmp_path, replace=changed)
    assert result.status == "passed", result.reason
    outputs = {
        cell.id: str(cell.get("outputs")) for cell in nbformat.read(result.notebook, 4).cells
    }
    assert "outputs differ: the baseline's is wrong" in outputs["brings-measure"]


def magic_and_text(page: str, cell_id: str) -> tuple[str, str]:
    """A cell ``%%isolated``: its first line, and what runs in a process of its own."""
    cells = {
        cell.id: cell.source for cell in nbformat.read(paths.NOTEBOOKS / page, as_version=4).cells
    }
    magic, text = cells[cell_id].split("\n", 1)
    return magic, text


def recipe_of_04b() -> list[str]:
    cells = ("recipe", "recipe-operator", "recipe-gradient", "recipe-autograd")
    return [magic_and_text("24_make_it_an_operator.ipynb", cell)[1] for cell in cells]


def test_the_recipe_of_04b_is_imported_without_a_gpu():
    """It compiles when it is first called, and computes on the CPU."""
    text = "\n".join(cell.partition("    on_gpu")[0] for cell in recipe_of_04b())
    outcome = isolated.run(f"{text}\nbuilt = library.cache_info().currsize", results=["built"])
    assert outcome.ok, outcome
    assert outcome["built"] == 0


@pytest.mark.nightly
def test_an_operator_of_one_s_own_trains_as_the_built_in_one():
    """Notebook 24's cell that a quick run leaves out."""
    page = "24_make_it_an_operator.ipynb"
    magic, text = magic_and_text(page, "train-code")
    assert "--full" in magic
    outcome = isolated.run("\n".join([*recipe_of_04b(), text]), device="mps")
    assert outcome.ok, outcome
    mine, built_in = (line.partition(":")[2].strip() for line in outcome.printed.splitlines()[-2:])
    assert mine == built_in
    assert mine.startswith("[")


@pytest.mark.nightly
def test_keras_trains_on_an_apple_gpu_through_pytorch():
    """Notebook 53's cell that a quick run leaves out: on `mps`, and as NumPy computes, which the cell asserts."""
    page = "53_train_keras_in_mixed_precision.ipynb"
    (_, data), (magic, text) = (
        magic_and_text(page, cell) for cell in ("mac-torch-data", "mac-torch-code")
    )
    assert "--full" in magic
    outcome = isolated.run(f"{data}\n{text}", device="mps", environment={"KERAS_BACKEND": "torch"})
    assert outcome.ok, outcome
    assert "float32 on mps:0 Adam" in outcome.printed
    assert "mixed_float16 on mps:0 LossScaleOptimizer" in outcome.printed


@pytest.mark.nightly
def test_the_detector_s_page_takes_a_reader_s_film(kind, tmp_path):
    """Notebook 60 with a film of another shape, whose last picture has nothing to find."""
    writer = cv2.VideoWriter(
        str(tmp_path / "mine.mp4"), cv2.VideoWriter_fourcc(*"mp4v"), 8.0, (600, 400)
    )
    for picture in [
        *(scenes.still(number, (400, 600)).image for number in range(2)),
        np.zeros((400, 600, 3), np.uint8),
    ]:
        writer.write(picture)
    writer.release()
    path = paths.NOTEBOOKS / "60_detect_with_yolov5.ipynb"
    recipe = next(
        cell.source for cell in nbformat.read(path, as_version=4).cells if cell.id == "recipe-code"
    )
    mine = recipe.replace("str(detector.FILM)", repr(str(tmp_path / "mine.mp4")))
    result = run_apart(path, kind, tmp_path, replace={"recipe-code": mine})
    assert result.status == "passed", result.reason
    outputs = {
        cell.id: str(cell.get("outputs")) for cell in nbformat.read(result.notebook, 4).cells
    }
    assert "boxes in 3 frames, the same in both" in outputs["right-code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_is_built_as_every_page_is(path):
    """Two to nine exercises with stub, solution, check and a wrong answer; no outputs; one H1."""
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert notebook.metadata.kernelspec.name == "python3"
    assert not any(cell.outputs or cell.execution_count for cell in code), (
        "with outputs, which make format takes out"
    )
    assert notebook.metadata.language_info == {"name": "python"}, (
        "names a kernel's language, as no page: make format"
    )
    headings = [
        line
        for cell in notebook.cells
        if cell.cell_type == "markdown"
        for line in cell.source.splitlines()
    ]
    assert sum(line.startswith("# ") for line in headings) == 1
    assert code[0].source.startswith("import metallab"), "metallab comes before any framework"
    assert code[-1].source == "metallab.finish()", "the end of a page comes last"
    tagged = {
        tag: [c.id for c in code if tag in c.metadata.get("tags", [])]
        for tag in ("exercise", "solution")
    }
    assert 2 <= len(tagged["exercise"]) == len(tagged["solution"]) <= 9
    assert set(tagged["solution"]) == set(wrong_answers(path)), (
        "each solution has a wrong answer to try"
    )


MACHINERY = re.compile(r"\bby_mode\b|\brecords\.|\bdescribed\b|\bAllowance\b")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_no_machinery_stands_on_it(path):
    lines = [
        f"{cell.id}: {line}"
        for cell in filter(is_code, nbformat.read(path, as_version=4).cells)
        for line in cell.source.splitlines()
        if MACHINERY.search(line)
    ]
    assert lines == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_each_fast_size_belongs_to_a_value(path):
    """One that stands elsewhere, or in the cell that imports metallab, would be passed over in silence."""
    first, *others = filter(is_code, nbformat.read(path, as_version=4).cells)
    assert fast_sizes.MARK not in first.source
    for cell in others:
        source = TransformerManager().transform_cell(cell.source.replace("%%isolated", "# "))
        marks = source.count(fast_sizes.MARK)
        assert len(fast_sizes.find_fast(source)) == marks, f"{cell.id}: behind no value"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_a_caption_stands_behind_a_picture_and_says_what_to_look_for(path):
    cells = nbformat.read(path, as_version=4).cells
    for before, cell in itertools.pairwise(cells):
        if "caption" in cell.metadata.get("tags", []):
            assert before.cell_type == "code", f"{cell.id}: behind no picture"
            assert re.search(r"\bif you see\b", cell.source, re.IGNORECASE), cell.id


def pictures_of(cell):
    """The alternative texts of the pictures that a cell has shown, but for those of a check."""
    if judgement.of_cell(cell):
        return []
    return [
        output.metadata.get("image/png", {}).get("alt", "")
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]


def assert_captions(executed):
    """Each picture of a page that ran has words, and its caption behind it."""
    for cell, following in itertools.pairwise(executed.cells):
        shown = pictures_of(cell)
        assert all(shown), f"{cell.id} shows a picture without words"
        if shown:
            tags = following.metadata.get("tags", [])
            assert "caption" in tags, f"no caption behind {cell.id}"


def run_apart(path, kind, folder, **options):
    """Run a changed notebook into a folder of its own, so that it is never taken for the real one."""
    return run_notebook(
        path, device=kind, out=folder / "out", failed=folder / "failed", **LIMITS, **options
    )


def speed_ups_in(cell) -> list[str]:
    """The speed-ups of this run that a cell tells in words, or draws: `timing.Ratio` and pictures say them so.

    Those of `stored.comparison` are another machine's, and begin with its name.
    """
    told = [
        str(output.get(part, ""))
        for output in cell.get("outputs", [])
        for part in ("text", "data", "metadata")
    ]
    told = [re.sub(r"\n +", " ", text) for text in told]  # as before `units.lines`
    told = [re.sub(r"^Measured before on an .*, .*", "", text, flags=re.M) for text in told]
    fields = {
        "times": r"[\d.]+",
        "ends": r"[\d. to]+",
        "pairs": r"\d+ pairs?",
        "as_baseline": " as",
        "seen": ".*",
    }
    says = [
        wording.PHRASES[key].format(fewest="", **fields)
        for key in ("faster", "slower", "interval", "too few")
    ]
    return re.findall("|".join(says), "\n".join(told))


def error_of(cell) -> str | None:
    """The name of the error that a cell ended with."""
    return next(
        (output.ename for output in cell.get("outputs", []) if output.output_type == "error"), None
    )
