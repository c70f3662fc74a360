"""Official SDKs that are refused and come back: a burst at 3x, then calm; and 3x for long.

`openai` and `anthropic` for Python with their default settings, half of the calls each, new calls
open-loop whatever the old ones do. What the clients are told is ours, or rewritten by Envoy on its
way out: a constant `Retry-After: 1`, or a random one of 1–55 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from policy_server.backend.engine import capacity
from policy_server.backend.params import EngineParams
from policy_server.load.params import LoadParams
from policy_server.load.runner import run_load
from tests.bench.contenders import generated_per_s
from tests.bench.folders import fresh
from tests.bench.result import Bar, Cell, Part
from tests.bench.sdk_calls import Call, Ended, Sdks
from tests.support.stack import running_stack
from tests.support.wired import connection_manager

OURS, CONSTANT, RANDOM, PATIENT = "ours", "retry-after 1", "retry-after 1-55", "no retries"
ALL_TOLD = (OURS, CONSTANT, RANDOM)
TOLD = {CONSTANT: "1", RANDOM: "math.random(1, 55)"}
MIX = {"P0": 0.1, "P1": 0.3, "P2": 0.6}
STEP_MS, PROMPT_TOKENS = 20.0, 8
TIMES, CALM = 3.0, 0.5
RETURNS, FINAL, CONTROL = 0.7, 0.05, 0.2
ATTEMPTS, GOODPUT, NORMAL = 1.4, 0.95, 0.99
COLUMNS = (
    "told", "calls", "first try %", "after a retry %", "final 429 %", "other %", "attempts / call",
    "returns", "admitted %", "tokens/s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Returns:
    """An engine of `slots` and long answers of `tokens`: 3x is a modest rate, as these clients cost
    CPU, and still the seats are so many that two kept in reserve are few.

    The capacity is what a flood without retries gets through the gateway in `measure_s`. Then
    `warm_s` at half the capacity, `seconds` at three times, `calm_s` at half again; seconds.
    """

    slots: int = 24
    tokens: int = 150
    measure_s: float = 20.0
    warm_s: float = 15.0
    seconds: float = 30.0
    calm_s: float = 150.0
    told: tuple[str, ...] = ALL_TOLD
    seed: int = 1

    @property
    def formula_rps(self) -> float:
        """What the engine carries by its arithmetic."""
        params = EngineParams(max_num_seqs=self.slots, step_ms=STEP_MS, seq_ms=0.0)
        return capacity(params, self.tokens, PROMPT_TOKENS)


@dataclass(frozen=True, slots=True)
class Run:
    """All calls of one run, and the tokens per second made while it was loaded."""

    calls: Sequence[Call]
    tokens_per_s: float

    def among(self, begin_s: float, end_s: float) -> list[Call]:
        """The calls that began in a part of the run."""
        return [call for call in self.calls if begin_s <= call.began_s < end_s]


async def burst(plan: Returns, directory: Path, say: Callable[[str], None]) -> Part:
    """Scenario 16 with real clients."""
    part = Part("returns", f"returns: {TIMES:g}x for {plan.seconds:g} s, then {CALM:g}x", COLUMNS)
    capacity_rps = await _capacity(plan, directory, part)
    for told in plan.told:
        run = await _run(plan, told, capacity_rps, directory)
        calls = run.among(plan.warm_s, plan.warm_s + plan.seconds)
        part.rows.append(_row(told, run, calls))
        say("  ".join(f"{c}: {v}" for c, v in zip(COLUMNS, part.rows[-1], strict=True)))
        came, admitted = returns_of(run.calls)
        share = admitted / came if came else 0.0
        final = _share(calls, Ended.REFUSED)
        if told == OURS:
            part.bars.append(Bar.at_least("returns admitted", share, RETURNS))
            part.bars.append(Bar.at_most("final 429", final, FINAL))
            part.bars.append(Bar.equal("other failures", _count(run.calls, Ended.FAILED), 0))
        elif told == CONSTANT:
            part.bars.append(Bar.at_most("control, 1 s: returns admitted", share, CONTROL))
        else:
            part.bars.append(Bar.at_most("control, random: returns admitted", share, RETURNS))
        part.data[told] = _data(run)
    part.data["plan"] = asdict(plan)
    return part


async def sustained(plan: Returns, directory: Path, say: Callable[[str], None]) -> Part:
    """Scenario 17 with real clients."""
    title = f"sustained: {TIMES:g}x for {plan.seconds:g} s, then {CALM:g}x"
    part = Part("sustained", title, COLUMNS)
    runs: dict[str, Run] = {}
    end_s = plan.warm_s + plan.seconds
    capacity_rps = await _capacity(plan, directory, part)
    for told in (OURS, PATIENT):
        run = runs[told] = await _run(plan, told, capacity_rps, directory)
        part.rows.append(_row(told, run, run.among(plan.warm_s, end_s)))
        part.data[told] = _data(run)
        say("  ".join(f"{c}: {v}" for c, v in zip(COLUMNS, part.rows[-1], strict=True)))
    ours = runs[OURS]
    calls, after = ours.among(plan.warm_s, end_s), ours.among(end_s + 60.0, end_s + plan.calm_s)
    goodput = ours.tokens_per_s / runs[PATIENT].tokens_per_s
    part.bars = [
        Bar.at_most("attempts / call", _attempts(calls), ATTEMPTS),
        Bar.at_least("goodput / without retries", goodput, GOODPUT),
        Bar.at_least("served from 60 s after on", 1.0 - _share(after, Ended.REFUSED), NORMAL),
        Bar.equal("other failures", _count(ours.calls, Ended.FAILED), 0),
    ]
    part.data["plan"] = asdict(plan)
    return part


def returns_of(calls: Sequence[Call]) -> tuple[int, int]:
    """Attempts that were retries, and those of them that were served."""
    came = sum(call.retries for call in calls)
    return came, sum(call.ended is Ended.SERVED and call.retries > 0 for call in calls)


def _row(told: str, run: Run, calls: Sequence[Call]) -> list[Cell]:
    came, admitted = returns_of(run.calls)
    first = sum(c.ended is Ended.SERVED and not c.retries for c in calls) / max(1, len(calls))
    later = sum(c.ended is Ended.SERVED and c.retries > 0 for c in calls) / max(1, len(calls))
    return [
        told,
        len(calls),
        round(100 * first, 1),
        round(100 * later, 1),
        round(100 * _share(calls, Ended.REFUSED), 1),
        round(100 * _share(calls, Ended.FAILED), 1),
        round(_attempts(calls), 2),
        came,
        round(100 * admitted / came, 1) if came else None,
        round(run.tokens_per_s, 1),
    ]


def _share(calls: Sequence[Call], ended: Ended) -> float:
    return _count(calls, ended) / max(1, len(calls))


def _count(calls: Sequence[Call], ended: Ended) -> int:
    return sum(call.ended is ended for call in calls)


def _attempts(calls: Sequence[Call]) -> float:
    return sum(1 + call.retries for call in calls) / max(1, len(calls))


def _data(run: Run) -> dict[str, object]:
    kinds = Counter(f"{c.priority} {c.sdk} {c.ended.value} after {c.retries}" for c in run.calls)
    return {"calls": dict(sorted(kinds.items())), "tokens_per_s": run.tokens_per_s}


async def _capacity(plan: Returns, directory: Path, part: Part) -> float:
    """Requests per second that come through the gateway when there are always more."""
    load = LoadParams(
        url="http://x", rate=2 * plan.formula_rps, seconds=plan.measure_s, tokens=plan.tokens,
        prompt_tokens=PROMPT_TOKENS, drain_s=0.0, seed=plan.seed,
    )  # fmt: skip
    async with _gateway(plan, OURS, directory) as (url, backend_url):
        flood = asyncio.create_task(run_load(replace(load, url=url)))
        settle_s = plan.measure_s / 4
        tokens = await generated_per_s(backend_url, settle_s, plan.measure_s - settle_s)
        await flood
    found = tokens / plan.tokens
    part.notes.append(
        f"capacity through the gateway: {found:.2f} requests/s ({plan.formula_rps:.2f} by the "
        "engine's arithmetic)"
    )
    return found


async def _run(plan: Returns, told: str, capacity_rps: float, directory: Path) -> Run:
    """One run from its first call to the end of the last."""
    async with _gateway(plan, told, directory) as (url, backend_url):
        retries = 0 if told == PATIENT else None
        async with Sdks(url, plan.tokens, retries) as sdks:
            load = asyncio.create_task(sdks.run(schedule(plan, capacity_rps)))
            tokens = await generated_per_s(backend_url, plan.warm_s + 5.0, plan.seconds - 5.0)
            return Run(await load, tokens)


def schedule(plan: Returns, capacity_rps: float) -> list[tuple[float, str]]:
    """When each call begins, and its class."""
    rng = random.Random(plan.seed)
    names, weights = list(MIX), list(MIX.values())
    found, at = [], 0.0
    for length_s, times in ((plan.warm_s, CALM), (plan.seconds, TIMES), (plan.calm_s, CALM)):
        end, rate = at + length_s, times * capacity_rps
        while (at := at + rng.expovariate(rate)) < end:
            found.append((at, rng.choices(names, weights)[0]))
        at = end
    return found


@contextlib.asynccontextmanager
async def _gateway(plan: Returns, told: str, directory: Path) -> AsyncIterator[tuple[str, str]]:
    limit = {"algorithm": "fixed", "initial": plan.slots, "max": 1000}
    config = {"pools": [{"name": "default", "limit": limit}]}
    flags = ("--max-num-seqs", str(plan.slots), "--step-ms", str(STEP_MS), "--seq-ms", "0")
    said = TOLD.get(told)
    alter = rewriting(said) if said else _nothing
    async with running_stack(fresh(directory), config, flags, alter=alter) as stack:
        yield stack.url, f"http://127.0.0.1:{stack.where['upstream']}"


def _nothing(_bootstrap: dict[str, Any]) -> None:
    """Ours as it is."""


def rewriting(seconds: str) -> Callable[[dict[str, Any]], None]:
    """Envoy tells whoever is refused this many seconds (a Lua expression) and nothing else."""
    code = f"""
    function envoy_on_response(handle)
      local headers = handle:headers()
      if headers:get(":status") == "429" then
        local seconds = {seconds}
        headers:replace("retry-after", tostring(seconds))
        headers:replace("retry-after-ms", tostring(seconds * 1000))
        headers:remove("x-should-retry")
      end
    end
    """
    kind = "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua"
    config = {"@type": kind, "default_source_code": {"inline_string": code}}

    def alter(bootstrap: dict[str, Any]) -> None:
        filters = connection_manager(bootstrap)["http_filters"]
        filters.insert(0, {"name": "told", "typed_config": config})

    return alter
