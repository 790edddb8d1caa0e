"""`make check-mac`: what holds is found to hold, and a planted contradiction is found.

The libraries are small and real, made for Apple silicon by zig; wheels and source archives are made here. Nothing is
looked up.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import zipfile

import pytest
from dylibs import FUNCTIONS, library
from packaging.pylock import Package, PackageSdist, PackageWheel

pytest.importorskip("ziglang", reason="check-mac is for Linux")

import check_mac.__main__ as check_mac
from check_mac import checks, macho, pyobjc, wheels

from metalsim.refusals.wheel import LIBRARIES, of_wheel

FRAMEWORK, PYWRAP = "@rpath/libtensorflow_framework.2.dylib", "@rpath/_pywrap_tensorflow_internal.so"
KERNEL = "__ZN2at12_GLOBAL__N_112_GLOBAL__N_1{}{}ERKNS_6TensorE"
LAUNCH = "__ZN6vision3ops12_GLOBAL__N_1{}{}EP29AOTIMetalKernelFunctionOpaquePv"
YAML = """
- func: plain(Tensor self) -> Tensor
  dispatch:
    CPU: plain_cpu
    MPS: plain_mps
- func: structured(Tensor self) -> Tensor
  structured_delegate: structured.out
- func: structured.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)
  structured: True
  dispatch:
    CPU, MPS: structured_out
- func: lacking.dim(Tensor self, int dim) -> Tensor
  dispatch:
    CPU: lacking_cpu
