"""A trace has everything that ran, once, with its true time and place."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
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


STEP = networks.talk_mlp(8).training_step()


def cast_step():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return STEP()


@pytest.mark.parametrize("step", [STEP, cast_step], ids=["float32", "autocast"])
def test_every_operator_is_seen_once(step, cpu, monkeypatch):
    """As PyTorch's profiler counts them: forward, backward and optimizer."""
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")
    with trace.record(on=cpu) as recorded:
        step()

    counted = collections.Counter(event.name.partition(".")[0] for event in recorded.events)
    assert counted == profiled(step, counted)
    assert counted["aten::softshrink"] == 3
    assert counted["aten::softshrink_backward"] == 3


def test_casts_of_autocast_are_seen(cpu):
    with trace.record(on=cpu) as recorded:
        cast_step()
    assert "aten::_to_copy" in [event.name for event in recorded.events]


X, OUT = torch.ones(2, 3), torch.empty(2, 3)
SPARSE = torch.eye(2).to_sparse()

RUN = {
    "a view": (lambda: X.t(), "aten::t", "view", "float32", ((2, 3),), 0),
    "an operator": (lambda: nn.Softshrink()(X), "aten::softshrink", "op", "float32", ((2, 3),), 48),
    # x is one tensor, given twice
    "of a list": (lambda: torch.cat([X, X]), "aten::cat", "op", "float32", ((2, 3),) * 2, 24 + 48),
    "with out=": (lambda: torch.add(X, X, out=OUT), "aten::add.out", "op", "float32", ((2, 3),) * 3, 48),
    "in place": (lambda: OUT.add_(1), "aten::add_.Tensor", "op", "float32", ((2, 3),), 24),
    "without inputs": (lambda: torch.arange(4), "aten::arange", "op", "int64", (), 32),
    # of a sparse tensor no bytes are known
    "sparse": (lambda: SPARSE @ torch.ones(2, 2), "aten::mm", "op", "float32", ((2, 2),) * 2, 2 * 16),
    "nested": (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]) * 2,
        "aten::mul.Tensor", "op", "float32", ((),), 0,
    ),
}  # fmt: skip
"""What runs, and the name, kind, dtype, shapes and bytes of its event."""


@pytest.mark.parametrize(("work", "name", "kind", "dtype", "shapes", "size"), RUN.values(), ids=RUN)
def test_an_event_says_what_ran(work, name, kind, dtype, shapes, size, cpu):
    with trace.record(on=cpu) as recorded:
        work()

    event = next(event for event in recorded.events if event.name == name)
    assert event.kind == kind
    assert event.dtype == dtype
    assert event.shapes == shapes
    assert event.bytes == size
    assert event.device == "cpu"


def test_an_event_says_which_module_ran(cpu):
    model = nn.Sequential(nn.Identity(), nn.Sequential(nn.Softshrink()))
    with trace.record(on=cpu) as recorded:
        X.t()
        model(X)
    assert [event.module for event in recorded.events] == ["", "1.0"]


@pytest.fixture
def lazy_trace(monkeypatch):
    """A trace of two operators, on a device whose work is done while Python runs on, with a clock of its own.

    3 ms are Python's own, 50 ms were launched past the dispatcher before the first operator, which takes 7 ms, and
    9 ms after the second one.
    """
    lazy = LazyDevice()
    monkeypatch.setattr(trace, "time", types.SimpleNamespace(perf_counter_ns=lambda: lazy.now))
    a, b = torch.ones(1), torch.ones(1)

    with trace.record(on=lazy) as recorded:
        lazy.now += 3_000_000
        lazy.queued = 50_000_000
        LAUNCHES[:] = [lazy]  # on which the operator queues 7 ms
        torch.ops.metallab_test.launch(a)
        LAUNCHES.clear()
        a.add(b)
        lazy.queued = 9_000_000
    return recorded


def test_a_duration_holds_the_work_of_its_operator_and_no_other(lazy_trace):
    launch, add = lazy_trace.events
    assert launch.start == pytest.approx(0.053)
    assert launch.duration == pytest.approx(0.007)
    assert add.start == pytest.approx(0.060)
    assert add.duration == pytest.approx(0)


