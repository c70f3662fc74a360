"""Little-form Vegas with a guard on the time per token.

Vegas (Brakmo & Peterson 1995) keeps between α and β packets queued. On LLM traffic its own queue
estimate L·(1 − RTT0/RTT) reads answer length and batching as queueing. Here the queue is taken by
Little's law from what is *not* service: Q = X·d, with d the TTFT beyond what that prompt costs
unloaded and X the rate of first tokens. Decode saturation, which TTFT can't see, is bounded by a
guard on the time per output token T.

    over = max((Q−β)/L, .3·min(1, (d−d_max)/d_max), (T−(1+k)T0)/((1+k)T0), (T90−SLO)/SLO,
               .3 · share of upstream 429/5xx over a tenth, .3 if the engine says it is full)+
    over > 0  and peak N ≤ 1.02 L + R:  L *= max(.7, 1 − .5·over)      (Breakwater's cut)
              and peak N above that:    hold, the last cut is still draining (StabilizingAIMD)
              in one window only:       hold once, it may be chance, unless somebody waits and
                                        the delay is over also by the lower bound of its scatter
    else, if the limit was reached, Q < α, d < .6·d_max, T and T90 below .93 of their bounds, and
    no fifth waits past d_max beyond what it did in three of four of the last 15 windows:
        in slow start, or far below what is known to work:
                                           L *= f,  f = clamp((.9G − T0)/(T90 − T0), 1, 1.4),
                                           damped by how near Q and d are to their bounds
        else                               L += max(min(1, L/4), √L/4), faster below W_max (CUBIC),
                                           after a rest of 1–32 windows near it
    nobody waits, no queue:              L += max(1, √L/4) up to .85 of what was cut in 10 min
    L ≤ max(16, 3·peak N over 60 s, .6·L_valid)                        (failsafe-go's cap)

Invariants: minimum ≤ L ≤ maximum; a window without evidence raises L only back towards what was
cut; each change has one reason. Owner: the pool; pure.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from policy_server.core.limit.base import WINDOW_S, Change, Reason, WindowSample
from policy_server.core.params import LimitParams

TPOT_GUARD = 3.5  # k: T may reach (1+k)·T0; 3 gave up 8 % of a 200-slot engine, 5 P0 waits of 1 s
TPOT_GUARD_SLO = 5.0
DELAY_MAX_S = 0.3
DELAY_MAX_SLO_S = 0.5
GROW_MARGIN = 0.93  # of a bound, above which the limit rests
HARMLESS = 0.2  # of d_max: a queue that delays less is the engine's own pipelining
REACHED = 0.7  # of the limit
MAX_CUT = 0.7
DEEP_CUT = 0.5  # while most of what is in flight only waits
DEEP_QUEUE = 0.6  # of the limit
MAX_GROWTH = 1.4
FREE_LIMIT = 16.0  # the peak-inflight cap never binds below this
PEAK_MEMORY_S = 60.0
ESCAPE_WINDOWS = 5
SLOW_START_WINDOW_S = 1.0  # 16 → 200 slots within 15 s
SLOW_START_RESTS = 2  # one resting window may be noise, two end the slow start (HyStart's idea)
PATIENCE = 2  # bad windows before a cut, while nobody waits or the evidence is thin
MAX_HITS = 3  # cuts in a row at one level; after each the limit rests 2^hits windows below it
MAX_HARM = 4.0  # d over d_max: a probe that made everyone wait is not repeated so soon
USUAL_WINDOWS = 15
NEAR_HIT = 0.8  # of that level, from where it rests
CUT_MEMORY_S = 600.0
RECOVERED = 0.85  # of the highest limit cut within that time
ERROR_SHARE_FULL = 0.1  # this share of upstream errors counts as full overload


@dataclass(slots=True)
class _Excess:
    """How far above its bounds the engine is, and by which signal."""

    over: float = 0.0
    reason: Reason = Reason.HOLD

    def raise_to(self, over: float, reason: Reason) -> None:
        if over > self.over:
            self.over, self.reason = over, reason


def _doubts_baselines(s: WindowSample, reason: Reason) -> bool:
    """Whether a baseline may be wrong; the engine's own word, errors and the SLO need none."""
    if s.saturated:
        return False
    return reason in (Reason.DELAY, Reason.TPOT) or (reason is Reason.QUEUE and s.queue_estimated)


def reserve_of(limit: float) -> float:
    """R: seats kept beside the limit for the entitled; a fraction of a slot on tiny engines."""
    return max(min(2.0, limit / 8.0), 0.05 * limit)


