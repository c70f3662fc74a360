"""Deadlines of a former process, judged by the wall clock."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.core.request import Priority, Request
from policy_server.journal.port import Held, Place, RequestContext
from policy_server.journal.restore import Moment, revive, revive_leases


def place(uid: str, arrived_wall: float, budget_s: float = 45.0) -> Place:
    arrived = 9_000_000.0  # of another boot
    return Place(
        Request(
            uid=uid,
            pool="chat",
            priority=Priority.P2,
            arrived=arrived,
            deadline=arrived + budget_s,
            arrived_wall=arrived_wall,
        ),
        RequestContext(),
    )


def test_age_and_deadline_carry_over_to_the_new_clock() -> None:
    (alive,), dead = revive([place("a", arrived_wall=1000.0)], Moment(7.0, 1010.0))
    assert dead == []
    assert alive.request.arrived == -3.0
    assert alive.request.deadline == 42.0
    assert alive.request.budget_s == 45.0


def test_the_dead_are_told_apart_and_the_order_stays() -> None:
    places = [place("old", 900.0), place("b", 1009.0), place("edge", 965.0), place("a", 1000.0)]
    alive, dead = revive(places, Moment(7.0, 1010.0))
    assert [p.request.uid for p in alive] == ["b", "a"]
    assert dead == [places[0], places[2]]


def test_a_clock_set_back_makes_nobody_older_or_immortal() -> None:
    (alive,), _ = revive([place("a", arrived_wall=5000.0)], Moment(7.0, 1010.0))
    assert (alive.request.arrived, alive.request.deadline) == (7.0, 52.0)


@pytest.mark.parametrize("wall_now", [0.0, 1000.0, 9e9])
def test_on_the_same_boot_the_wall_clock_does_not_matter(wall_now: float) -> None:
    """Set back, or forward by years, while nobody listened."""
    waited = replace(place("a", arrived_wall=1000.0), boot="this one")
    now = waited.request.arrived + 10.0
    (alive,), dead = revive([waited], Moment(now, wall_now, "this one"))
    assert (alive, dead) == (waited, [])
    assert revive([waited], Moment(now + 40.0, wall_now, "this one")) == ([], [waited])


def test_another_boot_or_none_goes_by_the_wall_clock() -> None:
    waited = replace(place("a", arrived_wall=1000.0), boot="the last one")
    for boot in ("this one", ""):
        (alive,), _ = revive([waited], Moment(7.0, 1010.0, boot))
        assert alive.request.arrived == -3.0


def test_slots_are_taken_back_whatever_the_boot() -> None:
    """The journal may move to another machine; the Envoys that carry the answers go on."""
    here = Held(place("a", arrived_wall=1000.0).request, 9_000_003.0, "this one")
    there = replace(here, boot="the last one")
    unknown = Held(place("a", arrived_wall=0.0).request, 5.0, "the last one")
    at = Moment(9_000_010.0, 1010.0, "this one")
    back = revive_leases([here, there, unknown], at)
    assert [held.granted for held in back] == [9_000_003.0, 9_000_003.0, at.now]
    (late,) = revive_leases([here], Moment(50.0, 1010.0, "this one"))
    assert late.granted == 43.0, "granted in the future of this clock"
    (early,) = revive_leases([there], Moment(50.0, 900.0, "this one"))
    assert early.granted == 50.0, "by a clock that was set back"


@given(
    walls=st.lists(st.floats(min_value=0, max_value=2e9)),
    now=st.floats(min_value=0, max_value=1e7),
    wall_now=st.floats(min_value=0, max_value=2e9),
)
def test_nobody_is_lost_and_nobody_outlives_its_budget(
    walls: list[float], now: float, wall_now: float
) -> None:
    places = [place(str(n), wall) for n, wall in enumerate(walls)]
    alive, dead = revive(places, Moment(now, wall_now))
    assert len(alive) + len(dead) == len(places)
    for revived in alive:
        assert now < revived.request.deadline <= now + 45.0 + 1e-6
        assert revived.request.arrived <= now
