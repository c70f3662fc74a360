"""Gradient2, by hand-computed steps; its known drift upwards is why it is not the default."""

from __future__ import annotations

from typing import Any

import pytest

from policy_server.core.limit.base import Reason, WindowSample
from policy_server.core.limit.gradient import Gradient
from policy_server.core.params import LimitParams


def window(peak: int = 100, **signals: Any) -> WindowSample:
    return WindowSample(1.0, 2.0, 10, peak, peak, True, **signals)


def limit(initial: float = 100.0, **params: Any) -> Gradient:
    return Gradient(LimitParams("gradient", initial=initial, **params))


def test_at_a_steady_latency_it_grows_by_a_fifth_of_a_root() -> None:
    change = limit().on_window(window(tpot_s=0.02))
    assert change.reason is Reason.GROW
    assert change.limit == pytest.approx(100.0 + 0.2 * 10.0)


def test_four_times_slower_it_shrinks() -> None:
    it = limit()
    it.on_window(window(tpot_s=0.02))
    long = 0.02 + 2.0 / 601 * 0.06  # the long average moves by 2/601 of the distance
    goal = max(1.5 * long / 0.08, 0.5) * 102.0 + 102.0**0.5
    change = it.on_window(window(tpot_s=0.08))
    assert change.reason is Reason.DELAY
    assert change.limit == pytest.approx(0.8 * 102.0 + 0.2 * goal)


def test_the_latency_stands_in_where_there_are_no_tokens() -> None:
    assert limit().on_window(window(latency_s=1.0)).reason is Reason.GROW


@pytest.mark.parametrize("signals", [{}, {"tpot_s": 0.0}, {"latency_s": 0.0}])
def test_without_a_measurement_it_holds(signals: dict[str, float]) -> None:
    change = limit().on_window(window(**signals))
    assert (change.limit, change.reason) == (100.0, Reason.HOLD)


def test_a_limit_that_was_not_half_used_says_nothing() -> None:
    assert limit().on_window(window(peak=49, tpot_s=0.02)).reason is Reason.HOLD
    assert limit().on_window(window(peak=50, tpot_s=0.02)).reason is Reason.GROW


def test_a_long_average_far_above_comes_down_faster() -> None:
    it = limit()
    it.on_window(window(tpot_s=1.0))
    it.on_window(window(tpot_s=0.1))
    assert it.state()["long"] == pytest.approx(0.95 * (1.0 - 2.0 / 601 * 0.9))


def test_what_is_saved_comes_back() -> None:
    it = limit()
    it.on_window(window(tpot_s=0.02))
    again = limit()
    again.restore(it.state())
    assert again.current == pytest.approx(51.0)
    assert again.state()["long"] == 0.02
