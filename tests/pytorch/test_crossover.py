"""From which size on a GPU wins: one lucky size does not count, nor one of which nothing may be said."""

from __future__ import annotations

import dataclasses

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
    """A curve at the sizes 1, 2, 4, ..., with a verdict or a doubt at each."""
    measured = record(gpu, 2.0).measurement
    measurements = {
        "CPU, 1 thread": measured,
        "CPU, 16 threads": dataclasses.replace(measured, device=CPU),
    }
    if gpu:
        measurements[gpu] = measured
    ends = {"faster": (2.0, 2.0), "slower": (0.5, 0.5), "inconclusive": (0.5, 2.0)}
    told = {
        word: timing.Answer(gpu, timing.Ratio(gpu, "", 1.0, *each, 9))
        for word, each in ends.items()
    }
    by_size = {
        2**k: told.get(outcome) or timing.Answer(gpu, outcome) for k, outcome in enumerate(outcomes)
    }
    times = {name: dict.fromkeys(by_size, measured) for name, measured in measurements.items()}
    return module.Curve("work", "CPU, 16 threads", times, by_size, **changes)


def test_the_gpu_wins_from_a_size_on_that_is_not_luck():
    for outcomes in LUCKY:
        assert curve(crossover, outcomes).crossover == 16
    assert curve(crossover, ("faster", BUSY)).crossover == 1
    assert curve(crossover, ("slower", "faster", DIFFER)).crossover is None
    assert curve(crossover, ("faster", "slower"), gpu="").crossover == 2
    assert curve(crossover, ("faster", "slower")).crossover is None


def test_a_curve_says_who_wins_from_where_on():
    said = lambda *outcomes, **options: str(curve(crossover, outcomes, **options))
    gap = said("slower", "faster", DRIFTED, "faster", left_out="Left out: n = 16.")
    assert "wins from n = 2 on (" in gap
    assert "n = 4). Left" in gap
    assert "not shown to win from any size on, of 1 to 4" in said(
        "faster", "faster", "inconclusive"
    )
    assert "wins at every size that counts, 2 to 4 (" in said(DRIFTED, "faster", "faster")
    assert BUSY.sentence in said(BUSY, stored=True)


def test_a_curve_is_drawn_with_its_crossover_and_all_its_times():
    drawn = curve(crossover, ("slower", "faster")).draw()
    words = [text.get_text() for text in drawn.axes[0].get_legend().get_texts()]
    assert words == ["CPU, 1 thread", "CPU, 16 threads", GPU, "the GPU wins from n = 2 on"]
    assert "n = 1)" in curve(crossover, (DRIFTED,), stored=True).draw().get_suptitle()
    disturbed = curve(crossover, ("slower", "faster", BUSY, "faster"), stored=True).draw().axes[0]
    assert [len(line.get_xdata()) for line in disturbed.lines[:3]] == [4] * 3
    assert "no speed-up is given here" in disturbed.get_legend_handles_labels()[1]
    everywhere = curve(crossover, ("faster", "faster")).draw().axes[0].get_legend().get_texts()
    assert len(everywhere) == 3, "the smallest size is no crossover"


def test_a_stored_curve_has_what_may_be_believed(tmp_path, monkeypatch):
    lesson = {"lesson": "13_predict_a_calls_time"}
    made = []
    for n, speed_up, others in ((8, 0.5, 0.0), (16, 3.0, 0.0), (32, 3.0, 5.0)):
        busy = {"others": others} | lesson
        work, other = ({"series": f"{w}, n", "size": timing.Size(n)} for w in ("work", "other"))
        made += [
            on_cpu(f"work, n = {n}", **busy, **work),
            record("cuda", speed_up, f"work, n = {n}", **busy, **work),
        ]
        made += [
            on_cpu(f"other, n = {n}", **lesson, **other),
            record("cuda", 3.0, f"other, n = {n}", **lesson, **other),
        ]
    busy = {"run": 1, "others": 3.0, "series": "work, n", "size": timing.Size(8)} | lesson
    again = [on_cpu("work, n = 8", **busy), record("cuda", 0.5, "work, n = 8", **busy)]
    made = [dataclasses.replace(one, taken=one.taken.replace(":00+", ":09+")) for one in made]
    made = [
        one if one.comparison.outcome == "baseline" or one.comparison.median > 1 else slower(one)
        for one in made
    ]
    monkeypatch.setattr(
        crossover,
        "STORED",
        records.write(tmp_path / "gpu.json", honest([*map(slower, again), *made])),
    )
    shown = crossover.read_stored("work")
    assert (shown.stored, shown.crossover, shown.device("cuda")) == (True, 16, GPU)
    assert sorted(shown.times["cuda"]) == [8, 16, 32], "times are shown where speed-ups are not"
    assert list(shown.sizes_withheld) == [32]
    assert shown.times["cuda"][8].others == 0, "of what was measured twice, what may be believed"
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


def test_sizes_are_measured_as_long_as_there_is_time(monkeypatch):
    now, seen = [0.0], []
    monkeypatch.setenv("METALLAB_MODE", "fast")
    # not by assignment, which another test may have forbidden for the process
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        timed = allowance.Allowance
        monkeypatch.setattr(
            crossover.allowance, "Allowance", lambda seconds: timed(seconds, lambda: now[0])
        )

        def work(n, device):
            now[0] += n / 2  # once for each of two devices
            drawn = torch.randn(4).to(device)
            seen.append((n, drawn.tolist(), torch.backends.cudnn.allow_tf32))
            wrong = n == 2 and len(seen) % 2
            return lambda: drawn + 1 if wrong else drawn * 1

        state = torch.random.get_rng_state()
        measured = crossover.measure("work", work, [1, 2, 4, 8], on=device.cpu(), seconds=8)
        assert list(measured.times["CPU, 1 thread"]) == [1, 2, 4]
        assert "n = 8 (the last one, 4, took 4 s)" in measured.left_out
        assert [compared.name for compared in measured.comparisons] == [
            "work, n = 1",
            "work, n = 2",
            "work, n = 4",
        ]
        assert [measured.answers[n].reason for n in (1, 2)] == ["fast mode", "outputs differ"]
        assert seen[0][1] == seen[1][1] != seen[2][1], "the same numbers on each device"
        assert not any(tf32 for *_, tf32 in seen)
        assert torch.backends.cudnn.allow_tf32
    assert torch.equal(state, torch.random.get_rng_state())
    with pytest.raises(ValueError, match="give sizes, such as"):
        crossover.measure("work", work, [], on=device.cpu())


def test_ends_that_may_not_be_believed_predict_nothing():
    sound = curve(crossover, ("slower", BUSY, "faster"))
    assert sound.withheld is None, "what lies between the ends does not count"
    assert curve(crossover, ("slower", DRIFTED)).withheld == DRIFTED
    busy = dataclasses.replace(sound.times[sound.baseline][4], others=3.0)
    sound.times[sound.baseline][4] = busy
    assert sound.withheld.reason is timing.Reason.BUSY_MACHINE
