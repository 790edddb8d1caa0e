"""A trace has everything that ran, once, with its true time and place."""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import sys
import types

import pytest
import torch
from torch import nn

from metallab import device, isolated
from metallab.pytorch import networks, trace


@pytest.fixture(scope="module")
def cpu():
    return device.cpu(1)


# ---- what is seen, on the CPU ---------------------------------------------------------------------------------------


def kernels(events, names):
    """The operators of a tree of events: as far down as they are among the names, else to the leaves."""
    for event in events:
        if event.name in names or not event.cpu_children:
            yield event.name
        else:
            yield from kernels(event.cpu_children, names)


def profiled(step, names):
    """Calls by PyTorch's own profiler, without what an operator that is named does inside."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        step()
    roots = [event for event in seen.events() if event.cpu_parent is None]
    return collections.Counter(name for name in kernels(roots, names) if name.startswith("aten::"))


def test_every_operator_is_seen_once(cpu, monkeypatch):
    """As PyTorch's profiler counts them: forward, backward and optimizer, and under autocast."""
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")
    plain = networks.talk_mlp(8).training_step()

    def cast():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return plain()

    for step in (plain, cast):
        with trace.record(on=cpu) as recorded:
            step()
        counted = collections.Counter(event.name.partition(".")[0] for event in recorded.events)
        assert counted == profiled(step, counted)
        assert counted["aten::softshrink"] == counted["aten::softshrink_backward"] == 3
    assert counted["aten::_to_copy"] > 0, "autocast casts"


def test_an_event_says_what_ran(cpu):
    """Its kind, dtype, shapes, bytes and module; also of lists, of ``out=``, and of tensors that are not dense."""
    inner = nn.Sequential(nn.Identity(), nn.Sequential(nn.Softshrink()))
    x, out = torch.ones(2, 3), torch.empty(2, 3)
    with trace.record(on=cpu) as recorded:
        x.t()
        inner(x)
        torch.cat([x, x])
        torch.add(x, x, out=out)
        out.add_(1)
        torch.arange(4)
        torch.eye(2).to_sparse() @ torch.ones(2, 2)
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]) * 2
    events = {event.name: event for event in recorded.events}
    told = {
        name: (event.kind, event.dtype, event.shapes, event.bytes, event.module)
        for name, event in events.items()
    }
    assert told["aten::t"] == ("view", "float32", ((2, 3),), 0, "")
    assert told["aten::softshrink"] == ("op", "float32", ((2, 3),), 48, "1.0")
    assert told["aten::cat"] == (
        "op",
        "float32",
        ((2, 3), (2, 3)),
        24 + 48,
        "",
    )  # x is one tensor, given twice
    assert told["aten::add.out"] == ("op", "float32", ((2, 3), (2, 3), (2, 3)), 48, "")
    assert told["aten::add_.Tensor"][3] == 24
    assert told["aten::arange"] == ("op", "int64", (), 32, "")
    assert told["aten::mm"][3] == 2 * 16, "of a sparse tensor no bytes are known"
    assert told["aten::mul.Tensor"][2:4] == (((),), 0)
    assert {event.device for event in recorded.events} == {"cpu"}


def test_a_duration_holds_the_work_of_its_operator_and_no_other(monkeypatch):
    """On a device whose work is done while Python runs on, with a clock of the test's own."""
    lazy = LazyDevice()
    monkeypatch.setattr(trace, "time", types.SimpleNamespace(perf_counter_ns=lambda: lazy.now))
    a, b = torch.ones(1), torch.ones(1)
    with trace.record(on=lazy) as recorded:
        lazy.now += 3_000_000
        lazy.queued = 50_000_000  # launched past the dispatcher
        LAUNCHES[:] = [lazy]
        torch.ops.metallab_test.launch(a)
        LAUNCHES.clear()
        a.add(b)
        lazy.queued = 9_000_000
    launch, add = recorded.events
    assert (launch.start, launch.duration) == pytest.approx((0.053, 0.007))
    assert (add.start, add.duration) == pytest.approx((0.060, 0))
    assert recorded.seconds == pytest.approx(0.069)


class LazyDevice:
    """A device with a clock of its own, in nanoseconds; waiting for it takes as long as its queued work."""

    label, kind, simulated, torch_device = "lazy device", "cpu", False, torch.device("cpu")

    def __init__(self):
        self.now, self.queued = 1_000, 0

    def synchronize(self, *results):
        self.now, self.queued = self.now + self.queued, 0

    def active(self):
        return contextlib.nullcontext()


LAUNCHES: list[LazyDevice] = []


