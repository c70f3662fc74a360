"""AIMD: a tenth down above the target, one seat up when the limit was reached."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from policy_server.core.limit.aimd import Aimd
from policy_server.core.limit.base import Reason, WindowSample
from policy_server.core.params import LimitParams


def window(*, bound: bool = True, events: int = 10, **signals: Any) -> WindowSample:
    return WindowSample(1.0, 2.0, events, 20, 20, bound, **signals)


def limit(**params: Any) -> Aimd:
    return Aimd(LimitParams("aimd", initial=20.0, **params))


def test_up_by_one_when_reached_and_held_otherwise() -> None:
    it = limit()
    assert it.on_window(window()).limit == 21.0
    assert it.on_window(window(bound=False)).reason is Reason.HOLD
    assert it.on_window(window(events=0)).reason is Reason.HOLD
    assert it.current == 21.0


@pytest.mark.parametrize(
    ("signals", "reason"),
    [
        ({"tpot_s": 0.041, "tpot_unloaded_s": 0.02}, Reason.TPOT),
        ({"error_share": 0.11}, Reason.UPSTREAM_ERROR),
    ],
)
def test_down_by_a_tenth_above_twice_the_unloaded_value_or_on_errors(
    signals: dict[str, float], reason: Reason
) -> None:
    change = limit().on_window(window(**signals))
    assert (change.limit, change.reason) == (18.0, reason)


@pytest.mark.parametrize(
    "signals",
    [
        {"tpot_s": 0.04, "tpot_unloaded_s": 0.02},
        {"error_share": 0.1},
        {"tpot_s": 0.04, "tpot_unloaded_s": 0.02, "latency_s": 99.0},
    ],
)
def test_not_down_at_the_target(signals: dict[str, float]) -> None:
    assert limit().on_window(window(**signals)).reason is Reason.GROW


def test_an_objective_replaces_the_guess() -> None:
    slow = window(tpot_s=0.031, tpot_unloaded_s=0.02)
    assert limit(slo_tpot_s=0.03).on_window(slow).reason is Reason.TPOT
    late = window(base_s=1.0, delay_s=4.5)
    assert limit(slo_ttft_s=6.0).on_window(late).reason is Reason.GROW
    assert limit(slo_ttft_s=5.0).on_window(late).reason is Reason.DELAY


def test_a_whole_answer_takes_longer_than_its_first_token_may() -> None:
    slow = window(latency_s=30.0, base_s=0.2, delay_s=0.1)
    assert limit(slo_ttft_s=1.0).on_window(slow).reason is Reason.GROW


def test_without_tokens_twice_the_least_mean_time_is_the_target() -> None:
    it = limit()
    for mean in (3.0, *[1.0] * 30):
        it.on_window(window(latency_s=mean, latency_min_s=0.1))
    assert it.on_window(window(latency_s=1.9, latency_min_s=0.1)).reason is Reason.GROW
    assert it.on_window(window(latency_s=3.0, latency_min_s=2.9)).reason is Reason.DELAY


def test_a_queue_that_delays_all_alike_is_cut_for_however_long_it_lasts() -> None:
    it = limit()
    it.on_window(window(latency_s=1.0, latency_min_s=1.0))
    for second in range(0, 20_000, 2):
        queued = replace(window(latency_s=60.0, latency_min_s=40.0), now=float(second))
        assert it.on_window(queued).reason is Reason.DELAY
    assert it.current == 1.0


def test_a_restart_forgets_neither_the_unloaded_time_nor_what_proved_it() -> None:
    it = limit()
    it.on_window(window(latency_s=1.0))
    for day in range(30):
        for second in range(1000):
            at = day * 1e5 + 10.0 * second
            it.on_window(replace(window(latency_s=60.0), now=at))
        saved, it = it.state(), limit()
        it.restore(saved)
    assert 1.0 <= it.state()["latency"] <= 1.1


def test_within_its_bounds() -> None:
    it = limit(minimum=15.0, maximum=21.0)
    for _ in range(5):
        it.on_window(window())
    assert it.current == 21.0
    for _ in range(9):
        it.on_window(window(error_share=1.0))
    assert it.current == 15.0
