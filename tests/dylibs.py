"""A library for Apple silicon, as far as `metalsim.refusals.wheel` reads one: strings, and code that refers to them."""

from __future__ import annotations

import struct

BASE, PAGE = 0x10000, 0x4000
RAISING = ("__ZN3c106detail14torchCheckFailEPKcS2_jS2_", "__ZN3c109TypeErrorC1ENS_14SourceLocationE")


def library(functions: dict[str, tuple[list[str], int]]) -> bytes:
    """A Mach-O library for arm64: each function refers to strings and then calls one of `RAISING`."""
    texts = list(dict.fromkeys(text for strings, _ in functions.values() for text in strings))
    strings, places = b"\0", {}
    for text in texts:
        places[text] = BASE + PAGE + len(strings)
        strings += text.encode() + b"\0"
    stubs = BASE + 2 * PAGE
    code, starts = [], []
    for named, raising in functions.values():
        starts.append(BASE + 4 * len(code))
        for text in named:
            pages = (places[text] >> 12) - ((BASE + 4 * len(code)) >> 12)
            code += [0x90000000 | (pages & 3) << 29 | (pages >> 2) << 5, 0x91000000 | (places[text] & 0xFFF) << 10]
        code += [0x94000000 | ((stubs + 12 * raising - BASE) // 4 - len(code)) & 0x3FFFFFF]
    names, symbols = b"\0", b""
    for name, place in [*zip(functions, starts, strict=True), *((name, 0) for name in RAISING)]:
        symbols += struct.pack("<IBBHQ", len(names), 0x0F if place else 0x01, 1, 0, place)
        names += name.encode() + b"\0"
    differences, before = b"", 0
    for start in starts:
        value, before = start - before, start
        while value > 127:
            differences, value = differences + bytes([value & 127 | 128]), value >> 7
        differences += bytes([value])
    indirect = struct.pack("<2I", len(functions), len(functions) + 1)
    blocks = [struct.pack(f"<{len(code)}I", *code), strings, bytes(24), symbols, names, differences + b"\0", indirect]
    offsets, offset = [], 4096
    for block in blocks:
        offsets.append(offset)
        offset += len(block)
    section = lambda name, place, index, first=0, width=0: struct.pack(
        "<16s16s2Q8I", name, b"__TEXT", place, len(blocks[index]), offsets[index], 0, 0, 0, 0, first, width, 0
    )
    sections = (
        section(b"__text", BASE, 0) + section(b"__cstring", BASE + PAGE, 1) + section(b"__stubs", stubs, 2, 0, 12)
    )
    segment = struct.pack("<2I16s4Q4I", 0x19, 72 + len(sections), b"__TEXT", 0, 0, 0, 0, 0, 0, 3, 0) + sections
    commands = [
        segment,
        struct.pack("<6I", 0x02, 24, offsets[3], len(symbols) // 16, offsets[4], len(names)),
        struct.pack("<20I", 0x0B, 80, *[0] * 12, offsets[6], 2, *[0] * 4),
        struct.pack("<4I", 0x26, 16, offsets[5], len(blocks[5])),
    ]
    head = struct.pack("<8I", 0xFEEDFACF, 0x0100000C, 0, 6, len(commands), sum(map(len, commands)), 0, 0)
    return (head + b"".join(commands)).ljust(4096, b"\0") + b"".join(blocks)


MPS, CPU = "/src/aten/src/ATen/native/mps/operations/Pad.mm", "/src/aten/src/ATen/native/Pad.cpp"
FUNCTIONS = {
    "__ZN2at6native7pad_mpsERKNS_6TensorE": (
        [MPS, "pad_mps", "MPS pads at most ", ", but got ", "x INTERNAL ASSERT FAILED"], 0,
    ),
    "__ZN2at6nativeL12pad_half_mpsE": ([MPS, "pad is not for half", '" not implemented for \'', "pad_half_of_mps"], 1),
    "__ZN2at6native7pad_cpuERKNS_6TensorE": ([CPU, "the CPU pads too", ", but got "], 0),
}  # fmt: skip
