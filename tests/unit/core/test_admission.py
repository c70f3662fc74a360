"""All pools behind one door: routing by uid, draining, reloads, restarts."""

from __future__ import annotations

import math

import pytest

from policy_server.core.admission import BATCH, Admission
from policy_server.core.events import Admitted, Cancelled, Lapsed, Shed, Waiting
from policy_server.core.outcome import ShedReason
from policy_server.core.params import LimitParams, RoomParams
from policy_server.core.request import Kind, Request
from policy_server.core.room.door import RESENT_S
from policy_server.core.room.places import FIRST_S
from policy_server.core.samples import Completion, LoadReport
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

CHAT, EMBED = pool_params(1.0), pool_params(1.0, name="embed")


def test_pools_do_not_share_slots() -> None:
    gate = admission(CHAT, EMBED)
    gate.submit(request("a"), 0.0)
    assert only(Admitted, gate.submit(request("b", pool="embed"), 0.0))
    assert only(Waiting, gate.submit(request("c", pool="embed"), 0.0))
    assert (gate.pool_of("b"), gate.pool_of("c"), gate.pool_of("x")) == ("embed", "embed", None)
    assert [p.params.name for p in gate.pools()] == ["chat", "embed"]


def test_an_end_reaches_the_pool_that_holds_the_request() -> None:
    gate = admission(CHAT, EMBED)
    gate.submit(request("a", pool="embed"), 0.0)
    gate.submit(request("b", pool="embed"), 0.0)
    assert uids(gate.complete("a", OK, 1.0)) == ["a", "b"]
    assert gate.pool_of("a") is None
    assert (gate.inflight(), gate.waiting()) == (1, 0)


def test_a_request_sent_again_under_another_pool_stays_where_it_is() -> None:
    gate = admission(CHAT, EMBED)
    gate.submit(request("a"), 0.0)
    (again,) = gate.submit(request("a", pool="embed"), 1.0)
    assert isinstance(again, Admitted)
    assert again.resent
    assert gate.pool_of("a") == "chat"


def test_unknown_uids_are_nothing() -> None:
    gate = admission()
    assert gate.cancel("x", 0.0) == []
    assert gate.complete("x", OK, 0.0) == []


def test_a_cancel_does_not_touch_what_was_admitted() -> None:
    gate = admission()
    gate.submit(request("a"), 0.0)
    assert gate.cancel("a", 1.0) == []
    assert gate.inflight() == 1


def test_nothing_is_due_before_the_first_request() -> None:
    gate = admission()
    assert gate.next_timer() is None
    assert gate.handle_timer(100.0) == []


def test_the_timer_is_the_next_deadline_of_any_pool() -> None:
    gate = admission(CHAT, EMBED)
    for uid, pool, budget_s in (("a", "chat", 9.0), ("b", "chat", 9.0), ("c", "embed", 9.0)):
        gate.submit(request(uid, pool=pool, budget_s=budget_s), 0.0)
    gate.submit(request("d", pool="embed", budget_s=0.25), 0.0)
    assert gate.next_timer() == 0.25
    assert uids(gate.handle_timer(0.25)) == ["d"]


def test_uids_are_forgotten_with_their_requests() -> None:
    gate = admission(pool_params(1.0, room=RoomParams(max_requests=1)))
    for i in range(100):
        gate.submit(request(f"u{i}", budget_s=1.0), 0.0)
    run_timers(gate, 0.0, 5.0)
    gate.complete("u0", OK, 5.0)
    assert gate._where == {}


# -- draining -------------------------------------------------------------------------------------


