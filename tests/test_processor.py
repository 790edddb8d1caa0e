"""What a processor is taken for: by instructions that run, by CPUID, by NumPy, PyTorch and ONNX Runtime, in children.

``make test-cpu CPU=Haswell`` runs the marked tests of all files on an emulated processor (`emulated`); here is also
held that it is the one that was asked for, and that nothing falls back to the host.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import emulated
import numpy as np
import pytest

from metalsim import building

processor = pytest.mark.processor
asked = pytest.mark.skipif(emulated.ASKED not in os.environ, reason="make test-cpu asks for a processor, make test not")

INSTRUCTIONS = {
    "avx2": "vpabsd %%ymm0, %%ymm0",
    "fma": "vfmadd231ps %%ymm0, %%ymm0, %%ymm0",
    "avx512f": "vpxord %%zmm0, %%zmm0, %%zmm0",
    "avx512vnni": "vpdpbusd %%zmm0, %%zmm0, %%zmm0",
    "avx512bf16": "vdpbf16ps %%zmm0, %%zmm0, %%zmm0",
}
"""One of each set. A library has two functions for it: did it run, and does CPUID say that it would."""

SOURCE = """
#include <csetjmp>
#include <csignal>
static sigjmp_buf back;
static void refused(int) { siglongjmp(back, 1); }
#define TRY(name, code) \\
  extern "C" int name##_runs() { \\
    struct sigaction ours = {}, before; \\
    ours.sa_handler = refused; \\
    sigaction(SIGILL, &ours, &before); \\
    int ran = 0; \\
    if (!sigsetjmp(back, 1)) { asm volatile(code "\\n\\tvzeroupper" ::: "xmm0"); ran = 1; } \\
    sigaction(SIGILL, &before, nullptr); \\
    return ran; \\
  } \\
  extern "C" int name##_told() { return !!__builtin_cpu_supports(#name); }
