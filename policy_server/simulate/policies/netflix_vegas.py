"""Vegas of Netflix/concurrency-limits (`VegasLimit.java`), on end-to-end latency or on TPOT.

    queue = ceil(L · (1 − RTT_noload / RTT))     RTT_noload = the least RTT seen
    queue ≤ log10 L:                L += 6 log10 L
    queue < 3 log10 L:              L += log10 L
    queue > 6 log10 L:              L −= log10 L
    every 30 · L · U(.5, 1) samples RTT_noload starts anew                  (the probe)

On model traffic "no load" becomes the shortest answer and the "queue" is answer-length variance;
on the time per token, batching itself reads as a queue.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from policy_server.core.limit.base import WINDOW_S, Change, Reason, WindowSample
from policy_server.core.params import LimitParams

PROBE_MULTIPLIER = 30

Rtt = Callable[[WindowSample], tuple[float, float] | None]
"""(RTT, least RTT) of a window; None = not measured."""


def end_to_end(sample: WindowSample) -> tuple[float, float] | None:
    """The whole answer's latency."""
    if sample.latency_s is None or sample.latency_min_s is None:
        return None
    return sample.latency_s, sample.latency_min_s


def per_token(sample: WindowSample) -> tuple[float, float] | None:
    """The time per output token."""
    return None if sample.tpot_s is None else (sample.tpot_s, sample.tpot_s)


class NetflixVegas:
    """One step per window; minimum ≤ L ≤ maximum."""

    def __init__(self, params: LimitParams, rtt: Rtt, seed: int = 0) -> None:
        self._p, self._rtt, self._rng = params, rtt, Random(seed)
        self._limit = min(max(params.initial, params.minimum), params.maximum)
        self._no_load: float | None = None
        self._samples, self._jitter = 0, self._rng.uniform(0.5, 1.0)

    @property
    def current(self) -> float:
        """The limit now."""
        return self._limit

    @property
    def window_s(self) -> float:
        """The least length of a window, seconds."""
        return WINDOW_S

    def on_window(self, sample: WindowSample) -> Change:
        """One Vegas step."""
        measured = self._rtt(sample)
        if measured is None or measured[0] <= 0:
            return Change(self._limit, Reason.HOLD)
        rtt, least = measured
        self._samples += sample.events
        if self._no_load is None or self._samples > self._jitter * PROBE_MULTIPLIER * self._limit:
            self._samples, self._jitter = 0, self._rng.uniform(0.5, 1.0)
            self._no_load = least
            return Change(self._limit, Reason.PROBE)
        self._no_load = min(self._no_load, least)
        if sample.peak_inflight * 2 < self._limit:
            return Change(self._limit, Reason.HOLD)
        return self._move(math.ceil(self._limit * (1 - self._no_load / rtt)))

    def _move(self, queue: int) -> Change:
        step = max(1.0, math.log10(max(self._limit, 1.0)))
        before = self._limit
        if queue <= step:
            self._limit += 6 * step
        elif queue < 3 * step:
            self._limit += step
        elif queue > 6 * step:
            self._limit -= step
        self._limit = min(max(self._limit, self._p.minimum), self._p.maximum)
        reason = Reason.GROW if self._limit > before else Reason.QUEUE
        return Change(self._limit, Reason.HOLD if self._limit == before else reason)

    def reconfigure(self, params: LimitParams) -> None:
        """New bounds; what was learned stays."""
        self._p = params

    def rescale(self, factor: float) -> None:
        """More or fewer replicas."""
        self._limit = min(max(self._limit * factor, self._p.minimum), self._p.maximum)

    def state(self) -> dict[str, float]:
        """The limit."""
        return {"limit": self._limit}

    def restore(self, state: dict[str, float]) -> None:
        """Start where it was."""
        self._limit = state.get("limit", self._limit)
