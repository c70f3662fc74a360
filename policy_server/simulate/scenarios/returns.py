"""Scenarios 16, 17, 21, 23, 29, 30: clients that come back, a restart, clients that hang up."""

from __future__ import annotations

from dataclasses import replace

from policy_server.core.params import LimitParams
from policy_server.core.request import PRIORITIES
from policy_server.simulate.engine import EngineParams
from policy_server.simulate.gateway import Objectives
from policy_server.simulate.record import End, Result, quantile
from policy_server.simulate.scenarios.base import (
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
)
from policy_server.simulate.workload import Flow, Lengths, Manner
from policy_server.simulate.world import Happening, What, World

SDK = Manner(sdk=True)
MIX = {P0: 0.1, P1: 0.3, P2: 0.6}  # of the offered load
COMMON = ("stream|7", "stream|8", "stream|9", "whole|7", "whole|8")
KEPT_MEMORY = 0.02
COLD_ENGINE = EngineParams(step_s=0.02, seq_s=0.0, slots=24)
COLD_TOKENS = 150
COLD_S = 15.0
TENANTS = 5
COLD = World(engine=COLD_ENGINE, objectives=Objectives(None, None)).with_limit(
    LimitParams("fixed", initial=COLD_ENGINE.slots)
)


def burst(bench: Bench) -> Measures:
    """16: after a burst, those who were told when to come back come back and are served."""
    unit, capacity = bench.calls_per_s(SLOT_BOUND), bench.capacity(SLOT_BOUND)
    start, end = 120.0, 150.0
    flows = {
        priority: ((0.0, 0.5 * part), (start, 3.0 * part), (end, 0.5 * part))
        for priority, part in MIX.items()
    }
    world = offered(SLOT_BOUND, unit, flows, SDK)
    result = bench.run(replace(world, duration_s=330.0, settle_s=60.0), "a burst of 30 s")
    returns = [back for back in result.returns if back.at >= start]
    until = max(end, quantile([back.at for back in returns], 0.9))
    return {
        "returns admitted": sum(back.admitted for back in returns) / max(1, len(returns)),
        "final 429": result.refused_share(start, end),
        "goodput while they return / C": result.goodput(start + 15, until) / capacity,
    }


def _cold(bench: Bench, seconds: float) -> Result:
    """3x from 15 s after the first call of all on a small slow engine, then half; five tenants.

    Also the plan of the live bench: whole answers of 3 s, 24 at once, the limit known.
    """
    unit = COLD_ENGINE.slots / (COLD_TOKENS * COLD_ENGINE.step_s)
    lengths = ((0.0, Lengths(8, 0.0, COLD_TOKENS, 0.0)),)
    manner = replace(SDK, streamed=False)
    steps = ((0.0, 0.5), (COLD_S, 3.0), (COLD_S + seconds, 0.5))
    flows = []
    for priority, part in MIX.items():
        for tenant in range(TENANTS):
            rate = tuple((at, times * part * unit / TENANTS) for at, times in steps)
            flows.append(Flow(rate, priority, f"t{tenant}", lengths, manner))
    end = COLD_S + seconds + 180.0
    world = replace(COLD, flows=tuple(flows), duration_s=end, settle_s=60.0)
    return bench.run(world, f"{seconds:g} s at 3x from cold")


def cold_burst(bench: Bench) -> Measures:
    """29: a burst of 30 s."""
    result = _cold(bench, 30.0)
    returns = [back for back in result.returns if back.at >= COLD_S]
    return {
        "returns admitted": sum(back.admitted for back in returns) / max(1, len(returns)),
        "final 429": result.refused_share(COLD_S, COLD_S + 30.0),
    }


def cold_sustained(bench: Bench) -> Measures:
    """30: ten minutes."""
    result, end = _cold(bench, 600.0), COLD_S + 600.0
    calls = result.arrived(COLD_S, end)
    return {"attempts / call": sum(c.attempts for c in calls) / max(1, len(calls))}


def sustained(bench: Bench) -> Measures:
    """17: ten minutes at 3x do not become a storm of retries."""
    unit = bench.calls_per_s(SLOT_BOUND)
    start, end = 60.0, 660.0
    flows = {
        priority: ((0.0, 0.5 * part), (start, 3.0 * part), (end, 0.5 * part))
        for priority, part in MIX.items()
    }
    world = replace(offered(SLOT_BOUND, unit, flows, SDK), duration_s=800.0, settle_s=60.0)
    result = bench.run(world, "sustained 3x with retries")
    patient = replace(offered(SLOT_BOUND, unit, flows), duration_s=800.0, settle_s=60.0)
    without = bench.run(patient, "sustained 3x without retries", name="product")
    calls = result.arrived(start, end)
    return {
        "attempts / call": sum(c.attempts for c in calls) / max(1, len(calls)),
        "goodput / without retries": result.goodput(75, end) / max(1.0, without.goodput(75, end)),
        "served 60 s after": result.served_share(end + 60, 800),
        "refusals of retries while kept": _needless_refusals(result),
    }


