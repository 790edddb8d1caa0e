"""What the collection must show, row by row, and the cells that show it: no row may be lost in a change of pages.

`tests/project/test_notebooks.py` runs each page once and passes its cells to `not_shown`.
"""

from __future__ import annotations

import re

from metallab import needs

ROWS = {
    "1 the MPS backend: device, copies, views, memory": {
        "02": "train moves-measure sharing memory"
    },
    "2 the talks' operators and the community's": {"02c": "talk-table confirm", "04b": "operator"},
    "2b networks that adopted MPS": {"02c": "known", "08": "film-run"},
    "3 profiler, log of operators, and a portable trace": {
        "03": "rrelu rrelu-table trace profiler-code log perfetto"
    },
    "4 the Softshrink network that falls back": {
        "03": "detour-network timeline-2023 cost",
        "04": "first",
    },
    "5 a custom operator in four steps": {
        "04b": "recipe objective-c objective-c-run network-code",
        "04": "template",
    },
    "6 automatic mixed precision": {
        "05": "recipe-run scaler-gradients brings-run right-quality-code",
        "05b": "bits-code lists yours-mps-code memory-count",
    },
    "7 events and allocator": {"02": "memory", "15": "message"},
    "8 times of whole networks, between machines": {
        "02b": "first-curve networks-measure",
        "12": "measure gpus",
    },
    "9 TensorFlow's remapper": {
        "06b": "idea-fused right-patterns right-table right-steps-code workaround-effect"
    },
    "10 TensorFlow's mixed precision policy": {"06": "build first-training brings-measure scale"},
    "11 plain pip install of TensorFlow and plug-in": {
        "00": "versions lessons",
        "06": "mac-plugin",
    },
    "12 JAX: grad, higher derivatives, vmap, jit": {
        "07": "recipe-code again loop-time",
        "07b": "race-measure",
    },
    "13 YOLOv5 live, CPU beside MPS": {"08": "film-run player-code live-run"},
    "14 MPSGraph: build, compile, executable": {"09b": "first-code graph-code"},
    "15 MPSGraphPackage: store once, load fast": {"09b": "first-code load-run"},
    "16 Core ML or ONNX to MPSGraphPackage": {"09b": "convert-code tool-run"},
    "17 GPU and Neural Engine; Core ML and ONNX": {"09b": "convert-code provider-ask right-code"},
    "18 int8": {
        "10": "recipe-call kept-code brings-code",
        "10b": "hand-scales both-judge fused-count moves-code mps-run",
    },
    "19 complex numbers, FFT up to four dimensions, filters": {
        "11": "first-code photo-try-code",
        "11b": "table-code table-show dimensions-code graph-run",
    },
    "20 conv3d, grid sampling, sort, cumulative": {
        "11b": "table-code uses-code box-code lens-code video-code wrong-down"
    },
    "21 the layer that is wrong": {"13": "find find-show program-print repair-train"},
    "22 MLX beside PyTorch and JAX": {"14": "mlx-code torch-code same-code measure-code jax-same"},
    "23 a small language model": {
        "15": "first-write fit-count cache bound",
        "15b": "cost-compare time same-mps-code",
        "15c": "gain-seeds which-code merge-run wrong-alpha wrong-start wrong-all qlora-train fit-table mlx-torch",
    },
    "24 Core AI: convert, refusals, state, small weights": {
        "09c": "first-code twelve-run refused-code lowering-code state-compare small-code"
    },
    "25 Metal puzzles, graded without a Mac": {
        "16": "wrong check-1 check-7",
        "16b": "wrong check-1 check-8",
        "16c": "wrong check-1 check-6",
    },
    "26 a project of one's own": {
        "17": "check-1 check-2 check-3 check-4 check-5 check-6 check-7 check-8 check-9 report-save"
    },
}
"""Each row of the scope, with the ids of the cells that show it, by the number of the page."""

ON_A_MAC = {"tool-run"}
"""Cells that only a Mac runs; elsewhere their output says so."""

MAY_LACK = "--needs objective-c++"
"""The one tool that a machine may lack: Linux needs g++ and ziglang for it, a Mac Xcode's command-line tools."""

_NEEDS_A_MAC = re.compile(r"not on this machine|(?:needs|only on) a Mac")


def cells_of(stem: str) -> dict[str, str]:
    """The row of each cell of a page that shows one."""
    number = stem.split("_")[0]
    return {name: row for row, pages in ROWS.items() for name in pages.get(number, "").split()}


def state(cell) -> str:
    """How an executed cell ended: ``passed``, ``needs a Mac``, ``lacks a tool``, ``not run``, ``failed``."""
    text = " ".join(
        str(output.get("text", "")) + str(output.get("data", "")) for output in cell.outputs
    )
    if cell.execution_count is None or any(
        output.output_type == "error" for output in cell.outputs
    ):
        return "failed"
    if any(needs.MIME in output.get("data", {}) for output in cell.outputs):
        return "lacks a tool" if MAY_LACK in cell.source else "not run"
    if re.match(r"%%isolated.* --full\b", cell.source):  # which fast mode leaves out
        return "not run"
    return "needs a Mac" if _NEEDS_A_MAC.search(text) else "passed"


def not_shown(stem: str, cells: dict) -> list[str]:
    """The rows that an executed page should show and does not; ``cells`` by their ids."""
    lost = []
    for name, row in cells_of(stem).items():
        good = {"passed", "lacks a tool", *(["needs a Mac"] if name in ON_A_MAC else [])}
        found = state(cells[name]) if name in cells else "not there"
        if found not in good:
            lost.append(f"{row}: {name} {found}")
    return lost
