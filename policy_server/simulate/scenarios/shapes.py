"""Scenarios 26 and 27: engines that no constant was tuned on, and pools that are not uniform."""

from __future__ import annotations

from dataclasses import replace

from policy_server.core.request import Priority
from policy_server.simulate.engine import EngineParams
from policy_server.simulate.gateway import Objectives
from policy_server.simulate.plain import PlainParams
from policy_server.simulate.scenarios.base import (
    P0,
    P1,
    P2,
    SLOT_BOUND,
    Bar,
    Bench,
    Measures,
    Scenario,
    Steps,
    at_least,
    offered,
    with_lengths,
)
from policy_server.simulate.workload import Lengths
from policy_server.simulate.world import World

OFFERED: dict[Priority, float | Steps] = {P0: 0.3, P1: 0.5, P2: 2.2}
WARM_S = 150.0
END_S = 400.0
SETTLE_S = 120.0  # whoever came last gets the time to be answered: 1,000 tokens at 0.1 s
ENDS_S = {"processor": 2650.0}
"""The processor ends one answer in two seconds: 250 s would measure the luck of 125 lengths,
worth ± 6 %, and of 27 calls of P0."""

HELD_OUT = {
    # A sparse model: long steps that hardly grow with the batch, cheap prefill.
    "sparse": with_lengths(
        World(
            engine=EngineParams(step_s=0.018, seq_s=5e-5, prefill_token_s=12e-6, slots=256),
        ),
        Lengths(),
    ),
    # A large dense model: dear prefill, a KV cache for some fifty answers.
    "large": with_lengths(
        World(
            engine=EngineParams(
                step_s=0.034, seq_s=6e-4, prefill_token_s=180e-6, slots=96, kv_tokens=60_000
            ),
        ),
        Lengths(prompt=900.0, output=250.0),
    ),
    # Very many slots, long answers: the limit has a long way from 16.
    "wide": with_lengths(
        World(engine=EngineParams(step_s=0.025, seq_s=1e-5, prefill_token_s=20e-6, slots=512)),
        Lengths(output=400.0),
    ),
    # A processor instead of a GPU: 0.2 s per token, 4 ms per token of the prompt.
    "processor": with_lengths(
        World(
            engine=EngineParams(step_s=0.09, seq_s=0.012, prefill_token_s=4e-3, slots=8),
            objectives=Objectives(None, None),
        ),
        Lengths(prompt=150.0, output=80.0),
    ),
}
ODD = {
    "unequal replicas": replace(SLOT_BOUND, replicas=4, speeds=(1.0, 1.0, 1.5, 2.0)),
    "two models": replace(
        SLOT_BOUND,
        replicas=4,
        speeds=(1.0, 1.0, 2.0, 2.0),
        models=("small", "small", "large", "large"),
    ),
    "prompt cache": with_lengths(
        World(engine=EngineParams(cached_share=0.6)), Lengths(prompt=4000.0, prompt_sigma=0.4)
    ),
    "embeddings": with_lengths(
        World(engine=PlainParams(servers=4, service_s=0.04, sigma=0.5)), Lengths(output=1.0)
    ),
}


def _at_three_times(bench: Bench, worlds: dict[str, World]) -> Measures:
    measures = {}
    for name, world in worlds.items():
        unit, end = bench.calls_per_s(world), ENDS_S.get(name, END_S)
        busy = replace(_of_models(offered(world, unit, OFFERED)), duration_s=end, settle_s=SETTLE_S)
        result = bench.run(busy, name)
        measures[f"{name}: goodput / C"] = result.goodput(WARM_S, end) / bench.capacity(world)
        measures[f"{name}: P0 served"] = result.served_share(WARM_S, end, P0)
    return measures


def _of_models(world: World) -> World:
    """Every flow in equal parts for each model."""
    models = sorted(set(world.models)) or [""]
    flows = tuple(
        replace(flow, model=model, rate=tuple((at, rate / len(models)) for at, rate in flow.rate))
        for flow in world.flows
        for model in models
    )
    return replace(world, flows=flows)


def held_out(bench: Bench) -> Measures:
    """26: the same constants on engines outside the tuning set, cold start, 3x."""
    return _at_three_times(bench, HELD_OUT)


def odd_pools(bench: Bench) -> Measures:
    """27: replicas of unequal speed, prompts that are partly cached, answers without tokens."""
    return _at_three_times(bench, ODD)


def _bars(names: dict[str, World], goodput: float) -> tuple[Bar, ...]:
    return tuple(
        bar
        for name in names
        for bar in (
            at_least(f"{name}: goodput / C", goodput),
            # On the processor a slot comes free every two seconds, and P0 waits at most five.
            at_least(f"{name}: P0 served", 0.9 if name == "processor" else 0.97),
        )
    )


SHAPES = (
    Scenario(
        26,
        "held-out",
        "engines outside the tuning set",
        _bars(HELD_OUT, 0.9),
        ("fixed-16", "always-max", "vegas-e2e", "gradient2"),
        held_out,
    ),
    Scenario(
        27,
        "odd-pools",
        "unequal replicas, two models, prompt cache, embeddings",
        _bars(ODD, 0.9),
        ("fixed-16", "always-max", "vegas-e2e"),
        odd_pools,
    ),
)
