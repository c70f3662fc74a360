"""Jobs in a pool: behind those who are on the line, never starved, never in their way."""

from __future__ import annotations

from policy_server.core.admission import Admission
from policy_server.core.events import Admitted, Cancelled, LeaseEnded, Shed, Waiting
from policy_server.core.outcome import ShedReason
from policy_server.core.params import RoomParams
from policy_server.core.request import JOBS, Kind, Priority, Request
from tests.support.core_builders import (
    OK,
    P0,
    P1,
    P2,
    UPSTREAM_503,
    admission,
    only,
    pool_params,
    request,
    run_timers,
    uids,
)


def job(uid: str, priority: Priority = P1, at: float = 0.0) -> Request:
    return request(uid, priority, at=at, kind=Kind.JOB, budget_s=86_400.0)


def with_jobs(seats: float, jobs: int, **more: float) -> Admission:
    gate = admission(pool_params(seats, **more))
    for i in range(jobs):
        gate.submit(job(f"j{i}"), 0.0)
    return gate


def admitted(gate: Admission, uid: str, now: float) -> list[str]:
    """Who goes when `uid` ends."""
    return uids(only(Admitted, gate.complete(uid, OK, now)))


def test_jobs_alone_fill_the_pool_and_wait_for_more() -> None:
    gate = with_jobs(4.0, 10)
    assert (gate.inflight(), gate.jobs_waiting(), gate.waiting()) == (4, 6, 0)
    assert gate.pool("chat").leases.seats_by_line()[JOBS] == 4
    assert admitted(gate, "j0", 1.0) == ["j4"]


def test_whoever_is_on_the_line_goes_first_whatever_the_class_of_the_job() -> None:
    gate = with_jobs(4.0, 4)
    gate.submit(job("urgent", P0), 0.0)
    for i in range(4):  # P0 may use the reserve at once
        gate.submit(request(f"p2-{i}", P2, at=0.5, budget_s=40.0), 0.5)
    order = [uid for i in range(4) for uid in admitted(gate, f"j{i}", 1.0)]
    assert order[0] == "p2-0"
    assert "urgent" not in order[:3]


def test_a_job_is_in_no_bound_and_in_no_prediction() -> None:
    room = RoomParams(max_requests=1, max_bytes=10)
    gate = with_jobs(1.0, 500, room=room)
    assert gate.jobs_waiting() == 499
    gate.complete("j0", OK, 1.0)
    pool = gate.pool("chat")
    before = pool.predicted_waits(2.0)
    for i in range(500):
        gate.submit(job(f"more{i}", P0), 2.0)
    assert pool.predicted_waits(2.0) == before
    (waits,) = only(Waiting, gate.submit(request("held", P0, at=2.0, body_bytes=10), 2.0))
    assert waits.request.uid == "held"


def test_the_share_of_the_jobs_is_kept_under_a_lasting_backlog() -> None:
    """100 seats, a share of .1, and more P0 than fits: about ten seats work for jobs."""
    gate = admission(pool_params(100.0, jobs_share=0.1, early_drop=False))
    running: list[tuple[float, str]] = []
    served = {"held": 0, "job": 0}
    for i in range(2_000):
        gate.submit(job(f"j{i}"), 0.0)
    now, sent = 0.0, 0
    running = [
        (1.0 + i / 100, lease.request.uid) for i, lease in enumerate(gate.pool("chat").leases)
    ]
    while now < 30.0:
        while sent < now * 150:
            for event in only(Admitted, gate.submit(request(f"h{sent}", P0, at=now), now)):
                running.append((now + 1.0, event.request.uid))
            sent += 1
        running.sort()
        now, uid = running.pop(0)
        for event in only(Admitted, gate.complete(uid, OK, now)):
            running.append((now + 1.0, event.request.uid))
        if now > 5.0:
            served["job" if uid.startswith("j") else "held"] += 1
    share = served["job"] / sum(served.values())
    assert 0.08 < share < 0.12


