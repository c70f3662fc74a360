"""Scenarios 3, 4, 5, 6, 8, 10, 11, 12: the load or the engine changes under way."""

from __future__ import annotations

from dataclasses import replace

from policy_server.core.outcome import ShedReason
from policy_server.core.params import default_classes
from policy_server.simulate.engine import EngineParams
from policy_server.simulate.record import Result
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
    tail,
    with_lengths,
)
from policy_server.simulate.workload import Lengths, Manner
from policy_server.simulate.world import Happening, What, World

SHARES = {priority: params.share for priority, params in default_classes().items()}
SDK = Manner(sdk=True)
OVERLOAD = {P0: 0.2, P1: 0.6, P2: 2.2}


def step(bench: Bench) -> Measures:
    """3: a step to 3x with all classes, for five minutes."""
    unit, capacity = bench.calls_per_s(SLOT_BOUND), bench.capacity(SLOT_BOUND)
    shares = {P0: ((0.0, 0.15), (60.0, 0.3)), P1: ((0.0, 0.25), (60.0, 0.5))}
    world = offered(SLOT_BOUND, unit, {**shares, P2: ((0.0, 0.1), (60.0, 2.2))})
    result = bench.run(replace(world, duration_s=360.0, settle_s=60.0), "a step to 3x")
    p0_refusals = sum(shed.priority is P0 for shed in result.sheds)
    return {
        "goodput / C": result.goodput(75, 360) / capacity,
        "P0 served": result.served_share(60, 360, P0),
        "P0 wait p99, s": tail(result.waits(60, 360, P0)),
        "P0 refusals": float(p0_refusals),
        "P1 served": result.served_share(60, 360, P1),
        "P2 / its share": result.goodput(75, 360, P2) / (SHARES[P2] * capacity),
    }


def spike(bench: Bench) -> Measures:
    """4: the batch class alone goes to twelve times its load, from just below C to 3x."""
    unit = bench.calls_per_s(SLOT_BOUND)
    batch = ((0.0, 0.18), (180.0, 2.2), (300.0, 0.18))
    world = offered(SLOT_BOUND, unit, {P0: 0.3, P1: 0.5, P2: batch})
    result = bench.run(replace(world, duration_s=360.0, settle_s=30.0), "12x spike of P2")
    before, during = tail(result.ttfts(60, 180, P0)), tail(result.ttfts(180, 300, P0))
    return {
        "P0 served": result.served_share(180, 360, P0),
        "P0 TTFT p99 / before": during / before,
    }


def _changed(bench: Bench, world: World, happenings: tuple[Happening, ...], end: float) -> Result:
    unit = bench.calls_per_s(world)
    loaded = offered(world, unit, OVERLOAD, SDK)
    return bench.run(
        replace(loaded, happenings=happenings, duration_s=end, settle_s=60.0),
        "; ".join(f"{h.what.value} {h.value:g} at {h.at:g} s" for h in happenings),
    )


def capacity_halves(bench: Bench) -> Measures:
    """5: half of the slots vanish and return; one of two replicas dies and returns."""
    slots = (Happening(180.0, What.SLOTS, 32), Happening(360.0, What.SLOTS, 64))
    result = _changed(bench, SLOT_BOUND, slots, 540.0)
    half = replace(SLOT_BOUND, engine=EngineParams(slots=32))
    pair = replace(half, replicas=2)
    dies = (Happening(180.0, What.KILL, 0, 1), Happening(360.0, What.REVIVE, 0, 1))
    replica = _changed(bench, pair, dies, 540.0)
    return {
        "slots: goodput / new C": result.goodput(240, 360) / bench.capacity(half),
        "slots: goodput / C after": result.goodput(460, 540) / bench.capacity(SLOT_BOUND),
        "replica: goodput / new C": replica.goodput(240, 360) / bench.capacity(half),
        "replica: goodput / C after": replica.goodput(460, 540) / bench.capacity(pair),
        "P0 answered": result.answered_share(60, 540, P0),
    }


def longer_answers(bench: Bench) -> Measures:
    """6: from one moment on, answers are four times longer."""
    short, long = Lengths(), Lengths(output=800.0)
    unit = bench.calls_per_s(with_lengths(SLOT_BOUND, short))
    world = offered(with_lengths(SLOT_BOUND, short, (180.0, long)), unit, {P1: 3.0})
    result = bench.run(replace(world, duration_s=380.0), "answers four times longer at 180 s")
    new = bench.capacity(with_lengths(SLOT_BOUND, long))
    return {"goodput / new C": result.goodput(200, 380) / new}


