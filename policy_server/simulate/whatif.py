"""What would happen to a user's own traffic: how long each class waits, how much is refused.

The answer for a number of replicas is one run of the product on the trace. The objective is met
when hardly anybody is refused and the first token comes in time; the smallest number that meets
it is what the objective needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from policy_server.core.params import PoolParams
from policy_server.core.request import PRIORITIES, Priority
from policy_server.simulate.oracle import best_static
from policy_server.simulate.policies.registry import policy
from policy_server.simulate.record import Result, quantile
from policy_server.simulate.run import Options, Progress, run
from policy_server.simulate.world import World

MAX_REFUSED = 0.01
DEFAULT_TTFT_S = 2.0
NOTICEABLE_S = 0.05


@dataclass(frozen=True, slots=True)
class ClassForecast:
    """One class. Shares 0..1, seconds; `held` = share of the calls that waited noticeably."""

    priority: Priority
    calls: int
    held: float
    wait_p50_s: float
    wait_p99_s: float
    refused: float
    ttft_p99_s: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """One number of replicas. `misses` says what of the objective is missed, empty = met."""

    replicas: int
    limit: float
    classes: tuple[ClassForecast, ...]
    misses: tuple[str, ...]
    result: Result

    @property
    def meets(self) -> bool:
        """Whether the objective is met."""
        return not self.misses


def forecast(
    world: World, replicas: int, seed: int, name: str, progress: Progress | None = None
) -> Forecast:
    """What that number of replicas would do under the named policy."""
    chosen = policy(name)
    best = float(best_static(world, None).limit) if chosen.needs_best else 0.0
    here = replace(world, replicas=replicas)
    options = Options(name, progress=progress)
    result = run(here, lambda w, s: chosen.make(w, s, best), seed, options)
    classes = tuple(_class(result, p) for p in PRIORITIES if _came(result, p))
    limit = quantile(result.limits(0.0, result.duration_s), 0.5)
    return Forecast(replicas, limit, classes, tuple(_misses(classes, world.pool, result)), result)


def needed_replicas(forecasts: Iterable[Forecast]) -> int | None:
    """The smallest number that meets the objective; None when none of them does."""
    return next((f.replicas for f in forecasts if f.meets), None)


def _came(result: Result, priority: Priority) -> bool:
    return any(call.priority is priority for call in result.calls)


def _class(result: Result, priority: Priority) -> ClassForecast:
    end = result.duration_s
    calls = result.arrived(0.0, end, priority)
    waits = result.waits(0.0, end, priority)
    return ClassForecast(
        priority=priority,
        calls=len(calls),
        held=sum(wait > NOTICEABLE_S for wait in waits) / len(calls),
        wait_p50_s=quantile(waits, 0.5),
        wait_p99_s=quantile(waits, 0.99),
        refused=result.refused_share(0.0, end, priority),
        ttft_p99_s=quantile(result.ttfts(0.0, end, priority), 0.99),
    )


def _misses(classes: Sequence[ClassForecast], pool: PoolParams, result: Result) -> Iterator[str]:
    for row in classes:
        if row.refused > MAX_REFUSED:
            yield f"{row.priority.name} refused {100 * row.refused:.1f} %"
    target = pool.limit.slo_ttft_s or DEFAULT_TTFT_S
    first = classes[0] if classes else None
    if first is not None and first.ttft_p99_s > target:
        yield f"{first.priority.name} first token p99 {first.ttft_p99_s:.1f} s > {target:g} s"
    pace = pool.limit.slo_tpot_s
    tpots = [call.tpot_s for call in result.calls if call.tpot_s is not None]
    if pace is not None and quantile(tpots, 0.9) > pace:
        yield f"time per token p90 {1000 * quantile(tpots, 0.9):.0f} ms > {1000 * pace:g} ms"
