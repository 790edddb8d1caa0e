"""Every notebook runs: as it is, and then with a wrong answer to each of its exercises, which must go red.

Each page runs once, in fast mode: on the simulated Apple GPU, or on the best device of this machine, if its metadata
say so (``"metallab": {"tested_on": "best"}``), it is not simulated, or this is a Mac. About half of the pages say so,
that both are tried. What is marked nightly runs each on the other device, too. `headless` itself fails a notebook in
which any code cell was not executed.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import shutil
import symtable
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

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
        "write a wrong answer to each exercise, in a cell tagged wrong behind its check; make format moves it "
        f"to tests/support/wrong_answers.txt, below '== {path.stem} 1' for the first exercise, '... 2' for the second"
    )
    return WRONG_ANSWERS[path.stem]


def notebook_id(path):
    return path.stem


def is_code(cell):
    return cell.cell_type == "code"


@functools.cache
def read_page(path):
    """A page to be looked at; `nbformat.read` gives one that may be changed."""
    return nbformat.read(path, as_version=4)


def code_cells(path):
    return list(filter(is_code, read_page(path).cells))


def sources_of(path):
    """The source of each cell by its id."""
    return {cell.id: cell.source for cell in read_page(path).cells}


def executed_cells(result):
    """The cells of an executed page by their ids."""
    return {cell.id: cell for cell in nbformat.read(result.notebook, 4).cells}


def shown_by(result):
    """What each cell of an executed page shows, by its id."""
    return {name: str(cell.get("outputs")) for name, cell in executed_cells(result).items()}


@functools.cache
def global_names(source):
    """Return the global names that a cell assigns, and those that it uses, within its functions and classes as well."""
    top = symtable.symtable(TransformerManager().transform_cell(source), "cell", "exec")
    symbols = top.get_symbols()
    assigned = {each.get_name() for each in symbols if each.is_assigned() or each.is_imported()}
    used = {each.get_name() for each in symbols if each.is_referenced()}

    tables = top.get_children()
    while tables:
        table = tables.pop()
        used |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
        tables += table.get_children()
    return frozenset(assigned), frozenset(used)


@pytest.fixture(scope="session")
def kind():
    """The device that `make test DEVICE=` names, or the best of this machine, as the runner finds it."""
    return headless.resolve_device(os.environ.get("METALLAB_TEST_DEVICE") or "auto")["device"]


def devices_of(page, kind):
    """The device that a page runs on, and the other one: a Mac runs all on its GPU."""
    if (
        "sim" in page.metadata.metallab.get("skip", {}).get("device", [])
        or sys.platform == "darwin"
    ):
        return kind, "sim"
    return (kind, "sim") if page.metadata.metallab.get("tested_on") == "best" else ("sim", kind)


NIGHTLY = [
    pytest.mark.nightly,
    pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has a real Apple GPU"),
]


@dataclass
class Run:
    """A page that was executed with wrong answers to its exercises behind its last cell."""

    path: Path
    page: nbformat.NotebookNode
    device: str
    folder: Path
    result: headless.NotebookResult

    @functools.cached_property
    def cells(self):
        """The executed cells by their ids."""
        return executed_cells(self.result)

    @functools.cached_property
    def saved(self):
        """The records that the page has saved."""
        return records.load(self.folder / "results" / f"{self.path.stem}.json")

    @property
    def wrong(self):
        """The checks of wrong answers."""
        return [name for name in self.cells if name.startswith("check-wrong-")]

    @property
    def raised(self):
        """The name of the error that each cell ended with, of those that did."""
        ended = {name: error_of(cell) for name, cell in self.cells.items()}
        return {name: error.ename for name, error in ended.items() if error is not None}


def answers_to_try(stub, mistakes):
    """Yield the answers to an exercise that are to be tried, by name: the stub, and what is wrong."""
    yield "untouched", stub
    shorter = [stub.replace(*each) for each in (("...", "None"), RAISES) if each[0] in stub]
    for number, mistake in enumerate([*mistakes, *shorter]):
        yield f"wrong-{number}", mistake


def append_answers(page, path):
    """Append to a page each exercise again, untouched and with a plausible mistake, and its check."""
    sources = {cell.id: cell.source for cell in page.cells}

    for solution, mistakes in wrong_answers(path).items():
        number = solution.removeprefix("solution-")
        for name, answer in answers_to_try(sources[f"exercise-{number}"], mistakes):
            check = f"check-{name}-of-{number}"
            page.cells.append(new_code_cell(answer, id=f"{name}-of-{number}"))
            page.cells.append(new_code_cell(sources[f"check-{number}"], id=check))


def execute(path, device, folder):
    """Run a page with wrong answers behind it."""
    page = nbformat.read(path, as_version=4)
    append_answers(page, path)
    longer = folder / path.name
    nbformat.write(page, longer)

    out = folder / "out"
    result = run_notebook(longer, device=device, out=out, allow_errors=True, **LIMITS)
    if result.lacking:
        warnings.warn(f"{path.stem} is incomplete: {result.lacking}", stacklevel=1)
    return Run(path, page, device, out, result)


def skip_what_could_not_run(run):
    """Skip the test where this machine lacks what the page needs, and the page says so.

    It fails where such a page was not skipped for that reason, and with STRICT=1 where cells were left out for want of
    a tool that any machine can have. A page of which some cells were left out goes on; one of which no cell ran does
    not.
    """
    result, skip = run.result, run.page.metadata.metallab.get("skip", {})

    absent = [tool for tool in needs.missing(skip.get("without", [])) if tool.may_be_absent]
    if absent or run.device in skip.get("device", []):
        assert result.status == "skipped"
        assert result.reason == notebook.skip_reason(run.page, run.device)
        pytest.skip(result.reason)

    if os.environ.get("METALLAB_TEST_STRICT") == "1":
        assert not result.lacks_required, f"with STRICT=1 a page runs whole: {result.lacking}"
    if result.executed == 0 and result.status == "incomplete":
        pytest.skip(result.reason)


@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=NIGHTLY)], ids=["own", "other"])
@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_runs_from_top_to_bottom_and_its_checks_go_red(path, turn, kind, tmp_path):
    """The page as it is; behind its last cell each exercise again, untouched and with a plausible mistake.

    One run for all that is asked of it, because executing pages is what this file spends its time on.
    """
    device = devices_of(read_page(path), kind)[turn]
    run = execute(path, device, tmp_path)
    skip_what_could_not_run(run)

    result = run.result
    told = f"{result.reason}\n{result.traceback}\nthe partial notebook: {result.notebook}"
    assert run.raised == dict.fromkeys(run.wrong, "WrongAnswer"), told
    assert result.executed == result.cells > 0
    assert [fault for find in FAULTS for fault in find(run)] == []


# ---- what may be wrong with a page that ran: each yields the faults ------------------------------------------------


def find_long_errors(run):
    """A learner sees of a wrong answer a message and, if asked for, a hint; of an error its line as well.

    One of the answers that `answers_to_try` makes raises an error of many lines, which is cut short as well.
    """
    for name in run.wrong:
        error = error_of(run.cells[name])
        if error.traceback != [f"WrongAnswer: {error.evalue}"]:
            yield f"{name}: a learner sees more than message and hint"
        if len(error.evalue.splitlines()) > 3:
            yield f"{name} takes many lines: {error.evalue}"

        does_raise = RAISES[1] in run.cells[name.removeprefix("check-")].source
        told = r"OSError: all .*\nLine \d+ of your cell: raise OSError"
        if does_raise and not re.search(told, error.evalue):
            yield f"{name} does not say in which line: {error.evalue}"


def find_subjects_not_shown(run):
    """A page shows the subjects that it says it shows."""
    return scope.not_shown(run.path.stem, run.cells)


def find_missing_words(run):
    """Each picture has words, and its caption behind it."""
    for cell, following in itertools.pairwise(run.cells.values()):
        shown = pictures_of(cell)
        if not all(shown):
            yield f"{cell.id} shows a picture without words"
        if shown and "caption" not in following.metadata.get("tags", []):
            yield f"no caption behind {cell.id}"


def find_judged_stubs(run):
    """An exercise that nobody has touched is not attempted."""
    untouched = {
        name: cell for name, cell in run.cells.items() if name.startswith("check-untouched-")
    }
    for name, cell in untouched.items():
        judged = judgement.of_cell(cell)
        if judged is None or judged.outcome != "not attempted":
            yield f"{name}: {judged}"


def find_solutions_that_are_not_right(run):
    """A page's own solutions are right, or open where the machine's clock decides."""
    for judged in progress.read_checks({"cells": list(run.cells.values())}):
        if judged.outcome not in {"right", "open", "not judged"}:
            yield f"{judged.exercise}: {judged.outcome}"


def find_lost_results(run):
    """What was measured is saved: in fast mode, with a headline, with what a cell expects of a variant."""
    wrong = {each.measurement.mode for each in run.saved} - {"fast"}
    yield from (f"a result of {mode} mode" for mode in wrong)
    if not records.headline_of(run.saved):
        yield "a name in metadata.metallab.headline that no cell makes"

    # by the variant alone: fast mode has fewer sizes, and so fewer comparisons
    compared = {of.variant for record in run.saved if (of := record.comparison)}
    expected = {each.variant for each in notebook.expectations(run.page)}
    yield from (
        f"a cell expects something of {name}, a variant that the page has not"
        for name in expected - compared
    )


def find_told_speed_ups(run):
    """What the report withholds, as of fast mode or a busy machine, the page withholds."""
    for name, cell in run.cells.items():
        if speed_ups := speed_ups_in(cell):
            yield f"{name} tells {speed_ups}"


def find_simulated_times(run):
    """A page on the simulated GPU says so, measures something there, and its times are compared with none.

    Page 00 need not measure: it shows what a machine has.
    """
    if run.device != "sim":
        return
    if "SIMULATED" not in "".join(str(cell.get("outputs")) for cell in run.cells.values()):
        yield "nothing says that it was simulated"

    simulated = [record for record in run.saved if record.measurement.simulated]
    if not simulated and not run.path.stem.startswith("00"):
        yield (
            "nothing was measured on the simulated GPU: measure with on=lab; a page that measures elsewhere says "
            'so in its metadata, "metallab": {"tested_on": "best"}'
        )
    for record in simulated:
        if record.comparison and record.comparison.median is not None:
            yield f"a time of the simulation was compared: {record.comparison.variant}"


FAULTS = (
    find_long_errors,
    find_subjects_not_shown,
    find_missing_words,
    find_judged_stubs,
    find_solutions_that_are_not_right,
    find_lost_results,
    find_told_speed_ups,
    find_simulated_times,
)


# ---- pages that are changed, and run ------------------------------------------------------------------------------


PLANTED_BUSY = (
    "from types import SimpleNamespace\n"
    "from metallab import timing\n"
    "from metallab.timing import budget, comparing, measuring, rounds, sampler, verdicts\n"
    "for module in (comparing, measuring, rounds, sampler):\n"
    "    module.mode = SimpleNamespace(current=lambda: 'full')\n"
    "timing.BackgroundLoad.cores = lambda self: 2.0\n"
    "verdicts.DRIFT = 1e9\n"
    "timing.FAST = budget.FAST = timing.Budget(min_samples=8, max_samples=8)\n"
)
"""A machine with other work, where the timer takes its few samples for full mode."""


@pytest.mark.nightly
def test_a_page_withholds_speed_ups_of_a_busy_machine(kind, tmp_path):
    """Notebook 64 says so in place of a speed-up, and saves the reason for the report."""
    path = paths.NOTEBOOKS / "64_compare_machines.ipynb"
    # behind the imports of the cell, and before it measures
    setup = sources_of(path)["setup"].replace("lab = ", f"{PLANTED_BUSY}lab = ")

    result = run_apart(path, kind, tmp_path, replace={"setup": setup})

    assert result.status == "passed", result.reason
    ran = executed_cells(result)
    assert "busy machine" in ran["product"].outputs[0].text
    assert "here, " not in ran["measure-read"].outputs[0].text, "a speed-up of this machine"
    saved = records.load(tmp_path / "out" / "results" / f"{path.stem}.json")
    reasons = {record.withheld.reason for record in saved if not record.measurement.simulated}
    assert reasons == {"busy machine"}


@pytest.mark.nightly
def test_page_12_is_incomplete_without_an_apple_gpu(tmp_path):
    """Most of its cells want one, and what they made is used in nearly all of the others.

    The run does not fail: it is incomplete, and says of each gap what would fill it.
    """
    path = paths.NOTEBOOKS / "12_find_the_wrong_layer.ipynb"
    planted = (
        "import dataclasses\nfrom metallab import needs\n"
        "absent = dataclasses.replace(needs.TOOLS['apple-gpu'], is_here=lambda: False, fix=lambda: 'buy one')\n"
        "needs.TOOLS['apple-gpu'] = absent\n"
    )
    setup = f"{sources_of(path)['setup']}\n{planted}"

    result = run_apart(path, "cpu", tmp_path, replace={"setup": setup})

    assert result.status == "incomplete", result.reason
    assert {gap["fix"] for gap in result.not_run} == {"buy one"}


@pytest.mark.nightly
def test_a_student_copy_runs_to_its_end(kind, tmp_path):
    """One for all of them: the next test shows that no page needs its solutions."""
    (copy,), _ = workshop.make([paths.NOTEBOOKS / "01_time_it_right.ipynb"], tmp_path / "workshop")

    result = run_apart(copy, kind, tmp_path)

    assert result.status == "passed", result.reason


# ---- pages as they are written ------------------------------------------------------------------------------------


def uses_of_solutions(path):
    """Yield cells that use what a solution assigns, but for its stub and its check."""
    sources = {cell.id: cell.source for cell in code_cells(path)}
    for name in wrong_answers(path):
        own = {name, name.replace("solution", "exercise"), name.replace("solution", "check")}
        assigned, _ = global_names(sources[name])
        for other in sources.keys() - own:
            its_own, used = global_names(sources[other])
            if shared := (used - its_own) & assigned:
                yield f"{other} uses {set(shared)} of {name}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_only_its_check_needs_an_exercise(path):
    """What a student leaves open is used nowhere else, so that a student copy runs to its end."""
    assert list(uses_of_solutions(path)) == []


OPENED = re.compile(r"^(?:    )?with timing\.sentinel\(", re.MULTILINE)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_no_page_asks_for_a_speed_up_before_its_sentinel_knows(path):
    """A sentinel that is opened by hand stays open over cells, and what it watches could not be asked."""
    assert [
        cell.id
        for cell in code_cells(path)
        if cell.source.count("timing.sentinel(") != len(OPENED.findall(cell.source))
    ] == [], "write `with timing.sentinel(...) as watch:` in the cell that measures"


OF_PUZZLES = ("20", "21", "22")
"""Pages whose puzzles are checked by themselves."""

ASKING = [path for path in NOTEBOOKS if path.stem[:2] not in OF_PUZZLES]
"""Pages whose exercises are asked about by a function of `metallab.exercises`."""


def number_of(path):
    return path.stem[:2]


def count_exercises(path):
    return sum(name.startswith("check-") for name in sources_of(path))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_an_exercise_is_a_stub_then_its_solution_then_its_check(path):
    roles = ("exercise", "solution", "check")
    ids = [
        name for name in sources_of(path) if name.startswith(tuple(f"{role}-" for role in roles))
    ]

    numbers = range(1, count_exercises(path) + 1)
    assert ids == [f"{role}-{number}" for number in numbers for role in roles]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_solutions_are_folded_and_nothing_else(path):
    cells = read_page(path).cells
    folded = [cell.id for cell in cells if cell.metadata.get("jupyter", {}).get("source_hidden")]

    assert folded == [cell.id for cell in cells if cell.id.startswith("solution-")]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_a_check_is_one_line(path):
    checks = {name: text for name, text in sources_of(path).items() if name.startswith("check-")}

    assert [name for name, text in checks.items() if len(text.splitlines()) != 1] == []


@pytest.mark.parametrize("path", ASKING, ids=notebook_id)
def test_a_check_names_the_pages_own_exercise_which_has_a_hint(path):
    sources = sources_of(path)
    names = {n: f"{number_of(path)}.{n}" for n in range(1, count_exercises(path) + 1)}

    begins = {n: sources[f"check-{n}"].startswith(f'check("{name}", ') for n, name in names.items()}
    assert [n for n, does in begins.items() if not does] == []
    assert [name for name in names.values() if not judging.find_exercise(name).hint] == []


@pytest.mark.parametrize("path", ASKING, ids=notebook_id)
def test_no_exercise_is_asked_about_that_the_page_has_not(path):
    with pytest.raises(LookupError):
        judging.find_exercise(f"{number_of(path)}.{count_exercises(path) + 1}")


@pytest.mark.parametrize("path", ASKING, ids=notebook_id)
def test_nothing_on_a_page_has_the_name_of_what_checks(path):
    made = {cell.id: global_names(cell.source)[0] for cell in code_cells(path)}
    made.pop("own-check", None)  # which imports both

    assert [name for name, names in made.items() if names & {"check", "hint"}] == []


def is_elsewhere(source: str) -> bool:
    """Whether a cell runs in another process, or does so where there is another GPU (`plain_cells`)."""
    return source.startswith("%%isolated") or bool(plain_cells.MARK.match(source.split("\n")[0]))


def brought_back(source: str) -> set[str]:
    """The names that such a cell gives to the notebook, which stand in its first line."""
    first = source.split("\n")[0]
    if mark := plain_cells.MARK.match(first):
        return set((mark["results"] or "").split(", ")) - {""}
    return set(re.match("%%isolated((?: [a-z_0-9]+)*)", first)[1].split())


def results_from_a_third_kernel(source: str) -> set[str]:
    """The results of a magic cell that the notebook alone has: with --device mps the second kernel has them as well."""
    is_third = source.startswith("%%isolated") and "--device mps" not in source.split("\n")[0]
    return brought_back(source) if is_third else set()


def names_of_other_kernels(path):
    """Yield cells that use names of another kernel, which no cell gives to theirs.

    A marked cell may run in a second kernel. It must not use what the notebook's own kernel has set, nor the notebook
    what it has set, but for the names in its first line.
    """
    # the names that are set in the notebook's kernel, and in the second one
    here, there = (
        set(),
        set(),
    )
    for cell in code_cells(path):
        if cell.source.startswith("%%"):
            here |= results_from_a_third_kernel(cell.source)
            continue

        assigned, used = global_names(cell.source)
        is_there = is_elsewhere(cell.source)
        others = (here - there) if is_there else (there - here)
        if strange := (used - assigned) & others:
            yield f"{cell.id} uses {strange}: name it in the first line of the marked cell"

        here |= brought_back(cell.source) if is_there else assigned
        there |= assigned if is_there else set()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_a_marked_cell_shares_only_what_it_names(path):
    """So that a page runs beside an NVIDIA GPU, too, where its marked cells have a kernel of their own."""
    assert list(names_of_other_kernels(path)) == []


@pytest.mark.parametrize(
    ("cells", "uses"),
    [
        pytest.param(["n = 1", "# device: mps\nprint(n)"], ["cell-1"], id="the-notebook-s"),
        pytest.param(["# device: mps\nx = 1", "print(x)"], ["cell-1"], id="the-marked-cell-s"),
        pytest.param(["# device: mps -> x\nx = 1", "print(x)"], [], id="given"),
        pytest.param(["%%isolated y\ny = 1", "# device: mps\nprint(y)"], ["cell-1"], id="a-third"),
        pytest.param(
            ["%%isolated y --device mps\ny = 1", "# device: mps\nprint(y)"], [], id="the-same"
        ),
    ],
)
def test_a_name_of_another_kernel_is_found(tmp_path, cells, uses):
    page = nbformat.v4.new_notebook(
        cells=[new_code_cell(text, id=f"cell-{number}") for number, text in enumerate(cells)]
    )
    nbformat.write(page, tmp_path / "page.ipynb")

    found = names_of_other_kernels(tmp_path / "page.ipynb")
    assert [fault.partition(" ")[0] for fault in found] == uses


def uses_of_deeper(path):
    """Yield exercises that use a name which is made only under "Deeper".

    Asked are the exercises outside of "Deeper", whether they stand before it or behind it.
    """
    is_deeper, made, made_deeper = False, set(), set()
    for cell in read_page(path).cells:
        if not is_code(cell):
            headings = re.findall("^## .*", cell.source, re.MULTILINE)
            is_deeper = headings[-1].startswith("## Deeper") if headings else is_deeper
            continue

        assigned, used = global_names(cell.source)
        if is_elsewhere(cell.source):  # what it uses is not the notebook's
            assigned, used = brought_back(cell.source), set()
        if is_deeper:
            made_deeper |= assigned
            continue

        is_exercise = cell.id.startswith(("exercise", "solution", "check"))
        missing = (used & made_deeper) - made - assigned
        if is_exercise and missing:
            yield f"{cell.id} uses {set(missing)}"
        made |= assigned


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_exercises_need_nothing_that_is_deeper(path):
    """Who leaves "Deeper" for later can do the exercises: no name that is made only there."""
    assert list(uses_of_deeper(path)) == []


@pytest.fixture
def break_compiler(tmp_path, monkeypatch):
    """Return a function that makes g++ fail at a file, with nothing built so far."""

    def put(file):
        fails = f'case "$*" in *{file}*) exit 1;; esac'
        compiler = tmp_path / "g++"
        compiler.write_text(f'#!/bin/sh\n{fails}\nexec {shutil.which("g++")} "$@"\n')
        compiler.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        monkeypatch.setenv("METALSIM_CACHE", str(tmp_path / "cache"))

    return put


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has a real Apple GPU")
@pytest.mark.parametrize("part", ["accelerator.cpp", "device.cpp"])
def test_a_kernel_is_not_judged_without_the_simulated_gpu(break_compiler, part):
    """Exercise 1 of notebook 23, where a part of the device cannot be built: a right answer is not called wrong."""
    break_compiler(part)
    sources = sources_of(paths.NOTEBOOKS / "23_launch_a_kernel_from_pytorch.ipynb")
    space = {"check": check}

    exec(sources["solution-1"], space)
    judged = eval(sources["check-1"], space)

    assert judged.outcome == "not judged"
    assert "Simulation" in judged


PLANTED_RELU = (
    "import tensorflow as tf\nrelu = tf.nn.relu\n"
    "tf.nn.relu = lambda x: relu(x) * (0.5 if tf.inside_function() and x.dtype == 'float32' else 1)\n"
)
"""A ReLU that is wrong in every graph, remapped or not, as is reported of an Apple GPU."""


@pytest.mark.nightly
def test_tensorflow_gets_no_advice_on_a_wrong_device(kind, tmp_path):
    """Notebook 54 where a ReLU in a graph gives half of what it should: tables, comparisons and advice all say so.

    It is planted in the notebook's process and in that of the cell ``right-patterns``, which has one of its own.
    """
    path = paths.NOTEBOOKS / "54_look_into_tensorflow_graphs.ipynb"
    sources = sources_of(path)
    magic, patterns = sources["right-patterns"].split("\n", 1)
    changed = {
        "setup": sources["setup"].replace("lab = ", f"{PLANTED_RELU}lab = "),
        "right-patterns": f"{magic}\n{PLANTED_RELU}{patterns}",
    }

    result = run_apart(path, kind, tmp_path, replace=changed)

    assert result.status == "passed", result.reason
    shown = shown_by(result)
    assert "WRONG: predict: off by 5" in shown["idea-read-run"]
    assert "WRONG: a training step: off by" in shown["idea-check-code"]
    assert "WRONG in graph" in shown["right-table"]
    assert "outputs differ: the baseline's is wrong" in shown["brings-measure"]
    assert "WRONG on " in shown["right-advice"]
    assert "now agrees: conv2d" in shown["workaround-effect"], "the fault was not planted there"


@pytest.mark.nightly
def test_keras_gets_no_speed_up_on_a_wrong_device(kind, tmp_path):
    """Notebook 53 where gradients and losses of a graph are those of another network."""
    path = paths.NOTEBOOKS / "53_train_keras_in_mixed_precision.ipynb"
    setup = sources_of(path)["setup"].replace("lab = ", f"{PLANTED_RELU}lab = ")

    result = run_apart(path, kind, tmp_path, replace={"setup": setup})

    assert result.status == "passed", result.reason
    assert "outputs differ: the baseline's is wrong" in shown_by(result)["brings-measure"]


def magic_and_text(page: str, cell_id: str) -> tuple[str, str]:
    """A cell ``%%isolated``: its first line, and what runs in a process of its own."""
    magic, text = sources_of(paths.NOTEBOOKS / page)[cell_id].split("\n", 1)
    return magic, text


def recipe_of_24() -> list[str]:
    cells = ("recipe", "recipe-operator", "recipe-gradient", "recipe-autograd")
    return [magic_and_text("24_make_it_an_operator.ipynb", cell)[1] for cell in cells]


def test_the_recipe_of_24_is_imported_without_a_gpu():
    """It compiles when it is first called, and computes on the CPU."""
    text = "\n".join(cell.partition("    on_gpu")[0] for cell in recipe_of_24())
    outcome = isolated.run(f"{text}\nbuilt = library.cache_info().currsize", results=["built"])
    assert outcome.ok, outcome
    assert outcome["built"] == 0


@pytest.mark.nightly
def test_an_operator_of_one_s_own_trains_as_the_built_in_one():
    """Notebook 24's cell that a quick run leaves out."""
    page = "24_make_it_an_operator.ipynb"
    magic, text = magic_and_text(page, "train-code")
    assert "--full" in magic
    outcome = isolated.run("\n".join([*recipe_of_24(), text]), device="mps")
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


