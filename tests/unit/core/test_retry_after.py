"""Each shed request gets its own slot of the drain, so that the shed come back spread out."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.core.params import RetryAfterParams
from policy_server.core.retry_after import Bookings
from tests.support.core_builders import P0, P1, P2, Coin

NO_JITTER = Coin(0.0)


def bookings(coin: Coin = NO_JITTER, **bounds: float) -> Bookings:
    return Bookings(RetryAfterParams(**bounds), coin)


def test_the_first_slot_is_behind_those_who_wait_now() -> None:
    """A place that comes free before goes to a newcomer: the return would be in vain."""
    b = bookings()
    promise = b.book(P1, 40.0, 2.0, now=100.0)  # 16 of 21 come back, at 2/s: a step of .38 s
    assert promise.seconds == pytest.approx(40.0 + 16.0 / 21.0 / 2.0)
    assert not promise.capped
    assert bookings().quote(P2, 40.0, now=0.0).seconds == 40.0


def test_each_next_one_is_booked_behind_the_last() -> None:
    b = bookings()
    times = [b.book(P2, 45.0, 10.0, now=0.0).seconds for _ in range(50)]
    assert times == sorted(times)
    steps = [later - sooner for sooner, later in pairwise(times)]
    assert all(0.0 < step <= 0.1 for step in steps)  # at most one return per free slot of 10/s


def test_classes_have_lines_of_their_own() -> None:
    b = bookings()
    for _ in range(100):
        b.book(P2, 30.0, 1.0, now=0.0)
    assert b.book(P0, 0.5, 10.0, now=0.0).seconds == 1.0


def test_at_the_cap_it_says_the_cap_and_counts_it() -> None:
    b = bookings()
    promise = b.book(P1, 500.0, 1.0, now=0.0)
    assert promise.seconds == 55.0
    assert promise.capped


def test_a_tenant_with_a_longer_line_takes_no_slot_of_the_others() -> None:
    """Its own cap is nearer; with it all others were told of slots that were long booked."""
    b = bookings()
    for _ in range(100):
        assert b.book(P2, 5.0, 0.4, now=0.0).seconds <= 55.0
    assert b.book(P2, 5.0, 0.4, now=0.0).capped
    assert b.book(P2, 16.0, 0.4, now=0.0).capped
    assert b.book(P2, 5.0, 0.4, now=0.0).capped


def test_who_floods_stands_behind_his_own_bookings() -> None:
    b = bookings()
    for _ in range(400):
        b.book(P1, 2.0, 10.0, 0.0, "flood")
        b.note_return()
    assert b.book(P1, 2.0, 10.0, 0.0, "flood").seconds > 30.0
    assert b.book(P1, 2.0, 10.0, 0.0, "calm").seconds == pytest.approx(2.0, abs=0.3)


def test_tenants_that_book_alike_are_told_what_one_would_be() -> None:
    one, many = bookings(), bookings()
    for number in range(300):
        alone = one.book(P1, 2.0, 10.0, 0.0, "t").seconds
        fifth = many.book(P1, 2.0, 10.0, 0.0, f"t{number % 5}").seconds
    assert fifth == pytest.approx(alone, abs=0.5)


def test_many_who_come_once_share_the_drain_like_one() -> None:
    one, many = bookings(), bookings()
    for number in range(300):
        alone = one.book(P1, 2.0, 10.0, 0.0, "t").seconds
        once = many.book(P1, 2.0, 10.0, 0.0, f"t{number}").seconds
    assert once == pytest.approx(alone)


def test_a_flood_does_not_age_the_overload_of_others() -> None:
    b = bookings()
    for second in range(200):
        told = b.book(P1, 10.0, 1e6, float(second), "flood").seconds
    assert told == pytest.approx(50.0)
    assert b.book(P1, 10.0, 1e6, 200.0, "calm").seconds == pytest.approx(10.0)


def test_an_overload_of_many_tenants_is_everybodys() -> None:
    b = bookings()
    for second in range(200):
        told = b.book(P1, 10.0, 1e6, float(second), f"t{second}").seconds
    assert told == pytest.approx(50.0)


def test_no_more_is_booked_than_comes_free_up_to_the_cap() -> None:
    """Else an overload of an hour would be told of for an hour after its end."""
    b = bookings()
    for _ in range(5_000):
        b.book(P1, 5.0, 2.0, 0.0)
    assert b.quote(P1, 0.0, 0.0).seconds == pytest.approx(50.0)
    assert b.quote(P1, 0.0, 60.0).seconds == 1.0


def test_the_line_drains_with_time() -> None:
    b = bookings()
    for _ in range(20):
        b.book(P1, None, 1.0, now=0.0)
    assert b.book(P1, None, 1.0, now=0.0).seconds > 10.0
    assert b.book(P1, None, 1.0, now=60.0).seconds == 1.0


def test_a_quote_knows_that_the_line_has_drained_and_takes_no_slot() -> None:
    b = bookings()
    for _ in range(20):
        b.book(P1, None, 1.0, now=0.0)
    taken = b.quote(P1, None, now=0.0).seconds
    assert taken > 10.0
    assert b.quote(P1, None, now=5.0).seconds == pytest.approx(taken - 5.0)
    assert b.quote(P1, None, now=60.0).seconds == 1.0


def test_jitter_adds_up_to_a_quarter() -> None:
    plain = bookings(Coin(0.0)).book(P1, 40.0, 2.0, now=0.0).seconds
    late = bookings(Coin(1.0)).book(P1, 40.0, 2.0, now=0.0).seconds
    assert late == pytest.approx(1.25 * plain)


def test_bounds_are_configuration() -> None:
    b = bookings(min_s=3.0, max_s=4.0)
    assert b.book(P1, None, 100.0, now=0.0).seconds == 3.0
    assert b.book(P1, 100.0, 100.0, now=0.0).seconds == 4.0
    b.reconfigure(RetryAfterParams(min_s=7.0, max_s=9.0))
    assert b.book(P1, None, 100.0, now=0.0).seconds == 7.0


def test_a_pool_that_never_answered_is_taken_to_answer_one_a_second() -> None:
    b = bookings()
    times = [b.book(P1, None, None, now=0.0).seconds for _ in range(10)]
    assert times[-1] - times[-2] == pytest.approx(b.return_share())


def test_an_overload_is_taken_to_last_as_long_again_as_it_has_lasted() -> None:
    b = bookings()
    told = [b.book(P1, 10.0, 1e6, now=float(second)).seconds for second in range(100)]
    assert told[0] == pytest.approx(10.0)
    assert told[20] == pytest.approx(20.0)
    assert told[80] == pytest.approx(50.0)  # five times the predicted wait
    assert b.book(P1, 10.0, 1e6, now=110.0).seconds == pytest.approx(10.0)  # after a pause


def test_who_would_have_to_wait_for_a_moment_is_not_sent_away_for_long() -> None:
    """Clients that can't wait at all are refused all day long on a busy pool."""
    b = bookings()
    for second in range(1_000):
        promise = b.book(P1, 0.5, 1e6, now=float(second))
    assert promise.seconds == pytest.approx(2.5)


