"""What a Mac's library exports, what it wants of others, which functions are in it. LIEF reads it; nothing is run."""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

import lief

FLAT = ""
"""Where a symbol is wanted of any library that is loaded."""
_ANY_LIBRARY = (0, 254)
"""Ordinals for it: that of zig's linker (itself, which cannot be meant), and that of Apple's."""


class NotThere(ValueError):
    """A library or a symbol is not where it was: what is known of that package is out of date."""


def library(wheel: Path, ending: str) -> lief.MachO.Binary:
    """The one library in a wheel whose name ends so, for Apple silicon. `NotThere` if there is none, or several."""
    settings = lief.MachO.ParserConfig()
    settings.parse_dyld_exports = True
    settings.parse_dyld_bindings = settings.parse_dyld_rebases = settings.fix_from_memory = False
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        names = [name for name in archive.namelist() if name.endswith(ending)]
        if len(names) != 1:
            raise NotThere(f"{wheel.name} has {len(names)} libraries {ending}")
        read = lief.MachO.parse(archive.extract(names[0], folder), settings)
    binary = read and read.take(lief.MachO.Header.CPU_TYPE.ARM64)
    if not binary:
        raise NotThere(f"{names[0]} in {wheel.name} is no library for Apple silicon")
    return binary


def exports(binary: lief.MachO.Binary) -> set[str]:
    """What others can take from it: its own, and what it passes on of libraries that it loads."""
    if binary.has_dyld_info:
        return {export.symbol.name for export in binary.dyld_info.exports if export.has_symbol}
    if binary.has_dyld_exports_trie:
        return {export.symbol.name for export in binary.dyld_exports_trie.exports if export.has_symbol}
    raise NotThere("a library says in no way that LIEF knows what it exports")


def wanted(binary: lief.MachO.Binary) -> dict[str, set[str]]:
    """What it takes of others: symbols by the name of the library as it is written in there, or by `FLAT`."""
    loads = [each.name for each in binary.libraries if each.command != lief.MachO.LoadCommand.TYPE.ID_DYLIB]
    names: dict[str, set[str]] = {}
    for symbol in binary.imported_symbols:
        ordinal = symbol.library_ordinal
        names.setdefault(FLAT if ordinal in _ANY_LIBRARY else loads[ordinal - 1], set()).add(symbol.name)
    return names


def names(binary: lief.MachO.Binary) -> set[str]:
    """All symbols, those that it keeps to itself included."""
    return {symbol.name for symbol in binary.symbols}


def content(binary: lief.MachO.Binary, ending: str, size: int) -> bytes:
    """The first bytes of the one variable whose symbol ends so. `NotThere` if there is none, or several."""
    places = {symbol.value for symbol in binary.symbols if symbol.name.endswith(ending)} - {0}  # a debugger's
    if len(places) != 1:
        raise NotThere(f"a library has {len(places)} variables {ending}")
    return bytes(binary.get_content_from_virtual_address(places.pop(), size))
