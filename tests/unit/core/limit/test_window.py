"""One window of signals, closed into the numbers of algorithms.md §2, computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from policy_server.core.leases import Lease
from policy_server.core.limit.base import WindowSample
from policy_server.core.limit.baselines import NAMED_WINDOWS, Baselines
from policy_server.core.limit.reports import MAX_SOURCES, REPORT_FRESH_S
from policy_server.core.limit.window import (
    EXTENSION_S,
    OVERDUE_S,
    WINDOW_S,
    Window,
    baseline_key,
)
from policy_server.core.outcome import LeaseEnd
from policy_server.core.samples import Completion, LoadReport
from tests.support.core_builders import request

LIMIT = 10.0


def lease(uid: str = "u", at: float = 0.0, weight: float = 1.0, **facts: Any) -> Lease:
    facts = {"streamed": True, "prompt_tokens": 300, "model": "llama"} | facts
    return Lease(request(uid, at=at, **facts), at, True, weight, last_seen=at)


def window(unloaded_s: float = 0.2) -> Window:
    """A window in front of an engine whose unloaded TTFT is known."""
    baselines = Baselines()
    baselines.ttft_residual(baseline_key(lease().request), unloaded_s, 0.0)
    return Window(baselines, 0.0)


def close(w: Window, now: float = 2.0, inflight: int = 10, *live: Lease) -> WindowSample:
    """After `live` were dispatched, which wait for their first token."""
    for one in live:
        w.await_token(one)
    return w.close(now, inflight, LIMIT)


def test_queue_is_rate_times_delay() -> None:
    w = window()
    for i in range(10):
        w.first_token(lease(f"u{i}", weight=4.0), 0.7, 1.0)  # .5 s above unloaded
    sample = close(w)
    assert sample.events == 10
    assert sample.first_token_rate == pytest.approx(40 / 2.0)  # 10 observed stand for 40
    assert sample.delay_s == pytest.approx(0.5, abs=1e-3)
    # one unloaded TTFT (.2 s) is what the prefill of the others may take
    assert sample.engine_queue == pytest.approx(20 * (0.5 - 0.2), rel=1e-3)


def test_a_longer_prompt_is_no_queue() -> None:
    w = window()
    for i in range(10):
        w.first_token(lease(f"u{i}", prompt_tokens=8_000), 4.0, 1.0)
    assert close(w).delay_s == 0.0


def test_a_stream_that_nobody_asked_for_is_no_whole_answer() -> None:
    """Its first byte comes at once, whatever queue its first token waits in."""
    w = window()
    for i in range(10):
        seen = lease(f"u{i}", streamed=False)
        seen.first_token = 0.7  # as its tokens come through the observer
        w.first_token(seen, 0.7, 1.0)
        w.completed(seen, LeaseEnd.COMPLETED, Completion(200, first_byte_s=0.01), 2.0)
        unseen = lease(f"v{i}", streamed=False)
        told = Completion(200, first_byte_s=0.01, last_byte_s=2.0, streamed=True)
        w.completed(unseen, LeaseEnd.COMPLETED, told, 2.0)
    sample = close(w)
    assert sample.events == 10
    assert sample.delay_s == pytest.approx(0.5, abs=1e-3)
    assert sample.first_token_rate == pytest.approx(20 / 2.0)  # each once


def test_a_stalled_engine_shows_by_the_age_of_those_who_wait_for_a_token() -> None:
    w = window()
    sample = close(w, 2.0, 10, lease("a", at=0.0), lease("b", at=1.0))
    # ages 2 and 1 less .2
    assert sample.delay_s == pytest.approx((1.8 + 0.8) / 2)
    gone = window()
    gone.await_token(lease("c"))
    gone.completed(lease("c"), LeaseEnd.CLIENT_CANCELLED, Completion(0), 0.5)
    gone.await_token(lease("d"))
    gone.first_token(lease("d"), 0.2, 0.7)
    assert close(gone).delay_s == 0.0


def test_the_window_of_an_engine_that_jams_is_not_the_longest() -> None:
    w = window()
    w.note_waiting()
    for i in range(5):
        w.first_token(lease(f"u{i}"), 0.2, 1.0)
    assert w.due_at() == WINDOW_S + EXTENSION_S
    for i in range(3):
        w.await_token(lease(f"v{i}", at=1.0 + i))
    assert w.due_at() == 3.0 + OVERDUE_S  # then eight have told
    w.first_token(lease("v0"), 2.5, 3.5)
    assert w.due_at() == 3.0 + OVERDUE_S
    w.mark_cut(2.5)
    assert w.due_at() == WINDOW_S + EXTENSION_S


def test_a_long_prompt_is_overdue_when_it_takes_twice_its_time() -> None:
    w = window()
    w.note_waiting()
    w.first_token(lease("u", prompt_tokens=8_000), 1.5, 1.6)
    for i in range(7):
        w.await_token(lease(f"v{i}", at=1.0, prompt_tokens=8_000))
    assert w.due_at() == 1.0 + 2 * 1.5


def test_one_who_waits_for_a_token_does_not_outvote_those_who_had_one() -> None:
    """It is the slowest by selection: all that were faster are no longer pending."""
    w = window()
    for i in range(9):
        w.first_token(lease(f"u{i}"), 0.2, 1.0)
    sample = close(w, 2.0, 10, lease("a", at=0.0))
    assert sample.delay_s == 0.0
    for i in range(3):
        w.first_token(lease(f"v{i}", at=2.5), 0.2, 2.7)
    stalled = [lease(f"w{i}", at=2.0) for i in range(9)]
    assert close(w, 4.0, 10, *stalled).delay_s == pytest.approx((9 * 1.8 + 3.8) / 10)


def test_the_age_of_a_long_prompt_counts_from_what_it_takes_unloaded() -> None:
    w = window()
    for i in range(10):
        w.first_token(lease(f"u{i}", prompt_tokens=8_000), 1.5, 1.0)
    close(w)
    assert close(w, 4.0, 10, lease("a", at=2.6, prompt_tokens=8_000)).delay_s is None


def test_few_samples_say_little_of_the_least_delay() -> None:
    w = window()
    for i in range(9):
        w.first_token(lease(f"u{i}", at=1.0), 0.2 + 0.1 * i, 1.0)
    few = close(w)
    assert few.delay_s == pytest.approx(0.4, abs=1e-3)
    assert few.delay_low_s == pytest.approx(0.2, abs=1e-3)  # 9/2 − √9/2: the third of nine


def test_who_was_dispatched_before_the_cut_says_nothing_about_it() -> None:
    w = window()
    w.mark_cut(1.0)
    w.first_token(lease("before", at=0.9), 5.0, 1.5)
    w.first_token(lease("after", at=1.0), 0.3, 1.5)
    sample = close(w, 2.0, 10, lease("old", at=0.0))
    assert sample.events == 1
    assert sample.delay_s == pytest.approx(0.1, abs=1e-3)


def test_time_per_token_is_weighted_by_tokens() -> None:
    w = window()
    w.tokens("llama", 1.0, 40)
    w.tokens("llama", 1.0, 10)
    sample = close(w)
    assert sample.tpot_s == sample.tpot_unloaded_s == pytest.approx(2.0 / 50)


def test_fifty_tokens_are_needed() -> None:
    w = window()
    w.tokens("llama", 1.0, 49)
    assert close(w).tpot_s is None


def test_tokens_that_came_in_one_burst_are_no_baseline() -> None:
    w = window()
    w.tokens("llama", 0.0, 60)
    sample = close(w)
    assert sample.tpot_unloaded_s is None
    w.tokens("llama", 3.0, 60)
    assert close(w, 4.0).tpot_unloaded_s == 0.05


def test_t90_lies_between_t_and_15_percent_above() -> None:
    w = window()
    w.tokens("llama", 1.0, 50)  # T = .02
    for seconds in (0.001, 0.021, 0.021):
        w.answer_tpot(seconds, 8)
    w.answer_tpot(9.0, 7)  # too short to tell
    assert close(w).tpot_p90_s == pytest.approx(0.021)
    w.tokens("llama", 1.0, 50)
    w.answer_tpot(9.0, 8)
    assert close(w, 4.0).tpot_p90_s == pytest.approx(0.02 * 1.15)
    w.tokens("llama", 1.0, 50)
    assert close(w, 6.0).tpot_p90_s == pytest.approx(0.02)


def test_the_models_behind_one_pool_have_one_mean_and_their_own_baselines() -> None:
    w = window()
    for number in range(NAMED_WINDOWS - 1):
        w.tokens("small", 1.0, 100)
        w.tokens("large", 5.0, 100)
        close(w, 2.0 * number)
    w.tokens("small", 1.0, 100)
    w.tokens("large", 15.0, 300)
    sample = close(w, 4.0)
    assert sample.tpot_s == pytest.approx(16.0 / 400)
    assert sample.tpot_unloaded_s == pytest.approx((0.01 * 100 + 0.05 * 300) / 400)


def test_a_plain_answer_without_tokens_is_measured_by_its_first_byte() -> None:
    w = window()
    plain = lease("a", streamed=False)
    for seconds in (1.0, 1.5, 9.0):
        w.completed(plain, LeaseEnd.COMPLETED, Completion(200, False, True, seconds, 2.0), 1.0)
    sample = close(w)
    assert sample.delay_s == pytest.approx(0.5, abs=1e-3)  # the median: one slow answer is no queue
    assert sample.first_token_rate == 1.5
    assert (sample.latency_s, sample.latency_min_s) == (2.0, 2.0)
    assert baseline_key(plain.request)[2] == "plain"
    assert baseline_key(plain.request, 1_000)[2:] == ("whole", 9)


def whole(tokens: int, uid: str = "a") -> Lease:
    answer = lease(uid, streamed=False)
    answer.completion_tokens = tokens
    return answer


def test_whole_answers_of_different_lengths_tell_the_queue_from_the_length() -> None:
    w = window()
    for n in range(20, 220, 10):  # half a second of queue, 20 ms per token
        end = Completion(200, False, True, 0.5 + 0.02 * n, 1.0)
        w.completed(whole(n), LeaseEnd.COMPLETED, end, 1.0)
    sample = close(w)
    # 2.3 s of decoding on average, of which .15 may be something else
    assert sample.delay_s == pytest.approx(0.5 - 0.15 * 2.3, abs=0.02)
    assert sample.tpot_s == pytest.approx(0.02)
    assert sample.feedback_s > 1.0


def test_made_up_model_names_take_bounded_memory_while_a_window_lasts() -> None:
    w = window()
    for number in range(3 * MAX_SOURCES):
        answer = whole(100)
        answer.request = replace(answer.request, model=f"m{number}")
        end = Completion(200, False, True, 1.0, 1.0)
        w.completed(answer, LeaseEnd.COMPLETED, end, 1.0)
    assert len(w._whole) == MAX_SOURCES


def far_away(w: Window, rtt_s: float, queue_s: float = 0.0) -> None:
    for n in range(20, 220, 10):  # 20 ms per token
        end = Completion(200, False, True, rtt_s + queue_s + 0.02 * n, 1.0)
        w.completed(whole(n), LeaseEnd.COMPLETED, end, 1.0)


def test_choices_made_side_by_side_are_no_pace() -> None:
    w = window()
    for n in range(20, 220, 10):
        answer = whole(8 * n)
        answer.choices = 8
        w.completed(answer, LeaseEnd.COMPLETED, Completion(200, False, True, 0.02 * n, 1.0), 1.0)
    assert close(w).tpot_s == pytest.approx(0.02)


def test_no_choice_is_longer_than_was_asked_for() -> None:
    """`usage` sums up all of a `best_of`, of which the answer shows one."""
    best = lease("a", streamed=False, max_tokens=100)
    best.completion_tokens = 800
    assert best.steps == 100
    assert whole(800).steps == 800


def test_made_up_models_do_not_keep_others_from_a_line_of_their_own() -> None:
    w = window()
    for i in range(2 * MAX_SOURCES):
        made_up = lease("x", streamed=False, model=f"model-{i}")
        made_up.completion_tokens = 100
        w.completed(made_up, LeaseEnd.COMPLETED, Completion(200, False, True, 2.0, 2.0), 1.0)
    far_away(w, 0.0)
    assert close(w).tpot_s == pytest.approx(0.02)
    assert len(w._whole) <= MAX_SOURCES


def test_what_every_whole_answer_takes_besides_its_tokens_is_no_queue() -> None:
    """Prefill, and an engine on another continent: the limit was cut to one for it."""
    w = window()
    far_away(w, 0.3)  # less than .15 of 120 tokens of 20 ms
    assert close(w).delay_s == pytest.approx(0.0, abs=1e-3)
    far_away(w, 0.3, 1.0)
    assert (close(w).delay_s or 0.0) > 0.5


def test_an_engine_never_seen_without_a_queue_is_not_taken_for_one_far_away() -> None:
    w = window()
    far_away(w, 2.0)
    assert close(w).delay_s == pytest.approx(2.0 - 0.15 * 0.02 * 115, abs=0.02)


def test_whole_answers_of_one_length_may_take_two_and_a_half_times_as_long() -> None:
    w = window()
    for seconds in (1.0, 2.0, 2.4):
        w.completed(whole(100), LeaseEnd.COMPLETED, Completion(200, False, True, seconds, 1), 1.0)
    assert close(w).delay_s == 0.0
    w.completed(whole(100), LeaseEnd.COMPLETED, Completion(200, False, True, 4.5, 1), 1.0)
    assert close(w).delay_s == pytest.approx(2.0, abs=1e-3)


def test_whole_answers_of_one_length_tell_as_late_as_they_come() -> None:
    """Growth waits that long: their queue shows only when they end (16 → 340 on 40 slots)."""
    w = window()
    for seconds in (2.0, 3.0, 9.0):
        w.completed(whole(100), LeaseEnd.COMPLETED, Completion(200, False, True, seconds, 1), 1.0)
    assert close(w).feedback_s == 3.0


def test_where_most_are_streams_nobody_waits_for_a_few_whole_answers() -> None:
    """One job a second held the growth for the streams up: 22 -> 200 took 90 s instead of 10."""
    w = window()
    end = Completion(200, False, True, 20.0, 20.0)
    for n in range(3):
        w.completed(whole(100), LeaseEnd.COMPLETED, end, 1.0)
        w.first_token(lease(f"u{n}"), 0.2, 1.0)
    assert close(w).feedback_s == 0.0
    w.first_token(lease("u"), 0.2, 3.0)
    for _ in range(3):
        w.completed(whole(100), LeaseEnd.COMPLETED, end, 3.0)
    assert close(w, 4.0).feedback_s == 20.0


def test_a_stream_that_nobody_can_read_waits_for_nothing() -> None:
    """A third of the answers compressed, and a healthy engine's limit fell from 200 to 17."""
    w = window()
    waiting = [lease(f"u{n}") for n in range(9)]
    for one in waiting[1:]:
        one.readable = False
    sample = close(w, 9.0, 10, *waiting)
    assert sample.delay_s == sample.delay_pending_s == pytest.approx(9.0 - 0.2)
    w.completed(waiting[0], LeaseEnd.CLIENT_CANCELLED, Completion(0, True), 9.0)
    assert w.close(10.0, 10, LIMIT).delay_s is None


