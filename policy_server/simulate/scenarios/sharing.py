"""Scenarios 13, 14, 15, 19: who gets what under lasting overload."""

from __future__ import annotations

from dataclasses import replace

from policy_server.core.params import default_classes
from policy_server.core.request import PRIORITIES, Priority
from policy_server.simulate.policies.registry import NO_EARLY_DROP
from policy_server.simulate.record import End, Result, jain, quantile
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
from policy_server.simulate.workload import Flow, steady
from policy_server.simulate.world import World

SHARES = {priority: params.share for priority, params in default_classes().items()}
TENANTS = 10


def shares(bench: Bench) -> Measures:
    """13: however much the more important ask for, everybody keeps the guaranteed share."""
    unit, capacity = bench.calls_per_s(SLOT_BOUND), bench.capacity(SLOT_BOUND)
    both = replace(offered(SLOT_BOUND, unit, {P0: 0.75, P1: 0.75, P2: 0.5}), duration_s=420.0)
    first = bench.run(both, "P0 and P1 ask for 1.5C")
    alone = replace(offered(SLOT_BOUND, unit, {P0: 1.2, P1: 0.5, P2: 0.5}), duration_s=420.0)
    second = bench.run(alone, "P0 alone asks for 1.2C")

    def share(result: Result, priority: Priority) -> float:
        return result.goodput(120, 420, priority) / (SHARES[priority] * capacity)

    return {
        "P1 / its share": min(share(first, P1), share(second, P1)),
        "P2 / its share": min(share(first, P2), share(second, P2)),
        "goodput / C": min(r.goodput(120, 420) for r in (first, second)) / capacity,
        "moves of L": float(min(_moves(first), _moves(second))),
    }


def _moves(result: Result) -> int:
    return sum(abs(m.limit - m.previous) > 1e-6 for m in result.moves if m.at > 120)


def _tenants(world: World, unit: float, rates: list[float]) -> World:
    flows = tuple(
        Flow(steady(rate * unit), P1, tenant=f"t{index}") for index, rate in enumerate(rates)
    )
    return replace(world, flows=flows, duration_s=420.0)


def tenants(bench: Bench) -> Measures:
    """14: one tenant at ten times its part neither takes more nor makes the others wait."""
    unit, part = bench.calls_per_s(SLOT_BOUND), 1.0 / TENANTS
    backlogged = _tenants(SLOT_BOUND, unit, [10 * part] + [2 * part] * (TENANTS - 1))
    result = bench.run(backlogged, "all backlogged, one at 10x")
    served = [
        float(sum(c.tokens for c in result.calls if c.useful and c.tenant == f"t{index}"))
        for index in range(TENANTS)
    ]
    calm = [0.8 * part] * (TENANTS - 1)
    crowded = bench.run(_tenants(SLOT_BOUND, unit, [10 * part, *calm]), "one at 10x, the rest calm")
    fair = bench.run(_tenants(SLOT_BOUND, unit, [part, *calm]), "that one at its part")
    waits = [
        quantile(
            [
                c.wait_s if c.dispatched is not None else 15.0
                for c in run.arrived(60, 380)
                if c.tenant != "t0"
            ],
            0.99,
        )
        for run in (crowded, fair)
    ]
    return {
        "Jain": jain(served),
        # Alone they hardly wait; below half a second nobody can tell.
        "wait p99 of the others / alone": waits[0] / max(0.5, waits[1]),
    }


def early_drop(bench: Bench) -> Measures:
    """15: refuse those, and only those, who would wait in vain."""
    unit = bench.calls_per_s(SLOT_BOUND)
    world = offered(SLOT_BOUND, unit, {P0: 0.3, P1: 0.9, P2: 2.0})
    # Longer than what is measured: at the end of the load even a hopeless line is served.
    world = replace(world, duration_s=480.0)
    result = bench.run(world, "3x")
    measures = {}
    for priority in PRIORITIES:
        calls = result.arrived(60, 420, priority)
        expired = sum(c.evicted for c in calls)  # at its deadline, or in a sweep before it
        accepted = expired + sum(c.dispatched is not None for c in calls)
        measures[f"{priority.name} expired / accepted"] = expired / max(1, accepted)
    lenient = bench.run(world, "3x without early drop", name=NO_EARLY_DROP)
    refused = [
        other.end is End.SERVED
        for call, other in zip(result.calls, lenient.calls, strict=True)
        if call.end is End.REFUSED and 60 <= call.arrived < 420
    ]
    measures["refused who would have made it"] = sum(refused) / max(1, len(refused))
    return measures


def two_servers(bench: Bench) -> Measures:
    """19: two policy servers share one pool and know nothing of each other."""
    unit, capacity = bench.calls_per_s(SLOT_BOUND), bench.capacity(SLOT_BOUND)
    world = offered(SLOT_BOUND, unit, {P0: 0.3, P1: 0.5, P2: 2.2})
    result = bench.run(replace(world, duration_s=360.0, gateways=2), "two policy servers")
    return {
        "goodput / C": result.goodput(90, 360) / capacity,
        "P0 served": result.served_share(60, 350, P0),
    }


SHARING = (
    Scenario(
        13,
        "shares",
        "P0 and P1 at 1.5C; P0 alone at 1.2C",
        (
            at_least("P1 / its share", 0.8),
            at_least("P2 / its share", 0.8),
            at_least("goodput / C", 0.9),
            at_least("moves of L", 5),
        ),
        ("fixed-16", "fifo-drop", "vegas-e2e"),
        shares,
    ),
    Scenario(
        14,
        "tenants",
        "one tenant at ten times its part",
        (at_least("Jain", 0.95), at_most("wait p99 of the others / alone", 1.3)),
        ("fifo-drop", "always-max"),
        tenants,
    ),
    Scenario(
        15,
        "early-drop",
        "the quality of early drop at 3x",
        (
            at_most("P0 expired / accepted", 0.01),
            at_most("P1 expired / accepted", 0.01),
            at_most("P2 expired / accepted", 0.12),
            at_most("refused who would have made it", 0.1),
        ),
        ("fifo-drop", "no-early-drop", "fixed-16"),
        early_drop,
    ),
    Scenario(
        19,
        "two-servers",
        "two policy servers on one pool",
        (at_least("goodput / C", 0.9), at_least("P0 served", 0.97)),
        ("fixed-16", "always-max", "vegas-e2e"),
        two_servers,
    ),
)
