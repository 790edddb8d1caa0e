"""`make check-mac`: what holds passes, and a planted contradiction is found. Nothing is looked up."""

import hashlib
import subprocess
import urllib.error
import urllib.request
import zipfile

import check_mac
import pytest
from packaging.pylock import Package, PackageSdist, PackageWheel

from metalsim import operators
from metalsim.graph import mpsgraph
from metalsim.refusals import alerts, left_on_cpu


def package(name):
    wheel = PackageWheel(url=f"https://x/{name}", hashes={"sha256": "0"})
    return Package(name=name.partition("-")[0], version="1", wheels=[wheel])


@pytest.mark.parametrize(
    "wheel",
    ["pure-1-py3-none-any.whl", "newest-1-cp311-cp311-macosx_15_0_universal2.whl"],
    ids=["pure Python", "macOS 15"],
)
def test_a_wheel_that_a_mac_installs_is_chosen(wheel):
    chosen, without = check_mac.for_a_mac([package(wheel)], "3.11.15")

    assert set(chosen) == {wheel.partition("-")[0]}
    assert list(without) == []


SOURCE = Package(
    name="source",
    version="1",
    sdist=PackageSdist(url="https://x/s-1.tar.gz", hashes={"sha256": "0"}),
)


@pytest.mark.parametrize(
    "unfit",
    [
        package("intel-1-cp311-cp311-macosx_12_0_x86_64.whl"),
        package("future-1-cp311-cp311-macosx_26_0_arm64.whl"),
        SOURCE,
    ],
    ids=lambda unfit: unfit.name,
)
def test_a_package_without_a_wheel_for_a_mac_is_named(unfit):
    chosen, (text,) = check_mac.for_a_mac([unfit], "3.11.15")

    assert not chosen
    assert text.split()[2] == unfit.name


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A file that an index has, and where those that are fetched are kept."""
    monkeypatch.setattr(check_mac, "WHEELS", tmp_path / "wheels")
    there = tmp_path / "a-1-py3-none-any.whl"
    there.write_bytes(b"a wheel")
    return there


def test_a_file_that_was_locked_is_fetched(published):
    hashes = {"sha256": hashlib.sha256(b"a wheel").hexdigest()}

    fetched = check_mac.fetch(PackageWheel(url=published.as_uri(), hashes=hashes))

    assert fetched.read_bytes() == b"a wheel"


def test_a_file_with_another_hash_is_refused(published):
    with pytest.raises(ValueError, match="is not the file"):
        check_mac.fetch(PackageWheel(url=published.as_uri(), hashes={"sha256": "0"}))

    assert not list(check_mac.WHEELS.glob("*"))


MANGLED = ["__ZN2at12_GLOBAL__N_112_GLOBAL__N_117wrapper_MPS__reluERK"]
"""The symbol of a kernel of relu in PyTorch's library."""


@pytest.mark.parametrize(
    ("known", "count"),
    [
        ({"relu": "native"}, 0),
        ({"relu": "native", "abs": "native", "sin": "missing"}, 1),
        ({"relu": "missing"}, 1),
    ],
    ids=["as known", "no kernel of abs", "a kernel nobody knows"],
)
def test_an_operator_without_its_kernel_or_the_reverse_is_found(known, count):
    assert len(list(check_mac.wrong_operators(MANGLED, known))) == count


def test_it_is_said_which_side_lacks_a_kernel():
    known = {"abs": "native", "relu": "missing"}
    assert list(check_mac.wrong_operators(MANGLED, known)) == [
        "wrapper_MPS__relu is in the library, and not native here",
        "wrapper_MPS__abs is native here, and not in the library",
    ]


LAUNCH = ["__ZN6vision3ops12_GLOBAL__N_110nms_encodeEP"]
"""The symbol of what launches torchvision's kernel of nms."""


def test_a_kernel_of_torchvision_that_is_launched_is_there():
    assert list(check_mac.wrong_torchvision_operators(LAUNCH, ["nms"])) == []


def test_kernels_of_torchvision_that_nothing_launches_are_found():
    assert len(list(check_mac.wrong_torchvision_operators(LAUNCH, operators.TORCHVISION))) > 1


def test_messages_are_in_the_library():
    library = b"\0pad_mps\0\" not implemented for '\0MPS pads at most \0"
    known = ["\"pad_mps\" not implemented for '{dtype}'", "MPS pads at most {most}"]
    assert list(check_mac.find_unknown_words(library, [*known, "cannot pad"])) == [
        "no kernel says 'cannot pad'"
    ]


