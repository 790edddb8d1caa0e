"""What a Mac's kernels can say: read from PyTorch's and torchvision's wheels for macOS, on any machine.

    python -m pip download --no-deps --only-binary=:all: --platform macosx_15_0_arm64 --platform macosx_14_0_arm64 \\
        --python-version 3.11 --dest build/mac-wheels torch==2.15.0 torchvision==0.29.2
    python -m metalsim.refusals.wheel build/mac-wheels/torch*.whl            # what differs from messages.json
    python -m metalsim.refusals.wheel build/mac-wheels/torch*.whl --write    # write messages.json anew

`make check-mac` asks the first of the wheels that are locked. Nothing of a wheel is executed: the library with its
kernels is read as bytes. A function that checks something names
its own source file, so the functions of the MPS backend are those that refer to a string ``.../mps/....mm``. What else
they refer to are the pieces of their messages; which exception is raised shows in the function that is called next. A
piece that other devices' functions share (", but got ") says nothing of MPS and is left out.

`main` ends with code 1 where the wheel differs from the list: then `metalsim.refusals.rules` has something to learn,
or ``unmodelled.json`` a reason.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import struct
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

LIBRARIES = {"torch": "torch/lib/libtorch_cpu.dylib", "torchvision": "torchvision/_C_stable.so"}
"""Where each package has its Metal kernels."""
STORED = Path(__file__).with_name("messages.json")
SOURCE = re.compile(r"^/.*/(aten|c10|torch|torchvision)/.*\.(mm|h|cpp|cc)$")
"""A source file's path, as a check names it."""
OF_MPS = re.compile(r"(/ATen/(native/(\w+/)?mps/.*|mps/EmptyTensor)|/torchvision/csrc/ops/mps/.*)\.(mm|h|cpp)$")
"""Those of kernels, and of the function that makes every tensor; the allocator, the profiler and their like refuse no
operator."""
NOT_WORDS = re.compile(
    r"INTERNAL ASSERT FAILED|^Expected .* to be true, but got false|^[^ ]*$|^[^A-Za-z]*$"
    r"|^(aoti_)?torch_mps_(set_arg|dispatch|run_command|create_shader)"
)
"""Strings that refuse nothing: a broken promise of PyTorch's own, the text of a condition, a name, punctuation, and a
call of torchvision's that hands something to Metal."""
DISPATCHED = "\" not implemented for '"
"""The middle of what AT_DISPATCH says: before it stands a name that is a string of its own."""
RAISES = {
    "torchCheckFail": "RuntimeError",
    "c105ErrorC1": "RuntimeError",
    "St13runtime_errorC1": "RuntimeError",
    "NotImplementedErrorC1": "NotImplementedError",
    "TypeErrorC1": "TypeError",
    "ValueErrorC1": "ValueError",
    "IndexErrorC1": "IndexError",
}
"""What the called function is named for, and what Python raises then."""
FARTHEST = 120
"""Instructions between a message and the call that raises it, at most."""


@dataclass(frozen=True, order=True)
class Message:
    """A piece of a message, where it stands, and what is raised with it."""

    file: str
    """The source file, without its folders."""
    function: str
    """Its last name; empty where the compiler made a function of its own of the code."""
    words: str
    raises: str
    """A Python exception; empty where it was not seen, as with a warning."""


def messages(library: bytes | memoryview) -> list[Message]:
    """The messages in a ``libtorch_cpu.dylib`` for arm64. ValueError for something else."""
    binary = _Binary(library)
    by_function: dict[int, list[tuple[int, str]]] = collections.defaultdict(list)
    for instruction, text in binary.references():
        by_function[binary.function(instruction)].append((instruction, text))
    sources = {function: [text for _, text in texts if SOURCE.match(text)] for function, texts in by_function.items()}
    ours = {function for function, paths in sources.items() if any(map(OF_MPS.search, paths))}
    others = {function for function, paths in sources.items() if paths and not any(map(OF_MPS.search, paths))}
    shared = {text for function in others for _, text in by_function[function]}
    collected = set()
    for function in ours:
        file = next(path for path in sources[function] if OF_MPS.search(path)).rpartition("/")[2]
        name = binary.name(function)
        for instruction, text in by_function[function]:
            if text == DISPATCHED:
                what = _dispatched_name(instruction, by_function[function], shared, name)
                collected.add(Message(file, name, f'"{what}{DISPATCHED}', "NotImplementedError"))
            elif text not in shared and not NOT_WORDS.search(text) and not SOURCE.match(text):
                collected.add(Message(file, name, text, binary.raised_after(instruction)))
    return sorted(collected)


