"""An overload ages with the refusals of whoever is in it."""

from __future__ import annotations

from policy_server.core.room.overload import MAX_TENANTS, PAUSE_S, Overload, Overloads


def test_it_ages_until_a_pause() -> None:
    overload = Overload()
    assert overload.age_s(10.0) == 0.0
    for second in range(10, 20):
        overload.note(float(second))
    assert overload.age_s(19.0) == 9.0
    assert overload.age_s(19.1 + PAUSE_S) == 0.0
    overload.note(20.0 + PAUSE_S)
    assert overload.age_s(20.0 + PAUSE_S) == 0.0


def test_a_flood_ages_alone() -> None:
    class_ = Overloads()
    for second in range(100):
        class_.note("flood", float(second))
    assert class_.age_s("flood", 99.0) == 99.0
    assert class_.age_s("other", 99.0) == 0.0


def test_two_that_take_turns_age_all() -> None:
    class_ = Overloads()
    for second in range(100):
        class_.note("ab"[second % 2], float(second))
    assert class_.age_s("other", 99.0) > 90.0


def test_a_million_tenants_take_bounded_memory() -> None:
    class_ = Overloads()
    for number in range(2 * MAX_TENANTS):
        class_.note(f"t{number}", 0.0)
    assert len(class_) == MAX_TENANTS
