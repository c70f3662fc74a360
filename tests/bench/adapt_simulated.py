"""The load of `adapt` in the simulator: same engine, lengths, classes and changes.

The simulator counts the tokens of answers that ended, the engine those that it made: over a few
hundred answers of very unequal length that alone differs by some percent, hence the mean of seeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

from policy_server.core.request import Priority
from policy_server.simulate.engine import EngineParams
from policy_server.simulate.gate import Gate
from policy_server.simulate.gateway import Objectives
from policy_server.simulate.policies.registry import policy
from policy_server.simulate.record import Result
from policy_server.simulate.run import run
from policy_server.simulate.workload import Flow, Lengths, Manner
from policy_server.simulate.world import Happening, What, World

SEEDS = (1, 2, 3, 4, 5)


def _product(world: World, seed: int) -> Gate:
    return policy("product").make(world, seed, 0.0)


@dataclass(frozen=True, slots=True)
class Twin:
    """What `adapt` does to an engine. `rate` per second, `mix` = share by class, seconds."""

    slots: int
    tokens: int
    prompt_tokens: int
    sigma: float
    rate: float
    mix: dict[str, float]
    streamed: bool
    cold_s: float
    halved_after_s: float
    back_after_s: float
    counted_s: float

    @property
    def back_s(self) -> float:
        """When all slots are there again."""
        return self.cold_s + self.halved_after_s + self.counted_s

    @property
    def world(self) -> World:
        """Everything but the policy and the seed."""
        lengths = Lengths(self.prompt_tokens, 0.0, self.tokens, self.sigma)
        flows = tuple(
            Flow(
                ((0.0, self.rate * share),),
                Priority(int(name)),
                lengths=((0.0, lengths),),
                manner=Manner(streamed=self.streamed),
            )
            for name, share in self.mix.items()
        )
        return World(
            engine=EngineParams(slots=self.slots),
            flows=flows,
            duration_s=self.back_s + self.back_after_s + self.counted_s,
            objectives=Objectives(None, None),
            happenings=(
                Happening(self.cold_s, What.SLOTS, self.slots // 2),
                Happening(self.back_s, What.SLOTS, self.slots),
            ),
        )

    def tokens_per_s(self) -> tuple[float, float, float]:
        """Cold (the second half of `cold_s`), halved and back: the mean over SEEDS."""
        runs = [run(self.world, _product, seed) for seed in SEEDS]
        halved, back = self.back_s - self.counted_s, self.back_s + self.back_after_s
        return (
            self._mean(runs, self.cold_s / 2, self.cold_s),
            self._mean(runs, halved, halved + self.counted_s),
            self._mean(runs, back, back + self.counted_s),
        )

    @staticmethod
    def _mean(runs: list[Result], begin_s: float, end_s: float) -> float:
        return mean(result.goodput(begin_s, end_s) for result in runs)
