"""What most gateways do: nothing, or a fixed limit with one line for everybody.

The controls against which classes, shares and early drop have to prove themselves.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from policy_server.core.events import Admitted, Cancelled, Event, LeaseEnded, Shed
from policy_server.core.outcome import LeaseEnd, ShedReason
from policy_server.core.request import Priority, Request
from policy_server.core.samples import Completion
from policy_server.simulate.gate import PlainGate

RATE_MEMORY_S = 20.0
PHI = 0.9
RETRY_AFTER_S = 1.0


class OpenGate(PlainGate):
    """No control: everything goes at once."""

    def submit(self, request: Request, now: float) -> list[Event]:
        """Go."""
        return [Admitted(request, 0.0, queued=False, observe=False)]

    def complete(self, uid: str, completion: Completion, now: float) -> list[Event]:
        """Nobody waits for it."""
        return []

    def limit_now(self) -> float:
        """There is none."""
        return math.inf


class FifoGate(PlainGate):
    """A fixed limit and one first-come-first-served line over all classes.

    With `early_drop`, a newcomer whose predicted wait exceeds .9 of its budget is refused and one
    whose deadline has passed is not sent; without it everybody waits until it goes or leaves.
    """

    def __init__(self, limit: float, early_drop: bool, max_waiting: int = 10_000) -> None:
        self._limit, self._early_drop, self._max_waiting = limit, early_drop, max_waiting
        self._line: deque[Request] = deque()
        self._gone: set[str] = set()
        self._leases: dict[str, tuple[Request, float]] = {}
        self._ends: deque[float] = deque()
        self._waiting = [0] * len(Priority)

    def submit(self, request: Request, now: float) -> list[Event]:
        """Go, wait at the end of the line, or come back later."""
        if len(self._leases) < self._limit and not self._line:
            return [self._admit(request, now)]
        full = sum(self._waiting) >= self._max_waiting
        if full or (self._early_drop and self._predicted_s(now) > PHI * request.budget_s):
            reason = ShedReason.ROOM_FULL if full else ShedReason.PREDICTED_WAIT
            return [Shed(request, reason, RETRY_AFTER_S, 0.0, evicted=False)]
        self._line.append(request)
        self._waiting[request.priority] += 1
        return []

    def cancel(self, uid: str, now: float) -> list[Event]:
        """Its place stays in the line as a gap."""
        self._gone.add(uid)
        for request in self._line:
            if request.uid == uid:
                self._waiting[request.priority] -= 1
                return [Cancelled(request, now - request.arrived)]
        return []

    def complete(self, uid: str, completion: Completion, now: float) -> list[Event]:
        """A slot came free."""
        lease = self._leases.pop(uid, None)
        if lease is None:
            return []  # of before a restart
        request, since = lease
        self._ends.append(now)
        events: list[Event] = [LeaseEnded(request, LeaseEnd.COMPLETED, now - since)]
        while self._line and len(self._leases) < self._limit:
            head = self._line.popleft()
            if head.uid in self._gone:
                self._gone.discard(head.uid)
                continue
            self._waiting[head.priority] -= 1
            wait = now - head.arrived
            if self._early_drop and head.deadline <= now:
                events.append(Shed(head, ShedReason.DEADLINE, RETRY_AFTER_S, wait, evicted=True))
            else:
                events.append(self._admit(head, now))
        return events

    def limit_now(self) -> float:
        """The fixed limit."""
        return self._limit

    def waiting_now(self) -> Sequence[int]:
        """Waiting requests by class."""
        return tuple(self._waiting)

    def _admit(self, request: Request, now: float) -> Admitted:
        self._leases[request.uid] = (request, now)
        wait = now - request.arrived
        return Admitted(request, wait, queued=wait > 0, observe=False)

    def _predicted_s(self, now: float) -> float:
        while self._ends and self._ends[0] < now - RATE_MEMORY_S:
            self._ends.popleft()
        span = min(RATE_MEMORY_S, now - self._ends[0]) if self._ends else 0.0
        if span < 1.0:
            return 0.0
        return (sum(self._waiting) + 1) * span / len(self._ends)
