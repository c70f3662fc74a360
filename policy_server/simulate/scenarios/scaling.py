"""Scenario 28: a pulse that only more replicas can serve, and an autoscaler that follows it.

One replica of eight runs at .4 of what it carries. At `START` the load is twenty times as much for
a minute: exactly what all eight carry. A new replica takes 28 s to start. Clients are SDKs, which
come back when they are told to. Beside the product with its own scaler: the product behind an
autoscaler on load (the CPU kind), the same without a room (whoever can't go at once is refused),
and no control at all.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from policy_server.core.params import ClassParams
from policy_server.core.request import PRIORITIES, Priority
from policy_server.simulate.autoscaler import Scaling, Signal
from policy_server.simulate.engine import EngineParams
from policy_server.simulate.gateway import Objectives
from policy_server.simulate.record import End, Result
from policy_server.simulate.scenarios.base import (
    P0,
    P1,
    P2,
    Bench,
    Measures,
    Scenario,
    at_least,
    at_most,
    offered,
)
from policy_server.simulate.workload import Manner
from policy_server.simulate.world import World

REPLICAS = 8
START, PULSE_S = 120.0, 60.0
AFTER_S = 300.0
BASE, TIMES = 0.4, 20.0
SHARES = {P0: 0.2, P1: 0.5, P2: 0.3}
SDK = Manner(sdk=True)
SMALL = World(engine=EngineParams(slots=16), objectives=Objectives(ttft_s=2.0))
BUCKET_S = 5.0
RECOVERED = 0.95
NEVER_S = 1000.0


def pulse_world(unit: float, signal: Signal) -> World:
    """The world, in multiples of what one replica carries."""
    flows = {
        priority: (
            (0.0, BASE * share),
            (START, TIMES * BASE * share),
            (START + PULSE_S, BASE * share),
        )
        for priority, share in SHARES.items()
    }
    world = replace(offered(SMALL, unit, flows, SDK), replicas=REPLICAS)
    world = replace(world, scaling=Scaling(signal=signal))
    return replace(world, duration_s=START + PULSE_S + AFTER_S, settle_s=60.0)


def without_room(world: World) -> World:
    """Nobody may wait: whoever can't go at once is refused."""
    classes = {
        priority: ClassParams(max_wait_s=1e-6, share=world.pool.classes[priority].share)
        for priority in PRIORITIES
    }
    return replace(world, pool=replace(world.pool, classes=classes))


def pulse(bench: Bench) -> Measures:
    """28: the pulse, with our scaler and beside the others."""
    unit = bench.calls_per_s(SMALL)
    world = pulse_world(unit, Signal.WAITING)
    ours = bench.run(world, "scaled on what waits")
    cpu = bench.run(pulse_world(unit, Signal.CPU), "scaled on load")
    bare = bench.run(without_room(world), "no room")
    wild = bench.run(pulse_world(unit, Signal.CPU), "no control, scaled on load", name="none")
    return {
        **_measures("", ours, unit),
        **_measures(", on load", cpu, unit),
        **_measures(", no room", bare, unit),
        **_measures(", no control", wild, unit),
    }


def _measures(label: str, result: Result, unit: float) -> dict[str, float]:
    end = START + PULSE_S
    return {
        f"P0 served{label}": served(result, START, end, P0),
        f"all served{label}": served(result, START, end),
        f"recovered s{label}": recovered_after(result),
        f"paid / needed{label}": paid(result) / needed(result, unit),
    }


def served(result: Result, start: float, end: float, priority: Priority | None = None) -> float:
    """Share of the calls that got a useful answer in the end, on whichever attempt."""
    calls = result.arrived(start, end, priority)
    good = sum(call.end is End.SERVED and call.useful for call in calls)
    return good / len(calls) if calls else 1.0


def recovered_after(result: Result) -> float:
    """Seconds from the start of the pulse after which P0 was served at once again for good."""
    last = 0.0
    at = START
    while at < START + PULSE_S + AFTER_S - BUCKET_S:
        calls = result.arrived(at, at + BUCKET_S, P0)
        good = sum(call.useful and call.attempts == 1 for call in calls)
        if calls and good / len(calls) < RECOVERED:
            last = at + BUCKET_S - START
        at += BUCKET_S
    return last if last < PULSE_S + AFTER_S - 2 * BUCKET_S else NEVER_S


def paid(result: Result) -> float:
    """Replica-seconds from the pulse on, cold starts included."""
    looks = [(at, asked) for at, asked, _ in result.replicas if at >= START]
    return sum(asked * (later - at) for (at, asked), (later, _) in pairwise(looks))


def needed(result: Result, unit: float) -> float:
    """Replica-seconds that the calls from the pulse on take on replicas that are always busy."""
    return len(result.arrived(START, result.duration_s)) / unit


SCALING = (
    Scenario(
        28,
        "pulse",
        "a pulse of 20x for a minute, replicas that take 28 s to start",
        (
            at_least("P0 served", 0.6),
            at_least("all served", 0.75),
            at_most("recovered s", 65.0),
        ),
        ("none", "always-min", "fixed-16"),
        pulse,
        max_seeds=5,
    ),
)
