"""From which size on a GPU wins: one lucky size does not count, nor one of which nothing may be said."""

from __future__ import annotations

import dataclasses
import types

import pytest
import torch
from results_files import honest
from test_findings import CPU, GPU, record
from test_findings import baseline as on_cpu

from metallab import allowance, device, records, timing
from metallab.pytorch import crossover

BUSY = timing.Withheld(timing.Reason.BUSY_MACHINE, "close them")
DIFFER = timing.Withheld(timing.Reason.OUTPUTS_DIFFER, "by 1")
DRIFTED = timing.Withheld(timing.Reason.DRIFTED, "by 1")
LUCKY = (  # a win at 2; at 8 nothing may be said
    ("slower", "faster", "slower", BUSY, "faster"),
    ("slower", "faster", DIFFER, BUSY, "faster"),
)


def curve(module, outcomes, gpu="cuda", **changes):
    """Return a curve, of the class that a module has, at the sizes 1, 2, 4, ..., with an outcome at each.

    An outcome is a verdict, or what a speed-up is withheld for. Where ``gpu`` is empty only the CPU was measured.
    ``changes`` are other fields of the curve.
    """
    measured = record(
        gpu, 2.0
    ).measurement  # the same at each size: only the answers tell which is faster
    measurements = {
        "CPU, 1 thread": measured,
        "CPU, 16 threads": dataclasses.replace(measured, device=CPU),
    }
    if gpu:
        measurements[gpu] = measured
    intervals = {"faster": (2.0, 2.0), "slower": (0.5, 0.5), "inconclusive": (0.5, 2.0)}
    told = {
        verdict: timing.Answer(gpu, timing.Ratio(gpu, "", 1.0, low, high, 9))
        for verdict, (low, high) in intervals.items()
    }
    by_size = {
        2**k: told.get(outcome) or timing.Answer(gpu, outcome) for k, outcome in enumerate(outcomes)
    }
    times = {name: dict.fromkeys(by_size, measured) for name, measured in measurements.items()}

    return module.Curve("work", "CPU, 16 threads", times, by_size, **changes)


@pytest.mark.parametrize(
    ("outcomes", "size"),
    [
        pytest.param(("slower", "faster", "slower", BUSY, "faster"), 16, id="a win at 2 was luck"),
        pytest.param(("slower", "faster", DIFFER, BUSY, "faster"), 16, id="outputs differ behind"),
        pytest.param(("faster", BUSY), 1, id="the larger size is not known"),
        pytest.param(("slower", "faster", DIFFER), None, id="outputs differ at the largest"),
        pytest.param(("faster", "slower"), None, id="not at the largest"),
    ],
)
def test_the_gpu_wins_from_a_size_on_that_is_not_luck(outcomes, size):
    assert curve(crossover, outcomes).crossover == size


def test_without_a_gpu_the_crossover_is_where_all_threads_begin_to_win_over_one():
    assert curve(crossover, ("faster", "slower"), gpu="").crossover == 2


@pytest.mark.parametrize(
    ("outcomes", "sentence"),
    [
        pytest.param(("slower", "faster", DRIFTED, "faster"), "wins from n = 2 on (", id="from 2"),
        pytest.param(
            ("faster", "faster", "inconclusive"),
            "not shown to win from any size on, of 1 to 4",
            id="nowhere",
        ),
        pytest.param(
            (DRIFTED, "faster", "faster"),
            "wins at every size that counts, 2 to 4 (",
            id="everywhere",
        ),
    ],
)
def test_a_curve_says_from_which_size_on_the_gpu_wins(outcomes, sentence):
    assert sentence in str(curve(crossover, outcomes))


def test_a_curve_names_the_sizes_of_which_it_says_nothing():
    gap = curve(crossover, ("slower", "faster", DRIFTED, "faster"), left_out="Left out: n = 16.")
    assert "n = 4). Left" in str(gap)


def test_a_stored_curve_gives_the_reason_of_a_size_that_does_not_count():
    assert BUSY.sentence in str(curve(crossover, (BUSY,), stored=True))


def legend_of(drawn) -> list[str]:
    """The texts of the legend of a figure's first axes."""
    return [text.get_text() for text in drawn.axes[0].get_legend().get_texts()]


