"""The best static limit of an engine, found by a sweep: the C that every bar is measured against.

A saturated run keeps exactly L answers at the engine (a freed slot is refilled when the access
log tells, as for every policy) and counts useful tokens per second. The sweep walks L upwards in
steps of a factor until the rate falls, then refines around the best. No core code takes part.

A sweep takes seconds and depends on the engine alone, so it is cached on disk by a hash of all
that goes into it, one small file per engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

from policy_server.simulate.backend import Answer
from policy_server.simulate.cluster import Cluster
from policy_server.simulate.gateway import Objectives
from policy_server.simulate.loop import Loop
from policy_server.simulate.run import build_replicas
from policy_server.simulate.seeds import stream
from policy_server.simulate.workload import Lengths
from policy_server.simulate.world import World

VERSION = 3
"""Part of the cache key: raise it when the engine model changes."""

WARM_S = 30.0
WARM_PER_TOKEN_S = 0.1  # four answers of mean length
SMALL = 12
MEASURE_S = 150.0
REFINE_S = 800.0
COARSE = 1.4
FINE = (0.78, 0.88, 1.0, 1.13)
GIVE_UP = 0.8
PLATEAU = 0.995
MAX_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class Best:
    """The best static limit (requests) and what it carries: useful tokens and answers per s."""

    limit: int
    tokens_per_s: float
    answers_per_s: float

    def calls_per_s(self, lengths: Lengths) -> float:
        """C in calls per second, freed of the luck of the sweep's lengths."""
        return self.tokens_per_s / lengths.output


class Saturation:
    """Keeps `limit` answers at the engine and counts what comes back."""

    def __init__(self, world: World, lengths: Lengths, limit: int, seed: int) -> None:
        self._loop = Loop()
        self._cluster = Cluster(
            build_replicas(world, self._loop, self, seed), stream(seed, "balancer"), world.models
        )
        self._world, self._lengths = world, lengths
        self._rng = stream(seed, "oracle")
        self._sent = 0
        self._count_from = 0.0
        self._tokens = self._answers = 0
        for _ in range(limit):
            # Spread out, so that the answers do not end in step.
            self._loop.after(self._rng.random() * 5.0, self._send)

    def measure(self, measure_s: float) -> tuple[float, float]:
        """Useful tokens and answers per second."""
        self._count_from = WARM_S + WARM_PER_TOKEN_S * self._lengths.output
        self._loop.run(self._count_from + measure_s)
        return self._tokens / measure_s, self._answers / measure_s

    def first_token(self, answer: Answer) -> None:
        """Not counted."""

    def finished(self, answer: Answer) -> None:
        """Count it and refill its slot."""
        now, first = self._loop.now, answer.first_token_at or self._loop.now
        tpot_s = (now - first) / (answer.output - 1) if answer.output > 1 else None
        if now >= self._count_from and self._objectives.met(first - answer.sent_at, tpot_s):
            self._tokens += answer.output
            self._answers += 1
        self._loop.after(self._world.visibility.log_delay_s, self._send)

    def failed(self, answer: Answer) -> None:
        """Nothing fails in a sweep."""

    @property
    def _objectives(self) -> Objectives:
        return self._world.objectives

    def _send(self) -> None:
        self._sent += 1
        prompt, output = self._lengths.draw(self._rng)
        models = self._world.models or ("",)
        answer = Answer(f"{self._sent}", prompt, output, models[self._sent % len(models)])
        self._cluster.submit(answer, self._loop.now)


def best_static(world: World, cache: Path | None, lengths: Lengths | None = None) -> Best:
    """The best static limit of the world's engine as it is at the start of the run."""
    lengths = lengths or world.lengths
    key = _key(world, lengths)
    path = cache / f"{key}.json" if cache else None
    if path and path.exists():
        return Best(**json.loads(path.read_text()))
    best = _sweep(world, lengths)
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{id(best)}.part")
        part.write_text(json.dumps({name: getattr(best, name) for name in best.__slots__}))
        part.replace(path)
    return best


def _key(world: World, lengths: Lengths) -> str:
    parts = (
        VERSION,
        world.engine,
        world.replicas,
        world.speeds,
        world.models,
        world.objectives,
        lengths,
    )
    return sha256(f"{parts!r} {world.visibility.log_delay_s}".encode()).hexdigest()[:16]


def _sweep(world: World, lengths: Lengths) -> Best:
    coarse = _coarse(partial(_measure, world, lengths, measure_s=MEASURE_S))
    around = _least_of_the_best(coarse)
    fine = {max(1, round(around * factor)) for factor in FINE}
    if around <= SMALL:
        fine |= {max(1, around - 1), around + 1}
    refined = {limit: _measure(world, lengths, limit, REFINE_S) for limit in fine}
    return refined[_least_of_the_best({n: best.tokens_per_s for n, best in refined.items()})]


def _least_of_the_best(rates: Mapping[int, float]) -> int:
    """On a plateau the smallest limit: it queues least for the same work."""
    good = PLATEAU * max(rates.values())
    return min(limit for limit, rate in rates.items() if rate >= good)


def _coarse(measure: Callable[[int], Best]) -> dict[int, float]:
    """Tokens per second by limit, upwards until two in a row are far below the best."""
    rates: dict[int, float] = {}
    limit, bad = 1.0, 0
    while limit <= MAX_LIMIT and bad < 2:
        rate = rates[round(limit)] = measure(round(limit)).tokens_per_s
        bad = bad + 1 if rate < GIVE_UP * max(rates.values()) else 0
        limit = max(limit + 1, limit * COARSE)
    return rates


def _measure(world: World, lengths: Lengths, limit: int, measure_s: float) -> Best:
    tokens, answers = Saturation(world, lengths, limit, seed=7).measure(measure_s)
    return Best(limit, tokens, answers)
