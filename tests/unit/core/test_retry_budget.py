"""A storm of retries costs only its own tenant; who honours Retry-After never meets the budget."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.core.admission import Admission
from policy_server.core.events import Admitted, Event, Shed, Waiting
from policy_server.core.outcome import ShedReason
from policy_server.core.params import RoomParams
from policy_server.core.retry_after import FIRST_RETURN_SHARE
from policy_server.core.retry_budget import (
    AMNESTY_S,
    KEEP_S,
    MAX_RETRIES,
    MAX_TENANTS,
    START_RETRIES,
    RetryBudget,
)
from tests.support.core_builders import OK, P1, P2, admission, only, pool_params, request

STORM = START_RETRIES


def spent(tenant: str = "a", at: float = 0.0) -> RetryBudget:
    """A budget whose tenant has nothing left."""
    budget = RetryBudget()
    for _ in range(STORM):
        assert budget.take(tenant, at)
    return budget


def test_a_retry_costs_what_ten_successes_earn() -> None:
    budget = spent()
    for _ in range(9):
        budget.served("a")
    assert not budget.take("a", 0.0)
    budget.served("a")
    assert budget.take("a", 0.0)
    assert not budget.take("a", 0.0)


def test_successes_do_not_pile_up_without_bound() -> None:
    budget = RetryBudget()
    for _ in range(100_000):
        budget.served("a")
    assert sum(budget.take("a", 0.0) for _ in range(1000)) == MAX_RETRIES


def test_an_invitation_is_good_from_its_moment_on_for_a_while_and_once() -> None:
    budget = spent()
    for _ in range(3):
        budget.invite("a", 20.0, 0.0)
    assert not budget.take("a", 19.0)
    assert budget.take("a", 20.0)
    assert budget.take("a", 20.0 + KEEP_S)
    assert not budget.take("a", 21.0 + KEEP_S)


def test_one_tenants_storm_is_not_paid_by_another() -> None:
    budget = spent("storm")
    assert not budget.take("storm", 0.0)
    assert budget.take("calm", 0.0)


def test_strangers_have_no_budget() -> None:
    budget = RetryBudget()
    assert all(budget.take("", 0.0) for _ in range(1000))
    assert len(budget) == 0


@pytest.mark.parametrize("tenant", ["", "a"])
def test_only_who_was_told_to_come_by_now_counts_as_invited(tenant: str) -> None:
    budget = RetryBudget()
    back = request("back", tenant=tenant, returning=True)
    budget.invite(tenant, 20.0, 0.0)
    judged = [budget.look(back, at) for at in (19.0, 20.0, 20.0)]
    assert [known is not None and known.invited for known in judged] == [False, True, False]
    new = request("new", tenant=tenant)
    assert budget.look(new, 20.0) == new


def test_an_invitation_is_void_after_a_minute() -> None:
    """The client of an SDK comes at its moment or not at all."""
    budget = spent()
    budget.invite("a", 20.0, 0.0)
    budget.invite("a", 20.0, 0.0)
    assert budget.take("a", 80.0)
    assert not budget.take("a", 82.0)


def test_a_million_tenants_take_bounded_memory_and_the_busy_one_is_kept() -> None:
    budget = spent("busy")
    for number in range(100_000):
        budget.take(f"t{number}", 0.0)
        if number % 1000 == 0:
            assert not budget.take("busy", 0.0)
    assert len(budget) == MAX_TENANTS


def test_a_tenant_that_is_refused_all_day_and_never_returns_takes_bounded_memory() -> None:
    budget = RetryBudget()
    for at in range(10_000):
        budget.invite("a", at + 10.0, float(at))
    [account] = budget._accounts.values()
    assert len(account.invited) <= KEEP_S + 10.0 + 1.0


def test_after_a_loss_of_memory_all_are_believed_for_a_while() -> None:
    budget = spent()
    budget.forgive(100.0)
    assert budget.take("a", 100.0)
    budget.forgive(101.0, 10.0)  # a shorter one after it takes nothing back
    assert budget.take("a", 99.0 + AMNESTY_S)
    assert not budget.take("a", 100.0 + AMNESTY_S)


@given(st.lists(st.tuples(st.floats(0, 300), st.floats(1, 55)), min_size=1, max_size=200))
def test_who_comes_back_no_earlier_than_told_is_never_over(
    told: Sequence[tuple[float, float]],
) -> None:
    """Whatever the order of promises, each return within a minute of its own moment is paid."""
    budget = RetryBudget()
    returns = sorted((at + wait, at) for at, wait in told)
    promises = sorted((at, at + wait) for at, wait in told)
    for due, _ in returns:
        while promises and promises[0][0] <= due:
            at, until = promises.pop(0)
            budget.invite("a", until, at)
        assert budget.take("a", due)
    assert sum(budget.take("a", 1000.0) for _ in range(2 * STORM)) == STORM, "it spent its own"


# -- in the pool ----------------------------------------------------------------------------------


def full(**more: object) -> Admission:
    """One slot, taken, with a drain of one request per second."""
    gate = admission(pool_params(1.0, **more))
    gate.submit(request("warm", at=0.0), 0.0)
    gate.complete("warm", OK, 1.0)
    gate.submit(request("busy", at=1.0, tenant="other"), 1.0)
    return gate


def retry(gate: Admission, uid: str, at: float, tenant: str = "storm") -> list[Event]:
    facts = {"tenant": tenant, "returning": True}
    return gate.submit(request(uid, P1, at=at, **facts), at)


def test_retries_beyond_the_budget_are_refused_first_and_told_not_to_come_back() -> None:
    gate = full(early_drop=False)
    for number in range(STORM):
        assert only(Waiting, retry(gate, f"r{number}", 2.0))
    (shed,) = only(Shed, retry(gate, "one-more", 2.0))
    assert shed.reason is ShedReason.RETRY_BUDGET
    assert not shed.should_retry
    assert not shed.request.returning  # it is no promise that was broken


def test_a_storm_moves_nobody_elses_booking_and_breaks_no_promise() -> None:
    quiet, stormy = full(early_drop=True), full(early_drop=True)
    for number in range(STORM):
        retry(stormy, f"r{number}", 2.0)
        retry(quiet, f"r{number}", 2.0)
    for number in range(1000):
        retry(stormy, f"s{number}", 2.0)
    bookings = [g.pool("chat").refusals.bookings for g in (quiet, stormy)]
    assert bookings[0].kept(P1) == bookings[1].kept(P1)
    waits = [
        only(Shed, g.submit(request("late", P2, at=3.0, budget_s=0.0), 3.0))[0].retry_after_s
        for g in (quiet, stormy)
    ]
    assert waits[0] == waits[1]


def sheds(gate: Admission, uid: str, at: float, **facts: object) -> Shed:
    """The one refusal of a newcomer of P1 that can't wait long enough."""
    budget_s = facts.pop("budget_s", 15.0)
    (shed,) = only(Shed, gate.submit(request(uid, P1, at=at, budget_s=budget_s, **facts), at))
    return shed


