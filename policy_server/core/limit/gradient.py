"""Gradient2 (Netflix concurrency-limits): the ratio of a long to a short latency average.

    g = clamp(1.5 · long / short, .5, 1)      L' = g·L + √L      L = .8 L + .2 L'

short is the window's time per token (else its latency), long its exponential average over about
600 windows, decayed when it stands far above short. A long average follows a lasting overload
upwards, so the limit may drift to its maximum; kept for comparison and for services of equal
answers. Bound: a window that did not reach half of the limit changes nothing.
"""

from __future__ import annotations

import math

from policy_server.core.limit.base import WINDOW_S, Change, Reason, WindowSample
from policy_server.core.params import LimitParams

TOLERANCE = 1.5
SMOOTHING = 0.2
LONG_WINDOWS = 600


class Gradient:
    """Gradient2 on TPOT or latency; minimum ≤ L ≤ maximum."""

    def __init__(self, params: LimitParams) -> None:
        self._p = params
        self._limit = min(max(params.initial, params.minimum), params.maximum)
        self._long: float | None = None

    @property
    def current(self) -> float:
        """The limit now, seats."""
        return self._limit

    @property
    def window_s(self) -> float:
        """The least length of a window, seconds."""
        return WINDOW_S

    def on_window(self, sample: WindowSample) -> Change:
        """One gradient step."""
        short = sample.tpot_s if sample.tpot_s is not None else sample.latency_s
        if short is None or short <= 0.0:
            return Change(self._limit, Reason.HOLD)
        weight = 2.0 / (LONG_WINDOWS + 1)
        long = short if self._long is None else self._long + weight * (short - self._long)
        self._long = long * 0.95 if long > 2.0 * short else long
        if sample.peak_inflight < self._limit / 2.0:
            return Change(self._limit, Reason.HOLD)
        gradient = min(max(TOLERANCE * long / short, 0.5), 1.0)
        goal = gradient * self._limit + math.sqrt(self._limit)
        moved = (1.0 - SMOOTHING) * self._limit + SMOOTHING * goal
        before, self._limit = self._limit, min(max(moved, self._p.minimum), self._p.maximum)
        return Change(self._limit, Reason.GROW if self._limit >= before else Reason.DELAY)

    def reconfigure(self, params: LimitParams) -> None:
        """New bounds and targets; what was learned stays."""
        self._p = params
        self._limit = min(max(self._limit, params.minimum), params.maximum)

    def rescale(self, factor: float) -> None:
        """More or fewer replicas."""
        self._limit = min(max(self._limit * factor, self._p.minimum), self._p.maximum)

    def state(self) -> dict[str, float]:
        """The limit and the long average."""
        return {"limit": self._limit, "long": self._long or 0.0}

    def restore(self, state: dict[str, float]) -> None:
        """Start at half of the saved limit, the average whole."""
        half = 0.5 * state.get("limit", 2.0 * self._limit)
        self._limit = min(max(half, self._p.minimum), self._p.maximum)
        self._long = state.get("long") or None
