"""What a scenario is: worlds to run, measures to take, bars to hold, controls that must fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from policy_server.core.params import LimitParams
from policy_server.core.request import Priority
from policy_server.simulate.engine import EngineParams
from policy_server.simulate.gateway import Objectives
from policy_server.simulate.oracle import Best, best_static
from policy_server.simulate.policies.registry import policy
from policy_server.simulate.record import Result, quantile
from policy_server.simulate.run import Options, run
from policy_server.simulate.workload import PATIENT, Flow, Lengths, Manner
from policy_server.simulate.world import World

P0, P1, P2 = Priority

SLOT_BOUND = World(engine=EngineParams(slots=64))
KV_BOUND = World(engine=EngineParams(slots=1000, kv_tokens=40_000))
DECODE_BOUND = World(
    engine=EngineParams(slots=1000), objectives=Objectives(ttft_s=2.0, tpot_s=0.05)
).with_limit(LimitParams(slo_tpot_s=0.05))

Measures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Bar:
    """What a measure must reach (`at_least`) or must not exceed."""

    measure: str
    value: float
    at_least: bool = True

    def holds(self, measured: float) -> bool:
        """Whether it is met; NaN never is."""
        return measured >= self.value if self.at_least else measured <= self.value

    def missed_by(self, measured: float) -> float:
        """How far off, in units of the measure; 0 when it holds."""
        if self.holds(measured):
            return 0.0
        return self.value - measured if self.at_least else measured - self.value

    def worst(self, measured: list[float]) -> float:
        """The worst of several."""
        return min(measured) if self.at_least else max(measured)

    def __str__(self) -> str:
        return f"{self.measure} {'≥' if self.at_least else '≤'} {self.value:g}"


def at_least(measure: str, value: float) -> Bar:
    """The measure must reach the value."""
    return Bar(measure, value)


def at_most(measure: str, value: float) -> Bar:
    """The measure must not exceed the value."""
    return Bar(measure, value, at_least=False)


NOBODY = 1000.0
"""The tail of a wait when nobody was served, seconds: worse than any bar."""


def tail(seconds: list[float]) -> float:
    """The p99, or `NOBODY` when there was none."""
    return quantile(seconds, 0.99) if seconds else NOBODY


@dataclass(slots=True)
class Bench:
    """Runs worlds under one policy and seed, and knows C. Keeps what it ran, for the report."""

    policy: str
    seed: int
    cache: Path | None = None
    results: list[tuple[str, World, Result]] = field(default_factory=list)
    log: bool = False

    def run(self, world: World, title: str = "", name: str | None = None) -> Result:
        """The world under this bench's policy, or under another one."""
        chosen = policy(name or self.policy)
        best = self.best(world).limit if chosen.needs_best else 0
        result = run(
            world,
            lambda w, seed: chosen.make(w, seed, float(best)),
            self.seed,
            Options(name=chosen.name, log=self.log),
        )
        self.results.append((title, world, result))
        return result

    def best(self, world: World, lengths: Lengths | None = None) -> Best:
        """The best static limit of the world's engine and what it carries."""
        return best_static(world, self.cache, lengths)

    def capacity(self, world: World) -> float:
        """C, useful tokens per second."""
        return self.best(world).tokens_per_s

    def calls_per_s(self, world: World) -> float:
        """C, calls per second."""
        return self.best(world).calls_per_s(world.lengths)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the table. `controls` are policies of which each must miss a bar."""

    number: int
    name: str
    title: str
    bars: tuple[Bar, ...]
    controls: tuple[str, ...]
    measure: Callable[[Bench], Measures]
    max_seeds: int = 1000  # long ones take fewer


Steps = tuple[tuple[float, float], ...]


def offered(
    world: World, unit: float, shares: Mapping[Priority, float | Steps], manner: Manner = PATIENT
) -> World:
    """The world with a Poisson flow per class, in multiples of `unit` calls per second."""
    lengths = world.flows[0].lengths if world.flows else ((0.0, Lengths()),)
    flows = []
    for priority, share in shares.items():
        steps = ((0.0, share),) if isinstance(share, float | int) else share
        rate = tuple((at, value * unit) for at, value in steps)
        flows.append(Flow(rate, priority, lengths=lengths, manner=manner))
    return replace(world, flows=tuple(flows))


def with_lengths(
    world: World, lengths: Lengths, then: tuple[float, Lengths] | None = None
) -> World:
    """The world with other lengths, and others again from a time on."""
    steps = ((0.0, lengths),) if then is None else ((0.0, lengths), then)
    return replace(world, flows=(Flow(((0.0, 1.0),), lengths=steps),))