@pytest.mark.parametrize(
    ("library", "words"),
    [
        (b"\0pad_3d\0pad_2d\0: no such way to pad\0", "pad_3d: no such way to pad"),
        (b"\0no way to \0pad_3d\0", "no way to pad_3d"),
        (b"\0, got \0nothing\0", "{name}, got nothing"),
        (b"\0, \0at most 16\0", "{name}, at most 16"),
    ],
    ids=["two words", "the fewest letters", "behind a field", "punctuation behind a field"],
)
def test_words_that_a_library_keeps_in_two_strings_are_known(library, words):
    assert list(check_mac.find_unknown_words(library, [words])) == []


@pytest.mark.parametrize(
    ("library", "words"),
    [
        (b"\0pad is not supported for complex on MPS\0", "sums are not yet supported for complex"),
        (b"\0pad\0there is no way to pad\0", "pad is no way to pad"),
        (b"\0to pad\0 is no way to pad\0", "pad is no way to pad"),
        (b"\0pad_3d: \0sixes\0", "pad_3d: sixes"),
    ],
    ids=["other ends", "whole strings", "a short first part", "a short second part"],
)
def test_words_that_begin_or_end_as_others_are_unknown(library, words):
    assert list(check_mac.find_unknown_words(library, [words])) == [f"no kernel says {words!r}"]


COMPOSED = "Expected all tensors to be on the same device"
"""One of `check_mac.COMPOSED`; a third of it are 15 letters."""


@pytest.mark.parametrize(
    ("library", "words", "is_known"),
    [
        (b"\0Expected all te\0", COMPOSED, True),
        (b"\0the same device\0", COMPOSED, True),
        (b"\0Expected all t\0he same device\0", COMPOSED, False),
        (b"\0Required all te\0", COMPOSED.replace("Expected", "Required"), False),
    ],
    ids=["its beginning", "its end", "less of both", "another message"],
)
def test_of_a_composed_message_a_third_is_enough(library, words, is_known):
    unknown = list(check_mac.find_unknown_words(library, [words]))
    assert unknown == ([] if is_known else [f"no kernel says {words!r}"])


@pytest.mark.parametrize("beginning", check_mac.COMPOSED)
def test_each_beginning_of_a_composed_message_is_one_of_a_message(beginning):
    said = {words for version in check_mac.TORCHES for words in check_mac.messages_of(version)}
    pieces = [piece for words in said for piece in check_mac.pieces_of(words)]

    assert any(piece.startswith(beginning) for piece in pieces)


@pytest.fixture
def frameworks():
    """What PyObjC knows of a graph: a method of macOS 15 and one of a later version."""
    methods = [{"selector": "addTensor:name:"}, {"selector": "newTensorOf:", "introduced": "26.0"}]
    classes = {"MPSGraph": {"methods": methods}}
    enum = {name: {"value": value} for name, value in mpsgraph.CONSTANTS.items()}
    return [{"informal_protocols": {}, "formal_protocols": {}, "classes": classes, "enum": enum}]


def test_names_are_read_in_code_and_in_texts():
    code = "MPS.MPSGraph.addTensor_name_(f'newTensor{x}')\nf('newTensorOf:')\n"
    code += "f('NotImplementedError:')"  # has the form of a selector

    assert set(check_mac.names_in(code)) == {"MPSGraph", "addTensor_name_", "newTensorOf_"}


@pytest.mark.parametrize(
    ("names", "count"),
    [
        (["MPSGraph", "addTensor_name_"], 0),
        (["newTensorOf_"], 1),
        (["MPSGraf", "addTensor_label_"], 2),
    ],
    ids=["of macOS 15", "of a later version", "misspelt"],
)
def test_names_that_macos_15_has_not_are_found(frameworks, names, count):
    assert len(list(check_mac.wrong_names(frameworks, dict.fromkeys(names, "x.py")))) == count


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
    def fail(requirements, options):
        assert requirements.read_text() == "torch==2.99.0\ntorchvision\n"
        raise subprocess.CalledProcessError(1, "uv")

    monkeypatch.setattr(check_mac, "_resolve", fail)

    assert check_mac.main(["--torch", "2.99.0"]) == 2
    assert "has no PyTorch 2.99.0" in capsys.readouterr().err


def test_a_network_that_fails_is_no_contradiction(monkeypatch, tmp_path, capsys):
    def fail(url, timeout):
        raise urllib.error.URLError("no route to host")

    names = ["torch-1-py3-none-any.whl", "torchvision-1-py3-none-any.whl"]
    monkeypatch.setattr(check_mac, "WHEELS", tmp_path)
    monkeypatch.setattr(check_mac, "_resolve", lambda *_: [package(name) for name in names])
    monkeypatch.setattr(urllib.request, "urlopen", fail)

    codes = [check_mac.main([]), check_mac.main(["--torch", "2.13.0"])]

    assert codes == [2, 2]
    assert capsys.readouterr().err.count("check_mac: <urlopen error no route to host>") == 2


