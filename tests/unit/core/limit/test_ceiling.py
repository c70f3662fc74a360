"""What back ends ask for: obeyed at once, let go of slowly."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.core.limit.ceiling import (
    BURST_S,
    HOLD_S,
    MAX_SOURCES,
    MIN_RPS,
    RECOVERY_PER_S,
    Asked,
    Ceiling,
)


def test_nobody_asks_for_anything() -> None:
    ceiling = Ceiling()
    assert math.isinf(ceiling.seats(0.0))
    assert math.isinf(ceiling.rps(0.0))
    assert ceiling.allows(10_000, 8, 0.0)
    ceiling.take(0.0)
    assert ceiling.ready_at(5.0) == 5.0


def test_an_ask_holds_then_recovers_by_five_percent_a_second() -> None:
    ceiling = Ceiling()
    ceiling.ask_seats("a", 10, 100.0)
    assert ceiling.seats(100.0) == 10
    assert ceiling.seats(100.0 + HOLD_S) == 10
    assert ceiling.seats(101.0 + HOLD_S) == pytest.approx(10.5)
    assert ceiling.seats(120.0 + HOLD_S) == pytest.approx(10 * RECOVERY_PER_S**20)
    assert math.isinf(ceiling.seats(200.0 + HOLD_S))


def test_a_renewed_ask_starts_over_and_the_newest_word_counts_up_and_down() -> None:
    ceiling = Ceiling()
    ceiling.ask_seats("a", 10, 0.0)
    ceiling.ask_seats("a", 10, 9.0)
    assert ceiling.seats(18.0) == 10
    ceiling.ask_seats("a", 4, 19.0)
    assert ceiling.seats(19.0) == 4
    ceiling.ask_seats("a", 50, 20.0)
    assert ceiling.seats(20.0) == 50
    ceiling.ask_seats("a", 4, 19.5)  # an answer that came late
    assert ceiling.seats(20.0) == 50


def test_among_several_back_ends_the_least_counts() -> None:
    ceiling = Ceiling()
    ceiling.ask_seats("a", 10, 0.0)
    ceiling.ask_seats("b", 3, 0.0)
    assert ceiling.seats(0.0) == 3
    ceiling.ask_seats("b", 30, 1.0)
    assert ceiling.seats(1.0) == 10


def test_a_crowd_of_addresses_neither_grows_nor_hides_the_least() -> None:
    ceiling = Ceiling()
    for number in range(10 * MAX_SOURCES):
        ceiling.ask_seats(f"10.0.0.{number}", 1000 - number, 0.0)
    assert ceiling.seats(0.0) == 1000 - 10 * MAX_SOURCES + 1


def test_nothing_at_once_still_lets_one_probe_go() -> None:
    ceiling = Ceiling()
    ceiling.ask_seats("a", 0, 0.0)
    assert ceiling.allows(0, 1, 0.0)
    assert ceiling.allows(0, 8, 0.0)  # an idle engine takes whoever comes
    assert not ceiling.allows(1, 1, 0.0)


def test_seats_are_never_above_the_ask() -> None:
    ceiling = Ceiling()
    ceiling.ask_seats("a", 8, 0.0)
    assert ceiling.allows(7, 1, 0.0)
    assert not ceiling.allows(7, 2, 0.0)
    assert not ceiling.allows(8, 1, 0.0)


def test_a_rate_lets_one_go_per_interval_and_says_when_the_next_may() -> None:
    ceiling = Ceiling()
    ceiling.ask_rps("a", 2.0, 0.0)
    assert not ceiling.allows(0, 1, 0.0)
    assert ceiling.ready_at(0.0) == pytest.approx(0.5)
    assert ceiling.allows(0, 1, 0.5)
    ceiling.take(0.5)
    assert not ceiling.allows(0, 1, 0.9)
    assert ceiling.ready_at(0.9) == pytest.approx(1.0)
    assert ceiling.allows(0, 1, 1.0)


def test_a_rate_of_zero_is_hardly_ever() -> None:
    ceiling = Ceiling()
    ceiling.ask_rps("a", 0.0, 0.0)
    assert ceiling.rps(0.0) == MIN_RPS


def test_a_million_sources_take_bounded_memory_and_the_strictest_are_kept() -> None:
    asked = Asked()
    for number in range(10_000):
        asked.say(f"s{number}", 1.0 + (number * 7919) % 10_000, 0.0)
    assert len(asked.said) == MAX_SOURCES
    assert asked.at(0.0) == 1.0
    assert max(value for value, _ in asked.said.values()) == MAX_SOURCES


def test_a_rate_asked_after_a_lull_begins_with_nothing_saved_up() -> None:
    ceiling = Ceiling()
    ceiling.ask_rps("a", 100.0, 60.0)
    assert not ceiling.allows(0, 1, 60.0)
    assert ceiling.ready_at(60.0) == pytest.approx(60.01)


def test_an_idle_minute_saves_up_a_quarter_second_only() -> None:
    ceiling = Ceiling()
    ceiling.ask_rps("a", 40.0, 0.0)
    ceiling.ask_rps("a", 40.0, 60.0)
    went = 0
    while ceiling.allows(0, 1, 60.0):
        ceiling.take(60.0)
        went += 1
    assert went == 40 * BURST_S


@given(
    rate=st.floats(0.2, 500),
    gaps=st.lists(st.floats(0, 0.3), min_size=1, max_size=200),
)
def test_over_any_run_no_more_go_than_the_rate_gives(rate: float, gaps: list[float]) -> None:
    ceiling = Ceiling()
    now, went = 0.0, 0
    ceiling.ask_rps("a", rate, now)
    ceiling.allows(0, 1, now)
    for gap in gaps:
        now += gap
        ceiling.ask_rps("a", rate, now)
        while ceiling.allows(0, 1, now):
            ceiling.take(now)
            went += 1
    assert went <= rate * now + 1e-6


@given(rate=st.floats(0.2, 500), now=st.floats(0, 1e6))
def test_at_the_moment_it_names_one_may_go(rate: float, now: float) -> None:
    ceiling = Ceiling()
    ceiling.ask_rps("a", rate, now)
    ready = ceiling.ready_at(now)
    if ready > now:
        assert ceiling.allows(0, 1, ready) or ceiling.ready_at(ready) - ready < 1e-6
