"""Names and sizes of the symbols of a shared library on Linux, as far as shaders need them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_SECTION = struct.Struct(
    "<IIQQQQIIQQ"
)  # name, type, flags, address, offset, size, link, info, alignment, entry size
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size


@dataclass(frozen=True)
class Symbol:
    """A name in a library: its address there and its size in bytes, and the name of its section."""

    name: str
    section: str
    address: int
    bytes: int


def symbols(path: Path) -> list[Symbol]:
    """All symbols of a 64-bit little-endian ELF file; empty when it was stripped."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path.name} is not a 64-bit ELF file")
    begin, size, count, names = (
        *struct.unpack_from("<Q", data, 0x28),
        *struct.unpack_from("<HHH", data, 0x3A),
    )
    sections = [_SECTION.unpack_from(data, begin + i * size) for i in range(count)]
    section_names = [_text(data, sections[names][4] + section[0]) for section in sections]
    entries = []
    for section in sections:
        if section[1] != 2:  # SHT_SYMTAB
            continue
        strings = sections[section[6]][4]
        for offset in range(section[4], section[4] + section[5], _SYMBOL.size):
            name, _, _, where, value, length = _SYMBOL.unpack_from(data, offset)
            section_name = section_names[where] if where < count else ""
            entries.append(Symbol(_text(data, strings + name), section_name, value, length))
    return entries


def _text(data: bytes, begin: int) -> str:
    return data[begin : data.index(b"\0", begin)].decode(errors="replace")
