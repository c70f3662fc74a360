"""What happened in a run, and the questions that a bar or a report asks about it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from policy_server.core.outcome import ShedReason
from policy_server.core.request import Priority


class End(Enum):
    """How one call ended, as its client sees it."""

    SERVED = "served"
    REFUSED = "refused"  # the last attempt was shed
    FAILED = "failed"  # the engine died under it
    LEFT = "left"  # its client gave up


@dataclass(slots=True, eq=False)
class CallRecord:
    """One call. Seconds; `ended` is None while it is under way.

    `wait_s` is the room's wait of the admitted attempt, `ttft_s` counts from the arrival of that
    attempt, `engine_ttft_s` from its dispatch. `useful` = served within the engine's objectives.
    """

    arrived: float
    priority: Priority
    tenant: str
    attempts: int = 1
    first_try: bool = False
    ended: float | None = None
    end: End | None = None
    reason: ShedReason | None = None
    dispatched: float | None = None
    wait_s: float = 0.0
    ttft_s: float | None = None
    engine_ttft_s: float | None = None
    tpot_s: float | None = None
    evicted: bool = False  # the refused attempt had waited in the room
    useful: bool = False
    tokens: int = 0


@dataclass(slots=True)
class Tick:
    """The state at one moment; counts of requests, `limit` in seats."""

    at: float
    limit: float
    inflight: int
    engine_queue: int
    engine_running: int
    waiting: tuple[int, ...]


@dataclass(slots=True)
class ShedRecord:
    """One refused attempt."""

    at: float
    priority: Priority
    reason: ShedReason
    retry_after_s: float
    evicted: bool
    should_retry: bool
    returning: bool


@dataclass(frozen=True, slots=True)
class Return:
    """A client that came back as told, and whether it was admitted then."""

    at: float
    priority: Priority
    admitted: bool


@dataclass(slots=True)
class LimitMove:
    """The limit moved."""

    at: float
    previous: float
    limit: float
    reason: str


@dataclass(slots=True)
class Result:
    """Everything that a run recorded."""

    policy: str
    seed: int
    duration_s: float
    calls: list[CallRecord] = field(default_factory=list)
    ticks: list[Tick] = field(default_factory=list)
    sheds: list[ShedRecord] = field(default_factory=list)
    moves: list[LimitMove] = field(default_factory=list)
    learned: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    returns: list[Return] = field(default_factory=list)
    replicas: list[tuple[float, int, int]] = field(default_factory=list)  # at, asked for, ready
    inflight_at_end: int = 0
    leases_at_end: int = 0
    open_at_end: int = 0  # attempts that wait or are under way
    run_twice: int = 0
    log: list[str] = field(default_factory=list)

    # --- goodput

    def goodput(self, start: float, end: float, priority: Priority | None = None) -> float:
        """Useful tokens per second of the answers that ended within [start, end)."""
        count = sum(
            call.tokens
            for call in self.calls
            if call.useful and call.ended is not None and start <= call.ended < end
            if priority is None or call.priority is priority
        )
        return count / (end - start)

    def arrived(
        self, start: float, end: float, priority: Priority | None = None
    ) -> list[CallRecord]:
        """Calls that came within [start, end)."""
        return [
            call
            for call in self.calls
            if start <= call.arrived < end and (priority is None or call.priority is priority)
        ]

    def answered_share(self, start: float, end: float, priority: Priority | None = None) -> float:
        """Share of the calls that came within [start, end) and got an answer, useful or late."""
        calls = self.arrived(start, end, priority)
        return sum(c.end is End.SERVED for c in calls) / len(calls) if calls else 1.0

    def served_share(self, start: float, end: float, priority: Priority | None = None) -> float:
        """Share of the calls that came within [start, end) and got a useful answer; 1 when none."""
        calls = self.arrived(start, end, priority)
        return sum(c.useful for c in calls) / len(calls) if calls else 1.0

    def refused_share(self, start: float, end: float, priority: Priority | None = None) -> float:
        """Share of the calls that came within [start, end) and were refused for good."""
        calls = self.arrived(start, end, priority)
        return sum(c.end is End.REFUSED for c in calls) / len(calls) if calls else 0.0

    # --- waits

    def waits(self, start: float, end: float, priority: Priority | None = None) -> list[float]:
        """Room waits of the calls that came within [start, end) and were admitted, seconds."""
        calls = self.arrived(start, end, priority)
        return [call.wait_s for call in calls if call.dispatched is not None]

    def ttfts(self, start: float, end: float, priority: Priority | None = None) -> list[float]:
        """Times to the first token of the calls that came within [start, end), seconds."""
        return [c.ttft_s for c in self.arrived(start, end, priority) if c.ttft_s is not None]

    # --- the limit

    def limits(self, start: float, end: float) -> list[float]:
        """The limit once a second within [start, end)."""
        return [tick.limit for tick in self.ticks if start <= tick.at < end]

    def limit_at(self, when: float) -> float:
        """The limit at the last tick up to `when`."""
        return next((t.limit for t in reversed(self.ticks) if t.at <= when), math.nan)


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile (nearest rank); 0 when there are no values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(q * len(ordered)) - 1))]


def mean(values: Iterable[float]) -> float:
    """The mean; 0 when there are no values."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0


def spread(values: Sequence[float]) -> float:
    """(max − min) / mean; 0 when there are no values."""
    centre = mean(values)
    return (max(values) - min(values)) / centre if centre else 0.0


def variation(values: Sequence[float]) -> float:
    """Standard deviation over mean; 0 when there are no values."""
    centre = mean(values)
    return math.sqrt(mean((v - centre) ** 2 for v in values)) / centre if centre else 0.0


def jain(values: Sequence[float]) -> float:
    """Jain's fairness index, 1/n..1; 1 when there are no values."""
    squares = sum(v * v for v in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
