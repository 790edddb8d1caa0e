"""The checks: each is given what it needs, a folder of wheels or the names in them, and says what it found.

A contradiction is what makes `make check-mac` fail: something that this project says or relies on, and that a Mac's own
files deny. What a check cannot read is one, too: it would otherwise pass unseen.
"""

from __future__ import annotations

import csv
import importlib.metadata
import io
import re
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from check_mac import macho, pyobjc, wheels
from metalsim.refusals import wheel as refusals

OF_MACOS = {"_objc_msgSend"}
"""Looked up in all libraries, and exported by those of macOS."""
PJRT = struct.Struct("<4Q2i")
"""The head of a plugin's ``PJRT_Api``: its size, extensions, then its version with size, extensions, major, minor."""
WRAPPER = re.compile(r"_GLOBAL__N_1(\d+)(wrapper_MPS_\w+)")
"""The function that PyTorch's generator makes for an operator on MPS, in a mangled name: its length, what follows."""
TORCHVISION_LAUNCH = re.compile(r"__ZN6vision3ops12_GLOBAL__N_1\d+?(?=[a-z])([a-z]\w*?)_encodeEP")
"""The function of torchvision that launches a Metal kernel."""
MAY_DIFFER = {
    "torch/version.py": "which GPU it was built for",
    "torch/profiler/_cuspy/_cupti_stubs.py": "of CUDA",
    "torchvision/version.py": "which GPU it was built for",
}
"""Files of the Mac's wheels that are not as Linux's, or not in both, with what they are about."""
OPENMP = re.compile(r"(^|/)lib[ig]?omp\d?\.")
OPENMP_SYMBOL = b"\0___kmpc_fork_call\0"
"""In the list of symbols of a library that starts OpenMP's threads. MLIR's libraries have the words without ``_``."""


@dataclass(frozen=True)
class CheckResult:
    """What one check found."""

    title: str
    facts: tuple[str, ...]
    contradictions: tuple[str, ...] = ()


def every_package_has_a_wheel(locked: Iterable[wheels.Locked]) -> CheckResult:
    """Each locked package has a wheel for macOS 15 on Apple silicon, for each Python: nothing is compiled there."""
    facts, contradictions = [], []
    for each in locked:
        for python in wheels.PYTHONS:
            chosen, without = each.for_a_mac(python)
            compiled = sum(not file.filename.endswith("-any.whl") for file in chosen.values())
            facts.append(f"{each.lock.name}, Python {python}: {len(chosen)} wheels, {compiled} of them for this system")
            contradictions += [f"{each.lock.name}, Python {python}: {name} has no wheel" for name in without]
    return CheckResult("Every package has a wheel", tuple(facts), tuple(contradictions))


def plugin_finds_its_symbols(plugin: Path, tensorflow: Path) -> CheckResult:
    """What tensorflow-metal wants of TensorFlow is exported by the libraries of this TensorFlow."""
    needs = macho.wanted(macho.library(plugin, "/libmetal_plugin.dylib"))
    wanted = {name: symbols for name, symbols in needs.items() if name.startswith("@")}
    flat = needs.get(macho.FLAT, set()) - OF_MACOS
    anywhere: set[str] = set()
    contradictions = []
    endings = ["/_pywrap_tensorflow_internal.so", "/libtensorflow_framework.2.dylib", "/libtensorflow_cc.2.dylib"]
    for ending in endings:
        if flat <= anywhere and not any(name.endswith(ending) for name in wanted):
            continue  # the last is large: it is read only if something is still looked for
        exported = macho.exports(macho.library(tensorflow, ending))
        anywhere |= exported
        for name in [name for name in wanted if name.endswith(ending)]:
            lacking = sorted(wanted.pop(name) - exported)
            contradictions += [f"{symbol} is wanted of {name}, which does not export it" for symbol in lacking]
    contradictions += [f"{name} is wanted and not in {tensorflow.name}" for name in sorted(wanted)]
    contradictions += [f"{symbol} is exported by no library of {tensorflow.name}" for symbol in sorted(flat - anywhere)]
    bound = sum(len(symbols) for name, symbols in needs.items() if name.startswith("@"))
    fact = f"{plugin.name} wants {bound} symbols of a named library and {len(flat)} of any, of {tensorflow.name}"
    return CheckResult("tensorflow-metal finds its symbols", (fact,), tuple(contradictions))


