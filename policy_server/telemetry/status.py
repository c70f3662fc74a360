"""The document behind `/statusz`: the live state as JSON, with the mistakes it gives away.

Whoever opens it wants to know three things, and the keys come in that order: is something wrong
(`warnings`), what does each pool do now (`pools`), does the server itself do well (the rest).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from policy_server.core.outcome import ReportOutcome
from policy_server.core.request import PRIORITIES
from policy_server.telemetry.views import (
    NO_SCRAPE_YET,
    ChangeView,
    NodeView,
    PoolView,
    ServerView,
)

Totals = Mapping[str, Mapping[str, Mapping[str, int]]]
"""Counts since the start by pool, as `Metrics.totals()` gives them."""

# Heartbeats of long answers come every few seconds; a lease that old without one line from any
# Envoy means that no access log arrives at all.
NO_LOG_AFTER_S = 15.0
# Longer than any flush interval; an Envoy that holds leases always has something to say.
SILENT_NODE_S = 60.0


def status_document(server: ServerView, totals: Totals) -> dict[str, object]:
    """JSON-ready; times in seconds, rounded to what a reader can use."""
    return {
        "version": server.version,
        "uptime_s": round(server.uptime_s, 1),
        "ready": server.not_ready is None,
        "not_ready": server.not_ready,
        "config_digest": server.config_digest,
        "warnings": warnings_of(server),
        "pools": [_pool(pool, totals.get(pool.name, {})) for pool in server.pools],
        "passed": totals.get("", {}).get("outcomes", {}).get("passed", 0),
        "nodes": [
            {"node": n.node, "leases": n.leases, "log_age_s": _rounded(n.log_age_s, 1)}
            for n in server.nodes
        ],
        "loop": {"lag_ms": round(server.loop_lag_s * 1000, 1), "lagging": server.lagging},
        "journal": dict(server.journal),
        "jobs": None if server.jobs is None else dict(server.jobs),
    }


def warnings_of(server: ServerView) -> list[str]:
    """Sentences that name what is wrong and what to do."""
    found = list(server.warnings)
    if server.lagging:
        found.append(
            "this server is the bottleneck (its event loop is "
            f"{server.loop_lag_s * 1000:.0f} ms late): the lower classes get a constant 429; "
            "give it a core or fewer requests"
        )
    found.extend(_lease_warnings(server.pools, server.nodes))
    found.extend(
        f"pool {pool.name}: no load report from {scrape.source} ({scrape.outcome}): the limit goes "
        "without it; check load_reports.scrape and that engine"
        for pool in server.pools
        for scrape in pool.scrapes
        if scrape.outcome not in (ReportOutcome.USED.value, NO_SCRAPE_YET)
    )
    found.extend(
        f"pool {pool.name}: no backend is ready: requests are held until one is, or until "
        "no_backend_wait_s; start one, or see why its probe fails"
        for pool in server.pools
        if pool.holding
    )
    for pool in server.pools:
        waiting = sum(pool.waiting.values())
        if waiting and pool.limit_max is not None and pool.limit >= pool.limit_max:
            found.append(
                f"pool {pool.name}: {waiting} wait and the limit is at its configured maximum "
                f"{pool.limit_max:g}; raise limit.max if the model servers can take more"
            )
    return found


def _lease_warnings(pools: Sequence[PoolView], nodes: Sequence[NodeView]) -> list[str]:
    leases = sum(pool.leases for pool in pools)
    ages = [age for pool in pools if (age := pool.oldest_lease_age_s) is not None]
    if not any(node.log_age_s is not None for node in nodes):
        if leases and ages and max(ages) > NO_LOG_AFTER_S:
            return [
                f"no access log from Envoy seen though {leases} leases are open (the oldest for "
                f"{max(ages):.0f} s): slots can't be freed; check the access log config"
            ]
        return []
    return [
        f"Envoy {node.node} has been silent for {node.log_age_s:.0f} s and holds {node.leases} "
        "leases: they are kept until it speaks; check that it runs and reaches this server"
        for node in nodes
        if node.leases and node.log_age_s is not None and node.log_age_s > SILENT_NODE_S
    ]


def _pool(pool: PoolView, totals: Mapping[str, Mapping[str, int]]) -> dict[str, object]:
    return {
        "name": pool.name,
        "limit": round(pool.limit, 2),
        "limit_min": pool.limit_min,
        "limit_max": pool.limit_max,
        "inflight": {"seats": pool.inflight_seats, "requests": pool.inflight_requests},
        "waiting": {p.name: pool.waiting.get(p, 0) for p in PRIORITIES},
        "jobs_waiting": {p.name: pool.jobs_waiting.get(p, 0) for p in PRIORITIES},
        "waiting_by_tenant": dict(pool.waiting_by_tenant),
        "tenants": {
            name: {
                "waiting": {p.name: tenant.waiting.get(p, 0) for p in PRIORITIES},
                "inflight": tenant.inflight,
            }
            for name, tenant in pool.tenants.items()
        },
        "predicted_wait_s": {p.name: _rounded(pool.predicted_wait_s.get(p), 2) for p in PRIORITIES},
        "asked": {"seats": _rounded(pool.asked_seats, 1), "rps": _rounded(pool.asked_rps, 2)},
        "backends": {
            "ready": pool.backends_ready,
            "holding": pool.holding,
            "ramp": round(pool.ramp, 3),
        },
        "signals": _signals(pool),
        "load_reports": [
            {"source": s.source, "outcome": s.outcome, "age_s": _rounded(s.age_s, 1)}
            for s in pool.scrapes
        ],
        "leases": {"open": pool.leases, "oldest_age_s": _rounded(pool.oldest_lease_age_s, 1)},
        "changes": [_change(change) for change in pool.changes],
        "last_window": None if pool.last_window is None else asdict(pool.last_window),
        "outcomes": dict(totals.get("outcomes", {})),
        "sheds": dict(totals.get("sheds", {})),
        "returns": dict(totals.get("returns", {})),
        "rates": {kind: dict(of) for kind, of in pool.rates.items()},
    }


def _signals(pool: PoolView) -> dict[str, object]:
    return {
        "drain_rate": _rounded(pool.drain_rate, 2),
        "engine_queue": _rounded(pool.engine_queue, 2),
        "delay_s": _rounded(pool.delay_s, 3),
        "tpot_s": _rounded(pool.tpot_s, 4),
        "tpot_unloaded_s": _rounded(pool.tpot_unloaded_s, 4),
        "observed_streams": pool.observed_streams,
        "observe_p": _rounded(pool.observe_p, 3),
    }


def _change(change: ChangeView) -> dict[str, object]:
    return {
        "previous": round(change.previous, 2),
        "limit": round(change.limit, 2),
        "reason": change.reason.value,
        "age_s": round(change.age_s, 1),
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
