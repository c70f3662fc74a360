"""What does not work stays proven not to work, so that nobody builds it again.

The figures are shares of the best static limit of the same engine.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from policy_server.core.params import LimitParams
from policy_server.simulate.engine import EngineParams
from policy_server.simulate.gateway import Objectives
from policy_server.simulate.scenarios.base import (
    DECODE_BOUND,
    KV_BOUND,
    P0,
    P1,
    P2,
    SLOT_BOUND,
    Bench,
    offered,
    with_lengths,
)
from policy_server.simulate.workload import Lengths
from policy_server.simulate.world import World

SPREAD = Lengths(output_sigma=0.9)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path


def goodput(
    policy: str, world: World, cache: Path, *, duration_s: float = 400.0, tail_s: float = 250.0
) -> float:
    """Useful tokens/s at 3x over the last `tail_s`, against the best static limit."""
    bench = Bench(policy, 1, cache)
    loaded = offered(world, bench.calls_per_s(world), {P1: 3.0})
    result = bench.run(replace(loaded, duration_s=duration_s))
    return result.goodput(duration_s - tail_s, duration_s) / bench.capacity(world)


def test_vegas_on_whole_latency_takes_answer_length_for_a_queue(cache: Path) -> None:
    world = with_lengths(World(engine=EngineParams(slots=200)), SPREAD)
    assert goodput("vegas-e2e", world, cache) <= 0.3
    assert goodput("product", world, cache) >= 0.9


def test_vegas_on_time_per_token_takes_batching_for_a_queue(cache: Path) -> None:
    world = with_lengths(World(engine=EngineParams(slots=200)), SPREAD)
    assert goodput("vegas-tpot", world, cache) <= 0.75


def test_gradient2_on_time_per_token_drifts_to_its_ceiling(cache: Path) -> None:
    world = DECODE_BOUND.with_limit(LimitParams(maximum=200))
    bench = Bench("gradient2", 1, cache)
    loaded = offered(world, bench.calls_per_s(world), {P2: 1.3})
    result = bench.run(replace(loaded, duration_s=2700.0))
    assert bench.best(world).limit < 150
    assert result.limit_at(300.0) < 100
    assert result.limit_at(2600.0) > 190
    assert result.goodput(2400, 2700) / bench.capacity(world) < 0.1


@pytest.mark.parametrize("world", [KV_BOUND, SLOT_BOUND], ids=["KV", "slots"])
def test_aimd_on_time_per_token_is_blind_to_queues_in_front_of_the_decode(
    world: World, cache: Path
) -> None:
    bound = replace(world, objectives=Objectives(ttft_s=2.0, tpot_s=0.05)).with_limit(
        LimitParams(slo_tpot_s=0.05)
    )
    assert goodput("aimd", bound, cache, duration_s=1500.0) <= 0.1


def test_aimd_on_time_per_token_works_where_decoding_is_the_bound(cache: Path) -> None:
    assert goodput("aimd", DECODE_BOUND, cache, duration_s=1000.0) >= 0.5


def test_one_line_with_early_drop_gives_the_important_class_nothing(cache: Path) -> None:
    bench = Bench("fifo-drop", 1, cache)
    unit = bench.calls_per_s(SLOT_BOUND)
    world = offered(SLOT_BOUND, unit, {P0: 0.3, P1: 0.5, P2: 2.2})
    result = bench.run(replace(world, duration_s=300.0, settle_s=60.0))
    assert result.served_share(60, 300, P0) <= 0.02
    assert result.goodput(60, 300) / bench.capacity(SLOT_BOUND) >= 0.9


def test_envoys_gradient_loses_half_of_the_work_when_lengths_differ(cache: Path) -> None:
    world = with_lengths(SLOT_BOUND, SPREAD)
    assert goodput("envoy-gradient", world, cache) <= 0.6


def test_without_control_nothing_useful_is_left(cache: Path) -> None:
    assert goodput("none", SLOT_BOUND, cache) <= 0.05
