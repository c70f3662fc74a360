"""Line and area charts as inline SVG. Small on purpose: no scripts, no fonts, no network.

Colours come from the page's style sheet by class name, so that a chart follows light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 520, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 10, 30
MAX_POINTS = 260
Y_TICKS = 4
X_TICKS = 6

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """One line. `style` is a class of the style sheet; `area` fills below it."""

    name: str
    style: str
    points: Sequence[Point]
    area: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment worth a vertical line, seconds."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """`unit` labels the y axis; `top` fixes its end, so that charts can be compared."""

    title: str
    unit: str
    series: Sequence[Series]
    end_s: float
    top: float | None = None
    marks: Sequence[Mark] = ()


def draw(chart: Chart) -> str:
    """The chart as a `<figure>` with title, legend and plot."""
    legend = "".join(
        f'<span class="key {escape(s.style)}"><i></i>{escape(s.name)}</span>' for s in chart.series
    )
    label = f"{chart.title}, {chart.unit}, over {chart.end_s:.0f} s"
    return (
        f"<figure><figcaption><b>{escape(chart.title)}</b> "
        f'<span class="unit">{escape(chart.unit)}</span>{legend}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"{_plot(chart)}</svg></figure>"
    )


def _plot(chart: Chart) -> str:
    highest = max((y for s in chart.series for _, y in s.points if math.isfinite(y)), default=1.0)
    top = nice_top(chart.top if chart.top is not None else highest)
    scale = _Scale(max(chart.end_s, 1e-9), top)
    parts = [_axes(scale)]
    parts += [_mark(mark, scale) for mark in chart.marks if 0 <= mark.at <= chart.end_s]
    parts += [_line(series, scale) for series in chart.series]
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class _Scale:
    end: float
    top: float

    def x(self, at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at / self.end

    def y(self, value: float) -> float:
        part = min(1.0, max(0.0, value / self.top))
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * part


def nice_top(value: float) -> float:
    """The next round number at or above `value`."""
    if not math.isfinite(value) or value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(
        step * unit for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if step * unit >= value
    )


def _axes(scale: _Scale) -> str:
    parts = []
    for index in range(Y_TICKS + 1):
        value = scale.top * index / Y_TICKS
        y = scale.y(value)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 3:.1f}">{_number(value)}</text>')
    step = x_step(scale.end)
    count = int(scale.end / step + 1e-9)
    for index in range(count + 1):
        at = index * step
        text = f"{_number(at)} s" if index == count else _number(at)
        x, y = scale.x(at), HEIGHT - BOTTOM + 14
        parts.append(f'<text class="tick time" x="{x:.1f}" y="{y}">{text}</text>')
    return "".join(parts)


def x_step(end: float) -> float:
    """Seconds between two labels of the time axis: a round number."""
    raw = end / X_TICKS
    unit = 10.0 ** math.floor(math.log10(raw))
    rounds = (1, 2, 3, 6, 10) if end >= 60 else (1, 2, 5, 10)
    return next(step * unit for step in rounds if step * unit >= raw)


def _mark(mark: Mark, scale: _Scale) -> str:
    x = scale.x(mark.at)
    anchor = "end" if x > WIDTH * 0.75 else "start"
    shift = -4 if anchor == "end" else 4
    return (
        f'<path class="mark" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>'
        f'<text class="note" text-anchor="{anchor}" x="{x + shift:.1f}" y="{TOP + 9}">'
        f"{escape(mark.text)}</text>"
    )


def _line(series: Series, scale: _Scale) -> str:
    parts = []
    for run in _runs(thin(series.points)):
        path = "M" + "L".join(f"{scale.x(at):.1f} {scale.y(value):.1f}" for at, value in run)
        if series.area:
            base = scale.y(0.0)
            fill = (
                f"{path}L{scale.x(run[-1][0]):.1f} {base:.1f}L{scale.x(run[0][0]):.1f} {base:.1f}Z"
            )
            parts.append(f'<path class="area {escape(series.style)}" d="{fill}"/>')
        parts.append(f'<path class="line {escape(series.style)}" d="{path}"/>')
    return "".join(parts)


def _runs(points: Sequence[Point]) -> list[list[Point]]:
    """Unbroken stretches: a value that is not finite leaves a gap."""
    runs: list[list[Point]] = [[]]
    for point in points:
        if math.isfinite(point[1]):
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def thin(points: Sequence[Point]) -> list[Point]:
    """At most `MAX_POINTS`, keeping the highest of each stretch: peaks are the point."""
    if len(points) <= MAX_POINTS:
        return list(points)
    size = math.ceil(len(points) / MAX_POINTS)
    return [
        max(points[start : start + size], key=lambda point: point[1])
        for start in range(0, len(points), size)
    ]


def _number(value: float) -> str:
    if value >= 100_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
