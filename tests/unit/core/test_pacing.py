"""Answers to those who wait leave in batches that neither Envoy nor the event loop chokes on."""

from __future__ import annotations

import math

from policy_server.core.pacing import INTERVAL_S, MAX_BATCH, ReleasePacer


def test_a_batch_is_256_answers_and_the_next_one_starts_5_ms_later() -> None:
    pacer = ReleasePacer()
    assert sum(pacer.take(1.0) for _ in range(1_000)) == MAX_BATCH == 256
    assert not pacer.take(1.0049)
    assert pacer.take(1.005)


def test_it_says_when_to_come_back_and_keeps_its_word() -> None:
    pacer = ReleasePacer(max_batch=1)
    for start in (0.1, 0.3, 1e6 + 0.7, 1e9 + 0.1):  # floats where sums round
        assert pacer.take(start)
        again = pacer.resumes_at()
        assert again > start
        assert not pacer.take(start)
        assert pacer.take(again)


def test_there_is_nothing_to_wait_for_while_the_batch_has_room() -> None:
    pacer = ReleasePacer()
    assert pacer.resumes_at() == -math.inf
    pacer.take(7.0)
    assert pacer.resumes_at() == -math.inf


def test_a_long_backlog_leaves_at_51_200_a_second() -> None:
    pacer, now, left = ReleasePacer(), 0.0, 8_000
    while left:
        while left and pacer.take(now):
            left -= 1
        now = max(now, pacer.resumes_at())
    assert now <= 8_000 / MAX_BATCH * INTERVAL_S
