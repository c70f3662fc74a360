"""Scenario 24: the Azure code trace at 1x to 20x its speed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from policy_server.core.outcome import ShedReason
from policy_server.core.request import Priority
from policy_server.simulate.errors import InputError
from policy_server.simulate.record import Result, mean
from policy_server.simulate.scenarios.base import (
    P0,
    SLOT_BOUND,
    Bench,
    Measures,
    Scenario,
    at_least,
    at_most,
)
from policy_server.simulate.trace import DEFAULT_MIX, TraceRow, classify, read_trace
from policy_server.simulate.workload import PATIENT, Call, Lengths, Manner
from policy_server.simulate.world import World

TRACE = Path("tests/simulation/traces/AzureLLMInferenceTrace_code.csv")
SPEEDS = (1, 5, 10, 20)
STATIC = (16, 24, 32, 64)
CARRIED = 0.005  # of P0 shed in the bursts: the best that any static limit does at 1x


@dataclass(frozen=True, slots=True)
class Replay:
    """The calls of a trace at `speed` times its pace, as `World.calls` wants them."""

    rows: tuple[TraceRow, ...]
    speed: float = 1.0
    tenants: int = 4
    manner: Manner = PATIENT
    mix: tuple[tuple[Priority, float], ...] = tuple(DEFAULT_MIX.items())

    def __call__(self, seed: int) -> Iterator[Call]:
        for row, priority, tenant in classify(self.rows, seed, dict(self.mix), self.tenants):
            yield Call(row.at / self.speed, priority, tenant, row.prompt, row.output, self.manner)

    @property
    def lengths(self) -> Lengths:
        """Lognormal lengths with the same means and spreads."""
        prompt, prompt_sigma = _fit([row.prompt for row in self.rows])
        output, output_sigma = _fit([row.output for row in self.rows])
        return Lengths(prompt, prompt_sigma, output, output_sigma)

    @property
    def duration_s(self) -> float:
        """From the first to the last call."""
        return self.rows[-1].at / self.speed


def _fit(values: Sequence[int]) -> tuple[float, float]:
    """Mean, and the sigma of the logarithm that a lognormal of that mean and variance has."""
    centre = mean(values)
    variance = mean((value - centre) ** 2 for value in values)
    return centre, math.sqrt(math.log1p(variance / centre**2))


@lru_cache(maxsize=4)
def load(path: Path) -> tuple[TraceRow, ...]:
    """The rows, read once per process."""
    if not path.exists():
        raise InputError(f"{path} is not here: the scenario needs the source tree")
    return tuple(read_trace(path))


def replayed(world: World, replay: Replay) -> World:
    """The world with the trace as its clients."""
    return replace(world, calls=replay, duration_s=replay.duration_s, settle_s=60.0)


def azure(bench: Bench) -> Measures:
    """24: no P0 is shed at the load that the best static limit carries; beyond it, no less work.

    Prompts of 2,000 tokens and answers of 28: the engine is bound by prefill. From 2x on every
    static limit sheds P0 in the bursts.
    """
    carried = [0.0]
    goodput = []
    for speed in SPEEDS:
        world = replayed(SLOT_BOUND, Replay(load(TRACE), speed))
        result = bench.run(world, f"{speed}x")
        static = [
            bench.run(
                world.with_limit(replace(world.pool.limit, algorithm="fixed", initial=limit)),
                f"{speed}x, static {limit}",
                name="product",
            )
            for limit in STATIC
        ]
        best = max(static, key=lambda run: run.goodput(0, run.duration_s))
        if _p0_shed(best) <= CARRIED:
            carried.append(_p0_shed(result) - _p0_shed(best))
        goodput.append(
            result.goodput(0, result.duration_s) / max(1.0, best.goodput(0, best.duration_s))
        )
    return {
        "P0 shed beyond the best static, at a load it carries": max(carried),
        "goodput / best static": min(goodput),
    }


def _p0_shed(result: Result) -> float:
    calls = result.arrived(0, result.duration_s, P0)
    sheds = [s for s in result.sheds if s.priority is P0 and s.reason is not ShedReason.DRAINING]
    return len(sheds) / max(1, len(calls))


REPLAY = (
    Scenario(
        24,
        "azure",
        "the Azure code trace at 1x to 20x speed",
        (
            at_most("P0 shed beyond the best static, at a load it carries", 0.005),
            at_least("goodput / best static", 0.85),
        ),
        ("none", "envoy-gradient"),
        azure,
        max_seeds=5,
    ),
)
