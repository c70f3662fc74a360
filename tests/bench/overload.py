"""Three times the capacity: what each way to control the load makes of it.

Goodput is counted in tokens, so that a lucky draw of short answers is no gain, and by the engine
itself: what it makes in the measured window, as a share of what it makes alone, in the same run,
while more requests than it has slots are always there. Answers that break off are counted apart.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from policy_server.backend.engine import capacity
from policy_server.backend.params import EngineParams
from policy_server.load.attempt import End
from policy_server.load.params import LoadParams
from policy_server.load.results import LoadReport, Summary
from policy_server.load.runner import run_load
from tests.bench.contenders import (
    CONTENDERS,
    OURS,
    Way,
    generated_per_s,
    running_backend,
    running_contender,
    running_way,
    saturated,
)
from tests.bench.meter import CpuMeter, sampling
from tests.bench.result import Bar, Cell, Part
from tests.support.real_model import MIX
from tests.support.wired import ports

GOODPUT, P0_SERVED, P0_TTFT_S = 0.9, 0.995, 1.0
LATE_S = 0.2
"""A generator that falls further behind its schedule spoils a p99 of one second."""

BROKEN = (End.ERROR, End.INCOMPLETE, End.OTHER_STATUS)

COLUMNS = (
    "contender", "slots", "σ", "goodput", "of ended", "req/s", "P0 served %", "P0 TTFT p50 s",
    "p99 s", "refusals", "malformed", "5xx", "broken", "unfinished", "limit at end", "policy CPU",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Overload:
    """What to run.

    `seconds` of load, counted from `warmup_s` on; clients still wait `patience_s` for answers after
    the last request; `alone_s` for the denominator; answers of `tokens` on average.
    """

    slots: tuple[int, ...] = (40, 200, 6)
    sigmas: tuple[float, ...] = (0.0, 0.9)
    contenders: tuple[str, ...] = CONTENDERS
    seconds: float = 60.0
    warmup_s: float = 20.0
    patience_s: float = 30.0
    alone_s: float = 20.0
    tokens: int = 100
    times: float = 3.0
    stream: bool = True
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Case:
    """One backend under one length mix, and what it carries alone (tokens per second)."""

    slots: int
    sigma: float
    alone_tps: float
    formula_rps: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one contender made of one case."""

    case: Case
    contender: str
    report: LoadReport
    generated_tps: float
    limits: list[float | None]
    cores: dict[str, float]

    @property
    def goodput(self) -> float:
        """Tokens per second in the measured window, as a share of what the backend does alone."""
        return self.generated_tps / self.case.alone_tps

    @property
    def ended(self) -> float:
        """The same share, of answers that were complete within the window."""
        return self.report.measured.goodput_tps / self.case.alone_tps

    @property
    def p0(self) -> Summary | None:
        """The important class in the measured window."""
        return self.report.measured.classes.get("P0")

    def ends(self, *which: End) -> int:
        """Requests of the whole run that ended so."""
        return sum(self.report.overall.total.ends[end.value] for end in which)

    def refusals(self) -> Counter[str]:
        """Refused attempts by status."""
        found: Counter[str] = Counter()
        for reasons in self.report.refusals.values():
            for reason, count in reasons.items():
                found[reason.partition(" ")[0]] += count
        return found

    def bars(self) -> list[Bar]:
        """What the product promises under overload."""
        name = f"{self.case.slots} slots, σ {self.case.sigma:g}, {self.contender}"
        p0 = self.p0
        served, ttft_s = (p0.served_share, p0.ttft_s.p99) if p0 else (None, None)
        other = set(self.refusals()) - {"429"}
        return [
            Bar.at_least(f"{name}: goodput", self.goodput, GOODPUT),
            Bar.at_least(f"{name}: P0 served", served, P0_SERVED),
            Bar.at_most(f"{name}: P0 TTFT p99 in s", ttft_s, P0_TTFT_S),
            Bar.equal(f"{name}: 5xx", self.ends(End.SERVER_ERROR), 0),
            Bar.equal(f"{name}: refusals other than 429", ", ".join(sorted(other)), ""),
            Bar.equal(f"{name}: malformed refusals", self.report.malformed, 0),
            Bar.equal(f"{name}: broken answers", self.ends(*BROKEN), 0),
        ]

    def row(self) -> list[Cell]:
        """One line of the table."""
        p0 = self.p0
        refusals = " ".join(f"{k}:{v}" for k, v in sorted(self.refusals().items()))
        limits = [value for value in self.limits if value is not None]
        return [
            self.contender,
            self.case.slots,
            f"{self.case.sigma:g}",
            round(self.goodput, 3),
            round(self.ended, 3),
            round(self.report.measured.goodput_rps, 1),
            round(100 * p0.served_share, 1) if p0 else None,
            _rounded(p0.ttft_s.p50) if p0 else None,
            _rounded(p0.ttft_s.p99) if p0 else None,
            refusals or "none",
            self.report.malformed,
            self.ends(End.SERVER_ERROR),
            self.ends(*BROKEN),
            self.ends(End.UNFINISHED),
            round(limits[-1], 1) if limits else None,
            _rounded(self.cores.get("policy")),
        ]


