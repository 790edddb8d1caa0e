"""`make check-mac`: what holds passes, and a planted contradiction is found. Nothing is looked up."""

import hashlib
import subprocess
import zipfile

import check_mac
import pytest
from packaging.pylock import Package, PackageSdist, PackageWheel

from metalsim import operators
from metalsim.graph import mpsgraph


def package(name):
    wheel = PackageWheel(url=f"https://x/{name}", hashes={"sha256": "0"})
    return Package(name=name.partition("-")[0], version="1", wheels=[wheel])


def test_a_package_needs_a_wheel_for_a_mac():
    good = (
        package("pure-1-py3-none-any.whl"),
        package("newest-1-cp311-cp311-macosx_15_0_universal2.whl"),
    )
    bad = (
        package("intel-1-cp311-cp311-macosx_12_0_x86_64.whl"),
        package("future-1-cp311-cp311-macosx_26_0_arm64.whl"),
    )
    source = Package(
        name="s",
        version="1",
        sdist=PackageSdist(url="https://x/s-1.tar.gz", hashes={"sha256": "0"}),
    )
    chosen, without = check_mac.for_a_mac([*good, *bad, source], "3.11.15")
    assert set(chosen) == {"pure", "newest"}
    assert [text.split()[2] for text in without] == ["intel", "future", "s"]


def test_only_what_was_locked_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(check_mac, "WHEELS", tmp_path / "wheels")
    there = tmp_path / "a-1-py3-none-any.whl"
    there.write_bytes(b"a wheel")
    hashes = {"sha256": hashlib.sha256(b"a wheel").hexdigest()}
    with pytest.raises(ValueError, match="is not the file"):
        check_mac.fetch(PackageWheel(url=there.as_uri(), hashes={"sha256": "0"}))
    assert (
        check_mac.fetch(PackageWheel(url=there.as_uri(), hashes=hashes)).read_bytes() == b"a wheel"
    )


def test_operators_and_kernels_are_the_same():
    mangled = [
        f"__ZN2at12_GLOBAL__N_112_GLOBAL__N_1{len(name)}{name}ERK"
        for name in ("wrapper_MPS__relu",)
    ]
    assert list(check_mac.wrong_operators(mangled, {"relu": "native"})) == []
    assert (
        len(
            list(
                check_mac.wrong_operators(
                    mangled, {"relu": "native", "abs": "native", "sin": "missing"}
                )
            )
        )
        == 1
    )
    assert len(list(check_mac.wrong_operators(mangled, {"relu": "missing"}))) == 1
    launch = ["__ZN6vision3ops12_GLOBAL__N_110nms_encodeEP"]
    assert list(check_mac.wrong_torchvision_operators(launch, ["nms"])) == []
    assert len(list(check_mac.wrong_torchvision_operators(launch, operators.TORCHVISION))) > 1


def test_messages_are_in_the_library():
    library = b"\0pad_mps\0\" not implemented for '\0MPS pads at most \0"
    known = ["\"pad_mps\" not implemented for '{dtype}'", "MPS pads at most {most}"]
    assert list(check_mac.find_unknown_words(library, [*known, "cannot pad"])) == [
        "no kernel says 'cannot pad'"
    ]


def test_names_are_pyobjcs_on_macos_15():
    methods = [{"selector": "addTensor:name:"}, {"selector": "newTensorOf:", "introduced": "26.0"}]
    classes = {"MPSGraph": {"methods": methods}}
    enum = {name: {"value": value} for name, value in mpsgraph.CONSTANTS.items()}
    frameworks = [
        {"informal_protocols": {}, "formal_protocols": {}, "classes": classes, "enum": enum}
    ]
    used = dict.fromkeys(
        check_mac.names_in("MPS.MPSGraph.addTensor_name_(f'newTensor{x}')\nf('newTensorOf:')"),
        "x.py",
    )
    assert set(used) == {"MPSGraph", "addTensor_name_", "newTensorOf_"}
    assert len(list(check_mac.wrong_names(frameworks, used))) == 1
    assert (
        len(list(check_mac.wrong_names(frameworks, {"MPSGraf": "x", "addTensor_label_": "x"}))) == 2
    )