def test_a_few_answers_of_unknown_length_are_no_queue_among_those_of_known() -> None:
    """Their usage came after the log. They were taken for a queue as long as their decoding."""
    w = window()
    for n in range(20, 220, 10):
        end = Completion(200, False, True, 0.02 * n, 1.0)
        w.completed(whole(n), LeaseEnd.COMPLETED, end, 1.0)
    for uid, seconds in (("b", 1.0), ("c", 5.0), ("d", 6.0)):
        end = Completion(200, False, True, seconds, 1.0)
        w.completed(lease(uid, streamed=False), LeaseEnd.COMPLETED, end, 1.0)
    sample = close(w)
    assert sample.delay_s == pytest.approx(0.0, abs=0.01)
    assert sample.base_s == 0.0


def test_where_no_length_is_known_the_whole_times_count() -> None:
    w = window()
    for uid, seconds in (("b", 1.0), ("c", 5.0), ("d", 6.0)):
        end = Completion(200, False, True, seconds, 1.0)
        w.completed(lease(uid, streamed=False), LeaseEnd.COMPLETED, end, 1.0)
    assert close(w).delay_s == pytest.approx(4.0, abs=0.01)


def test_our_lateness_is_told_from_what_envoy_measured() -> None:
    """On a busy machine no window is without a late timer: whole answers still teach."""
    w = window()
    w.note_late(1.9)
    end = Completion(200, False, True, 1.0, 1.0)
    w.completed(lease("a", streamed=False), LeaseEnd.COMPLETED, end, 1.0)
    assert not w.tainted(2.0)
    w.completed(lease("b", streamed=False), LeaseEnd.COMPLETED, replace(end, timed_here=True), 1.0)
    assert w.tainted(2.0)


