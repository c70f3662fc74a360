"""One line per decision that someone will ask about: every shed, some of the admitted.

A line costs some 10 µs on the event loop, so everything here is bounded per second:
- sheds: each class has a budget of 200 lines per second of its own, so that a storm of P2 never
  hides why a P0 was shed. What exceeds it is left out, and a `shed_suppressed` line per class and
  second says how many. Up to that rate every shed is found by its request id; above it the answer
  itself still carries the reason (`x-policy-reason`).
- admitted and cancelled: 1 % chosen by a hash of the uid, at most 20 per second.
- limits: when the limit has moved by more than 5 % since the last line, or for another reason.
- expired leases: each, at most 200 per second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

from structlog.typing import FilteringBoundLogger

from policy_server.core.events import (
    Admitted,
    Cancelled,
    Event,
    LeaseEnded,
    LimitChanged,
    Shed,
)
from policy_server.core.limit.base import Reason
from policy_server.core.outcome import LeaseEnd, Outcome
from policy_server.core.request import PRIORITIES, Request

WINDOW_S = 1.0
HASH_RANGE = 2**32  # of crc32


@dataclass(frozen=True, slots=True)
class LogLimits:
    """How much may be written. Shares in 0..1."""

    sheds_per_s: int = 200  # a class; 3 × 200 × 10 µs is 0.6 % of the loop
    admitted_share: float = 0.01
    admitted_per_s: int = 20
    expired_per_s: int = 200
    limit_step: float = 0.05


class Budget:
    """So many lines per window; counts what it refused."""

    __slots__ = ("_lines", "_used", "refused")

    def __init__(self, lines: int) -> None:
        self._lines = lines
        self._used = 0
        self.refused = 0

    def take(self) -> bool:
        """Whether one more may be written."""
        if self._used < self._lines:
            self._used += 1
            return True
        self.refused += 1
        return False

    def renew(self) -> int:
        """Start a new window; how many were refused in the old one."""
        refused, self.refused, self._used = self.refused, 0, 0
        return refused


class DecisionLog:
    """Subscribes to the core's events.

    `request_id_of` gives the `x-request-id` of a uid ("" if unknown); it is asked while the event
    is handled. Call `tick` about once a second, or a storm's last count waits for the next event.
    """

    def __init__(
        self,
        logger: FilteringBoundLogger,
        request_id_of: Callable[[str], str],
        limits: LogLimits | None = None,
    ) -> None:
        self._logger = logger
        self._request_id_of = request_id_of
        self._limits = limits or LogLimits()
        self._sampled_below = int(self._limits.admitted_share * HASH_RANGE)
        self._sheds = [Budget(self._limits.sheds_per_s) for _ in PRIORITIES]
        self._admitted = Budget(self._limits.admitted_per_s)
        self._expired = Budget(self._limits.expired_per_s)
        self._window_end = float("-inf")
        self._last_limit: dict[str, tuple[float, Reason]] = {}

    def on_event(self, event: Event, now: float) -> None:
        """Write the event's line if it has one and the budget allows it."""
        if now >= self._window_end:
            self.tick(now)
        if isinstance(event, Admitted):
            if not event.resent:
                outcome = Outcome.QUEUED_ADMITTED if event.queued else Outcome.ADMITTED
                self._sampled(event.request, outcome, event.wait_s)
        elif isinstance(event, LeaseEnded):
            if event.how is LeaseEnd.EXPIRED and self._expired.take():
                self._logger.warning(
                    "lease_expired", held_s=round(event.held_s, 1), **self._who(event.request)
                )
        elif isinstance(event, Shed):
            if not event.request.or_job and self._sheds[event.request.priority].take():
                self._shed(event)
        elif isinstance(event, Cancelled):
            self._sampled(event.request, Outcome.CANCELLED, event.wait_s)
        elif isinstance(event, LimitChanged):
            self._limit_changed(event)

    def tick(self, now: float) -> None:
        """Close the second that is over: say what was left out, renew the budgets."""
        if now < self._window_end:
            return
        self._window_end = now + WINDOW_S
        self._admitted.renew()
        for priority, budget in zip(PRIORITIES, self._sheds, strict=True):
            if refused := budget.renew():
                self._logger.info("shed_suppressed", **{"class": priority.name}, suppressed=refused)
        if refused := self._expired.renew():
            self._logger.warning("lease_expired_suppressed", suppressed=refused)

    def _shed(self, event: Shed) -> None:
        self._logger.info(
            "request",
            outcome=Outcome.SHED.value,
            reason=event.reason.value,
            wait_ms=round(event.wait_s * 1000, 1),
            retry_after_s=round(event.retry_after_s, 1),
            budget_s=round(event.request.budget_s, 1),
            predicted_wait_s=_rounded(event.predicted_wait_s),
            should_retry=event.should_retry,
            returning=event.request.returning,
            tenant=event.request.tenant,
            **self._who(event.request),
        )

    def _sampled(self, request: Request, outcome: Outcome, wait_s: float) -> None:
        if crc32(request.uid.encode()) < self._sampled_below and self._admitted.take():
            self._logger.info(
                "request",
                outcome=outcome.value,
                wait_ms=round(wait_s * 1000, 1),
                **self._who(request),
            )

    def _limit_changed(self, event: LimitChanged) -> None:
        limit, reason = event.change.limit, event.change.reason
        written, last_reason = self._last_limit.get(event.pool, (event.previous, None))
        moved = abs(limit - written) > self._limits.limit_step * written
        if reason is Reason.HOLD or not (moved or reason is not last_reason):
            return
        self._last_limit[event.pool] = (limit, reason)
        self._logger.info(
            "limit_changed",
            pool=event.pool,
            limit=round(limit, 2),
            previous=round(written, 2),
            reason=reason.value,
        )

    def _who(self, request: Request) -> dict[str, str]:
        return {
            "uid": request.uid,
            "request_id": self._request_id_of(request.uid),
            "pool": request.pool,
            "class": request.priority.name,
        }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