def test_a_trace_lasts_until_all_work_is_done(lazy_trace):
    assert lazy_trace.seconds == pytest.approx(0.069)


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


@pytest.mark.parametrize("on", ["mps", torch.device("mps"), None], ids=str)
def test_a_device_is_given_as_it_was_picked(on):
    with pytest.raises(TypeError, match=r"device\.pick\("):
        trace.record(on=on).__enter__()


def test_after_a_device_was_refused_the_next_block_records(cpu):
    with pytest.raises(TypeError):
        trace.record(on=None).__enter__()
    with trace.record(on=cpu) as recorded:
        torch.ones(1)
    assert len(recorded.events) == 1


@pytest.fixture
def interrupted(cpu):
    """The trace of a block in which a second one was begun, which raises."""
    with pytest.raises(RuntimeError, match="recorded already"), trace.record(on=cpu) as outer:  # noqa: PT012
        torch.ones(1)
        trace.record(on=cpu).__enter__()
    return outer


def test_what_ran_before_an_exception_is_in_the_trace(interrupted):
    assert [event.name for event in interrupted.events] == ["aten::ones"]
    assert interrupted.seconds >= interrupted.events[0].end > 0


@pytest.mark.usefixtures("interrupted")
def test_after_an_exception_the_next_block_records(cpu):
    with trace.record(on=cpu) as again:
        torch.ones(1)
    assert [event.name for event in again.events] == ["aten::ones"]


def test_a_trace_of_nothing_is_shown(cpu):
    with trace.record(on=cpu) as nothing:
        pass
    assert nothing.events == []
    assert nothing.table().empty
    assert nothing.timeline().axes


def test_what_was_compiled_runs_uncompiled_while_it_is_traced(cpu):
    """`metallab.pytorch.trace` says so: while a dispatch mode is on, PyTorch's compiler calls the function itself."""
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
    """Return a function that makes a trace of some events, with the classes of a module that it is given.

    An event is a tuple: kind, name, device, start and duration in milliseconds, bytes, and a dict of other fields.
    ``changes`` are fields of the trace.
    """
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


@pytest.mark.parametrize(
    ("spans", "others", "left"),
    [
        pytest.param(
            [(0, 5), (6, 9)],
            [(-1, 1), (2, 3), (4, 7), (8, 8.5)],
            [(1, 2), (3, 4), (7, 8), (8.5, 9)],
            id="overlapping",
        ),
        pytest.param([(0, 1)], [(2, 3)], [(0, 1)], id="apart"),
    ],
)
def test_spans_are_cut_where_others_lie(spans, others, left):
    assert trace._without(spans, others) == left


def test_the_accelerator_starves_while_copies_or_the_cpu_work():
    """Not while it works itself, and not while nothing at all goes on."""
    detour = DETOUR(trace)
    starving = [(round(1e3 * start, 6), round(1e3 * end, 6)) for start, end in detour.starving]
    assert starving == [(2, 6), (6.5, 7), (8.5, 9.5)]


def test_one_of_a_kind_is_told_in_the_singular():
    events = [
        ("op", "aten::mm", "cuda", 0, 1, 8, {}),
        ("copy", "aten::_to_copy", "cuda", 1, 1, 8, {"direction": "to host"}),
    ]
    sentence = str(made(events)(trace))
    assert "1 operator, 0 views, 1 copy, 0 fallbacks" in sentence


def test_without_an_accelerator_nothing_starves():
    assert made([("op", "aten::addmm", "cpu", 0, 1, 8, {})], accelerator="")(trace).starving == []


def test_of_many_shapes_the_first_stand_in_a_row():
    with trace.record(on=device.cpu()) as recorded:
        torch.cat([torch.ones(n, 2) for n in range(1, 26)])
    shapes = next(row.shapes for row in recorded.table().itertuples() if "cat" in row.operator)
    assert shapes == "1x2, 2x2, 3x2, 4x2, ... (25)"