def test_draining_sheds_all_who_wait_batch_by_batch_and_admits_nothing_new() -> None:
    gate = admission(CHAT, EMBED)
    for i in range(2 * BATCH):
        gate.submit(request(f"u{i}", P2, pool=("chat", "embed")[i % 2], budget_s=60.0), 0.0)
    first = gate.drain(1.0)
    assert len(first) == BATCH
    assert all(isinstance(e, Shed) and e.evicted for e in first)
    assert {e.reason for e in only(Shed, first)} == {ShedReason.DRAINING}
    gate.drain(1.0)
    assert gate.waiting() == 0
    (refused,) = only(Shed, gate.submit(request("new", P0, pool="embed"), 2.0))
    assert (refused.reason, refused.evicted) == (ShedReason.DRAINING, False)
    assert gate.inflight() == 2
    assert gate.drain(3.0) == []


def test_an_answer_in_flight_may_end_while_draining() -> None:
    gate = admission(CHAT)
    gate.submit(request("a"), 0.0)
    gate.drain(1.0)
    (again,) = gate.submit(request("a"), 1.0)
    assert isinstance(again, Admitted)
    assert uids(gate.complete("a", OK, 2.0)) == ["a"]
    assert gate.inflight() == 0


def test_a_reload_does_not_end_the_draining() -> None:
    gate = admission(CHAT)
    gate.drain(0.0)
    gate.reconfigure([CHAT, EMBED])
    for pool in ("chat", "embed"):
        assert only(Shed, gate.submit(request(f"in-{pool}", pool=pool), 1.0))


# -- reloads --------------------------------------------------------------------------------------


def test_a_pool_may_come_and_an_idle_one_go() -> None:
    gate = admission(CHAT)
    gate.reconfigure([EMBED])
    assert [p.params.name for p in gate.pools()] == ["embed"]
    assert only(Admitted, gate.submit(request("a", pool="embed"), 0.0))
    with pytest.raises(KeyError):
        gate.pool("chat")


def test_a_removed_pool_keeps_what_it_holds_to_the_end() -> None:
    gate = admission(CHAT, EMBED)
    gate.submit(request("a"), 0.0)
    gate.submit(request("b"), 0.0)
    gate.reconfigure([EMBED])
    assert uids(gate.complete("a", OK, 1.0)) == ["a", "b"]
    assert uids(gate.complete("b", OK, 2.0)) == ["b"]
    run_timers(gate, 2.0, 20.0)
    assert [p.params.name for p in gate.pools()] == ["embed"]


def test_a_removed_pool_that_comes_back_before_it_is_empty_stays() -> None:
    gate = admission(CHAT, EMBED)
    gate.submit(request("a"), 0.0)
    gate.reconfigure([EMBED])
    gate.reconfigure([CHAT, EMBED])
    gate.complete("a", OK, 1.0)
    run_timers(gate, 1.0, 20.0)
    assert [p.params.name for p in gate.pools()] == ["chat", "embed"]


def test_the_last_pool_that_leaves_has_no_timer_any_more() -> None:
    gate = admission(CHAT)
    gate.submit(request("a"), 0.0)
    gate.reconfigure([EMBED])
    gate.complete("a", OK, 1.0)
    run_timers(gate, 1.0, 20.0)
    assert gate.next_timer() is None


def test_an_engine_of_a_removed_pool_may_still_report() -> None:
    gate = admission(CHAT)
    gate.load_report("gone", "engine", LoadReport(waiting=1.0), 0.0)


def test_a_new_fixed_limit_counts_from_the_next_moment() -> None:
    gate = admission(CHAT)
    for uid in "abc":
        gate.submit(request(uid), 0.0)
    gate.reconfigure([pool_params(3.0)])
    assert uids(only(Admitted, run_timers(gate, 0.0, 10.0))) == ["b", "c"]


def test_another_algorithm_starts_anew_the_same_one_keeps_what_it_knows() -> None:
    gate = admission(pool_params(LimitParams("vegas", initial=16.0)))
    gate.restore_learned({"chat": {"limit.limit": 100.0}}, 0.0)
    gate.reconfigure([pool_params(LimitParams("vegas", initial=4.0, maximum=500.0))])
    assert gate.pool("chat").limit.current == 50.0
    gate.reconfigure([pool_params(LimitParams("aimd", initial=4.0))])
    assert gate.pool("chat").limit.current == 4.0


