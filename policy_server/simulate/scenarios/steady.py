"""Scenarios 1, 2, 7, 9, 18, 20, 22, 25: the limit under a load that does not change."""

from __future__ import annotations

from dataclasses import replace

from policy_server.simulate.engine import EngineParams
from policy_server.simulate.gateway import Objectives
from policy_server.simulate.record import mean, quantile, spread, variation
from policy_server.simulate.scenarios.base import (
    DECODE_BOUND,
    KV_BOUND,
    P0,
    P1,
    P2,
    SLOT_BOUND,
    Bench,
    Measures,
    Scenario,
    at_least,
    at_most,
    offered,
    tail,
    with_lengths,
)
from policy_server.simulate.workload import Lengths, Manner
from policy_server.simulate.world import Happening, What, World

CEILING = 1000.0
HOUR_S = 3600.0
BACKLOGS = (2.7, 3.0, 3.3, 3.6)  # times C: any of them keeps the limit busy


def _backlog(bench: Bench, world: World, times: float, duration_s: float) -> World:
    unit = bench.calls_per_s(world)
    return replace(offered(world, unit, {P1: times}), duration_s=duration_s)


def initial_limits(bench: Bench) -> Measures:
    """1: wherever the limit starts, it ends at the same goodput."""
    world = _backlog(bench, SLOT_BOUND, 3.0, 240.0)
    goodputs = []
    for initial in (2.0, 16.0, 64.0, 200.0, CEILING):
        limit = replace(world.pool.limit, initial=initial)
        result = bench.run(world.with_limit(limit), f"initial limit {initial:g}")
        goodputs.append(result.goodput(90, 240) / bench.capacity(world))
    return {"goodput / C": min(goodputs), "spread": spread(goodputs)}


def engines(bench: Bench) -> Measures:
    """2: one set of constants on engines bound by decoding, by the KV cache, by slots."""
    measures = {}
    for name, world in (("decode", DECODE_BOUND), ("KV", KV_BOUND), ("slots", SLOT_BOUND)):
        result = bench.run(_backlog(bench, world, 3.0, 390.0), f"{name}-bound")
        measures[f"{name}: goodput / C"] = result.goodput(90, 390) / bench.capacity(world)
        measures[f"{name}: std(L)/L"] = variation(result.limits(90, 390))
    return measures


def length_variance(bench: Bench) -> Measures:
    """7: the spread of answer lengths must not look like a queue."""
    measures = {}
    for sigma in (0.3, 0.9, 1.5):
        world = with_lengths(SLOT_BOUND, Lengths(output_sigma=sigma))
        result = bench.run(_backlog(bench, world, 3.0, 390.0), f"σ = {sigma}")
        measures[f"σ {sigma}: goodput / C"] = result.goodput(90, 390) / bench.capacity(world)
    return measures


def long_haul(bench: Bench) -> Measures:
    """9: a day of backlog must not move the limit, nor a quiet night the baselines."""
    engine = World(engine=EngineParams(slots=1000), tick_s=10.0)
    engine = with_lengths(engine, Lengths(output=800.0))
    world = _backlog(bench, engine, 1.2, 24 * HOUR_S)
    limits = bench.run(world, "24 h backlog").limits(300, world.duration_s)
    per_window = round(600 / world.tick_s)
    first = mean(limits[:per_window])
    windows = [
        mean(limits[start : start + per_window])
        for start in range(0, len(limits) - per_window + 1, per_window)
    ]
    morning = 600 + 8 * HOUR_S
    quiet: tuple[tuple[float, float], ...] = ((0.0, 0.6), (600.0, 0.0), (morning, 0.6))
    unit = bench.calls_per_s(engine)
    # So short a morning that nothing is learned anew: what moved, moved by itself.
    idle = replace(offered(engine, unit, {P1: quiet}), duration_s=morning + 5)
    result = bench.run(idle, "a quiet night")
    before = next((values for at, values in result.learned if at >= 600), {})
    after = result.learned[-1][1]
    # Downwards is no drift: the first answer alone on the engine is a better proof.
    risen = [after[key] / before[key] - 1 for key in before if key in after]
    return {
        "max L / L at 10 min": max(windows) / first,
        "rise of a baseline overnight": max(0.0, *risen) if risen else 0.0,
    }


def feedback_lag(bench: Bench) -> Measures:
    """18: answers that take 15–30 s and are not streamed tell about themselves very late."""
    world = with_lengths(SLOT_BOUND, Lengths(output=800.0, output_sigma=0.25))
    unit = bench.calls_per_s(world)
    world = replace(offered(world, unit, {P1: 3.0}, Manner(streamed=False)), duration_s=1200.0)
    result = bench.run(world, "not streamed, 20 s answers")
    limits = result.limits(600, 1200)
    middle = quantile(limits, 0.5)
    off = max(abs(limit / middle - 1) for limit in limits)
    return {
        "max |L − median| / median": off,
        "goodput / C": result.goodput(600, 1200) / bench.capacity(world),
    }


def long_prompts(bench: Bench) -> Measures:
    """20: prompts of 8k tokens take long to prefill; that is no queue."""
    lengths = Lengths(long_share=0.1)
    world = with_lengths(SLOT_BOUND, lengths)
    unit = bench.calls_per_s(world)
    light = replace(offered(world, unit, {P1: 0.5}), duration_s=1500.0)
    result = bench.run(light, "10 % long prompts at half load")
    cuts = sum(move.limit < move.previous - 1e-9 for move in result.moves if move.at > 60)
    full = bench.run(_backlog(bench, world, 3.0, 300.0), "10 % long prompts at 3x")
    return {
        "cuts at half load": float(cuts),
        "goodput / C at 3x": full.goodput(100, 300) / bench.capacity(world),
    }


