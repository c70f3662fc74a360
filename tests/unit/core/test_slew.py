"""How fast a limit may be used, with the numbers of the module's header computed by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.core.slew import COOL_S, RISE_S, STEP_S, Slew


def test_a_jump_is_spread_over_a_second() -> None:
    slew = Slew(20.0)
    assert slew.usable(100.0, 10.0) == 20.0
    assert slew.usable(100.0, 10.0 + RISE_S / 4) == pytest.approx(40.0)
    assert slew.next_step(10.25) == pytest.approx(10.25 + STEP_S)
    assert slew.usable(100.0, 11.0) == 100.0
    assert slew.next_step(11.0) is None


def test_a_small_rise_and_every_fall_count_at_once() -> None:
    slew = Slew(20.0)
    assert slew.usable(22.0, 1.0) == 22.0
    assert slew.usable(5.0, 2.0) == 5.0
    assert slew.next_step(2.0) is None


def test_a_fall_in_the_middle_of_a_rise_ends_it() -> None:
    slew = Slew(10.0)
    slew.usable(110.0, 0.0)
    assert slew.usable(50.0, 0.5) == pytest.approx(50.0)  # 60 was usable
    assert slew.usable(50.0, 0.6) == 50.0


def test_a_second_jump_begins_where_the_first_one_stands() -> None:
    slew = Slew(10.0)
    slew.usable(110.0, 0.0)
    assert slew.usable(210.0, 0.5) == pytest.approx(60.0)
    assert slew.usable(210.0, 1.0) == pytest.approx(135.0)


def test_after_a_restart_it_rises_from_what_is_safe() -> None:
    slew = Slew(200.0)
    slew.begin_at(16.0, 5.0)
    assert slew.usable(200.0, 5.0) == 16.0
    assert slew.usable(200.0, 5.5) == pytest.approx(108.0)
    few = Slew(8.0)
    few.begin_at(8.0, 5.0)
    assert few.usable(8.0, 5.0) == 8.0


def test_a_slot_that_failed_comes_back_when_an_answer_would_have_ended() -> None:
    slew = Slew(10.0)
    slew.failed(1, held_s=0.01, service_s=0.5, now=1.0)
    slew.failed(2, held_s=0.2, service_s=0.5, now=1.0)
    assert slew.cooling(1.0) == 3
    assert slew.next_step(1.0) == pytest.approx(1.49)
    assert slew.cooling(1.495) == 0  # all that failed together come back together
    assert slew.next_step(1.5) is None


def test_long_services_and_unknown_ones_are_bounded() -> None:
    slew = Slew(10.0)
    slew.failed(1, held_s=0.0, service_s=60.0, now=0.0)
    assert slew.cooling(COOL_S - 0.01) == 1
    assert slew.cooling(COOL_S) == 0
    slew.failed(1, held_s=0.0, service_s=None, now=5.0)
    assert slew.cooling(5.9) == 1
    assert slew.cooling(6.0) == 0


def test_an_answer_that_failed_after_its_time_holds_nothing_back() -> None:
    slew = Slew(10.0)
    slew.failed(1, held_s=3.0, service_s=2.0, now=0.0)
    assert slew.cooling(0.0) == 0


@given(
    st.lists(
        st.tuples(st.floats(0.0, 3.0), st.floats(1.0, 1000.0), st.booleans(), st.floats(0.0, 5.0)),
        max_size=60,
    )
)
def test_never_more_than_the_limit_and_all_of_it_in_the_end(
    steps: list[tuple[float, float, bool, float]],
) -> None:
    slew, now, limit = Slew(16.0), 0.0, 16.0
    for pause, limit, fails, held in steps:
        now += pause
        if fails:
            slew.failed(1, held, 1.0, now)
        assert 1.0 <= slew.usable(limit, now) <= limit + 1e-9
        assert slew.cooling(now) >= 0
    slew.usable(limit, now)
    assert slew.usable(limit, now + RISE_S) == pytest.approx(limit)
    assert slew.cooling(now + COOL_S) == 0
