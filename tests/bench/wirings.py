"""Three times the capacity through the other ways in: fewer signals, the same promise.

    stream        one ext_proc stream per request, the observer beside it; streamed answers
    authz-orca    ext_authz and the log; whole answers, each with the engine's load report (ORCA)
    authz-scrape  ext_authz and the log; streamed answers, nothing seen of them but their end, and
                  the engine's own `/metrics` once a second
    gate-whole    the gate; answers that are not streamed, no load report at all

Goodput is counted as in `overload`. A whole answer's first byte is its last, so there is no bar on
P0's TTFT.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from policy_server.load.attempt import End
from tests.bench.contenders import Way
from tests.bench.overload import (
    BROKEN,
    COLUMNS,
    P0_SERVED,
    Case,
    Outcome,
    Overload,
    as_json,
    denominator,
    measured_case,
    outcome_of,
    too_late,
)
from tests.bench.result import Bar, Part

DEFAULT = Overload(slots=(40,))


@dataclass(frozen=True, slots=True)
class Entrance:
    """One way in: how it is run, whether answers are streamed, and its bar on the goodput."""

    way: Way
    stream: bool
    goodput: float


ENTRANCES: Mapping[str, Entrance] = {
    "stream": Entrance(Way(wiring="stream"), True, 0.9),
    "authz-orca": Entrance(Way(wiring="authz", backend=("--orca",)), False, 0.85),
    "authz-scrape": Entrance(Way(wiring="authz", scraped=True), True, 0.85),
    "gate-whole": Entrance(Way(), False, 0.85),
}


async def run(
    plan: Overload, names: tuple[str, ...], directory: Path, say: Callable[[str], None]
) -> Part:
    """All cases, all ways in turn. `plan.contenders` is not used: the limit is ours."""
    title = (
        f"wirings: {plan.times:g}x capacity for {plan.seconds:g} s, counted from "
        f"{plan.warmup_s:g} s on; goodput in tokens as a share of the backend alone"
    )
    part = Part("wirings", title, ("way", *COLUMNS[1:]))
    outcomes: list[Outcome] = []
    for slots, sigma in itertools.product(plan.slots, plan.sigmas):
        cases: dict[bool, Case] = {}
        for name in names:
            entrance = ENTRANCES[name]
            own = replace(plan, stream=entrance.stream)
            if entrance.stream not in cases:
                case = cases[entrance.stream] = await measured_case(own, slots, sigma, directory)
                kind = "streamed" if entrance.stream else "whole"
                part.notes.append(f"{kind} answers, {denominator(case, own)}")
            outcome = await outcome_of(own, cases[entrance.stream], (name, entrance.way), directory)
            outcomes.append(outcome)
            part.rows.append(outcome.row())
            part.bars += bars(outcome)
            say("  ".join(f"{c}: {v}" for c, v in zip(COLUMNS, outcome.row(), strict=True)))
    part.notes += too_late(outcomes)
    part.data = {"plan": asdict(plan), "outcomes": [as_json(o, bars(o)) for o in outcomes]}
    return part


def bars(outcome: Outcome) -> list[Bar]:
    """What each way in promises."""
    name = f"{outcome.case.slots} slots, σ {outcome.case.sigma:g}, {outcome.contender}"
    p0 = outcome.p0
    other = set(outcome.refusals()) - {"429"}
    wanted = ENTRANCES[outcome.contender].goodput
    return [
        Bar.at_least(f"{name}: goodput", outcome.goodput, wanted),
        Bar.at_least(f"{name}: P0 served", p0.served_share if p0 else None, P0_SERVED),
        Bar.equal(f"{name}: 5xx", outcome.ends(End.SERVER_ERROR), 0),
        Bar.equal(f"{name}: refusals other than 429", ", ".join(sorted(other)), ""),
        Bar.equal(f"{name}: malformed refusals", outcome.report.malformed, 0),
        Bar.equal(f"{name}: broken answers", outcome.ends(*BROKEN), 0),
    ]
