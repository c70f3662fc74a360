"""What the outside may see of the running server, as plain values.

The composition root fills these from the core at the moment of a scrape; metrics, `/statusz` and
`top` read them. Times ending in `_age_s` count back from that moment, so a reader needs no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from policy_server.core.limit.base import Reason, WindowSample
from policy_server.core.request import Priority


@dataclass(frozen=True, slots=True)
class ChangeView:
    """One move of the limit, `age_s` ago. Limits in seats."""

    previous: float
    limit: float
    reason: Reason
    age_s: float


NO_SCRAPE_YET = "none yet"


@dataclass(frozen=True, slots=True)
class ScrapeView:
    """One engine's page. `outcome` is that of the last try, `age_s` ago, or NO_SCRAPE_YET."""

    source: str
    outcome: str
    age_s: float | None = None


@dataclass(frozen=True, slots=True)
class TenantView:
    """One tenant of a pool, requests: waiting by class, and in flight."""

    waiting: Mapping[Priority, int]
    inflight: int


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool at one instant.

    limit, limit_min, limit_max, inflight_seats   seats; everything else counts requests
    waiting             held requests in the room by class
    jobs_waiting        jobs in line by class
    waiting_by_tenant   the tenants with most waiting (bounded by whoever fills it)
    held_by_tenant      held requests of every tenant that waits; not for showing
    tenants             those with most waiting or in flight (bounded by whoever fills it)
    predicted_wait_s    for a request that arrived now; None = no drain rate known yet
    drain_rate          requests per second that leave the engines
    engine_queue        requests queued inside the engines; `delay_s` the same in seconds
    oldest_lease_age_s  None when no lease is open
    observe_p           share of the admitted whose answer is observed, 0..1
    changes             the last moves of the limit, newest first
    asked_seats, asked_rps  what a back end asks for now, None = nothing
    scrapes             the engines' pages that are read
    backends_ready      back ends that can take work, None = nobody tells
    holding             nobody may go because no back end is ready
    ramp                part of the limit that may be used while back ends are new, 0..1
    rates               per second over the last ten, by kind and name as the counts since the
                        start; a kind that is absent is not known yet
    """

    name: str
    limit: float
    inflight_seats: int
    inflight_requests: int
    waiting: Mapping[Priority, int] = field(default_factory=dict)
    waiting_by_tenant: Mapping[str, int] = field(default_factory=dict)
    held_by_tenant: Mapping[str, int] = field(default_factory=dict)
    tenants: Mapping[str, TenantView] = field(default_factory=dict)
    predicted_wait_s: Mapping[Priority, float | None] = field(default_factory=dict)
    limit_min: float = 1.0
    limit_max: float | None = None
    drain_rate: float | None = None
    engine_queue: float | None = None
    delay_s: float | None = None
    tpot_s: float | None = None
    tpot_unloaded_s: float | None = None
    leases: int = 0
    oldest_lease_age_s: float | None = None
    observed_streams: int = 0
    observe_p: float = 1.0
    changes: Sequence[ChangeView] = ()
    last_window: WindowSample | None = None
    asked_seats: float | None = None
    asked_rps: float | None = None
    scrapes: Sequence[ScrapeView] = ()
    backends_ready: int | None = None
    holding: bool = False
    ramp: float = 1.0
    rates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    jobs_waiting: Mapping[Priority, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeView:
    """One Envoy. `log_age_s`: since its last access log message, None = never one."""

    node: str
    leases: int = 0
    log_age_s: float | None = None


@dataclass(frozen=True, slots=True)
class ServerView:
    """The whole server at one instant. `not_ready`: why, None when it is ready."""

    version: str
    uptime_s: float
    config_digest: str = ""
    not_ready: str | None = None
    loop_lag_s: float = 0.0
    lagging: bool = False
    pools: Sequence[PoolView] = ()
    nodes: Sequence[NodeView] = ()
    journal: Mapping[str, str | float | None] = field(default_factory=dict)
    jobs: Mapping[str, object] | None = None
    warnings: Sequence[str] = ()