# ---- another version of PyTorch -------------------------------------------------------------------------------------


def test_versions_are_told_apart():
    assert check_mac.parse([]) == []
    assert check_mac.parse(["--torch", "2.13.0", "--torch", "all"]) == [
        "2.13.0",
        *(version for version in check_mac.TORCHES if version != "2.13.0"),
    ]


@pytest.mark.parametrize("asked", ["2.13", "newest", "", "2.13.0+cpu"])
def test_what_is_no_version_is_refused(asked, capsys):
    with pytest.raises(SystemExit, match="2"):
        check_mac.parse(["--torch", asked])
    assert "three numbers, such as 2.11.0, or all" in capsys.readouterr().err


def test_a_version_that_the_index_has_not(monkeypatch, capsys):
    def failing(requirements, options):
        assert requirements.read_text() == "torch==2.99.0\ntorchvision\n"
        raise subprocess.CalledProcessError(1, "uv")

    monkeypatch.setattr(check_mac, "_resolve", failing)
    assert check_mac.main(["--torch", "2.99.0"]) == 2
    assert "has no PyTorch 2.99.0" in capsys.readouterr().err


def test_a_version_without_a_wheel_for_a_mac(monkeypatch, capsys):
    monkeypatch.setattr(
        check_mac, "_resolve", lambda *_: [package("torch-1-cp311-cp311-macosx_12_0_x86_64.whl")]
    )
    assert check_mac.main(["--torch", "2.13.0"]) == 2
    assert "torch 1 has no wheel" in capsys.readouterr().err


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """Make wheels of PyTorch and torchvision of which LIEF reads one symbol and the words of 2.13."""
    table = "- func: new_one(Tensor self) -> Tensor\n  dispatch:\n    CPU, MPS: new_one\n"
    files = {
        "torch": {
            "torch/lib/libtorch_cpu.dylib": "",
            "torch/include/ATen/mps/MPSAllocator.h": "enum class Kind { SHARED }",
            "torchgen/packaged/ATen/native/native_functions.yaml": table,
            "torchgen/packaged/ATen/native/tags.yaml": "- tag: core\n  desc: one\n",
        },
        "torchvision": {"torchvision/_C.so": ""},
    }
    monkeypatch.setattr(check_mac, "WHEELS", tmp_path)
    packages = []
    for name, contents in files.items():
        wheel = package(f"{name}-1-py3-none-any.whl")
        packages.append(wheel)
        with zipfile.ZipFile(tmp_path / wheel.wheels[0].filename, "w") as archive:
            for path, text in contents.items():
                archive.writestr(path, text)
    monkeypatch.setattr(check_mac, "_resolve", lambda *_: packages)

    words = "\0".join(check_mac.messages_of("2.13.0")).replace('"', "\0").encode()
    name = "wrapper_MPS__new_one"
    symbol = f"__ZN2at12_GLOBAL__N_112_GLOBAL__N_1{len(name)}{name}ERK"
    monkeypatch.setattr(check_mac, "read", lambda library: ({symbol}, words))


def test_a_version_is_compared_with_its_own_table_and_words(wheels, capsys):
    assert check_mac.main(["--torch", "2.13.0"]) == 0
    assert capsys.readouterr().out.count("yes PyTorch 2.13.0: ") == 2


def test_words_of_another_version_are_not_known(wheels, capsys):
    assert check_mac.main(["--torch", "2.15.0"]) == 1
    printed = capsys.readouterr().out
    assert "yes PyTorch 2.15.0: its operators are as its table says" in printed
    assert "no kernel says 'unique is not supported on MPS for dtype {dtype}'" in printed


@pytest.mark.parametrize(("found", "code"), [([], 0), (["no"], 1)])
def test_exit_code_of_a_contradiction(monkeypatch, found, code):
    monkeypatch.setattr(check_mac, "checks", lambda locks: [("it holds", found)])
    assert check_mac.main() == code
