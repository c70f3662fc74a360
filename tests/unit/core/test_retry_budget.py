"""A storm of retries costs only its own tenant; who honours Retry-After never meets the budget."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from policy_server.core.admission import Admission
from policy_server.core.events import Admitted, Event, Shed, Waiting
from policy_server.core.outcome import ShedReason
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
