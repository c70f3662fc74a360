"""The last ten minutes of each pool, for the charts of the live page and of `top`.

Whoever opens the page at night wants to see what led here, not a chart that begins now. So a few
numbers per pool are kept every two seconds, in a ring: 300 points, about 40 KB per pool. Counters
are kept as they are; rates are differences, made when someone asks. A pool that a reload removed
leaves with its last point.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from policy_server.telemetry.views import PoolView

EVERY_S = 2.0
POINTS = 300
RATE_OVER_S = 10.0
"""Rates of single outcomes: long enough that one request is not a spike, short enough for live."""

Counts = Mapping[str, Mapping[str, int]]
"""One pool's counts since the start, by kind (`outcomes`, `sheds`) and name."""


@dataclass(frozen=True, slots=True)
class _Point:
    at: float
    limit: float
    inflight: int
    waiting: int
    engine_queue: float | None
    admitted: int
    shed: int


class History:
    """Rings of points by pool. `sample` is called about once a second by its owner."""

    def __init__(self) -> None:
        self._points: dict[str, deque[_Point]] = {}
        self._counts: deque[tuple[float, Mapping[str, Counts]]] = deque()
        self._last = float("-inf")

    def due(self, now: float) -> bool:
        """Whether it is time for the next point; a tick that is a little early counts."""
        return now - self._last > EVERY_S * 0.75

    def sample(self, now: float, pools: Iterable[PoolView], totals: Mapping[str, Counts]) -> None:
        """Keep one point per pool; `now` in monotonic seconds."""
        self._last = now
        self._counts.append((now, totals))
        while now - self._counts[0][0] > RATE_OVER_S + EVERY_S:
            self._counts.popleft()
        for pool in pools:
            ring = self._points.setdefault(pool.name, deque(maxlen=POINTS))
            ring.append(_point(now, pool, totals.get(pool.name, {})))
        oldest = now - EVERY_S * POINTS
        self._points = {name: ring for name, ring in self._points.items() if ring[-1].at > oldest}

    def rates(self, pool: str, now: float, counts: Counts) -> dict[str, dict[str, float]]:
        """Per second over the last ten seconds, of everything in `counts` that happened."""
        then, before = self._counts[0] if self._counts else (now, {})
        elapsed = now - then
        if elapsed < EVERY_S / 2:
            return {}
        earlier = before.get(pool, {})
        return {
            kind: _changed(names, earlier.get(kind, {}), elapsed) for kind, names in counts.items()
        }

    def document(self, now: float) -> dict[str, object]:
        """JSON-ready: columns by pool, oldest first; `age_s` counts back from now."""
        return {"every_s": EVERY_S, "pools": {k: _columns(v, now) for k, v in self._points.items()}}


def _point(now: float, pool: PoolView, counts: Counts) -> _Point:
    outcomes = counts.get("outcomes", {})
    return _Point(
        at=now,
        limit=round(pool.limit, 1),
        inflight=pool.inflight_seats,
        waiting=sum(pool.waiting.values()),
        engine_queue=None if pool.engine_queue is None else round(pool.engine_queue, 1),
        admitted=sum(n for name, n in outcomes.items() if name.endswith("admitted")),
        shed=sum(counts.get("sheds", {}).values()),
    )


def _changed(now: Mapping[str, int], then: Mapping[str, int], elapsed: float) -> dict[str, float]:
    found = {name: round((n - then.get(name, 0)) / elapsed, 2) for name, n in now.items()}
    return {name: rate for name, rate in found.items() if rate > 0}


def _columns(points: deque[_Point], now: float) -> dict[str, list[float | None]]:
    earlier = [points[0], *points]
    pairs = list(zip(earlier, points, strict=False))
    return {
        "age_s": [round(now - p.at, 1) for p in points],
        "limit": [p.limit for p in points],
        "inflight": [p.inflight for p in points],
        "waiting": [p.waiting for p in points],
        "engine_queue": [p.engine_queue for p in points],
        "admitted_per_s": [_per_s(a.admitted, b.admitted, b.at - a.at) for a, b in pairs],
        "shed_per_s": [_per_s(a.shed, b.shed, b.at - a.at) for a, b in pairs],
    }


def _per_s(before: int, after: int, elapsed: float) -> float | None:
    return round((after - before) / elapsed, 2) if elapsed > 0 else None
