"""Little-form Vegas, rule by rule, with the numbers of algorithms.md §2 computed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.core.limit.base import Change, Reason, WindowSample
from policy_server.core.limit.vegas import ESCAPE_WINDOWS, TPOT_GUARD, TPOT_GUARD_SLO, Vegas
from policy_server.core.params import LimitParams


def limit(initial: float = 100.0, **params: Any) -> Vegas:
    return Vegas(LimitParams(initial=initial, **params))


def window(peak: int = 100, *, now: float = 2.0, bound: bool = True, **more: Any) -> WindowSample:
    """A window whose limit was reached by `peak` seats and in which nothing was wrong."""
    signals: dict[str, Any] = {"events": 20, "delay_s": 0.0, "engine_queue": 0.0} | more
    return WindowSample(
        now=now, duration_s=2.0, inflight=peak, peak_inflight=peak, bound=bound, **signals
    )


def grown(initial: float = 100.0, **params: Any) -> Vegas:
    """A limit that was cut once, so that it grows by steps; its valid value is `initial`."""
    it = limit(initial, **params)
    it.restore({"limit": 2 * initial, "valid": 2 * initial, "w_max": initial})
    it.on_window(window(int(initial), delay_s=0.25))  # proves the limit without moving it
    assert it.current == initial
    return it


# -- cuts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signals", "expected", "reason"),
    [
        ({"engine_queue": 28.0}, 90.0, Reason.QUEUE),  # over = (28 − 8)/100
        ({"engine_queue": 58.0}, 75.0, Reason.QUEUE),  # over = (58 − 8)/100
        ({"engine_queue": 5_000.0}, 70.0, Reason.QUEUE),  # one window never costs more
        ({"delay_s": 0.45}, 92.5, Reason.DELAY),  # over = .3·(.45 − .3)/.3
        ({"delay_s": 30.0}, 85.0, Reason.DELAY),  # over ≤ .3
        ({"error_share": 0.05}, 92.5, Reason.UPSTREAM_ERROR),  # half of a tenth
        ({"error_share": 1.0}, 85.0, Reason.UPSTREAM_ERROR),
        ({"saturated": True}, 85.0, Reason.QUEUE),
    ],
)
def test_above_its_bounds_it_cuts_by_half_of_the_excess(
    signals: dict[str, Any], expected: float, reason: Reason
) -> None:
    change = limit().on_window(window(**signals))
    assert change.limit == pytest.approx(expected)
    assert change.reason is reason


def test_the_time_per_token_may_reach_its_guard_and_no_more() -> None:
    guard = (1 + TPOT_GUARD) * 0.02
    at = limit().on_window(window(tpot_s=guard, tpot_unloaded_s=0.02))
    assert at.reason is Reason.HOLD
    it = limit()
    slow = window(tpot_s=1.2 * guard, tpot_unloaded_s=0.02)
    assert it.on_window(slow).reason is Reason.HOLD  # once may be a hiccup
    above = it.on_window(slow)
    assert (above.limit, above.reason) == (pytest.approx(90.0), Reason.TPOT)


def test_an_objective_on_the_time_per_token_binds_first() -> None:
    it = limit(slo_tpot_s=0.05)
    change = it.on_window(window(tpot_s=0.05, tpot_p90_s=0.06, tpot_unloaded_s=0.02))
    assert (change.limit, change.reason) == (pytest.approx(90.0), Reason.SLO)
    loose = limit(slo_tpot_s=1.0)
    bound = (1 + TPOT_GUARD_SLO) * 0.02
    slow = window(tpot_s=1.2 * bound, tpot_p90_s=0.2, tpot_unloaded_s=0.02)
    loose.on_window(slow)
    assert loose.on_window(slow).reason is Reason.TPOT


def test_an_objective_on_the_first_token_bounds_the_delay() -> None:
    assert limit(slo_ttft_s=1.0).on_window(window(delay_s=0.3)).limit == pytest.approx(85.0)
    assert limit(slo_ttft_s=60.0).on_window(window(delay_s=0.5)).reason is Reason.HOLD


def test_the_worst_signal_decides() -> None:
    change = limit().on_window(window(delay_s=0.45, engine_queue=48.0))
    assert (change.limit, change.reason) == (pytest.approx(80.0), Reason.QUEUE)


def test_while_most_of_it_only_waits_the_second_cut_is_by_half() -> None:
    it = limit()
    it.on_window(window(100, engine_queue=500.0))
    assert it.on_window(window(72, engine_queue=500.0)).limit == pytest.approx(35.0)


def test_it_does_not_cut_again_while_the_last_cut_drains() -> None:
    it = limit()
    it.on_window(window(100, engine_queue=500.0))
    assert it.current == 70.0
    draining = it.on_window(window(76, engine_queue=500.0))  # above 1.02·70 + 3.5
    assert (draining.limit, draining.reason) == (70.0, Reason.HOLD)
    assert it.on_window(window(74, engine_queue=500.0)).limit == pytest.approx(35.0)


def test_a_limit_that_was_not_reached_is_not_cut_for_a_queue() -> None:
    assert limit().on_window(window(69, engine_queue=500.0)).limit == 100.0
    assert limit().on_window(window(70, engine_queue=500.0)).limit == 70.0
    assert limit().on_window(window(10, error_share=1.0)).reason is Reason.UPSTREAM_ERROR


def test_failing_upstreams_are_told_as_long_as_they_fail_also_at_the_floor() -> None:
    """An alert goes by the reason, not by the limit, which soon has nowhere to go."""
    it = limit()
    told = [it.on_window(window(max(1, int(it.current)), error_share=1.0)) for _ in range(200)]
    assert {change.reason for change in told} == {Reason.UPSTREAM_ERROR}
    assert it.current == 1.0


def test_while_nobody_waits_it_takes_two_bad_windows_in_a_row() -> None:
    it = limit()
    bad = {"delay_s": 30.0, "bound": False}
    assert it.on_window(window(**bad)).reason is Reason.HOLD
    assert it.on_window(window(bound=False)).reason is Reason.HOLD  # a good one between
    assert it.on_window(window(**bad)).reason is Reason.HOLD
    assert it.on_window(window(**bad)) == Change(85.0, Reason.DELAY)


def test_a_delay_within_the_scatter_of_its_samples_takes_two_windows() -> None:
    """Five of nine behind two long prompts are no standing queue; nine of nine are."""
    thin = {"delay_s": 0.45, "delay_low_s": 0.02, "engine_queue": 20.0, "queue_estimated": True}
    it = limit()
    assert it.on_window(window(first_token_rate=40.0, **thin)).reason is Reason.HOLD
    assert it.on_window(window(first_token_rate=40.0, **thin)).reason is not Reason.HOLD
    sure = limit().on_window(window(first_token_rate=40.0, **thin | {"delay_low_s": 0.31}))
    assert sure.reason is not Reason.HOLD
    by_queue = limit().on_window(window(first_token_rate=40.0, **thin | {"delay_low_s": 0.25}))
    assert by_queue.reason is not Reason.HOLD  # 40/s · .25 s = 10 > β


def test_while_nobody_waits_it_climbs_back_to_what_bursts_have_cut() -> None:
    it = grown()
    for now in (2.0, 4.0, 6.0):
        it.on_window(window(int(it.current), now=now, delay_s=30.0))
    cut = it.current
    assert cut == pytest.approx(100.0 * 0.85**3)
    calm = [it.on_window(window(20, now=10.0 + 2 * i, bound=False)) for i in range(20)]
    assert calm[0] == Change(pytest.approx(cut + cut**0.5 / 4), Reason.PROBE)  # type: ignore[arg-type]
    assert calm[-1] == Change(85.0, Reason.HOLD)
    # After ten minutes nothing is left to climb back to.
    it.on_window(window(int(it.current), now=100.0, delay_s=30.0))
    assert it.on_window(window(50, now=800.0, bound=False)).reason is Reason.HOLD


def test_with_half_of_the_replicas_it_climbs_back_to_half_of_what_was_cut() -> None:
    it = grown()
    for now in (2.0, 4.0, 6.0):
        it.on_window(window(int(it.current), now=now, delay_s=30.0))
    it.rescale(0.5)
    calm = [it.on_window(window(40, now=10.0 + 2 * i, bound=False)) for i in range(20)]
    assert calm[-1] == Change(42.5, Reason.HOLD)


def test_a_lasting_overload_is_remembered_for_ten_minutes_not_for_ever() -> None:
    it = grown()
    for second in range(2, 20_000, 4):
        it.on_window(window(int(it.current) + 1, now=float(second), delay_s=0.31))
        it.on_window(window(int(it.current) + 1, now=second + 2.0))
    assert len(it._cuts) <= 151


def test_many_replicas_at_once_do_not_cost_what_was_proven() -> None:
    it = grown()
    it.rescale(8.0)
    assert it.on_window(window(100, now=4.0, bound=False)).limit == pytest.approx(800.0)


def test_a_tiny_limit_is_reached_when_one_more_seat_would_not_fit() -> None:
    it = limit(3.0)
    assert it.on_window(window(1, engine_queue=2.0, delay_s=2.0)).reason is Reason.HOLD
    assert it.on_window(window(2, engine_queue=2.0, delay_s=2.0)).reason is Reason.QUEUE


def test_it_rests_longer_the_more_often_it_was_cut_at_one_level() -> None:
    it = grown()
    rests = []
    for _ in range(5):
        while it.current < 100.0:
            it.on_window(window(int(it.current) + 1))
        assert it.on_window(window(int(it.current), engine_queue=24.0)).reason is Reason.QUEUE
        before, rested = it.current, 0
        while it.on_window(window(int(it.current) + 1)).limit == before:
            rested += 1
        rests.append(rested)
    assert rests == [1, 2, 4, 8, 8]


def test_the_cuts_of_one_descent_are_one_hit() -> None:
    """Slots that vanish are cut for window after window; then the rest is that of a first cut."""
    it = grown()
    for number in range(4):
        queued = window(int(it.current), now=2.0 * number, engine_queue=0.2 * it.current)
        assert it.on_window(queued).reason is Reason.QUEUE
    before, rested = it.current, 0
    while it.on_window(window(int(it.current) + 1, now=10.0)).limit == before:
        rested += 1
    assert rested == 1


def test_it_rests_longer_the_worse_the_last_cut_was() -> None:
    """Where nothing warns of the edge (a KV cache that fills), each try costs everyone."""
    for delay_s, windows in ((0.45, 2), (0.9, 3), (9.0, 4)):
        it = grown()
        it.on_window(window(100, delay_s=delay_s))
        before, rested = it.current, 0
        while it.on_window(window(int(it.current) + 1)).limit == before:
            rested += 1
        assert rested == windows


def test_early_samples_and_then_silence_do_not_raise_it() -> None:
    stalled = replace(window(100), duration_s=10.0, quiet_s=9.0)
    assert limit().on_window(stalled).reason is Reason.HOLD
    assert limit().on_window(replace(stalled, quiet_s=1.0)).reason is Reason.GROW


def test_an_estimated_queue_that_hardly_delays_is_none() -> None:
    few = {"engine_queue": 50.0, "delay_s": 0.05}
    assert limit().on_window(window(100, queue_estimated=True, **few)).reason is Reason.GROW
    assert limit().on_window(window(100, **few)).reason is Reason.QUEUE  # the engine's own word


def test_a_tiny_engine_has_a_tiny_queue() -> None:
    # L = 8: β = .5, so a single answer that stands in line is an overload
    assert limit(8.0).on_window(window(8, engine_queue=1.0)).reason is Reason.QUEUE
    assert limit(8.0).on_window(window(8, engine_queue=0.5)).reason is Reason.HOLD


# -- growth ---------------------------------------------------------------------------------------


def test_before_the_first_cut_it_grows_by_two_fifths() -> None:
    change = limit().on_window(window())
    assert (change.limit, change.reason) == (pytest.approx(140.0), Reason.GROW)


def test_the_headroom_of_the_time_per_token_bounds_the_growth() -> None:
    # (.9·.09 − .02)/(.07 − .02) = 1.22
    t0, t90 = 0.02, 0.07
    factor = (0.9 * (1 + TPOT_GUARD) * t0 - t0) / (t90 - t0)
    it = limit()
    change = it.on_window(window(tpot_s=0.06, tpot_p90_s=t90, tpot_unloaded_s=t0))
    assert 1.04 < factor < 1.4
    assert change.limit == pytest.approx(100.0 * factor)


def test_after_a_cut_it_grows_by_a_quarter_of_a_root() -> None:
    it = grown()
    assert it.on_window(window()).limit == pytest.approx(100.0 + 10.0 / 4)
    assert grown(9.0).on_window(window(9)).limit == pytest.approx(10.0)


def test_far_below_its_old_maximum_it_gains_speed() -> None:
    it = grown()
    it.restore({"limit": 200.0, "valid": 100.0, "w_max": 300.0})
    it.on_window(window(50, delay_s=0.25))
    steps = []
    for _ in range(4):
        before = it.current
        steps.append(it.on_window(window(int(before))).limit / before)
    assert steps == sorted(steps)
    assert it.current > 60.0


@pytest.mark.parametrize(
    "signals",
    [
        {"engine_queue": 3.0},  # α = .03·100
        {"delay_s": 0.18},  # .6·d_max
        {"events": 0},
        {"tpot_s": 0.93 * (1 + TPOT_GUARD) * 0.02, "tpot_unloaded_s": 0.02},
        {"bound": False},
    ],
)
def test_between_its_bounds_or_without_evidence_it_rests(signals: dict[str, Any]) -> None:
    change = limit().on_window(window(**signals))
    assert (change.limit, change.reason) == (100.0, Reason.HOLD)


def test_it_rests_near_an_objective() -> None:
    it = limit(slo_tpot_s=0.05)
    assert it.on_window(window(tpot_p90_s=0.0466)).reason is Reason.HOLD
    assert it.on_window(window(tpot_p90_s=0.0464)).reason is Reason.GROW


# -- bounds ---------------------------------------------------------------------------------------


def test_it_is_not_above_three_times_what_was_used_in_the_last_minute() -> None:
    it = limit(400.0)
    change = it.on_window(window(50, bound=False))
    assert (change.limit, change.reason) == (150.0, Reason.CLAMP)
    it.on_window(window(1, bound=False, now=50.0))
    assert it.current == 150.0
    it.on_window(window(1, bound=False, now=63.0))
    assert it.current == 16.0


def test_a_lull_leaves_most_of_what_was_proven() -> None:
    it = grown(100.0)
    for minute in range(60):
        it.on_window(window(2, bound=False, now=60.0 * minute))
    assert it.current == pytest.approx(60.0)


def test_configured_bounds_hold() -> None:
    it = limit(maximum=110.0, minimum=95.0)
    assert it.on_window(window()).limit == 110.0
    assert it.on_window(window(110, engine_queue=900.0)).limit == 95.0


@pytest.mark.parametrize(
    "signals",
    [
        {"engine_queue": 50.0},
        {"engine_queue": 50.0, "delay_s": 0.0},
        {"saturated": True},
        {"saturated": True, "delay_s": 9.0},
        {"error_share": 1.0},
    ],
)
def test_at_the_floor_no_baseline_is_doubted_for_what_needs_none(signals: dict[str, Any]) -> None:
    """What the engine says of itself, and errors: others may share it, or it is out of order."""
    it = limit(initial=1.0)
    reasons = {it.on_window(window(1, **signals)).reason for _ in range(100)}
    assert Reason.ESCAPE not in reasons


@pytest.mark.parametrize(
    "signals",
    [
        {"delay_s": 9.0},
        {"tpot_s": 1.0, "tpot_unloaded_s": 0.02, "tpot_p90_s": 1.0},
        {"engine_queue": 50.0, "queue_estimated": True, "delay_s": 0.3},
    ],
)
def test_at_the_floor_what_the_baselines_say_is_doubted(signals: dict[str, Any]) -> None:
    it = limit(initial=1.0)
    reasons = [it.on_window(window(1, **signals)).reason for _ in range(ESCAPE_WINDOWS)]
    assert reasons[-1] is Reason.ESCAPE


def test_at_the_floor_and_still_over_it_asks_for_an_escape_every_five_windows() -> None:
    it = limit(1.0)
    reasons = [it.on_window(window(1, delay_s=9.0)).reason for _ in range(3 * ESCAPE_WINDOWS)]
    assert [i for i, r in enumerate(reasons, 1) if r is Reason.ESCAPE] == [5, 10, 15]
    assert it.current == 1.0


# -- restart --------------------------------------------------------------------------------------


def test_a_restart_begins_at_half_and_grows_back_fast() -> None:
    it = limit()
    it.restore({"limit": 200.0, "valid": 160.0, "w_max": 200.0})
    assert it.current == 80.0
    assert it.on_window(window(80)).limit == pytest.approx(80.0 + 80.0**0.5 / 4 * 1.5)


def test_what_is_saved_is_what_comes_back() -> None:
    it = grown()
    again = limit(16.0)
    again.restore(it.state())
    assert again.current == 50.0
    assert again.state()["valid"] == it.state()["valid"]


ANY = st.none() | st.floats(0.0, 1e6)


@given(
    st.lists(
        st.builds(
            WindowSample,
            now=st.floats(0.0, 1e6),
            duration_s=st.floats(1e-9, 10.0),
            events=st.integers(0, 50),
            inflight=st.integers(0, 2_000),
            peak_inflight=st.integers(0, 2_000),
            bound=st.booleans(),
            delay_s=ANY,
            engine_queue=ANY,
            tpot_s=ANY,
            tpot_p90_s=ANY,
            tpot_unloaded_s=st.none() | st.floats(1e-9, 1e3),
            error_share=st.floats(0.0, 1.0),
            saturated=st.booleans(),
        ),
        max_size=30,
    ),
    st.sampled_from([None, 0.001, 1.0]),
)
def test_whatever_the_windows_show_it_stays_within_its_bounds(
    samples: list[WindowSample], slo: float | None
) -> None:
    it = limit(16.0, minimum=2.0, maximum=300.0, slo_ttft_s=slo, slo_tpot_s=slo)
    for sample in samples:
        before = it.current
        change = it.on_window(sample)
        assert 2.0 <= change.limit <= 300.0
        assert change.limit == it.current
        if not sample.events or not sample.bound:  # raised only back towards what was cut
            assert change.limit <= before or change.reason is Reason.PROBE


def test_it_does_not_grow_while_a_fifth_waits() -> None:
    """The last step may have filled the engine, and the median sees that a window later."""
    it = limit(40.0)
    assert it.on_window(window(40, delay_high_s=0.31)).limit == 40.0
    assert it.on_window(window(40, now=4.0, delay_high_s=0.29)).limit > 50.0
    steps = grown()
    assert steps.on_window(window(now=4.0, delay_high_s=0.31)).limit == 100.0
    assert steps.on_window(window(now=6.0, delay_high_s=0.29)).limit > 100.0


def test_a_fifth_that_always_waits_as_long_is_no_reason_not_to_grow() -> None:
    """Prompts that are not in the prompt cache: a cut by chance was never made good again."""
    steps = grown()
    limits = [steps.on_window(window(now=4.0 + 2 * n, delay_high_s=1.9)).limit for n in range(20)]
    assert limits[0] == 100.0
    assert limits[-1] > 110.0
    before = steps.current
    assert steps.on_window(window(int(before), now=60.0, delay_high_s=2.3)).limit == before


def test_the_rest_after_a_cut_lasts_as_many_windows_whatever_the_answers_take() -> None:
    rested = []
    for feedback_s in (0.0, 30.0):
        it = grown()
        it.on_window(window(int(it.current), now=10.0, engine_queue=0.46 * it.current))
        before, count = it.current, 0
        while it.on_window(window(int(it.current), now=60.0 + 2 * count, feedback_s=feedback_s)):
            if it.current != before:
                break
            count += 1
        rested.append(count)
    assert rested[0] == rested[1] > 0


def test_what_it_rested_counts_as_no_growth() -> None:
    """After some windows of rest near a cut comes a first step, not four at once."""
    it = grown()
    for _ in range(4):
        it.on_window(window(int(it.current), engine_queue=0.46 * it.current))
        before = it.current
        while (after := it.on_window(window(int(it.current) + 1)).limit) == before:
            pass
        assert after - before < 1.6 * before**0.5 / 4
        while it.current < 100.0:
            it.on_window(window(int(it.current) + 1))


def test_fast_growth_ends_at_what_was_cut() -> None:
    """W_max is where the engine had enough: on a tiny one four steps at once are twice that."""
    it = limit(4.0)
    it.restore({"limit": 2.0, "valid": 2.0, "w_max": 4.0})
    it.on_window(window(1, delay_s=0.25))  # proves the limit without moving it
    while (before := it.current) < 4.0:
        it.on_window(window(4))
        assert it.current <= max(4.0, before + 1.0)


def test_it_does_not_leap_while_some_still_wait_for_their_first_token() -> None:
    """They came last, so they met what the last leap made; the median is of those before."""
    it = limit(40.0)
    assert it.on_window(window(40, delay_pending_s=0.2)).limit == 40.0
    assert it.on_window(window(40, now=4.0, delay_pending_s=0.02)).limit > 50.0
    assert grown().on_window(window(now=4.0, delay_pending_s=0.2)).limit > 100.0
