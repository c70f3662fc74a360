"""A world: the engine, the clients, what happens to them. Everything but policy and seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

from policy_server.core.params import LimitParams, PoolParams
from policy_server.simulate.autoscaler import Scaling
from policy_server.simulate.engine import EngineParams
from policy_server.simulate.gate import POOL
from policy_server.simulate.gateway import Objectives
from policy_server.simulate.observer import Visibility
from policy_server.simulate.plain import PlainParams
from policy_server.simulate.workload import Call, Flow, Lengths

TYPICAL_TOKENS_PER_S = 40.0
FULL_BATCH = 64


class What(Enum):
    """What can happen to replicas."""

    SPEED = "speed"  # value: every step takes this many times its normal time
    SLOTS = "slots"  # value: answers at once
    STALL = "stall"  # value: seconds
    KILL = "kill"
    REVIVE = "revive"
    RESTART = "restart"  # the policy server is gone for `value` seconds
    OUTLIER = "outlier"  # the next observed first token is told to be `value` times faster


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happens at a time; `replica` None = to all of them."""

    at: float
    what: What
    value: float = 0.0
    replica: int | None = None


class Calls(Protocol):
    """Calls that come from elsewhere, such as a trace."""

    def __call__(self, seed: int) -> Iterator[Call]:
        """The calls of a seed, in order of time."""
        ...

    @property
    def lengths(self) -> Lengths:
        """Lengths like theirs."""
        ...


@dataclass(frozen=True, slots=True)
class World:
    """Everything about a run but the policy and the seed. Seconds."""

    engine: EngineParams | PlainParams = field(default_factory=EngineParams)
    flows: tuple[Flow, ...] = ()
    duration_s: float = 300.0
    replicas: int = 1
    models: tuple[str, ...] = ()  # what replica i serves; () = all serve all
    speeds: tuple[float, ...] = ()  # every step of replica i takes this many times its time
    objectives: Objectives = field(default_factory=Objectives)
    happenings: tuple[Happening, ...] = ()
    visibility: Visibility = field(default_factory=Visibility)
    pool: PoolParams = field(default_factory=lambda: PoolParams(POOL))
    settle_s: float = 0.0  # after the last arrival
    tick_s: float = 1.0
    gateways: int = 1  # policy servers, each with its own gate, in front of the same replicas
    calls: Calls | None = None  # instead of `flows`
    scaling: Scaling | None = None  # replicas come and go; None = all are there all the time

    @property
    def lengths(self) -> Lengths:
        """The lengths at the start, which the oracle sweep uses."""
        if self.calls is not None:
            return self.calls.lengths
        return self.flows[0].lengths[0][1] if self.flows else Lengths()

    def with_limit(self, limit: LimitParams) -> World:
        """The same world with other limit parameters."""
        return replace(self, pool=replace(self.pool, limit=limit))


def core_params(world: World) -> PoolParams:
    """The pool as the core gets it.

    The observer's message budget is scaled: here one message carries all tokens since the last,
    so an unscaled budget would observe more streams than production can. A slow engine's streams
    send fewer tokens, there as here.
    """
    per_token = 1.0 / (world.visibility.token_every_s * _tokens_per_s(world.engine))
    budget = world.pool.observe_messages_per_s * min(1.0, per_token)
    return replace(world.pool, name=POOL, observe_messages_per_s=budget)


def _tokens_per_s(engine: EngineParams | PlainParams) -> float:
    """Of one stream in a full batch."""
    if isinstance(engine, PlainParams):
        return TYPICAL_TOKENS_PER_S
    step_s = engine.step_s + engine.seq_s * min(engine.slots, FULL_BATCH)
    return min(TYPICAL_TOKENS_PER_S, 1.0 / step_s)
