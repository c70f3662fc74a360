"""Rates that a forecast stands on, by hand-computed numbers."""

from __future__ import annotations

import math
import random

import pytest

from policy_server.core.room.rates import (
    ARRIVAL_MEMORY_S,
    DecayingRate,
    DrainRate,
    SteadyRate,
)


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
    assert len(drain._recent._buckets) <= 42
    assert len(drain._long._buckets) <= 122


def test_arrivals_decay_with_their_memory() -> None:
    rate = DecayingRate(memory_s=10.0)
    for tick in range(10_000):
        rate.add(tick * 0.01)
    assert rate.at(99.99) == pytest.approx(100.0, rel=0.01)
    assert rate.at(109.99) == pytest.approx(100.0 / math.e, rel=0.01)
    assert rate.at(50.0) == rate.at(109.99)  # a clock that steps back changes nothing


def test_while_somebody_waits_all_the_time_the_count_is_the_rate() -> None:
    drain = drained(10, 100, service_s=1.0)
    assert drain.per_s(40.0, 100.0) == 40.0  # nobody waits: it could be more
    drain.waiting(True, 70.0)
    assert drain.per_s(40.0, 100.0) == pytest.approx(10.0, rel=0.06)
    drain.waiting(False, 100.0)
    assert drain.per_s(40.0, 100.0) == 40.0


def test_after_a_minute_of_waiting_the_long_count_is_believed_until_chance_is_excluded() -> None:
    drain = drained(10, 100, service_s=1.0)
    drain.waiting(True, 0.0)
    for tick in range(8 * 20):
        drain.completed(1.0, 100.0 + tick / 8.0)
    believed = drain.per_s(40.0, 120.0)
    assert believed == pytest.approx((40 * 10 + 20 * 8) / 60, rel=0.03)  # 2 of 10 less: chance
    for tick in range(4 * 20):
        drain.completed(1.0, 120.0 + tick / 4.0)
    assert drain.per_s(40.0, 140.0) == pytest.approx(4.0, rel=0.06)  # the engine is slower


def test_a_mean_of_many_services_is_better_than_the_running_one() -> None:
    drain = DrainRate()
    for tick in range(40):
        drain.completed(1.0 if tick % 2 else 3.0, 0.1 * tick)
    assert drain.per_s(100.0, 4.0) == pytest.approx(50.0)


def test_the_long_average_of_arrivals_counts_until_the_load_has_changed() -> None:
    rate, rng, now, seen = SteadyRate(), random.Random(1), 0.0, []
    while now < 300.0:
        now += rng.expovariate(10.0)
        rate.add(now)
        if now > 120.0:
            seen.append(rate.at(now))
    assert 8.0 < min(seen) <= max(seen) < 12.0  # the short one alone: 7..13
    until = now + 2 * ARRIVAL_MEMORY_S
    while now < until:
        now += rng.expovariate(40.0)
        rate.add(now)
    assert rate.at(now) > 30.0
