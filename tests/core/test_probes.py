"""Probes find what computes, what is wrong, and what crashes, without being taken down by it."""

from __future__ import annotations

import os
import sys
import textwrap

import nbformat
import numpy as np
import pytest

from metallab import probes


@pytest.fixture
def pretend(tmp_path, monkeypatch):
    """Put a package of the given text in front of the real one, for the probe's process."""

    def install(name, text):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    return install


def test_a_real_framework_agrees_with_numpy():
    probed = probes.run("torch")
    assert [(probe.device, probe.status) for probe in probed if probe.device == "cpu"] == [("cpu", "works")]
    assert {probe.device for probe in probed} == {"cpu", "mps", "cuda"}


def test_a_crash_is_a_line_in_the_table(pretend):
    pretend("onnxruntime", "import os\nos.abort()")
    (probe,) = probes.run("onnxruntime")
    assert probe.status == "failed"
    assert "SIGABRT" in probe.detail


def test_a_missing_package_names_the_command(pretend):
    pretend("onnxruntime", "raise ImportError('libsomething.so is missing')")
    (probe,) = probes.run("onnxruntime")
    assert (probe.status, probe.remedy) == ("failed", "make setup FORCE=1")
    assert "libsomething.so" in probe.detail


def test_a_hang_ends(pretend):
    pretend("onnxruntime", "import time\ntime.sleep(600)")
    (probe,) = probes.run("onnxruntime", timeout=3)
    assert probe.status == "failed"
    assert "no answer within 3 s" in probe.detail


FAKE_JAX = """
    import numpy as np
    __version__ = "0.4.34"
    class Device:
        platform = "METAL"
    class numpy:
        matmul = staticmethod(lambda a, b, precision: a @ b)
    def jit(fn, backend=None):
        return fn if backend == "cpu" else lambda a, b: {gpu}
    def devices():
        return [Device()]
    def device_put(pair, device):
        return pair
"""


@pytest.mark.parametrize(
    ("gpu", "status"),
    [("a @ b", "works"), ("a @ b + 1", "wrong"), ("a @ b * np.nan", "wrong"), ("1 / 0", "failed")],
)
def test_a_mac_s_jax_device_is_judged_by_its_result(pretend, gpu, status):
    """The lines that only run where JAX has an accelerator, with a stand-in for jax-metal."""
    pretend("jax", FAKE_JAX.format(gpu=gpu))
    statuses = {probe.device: probe.status for probe in probes.run("jax")}
    assert statuses == {"cpu": "works", "metal": status}


def test_what_a_plugin_prints_at_its_end_hides_nothing(pretend):
    last_words = "    import atexit\n    atexit.register(print, 'systemMemory: 16.00 GB')\n"
    pretend("jax", FAKE_JAX.format(gpu="a @ b") + last_words)
    assert {probe.device: probe.status for probe in probes.run("jax")} == {"cpu": "works", "metal": "works"}


FAKE_TENSORFLOW = """
    import contextlib, numpy as np
    __version__ = "2.16.2"
    where = "/CPU:0"
    @contextlib.contextmanager
    def device(name):
        global where
        where, before = name, where
        yield
        where = before
    constant = np.asarray
    class Result(np.ndarray):
        def numpy(self):
            return np.asarray(self)
    class linalg:
        matmul = staticmethod(lambda a, b: (a @ b + ("GPU" in where) * {error}).view(Result))
    class config:
        list_physical_devices = staticmethod(lambda kind: ["the GPU"])
"""


@pytest.mark.parametrize(("error", "status"), [(0, "works"), (0.5, "wrong")])
def test_a_mac_s_tensorflow_device_is_judged_by_its_result(pretend, error, status):
    """The lines that only run where TensorFlow has a GPU, with a stand-in for the Metal plugin."""
    pretend("tensorflow", FAKE_TENSORFLOW.format(error=error))
    statuses = {probe.device: probe.status for probe in probes.run("tensorflow")}
    assert statuses == {"cpu": "works", "gpu:0": status}


@pytest.mark.parametrize("name", ["tensorflow", "jax"])
def test_on_a_mac_a_missing_plugin_has_a_remedy(name, monkeypatch):
    """In this process, with stand-in frameworks that see the CPU alone, as if this were a Mac."""
    import types

    nothing = types.SimpleNamespace(
        __version__="1",
        devices=lambda: [types.SimpleNamespace(platform="cpu")],
        jit=lambda fn, backend=None: fn,
        numpy=types.SimpleNamespace(matmul=lambda a, b, precision: a @ b),
        config=types.SimpleNamespace(list_physical_devices=lambda kind: []),
        device=lambda name: pytest.MonkeyPatch.context(),
        constant=np.asarray,
        linalg=types.SimpleNamespace(matmul=lambda a, b: types.SimpleNamespace(numpy=lambda: a @ b)),
    )
    monkeypatch.setitem(sys.modules, name, nothing)
    monkeypatch.setattr(probes.sys, "platform", "darwin")
    *_, last = probes.FRAMEWORKS[name]()
    assert (last.status, last.remedy) == ("absent", "make setup FORCE=1")
    assert "Metal plugin is not loaded" in last.detail


def test_programs_of_a_mac_name_its_installer(monkeypatch):
    monkeypatch.setattr(probes.sys, "platform", "darwin")
    monkeypatch.setattr(probes.shutil, "which", lambda name: None)
    rows = probes.programs().rows
    assert [row[0] for row in rows] == ["c++", "git", "xcrun"]
    assert all(row[1].endswith("xcode-select --install") for row in rows)


def test_the_lock_is_compared_by_public_version(tmp_path, monkeypatch):
    lock = tmp_path / "constraints.txt"
    lock.write_text("# a comment\none==1.0\ntwo==2.0\nthree==3.0\nfour==4.0 ; sys_platform == 'nowhere'\n")
    monkeypatch.setattr(probes, "installed", {"one": "1.0+cu132", "two": "2.1"}.get)
    assert probes.against_lock(lock) == [("two", "2.0", "2.1")]


def test_a_lesson_says_what_it_misses(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Do it\n\nmore")])
    notebook.metadata["metallab"] = {"needs": ["numpy", "no-such-package"]}
    nbformat.write(notebook, tmp_path / "07_do_it.ipynb")
    (lesson,) = probes.lessons(tmp_path)
    assert (lesson.name, lesson.title, lesson.missing) == ("07_do_it", "Do it", ("no-such-package",))


@pytest.mark.parametrize("text", ["", "{}"])
def test_a_damaged_lesson_is_named(tmp_path, text):
    (tmp_path / "07_do_it.ipynb").write_text(text)
    with pytest.raises(ValueError, match=r"^07_do_it\.ipynb cannot be read as a notebook"):
        probes.lessons(tmp_path)


def test_no_lesson_misses_anything_where_everything_is_installed():
    """A page's list holds names of packages as pip knows them: opencv-python, and not cv2."""
    assert {lesson.name: lesson.missing for lesson in probes.lessons() if lesson.missing} == {}


@pytest.mark.parametrize("cells", [[], [nbformat.v4.new_markdown_cell("")], [nbformat.v4.new_code_cell("1")]])
def test_a_lesson_without_a_title_goes_by_its_name(tmp_path, cells):
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "90_mine.ipynb")
    assert [lesson.title for lesson in probes.lessons(tmp_path)] == ["90_mine"]
