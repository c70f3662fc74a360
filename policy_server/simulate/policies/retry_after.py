"""The product with another Retry-After: the controls of the bookings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from policy_server.core.events import Event, Shed
from policy_server.core.request import Request
from policy_server.core.samples import Completion, LoadReport, Usage
from policy_server.simulate.gate import CoreGate


class RetryAfterGate:
    """Passes everything on and rewrites the promise of each refusal."""

    def __init__(
        self,
        gate: CoreGate,
        seconds: Callable[[Random], float],
        rng: Random,
        should_retry: bool = True,
    ) -> None:
        self._gate, self._seconds, self._rng = gate, seconds, rng
        self._should_retry = should_retry

    def submit(self, request: Request, now: float) -> list[Event]:
        """A request arrives."""
        return self._rewrite(self._gate.submit(request, now))

    def cancel(self, uid: str, now: float) -> list[Event]:
        """Its client left while it waited."""
        return self._rewrite(self._gate.cancel(uid, now))

    def complete(self, uid: str, completion: Completion, now: float) -> list[Event]:
        """Its answer ended."""
        return self._rewrite(self._gate.complete(uid, completion, now))

    def handle_timer(self, now: float) -> list[Event]:
        """A timer is due."""
        return self._rewrite(self._gate.handle_timer(now))

    def next_timer(self) -> float | None:
        """When `handle_timer` wants to be called."""
        return self._gate.next_timer()

    def first_token(self, uid: str, now: float) -> None:
        """An observed answer began."""
        self._gate.first_token(uid, now)

    def tokens(self, uid: str, count: int, now: float) -> None:
        """More tokens of an observed answer."""
        self._gate.tokens(uid, count, now)

    def usage(self, uid: str, usage: Usage) -> None:
        """An observed answer told its token counts."""
        self._gate.usage(uid, usage)

    def heartbeat(self, uid: str, node: str, now: float) -> None:
        """An answer is under way."""
        self._gate.heartbeat(uid, node, now)

    def load_report(self, pool: str, source: str, report: LoadReport, now: float) -> None:
        """An engine says how it is."""
        self._gate.load_report(pool, source, report, now)

    def limit_now(self) -> float:
        """The limit, seats."""
        return self._gate.limit_now()

    def waiting_now(self) -> Sequence[int]:
        """Waiting requests by class."""
        return self._gate.waiting_now()

    def leases_now(self) -> int:
        """Slots in use."""
        return self._gate.leases_now()

    def learned_now(self) -> dict[str, float]:
        """The baselines."""
        return self._gate.learned_now()

    def _rewrite(self, events: list[Event]) -> list[Event]:
        return [
            replace(
                event,
                retry_after_s=self._seconds(self._rng),
                should_retry=self._should_retry,
            )
            if isinstance(event, Shed)
            else event
            for event in events
        ]
