"""Where a process writes: inside of the checkout, in a folder of somebody's own, or where they say."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import nbformat
import one_page
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from metallab import isolated, paths, records

LIMIT = 600  # seconds for a process, on a machine that has other things to do
NAME = f"mine-{uuid.uuid4().hex}"
"""Of the file of results: another run of these tests has left none of this name anywhere."""
SAVES = f"""
from metallab import device, records, timing

measured = timing.measure(lambda: 1, on=timing.Host(), name="mine")
print(records.save("{NAME}", measured, on=device.PyTorchDevice("cpu", "a CPU")))
"""
WHERE = "from metallab import paths; print(paths.BUILD)"


@pytest.fixture(autouse=True)
def _nobody_chose(monkeypatch):
    """The environment of somebody who set nothing, in fast mode."""
    for name in ("METALLAB_BUILD", "METALLAB_OUT", "METALLAB_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("METALLAB_MODE", "fast")


@pytest.fixture
def own(tmp_path) -> Path:
    """A folder of somebody's own, outside of the checkout, which git knows."""
    folder = tmp_path.resolve() / "my project"
    folder.mkdir()
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    return folder


def write_notebook(folder: Path, *cells: str) -> Path:
    """Write a notebook with these cells and the kernel that notebooks of this environment name."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    made = [new_code_cell(cell, id=f"c{number}") for number, cell in enumerate(cells)]
    path = folder / "mine.ipynb"
    nbformat.write(new_notebook(cells=made, metadata={"kernelspec": kernel}), path)
    return path


def run(*command: object, cwd: Path, code: int = 0) -> str:
    """Run a command, which has to end with the exit code; what it printed."""
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def written(folder: Path) -> set[str]:
    """The files in a folder, and in all below it."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def changes(folder: Path) -> str:
    """What git calls a change there."""
    return run("git", "status", "--porcelain", "--untracked-files=all", cwd=folder)


def assert_saved_in(folder: Path) -> None:
    """Assert that a notebook or program of a folder has its results in the folder, where git does not see them."""
    saved = Path("fast-cpu", "results", f"{NAME}.json")
    assert not (paths.ROOT / "build" / saved).exists(), "in the checkout"
    saved = folder / "build" / "metallab" / saved
    assert [record.measurement.name for record in records.load(saved)] == ["mine"]
    assert changes(folder) in ("", "?? mine.ipynb\n")


# ---------------------------------------------------------------- the decision


@pytest.mark.parametrize("inside", [".", "notebooks", "docs"])
def test_inside_of_the_checkout_it_is_the_checkouts(inside, monkeypatch):
    monkeypatch.chdir(paths.ROOT / inside)
    assert paths.choose_build() == paths.ROOT / "build"


def test_a_link_to_the_checkout_leads_into_it(own, monkeypatch):
    (own / "lessons").symlink_to(paths.ROOT / "notebooks")
    monkeypatch.chdir(own / "lessons")
    assert paths.choose_build() == paths.ROOT / "build"


def test_a_checkout_that_is_known_by_a_link_is_the_same(own):
    """What is imported by way of a link, such as a PYTHONPATH that names one."""
    (own / "link").symlink_to(paths.ROOT / "utils")
    code = f"import sys; sys.path.insert(0, {str(own / 'link')!r}); {WHERE}"
    assert run(sys.executable, "-c", code, cwd=paths.ROOT) == f"{paths.ROOT / 'build'}\n"


def test_elsewhere_it_is_of_the_current_folder(own, monkeypatch):
    monkeypatch.chdir(own)
    assert paths.choose_build() == own / "build" / "metallab"


def test_a_folder_beside_the_checkout_with_a_longer_name_is_elsewhere(tmp_path, monkeypatch):
    (beside := tmp_path.resolve() / "checkout-2").mkdir()
    (checkout := tmp_path.resolve() / "checkout").mkdir()
    (checkout / "pyproject.toml").touch()
    monkeypatch.setattr(paths, "ROOT", checkout)
    monkeypatch.chdir(beside)
    assert paths.choose_build() == beside / "build" / "metallab"


def test_without_a_checkout_it_is_of_the_current_folder(own, monkeypatch):
    """Installed from a wheel: `paths.ROOT` is the folder of an environment, which may lie above the current one."""
    monkeypatch.setattr(paths, "ROOT", own.parent)
    monkeypatch.chdir(own)
    assert paths.choose_build() == own / "build" / "metallab"


@pytest.mark.parametrize("is_inside", [True, False], ids=["inside", "elsewhere"])
def test_what_somebody_names_wins(is_inside, own, monkeypatch):
    monkeypatch.chdir(paths.ROOT if is_inside else own)
    monkeypatch.setenv("METALLAB_BUILD", str(own / "named"))
    assert paths.choose_build() == own / "named"