@torch.library.custom_op("metallab_test::launch", mutates_args=())
def launch(x: torch.Tensor) -> torch.Tensor:
    """Queues 7 ms on each device in the list; computes with operators of PyTorch inside."""
    for lazy in LAUNCHES:
        lazy.queued += 7_000_000
    return (x + 1) * 2


def test_a_custom_operator_is_one_event(cpu):
    """Registered with torch.library it is seen; what it does inside is not."""
    with trace.record(on=cpu) as recorded:
        torch.ops.metallab_test.launch(torch.ones(2))
    assert [event.name for event in recorded.events] == ["aten::ones", "metallab_test::launch"]


def test_a_device_is_given_as_it_was_picked(cpu):
    for on in ("mps", torch.device("mps"), None):
        with pytest.raises(TypeError, match=r"device\.pick\("):
            trace.record(on=on).__enter__()
    with trace.record(on=cpu) as recorded:
        torch.ones(1)
    assert len(recorded.events) == 1, "nothing is left locked"


def test_blocks_that_record_do_not_lie_in_each_other(cpu):
    """The inner one raises; then, as after any exception, what ran is there and the next block records."""
    with pytest.raises(RuntimeError, match="recorded already"), trace.record(on=cpu) as outer:  # noqa: PT012
        torch.ones(1)
        trace.record(on=cpu).__enter__()
    assert [event.name for event in outer.events] == ["aten::ones"]
    assert outer.seconds >= outer.events[0].end > 0
    with trace.record(on=cpu) as again:
        pass
    assert again.events == []
    again.timeline()
    assert again.table().empty


def test_what_was_compiled_runs_uncompiled_while_it_is_traced(cpu):
    """Said in the module's text: PyTorch's compiler steps aside for a dispatch mode."""
    ran = []

    def backend(graph, inputs):
        return lambda *args: ran.append(1) or graph(*args)

    compiled = torch.compile(lambda x: x.sin() + 1, backend=backend)
    compiled(torch.ones(2))
    assert ran == [1]
    with trace.record(on=cpu) as recorded:
        compiled(torch.ones(2))
    assert ran == [1]
    assert [event.short for event in recorded.events] == ["ones", "sin", "add"]


# ---- what a trace says ----------------------------------------------------------------------------------------------


def made(events, **changes):
    """A trace of (kind, name, device, start, duration, more) in milliseconds."""
    defaults = {
        "label": "GPU X",
        "accelerator": "cuda",
        "simulated": False,
        "seconds": 0.010,
    } | changes
    listed = [
        trace.Event(
            kind, name, where, "float32", ((2, 3),), size, start / 1e3, duration / 1e3, **more
        )
        for kind, name, where, start, duration, size, more in events
    ]
    return lambda module: module.Trace(
        events=[module.Event(**vars(event)) for event in listed], **defaults
    )


DETOUR = made([
    ("op", "aten::addmm", "cuda", 0, 1, 100, {}),
    ("copy", "aten::_to_copy", "cuda", 2, 2, 24, {"direction": "to host"}),
    ("view", "aten::t", "cuda", 2.5, 1, 0, {}),
    ("op", "aten::softshrink", "cpu", 4, 2, 48, {"module": "Net.1"}),
    ("copy", "aten::_to_copy", "cuda", 6.5, 1, 24, {"direction": "to device"}),
    ("op", "aten::addmm", "cuda", 7, 1, 100, {"thread": 1}),
    ("fallback", "aten::mode", "cpu", 8.5, 1, 96, {"inferred": True}),
])  # fmt: skip


def test_the_accelerator_starves_while_copies_or_the_cpu_work():
    """Not while it works itself, and not while nothing at all goes on."""
    assert trace._without([(0, 5), (6, 9)], [(-1, 1), (2, 3), (4, 7), (8, 8.5)]) == [
        (1, 2),
        (3, 4),
        (7, 8),
        (8.5, 9),
    ]
    assert trace._without([(0, 1)], [(2, 3)]) == [(0, 1)]
    detour = DETOUR(trace)
    starving = [(round(1e3 * start, 6), round(1e3 * end, 6)) for start, end in detour.starving]
    assert starving == [(2, 6), (6.5, 7), (8.5, 9.5)]
    assert made([("op", "aten::addmm", "cpu", 0, 1, 8, {})], accelerator="")(trace).starving == []


def test_of_many_shapes_the_first_stand_in_a_row():
    with trace.record(on=device.cpu()) as recorded:
        torch.cat([torch.ones(n, 2) for n in range(1, 26)])
    shapes = next(row.shapes for row in recorded.table().itertuples() if "cat" in row.operator)
    assert shapes == "1x2, 2x2, 3x2, 4x2, ... (25)"


