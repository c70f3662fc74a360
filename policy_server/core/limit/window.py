"""The window: gathers what the engine showed and closes it into one `WindowSample`.

    w = 2 s (1 s in slow start) and ≥ 8 events; else up to 8 s more, then what there is, with the
        censored ages. Who waits too long for its first token is an event as well: the windows of
        an engine that jams must not be the longest
    r_i  = (TTFT_i − B)+            only of requests dispatched after the last cut
    whole answers (not streamed, n tokens): q of the fit time = q + T·n, beyond what q is
         unloaded, in place of r; T likewise (see `whole`); while their lengths are too equal for
         it, r = (time_i − 2.5·n·B_n)+
    cens = age − B                  of observed requests that still wait for their first token
    d    = median of r and cens     X = first tokens/s (sampling undone)   Q = X·d
         after Kaplan and Meier, for a pending wait tells only that it is longer than so far, and
         one that is still pending is the slowest by selection; the mean of cens while most are
         the median, for a standing queue delays everyone (CoDel's insight), while a few prompts
         that were not in the prompt cache, or that met a long prefill, delay only themselves
    T    = Σ inter-chunk time / Σ tokens of live observed streams (≥ 50 tokens)
    T90  = clamp(p90 of per-answer TPOT (answers of ≥ 8 tokens), T, 1.15 T)

A reported engine queue replaces Q while it is younger than two windows; where pages are scraped,
they count alone. A report is evidence as a latency sample is. Where nothing is seen of a whole
answer but its time, its length unknown (a wiring without an observer), that time counts only while
no engine speaks. A window of which the policy server itself was late for more than a third moves
nothing when its times were taken here: they measure us, not the engine. Below that medians and
sums over many tokens hardly notice; Envoy's own times, of whole answers, never do.

Owner: the pool; pure.
"""

from __future__ import annotations

import math

from policy_server.core.leases import Lease
from policy_server.core.limit.base import WINDOW_S, WindowSample
from policy_server.core.limit.baselines import Baselines, Key, size_bucket
from policy_server.core.limit.reports import MAX_SOURCES, Reports
from policy_server.core.limit.survival import survived
from policy_server.core.limit.whole import Line, WholeAnswers
from policy_server.core.outcome import LeaseEnd
from policy_server.core.request import Request
from policy_server.core.samples import Completion, LoadReport

MIN_EVENTS = 8
EXTENSION_S = 8.0
MIN_TOKENS = 50
MIN_ANSWER_TOKENS = 8
OVERDUE_S = 1.0  # without a first token: as good as a sample, of an engine that gives none
LATE_SHARE = 1 / 3
UNSEEN_PART = 0.15
LEAST_S = 1e-3  # a baseline of zero would be one that nothing can ever meet


BATCHING = 2.5
"""Decoding in a full batch takes this much longer than alone before it counts as a queue, where
the queue can't be told from the decoding: in an answer that comes whole."""
WHOLE_SLACK = 0.04  # of a whole answer's time: nobody notices


def baseline_key(request: Request, completion_tokens: int = 0, streamed: bool = False) -> Key:
    """Which unloaded time this request is measured against.

    The time of an answer that comes whole depends on its length: there the baseline is per token,
    kept by length (short answers carry more overhead) instead of by prompt.
    """
    if request.streamed or streamed:
        return (request.model, request.path, "stream", size_bucket(request.prompt_tokens))
    if completion_tokens:
        return (request.model, request.path, "whole", size_bucket(completion_tokens))
    return (request.model, request.path, "plain", size_bucket(request.prompt_tokens))


