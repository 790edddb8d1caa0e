"""From which size of work on a GPU wins: measured here, or as it was on a machine that has one.

::

    curve = crossover.measure("matrix product", product, [64, 256, 1024], on=lab)
    print(curve)   # a sentence
    curve.draw()   # time over size, a line for each device

What it takes for work is a function of a size and a device that prepares everything and returns what is timed::

    def product(n, device):
        a, b = torch.randn(n, n).to(device), torch.randn(n, n).to(device)
        out = torch.empty(n, n, device=device)
        return lambda: torch.matmul(a, b, out=out)

It draws its numbers on the CPU, where a seed makes them the same for every device, and allocates what it writes: fresh
memory in each call is dear on a CPU, and would be measured as well.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from metallab import allowance, checks, device, mode, paths, records, timing
from metallab.device import Device

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Work = Callable[[int, torch.device], Callable[[], Any]]
STORED = paths.ROOT / "data" / "results" / "nvidia_h200.json"
LESSONS = ("13_predict_a_calls_time", "64_compare_machines")
"""The pages that measure curves. Of work that both measure, the curve of the first is the stored one."""
ONE_THREAD = "CPU, 1 thread"
ONLY_THREAD = "CPU, its only thread"
"""The whole CPU where it is one core: another name than `ONE_THREAD`, because both are in one comparison."""


def devices(on: Device) -> dict[str, Device]:
    """Return one thread of the CPU, all of them, and the GPU if ``on`` is one. All threads are the `baseline`."""
    found: dict[str, Device] = {ONE_THREAD: device.cpu(threads=1), baseline(): device.cpu()}
    if on.kind != "cpu":
        found[on.kind] = on
    return found


def roles(devices: Mapping[str, Device]) -> dict[str, str]:
    """Return what the devices are on any machine: the whole CPU, and a GPU."""
    return {
        name: "CPU" if each.kind == "cpu" else "GPU"
        for name, each in devices.items()
        if name != ONE_THREAD
    }


def baseline() -> str:
    """Return the name of the device that everything is compared with: the whole CPU."""
    threads = device.cpu().threads
    return ONLY_THREAD if threads == 1 else f"CPU, {threads} threads"


@dataclass(frozen=True)
class Curve:
    """The time of one kind of work over its size, on several devices."""

    work: str
    baseline: str
    times: Mapping[str, Mapping[int, timing.Measurement]]
    """By the device's name, then by size."""
    answers: Mapping[int, timing.Answer]
    """The rival's speed-up over the baseline by size, or why there is none."""
    comparisons: tuple[timing.Comparison, ...] = ()
    """What was measured, for `records.save`; empty for a stored curve."""
    left_out: str = ""
    """What was left out for time; empty if nothing was."""
    stored: bool = False
    """True if it was not measured here."""

    @property
    def gpu(self) -> str | None:
        """The GPU's name among the devices."""
        return next((name for name in self.times if not name.startswith("CPU")), None)

    @property
    def rival(self) -> str:
        """The device that is compared with the baseline: the GPU, or where there is none one thread."""
        return self.gpu or ONE_THREAD

    @property
    def sizes_withheld(self) -> dict[int, timing.Withheld]:
        """The sizes at which no speed-up of the rival may be given, and why; not those whose outputs differ."""
        return {
            size: answer.withheld
            for size, answer in self.answers.items()
            if answer.withheld and answer.reason is not timing.Reason.OUTPUTS_DIFFER
        }

    @property
    def _won(self) -> dict[float, bool | None]:
        """Whether the GPU, or the whole CPU, wins at each size; None where nothing may be said."""
        wins = "faster" if self.gpu else "slower"
        withheld = self.sizes_withheld
        return {
            n: None if n in withheld else self.answers[n].outcome == wins
            for n in sorted(self.answers)
        }

    @property
    def crossover(self) -> int | None:
        """The smallest size from which on the GPU wins at every size; None if it does not at the largest.

        Without a GPU: from which all threads win over one. Those of `sizes_withheld` count neither as won nor as lost.
        """
        size = timing.crossover(self._won)
        return None if size is None else int(size)

    def device(self, name: str) -> str:
        """Return the hardware's name."""
        return next(iter(self.times[name].values())).device

    @property
    def withheld(self) -> timing.Withheld | None:
        """Why nothing may be predicted from the ends of the baseline's and the rival's line; None if one may.

        The times at the ends, which are those of the smallest and of the largest size, have to be sound, and nothing
        may withhold a speed-up there (`sizes_withheld`).
        """
        lines = [self.times[self.baseline], self.times[self.rival]]
        ends = [(size, line[size]) for line in lines for size in (min(line), max(line))]
        if withheld := timing.why_withheld(*(measured for _, measured in ends)):
            return withheld

        for size, _ in ends:
            if size in self.sizes_withheld:
                return self.sizes_withheld[size]
        return None

    def draw(self) -> Figure:
        """Draw time over size with quartile bands, and a mark at the crossover. A GPU goes by its name.

        Points are hollow where no speed-up is given; a stored curve also names these sizes.
        """
        from metallab import plots  # matplotlib takes a while to import

        n = self.crossover
        marks: dict[str, float] = {}
        # no mark where the GPU wins at every size: from which size on it does was not seen
        if n is not None and self.gpu and n > min(self.answers):
            marks[f"the GPU wins from n = {n} on"] = n

        heading = f"{self.work}, float32"
        if self.stored:
            # with sizes in brackets: (no speed-up is given at n = 512)
            heading += f", stored: not measured here{timing.not_counted(self._won)}"

        lines: dict[str, Any] = {}
        for name, line in self.times.items():
            lines[self.device(name) if name == self.gpu else name] = line
        return plots.curves(
            lines, xlabel="n", heading=heading, marks=marks, withheld=self.sizes_withheld
        )

    @property
    def finding(self) -> str:
        """From which size on it wins, as a sentence for a headline: without the sizes for which no time was left."""
        ours, theirs = (self.gpu, self.baseline) if self.gpu else (self.baseline, self.rival)
        sides = f"{self.device(ours)} against {self.device(theirs)}"
        return f"{self.work}, {sides}: {self._describe_win().removesuffix('.')}."

    def __str__(self) -> str:
        if self.stored:
            return f"{self.finding} Stored, not measured here."
        return f"{self.finding} {self.left_out}" if self.left_out else self.finding

    def _describe_win(self) -> str:
        """Return from which size on the GPU wins, or without one the whole CPU, as the end of a sentence.

        Where no size counts, it is the sentence why no speed-up is given at the first of them.
        """
        counted = [n for n, wins in self._won.items() if wins is not None]
        if not counted:
            return next(iter(self.sizes_withheld.values())).sentence

        not_counted = timing.not_counted(self._won)
        n = self.crossover
        if n is None:
            return (
                f"not shown to win from any size on, of {counted[0]} to {counted[-1]}{not_counted}"
            )
        if n == min(counted):
            return f"wins at every size that counts, {n} to {max(counted)}{not_counted}"
        return f"wins from n = {n} on{not_counted}"


