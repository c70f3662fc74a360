"""The driver: one asyncio writer around the pure admission core.

Everything that touches admission runs on one event loop, synchronously, so there are no locks.
The driver owns the clock, one timer, the holds (uid → future of a waiting stream) and the feed of
events to whoever listens. Answers to waiting requests leave in the batches that the core paces.

A hold belongs to one stream. When Envoy sends a request again (same uid), the newer stream takes
the place over and the older one learns that it was superseded; its leaving then means nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from policy_server.core.admission import Admission
from policy_server.core.events import (
    EVENTS,
    Admitted,
    Event,
    LeaseEnded,
    Shed,
)
from policy_server.core.limit.reports import REPORT_FRESH_S
from policy_server.core.outcome import Outcome, ReportOutcome, ShedReason
from policy_server.core.params import PoolParams
from policy_server.core.request import Priority, Request
from policy_server.core.samples import Completion, LoadReport, Usage
from policy_server.journal.port import Journal
from policy_server.journal.restore import Moment, revive
from policy_server.journal.scribe import Scribe

LAG_AMNESTY_S = 10.0  # the constant refusal asks them back within 8 s
SAVE_LEARNED_S = 10.0
DRAIN_PAUSE_S = 0.005
LAST_WORDS_S = 1.0
MISTAKE_S = 0.25  # after a timer that failed: the next look
ENDS_REMEMBERED = 50_000  # some seconds of a flood; about 10 MB
NEVER_SENT = Completion(status=0, client_gone=True, reached_upstream=False)

Decision = Admitted | Shed
Listener = Callable[[Event, float], None]


class SupersededError(Exception):
    """A newer stream of the same request has taken over its place."""


@dataclass(slots=True, eq=False)
class Hold:
    """One waiting stream. `future` resolves to the decision, or raises `SupersededError`."""

    uid: str
    future: asyncio.Future[Decision]


class Driver:
    """The only writer of `admission`. All methods must be called on its event loop."""

    def __init__(
        self,
        admission: Admission,
        journal: Journal,
        clock: Callable[[], float],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.admission = admission
        self.journal = journal
        self.clock = clock
        self._loop = loop
        self._holds: dict[str, Hold] = {}
        self._told_again: dict[str, Admitted] = {}  # uid → what its newest stream was told
        self._ended: OrderedDict[str, None] = OrderedDict()
        self.request_ids: dict[str, str] = {}
        """uid → x-request-id of what is decided or held now; the gate keeps it, logs read it."""
        self._scribe = Scribe(journal, admission, lambda uid: self.request_ids.get(uid, ""))
        self.on_count: Callable[[str, Priority, Outcome, ShedReason | None], None] = lambda *_: None
        self.on_report: Callable[[str, ReportOutcome], None] = lambda *_: None
        self._listeners: dict[type[Event], list[Listener]] = {kind: [] for kind in EVENTS}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._saver: asyncio.TimerHandle | None = None
        self._lagging = False
        self._stopped = False
        self.closing = asyncio.Event()

    def listen(self, listener: Listener, *kinds: type[Event]) -> None:
        """Call `listener(event, now)` for every event of these kinds (none named = of all), in
        order."""
        for kind in kinds or EVENTS:
            self._listeners[kind].append(listener)

    def count(
        self, pool: str, priority: Priority, outcome: Outcome, reason: ShedReason | None = None
    ) -> None:
        """An outcome that admission never sees: passed, invalid, a job, or a refusal."""
        self.on_count(pool, priority, outcome, reason)

    # -- the gate's side ------------------------------------------------------------------------

    def submit(self, request: Request) -> Decision | Hold:
        """Decide at once, or hand out a hold. Never waits.

        A request whose end the access log has told already takes no slot: nobody would give that
        one back. Its refusal is read by no one.
        """
        now = self.clock()
        if request.uid in self._ended:
            self.count(request.pool, request.priority, Outcome.CANCELLED)
            return Shed(request, ShedReason.DEADLINE, 1.0, 0.0, False)
        decision: Decision | None = None
        for event in self._emit(self.admission.submit(request, now), now):
            if isinstance(event, (Admitted, Shed)) and event.request.uid == request.uid:
                decision = event
        if decision is None:
            return self._hold(request.uid)
        if isinstance(decision, Admitted) and decision.resent:
            self._told_again[request.uid] = decision
        return decision

    def _hold(self, uid: str) -> Hold:
        older = self._holds.pop(uid, None)
        if older is not None and not older.future.done():
            older.future.set_exception(SupersededError(uid))
        hold = Hold(uid, self._loop.create_future())
        self._holds[uid] = hold
        return hold

    def submit_job(self, job: Request) -> None:
        """Get a job in line; its admission comes as an event, now or later."""
        now = self.clock()
        self._emit(self.admission.submit(job, now), now)

    def restore_jobs(self, jobs: Sequence[Request]) -> None:
        """Jobs that waited before a restart, in order."""
        self.admission.restore_jobs(jobs)
        now = self.clock()
        self._emit(self.admission.pump(now), now)

    def pause_jobs(self) -> None:
        """No job goes until `resume_jobs`."""
        self.admission.pause_jobs(True)

    def resume_jobs(self) -> None:
        """They may go again."""
        self.admission.pause_jobs(False)
        now = self.clock()
        self._emit(self.admission.pump(now), now)

    def withdraw_job(self, uid: str) -> None:
        """A job that waits does not want to go any more."""
        now = self.clock()
        self._emit(self.admission.cancel(uid, now), now)

    def leased(self, uid: str) -> Admitted | None:
        """The admission of whoever holds a lease under this uid."""
        lease = self.admission.lease(uid)
        if lease is None:
            return None
        return Admitted(lease.request, lease.wait_s, lease.wait_s > 0.0, lease.observed, True)

    def touch(self, uid: str) -> None:
        """Its sender knows that it is still under way."""
        self.admission.touch(uid, self.clock())

    def leave(self, hold: Hold) -> None:
        """The client of this stream is gone. Idempotent; nothing when it was superseded.

        When the decision was made but can't be delivered any more, an admission is given back.
        """
        if self._holds.get(hold.uid) is hold:
            del self._holds[hold.uid]
            now = self.clock()
            self._emit(self.admission.cancel(hold.uid, now), now)
            return
        future = hold.future
        if future.done() and not future.cancelled() and future.exception() is None:
            decision = future.result()
            if isinstance(decision, Admitted):
                self.never_sent(decision)

    def never_sent(self, admitted: Admitted) -> None:
        """The stream was gone before it could carry the admission: give the lease back.

        Unless the request was sent again meanwhile: its newer stream carries the lease now.
        """
        if self.owns(admitted):
            now = self.clock()
            self._emit(self.admission.complete(admitted.request.uid, NEVER_SENT, now), now)

    def owns(self, admitted: Admitted) -> bool:
        """Whether `admitted` is the last word on a lease that is still open."""
        uid = admitted.request.uid
        lease = self.admission.lease(uid)
        if lease is None or lease.request is not admitted.request:
            return False
        return self._told_again.get(uid, admitted) is admitted

    def knows(self, uid: str) -> bool:
        """Whether this request was here before: it waits, or waited before a restart, or goes."""
        return self.admission.knows(uid)

    def lagging(self) -> bool:
        """Whether this process is too slow to decide on the lower classes."""
        return self._lagging

    def set_lagging(self, lagging: bool) -> None:
        """Told by the overload guard."""
        if self._lagging and not lagging:  # while it lasts, retries are refused like the rest
            self.admission.forgive_retries(self.clock(), LAG_AMNESTY_S)
        self._lagging = lagging

    def note_late(self, seconds: float) -> None:
        """The loop was late: what was measured meanwhile says little about the engines."""
        self.admission.note_late(seconds)

    # -- the signals' side ----------------------------------------------------------------------

    def complete(self, uid: str, completion: Completion) -> None:
        """An answer ended, or a request left unanswered: the last that is heard of `uid`.

        Under load the log can overtake the gate: the client left, Envoy said so, and the request
        itself still stands in a buffer here. So ends of strangers are remembered for a while.
        """
        if not self.admission.knows(uid):
            self._ended[uid] = None
            if len(self._ended) > ENDS_REMEMBERED:
                self._ended.popitem(last=False)
            return
        now = self.clock()
        self._emit(self.admission.complete(uid, completion, now), now)

    def heartbeat(self, uid: str, node: str) -> None:
        """A request is still under way."""
        self.admission.heartbeat(uid, node, self.clock())

    def node_alive(self, node: str) -> None:
        """An Envoy's access log says something."""
        self.admission.node_alive(node, self.clock())

    def node_reborn(self, node: str) -> None:
        """Whoever watches this Envoy says that its earlier lives are dead.

        Looks again a moment later: what they had sent may still have stood in a buffer here.
        """
        self._bury(node)
        self._loop.call_later(LAST_WORDS_S, self._bury, node)

    def _bury(self, node: str) -> None:
        now = self.clock()
        self._emit(self.admission.node_reborn(node, now), now)

    def tokens(self, uid: str, count: int) -> None:
        """A message of an observed answer, with `count` more tokens, now."""
        self.admission.tokens(uid, count, self.clock())

    def unreadable(self, uid: str) -> None:
        """The tokens of an observed answer can't be counted."""
        self.admission.unreadable(uid)

    def usage(self, uid: str, usage: Usage) -> None:
        """Token counts that an answer carries."""
        self.admission.usage(uid, usage)

    def load_report(self, pool: str, source: str, report: LoadReport) -> None:
        """An engine of `pool` says how it is, and what it asks for."""
        if not report.tells_load and not report.asks:
            self.on_report(pool, ReportOutcome.INVALID)
            return
        stale = report.age_s >= REPORT_FRESH_S and not report.asks
        self.on_report(pool, ReportOutcome.STALE if stale else ReportOutcome.USED)
        self.admission.load_report(pool, source, report, self.clock())

    def backends(self, pool: str, ready: int | None) -> None:
        """So many back ends of `pool` can take work; None = nobody knows."""
        now = self.clock()
        self._emit(self.admission.backends(pool, ready, now), now)

    def load_report_for(self, uid: str, source: str, report: LoadReport) -> None:
        """The engine that answers `uid` says how it is."""
        pool = self.admission.pool_of(uid)
        if pool is not None:
            self.load_report(pool, source, report)

    # -- events and time ------------------------------------------------------------------------

    def _emit(self, events: list[Event], now: float) -> list[Event]:
        """Journal, listeners, holds; then the timer for what comes next."""
        kept = not self._stopped
        for event in events:
            if kept:
                self._scribe.note(event, now)
            if isinstance(event, LeaseEnded):
                self._told_again.pop(event.request.uid, None)
            elif self._holds and isinstance(event, (Admitted, Shed)):
                self._resolve(event)  # its stream goes on at the loop's next turn, not here
            for listener in self._listeners[type(event)]:
                listener(event, now)
        self._arm(now)
        return events

    def _resolve(self, decision: Decision) -> None:
        """Tell the stream that waits; when it is dying already, give an admission back."""
        uid = decision.request.uid
        hold = self._holds.pop(uid, None)
        if hold is None:
            return
        if not hold.future.done():
            hold.future.set_result(decision)
        elif isinstance(decision, Admitted):
            self._loop.call_soon(self.never_sent, decision)

    def _arm(self, now: float) -> None:
        """Keep the one timer at the core's next moment."""
        due = self.admission.next_timer()
        if due is None or self._stopped:
            return
        if self._timer is not None:
            if self._timer_at <= due:
                return  # fires early, finds nothing due, re-arms: cheaper than moving it each time
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_later(max(0.0, due - now), self._fire)

    def _fire(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        now = self.clock()
        try:
            self._emit(self.admission.handle_timer(now), now)
        except Exception:  # reported by the loop; deadlines are kept all the same
            if self._timer is None and not self._stopped:
                self._timer_at = now + MISTAKE_S
                self._timer = self._loop.call_later(MISTAKE_S, self._fire)
            raise

    def reconfigure(self, pools: Sequence[PoolParams]) -> None:
        """New parameters, in force at once: a raised limit releases who waits."""
        self.admission.reconfigure(pools)
        now = self.clock()
        self._emit(self.admission.pump(now), now)

    # -- start and stop -------------------------------------------------------------------------

    def start(self, at: Moment) -> None:
        """Take back what the journal kept, as far as it is in time, then begin to save what is
        learned."""
        alive, dead = revive(self.journal.load(), at)
        for place in dead:
            self.journal.remove(place.request.uid)
        waiting = self._scribe.take_back(alive, at)
        self._emit(self.admission.restore(waiting, at.now), at.now)
        self._saver = self._loop.call_later(SAVE_LEARNED_S, self._save)

    def _save(self) -> None:
        self._saver = self._loop.call_later(SAVE_LEARNED_S, self._save)
        self.journal.save_learned(self.admission.learned(self.clock()))

    async def shed_all(self) -> None:
        """Gateway shutdown: admit nothing new, answer every hold 503 `draining`, in batches."""
        while True:
            now = self.clock()
            self._emit(self.admission.drain(now), now)
            if self.admission.waiting() == 0:
                return
            await asyncio.sleep(DRAIN_PAUSE_S)

    def hand_back(self) -> None:
        """`serve` shutdown: streams abort UNAVAILABLE and Envoy sends them to the next server.

        From here on nobody goes and the journal stays as it is: a slot that comes free now must
        cost those who were handed back neither their places nor their turns.
        """
        self.admission.hold_all()
        self._scribe.places_stay = True
        self.closing.set()

    async def idle(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight, at most `timeout_s`; whether that was reached."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.admission.inflight():  # noqa: ASYNC110 (once, at shutdown)
                    await asyncio.sleep(DRAIN_PAUSE_S * 10)
        return self.admission.inflight() == 0

    async def stop(self) -> None:
        """Save what was learned and let go of timers and the journal. Before `start` nothing was:
        the journal keeps what it has.

        What still ends afterwards frees its slot but is written down nowhere.
        """
        self._stopped = True
        for timer in (self._timer, self._saver):
            if timer is not None:
                timer.cancel()
        if self._saver is not None:
            self.journal.save_learned(self.admission.learned(self.clock()))
        await self.journal.close()
