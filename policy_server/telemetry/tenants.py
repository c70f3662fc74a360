"""Metrics by tenant, for the tenants that the configuration names; all others count as one.

A client can invent any number of names, so no name of a client ever becomes a label: labels are
the first MAX_NAMED tenants of the configuration (`known`, `weights`, `max_class`), and `other`.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter

from policy_server.core.outcome import Outcome
from policy_server.core.request import Request
from policy_server.telemetry import names

MAX_NAMED = 100
"""× pools × 4 outcomes series; a scrape of more than some thousands helps nobody."""
OTHER = "other"


class Counts(NamedTuple):
    """One tenant's counters in one pool."""

    at_once: Counter
    queued: Counter
    shed: Counter
    cancelled: Counter


class TenantSeries:
    """`policy_tenant_requests_total`, and the label of each tenant."""

    def __init__(self, registry: CollectorRegistry, named: Iterable[str] = ()) -> None:
        metric = names.TENANT_REQUESTS
        self._requests = Counter(metric.name, metric.help, metric.labels, registry=registry)
        self._children: dict[tuple[str, str], Counts] = {}
        self._named: frozenset[str] = frozenset()
        self.use(named)

    def use(self, named: Iterable[str]) -> None:
        """The tenants that the configuration names now."""
        self._named = frozenset(list(dict.fromkeys(named))[:MAX_NAMED])

    def label(self, tenant: str) -> str:
        """The tenant's own name, or `other`."""
        return tenant if tenant in self._named else OTHER

    def labels(self) -> list[str]:
        """All there are."""
        return [*sorted(self._named), OTHER]

    def by_label(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Counts by tenant, added up by label; every label is there."""
        found = Tally(dict.fromkeys(self.labels(), 0))
        for tenant, count in counts.items():
            found[self.label(tenant)] += count
        return dict(found)

    def of(self, request: Request) -> Counts:
        """The counters that this request belongs to."""
        tenant = request.tenant
        key = request.pool, tenant if tenant in self._named else OTHER
        counts = self._children.get(key)
        if counts is None:
            outcomes = Outcome.ADMITTED, Outcome.QUEUED_ADMITTED, Outcome.SHED, Outcome.CANCELLED
            series = (self._requests.labels(*key, outcome.value) for outcome in outcomes)
            counts = self._children[key] = Counts(*series)
        return counts
