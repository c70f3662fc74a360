"""The window: gathers what the engine showed and closes it into one `WindowSample`.

    w = 2 s (1 s in slow start) and ≥ 8 events; else up to 8 s more, then what there is, with the
        censored ages
    r_i  = (TTFT_i − B)+            only of requests dispatched after the last cut
    cens = (age − 3·min B)+         of observed requests that still wait for their first token
    d    = max(mean r, mean cens)   X = first tokens/s (sampling undone)   Q = X·d
    T    = Σ inter-chunk time / Σ tokens of live observed streams (≥ 50 tokens)
    T90  = clamp(p90 of per-answer TPOT (answers of ≥ 8 tokens), T, 1.15 T)

A reported engine queue replaces Q while it is younger than two windows. A window in which the
policy server itself lagged is thrown away: its times measure us, not the engine.

Owner: the pool; pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from policy_server.core.leases import Lease
from policy_server.core.limit.base import WINDOW_S, WindowSample
from policy_server.core.limit.baselines import Baselines, Key, size_bucket
from policy_server.core.outcome import LeaseEnd
from policy_server.core.request import Request
from policy_server.core.samples import Completion, LoadReport

MIN_EVENTS = 8
EXTENSION_S = 8.0
MIN_TOKENS = 50
MIN_ANSWER_TOKENS = 8
KV_FULL = 0.9
REPORT_FRESH_S = 2 * WINDOW_S
MAX_SOURCES = 256


def baseline_key(request: Request, completion_tokens: int | None = None) -> Key:
    """Which unloaded time this request is measured against.

    An answer that is not streamed comes whole, so its time depends on its length as well.
    """
    prompt = size_bucket(request.prompt_tokens)
    if request.streamed:
        return (request.model, request.path, "stream", prompt)
    length = size_bucket(completion_tokens if completion_tokens is not None else request.max_tokens)
    return (request.model, request.path, f"plain{length}", prompt)


class Window:
    """Accumulates one window after another for one pool."""

    def __init__(self, baselines: Baselines, now: float) -> None:
        self._baselines = baselines
        self._cut_at = float("-inf")
        self._reports: dict[str, tuple[float, LoadReport, bool]] = {}
        self._peak_carry = 0
        self._reset(now, 0)

    def _reset(self, now: float, inflight: int) -> None:
        self._started = now
        self._residuals: list[float] = []
        self._first_tokens = 0.0
        self._gap_s = 0.0
        self._gap_tokens = 0
        self._model_tokens: dict[str, tuple[float, int]] = {}
        self._answer_tpot: list[float] = []
        self._latencies: list[float] = []
        self._answers = 0
        self._errors = 0
        self._peak = inflight
        self._waited = False
        self.plain_answers = 0
        self.tainted = False

    # -- what happened ------------------------------------------------------------------------

    def note_inflight(self, seats: int) -> None:
        """Seats in use just rose to `seats`."""
        self._peak = max(self._peak, seats)

    def note_waiting(self) -> None:
        """Requests had to wait for a slot."""
        self._waited = True

    def first_token(self, lease: Lease, ttft_s: float, now: float) -> None:
        """An observed stream's first token; in a tainted window it teaches nothing."""
        if self.tainted:
            return
        self._first_tokens += lease.weight
        self._residual(baseline_key(lease.request), lease, ttft_s, now)

    def _residual(self, key: Key, lease: Lease, seconds: float, now: float) -> None:
        residual = self._baselines.ttft_residual(key, seconds, now)
        if lease.granted >= self._cut_at:
            self._residuals.append(residual)

    def tokens(self, model: str, gap_s: float, count: int) -> None:
        """`count` tokens of one observed stream came within `gap_s`."""
        self._gap_s += gap_s
        self._gap_tokens += count
        seen_s, seen = self._model_tokens.get(model, (0.0, 0))
        self._model_tokens[model] = (seen_s + gap_s, seen + count)

    def completed(self, lease: Lease, how: LeaseEnd, completion: Completion, now: float) -> None:
        """An answer ended. Only whole successful ones are latency samples."""
        if how in (LeaseEnd.COMPLETED, LeaseEnd.UPSTREAM_ERROR):
            self._answers += 1
            self._errors += how is LeaseEnd.UPSTREAM_ERROR
        if how is not LeaseEnd.COMPLETED or not 200 <= completion.status < 300 or self.tainted:
            return
        request = lease.request
        total = completion.last_byte_s
        if total is not None:
            self._latencies.append(total)
        if not request.streamed and completion.first_byte_s is not None:
            self.plain_answers += 1
            self._first_tokens += 1.0
            key = baseline_key(request, lease.completion_tokens)
            self._residual(key, lease, completion.first_byte_s, now)

    def answer_tpot(self, seconds: float, tokens: int) -> None:
        """One observed answer's time per token, `tokens` long."""
        if tokens >= MIN_ANSWER_TOKENS:
            self._answer_tpot.append(seconds)

    def load_report(self, source: str, report: LoadReport, now: float) -> None:
        """An engine says how it is; kept per source until stale."""
        last = self._reports.get(source)
        if last is None and len(self._reports) >= MAX_SOURCES:
            self._reports = {s: r for s, r in self._reports.items() if now - r[0] < REPORT_FRESH_S}
            if len(self._reports) >= MAX_SOURCES:
                return
        preempted = (
            last is not None
            and report.preemptions_total is not None
            and last[1].preemptions_total is not None
            and report.preemptions_total > last[1].preemptions_total
        )
        self._reports[source] = (now, report, preempted)

    # -- closing ------------------------------------------------------------------------------

    @property
    def events(self) -> int:
        """Latency samples gathered so far."""
        return len(self._residuals) + (self._gap_tokens >= MIN_TOKENS)

    def due_at(self, window_s: float = WINDOW_S) -> float:
        """When `close` should be called next, monotonic seconds."""
        if len(self._residuals) + self._errors >= MIN_EVENTS or self._idle():
            return self._started + window_s
        return self._started + WINDOW_S + EXTENSION_S

    def _idle(self) -> bool:
        return not self._waited and not self._residuals and not self._answers

    def mark_cut(self, now: float) -> None:
        """Requests dispatched before `now` say nothing about the new limit."""
        self._cut_at = now

    def close(
        self, now: float, inflight: int, limit: float, observed: Iterable[Lease]
    ) -> WindowSample:
        """The sample of this window; starts the next one."""
        duration = max(now - self._started, 1e-9)
        delay = self._delay(now, observed)
        rate = self._first_tokens / duration
        reported, saturated = self._reported(now)
        queue = reported
        if queue is None and delay is not None:
            queue = rate * delay
        tpot, unloaded = self._tpot(now)
        sample = WindowSample(
            now=now,
            duration_s=duration,
            events=self.events,
            inflight=inflight,
            peak_inflight=self._peak,
            bound=self._waited and self._peak >= min(0.9 * limit, limit - 2.0),
            first_token_rate=rate,
            delay_s=delay,
            engine_queue=queue,
            tpot_s=tpot,
            tpot_p90_s=self._tpot_p90(tpot),
            tpot_unloaded_s=unloaded,
            error_share=self._error_share(),
            saturated=saturated,
            latency_s=_mean(self._latencies),
            latency_min_s=min(self._latencies, default=None),
        )
        self._reset(now, inflight)
        return sample

    def _delay(self, now: float, observed: Iterable[Lease]) -> float | None:
        floor = self._baselines.ttft_min()
        ages = [
            max(0.0, now - lease.granted - 3.0 * floor)
            for lease in observed
            if floor is not None
            and lease.first_token is None
            and lease.request.streamed
            and lease.granted >= self._cut_at
        ]
        candidates = [m for m in (_mean(self._residuals), _mean(ages)) if m is not None]
        return max(candidates, default=None)

    def _tpot(self, now: float) -> tuple[float | None, float | None]:
        """T and T0, weighted by the tokens of each model."""
        if self._gap_tokens < MIN_TOKENS or self.tainted:
            return None, None
        weighted = 0.0
        counted = 0
        for model, (seconds, count) in self._model_tokens.items():
            self._baselines.tpot_sample(model, seconds / count, now)
            base = self._baselines.tpot(model)
            if base is not None:
                weighted += base * count
                counted += count
        return self._gap_s / self._gap_tokens, weighted / counted if counted else None

    def _tpot_p90(self, tpot: float | None) -> float | None:
        if tpot is None:
            return None
        if not self._answer_tpot:
            return tpot
        ordered = sorted(self._answer_tpot)
        return min(max(ordered[int(0.9 * (len(ordered) - 1))], tpot), 1.15 * tpot)

    def _error_share(self) -> float:
        return self._errors / self._answers if self._errors > 1 else 0.0

    def _reported(self, now: float) -> tuple[float | None, bool]:
        fresh = [(r, p) for at, r, p in self._reports.values() if now - at < REPORT_FRESH_S]
        waiting = [r.waiting for r, _ in fresh if r.waiting is not None]
        full = any(p or (r.kv_used is not None and r.kv_used > KV_FULL) for r, p in fresh)
        return (sum(waiting) if waiting else None), full


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
