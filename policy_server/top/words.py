"""How numbers and names read in the terminal; the live page says the same."""

from __future__ import annotations

from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"
UNKNOWN = "–"


def number(value: float | None) -> str:
    """Three digits or all of a large one."""
    if value is None:
        return UNKNOWN
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}".removesuffix(".0") if value >= 10 else f"{round(value, 2):g}"


def seconds(value: float | None) -> str:
    """A duration in the unit that a person would choose."""
    if value is None:
        return UNKNOWN
    if value < 0.0005:
        return "0 s"
    if value < 1:
        return f"{number(value * 1000)} ms"
    if value < 120:
        return f"{number(value)} s"
    if value < 7200:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.0f} h" if value < 172_800 else f"{value / 86_400:.0f} days"


def per_second(value: float | None) -> str:
    """A rate."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}/s" if value >= 10 else f"{round(value, 1):g}/s"


def plain(name: str) -> str:
    """A name that came from outside: what is no printable character could steer the terminal."""
    return "".join(c if c.isprintable() else "?" for c in name)


def sparkline(values: Sequence[float | None], width: int) -> str:
    """The newest at the right; each column is the most of its part, a gap stays a gap."""
    if not values or width < 1:
        return ""
    size = max(1.0, len(values) / width)
    columns = min(width, len(values))
    parts = [
        values[int(i * size) : max(int(i * size) + 1, int((i + 1) * size))] for i in range(columns)
    ]
    peaks = [max((v for v in part if v is not None), default=None) for part in parts]
    top = max((p for p in peaks if p is not None), default=0.0) or 1.0
    return "".join(" " if p is None else BARS[round(p / top * (len(BARS) - 1))] for p in peaks)