def test_once_nothing_is_observed_any_more_every_whole_answer_counts() -> None:
    gate = admission(pool_params(10.0, observe_messages_per_s=500.0))
    gate.submit(request("a"), 0.0)
    gate.reconfigure([pool_params(10.0, observe_messages_per_s=0.0)])
    gate.submit(request("b"), 0.0)
    gate.complete("b", OK, 0.5)
    window = gate.pool("chat").feedback.window
    assert window is not None
    assert window.events == 1


def test_new_shares_and_bounds_apply() -> None:
    gate = admission(pool_params(10.0))
    gate.submit(request("a", P2), 0.0)
    gate.reconfigure([pool_params(1.0, shares=(1.0, 0.0, 0.0), room=RoomParams(max_requests=0))])
    (shed,) = only(Shed, gate.submit(request("b", P2), 0.0))
    assert shed.reason is ShedReason.ROOM_FULL


# -- restarts -------------------------------------------------------------------------------------


def restarted(*waited: Request, slots: float = 1.0, at: float = 100.0) -> Admission:
    gate = admission(pool_params(slots))
    gate.restore(waited, at)
    return gate


def test_after_a_restart_the_line_is_that_of_before_however_it_comes_back() -> None:
    gate = restarted(*(request(uid, at=90.0 + i, budget_s=60.0) for i, uid in enumerate("abc")))
    assert only(Waiting, gate.submit(request("new", at=100.0), 100.0))
    assert only(Waiting, gate.submit(request("c", at=100.0), 100.1))
    events = gate.submit(request("a", at=100.0), 101.0)
    order, now = [], 101.0
    assert only(Waiting, gate.submit(request("b", at=100.0), 101.0))
    while admitted := only(Admitted, events):
        running = admitted[0].request.uid
        order.append((running, admitted[0].wait_s))
        now += 1.0
        events = gate.complete(running, OK, now)
    assert order == [("a", 11.0), ("b", 11.0), ("c", 11.0), ("new", 4.0)]


def test_a_free_slot_is_kept_for_the_first_in_line_until_the_returns_have_ceased() -> None:
    gate = restarted(*(request(uid, at=90.0, budget_s=60.0) for uid in "ab"))
    assert only(Waiting, gate.submit(request("b", at=100.3), 100.3))
    assert not only(Admitted, run_timers(gate, 100.3, 100.3 + FIRST_S - 0.01))
    assert uids(only(Admitted, run_timers(gate, 102.0, 103.0))) == ["b"]
    (late,) = only(Waiting, gate.submit(request("a", at=103.0), 103.0))
    assert late.request.arrived == 90.0  # late, but not last


def test_more_important_newcomers_do_not_wait_for_those_who_may_have_left() -> None:
    gate = restarted(request("old", P2, at=90.0, budget_s=60.0))
    assert only(Admitted, gate.submit(request("new", P0, at=100.1), 100.1))


def test_who_was_promised_a_place_is_not_refused_for_the_predicted_wait() -> None:
    gate = admission(pool_params(LimitParams("vegas", initial=1.0)))
    gate.restore_learned({"chat": {"drain": 0.01}}, 0.0)
    gate.restore([request("first", budget_s=5.0), request("a", budget_s=5.0)], 0.0)
    assert only(Admitted, gate.submit(request("first"), 0.0))
    assert only(Shed, gate.submit(request("new", at=RESENT_S, budget_s=5.0), RESENT_S))
    assert only(Waiting, gate.submit(request("a"), RESENT_S))


def test_who_goes_at_once_after_a_restart_did_wait() -> None:
    gate = restarted(request("a", at=90.0, budget_s=60.0))
    (admitted,) = only(Admitted, gate.submit(request("a", at=100.0), 100.0))
    assert (admitted.queued, admitted.wait_s) == (True, 10.0)


