"""The driver on a real event loop in virtual time: who holds, who is told, what is written down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import wraps
from typing import Any

import pytest

from policy_server.core.admission import BATCH, Admission
from policy_server.core.events import Admitted, Cancelled, Event, LeaseEnded, LimitChanged, Shed
from policy_server.core.leases import RECALL_S, SWEEP_S
from policy_server.core.outcome import LeaseEnd, Outcome, ShedReason
from policy_server.core.params import LimitParams, PoolParams, RoomParams
from policy_server.core.request import Priority, Request
from policy_server.core.samples import Completion, LoadReport, Usage
from policy_server.driver import (
    ENDS_REMEMBERED,
    LAG_AMNESTY_S,
    SAVE_LEARNED_S,
    Driver,
    Hold,
    SupersededError,
)
from policy_server.journal.boot import this_boot
from policy_server.journal.memory import MemoryJournal
from policy_server.journal.port import Learned
from policy_server.journal.restore import Moment
from tests.support.core_builders import OK, P0, P1, P2, Coin, only, pool_params, request, uids
from tests.support.virtual_loop import run


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test in virtual time."""

    @wraps(test)
    def in_virtual_time(*args: Any, **kwargs: Any) -> None:
        run(test(*args, **kwargs))

    return in_virtual_time


class Stage:
    """A driver, its journal, and all events in order."""

    def __init__(
        self, params: PoolParams | None = None, journal: MemoryJournal | None = None
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.journal = journal or MemoryJournal()
        admission = Admission([params or pool_params(1.0)], Coin())
        self.driver = Driver(admission, self.journal, self.loop.time, self.loop)
        self.events: list[Event] = []
        self.driver.listen(lambda event, _: self.events.append(event))

    def start(self, boot: str | None = None) -> None:
        self.driver.start(Moment(self.loop.time(), 0.0, this_boot() if boot is None else boot))

    def request(self, uid: str, priority: Priority = P1, **facts: Any) -> Request:
        return request(uid, priority, at=self.loop.time(), **facts)

    def submit(self, uid: str, priority: Priority = P1, **facts: Any) -> Admitted | Shed | Hold:
        return self.driver.submit(self.request(uid, priority, **facts))

    def admitted(self, uid: str, **facts: Any) -> Admitted:
        told = self.submit(uid, **facts)
        assert isinstance(told, Admitted)
        return told

    def hold(self, uid: str, priority: Priority = P1, **facts: Any) -> Hold:
        held = self.submit(uid, priority, **facts)
        assert isinstance(held, Hold)
        return held

    def journaled(self) -> list[str]:
        return [place.request.uid for place in self.journal.load()]

    @property
    def inflight(self) -> int:
        return self.driver.admission.inflight()

    @property
    def waiting(self) -> int:
        return self.driver.admission.waiting()


# -- deciding and holding -------------------------------------------------------------------------


@virtual
async def test_a_decision_at_once_or_a_hold_that_resolves_later() -> None:
    stage = Stage()
    assert isinstance(stage.submit("a"), Admitted)
    hold = stage.hold("b")
    await asyncio.sleep(2.0)
    assert not hold.future.done()
    stage.driver.complete("a", OK)
    decision = await hold.future
    assert isinstance(decision, Admitted)
    assert decision.wait_s == pytest.approx(2.0)
    assert uids(stage.events) == ["a", "b", "a", "b"]


@virtual
async def test_a_hold_is_told_of_its_refusal_at_its_deadline() -> None:
    stage = Stage()
    stage.submit("a")
    decision = await stage.hold("b", budget_s=3.0).future
    assert isinstance(decision, Shed)
    assert decision.reason is ShedReason.DEADLINE
    assert stage.loop.time() == pytest.approx(1_003.0)


@virtual
async def test_a_newcomer_that_displaces_another_gets_its_own_answer() -> None:
    stage = Stage(pool_params(1.0, room=RoomParams(max_requests=1)))
    stage.submit("busy", P2)
    lesser = stage.hold("lesser", P2)
    vip = stage.hold("vip", P0)
    told = await lesser.future
    assert isinstance(told, Shed)
    assert told.reason is ShedReason.DISPLACED
    assert not vip.future.done()


@virtual
async def test_a_request_that_the_log_ended_before_the_gate_saw_it_takes_no_slot() -> None:
    stage, counted = Stage(), []
    stage.driver.on_count = lambda *what: counted.append(what[:3])
    stage.driver.complete("gone", Completion(0, client_gone=True, reached_upstream=False))
    assert isinstance(stage.submit("gone"), Shed)
    assert counted == [("chat", P1, Outcome.CANCELLED)]
    assert stage.driver.admission.inflight() == 0
    assert isinstance(stage.submit("next"), Admitted)  # the one slot is free


@virtual
async def test_an_admission_that_could_not_be_told_may_be_asked_for_again() -> None:
    stage = Stage()
    told = stage.admitted("a")
    stage.driver.never_sent(told)  # the connection broke: Envoy sends it again
    assert not stage.admitted("a").resent


@virtual
async def test_a_stream_that_died_late_takes_no_lease_from_the_one_that_carries_it_now() -> None:
    stage = Stage(pool_params(2.0))
    first = stage.admitted("a")
    second = stage.admitted("a")  # Envoy sent it again before the first stream was found dead
    stage.driver.never_sent(first)
    assert stage.inflight == 1
    third = stage.admitted("a")
    stage.driver.never_sent(second)
    assert stage.driver.owns(third)
    stage.driver.never_sent(third)
    assert (stage.inflight, [e.how for e in only(LeaseEnded, stage.events)]) == (
        *(0, [LeaseEnd.NEVER_SENT]),
    )


@virtual
async def test_so_does_a_hold_whose_admission_came_while_its_stream_died() -> None:
    stage = Stage()
    busy = stage.admitted("busy")
    hold = stage.hold("a")
    stage.driver.complete("busy", OK)  # "a" is admitted; its stream has not heard of it yet
    again = stage.admitted("a")
    assert again.resent
    stage.driver.leave(hold)
    assert stage.driver.owns(again)
    assert not stage.driver.owns(busy)


@virtual
async def test_a_lease_of_an_earlier_life_gives_nothing_back() -> None:
    stage = Stage()
    first = stage.admitted("a")
    stage.driver.complete("a", OK)
    stage.submit("busy")
    hold = stage.hold("a")  # the same uid waits now
    stage.driver.never_sent(first)
    assert (stage.waiting, stage.inflight) == (1, 1)
    assert not hold.future.done()


@virtual
async def test_the_ends_of_strangers_are_remembered_within_a_bound() -> None:
    stage = Stage()
    for index in range(ENDS_REMEMBERED + 10):
        stage.driver.complete(f"u{index}", OK)
    assert isinstance(stage.submit(f"u{ENDS_REMEMBERED + 9}"), Shed)
    assert isinstance(stage.submit("u0"), Admitted)  # long forgotten


# -- one request, several streams -----------------------------------------------------------------


@virtual
async def test_the_newer_stream_of_a_request_takes_its_place_over() -> None:
    stage = Stage()
    stage.submit("busy")
    older = stage.hold("a")
    newer = stage.hold("a")
    with pytest.raises(SupersededError):
        await older.future
    stage.driver.leave(older)  # its stream ends: that means nothing any more
    assert stage.waiting == 1
    stage.driver.complete("busy", OK)
    assert isinstance(await newer.future, Admitted)
    assert stage.inflight == 1


@virtual
async def test_fifty_streams_of_one_request_have_one_place_and_one_lease() -> None:
    stage = Stage()
    stage.submit("busy")
    holds = [stage.hold("a") for _ in range(50)]
    assert stage.waiting == 1
    stage.driver.complete("busy", OK)
    outcomes = await asyncio.gather(*(h.future for h in holds), return_exceptions=True)
    assert sum(isinstance(o, Admitted) for o in outcomes) == 1
    assert sum(isinstance(o, SupersededError) for o in outcomes) == 49
    assert stage.inflight == 1


@virtual
async def test_a_stream_sent_again_after_the_admission_learns_the_same() -> None:
    stage = Stage()
    stage.submit("a")
    again = stage.submit("a")
    assert isinstance(again, Admitted)
    assert again.resent
    assert stage.inflight == 1


# -- leaving --------------------------------------------------------------------------------------


@virtual
async def test_who_leaves_before_the_decision_gives_the_place_back() -> None:
    stage = Stage()
    stage.submit("busy")
    first, second = stage.hold("a"), stage.hold("b")
    stage.driver.leave(first)
    stage.driver.leave(first)
    assert (stage.waiting, len(only(Cancelled, stage.events))) == (1, 1)
    stage.driver.complete("busy", OK)
    assert isinstance(await second.future, Admitted)
    assert not first.future.done()


@virtual
async def test_who_leaves_just_as_it_is_admitted_gives_the_lease_back() -> None:
    stage = Stage()
    stage.submit("busy")
    first, second = stage.hold("a"), stage.hold("b")
    stage.driver.complete("busy", OK)
    assert first.future.done()
    stage.driver.leave(first)  # the answer never left
    stage.driver.leave(first)
    assert isinstance(await second.future, Admitted)
    (ended,) = [e for e in only(LeaseEnded, stage.events) if e.request.uid == "a"]
    assert ended.how is LeaseEnd.NEVER_SENT
    assert stage.inflight == 1


@virtual
async def test_who_leaves_just_as_it_is_refused_changes_nothing() -> None:
    stage = Stage()
    stage.submit("busy")
    hold = stage.hold("a", budget_s=1.0)
    await asyncio.sleep(1.5)
    stage.driver.leave(hold)
    assert (stage.waiting, stage.inflight, len(stage.events)) == (0, 1, 3)


@virtual
async def test_an_admission_that_falls_to_a_cancelled_stream_goes_to_the_next() -> None:
    stage = Stage()
    stage.submit("busy")
    dying, next_one = stage.hold("a"), stage.hold("b")
    dying.future.cancel()
    stage.driver.complete("busy", OK)
    assert isinstance(await next_one.future, Admitted)
    stage.driver.leave(dying)
    assert (stage.inflight, stage.waiting) == (1, 0)


@virtual
async def test_a_cancelled_stream_whose_request_is_refused_is_no_matter() -> None:
    stage = Stage()
    stage.submit("busy")
    stage.hold("a", budget_s=1.0).future.cancel()
    await asyncio.sleep(2.0)
    assert (stage.waiting, stage.inflight) == (0, 1)


@virtual
async def test_a_log_entry_for_a_request_that_waits_ends_its_wait_once() -> None:
    stage = Stage()
    stage.submit("busy")
    hold = stage.hold("a")
    stage.driver.complete("a", Completion(0, client_gone=True, reached_upstream=False))
    stage.driver.leave(hold)
    assert (stage.waiting, len(only(Cancelled, stage.events))) == (0, 1)


@virtual
async def test_an_envoy_that_died_gives_its_slots_back_at_once() -> None:
    stage = Stage(pool_params(2.0))
    stage.submit("old", node="edge@1")
    stage.submit("living", node="edge@2")
    waits = stage.hold("waits", node="edge@2")
    stage.driver.node_reborn("edge@2")
    assert isinstance(await waits.future, Admitted)
    assert [(e.request.uid, e.how) for e in only(LeaseEnded, stage.events)] == [
        ("old", LeaseEnd.EXPIRED)
    ]
    stage.driver.complete("waits", OK)
    stage.submit("late", node="edge@1")  # it stood in a buffer when its Envoy died
    await asyncio.sleep(1.5)
    assert stage.driver.admission.lease("late") is None
    assert stage.driver.admission.lease("living") is not None


# -- time -----------------------------------------------------------------------------------------


@virtual
async def test_an_earlier_deadline_moves_the_timer_forward() -> None:
    stage = Stage()
    stage.submit("busy")
    late, soon = stage.hold("late", budget_s=9.0), stage.hold("soon", budget_s=0.5)
    await soon.future
    assert stage.loop.time() == pytest.approx(1_000.5)
    await late.future
    assert stage.loop.time() == pytest.approx(1_009.0)


@virtual
async def test_the_timer_goes_on_for_hours_without_spinning() -> None:
    stage = Stage(pool_params(LimitParams("vegas", initial=4.0)))
    fired = 0
    handle_timer = stage.driver.admission.handle_timer

    def counted(now: float) -> list[Event]:
        nonlocal fired
        fired += 1
        return handle_timer(now)

    stage.driver.admission.handle_timer = counted  # type: ignore[method-assign]
    stage.submit("a")
    await asyncio.sleep(3_600.0)
    assert only(LimitChanged, stage.events)
    assert fired <= 2 * 3_600
    assert stage.inflight == 0  # no access log for an hour: given up as an orphan


@virtual
async def test_eight_thousand_holds_are_released_in_batches_and_in_order() -> None:
    stage = Stage(pool_params(1.0, early_drop=False))
    stage.submit("busy")
    holds = [stage.hold(f"u{i}", budget_s=600.0) for i in range(8_000)]
    stage.driver.admission.reconfigure([pool_params(10_000.0)])
    stage.driver.complete("busy", OK)
    assert sum(h.future.done() for h in holds) == 1
    await asyncio.sleep(0.05)  # the limit's jump is spread over a second: a twentieth of 10,000
    assert sum(h.future.done() for h in holds) == 257
    decisions = await asyncio.gather(*(h.future for h in holds))
    assert all(isinstance(d, Admitted) for d in decisions)
    assert stage.loop.time() == pytest.approx(1_000.8, abs=0.06)
    assert uids(only(Admitted, stage.events)) == ["busy", *(f"u{i}" for i in range(8_000))]


@virtual
async def test_eight_thousand_holds_that_expire_are_all_told() -> None:
    stage = Stage(pool_params(1.0, early_drop=False))
    stage.submit("busy")
    holds = [stage.hold(f"u{i}", budget_s=5.0) for i in range(8_000)]
    decisions = await asyncio.gather(*(h.future for h in holds))
    assert all(isinstance(d, Shed) for d in decisions)
    assert stage.loop.time() == pytest.approx(1_005.0 + 31 * 0.005)


# -- signals --------------------------------------------------------------------------------------


@virtual
async def test_signals_reach_the_lease() -> None:
    stage = Stage()
    stage.submit("a", streamed=True)
    await asyncio.sleep(0.5)
    stage.driver.tokens("a", 1)
    await asyncio.sleep(0.5)
    stage.driver.tokens("a", 10)
    stage.driver.usage("a", Usage(100, 11))
    stage.driver.heartbeat("a", "envoy")
    stage.driver.node_alive("envoy")
    stage.driver.load_report("chat", "engine", LoadReport(waiting=3.0))
    stage.driver.load_report_for("a", "engine", LoadReport(waiting=3.0))
    stage.driver.load_report_for("unknown", "engine", LoadReport(waiting=3.0))
    stage.driver.complete("a", OK)
    (ended,) = only(LeaseEnded, stage.events)
    assert ended.ttft_s == pytest.approx(0.5)
    assert ended.tpot_s == pytest.approx(0.05)


@virtual
async def test_a_late_loop_spoils_the_window_and_overload_is_readable() -> None:
    stage = Stage()
    stage.submit("a")
    window = stage.driver.admission.pool("chat").feedback.window
    assert window is not None
    stage.driver.set_lagging(True)
    assert stage.driver.lagging()
    now = stage.driver.clock()
    stage.driver.admission.first_token("a", now)
    stage.driver.note_late(0.2)
    assert not window.tainted(now + 1.0)
    stage.driver.note_late(0.2)
    assert window.tainted(now + 1.0)
    stage.driver.set_lagging(False)
    assert not stage.driver.lagging()


@virtual
async def test_a_lag_is_followed_by_a_short_amnesty_for_those_it_refused() -> None:
    stage = Stage()
    retries, now = stage.driver.admission.pool("chat").refusals.retries, stage.driver.clock()

    def believed(at: float) -> bool:
        return sum(retries.take("a", at) for _ in range(100)) == 100

    stage.driver.set_lagging(True)
    assert not believed(now), "they are refused while it lasts"
    stage.driver.set_lagging(False)
    assert believed(now + LAG_AMNESTY_S - 1.0)
    assert not believed(now + LAG_AMNESTY_S + 1.0)
    stage.driver.set_lagging(False)
    assert not believed(now + 1.0 + LAG_AMNESTY_S)


@virtual
async def test_outcomes_that_admission_never_sees_are_counted() -> None:
    stage, counted = Stage(), []
    stage.driver.count("chat", P1, Outcome.PASSED)  # nobody listens yet
    stage.driver.on_count = lambda *what: counted.append(what[:3])
    stage.driver.count("chat", P2, Outcome.INVALID)
    assert counted == [("chat", P2, Outcome.INVALID)]


# -- the journal ----------------------------------------------------------------------------------


@virtual
async def test_exactly_those_who_wait_are_in_the_journal() -> None:
    stage = Stage(pool_params(1.0, room=RoomParams(max_requests=4)))
    stage.submit("busy", P2)
    assert stage.journaled() == []
    stage.driver.request_ids["a"] = "req-7"
    stage.hold("a", P2)
    stage.hold("expires", P2, budget_s=1.0)
    leaver = stage.hold("leaves", P2)
    stage.hold("displaced", P2)
    stage.submit("refused", P2)
    assert stage.journaled() == ["a", "expires", "leaves", "displaced"]
    assert stage.journal.load()[0].context.request_id == "req-7"
    stage.hold("vip", P0)
    assert stage.journaled() == ["a", "expires", "leaves", "vip"]
    stage.driver.leave(leaver)
    await asyncio.sleep(1.5)
    assert stage.journaled() == ["a", "vip"]
    for uid in ("busy", "vip"):
        stage.driver.complete(uid, OK)
    assert stage.journaled() == []


@virtual
async def test_after_a_crash_those_sent_again_have_their_places() -> None:
    before = Stage()
    before.submit("busy")
    for uid in "abc":
        before.hold(uid, budget_s=60.0)
        await asyncio.sleep(0.001)
    await asyncio.sleep(5.0)
    after = Stage(journal=before.journal.reopen())
    after.start()
    newcomer, c, a = after.hold("newcomer"), after.hold("c"), after.hold("a")
    after.driver.complete("busy", OK)
    decision = await a.future
    assert isinstance(decision, Admitted)
    assert decision.wait_s == pytest.approx(5.003)
    after.driver.complete("a", OK)
    assert not c.future.done()  # it is the turn of b
    await asyncio.sleep(2.0)
    assert isinstance(await c.future, Admitted)
    assert not newcomer.future.done()
    assert after.journaled() == ["b", "newcomer"]  # b may still come
    await asyncio.sleep(60.0)
    assert after.journaled() == []


@virtual
async def test_who_waits_for_a_back_end_past_its_budget_keeps_its_place_as_well() -> None:
    params = replace(pool_params(1.0), no_backend_wait_s=300.0)
    before = Stage(params)
    before.driver.backends("chat", 1)
    before.submit("busy")
    holds = {}
    for uid in "abc":
        holds[uid] = before.hold(uid, budget_s=5.0)
        await asyncio.sleep(0.001)
    before.driver.backends("chat", 0)
    await asyncio.sleep(30.0)
    assert not any(hold.future.done() for hold in holds.values())
    after = Stage(params, before.journal.reopen())
    after.start()
    assert after.journaled() == ["a", "b", "c"]
    again = {uid: after.hold(uid, budget_s=5.0) for uid in "cba"}
    after.driver.backends("chat", 1)
    for uid, ended in (("a", "busy"), ("b", "a"), ("c", "b")):
        after.driver.complete(ended, OK)
        decision = await again[uid].future
        assert isinstance(decision, Admitted)
        assert decision.wait_s >= 30.0


@pytest.mark.parametrize("boot", [None, "of another machine"])
@virtual
async def test_slots_in_use_at_a_crash_are_still_in_use_after_it(boot: str | None) -> None:
    before = Stage(pool_params(2.0))
    before.submit("ends meanwhile", node="envoy-a")
    before.submit("goes on", node="envoy-a")
    waits = before.hold("waits", budget_s=60.0, node="envoy-a")
    assert not waits.future.done()
    after = Stage(pool_params(2.0), before.journal.reopen())
    after.start(boot)
    assert after.driver.admission.inflight() == 2
    again = after.hold("waits", node="envoy-a")
    started = after.loop.time()
    while not again.future.done():
        after.driver.heartbeat("goes on", "envoy-a")
        await asyncio.sleep(0.1)
    assert isinstance(again.future.result(), Admitted)
    assert RECALL_S <= after.loop.time() - started <= RECALL_S + SWEEP_S + 0.2
    ends = only(LeaseEnded, after.events)
    assert [(e.request.uid, e.how) for e in ends] == [("ends meanwhile", LeaseEnd.EXPIRED)]
    assert {x.request.uid for x in after.journal.load_leases()} == {"goes on", "waits"}


@virtual
async def test_an_admission_whose_answer_was_lost_is_given_again() -> None:
    before = Stage()
    before.submit("a")
    after = Stage(journal=before.journal.reopen())
    after.start()
    again = after.submit("a")
    assert isinstance(again, Admitted)
    assert again.resent
    assert after.driver.admission.inflight() == 1


@virtual
async def test_the_turns_of_tenants_go_on_where_they_were() -> None:
    """A tenant that had its turn before the crash does not get another one before the rest."""

    async def order(crash: bool) -> list[str]:
        stage = Stage()
        stage.submit("busy", tenant="x")
        holds = {}
        for n in range(4):
            for tenant in "ab":
                holds[f"{tenant}{n}"] = stage.hold(f"{tenant}{n}", budget_s=60.0, tenant=tenant)
                await asyncio.sleep(0.001)
        await asyncio.sleep(1.0)  # as long as every answer takes
        stage.driver.complete("busy", OK)
        released, running = [], ""
        for turn in range(8):
            if crash and turn == 3:
                stage = Stage(journal=stage.journal.reopen())
                stage.start()
                left = sorted(holds.keys() - set(released))
                holds = {uid: stage.hold(uid, budget_s=60.0, tenant=uid[0]) for uid in left}
            if running:
                await asyncio.sleep(1.0)
                stage.driver.complete(running, OK)
            running = next(u for u, h in holds.items() if h.future.done() and u not in released)
            released.append(running)
        return released

    assert await order(crash=True) == await order(crash=False)


@virtual
async def test_a_kept_place_that_cannot_be_had_again_leaves_the_journal() -> None:
    before = Stage()
    before.submit("busy")
    before.hold("a", budget_s=60.0)
    after = Stage(pool_params(1.0, name="another"), before.journal.reopen())
    after.start()
    assert after.journaled() == []


@virtual
async def test_what_was_learned_is_saved_every_ten_seconds_and_read_at_start() -> None:
    params = pool_params(LimitParams("vegas", initial=40.0))
    before = Stage(params)
    before.start()
    assert before.journal.load_learned() == {}
    await asyncio.sleep(SAVE_LEARNED_S + 0.1)
    saved = before.journal.load_learned()["chat"]
    assert saved["limit.limit"] == 40.0
    before.submit("a", streamed=True)
    before.driver.tokens("a", 1)
    await asyncio.sleep(SAVE_LEARNED_S)
    after = Stage(params, before.journal.reopen())
    after.start()
    assert after.driver.admission.pool("chat").limit.current <= 20.0


@virtual
async def test_stopping_saves_and_leaves_no_timer_behind() -> None:
    stage = Stage()
    stage.start()
    stage.submit("a")
    await stage.driver.stop()
    assert stage.journal.reopen().load_learned().keys() == {"chat"}
    count = len(stage.events)
    await asyncio.sleep(600.0)
    assert len(stage.events) == count


@virtual
async def test_what_ends_after_the_stop_is_no_error() -> None:
    """The access log may still deliver while the process takes its things."""
    stage = Stage()
    stage.submit("a")
    stage.hold("b")
    await stage.driver.stop()
    stage.driver.complete("a", OK)
    stage.driver.heartbeat("b", "envoy")
    await asyncio.sleep(600.0)


# -- shutdown -------------------------------------------------------------------------------------


@virtual
async def test_a_gateway_that_stops_answers_every_hold_in_batches() -> None:
    stage = Stage(pool_params(1.0, early_drop=False))
    stage.submit("busy")
    holds = [stage.hold(f"u{i}", budget_s=60.0) for i in range(3 * BATCH)]
    task = asyncio.create_task(stage.driver.shed_all())
    await asyncio.sleep(0)
    assert sum(h.future.done() for h in holds) == BATCH
    await task
    decisions = [await h.future for h in holds]
    assert {d.reason for d in decisions if isinstance(d, Shed)} == {ShedReason.DRAINING}
    assert all(isinstance(d, Shed) for d in decisions)
    refused = stage.submit("new")
    assert isinstance(refused, Shed)
    assert refused.reason is ShedReason.DRAINING
    assert stage.journaled() == []


@virtual
async def test_it_waits_for_answers_in_flight_but_not_for_ever() -> None:
    stage = Stage()
    stage.submit("a")
    stage.loop.call_later(3.0, stage.driver.complete, "a", OK)
    assert await stage.driver.idle(10.0)
    assert stage.loop.time() == pytest.approx(1_003.0, abs=0.1)
    stage.submit("b")
    assert not await stage.driver.idle(10.0)
    assert stage.loop.time() == pytest.approx(1_013.0, abs=0.2)


@virtual
async def test_handing_back_keeps_the_places_for_the_next_server() -> None:
    stage = Stage()
    stage.submit("busy")
    hold = stage.hold("a")
    stage.driver.hand_back()
    assert stage.driver.closing.is_set()
    assert not hold.future.done()
    hold.future.cancel()  # as the gate does
    stage.driver.complete("busy", OK)
    await asyncio.sleep(0)
    assert stage.inflight == 0
    assert stage.journaled() == ["a"]


@virtual
async def test_nobody_has_a_turn_who_was_handed_back() -> None:
    """A slot that comes free meanwhile is for the next server to give away."""
    stage = Stage()
    stage.submit("busy", tenant="x")
    holds = {uid: stage.hold(uid, budget_s=60.0, tenant=uid) for uid in "abc"}
    turns = {turn.tenant for turn in stage.journal.load_turns()}
    stage.driver.hand_back()
    for uid in "ab":
        holds[uid].future.cancel()
    stage.driver.complete("busy", OK)
    stage.driver.leave(holds["a"])
    await asyncio.sleep(1.0)
    assert {e.request.uid for e in only(Admitted, stage.events)} == {"busy"}
    assert not holds["c"].future.done()
    assert {turn.tenant for turn in stage.journal.load_turns()} <= turns | {"x"}
    assert stage.journaled() == ["a", "b", "c"]
    assert stage.inflight == 0


class ForgetsOnce(MemoryJournal):
    """Can't keep what was learned, the first time."""

    kept = 0

    def save_learned(self, learned: Learned) -> None:
        self.kept += 1
        if self.kept == 1:
            raise RuntimeError("a mistake")
        super().save_learned(learned)


@virtual
async def test_timers_outlive_a_mistake() -> None:
    said: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: said.append(told))
    journal = ForgetsOnce()
    stage = Stage(journal=journal)
    stage.start()
    stage.admitted("busy")
    hold = stage.hold("a")
    handle_timer, due = stage.driver.admission.handle_timer, [RuntimeError("a mistake")] * 3

    def broken(now: float) -> list[Event]:
        if due:
            raise due.pop()
        return handle_timer(now)

    stage.driver.admission.handle_timer = broken  # type: ignore[method-assign]
    decision = await hold.future
    assert isinstance(decision, Shed)
    await asyncio.sleep(60.0)
    assert journal.kept > 2
    assert len(said) >= 4
