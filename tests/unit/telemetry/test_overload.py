"""Two of three witnesses: late timers, requests that are old on arrival, a busy thread."""

from __future__ import annotations

import pytest

from policy_server.telemetry.overload import (
    FLOOR_S,
    GRACE_S,
    LATE_S,
    LOOK_S,
    OLD_S,
    OverloadGuard,
)

EVERY_S, PER_READING = 0.02, 4
CALM, LATE = 0.001, LATE_S + 0.01


class Guarded:
    """A guard on a clock that the test moves; `cores` of CPU go to the loop's thread."""

    def __init__(self) -> None:
        self.now, self.cpu_s = 1000.0, 5.0
        self.turns: list[bool] = []
        self.late: list[float] = []
        self.guard = OverloadGuard(self.now, lambda: self.cpu_s, self.turns.append, self._note)
        self.run(GRACE_S + LOOK_S)

    def _note(self, seconds: float) -> None:
        self.late.append(seconds)

    def run(
        self,
        seconds: float = 2 * LOOK_S,
        lag_s: float = CALM,
        cores: float = 0.1,
        age_s: float = 0.0,
    ) -> None:
        """Time goes by; with every reading some requests arrive."""
        end = self.now + seconds
        while self.now < end:
            self.now += EVERY_S + lag_s
            self.cpu_s += cores * (EVERY_S + lag_s)
            for _ in range(PER_READING):
                self.guard.arrived(age_s)
            self.guard.reading(lag_s, self.now)


@pytest.fixture
def guarded() -> Guarded:
    return Guarded()


@pytest.mark.parametrize(
    ("lag_s", "cores", "age_s"),
    [(LATE, 0.1, 0.0), (CALM, 1.0, 0.0), (CALM, 0.1, 5.0)],
    ids=["noisy neighbours", "hard work in time", "bodies that come slowly"],
)
def test_one_witness_is_none(guarded: Guarded, lag_s: float, cores: float, age_s: float) -> None:
    guarded.run(5.0, lag_s, cores, age_s)
    assert not guarded.turns


@pytest.mark.parametrize(
    ("lag_s", "cores", "age_s"),
    [(LATE, 1.0, 0.0), (CALM, 1.0, 0.15), (LATE, 0.1, 0.15)],
    ids=["late and busy", "a queue before the gate", "starved of CPU"],
)
def test_two_agree_within_two_looks(
    guarded: Guarded, lag_s: float, cores: float, age_s: float
) -> None:
    guarded.run(3 * LOOK_S, lag_s, cores, age_s)
    assert guarded.turns == [True]
    assert guarded.guard.lagging


def test_one_late_reading_is_told_but_refuses_nobody(guarded: Guarded) -> None:
    guarded.run(EVERY_S, 0.4, 1.0)
    guarded.run(2.0)
    assert guarded.late == [0.4]
    assert not guarded.turns


def test_it_ends_after_half_a_second_of_calm(guarded: Guarded) -> None:
    guarded.run(1.0, LATE, 1.0)
    guarded.run(LOOK_S + EVERY_S)
    assert guarded.guard.lagging
    guarded.run(2 * LOOK_S)
    assert guarded.turns == [True, False]


def test_nobody_is_refused_in_the_first_seconds() -> None:
    guard = OverloadGuard(0.0, lambda: 0.0, pytest.fail)
    now = 0.0
    while now < GRACE_S - LOOK_S:
        now += EVERY_S + LATE
        guard.arrived(9.0)
        guard.reading(LATE, now)
    assert not guard.lagging


def test_the_age_counts_above_what_it_always_is(guarded: Guarded) -> None:
    guarded.run(2 * FLOOR_S + 1.0, age_s=-3.0)  # Envoy's clock is three seconds ahead
    guarded.run(2.0, cores=1.0, age_s=-3.0 + 0.9 * OLD_S)
    assert not guarded.turns
    guarded.run(2 * LOOK_S, cores=1.0, age_s=-3.0 + 1.1 * OLD_S)
    assert guarded.turns == [True]


def test_even_the_youngest_must_be_old(guarded: Guarded) -> None:
    for _ in range(20):
        guarded.guard.arrived(4.0)
        guarded.run(LOOK_S / 2, cores=1.0, age_s=2.0)
        guarded.guard.arrived(0.01)
        guarded.run(LOOK_S / 2, cores=1.0, age_s=2.0)
    assert not guarded.turns
