"""Envoy's adaptive_concurrency filter (`gradient_controller.cc`), with its default settings.

    every 60 s (and a jitter): the limit falls to 3 until 50 answers gave a new minRTT (p50)
    every 100 ms with ≥ 5 answers:  g = clamp(minRTT·(1 + .25) / sampleRTT(p50), .5, 2)
                                    L = g·L + √(g·L),  3 ≤ L ≤ 1000
    a request above the limit gets 503 at once: there is no waiting room

Measured on whole answers, as Envoy does. A window that is short of answers stays open. After five
windows in a row at the least limit the minRTT is measured anew, as in Envoy.
"""

from __future__ import annotations

import math
from random import Random

from policy_server.core.events import Admitted, Event, LeaseEnded, LimitChanged, Shed
from policy_server.core.limit.base import Change, Reason
from policy_server.core.outcome import LeaseEnd, ShedReason
from policy_server.core.request import Request
from policy_server.core.samples import Completion
from policy_server.simulate.gate import POOL, PlainGate
from policy_server.simulate.record import quantile

MIN_RTT_EVERY_S = 60.0
MIN_RTT_JITTER = 0.15
MIN_RTT_ANSWERS = 50
MIN_LIMIT = 3.0
MAX_LIMIT = 1000.0
BUFFER = 0.25
WINDOW_S = 0.1
MIN_ANSWERS = 5
AT_LEAST_WINDOWS = 5
RETRY_AFTER_S = 1.0


class EnvoyGradientGate(PlainGate):
    """The filter as a gate; it never holds a request."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._limit = MIN_LIMIT
        self._leases: dict[str, tuple[Request, float]] = {}
        self._samples: list[float] = []
        self._min_rtt: float | None = None  # None = being measured
        self._window_ends = self._min_rtt_due = 0.0
        self._at_least = 0
        self._saved = MIN_LIMIT

    def submit(self, request: Request, now: float) -> list[Event]:
        """Go or be refused."""
        if len(self._leases) >= int(self._limit):
            return [Shed(request, ShedReason.OVERLOADED, RETRY_AFTER_S, 0.0, evicted=False)]
        self._leases[request.uid] = (request, now)
        return [Admitted(request, 0.0, queued=False, observe=False)]

    def complete(self, uid: str, completion: Completion, now: float) -> list[Event]:
        """One more latency sample, unless its client left."""
        lease = self._leases.pop(uid, None)
        if lease is None:
            return []
        request, since = lease
        events: list[Event] = [LeaseEnded(request, LeaseEnd.COMPLETED, now - since)]
        if not completion.client_gone and completion.status == 200:
            self._samples.append(now - since)
            before, limit = self._limit, self._update(now)
            if limit != before:
                events.append(LimitChanged(POOL, before, Change(limit, Reason.HOLD)))
        return events

    def limit_now(self) -> float:
        """The limit now."""
        return self._limit

    def _update(self, now: float) -> float:
        if self._min_rtt is None:
            if len(self._samples) >= MIN_RTT_ANSWERS:
                self._min_rtt = quantile(self._samples, 0.5)
                self._limit = self._saved
                jitter = 1.0 + MIN_RTT_JITTER * self._rng.random()
                self._min_rtt_due = now + MIN_RTT_EVERY_S * jitter
                self._close(now)
        elif now >= self._min_rtt_due:
            self._measure(now)
        elif now >= self._window_ends and len(self._samples) >= MIN_ANSWERS:
            self._step(now, self._min_rtt)
        return self._limit

    def _step(self, now: float, min_rtt: float) -> None:
        gradient = min(2.0, max(0.5, min_rtt * (1 + BUFFER) / quantile(self._samples, 0.5)))
        moved = gradient * self._limit
        self._limit = min(MAX_LIMIT, max(MIN_LIMIT, moved + math.sqrt(moved)))
        self._close(now)
        self._at_least = self._at_least + 1 if self._limit <= MIN_LIMIT else 0
        if self._at_least >= AT_LEAST_WINDOWS:
            self._measure(now)

    def _measure(self, now: float) -> None:
        self._min_rtt, self._at_least = None, 0
        self._saved, self._limit = self._limit, MIN_LIMIT
        self._close(now)

    def _close(self, now: float) -> None:
        self._samples.clear()
        self._window_ends = now + WINDOW_S
