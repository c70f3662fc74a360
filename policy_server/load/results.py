"""The figures of a run, computed from its records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from policy_server.load.attempt import End
from policy_server.load.params import LoadParams
from policy_server.load.tally import Record, Tally

NO_CLASS = "-"


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Nearest-rank percentiles of `count` values; None when there are none."""

    count: int
    p50: float | None
    p90: float | None
    p99: float | None

    @classmethod
    def of(cls, values: Iterable[float]) -> Quantiles:
        """Percentiles of any values."""
        ordered = sorted(values)
        return cls(len(ordered), *(nearest_rank(ordered, q) for q in (0.5, 0.9, 0.99)))


@dataclass(frozen=True, slots=True)
class Summary:
    """Requests scheduled inside a window (one class or all); seconds from the scheduled moment.

    sent = served + shed_429 + http_5xx + other_status + error + incomplete + unfinished.
    """

    sent: int
    ends: dict[str, int]
    attempts: int
    served_share: float
    ttft_s: Quantiles
    e2e_s: Quantiles
    queue_wait_ms: Quantiles

    @classmethod
    def of(cls, records: Sequence[Record]) -> Summary:
        """Summarise records; latencies of served requests only (TTFT of all that began)."""
        ends = Counter(record.end for record in records)
        served = [record for record in records if record.end is End.SERVED]
        return cls(
            sent=len(records),
            ends={end.value: ends[end] for end in End},
            attempts=sum(record.attempts for record in records),
            served_share=len(served) / len(records) if records else 0.0,
            ttft_s=Quantiles.of(r.ttft_s for r in records if r.ttft_s is not None),
            e2e_s=Quantiles.of(r.e2e_s for r in served),
            queue_wait_ms=Quantiles.of(
                r.queue_wait_ms for r in records if r.queue_wait_ms is not None
            ),
        )


@dataclass(frozen=True, slots=True)
class Window:
    """One part of the run. Goodput counts complete answers that *ended* inside the window.

    begin_s, end_s  on the run's clock; goodput_rps  requests/s; goodput_tps  tokens/s.
    """

    begin_s: float
    end_s: float
    goodput_rps: float
    goodput_tps: float
    total: Summary
    classes: dict[str, Summary]

    @classmethod
    def of(cls, records: Sequence[Record], begin_s: float, end_s: float) -> Window:
        """Cut a window out of all records."""
        inside = [r for r in records if begin_s <= r.arrival.at_s <= end_s]
        good = [r for r in records if r.end is End.SERVED and begin_s <= r.ended_s <= end_s]
        names = sorted({record.arrival.priority for record in inside})
        return cls(
            begin_s=begin_s,
            end_s=end_s,
            goodput_rps=len(good) / (end_s - begin_s),
            goodput_tps=sum(record.tokens for record in good) / (end_s - begin_s),
            total=Summary.of(inside),
            classes={
                class_name(name): Summary.of([r for r in inside if r.arrival.priority == name])
                for name in names
            },
        )


@dataclass(frozen=True, slots=True)
class Second:
    """One second of the run: arrivals by schedule, the rest by when it happened."""

    second: int
    sent: int
    served: int
    tokens: int
    shed: int
    failed: int


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a run showed.

    refusals  attempts refused, by class and `status reason`; malformed  of them, against the
    contract; errors  counts by kind; duration_s  with the drain; late_s  the worst delay of the
    generator itself against its schedule (part of every latency).
    """

    params: LoadParams
    overall: Window
    measured: Window
    refusals: dict[str, dict[str, int]]
    refused_attempts: int
    malformed: int
    malformed_examples: list[str]
    errors: dict[str, int]
    tenants: dict[str, dict[str, int]]
    timeline: list[Second]
    duration_s: float
    late_s: float

    @property
    def offered_rps(self) -> float:
        """Requests per second that were really sent."""
        return self.overall.total.sent / self.params.seconds

    @property
    def broken(self) -> str:
        """The commonest error when no request got any answer, else ""."""
        total = self.overall.total
        alone = total.sent > 0 and total.ends[End.ERROR.value] == total.sent
        return next(iter(self.errors), "unknown") if alone else ""

    def as_json(self) -> dict[str, object]:
        """Everything as plain dicts, lists and numbers."""
        plain = asdict(self)
        params: dict[str, object] = plain.pop("params")
        params["headers"] = sorted(self.params.headers)  # names only: values may be secrets
        return {"load": params, "offered_rps": self.offered_rps} | plain


def build_report(params: LoadParams, tally: Tally, duration_s: float, late_s: float) -> LoadReport:
    """Compute the report once all requests have ended."""
    return LoadReport(
        params=params,
        overall=Window.of(tally.records, 0.0, params.seconds),
        measured=Window.of(tally.records, params.warmup_s, params.seconds),
        refusals={class_name(name): dict(found) for name, found in sorted(tally.refusals.items())},
        refused_attempts=tally.refused_attempts,
        malformed=tally.malformed,
        malformed_examples=list(tally.malformed_examples),
        errors=dict(tally.errors.most_common()),
        tenants=_tenants(tally.records),
        timeline=_timeline(tally, duration_s),
        duration_s=duration_s,
        late_s=late_s,
    )


def class_name(priority: str) -> str:
    """`P0` for header value `0`; `-` when none was sent."""
    return f"P{priority}" if priority else NO_CLASS


def nearest_rank(ordered: Sequence[float], q: float) -> float | None:
    """The smallest value that at least a share `q` of the (sorted) values does not exceed."""
    if not ordered:
        return None
    rank = -(-len(ordered) * q // 1)
    return ordered[max(0, int(rank) - 1)]


def _tenants(records: Iterable[Record]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for record in records:
        if record.arrival.tenant:
            entry = counts.setdefault(record.arrival.tenant, {"sent": 0, "served": 0, "tokens": 0})
            entry["sent"] += 1
            entry["served"] += record.end is End.SERVED
            entry["tokens"] += record.tokens if record.end is End.SERVED else 0
    return dict(sorted(counts.items()))


def _timeline(tally: Tally, duration_s: float) -> list[Second]:
    sent: Counter[int] = Counter(int(r.arrival.at_s) for r in tally.records)
    served: Counter[int] = Counter()
    tokens: Counter[int] = Counter()
    failed: Counter[int] = Counter()
    for record in tally.records:
        second = int(record.ended_s)
        if record.end is End.SERVED:
            served[second] += 1
            tokens[second] += record.tokens
        elif record.end is not End.SHED:
            failed[second] += 1
    return [
        Second(s, sent[s], served[s], tokens[s], tally.sheds_by_second[s], failed[s])
        for s in range(int(duration_s) + 1)
    ]
