"""What a newcomer is told about its wait, by hand-computed numbers."""

from __future__ import annotations

import math

import pytest

from policy_server.core.room.prediction import DecayingRate, DrainRate, Predictor
from tests.support.core_builders import P0, P1, P2

SHARES = (0.6, 0.2, 0.05)


def drained(per_s: int, seconds: int, service_s: float = 0.0) -> DrainRate:
    drain = DrainRate()
    for tick in range(per_s * seconds + 1):
        drain.completed(service_s, tick / per_s)
    return drain


def test_the_drain_rate_is_completions_over_the_last_20_s() -> None:
    assert drained(10, 30).per_s(1.0, 30.0) == pytest.approx(10.0, rel=0.05)


def test_two_seconds_of_data_are_needed_before_the_count_is_believed() -> None:
    drain = drained(10, 1)
    assert drain.per_s(1.0, 1.0) is None
    assert drain.per_s(1.0, 2.0) == pytest.approx(11 / 2.0)


def test_it_is_at_least_the_limit_over_the_mean_service_time() -> None:
    drain = DrainRate()
    drain.completed(4.0, 0.0)
    assert drain.per_s(40.0, 0.1) == 10.0
    assert drain.per_s(40.0, 1_000.0) == 10.0  # a lull does not make the engine slow


def test_nothing_is_known_at_first() -> None:
    assert DrainRate().per_s(16.0, 5.0) is None
    predictor = Predictor(SHARES)
    assert predictor.wait_s(P1, 0, 16.0, 5.0) is None
    assert predictor.worth_waiting(P1, None, 0.1)


def test_the_rate_from_before_a_restart_is_believed_until_there_is_data() -> None:
    drain = DrainRate()
    drain.assume(25.0)
    assert drain.per_s(16.0, 0.0) == 25.0
    drain.completed(2.0, 1.0)
    assert drain.per_s(16.0, 1.0) == 8.0
    drain.assume(0.0)
    assert drain.per_s(16.0, 1.0) == 8.0


def test_its_memory_is_bounded() -> None:
    drain = DrainRate()
    for tick in range(100_000):
        drain.completed(1.0, tick * 0.001)
    assert len(drain._buckets) <= 42


def test_arrivals_decay_with_their_memory() -> None:
    rate = DecayingRate(memory_s=10.0)
    for tick in range(10_000):
        rate.add(tick * 0.01)
    assert rate.at(99.99) == pytest.approx(100.0, rel=0.01)
    assert rate.at(109.99) == pytest.approx(100.0 / math.e, rel=0.01)
    assert rate.at(50.0) == rate.at(109.99)  # a clock that steps back changes nothing


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
    wait = p.wait_s(P2, 0, 1.0, 60.0)
    assert wait is not None
    assert 45.0 < wait < math.inf
    assert not p.worth_waiting(P2, wait, 45.0)


def test_the_wait_is_the_line_ahead_at_the_rate_of_the_class() -> None:
    p = predictor({2: 1})
    rate = p.class_rate(P2, 1.0, 60.0)
    assert rate is not None
    assert p.wait_s(P2, 99, 1.0, 60.0) == pytest.approx(100 / rate)
    assert p.wait_s(P2, 0, 1.0, 60.0) == pytest.approx(1 / rate)


@pytest.mark.parametrize(("priority", "phi"), [(P0, 0.9), (P1, 0.9), (P2, 0.5)])
def test_a_place_is_worth_it_up_to_phi_of_the_budget(priority: int, phi: float) -> None:
    p = Predictor(SHARES)
    assert p.worth_waiting((P0, P1, P2)[priority], phi * 10.0, 10.0)
    assert not p.worth_waiting((P0, P1, P2)[priority], phi * 10.0 + 0.01, 10.0)
