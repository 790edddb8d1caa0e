"""What importing the measuring core costs, beside numpy alone: ratios of medians of fresh processes, in turns.

    .venv/bin/python tests/benchmarks/import_time.py

Prints a line for each, and ends with code 1 if ``import metallab``, or the timer with its devices, takes three times
as long as ``import numpy`` or more. A starting interpreter is in none of the times.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

BAR = 3.0
BASELINE = "import numpy"
LINES = ("import metallab", "from metallab import device, timing", "from metallab import checks, memory, records")
TIMED = "import time\nstart = time.perf_counter()\n{}\nprint(time.perf_counter() - start)"


def seconds(line: str) -> float:
    """Of an import, in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("METALLAB")}
    done = subprocess.run(
        [sys.executable, "-c", TIMED.format(line)], env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main() -> int:
    """1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="processes for each line (%(default)s)")
    rounds = parser.parse_args().rounds
    lines = (BASELINE, *LINES)
    for line in lines:
        seconds(line)  # the first reads files from the disk, and compiles ours
    samples = [[seconds(line) for line in lines] for _ in range(rounds)]
    medians = dict(zip(lines, map(statistics.median, zip(*samples, strict=True)), strict=True))
    for line, median in medians.items():
        print(f"{line:<48} {1e3 * median:6.1f} ms, {median / medians[BASELINE]:.2f} times {BASELINE}")
    slow = [line for line in LINES if medians[line] >= BAR * medians[BASELINE]]
    print(f"missed the bar of {BAR:.0f}: {'; '.join(slow)}" if slow else f"all below the bar of {BAR:.0f}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
