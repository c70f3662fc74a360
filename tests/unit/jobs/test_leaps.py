"""Lifetimes when the wall clock leaps."""

from __future__ import annotations

import pytest

from policy_server.jobs.leaps import LifeClock

DAY = 86_400.0


class Clocks:
    """A wall clock that can be set, and one that can't."""

    def __init__(self) -> None:
        self.wall, self.at = 1_700_000_000.0, 50.0
        self.life = LifeClock(lambda: self.wall, lambda: self.at)

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.at += seconds

    def lived(self, since: float, lifetime_s: float = DAY) -> float:
        return self.life.now(lifetime_s) - since


def test_without_a_leap_it_is_the_wall_clock() -> None:
    clocks = Clocks()
    for _ in range(100):
        clocks.passes(1.0)
        clocks.wall += 0.4  # slewed
        assert clocks.life.now(DAY) == clocks.wall


@pytest.mark.parametrize("leap", [10.0, DAY, 50 * 365 * DAY])
def test_a_leap_forward_takes_nothing_from_what_lives_already(leap: float) -> None:
    clocks = Clocks()
    born = clocks.wall
    clocks.passes(100.0)
    clocks.wall += leap
    assert clocks.lived(born) == pytest.approx(100.0)
    clocks.passes(DAY - 101.0)
    assert clocks.lived(born) < DAY
    clocks.passes(2.0)
    assert clocks.lived(born) >= DAY


def test_what_is_born_after_a_leap_lives_as_long_as_it_was_promised() -> None:
    clocks = Clocks()
    clocks.wall += DAY
    clocks.life.now(DAY)
    clocks.passes(1.0)
    born = clocks.wall
    clocks.passes(DAY - 1.0)
    assert clocks.lived(born) < DAY
    clocks.passes(1.0)
    assert clocks.lived(born) == pytest.approx(DAY)


def test_a_short_life_forgets_a_leap_sooner() -> None:
    clocks = Clocks()
    clocks.wall += DAY
    assert clocks.life.now(60.0) == clocks.wall - DAY
    clocks.passes(61.0)
    assert clocks.life.now(60.0) == clocks.wall
    assert clocks.life.now(DAY) == clocks.wall - DAY


def test_a_leap_back_takes_back_a_leap_forward() -> None:
    clocks = Clocks()
    for leap in (10.0, DAY, -DAY - 5.0):
        clocks.wall += leap
        clocks.passes(1.0)
        clocks.life.now(DAY)
    assert clocks.life.now(DAY) == pytest.approx(clocks.wall - 5.0)
    clocks.wall -= DAY
    assert clocks.life.now(DAY) == clocks.wall
