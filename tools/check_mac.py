"""``make check-mac``: compare what this project says of Macs with the wheels that a Mac would install.

    python tools/check_mac.py [--torch 2.13.0] [--torch all]

Without ``--torch`` the locked versions are compared, with everything that the project uses. With it a version of
PyTorch is, and the newest torchvision that goes with it: which operators are native, by its own table and by what
`metalsim.operators.OTHERWISE` corrects there, and all words that `metalsim.refusals` has of that version. Not compared
is what stands in no text of a library: which call is refused, by which operator (`expected_on_macs.py` tries that), and
the lists of dtypes and layouts in `metalsim.operators`. The exit code is 1 if something is not as said, and 2 if that
cannot be found out, as without a network.

uv names the files of each locked version, `packaging` chooses as an installer does, LIEF reads the symbols. Nothing
of the wheels is run.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import contextlib
import hashlib
import http.client
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lief
from packaging import tags
from packaging.markers import default_environment
from packaging.pylock import Package, PackageSdist, PackageWheel, Pylock, PylockSelectError
from packaging.version import Version

from metallab import paths
from metalsim import operators
from metalsim.device import TESTED_TORCH
from metalsim.graph import mpsgraph
from metalsim.refusals import alerts, detours, left_on_cpu, rules

MACOS = (15, 0)
"""The oldest macOS on which PyTorch sees an Apple GPU."""
PYTHONS = ("3.11.0", "3.11.15", "3.12.12")
"""Pythons that set-up takes. Three numbers, since a marker may ask for the third as well."""
WHEELS = paths.BUILD / "check-mac" / "wheels"
TORCHES = TESTED_TORCH
"""The versions of PyTorch that ``--torch all`` stands for."""
LIBRARIES = {
    "torch": ("torch/lib/libtorch_cpu.dylib",),
    "torchvision": ("torchvision/_C_stable.so", "torchvision/_C.so"),  # the second before 0.29
}
"""The library that is read of each package: the first of these names that its wheel has."""
TABLE = "torchgen/packaged/ATen/native"
"""The folder of PyTorch's wheel that has the table of its operators."""
WRAPPER = re.compile(r"_GLOBAL__N_1(\d+)(wrapper_MPS_\w+)")
"""What PyTorch's generator makes for an operator on MPS, in a mangled name: its length, what follows."""
LAUNCH = re.compile(r"__ZN6vision3ops12_GLOBAL__N_1\d+?(?=[a-z])([a-z]\w*?)_encodeEP")
"""The function of torchvision that launches a Metal kernel."""
NAME = re.compile(r"(MPS|MTL|NS)[A-Z]\w*")
SELECTOR = re.compile(r"[A-Za-z]\w*[a-z0-9][A-Z]\w*_|[a-z]+[A-Z]\w*")
NO_SELECTORS = {
    *("instancesRespondToSelector_", "isEqual_"),  # of the Objective-C run time
    *("blobFileValue", "immediateValue", "mlProgram", "tensorType"),  # protocol buffers of Core ML
    *(
        "PyTorch_",
        "copyMakeBorder",
        "getLogger",
        "macOS13",
        "mT",
        "putText",
        "setLevel",
        "transAxes",
    ),  # Python's
}


def read_lock(lock: Path) -> list[Package]:
    """Ask the package index, through uv, for the files of the versions in a lock.

    Raises
    ------
    ValueError
        If the index does not answer. uv has written why.
    """
    try:
        return _resolve(lock, ["--no-deps"])  # a lock names all that its packages need
    except subprocess.CalledProcessError as error:
        raise ValueError(
            f"the package index told nothing of {lock.name} (uv says why, above): try again"
        ) from error


def with_torch(version: str) -> list[Package]:
    """Ask the package index, through uv, for the files of a version of PyTorch and of the torchvision for it.

    Raises
    ------
    ValueError
        If the index has no such version, or does not answer. uv has written why.
    """
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text(f"torch=={version}\ntorchvision\n")
        try:
            packages = _resolve(requirements, [])
        except subprocess.CalledProcessError as error:
            raise ValueError(
                f"the package index has no PyTorch {version}, or did not answer (uv says which, above): give a "
                f"version such as {TORCHES[0]}, or try again"
            ) from error
    return [package for package in packages if package.name in LIBRARIES]


