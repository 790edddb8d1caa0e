"""Names and sizes of the symbols of a shared library on Linux, as far as shaders need them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

# name, type, flags, address, offset, size, link, info, alignment, entry size
_SECTION = struct.Struct("<IIQQQQIIQQ")
# name, info, other, section, value, size
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOL_TABLE = 2
"""The type of the section that has the symbols: SHT_SYMTAB."""


@dataclass(frozen=True)
class Symbol:
    """A name in a library: its address there and its size in bytes, and the name of its section."""

    name: str
    section: str
    address: int
    bytes: int


class _Section(NamedTuple):
    """A part of the file, as its header describes it."""

    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


def symbols(path: Path) -> list[Symbol]:
    """Return all symbols of a 64-bit little-endian ELF file; none when it was stripped. ValueError for another file."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path.name} is not a 64-bit ELF file")

    # of the header: where the headers of sections begin, their size and number, and which section has their names
    (begin,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    sections = [
        _Section(*_SECTION.unpack_from(data, begin + index * size)) for index in range(count)
    ]
    section_names = [_text(data, sections[names].offset + section.name) for section in sections]

    entries = []
    for section in sections:
        if section.type != _SYMBOL_TABLE:
            continue

        strings = sections[section.link].offset
        for offset in range(section.offset, section.offset + section.size, _SYMBOL.size):
            name, _, _, where, value, length = _SYMBOL.unpack_from(data, offset)
            # an absolute symbol, for instance
            section_name = section_names[where] if where < count else ""
            entries.append(Symbol(_text(data, strings + name), section_name, value, length))
    return entries


def _text(data: bytes, begin: int) -> str:
    """Return the text that begins at a position, and ends with a zero."""
    return data[begin : data.index(b"\0", begin)].decode(errors="replace")