def test_the_table_adds_up_with_the_longest_first():
    table = DETOUR(trace).table()
    assert table.calls.sum() == 7
    assert table["total [ms]"].sum() == pytest.approx(9)
    assert list(table["total [ms]"]) == sorted(table["total [ms]"], reverse=True)


def test_the_table_has_a_row_for_each_operator_place_and_dtype():
    table = DETOUR(trace).table()
    (row,) = [row for row in table.itertuples() if row.operator == "aten::addmm"]
    assert row.calls == 2
    assert row.bytes == 200
    assert row.share == "20%"
    assert row.shapes == "2x3"


def test_the_table_tells_copies_by_their_direction_and_fallbacks_that_are_inferred():
    rows = {(row.kind, row.where) for row in DETOUR(trace).table().itertuples()}
    assert {where for kind, where in rows if kind == "copy"} == {"to host", "to device"}
    assert ("fallback (inferred)", "cpu") in rows


def test_modules_with_the_most_time_come_first(cpu):
    first, last = nn.Linear(2, 1500), nn.Linear(1500, 1500)
    model, x = nn.Sequential(first, last), torch.ones(64, 2)

    with torch.no_grad(), trace.record(on=cpu) as recorded:
        model(x)

    (row,) = [row for row in recorded.rows() if row["operator"] == "aten::addmm"]
    assert row["called by"].startswith("1")


def test_on_a_gpu_the_sentence_has_the_shares_of_the_time():
    sentence = str(DETOUR(trace))
    assert "20%" in sentence
    assert "55%" in sentence


def test_on_a_cpu_the_sentence_has_no_share_of_a_gpu():
    assert "%" not in str(made([("op", "aten::addmm", "cpu", 0, 1, 8, {})], accelerator="")(trace))


def test_of_a_simulation_the_sentence_has_no_time():
    events = [("op", "aten::addmm", "mps", 0, 1, 8, {})]
    sentence = str(made(events, accelerator="mps", simulated=True)(trace))
    assert sentence.startswith("SIMULATED")
    assert not {"ms", "%"} & set(sentence.replace("%", " % ").split())


def test_the_timeline_has_a_lane_for_each_kind():
    (axes,) = DETOUR(trace).timeline().axes
    lanes = [label.get_text() for label in axes.get_yticklabels()]
    assert lanes == ["cuda", "copies", "CPU, fallbacks"]


def test_every_event_of_a_lane_is_a_bar_of_its_length():
    (axes,) = DETOUR(trace).timeline().axes
    bars = [path.get_extents() for drawn in axes.collections for path in drawn.get_paths()]
    assert sorted(round(bar.width, 6) for bar in bars) == [1, 1, 1, 1, 2, 2]


def test_a_simulated_timeline_says_so():
    events = [("op", "aten::mm", "cpu", 0, 1, 8, {})]
    timeline = made(events, accelerator="", simulated=True)(trace).timeline()
    assert "SIMULATED" in timeline.get_suptitle()


@pytest.fixture
def for_perfetto(tmp_path):
    """A trace and the file that it is saved as, in the Trace Event Format, in a folder that is not there."""
    recorded = DETOUR(trace)
    recorded.simulated = True
    path = recorded.save_chrome(tmp_path / "new" / "trace.json")
    return recorded, json.loads(path.read_text())


def complete_events(written) -> list[dict]:
    return [event for event in written["traceEvents"] if event["ph"] == "X"]


def test_a_file_for_perfetto_says_that_it_is_simulated(for_perfetto):
    _, written = for_perfetto
    assert written["otherData"]["simulated"] is True


def test_in_a_file_for_perfetto_each_lane_is_a_named_thread(for_perfetto):
    _, written = for_perfetto
    names = [e["args"]["name"] for e in written["traceEvents"] if e["name"] == "thread_name"]
    assert sorted(names) == [
        "CPU, fallbacks",
        "copies",
        "cuda",
        "cuda (thread 1)",
        "views (no work)",
    ]