def overloaded() -> Admission:
    """One slot, one answer a second, and a line of strangers and tenants too long for P1."""
    gate = full()
    for number in range(40):
        gate.submit(request(f"w{number}", P1, at=2.0, tenant=f"w{number}"), 2.0)
    return gate


def test_false_retry_counts_of_strangers_move_nothing() -> None:
    gate = overloaded()
    bookings = gate.pool("chat").refusals.bookings
    before = bookings.return_share()
    for number in range(200):
        sheds(gate, f"s{number}", 3.0, returning=True)
    assert bookings.kept(P1) == 1.0
    assert bookings.return_share() < before


def test_false_retry_counts_keep_no_promise_either() -> None:
    gate = admission(pool_params(4.0))
    bookings = gate.pool("chat").refusals.bookings
    bookings.note_kept(P1, False)
    kept = bookings.kept(P1)
    for number in range(100):
        assert only(Admitted, retry(gate, f"r{number}", float(number), tenant=""))
        gate.complete(f"r{number}", OK, number + 0.5)
    assert bookings.kept(P1) == kept < 1.0


@pytest.mark.parametrize("tenant", ["", "a"])
def test_who_came_back_as_told_and_is_refused_again_broke_no_promise_but_we_did(
    tenant: str,
) -> None:
    gate = overloaded()
    bookings = gate.pool("chat").refusals.bookings
    told = sheds(gate, "first", 3.0, tenant=tenant)
    assert bookings.kept(P1, tenant) == 1.0
    due = 3.0 + told.retry_after_s
    again = overloaded_until(gate, due)
    shed = sheds(again, "back", due, tenant=tenant, returning=True)
    assert shed.request.invited
    assert bookings.kept(P1, tenant) < 1.0