def test_a_kept_place_that_is_lost_counts_as_an_eviction() -> None:
    gate = restarted(*(request(uid, at=90.0, budget_s=60.0) for uid in "ab"))
    run_timers(gate, 100.0, 102.0)
    gate.submit(request("b", at=102.0), 102.0)
    gate.drain(103.0)
    (draining,) = only(Shed, gate.submit(request("a"), 103.0))
    assert (draining.reason, draining.evicted) == (ShedReason.DRAINING, True)


def test_draining_refuses_who_comes_back_to_its_place() -> None:
    gate = restarted(request("a", at=90.0, budget_s=60.0))
    assert gate.drain(100.1) == []
    (draining,) = only(Shed, gate.submit(request("a", at=100.2), 100.2))
    assert (draining.reason, draining.evicted) == (ShedReason.DRAINING, True)


def test_the_dead_the_jobs_and_those_of_unknown_pools_get_no_place() -> None:
    gate = admission(CHAT)
    lost = gate.restore(
        [
            request("dead", budget_s=5.0),
            request("job", kind=Kind.JOB, budget_s=60.0),
            request("lost", pool="gone", budget_s=60.0),
        ],
        5.0,
    )
    assert uids(only(Lapsed, lost)) == ["dead", "job", "lost"]
    gate.submit(request("busy", at=5.0), 5.0)
    for uid in ("dead", "job", "lost"):
        (waiting,) = only(Waiting, gate.submit(request(uid, at=6.0), 6.0))
        assert waiting.request.arrived == 6.0


def test_places_that_nobody_claims_lapse() -> None:
    waited = [request(f"u{i}", at=99.0, budget_s=2.0 + i % 2 * 60.0) for i in range(1_000)]
    gate = restarted(*waited)
    events = run_timers(gate, 100.0, 105.0)
    assert len(only(Lapsed, events)) == 500
    events += run_timers(gate, 105.0, 165.0)
    assert len(only(Lapsed, events)) == 1_000
    assert gate.pool("chat").empty


def test_who_is_known_to_have_left_is_not_awaited() -> None:
    """The log tells the end of a request that left while nobody listened."""
    gate = restarted(*(request(uid, at=90.0, budget_s=60.0) for uid in "ab"))
    gate.submit(request("b", at=100.1), 100.1)
    events = gate.complete("a", Completion(0, client_gone=True), 100.2)
    assert (uids(only(Lapsed, events)), uids(only(Admitted, events))) == (["a"], ["b"])


# -- load -----------------------------------------------------------------------------------------


def test_a_burst_of_a_thousand_in_one_tick_and_as_many_ends_at_once() -> None:
    gate = admission(pool_params(500.0))
    events = [e for i in range(1_000) for e in gate.submit(request(f"u{i}", P1), 0.0)]
    assert (len(only(Admitted, events)), len(only(Waiting, events))) == (500, 500)
    running = uids(only(Admitted, events))
    events = [e for uid in running for e in gate.complete(uid, OK, 1.0)]
    events += run_timers(gate, 1.0, 1.1)
    assert len(only(Admitted, events)) == 500
    assert gate.waiting() == 0


@pytest.mark.parametrize("waiting", [2_000, 8_000])
def test_clients_that_leave_from_anywhere_in_a_long_line_leave_the_rest_in_order(
    waiting: int,
) -> None:
    gate = admission(pool_params(1.0, early_drop=False))
    gate.submit(request("busy"), 0.0)
    for i in range(waiting):
        gate.submit(request(f"u{i}", budget_s=60.0), 0.0)
    for i in range(1, waiting - 1):
        assert isinstance(gate.cancel(f"u{i}", 1.0)[0], Cancelled)
    assert uids(gate.complete("busy", OK, 2.0)) == ["busy", "u0"]
    assert uids(gate.complete("u0", OK, 3.0)) == ["u0", f"u{waiting - 1}"]


def test_learned_numbers_are_numbers() -> None:
    gate = admission(CHAT, EMBED)
    gate.submit(request("a"), 0.0)
    gate.complete("a", OK, 0.0)  # an answer in no time
    assert all(math.isfinite(v) for state in gate.learned(0.0).values() for v in state.values())