@pytest.fixture
def film(tmp_path):
    """A film of another shape than the page's, whose last picture has nothing to find."""
    path = tmp_path / "mine.mp4"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), 8.0, (600, 400))
    for number in range(2):
        writer.write(scenes.still(number, (400, 600)).image)
    writer.write(np.zeros((400, 600, 3), np.uint8))
    writer.release()
    return path


@pytest.mark.nightly
def test_the_detector_s_page_takes_a_reader_s_film(kind, film, tmp_path):
    path = paths.NOTEBOOKS / "60_detect_with_yolov5.ipynb"
    recipe = sources_of(path)["recipe-code"].replace("str(detector.FILM)", repr(str(film)))

    result = run_apart(path, kind, tmp_path, replace={"recipe-code": recipe})

    assert result.status == "passed", result.reason
    assert "boxes in 3 frames, the same in both" in shown_by(result)["right-code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_is_saved_without_outputs_and_a_kernel_s_language(path):
    """As make format leaves a page, so that a change of it shows nothing else."""
    metadata = read_page(path).metadata

    assert [cell.id for cell in code_cells(path) if cell.outputs or cell.execution_count] == []
    assert metadata.kernelspec.name == "python3"
    assert metadata.language_info == {"name": "python"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_has_one_title(path):
    texts = [cell.source for cell in read_page(path).cells if cell.cell_type == "markdown"]

    assert len(re.findall("^# ", "\n".join(texts), re.MULTILINE)) == 1


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_begins_with_metallab_and_ends_with_its_sum(path):
    first, *_, last = code_cells(path)

    assert first.source.startswith("import metallab"), "metallab comes before any framework"
    assert last.source == "metallab.finish()", "the end of a page comes last"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_has_exercises_each_with_a_solution_and_a_wrong_answer_to_try(path):
    tags = {cell.id: cell.metadata.get("tags", []) for cell in code_cells(path)}
    exercises = [name for name, tagged in tags.items() if "exercise" in tagged]
    solutions = [name for name, tagged in tags.items() if "solution" in tagged]

    assert len(exercises) == len(solutions), (
        "behind each cell tagged exercise stands one tagged solution"
    )
    assert 2 <= len(exercises) <= 9, "a page has two to nine exercises, most have two or three"
    assert set(solutions) == set(wrong_answers(path))


TASK = re.compile(r"^(?:\*\*Exercise|\*\*Step|## Puzzle) (\d+)", re.MULTILINE)
"""What the text of an exercise begins with. Puzzles are counted over their pages."""


def find_tasks(path):
    """The numbers of the tasks that are told before each stub, and behind the stub before it."""
    tasks, told = [], []
    for cell in read_page(path).cells:
        if cell.cell_type == "markdown":
            told += TASK.findall(cell.source)
        elif "exercise" in cell.metadata.get("tags", []):
            tasks.append(told)
            told = []
    return tasks


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_each_exercise_has_its_task_in_the_text_before_it(path):
    tasks = find_tasks(path)

    numbers = [int(number) for told in tasks for number in told]
    assert [len(told) for told in tasks] == [1] * len(tasks)
    assert numbers == list(range(numbers[0], numbers[0] + len(tasks)))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_the_teacher_s_guide_says_of_each_exercise_what_goes_wrong(path):
    guide = (paths.ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
    (paragraph,) = re.findall(rf"^\*\*{path.stem[:2]}\.\*\* (?:.+\n)+", guide, re.MULTILINE)

    wanted = [f"*{number}:*" for told in find_tasks(path) for number in told]
    missing = [each for each in wanted if each not in paragraph]
    assert missing == [], f"docs/teaching.md, Lesson by lesson, {path.stem[:2]}: {missing}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_the_device_that_a_page_is_tested_on_is_one_that_is_known(path):
    assert read_page(path).metadata.metallab.get("tested_on", "best") == "best"


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has a real Apple GPU")
@pytest.mark.parametrize(
    ("told", "devices"),
    [
        pytest.param({}, ("sim", "cpu"), id="a-page"),
        pytest.param({"tested_on": "best"}, ("cpu", "sim"), id="on-the-best-device"),
        pytest.param({"skip": {"device": ["sim"]}}, ("cpu", "sim"), id="not-simulated"),
    ],
)
def test_the_metadata_of_a_page_say_on_which_device_it_is_tested(told, devices):
    page = nbformat.v4.new_notebook(metadata={"metallab": told})

    assert devices_of(page, kind="cpu") == devices


MACHINERY = re.compile(r"\bby_mode\b|\brecords\.|\bdescribed\b|\bAllowance\b")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_no_machinery_stands_on_it(path):
    assert [
        f"{cell.id}: {line}"
        for cell in code_cells(path)
        for line in cell.source.splitlines()
        if MACHINERY.search(line)
    ] == []


def count_lost_fast_sizes(source):
    """How many fast sizes of a cell stand behind no value."""
    source = TransformerManager().transform_cell(source.replace("%%isolated", "# "))
    return source.count(fast_sizes.MARK) - len(fast_sizes.find_fast(source))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_each_fast_size_belongs_to_a_value(path):
    """One that stands elsewhere, or in the cell that imports metallab, would be passed over in silence."""
    first, *others = code_cells(path)

    assert fast_sizes.MARK not in first.source
    assert [cell.id for cell in others if count_lost_fast_sizes(cell.source)] == []


def is_caption(cell):
    return "caption" in cell.metadata.get("tags", [])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_a_caption_stands_behind_code(path):
    pairs = itertools.pairwise(read_page(path).cells)

    assert [cell.id for before, cell in pairs if is_caption(cell) and not is_code(before)] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebook_id)
def test_a_caption_says_what_to_look_for(path):
    captions = {cell.id: cell.source for cell in read_page(path).cells if is_caption(cell)}

    tells = re.compile(r"\bif you see\b", re.IGNORECASE)
    assert [name for name, text in captions.items() if not tells.search(text)] == []


def pictures_of(cell):
    """The alternative texts of the pictures that a cell has shown, but for those of a check."""
    if judgement.of_cell(cell):
        return []
    return [
        output.metadata.get("image/png", {}).get("alt", "")
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]


def run_apart(path, kind, folder, **options):
    """Run a changed notebook into a folder of its own, so that it is never taken for the real one."""
    return run_notebook(
        path, device=kind, out=folder / "out", failed=folder / "failed", **LIMITS, **options
    )


def speed_ups_in(cell) -> list[str]:
    """Return the speed-ups of this run that a cell tells in words or draws, found by the phrases of `wording`.

    `timing.Ratio` and the pictures' words are made of these. What `stored.comparison` tells is left out: those lines
    begin with the name of the machine that it was measured on.
    """
    told = [
        str(output.get(part, ""))
        for output in cell.get("outputs", [])
        for part in ("text", "data", "metadata")
    ]
    told = [re.sub(r"\n +", " ", text) for text in told]  # `units.lines` has broken long lines
    told = [re.sub(r"^Measured before on an .*, .*", "", text, flags=re.M) for text in told]

    # the phrases as patterns: in place of each number stands what may be there
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


def error_of(cell):
    """The error that a cell ended with, or None."""
    outputs = cell.get("outputs", [])
    return next((output for output in outputs if output.output_type == "error"), None)
