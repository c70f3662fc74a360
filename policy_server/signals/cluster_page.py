"""Envoy's own view of a cluster: its admin page `/clusters?format=json`, read for one number.

A host counts as ready unless Envoy itself would not choose it: failed health check, one that has
not finished its first check, ejected by outlier detection, or said to be unhealthy by whoever
configured it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

NOT_CHOSEN = (
    "failed_active_health_check",
    "failed_outlier_check",
    "pending_active_hc",
    "pending_dynamic_removal",
    "excluded_via_immediate_hc_fail",
)
CHOSEN = ("HEALTHY", "UNKNOWN", "DEGRADED")


def ready_hosts(page: bytes, cluster: str) -> int | None:
    """How many hosts of `cluster` Envoy would choose; None when the page does not tell."""
    try:
        document = json.loads(page)
    except ValueError:
        return None
    for status in _objects(document, "cluster_statuses"):
        if status.get("name") == cluster:
            return sum(_ready(host) for host in _objects(status, "host_statuses"))
    return None


def _ready(host: Mapping[str, object]) -> bool:
    health = host.get("health_status")
    if not isinstance(health, Mapping):
        return True
    told = health.get("eds_health_status", CHOSEN[0])
    return told in CHOSEN and not any(health.get(flag) is True for flag in NOT_CHOSEN)


def _objects(parent: object, key: str) -> Iterator[Mapping[str, object]]:
    found = parent.get(key) if isinstance(parent, Mapping) else None
    return (
        (item for item in found if isinstance(item, Mapping))
        if isinstance(found, list)
        else iter(())
    )