def test_who_waits_and_what_flows_is_timed_here_as_well() -> None:
    """A process that stood still for seconds reads nothing meanwhile: those who wait look late."""
    w = window()
    w.note_late(1.9)
    assert not w.tainted(2.0)
    w.await_token(lease("a"))
    assert w.tainted(2.0)
    assert not w.tainted(6.0)
    w.completed(lease("a"), LeaseEnd.CLIENT_CANCELLED, Completion(0, True), 2.0)
    assert not w.tainted(2.0)
    w.tokens("llama", 1.9, 60)
    assert w.tainted(2.0)


def test_a_window_is_ours_when_we_were_late_for_more_than_a_third_of_it() -> None:
    w = window()
    w.first_token(lease("a"), 0.1, 1.0)
    w.note_late(0.6)
    assert not w.tainted(2.0)
    w.note_late(0.1)
    assert w.tainted(2.0)
    assert close(w).tpot_s is None


def test_answers_that_nobody_observed_say_nothing_of_the_queue() -> None:
    w = window()
    unseen = lease("a", streamed=False)
    unseen.observed = False
    for seconds in (1.0, 9.0):
        w.completed(unseen, LeaseEnd.COMPLETED, Completion(200, False, True, seconds, 9.0), 1.0)
    assert close(w).delay_s is None


