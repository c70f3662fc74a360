"""No back end is ready: who waits, for how long, and what happens when the first one comes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policy_server.core.admission import Admission
from policy_server.core.events import Admitted, LimitChanged, Shed, Waiting
from policy_server.core.limit.base import Reason
from policy_server.core.outcome import ShedReason
from policy_server.core.params import LimitParams
from policy_server.core.ramp import RAMP_S, START
from policy_server.core.request import Kind, Priority
from tests.support.core_builders import (
    OK,
    P0,
    P1,
    P2,
    admission,
    only,
    pool_params,
    request,
    run_timers,
    uids,
)

WAIT_S = 300.0


def gate(limit: float | LimitParams = 4.0, ready: int | None = 0) -> Admission:
    """One pool that may wait for its first back end."""
    made = admission(pool_params(limit, no_backend_wait_s=WAIT_S))
    made.backends("chat", ready, 0.0)
    return made


def test_nothing_is_dispatched_until_a_back_end_is_ready() -> None:
    pool = gate()
    assert uids(only(Waiting, pool.submit(request("a"), 0.0))) == ["a"]
    assert not only(Admitted, run_timers(pool, 0.0, 60.0))
    assert uids(only(Admitted, pool.backends("chat", 1, 60.0))) == ["a"]


def test_a_pool_that_is_told_nothing_yet_holds_as_well() -> None:
    pool = admission(pool_params(4.0, no_backend_wait_s=WAIT_S))
    assert not only(Admitted, pool.submit(request("a"), 0.0))
    assert uids(only(Admitted, pool.backends("chat", None, 0.5))) == ["a"]


def test_a_pool_without_a_source_of_readiness_never_holds() -> None:
    pool = admission(pool_params(4.0))
    pool.backends("chat", 0, 0.0)
    assert uids(only(Admitted, pool.submit(request("a"), 0.0))) == ["a"]


def test_past_the_budget_it_is_503_no_backend() -> None:
    pool = gate()
    pool.submit(request("a", P0, budget_s=5.0), 0.0)
    assert not only(Shed, run_timers(pool, 0.0, WAIT_S - 1.0))
    (shed,) = only(Shed, run_timers(pool, WAIT_S - 1.0, WAIT_S + 1.0))
    assert shed.reason is ShedReason.NO_BACKEND
    assert not shed.reason.capacity_exists


def test_who_waited_when_the_last_back_end_went_waits_for_the_next() -> None:
    pool = gate(1.0, ready=1)
    pool.submit(request("runs"), 0.0)
    pool.submit(request("waits", budget_s=15.0), 0.0)
    pool.backends("chat", 0, 5.0)
    pool.complete("runs", OK, 6.0)
    assert not only(Shed, run_timers(pool, 6.0, 100.0))
    assert uids(only(Admitted, pool.backends("chat", 1, 100.0))) == ["waits"]


def test_a_caller_that_wants_to_wait_less_waits_less() -> None:
    pool = gate()
    pool.submit(replace(request("a", budget_s=15.0), patience_s=30.0), 0.0)
    assert not only(Shed, run_timers(pool, 0.0, 29.0))
    (shed,) = only(Shed, run_timers(pool, 29.0, 31.0))
    assert shed.reason is ShedReason.NO_BACKEND
    (never,) = only(Shed, pool.submit(replace(request("b", budget_s=0.0), patience_s=0.0), 0.0))
    assert never.reason is ShedReason.NO_BACKEND


def told(pool: Admission, at: float, priority: Priority = P1) -> float:
    """Retry-After of one who can't wait, without the jitter."""
    hasty = request(f"hasty{at}", priority, at=at, budget_s=0.0)
    (shed,) = only(Shed, pool.submit(replace(hasty, patience_s=0.0), at))
    assert shed.reason is ShedReason.NO_BACKEND
    return shed.retry_after_s / 1.125


def test_while_nobody_knows_how_long_a_cold_start_takes_the_budget_is_what_is_told() -> None:
    pool = gate()
    assert told(pool, 0.0, P0) == pytest.approx(5.0, abs=1.0)
    assert told(pool, 1.0, P2) == pytest.approx(45.0, abs=1.0)


def test_who_waited_in_vain_is_not_told_to_come_back_at_once() -> None:
    pool = gate()
    pool.submit(request("a", P0, budget_s=5.0), 0.0)
    (shed,) = only(Shed, run_timers(pool, 0.0, WAIT_S + 1.0))
    assert shed.retry_after_s == 55.0


@pytest.mark.parametrize("kind", Kind)
def test_the_last_cold_start_tells_when_to_come_back(kind: Kind) -> None:
    pool = gate()
    pool.submit(request("first", at=100.0, kind=kind), 100.0)  # zero until somebody asks
    pool.backends("chat", 1, 140.0)
    pool.complete("first", OK, 141.0)
    pool.backends("chat", 0, 1000.0)
    pool.submit(request("asks", at=2000.0), 2000.0)
    assert told(pool, 2010.0) == pytest.approx(30.0, abs=1.0)
    assert told(pool, 2044.0) == pytest.approx(44.0, abs=2.0)  # late: as long again


