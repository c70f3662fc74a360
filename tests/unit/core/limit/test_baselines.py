"""What an unloaded engine does: learned from below, forgotten slowly, never from an overload."""

from __future__ import annotations

import math

import pytest

from policy_server.core.limit.baselines import (
    MAX_COMMON,
    MAX_KEYS,
    NAMED,
    NAMED_WINDOWS,
    Baselines,
    Key,
    size_bucket,
)

KEY: Key = ("llama", "/v1/chat/completions", "stream", 8)


def known(value: float = 0.2) -> Baselines:
    base = Baselines()
    base.ttft_residual(KEY, value, 0.0)
    base.tpot_sample("llama", value, 0.0)
    return base


@pytest.mark.parametrize(
    ("tokens", "bucket"), [(0, 0), (1, 0), (2, 1), (3, 1), (255, 7), (256, 8), (10**12, 39)]
)
def test_prompts_are_sorted_by_powers_of_two(tokens: int, bucket: int) -> None:
    assert size_bucket(tokens) == bucket


def test_the_first_sample_is_the_baseline_and_has_no_residual() -> None:
    base = Baselines()
    assert base.ttft_residual(KEY, 0.2, 0.0) == 0.0
    assert base.ttft(KEY) == 0.2


def test_the_residual_is_what_is_above_it_never_below() -> None:
    base = known()
    assert base.ttft_residual(KEY, 0.5, 1.0) == pytest.approx(0.3)
    assert base.ttft_residual(KEY, 0.1, 2.0) == 0.0


def test_two_better_samples_move_it_a_fifth_of_the_way_to_the_higher() -> None:
    base = known()
    base.ttft_residual(KEY, 0.05, 1.0)
    base.ttft_residual(KEY, 0.1, 1.0)
    assert base.ttft(KEY) == pytest.approx(0.8 * 0.2 + 0.2 * 0.1)
    for seconds in (0.1, 0.1):
        base.tpot_sample("llama", seconds, 1.0)
    assert base.tpot("llama") == pytest.approx(0.18)


def test_one_outlier_five_times_faster_moves_nothing() -> None:
    base = known()
    base.ttft_residual(KEY, 0.04, 1.0)
    base.ttft_residual(KEY, 0.3, 1.0)
    assert base.ttft(KEY) == pytest.approx(0.2)
    base.ttft_residual(KEY, 0.199, 1.0)
    assert base.ttft(KEY) == pytest.approx(0.2, rel=2e-3)


BEHIND_A_QUEUE = 3.0


def stream_of(size: int) -> Key:
    return ("llama", "/v1/chat/completions", "stream", size)


def test_a_size_first_met_behind_a_queue_is_vouched_for_by_the_others() -> None:
    base = Baselines()
    base.ttft_residual(stream_of(8), 0.02, 0.0)
    assert base.ttft_residual(stream_of(10), BEHIND_A_QUEUE, 0.0) == pytest.approx(3.0 - 0.125)
    assert base.ttft_residual(stream_of(6), BEHIND_A_QUEUE, 0.0) == pytest.approx(3.0 - 0.03)
    assert base.unloaded(stream_of(10)) == pytest.approx(0.02 * 2.5**2)
    assert base.unloaded(stream_of(6)) == pytest.approx(0.02 * 1.5)


def test_answers_that_come_whole_cost_less_per_token_the_longer_they_are() -> None:
    base = Baselines()
    base.ttft_residual(("m", "/", "whole", 8), 0.02, 0.0)
    base.ttft_residual(("m", "/", "whole", 9), 3.0, 0.0)
    base.ttft_residual(("m", "/", "whole", 6), 3.0, 0.0)
    assert base.unloaded(("m", "/", "whole", 9)) == pytest.approx(0.03)
    assert base.unloaded(("m", "/", "whole", 6)) == pytest.approx(0.125)


def test_other_paths_and_kinds_vouch_for_nothing() -> None:
    base = Baselines()
    base.ttft_residual(stream_of(8), 0.02, 0.0)
    for key in (
        ("llama", "/v1/completions", "stream", 8),
        ("llama", "/v1/chat/completions", "plain", 8),
    ):
        assert base.ttft_residual(key, 3.0, 0.0) == 0.0
        assert base.unloaded(key) == 3.0


def test_it_leaks_2e_5_a_second_under_worse_samples() -> None:
    base = known()
    for second in range(1, 101):
        base.ttft_residual(KEY, 1.0, float(second))
    assert base.ttft(KEY) == pytest.approx(0.2 * (1.0 + 2e-5) ** 100)


