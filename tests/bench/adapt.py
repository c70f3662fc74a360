"""The limit live: from a cold start, when half of the engine goes, and when it comes back.

Streamed and not streamed, three times the capacity. The yardstick is the best fixed limit, found by
a sweep in the same run through the same Envoy. Goodput is counted by the engine, as in `overload`.

    cold     60 s from a limit of 16, counted in the last 30; Envoy's adaptive_concurrency beside
    halved   the engine keeps half of its slots; counted from 40 s after on
    back     all slots are there again; counted from 60 s after on

The same load is simulated, too: where the two differ by more than a tenth, one of them is wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import aiohttp

from policy_server.load.runner import run_load
from tests.bench.adapt_simulated import Twin
from tests.bench.contenders import OURS, Way, generated_per_s, running_way
from tests.bench.meter import sampling
from tests.bench.overload import Case, Overload, load_params, measured_case, outcome_of
from tests.bench.result import Bar, Part

COLD, CHANGED, AGREE = 0.95, 0.85, 0.1


@dataclass(frozen=True, slots=True)
class Adapt:
    """What to run. Seconds; `sweep` are fixed limits in multiples of the slots."""

    slots: int = 40
    sigma: float = 0.9
    sweep: tuple[float, ...] = (0.75, 1.0, 1.5, 3.0)
    sweep_s: float = 30.0
    cold_s: float = 60.0
    halved_after_s: float = 40.0
    back_after_s: float = 60.0
    counted_s: float = 20.0
    alone_s: float = 15.0
    kinds: tuple[str, ...] = ("streamed", "whole")
    seed: int = 1

    @property
    def change_s(self) -> float:
        """The whole run with the changes in it."""
        return self.cold_s + self.halved_after_s + self.back_after_s + 2 * self.counted_s


async def run(plan: Adapt, directory: Path, say: Callable[[str], None]) -> Part:
    """Both kinds in turn."""
    part = Part(
        "adapt",
        f"adapt: {plan.slots} slots, 3x capacity; goodput as a share of the backend alone",
        ("answers", "what", "goodput", "of the best fixed", "limit"),
    )
    part.data = {"plan": asdict(plan)}
    for kind in plan.kinds:
        load = Overload(
            seconds=plan.sweep_s, warmup_s=plan.sweep_s / 2, patience_s=5.0, alone_s=plan.alone_s,
            stream=kind == "streamed", seed=plan.seed,
        )  # fmt: skip
        case = await measured_case(load, plan.slots, plan.sigma, directory)
        half = await measured_case(load, plan.slots // 2, plan.sigma, directory)
        best = await _sweep(plan, load, case, directory, part, kind)
        say(f"adapt: {kind}: best fixed limit {best:.3f} of the backend alone")
        cold = replace(load, seconds=plan.cold_s, warmup_s=plan.cold_s / 2)
        for name in (OURS, "envoy_gradient"):
            out = await outcome_of(cold, case, (name, None), directory)
            limits = [limit for limit in out.limits if limit is not None]
            last = round(limits[-1], 1) if limits else None
            part.rows.append([kind, f"{name}, cold start", out.goodput, out.goodput / best, last])
            if name == OURS:
                live = [out.generated_tps]
                found = out.goodput / best
                part.bars.append(Bar.at_least(f"{kind}: cold start, of best fixed", found, COLD))
        live += await _changes(plan, load, (case, half, best), directory, part, kind)
        _compare(_twin(plan, load, case), live, case, part, kind)
    return part


def _twin(plan: Adapt, load: Overload, case: Case) -> Twin:
    rate = load.times * case.alone_tps / load.tokens
    params = load_params(load, plan.sigma, "http://none", rate)
    return Twin(
        slots=plan.slots, tokens=load.tokens, prompt_tokens=params.prompt_tokens,
        sigma=plan.sigma, rate=params.rate, mix=dict(params.mix), streamed=load.stream,
        cold_s=plan.cold_s, halved_after_s=plan.halved_after_s, back_after_s=plan.back_after_s,
        counted_s=plan.counted_s,
    )  # fmt: skip


def _compare(twin: Twin, live: list[float], case: Case, part: Part, kind: str) -> None:
    names = ("cold start", "half of the slots", "all of them again")
    for name, found, simulated in zip(names, live, twin.tokens_per_s(), strict=True):
        part.rows.append([kind, f"simulated, {name}", simulated / case.alone_tps, None, None])
        ratio, what = found / simulated, f"{kind}: {name}, live / simulated"
        part.bars.append(Bar.at_least(what, ratio, 1 - AGREE))
        part.bars.append(Bar.at_most(what, ratio, 1 + AGREE))


async def _sweep(
    plan: Adapt, load: Overload, case: Case, directory: Path, part: Part, kind: str
) -> float:
    """The goodput of the best fixed limit."""
    best = 0.0
    for times in plan.sweep:
        limit = max(1, round(times * plan.slots))
        out = await outcome_of(load, case, (f"fixed{limit}", None), directory)
        part.rows.append([kind, f"fixed {limit}", out.goodput, None, limit])
        best = max(best, out.goodput)
    return best


async def _changes(
    plan: Adapt,
    load: Overload,
    measured: tuple[Case, Case, float],
    directory: Path,
    part: Part,
    kind: str,
) -> list[float]:
    """Half of the slots vanish in the middle of a run, and return: tokens/s of both."""
    case, half, best = measured
    whole = replace(load, seconds=plan.change_s, warmup_s=0.0)
    async with running_way(Way(), plan.slots, directory) as running, sampling(running.limit) as at:
        rate = whole.times * case.alone_tps / whole.tokens
        sending = asyncio.create_task(run_load(load_params(whole, plan.sigma, running.url, rate)))
        await asyncio.sleep(plan.cold_s)
        await _set_slots(running.backend_url, plan.slots // 2)
        halved = await generated_per_s(running.backend_url, plan.halved_after_s, plan.counted_s)
        low = at[-1]
        await _set_slots(running.backend_url, plan.slots)
        back = await generated_per_s(running.backend_url, plan.back_after_s, plan.counted_s)
        high = at[-1]
        await sending
    for what, share, limit in (
        ("half of the slots", halved / half.alone_tps, low),
        ("all of them again", back / case.alone_tps, high),
    ):
        shown = None if limit is None else round(limit, 1)
        part.rows.append([kind, f"{OURS}, {what}", share, share / best, shown])
        part.bars.append(Bar.at_least(f"{kind}: {what}, of best fixed", share / best, CHANGED))
    return [halved, back]


async def _set_slots(url: str, slots: int) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/control", json={"max_num_seqs": slots}) as answer,
    ):
        answer.raise_for_status()