def _resolve(requirements: Path, options: Sequence[str]) -> list[Package]:
    """Return what uv chooses for a file of requirements, each package with all of its files and their hashes.

    ``--universal`` chooses for all systems, so that it does not matter that this runs on Linux.
    """
    options = [
        *options,
        "--universal",
        "--python-version",
        "3.11",
        "--quiet",
        "--format",
        "pylock.toml",
    ]
    command = [sys.executable, "-m", "uv", "pip", "compile", *options, str(requirements)]
    written = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return list(Pylock.from_dict(tomllib.loads(written)).packages)


def for_a_mac(
    packages: Iterable[Package], python: str
) -> tuple[dict[str, PackageWheel], list[str]]:
    """Return the wheel of each package on macOS 15 with Apple silicon, and a line for each package that has none.

    A package whose marker names other systems alone is in neither. ``python`` is a version with three numbers; tags of
    wheels know two of them, and markers may ask for all.
    """
    minor = ".".join(python.split(".")[:2])
    version, platforms = tuple(map(int, minor.split("."))), list(tags.mac_platforms(MACOS, "arm64"))
    accepted = [*tags.cpython_tags(version, platforms=platforms)]
    accepted += tags.compatible_tags(version, f"cp{minor.replace('.', '')}", platforms)
    environment = default_environment() | {
        "sys_platform": "darwin",
        "platform_system": "Darwin",
        "platform_machine": "arm64",
        "python_version": minor,
        "python_full_version": python,
    }

    wheels: dict[str, PackageWheel] = {}
    without: list[str] = []
    for package in packages:
        # alone, else the first failure ends it
        alone = Pylock(lock_version=Version("1.0"), created_by="uv", packages=[package])
        files: list[object]
        try:
            files = [file for _, file in alone.select(environment=environment, tags=accepted)]
        except PylockSelectError:
            # anything but a wheel counts as none, such as a source archive, which a Mac would have to build
            files = [package.sdist]

        for file in files:  # none if its marker names other systems
            if isinstance(file, PackageWheel):
                wheels[package.name] = file
            else:
                without.append(f"Python {python}: {package.name} {package.version} has no wheel")
    return wheels, without


def fetch(file: PackageWheel | PackageSdist) -> Path:
    """Return the path of the file below `WHEELS`, to which it is downloaded if it is not there.

    ValueError if what comes is not the file that was locked; it is not kept then. OSError if nothing comes.
    """
    path = WHEELS / file.filename
    if path.exists():
        return path

    with urllib.request.urlopen(str(file.url), timeout=60) as answer:
        content: bytes = answer.read()
    if hashlib.sha256(content).hexdigest() != file.hashes["sha256"]:
        raise ValueError(f"{file.url} is not the file that the index promises: try again later")
    # what is there is taken for whole, so it must never be there in part
    paths.write_atomically(path, content)
    return path


def read(library: str) -> tuple[set[str], bytes]:
    """Return the symbols, those that it keeps to itself included, and the strings of a library for Apple silicon."""
    settings = lief.MachO.ParserConfig()
    settings.parse_dyld_exports = settings.parse_dyld_bindings = settings.parse_dyld_rebases = False
    parts = lief.MachO.parse(library, settings)
    binary = parts.take(lief.MachO.Header.CPU_TYPE.ARM64) if parts else None
    strings = binary.get_section("__cstring") if binary else None
    if binary is None or strings is None:
        raise ValueError(f"{library} has no code for Apple silicon: is it a Mac's library?")

    names = (symbol.name for symbol in binary.symbols)
    return {name for name in names if isinstance(name, str)}, bytes(strings.content)


class Contents(NamedTuple):
    """What is compared of the wheels of PyTorch and torchvision."""

    symbols: Mapping[str, set[str]]
    """By name of the package."""
    strings: bytes
    """Of both libraries."""
    allocator: str
    """PyTorch's header about its memory pools."""