def lull(bench: Bench) -> Measures:
    """8: five quiet minutes must not make it forget what the engine takes."""
    unit = bench.calls_per_s(SLOT_BOUND)
    rate = ((0.0, 3.0), (180.0, 0.2), (480.0, 3.0))
    result = bench.run(
        replace(offered(SLOT_BOUND, unit, {P1: rate}), duration_s=560.0), "a lull of 5 min"
    )
    return {
        "L / before": result.limit_at(479.0) / result.limit_at(179.0),
        "goodput / C": result.goodput(510, 540) / bench.capacity(SLOT_BOUND),
    }


def slower(bench: Bench) -> Measures:
    """10: every step takes 1.5 times as long, for good."""
    result = _changed(bench, SLOT_BOUND, (Happening(180.0, What.SPEED, 1.5),), 420.0)
    was = EngineParams(slots=64)
    now = replace(
        was,
        step_s=1.5 * was.step_s,
        seq_s=1.5 * was.seq_s,
        prefill_token_s=1.5 * was.prefill_token_s,
    )
    new = bench.capacity(replace(SLOT_BOUND, engine=now))
    return {
        "goodput / new C": result.goodput(240, 420) / new,
        "P0 answered": result.answered_share(60, 420, P0),
    }


def stall(bench: Bench) -> Measures:
    """11: the engine does nothing for 30 s."""
    result = _changed(bench, SLOT_BOUND, (Happening(180.0, What.STALL, 30.0),), 420.0)
    # The window in which the stall began still closes on what was before.
    peak = max(result.limits(185, 211))
    return {
        "L in the stall / before": peak / result.limit_at(184.0),
        "goodput / before": result.goodput(280, 420) / max(1e-9, result.goodput(60, 180)),
        "P0 answered": result.answered_share(60, 420, P0),
    }


def below_capacity(bench: Bench) -> Measures:
    """12: at 70 % load nobody should notice that there is a limit."""
    unit = bench.calls_per_s(SLOT_BOUND)
    world = offered(SLOT_BOUND, unit, {P0: 0.14, P1: 0.35, P2: 0.21})
    result = bench.run(replace(world, duration_s=900.0, settle_s=60.0), "70 % load")
    calls = result.arrived(60, 900)
    sheds = [s for s in result.sheds if s.at >= 60 and s.reason is not ShedReason.DRAINING]
    return {
        "shed share": len(sheds) / len(calls),
        "room wait p99, s": tail(result.waits(60, 900)),
    }


CHANGE = (
    Scenario(
        3,
        "step",
        "a step to 3x with mixed classes",
        (
            at_least("goodput / C", 0.92),
            at_least("P0 served", 0.97),
            at_most("P0 wait p99, s", 1.0),
            at_most("P0 refusals", 0),
            at_least("P1 served", 0.9),
            at_least("P2 / its share", 0.8),
        ),
        ("fifo-drop", "fixed-16", "always-max", "vegas-e2e"),
        step,
    ),
    Scenario(
        4,
        "spike",
        "a 12x spike of the batch class",
        (at_least("P0 served", 0.994), at_most("P0 TTFT p99 / before", 2.5)),
        ("fifo-drop", "always-max", "none"),
        spike,
    ),
    Scenario(
        5,
        "capacity-halves",
        "capacity halves and comes back",
        (
            at_least("slots: goodput / new C", 0.85),
            at_least("slots: goodput / C after", 0.85),
            at_least("replica: goodput / new C", 0.85),
            at_least("replica: goodput / C after", 0.85),
            at_least("P0 answered", 0.97),
        ),
        ("fixed-16", "always-max", "fifo-drop", "vegas-e2e"),
        capacity_halves,
    ),
    Scenario(
        6,
        "longer-answers",
        "answers become four times longer",
        (at_least("goodput / new C", 0.75),),
        ("vegas-e2e", "fixed-16"),
        longer_answers,
    ),
    Scenario(
        8,
        "lull",
        "a lull of five minutes at 20 %, then 3x",
        (at_least("L / before", 0.5), at_least("goodput / C", 0.85)),
        ("vegas-e2e", "fixed-16", "always-max", "short-memory"),
        lull,
    ),
    Scenario(
        10,
        "slower",
        "the engine becomes 1.5x slower for good",
        (at_least("goodput / new C", 0.9), at_least("P0 answered", 0.97)),
        ("fixed-16", "always-max", "fifo-drop"),
        slower,
    ),
    Scenario(
        11,
        "stall",
        "the engine stalls for 30 s",
        (
            at_most("L in the stall / before", 1.001),
            at_least("goodput / before", 0.88),
            at_least("P0 answered", 0.97),
        ),
        ("blind-growth", "gradient2", "always-max", "fifo-drop"),
        stall,
    ),
    Scenario(
        12,
        "below-capacity",
        "70 % load, Poisson",
        (at_most("shed share", 0.002), at_most("room wait p99, s", 0.06)),
        ("fixed-16", "vegas-e2e", "envoy-gradient"),
        below_capacity,
    ),
)