def test_without_an_observer_the_log_tells_how_long_a_whole_answer_took() -> None:
    w = window()
    unseen = lease("a", streamed=False, observable=False)
    unseen.observed = False
    for seconds in (1.0, 5.0, 9.0):
        w.completed(unseen, LeaseEnd.COMPLETED, Completion(200, False, True, seconds, 9.0), 1.0)
    sample = close(w)
    assert sample.events == 3
    assert sample.delay_s == pytest.approx(4.0, abs=1e-3)


@pytest.mark.parametrize(
    ("how", "status"),
    [
        (LeaseEnd.CLIENT_CANCELLED, 200),
        (LeaseEnd.NEVER_SENT, 0),
        (LeaseEnd.EXPIRED, 0),
        (LeaseEnd.UPSTREAM_ERROR, 503),
        (LeaseEnd.COMPLETED, 404),
    ],
)
def test_only_whole_successful_answers_are_latency_samples(how: LeaseEnd, status: int) -> None:
    w = window()
    w.completed(lease("a", streamed=False), how, Completion(status, False, True, 9.0, 9.0), 1.0)
    sample = close(w)
    assert (sample.events, sample.latency_s) == (0, None)


def test_the_share_of_errors_and_one_error_is_none() -> None:
    w = window()
    failed = Completion(503)
    w.completed(lease("a"), LeaseEnd.UPSTREAM_ERROR, failed, 1.0)
    assert close(w).error_share == 0.0
    for i in range(10):
        how = LeaseEnd.UPSTREAM_ERROR if i < 4 else LeaseEnd.COMPLETED
        w.completed(lease("a"), how, failed if i < 4 else Completion(200), 3.0)
    w.completed(lease("a"), LeaseEnd.CLIENT_CANCELLED, Completion(200, True), 3.0)
    assert close(w, 4.0).error_share == 0.4