class Window:
    """Accumulates one window after another for one pool."""

    def __init__(self, baselines: Baselines, now: float, sampled: bool = True) -> None:
        """`sampled`: answers are observed, so those that are not teach nothing of their length."""
        self._baselines = baselines
        self.sampled = sampled
        self._cut_at = float("-inf")
        self._whole: dict[str, WholeAnswers] = {}
        self._awaited: dict[str, Lease] = {}  # observed streams without a first token, oldest first
        self._reports = Reports()
        self._reset(now, 0)

    def _reset(self, now: float, inflight: int) -> None:
        self._started = now
        self._last_event = now
        self._residuals: list[float] = []  # of streams
        self._sized: list[float] = []  # of whole answers of known length, without a line
        self._unsized: list[tuple[float, float]] = []  # of unknown length: residual and baseline
        self._blunt: list[float] = []  # of whole answers that no observer may see
        self._told = 0  # fresh reports
        self._bases: list[float] = []
        self._lines: list[Line] = []
        self._intercepts: list[float] = []  # of the lines, beyond what is there unloaded
        self._whole_s: list[float] = []  # times of answers that came whole
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
        self._late_s = 0.0
        self._timed_here = False

    # -- what happened ------------------------------------------------------------------------

    def note_inflight(self, seats: int) -> None:
        """Seats in use just rose to `seats`."""
        self._peak = max(self._peak, seats)

    def note_waiting(self) -> None:
        """Requests had to wait for a slot."""
        self._waited = True

    def note_late(self, seconds: float) -> None:
        """This process was late by `seconds`."""
        self._late_s += seconds

    def tainted(self, now: float) -> bool:
        """Whether the times taken so far measure us, not the engine."""
        timed_here = self._timed_here or bool(self._awaited)  # their age is by our clock, too
        return timed_here and self._late_s > LATE_SHARE * (now - self._started)

    def await_token(self, lease: Lease) -> None:
        """An observed stream was dispatched."""
        self._awaited[lease.request.uid] = lease

    def first_token(self, lease: Lease, ttft_s: float, now: float) -> None:
        """An observed stream's first token."""
        self._awaited.pop(lease.request.uid, None)
        self._timed_here = True
        self._first_tokens += lease.weight
        self._residual(baseline_key(lease.request, streamed=True), lease, ttft_s, now)

    def _residual(
        self, key: Key, lease: Lease, seconds: float, now: float, tokens: int | None = None
    ) -> None:
        """One latency sample; of a whole answer of `tokens` tokens, when that is given."""
        count, allowed = (tokens, BATCHING) if tokens else (1, 1.0)
        residual = count * self._baselines.ttft_residual(key, seconds / count, now, allowed)
        self._last_event = now
        if lease.granted < self._cut_at:
            return
        request, base_s = lease.request, self._baselines.unloaded(key) or 0.0
        if lease.streamed or not request.observable:
            (self._residuals if lease.streamed else self._blunt).append(residual)
            self._bases.append(base_s)
        elif tokens:
            self._sized.append(residual)
            self._bases.append(0.0)
        else:
            self._unsized.append((residual, base_s))

    def tokens(self, model: str, gap_s: float, count: int) -> None:
        """`count` tokens of one observed stream came within `gap_s`."""
        self._timed_here = True
        self._add_tokens(model, gap_s, count)

    def _add_tokens(self, model: str, gap_s: float, count: int) -> None:
        self._gap_s += gap_s
        self._gap_tokens += count
        seen_s, seen = self._model_tokens.get(model, (0.0, 0))
        self._model_tokens[model] = (seen_s + gap_s, seen + count)

    def completed(self, lease: Lease, how: LeaseEnd, completion: Completion, now: float) -> None:
        """An answer ended. Only whole successful ones are latency samples."""
        self._awaited.pop(lease.request.uid, None)
        if how in (LeaseEnd.COMPLETED, LeaseEnd.UPSTREAM_ERROR):
            self._answers += 1
            self._errors += how is LeaseEnd.UPSTREAM_ERROR
        if how is not LeaseEnd.COMPLETED or not 200 <= completion.status < 300:
            return
        request = lease.request
        self._timed_here |= completion.timed_here
        total = completion.last_byte_s
        if total is not None:
            self._latencies.append(total)
        if not request.streamed and completion.first_byte_s is not None:
            self.plain_answers += 1
            self._first_tokens += lease.first_token is None  # else counted when it came
            if lease.streamed or completion.streamed:  # its first byte tells nothing
                return
            if lease.granted >= self._cut_at:
                self._whole_s.append(completion.first_byte_s)
            if not request.observable:  # its length will never be known
                self._residual(baseline_key(request), lease, completion.first_byte_s, now)
            elif lease.observed or not self.sampled:
                self._plain(lease, completion.first_byte_s, now)

    def _plain(self, lease: Lease, seconds: float, now: float) -> None:
        """An answer that came whole."""
        tokens, request = lease.steps, lease.request
        if lease.granted < self._cut_at:
            return
        if tokens >= MIN_ANSWER_TOKENS:
            line = self._line_with(request.model, tokens, seconds)
            if line is not None:
                self._add_tokens(request.model, line.slope_s * tokens, tokens)
                self._last_event = now
                self._lines.append(line)
                self._intercepts.append(self._queue_of(request, line, now))
                return
        self._residual(baseline_key(request, tokens), lease, seconds, now, tokens)

    def _line_with(self, model: str, tokens: int, seconds: float) -> Line | None:
        """The model's line, one answer later; the model not heard of for longest makes room."""
        whole = self._whole.pop(model, None)
        if whole is None and len(self._whole) >= MAX_SOURCES:
            del self._whole[next(iter(self._whole))]
        self._whole[model] = whole = whole or WholeAnswers()
        whole.add(tokens, seconds)
        return whole.line()

    def _queue_of(self, request: Request, line: Line, now: float) -> float:
        """What of a line's intercept is a queue; the rest, prefill and network, is always there.

        At first that rest is little: an engine never seen without a queue is not one far away.
        """
        key = (request.model, request.path, "intercept", 0)
        at_first = UNSEEN_PART * (line.mean_s - line.intercept_s)
        seconds = max(line.intercept_s, LEAST_S)
        return self._baselines.ttft_residual(key, seconds, now, at_first=max(at_first, LEAST_S))

    def answer_tpot(self, seconds: float, tokens: int) -> None:
        """One observed answer's time per token, `tokens` long."""
        if tokens >= MIN_ANSWER_TOKENS:
            self._answer_tpot.append(seconds)

    def load_report(self, source: str, report: LoadReport, now: float) -> None:
        """An engine says how it is; kept per source until stale."""
        if self._reports.add(source, report, now):
            self._told += 1
            self._last_event = now

    # -- closing ------------------------------------------------------------------------------

    @property
    def events(self) -> int:
        """Latency samples gathered so far."""
        return self._samples + self._told + (self._gap_tokens >= MIN_TOKENS)

    @property
    def _samples(self) -> int:
        whole = len(self._lines) or len(self._sized) or len(self._unsized)
        return len(self._residuals) + len(self._blunt) + whole

    def _of_whole_answers(self) -> list[float]:
        """What their times say where no line is fitted.

        Where some lengths are known the others tell nothing: a few whose usage came after the log
        passed for a queue of their whole time, and cut the limit to a quarter of the engine.
        """
        if self._lines:
            return []
        return self._sized or [residual for residual, _ in self._unsized]

    def due_at(self, window_s: float = WINDOW_S) -> float:
        """When `close` should be called next, monotonic seconds."""
        needed = MIN_EVENTS if window_s >= WINDOW_S else MIN_EVENTS // 2
        missing = needed - self._samples - self._errors
        told = self._told and self._samples == len(self._blunt)
        if missing <= 0 or told or self._idle():
            return self._started + window_s
        latest = self._started + WINDOW_S + EXTENSION_S
        return min(max(self._started + window_s, self._overdue_at(missing)), latest)

    def _overdue_at(self, count: int) -> float:
        """When so many will have waited too long for their first token; never = infinite."""
        for lease in self._awaited.values():
            if lease.granted >= self._cut_at and lease.readable:
                count -= 1
                if count == 0:
                    base = self._baselines.unloaded(baseline_key(lease.request)) or 0.0
                    return lease.granted + max(OVERDUE_S, 2.0 * base)
        return math.inf

    def _idle(self) -> bool:
        return not self._waited and not self._samples and not self._answers

    def mark_cut(self, now: float) -> None:
        """Requests dispatched before `now` say nothing about the new limit."""
        self._cut_at = now
        self._whole.clear()

    def close(self, now: float, inflight: int, limit: float) -> WindowSample:
        """The sample of this window; starts the next one."""
        duration = max(now - self._started, 1e-9)
        reported, saturated = self._reports.read(now)
        pending = self._pending(now)
        delay, delay_low = self._delay(pending, self._blunt if reported is None else [])
        rate = self._first_tokens / duration
        unsized = [] if self._lines or self._sized else [base for _, base in self._unsized]
        base_s = _mean(self._bases + unsized) or 0.0
        queue = reported
        if queue is None and delay is not None:
            queue = rate * max(0.0, delay - base_s)
        tpot, unloaded = self._tpot(now, inflight)
        sample = WindowSample(
            now=now,
            duration_s=duration,
            events=self.events,
            inflight=inflight,
            peak_inflight=self._peak,
            bound=self._waited and self._peak >= min(0.9 * limit, limit - 2.0),
            first_token_rate=rate,
            delay_s=delay,
            delay_low_s=delay_low,
            delay_pending_s=_mean(pending),
            delay_high_s=_upper_fifth(self._residuals),
            engine_queue=queue,
            tpot_s=tpot,
            tpot_p90_s=self._tpot_p90(tpot),
            tpot_unloaded_s=unloaded,
            error_share=self._error_share(),
            saturated=saturated,
            quiet_s=now - self._last_event,
            base_s=base_s,
            slack_s=WHOLE_SLACK * (_mean([line.mean_s for line in self._lines]) or 0.0),
            feedback_s=self._feedback_s(),
            queue_estimated=reported is None,
            latency_s=_mean(self._latencies),
            latency_min_s=min(self._latencies, default=None),
        )
        self._reset(now, inflight)
        return sample

    def _feedback_s(self) -> float:
        """How late it is told what a growth did: streams tell soon, whole answers as they end."""
        streams = self._first_tokens - len(self._whole_s)
        return 0.0 if streams >= len(self._whole_s) else _median(self._whole_s) or 0.0

    def _delay(self, pending: list[float], blunt: list[float]) -> tuple[float | None, float | None]:
        """d, and what it is at least, by the scatter of so few samples."""
        samples = sorted(self._residuals + self._of_whole_answers() + blunt)
        queued = _mean(self._intercepts)
        others = [] if queued is None else [queued]
        few = 0.5 / math.sqrt(len(samples) + len(pending) or 1)
        middle, low = (survived(samples, pending, share) for share in (0.5, 0.5 + few))
        return (
            max([*middle, *others], default=None),
            max([*low, *others], default=None),
        )

    def _pending(self, now: float) -> list[float]:
        """How much longer than unloaded those wait by now who have no first token yet."""
        floor = self._baselines.ttft_min()
        if floor is None:
            return []
        waits = []
        for lease in self._awaited.values():
            if lease.granted >= self._cut_at and lease.readable:
                base = self._baselines.unloaded(baseline_key(lease.request))
                waits.append(now - lease.granted - (3.0 * floor if base is None else base))
        return [wait for wait in waits if wait > 0.0]

    def _tpot(self, now: float, inflight: int) -> tuple[float | None, float | None]:
        """T and T0, weighted by the tokens of each model."""
        if self._gap_tokens < MIN_TOKENS or self.tainted(now):
            return None, None
        load = float(min(inflight, self._peak)), float(self._peak)
        self._baselines.tpot_of_all(self._gap_s / self._gap_tokens, now, load)
        weighted, counted = 0.0, 0
        for model, (seconds, count) in self._model_tokens.items():
            self._baselines.tpot_sample(model, seconds / count, now, load)
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


def _median(values: list[float]) -> float | None:
    return sorted(values)[(len(values) - 1) // 2] if values else None


def _upper_fifth(values: list[float]) -> float | None:
    return sorted(values)[math.ceil(0.8 * len(values)) - 1] if values else None


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
