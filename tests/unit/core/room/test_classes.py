"""Who goes next: shares against starvation, a reserve for the entitled, and an oracle for both."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.core.limit.vegas import reserve_of
from policy_server.core.params import ClassParams
from policy_server.core.request import PRIORITIES, Priority
from policy_server.core.room.classes import ACTIVE_S, ClassRule
from tests.support.core_builders import P0, P1, P2

SHARES = (0.6, 0.2, 0.05)
ALL = [P0, P1, P2]


def rule(*heard: Priority, shares: tuple[float, ...] = SHARES) -> ClassRule:
    result = ClassRule({p: ClassParams(10.0, shares[p]) for p in PRIORITIES})
    for priority in heard:
        result.note_arrival(priority, 0.0)
    return result


def test_the_reserve_is_a_twentieth_at_least_two_and_less_on_tiny_engines() -> None:
    assert [reserve_of(x) for x in (100.0, 40.0, 16.0, 4.0, 1.0)] == [5.0, 2.0, 2.0, 0.5, 0.125]


def test_a_class_below_its_share_goes_first() -> None:
    # L = 40: shares of 24, 8 and 2 seats
    assert rule().choose(ALL, [24, 7, 0], 40.0, 0.0) is P1
    assert rule().choose(ALL, [24, 8, 1], 40.0, 0.0) is P2
    assert rule().choose(ALL, [23, 0, 0], 40.0, 0.0) is P0


def test_an_entitled_p0_may_use_the_reserve_above_the_limit() -> None:
    # L = 40, R = 2
    assert rule().choose([P0], [10, 31, 0], 40.0, 0.0) is P0
    assert rule().choose([P0], [10, 32, 0], 40.0, 0.0) is None


def test_the_other_entitled_stop_at_the_limit() -> None:
    assert rule().choose([P1], [33, 6, 0], 40.0, 0.0) is P1
    assert rule().choose([P1], [34, 6, 0], 40.0, 0.0) is None
    assert rule().choose([P2], [39, 0, 1], 40.0, 0.0) is None


def test_who_borrows_leaves_the_reserve_free() -> None:
    rule_ = rule(P0, P1)
    assert rule_.choose([P0], [37, 0, 0], 40.0, 1.0) is P0
    assert rule_.choose([P0], [38, 0, 0], 40.0, 1.0) is None


def test_a_pool_with_one_class_uses_its_whole_limit() -> None:
    assert rule(P2).choose([P2], [0, 0, 39], 40.0, 1.0) is P2
    assert rule(P2).choose([P2], [0, 0, 40], 40.0, 1.0) is None


def test_the_reserve_is_given_up_a_minute_after_the_last_of_the_others() -> None:
    rule_ = rule(P0)
    assert rule_.choose([P2], [0, 0, 39], 40.0, ACTIVE_S - 0.1) is None
    assert rule_.choose([P2], [0, 0, 39], 40.0, ACTIVE_S) is P2


def test_new_shares_leave_the_reserve_and_what_still_drains() -> None:
    it = rule(P0)
    it.note_cut(60)
    it.reconfigure({p: ClassParams(10.0, 0.1) for p in PRIORITIES}, 0.0)
    assert it.choose([P1], [0, 39, 0], 40.0, 1.0) is None, "P0 was heard of a second ago"
    assert it.reserve(40.0) == 20.0


def test_nobody_waits_nobody_goes() -> None:
    assert rule().choose([], [0, 0, 0], 40.0, 0.0) is None


@pytest.mark.parametrize("limit", [1.0, 1.9, 2.0, 3.3])
def test_an_idle_pool_lets_anyone_go_on_the_smallest_engine(limit: float) -> None:
    for shares in (SHARES, (0.0, 0.0, 0.0), (1.0, 0.0, 0.0)):
        for priority in PRIORITIES:
            choice = rule(*ALL, shares=shares).choose([priority], [0, 0, 0], limit, 1.0)
            assert choice is priority


@given(
    waiting=st.sets(st.sampled_from(PRIORITIES), min_size=1),
    seats=st.lists(st.integers(0, 60), min_size=3, max_size=3),
    limit=st.floats(1.0, 100.0),
    shares=st.tuples(*[st.floats(0.0, 0.4)] * 3),
)
def test_nothing_goes_at_or_above_limit_plus_reserve(
    waiting: set[Priority], seats: list[int], limit: float, shares: tuple[float, ...]
) -> None:
    chosen = rule(*ALL, shares=shares).choose(sorted(waiting), seats, limit, 0.0)
    if chosen is None:
        assert sum(seats) + 1 > limit - reserve_of(
            limit
        )  # a whole slot is never idle while someone waits
        return
    assert chosen in waiting
    bound = limit + reserve_of(limit) if chosen is P0 else limit
    assert sum(seats) < bound


# -- the oracle -----------------------------------------------------------------------------------


def max_min(shares: tuple[float, ...], backlogged: list[Priority], limit: float) -> list[float]:
    """Guarantees first, the floating rest to the most important that waits."""
    fair = [shares[p] * limit if p in backlogged else 0.0 for p in PRIORITIES]
    fair[backlogged[0]] += limit - sum(fair)
    return fair


def occupancy(
    rule_: ClassRule, backlogged: list[Priority], limit: float, service: tuple[float, ...]
) -> list[float]:
    """Mean seats per class with endless lines; a seat of class c ends at a rate 1/service."""
    rng, seats, area, rounds = random.Random(7), [0, 0, 0], [0.0, 0.0, 0.0], 10_000
    for step in range(rounds):
        while (choice := rule_.choose(backlogged, seats, limit, 0.0)) is not None:
            seats[choice] += 1
        rates = [n / service[p] for p, n in enumerate(seats)]
        pause = 1.0 / sum(rates)
        if step > rounds // 10:
            area = [a + n * pause for a, n in zip(area, seats, strict=True)]
        seats[rng.choices(PRIORITIES, rates)[0]] -= 1
    return [a / sum(area) * limit for a in area]


@pytest.mark.parametrize("limit", [20.0, 200.0])
@pytest.mark.parametrize("backlogged", [[P0, P1, P2], [P0, P2], [P1, P2], [P0, P1], [P1], [P2]])
@pytest.mark.parametrize("service", [(1.0, 1.0, 1.0), (0.2, 1.0, 5.0), (5.0, 1.0, 0.2)])
def test_under_a_full_backlog_everyone_gets_the_max_min_share(
    limit: float, backlogged: list[Priority], service: tuple[float, ...]
) -> None:
    found = occupancy(rule(*backlogged), backlogged, limit, service)
    fair = max_min(SHARES, backlogged, limit)
    slack = 1.5 * reserve_of(limit) + 1.0
    for priority in PRIORITIES:
        assert found[priority] == pytest.approx(fair[priority], abs=slack)
        if priority in backlogged:
            assert found[priority] > 0.75 * SHARES[priority] * limit


def test_a_class_that_waited_for_hours_is_owed_no_more_than_eight_seats_for_one_service() -> None:
    classes, missing = rule(P0, P1, P2), 1.0 - 0.05 * 7.0  # of a whole seat
    idle, one = [7, 0, 0, 0], [6, 0, 1, 0]
    for now in (0.0, 7200.0):  # no seat came free
        classes.accrue([P0, P2], idle, 7.0, 1.0, now)
    classes.accrue([P0, P2], one, 7.0, 1.0, 7200.0 + 0.8 * 8.0 / missing)
    assert classes.choose([P2], [6, 0, 0, 0], 7.0, 0.0) is P2
    classes.accrue([P0, P2], one, 7.0, 1.0, 7200.0 + 1.2 * 8.0 / missing)
    assert classes.choose([P2], [6, 0, 0, 0], 7.0, 0.0) is None