def _needless_refusals(result: Result) -> float:
    """Share of `x-should-retry: false` that was said while the class's promises were kept."""
    kept, needless, said = dict.fromkeys(PRIORITIES, 1.0), 0, 0
    returns = iter(sorted(result.returns, key=lambda back: back.at))
    following = next(returns, None)
    for shed in result.sheds:
        while following is not None and following.at <= shed.at:
            of_class = kept[following.priority]
            kept[following.priority] += KEPT_MEMORY * (following.admitted - of_class)
            following = next(returns, None)
        said += not shed.should_retry
        # A margin: the core's own average is not exactly this one.
        needless += not shed.should_retry and kept[shed.priority] > 0.6
    return needless / said if said else 0.0


def restart(bench: Bench) -> Measures:
    """21: the policy server dies under overload and is back after a second."""
    unit, capacity = bench.calls_per_s(SLOT_BOUND), bench.capacity(SLOT_BOUND)
    world = offered(SLOT_BOUND, unit, {P0: 0.3, P1: 0.5, P2: 2.2})
    world = replace(world, happenings=(Happening(180.0, What.RESTART, 1.0),))
    result = bench.run(replace(world, duration_s=360.0, settle_s=120.0), "restart at 180 s")
    lost = sum(call.end in (None, End.FAILED) for call in result.calls)
    return {
        "lost": float(lost + result.open_at_end),
        "run twice": float(result.run_twice),
        "goodput / C from 30 s on": result.goodput(211, 360) / capacity,
    }


def hang_ups(bench: Bench) -> Measures:
    """23: three of ten clients hang up in the middle of the answer."""
    unit = bench.calls_per_s(SLOT_BOUND)
    flows = []
    for streamed in (True, False):
        manner = Manner(streamed=streamed)
        leaves = replace(manner, quit_share=0.3)
        flows.append(Flow(((0.0, 0.75 * unit), (300.0, 0.0)), P1, manner=manner))
        flows.append(Flow(((300.0, 0.75 * unit),), P1, manner=leaves))
    world = replace(SLOT_BOUND, flows=tuple(flows), duration_s=600.0, settle_s=60.0)
    result = bench.run(world, "30 % hang up from 300 s on")
    before = next((values for at, values in result.learned if at >= 295), {})
    after = next((values for at, values in reversed(result.learned) if at <= 601), {})
    moved = [abs(after[key] / before[key] - 1) for key in before if _common(key) and key in after]
    return {
        "leases at the end": float(result.leases_at_end),
        "baselines move": max(moved, default=0.0),
        "goodput / before": result.goodput(360, 600) / max(1.0, result.goodput(60, 300)),
    }


def _common(key: str) -> bool:
    """The time per token, and TTFT of the sizes that are seen all the time.

    The rare ones still find their value, cancels or not.
    """
    return key.startswith("tpot") or key.endswith(COMMON)


RETURNS = (
    Scenario(
        16,
        "burst",
        "a burst of 30 s at 3x, SDK clients",
        (
            at_least("returns admitted", 0.8),
            at_most("final 429", 0.05),
            at_least("goodput while they return / C", 0.9),
        ),
        ("retry-after-1", "retry-after-random", "envoy-gradient"),
        burst,
    ),
    Scenario(
        17,
        "sustained",
        "ten minutes at 3x, SDK clients",
        (
            at_most("attempts / call", 1.4),
            at_least("goodput / without retries", 0.95),
            at_least("served 60 s after", 0.99),
            at_most("refusals of retries while kept", 0.0),
        ),
        ("retry-after-1", "retry-after-random", "always-max", "never-retry"),
        sustained,
    ),
    Scenario(
        29,
        "cold-burst",
        "a burst of 30 s at 3x on a slow engine, from cold, SDK clients of five tenants",
        (at_least("returns admitted", 0.7), at_most("final 429", 0.05)),
        ("retry-after-1", "retry-after-random"),
        cold_burst,
    ),
    Scenario(
        30,
        "cold-sustained",
        "ten minutes at 3x on a slow engine, from cold, SDK clients of five tenants",
        (at_most("attempts / call", 1.4),),
        ("retry-after-1", "retry-after-random"),
        cold_sustained,
    ),
    Scenario(
        21,
        "restart",
        "the policy server restarts under overload",
        (
            at_most("lost", 0),
            at_most("run twice", 0),
            at_least("goodput / C from 30 s on", 0.85),
        ),
        ("deaf", "doubling", "fixed-16"),
        restart,
    ),
    Scenario(
        23,
        "hang-ups",
        "30 % of the clients cancel mid-answer",
        (
            at_most("leases at the end", 0),
            at_most("baselines move", 0.05),
            at_least("goodput / before", 0.6),
        ),
        ("leaky", "gullible"),
        hang_ups,
    ),
)
