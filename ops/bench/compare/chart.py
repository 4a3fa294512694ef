"""Latency over throughput as an SVG: a panel a precision, a line a server, a point a load.

Written by hand, since a plotting library's file is ten times as large and differs from run to run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT, GAP = 300, 240, 64
TOP, LEFT, BOTTOM = 28, 56, 44
COLOURS = ("#d1495b", "#00798c", "#b8860b", "#6a4c93", "#66a182", "#555555", "#8d6e63")
"""One a server. Seen on white and on black."""
GREY = "#808080"


@dataclass(frozen=True)
class Point:
    """``throughput`` and ``latency`` in the units that the axes are labelled with."""

    throughput: float
    latency: float
    label: str


Panel = Mapping[str, Sequence[Point]]
"""Each server's points, in the order in which a line joins them."""


@dataclass(frozen=True)
class Scale:
    """From values in [``low``, ``high``] to places; ``ticks`` are the round values in between."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.logarithmic:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.logarithmic:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            found = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
        else:
            rough = (self.high - self.low) / 4
            decade = 10.0 ** math.floor(math.log10(rough))
            step = next(step * decade for step in (1, 2, 5, 10) if step * decade >= rough)
            found = [step * at for at in range(math.ceil(self.high / step) + 1)]
        return [value for value in found if self.low <= value <= self.high]


def draw(panels: Mapping[str, Panel], x_label: str, y_label: str) -> str:
    """``panels`` side by side on scales of their own; ``x_label`` and ``y_label`` are theirs all.

    Raises ``ValueError`` without a point, or where one is not above zero.
    """
    points = [point for panel in panels.values() for line in panel.values() for point in line]
    if not points or min(min(one.throughput, one.latency) for one in points) <= 0:
        raise ValueError("a chart needs points, all of them above zero")
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))
    colours = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}
    width = LEFT + len(panels) * (WIDTH + GAP)
    height = TOP + HEIGHT + BOTTOM + 18
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="11" fill="{GREY}">'
    ]
    for index, (title, panel) in enumerate(panels.items()):
        lines += _panel(title, panel, colours, LEFT + index * (WIDTH + GAP))
    lines.append(_text(LEFT, height - 22, x_label))
    lines.append(_text(14, TOP + HEIGHT / 2, y_label, "middle", turned=True))
    at = float(LEFT)
    for name, colour in colours.items():
        lines.append(f'<circle cx="{at + 4:.1f}" cy="{height - 8}" r="4" fill="{colour}"/>')
        lines.append(_text(at + 12, height - 4, name))
        at += 30 + 6.5 * len(name)
    return "\n".join([*lines, "</svg>\n"])


def _panel(title: str, panel: Panel, colours: Mapping[str, str], left: float) -> Iterator[str]:
    points = [point for line in panel.values() for point in line]
    latencies = [point.latency for point in points]
    right, bottom = left + WIDTH, TOP + HEIGHT
    x = Scale(0.0, 1.1 * max(point.throughput for point in points), left, right)
    y = Scale(min(latencies) / 1.3, max(latencies) * 1.3, bottom, TOP, logarithmic=True)
    yield _text(left + WIDTH / 2, TOP - 10, title, "middle")
    for tick in x.ticks():
        yield f'<path d="M{x(tick):.1f} {TOP}V{bottom}" stroke="{GREY}" stroke-opacity=".2"/>'
        yield _text(x(tick), bottom + 14, f"{tick:g}", "middle")
    for tick in y.ticks():
        yield f'<path d="M{left} {y(tick):.1f}H{right}" stroke="{GREY}" stroke-opacity=".2"/>'
        yield _text(left - 5, y(tick) + 4, f"{tick:g}", "end")
    for name, line in panel.items():
        colour = colours[name]
        places = [(x(point.throughput), y(point.latency)) for point in line]
        joined = " ".join(f"{across:.1f},{down:.1f}" for across, down in places)
        yield f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        for point, (across, down) in zip(line, places, strict=True):
            yield f'<circle cx="{across:.1f}" cy="{down:.1f}" r="3" fill="{colour}"/>'
            yield _text(across + 5, down - 5, point.label)


def _text(x: float, y: float, text: str, anchor: str = "start", *, turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>{escape(text)}</text>'