"""
TABLE = {"plain": "native", "structured": "native", "structured.out": "native", "lacking.dim": "missing"}
WRAPPERS = ("wrapper_MPS__plain", "wrapper_MPS_structured", "wrapper_MPS_structured_out_out")


def mangled(pattern, names):
    return [pattern.format(len(name), name) for name in names]


@pytest.fixture(scope="module")
def linked(tmp_path_factory):
    """Links a library for a Mac from C, once for each text."""
    folder, done = tmp_path_factory.mktemp("libraries"), {}

    def link(code, *others, name=FRAMEWORK):
        if (code, others, name) not in done:
            path = folder / f"{len(done)}.dylib"
            options = [
                "-target",
                "aarch64-macos",
                "-shared",
                "-nostdlib",
                "-undefined",
                "dynamic_lookup",
                "-fno-sanitize=all",
            ]
            command = [sys.executable, "-m", "ziglang", "cc", *options, "-install_name", name, "-x", "c", "-"]
            command += ["-x", "none", *map(str, others), "-o", str(path)]
            subprocess.run(command, input=code, text=True, check=True, timeout=300)
            done[code, others, name] = path
        return done[code, others, name]

    return link


@pytest.fixture
def wheel(tmp_path):
    """Writes a wheel with these files."""

    def write(name, **files):
        path = tmp_path / name
        with zipfile.ZipFile(path, "w") as archive:
            for file, content in files.items():
                archive.writestr(file, content)
        return path

    return write


@pytest.fixture
def plugin(linked, wheel):
    """tensorflow-metal in little: it wants one symbol of a library that it names, and one of any."""
    named = linked("int TF_Named(void) { return 1; }", name=PYWRAP)
    library = linked("int TF_Named(void), TF_Any(void); int use(void) { return TF_Named() + TF_Any(); }", named)
    return wheel("metal.whl", **{"tensorflow-plugins/libmetal_plugin.dylib": library.read_bytes()})


@pytest.fixture
def tensorflow(linked, wheel):
    """TensorFlow in little: which of its libraries has which symbols."""

    def make(name="tensorflow.whl", **libraries):
        files = {f"tensorflow/{file.replace('__', '.')}": symbols for file, symbols in libraries.items()}
        code = {
            file: "".join(f"int {symbol}(void) {{ return 1; }}" for symbol in symbols)
            for file, symbols in files.items()
        }
        return wheel(name, **{file: linked(text or "int nothing;").read_bytes() for file, text in code.items()})

    return make


ALL = {
    "_pywrap_tensorflow_internal__so": ["TF_Named"],
    "libtensorflow_framework__2__dylib": ["TF_Other"],
    "libtensorflow_cc__2__dylib": ["TF_Any"],
}


def test_a_plugins_symbols_are_looked_for_where_it_wants_them(plugin, tensorflow):
    assert checks.plugin_finds_its_symbols(plugin, tensorflow(**ALL)).contradictions == ()
    elsewhere = {**ALL, "_pywrap_tensorflow_internal__so": [], "libtensorflow_framework__2__dylib": ["TF_Named"]}
    (contradiction,) = checks.plugin_finds_its_symbols(plugin, tensorflow(**elsewhere)).contradictions
    assert contradiction == f"_TF_Named is wanted of {PYWRAP}, which does not export it"
    older = {**ALL, "libtensorflow_cc__2__dylib": []}
    (contradiction,) = checks.plugin_finds_its_symbols(plugin, tensorflow("older.whl", **older)).contradictions
    assert contradiction == "_TF_Any is exported by no library of older.whl"


def test_a_library_that_is_gone_is_said(plugin, tensorflow):
    with pytest.raises(macho.NotThere, match=r"has 0 libraries /libtensorflow_cc\.2\.dylib"):
        checks.plugin_finds_its_symbols(plugin, tensorflow(**dict(list(ALL.items())[:2])))


def test_jaxlib_is_asked_about_the_plugins_version(linked, wheel):
    def asked(major, minor):
        head = f"{{808, 0, 24, 0, {major}, {minor}}}"
        code = f'struct {{ long a, b, c, d; int e, f; }} api __asm__("__ZN4pjrt12metal_pluginL8pjrt_apiE") = {head};'
        library = linked(code).read_bytes()
        return checks.jaxlib_accepts_the_plugin(
            wheel(f"jax{minor}.whl", **{"jax_plugins/pjrt_plugin_metal.dylib": library})
        )

    assert asked(0, 47).contradictions == ()
    (contradiction,) = asked(0, 20).contradictions
    assert "0.20 is older than the minimum supported version" in contradiction


@pytest.fixture
def native_functions(tmp_path):
    (tmp_path / "native_functions.yaml").write_text(YAML)
    (tmp_path / "tags.yaml").write_text("[]")
    return tmp_path


def test_operators_are_held_against_the_functions_that_were_made_for_them(native_functions):
    def contradictions(wrappers, **changed):
        symbols = mangled(KERNEL, wrappers)
        return checks.operators_have_their_kernels(symbols, {**TABLE, **changed}, native_functions).contradictions

    assert contradictions(WRAPPERS) == ()
    assert contradictions(WRAPPERS[1:]) == ("plain is foretold native and has no wrapper_MPS__plain",)
    assert contradictions(WRAPPERS, **{"lacking.dim": "native"}) == (
        "lacking.dim is foretold native and has no wrapper_MPS_dim_lacking",
    )
    assert contradictions([*WRAPPERS, "wrapper_MPS_dim_lacking"]) == (
        "lacking.dim is foretold missing and has wrapper_MPS_dim_lacking",
    )
    assert contradictions([*WRAPPERS, "wrapper_MPS__made_up"]) == ("wrapper_MPS__made_up belongs to no operator",)


def test_torchvisions_table_is_held_against_what_it_launches():
    launches = mangled(LAUNCH, ["nms_encode", "roi_pool_forward_encode", "ps_roi_pool_backward_encode"])
    table = ["nms", "roi_pool", "_ps_roi_pool_backward"]
    assert checks.torchvision_has_its_kernels(launches, table).contradictions == ()
    contradictions = checks.torchvision_has_its_kernels(launches, [*table[1:], "made_up"]).contradictions
    assert contradictions == (
        "made_up is foretold native and has no kernel",
        "nms has a kernel and is foretold missing",
    )


def test_what_a_kernel_newly_refuses_is_found(wheel):
    torch = wheel("torch-1.whl", **{LIBRARIES["torch"]: library(FUNCTIONS)})
    words = {"__ZN6vision3ops10nms_kernelEv": (["/vision/torchvision/csrc/ops/mps/nms.mm", "nms is not for ints"], 0)}
    vision = wheel("torchvision-1.whl", **{LIBRARIES["torchvision"]: library(words)})
    stored = [*of_wheel(torch), *of_wheel(vision)]
    assert len(stored) == 4
    assert checks.kernels_say_what_is_stored([torch, vision], stored).contradictions == ()
    differences = checks.kernels_say_what_is_stored([torch, vision], stored[:-1]).contradictions
    assert differences == ("+ nms.mm: nms is not for ints",)
    differences = checks.kernels_say_what_is_stored([vision], stored).contradictions
    assert len(differences) == 3
    assert all(line.startswith("- Pad.mm: ") for line in differences)


def test_wheels_without_kernels_are_said(wheel):
    with pytest.raises(macho.NotThere, match="download torch for macosx"):
        checks.kernels_say_what_is_stored([wheel("torch-1.whl", x="")], [])


def method(selector, since, *encodings, of_class=False):
    return {
        "selector": selector,
        "introduced": since,
        "class_method": of_class,
        "args": [{"typestr": encoding} for encoding in encodings],
    }


@pytest.fixture
def frameworks(tmp_path):
    """PyObjC in little, read from a source archive as it is published."""
    definitions = {kind: {} for kind in (*pyobjc.KINDS, "informal_protocols")}
    methods = [method("addTensor:name:", "11.0", "@", "@"), method("newTensorOf:", "26.0", "@", of_class=True)]
    definitions["classes"] = {"MPSGraph": {"methods": methods, "categories": []}}
    definitions["enum"] = {"MPSDataTypeFloat": {"value": 32}}
    text = "// GENERATED FILE DO NOT EDIT\n" + json.dumps({"arch": "arm64", "definitions": definitions})
    path = tmp_path / "pyobjc.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        entry = tarfile.TarInfo("pyobjc_framework_x-1.0/metadata/raw/arm64-26.5.fwinfo")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text.encode()))
    return pyobjc.read([path])


def test_names_and_selectors_are_found_in_code_and_in_its_strings():
    code = '''
from MetalPerformanceShadersGraph import MPSGraph
from elsewhere import MPSNothing
graph.addTensor_name_(x, None).add_(1).shape()
TEMPLATE = """
import Metal
Metal.MTLCreateSystemDefaultDevice()
"""
hasattr(graph, "fromString_") and operation("writtenOut:like:this:")
getattr(graph, f"{kind}WithTensor_name_")
"""Prose of import to nobody:
done."""
'''
    used = {use.name: use.is_selector for use in pyobjc.uses(code, "x.py")}
    selectors = ("addTensor_name_", "fromString_", "writtenOut_like_this_")
    assert used == {"MPSGraph": False, "MTLCreateSystemDefaultDevice": False, **dict.fromkeys(selectors, True)}


def test_a_selector_that_is_made_up_or_too_new_is_found(frameworks):
    used = [pyobjc.Use(name, "x.py:3") for name in ("addTensor_name_", "MPSGraph", "MPSDataTypeFloat")]
    assert checks.pyobjc_has_the_names(frameworks, used).contradictions == ()
    planted = [pyobjc.Use(name, "x.py:7") for name in ("addTensor_label_", "MPSGraf", "newTensorOf_")]
    assert checks.pyobjc_has_the_names(frameworks, [*used, *planted]).contradictions == (
        "x.py:7: PyObjC has no selector addTensor_label_",
        "x.py:7: PyObjC has no name MPSGraf",
        "x.py:7: newTensorOf_ is there from macOS 26.0 on",
    )


def test_a_wrong_constant_is_found(frameworks):
    assert checks.constants_are_pyobjcs(frameworks, {"MPSDataTypeFloat": 32}).contradictions == ()
    (found,) = checks.constants_are_pyobjcs(frameworks, {"MPSDataTypeFloat": 33}).contradictions
    assert "MPSDataTypeFloat" in found


def test_the_projects_own_names_are_collected():
    used = {use.name for use in pyobjc.of_the_project(check_mac.paths.ROOT)}
    assert {"compileWithDevice_feeds_targetTensors_targetOperations_compilationDescriptor_", "NSURL"} <= used
    assert not used & pyobjc.ELSEWHERE.keys()


def test_a_python_file_that_differs_is_found(wheel):
    here = {
        "torch/a.py": "sha256=1",
        "torch/b.py": "sha256=2",
        "torch/version.py": "sha256=3",
        "torch/x.so": "sha256=4",
    }

    def contradictions(**changed):
        files = {**here, "torch/version.py": "sha256=9", "torch/x.so": "sha256=9", **changed}
        rows = "".join(f"{name},{hashed},1\n" for name, hashed in files.items())
        path = wheel("torch-1.whl", **{"torch-1.dist-info/RECORD": rows})
        return checks.python_files_are_linuxs(path, here).contradictions

    assert contradictions() == ()
    assert contradictions(**{"torch/a.py": "sha256=5"}) == ("torch/a.py differs",)
    assert contradictions(**{"torch/c.py": "sha256=5"}) == ("torch/c.py is only on a Mac",)


def test_openmp_is_found_by_file_and_by_use(wheel):
    used, words = b"..\0___kmpc_fork_call\0..", b"..\0__kmpc_fork_call\0.."
    files = [
        wheel("torch-1.whl", **{"torch/lib/libomp.dylib": used, "torch/lib/libtorch.dylib": used}),
        wheel("jax-1.whl", **{"jax/mlir.so": words}),
    ]
    result = checks.who_brings_openmp(files)
    assert result.facts == ("torch-1.whl: brings torch/lib/libomp.dylib; 1 of its libraries use it",)
    assert result.contradictions == ()
    assert checks.who_brings_openmp(files[1:]).contradictions


def package(name, *files, marker=None):
    """A package of which the registry has these files."""
    listed = [PackageWheel(url=f"https://x/{file}", hashes={"sha256": "0"}) for file in files if file.endswith(".whl")]
    source = next(
        (PackageSdist(url=f"https://x/{file}", hashes={"sha256": "0"}) for file in files if "tar" in file), None
    )
    from packaging.markers import Marker

    return Package(name=name, version="1", wheels=listed or None, sdist=source, marker=marker and Marker(marker))


def test_a_package_without_a_wheel_for_a_mac_is_found(tmp_path):
    packages = (
        package("pure", "pure-1-py3-none-any.whl"),
        package("newest", "newest-1-cp311-cp311-macosx_15_0_universal2.whl"),
        package("late", "late-1-py3-none-any.whl", marker="python_full_version >= '3.11.5'"),
        package("theirs", "theirs-1-cp311-cp311-manylinux_2_28_x86_64.whl", marker="sys_platform == 'linux'"),
        package("intel", "intel-1-cp311-cp311-macosx_12_0_x86_64.whl"),
        package("future", "future-1-cp311-cp311-macosx_26_0_arm64.whl"),
        package("source", "source-1.tar.gz"),
    )
    locked = wheels.Locked(tmp_path / "lock.txt", packages)
    chosen, without = locked.for_a_mac("3.11.15")
    assert (set(chosen), without) == ({"pure", "newest", "late"}, ["intel 1", "future 1", "source 1"])
    assert "late" not in locked.for_a_mac("3.11.0")[0]
    assert (
        checks.every_package_has_a_wheel([locked]).contradictions[0] == "lock.txt, Python 3.11.0: intel 1 has no wheel"
    )


def test_only_what_was_locked_is_kept(tmp_path):
    source = tmp_path / "there" / "a-1-py3-none-any.whl"
    source.parent.mkdir()
    source.write_bytes(b"not what was locked")
    file = PackageWheel(url=source.as_uri(), hashes={"sha256": "0" * 64})
    with pytest.raises(wheels.Unreachable, match="is not the file"):
        wheels.fetched(file, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_projects_lock_comes_first(tmp_path):
    for name in ("constraints-jax.txt", "constraints.txt"):
        (tmp_path / name).touch()
    assert [path.name for path in wheels.locks(tmp_path)] == ["constraints.txt", "constraints-jax.txt"]
    (tmp_path / "lock.txt").touch()
    assert [path.name for path in wheels.locks(tmp_path)] == ["lock.txt"]


@pytest.mark.parametrize(("contradictions", "code"), [((), 0), (("no",), 1)])
def test_the_exit_code_and_the_report_tell_of_a_contradiction(tmp_path, monkeypatch, capsys, contradictions, code):
    versions = {name: check_mac.importlib.metadata.version(name) for name in check_mac.ASKED_HERE}
    packages = tuple(Package(name=name, version=version) for name, version in versions.items())
    monkeypatch.setattr(wheels.Locked, "ask", lambda lock: wheels.Locked(lock, packages))
    monkeypatch.setattr(check_mac, "FOLDER", tmp_path)
    monkeypatch.setattr(
        check_mac, "planned", lambda *_: [lambda: checks.CheckResult("It holds", ("a fact",), contradictions)]
    )
    assert check_mac.main([]) == code
    assert ("**contradiction**: no" in (tmp_path / "report.md").read_text()) == bool(contradictions)

    def gone():
        raise macho.NotThere("it is gone")

    monkeypatch.setattr(check_mac, "planned", lambda *_: [gone])
    assert check_mac.main([]) == 1
    monkeypatch.setattr(wheels.Locked, "ask", lambda lock: wheels.Locked(lock, packages[1:]))
    assert check_mac.main([]) == 2
    assert "is locked: make setup" in capsys.readouterr().err