def contents_of(wheels: Mapping[str, PackageWheel], folder: Path) -> Contents:
    """Return what is compared of PyTorch's wheel and torchvision's, which are downloaded if they are not there.

    The table of PyTorch's operators is unpacked into the folder. ValueError if one of the two wheels is missing, or
    has none of the libraries by the names that are known.
    """
    symbols: dict[str, set[str]] = {}
    strings: list[bytes] = []
    allocator = ""

    for name, libraries in LIBRARIES.items():
        if name not in wheels:
            raise ValueError(
                f"there is no wheel of {name} that a Mac installs: lock a version, or name one, that has it"
            )
        with (
            zipfile.ZipFile(fetch(wheels[name])) as archive,
            tempfile.TemporaryDirectory() as unpacked,
        ):
            library = next((each for each in libraries if each in archive.namelist()), None)
            if library is None:
                raise ValueError(
                    f"{wheels[name].filename} has no {' or '.join(libraries)}: name its library in LIBRARIES"
                )
            symbols[name], own_strings = read(archive.extract(library, unpacked))
            strings.append(own_strings)
            if name == "torch":
                allocator = archive.read("torch/include/ATen/mps/MPSAllocator.h").decode()
                for file in ("native_functions.yaml", "tags.yaml"):
                    (folder / file).write_bytes(archive.read(f"{TABLE}/{file}"))

    return Contents(symbols, b"".join(strings), allocator)


def wrong_operators(
    symbols: Iterable[str], table: Mapping[str, str], folder: Path | None = None
) -> Iterator[str]:
    """Yield a line for each operator that the table calls native and PyTorch's library has no function for, or reverse.

    ``symbols`` are the library's, ``table`` is `operators.statuses`: by an operator's name ``native`` or another word.
    The folder has the file that PyTorch makes those functions of: that of the installed PyTorch if None. Their names
    are made of it here as PyTorch's generator makes them.
    """
    from torchgen.api import cpp, native
    from torchgen.gen import parse_tags_yaml
    from torchgen.model import Location, NativeFunction

    folder = folder or operators.find_native_functions()
    known_tags = parse_tags_yaml(str(folder / "tags.yaml"))
    # a mangled name says how long it is, and goes on with the types of its arguments
    there = {match[2][: int(match[1])] for name in symbols for match in WRAPPER.finditer(name)}
    expected = set()
    # the others are not parsed: an older table has types that the installed torchgen does not know
    for name, entry in operators.entries(folder).items():
        if table.get(name) != "native":
            continue
        with_line = {"__line__": 0, **entry}
        each, _ = NativeFunction.from_yaml(with_line, Location(str(folder), 0), known_tags)
        # names as in torchgen/dest/register_dispatch_key.py
        if each.part_of_structured_group:
            expected.add(f"wrapper_MPS_{native.name(each.func)}")
        else:
            expected.add(f"wrapper_MPS_{each.func.name.overload_name}_{cpp.name(each.func)}")

    yield from tell_differences(there, expected)


def wrong_torchvision_operators(symbols: Iterable[str], table: Iterable[str]) -> Iterator[str]:
    """Yield a line for each of torchvision's operators that only its library or only the table has on MPS.

    A function is named after its operator, but for the direction: ``roi_align_backward`` is ``_roi_align_backward``.
    """
    launched = {match[1] for name in symbols if (match := LAUNCH.match(name))}
    there = {
        re.sub(r"^(\w+)_backward$", r"_\1_backward", re.sub("_(forward|im2col)$", "", name))
        for name in launched
    }
    yield from tell_differences(
        {f"torchvision::{name}" for name in there}, {f"torchvision::{name}" for name in table}
    )


def tell_differences(in_the_library: set[str], native_here: set[str]) -> Iterator[str]:
    """Yield a line for each kernel that only one side has, and which side that is."""
    for name in sorted(in_the_library - native_here):
        yield f"{name} is in the library, and not native here"
    for name in sorted(native_here - in_the_library):
        yield f"{name} is native here, and not in the library"


COMPOSED = (
    " not implemented for 'Bool'",
    " on shared pool. Use ",
    "Expected all tensors to be on the same device",
    "Failed to create function state object for: ",
    "MPS supports tensors with dimensions <= 16",
    "MPS: passing divisor to Average Pooling op",
    "argmax_out_mps: ",
    "argmin_out_mps: ",
    "indices should be either on cpu or on the same device",
)
"""How pieces of messages (`pieces_of`) begin that no library has whole or in two parts.

The compiler keeps them in more parts, or they get a name when they are raised.
"""


def find_unknown_words(library: bytes, messages: Iterable[str]) -> Iterator[str]:
    """Yield a line for each message that the simulated GPU raises and that the library does not hold.

    Each of its pieces has to be in there; of those that begin as in `COMPOSED` a third is enough.
    """
    for words in messages:
        if not all(_holds(library, piece) for piece in pieces_of(words)):
            yield f"no kernel says {words!r}"


