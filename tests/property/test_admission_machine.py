"""Whatever clients, Envoys and engines do, in any order: nobody is lost, nothing is counted twice.

The machine feeds admission random inputs, odd ones included, keeps its own books from the events
alone, and compares the two after each step.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from policy_server.core.admission import Admission
from policy_server.core.events import (
    Admitted,
    Cancelled,
    Event,
    Lapsed,
    LeaseEnded,
    LimitChanged,
    Shed,
    Waiting,
)
from policy_server.core.limit.vegas import reserve_of
from policy_server.core.pacing import INTERVAL_S
from policy_server.core.params import LimitParams, PoolParams, RoomParams
from policy_server.core.request import LINES, PRIORITIES, Kind, Priority, Request
from policy_server.core.room.places import ABSENT_S
from policy_server.core.samples import Completion, LoadReport, Usage
from tests.support.core_builders import Coin, pool_params

TINY_ROOM = RoomParams(max_requests=6, max_bytes=1_000)
POOLS = (
    pool_params(3.0, name="fixed", room=TINY_ROOM),
    pool_params(LimitParams("vegas", initial=4.0, maximum=64.0), name="vegas"),
    pool_params(1.0, name="one", shares=(0.6, 0.2, 0.0), early_drop=False, no_backend_wait_s=90.0),
)
CHANGES = (
    pool_params(40.0, name="fixed", room=RoomParams(max_requests=3, max_bytes=200)),
    pool_params(1.0, name="fixed", room=TINY_ROOM, shares=(0.2, 0.2, 0.2)),
    pool_params(LimitParams("aimd", initial=2.0), name="fixed"),
    pool_params(LimitParams("vegas", initial=16.0, slo_ttft_s=1.0, slo_tpot_s=0.05), name="vegas"),
    pool_params(LimitParams("gradient", initial=700.0), name="vegas", early_drop=False),
)
NAMES = st.sampled_from([p.name for p in POOLS])
BUDGETS_S = st.sampled_from([-1.0, 0.0, 0.004, 1.0, 5.0, 15.0, 45.0, 600.0])
ODD = st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 0.0, 0.5, 0.95, 3.0, 1e300])
SECONDS = st.sampled_from([None, 0.0, 1e-9, 0.01, 0.3, 2.0, 100.0])
COMPLETIONS = st.builds(
    Completion,
    status=st.sampled_from([0, 200, 200, 200, 404, 429, 500, 503]),
    client_gone=st.booleans(),
    reached_upstream=st.sampled_from([True, True, True, False]),
    first_byte_s=SECONDS,
    last_byte_s=SECONDS,
)
WHO = st.sampled_from([("", 0.0), ("", 50.0), ("a", 0.0), ("a", 3.0), ("b", 0.0), ("b", 1e6)])
"""A tenant, and the seniority that its ticket proves."""
QUIET_CALLS = 20  # timer calls without an event that need no explanation


@dataclass
class Books:
    """What the events said so far."""

    waiting: dict[str, Request]
    leased: dict[str, Request]
    outcomes: Counter[str]
    submitted: int = 0

    def seats(self, pool: str) -> int:
        return sum(r.seats for r in self.leased.values() if r.pool == pool)


class AdmissionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.configured: dict[str, PoolParams] = {p.name: p for p in POOLS}
        self.gate = Admission(POOLS, Coin(0.3))
        self.books = Books({}, {}, Counter())
        self.places: dict[str, Request] = {}
        self.known: list[str] = ["never-seen"]
        self.draining = False

    # -- bookkeeping --------------------------------------------------------------------------

    def learn(self, events: list[Event]) -> None:
        seats = Counter[str]()
        for request in self.books.leased.values():
            seats[request.pool] += request.seats
        for event in events:
            if isinstance(event, LimitChanged):
                assert math.isfinite(event.change.limit)
                assert event.change.limit >= 1.0
                continue
            self.learn_request(event, seats)

    def learn_request(
        self,
        event: Waiting | Admitted | Shed | Cancelled | Lapsed | LeaseEnded,
        seats: Counter[str],
    ) -> None:
        books, uid, pool = self.books, event.request.uid, event.request.pool
        if isinstance(event, Waiting):
            assert uid not in books.waiting
            assert uid not in books.leased
            wait = event.predicted_wait_s
            assert wait is None or 0.0 < wait < math.inf
            books.waiting[uid] = event.request
        elif isinstance(event, Admitted):
            if event.resent:
                assert uid in books.leased
                return
            assert uid not in books.leased
            assert not self.gate.pool(pool).usable.ramp.closed
            limit = self.gate.pool(pool).limit.current
            assert seats[pool] < limit + reserve_of(limit)
            assert 0.0 <= event.wait_s < math.inf
            assert event.queued or uid not in books.waiting
            books.waiting.pop(uid, None)
            books.leased[uid] = event.request
            seats[pool] += event.request.seats
            books.outcomes["admitted"] += 1
        elif isinstance(event, Shed):
            assert uid not in books.leased
            bounds = self.gate.pool(pool).params.retry_after
            assert bounds.min_s <= event.retry_after_s <= bounds.max_s
            assert (books.waiting.pop(uid, None) is None) or event.evicted
            books.outcomes["shed"] += 1
        elif isinstance(event, Lapsed):
            assert uid not in books.waiting
            assert uid not in books.leased
            del self.places[uid]
        elif isinstance(event, Cancelled):
            del books.waiting[uid]
            books.outcomes["cancelled"] += 1
        else:
            del books.leased[uid]
            seats[pool] -= event.request.seats
            assert 0.0 <= event.held_s < math.inf

    def submit(self, request: Request) -> list[Event]:
        uid = request.uid
        repeated = uid in self.books.waiting or uid in self.books.leased
        self.known.append(uid)
        self.books.submitted += not repeated
        place = None if repeated else self.places.pop(uid, None)
        events = self.gate.submit(request, self.now)
        self.learn(events)
        mine = [e for e in events if getattr(e, "request", request).uid == uid]
        if uid in self.books.waiting and repeated:
            assert not mine
        else:
            assert len(mine) == 1
        kept = place is not None and place.pool == request.pool and place.deadline > self.now
        if place is not None and kept and uid in self.books.waiting:
            assert self.books.waiting[uid].arrived == place.arrived
        return events

    def make(self, uid: str, pool: str, priority: Priority, budget_s: float) -> Request:
        return Request(uid, pool, priority, self.now, self.now + budget_s)

    def one_of(self, index: int) -> str:
        return self.known[-1 - index % len(self.known)]

    # -- clients ------------------------------------------------------------------------------

    @rule(
        pool=NAMES,
        priority=st.sampled_from(PRIORITIES),
        budget_s=BUDGETS_S,
        seats=st.sampled_from([1, 1, 1, 3, 8]),
        body_bytes=st.sampled_from([0, 1, 300, 1_000, 5_000]),
        kind=st.sampled_from([Kind.HELD, Kind.HELD, Kind.JOB]),
        prompt_tokens=st.sampled_from([0, 7, 10**12]),
        flags=st.tuples(st.booleans(), st.booleans()),
        who=WHO,
    )
    def arrive(
        self,
        pool: str,
        priority: Priority,
        budget_s: float,
        seats: int,
        body_bytes: int,
        kind: Kind,
        prompt_tokens: int,
        flags: tuple[bool, bool],
        who: tuple[str, float],
    ) -> None:
        request = self.make(f"u{len(self.known)}", self.existing(pool), priority, budget_s)
        streamed, returning = flags
        self.submit(
            replace(
                request,
                seats=seats,
                body_bytes=body_bytes,
                kind=kind,
                prompt_tokens=prompt_tokens,
                streamed=streamed,
                returning=returning or who[1] > 0.0,
                tenant=who[0],
                seniority_s=who[1],
                node="a",
            )
        )

    def existing(self, pool: str) -> str:
        return pool if pool in self.configured else next(iter(self.configured))

    @rule(pool=NAMES, priority=st.sampled_from(PRIORITIES), index=st.integers(0, 50))
    def arrive_again(self, pool: str, priority: Priority, index: int) -> None:
        self.submit(self.make(self.one_of(index), self.existing(pool), priority, 5.0))

    @rule(
        pool=NAMES,
        count=st.sampled_from([5, 20, 20, 1_000]),
        budget_s=st.sampled_from([0.1, 5.0, 45.0]),
    )
    def burst(self, pool: str, count: int, budget_s: float) -> None:
        first = len(self.known)
        for i in range(count):
            request = self.make(
                f"u{first + i}", self.existing(pool), PRIORITIES[i % 3], budget_s + i % 2
            )
            self.submit(replace(request, streamed=i % 4 > 0, body_bytes=i % 7))

    @rule(index=st.integers(0, 50))
    def cancel(self, index: int) -> None:
        uid = self.one_of(index)
        waits = uid in self.books.waiting or uid in self.places
        events = self.gate.cancel(uid, self.now)
        self.learn(events)
        assert waits or not events
        assert uid not in self.books.waiting

    # -- engines and Envoys -------------------------------------------------------------------

    @rule(index=st.integers(0, 50), completion=COMPLETIONS)
    def complete(self, index: int, completion: Completion) -> None:
        uid = self.one_of(index)
        known = uid in self.books.leased or uid in self.books.waiting or uid in self.places
        events = self.gate.complete(uid, completion, self.now)
        self.learn(events)
        assert known or not events
        assert self.gate.complete(uid, completion, self.now) == []

    @rule(pool=NAMES, completion=COMPLETIONS)
    def complete_all(self, pool: str, completion: Completion) -> None:
        for uid in [u for u, r in self.books.leased.items() if r.pool == pool]:
            self.learn(self.gate.complete(uid, completion, self.now))

    @rule(index=st.integers(0, 50), count=st.sampled_from([-1, 0, 1, 2, 60, 10**9]))
    def stream(self, index: int, count: int) -> None:
        uid = self.one_of(index)
        if count % 2:
            self.gate.first_token(uid, self.now)
        self.gate.tokens(uid, count, self.now)
        self.gate.usage(uid, Usage(count, count))

    @rule(gap_s=st.sampled_from([0.0, 0.001, 0.2]))
    def stream_all(self, gap_s: float) -> None:
        for uid in self.books.leased:
            self.gate.first_token(uid, self.now)
        self.now += gap_s
        for uid in self.books.leased:
            self.gate.tokens(uid, 60, self.now)

    @rule(pool=NAMES, source=st.sampled_from("ab"), w=ODD, r=ODD, kv=ODD, p=ODD)
    def report(self, pool: str, source: str, w: float, r: float, kv: float, p: float) -> None:
        self.gate.load_report(pool, source, LoadReport(w, r, kv, p), self.now)

    @rule(pool=NAMES, ready=st.sampled_from([None, 0, 0, 1, 1, 2, 8, 1_000]))
    def backends_come_and_go(self, pool: str, ready: int | None) -> None:
        self.learn(self.gate.backends(pool, ready, self.now))

    @rule(index=st.integers(0, 50), node=st.sampled_from(["", "a", "b"]))
    def heartbeat(self, index: int, node: str) -> None:
        self.gate.heartbeat(self.one_of(index), node, self.now)

    # -- operators ----------------------------------------------------------------------------

    @rule(seconds=st.floats(0.0, 5.0))
    def lag(self, seconds: float) -> None:
        self.gate.note_late(seconds)

    @rule(
        change=st.integers(0, len(CHANGES + POOLS) - 1), drop=st.sampled_from([None, None, "one"])
    )
    def reconfigure(self, change: int, drop: str | None) -> None:
        params = (CHANGES + POOLS)[change]
        self.configured[params.name] = params
        if drop is not None:
            self.configured.pop(drop, None)
        self.gate.reconfigure(list(self.configured.values()))

    @precondition(lambda self: len(self.known) > 60)
    @rule()
    def drain(self) -> None:
        self.draining = True
        for _ in range(len(self.books.waiting) + 1):
            self.learn(self.gate.drain(self.now))
        assert not self.held_waiting()

    @rule(odd=ODD, keep=st.booleans(), reboot=st.booleans())
    def restart(self, odd: float, keep: bool, reboot: bool) -> None:
        """The process dies; its waiters have their places, and, unless the machine went down,
        its leases are known and the tenants' turns go on."""
        learned = self.gate.learned(self.now)
        if not keep:
            learned = {p: dict.fromkeys([*v, "drain"], odd) for p, v in learned.items()}
        waited = [*self.places.values(), *self.books.waiting.values()]
        self.places = {
            r.uid: r
            for r in waited
            if r.kind is Kind.HELD and r.deadline > self.now and r.pool in self.configured
        }
        was, leased = self.gate, {} if reboot else self.books.leased
        leased = {u: r for u, r in leased.items() if r.pool in self.configured}
        self.books = Books({}, leased, Counter(admitted=len(leased)), len(leased))
        self.draining = False
        self.gate = Admission(list(self.configured.values()), Coin(0.3))
        for request in () if reboot else waited:
            turn = was.turn_of(request)
            if turn is not None:
                line = int(request.priority)
                self.gate.restore_turn(request.pool, line, request.tenant, turn)
        for request in leased.values():
            assert self.gate.restore_lease(request, self.now - 1.0, self.now)
        lost = self.gate.restore(waited, self.now)
        assert len(lost) + len(self.places) == len(waited)
        self.gate.restore_learned(learned, self.now)

    @precondition(lambda self: bool(self.places))
    @rule(count=st.integers(1, 50))
    def envoy_sends_again(self, count: int) -> None:
        wanted = [r for r in self.places.values() if r.pool in self.configured]
        for request in wanted[:count]:
            self.submit(replace(request, arrived=self.now, deadline=self.now + 15.0))

    # -- time ---------------------------------------------------------------------------------

    @rule(dt=st.sampled_from([0.0, 0.001, 0.3, 2.0, 2.0, 10.0, 25.0, 130.0]))
    def advance(self, dt: float) -> None:
        self.run_until(self.now + dt)

    @rule(dt=st.sampled_from([0.3, 5.0, 60.0]))
    def sleep_through(self, dt: float) -> None:
        """The event loop stood still: what fell due meanwhile is done late, but done."""
        self.now += dt
        self.run_until(self.now)

    def run_until(self, target: float) -> None:
        quiet = 0
        allowed = QUIET_CALLS + 4 * len(POOLS) * (target - self.now + 1.0)
        while (due := self.gate.next_timer()) is not None and due <= target:
            assert math.isfinite(due)
            self.now = max(self.now, due)
            events = self.gate.handle_timer(self.now)
            self.learn(events)
            quiet += not events
            assert quiet <= allowed, "the timer fires without anything to do"
        self.now = target
        for pool in self.gate.pools():  # without a back end, who waits may wait longer
            self.books.waiting.update({r.uid: r for r in pool.room if r.uid in self.books.waiting})
        if any(r.deadline <= target for r in self.held_waiting()):
            assert due is not None
            assert due <= target + INTERVAL_S, "past its deadline and not in the next batch"

    # -- what must hold after every step --------------------------------------------------------

    @invariant()
    def everyone_is_accounted_for(self) -> None:
        outcomes = self.books.outcomes
        assert self.books.submitted == outcomes.total() + len(self.books.waiting)
        assert self.gate.waiting() + self.gate.jobs_waiting() == len(self.books.waiting)
        assert self.gate.inflight() == len(self.books.leased)
        here = self.books.waiting.keys() | self.books.leased.keys()
        assert not here & self.places.keys()
        assert set(self.gate._where) == here | self.places.keys()

    @invariant()
    def the_sums_are_right(self) -> None:
        for pool in self.gate.pools():
            leases, room = pool.leases, pool.room
            assert leases.seats == sum(x.request.seats for x in leases)
            assert leases.seats == self.books.seats(pool.params.name)
            for line in range(LINES):
                of_line = [x.request for x in leases if x.request.line == line]
                assert leases.seats_by_line()[line] == sum(r.seats for r in of_line)
            assert leases.streamed == sum(x.request.streamed for x in leases)
            assert set(leases.observed) == {x.request.uid for x in leases if x.observed}
            name, places = pool.params.name, room.places
            mine = [r for r in self.places.values() if r.pool == name]
            in_line = [r for r in mine if places.awaited(r.uid)]
            assert (len(places), places.in_line) == (len(mine), len(in_line))
            assert all(r.kind is Kind.HELD for r in room)
            assert all(r.kind is Kind.JOB for r in pool.jobs)
            held = [*room, *in_line]
            assert room.held == len(held) == sum(room.counts())
            assert room.held_bytes == sum(r.body_bytes for r in held)
            assert sum(pool.jobs.counts()) == len(pool.jobs)

    @invariant()
    def limits_and_forecasts_are_numbers(self) -> None:
        for pool in self.gate.pools():
            assert 1.0 <= pool.limit.current < math.inf
            for wait in pool.predicted_waits(self.now):
                assert wait is None or 0.0 <= wait < math.inf
        for state in self.gate.learned(self.now).values():
            assert all(math.isfinite(v) for v in state.values())

    def teardown(self) -> None:
        """With time alone everyone leaves the room, whatever happened before; a job waits on."""
        while self.held_waiting():
            last = max(r.deadline for r in self.held_waiting())
            self.run_until(max(self.now, last) + 1.0)
        self.run_until(self.now + ABSENT_S + 1.0)
        assert not self.places
        for uid in list(self.books.waiting):
            self.learn(self.gate.cancel(uid, self.now))
        assert not self.gate.jobs_waiting()

    def held_waiting(self) -> list[Request]:
        return [r for r in self.books.waiting.values() if r.kind is Kind.HELD]


AdmissionMachine.TestCase.settings = settings(
    max_examples=60,
    report_multiple_bugs=False,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestAdmissionMachine = AdmissionMachine.TestCase