def test_a_curve_is_drawn_with_its_crossover():
    drawn = curve(crossover, ("slower", "faster")).draw()
    assert legend_of(drawn) == [
        "CPU, 1 thread",
        "CPU, 16 threads",
        GPU,
        "the GPU wins from n = 2 on",
    ]


def test_the_smallest_size_is_drawn_as_no_crossover():
    assert len(legend_of(curve(crossover, ("faster", "faster")).draw())) == 3


def test_times_without_a_speed_up_are_drawn_and_marked():
    disturbed = ("slower", "faster", BUSY, "faster")
    axes = curve(crossover, disturbed, stored=True).draw().axes[0]
    assert [len(line.get_xdata()) for line in axes.lines[:3]] == [4, 4, 4]
    assert "no speed-up is given here" in axes.get_legend_handles_labels()[1]


def test_the_title_of_a_stored_curve_names_the_sizes_that_do_not_count():
    assert "n = 1)" in curve(crossover, (DRIFTED,), stored=True).draw().get_suptitle()


LESSON = "13_predict_a_calls_time"


def points(work, size, speed_up, **changes):
    """What page 13 measured of some work at one size: the CPU, and a GPU with a speed-up."""
    about = {"lesson": LESSON, "series": f"{work}, n", "size": timing.Size(size)} | changes
    name = f"{work}, n = {size}"
    gpu = record("cuda", speed_up, name, **about)
    return [on_cpu(name, **about), slower(gpu) if speed_up < 1 else gpu]


@pytest.fixture
def stored_curve(tmp_path, monkeypatch):
    """A curve whose size 32 was measured on a busy machine, and 8 twice: first on a busy one, then on a quiet one.

    Its file holds another curve as well.
    """
    first = points("work", 8, 0.5, run=1, others=3.0)  # in second 1
    later = [
        *points("work", 8, 0.5, others=0.0),
        *points("work", 16, 3.0, others=0.0),
        *points("work", 32, 3.0, others=5.0),
        *(point for size in (8, 16, 32) for point in points("other", size, 3.0)),
    ]
    # in second 9 in place of 0, so that they are another process's, and the later one
    later = [dataclasses.replace(one, taken=one.taken.replace(":00+", ":09+")) for one in later]
    stored = records.write(tmp_path / "gpu.json", honest([*first, *later]))
    monkeypatch.setattr(crossover, "STORED", stored)
    return crossover.read_stored("work")


def test_a_stored_curve_has_its_crossover_and_its_device(stored_curve):
    assert stored_curve.stored
    assert stored_curve.crossover == 16
    assert stored_curve.device("cuda") == GPU


def test_a_stored_curve_shows_times_also_where_it_withholds_a_speed_up(stored_curve):
    assert sorted(stored_curve.times["cuda"]) == [8, 16, 32]
    assert list(stored_curve.sizes_withheld) == [32]


def test_of_what_was_stored_twice_a_curve_has_what_may_be_believed(stored_curve):
    assert stored_curve.times["cuda"][8].others == 0


@pytest.mark.usefixtures("stored_curve")
def test_curves_that_are_stored_are_named_where_another_is_asked_for():
    with pytest.raises(ValueError, match=r"has no curve of 'sorting': ask for 'matrix product'"):
        crossover.read_stored("sorting")


def point_of_curve(lesson, size):
    """What a page measured of some work at one size: the CPU and a GPU."""
    told = {"lesson": lesson, "series": "work, n", "size": timing.Size(size)}
    return [on_cpu(f"work, n = {size}", **told), record("cuda", 3.0, f"work, n = {size}", **told)]


@pytest.mark.parametrize(
    ("sizes", "shown"),
    [
        pytest.param({"13_predict_a_calls_time": 8, "64_compare_machines": 16}, [8], id="both"),
        pytest.param({"64_compare_machines": 16}, [16], id="the second alone"),
    ],
)
def test_a_stored_curve_is_that_of_the_first_page_that_measured_it(
    sizes, shown, tmp_path, monkeypatch
):
    made = [one for lesson, size in sizes.items() for one in point_of_curve(lesson, size)]
    stored = records.write(tmp_path / "gpu.json", honest(made))
    monkeypatch.setattr(crossover, "STORED", stored)
    assert sorted(crossover.read_stored("work").times["cuda"]) == shown


