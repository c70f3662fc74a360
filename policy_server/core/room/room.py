"""The room: one queue per class, bounded in requests and bytes, with displacement.

Decides who may enter and who must leave for it: when the room is full, the newest of the *lowest*
class makes way for a more important newcomer; an arriving P0 is never refused while P2 waits.
So it is within a tenant that has as much as one may: its own batch makes way for its P0.
Jobs wait elsewhere (`jobs`). After a restart the line also has the tickets of requests that
Envoy is about to send again (`places`); they count as ahead of newcomers and against the bounds,
but not as waiting.

Invariants: `requests` and `held_bytes` equal the sums over the queues; a uid is in the room at
most once. Owner: the pool.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from policy_server.core.params import RoomParams
from policy_server.core.request import PRIORITIES, Priority, Request
from policy_server.core.room.places import Places
from policy_server.core.room.queue import ClassQueue
from policy_server.core.room.tenants import FairLines
from policy_server.core.room.ticket import Ticket

TENANT_SHARE = 0.5  # of the bytes: one tenant's bodies, real or claimed, never fill the room
MAX_DISPLACED = 64  # a single large body may push out this many small ones, not the whole room


class Room:
    """Who waits."""

    def __init__(self, params: RoomParams) -> None:
        self._p = params
        self._queues = [ClassQueue(params.tenant_weights) for _ in PRIORITIES]
        self._held_by: Counter[str] = Counter()
        self._bytes_by: Counter[str] = Counter()
        self.tickets: dict[str, Ticket] = {}
        """By uid: all tickets in line, their requests here or not; read only."""
        self.places = Places()
        self._sequence = 0
        self.held = 0
        self.held_bytes = 0

    def reconfigure(self, params: RoomParams) -> None:
        """New bounds and weights for newcomers."""
        self._p = params
        for queue in self._queues:
            queue.fair.reweigh(params.tenant_weights)

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self.tickets) - self.places.in_line

    @property
    def anyone(self) -> bool:
        """Whether there is any ticket in line, its request here or not."""
        return bool(self.tickets)

    def __contains__(self, uid: str) -> bool:
        """Whether there is a ticket in line, its request here or not."""
        return uid in self.tickets

    def __iter__(self) -> Iterator[Request]:
        awaited = self.places.awaited
        return (t.request for uid, t in self.tickets.items() if not awaited(uid))

    def ticket(self, uid: str) -> Ticket | None:
        """The place of `uid`, if it waits."""
        return self.tickets.get(uid)

    def predicted_wait_s(self, uid: str) -> float | None:
        """Ŵ when `uid` came; None when it does not wait here or nothing was known."""
        ticket = self.tickets.get(uid)
        return None if ticket is None else ticket.predicted_wait_s

    def counts(self) -> list[int]:
        """Tickets per class."""
        return [len(q) for q in self._queues]

    def waiting(self) -> list[Priority]:
        """Classes with someone waiting, most important first."""
        return [p for p in PRIORITIES if len(self._queues[p])] if self.tickets else []

    def waits(self, priority: Priority) -> bool:
        """Whether anyone of this class waits."""
        return len(self._queues[priority]) > 0

    def head(self, priority: Priority) -> Ticket:
        """The next of this class; IndexError when none waits."""
        return self._queues[priority].head()

    def leads(self, request: Request) -> bool:
        """Whether a newcomer would be the next of its class."""
        return self._queues[request.priority].fair.leads(request)

    def calm(self, request: Request) -> bool:
        """Whether its tenant used clearly less than the heaviest who waits in its class."""
        return self._queues[request.priority].fair.calm(request.tenant)

    def used_elsewhere(self, priority: Priority) -> float:
        """The part of a class's tokens of late that went to tenants who do not wait now, 0..1."""
        return self._queues[priority].fair.elsewhere

    # -- entering and leaving -----------------------------------------------------------------

    def fits(self, request: Request) -> bool:
        """Whether the bounds allow one more."""
        return (
            self.held < self._p.max_requests
            and self.held_bytes + request.body_bytes <= self._p.max_bytes
        )

    def tenant_full(self, request: Request) -> bool:
        """Whether this tenant holds as much as one may; strangers have no such bound."""
        held = self._held_by[request.tenant]
        if not request.tenant or not held:
            return False
        held_bytes = self._bytes_by[request.tenant] + request.body_bytes
        return held >= self._p.tenant_max_requests or held_bytes > TENANT_SHARE * self._p.max_bytes

    def own_victims(self, request: Request, leaving: Sequence[Ticket] = ()) -> list[Ticket] | None:
        """Who of a full tenant must leave for a more important one of it, besides those `leaving`
        anyway: the last in its lines of the lowest classes. None when that does not help."""
        if not self.tenant_full(request):
            return []
        tenant, size = request.tenant, request.body_bytes
        over = self._bytes_by[tenant] + size - int(TENANT_SHARE * self._p.max_bytes)
        need = min(1, self._held_by[tenant] + 1 - self._p.tenant_max_requests)
        need_bytes = min(size, over)
        gone = [ticket for ticket in leaving if ticket.request.tenant == tenant]
        victims: list[Ticket] = []
        for ticket in (*gone, *self._lesser(request)):
            if need <= 0 and need_bytes <= 0:
                break
            if ticket in victims:
                continue
            victims.append(ticket)
            need, need_bytes = need - 1, need_bytes - ticket.request.body_bytes
        if need > 0 or need_bytes > 0:
            return None
        return [ticket for ticket in victims if ticket not in gone]

    def _lesser(self, request: Request) -> Iterator[Ticket]:
        """The last of its tenant's lines in the classes below its own, as many as may leave."""
        for priority in reversed(PRIORITIES[request.priority + 1 :]):
            line = self._queues[priority].fair.backwards(request.tenant)
            for ticket in islice(line, MAX_DISPLACED):
                if not self.places.awaited(ticket.request.uid):
                    yield ticket

    def tenants(self) -> Counter[str]:
        """Held requests per tenant who waits."""
        return self._held_by

    def lines(self, priority: Priority) -> dict[str, int]:
        """Requests per tenant who waits in this class."""
        return self._queues[priority].fair.lines()

    def last(self, priority: Priority) -> Ticket:
        """The last of this class to come; IndexError when none waits."""
        return self._queues[priority].at(-1)

    def ahead(self, request: Request, per_s: float | None, now: float) -> float:
        """Requests of its class that are served before a newcomer.

        Fair turns with those who wait, one each where they cost the same, and k of the others'
        where its tenant's cost k times the mean; and behind a line of its own no faster than its
        tenant's part of the drain (`per_s` for the class), since the calm will come and go first.
        """
        queue = self._queues[request.priority]
        before, line = queue.fair.before(request), queue.fair.waiting(request.tenant)
        others = len(queue) - line
        cost = queue.fair.costs.relative(request.tenant)
        turns = before + min(others, cost * (before + 1) * (len(queue.fair) - (line > 0)))
        return max(float(turns), cost * before / queue.fair.part(request.tenant, per_s, now))

    def charge(self, request: Request, tokens: float, now: float) -> None:
        """Charge its tenant `tokens`, at dispatch."""
        self._queues[request.priority].fair.charge(request.tenant, tokens, now)

    def correct(self, request: Request, tokens: float, now: float) -> None:
        """Its tenant was charged too little or too much."""
        self._queues[request.priority].fair.correct(request.tenant, tokens, now)

    def turns(self) -> list[FairLines]:
        """The turns of the tenants, by class."""
        return [queue.fair for queue in self._queues]

    def victims_for(self, request: Request) -> list[Ticket] | None:
        """Who must leave so that `request` fits: newest of the lowest classes below it.

        None when it can't be made to fit. Removes nobody. In a room that holds more than a new
        configuration allows, a newcomer makes room for itself only; the rest leaves by itself.
        """
        if request.body_bytes > self._p.max_bytes:
            return None
        need = min(1, self.held + 1 - self._p.max_requests)
        need_bytes = min(
            request.body_bytes, self.held_bytes + request.body_bytes - self._p.max_bytes
        )
        victims: list[Ticket] = []
        for priority in reversed(PRIORITIES):
            if priority <= request.priority:
                break
            queue = self._queues[priority]
            for back in range(len(queue)):
                if len(victims) >= need and need_bytes <= 0:
                    return victims
                if len(victims) >= MAX_DISPLACED:
                    return None
                ticket = queue.at(len(queue) - 1 - back)
                if self.places.awaited(ticket.request.uid):
                    continue
                victims.append(ticket)
                need_bytes -= ticket.request.body_bytes
        return victims if len(victims) >= need and need_bytes <= 0 else None

    def enter(self, request: Request, predicted_wait_s: float | None = None) -> Ticket:
        """Take a place; ValueError when the uid waits already."""
        if request.uid in self.tickets:
            raise ValueError(f"{request.uid} waits already")
        self._sequence += 1
        ticket = Ticket(request, self._sequence, predicted_wait_s)
        self.tickets[request.uid] = ticket
        self._queues[request.priority].push(ticket)
        self._held_by[request.tenant] += 1
        self._bytes_by[request.tenant] += request.body_bytes
        self.held += 1
        self.held_bytes += request.body_bytes
        return ticket

    def prolong(self, request: Request) -> None:
        """Wait longer at the same place; KeyError when the uid has none."""
        old = self.tickets[request.uid]
        queue, ticket = self._queues[request.priority], Ticket(request, old.sequence)
        queue.remove(old)
        queue.push(ticket)
        self.tickets[request.uid] = ticket

    def leave(self, uid: str) -> Request | None:
        """Give the place up; None when it holds none."""
        ticket = self.tickets.pop(uid, None)
        if ticket is None:
            return None
        self.places.forget(uid)
        request = ticket.request
        self._queues[request.priority].remove(ticket)
        self._held_by[request.tenant] -= 1
        self._bytes_by[request.tenant] -= request.body_bytes
        if not self._held_by[request.tenant]:
            del self._held_by[request.tenant], self._bytes_by[request.tenant]
        self.held -= 1
        self.held_bytes -= request.body_bytes
        return request

    # -- deadlines ----------------------------------------------------------------------------

    def expired(self, now: float) -> Ticket | None:
        """Someone whose deadline has passed, least important class first."""
        for queue in reversed(self._queues):
            ticket = queue.expired(now)
            if ticket is not None:
                return ticket
        return None

    def earliest_deadline(self) -> float | None:
        """The next deadline of anyone waiting, monotonic seconds."""
        deadlines = [d for q in self._queues if (d := q.earliest_deadline()) is not None]
        return min(deadlines, default=None)

    # -- restart ------------------------------------------------------------------------------

    def keep_place(self, request: Request, now: float) -> None:
        """`request` waited before the restart that ends now; it comes back under the same uid."""
        if request.uid not in self.tickets:
            self.enter(request)
            self.places.keep(request, now)

    def claim(self, request: Request) -> tuple[Request, bool]:
        """`request` with the seniority of a place that was passed by, and whether it had one."""
        old = self.places.claim(request.uid) if self.places.passed else None
        if old is None:
            return request, False
        kept = replace(
            request,
            arrived=old.arrived,
            deadline=old.deadline,
            extra_s=old.extra_s,
            seniority_s=old.seniority_s,
            returning=old.returning,
        )
        return kept, True

    def pass_by(self, now: float) -> None:
        """Take those out of line who were awaited for long enough."""
        if self.places.awaiting:
            for uid in self.places.pass_by(now):
                self.leave(uid)
