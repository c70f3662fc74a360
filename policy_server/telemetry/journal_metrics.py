"""The journal's metrics: whether its disk works, how long commits take, how much it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from policy_server.telemetry import names

# From a commit that only the kernel has to take (places) to a disk that is being worked to death.
COMMIT_BUCKETS = (100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.5, 2.5)
Counts = Callable[[], Mapping[str, int]]


class JournalMetrics:
    """`counts` gives the records by state, `healthy` whether they reach the disk; both are asked
    when someone scrapes."""

    def __init__(
        self, registry: CollectorRegistry, counts: Counts, healthy: Callable[[], bool]
    ) -> None:
        metric = names.JOURNAL_COMMIT
        self._commit = Histogram(
            metric.name, metric.help, registry=registry, buckets=COMMIT_BUCKETS
        )
        registry.register(_Records(counts, healthy))

    def commit(self, seconds: float) -> None:
        """A transaction was committed; may be called on any thread."""
        self._commit.observe(seconds)


class _Records(Collector):
    def __init__(self, counts: Counts, healthy: Callable[[], bool]) -> None:
        self._counts = counts
        self._healthy = healthy

    def collect(self) -> Iterable[Metric]:
        metric = names.JOURNAL_RECORDS
        family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
        for state, count in self._counts().items():
            family.add_metric([state], count)
        health = names.JOURNAL_HEALTHY
        return (family, GaugeMetricFamily(health.name, health.help, float(self._healthy())))

    def describe(self) -> Iterable[Metric]:
        """Nothing: spares the registry a call of `counts` while the server is being wired."""
        return ()