def test_the_table_adds_up():
    """A row for each operator, place and dtype, the longest first."""
    table = DETOUR(trace).table()
    assert table.calls.sum() == 7
    assert list(table["total [ms]"]) == sorted(table["total [ms]"], reverse=True)
    assert table["total [ms]"].sum() == pytest.approx(9)
    rows = {(row.kind, row.operator, row.where): row for row in table.itertuples()}
    products = rows["op", "aten::addmm", "cuda"]
    assert (products.calls, products.bytes, products.share, products.shapes) == (
        2,
        200,
        "20%",
        "2x3",
    )
    assert {where for kind, _, where in rows if kind == "copy"} == {"to host", "to device"}
    assert ("fallback (inferred)", "aten::mode", "cpu") in rows


def test_modules_with_the_most_time_come_first(cpu):
    first, last = nn.Linear(2, 1500), nn.Linear(1500, 1500)
    model, x = nn.Sequential(first, last), torch.ones(64, 2)
    with torch.no_grad(), trace.record(on=cpu) as recorded:
        model(x)
    (row,) = [row for row in recorded.rows() if row["operator"] == "aten::addmm"]
    assert row["called by"].startswith("1")


def test_its_sentence_says_where_the_time_went():
    """With shares on a GPU; on a CPU that there is none; of a simulation no time at all."""
    sentence = str(DETOUR(trace))
    assert ("20%" in sentence, "55%" in sentence) == (True, True), sentence
    assert "%" not in str(made([("op", "aten::addmm", "cpu", 0, 1, 8, {})], accelerator="")(trace))
    sentence = str(
        made([("op", "aten::addmm", "mps", 0, 1, 8, {})], accelerator="mps", simulated=True)(trace)
    )
    assert sentence.startswith("SIMULATED")
    assert not {"ms", "%"} & set(sentence.replace("%", " % ").split())


def test_the_timeline_has_a_lane_for_each_kind():
    """Every event of a lane is a bar of its length."""
    (axes,) = DETOUR(trace).timeline().axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "cuda",
        "copies",
        "CPU, fallbacks",
    ]
    bars = [path.get_extents() for drawn in axes.collections for path in drawn.get_paths()]
    assert sorted(round(bar.width, 6) for bar in bars) == [1, 1, 1, 1, 2, 2]
    alone = made([("op", "aten::mm", "cpu", 0, 1, 8, {})], accelerator="", simulated=True)(
        trace
    ).timeline()
    assert "SIMULATED" in alone.get_suptitle()


def test_perfetto_can_open_it(tmp_path):
    """By the Trace Event Format: complete events in microseconds, each lane a named thread, nothing left out."""
    recorded = DETOUR(trace)
    recorded.simulated = True
    written = json.loads(recorded.save_chrome(tmp_path / "new" / "trace.json").read_text())
    assert written["otherData"]["simulated"] is True
    events = [event for event in written["traceEvents"] if event["ph"] == "X"]
    assert len(events) == len(recorded.events)
    names = {
        e["tid"]: e["args"]["name"] for e in written["traceEvents"] if e["name"] == "thread_name"
    }
    assert sorted(names.values()) == [
        "CPU, fallbacks",
        "copies",
        "cuda",
        "cuda (thread 1)",
        "views (no work)",
    ]
    ends = collections.defaultdict(float)
    for event, original in zip(events, recorded.events, strict=True):
        assert event.keys() >= {"name", "cat", "ph", "pid", "tid", "ts", "dur", "args"}
        assert (event["name"], event["cat"]) == (original.name, original.kind)
        assert event["ts"] == pytest.approx(1e6 * original.start)
        assert event["dur"] == pytest.approx(1e6 * original.duration)
        assert event["ts"] >= ends[event["tid"]], (
            "events of a thread may not overlap, or Perfetto nests them"
        )
        ends[event["tid"]] = event["ts"] + event["dur"]


# ---- on an accelerator ----------------------------------------------------------------------------------------------

