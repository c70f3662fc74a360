"""A million tenants, each of whom calls once, leave nothing behind that grows."""

from __future__ import annotations

import random

from policy_server.core.admission import Admission
from policy_server.core.params import LimitParams, PoolParams
from policy_server.core.request import PRIORITIES, Priority, Request
from policy_server.core.retry_budget import MAX_TENANTS
from policy_server.core.room.tenants import REMEMBERED
from tests.support.core_builders import OK

TENANTS = 1_000_000
LIMIT = 64


def test_a_million_tenants_leave_bounded_books() -> None:
    params = PoolParams("chat", LimitParams("fixed", initial=LIMIT), early_drop=False)
    gate, now = Admission((params,), random.Random(1)), 0.0
    for number in range(TENANTS):
        now += 1e-3
        priority, deadline = Priority(number % 3), now + 600.0
        gate.submit(Request(str(number), "chat", priority, now, deadline, f"t{number}"), now)
        if number >= 2 * LIMIT:
            for lease in list(gate.pool("chat").leases)[:1]:
                gate.complete(lease.request.uid, OK, now)
        if number % 1_000 == 0:
            gate.handle_timer(now)
    pool = gate.pool("chat")
    waiting = gate.waiting()
    assert waiting <= 2 * LIMIT
    for priority in PRIORITIES:
        fair = pool.room._queues[priority].fair
        assert len(fair._counters) <= REMEMBERED + max(len(fair), LIMIT)
    assert len(pool.refusals.retries) <= MAX_TENANTS
    assert len(pool.room.tenants()) <= waiting
    assert len(gate._where) == waiting + gate.inflight()