def measure(
    work: str, make: Work, sizes: Sequence[int], *, on: Device, seconds: float = 4.0
) -> Curve:
    """Time work of growing size on every device, in turns at each size, after checking that all compute the same.

    float32 means float32: on NVIDIA GPUs TensorFloat-32 is switched off for as long.

    Parameters
    ----------
    work
        Its name.
    make
        Takes a size and a device of PyTorch, prepares everything, and returns what is timed.
    sizes
        At least one, in the order in which they are measured.
    on
        The page's device. The CPU is measured in any case, with all threads and with one.
    seconds
        The time for all sizes. Those for which nothing is left are left out, and named by the curve.

    Raises
    ------
    ValueError
        For no sizes.
    """
    if not sizes:
        raise ValueError("there is nothing to measure: give sizes, such as [64, 256, 1024]")

    comparisons: dict[int, timing.Comparison] = {}
    within = allowance.Allowance(seconds)
    on_each: dict[str, Any] = {**devices(on)}
    with whole_float32():
        for n in within.items(sizes, "n ="):
            left = len(sizes) - len(comparisons)
            comparisons[n] = timing.compare(
                {name: _prepare(make, n, each) for name, each in on_each.items()},
                on=on_each,
                baseline=baseline(),
                parity=checks.matches("float32"),
                series=f"{work}, n",
                size=n,
                dtype="float32",
                roles=roles(on_each),
                budget=within.budget(left, budget_here(), variants=len(on_each)),
            )

    times: dict[str, dict[int, timing.Measurement]] = {name: {} for name in on_each}
    for n, compared in comparisons.items():
        for name in on_each:
            times[name][n] = compared[name]

    left_out = str(within) if within.left_out else ""
    # first without answers: the curve itself tells which device is the rival, whose answers they are
    curve = Curve(work, baseline(), times, {}, tuple(comparisons.values()), left_out)
    answers = {n: compared.answers[curve.rival] for n, compared in comparisons.items()}
    return dataclasses.replace(curve, answers=answers)