def jaxlib_accepts_the_plugin(plugin: Path) -> CheckResult:
    """The jaxlib that is installed here takes a plugin with the PJRT version of jax-metal: it is asked itself."""
    head = macho.content(macho.library(plugin, ".dylib"), "L8pjrt_apiE", PJRT.size)
    size, _, _, _, major, minor = PJRT.unpack(head)
    refusal = pjrt_refusal(size, major, minor)
    jaxlib = f"jaxlib {importlib.metadata.version('jaxlib')}"
    fact = f"{plugin.name} has PJRT {major}.{minor}; asked of {jaxlib} with ENABLE_PJRT_COMPATIBILITY=1"
    return CheckResult("jaxlib accepts jax-metal", (fact,), (f"{jaxlib} says: {refusal}",) if refusal else ())


def pjrt_refusal(size: int, major: int, minor: int) -> str:
    """What jaxlib says of a plugin with such a head, whose functions do nothing; empty if it accepts it."""
    code = f"""
import ctypes
from jaxlib import xla_client
function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
nothing = function(lambda arguments: None)
class Api(ctypes.Structure):
    _fields_ = [("head", ctypes.c_ubyte * {PJRT.size}), ("functions", function * 1000)]
head = {PJRT.pack(size, 0, 24, 0, major, minor)!r}
api = Api((ctypes.c_ubyte * {PJRT.size})(*head), (function * 1000)(*[nothing] * 1000))
capsule = ctypes.pythonapi.PyCapsule_New
capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
xla_client.load_pjrt_plugin_with_c_api("METAL", capsule(ctypes.addressof(api), b"pjrt_c_api", None))
xla_client.initialize_pjrt_plugin("METAL")
"""
    environment = {"ENABLE_PJRT_COMPATIBILITY": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]


def operators_have_their_kernels(library: Iterable[str], table: Mapping[str, str], folder: Path) -> CheckResult:
    """Each operator that the table calls native has its function for MPS in PyTorch's library, and no other one has.

    ``library`` are the symbols of ``libtorch_cpu.dylib``; ``folder`` has PyTorch's ``native_functions.yaml``.
    """
    from torchgen.api import cpp, native
    from torchgen.gen import parse_native_yaml

    there = {match[2][: int(match[1])] for name in library for match in WRAPPER.finditer(name)}
    parsed = parse_native_yaml(str(folder / "native_functions.yaml"), str(folder / "tags.yaml"))
    wrappers = {  # as torchgen/dest/register_dispatch_key.py names them; what "autogen" makes of an entry has none
        str(each.func.name): f"wrapper_MPS_{native.name(each.func)}"
        if each.part_of_structured_group
        else f"wrapper_MPS_{each.func.name.overload_name}_{cpp.name(each.func)}"
        for each in parsed.native_functions
        if "generated" not in each.tags
    }
    expected = {wrappers[name]: name for name, status in table.items() if status == "native" and name in wrappers}
    missing = {wrappers[name]: name for name, status in table.items() if status == "missing" and name in wrappers}
    contradictions = [
        f"{expected[name]} is foretold native and has no {name}" for name in sorted(expected.keys() - there)
    ]
    contradictions += [
        f"{missing[name]} is foretold missing and has {name}" if name in missing else f"{name} belongs to no operator"
        for name in sorted(there - expected.keys())
    ]
    facts = (
        f"{len(expected.keys() & there)} of {len(expected)} native operators have their kernel",
        f"{len(missing.keys() - there)} of {len(missing)} missing ones have none",
    )
    return CheckResult("PyTorch's operators have their Metal kernels", facts, tuple(contradictions))


def torchvision_has_its_kernels(library: Iterable[str], table: Iterable[str]) -> CheckResult:
    """The operators that the table names are those for which torchvision's library launches a Metal kernel."""
    launched = {match[1] for name in library if (match := TORCHVISION_LAUNCH.match(name))}
    there = {re.sub(r"^(\w+)_backward$", r"_\1_backward", re.sub("_(forward|im2col)$", "", name)) for name in launched}
    contradictions = [f"{name} is foretold native and has no kernel" for name in sorted({*table} - there)]
    contradictions += [f"{name} has a kernel and is foretold missing" for name in sorted(there - {*table})]
    facts = (f"Metal kernels of {', '.join(sorted(there))}",)
    return CheckResult("torchvision's operators have their Metal kernels", facts, tuple(contradictions))