def test_a_file_for_perfetto_has_each_event_in_microseconds(for_perfetto):
    recorded, written = for_perfetto
    told = [(each["name"], each["cat"]) for each in complete_events(written)]
    times = [(each["ts"], each["dur"]) for each in complete_events(written)]

    assert told == [(each.name, each.kind) for each in recorded.events]
    assert times == [
        pytest.approx((1e6 * each.start, 1e6 * each.duration)) for each in recorded.events
    ]


def test_an_event_for_perfetto_has_the_fields_of_the_format(for_perfetto):
    _, written = for_perfetto
    fields = {"name", "cat", "ph", "pid", "tid", "ts", "dur", "args"}
    assert all(each.keys() >= fields for each in complete_events(written))


def test_events_of_a_thread_do_not_overlap_for_perfetto_would_nest_them(for_perfetto):
    _, written = for_perfetto
    threads = itertools.groupby(
        sorted(complete_events(written), key=lambda each: each["tid"]), lambda each: each["tid"]
    )
    neighbours = [pair for _, events in threads for pair in itertools.pairwise(events)]

    assert neighbours
    assert all(first["ts"] + first["dur"] <= second["ts"] for first, second in neighbours)


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

def in_place():
    nn.functional.rrelu(torch.ones(4, device="mps"), training=True, inplace=True)
in_place, in_place_inferred = counted(in_place), counted(in_place, on=mac)

def picks():  # as a script does that is traced
    device.pick()
    x.mode(0)
picks = counted(picks)

table, marks = torch.ones(4, 2, device="mps"), torch.tensor([True, False, True, True])
rows, there = torch.tensor([0, 2]), marks.to("mps")
hidden = {
    "an index on the CPU": lambda: table[rows],
    "a mask on the CPU": lambda: table[marks],
    "an index that is written to": lambda: table.index_put_((rows,), torch.zeros((), device="mps")),
    "a list": lambda: table[[0, 1]],
    "a mask on the GPU": lambda: table[there],
    "numbers from Python": lambda: torch.tensor([1.0, 2.0], device="mps"),
    "nonzero": lambda: table.nonzero(),
    "equal": lambda: torch.equal(table, table),
    "an index on the GPU": lambda: table[there.long()],
}
copies_inside = {}
for name, run in hidden.items():
    with trace.record(on=lab) as recorded:
        run()
    copies_inside[name] = [
        (event.direction, event.bytes, event.inferred, event.duration)
        for event in recorded.having("copy")
    ]
    if name == "a mask on the GPU":
        kinds_of_operators = [event.kind for event in recorded.events if event.short == "index"]

try:
    with trace.record(on=device.cpu()):
        x + 1
except ValueError as error:
    stranger = str(error)
