"""Which answers are observed: an unbiased sample within a message budget."""

from __future__ import annotations

import random

import pytest

from policy_server.core.sampling import FIRST_GUESS_PER_S, MIN_LIVE, ObserverSampler
from tests.support.core_builders import Coin

NEVER, ALWAYS = Coin(0.999999), Coin(0.0)


def test_the_first_four_live_streams_are_always_observed() -> None:
    sampler = ObserverSampler(500.0)
    assert all(sampler.flip(True, n, n, NEVER) for n in range(MIN_LIVE))
    assert not sampler.flip(True, 1_000, MIN_LIVE, NEVER)


def test_the_chance_fits_the_budget() -> None:
    sampler = ObserverSampler(500.0)
    # 500 messages/s over 100 live streams that send 30 messages/s each
    assert sampler.probability(True, 99) == pytest.approx(500 / (FIRST_GUESS_PER_S * 100))
    assert sampler.probability(True, 0) == 1.0


def test_the_messages_of_a_stream_are_measured() -> None:
    sampler = ObserverSampler(500.0)
    for _ in range(40):
        sampler.note_messages(2 * 10 * 100)  # 2 s, 10 observed streams, 100 messages/s each
        sampler.close_window(2.0, 10, 0.0)
    assert sampler.probability(True, 99) == pytest.approx(500 / (100 * 100), rel=0.01)


def test_a_window_without_observed_streams_teaches_nothing() -> None:
    sampler = ObserverSampler(500.0)
    before = sampler.probability(True, 99)
    sampler.note_messages(1_000)
    sampler.close_window(2.0, 0, 0.0)
    sampler.close_window(2.0, 5, 0.0)
    assert sampler.probability(True, 99) == before


def test_plain_answers_get_a_fifth_of_the_budget_at_three_messages_each() -> None:
    sampler = ObserverSampler(500.0)
    assert sampler.probability(False, 0) == 1.0  # none seen yet
    for _ in range(60):
        sampler.close_window(2.0, 0, 1_000.0)
    assert sampler.probability(False, 0) == pytest.approx(0.2 * 500 / (3 * 1_000), rel=0.01)


def test_streams_that_pile_up_stay_within_a_fifth_above_the_budget() -> None:
    sampler, rng, observed = ObserverSampler(500.0), random.Random(1), 0
    for live in range(500):
        observed += sampler.flip(True, live, observed, rng)
    assert 500.0 <= observed * FIRST_GUESS_PER_S <= 1.2 * 500.0 + FIRST_GUESS_PER_S


def test_a_flood_of_plain_answers_is_bounded_before_its_rate_is_known() -> None:
    sampler = ObserverSampler(500.0)
    picked = sum(sampler.flip(False, 0, 0, ALWAYS) for _ in range(10_000))
    assert picked == pytest.approx(4.0 * 0.2 * 500 / 3, abs=1)
    sampler.close_window(2.0, 0, 5_000.0)
    assert sampler.flip(False, 0, 0, ALWAYS)


def test_no_budget_no_observation_not_even_of_the_first() -> None:
    sampler = ObserverSampler(0.0)
    assert not sampler.flip(True, 0, 0, ALWAYS)
    assert not sampler.flip(False, 0, 0, ALWAYS)
    assert sampler.probability(True, 0) == sampler.probability(False, 0) == 0.0


def test_a_new_budget_counts_from_the_next_admission() -> None:
    sampler = ObserverSampler(0.0)
    sampler.reconfigure(3_000.0)
    assert sampler.flip(True, 50, MIN_LIVE, ALWAYS)


def test_the_coin_lands_as_often_as_it_should() -> None:
    sampler, rng = ObserverSampler(300.0), random.Random(1)
    observed = sum(sampler.flip(True, 99, MIN_LIVE, rng) for _ in range(10_000))
    assert observed / 10_000 == pytest.approx(0.1, abs=0.01)