def test_a_job_is_withdrawn_and_its_end_frees_the_slot() -> None:
    gate = with_jobs(1.0, 3)
    (gone,) = only(Cancelled, gate.cancel("j1", 1.0))
    assert gone.request.uid == "j1"
    events = gate.complete("j0", OK, 2.0)
    assert uids(only(LeaseEnded, events)) == ["j0"]
    assert uids(only(Admitted, events)) == ["j2"]


def test_no_deadline_ends_the_wait_of_a_job() -> None:
    gate = with_jobs(1.0, 2)
    gate.touch("j0", 99_999.0)
    gate.handle_timer(100_000.0)
    assert gate.jobs_waiting() == 1


def test_jobs_stay_where_they_are_while_the_pool_drains_or_the_process_ends() -> None:
    for stop in ("drain", "hold"):
        gate = with_jobs(1.0, 3)
        if stop == "drain":
            gate.drain(1.0)
        else:
            gate.hold_jobs()
        assert admitted(gate, "j0", 2.0) == []
        gate.submit(job("late"), 3.0)
        assert (gate.jobs_waiting(), gate.inflight()) == (3, 0)


def test_paused_jobs_go_on_where_they_were_unless_the_process_ends() -> None:
    gate = with_jobs(1.0, 3)
    gate.pause_jobs(True)
    assert admitted(gate, "j0", 2.0) == []
    assert isinstance(gate.submit(request("held"), 2.5)[0], Admitted)
    gate.complete("held", OK, 3.0)
    gate.reconfigure([pool_params(1.0), pool_params(1.0, name="new")])
    gate.submit(request("late", kind=Kind.JOB, pool="new"), 3.0)
    assert gate.inflight() == 0
    gate.pause_jobs(False)
    assert uids(only(Admitted, gate.pump(4.0))) == ["j1", "late"]
    gate.hold_jobs()
    gate.pause_jobs(True)
    gate.pause_jobs(False)
    assert admitted(gate, "j1", 5.0) == []


def test_a_job_whose_pool_is_gone_goes_to_the_first_one() -> None:
    gate = admission(pool_params(1.0, name="one"), pool_params(1.0, name="two"))
    (went,) = only(Admitted, gate.submit(request("a", kind=Kind.JOB, pool="gone"), 1.0))
    assert went.request.pool == "one"
    (waits,) = gate.submit(request("b", kind=Kind.JOB, pool="gone"), 1.0)
    assert waits.request.pool == "one"


def test_restored_jobs_keep_their_order_and_find_a_pool() -> None:
    gate = admission(pool_params(1.0))
    gate.restore_jobs([job("a"), request("b", kind=Kind.JOB, pool="gone", at=1.0)])
    assert gate.inflight() == 0
    assert uids(gate.pump(2.0)) == ["a"]
    assert admitted(gate, "a", 3.0) == ["b"]


def test_a_request_that_may_become_a_job_is_refused_without_a_booking() -> None:
    gate = with_jobs(1.0, 0)
    gate.submit(request("busy"), 0.0)
    (first,) = only(Shed, gate.submit(request("a", budget_s=0.0, or_job=True), 0.0))
    assert (first.reason, first.retry_after_s) == (ShedReason.PREDICTED_WAIT, 0.0)
    (second,) = only(Shed, gate.submit(request("b", budget_s=0.0), 0.0))
    (alone,) = only(Shed, with_busy().submit(request("b", budget_s=0.0), 0.0))
    assert second.retry_after_s == alone.retry_after_s


def with_busy() -> Admission:
    gate = with_jobs(1.0, 0)
    gate.submit(request("busy"), 0.0)
    return gate


def test_a_job_that_waits_for_a_cooling_slot_goes_by_itself() -> None:
    gate = with_jobs(1.0, 1)
    gate.complete("j0", UPSTREAM_503, 0.1)
    gate.submit(job("again"), 0.1)
    assert gate.jobs_waiting() == 1
    assert uids(only(Admitted, run_timers(gate, 0.1, 5.0))) == ["again"]