def test_it_never_leaks_more_than_a_tenth() -> None:
    base = known()
    for hour in range(24 * 60):
        for second in range(0, 60, 10):
            base.ttft_residual(KEY, 5.0, hour * 60.0 + second)
    assert base.ttft(KEY) == pytest.approx(0.2 * 1.1)


def test_a_night_without_traffic_moves_nothing() -> None:
    base = known()
    base.ttft_residual(KEY, 0.3, 8 * 3600.0)
    assert base.ttft(KEY) == pytest.approx(0.2, rel=3e-4)


def test_a_new_low_lowers_what_a_long_leak_may_reach() -> None:
    base = known()
    for seconds in (0.1, 0.1):
        base.ttft_residual(KEY, seconds, 1.0)
    assert base.ttft(KEY) == pytest.approx(0.18)
    for step in range(10_000):
        base.ttft_residual(KEY, 5.0, 1.0 + 10.0 * step)
    assert base.ttft(KEY) == pytest.approx(0.18 * 1.1)


def test_escape_doubles_what_was_sampled_since_the_last_one() -> None:
    base = known()
    base.escape()
    assert (base.ttft(KEY), base.tpot("llama")) == (0.4, pytest.approx(0.3))
    base.escape()
    assert base.ttft(KEY) == 0.4
    base.ttft_residual(KEY, 3.0, 1.0)
    base.escape()
    assert base.ttft(KEY) == pytest.approx(0.8, rel=1e-3)


def test_an_outage_of_a_day_leaves_the_baselines_alone() -> None:
    base = known()
    for _ in range(24 * 360):
        base.escape()
    assert base.ttft(KEY) == 0.4
    assert base.ttft_residual(KEY, 0.5, 1.0) == pytest.approx(0.1)


