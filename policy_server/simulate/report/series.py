"""Turns a result into the lines of the report's charts and the rows of its table."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from policy_server.core.request import PRIORITIES, Priority
from policy_server.simulate.record import CallRecord, Result, quantile
from policy_server.simulate.report.svg import Point, Series

BINS = 60


def bin_s(result: Result) -> float:
    """Width of the bins, seconds: whole, about `BINS` of them."""
    return max(1.0, float(math.ceil(result.duration_s / BINS)))


def limit_series(result: Result) -> list[Series]:
    """The limit over what is in flight."""
    limit = [(t.at, t.limit) for t in result.ticks if math.isfinite(t.limit)]
    inflight = [(t.at, float(t.inflight)) for t in result.ticks]
    lines = [Series("in flight", "inflight", inflight, area=True)]
    return [*lines, Series("limit", "limit", limit)] if limit else lines


def engine_series(result: Result) -> list[Series]:
    """What waits inside the engine."""
    return [Series("queued", "queue", [(t.at, float(t.engine_queue)) for t in result.ticks], True)]


def waiting_series(result: Result) -> list[Series]:
    """Requests that the gateway holds, by class."""
    return [
        Series(p.name, p.name, [(t.at, float(t.waiting[p])) for t in result.ticks])
        for p in PRIORITIES
    ]


def goodput_series(result: Result) -> list[Series]:
    """Useful tokens per second, by class."""
    return [
        Series(p.name, p.name, _binned(result, _ended_usefully(p), lambda c: float(c.tokens)))
        for p in PRIORITIES
    ]


def wait_series(result: Result) -> list[Series]:
    """The p95 of the wait in the gateway, by class, over the calls that were admitted."""
    return [Series(p.name, p.name, _wait_points(result, p)) for p in PRIORITIES]


def shed_series(result: Result) -> list[Series]:
    """Refused attempts per second, by class."""
    width = bin_s(result)
    lines = []
    for priority in PRIORITIES:
        counts = [0.0] * (int(result.duration_s / width) + 1)
        for shed in result.sheds:
            if shed.priority is priority:
                counts[int(shed.at / width)] += 1 / width
        lines.append(Series(priority.name, priority.name, _centred(counts, width)))
    return lines


def _ended_usefully(priority: Priority) -> Callable[[CallRecord], float | None]:
    return lambda c: c.ended if c.useful and c.priority is priority else None


def _binned(
    result: Result,
    when: Callable[[CallRecord], float | None],
    weight: Callable[[CallRecord], float],
) -> list[Point]:
    width = bin_s(result)
    sums = [0.0] * (int(result.duration_s / width) + 1)
    for call in result.calls:
        at = when(call)
        if at is not None:
            sums[int(at / width)] += weight(call) / width
    return _centred(sums, width)


def _centred(values: list[float], width: float) -> list[Point]:
    # The last bin is cut off by the end of the run and would look like a collapse.
    return [((index + 0.5) * width, value) for index, value in enumerate(values[:-1])]


def _wait_points(result: Result, priority: Priority) -> list[Point]:
    width = bin_s(result)
    bins: list[list[float]] = [[] for _ in range(int(result.duration_s / width) + 1)]
    for call in result.calls:
        if call.priority is priority and call.dispatched is not None:
            bins[int(call.arrived / width)].append(call.wait_s)
    points = [quantile(waits, 0.95) if waits else math.nan for waits in bins]
    return _centred(points, width)


@dataclass(frozen=True, slots=True)
class ClassRow:
    """How one class fared. Shares 0..1, seconds; `ttft_s` is None when nobody got a token."""

    priority: Priority
    calls: int
    served: float
    refused: float
    wait_p99_s: float | None
    ttft_p99_s: float | None
    attempts: float


@dataclass(frozen=True, slots=True)
class Summary:
    """How one policy fared: useful tokens/s, and each class."""

    policy: str
    goodput: float
    classes: tuple[ClassRow, ...]


def summarize(result: Result, start: float, end: float) -> Summary:
    """Over the calls that came within [start, end)."""
    rows = []
    for priority in PRIORITIES:
        calls = result.arrived(start, end, priority)
        if not calls:
            continue
        waits, ttfts = (f(start, end, priority) for f in (result.waits, result.ttfts))
        rows.append(
            ClassRow(
                priority=priority,
                calls=len(calls),
                served=result.served_share(start, end, priority),
                refused=result.refused_share(start, end, priority),
                wait_p99_s=quantile(waits, 0.99) if waits else None,
                ttft_p99_s=quantile(ttfts, 0.99) if ttfts else None,
                attempts=sum(call.attempts for call in calls) / len(calls),
            )
        )
    return Summary(result.policy, result.goodput(start, end), tuple(rows))
