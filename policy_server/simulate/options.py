"""Reads what a user types: engines, class mixes, ranges of replicas. One line per mistake."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from policy_server.core.params import PoolParams
from policy_server.core.request import Priority
from policy_server.simulate.asked import EngineOptions, TrafficOptions
from policy_server.simulate.calibrate import fit, read_points
from policy_server.simulate.engine import UNBOUNDED, EngineParams
from policy_server.simulate.errors import InputError
from policy_server.simulate.gateway import Objectives
from policy_server.simulate.plain import PlainParams
from policy_server.simulate.scenarios.replay import Replay, replayed
from policy_server.simulate.trace import read_trace
from policy_server.simulate.workload import Manner
from policy_server.simulate.world import World

MAX_REPLICAS = 256


def engine_of(options: EngineOptions) -> EngineParams | PlainParams:
    """The engine. Raises InputError."""
    if options.plain:
        return _plain(options.plain)
    for name in ("step_ms", "seq_ms", "prefill_tps"):
        value = getattr(options, name)
        if not math.isfinite(value):
            raise InputError(f"--{name.replace('_', '-')} {value}: must be a finite number")
    if options.prefill_tps <= 0:
        raise InputError(f"--prefill-tps {options.prefill_tps:g}: must be > 0")
    try:
        params = EngineParams(
            step_s=options.step_ms / 1000,
            seq_s=options.seq_ms / 1000,
            prefill_token_s=1 / options.prefill_tps,
            slots=options.max_num_seqs,
            kv_tokens=options.kv_tokens or UNBOUNDED,
        )
    except ValueError as error:
        raise InputError(str(error)) from error
    if options.calibrate is None:
        return params
    if not options.calibrate.exists():
        raise InputError(f"{options.calibrate}: no such file")
    return fit(read_points(options.calibrate)).apply(params)


def _plain(text: str) -> PlainParams:
    servers, _, seconds = text.partition(":")
    try:
        service_s = float(seconds)
        if not math.isfinite(service_s):
            raise ValueError("seconds must be a finite number")
        return PlainParams(int(servers), service_s)
    except ValueError as error:
        raise InputError(f"--plain {text!r}: expected servers:seconds, {error}") from error


def mix_of(text: str) -> dict[Priority, float]:
    """`0:.2,1:.5,2:.3` → shares by class, which need not sum to 1. Raises InputError."""
    mix = {}
    for part in text.split(","):
        name, _, share = part.partition(":")
        try:
            mix[Priority(int(name.strip().upper().removeprefix("P")))] = float(share)
        except ValueError as error:
            raise InputError(f"--mix {part!r}: expected class:share, as in 0:.2") from error
    if not all(map(math.isfinite, mix.values())):
        raise InputError(f"--mix {text!r}: shares must be finite numbers")
    if min(mix.values()) < 0 or sum(mix.values()) <= 0:
        raise InputError(f"--mix {text!r}: shares must be ≥ 0 and not all 0")
    return {priority: share for priority, share in mix.items() if share > 0}


def replicas_of(text: str) -> list[int]:
    """`3` or `1..8`. Raises InputError."""
    first, dots, last = text.partition("..")
    try:
        numbers = list(range(int(first), int(last if dots else first) + 1))
    except ValueError as error:
        raise InputError(f"--replicas {text!r}: expected a number or a range as 1..8") from error
    if not numbers or numbers[0] < 1 or numbers[-1] > MAX_REPLICAS:
        raise InputError(f"--replicas {text!r}: from 1 to {MAX_REPLICAS}, the smaller first")
    return numbers


def world_of(
    trace: Path, engine: EngineParams | PlainParams, traffic: TrafficOptions, pool: PoolParams
) -> World:
    """The world of a user's trace. Raises InputError."""
    if not (traffic.speed > 0 and math.isfinite(traffic.speed)):
        raise InputError(f"--speed {traffic.speed:g}: must be > 0 and finite")
    if traffic.tenants < 1:
        raise InputError(f"--tenants {traffic.tenants}: must be ≥ 1")
    manner = Manner(sdk=traffic.retry, streamed=traffic.stream)
    replay = Replay(
        tuple(read_trace(trace)),
        traffic.speed,
        traffic.tenants,
        manner,
        tuple(mix_of(traffic.mix).items()),
    )
    limit = pool.limit
    objectives = Objectives(limit.slo_ttft_s or Objectives().ttft_s, limit.slo_tpot_s)
    return replayed(World(engine=engine, pool=pool, objectives=objectives), replay)


def pool_of(pools: Sequence[PoolParams], name: str | None) -> PoolParams:
    """The named pool, or the first. Raises InputError."""
    if name is None:
        return replace(pools[0])
    for pool in pools:
        if pool.name == name:
            return pool
    raise InputError(f"--pool {name!r}: one of {', '.join(pool.name for pool in pools)}")