def test_the_share_that_returns_is_measured() -> None:
    b = bookings()
    for i in range(2_000):
        b.book(P1, None, 1.0, now=float(i))
        if i % 4 == 0:
            b.note_return()
    assert b.return_share() == pytest.approx(0.25, abs=0.05)
    for i in range(2_000):
        b.book(P1, None, 1.0, now=float(i))
    assert b.return_share() == 0.1


def test_claiming_to_return_without_having_been_shed_gains_and_costs_nothing_for_long() -> None:
    b = bookings()
    for _ in range(100_000):
        b.note_return()
    assert b.return_share() == 1.0
    for i in range(800):
        b.book(P1, None, 1.0, now=float(i))
    assert b.return_share() < 0.2


@given(
    st.lists(
        st.tuples(
            st.sampled_from([P0, P1, P2]),
            st.none() | st.floats(0.0, 1e9),
            st.none() | st.floats(0.0, 1e9),
            st.floats(0.0, 100.0),
        ),
        max_size=50,
    )
)
def test_it_is_always_within_its_bounds(calls: list[tuple[object, ...]]) -> None:
    b, now = Bookings(RetryAfterParams(), random.Random(2)), 0.0
    for priority, predicted, rate, later in calls:
        now += later  # type: ignore[operator]
        promise = b.book(priority, predicted, rate, now)  # type: ignore[arg-type]
        assert 1.0 <= promise.seconds <= 55.0


def test_while_promises_are_kept_everyone_may_retry() -> None:
    b = bookings()
    for _ in range(500):
        assert b.book(P1, 20.0, 1.0, 0.0).should_retry


def test_promises_to_strangers_are_theirs_alone() -> None:
    b = Bookings(RetryAfterParams(), random.Random(1))
    for _ in range(500):
        b.note_kept(P1, False)
    assert b.kept(P1) < 0.01
    assert b.kept(P1, "a") == 1.0
    for second in range(100):
        stranger = b.book(P1, 500.0, 1.0, float(second))
        assert b.book(P1, 500.0, 1.0, float(second), "a").should_retry
    assert not stranger.should_retry


def test_a_young_overload_forbids_nobody_to_retry_whatever_was_broken_before() -> None:
    b = Bookings(RetryAfterParams(), random.Random(1))
    for _ in range(500):
        b.note_kept(P1, False)
    young = [b.book(P1, 500.0, 1.0, 0.1 * step) for step in range(550)]
    assert all(promise.capped and promise.should_retry for promise in young)
    old = [b.book(P1, 500.0, 1.0, 55.1 + 0.001 * step) for step in range(550)]
    assert not all(promise.should_retry for promise in old)


def test_most_are_told_not_to_retry_while_all_slots_are_booked_and_promises_broken() -> None:
    b = Bookings(RetryAfterParams(), random.Random(1))
    for _ in range(500):
        b.note_kept(P1, False)
    assert b.kept(P1) < 0.01
    for second in range(56):  # the longest promises have not come due yet
        assert b.book(P1, 20.0, 1.0, float(second)).should_retry
    answers = [b.book(P1, 20.0, 1.0, 55.5) for _ in range(1_000)]
    capped = [a.should_retry for a in answers if a.capped]
    assert 0.02 < capped.count(True) / len(capped) < 0.1  # some always try
    for _ in range(100):
        b.note_kept(P1, True)
    assert all(b.book(P1, 20.0, 1.0, 56.0).should_retry for _ in range(100))
    assert b.kept(P0) == 1.0  # each class has its own