"""


@functools.cache
def simulated():
    names = ["detour", "rrelu", "inferred", "moves", "whole", "as_on_a_mac", "picks", "stranger"]
    names += ["in_place", "in_place_inferred", "copies_inside", "kinds_of_operators"]
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


CASES = pytest.mark.parametrize("case", ["detour", "rrelu", "moves", "whole", "picks"])


@on_the_simulated_gpu
@pytest.mark.parametrize("way", ["to host", "to device"])
@CASES
def test_copies_are_those_that_the_device_counts(case, way):
    """Each once, with the bytes that crossed, forward and backward."""
    recorded, counters = simulated()[case]
    crossed = [event.bytes for event in recorded.having("copy") if event.direction == way]
    name = way.replace(" ", "_")
    assert len(crossed) == counters[f"copies_{name}"]
    assert sum(crossed) == counters[f"bytes_{name}"]


@on_the_simulated_gpu
@CASES
def test_fallbacks_are_those_that_the_device_counts(case):
    recorded, counters = simulated()[case]
    fallbacks = recorded.having("fallback")
    assert len(fallbacks) == counters["fallbacks"]
    assert sum(event.bytes for event in fallbacks) == counters["fallback_bytes"]


@on_the_simulated_gpu
@pytest.mark.parametrize(
    ("case", "copies", "fallbacks"),
    [
        pytest.param("detour", 12, 0, id="three layers by way of the CPU, in both passes"),
        pytest.param("rrelu", 0, 3, id="three layers that fall back"),
        pytest.param("moves", 5, 0, id="copies of all kinds"),
        pytest.param("whole", 0, 1, id="one of two calls is beyond a limit"),
        pytest.param("picks", 0, 1, id="a device is picked within the trace"),
    ],
)
def test_a_copy_is_no_fallback(case, copies, fallbacks):
    recorded, _ = simulated()[case]
    assert len(recorded.having("copy")) == copies
    assert len(recorded.having("fallback")) == fallbacks


@on_the_simulated_gpu
@CASES
def test_where_the_device_tells_its_fallbacks_none_is_inferred(case):
    recorded, _ = simulated()[case]
    assert not any(event.inferred for event in recorded.events)


@on_the_simulated_gpu
@pytest.mark.parametrize(
    ("case", "crossed"),
    [
        pytest.param("an index on the CPU", [("to device", 16)], id="an index on the CPU"),
        pytest.param("a mask on the CPU", [("to device", 24)], id="a mask on the CPU"),
        pytest.param("an index that is written to", [("to device", 16)], id="written"),
        pytest.param("a list", [("to device", 16)], id="a list"),
        pytest.param("a mask on the GPU", [("to host", 8)], id="a mask on the GPU"),
        pytest.param("numbers from Python", [("to device", 8)], id="numbers from Python"),
        pytest.param("nonzero", [("to host", 8)], id="nonzero"),
        pytest.param("equal", [("to host", 1)], id="equal"),
        pytest.param("an index on the GPU", [], id="an index on the GPU"),
    ],
)
def test_copies_inside_of_an_operator_are_deduced(case, crossed):
    copies = simulated()["copies_inside"][case]
    assert copies == [(direction, size, True, 0.0) for direction, size in crossed]


@on_the_simulated_gpu
def test_beside_a_copy_inside_its_operator_stands_as_such():
    assert simulated()["kinds_of_operators"] == ["op", "copy"]


@on_the_simulated_gpu
def test_what_runs_on_the_cpu_stands_in_its_lane_with_its_modules():
    detour, _ = simulated()["detour"]
    softshrinks = [event for event in detour.events if event.short.startswith("softshrink")]
    assert [(event.lane, event.device) for event in softshrinks] == [("CPU", "cpu")] * 6
    assert [event.module for event in softshrinks[:3]] == ["1", "3", "5"]
    assert {event.lane for event in detour.events if event.short == "linear"} == {"mps"}


@on_the_simulated_gpu
def test_what_runs_on_the_cpu_starves_the_accelerator():
    detour, _ = simulated()["detour"]
    assert len(detour.starving) >= 6


@on_the_simulated_gpu
def test_a_view_copies_nothing():
    detour, _ = simulated()["detour"]
    assert {event.bytes for event in detour.having("view")} == {0}


@on_the_simulated_gpu
def test_a_trace_of_the_simulated_gpu_says_so():
    detour, _ = simulated()["detour"]
    assert detour.simulated


@on_the_simulated_gpu
def test_on_a_mac_fallbacks_are_deduced_and_marked():
    told, _ = simulated()["rrelu"]
    deduced, _ = simulated()["inferred"]
    fallbacks = deduced.having("fallback")
    assert [each.name for each in fallbacks] == [each.name for each in told.having("fallback")]
    assert all(event.inferred for event in fallbacks)
    assert len(deduced.events) == len(told.events)


@on_the_simulated_gpu
@pytest.mark.parametrize(
    ("case", "case_inferred"),
    [
        pytest.param("rrelu", "inferred", id="a training step"),
        pytest.param("in_place", "in_place_inferred", id="in place"),
    ],
)
def test_a_fallback_that_is_deduced_has_the_bytes_that_the_device_copies(case, case_inferred):
    """There, and back what was written or made; what is written and returned goes back once."""
    told, _ = simulated()[case]
    deduced, counters = simulated()[case_inferred]
    copied = [event.bytes for event in deduced.having("fallback")]
    assert copied == [event.bytes for event in told.having("fallback")]
    assert sum(copied) == counters["fallback_bytes"] > 0


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
