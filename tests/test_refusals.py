"""The table of refusals: held against the words in PyTorch's wheel for macOS, and against its list for its Macs."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from metalsim import operators, refusals
from metalsim.refusals import detours, rules, wheel

ROOT = Path(__file__).resolve().parents[1]
RULES = [rule for kept in rules.RULES.values() for rule in kept]
UNMODELLED = json.loads((ROOT / "utils/metalsim/refusals/unmodelled.json").read_text())
PIECES = {
    piece for words in (*(rule.words for rule in RULES), *detours.WARNINGS) for piece in re.split(r"{\w+}", words)
}
MIDDLE = 25  # letters from which a string is known inside a longer one, which the compiler keeps in pieces


def modelled(words: str) -> bool:
    """Whether some rule says this piece of a message."""
    return any(p.startswith(words) or p.endswith(words) or (len(words) >= MIDDLE and words in p) for p in PIECES)


# ---- the words ------------------------------------------------------------------------------------------------------


def test_every_message_of_a_mac_is_modelled_or_has_a_reason():
    """A new PyTorch says other things: `python -m metalsim.refusals.wheel` tells. Each wants a rule or a reason."""
    explained = [words for kept in UNMODELLED.values() for words in kept]
    assert len(explained) == len(set(explained))
    stored = {message.words for message in wheel.stored()}
    assert not sorted(words for words in stored if not modelled(words) and words not in explained)
    assert not sorted(words for words in explained if modelled(words)), "explained away, and modelled"
    assert not sorted(set(explained) - stored), "nobody says this any more"


def test_the_messages_are_those_of_the_locked_pytorch():
    about = json.loads(wheel.STORED.read_text())["about"]
    assert about["read from"] == f"torch-{torch.__version__.partition('+')[0]}"


def test_every_rule_says_what_a_mac_says_and_raises_what_it_raises():
    for rule in RULES:
        pieces = [piece for piece in re.split(r"{\w+}", rule.words) if len(piece) > 2]
        found = [m for m in wheel.stored() if any(p.startswith(m.words) or p.endswith(m.words) for p in pieces)]
        assert found, rule.words
        said = {message.raises for message in found} - {""}
        assert rule.error.__name__ in said or not said, (rule.words, said)


def test_every_rule_is_of_an_operator_that_has_a_kernel():
    known = {name.partition(".")[0] for name, how in operators.table().items() if how in ("native", "composite")}
    asked = {name.removeprefix("aten::") for name in (*rules.RULES, *detours.RULES, *operators.WITHOUT_CPU_KERNEL)}
    assert not asked - known - {"convolution_overrideable"}, "no such operator, or none with a kernel"


# ---- what becomes of a call -----------------------------------------------------------------------------------------


def test_arguments_are_known_by_place_by_name_and_in_place():
    whole = torch.ones(2, dtype=torch.long)
    matrix = torch.ones(2, 2, dtype=torch.long)
    by_place = refusals.outcome("aten::addr", (matrix, whole, whole))
    assert by_place == refusals.outcome("aten::addr_", (matrix, whole), {"vec2": whole})
    assert by_place == refusals.outcome("aten::addr.out", (), {"self": matrix, "vec1": whole, "vec2": whole})
    assert by_place.error is RuntimeError
    assert refusals.outcome("aten::addr", (matrix, whole.float(), whole.float())) is None
    assert refusals.outcome("aten::add.Tensor", (matrix, matrix)) is None
    assert refusals.looks_at_arguments("aten::addr_.default")
    assert not refusals.looks_at_arguments("aten::add_.Tensor")


def test_a_dtype_is_that_to_which_the_arguments_are_promoted():
    whole, floats = torch.ones(2, dtype=torch.int32), torch.ones(2)
    assert refusals.outcome("aten::igamma", (whole, whole)).words == "igamma_mps not implemented for Int"
    assert refusals.outcome("aten::igamma", (whole, floats)) is None
    assert refusals.outcome("aten::gcd", (whole, whole)) is None
    assert refusals.outcome("aten::gcd", (whole, floats)).words == "gcd_mps not implemented for Float"


def test_only_what_works_in_place_needs_memory_in_order():
    table, index = torch.ones(4, 4, dtype=torch.long), torch.zeros(4, 4, dtype=torch.long)
    call = lambda operator, into: refusals.outcome(f"aten::{operator}.two", (into, 0, index, table, "amax"))
    assert call("scatter_reduce_", table.t()).words.endswith("currently requires contiguous self")
    assert call("scatter_reduce_", table) is call("scatter_reduce", table.t()) is None
    assert call("scatter_reduce_", table.t().float()) is None


@pytest.mark.parametrize("rows", [2**16, 2**16 + 1])
def test_a_product_may_be_too_large(rows):
    left, right = torch.empty(1, rows, 1, device="meta"), torch.empty(1, 1, 2**16, device="meta")
    assert (refusals.outcome("aten::bmm", (left, right)) is None) == (rows == 2**16)


def test_a_refusal_is_known_by_type_and_words():
    said = refusals.outcome("aten::igamma", (torch.ones(2, dtype=torch.int32), torch.ones(2, dtype=torch.int32)))
    assert refusals.is_refusal(said.error(said.words))
    assert not refusals.is_refusal(RuntimeError(said.words))
    assert not refusals.is_refusal(said.error(said.words[:-3]))
    assert not refusals.is_refusal(RuntimeError("size mismatch"))


# ---- PyTorch's own list ---------------------------------------------------------------------------------------------


def test_the_simulated_device_raises_where_pytorch_s_macs_do(tmp_path):
    """`tests/benchmarks/expected_on_macs.py` of all of float32 and a sample of each other entry, in one process.

    At least 99.5 % of float32 and 99 % of the other dtypes agree, and every difference has its reason, which stands in
    the table for people as well.
    """
    out = tmp_path / "outcomes.json"
    command = [sys.executable, "tests/benchmarks/expected_on_macs.py", "--quick", "--json", str(out)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, ["utils", os.environ.get("PYTHONPATH")]))}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr

    outcomes = json.loads(out.read_text())  # the list was looked at whole
    forward = [o for o in outcomes if o["of"] == "forward"]
    assert len({o["name"] for o in forward if o["dtype"] == "float32"}) > 600
    assert len({o["dtype"] for o in forward}) == 10
    assert sum(o["expected"] == "fails" for o in forward) > 150
    assert sum(o["expected"] == "skipped" for o in forward) < 150
    assert any(o["of"] == "gradients" for o in outcomes)

    printed = re.findall(r"^(\S+) \((?:forward|gradients); .*\): (.*)$", done.stdout, re.MULTILINE)
    page = (ROOT / "utils/metalsim/README.md").read_text()
    assert printed
    assert set(printed) == set(re.findall(r"^\| `([^`]+)` \|[^|]*\| (.*) \|$", page, re.MULTILINE))


# ---- the wheel ------------------------------------------------------------------------------------------------------

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


def test_messages_are_read_from_a_library():
    assert wheel.messages(library(FUNCTIONS)) == [
        wheel.Message("Pad.mm", "pad_half_mps", '"pad_half_of_mps" not implemented for \'', "NotImplementedError"),
        wheel.Message("Pad.mm", "pad_half_mps", "pad is not for half", "TypeError"),
        wheel.Message("Pad.mm", "pad_mps", "MPS pads at most ", "RuntimeError"),
    ]


def test_what_a_new_pytorch_says_is_told(tmp_path, monkeypatch, capsys):
    path, newer = tmp_path / "torch-9.0-cp311-macosx.whl", dict(FUNCTIONS)
    stored = tmp_path / "messages.json"
    monkeypatch.setattr(wheel, "STORED", stored)

    def run(functions, *options):
        with zipfile.ZipFile(path, "w") as file:
            file.writestr(wheel.LIBRARY, library(functions))
        return wheel.main([str(path), *options]), capsys.readouterr().out

    assert run(FUNCTIONS, "--write")[0] == 0
    assert json.loads(stored.read_text())["about"]["read from"] == "torch-9.0"
    assert run(FUNCTIONS) == (0, "3 messages, 0 changed\n")
    newer["__ZN2at6nativeL12pad_half_mpsE"] = ([MPS, "pad is not for half", "nor for bytes"], 0)
    code, said = run(newer)
    assert code == 1
    assert said.splitlines() == [
        '- Pad.mm: "pad_half_of_mps" not implemented for \'',
        "+ Pad.mm: nor for bytes",
        "! Pad.mm: raises RuntimeError, before TypeError: pad is not for half",
        "3 messages, 3 changed",
    ]


def test_other_files_are_refused(tmp_path, capsys):
    path = tmp_path / "torch-9.0-linux.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("torch/__init__.py", "")
    assert wheel.main([str(path)]) == 2
    assert "download torch for macosx_15_0_arm64" in capsys.readouterr().err
    for content in (b"\x7fELF" + bytes(60), b""):
        with pytest.raises(ValueError, match="not a Mach-O library for arm64"):
            wheel.messages(content)
    assert wheel.main([str(tmp_path / "nothing.whl")]) == 2