def test_it_was_bound_when_someone_waited_and_the_limit_was_nearly_reached() -> None:
    w = window()
    w.note_inflight(9)
    assert not close(w, 2.0, 0).bound
    w.note_waiting()
    w.note_inflight(9)
    assert close(w, 4.0, 0).bound
    w.note_waiting()
    assert not close(w, 6.0, 0).bound


def test_the_peak_carries_over_what_is_still_in_flight() -> None:
    w = window()
    w.note_inflight(12)
    assert close(w, 2.0, 7).peak_inflight == 12
    assert close(w, 4.0, 7).peak_inflight == 7


# -- load reports ---------------------------------------------------------------------------------


def test_what_the_engines_say_of_their_queues_adds_up_and_replaces_the_estimate() -> None:
    w = window()
    w.first_token(lease(), 9.0, 1.0)
    w.load_report("a", LoadReport(waiting=3.0), 1.0)
    w.load_report("b", LoadReport(waiting=4.0), 1.0)
    w.load_report("b", LoadReport(waiting=1.0), 1.5)
    assert close(w).engine_queue == 4.0


def test_a_stale_report_is_ignored_never_full() -> None:
    w = window()
    w.load_report("a", LoadReport(waiting=3.0, kv_used=0.99), 0.0)
    sample = close(w, REPORT_FRESH_S)
    assert (sample.engine_queue, sample.saturated) == (None, False)