def kernels_say_what_is_stored(files: Sequence[Path], stored: Sequence[refusals.Message]) -> CheckResult:
    """What the Metal kernels in these wheels refuse is what `metalsim.refusals` knows of, word by word."""
    try:
        messages = [message for file in files for message in refusals.of_wheel(file)]
    except ValueError as error:
        raise macho.NotThere(str(error)) from None
    fact = f"{len(messages)} messages in {', '.join(file.name for file in files)}"
    return CheckResult("The kernels refuse what is known", (fact,), tuple(refusals.differences(stored, messages)))


def pyobjc_has_the_names(frameworks: pyobjc.Frameworks, used: Sequence[pyobjc.Use]) -> CheckResult:
    """Each name and selector that the project uses is in PyObjC's metadata, and there on macOS 15."""
    contradictions = []
    selectors = frameworks.selectors
    for use in used:
        if use.name not in (selectors if use.is_selector else frameworks.names):
            contradictions.append(f"{use.where}: PyObjC has no {'selector' if use.is_selector else 'name'} {use.name}")
        elif use.is_selector and pyobjc.version(selectors[use.name]) > wheels.MACOS:
            contradictions.append(f"{use.where}: {use.name} is there from macOS {selectors[use.name]} on")
    count = sum(use.is_selector for use in used)
    fact = f"{count} selectors and {len(used) - count} names are used; PyObjC has {len(selectors)} and more"
    return CheckResult("PyObjC has the names that are used", (fact,), tuple(contradictions))


def constants_are_pyobjcs(frameworks: pyobjc.Frameworks, constants: Mapping[str, int]) -> CheckResult:
    """The constants of the simulated MPSGraph are those of the locked PyObjC."""
    wrong = [
        f"{name} is {value}, in PyObjC {frameworks.values.get(name)}"
        for name, value in constants.items()
        if frameworks.values.get(name) != value
    ]
    return CheckResult("The simulated MPSGraph has PyObjC's constants", (f"{len(constants)} constants",), tuple(wrong))


def python_files_are_linuxs(wheel: Path, installed: Mapping[str, str]) -> CheckResult:
    """A package's Python and YAML files on a Mac are those installed here: what Linux's say holds there."""
    there, here = (
        {name: hashed for name, hashed in files.items() if name.endswith((".py", ".yaml"))}
        for files in (recorded(wheel), installed)
    )
    differ = sorted(name for name in there.keys() | here.keys() if there.get(name) != here.get(name))
    facts = [f"{len(there)} files"] + [
        f"{name} is another ({MAY_DIFFER[name]})" for name in differ if name in MAY_DIFFER
    ]
    how = lambda name: (
        "differs" if name in there and name in here else f"is only on {'a Mac' if name in there else 'Linux'}"
    )
    contradictions = [f"{name} {how(name)}" for name in differ if name not in MAY_DIFFER]
    return CheckResult(
        f"The Python files of {wheel.name.split('-')[0]} are Linux's", tuple(facts), tuple(contradictions)
    )


def recorded(wheel: Path) -> dict[str, str]:
    """The files of a wheel with their hashes, as its RECORD has them."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/RECORD", name))
        rows = csv.reader(io.StringIO(archive.read(name).decode()))
    return {row[0]: row[1] for row in rows if row}


def installed(package: str) -> dict[str, str]:
    """The files of an installed package with their hashes, as `recorded` has them."""
    files = importlib.metadata.files(package) or ()
    return {str(file): f"{file.hash.mode}={file.hash.value}" for file in files if file.hash}


def who_brings_openmp(files: Iterable[Path]) -> CheckResult:
    """Which packages bring OpenMP or use it. torch.compile on a Mac relies on PyTorch's."""
    facts, bringing = [], set()
    for wheel in files:
        brought, using = [], 0
        for name, library in wheels.members(wheel):
            brought += [name] if OPENMP.search(name) else []
            using += OPENMP_SYMBOL in library and not OPENMP.search(name)
        if brought or using:
            facts.append(f"{wheel.name}: brings {', '.join(brought) or 'none'}; {using} of its libraries use it")
            bringing |= {wheel.name.split("-")[0]} if brought else set()
    lacking = () if "torch" in bringing else ("PyTorch brings no OpenMP: tests/conformance/test_inductor.py says so",)
    return CheckResult("Who brings OpenMP", tuple(facts), lacking)
