"""Replicas come and go: what is held, what the limit becomes, how a newcomer is spared."""

from __future__ import annotations

import pytest

from policy_server.core.ramp import RAMP_S, START, STEP_S, Ramp


def told(*counts: tuple[int, float]) -> Ramp:
    ramp = Ramp(wait_s=300.0)
    for ready, at in counts:
        ramp.tell(ready, at)
    return ramp


def test_before_anything_is_told_no_replica_counts_as_ready() -> None:
    assert Ramp(wait_s=300.0).closed
    assert not Ramp().closed
    assert Ramp().share(0.0) == 1.0


def test_a_source_that_cannot_tell_closes_nothing() -> None:
    ramp = Ramp(wait_s=300.0)
    assert ramp.tell(None, 1.0) == 1.0
    assert not ramp.closed
    assert ramp.share(1.0) == 1.0


def test_the_first_number_after_a_start_is_no_change() -> None:
    ramp = Ramp()
    assert ramp.tell(3, 1.0) == 1.0
    assert ramp.share(1.0) == 1.0


def test_more_replicas_raise_the_limit_at_once_and_the_usable_part_slowly() -> None:
    ramp = told((1, 0.0))
    assert ramp.tell(4, 100.0) == 4.0
    assert ramp.share(100.0) == pytest.approx((1 + 3 * START) / 4)
    halfway = (1 + 3 * (START + (1 - START) / 2)) / 4
    assert ramp.share(100.0 + RAMP_S / 2) == pytest.approx(halfway)
    assert ramp.share(100.0 + RAMP_S) == 1.0


def test_fewer_replicas_cut_it_at_once() -> None:
    ramp = told((4, 0.0))
    assert ramp.tell(1, 100.0) == 0.25
    assert ramp.share(100.0) == 1.0


def test_nobody_left_keeps_what_was_learned_for_the_next_one() -> None:
    ramp = told((2, 0.0))
    assert ramp.tell(0, 50.0) == 1.0
    assert ramp.closed
    assert ramp.tell(1, 90.0) == 0.5
    assert ramp.share(90.0) == START


def test_a_limit_that_has_learned_nothing_gets_no_ramp_on_top_of_its_slow_start() -> None:
    ramp = told((0, 0.0))
    assert ramp.tell(1, 30.0) == 1.0
    assert ramp.share(30.0) == 1.0


def test_a_rolling_update_counts_its_newcomers_as_new() -> None:
    ramp = told((2, 0.0), (3, 100.0), (2, 101.0))
    assert ramp.share(101.0) < 0.7


def test_it_is_looked_at_again_only_while_something_ramps() -> None:
    ramp = told((1, 0.0), (2, 100.0))
    assert ramp.next_step(101.0) == 101.0 + STEP_S
    assert ramp.next_step(100.0 + RAMP_S) == 100.0 + RAMP_S
