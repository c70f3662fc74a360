"""Several policies on the same worlds: their measures side by side, and the pages of a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from policy_server.simulate.engine import UNBOUNDED
from policy_server.simulate.gate import Gate
from policy_server.simulate.oracle import best_static
from policy_server.simulate.plain import PlainParams
from policy_server.simulate.policies.registry import Policy, policy
from policy_server.simulate.report.page import Page, Shown
from policy_server.simulate.report.svg import Mark
from policy_server.simulate.run import Options, Progress, run
from policy_server.simulate.scenarios.base import Bench, Scenario
from policy_server.simulate.world import What, World

EXPLANATION = (
    "A model server can only work on so many requests at once. Past that, more requests make every "
    "answer late. Each policy below decides, for the same requests on the same simulated server, "
    "which go now, which wait, and which are told to come back later. Judge a policy by two "
    "things: how much useful work the server still does, and whether the important class (P0) "
    "keeps its fast answers."
)


@dataclass(frozen=True, slots=True)
class Compared:
    """What each policy measured in a scenario, and its runs as pages."""

    measures: dict[str, dict[str, float]]
    pages: list[Page]


def compare_scenario(
    item: Scenario,
    names: Sequence[str],
    seed: int,
    cache: Path | None,
    tell: Callable[[float], None],
) -> Compared:
    """The scenario under each policy; `tell` hears the share that is done."""
    benches = []
    measures = {}
    for index, name in enumerate(names):
        bench = Bench(policy(name).name, seed, cache)
        measures[name] = dict(item.measure(bench))
        benches.append(bench)
        tell((index + 1) / len(names))
    pages: list[Page] = []
    for title, world, first in benches[0].results:
        shown = [
            Shown(policy(bench.policy).title, result)
            for bench in benches
            for other, _, result in bench.results
            if other == title and result.policy == bench.policy
        ]
        if first.policy != benches[0].policy or not shown:
            continue
        pages.append(
            Page(
                title=_title(item, title, len(benches[0].results)),
                explanation=EXPLANATION if not pages else "The same, in another world.",
                runs=shown,
                start_s=min((m.at for m in marks_of(world)), default=0.0),
                end_s=world.duration_s,
                best=benches[0].best(world).tokens_per_s,
                marks=marks_of(world),
                notes=(f"Seed {seed}; {describe(world)}",),
            )
        )
    return Compared(measures, pages)


def _title(item: Scenario, world: str, worlds: int) -> str:
    text = item.title if worlds == 1 else f"{item.title}: {world}"
    return text[:1].upper() + text[1:]


def compare_trace(
    world: World, title: str, names: Sequence[str], seed: int, progress: Progress | None = None
) -> Page:
    """A user's trace under each policy."""
    shown = []
    for index, name in enumerate(names):
        chosen = policy(name)
        best = float(best_static(world, None).limit) if chosen.needs_best else 0.0
        make = partial(_make, chosen, best)
        tell = partial(_tell, progress, index, len(names))
        shown.append(Shown(chosen.title, run(world, make, seed, Options(name, progress=tell))))
    return Page(
        title=title,
        explanation=EXPLANATION,
        runs=shown,
        start_s=0.0,
        end_s=world.duration_s,
        notes=(f"Seed {seed}; {describe(world)}",),
    )


def _make(chosen: Policy, best: float, world: World, seed: int) -> Gate:
    return chosen.make(world, seed, best)


def _tell(progress: Progress | None, done: int, of: int, share: float) -> None:
    if progress:
        progress((done + share) / of)


def marks_of(world: World) -> list[Mark]:
    """What changes under way: the offered load and what happens to the engine."""
    marks = {h.at: _words(h.what, h.value) for h in world.happenings}
    rates: dict[float, float] = {}
    for flow in world.flows:
        for at, _ in flow.rate[1:]:
            rates[at] = sum(_rate_at(other.rate, at) for other in world.flows)
    for at, rate in rates.items():
        marks.setdefault(at, f"load → {rate:.3g} req/s")
    return [Mark(at, text) for at, text in sorted(marks.items())]


def _rate_at(steps: Sequence[tuple[float, float]], at: float) -> float:
    return next((rate for start, rate in reversed(steps) if start <= at), 0.0)


def _words(what: What, value: float) -> str:
    return {
        What.SPEED: f"steps {value:g}x slower",
        What.SLOTS: f"{value:g} slots",
        What.STALL: f"stalls {value:g} s",
        What.KILL: "a replica dies",
        What.REVIVE: "it is back",
        What.RESTART: "policy server restarts",
        What.OUTLIER: "odd first token",
    }[what]


def describe(world: World) -> str:
    """The engine and the traffic in a sentence."""
    lengths, engine = world.lengths, world.engine
    if isinstance(engine, PlainParams):
        what = f"{engine.servers} servers of {1000 * engine.service_s:g} ms"
    else:
        kv = "" if engine.kv_tokens >= UNBOUNDED else f", {engine.kv_tokens:,} tokens of KV cache"
        what = (
            f"up to {engine.slots} answers at once{kv}, a step of {1000 * engine.step_s:g} ms + "
            f"{1000 * engine.seq_s:g} ms per answer in it"
        )
    sizes = f"prompts of {lengths.prompt:.0f} and answers of {lengths.output:.0f} tokens on average"
    replicas = "one model server" if world.replicas == 1 else f"{world.replicas} model servers"
    return f"{replicas}: {what}; {sizes}."