ON_THE_SIMULATED_GPU = """
import dataclasses
import metalsim
import torch
from torch import nn
from metallab import device
from metallab.pytorch import networks, trace

lab = device.pick()
mac = dataclasses.replace(lab, simulated=False)  # a Mac, which tells nothing of its fallbacks

def counted(run, on=lab):
    run()
    before = metalsim.counters()
    with trace.record(on=on) as recorded:
        run()
    return recorded, dataclasses.asdict(metalsim.counters() - before)

class Detour(nn.Module):
    def forward(self, x):
        return nn.functional.softshrink(x.cpu()).to(x.device)

def network(layer):
    made = networks.talk_mlp(16).to("mps")
    layers = [layer() if isinstance(each, nn.Softshrink) else each for each in made.model]
    return dataclasses.replace(made, model=nn.Sequential(*layers))

detour = counted(network(Detour).training_step())
rrelu = counted(network(nn.RReLU).training_step())
inferred = counted(network(nn.RReLU).training_step(), on=mac)

x, host = torch.ones(4, device="mps"), torch.zeros(4)
def moves():
    host.copy_(x)
    host.copy_(x)
    x.copy_(host)
    x.to(torch.float16).to("cpu", torch.float32)
    return x.sum().item()
moves = counted(moves)

def whole():  # in inference mode pinv is one operator; the SVD inside it is too large for its kernel once of two times
    with torch.inference_mode():
        for n in (9, 96):
            torch.linalg.pinv(torch.ones(n, n, device="mps"))
whole, as_on_a_mac = counted(whole), counted(whole, on=mac)

def picks():  # as a script does that is traced
    device.pick()
    x.mode(0)
picks = counted(picks)

try:
    with trace.record(on=device.cpu()):
        x + 1
except ValueError as error:
    stranger = str(error)
"""


@functools.cache
def simulated():
    names = ["detour", "rrelu", "inferred", "moves", "whole", "as_on_a_mac", "picks", "stranger"]
    return isolated.run(
        ON_THE_SIMULATED_GPU,
        results=names,
        device="mps",
        environment={"PYTORCH_ENABLE_MPS_FALLBACK": "1"},
        timeout=1800,
    )


on_the_simulated_gpu = pytest.mark.skipif(
    sys.platform == "darwin", reason="a Mac has a real Apple GPU"
)


@on_the_simulated_gpu
@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("detour", (12, 0)),
        ("rrelu", (0, 3)),
        ("moves", (5, 0)),
        ("whole", (0, 1)),
        ("picks", (0, 1)),
    ],  # a detour, in both passes
)
def test_copies_and_fallbacks_are_those_that_the_device_counts(case, expected):
    """Each once, with the bytes that crossed, forward and backward."""
    recorded, counters = simulated()[case]
    copies, fallbacks = recorded.having("copy"), recorded.having("fallback")
    for way in ("to host", "to device"):
        crossed, name = (
            [event.bytes for event in copies if event.direction == way],
            way.replace(" ", "_"),
        )
        assert (len(crossed), sum(crossed)) == (
            counters[f"copies_{name}"],
            counters[f"bytes_{name}"],
        )
    told = sum(event.bytes for event in fallbacks)
    assert (len(fallbacks), told) == (counters["fallbacks"], counters["fallback_bytes"])
    assert (len(copies), len(fallbacks)) == expected
    assert not any(event.inferred for event in recorded.events)


@on_the_simulated_gpu
def test_what_runs_on_the_cpu_starves_the_accelerator():
    detour, _ = simulated()["detour"]
    softshrinks = [event for event in detour.events if event.short.startswith("softshrink")]
    assert [(event.lane, event.device) for event in softshrinks] == [("CPU", "cpu")] * 6
    assert {event.lane for event in detour.events if event.short == "linear"} == {"mps"}
    assert [event.module for event in softshrinks[:3]] == [str(index) for index in (1, 3, 5)]
    assert len(detour.starving) >= 6
    assert {event.bytes for event in detour.having("view")} == {0}
    assert detour.simulated


@on_the_simulated_gpu
def test_on_a_mac_fallbacks_are_deduced_and_marked():
    """With the bytes that the device really copies: there, and back what was written or made."""
    told, _ = simulated()["rrelu"]
    deduced, counters = simulated()["inferred"]
    fallbacks = deduced.having("fallback")
    assert all(event.inferred for event in fallbacks)
    assert [(e.name, e.bytes) for e in fallbacks] == [
        (e.name, e.bytes) for e in told.having("fallback")
    ]
    assert sum(event.bytes for event in fallbacks) == counters["fallback_bytes"] > 0
    assert len(deduced.events) == len(told.events)


@on_the_simulated_gpu
def test_on_a_mac_a_call_beyond_a_kernel_s_limit_is_deduced():
    """Only that one of the two; what it copies is pinv's and not the SVD's, which the mode does not see."""
    deduced, _ = simulated()["as_on_a_mac"]
    assert [(e.name, e.inferred, e.shapes[0]) for e in deduced.having("fallback")] == [
        ("aten::linalg_pinv.atol_rtol_tensor", True, (96, 96))
    ]


@on_the_simulated_gpu
def test_another_device_than_the_one_that_is_waited_for_raises():
    assert "mps" in simulated()["stranger"]