def slower(one):
    """A record whose verdict fits a speed-up below 1."""
    compared = one.comparison
    if compared.outcome == "baseline" or compared.median > 1:
        return one
    return dataclasses.replace(one, comparison=dataclasses.replace(compared, outcome="slower"))


def draw(n, device):
    """Work that is a draw of random numbers."""
    drawn = torch.randn(4).to(device)
    return lambda: drawn * 1


@pytest.fixture
def clock(monkeypatch):
    """The seconds of a clock that stands still, in fast mode; cuDNN's settings are put back.

    Not by assignment, which another test may have forbidden for the process.
    """
    now, timed = [0.0], allowance.Allowance
    monkeypatch.setenv("METALLAB_MODE", "fast")
    monkeypatch.setattr(
        crossover.allowance, "Allowance", lambda seconds: timed(seconds, lambda: now[0])
    )
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        yield now


def test_sizes_are_measured_as_long_as_there_is_time(clock):
    def work(n, device):
        clock[0] += n / 2  # once for each of two devices
        return draw(n, device)

    measured = crossover.measure("work", work, [1, 2, 4, 8], on=device.cpu(), seconds=8)

    assert list(measured.times["CPU, 1 thread"]) == [1, 2, 4]
    assert [one.name for one in measured.comparisons] == [f"work, n = {n}" for n in (1, 2, 4)]
    assert "n = 8 (the last one, 4, took 4 s)" in measured.left_out


@pytest.mark.usefixtures("clock")
def test_a_size_whose_results_differ_has_no_answer():
    made = []

    def work(n, device):
        made.append(n)
        is_wrong = n == 2 and len(made) % 2
        return lambda: torch.ones(4) + is_wrong

    measured = crossover.measure("work", work, [1, 2], on=device.cpu())

    assert measured.answers[1].reason == "fast mode"
    assert measured.answers[2].reason == "outputs differ"


@pytest.mark.usefixtures("clock")
def test_each_device_gets_the_same_numbers_and_another_size_gets_others():
    drawn = []

    def work(n, device):
        drawn.append(torch.randn(4).tolist())
        return draw(n, device)

    crossover.measure("work", work, [1, 2], on=device.cpu())

    assert drawn[0] == drawn[1]
    assert drawn[1] != drawn[2]


@pytest.mark.usefixtures("clock")
def test_a_curve_is_measured_without_tf32_which_is_allowed_again_afterwards():
    allowed = []

    def work(n, device):
        allowed.append(torch.backends.cudnn.allow_tf32)
        return draw(n, device)

    crossover.measure("work", work, [1, 2], on=device.cpu())

    assert allowed
    assert not any(allowed)
    assert torch.backends.cudnn.allow_tf32


@pytest.mark.usefixtures("clock")
def test_the_callers_random_numbers_stay_as_they_are_while_a_curve_is_measured():
    state = torch.random.get_rng_state()
    crossover.measure("work", draw, [1], on=device.cpu())
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_curve_without_sizes_is_refused():
    with pytest.raises(ValueError, match="give sizes, such as"):
        crossover.measure("work", draw, [], on=device.cpu())


def test_what_lies_between_the_ends_of_a_curve_withholds_no_prediction():
    assert curve(crossover, ("slower", BUSY, "faster")).withheld is None


def test_an_end_that_is_withheld_predicts_nothing():
    assert curve(crossover, ("slower", DRIFTED)).withheld == DRIFTED


def test_an_end_that_was_measured_on_a_busy_machine_predicts_nothing():
    sound = curve(crossover, ("slower", BUSY, "faster"))

    busy = dataclasses.replace(sound.times[sound.baseline][4], others=3.0)
    sound.times[sound.baseline][4] = busy

    assert sound.withheld.reason is timing.Reason.BUSY_MACHINE


@pytest.mark.parametrize(("threads", "name"), [(1, "CPU, its only thread"), (8, "CPU, 8 threads")])
def test_the_whole_cpu_has_another_name_than_one_of_its_threads(threads, name, monkeypatch):
    whole = dataclasses.replace(device.cpu(1), threads=threads)

    def find_cpu(threads=None):
        return device.cpu(1) if threads == 1 else whole

    monkeypatch.setattr(crossover, "device", types.SimpleNamespace(cpu=find_cpu))
    assert crossover.baseline() == name
    assert [*crossover.devices(whole)] == ["CPU, 1 thread", name]
