"""One pool: who goes, who waits, who is refused, in the order a client would see it."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import pytest

from policy_server.core.admission import Admission
from policy_server.core.events import (
    Admitted,
    Cancelled,
    Event,
    LeaseEnded,
    LimitChanged,
    Shed,
    Waiting,
)
from policy_server.core.learning import FIRST_SEATS
from policy_server.core.limit.base import Reason
from policy_server.core.outcome import LeaseEnd, ShedReason
from policy_server.core.pacing import MAX_BATCH
from policy_server.core.params import LimitParams, RoomParams
from policy_server.core.request import LINES, Kind, Priority
from policy_server.core.retry_budget import START_RETRIES, SUCCESSES_PER_RETRY
from policy_server.core.samples import Completion, LoadReport, Usage
from policy_server.core.slew import RISE_S
from tests.support.core_builders import (
    CLIENT_LEFT,
    NEVER_SENT,
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


def send(
    gate: Admission,
    names: str,
    priority: Priority = P1,
    at: float = 0.0,
    **facts: Any,
) -> list[Event]:
    """One request per name, all at once."""
    events: list[Event] = []
    for name in names.split():
        events += gate.submit(request(name, priority, at=at, **facts), at)
    return events


def reasons(events: list[Event]) -> list[ShedReason]:
    return [e.reason for e in only(Shed, events)]


# -- going and waiting ----------------------------------------------------------------------------


def test_requests_go_at_once_until_the_limit_and_then_wait() -> None:
    gate = admission(pool_params(2.0))
    events = send(gate, "a b c d")
    assert uids(only(Admitted, events)) == ["a", "b"]
    assert uids(only(Waiting, events)) == ["c", "d"]
    first = only(Admitted, events)[0]
    assert (first.wait_s, first.queued, first.resent) == (0.0, False, False)


def test_a_freed_slot_goes_to_the_first_in_line() -> None:
    gate = admission(pool_params(1.0))
    send(gate, "a b c")
    events = gate.complete("a", OK, 3.0)
    assert uids(events) == ["a", "b"]
    admitted = only(Admitted, events)[0]
    assert (admitted.wait_s, admitted.queued) == (3.0, True)
    assert uids(gate.complete("b", OK, 4.0)) == ["b", "c"]


def test_a_newcomer_does_not_pass_those_of_its_class_who_wait() -> None:
    gate = admission(pool_params(2.0))
    send(gate, "a b c")
    assert uids(only(Waiting, send(gate, "d", at=1.0))) == ["d"]
    assert uids(only(Admitted, gate.complete("a", OK, 2.0))) == ["c"]


def test_the_important_pass_those_who_wait_below_their_share() -> None:
    gate = admission(pool_params(10.0))
    send(gate, "a b c d e f g h i j k", P2)
    assert uids(only(Admitted, send(gate, "vip", P0, at=1.0))) == ["vip"]


def test_a_freed_slot_goes_to_the_entitled_before_the_earlier() -> None:
    gate = admission(pool_params(8.0))  # R = 1
    send(gate, "a b c d e f g h", P2)
    send(gate, "late-p2", P2)
    assert uids(only(Admitted, send(gate, "vip-1", P0))) == ["vip-1"]  # the reserve
    send(gate, "vip-2", P0)
    assert uids(only(Admitted, gate.complete("a", OK, 1.0))) == ["vip-2"]


def test_a_heavy_request_takes_as_many_seats_and_blocks_nobody_for_ever() -> None:
    gate = admission(pool_params(8.0))
    send(gate, "a b c d e f g")
    assert only(Waiting, send(gate, "heavy", seats=2))
    assert only(Waiting, send(gate, "h", at=1.0))  # though one seat is free
    assert uids(only(Admitted, gate.complete("a", OK, 2.0))) == ["heavy"]
    assert uids(only(Admitted, gate.complete("b", OK, 3.0))) == ["h"]
    assert gate.pool("chat").leases.seats == 8


def shrunk(gate: Admission, limit: float, at: float) -> None:
    gate.reconfigure([pool_params(limit)])
    gate.pump(at)


@pytest.mark.parametrize("kind", Kind)
def test_a_request_that_waits_weighs_no_more_than_a_quarter_of_a_limit_that_shrank(
    kind: Kind,
) -> None:
    gate = admission(pool_params(40.0))
    names = [f"u{n}" for n in range(40)]
    send(gate, " ".join(names))
    send(gate, "heavy", seats=8, kind=kind, tenant="h", budget_s=60.0)
    send(gate, "light", at=1.0, kind=kind, tenant="x", budget_s=60.0)
    shrunk(gate, 6.0, 2.0)
    went = [e for name in names[:38] for e in gate.complete(name, OK, 3.0)]
    assert uids(only(Admitted, went)) == ["heavy", "light"]
    table = gate.pool("chat").leases
    assert [table.by_uid[uid].request.seats for uid in ("heavy", "light")] == [1, 1]
    shrunk(gate, 40.0, 4.0)  # what it holds it gives back, whatever it would weigh now
    for uid in [*names[38:], "heavy", "light"]:
        gate.complete(uid, OK, 5.0)
    assert (table.seats, table.seats_by_line()) == (0, [0] * LINES)


def test_a_job_that_comes_again_is_weighed_again() -> None:
    gate = admission(pool_params(8.0))
    assert only(Admitted, send(gate, "again", seats=8, kind=Kind.JOB))
    assert gate.pool("chat").leases.seats == 2


def test_an_idle_engine_of_one_slot_takes_any_class() -> None:
    for priority in Priority:
        gate = admission(pool_params(1.0))
        assert only(Admitted, send(gate, "a", priority))


# -- refusals -------------------------------------------------------------------------------------


def test_a_budget_of_zero_never_waits() -> None:
    gate = admission(pool_params(1.0))
    send(gate, "a")
    events = send(gate, "b", budget_s=0.0)
    assert reasons(events) == [ShedReason.PREDICTED_WAIT]
    assert not only(Shed, events)[0].evicted
    assert only(Admitted, send(admission(), "b", budget_s=0.0))


def busy(limit: float = 1.0, service_s: float = 1.0, **pool: Any) -> Admission:
    """A pool that answers `limit / service_s` requests a second and is full at t = 10."""
    gate = admission(pool_params(limit, **pool))
    for second in range(10):
        send(gate, f"warm-{second}", P1, float(second))
        gate.complete(f"warm-{second}", OK, second + service_s)
    send(gate, "full", P1, 10.0)
    return gate


def test_who_could_not_be_served_in_time_is_told_at_once() -> None:
    gate = busy()
    events: list[Event] = []
    for i in range(30):
        events += send(gate, f"u{i}", P1, 10.0, budget_s=15.0)
    waiting, shed = only(Waiting, events), only(Shed, events)
    # Ten answers in nine seconds; .9 · (9 + 1.9·√8) ≤ .9 · 15 s, one more would not be.
    assert [w.predicted_wait_s for w in waiting] == pytest.approx([0.9 * n for n in range(1, 10)])
    assert {s.reason for s in shed} == {ShedReason.PREDICTED_WAIT}


def test_early_refusal_can_be_switched_off() -> None:
    gate = busy(early_drop=False)
    assert len(only(Waiting, send(gate, " ".join(f"u{i}" for i in range(30)), P1, 10.0))) == 30


def test_a_full_room_refuses_equals_and_displaces_the_lesser() -> None:
    gate = admission(pool_params(1.0, room=RoomParams(max_requests=2)))
    send(gate, "busy a b", P2)
    assert reasons(send(gate, "c", P2)) == [ShedReason.ROOM_FULL]
    events = send(gate, "vip", P0)
    (displaced,) = only(Shed, events)
    assert (displaced.request.uid, displaced.reason) == ("b", ShedReason.DISPLACED)
    assert displaced.evicted
    assert uids(only(Waiting, events)) == ["vip"]


def own_line(*batch: Priority) -> Admission:
    """A tenant has as many places as one may, all taken by these."""
    gate = admission(pool_params(1.0, room=RoomParams(tenant_max_requests=len(batch))))
    send(gate, "running", tenant="other")
    for number, priority in enumerate(batch):
        send(gate, f"b{number}", priority, at=0.1 * number, tenant="a")
    return gate


def test_a_tenants_own_batch_makes_way_for_its_important_requests() -> None:
    gate = own_line(P2, P1, P2)
    events = send(gate, "vip", P0, tenant="a", at=1.0)
    assert [(e.request.uid, e.reason, e.evicted) for e in only(Shed, events)] == [
        ("b2", ShedReason.DISPLACED, True)
    ]
    assert uids(only(Waiting, events)) == ["vip"]
    assert uids(only(Shed, send(gate, "vip-2", P0, tenant="a", at=1.0))) == ["b0"]
    assert uids(only(Shed, send(gate, "vip-3", P0, tenant="a", at=1.0))) == ["b1"]
    assert reasons(send(gate, "vip-4", P0, tenant="a", at=1.0)) == [ShedReason.TENANT_LIMIT]
    assert gate.pool("chat").room.tenants()["a"] == 3


def test_nobody_of_a_full_tenant_makes_way_for_an_equal_or_for_another_tenant() -> None:
    gate = own_line(P1, P1)
    for uid, priority in (("equal", P1), ("lesser", P2)):
        assert reasons(send(gate, uid, priority, tenant="a")) == [ShedReason.TENANT_LIMIT]
    assert only(Waiting, send(gate, "else", P0, tenant="b"))
    assert gate.pool("chat").room.tenants() == {"a": 2, "b": 1}


def test_a_full_room_and_a_full_tenant_lose_one_for_one_who_comes() -> None:
    gate = admission(pool_params(1.0, room=RoomParams(max_requests=2, tenant_max_requests=2)))
    send(gate, "running", tenant="other")
    send(gate, "b0", P2, tenant="a", budget_s=45.0)
    send(gate, "b1", P2, tenant="a", budget_s=30.0)  # the newest, though not the last in line
    events = send(gate, "vip", P0, tenant="a", at=1.0)
    assert uids(only(Shed, events)) == ["b1"]
    assert only(Waiting, events)


def test_the_large_bodies_of_a_tenants_own_batch_make_way_as_well() -> None:
    gate = admission(pool_params(1.0, room=RoomParams(max_bytes=100)))
    send(gate, "running", tenant="other")
    send(gate, "b0 b1 b2 b3 b4", P2, tenant="a", body_bytes=10)  # half of the room's bytes
    assert reasons(send(gate, "b5", P2, tenant="a", body_bytes=1)) == [ShedReason.TENANT_LIMIT]
    events = send(gate, "vip", P0, tenant="a", body_bytes=15)
    assert uids(only(Shed, events)) == ["b4", "b3"]
    assert only(Waiting, events)
    assert reasons(send(gate, "huge", P0, tenant="a", body_bytes=51)) == [ShedReason.TENANT_LIMIT]
    assert gate.pool("chat").room.held_bytes == 45


def test_a_place_whose_request_is_not_back_yet_makes_way_for_nobody() -> None:
    gate = admission(pool_params(1.0, room=RoomParams(tenant_max_requests=2)))
    batch = [request(f"b{n}", P2, at=0.1 * n, budget_s=45.0, tenant="a") for n in range(2)]
    gate.restore_lease(request("running", tenant="other"), 0.0, 1.0)
    gate.restore(batch, 1.0)
    assert reasons(send(gate, "vip", P0, tenant="a", at=1.1)) == [ShedReason.TENANT_LIMIT]
    gate.submit(batch[0], 1.2)
    assert uids(only(Shed, send(gate, "vip-2", P0, tenant="a", at=1.3))) == ["b0"]


def test_every_refusal_says_when_to_come_back() -> None:
    gate = admission(pool_params(1.0, room=RoomParams(max_requests=1)))
    send(gate, "a b")
    promises = [
        only(Shed, send(gate, f"u{i}", P2, 0.0, returning=True))[0].retry_after_s
        for i in range(500)
    ]
    assert all(1.0 <= p <= 55.0 for p in promises)
    assert promises[-1] == 55.0
    assert promises == sorted(promises)


# -- leaving --------------------------------------------------------------------------------------


def test_a_place_is_lost_at_its_deadline() -> None:
    gate = admission(pool_params(1.0))
    send(gate, "busy")
    send(gate, "a", budget_s=3.0)
    events = run_timers(gate, 0.0, 3.0)
    (shed,) = only(Shed, events)
    assert (shed.request.uid, shed.reason, shed.wait_s) == ("a", ShedReason.DEADLINE, 3.0)
    assert shed.evicted


def test_a_client_that_leaves_the_line_moves_it_up() -> None:
    gate = admission(pool_params(1.0))
    send(gate, "busy a b")
    (cancelled,) = gate.cancel("a", 2.0)
    assert isinstance(cancelled, Cancelled)
    assert cancelled.wait_s == 2.0
    assert uids(only(Admitted, gate.complete("busy", OK, 3.0))) == ["b"]


def test_an_end_of_a_request_that_waits_is_a_client_that_left() -> None:
    gate = admission(pool_params(1.0))
    send(gate, "busy a")
    assert isinstance(gate.complete("a", NEVER_SENT, 1.0)[0], Cancelled)


def test_thousands_that_expire_at_once_leave_in_batches_and_the_timer_never_spins() -> None:
    gate = admission(pool_params(1.0, room=RoomParams(), early_drop=False))
    send(gate, "busy")
    send(gate, " ".join(f"u{i}" for i in range(8_000)), budget_s=5.0)
    now, batches = 5.0, []
    gate.handle_timer(2.0)
    while gate.waiting():
        due = gate.next_timer()
        assert due is not None
        assert due > now or not batches
        now = max(now, due)
        batches.append(len(only(Shed, gate.handle_timer(now))))
    assert max(batches) == MAX_BATCH
    assert len(batches) <= 33
    assert now == pytest.approx(5.0 + 0.005 * (len(batches) - 1), abs=0.01)


def test_a_limit_that_rises_releases_thousands_in_batches() -> None:
    gate = admission(pool_params(1.0, early_drop=False))
    send(gate, "busy")
    send(gate, " ".join(f"u{i}" for i in range(8_000)), budget_s=600.0)
    gate.reconfigure([pool_params(10_000.0, early_drop=False)])
    events = gate.complete("busy", OK, 1.0)
    assert len(only(Admitted, events)) == 1  # a jump of the limit is spread over a second
    events += run_timers(gate, 1.0, 2.2)
    assert uids(only(Admitted, events)) == [f"u{i}" for i in range(8_000)]


def test_an_upstream_that_refuses_everything_at_once_does_not_burn_the_room() -> None:
    gate = admission(pool_params(10.0, early_drop=False))
    now, under_way = 0.0, {f"u{i}" for i in range(10)}
    send(gate, " ".join(f"u{i}" for i in range(500)), budget_s=600.0)
    sent = 10
    while now < 2.0:
        events = []
        for uid in sorted(under_way):
            events += gate.complete(uid, UPSTREAM_503, now)
        events += gate.handle_timer(now)
        under_way = set(uids(only(Admitted, events)))
        sent += len(under_way)
        now += 0.01
    assert 20 <= sent <= 40  # ten slots, each for a second while no service time is known


# -- leases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("completion", "how"),
    [
        (OK, LeaseEnd.COMPLETED),
        (Completion(404), LeaseEnd.COMPLETED),
        (Completion(429), LeaseEnd.UPSTREAM_ERROR),
        (UPSTREAM_503, LeaseEnd.UPSTREAM_ERROR),
        (Completion(0), LeaseEnd.UPSTREAM_ERROR),
        (CLIENT_LEFT, LeaseEnd.CLIENT_CANCELLED),
        (NEVER_SENT, LeaseEnd.NEVER_SENT),
        (Completion(0, reached_upstream=False), LeaseEnd.NEVER_SENT),
        (Completion(503, reached_upstream=False), LeaseEnd.UPSTREAM_ERROR),
    ],
)
def test_how_an_answer_ended(completion: Completion, how: LeaseEnd) -> None:
    gate = admission()
    send(gate, "a")
    (ended,) = only(LeaseEnded, gate.complete("a", completion, 2.5))
    assert (ended.how, ended.held_s) == (how, 2.5)
    assert gate.complete("a", completion, 3.0) == []


def test_only_answers_count_as_drained() -> None:
    gate = admission()
    for completion in (UPSTREAM_503, NEVER_SENT):
        send(gate, "a")
        gate.complete("a", completion, 0.1)
    assert gate.pool("chat").predictor.drain.mean_service_s is None


def test_a_request_sent_again_while_it_waits_keeps_its_one_place() -> None:
    gate = admission(pool_params(1.0))
    send(gate, "busy a b")
    assert send(gate, "a", at=1.0) == []
    assert gate.waiting() == 2
    assert uids(only(Admitted, gate.complete("busy", OK, 2.0))) == ["a"]


def test_a_request_sent_again_after_its_admission_gets_the_same_answer_and_one_lease() -> None:
    gate = admission(pool_params(1.0))
    send(gate, "busy a")
    (first,) = only(Admitted, gate.complete("busy", OK, 2.0))
    (again,) = only(Admitted, send(gate, "a", at=3.0))
    assert again.resent
    assert (again.wait_s, again.queued, again.observe) == (2.0, True, first.observe)
    assert gate.inflight() == 1


def test_a_lease_whose_end_was_lost_is_freed_for_the_next_in_line() -> None:
    gate = admission(pool_params(1.0))
    send(gate, "lost", node="envoy")
    send(gate, "a", P1, 10.0, budget_s=60.0)
    events: list[Event] = []
    for second in range(5, 30, 5):
        gate.node_alive("envoy", float(second))
        events += run_timers(gate, float(second), second + 5.0)
    (ended,) = only(LeaseEnded, events)
    assert (ended.request.uid, ended.how) == ("lost", LeaseEnd.EXPIRED)
    assert uids(only(Admitted, events)) == ["a"]


def test_a_lease_that_gives_signs_of_life_lives() -> None:
    gate = admission(pool_params(1.0))
    send(gate, "long", node="envoy")
    events: list[Event] = []
    for second in range(5, 600, 5):
        gate.heartbeat("long", "envoy", float(second))
        events += run_timers(gate, float(second), second + 5.0)
    assert not only(LeaseEnded, events)


# -- observed answers -----------------------------------------------------------------------------


def streamed(gate: Admission, uid: str = "a") -> Admitted:
    (admitted,) = only(Admitted, send(gate, uid, streamed=True))
    return admitted


def test_time_to_first_token_and_time_per_token_come_from_the_observed_stream() -> None:
    gate = admission()
    assert streamed(gate).observe
    gate.first_token("a", 0.5)
    for i in range(1, 11):
        gate.tokens("a", 1, 0.5 + 0.02 * i)
    (ended,) = only(LeaseEnded, gate.complete("a", OK, 1.0))
    assert ended.ttft_s == 0.5
    assert ended.tpot_s == pytest.approx(0.02)


def test_the_first_chunk_may_be_told_as_tokens_alone() -> None:
    gate = admission()
    streamed(gate)
    gate.tokens("a", 2, 0.5)
    gate.tokens("a", 2, 0.6)
    (ended,) = only(LeaseEnded, gate.complete("a", OK, 1.0))
    assert (ended.ttft_s, ended.tpot_s) == (0.5, pytest.approx(0.1 / 3))


def test_a_second_first_token_is_no_news() -> None:
    gate = admission()
    streamed(gate)
    gate.first_token("a", 0.5)
    gate.first_token("a", 0.9)
    assert only(LeaseEnded, gate.complete("a", OK, 1.0))[0].ttft_s == 0.5


def test_signals_about_requests_that_hold_no_lease_are_nothing() -> None:
    gate = admission(pool_params(1.0))
    send(gate, "busy waits")
    for uid in ("waits", "unknown"):
        gate.first_token(uid, 1.0)
        gate.tokens(uid, 5, 1.0)
        gate.usage(uid, Usage(1, 1))
        gate.heartbeat(uid, "envoy", 1.0)
    gate.tokens("busy", 0, 1.0)
    gate.tokens("busy", -3, 1.0)
    (ended, _) = gate.complete("busy", OK, 2.0)
    assert isinstance(ended, LeaseEnded)
    assert ended.ttft_s is None


def test_an_answer_in_one_burst_does_not_stop_the_clock() -> None:
    gate = admission(pool_params(LimitParams("vegas", initial=4.0)))
    streamed(gate)
    gate.first_token("a", 0.5)
    gate.tokens("a", 60, 0.5)  # no time at all for 60 tokens
    events = run_timers(gate, 0.5, 30.0)
    assert only(LimitChanged, events)
    assert gate.pool("chat").limit.current == 4.0


# -- windows and learning -------------------------------------------------------------------------


def test_a_full_engine_cuts_the_limit_and_says_why() -> None:
    gate = admission(pool_params(LimitParams("vegas", initial=10.0)))
    send(gate, " ".join(f"u{i}" for i in range(20)))
    assert not only(LimitChanged, run_timers(gate, 0.0, 9.9))  # no answer yet: a longer window
    gate.load_report("chat", "engine", LoadReport(kv_used=0.99), 9.9)
    (change, *_) = only(LimitChanged, run_timers(gate, 9.9, 10.5))
    assert (change.previous, change.change.reason) == (10.0, Reason.QUEUE)
    assert change.change.limit == pytest.approx(8.5)
    assert gate.pool("chat").feedback.last_change == change.change


def test_a_window_in_which_we_lagged_ourselves_moves_nothing() -> None:
    gate = admission(pool_params(LimitParams("vegas", initial=10.0)))
    send(gate, " ".join(f"u{i}" for i in range(20)))
    gate.first_token("u1", 8.0)
    gate.note_late(4.0)
    gate.load_report("chat", "engine", LoadReport(waiting=500.0, kv_used=1.0), 9.0)
    (change, *_) = only(LimitChanged, run_timers(gate, 9.0, 10.5))
    assert (change.change.limit, change.change.reason) == (10.0, Reason.HOLD)


def test_what_a_pool_learned_survives_a_restart() -> None:
    params = pool_params(LimitParams("vegas", initial=40.0))
    gate = admission(params)
    streamed(gate)
    gate.first_token("a", 0.5)
    gate.complete("a", OK, 2.0)
    saved = gate.learned(3.0)
    again = admission(params)
    again.restore_learned({**saved, "gone": {"limit.limit": 3.0}}, 0.0)
    pool = again.pool("chat")
    assert pool.limit.current == 20.0
    assert pool.feedback.baselines.state() == gate.pool("chat").feedback.baselines.state()
    assert pool.predictor.drain.per_s(20.0, 0.0) == saved["chat"]["drain"] == pytest.approx(20.0)


def test_streams_that_can_not_be_read_are_no_queue() -> None:
    gate = admission(pool_params(LimitParams("vegas", initial=10.0)))
    streamed(gate)
    gate.first_token("a", 0.1)
    gate.complete("a", OK, 1.0)
    for uid in "bcdefg":
        gate.submit(request(uid, at=1.0, streamed=True, observable=True), 1.0)
        gate.unreadable(uid)
    gate.unreadable("nobody")
    run_timers(gate, 1.0, 12.0)
    assert gate.pool("chat").feedback.last_sample.delay_pending_s is None


def test_restarts_without_a_request_between_forget_nothing() -> None:
    params = pool_params(LimitParams("vegas", initial=40.0))
    gate = admission(params)
    streamed(gate)
    gate.first_token("a", 0.5)
    saved = gate.learned(3.0)
    for _ in range(3):
        gate = admission(params)
        gate.restore_learned(saved, 0.0)
        assert gate.pool("chat").limit.current == 20.0
        assert gate.learned(10.0) == saved
    streamed(gate)
    assert gate.learned(10.0)["chat"]["limit.limit"] == 20.0


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf"), -1.0, 0.0, 1e308])
@pytest.mark.parametrize("algorithm", ["vegas", "gradient", "aimd", "fixed"])
def test_a_broken_record_of_what_was_learned_does_no_harm(algorithm: str, broken: float) -> None:
    gate = admission(pool_params(LimitParams(algorithm, initial=8.0, minimum=2.0)))
    keys = ("limit.limit", "limit.valid", "limit.w_max", "limit.long", "drain", "base.tpot|m", "?")
    keys += ("limit.latency", "limit.proof", "lengths", "replicas", "base.ttft|m||stream|6")
    gate.restore_learned({"chat": dict.fromkeys(keys, broken)}, 0.0)
    assert 2.0 <= gate.pool("chat").limit.current <= 8.0
    assert only(Admitted, send(gate, "a"))
    run_timers(gate, 0.0, 20.0)
    assert all(map(math.isfinite, gate.learned(20.0)["chat"].values()))
    turn = gate.turn_of(request("b")) or gate.pool("chat").room.turns()[P1].turn("")
    assert turn is not None
    assert math.isfinite(turn[0])


def test_after_a_restart_the_limit_is_used_from_a_cold_starts_seats_on() -> None:
    """Nobody knows what still runs at the engine."""
    gate = admission(pool_params(LimitParams("vegas", initial=100.0), early_drop=False))
    gate.restore_learned({"chat": {"limit.limit": 200.0}}, 0.0)
    send(gate, " ".join(f"u{i}" for i in range(100)))
    assert gate.inflight() == FIRST_SEATS
    run_timers(gate, 0.0, RISE_S)
    assert gate.inflight() == 100


def test_after_a_restart_who_was_told_to_come_back_before_is_believed() -> None:
    gate = admission(pool_params(1.0, early_drop=False))
    gate.restore_learned({"chat": {"drain": 1.0}}, 0.0)
    retries = gate.pool("chat").refusals.retries
    assert all(retries.take("a", 0.0) for _ in range(10 * START_RETRIES))


def test_forecasts_per_class_for_the_status_page() -> None:
    gate = busy(8.0)
    now = gate.pool("chat").predicted_waits(10.0)
    assert now == [0.0, 0.0, 0.0]
    send(gate, "b c d e f g h i j", P1, 10.0)
    p0, p1, _ = gate.pool("chat").predicted_waits(10.0)
    assert p0 == 0.0  # the reserve is free
    assert p1 is not None
    assert p1 > 0.0


def test_the_status_page_says_the_wait_of_a_line_also_when_a_calm_stranger_would_pass_it() -> None:
    gate = busy(20.0)
    for number in range(60):
        gate.submit(request(f"w{number}", P1, at=10.0, tenant="crowd"), 10.0)
        gate.submit(request(f"calm{number}", P1, at=10.0, tenant=f"calm{number % 7}"), 10.0)
    pool, now = gate.pool("chat"), 10.0
    stranger = request("stranger", P1, at=10.0)
    while not pool.lines.may_go_at_once(stranger, pool.limit_now(now), now):
        now += 0.1
        gate.complete(next(iter(pool.leases)).request.uid, OK, now)
    assert pool.room.waits(P1)
    assert (pool.predicted_waits(now)[P1] or 0.0) > 0.0


# -- seniority ------------------------------------------------------------------------------------


def test_a_ticket_gives_its_holder_the_place_of_its_first_arrival() -> None:
    gate = admission(pool_params(1.0))
    send(gate, "busy", at=0.0)
    send(gate, "early", at=10.0)
    send(gate, "late", at=14.0)
    send(gate, "senior", at=16.0, seniority_s=4.0, returning=True)
    order = []
    uid, now = "busy", 17.0
    while admitted := only(Admitted, gate.complete(uid, OK, now)):
        uid, now = admitted[0].request.uid, now + 1.0
        order.append(uid)
    assert order == ["early", "senior", "late"]


@pytest.mark.parametrize("tenant", ["", "a"])
def test_seniority_is_a_place_and_no_longer_wait(tenant: str) -> None:
    gate = admission(pool_params(1.0))
    send(gate, "busy", at=0.0)
    facts = {"tenant": tenant, "returning": True, "seniority_s": 100.0}
    send(gate, "senior", at=10.0, budget_s=15.0, **facts)
    (shed,) = only(Shed, run_timers(gate, 10.0, 60.0))
    assert shed.reason is ShedReason.DEADLINE
    assert shed.wait_s == pytest.approx(15.0)


def test_seniority_does_not_pass_other_tenants() -> None:
    gate = admission(pool_params(1.0))
    send(gate, "busy", at=0.0, tenant="c")
    send(gate, "b1", at=1.0, tenant="b")
    send(gate, "a1 a2", at=2.0, tenant="a")
    send(gate, "a0", at=3.0, tenant="a", seniority_s=100.0, returning=True)
    first = only(Admitted, gate.complete("busy", OK, 4.0))[0].request.uid
    second = only(Admitted, gate.complete(first, OK, 5.0))[0].request.uid
    assert {first, second} == {"a0", "b1"}


def test_seniority_is_believed_when_the_wait_is_predicted() -> None:
    """Refused behind the whole line, a newcomer; let in to the head of it, who came before."""
    gate = admission(pool_params(1.0))
    send(gate, "warm", at=0.0)
    gate.complete("warm", OK, 1.0)
    send(gate, "busy", at=1.0)
    for number in range(7):
        assert only(Waiting, send(gate, f"w{number}", at=2.0 + number / 20))
    facts = {"at": 2.5, "budget_s": 5.0, "returning": True}
    assert reasons(send(gate, "newcomer", **facts)) == [ShedReason.PREDICTED_WAIT]
    (waiting,) = only(Waiting, send(gate, "senior", seniority_s=4.0, **facts))
    assert waiting.predicted_wait_s == pytest.approx(1.0, rel=0.3)


def test_a_place_kept_over_a_restart_keeps_its_seniority() -> None:
    old = request("again", at=5.0, seniority_s=30.0, returning=True)
    gate = admission(pool_params(1.0))
    send(gate, "busy", at=0.0)
    gate.restore([old], 6.0)
    send(gate, "other", at=6.0)
    (waiting,) = only(Waiting, gate.submit(request("again", at=6.5), 6.5))
    assert waiting.request.first_arrived == old.first_arrived
    assert waiting.request.returning


def test_a_retry_that_is_only_claimed_has_no_place() -> None:
    gate = admission(pool_params(1.0))
    send(gate, "busy", at=0.0, tenant="x")
    send(gate, "plain", at=1.0, tenant="a")
    send(gate, "claims", at=2.0, tenant="a", returning=True)
    first = only(Admitted, gate.complete("busy", OK, 3.0))[0].request.uid
    second = only(Admitted, gate.complete(first, OK, 4.0))[0].request.uid
    assert [first, second] == ["plain", "claims"]


# -- what an end means for others -----------------------------------------------------------------


def test_only_a_held_request_that_was_answered_earns_its_tenant_a_retry() -> None:
    gate = admission()
    budget = gate.pool("chat").refusals.retries
    assert [budget.take("a", 0.0) for _ in range(START_RETRIES + 1)][-2:] == [True, False]
    now = 0.0

    def answered(end: Completion, kind: Kind) -> None:
        nonlocal now
        for _ in range(SUCCESSES_PER_RETRY):
            now += 5.0
            assert only(Admitted, send(gate, f"u{now}", tenant="a", kind=kind, at=now))
            assert only(LeaseEnded, gate.complete(f"u{now}", end, now + 1.0))

    ends = [(UPSTREAM_503, Kind.HELD), (CLIENT_LEFT, Kind.HELD), (NEVER_SENT, Kind.HELD)]
    for end, kind in [*ends, (OK, Kind.JOB)]:
        answered(end, kind)
        assert not budget.take("a", now)
    answered(OK, Kind.HELD)
    assert budget.take("a", now)


def test_after_a_cut_every_second_slot_that_comes_free_goes_to_p0_and_the_rest_drain() -> None:
    gate = admission(pool_params(LimitParams(initial=40.0), no_backend_wait_s=300.0))
    gate.backends("chat", 2, 0.0)
    names = [f"u{n}" for n in range(40)]
    assert len(only(Admitted, send(gate, " ".join(names)))) == 40
    gate.backends("chat", 1, 1.0)  # half the limit
    send(gate, " ".join(f"vip{n}" for n in range(10)), P0, at=1.0)
    went = [len(only(Admitted, gate.complete(name, OK, 1.5))) for name in names[:20]]
    assert went == [0, 1] * 10
    assert gate.pool("chat").leases.seats == 30


def beside_a_flood() -> tuple[Admission, float]:
    """40 slots, as many in use as one tenant's flood may have beside calm tenants; and when."""
    gate = admission(pool_params(40.0, early_drop=False))
    now, flood = 0.0, 0
    live: deque[tuple[str, float]] = deque()

    def keep(events: list[Event]) -> None:
        live.extend((uid, now) for uid in uids(only(Admitted, events)))

    for step in range(2400):
        now += 0.025
        keep(run_timers(gate, now - 0.025, now))
        while live and live[0][1] <= now - 1.0:
            keep(gate.complete(live.popleft()[0], OK, now))
        while gate.pool("chat").room.tenants()["flood"] < 60:
            flood += 1
            keep(send(gate, f"f{flood}", at=now, tenant="flood", budget_s=600.0))
        if step % 2 and step < 2200:
            keep(send(gate, f"c{step}", at=now, tenant=f"calm{step % 14}"))
    return gate, now


def test_who_waits_only_because_seats_are_kept_for_the_calm_is_no_sign_that_the_limit_binds() -> (
    None
):
    gate, now = beside_a_flood()
    pool = gate.pool("chat")
    kept = 40 - pool.leases.seats
    assert kept >= 3
    run_timers(gate, now, now + 4.0)  # a window begins
    assert only(Waiting, send(gate, "f", at=now + 4.0, tenant="flood", budget_s=600.0))
    calm = send(gate, " ".join(f"x{n}" for n in range(kept - 3)), at=now + 4.0, tenant="calm1")
    assert len(only(Admitted, calm)) == kept - 3
    while pool.feedback.last_sample.now <= now + 4.0:  # until that window closes
        run_timers(gate, now + 4.0, gate.next_timer() or 0.0)
    assert pool.feedback.last_sample.peak_inflight == 37
    assert not pool.feedback.last_sample.bound