def test_a_relative_name_stays_the_same_folder(own, monkeypatch):
    monkeypatch.chdir(own)
    monkeypatch.setenv("METALLAB_BUILD", "named")
    assert paths.choose_build() == own / "named"


def test_a_folder_for_results_alone_wins(own, monkeypatch):
    monkeypatch.setenv("METALLAB_OUT", str(own / "results of today"))
    assert paths.run_folder("fast", "cpu") == own / "results of today"


def test_in_a_folder_that_was_removed_metallab_can_be_imported(own):
    code = f"import os; os.rmdir(os.getcwd()); {WHERE}"
    (gone := own / "gone").mkdir()
    assert run(sys.executable, "-c", code, cwd=gone) == f"{paths.ROOT / 'build'}\n"


# ---------------------------------------------------------------- what is hidden from git


@pytest.mark.parametrize(
    ("build", "is_hidden"),
    [("build/metallab", True), ("build", False), ("results", False)],
    ids=["of somebody's own project", "of the checkout", "named by somebody"],
)
def test_what_nobody_chose_is_hidden_from_git(build, is_hidden, own, monkeypatch):
    monkeypatch.setattr(paths, "BUILD", own / build)
    paths.write_atomically(own / build / "report" / "index.html", "a page")
    assert (changes(own) == "") is is_hidden


def test_what_lies_elsewhere_makes_no_build_folder(own, monkeypatch):
    monkeypatch.setattr(paths, "BUILD", own / "build" / "metallab")
    paths.write_atomically(own / "elsewhere" / "index.html", "a page")
    assert written(own / "elsewhere") == {"index.html"}
    assert not (own / "build").exists()


# ---------------------------------------------------------------- notebooks and commands outside of the checkout


def test_a_notebook_outside_writes_beside_itself(own):
    """In a kernel of this environment, where metallab is installed from the checkout."""
    page = nbformat.read(write_notebook(own, SAVES), 4)
    sockets = own.parent / "k"  # and no port that another test may take
    manager = KernelManager(kernel_name="python3", transport="ipc", ip=str(sockets))
    NotebookClient(
        page, km=manager, timeout=LIMIT, resources={"metadata": {"path": str(own)}}
    ).execute()
    assert_saved_in(own)


def test_a_notebook_outside_that_nbconvert_executes_writes_beside_itself(own, tmp_path):
    (elsewhere := tmp_path / "elsewhere").mkdir()
    path = write_notebook(own, SAVES)

    nbconvert = [sys.executable, "-m", "nbconvert", "--execute", "--to", "notebook"]
    run(*nbconvert, "--output-dir", elsewhere, path, cwd=elsewhere)

    assert_saved_in(own)
    assert written(elsewhere) == {"mine.ipynb"}


def test_a_program_outside_writes_beside_itself(own):
    run(sys.executable, "-c", SAVES, cwd=own)
    assert_saved_in(own)


def test_what_a_notebook_starts_writes_where_the_notebook_does(own, monkeypatch):
    """Also after it has changed its folder: cells in another process take the folder over, and not the results."""
    monkeypatch.setattr(paths, "BUILD", own / "build" / "metallab")
    (data := own / "data").mkdir()
    monkeypatch.chdir(data)
    outcome = isolated.run(f"import os\nhere = os.getcwd()\n{SAVES}", results=["here"])
    assert outcome["here"] == str(data)
    assert outcome.printed == f"{own / 'build/metallab/fast-cpu/results' / NAME}.json\n"
    assert_saved_in(own)


def test_pages_of_a_run_write_where_the_run_does(own, tmp_path, monkeypatch):
    """Wherever the notebook lies: `make bench` writes what page 64 reads."""
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build of the run")
    result = one_page.run_notebook(write_notebook(own, WHERE), out=tmp_path / "out")
    (cell,) = nbformat.read(result.notebook, 4).cells
    assert cell.outputs[0].text == f"{tmp_path / 'build of the run'}\n"


def test_a_run_started_outside_writes_there_and_git_does_not_see_it(own):
    path = write_notebook(own, "1")
    run(sys.executable, "-m", "metallab.headless", "--mode=fast", "--device=cpu", path, cwd=own)
    assert "fast-cpu/summary.json" in written(own / "build" / "metallab")
    assert changes(own) == "?? mine.ipynb\n"


def test_a_command_outside_writes_there(own):
    """As the script of this environment: it is asked for no model that there is, and has made the folder before."""
    metallab = Path(sys.executable).with_name("metallab")
    run(metallab, "doctor", "no_such_module:example", cwd=own, code=2)
    assert (own / "build" / "metallab" / "doctor").is_dir()
    assert changes(own) == ""


def test_a_command_in_the_checkout_writes_into_its_build_folder(own):
    helped = run(sys.executable, "-m", "metallab", "versus", "--help", cwd=paths.ROOT / "notebooks")
    without_breaks = "".join(helped.split())
    assert "".join(f"({paths.ROOT / 'build' / 'versus'})".split()) in without_breaks
