"""Which of the core's events are written down, and what is taken back from them at a start.

    waits                    its place, and what its tenant was charged for so far
    admitted                 the place goes, the lease comes
    waits for a back end     its place has a new deadline
    shed, left, lapsed       the place goes
    a lease ends             the lease goes

A charge is written only while someone waits, beside what is written anyway: the order of those who
wait then goes on where it was, and a request that never waits costs a lease's record only. Jobs
have records of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from policy_server.core.admission import Admission
from policy_server.core.events import (
    Admitted,
    Cancelled,
    Event,
    Lapsed,
    LeaseEnded,
    LimitChanged,
    Prolonged,
    Shed,
    Waiting,
)
from policy_server.core.request import Kind, Request
from policy_server.journal.boot import this_boot
from policy_server.journal.port import Held, Journal, Place, RequestContext, Turn
from policy_server.journal.restore import Moment, revive_leases


class Scribe:
    """Keeps `journal` in step with `admission`. `request_id_of` gives the x-request-id of a uid."""

    def __init__(
        self, journal: Journal, admission: Admission, request_id_of: Callable[[str], str]
    ) -> None:
        self._journal = journal
        self._admission = admission
        self._request_id_of = request_id_of
        self._boot = this_boot()
        self.places_stay = False
        """Those who wait are being handed to the next process: their places are its now."""

    def note(self, event: Event, now: float) -> None:
        """Write one event down; called in the order in which they happen."""
        if isinstance(event, LimitChanged) or event.request.kind is Kind.JOB:
            return
        request, journal = event.request, self._journal
        if isinstance(event, LeaseEnded):
            journal.lease_ended(request.uid)
            self._turn(request)
        elif not self.places_stay:
            if isinstance(event, Admitted):
                self._admitted(event, now)
            elif isinstance(event, Waiting):
                journal.append_waiting(request, RequestContext(self._request_id_of(request.uid)))
                self._turn(request)
            elif isinstance(event, Prolonged):
                journal.prolong(request)
            elif isinstance(event, (Cancelled, Lapsed)) or (
                isinstance(event, Shed) and event.evicted
            ):
                journal.remove(request.uid)

    def _admitted(self, event: Admitted, now: float) -> None:
        if event.resent:
            return
        held = Held(event.request, now, self._boot)
        if event.queued:
            turn = self._admission.turn_of(event.request)
            charged = None if turn is None else self._charged(event.request, turn)
            self._journal.release(held, charged)
        else:
            self._journal.lease_granted(held)
            self._turn(event.request)

    def _turn(self, request: Request) -> None:
        turn = self._admission.turn_of(request)
        if turn is not None:
            self._journal.save_turn(self._charged(request, turn))

    def _charged(self, request: Request, turn: tuple[float, float]) -> Turn:
        return Turn(request.pool, int(request.priority), request.tenant, *turn, self._boot)

    def take_back(self, places: Iterable[Place], at: Moment) -> list[Request]:
        """At a start: the charges, the slots in use, what was learned; and who still waits."""
        turns = [turn for turn in self._journal.load_turns() if at.boot and turn.boot == at.boot]
        for turn in sorted(turns, key=lambda t: -t.epoch):
            was = turn.tokens, turn.epoch
            self._admission.restore_turn(turn.pool, turn.line, turn.tenant, was)
        leases = revive_leases(self._journal.load_leases(), at)
        held = {lease.request.uid for lease in leases}
        for lease in leases:
            if not self._admission.restore_lease(lease.request, lease.granted, at.now):
                self._journal.lease_ended(lease.request.uid)
        self._admission.restore_learned(self._journal.load_learned(), at.now)
        waiting = [place.request for place in places]
        for request in waiting:
            if request.uid in held:  # the crash came between its admission and its place's end
                self._journal.remove(request.uid)
        return [request for request in waiting if request.uid not in held]
