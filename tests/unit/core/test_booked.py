"""Bookings by fair turns of the tenants: no slot is lost, and nobody waits for a flood."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from policy_server.core.booked import MAX_LINES, Booked


def model_serve(lines: dict[str, float], slots: float) -> None:
    """The naive one: the shortest line is filled from all alike, again and again."""
    while lines and slots > 1e-12:
        part = min(*lines.values(), slots / len(lines))
        slots -= part * len(lines)
        for tenant in list(lines):
            lines[tenant] -= part
            if lines[tenant] <= 1e-9:
                del lines[tenant]


@example([("b", 3.0, 1.9), ("a", 1.9, 1.9), ("b", 2.0, 1.9)])
@given(
    st.lists(
        st.tuples(st.sampled_from("abcde"), st.floats(0.1, 5.0), st.floats(0.0, 6.0)), max_size=60
    )
)
def test_it_is_what_fair_turns_would_leave(steps: list[tuple[str, float, float]]) -> None:
    booked, lines = Booked(), dict[str, float]()
    for tenant, slots, served in steps:
        booked.add(tenant, slots)
        lines[tenant] = lines.get(tenant, 0.0) + slots
        booked.serve(served)
        model_serve(lines, served)
        for who in "abcdef":
            own, whole = lines.get(who, 0.0), sum(lines.values())
            others = len(lines) - (who in lines)
            turns = own + min(whole - own, (own + 1.0) * others)
            assert booked.ahead(who) == pytest.approx(turns, abs=1e-6)


def test_nobody_has_more_ahead_than_all_that_is_booked() -> None:
    booked = Booked()
    for number in range(1_000):
        booked.add(f"t{number}", 0.5)
    assert booked.ahead("new") == pytest.approx(500.0)


def test_it_is_empty_when_all_are_served() -> None:
    booked = Booked()
    booked.add("a", 3.0)
    booked.add("b", 1.0)
    booked.serve(4.0)
    assert len(booked) == 0
    assert booked.ahead("a") == 0.0


def test_a_million_tenants_share_a_bounded_number_of_lines() -> None:
    booked = Booked()
    for number in range(3 * MAX_LINES):
        booked.add(f"t{number}", 0.1)
    assert len(booked) <= MAX_LINES + 1
    assert booked.ahead("one more") == pytest.approx(0.3 * MAX_LINES)