def budget_here() -> timing.Budget:
    """Return how long one comparison may measure, at most."""
    return mode.by_mode(
        full=timing.Budget(min_samples=20, min_seconds=0.2, max_seconds=2.0), fast=timing.FAST
    )


def read_stored(work: str) -> Curve:
    """Read a curve of a machine with an NVIDIA H200 from the file of its results.

    Of a size that was measured in several processes it is the first of those in which nothing is withheld, if there is
    one. Of work that several pages have measured it is the curve of the first page in `LESSONS`.

    ValueError if the file has none of this work.
    """
    runs = records.by_name(records.load(STORED)).values()
    for lesson in LESSONS:
        of_curve = [processes for processes in runs if _is_of(processes[0], lesson, work)]
        if of_curve:
            return _join(work, of_curve)

    raise ValueError(
        f"{STORED.name} has no curve of {work!r}: ask for 'matrix product', 'convolution' or 'elementwise'"
    )


def _is_of(run: records.Record, lesson: str, work: str) -> bool:
    """Return whether a stored result is a point of a page's curve."""
    compared = run.comparison
    return run.lesson == lesson and compared is not None and compared.series == f"{work}, n"


def _join(work: str, runs: Sequence[list[records.Record]]) -> Curve:
    """Return the curve of a kind of work from its stored points.

    Parameters
    ----------
    work
        Its name.
    runs
        For each device at each size the records of all processes that measured it. The point's time is that of the
        first process that counts; if none does, that of the first one, and the answer says why no speed-up is given.
    """
    times: dict[str, dict[int, timing.Measurement]] = {}
    answers: dict[str, dict[int, timing.Answer]] = {}
    base = ""
    for processes in runs:
        compared, measured = processes[0].comparison, processes[0].measurement
        assert compared is not None  # `_is_of`
        assert measured.size is not None
        base, name, size = compared.baseline, compared.variant, int(measured.size.number)

        usable, withheld = records.usable_runs(processes)
        times.setdefault(name, {})[size] = (usable or processes)[0].measurement
        answer = timing.Answer(name, withheld) if withheld else usable[0].answer
        if answer is not None:
            answers.setdefault(name, {})[size] = answer

    curve = Curve(work, base, times, {}, stored=True)
    return dataclasses.replace(curve, answers=answers[curve.rival])


def whole_float32() -> contextlib.AbstractContextManager:
    """Return a context in which cuDNN convolves float32 as such, not in TensorFloat-32; elsewhere it does nothing."""
    cudnn = torch.backends.cudnn
    return cudnn.flags(
        cudnn.enabled, cudnn.benchmark, cudnn.benchmark_limit, cudnn.deterministic, allow_tf32=False
    )


def _prepare(make: Work, n: int, on: Any) -> Callable[[], Any]:
    """Return what is timed, made from the same random numbers for each device."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(n)
        return make(n, on.torch_device)