@pytest.mark.parametrize("x", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_what_is_no_duration_teaches_nothing(x: float) -> None:
    base = Baselines()
    assert base.ttft_residual(KEY, x, 0.0) == 0.0
    base.tpot_sample("llama", x, 0.0)
    base.restore([("tpot|a", x), ("ttft|a|/|stream|3", x)], 0.0)
    assert base.state() == {}
    base = known()
    base.ttft_residual(KEY, x, 1.0)
    base.tpot_sample("llama", x, 1.0)
    assert (base.ttft(KEY), base.tpot("llama")) == (0.2, 0.2)


def test_sizes_and_models_do_not_mix() -> None:
    base = known(0.2)
    assert base.ttft_residual((*KEY[:3], 13), 4.0, 1.0) == 0.0
    assert base.ttft(KEY) == 0.2
    assert base.ttft_min() == 0.2
    assert base.tpot("other") is None


def test_made_up_model_names_fill_a_bounded_table_and_evict_each_other() -> None:
    base = known()
    rare: Key = ("rare", "/", "stream", 8)
    for _ in range(3):
        base.ttft_residual(rare, 0.3, 0.0)
        base.tpot_sample("rare", 0.3, 0.0)
    for i in range(3 * MAX_KEYS):
        base.ttft_residual((f"model-{i}", "/", "stream", 0), 1.0, 0.0)
        base.tpot_sample(f"model-{i}", 1.0, 0.0)
        if i % 1000 == 0:
            base.ttft_residual(KEY, 0.5, 1.0)
            base.tpot_sample("llama", 0.5, 1.0)
    assert (len(base._ttft), len(base._tpot)) == (MAX_KEYS, MAX_KEYS)
    assert len(base._families) == MAX_KEYS
    assert base.ttft(KEY) == pytest.approx(0.2, rel=1e-3)  # who was known stays known
    assert (base.ttft(rare), base.tpot("rare")) == (0.3, 0.3)


def test_a_model_that_comes_when_the_table_is_full_is_learned() -> None:
    base = Baselines()
    for i in range(MAX_KEYS):
        base.ttft_residual((f"model-{i}", "/", "stream", 0), 1.0, 0.0)
        base.tpot_sample(f"model-{i}", 1.0, 0.0)
    base.ttft_residual(KEY, 0.2, 1.0)
    base.tpot_sample("llama", 0.2, 1.0)
    assert (base.ttft(KEY), base.tpot("llama")) == (0.2, 0.2)
    assert base.ttft_residual(KEY, 0.5, 2.0) == pytest.approx(0.3)


def test_what_is_saved_comes_back_whole() -> None:
    base = known()
    odd: Key = ("a|b\\", "/x|y\\p", "plain3", 2)
    for _ in range(NAMED):
        base.ttft_residual(odd, 1.5, 0.0)
    for _ in range(NAMED_WINDOWS):
        base.tpot_sample("c|d", 0.5, 0.0)
    base.tpot_of_all(0.2, 0.0)
    again = Baselines()
    again.restore(base.state().items(), 100.0)
    assert again.state() == base.state()
    assert (again.ttft(odd), again.tpot("c|d")) == (1.5, 0.5)


LOAD = (16.0, 16.0)


def drifted() -> Baselines:
    """As far above its proof as it may be."""
    base = known()
    for second in range(0, 100_000, 10):
        base.ttft_residual(KEY, 9.0, float(second))
        base.tpot_sample("llama", 9.0, float(second), LOAD)
        base.tpot_of_all(9.0 if second else 0.2, float(second), LOAD)
    return base


def test_restarts_under_backlog_move_no_baseline_further_than_one_life_would() -> None:
    base = drifted()
    for day in range(30):
        again = Baselines()
        again.restore(base.state().items(), 1e5 * day)
        for second in range(0, 20_000, 10):
            at = 1e5 * day + second
            again.ttft_residual(KEY, 9.0, at)
            again.tpot_sample("llama", 9.0, at, LOAD)
            again.tpot_of_all(9.0, at, LOAD)
            again.ttft_residual((f"new{second}", *KEY[1:]), 9.0, at)
        base = again
    assert base.ttft(KEY) == pytest.approx(0.22)
    assert base.tpot("llama") == pytest.approx(0.22)
    assert base.unloaded(("new0", *KEY[1:])) == pytest.approx(0.22)
    base.tpot_sample("new", 9.0, 0.0)
    assert base.tpot("new") == pytest.approx(0.22)


def test_what_earlier_versions_saved_is_taken_back() -> None:
    base = Baselines()
    saved = {"ttft|a|/x|stream|8": 0.2, "ttft|b|/x|stream|8": 0.5, "tpot|a": 0.02, "tpot|b|c": 0.05}
    base.restore(saved.items(), 0.0)
    assert base.ttft_residual(("b", "/x", "stream", 8), 0.5, 0.0) == 0.0
    assert base.ttft_residual(("c", "/x", "stream", 8), 0.5, 0.0) == pytest.approx(0.3)
    base.tpot_sample("c", 1.0, 0.0)
    assert base.tpot("c") == 0.02


@pytest.mark.parametrize("proof", [0.0, -1.0, 9.0, math.nan])
def test_a_proof_that_can_not_be_one_is_none(proof: float) -> None:
    base = Baselines()
    base.restore({"tpot|a": 0.02, "proof.tpot|a": proof}.items(), 0.0)
    assert base.state() == {"tpot|a": 0.02, "common.tpot": 0.02}


# -- names that clients choose --------------------------------------------------------------------


def test_a_new_name_with_each_request_hides_no_queue() -> None:
    base = known(0.2)
    for i in range(1000):
        key: Key = (f"m{i}", *KEY[1:3], 7 + i % 3)
        assert base.ttft_residual(key, BEHIND_A_QUEUE, float(i)) > 2.4
    base.tpot_of_all(0.02, 0.0)
    for i in range(100):
        base.tpot_sample(f"m{i}", 0.2, float(i))
        base.tpot_of_all(0.2, float(i), LOAD)
        assert base.tpot(f"m{i}") == pytest.approx(0.02, rel=0.01)


def test_a_slower_model_counts_by_itself_once_its_name_is_known() -> None:
    base = known(0.02)
    slow: Key = ("slow", *KEY[1:])
    residuals = [base.ttft_residual(slow, 0.5, float(i)) for i in range(NAMED + 10)]
    assert residuals[0] == pytest.approx(0.48)
    assert residuals[NAMED:] == [0.0] * 10
    for i in range(NAMED_WINDOWS):
        base.tpot_sample("slow", 0.5, float(i))
    assert base.tpot("slow") == 0.5
    assert (base.ttft(KEY), base.tpot("llama")) == (0.02, 0.02)


def test_what_all_names_say_falls_with_each_of_them() -> None:
    """The first answer of all came from an engine that still loaded its weights."""
    base = Baselines()
    for i in range(200):
        base.ttft_residual((f"m{i}", *KEY[1:]), 0.2 if i else 20.0, float(i))
    assert base.ttft_residual(("new", *KEY[1:]), BEHIND_A_QUEUE, 200.0) == pytest.approx(
        2.8, abs=0.1
    )


def test_made_up_paths_take_bounded_memory() -> None:
    base = known()
    for i in range(3 * MAX_COMMON):
        base.ttft_residual(("llama", f"/{i}", "stream", 8), 1.0, 0.0)
        base.ttft_residual(KEY, 0.5, 0.0)
    assert len(base._common) == MAX_COMMON
    assert base.ttft_residual(("new", *KEY[1:]), 1.0, 0.0) == pytest.approx(0.8)


def test_an_escape_is_for_new_names_too() -> None:
    base = known()
    base.tpot_of_all(0.2, 0.0)
    base.escape()
    base.tpot_sample("new", 9.0, 0.0)
    assert base.ttft_residual(("new", *KEY[1:]), 1.0, 0.0) == pytest.approx(0.6)
    assert base.tpot("new") == pytest.approx(0.3)


def test_saved_entries_of_another_shape_are_ignored() -> None:
    base = Baselines()
    base.restore([("ttft|x", 1.0), ("ttft|a|b|c|d", 1.0), ("what|x", 1.0), ("", 1.0)], 0.0)
    assert base.state() == {}


def test_after_an_escape_no_old_low_lowers_the_new_baseline() -> None:
    base = known()
    base.ttft_residual(KEY, 0.1, 1.0)  # waits for a second one
    base.escape()
    base.ttft_residual(KEY, 0.39, 2.0)
    assert base.ttft(KEY) == 0.4


TRUE_T = 0.03


def misled(factor: float = 8.0) -> Baselines:
    """A T0 that answers of another kind have taught."""
    base = Baselines()
    base.tpot_sample("llama", TRUE_T / factor, 0.0)
    return base


def test_a_pace_that_stays_with_half_the_load_refutes_what_was_far_below() -> None:
    base = misled()
    for second, load in enumerate((16, 11, 8, 7)):
        base.tpot_sample("llama", TRUE_T, float(second), (load, load))
    assert base.tpot("llama") == pytest.approx(TRUE_T)


def test_what_the_load_costs_is_not_taken_for_the_unloaded_pace() -> None:
    """An engine that became eight times as slow: T = 8 (T0 + .4 % of it per seat)."""
    base = misled()
    for second, load in enumerate((16, 11, 8, 7)):
        base.tpot_sample("llama", TRUE_T * (1 + 0.004 * load), float(second), (load, load))
    assert base.tpot("llama") == pytest.approx(TRUE_T, rel=1e-3)


def test_a_batch_that_slows_decoding_refutes_nothing() -> None:
    base = known(TRUE_T)
    for second, load in enumerate((128, 128, 96, 64, 64, 60)):  # T = T0 (1 + N/32)
        base.tpot_sample("llama", TRUE_T * (1 + load / 32), float(second), (load, load))
    assert base.tpot("llama") == pytest.approx(TRUE_T, rel=1e-3)


def test_windows_of_unknown_load_refute_nothing() -> None:
    base = misled()
    for second in range(9):
        base.tpot_sample("llama", TRUE_T, float(second))
    assert base.tpot("llama") == pytest.approx(TRUE_T / 8, rel=1e-3)


def test_one_window_or_one_that_still_drains_refutes_nothing() -> None:
    base = misled()
    for second, load in enumerate(((16, 16), (7, 14), (7, 8), (7, 14), (7, 8))):
        base.tpot_sample("llama", TRUE_T, float(second), load)
    assert base.tpot("llama") == pytest.approx(TRUE_T / 8, rel=1e-3)


def test_an_engine_that_lost_half_of_itself_is_judged_by_what_it_did_since() -> None:
    base = known(TRUE_T)
    for second, (load, slower) in enumerate(((64, 5), (64, 10), (32, 5), (30, 5))):
        base.tpot_sample("llama", TRUE_T * slower, float(second), (load, load))
    assert base.tpot("llama") == pytest.approx(TRUE_T, rel=1e-3)
    for second, load in enumerate((64, 64)):
        base.tpot_sample("llama", TRUE_T * 5, 10.0 + second, (load, load))
    base.rescaled()  # told so, and with it the load halves
    for second, load in enumerate((32, 31)):
        base.tpot_sample("llama", TRUE_T * 5, 20.0 + second, (load, load))
    assert base.tpot("llama") == pytest.approx(TRUE_T, rel=1e-3)
