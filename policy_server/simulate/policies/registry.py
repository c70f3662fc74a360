"""The policies by name: ours, what users run today, and the controls of the scenarios."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from policy_server.core.limit.base import Limit
from policy_server.core.limit.registry import make_limit
from policy_server.core.params import LimitParams
from policy_server.simulate.errors import InputError
from policy_server.simulate.gate import CoreGate, Gate
from policy_server.simulate.policies.broken import (
    BlindGrowth,
    DeafGate,
    DoublingGate,
    GullibleGate,
    LeakingGate,
    LeakyGate,
    PoisonableGate,
    ShortMemory,
)
from policy_server.simulate.policies.envoy_gradient import EnvoyGradientGate
from policy_server.simulate.policies.fifo import FifoGate, OpenGate
from policy_server.simulate.policies.netflix_vegas import NetflixVegas, end_to_end, per_token
from policy_server.simulate.policies.retry_after import RetryAfterGate
from policy_server.simulate.seeds import stream
from policy_server.simulate.world import World, core_params

MakePolicy = Callable[[World, int, float], Gate]
"""A gate for a world, a seed, and the best static limit of that world's engine."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A way to control overload. `needs_best`: it is told the best static limit."""

    name: str
    title: str
    make: MakePolicy
    needs_best: bool = False


NO_EARLY_DROP = "no-early-drop"


def policy(name: str) -> Policy:
    """The policy of that name. Raises InputError naming the known ones."""
    found = POLICIES.get(name)
    if found is None:
        raise InputError(f"policy {name!r}: one of {', '.join(POLICIES)}")
    return found


def _core(**limit: object) -> MakePolicy:
    """The product, with some limit parameters replaced."""

    def make(world: World, seed: int, best: float) -> Gate:
        params = core_params(world)
        params = replace(params, limit=replace(params.limit, **limit))  # type: ignore[arg-type]
        return CoreGate([params], stream(seed, "core"))

    return make


def _with_limit(factory: Callable[[LimitParams, int], Limit]) -> MakePolicy:
    """The product's room with another limit algorithm."""

    def make(world: World, seed: int, best: float) -> Gate:
        return CoreGate(
            [core_params(world)], stream(seed, "core"), lambda params: factory(params, seed)
        )

    return make


def _fixed(limit: Callable[[World, float], float]) -> MakePolicy:
    def make(world: World, seed: int, best: float) -> Gate:
        return _core(algorithm="fixed", initial=limit(world, best))(world, seed, best)

    return make


def _fifo(early_drop: bool) -> MakePolicy:
    return lambda world, seed, best: FifoGate(best, early_drop)


def _retry_after(seconds: Callable[[Random], float]) -> MakePolicy:
    def make(world: World, seed: int, best: float) -> Gate:
        gate = CoreGate([core_params(world)], stream(seed, "core"))
        return RetryAfterGate(gate, seconds, stream(seed, "retry-after"))

    return make


def _never_retry(world: World, seed: int, best: float) -> Gate:
    gate = CoreGate([core_params(world)], stream(seed, "core"))
    return RetryAfterGate(gate, lambda rng: 1.0, stream(seed, "retry-after"), should_retry=False)


def _no_early_drop(world: World, seed: int, best: float) -> Gate:
    return CoreGate([replace(core_params(world), early_drop=False)], stream(seed, "core"))


def _kind(kind: type[CoreGate]) -> MakePolicy:
    return lambda world, seed, best: kind([core_params(world)], stream(seed, "core"))


def _tpot_target(params: LimitParams, seed: int) -> Limit:
    """AIMD that aims at the objective, or at four times the unloaded time per token."""
    return make_limit(replace(params, algorithm="aimd"))


_ALL = (
    Policy("product", "policy-server", _core()),
    Policy("none", "no control", lambda world, seed, best: OpenGate()),
    Policy("best", "best static limit", _fixed(lambda world, best: best), needs_best=True),
    Policy("fixed-16", "limit frozen at 16", _fixed(lambda world, best: 16.0)),
    Policy("always-max", "limit at its maximum", _fixed(lambda w, best: w.pool.limit.maximum)),
    Policy("always-min", "limit at its minimum", _fixed(lambda w, best: w.pool.limit.minimum)),
    Policy("aimd", "AIMD on time per token", _with_limit(_tpot_target)),
    Policy(
        "gradient2",
        "Gradient2 on time per token",
        _with_limit(lambda params, seed: make_limit(replace(params, algorithm="gradient"))),
    ),
    Policy(
        "vegas-e2e",
        "Vegas on whole latency",
        _with_limit(lambda params, seed: NetflixVegas(params, end_to_end, seed)),
    ),
    Policy(
        "vegas-tpot",
        "Vegas on time per token",
        _with_limit(lambda params, seed: NetflixVegas(params, per_token, seed)),
    ),
    Policy(
        "envoy-gradient",
        "Envoy adaptive_concurrency",
        lambda world, seed, best: EnvoyGradientGate(stream(seed, "envoy")),
    ),
    Policy("fifo", "one line, best static limit", _fifo(early_drop=False), needs_best=True),
    Policy("fifo-drop", "one line with early drop", _fifo(early_drop=True), needs_best=True),
    Policy("retry-after-1", "Retry-After always 1 s", _retry_after(lambda rng: 1.0)),
    Policy(
        "retry-after-random", "Retry-After random", _retry_after(lambda rng: rng.uniform(1, 55))
    ),
    Policy(NO_EARLY_DROP, "without early drop", _no_early_drop),
    Policy("poisonable", "believes the best TTFT ever seen", _kind(PoisonableGate)),
    Policy(
        "short-memory",
        "the limit follows the last minute",
        _with_limit(lambda params, seed: ShortMemory(params)),
    ),
    Policy(
        "blind-growth",
        "grows where nothing is measured",
        _with_limit(lambda params, seed: BlindGrowth(params)),
    ),
    Policy("leaking", "baselines leak while nobody calls", _kind(LeakingGate)),
    Policy("deaf", "ignores what is sent again", _kind(DeafGate)),
    Policy("doubling", "runs what is sent again twice", _kind(DoublingGate)),
    Policy("leaky", "blind to clients that hang up", _kind(LeakyGate)),
    Policy("gullible", "takes broken-off answers for whole ones", _kind(GullibleGate)),
    Policy("never-retry", "tells every client not to retry", _never_retry),
)

POLICIES = {item.name: item for item in _ALL}