def pieces_of(words: str) -> list[str]:
    """Return the pieces of a message between its fields and quotes, without those of up to three letters."""
    return [piece for piece in re.split(r'{\w+}|"', words) if len(piece.strip()) > 3]


MIN_PART = 6
"""The fewest letters of a part of a message: every library has strings that end in one or two given ones."""


def _holds(library: bytes, piece: str) -> bool:
    """Return whether a library has a piece of a message: whole, or as the end of one string and the start of another.

    The compiler keeps ``grid_sampler_3d: Unsupported Bicubic interpolation`` in two, as another message has the second
    part, too. Of a piece that begins as in `COMPOSED` it is enough if the library has its first third or its last one.

    Parameters
    ----------
    library
        Its strings, with a zero byte behind each.
    piece
        As `pieces_of` returns it.
    """
    if piece.encode() in library:
        return True
    if piece.startswith(COMPOSED):
        third = max(12, len(piece) // 3)  # fewer than 12 letters may be in a library by chance
        return piece[:third].encode() in library or piece[-third:].encode() in library

    for end in range(1, len(piece) - MIN_PART + 1):
        before, after = piece[:end], piece[end:]
        follows_a_field = not before.strip(" ,:")  # punctuation alone, which may be short
        if len(before) < MIN_PART and not follows_a_field:
            continue
        if before.encode() + b"\0" in library and b"\0" + after.encode() in library:
            return True
    return False


def find_unknown_names(library: bytes, names: Iterable[str]) -> Iterator[str]:
    """Yield a line for each name of `alerts` that the library does not hold.

    A name is a string of the library by itself, whole, or made of two: `trilinear` in ``upsample_{}_backward``.
    """
    strings = set(filter(None, library.split(b"\0")))
    # what has exactly one field, and letters on both sides of it
    patterns = [parts for each in strings if len(parts := each.split(b"{}")) == 2 and all(parts)]

    for name in names:
        whole = name.encode()
        fillings = {
            whole.removeprefix(before).removesuffix(after)
            for before, after in patterns
            if whole.startswith(before) and whole.endswith(after)
        }
        if whole not in strings and not fillings & strings:
            yield f"no kernel calls itself {name!r}"


def definitions(archives: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Yield what PyObjC read in Apple's headers (``metadata/**/arm64-*.fwinfo`` of its source archives).

    One for each file: dictionaries by kind, such as ``classes`` and ``enum``, of the definitions by their names.
    """
    for path in archives:
        with tarfile.open(path) as archive:
            for member in archive.getmembers():
                is_of_macs = re.search(r"/metadata/.*/arm64-[\d.]+\.fwinfo$", member.name)
                file = archive.extractfile(member) if is_of_macs else None
                if file is not None:
                    text = file.read().decode()
                    # JSON behind lines of comment
                    yield json.loads(text[text.index("{") :])["definitions"]


class Known(NamedTuple):
    """What PyObjC has of some frameworks."""

    names: set[str]
    values: dict[str, int]
    """Of constants."""
    since: dict[str, tuple[int, ...]]
    """By selector, the macOS that brought it."""


def collect(frameworks: Iterable[Mapping[str, Any]]) -> Known:
    """Return what PyObjC has of all frameworks together; ``frameworks`` is what `definitions` yields.

    A selector that several classes have counts as of the macOS that brought it first to one of them. One without a
    macOS is older than what PyObjC records: an empty version, which is before all others.
    """
    known = Known(set(), {}, {})
    for each in frameworks:
        known.names.update(
            name for kind in each.values() if isinstance(kind, dict) for name in kind
        )
        known.values.update({name: value["value"] for name, value in each["enum"].items()})
        for name, first in _selectors(each):
            known.since[name] = min(known.since.get(name, first), first)
    return known


def wrong_names(frameworks: Iterable[Mapping[str, Any]], used: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each name or selector that PyObjC lacks or that came after macOS 15, and each wrong constant.

    ``frameworks`` is what `definitions` yields, ``used`` what `of_the_project` returns. The constants are those that
    the simulated GPU has numbers for, `mpsgraph.CONSTANTS`.
    """
    known = collect(frameworks)

    for name, where in sorted(used.items()):
        if NAME.fullmatch(name):
            if name not in known.names:
                yield f"{where}: PyObjC has no name {name}"
        elif known.since.get(name, (99,)) > MACOS:  # one that PyObjC lacks counts as later than all
            yield f"{where}: macOS {MACOS[0]} has no selector {name}"

    for name, value in mpsgraph.CONSTANTS.items():
        if known.values.get(name) != value:
            yield f"{name} is {value}"


def _selectors(framework: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the methods of a framework as Python names them, each with the macOS that brought it."""
    informal = framework["informal_protocols"].values()

    for owner in (*framework["formal_protocols"].values(), *framework["classes"].values()):
        for part in (owner, *informal, *owner.get("categories", ())):
            methods = part.get("methods", ()) if isinstance(part, dict) else ()
            for method in methods:
                version = re.findall(r"\d+", method.get("introduced") or "")
                yield method["selector"].replace(":", "_"), tuple(map(int, version))


def names_in(source: str) -> Iterator[str]:
    """Yield names and selectors of Apple's frameworks in Python code, that in its strings included.

    By their form alone: what is none of Apple's and has it stands in `NO_SELECTORS`, which the caller leaves out.
    """
    tree = ast.parse(source)
    # what an f-string has between its fields is no whole selector
    f_strings = (node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr))
    pieces = {piece for node in f_strings for piece in node.values}

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield from filter(_is_of_apple, [node.attr])
        elif isinstance(node, ast.FunctionDef):
            yield from filter(_is_of_apple, [node.name])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in pieces:
            yield from _names_in_text(node.value)


def _is_of_apple(name: str) -> bool:
    """Say whether an attribute or a function may be a name or a selector of a framework of Apple's."""
    return bool(NAME.fullmatch(name) or SELECTOR.fullmatch(name))


def _names_in_text(text: str) -> Iterator[str]:
    """Yield the selector that a string is, with underscores for its colons, or the names in it if it is a program.

    An exception's name with a colon behind it, such as ``NotImplementedError:``, has the form of a selector, and is
    none.
    """
    if hasattr(builtins, text.removesuffix(":")):
        return
    selector = text.replace(":", "_")
    if re.fullmatch(r"\w+:(\w+:)*|\w+_", text) and SELECTOR.fullmatch(selector):
        yield selector
    elif "\n" in text and "import " in text:
        with contextlib.suppress(SyntaxError):  # prose
            yield from names_in(text)


def of_the_project(root: Path) -> dict[str, str]:
    """Return names and selectors that the checkout in ``root`` uses, each with the path of a file that does."""
    folders = ("utils/metallab/mpsgraph", "tests/conformance", "metalsim/src/metalsim/graph")
    texts = {path: path.read_text() for folder in folders for path in (root / folder).rglob("*.py")}
    for path in (root / "notebooks").glob("*.ipynb"):
        texts[path] = _code_of_page(path)

    used = {
        name: str(path.relative_to(root)) for path, text in texts.items() for name in names_in(text)
    }
    return {name: where for name, where in used.items() if name not in NO_SELECTORS}


def _code_of_page(path: Path) -> str:
    """Return the code of a notebook; lines of magic do nothing."""
    cells = json.loads(path.read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return re.sub(r"(?m)^(\s*)[%!].*", r"\1pass", "\n".join(sources))


def checks(locks: Iterable[Path]) -> Iterator[tuple[str, list[str]]]:
    """Yield each check's title, and a line for each thing that contradicts it, as soon as it was made.

    All locks are asked for wheels. What the wheels and source archives hold is compared of the first one's alone, which
    has PyTorch and PyObjC; they are downloaded if they are not there.

    Raises
    ------
    ValueError
        If the package index does not answer, a file is not the one that it promises, or the first lock has no wheel of
        PyTorch or of torchvision for a Mac.
    """
    packages, *others = map(read_lock, locks)
    missing = [
        each
        for lock in (packages, *others)
        for python in PYTHONS
        for each in for_a_mac(lock, python)[1]
    ]
    yield "every package has a wheel", missing

    archives = [
        fetch(each.sdist)
        for each in packages
        if each.sdist is not None and each.name.startswith("pyobjc-framework-")
    ]
    wrong = list(wrong_names(definitions(archives), of_the_project(paths.ROOT)))
    yield "PyObjC has the names that are used", wrong

    wheels = for_a_mac(packages, PYTHONS[1])[0]
    with tempfile.TemporaryDirectory() as folder:
        contents = contents_of(wheels, Path(folder))
    # the header lists the kinds of pools, such as SHARED_SMALL; of a private one the CPU could read nothing
    private = re.findall(r"PRIVATE_\w+", contents.allocator.partition("enum class Kind")[2])
    yield "memory pools are shared ones", private

    version = next(str(each.version) for each in packages if each.name == "torch")
    of_torch, of_torchvision = contents.symbols["torch"], contents.symbols["torchvision"]
    # by the table of the PyTorch that is installed, which is the locked one
    wrong = list(wrong_operators(of_torch, operators.statuses(version)))
    yield "PyTorch's operators are as said", wrong
    wrong = list(wrong_torchvision_operators(of_torchvision, operators.TORCHVISION))
    yield "torchvision's are", wrong
    yield from checks_of_words(contents.strings, version)


def checks_of_torch(version: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each check's title, and what contradicts it, of one version of PyTorch.

    Raises
    ------
    ValueError
        If a Mac could not install that version, the package index does not have it, or a file is not as promised.
    """
    wheels, without = for_a_mac(with_torch(version), PYTHONS[1])
    if without:
        raise ValueError(f"PyTorch {version} cannot be compared: on a Mac with {without[0]}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        contents = contents_of(wheels, folder)
        said = operators.statuses(version, folder)
        wrong = list(wrong_operators(contents.symbols["torch"], said, folder))
    yield f"PyTorch {version}: its operators are as said", wrong
    for title, contradictions in checks_of_words(contents.strings, version):
        yield f"PyTorch {version}: {title}", contradictions


def checks_of_words(strings: bytes, version: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the title of each check of words in the libraries of a version of PyTorch, and what contradicts it."""
    unknown = list(find_unknown_words(strings, sorted(messages_of(version))))
    yield "kernels have these messages", unknown
    unknown = list(find_unknown_names(strings, sorted(alerts.names_of(version))))
    yield "kernels that are not deterministic have these names", unknown


def messages_of(version: str) -> set[str]:
    """Return what the simulated GPU says in the words of a version of PyTorch, with fields for `str.format`.

    These are the words of all calls that are refused, of those that are left to the CPU, of tensors that were left
    there, and of memory.
    """
    refused = {rule.words for kept in rules.for_version(version).values() for rule in kept}
    memory = (paths.ROOT / "metalsim/src/metalsim/csrc/memory.h").read_text()
    of_memory = re.findall(r'"([^"\n]*(?:MPS|buffer size)[^"\n]*)"', memory)  # dtypes, layouts too
    of_devices = left_on_cpu.texts_of(version)
    return {*refused, *detours.warnings_of(version), *of_devices, *of_memory}


def main(arguments: Sequence[str] = ()) -> int:
    """Return 0 if nothing contradicts, 1 if something does, 2 with a message if it cannot be said.

    2 as soon as one version cannot be compared, such as without a network; those behind it are not looked at.
    """
    versions = parse(arguments)
    code = 0
    try:
        if not versions:
            code = show(checks([paths.ROOT / "lock.txt", paths.ROOT / "lock-jax.txt"]))
        for version in versions:
            code |= show(checks_of_torch(version))
    # a download that ends too early is none of the system's errors
    except (ValueError, OSError, http.client.HTTPException) as error:
        print(f"check_mac: {error}", file=sys.stderr)
        return 2
    return code


def parse(arguments: Sequence[str]) -> list[str]:
    """Return the versions of PyTorch that are asked for; none stands for the locked ones."""
    parser = argparse.ArgumentParser(
        prog="python tools/check_mac.py", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--torch",
        action="append",
        default=[],
        metavar="VERSION",
        help=f"compare this version of PyTorch, such as {TORCHES[0]}, instead of what is locked; may be given several "
        f"times; all: {', '.join(TORCHES)}",
    )

    versions: list[str] = []
    for asked in parser.parse_args(arguments).torch:
        if asked != "all" and not re.fullmatch(r"\d+\.\d+\.\d+", asked):
            parser.error(
                f"--torch {asked}: give a version of PyTorch with three numbers, such as {TORCHES[0]}, or all"
            )
        versions += TORCHES if asked == "all" else [asked]
    return list(dict.fromkeys(versions))


def show(results: Iterable[tuple[str, list[str]]]) -> int:
    """Print each check with what contradicts it; return 0 if nothing does, else 1."""
    code = 0
    for title, contradictions in results:
        answer = "no" if contradictions else "yes"
        print("\n    ".join([f"{answer} {title}", *contradictions]), flush=True)
        code |= bool(contradictions)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
