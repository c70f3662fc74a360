"""Additive increase, multiplicative decrease on a latency target (Chiu & Jain 1989).

    T > target, or upstream errors above a tenth:   L *= .9
    the limit was reached:                          L += 1

T is the time per output token where answers have tokens, else the whole time of an answer; the
target is the SLO for tokens, else twice the unloaded value. Of whole answers that is the slow
minimum (baselines.py) of the windows' means: the least answer of all is the shortest one, not the
unloaded one. A TTFT above its SLO is above the target, too.

Blind to queues in front of the decode: choose it only where the engine has none (see algorithms.md
§1 for the figures). One that has been overloaded ever since the start is taken to be that slow.
"""

from __future__ import annotations

from policy_server.core.limit.base import WINDOW_S, Change, Reason, WindowSample
from policy_server.core.limit.baselines import Baseline
from policy_server.core.params import LimitParams

DECREASE = 0.9
TARGET_FACTOR = 2.0
ERROR_SHARE = 0.1


class Aimd:
    """The classic; minimum ≤ L ≤ maximum."""

    def __init__(self, params: LimitParams) -> None:
        self._p = params
        self._limit = min(max(params.initial, params.minimum), params.maximum)
        self._unloaded: Baseline | None = None  # mean time of whole answers

    @property
    def current(self) -> float:
        """The limit now, seats."""
        return self._limit

    @property
    def window_s(self) -> float:
        """The least length of a window, seconds."""
        return WINDOW_S

    def on_window(self, sample: WindowSample) -> Change:
        """Cut by a tenth above the target, else add one seat when the limit was reached."""
        reason = self._reason_to_cut(sample)
        self._learn(sample)
        if reason is not None:
            self._limit = max(self._limit * DECREASE, self._p.minimum)
            return Change(self._limit, reason)
        if sample.bound and sample.events:
            self._limit = min(self._limit + 1.0, self._p.maximum)
            return Change(self._limit, Reason.GROW)
        return Change(self._limit, Reason.HOLD)

    def _reason_to_cut(self, s: WindowSample) -> Reason | None:
        if s.error_share > ERROR_SHARE:
            return Reason.UPSTREAM_ERROR
        slo_ttft_s = self._p.slo_ttft_s
        if slo_ttft_s and s.delay_s is not None and s.base_s + s.delay_s > slo_ttft_s:
            return Reason.DELAY
        if s.tpot_s is not None and s.tpot_unloaded_s is not None:
            target = self._p.slo_tpot_s or TARGET_FACTOR * s.tpot_unloaded_s
            return Reason.TPOT if s.tpot_s > target else None
        if s.latency_s is not None and self._unloaded is not None:
            target = TARGET_FACTOR * self._unloaded.value
            return Reason.DELAY if s.latency_s > target else None
        return None

    def _learn(self, s: WindowSample) -> None:
        if s.latency_s is None or s.latency_s <= 0.0:
            return
        if self._unloaded is None:
            self._unloaded = Baseline(s.latency_s, s.latency_s, s.now)
        else:
            self._unloaded.update(s.latency_s, s.now)

    def reconfigure(self, params: LimitParams) -> None:
        """New bounds and targets; what was learned stays."""
        self._p = params
        self._limit = min(max(self._limit, params.minimum), params.maximum)

    def rescale(self, factor: float) -> None:
        """More or fewer replicas."""
        self._limit = min(max(self._limit * factor, self._p.minimum), self._p.maximum)

    def state(self) -> dict[str, float]:
        """The limit, and what an unloaded answer takes."""
        state = {"limit": self._limit}
        if self._unloaded is not None:
            state.update(latency=self._unloaded.value, proof=self._unloaded.proof)
        return state

    def restore(self, state: dict[str, float]) -> None:
        """Start at half of the saved limit, the rest whole."""
        half = 0.5 * state.get("limit", 2.0 * self._limit)
        self._limit = min(max(half, self._p.minimum), self._p.maximum)
        latency, proof = state.get("latency", 0.0), state.get("proof", 0.0)
        if 0.0 < proof <= latency:
            self._unloaded = Baseline(latency, proof, 0.0)