""" + "\n".join(f'TRY({name}, "{code}")' for name, code in INSTRUCTIONS.items())

# In a child of its own. It is told nothing but where the library is.
SEES = """
import ctypes, json, sys
from numpy.core._multiarray_umath import __cpu_features__ as numpy_has
library = ctypes.CDLL({library!r})
runs, told = ([n for n in {names!r} if library[f"{{n}}_{{how}}"]()] for how in ("runs", "told"))
seen = dict(python=sys.executable, runs=runs, told=told, numpy=sorted(name for name in numpy_has if numpy_has[name]))
"""


@pytest.fixture(scope="module")
def sees(tmp_path_factory) -> str:
    """A text for children: it sets ``seen``."""
    folder = tmp_path_factory.mktemp("processor")
    source, library = folder / "probe.cpp", folder / "probe.so"
    source.write_text(SOURCE)
    compiler, _ = building.compiler()
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", source, "-o", library], check=True, timeout=60)
    return SEES.format(library=str(library), names=tuple(INSTRUCTIONS))


@pytest.fixture(scope="module")
def here(sees) -> dict:
    """What this process sees."""
    space: dict = {}
    exec(sees, space)
    return space["seen"]


@processor
def test_instructions_run_where_cpuid_says_so(here):
    """A host may run more than it tells, since a hypervisor can hide a set; an emulated processor may not."""
    assert set(here["told"]) <= set(here["runs"])
    if emulated.ASKED in os.environ:
        assert here["told"] == here["runs"]


@asked
@processor
def test_the_processor_is_the_one_that_was_asked_for(here):
    model, shows = os.environ[emulated.ASKED], os.environ[emulated.SHOWN].split()
    assert Path(sys.executable) == emulated.ROOT / "build" / "cpu" / model / "bin" / "python"
    assert set(here["runs"]) == {name for name in INSTRUCTIONS if name in shows}
    if model == "Haswell":
        assert shows == ["avx", "avx2", "f16c", "fma"]


@processor
def test_children_and_theirs_see_the_same(sees, here):
    """Started by hand and by `metallab.isolated`; qemu-user alone would show them the host."""
    from metallab import isolated

    tell = f"{sees}\nprint(json.dumps(seen))"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {tell!r}], check=True)"
    for code in (tell, nested):
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
        assert json.loads(child.stdout) == here
    assert isolated.run(sees, results=["seen"])["seen"] == here


@processor
def test_pytorch_chooses_by_what_runs(here):
    import torch

    def best(sets):
        return "AVX512" if "avx512f" in sets else "AVX2" if {"avx2", "fma"} <= set(sets) else "DEFAULT"

    told = best(here["told"])
    assert torch.backends.cpu.get_cpu_capability() in {told, os.environ.get("ATEN_CPU_CAPABILITY", told).upper()}
    a = np.random.default_rng(0).normal(size=(2, 64, 64)).astype(np.float32)
    product = torch.from_numpy(a[0]) @ torch.from_numpy(a[1])
    np.testing.assert_allclose(product, a[0].astype(float) @ a[1], atol=1e-4)


@processor
def test_onnx_runtime_saturates_where_there_is_no_vnni(here):
    """Its kernels for AVX2 add two products in 16 bits. Those for VNNI do not (AVX2 may have it, too)."""
    from metallab import quantization

    if "avx512vnni" in here["told"]:
        assert not quantization.saturates()
    elif emulated.ASKED in os.environ and "avx2" in here["told"]:
        assert quantization.saturates()


# ---- how they are run, with a stand-in for qemu --------------------------------------------------------------------

QEMU = """#!/bin/bash
test "$2" != Unknown || { echo "qemu: unable to find CPU model 'Unknown'" >&2; exit 1; }
if test "$3" = -0; then exec -a "$4" "${@:5}"; fi
echo "warning: TCG doesn't support requested feature: CPUID.01H:ECX.pcid [bit 17]" >&2
for name in $LACKS; do echo "warning: TCG doesn't support requested feature: CPUID.07H:EBX.$name [bit 5]" >&2; done
echo sse2 fma avx2 avx
"""


@pytest.fixture
def qemu(tmp_path, monkeypatch):
    """A qemu that runs everything on the host; LACKS names what it warns of."""
    folder = tmp_path / "programs"
    folder.mkdir()
    program = folder / emulated.QEMU
    program.write_text(QEMU)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return program


def test_what_cannot_be_emulated_is_said_with_what_to_do(qemu, monkeypatch, capsys):
    assert emulated.find("Any") == (str(qemu), emulated.Processor("Any", ("avx", "avx2", "fma"), ()))
    monkeypatch.setenv("LACKS", "avx512f avx512-bf16 hle")
    assert emulated.find("Any")[1].lacks == ("avx512-bf16", "avx512f")
    monkeypatch.setenv("LACKS", "avx2 avx512f")
    with pytest.raises(emulated.CannotEmulate, match="cannot execute avx2, which Any has"):
        emulated.find("Any")
    assert emulated.main("Unknown") == 2
    assert "unable to find CPU model 'Unknown'" in capsys.readouterr().err
    qemu.unlink()
    monkeypatch.setenv("PATH", str(qemu.parent))
    assert emulated.main("Any") == 2
    assert "`make packages`" in capsys.readouterr().err


def test_an_environment_s_own_python_is_the_emulated_one(qemu, tmp_path):
    folder = tmp_path / "with a space"
    (folder / "bin" / "of the last time").mkdir(parents=True)
    python = emulated.make_environment(str(qemu), "Any", folder)
    code = "import os, sys, numpy; print(sys.executable, sys.prefix, *sys.argv[1:], sep='|')"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}, 'a b', ''])"
    done = subprocess.run([python, "-c", nested], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"{python}|{folder}|a b|\n"
    assert sorted(path.name for path in python.parent.iterdir()) == [
        "ninja",
        "python",
        "python3",
        f"python{sys.version_info.major}.{sys.version_info.minor}",
    ]


def test_only_files_with_marked_tests_are_imported(tmp_path):
    ours = {Path(name).name for name in emulated.marked(emulated.ROOT / "tests")}
    assert Path(__file__).name in ours
    assert len(ours) < 10, "each takes long to import: is the processor what it depends on?"
    (tmp_path / "test_a.py").write_text("@pytest.mark.processor\ndef test(): ...")
    (tmp_path / "test_b.py").write_text("def test_a_multiprocessor(): ...")
    assert emulated.marked(tmp_path) == [str(tmp_path / "test_a.py")]


def test_inductor_compiles_for_what_is_shown_and_not_for_the_host():
    """Its -march=native is g++'s idea of the host; g++ is not emulated, and what it made is loaded by who is."""
    for shows, march in (("avx avx2 fma", "x86-64-v3"), ("avx", "x86-64-v2")):
        given = emulated.settings(emulated.Processor("Any", tuple(shows.split()), ()))
        assert (given[emulated.SHOWN], given[emulated.INDUCTOR]) == (shows, march)
    (reads,) = importlib.util.find_spec("torch").submodule_search_locations
    assert f'environ.get("{emulated.INDUCTOR}")' in Path(reads, "_inductor", "config.py").read_text("utf-8")


def test_what_is_built_here_is_not_built_for_the_host():
    """Compilers see the host whatever is emulated, and a folder of built things may be shared between machines."""
    native = re.compile(r"[\"']-m(arch|cpu|tune)=native")
    sources = [path for path in (emulated.ROOT / "utils").rglob("*.py") if native.search(path.read_text("utf-8"))]
    assert sources == []
