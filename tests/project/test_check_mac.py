"""`make check-mac`: what holds passes, and a planted contradiction is found. Nothing is looked up."""

import hashlib

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
        check_mac.fetched(PackageWheel(url=there.as_uri(), hashes={"sha256": "0"}))
    assert (
        check_mac.fetched(PackageWheel(url=there.as_uri(), hashes=hashes)).read_bytes()
        == b"a wheel"
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
    assert list(check_mac.unknown_words(library, [*known, "cannot pad"])) == [
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


@pytest.mark.parametrize(("found", "code"), [([], 0), (["no"], 1)])
def test_exit_code_of_a_contradiction(monkeypatch, found, code):
    monkeypatch.setattr(check_mac, "checks", lambda locks: [("it holds", found)])
    assert check_mac.main() == code
