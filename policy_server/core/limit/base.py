"""The interface between a limit algorithm and the room that obeys it.

An algorithm sees one `WindowSample` at a time and answers with the new limit and its reason;
who holds which slot is none of its business.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from policy_server.core.params import LimitParams

WINDOW_S = 2.0  # long enough for eight first tokens of a small pool, short against an overload


class Reason(Enum):
    """Why a limit moved or stayed."""

    QUEUE = "queue"
    DELAY = "delay"
    TPOT = "tpot"
    SLO = "slo"
    UPSTREAM_ERROR = "upstream_error"
    GROW = "grow"
    PROBE = "probe"
    ESCAPE = "escape"
    CLAMP = "clamp"
    BACKENDS = "backends"  # replicas came or went
    HOLD = "hold"  # nothing to do, or still draining after the last cut


@dataclass(frozen=True, slots=True)
class Change:
    """The limit after a window, in seats, and why."""

    limit: float
    reason: Reason


@dataclass(frozen=True, slots=True)
class WindowSample:
    """What one window showed. Seconds, seats, rates per second; None = not measured.

    peak_inflight   most seats in use at once
    bound           requests waited and the limit was (nearly) reached
    first_token_rate  X: answers that began per second, sampling undone
    delay_s         d: queueing delay inside the engine, from residuals and censored ages
    delay_low_s     what d is at least, one standard deviation of its samples below
    delay_pending_s what those without a first token have waited so far: too few to cut by as well
    delay_high_s    what a fifth of the streams waited: too few to cut by, enough not to leap
    engine_queue    Q: requests queued inside the engine (reported, else X·d)
    tpot_s          T: token-weighted seconds per output token of the live streams
    tpot_p90_s      p90 of per-answer TPOT, clamped to [T, 1.15 T]
    tpot_unloaded_s T0
    queue_estimated Q is X·d, not the engine's own word
    feedback_s      how late the answers tell of the limit they ran under, where most come whole
    slack_s         delay that is small against answers which come whole
    base_s          mean unloaded TTFT of the window's samples
    quiet_s         time since the last sample
    error_share     share of answers that were 429 or 5xx, 0..1
    saturated       the engine says it is full: KV > .9 or preemptions
    """

    now: float
    duration_s: float
    events: int
    inflight: int
    peak_inflight: int
    bound: bool
    first_token_rate: float = 0.0
    delay_s: float | None = None
    delay_low_s: float | None = None
    delay_pending_s: float | None = None
    delay_high_s: float | None = None
    engine_queue: float | None = None
    tpot_s: float | None = None
    tpot_p90_s: float | None = None
    tpot_unloaded_s: float | None = None
    error_share: float = 0.0
    saturated: bool = False
    base_s: float = 0.0
    slack_s: float = 0.0
    feedback_s: float = 0.0
    queue_estimated: bool = False
    quiet_s: float = 0.0
    latency_s: float | None = None
    latency_min_s: float | None = None


class Limit(Protocol):
    """A limit algorithm. `current` is in seats, ≥ 1, fractional."""

    @property
    def current(self) -> float:
        """The limit now."""
        ...

    @property
    def window_s(self) -> float:
        """The least length of the next window, seconds."""
        ...

    def on_window(self, sample: WindowSample) -> Change:
        """Take one window, move the limit, say why."""
        ...

    def reconfigure(self, params: LimitParams) -> None:
        """New bounds and targets; what was learned stays."""
        ...

    def rescale(self, factor: float) -> None:
        """`factor` (> 0) times as many replicas as before: what was learned of each holds."""
        ...

    def state(self) -> dict[str, float]:
        """What must survive a restart, as numbers."""
        ...

    def restore(self, state: dict[str, float]) -> None:
        """Start from a saved `state` (slow start is the algorithm's own)."""
        ...