def overloaded_until(gate: Admission, at: float) -> Admission:
    """Nothing came free, and others wait again."""
    gate.handle_timer(at)
    for number in range(40):
        gate.submit(request(f"x{number}", P1, at=at, tenant=f"x{number}"), at)
    return gate


def test_who_is_told_not_to_retry_is_not_invited() -> None:
    gate = overloaded()
    refusals = gate.pool("chat").refusals
    for _ in range(500):
        refusals.bookings.note_kept(P1, False, "a")
    for number in range(1000):
        shed = sheds(gate, f"a{number}", 3.0 + 0.1 * number, tenant="a")
        gate = overloaded_until(gate, 3.0 + 0.1 * number)
        if not shed.should_retry:
            break
    assert not shed.should_retry
    invited = sum(refusals.retries._account("a").invited.values())
    assert invited == number, "everyone before it, and it not"


def test_who_can_not_wait_at_all_tells_nothing_of_an_overload() -> None:
    gate = full()
    bookings = gate.pool("chat").refusals.bookings
    for number in range(200):
        shed = sheds(gate, f"probe{number}", 2.0 + 0.005 * number, budget_s=0.0)
    assert shed.retry_after_s < 3.0
    assert bookings.quote(P1, 10.0, 3.0).seconds < 13.0
    assert bookings.return_share() == FIRST_RETURN_SHARE


def test_a_tenant_at_its_own_bound_moves_no_booking() -> None:
    gate = full(early_drop=False, room=RoomParams(tenant_max_requests=2))
    bookings = gate.pool("chat").refusals.bookings
    for number in range(2):
        gate.submit(request(f"a{number}", P1, at=2.0, tenant="a"), 2.0)
    for number in range(200):
        shed = sheds(gate, f"b{number}", 2.0 + 0.1 * number, tenant="a")
        assert shed.reason is ShedReason.TENANT_LIMIT
    assert bookings.quote(P1, 10.0, 22.0, "b").seconds < 13.0
    assert bookings.quote(P1, 10.0, 22.0, "a").seconds < 13.0


def test_a_free_slot_is_given_to_whoever_comes() -> None:
    gate = full()
    for number in range(STORM + 5):
        retry(gate, f"r{number}", 2.0)
    for number in range(STORM):
        gate.cancel(f"r{number}", 3.0)
    gate.complete("busy", OK, 4.0)
    assert only(Admitted, retry(gate, "again", 5.0))


def test_claiming_retries_gains_nothing_over_not_claiming() -> None:
    honest, liar = full(), full()
    for number in range(60):
        honest.submit(request(f"n{number}", P1, at=2.0, tenant="t"), 2.0)
        retry(liar, f"n{number}", 2.0, tenant="t")
    waits = [len(g.pool("chat").room) for g in (honest, liar)]
    assert waits[1] <= waits[0]
