"""Draw README's picture: what Apple's GPUs can reach, and where models lie: ``python tools/draw_rooflines.py``.

It is an SVG with text as text, in light or dark colours as the reader's system asks for. Each has its own ground, so
that it can be read wherever it is shown. Peaks and bandwidths are those of `metallab.reported`, which others reported;
where a kind of work lies is calculated here.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from metallab import paths, reported, units
from metallab.drawings.roofs import Roof
from metallab.reported import peaks

PICTURE = paths.ROOT / "data" / "images" / "rooflines.svg"

CHIPS = ("M1", "M2 Pro", "M5 Max")
"""From the smallest to the fastest of which the table has a clock; the lines of others lie between these."""

WIDTH, HEIGHT = 960, 484
LEFT, RIGHT, TOP, BOTTOM = 104, 672, 88, 396
"""The sides of the axes; at the right stand the names of the chips."""

X = (0.06, 1500.0)
"""Arithmetic intensity, in FLOP/B."""
Y = (3e9, 1e14)
"""FLOP/s."""


@dataclass(frozen=True)
class Place:
    """A kind of work, and its arithmetic intensity."""

    name: str
    """In two lines, separated by ``|``."""
    intensity: float
    """FLOP/B."""


PLACES = (
    # one multiplication for each 4 bytes read and 4 written
    Place("doubling|numbers", 1 / 8),
    # a weight of 2 bytes is read for one multiply-add, which is 2 FLOP: 1, and 16 for 16 texts at a time
    Place("language model:|a token, 16 bits", 1.0),
    Place("16 texts|at a time", 16.0),
    # 2 n^3 FLOP for 3 matrices of 4 n^2 bytes each
    Place("product of|512 x 512", 512 / 6),
    # as a token, for 512 of them
    Place("prompt of|512 tokens", 512.0),
)

STYLE = """
  .ground { fill: #ffffff; } text { fill: #1f2328; font: 14px system-ui, -apple-system, "Segoe UI", sans-serif; }
  .title { font-size: 19px; font-weight: 600; } .small { font-size: 12.5px; } .quiet { fill: #59636e; }
  .grid { stroke: #d1d9e0; } .place { stroke: #8c959f; stroke-dasharray: 3 4; } .roof { fill: none; stroke-width: 3; }
  .c0 { stroke: #0072b2; } .c1 { stroke: #b26a00; } .c2 { stroke: #a3447e; }
  .dot { fill: #ffffff; stroke-width: 2.5; }
  @media (prefers-color-scheme: dark) {
    .ground, .dot { fill: #0d1117; } text { fill: #f0f6fc; } .quiet { fill: #b1bac4; } .grid { stroke: #30363d; }
    .place { stroke: #7d8590; }
    .c0 { stroke: #58b3f0; } .c1 { stroke: #e69f00; } .c2 { stroke: #e08ac0; }
  }
"""


def read_roofs() -> list[Roof]:
    """Return the roofs of `CHIPS` in float32 by the cautious value, and last those of the fastest one's matrix units.

    The cautious value is the low end of what was reported. LookupError for a chip without a peak or a bandwidth in the
    tables of `metallab.reported`.
    """
    roofs = []
    for name in CHIPS:
        peak, memory = peaks.float32(name), peaks.bandwidth(name)
        if peak is None or peak.low is None or memory is None or memory.low is None:
            raise LookupError(
                f"{name}: the tables of what others reported lack its peak or bandwidth"
            )
        roofs.append(Roof(name, peak.low, memory.low))

    fastest = roofs[-1]
    entry = reported.measurements(fastest.name, topic="matrix units of M5", dtype="float16")[0]
    in_tflops = entry.quantity.value
    peak_of_units = in_tflops * 1e12
    return [
        *roofs,
        Roof(f"{fastest.name}, float16", peak_of_units, fastest.bandwidth, has_matrix_units=True),
    ]


def describe(roofs: Sequence[Roof], places: Sequence[Place]) -> str:
    """Return what the picture shows, for whoever does not see it."""
    chips = "; ".join(
        f"{each.name} {units.rate(each.peak, 'FLOP/s')}, {units.rate(each.bandwidth, 'B/s')}"
        for each in roofs
    )
    work = "; ".join(f"{each.name.replace('|', ' ')}, {each.intensity:.3g}" for each in places)
    return (
        f"{say(roofs)}. Rooflines of Apple GPUs, bandwidths as others reported them, float32 peaks calculated: "
        f"{chips}. FLOP for each byte, calculated: {work}."
    )


def say(roofs: Sequence[Roof]) -> str:
    """Return the sentence that the picture is there for."""
    shares = [100 * min(each.peak, each.bandwidth) / each.peak for each in roofs]
    low, high = min(shares), max(shares)
    return f"One token of a language model uses {low:.0f} to {high:.0f} % of the arithmetic: it waits for memory"


def draw(roofs: Sequence[Roof], places: Sequence[Place]) -> str:
    """Return the picture as SVG: axes, kinds of work, roofs, and what work waits for, in this order.

    What comes later lies on top. Its title is what the picture shows in words, for whoever does not see it.
    """
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-labelledby="words">\n<title id="words">{escape(describe(roofs, places))}</title>\n'
        f'<style>{STYLE}</style>\n<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="8"/>'
    )
    title = f'<text class="title" x="24" y="36">{escape(say(roofs))}</text>'
    below_title = _text(
        24,
        60,
        "What Apple GPUs reach at most, by the work for each byte from memory. "
        "Lines: float32; dashes: float16, matrix units",
        "quiet",
    )

    kinds = _text(
        24,
        HEIGHT - 16,
        "Bandwidths and the float16 peak: reported by others, none measured by this project. "
        "Float32 peaks and the place of the work: calculated.",
        "quiet small",
    )

    drawn = [
        *_draw_axes(),
        *_draw_places(places),
        *_draw_roofs(roofs, places),
        *_draw_limits(roofs),
    ]
    return "\n".join([opening, title, below_title, *drawn, kinds, "</svg>\n"])


def _x(intensity: float) -> float:
    low, high = map(math.log, X)
    return LEFT + (RIGHT - LEFT) * (math.log(intensity) - low) / (high - low)


def _y(rate: float) -> float:
    low, high = map(math.log, Y)
    return BOTTOM - (BOTTOM - TOP) * (math.log(rate) - low) / (high - low)


def _draw_axes() -> Iterator[str]:
    """Draw a line and a label for each power of ten."""
    for power in range(math.ceil(math.log10(Y[0])), math.floor(math.log10(Y[1])) + 1):
        y = _y(10.0**power)
        yield f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        label = units.rate(10.0**power, "FLOP/s")
        yield _text(LEFT - 8, y + 4, label, "quiet small", anchor="end")

    for power in range(math.ceil(math.log10(X[0])), math.floor(math.log10(X[1])) + 1):
        yield _text(
            _x(10.0**power), BOTTOM + 18, f"{10.0**power:g}", "quiet small", anchor="middle"
        )
    yield _text(RIGHT + 10, BOTTOM + 18, "FLOP for each byte", "quiet small")


def _draw_places(places: Sequence[Place]) -> Iterator[str]:
    """Draw a dotted line for each kind of work, with its name below the axis."""
    for place in places:
        x = _x(place.intensity)
        yield f'<line class="place" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{BOTTOM}"/>'
        for line, words in enumerate(place.name.split("|")):
            yield _text(x, BOTTOM + 36 + 15 * line, words, "small", anchor="middle")


def _draw_roofs(roofs: Sequence[Roof], places: Sequence[Place]) -> Iterator[str]:
    """Draw each roof with its name at its right end, and a ring where a kind of work meets it."""
    chips = [each for each in roofs if not each.has_matrix_units]
    for roof in roofs:
        # matrix units have the colour of their chip, the fastest, and dashes
        colour = f"c{chips.index(roof) if roof in chips else len(chips) - 1}"
        dashes = ' stroke-dasharray="8 5"' if roof.has_matrix_units else ""
        ridge = roof.peak / roof.bandwidth

        corners = [(X[0], roof.bandwidth * X[0]), (ridge, roof.peak), (X[1], roof.peak)]
        points = " ".join(f"{_x(intensity):.1f},{_y(rate):.1f}" for intensity, rate in corners)
        yield f'<polyline class="roof {colour}"{dashes} points="{points}"/>'

        for place in places:
            if roof.has_matrix_units and place.intensity < ridge:
                continue  # there it has the roof of its chip
            rate = min(roof.peak, roof.bandwidth * place.intensity)
            where = f'cx="{_x(place.intensity):.1f}" cy="{_y(rate):.1f}"'
            yield f'<circle class="dot {colour}" {where} r="4.5"/>'

        limits = f"{units.rate(roof.peak, 'FLOP/s')}, {units.rate(roof.bandwidth, 'B/s')}"
        words = f'{escape(roof.name)} <tspan class="quiet small">{limits}</tspan>'
        yield f'<text x="{RIGHT + 10}" y="{_y(roof.peak) + 5:.1f}">{words}</text>'


def _draw_limits(roofs: Sequence[Roof]) -> Iterator[str]:
    """Write below the lowest line what work waits for: along its slope, and below its flat part.

    Up to its ridge a roof rises with the work for each byte, since memory limits it; from there on it is flat.
    """
    lowest = min(roofs, key=lambda each: each.peak)
    ridge = lowest.peak / lowest.bandwidth

    # the middle of the slope in the drawing, where both axes are logarithmic
    x, y = _x(2.5), _y(lowest.bandwidth * 2.5)
    rise = _y(lowest.bandwidth) - _y(lowest.bandwidth * ridge)
    angle = -math.degrees(math.atan2(rise, _x(ridge) - _x(1.0)))
    turned = f'transform="rotate({angle:.1f} {x:.1f} {y:.1f})"'
    yield (
        f'<text class="quiet small" x="{x:.1f}" y="{y + 20:.1f}" {turned} text-anchor="middle">'
        "waits for memory</text>"
    )

    x = (_x(ridge) + RIGHT) / 2
    yield _text(x, _y(lowest.peak) + 22, "waits for arithmetic", "quiet small", anchor="middle")


def _text(x: float, y: float, words: str, style: str, anchor: str = "start") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the picture and print its words, which README gives as its alternative text."""
    parser = argparse.ArgumentParser(
        prog="python tools/draw_rooflines.py", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--into", type=Path, default=PICTURE, help="by default data/images/rooflines.svg"
    )
    wish = parser.parse_args(arguments)

    roofs = read_roofs()
    paths.write_atomically(wish.into, draw(roofs, PLACES))
    print(describe(roofs, PLACES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
