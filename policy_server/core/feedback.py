"""What the engine shows, window by window, and what the limit makes of it.

    tokens, first tokens, ends, load reports → the open window → a sample → the limit → a change

The pool tells what happens; this half decides how high the limit is, which answers are observed,
and keeps the baselines that belong to both. Owner: the pool; one writer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from policy_server.core.events import LimitChanged
from policy_server.core.leases import Lease
from policy_server.core.limit.base import Change, Limit, Reason, WindowSample
from policy_server.core.limit.baselines import Baselines
from policy_server.core.limit.window import Window
from policy_server.core.outcome import LeaseEnd
from policy_server.core.params import LimitParams, PoolParams
from policy_server.core.samples import Completion, LoadReport
from policy_server.core.sampling import ObserverSampler

OPENING_WINDOW = WindowSample(
    now=0.0, duration_s=0.0, events=0, inflight=0, peak_inflight=0, bound=False
)


class Feedback:
    """The learning half of a pool."""

    def __init__(self, params: PoolParams, limit: Limit) -> None:
        self._pool = params.name
        self._params = params.limit
        self._sampled = params.observe_messages_per_s > 0.0
        self.limit = limit
        self.baselines = Baselines()
        self.sampler = ObserverSampler(params.observe_messages_per_s)
        self.last_change = Change(limit.current, Reason.HOLD)
        self.last_sample = OPENING_WINDOW
        self.window: Window | None = None
        """The open window; None before the first request."""
        self.restored: Mapping[str, float] = {}
        """What an earlier process had learned in this pool."""

    def reconfigure(self, params: PoolParams, make: Callable[[LimitParams], Limit]) -> None:
        """New bounds from now on; what was learned stays, unless the algorithm is another."""
        if params.limit != self._params:
            if params.limit.algorithm == self._params.algorithm:
                self.limit.reconfigure(params.limit)
            else:
                self.limit = make(params.limit)
        self._params = params.limit
        self._sampled = params.observe_messages_per_s > 0.0
        if self.window is not None:
            self.window.sampled = self._sampled
        self.sampler.reconfigure(params.observe_messages_per_s)

    # -- what happens ---------------------------------------------------------------------------

    def open(self, now: float) -> bool:
        """Begin to measure with the first request; whether that was now."""
        if self.window is not None:
            return False
        self.window = Window(self.baselines, now, self._sampled)
        return True

    def note_waiting(self) -> None:
        """Somebody waits: the limit binds."""
        if self.window is not None:
            self.window.note_waiting()

    def granted(self, lease: Lease, seats: int) -> None:
        """A dispatch; `seats` are in use now."""
        window = self.window
        if window is not None:
            window.note_inflight(seats)
            if lease.observed and lease.request.streamed:
                window.await_token(lease)

    def ended(self, lease: Lease, how: LeaseEnd, completion: Completion, now: float) -> None:
        """An answer ended."""
        if self.window is None or lease.restored:
            return
        self.window.completed(lease, how, completion, now)
        if lease.tokens and how is LeaseEnd.COMPLETED and (tpot := lease.tpot_s) is not None:
            self.window.answer_tpot(tpot, lease.tokens)

    def load_report(self, source: str, report: LoadReport, now: float) -> None:
        """An engine says how it is."""
        if report.tells_load and self.window is not None:
            self.window.load_report(source, report, now)

    def first_token(self, lease: Lease, now: float) -> None:
        """The first token of an observed stream."""
        if lease.first_token is None:
            lease.first_token = lease.last_token = now
            lease.tokens = 1
            if self.window is not None:
                self.window.first_token(lease, now - lease.granted, now)

    def tokens(self, lease: Lease, count: int, now: float) -> None:
        """`count` more tokens of an observed stream, the last of them now.

        Without a `first_token` before it, the first of them is that one. It took no gap. What
        costs us are the messages, and of several choices most messages tell no token.
        """
        if count or lease.request.streamed:
            self.sampler.note_messages(1)
        if not count:
            return
        if lease.first_token is None:
            self.first_token(lease, now)
            lease.tokens = count
            return
        if self.window is not None and lease.last_token is not None:
            self.window.tokens(lease.request.model, now - lease.last_token, count)
        lease.last_token = now
        lease.tokens += count

    # -- time -----------------------------------------------------------------------------------

    def due_at(self) -> float | None:
        """When the open window closes, monotonic seconds; None before the first request."""
        return None if self.window is None else self.window.due_at(self.limit.window_s)

    def rescale(self, factor: float) -> LimitChanged | None:
        """`factor` times as many replicas: the limit's move, None when it stays."""
        previous = self.limit.current
        if factor != 1.0:
            self.limit.rescale(factor)
            self.baselines.rescaled()
        if self.limit.current == previous:
            return None
        self.last_change = Change(self.limit.current, Reason.BACKENDS)
        return LimitChanged(self._pool, previous, self.last_change)

    def close(self, seats: int, observed: Mapping[str, Lease], now: float) -> LimitChanged:
        """The window is over: what the limit becomes, and why. RuntimeError when none is open."""
        window = self.window
        if window is None:
            raise RuntimeError("no window is open")
        plain, previous = window.plain_answers, self.limit.current
        tainted = window.tainted(now)
        sample = window.close(now, seats, previous)
        self.sampler.close_window(sample.duration_s, len(observed), plain / sample.duration_s)
        self.last_sample = sample
        if tainted:
            return LimitChanged(self._pool, previous, Change(previous, Reason.HOLD))
        change = self.limit.on_window(sample)
        if change.reason is Reason.ESCAPE:
            self.baselines.escape()
        if change.limit < previous:
            window.mark_cut(now)
        self.last_change = change
        return LimitChanged(self._pool, previous, change)