def test_an_index_that_does_not_answer_is_no_contradiction(monkeypatch, capsys):
    def fail(requirements, options):
        raise subprocess.CalledProcessError(1, "uv")

    monkeypatch.setattr(check_mac, "_resolve", fail)

    assert check_mac.main([]) == 2
    assert "lock.txt" in capsys.readouterr().err


def test_a_lock_without_a_wheel_of_torch_cannot_be_compared(monkeypatch, capsys):
    monkeypatch.setattr(check_mac, "_resolve", lambda *_: [SOURCE])

    assert check_mac.main([]) == 2
    assert "no wheel of torch" in capsys.readouterr().err


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

    known = [*check_mac.messages_of("2.13.0"), *alerts.names_of("2.13.0")]
    words = "\0".join(known).replace('"', "\0").encode()
    name = "wrapper_MPS__new_one"
    symbol = f"__ZN2at12_GLOBAL__N_112_GLOBAL__N_1{len(name)}{name}ERK"
    monkeypatch.setattr(check_mac, "read", lambda library: ({symbol}, words))


def test_a_version_is_compared_with_its_own_table_and_words(wheels, capsys):
    assert check_mac.main(["--torch", "2.13.0"]) == 0
    assert capsys.readouterr().out.count("yes PyTorch 2.13.0: ") == 3


MISSING_UP_TO_2_13 = {"aten::new_one": operators.Otherwise("missing", until="2.13")}


@pytest.mark.parametrize(
    ("otherwise", "code"),
    [
        pytest.param({}, 0, id="as the table says"),
        pytest.param(MISSING_UP_TO_2_13, 1, id="corrected"),
        pytest.param(
            {"aten::new_one": operators.Otherwise("missing", until="2.12")},
            0,
            id="corrected before",
        ),
    ],
)
def test_a_version_is_compared_with_what_corrects_its_table(wheels, monkeypatch, otherwise, code):
    monkeypatch.setattr(operators, "OTHERWISE", otherwise)
    assert check_mac.main(["--torch", "2.13.0"]) == code


def test_what_a_table_is_corrected_by_is_of_a_version(monkeypatch, tmp_path):
    entry = "- func: new_one(Tensor self) -> Tensor\n  dispatch:\n    CPU, MPS: new_one\n"
    (tmp_path / "native_functions.yaml").write_text(entry)
    monkeypatch.setattr(operators, "OTHERWISE", MISSING_UP_TO_2_13)

    assert operators.statuses("2.13.1", tmp_path) == {"new_one": "missing"}
    assert operators.statuses("2.14.0", tmp_path) == {"new_one": "native"}


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(left_on_cpu.INDEXED, id="a tensor on the CPU"),
        pytest.param(
            "Expected batch2.is_mps() to be true, but got false.", id="which tensor that is"
        ),
        pytest.param("LSTM with projections is not currently supported with MPS.", id="a refusal"),
    ],
)
def test_messages_of_each_kind_are_looked_up(said):
    assert [text for text in check_mac.messages_of("2.15.0") if text.startswith(said)]


NAMES = b"\0kthvalue MPS\0index_reduce_mps_kernel\0upsample_{}_backward\0trilinear\0"
"""Strings of a library: a name, one in which a name is a part, and two of which the library makes a name."""


@pytest.mark.parametrize(
    ("name", "is_known"),
    [
        pytest.param("kthvalue MPS", True, id="whole"),
        pytest.param("upsample_trilinear_backward", True, id="made of two"),
        pytest.param("index_reduce_mps", False, id="a part"),
        pytest.param("upsample_bilinear_backward", False, id="half of it"),
        pytest.param("upsample__backward", False, id="nothing filled in"),
    ],
)
def test_a_name_of_a_kernel_is_found_whole_or_made_of_two_strings(name, is_known):
    unknown = list(check_mac.find_unknown_names(NAMES, [name]))
    assert unknown == ([] if is_known else [f"no kernel calls itself {name!r}"])


def test_words_of_another_version_are_not_known(wheels, capsys):
    assert check_mac.main(["--torch", "2.15.0"]) == 1
    printed = capsys.readouterr().out
    assert "yes PyTorch 2.15.0: its operators are as said" in printed
    assert "no kernel says 'unique is not supported on MPS for dtype {dtype}'" in printed


@pytest.mark.parametrize(("found", "code"), [([], 0), (["no"], 1)], ids=["none", "one"])
def test_exit_code_of_a_contradiction(monkeypatch, found, code):
    monkeypatch.setattr(check_mac, "checks", lambda locks: [("it holds", found)])
    assert check_mac.main() == code