async def run(plan: Overload, directory: Path, say: Callable[[str], None]) -> Part:
    """All cases, all contenders in turn."""
    title = (
        f"overload: {plan.times:g}x capacity for {plan.seconds:g} s, counted from "
        f"{plan.warmup_s:g} s on; goodput in tokens as a share of the backend alone"
    )
    part = Part("overload", title, COLUMNS)
    outcomes = []
    for slots, sigma in itertools.product(plan.slots, plan.sigmas):
        case = await measured_case(plan, slots, sigma, directory)
        say(f"overload: {slots} slots, σ {sigma:g}: {case.alone_tps:.0f} tokens/s alone")
        part.notes.append(denominator(case, plan))
        for contender in plan.contenders:
            outcome = await outcome_of(plan, case, (contender, None), directory)
            outcomes.append(outcome)
            part.rows.append(outcome.row())
            say("  ".join(f"{c}: {v}" for c, v in zip(COLUMNS, outcome.row(), strict=True)))
    part.bars = [bar for o in outcomes if o.contender == OURS for bar in o.bars()]
    part.notes.append(f"clients give up {plan.patience_s:g} s after the last request was sent")
    part.notes += _where_the_others_fail(outcomes) + too_late(outcomes)
    part.data = {"plan": asdict(plan), "outcomes": [as_json(o, o.bars()) for o in outcomes]}
    return part


def load_params(plan: Overload, sigma: float, url: str, rate: float) -> LoadParams:
    """The load of a case; equal for all contenders, arrival by arrival."""
    return LoadParams(
        url=url, rate=rate, seconds=plan.seconds, warmup_s=plan.warmup_s, drain_s=plan.patience_s,
        mix=MIX, tokens=plan.tokens, sigma=sigma, stream=plan.stream, seed=plan.seed,
    )  # fmt: skip


async def measured_case(plan: Overload, slots: int, sigma: float, directory: Path) -> Case:
    """What the backend carries alone under this mix of lengths."""
    port = ports()["upstream"]
    params = load_params(plan, sigma, f"http://127.0.0.1:{port}", 1000.0)
    formula = capacity(EngineParams(max_num_seqs=slots), plan.tokens, params.prompt_tokens)
    async with running_backend(port, slots, directory):
        tps = await saturated(params, slots, plan.alone_s)
    return Case(slots, sigma, tps, formula)


async def outcome_of(
    plan: Overload, case: Case, who: tuple[str, Way | None], directory: Path
) -> Outcome:
    """One contender under one case's load; its name, and how it is run where that is no other
    than one of ours."""
    contender, way = who
    started = (
        running_contender(contender, case.slots, directory)
        if way is None
        else running_way(way, case.slots, directory)
    )
    async with started as running:
        rate = plan.times * case.alone_tps / plan.tokens
        params = load_params(plan, case.sigma, running.url, rate)
        meter = CpuMeter(running.pids)
        async with sampling(running.limit) as limits:
            meter.start()
            load = asyncio.create_task(run_load(params))
            generated_tps = await generated_per_s(
                running.backend_url, plan.warmup_s, plan.seconds - plan.warmup_s
            )
            cores, at_end = meter.shares(), list(limits)
            report = await load
    return Outcome(case, contender, report, generated_tps, at_end, cores)


def denominator(case: Case, plan: Overload) -> str:
    """A note on what 1.0 is."""
    formula = case.formula_rps * plan.tokens
    return (
        f"{case.slots} slots, σ {case.sigma:g}: the backend alone makes {case.alone_tps:.0f} "
        f"tokens/s at saturation (its arithmetic says {formula:.0f}, "
        f"{case.alone_tps / formula:.3f} of it)"
    )


def _where_the_others_fail(outcomes: list[Outcome]) -> list[str]:
    notes = []
    for outcome in outcomes:
        missed = [bar for bar in outcome.bars() if not bar.holds]
        if outcome.contender != OURS and missed:
            what = "; ".join(f"{b.name.rpartition(': ')[2]} {b.found} ({b.wanted})" for b in missed)
            notes.append(f"{missed[0].name.rpartition(': ')[0]} fails: {what}")
    return notes


def too_late(outcomes: list[Outcome]) -> list[str]:
    """Latency counts from the scheduled send: a busy machine is part of it."""
    return [
        f"{o.contender}, {o.case.slots} slots, σ {o.case.sigma:g}: the load itself was up to "
        f"{o.report.late_s:.2f} s late; this machine was too busy for its TTFT to mean much"
        for o in outcomes
        if o.report.late_s > LATE_S
    ]


def as_json(outcome: Outcome, bars: list[Bar]) -> dict[str, object]:
    """Everything that was seen of one contender."""
    return {
        "case": asdict(outcome.case),
        "contender": outcome.contender,
        "goodput": outcome.goodput,
        "ended": outcome.ended,
        "bars": [asdict(bar) for bar in bars],
        "limits": outcome.limits,
        "cores": outcome.cores,
        "report": outcome.report.as_json(),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
