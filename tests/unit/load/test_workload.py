"""The schedule: seeded, Poisson, with the mix and the lengths that were asked for."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, pstdev

import pytest

from policy_server.load.params import LoadParams
from policy_server.load.workload import Arrival, Bodies, arrivals

PARAMS = LoadParams(
    "http://x",
    rate=100,
    seconds=200,
    mix={"0": 1, "1": 2, "2": 1},
    tenants={"a": 9, "b": 1},
    tokens=100,
    sigma=0.9,
)


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    assert list(arrivals(PARAMS)) == list(arrivals(PARAMS))
    assert list(arrivals(PARAMS)) != list(arrivals(replace(PARAMS, seed=2)))


def test_another_mix_or_length_leaves_the_arrivals_alone() -> None:
    other = replace(PARAMS, mix={"2": 1}, sigma=0, tenants={})
    assert [a.at_s for a in arrivals(PARAMS)] == [a.at_s for a in arrivals(other)]


def test_gaps_are_exponential_at_the_rate() -> None:
    times = [a.at_s for a in arrivals(PARAMS)]
    gaps = [b - a for a, b in pairwise(times)]
    assert fmean(gaps) == pytest.approx(0.01, rel=0.05)
    assert pstdev(gaps) == pytest.approx(0.01, rel=0.05)
    assert max(times) < 200


def test_classes_tenants_and_lengths_have_their_shares_and_mean() -> None:
    found = list(arrivals(PARAMS))
    classes, tenants = Counter(a.priority for a in found), Counter(a.tenant for a in found)
    assert classes["1"] / len(found) == pytest.approx(0.5, abs=0.02)
    assert tenants["b"] / len(found) == pytest.approx(0.1, abs=0.02)
    assert fmean(a.tokens for a in found) == pytest.approx(100, rel=0.05)
    assert min(a.tokens for a in found) >= 1


def test_without_a_mix_there_is_no_header_and_sigma_0_makes_all_equal() -> None:
    found = list(arrivals(LoadParams("http://x", rate=10, seconds=5, tokens=7)))
    assert {(a.priority, a.tenant, a.tokens) for a in found} == {("", "", 7)}


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("", {"model", "messages", "max_tokens", "stream", "stream_options"}),
        ("/v1/completions", {"model", "prompt", "max_tokens", "stream", "stream_options"}),
        ("/v1/messages", {"model", "messages", "max_tokens", "stream"}),
        ("/v1/embeddings", {"model", "input"}),
    ],
)
def test_bodies_fit_their_api(path: str, keys: set[str]) -> None:
    params = LoadParams("http://x" + path, 1, 1, stream=True, prompt_tokens=50)
    body = json.loads(Bodies(params).of(Arrival(0.0, "", "", 42)))
    assert set(body) == keys
    assert body.get("max_tokens", 42) == 42
