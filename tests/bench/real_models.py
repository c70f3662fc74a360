"""A real model past its capacity: the limit that finds itself against the best that is fixed.

    embeddings  MiniLM on one thread (tests/support/minilm_server.py), answers that come whole
    chat        SmolLM2 in llama.cpp on one thread (tests/support/llama_server.py), four slots,
                streamed answers, the engine's own page read

Both through Envoy and the policy server. The model shares the machine with everything else, so its
speed drifts: every limit runs once per round, the rounds alternate in direction, and goodput is the
mean over the rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from policy_server.load.attempt import End
from policy_server.load.results import LoadReport
from tests.bench.folders import fresh
from tests.bench.result import Bar, Cell, Part
from tests.support.real_model import (
    CHAT,
    EMBEDDINGS,
    RealModel,
    capacity_rps,
    in_front,
    overload,
    running_model,
)

GOODPUT, P0_SERVED = 0.9, 0.995
OURS = "vegas"
LOOKS = 3
"""At the capacity; the best counts, or a moment in which the machine is busy halves the load."""
COLUMNS = (
    "limit", "goodput/s", "share of best fixed", "P0 served %", "P0 p50 s", "p99 s", "429", "5xx",
    "other", "limit at end",
)  # fmt: skip
BROKEN = (End.ERROR, End.INCOMPLETE, End.OTHER_STATUS, End.UNFINISHED)


@dataclass(frozen=True, slots=True)
class RealModels:
    """What to run: `seconds` of load at `times` the capacity, counted from `warmup_s` on.

    Clients wait `patience_s` for answers after the last request; P2 is held for up to 45 s.
    """

    name: str = "embeddings"
    model: RealModel = EMBEDDINGS
    fixed: tuple[int, ...] = (1, 4, 8, 32)
    seconds: float = 30.0
    warmup_s: float = 10.0
    alone_s: float = 12.0
    rounds: int = 2
    times: float = 3.0
    patience_s: float = 60.0


CHATTING = RealModels("chat", CHAT, fixed=(1, 2, 4, 8, 16))


@dataclass(frozen=True, slots=True)
class Turn:
    """One limit in one round."""

    report: LoadReport
    limit: float


async def run(plan: RealModels, directory: Path, say: Callable[[str], None]) -> Part:
    """All limits, round after round."""
    part = Part(plan.name, _title(plan), COLUMNS)
    names = [OURS, *(f"fixed {count}" for count in plan.fixed)]
    turns: dict[str, list[Turn]] = {name: [] for name in names}
    async with running_model(directory, plan.model) as url:
        looks = [await capacity_rps(url, plan.alone_s / LOOKS, plan.model) for _ in range(LOOKS)]
        alone = max(looks)
        say(f"{plan.name}: the model alone serves {alone:.1f} requests/s")
        for number in range(plan.rounds):
            for name in names if number % 2 == 0 else reversed(names):
                turns[name].append(await _turn(name, url, plan, alone, directory))
                say(f"{name}: {turns[name][-1].report.measured.goodput_rps:.1f}/s")
    best = max(_goodput(turns[name]) for name in names[1:])
    part.rows = [_row(name, turns[name], best) for name in names]
    part.bars = _bars(turns[OURS], best)
    part.notes = [f"the model alone, a few clients in a closed loop: {alone:.1f} requests/s"]
    part.data = {
        "plan": asdict(plan),
        "alone_rps": alone,
        "goodput": {n: _goodput(t) for n, t in turns.items()},
    }
    return part


def _title(plan: RealModels) -> str:
    return (
        f"{plan.name}: a real model on one thread at {plan.times:g}x its capacity for "
        f"{plan.seconds:g} s, counted from {plan.warmup_s:g} s on, {plan.rounds} rounds"
    )


async def _turn(name: str, url: str, plan: RealModels, alone: float, directory: Path) -> Turn:
    limit: dict[str, object] = {"algorithm": OURS}
    if name != OURS:
        limit = {"algorithm": "fixed", "initial": int(name.split()[1])}
    async with in_front(fresh(directory), url, limit, plan.model) as stack:
        times = (plan.seconds, plan.warmup_s, plan.patience_s)
        report = await overload(stack.url, times, plan.times * alone, plan.model)
        return Turn(report, float((await stack.pool())["limit"]))


def _goodput(turns: list[Turn]) -> float:
    return sum(turn.report.measured.goodput_rps for turn in turns) / len(turns)


def _share(turns: list[Turn], best: float) -> float | None:
    """Of the best fixed limit's goodput; None when none of them brought anything to its end."""
    return round(_goodput(turns) / best, 3) if best else None


def _ends(turns: list[Turn], *which: End) -> int:
    return sum(turn.report.overall.total.ends[end.value] for turn in turns for end in which)


def _p0_served(turns: list[Turn]) -> float:
    return min(turn.report.measured.classes["P0"].served_share for turn in turns)


def _row(name: str, turns: list[Turn], best: float) -> list[Cell]:
    p0 = turns[-1].report.measured.classes["P0"].e2e_s
    return [
        name,
        round(_goodput(turns), 1),
        _share(turns, best),
        round(100 * _p0_served(turns), 1),
        p0.p50,
        p0.p99,
        _ends(turns, End.SHED),
        _ends(turns, End.SERVER_ERROR),
        _ends(turns, *BROKEN),
        round(turns[-1].limit, 1),
    ]


def _bars(ours: list[Turn], best: float) -> list[Bar]:
    return [
        Bar.at_least("goodput against the best fixed limit", _share(ours, best), GOODPUT),
        Bar.at_least("P0 served", _p0_served(ours), P0_SERVED),
        Bar.equal("5xx", _ends(ours, End.SERVER_ERROR), 0),
        Bar.equal("broken answers", _ends(ours, *BROKEN), 0),
        Bar.equal("malformed refusals", sum(turn.report.malformed for turn in ours), 0),
        Bar.at_least("refusals", float(_ends(ours, End.SHED)), 1.0),
    ]