def test_a_full_cache_or_a_preemption_since_the_last_report_is_full() -> None:
    w = window()
    w.load_report("a", LoadReport(kv_used=0.9), 1.0)
    assert not close(w).saturated
    w.load_report("a", LoadReport(kv_used=0.91), 3.0)
    assert close(w, 3.0).saturated
    w.load_report("a", LoadReport(preemptions_total=7.0), 4.0)
    assert not close(w, 4.0).saturated  # the first of them is no news
    w.load_report("a", LoadReport(preemptions_total=8.0), 5.0)
    assert close(w, 5.0).saturated
    w.load_report("a", LoadReport(preemptions_total=0.0), 6.0)
    assert not close(w, 6.0).saturated  # the engine was restarted


def test_a_report_is_evidence_of_its_own() -> None:
    w = window()
    w.note_waiting()
    w.load_report("a", LoadReport(waiting=0.0), 1.5)
    assert w.due_at() == WINDOW_S  # nothing else is coming that would be worth waiting for
    sample = close(w)
    assert (sample.events, sample.engine_queue, sample.delay_s) == (1, 0.0, None)
    assert sample.quiet_s == 0.5
    w.load_report("a", LoadReport(waiting=0.0, age_s=REPORT_FRESH_S), 3.0)
    w.load_report("a", LoadReport(asked_rps=5.0), 3.0)
    assert close(w, 4.0).events == 0  # an old word and one on something else are none


def test_the_engine_is_believed_rather_than_the_time_of_an_answer_of_unknown_length() -> None:
    w = window()
    unseen = lease("a", streamed=False, observable=False)
    for seconds in (1.0, 9.0):
        w.completed(unseen, LeaseEnd.COMPLETED, Completion(200, False, True, seconds, 9.0), 1.0)
    w.load_report("a", LoadReport(waiting=2.0), 1.0)
    sample = close(w)
    assert (sample.engine_queue, sample.delay_s) == (2.0, None)


def test_the_number_of_engines_remembered_is_bounded() -> None:
    w = window()
    for i in range(2 * MAX_SOURCES):
        w.load_report(f"engine-{i}", LoadReport(waiting=1.0), 1.0)
    assert close(w).engine_queue == MAX_SOURCES
    w.load_report("new", LoadReport(waiting=5.0), 20.0)
    assert close(w, 20.0).engine_queue == 5.0


# -- when -----------------------------------------------------------------------------------------


def test_it_closes_after_2_s_with_eight_events_or_when_idle_else_up_to_8_s_later() -> None:
    w = window()
    assert w.due_at() == WINDOW_S
    w.note_waiting()
    assert w.due_at() == WINDOW_S + EXTENSION_S
    for i in range(8):
        w.first_token(lease(f"u{i}"), 0.3, 1.0)
    assert w.due_at() == WINDOW_S
    close(w)
    assert w.due_at() == 2.0 + WINDOW_S


def test_an_empty_window_is_empty() -> None:
    sample = Window(Baselines(), 5.0).close(5.0, 0, LIMIT)
    assert sample.duration_s > 0.0
    assert (sample.events, sample.delay_s, sample.engine_queue) == (0, None, None)
    assert (sample.tpot_s, sample.error_share, sample.saturated) == (None, 0.0, False)
    assert math.isfinite(sample.first_token_rate)


def test_what_a_fifth_of_the_streams_waited_is_told_beside_the_median() -> None:
    w = window()
    for i, waited in enumerate((0.0, 1.2, 0.0, 0.1)):
        w.first_token(lease(f"u{i}"), 0.2 + waited, 1.0)
    answer = Completion(200, first_byte_s=9.0, last_byte_s=9.0)
    w.completed(lease("whole", streamed=False), LeaseEnd.COMPLETED, answer, 1.0)
    sample = close(w)
    assert sample.delay_s == pytest.approx(0.0)
    assert sample.delay_high_s == pytest.approx(1.2)  # a whole answer's length is no queue
    assert close(w, 4.0).delay_high_s is None