def of_wheel(path: Path) -> list[Message]:
    """The messages of PyTorch's or torchvision's wheel for macOS. ValueError if it is another wheel."""
    package = path.name.partition("-")[0]
    library = LIBRARIES.get(package, LIBRARIES["torch"])
    with zipfile.ZipFile(path) as wheel, tempfile.TemporaryFile() as file:
        try:
            file.write(wheel.read(library))
        except KeyError:
            raise ValueError(f"{path.name} has no {library}: download {package} for macosx_15_0_arm64") from None
        return messages(np.memmap(file, dtype=np.uint8, mode="r").data)


def stored() -> list[Message]:
    """The messages that are committed: those of the packages that constraints.txt names."""
    return [Message(**fields) for fields in json.loads(STORED.read_text(encoding="utf-8"))["messages"]]


def differences(old: Iterable[Message], new: Iterable[Message]) -> list[str]:
    """What new packages say and no longer say, a line each; where it stands does not matter."""
    before, after = ({message.words: message for message in each} for each in (old, new))
    gone = [f"- {before[words].file}: {words}" for words in sorted(before.keys() - after.keys())]
    come = [f"+ {after[words].file}: {words}" for words in sorted(after.keys() - before.keys())]
    other = [
        f"! {after[words].file}: raises {after[words].raises}, before {before[words].raises}: {words}"
        for words in sorted(before.keys() & after.keys())
        if before[words].raises != after[words].raises
    ]
    return gone + come + other


def _dispatched_name(instruction: int, references: Sequence[tuple[int, str]], shared: set[str], function: str) -> str:
    """The name that AT_DISPATCH was given: of the backend rather than of a shader, and near its words."""
    names = [(at, text) for at, text in references if re.fullmatch(r"[a-z_]\w+", text) and text not in shared]
    ranked = sorted((text == function, "_mps" not in text, abs(at - instruction), text) for at, text in names)
    return ranked[0][-1] if ranked else function


