"""A live run through Envoy and the emulator, and the same arrivals in the simulator: they agree.

The live side is slow on purpose (steps of 60 ms), so that the machine that runs the test hardly
matters. Goodput, the limit and the classes' waits agree within a tenth, or within what one
request more or less makes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from policy_server.core.params import LimitParams, PoolParams
from policy_server.core.request import Priority
from policy_server.load.params import LoadParams
from policy_server.load.results import LoadReport
from policy_server.load.runner import run_load
from policy_server.load.workload import arrivals
from policy_server.simulate.engine import EngineParams
from policy_server.simulate.gate import POOL, CoreGate, Gate
from policy_server.simulate.gateway import Objectives
from policy_server.simulate.record import Result, mean, quantile
from policy_server.simulate.run import run
from policy_server.simulate.seeds import stream
from policy_server.simulate.workload import Call, Lengths, Manner
from policy_server.simulate.world import World, core_params
from tests.support.stack import Stack, running_stack

SLOTS, STEP_MS, SEQ_MS = 24, 40.0, 1.0
BACKEND = ("--max-num-seqs", f"{SLOTS}", "--step-ms", f"{STEP_MS}", "--seq-ms", f"{SEQ_MS}")
BEGIN_S, END_S = 20.0, 60.0
WITHIN = 0.10
WAIT_WITHIN = 0.25  # one run, a busy machine: medians of waits were seen 4 to 11 % apart
ENOUGH = 30


def load_of(url: str) -> LoadParams:
    return LoadParams(
        url=url,
        rate=28.0,
        seconds=END_S,
        warmup_s=BEGIN_S,
        mix={"0": 0.1, "1": 0.3, "2": 0.6},
        tokens=40,
        sigma=0.5,
        stream=True,
        seed=3,
        drain_s=60.0,
    )


@dataclass(frozen=True, slots=True)
class Recorded:
    """The load's arrivals as calls of the simulator."""

    params: LoadParams

    def __call__(self, seed: int) -> Iterator[Call]:
        for arrival in arrivals(self.params):
            priority = Priority(int(arrival.priority))
            yield Call(
                arrival.at_s,
                priority,
                "",
                self.params.prompt_tokens,
                arrival.tokens,
                Manner(streamed=True),
            )

    @property
    def lengths(self) -> Lengths:
        return Lengths(self.params.prompt_tokens, 0.0, self.params.tokens, self.params.sigma)


def simulated(params: LoadParams) -> Result:
    world = World(
        engine=EngineParams(step_s=STEP_MS / 1000, seq_s=SEQ_MS / 1000, slots=SLOTS),
        calls=Recorded(params),
        duration_s=END_S,
        settle_s=60.0,
        objectives=Objectives(None, None),
        # So few tokens per second that the live gate observes every answer.
        pool=PoolParams(POOL, limit=LimitParams(), observe_messages_per_s=100_000.0),
    )

    def core(w: World, seed: int) -> Gate:
        return CoreGate([core_params(w)], stream(seed, "core"))

    return run(replace(world), core, 1)


async def watch_limit(stack: Stack, limits: list[float]) -> None:
    """The live limit once a second inside the window."""
    started = asyncio.get_running_loop().time()
    while (at := asyncio.get_running_loop().time() - started) < END_S:
        if at >= BEGIN_S:
            limits.append(float((await stack.pool())["limit"]))
        await asyncio.sleep(1.0)


async def live(directory: Path) -> tuple[LoadReport, float]:
    limits: list[float] = []
    async with running_stack(directory, {}, backend=BACKEND) as stack:
        watching = asyncio.create_task(watch_limit(stack, limits))
        report = await run_load(load_of(stack.url))
        await watching
    return report, mean(limits)


async def test_a_live_run_and_its_simulation_agree_within_a_tenth(tmp_path: Path) -> None:
    report, limit = await live(tmp_path)
    result = simulated(report.params)
    assert report.measured.goodput_tps == pytest.approx(result.goodput(BEGIN_S, END_S), rel=WITHIN)
    assert limit == pytest.approx(mean(result.limits(BEGIN_S, END_S)), rel=WITHIN)
    for priority in Priority:
        seen = report.measured.classes[priority.name]
        served = result.served_share(BEGIN_S, END_S, priority)
        assert seen.served_share == pytest.approx(served, abs=WITHIN), priority
        waits = result.waits(BEGIN_S, END_S, priority)
        if len(waits) < ENOUGH:
            continue  # a median of a few says nothing
        live_s = (seen.queue_wait_ms.p50 or 0.0) / 1000
        assert live_s == pytest.approx(quantile(waits, 0.5), rel=WAIT_WITHIN, abs=0.5), priority