def outlier(bench: Bench) -> Measures:
    """22: one first token five times too early (a cached prompt) must not poison the baseline."""
    # Prompts so long that their unloaded TTFT counts against the bound of the delay.
    cached = Lengths(prompt=16_000.0, prompt_sigma=0.1, output=400.0)
    world = with_lengths(replace(SLOT_BOUND, replicas=4), cached)
    before, after, goodputs = [], [], []
    # One window in which L takes another step, and two runs go separate ways, up or down by a
    # tenth: that is luck. What an outlier does to the baseline goes one way in every pair.
    for times in BACKLOGS:
        plain = _backlog(bench, world, times, 600.0)
        odd = replace(plain, happenings=(Happening(150.0, What.OUTLIER, 5.0),))
        before.append(mean(bench.run(plain, "without the outlier").limits(160, 600)))
        result = bench.run(odd, "one outlier")
        after.append(mean(result.limits(160, 600)))
        goodputs.append(result.goodput(200, 600) / bench.capacity(world))
    return {"change of L": abs(mean(after) / mean(before) - 1), "goodput / C": min(goodputs)}


def small_engines(bench: Bench) -> Measures:
    """25: on engines of 1, 2 and 4 slots a standing queue is a queue of whole answers."""
    measures = {}
    for slots in (1, 2, 4):
        # C is plain throughput: what a queue in the engine costs is in P0's TTFT.
        world = World(engine=EngineParams(slots=slots), objectives=Objectives(None, None))
        world = with_lengths(world, Lengths(output_sigma=0.3))
        unit = bench.calls_per_s(world)
        busy = replace(offered(world, unit, {P0: 0.07, P1: 0.5, P2: 2.4}), duration_s=6000.0)
        result = bench.run(busy, f"{slots} slots")
        ttft = tail(result.ttfts(100, 5900, P0))
        if slots == 1:
            # Even a limit of 1 makes P0 wait 1.4 to 1.7 services: whoever is served is not
            # interrupted, and now and then another P0 was first.
            one = replace(busy.pool.limit, algorithm="fixed", initial=1.0)
            best = bench.run(busy.with_limit(one), "1 slot, limit 1", name="product")
            measures["1 slot: P0 TTFT p99 / at limit 1"] = ttft / tail(best.ttfts(100, 5900, P0))
        else:
            measures[f"{slots} slots: P0 TTFT p99 / service"] = ttft * unit / slots
        measures[f"{slots} slots: goodput / C"] = result.goodput(100, 6000) / bench.capacity(world)
    return measures


STEADY = (
    Scenario(
        1,
        "initial-limits",
        "wherever the limit starts",
        (at_least("goodput / C", 0.9), at_most("spread", 0.1)),
        ("fixed-16", "always-max", "vegas-e2e", "aimd"),
        initial_limits,
    ),
    Scenario(
        2,
        "engines",
        "decode-, KV- and slot-bound engines, one set of constants",
        tuple(
            bar
            for name in ("decode", "KV", "slots")
            for bar in (
                at_least(f"{name}: goodput / C", 0.92),
                at_most(f"{name}: std(L)/L", 0.15),
            )
        ),
        ("fixed-16", "always-max", "gradient2", "aimd", "vegas-tpot", "envoy-gradient"),
        engines,
    ),
    Scenario(
        7,
        "length-variance",
        "answer lengths σ .3 → 1.5",
        tuple(at_least(f"σ {sigma}: goodput / C", 0.93) for sigma in (0.3, 0.9, 1.5)),
        ("vegas-e2e", "fixed-16", "envoy-gradient"),
        length_variance,
    ),
    Scenario(
        9,
        "long-haul",
        "24 h of backlog without an objective; a quiet night",
        (at_most("max L / L at 10 min", 1.15), at_most("rise of a baseline overnight", 0.02)),
        ("gradient2", "leaking"),
        long_haul,
        max_seeds=2,
    ),
    Scenario(
        18,
        "feedback-lag",
        "feedback 15–30 s late",
        (at_most("max |L − median| / median", 0.25), at_least("goodput / C", 0.8)),
        ("vegas-e2e", "always-max", "envoy-gradient"),
        feedback_lag,
    ),
    Scenario(
        20,
        "long-prompts",
        "10 % of the prompts have 8k tokens",
        (at_most("cuts at half load", 0), at_least("goodput / C at 3x", 0.85)),
        ("vegas-tpot", "vegas-e2e", "fixed-16", "always-max"),
        long_prompts,
    ),
    Scenario(
        22,
        "outlier",
        "one first token five times too early",
        (at_most("change of L", 0.1), at_least("goodput / C", 0.8)),
        ("poisonable", "fixed-16", "always-max", "vegas-e2e"),
        outlier,
    ),
    Scenario(
        25,
        "small-engines",
        "engines of 1, 2 and 4 slots at 3x",
        (
            at_most("1 slot: P0 TTFT p99 / at limit 1", 2.5),
            *(at_most(f"{slots} slots: P0 TTFT p99 / service", 1.5) for slots in (2, 4)),
            *(at_least(f"{slots} slots: goodput / C", 0.9) for slots in (1, 2, 4)),
        ),
        ("fixed-16", "always-max", "fifo-drop", "always-min"),
        small_engines,
    ),
)
