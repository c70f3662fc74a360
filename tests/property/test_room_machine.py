"""The room against a list: whatever comes, goes, is charged or expires, the answers are the same.

The model keeps the waiting requests in one plain list and the tenants' counters as they are
defined (they fade), and sorts anew for each question.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from policy_server.core.params import RoomParams
from policy_server.core.request import PRIORITIES, Priority, Request
from policy_server.core.room.room import Room
from policy_server.core.room.tenants import FADE_S
from tests.support.core_builders import request

TENANTS = ("", "a", "b", "c")
WEIGHTS = {"b": 3.0}
BOUNDS = RoomParams(12, 100, 5, WEIGHTS)
EQUAL = 1e-6  # counters that differ by less have no order


@dataclass
class Naive:
    """The room as it is defined."""

    waiting: list[Request] = field(default_factory=list)
    used: dict[tuple[Priority, str], float] = field(default_factory=dict)

    def of(self, priority: Priority) -> list[Request]:
        return [r for r in self.waiting if r.priority is priority]

    def line(self, priority: Priority, tenant: str) -> list[Request]:
        """One tenant's, the next first; equal ones in the order in which they came."""
        mine = [r for r in self.of(priority) if r.tenant == tenant]
        return sorted(mine, key=lambda r: (r.deadline - r.seniority_s if tenant else 0.0, age(r)))

    def heads(self, priority: Priority) -> set[str]:
        """Whoever may be next: the first of each tenant with the lowest counter."""
        tenants = {r.tenant for r in self.of(priority)}
        lowest = min(self.counter(priority, t) for t in tenants)
        near = [t for t in tenants if self.counter(priority, t) <= lowest + EQUAL * (1.0 + lowest)]
        return {self.line(priority, t)[0].uid for t in near}

    def counter(self, priority: Priority, tenant: str) -> float:
        return self.used.get((priority, tenant), 0.0)

    def fade(self, seconds: float) -> None:
        self.used = {k: v * math.exp(-seconds / FADE_S) for k, v in self.used.items()}

    def charge(self, request_: Request, tokens: float) -> None:
        key = (request_.priority, request_.tenant)
        cost = tokens / WEIGHTS.get(request_.tenant, 1.0)
        self.used[key] = max(0.0, self.used.get(key, 0.0) + cost)


def age(request_: Request) -> float:
    return request_.arrived - request_.seniority_s


class RoomMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.room, self.naive = Room(BOUNDS), Naive()
        self.now, self.count = 0.0, 0

    @rule(
        priority=st.sampled_from(PRIORITIES),
        tenant=st.sampled_from(TENANTS),
        budget_s=st.sampled_from([0.0, 3.0, 3.0, 20.0]),
        seniority_s=st.sampled_from([0.0, 0.0, 7.5]),
        body_bytes=st.sampled_from([0, 1, 30, 60, 101]),
    )
    def come(
        self, priority: Priority, tenant: str, budget_s: float, seniority_s: float, body_bytes: int
    ) -> None:
        """Enter, displacing whom the list says."""
        self.count += 1
        self.now += 1e-4  # no two come at one moment
        facts = {"tenant": tenant, "seniority_s": seniority_s, "body_bytes": body_bytes}
        newcomer = request(f"u{self.count}", priority, at=self.now, budget_s=budget_s, **facts)
        naive, room = self.naive, self.room
        total = sum(r.body_bytes for r in naive.waiting)
        fits = len(naive.waiting) < BOUNDS.max_requests and total + body_bytes <= BOUNDS.max_bytes
        assert room.fits(newcomer) is fits
        own = [r.body_bytes for r in naive.waiting if r.tenant == tenant]
        many = len(own) >= BOUNDS.tenant_max_requests
        large = 2 * (sum(own) + body_bytes) > BOUNDS.max_bytes
        assert room.tenant_full(newcomer) is (bool(tenant and own) and (many or large))
        if not fits:
            victims = self.lesser(newcomer)
            found = room.victims_for(newcomer)
            assert (found is None) is (victims is None)
            if found is None or victims is None:
                return
            assert [t.request.uid for t in found] == [r.uid for r in victims]
            for victim in victims:
                self.go(victim)
        leads = room.leads(newcomer)
        room.enter(newcomer, 1.5)
        naive.waiting.append(newcomer)
        if leads:
            assert newcomer.uid in naive.heads(priority)
        assert room.predicted_wait_s(newcomer.uid) == 1.5

    def lesser(self, newcomer: Request) -> list[Request] | None:
        """Newest first, lowest class first, as few as it takes; None when it takes too many."""
        if newcomer.body_bytes > BOUNDS.max_bytes:
            return None
        below = [p for p in reversed(PRIORITIES) if p > newcomer.priority]
        ranked = [r for p in below for r in sorted(self.naive.of(p), key=age)[::-1]]
        total = sum(r.body_bytes for r in self.naive.waiting) + newcomer.body_bytes
        for count in range(len(ranked) + 1):
            freed = sum(r.body_bytes for r in ranked[:count])
            enough = len(self.naive.waiting) + 1 - count <= BOUNDS.max_requests
            if enough and total - freed <= BOUNDS.max_bytes:
                return ranked[:count]
        return None

    def go(self, request_: Request) -> None:
        assert self.room.leave(request_.uid) is request_
        self.naive.waiting.remove(request_)
        assert self.room.leave(request_.uid) is None

    @rule(priority=st.sampled_from(PRIORITIES), tokens=st.floats(1.0, 500.0))
    def serve(self, priority: Priority, tokens: float) -> None:
        """The head goes and is charged."""
        if not self.naive.of(priority):
            return
        head = self.room.head(priority).request
        assert head.uid in self.naive.heads(priority)
        self.go(head)
        self.room.charge(head, tokens, self.now)
        self.naive.charge(head, tokens)

    @rule(tenant=st.sampled_from(TENANTS), tokens=st.floats(-300.0, 300.0))
    def correct(self, tenant: str, tokens: float) -> None:
        """An answer ended; it was longer or shorter than charged."""
        ended = request("ended", Priority.P1, tenant=tenant)
        self.room.correct(ended, tokens, self.now)
        self.naive.charge(ended, tokens)

    @rule(index=st.integers(0, 30))
    def hang_up(self, index: int) -> None:
        if self.naive.waiting:
            self.go(self.naive.waiting[index % len(self.naive.waiting)])

    @rule(seconds=st.sampled_from([0.01, 1.0, 4.0, 1_000.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.naive.fade(seconds)

    @rule()
    def expire(self) -> None:
        """Everybody past the deadline leaves, the least important first."""
        gone = []
        while (ticket := self.room.expired(self.now)) is not None:
            gone.append(ticket.request)
            self.go(ticket.request)
        assert [r.priority for r in gone] == sorted((r.priority for r in gone), reverse=True)
        assert all(r.deadline <= self.now for r in gone)
        assert all(r.deadline > self.now for r in self.naive.waiting)

    @invariant()
    def the_books_agree(self) -> None:
        room, waiting = self.room, self.naive.waiting
        assert {r.uid for r in room} == {r.uid for r in waiting}
        assert (room.held, room.held_bytes) == (len(waiting), sum(r.body_bytes for r in waiting))
        assert room.counts() == [len(self.naive.of(p)) for p in PRIORITIES]
        assert room.waiting() == [p for p in PRIORITIES if self.naive.of(p)]
        assert room.earliest_deadline() == min((r.deadline for r in waiting), default=None)
        for priority in room.waiting():
            newest = max(self.naive.of(priority), key=age)
            assert room.last(priority).request is newest
            assert room.head(priority).request.uid in self.naive.heads(priority)


RoomMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, report_multiple_bugs=False
)
TestRoomMachine = RoomMachine.TestCase