def test_who_waits_when_the_last_back_end_goes_asks_for_the_next_at_once() -> None:
    pool = gate(1.0, ready=1)
    pool.submit(request("runs"), 0.0)
    pool.submit(request("waits", budget_s=15.0), 0.0)
    pool.backends("chat", 0, 5.0)
    run_timers(pool, 5.0, 30.0)
    pool.backends("chat", 1, 35.0)
    pool.backends("chat", 0, 100.0)
    assert told(pool, 100.0) == pytest.approx(30.0, abs=1.0)


def test_nobody_is_refused_on_a_guess_meanwhile() -> None:
    pool = gate(1.0, ready=1)
    for second in range(20):  # one answer a second is what the pool learns
        pool.submit(request(f"u{second}", at=float(second)), float(second))
        pool.complete(f"u{second}", OK, second + 1.0)
    pool.backends("chat", 0, 20.0)
    held = [pool.submit(request(f"h{i}", P0, at=20.0, budget_s=5.0), 20.0) for i in range(50)]
    assert all(only(Waiting, events) for events in held)


def test_jobs_wait_as_well_and_go_with_the_first_back_end() -> None:
    pool = gate()
    assert uids(only(Waiting, pool.submit(request("job", kind=Kind.JOB), 0.0))) == ["job"]
    assert not uids(run_timers(pool, 0.0, 1000.0))
    assert uids(only(Admitted, pool.backends("chat", 1, 1000.0))) == ["job"]


@pytest.mark.parametrize("tenant", ["", "acme"])
def test_who_waited_through_the_outage_goes_before_newcomers(tenant: str) -> None:
    pool = gate(1.0)
    pool.submit(request("old", P2, budget_s=45.0, tenant=tenant), 0.0)
    pool.submit(request("old2", P2, budget_s=45.0, tenant=tenant), 0.0)
    pool.backends("chat", 1, 100.0)
    pool.submit(request("new", P2, at=100.0, budget_s=45.0, tenant=tenant), 100.0)
    assert uids(only(Admitted, pool.complete("old", OK, 101.0))) == ["old2"]


def test_the_limit_follows_the_number_of_back_ends_and_newcomers_ramp() -> None:
    pool = gate(LimitParams("vegas", initial=40.0), ready=1)
    for i in range(400):
        pool.submit(request(f"u{i}", P0, budget_s=500.0), 0.0)
    assert pool.inflight() == pytest.approx(40, abs=3)
    events = pool.backends("chat", 4, 1.0)
    (change,) = only(LimitChanged, events)
    assert (change.change.limit, change.change.reason) == (160.0, Reason.BACKENDS)
    run_timers(pool, 1.0, 2.1)
    assert pool.inflight() == pytest.approx(160 * (1 + 3 * START) / 4, abs=10)
    run_timers(pool, 2.1, 1.0 + RAMP_S / 2)
    halfway = pool.inflight()
    assert 90 < halfway < 130
    run_timers(pool, 1.0 + RAMP_S / 2, 1.5 + RAMP_S)
    assert pool.inflight() >= 0.9 * pool.pool("chat").limit.current


def test_what_was_learned_of_a_replica_survives_zero_and_a_restart() -> None:
    pool = gate(LimitParams("vegas", initial=40.0), ready=2)
    pool.backends("chat", 0, 10.0)
    saved = pool.learned(10.0)
    again = admission(pool_params(LimitParams("vegas", initial=16.0), no_backend_wait_s=WAIT_S))
    again.restore_learned(saved, 0.0)
    assert again.pool("chat").limit.current == 20.0  # half of what was proven, as ever
    again.backends("chat", 1, 1.0)
    assert again.pool("chat").limit.current == 10.0


def test_a_fixed_limit_stays_as_configured() -> None:
    pool = gate(8.0, ready=1)
    assert not only(LimitChanged, pool.backends("chat", 4, 1.0))
    assert pool.pool("chat").limit.current == 8.0


def test_a_place_from_before_a_restart_is_kept_through_the_outage() -> None:
    pool = gate()
    (waiting,) = only(Waiting, pool.submit(request("a", P1, budget_s=15.0), 0.0))
    again = gate()
    again.restore([replace(waiting.request)], 100.0)
    again.submit(request("b", P1, at=100.5), 100.5)
    again.submit(request("a", P1, at=101.0), 101.0)
    events = [*again.backends("chat", 1, 102.0), *run_timers(again, 102.0, 104.0)]
    assert uids(only(Admitted, events)) == ["a", "b"]


def test_those_who_waited_go_one_after_the_other_not_in_one_instant() -> None:
    pool = gate(64.0)
    for i in range(64):
        pool.submit(request(f"u{i}", P0), 0.0)
    assert len(only(Admitted, pool.backends("chat", 1, 10.0))) == 1
    run_timers(pool, 10.0, 10.5)
    assert 20 < pool.inflight() < 45
    run_timers(pool, 10.5, 11.5)
    assert pool.inflight() > 55