class Vegas:
    """The default limit. See the module's header for formula and invariants."""

    def __init__(self, params: LimitParams) -> None:
        self._p = params
        self._limit = min(max(params.initial, params.minimum), params.maximum)
        self._w_max = self._limit
        self._valid: float | None = None
        self._grown_at = float("-inf")
        self._grown = 0  # windows of growth in a row
        self._slow_start = True
        self._over = 0  # windows in a row
        self._cuts: deque[tuple[float, float]] = deque()
        self._hit = 0.0  # the limit at the last cut
        self._hits = 0
        self._risen = True  # since the last cut
        self._rest = 0
        self._rested = 0  # bound windows in a row that showed no room to grow
        self._at_floor = 0
        self._highs: deque[float] = deque(maxlen=USUAL_WINDOWS)
        self._peaks: deque[tuple[float, float]] = deque()

    @property
    def current(self) -> float:
        """The limit now, seats."""
        return self._limit

    @property
    def window_s(self) -> float:
        """The least length of the next window, seconds."""
        return SLOW_START_WINDOW_S if self._slow_start else WINDOW_S

    def on_window(self, sample: WindowSample) -> Change:
        """Judge one window; see the module's header."""
        self._note_peak(sample)
        excess = self._excess(sample)
        self._over = self._over + 1 if excess.over > 0.0 else 0
        if excess.over > 0.0:
            return self._cut(sample, excess)
        self._at_floor = 0
        if not sample.bound:
            return self._recover(sample)
        if sample.events:
            self._valid = self._limit
        if not self._told_enough(sample):
            return self._clamped(Reason.HOLD)
        if not self._has_room(sample):
            self._grown = 0
            self._rested += 1
            if self._rested >= SLOW_START_RESTS:
                self._slow_start = False
            return self._clamped(Reason.HOLD)
        self._rested = 0
        return self._grow(sample)

    def _note_peak(self, sample: WindowSample) -> None:
        self._peaks.append((sample.now, float(sample.peak_inflight)))
        while self._peaks[0][0] < sample.now - PEAK_MEMORY_S:
            self._peaks.popleft()

    # -- bounds -------------------------------------------------------------------------------

    def _delay_max(self, s: WindowSample) -> float:
        """d_max, seconds: prompts that take long unloaded wait as long for each other's prefill."""
        natural = max(s.base_s, s.slack_s)
        if self._p.slo_ttft_s is None:
            return max(DELAY_MAX_S, natural)
        return min(max(DELAY_MAX_SLO_S, natural), 0.15 * self._p.slo_ttft_s)

    def _tpot_bound(self, sample: WindowSample) -> float | None:
        if sample.tpot_unloaded_s is None:
            return None
        k = TPOT_GUARD if self._p.slo_tpot_s is None else TPOT_GUARD_SLO
        return (1.0 + k) * sample.tpot_unloaded_s

    def _alpha(self) -> float:
        return max(min(2.0, self._limit / 32.0), 0.03 * self._limit)

    def _beta(self) -> float:
        return max(min(4.0, self._limit / 16.0), 0.08 * self._limit)

    def _queue_counts(self, s: WindowSample, d_max: float) -> bool:
        """An estimated queue that hardly delays is the engine's own pipelining."""
        return not s.queue_estimated or s.delay_s is None or s.delay_s > HARMLESS * d_max

    def _excess(self, s: WindowSample) -> _Excess:
        excess = _Excess()
        d_max = self._delay_max(s)
        if self._queue_counts(s, d_max) and s.engine_queue is not None:
            excess.raise_to((s.engine_queue - self._beta()) / self._limit, Reason.QUEUE)
        if s.delay_s is not None:
            excess.raise_to(0.3 * min(1.0, (s.delay_s - d_max) / d_max), Reason.DELAY)
        bound = self._tpot_bound(s)
        if bound is not None and s.tpot_s is not None:
            excess.raise_to((s.tpot_s - bound) / bound, Reason.TPOT)
        slo = self._p.slo_tpot_s
        if slo is not None and s.tpot_p90_s is not None:
            excess.raise_to((s.tpot_p90_s - slo) / slo, Reason.SLO)
        if s.error_share > 0.0:
            excess.raise_to(0.3 * min(1.0, s.error_share / ERROR_SHARE_FULL), Reason.UPSTREAM_ERROR)
        if s.saturated:
            excess.raise_to(0.3, Reason.QUEUE)
        return excess

    # -- moves --------------------------------------------------------------------------------

    def _cut(self, s: WindowSample, excess: _Excess) -> Change:
        self._grown = 0
        if self._limit <= self._p.minimum + 1e-9 and _doubts_baselines(s, excess.reason):
            self._at_floor += 1
            if self._at_floor >= ESCAPE_WINDOWS:
                self._at_floor = 0
                return Change(self._limit, Reason.ESCAPE)
        ours = excess.reason not in (Reason.UPSTREAM_ERROR, Reason.SLO) and not s.saturated
        if ours and not self._reached(s):
            return self._clamped(Reason.HOLD)  # a limit that was not reached made no queue
        if ours and self._over < PATIENCE and not (s.bound and self._sure(s, excess)):
            return self._clamped(Reason.HOLD)  # one bad window may be chance
        if s.peak_inflight > 1.02 * self._limit + reserve_of(self._limit):
            return self._clamped(Reason.HOLD)
        self._note_hit(s)
        self._w_max = self._limit if self._limit >= self._w_max else 0.85 * self._limit
        self._slow_start = False
        deep = self._over >= PATIENCE and excess.reason is Reason.QUEUE
        deep = deep and excess.over > DEEP_QUEUE
        self._limit *= max(
            DEEP_CUT if deep else MAX_CUT, 1.0 - (1.0 if deep else 0.5) * excess.over
        )
        return self._clamped(excess.reason)

    def _sure(self, s: WindowSample, excess: _Excess) -> bool:
        """Whether the excess is beyond what the scatter of the window's samples makes."""
        if excess.reason is Reason.TPOT:
            return False
        if s.saturated or not s.queue_estimated or s.delay_low_s is None or s.delay_s is None:
            return True
        if s.delay_low_s > self._delay_max(s):
            return True
        return s.first_token_rate * (s.delay_low_s - s.base_s) > self._beta()

    def _note_hit(self, s: WindowSample) -> None:
        """Rest below a level that was cut before: the longer, the more often and the worse."""
        if self._risen:  # else these are cuts of one descent
            again = 0.8 * self._hit < self._limit < 1.2 * self._hit
            self._hits = min(self._hits + 1, MAX_HITS) if again else 0
        self._risen = False
        harm = (s.delay_s or 0.0) / self._delay_max(s)
        self._hit = self._limit
        self._rest = round(2**self._hits * min(max(1.0, harm), MAX_HARM))
        self._forget_cuts(s.now)
        self._cuts.append((s.now, self._limit))

    def _forget_cuts(self, now: float) -> None:
        while self._cuts and self._cuts[0][0] < now - CUT_MEMORY_S:
            self._cuts.popleft()

    def _recover(self, s: WindowSample) -> Change:
        """Nobody waits: back towards what bursts of the last minutes have cut.

        Bursts that queue by nature cut the limit and leave no calm, bound window to grow in: it
        would be ground down to the floor, and the next burst would wait in front of an idle engine.
        """
        self._forget_cuts(s.now)
        cut = max((limit for _, limit in self._cuts), default=0.0)
        goal = min(RECOVERED * cut, self._cap())
        if self._limit >= goal or self._nearness(s) >= 0.5:
            return self._clamped(Reason.HOLD)
        self._limit = min(goal, self._limit + max(1.0, math.sqrt(self._limit) / 4.0))
        self._risen = True
        return self._clamped(Reason.PROBE)

    def _reached(self, s: WindowSample) -> bool:
        """Whether the limit held anyone back: on a small one the reserve alone is a large part."""
        free = self._limit - reserve_of(self._limit) - 1.0
        return s.peak_inflight >= min(REACHED * self._limit, free)

    def _told_enough(self, s: WindowSample) -> bool:
        """Whether the window saw what the last growth did, to its end."""
        if s.quiet_s > max(self.window_s, 0.3 * s.duration_s):
            return False  # early samples, then silence: that may be a stall
        return s.events > 0 and s.now - self._grown_at >= s.feedback_s

    def _has_room(self, s: WindowSample) -> bool:
        """Whether the engine would take more: its queue and its pace are below their bounds."""
        if self._nearness(s) >= 1.0:
            return False
        if self._a_fifth_waits(s):
            return False  # the step before this one may have filled it: the latest began to wait
        bound = self._tpot_bound(s)
        if bound is not None and s.tpot_s is not None and s.tpot_s >= GROW_MARGIN * bound:
            return False
        slo = self._p.slo_tpot_s
        return slo is None or s.tpot_p90_s is None or s.tpot_p90_s < GROW_MARGIN * slo

    def _a_fifth_waits(self, s: WindowSample) -> bool:
        """Whether a fifth of the streams waits longer than d_max, and than a fifth mostly does.

        Of prompts that are or are not in a prompt cache a part is always slow; leaps take no risk.
        """
        high = s.delay_high_s or 0.0
        usual = 0.0
        if self._highs and not self._far_below:
            usual = sorted(self._highs)[(len(self._highs) - 1) // 4]
        self._highs.append(high)
        return high - usual > self._delay_max(s)

    def _grow(self, s: WindowSample) -> Change:
        factor = self._growth_factor(s)
        if self._far_below and factor > 1.04:
            self._note_grown(s.now)
            self._limit *= factor
            return self._clamped(Reason.GROW)
        if self._rest > 0 and self._limit >= NEAR_HIT * self._hit:
            self._rest -= 1
            return self._clamped(Reason.HOLD)
        self._note_grown(s.now)
        self._limit += self._damped(s, 1.0 + self._step()) - 1.0
        return self._clamped(Reason.GROW)

    def _note_grown(self, now: float) -> None:
        self._grown, self._grown_at, self._risen = self._grown + 1, now, True

    def _step(self) -> float:
        """Seats to grow by: faster the longer it went well, but not past W_max in one go."""
        step = max(min(1.0, self._limit / 4.0), math.sqrt(self._limit) / 4.0)
        faster = step * min(4.0, 1.0 + 0.5 * self._grown)
        if self._limit < 0.85 * self._w_max:
            return max(step, min(faster, self._w_max - self._limit))
        return faster if self._limit > 1.1 * max(self._w_max, self._hit) else step

    @property
    def _far_below(self) -> bool:
        """Whether growth goes by factors."""
        return self._slow_start or self._limit < 0.75 * (self._valid or 0.0)

    def _growth_factor(self, s: WindowSample) -> float:
        bound = self._tpot_bound(s)
        t0 = s.tpot_unloaded_s
        if bound is None or t0 is None or s.tpot_p90_s is None:
            return self._damped(s, MAX_GROWTH)
        goal = bound if self._p.slo_tpot_s is None else min(bound, self._p.slo_tpot_s)
        headroom = (0.9 * goal - t0) / max(s.tpot_p90_s - t0, 1e-6)
        return self._damped(s, min(max(headroom, 1.0), MAX_GROWTH))

    def _damped(self, s: WindowSample, factor: float) -> float:
        """Less of `factor` the nearer the queue is to its bounds: few samples may miss a queue."""
        return 1.0 + (factor - 1.0) * min(max(1.0 - self._nearness(s), 0.0), 1.0)

    def _nearness(self, s: WindowSample) -> float:
        """Where the engine's queue stands between empty (0) and the bound of growth (1)."""
        d_max = self._delay_max(s)
        pending = s.delay_pending_s if self._far_below else None  # filled by the last leap?
        near = max(s.delay_s or 0.0, pending or 0.0) / (0.6 * d_max)
        if self._queue_counts(s, d_max) and s.engine_queue is not None:
            near = max(near, s.engine_queue / self._alpha())
        return near

    def _cap(self) -> float:
        peak = max((p for _, p in self._peaks), default=0.0)
        return max(FREE_LIMIT, 3.0 * peak, 0.6 * (self._valid or 0.0))

    def _clamped(self, reason: Reason) -> Change:
        cap = self._cap()
        bounded = min(max(self._limit, self._p.minimum), self._p.maximum)
        if bounded > cap and reason in (Reason.HOLD, Reason.GROW, Reason.PROBE):
            reason = Reason.CLAMP
        self._limit = max(min(bounded, cap), self._p.minimum)
        return Change(self._limit, reason)

    # -- restart ------------------------------------------------------------------------------

    def reconfigure(self, params: LimitParams) -> None:
        """New bounds and targets; what was learned stays."""
        self._p = params
        self._limit = min(max(self._limit, params.minimum), params.maximum)

    def rescale(self, factor: float) -> None:
        """More or fewer replicas, each worth what was learned of one."""
        self._limit = min(max(self._limit * factor, self._p.minimum), self._p.maximum)
        self._w_max *= factor
        self._hit *= factor
        self._cuts = deque((at, limit * factor) for at, limit in self._cuts)
        self._peaks = deque((at, peak * factor) for at, peak in self._peaks)
        self._valid = None if self._valid is None else self._valid * factor

    def state(self) -> dict[str, float]:
        """What a restart needs: the limit and what was last proven."""
        return {"limit": self._limit, "valid": self._valid or self._limit, "w_max": self._w_max}

    def restore(self, state: dict[str, float]) -> None:
        """Slow start at half of what was proven; the rest whole."""
        limit = state.get("limit", self._limit)
        self._valid = state.get("valid", limit)
        self._w_max = state.get("w_max", limit)
        self._slow_start = False
        start = 0.5 * min(limit, self._valid)
        self._limit = min(max(start, self._p.minimum), self._p.maximum)
