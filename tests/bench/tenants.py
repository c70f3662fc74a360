"""One tenant at ten times its part beside one that keeps to its own; twenty that all want too much.

Same class, one engine, through Envoy. What B gets beside A is held against what it gets alone on
half of the seats, arrival by arrival the same: that is its part. Jain's index is taken over what
each of twenty backlogged tenants was served, one of them asking for five times as much as the
others. The control is the same load without names, where all wait in one line.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from policy_server.backend.engine import capacity
from policy_server.backend.params import EngineParams
from policy_server.load.params import LoadParams
from policy_server.load.results import LoadReport
from policy_server.load.runner import run_load
from tests.bench.folders import fresh
from tests.bench.result import Bar, Part
from tests.support.stack import running_stack

GOODPUT, WAIT_RATIO, JAIN = 0.95, 1.3, 0.95
NOTICED_S = 0.5
"""Alone one hardly waits; below half a second nobody can tell."""
STEP_MS = 20.0
"""Coarse, so that a busy machine does not blur it."""
NAMES, NO_NAMES = "header:x-tenant-id", "header:x-nobody"
COLUMNS = ("run", "offered req/s", "served req/s", "served %", "wait p50 s", "p99 s")


@dataclass(frozen=True, slots=True)
class Tenants:
    """What to run: an engine of `slots`, answers of `tokens`, `seconds` of load from `warmup_s`.

    `crowd` tenants for Jain's index.
    """

    slots: int = 8
    tokens: int = 25
    seconds: float = 60.0
    warmup_s: float = 10.0
    crowd: int = 20
    seed: int = 1

    @property
    def capacity_rps(self) -> float:
        """What the engine carries by its arithmetic."""
        params = EngineParams(max_num_seqs=self.slots, step_ms=STEP_MS, seq_ms=0.0)
        return capacity(params, self.tokens, PROMPT_TOKENS)


PROMPT_TOKENS = 64
BUSY = 0.97
"""The emulator's own part of its arithmetic; a queue at more than all of its part has no p99."""


def jain(values: Sequence[float]) -> float:
    """Jain's fairness index: 1 = all equal, 1/n = one has everything."""
    squares = sum(v * v for v in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 0.0


async def run(plan: Tenants, directory: Path, say: Callable[[str], None]) -> Part:
    """B alone, B beside A, the same without names, then the crowd."""
    title = f"tenants: {plan.slots} slots, {plan.seconds:g} s, class P1, open loop"
    part = Part("tenants", title, COLUMNS)
    share = 0.5 * BUSY * plan.capacity_rps
    say(f"tenants: the engine carries {plan.capacity_rps:.1f} requests/s; B asks for {share:.1f}")
    alone = await _beside(plan, directory, share, 0.0, plan.slots // 2, NAMES)
    beside = await _beside(plan, directory, share, 10 * share, plan.slots, NAMES)
    nameless = await _beside(plan, directory, share, 10 * share, plan.slots, NO_NAMES)
    for name, report in (
        ("B alone on half of the seats", alone),
        ("B beside A at 10x", beside),
        ("the same without names", nameless),
    ):
        part.rows.append([name, *_figures(report)])
    counts = await _crowd(plan, directory)
    index = jain([count["tokens"] for count in counts.values()])
    part.bars = _bars(alone, beside, nameless, index)
    part.notes.append(
        f"{plan.crowd} tenants: served {min(c['served'] for c in counts.values())} to "
        f"{max(c['served'] for c in counts.values())} requests each"
    )
    part.notes += [
        f"{name}: the load itself was up to {report.late_s:.2f} s late"
        for name, report in (("alone", alone), ("beside A", beside))
        if report.late_s > 0.2
    ]
    part.data = {"plan": asdict(plan), "jain": index, "crowd": counts}
    return part


def _bars(alone: LoadReport, beside: LoadReport, nameless: LoadReport, index: float) -> list[Bar]:
    whole = alone.measured.goodput_rps
    return [
        Bar.at_least("B's goodput / alone", beside.measured.goodput_rps / whole, GOODPUT),
        Bar.at_most("B's wait p99 / alone", wait_s(beside) / wait_s(alone), WAIT_RATIO),
        Bar.at_least("Jain over the crowd", index, JAIN),
        Bar.at_most("control without names: goodput", nameless.measured.goodput_rps / whole, 0.5),
    ]


def wait_s(report: LoadReport) -> float:
    """p99 of the wait in the room, as far as anyone notices it."""
    p99_ms = report.measured.total.queue_wait_ms.p99
    return max(NOTICED_S, (p99_ms or 0.0) / 1000)


def _figures(report: LoadReport) -> list[float | None]:
    measured = report.measured
    waits = measured.total.queue_wait_ms
    seconds = [None if ms is None else round(ms / 1000, 2) for ms in (waits.p50, waits.p99)]
    served = round(100 * measured.total.served_share, 1)
    return [round(report.offered_rps, 1), round(measured.goodput_rps, 2), served, *seconds]


async def _beside(
    plan: Tenants, directory: Path, b_rps: float, a_rps: float, seats: int, names: str
) -> LoadReport:
    """What B got, with A beside it or not."""
    async with _gateway(plan, directory, seats, names) as url:
        flood = asyncio.create_task(_load(plan, url, a_rps, "a", 1)) if a_rps else None
        report = await _load(plan, url, b_rps, "b", 2)
        if flood is not None:
            await flood
        return report


async def _load(plan: Tenants, url: str, rate: float, tenant: str, number: int) -> LoadReport:
    return await run_load(_params(plan, url, rate, {tenant: 1.0}, number))


def _params(
    plan: Tenants, url: str, rate: float, tenants: dict[str, float], number: int
) -> LoadParams:
    return LoadParams(
        url=url, rate=rate, seconds=plan.seconds, warmup_s=plan.warmup_s, drain_s=30.0,
        mix={"1": 1.0}, tenants=tenants, tokens=plan.tokens, prompt_tokens=PROMPT_TOKENS,
        seed=1000 * plan.seed + number,
    )  # fmt: skip


async def _crowd(plan: Tenants, directory: Path) -> dict[str, dict[str, int]]:
    """What each of many was served; each asks for twice its part, one for ten times."""
    weights = {f"t{n}": 2.0 if n else 10.0 for n in range(plan.crowd)}
    rate = plan.capacity_rps * sum(weights.values()) / plan.crowd
    async with _gateway(plan, directory, plan.slots, NAMES) as url:
        report = await run_load(_params(plan, url, rate, weights, 3))
    return report.tenants


@contextlib.asynccontextmanager
async def _gateway(plan: Tenants, directory: Path, seats: int, names: str) -> AsyncIterator[str]:
    limit = {"algorithm": "fixed", "initial": seats, "max": 1000}
    config: dict[str, Any] = {
        "pools": [{"name": "default", "limit": limit}],
        "tenants": {"from": names},
    }
    flags = ("--max-num-seqs", str(plan.slots), "--step-ms", str(STEP_MS), "--seq-ms", "0")
    async with running_stack(fresh(directory), config, flags) as stack:
        yield stack.url
