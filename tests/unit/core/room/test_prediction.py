"""What a newcomer is told about its wait, by hand-computed numbers."""

from __future__ import annotations

import math

import pytest

from policy_server.core.room.prediction import Predictor, wait_s
from policy_server.core.room.rates import DrainRate
from tests.support.core_builders import P0, P1, P2

SHARES = (0.6, 0.2, 0.05)


def drained(per_s: int, seconds: int) -> DrainRate:
    drain = DrainRate()
    for tick in range(per_s * seconds + 1):
        drain.completed(0.0, tick / per_s)
    return drain


def test_nothing_is_known_at_first() -> None:
    predictor = Predictor(SHARES)
    assert predictor.class_rate(P1, 16.0, 5.0) is None
    assert wait_s(7.0, None) is None


def predictor(arrivals: dict[int, int], per_s: int = 10) -> Predictor:
    """At t = 60 s: `per_s` completions and `arrivals` per second by class."""
    result = Predictor(SHARES)
    result.drain = drained(per_s, 60)
    for priority, rate in arrivals.items():
        for tick in range(60 * rate):
            result.note_arrival((P0, P1, P2)[priority], tick / rate)
    return result


def test_alone_a_class_may_count_on_everything() -> None:
    p = predictor({2: 50})
    assert p.class_rate(P2, 1.0, 60.0) == pytest.approx(10.0, rel=0.05)


def test_the_more_important_take_what_arrives_of_them() -> None:
    p = predictor({0: 3, 1: 2})
    # 10/s, 3/s of P0 and 2/s of P1 arrive: P2 may count on 5/s
    assert p.class_rate(P2, 1.0, 60.0) == pytest.approx(5.0, rel=0.1)


def test_the_less_important_take_at_most_their_share() -> None:
    p = predictor({1: 20, 2: 50})
    # P1's share .2 and P2's .05 of 10/s leave 7.5/s
    assert p.class_rate(P0, 1.0, 60.0) == pytest.approx(7.5, rel=0.05)


def test_a_class_keeps_its_share_however_much_of_the_others_arrives() -> None:
    p = predictor({0: 100, 1: 100})
    assert p.class_rate(P2, 1.0, 60.0) == pytest.approx(0.05 * 10.0, rel=0.05)


def test_a_crowded_out_class_without_a_share_waits_long_and_is_told_so() -> None:
    p = predictor({0: 100})
    p.reconfigure((0.6, 0.2, 0.0))
    wait = wait_s(0.0, p.class_rate(P2, 1.0, 60.0))
    assert wait is not None
    assert 45.0 < wait < math.inf


def test_what_a_back_end_asks_for_bounds_the_rate() -> None:
    p = predictor({1: 1})
    p.cap_per_s = 4.0
    assert p.drain_per_s(1.0, 60.0) == 4.0
    assert p.class_rate(P1, 1.0, 60.0) == pytest.approx(4.0)


def test_the_wait_is_the_line_ahead_at_the_rate_of_the_class() -> None:
    assert wait_s(99.0, 10.0) == pytest.approx(10.0)
    assert wait_s(0.0, 10.0) == pytest.approx(0.1)


def test_it_seldom_takes_longer_or_less_than_chance_makes_it() -> None:
    # √100 = 10 more or less of 101
    assert wait_s(100.0, 10.0, z=2.0) == pytest.approx(12.1)
    assert wait_s(100.0, 10.0, z=-2.0) == pytest.approx(8.1)
    assert wait_s(1.0, 10.0, z=-2.0) == pytest.approx(0.1)  # its own slot at least