class _Binary:
    """A Mach-O library for arm64, as far as its strings and who refers to them are concerned."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        if len(self._data) < 32 or struct.unpack_from("<2I", self._data) != (0xFEEDFACF, 0x0100000C):
            raise ValueError("not a Mach-O library for arm64")
        sections, symbols, starts, indirect = self._commands()
        self._text_at, size, offset = sections["__text"][:3]
        self._text = np.frombuffer(self._data[offset : offset + size], dtype="<u4")
        self._strings_at, size, offset = sections["__cstring"][:3]
        self._strings = bytes(self._data[offset : offset + size])
        self._starts = np.array(list(_function_starts(self._data[starts[0] : starts[0] + starts[1]])))
        kind = [("name", "<u4"), ("type", "u1"), ("section", "u1"), ("about", "<u2"), ("value", "<u8")]
        self._symbols = np.frombuffer(self._data[symbols[0] : symbols[0] + 16 * symbols[1]], dtype=kind)
        self._names = self._data[symbols[2] : symbols[2] + symbols[3]]
        here = self._symbols[(self._symbols["type"] & 0xEE) == 0x0E]  # in a section, and no line of a debugger's
        self._symbol_at = dict(zip(here["value"].tolist(), here["name"].tolist(), strict=True))
        self._raising = self._stubs_that_raise(sections["__stubs"], indirect)

    def references(self) -> Iterator[tuple[int, str]]:
        """Where in the code the address of a string is made, by ADRP and ADD, and the string."""
        text, at = self._text, self._text_at
        (adrp,) = np.nonzero((text & 0x9F000000) == 0x90000000)
        word = text[adrp].astype(np.int64)
        pages = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
        pages = np.where(pages >> 20 & 1, pages - (1 << 21), pages)
        page = (at + 4 * adrp & ~0xFFF) + (pages << 12)
        end = self._strings_at + len(self._strings)
        near = (page > self._strings_at - 4096) & (page < end)
        adrp, page, register = adrp[near], page[near], (word & 31)[near]
        pairs = set()
        for distance in range(1, 9):  # the ADD may stand a little later
            instruction = np.minimum(adrp + distance, len(text) - 1)
            add = text[instruction].astype(np.int64)
            target = page + (add >> 10 & 0xFFF)
            good = (add & 0xFFC00000) == 0x91000000
            good &= ((add >> 5 & 31) == register) & (target >= self._strings_at) & (target < end)
            pairs |= set(zip(instruction[good].tolist(), target[good].tolist(), strict=True))
        for instruction, address in sorted(pairs):
            start = address - self._strings_at
            if start == 0 or self._strings[start - 1] == 0:  # else it is a part of the address of something else
                yield instruction, self._strings[start : self._strings.index(b"\0", start)].decode("utf-8", "replace")

    def function(self, instruction: int) -> int:
        """The address of the function that this instruction belongs to."""
        return int(self._starts[np.searchsorted(self._starts, self._text_at + 4 * instruction, side="right") - 1])

    def name(self, function: int) -> str:
        """The last part of a function's name; empty for code that the compiler took out of several functions."""
        symbol = self._name(self._symbol_at[function]) if function in self._symbol_at else ""
        if not symbol.startswith(("__Z", "____Z", "___Z")):
            return ""
        parts = _identifiers(symbol)
        return next((part for part in reversed(parts) if part not in ("impl", "at", "native", "mps")), "")

    def raised_after(self, instruction: int) -> str:
        """The exception whose constructor is called next; empty if none is near."""
        code = self._text[instruction : instruction + FARTHEST].astype(np.int64)
        for index in np.flatnonzero((code >> 26 & 0b011111) == 0b000101):  # BL, and B where nothing comes after
            offset = int(code[index]) & 0x3FFFFFF
            offset -= (offset >> 25) << 26
            target = self._text_at + 4 * (instruction + int(index) + offset)
            if target in self._raising:
                return self._raising[target]
        return ""

    def _commands(self) -> tuple[dict[str, tuple[int, ...]], tuple[int, ...], tuple[int, ...], tuple[int, int]]:
        sections: dict[str, tuple[int, ...]] = {}
        position = 32
        for _ in range(struct.unpack_from("<I", self._data, 16)[0]):
            command, size = struct.unpack_from("<2I", self._data, position)
            if command == 0x19:  # LC_SEGMENT_64
                for index in range(struct.unpack_from("<I", self._data, position + 64)[0]):
                    section = position + 72 + 80 * index
                    name = bytes(self._data[section : section + 16]).rstrip(b"\0").decode()
                    address, length, offset = struct.unpack_from("<2QI", self._data, section + 32)
                    sections[name] = (address, length, offset, *struct.unpack_from("<2I", self._data, section + 68))
            elif command == 0x02:  # LC_SYMTAB
                symbols = struct.unpack_from("<4I", self._data, position + 8)
            elif command == 0x0B:  # LC_DYSYMTAB
                indirect = struct.unpack_from("<2I", self._data, position + 56)
            elif command == 0x26:  # LC_FUNCTION_STARTS
                starts = struct.unpack_from("<2I", self._data, position + 8)
            position += size
        return sections, symbols, starts, indirect

    def _stubs_that_raise(self, stubs: Sequence[int], indirect: tuple[int, int]) -> dict[int, str]:
        address, size, _, first, width = stubs
        table = np.frombuffer(self._data[indirect[0] : indirect[0] + 4 * indirect[1]], dtype="<u4")
        exceptions = {}
        for index in range(size // width):
            symbol = int(table[first + index])
            name = self._name(int(self._symbols[symbol]["name"])) if symbol < len(self._symbols) else ""
            for part, exception in RAISES.items():
                if part in name and ("c10" in name or "runtime_error" in part):
                    exceptions[address + width * index] = exception
        return exceptions

    def _name(self, offset: int) -> str:
        return bytes(self._names[offset : offset + 4096]).partition(b"\0")[0].decode()


def _function_starts(data: memoryview) -> Iterator[int]:
    """Addresses, which the library holds as differences in ULEB128."""
    address = value = shift = 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if not byte & 128:
            if value == 0:
                return
            address += value
            yield address
            value = shift = 0


def _identifiers(symbol: str) -> list[str]:
    """The names of a function with its namespaces and classes, of a mangled symbol: those before its arguments."""
    names, position = [], symbol.index("_Z") + 2
    nested = symbol.startswith("N", position)
    position += nested
    while position < len(symbol):
        if length := re.match(r"\d+", symbol[position:]):
            start = position + len(length[0])
            position = start + int(length[0])
            names.append(symbol[start:position])
            if not nested:
                break
        elif symbol.startswith(("L", "K", "Z"), position):
            position += 1
        else:
            break
    return names


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if the wheels say what is stored, 1 if they differ, 2 on misuse."""
    parser = argparse.ArgumentParser(prog="python -m metalsim.refusals.wheel", description=__doc__.partition("\n")[0])
    parser.add_argument("wheels", type=Path, nargs="+", metavar="wheel", help="PyTorch's and torchvision's, for macOS")
    parser.add_argument("--write", action="store_true", help="write messages.json anew")
    given = parser.parse_args(arguments)
    current: list[Message] = []
    for path in given.wheels:
        try:
            current += of_wheel(path)
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 2
    changed = differences(stored() if STORED.exists() else (), current)
    print("\n".join([*changed, f"{len(current)} messages, {len(changed)} changed"]))
    if given.write:
        STORED.write_text(_written(given.wheels, current), encoding="utf-8")
        return 0
    return 1 if changed else 0


def _written(wheels: Sequence[Path], current: Sequence[Message]) -> str:
    names = ["-".join(wheel.name.split("-")[:2]) for wheel in wheels]
    about: Mapping[str, object] = {"read from": names, "by": "metalsim.refusals.wheel"}
    lines = ",\n".join("  " + json.dumps(asdict(message), ensure_ascii=False) for message in current)
    return f'{{"about": {json.dumps(about)}, "messages": [\n{lines}\n]}}\n'


if __name__ == "__main__":
    sys.exit(main())
