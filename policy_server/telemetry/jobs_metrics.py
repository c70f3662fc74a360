"""`policy_jobs{state}`, read from the jobs when someone scrapes, and what became of webhooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from policy_server.journal.jobs import JobState, WebhookOutcome
from policy_server.telemetry import names

Counts = Callable[[], Mapping[JobState, int]]


class JobsGauge(Collector):
    """Registers itself; `counts` is called on the scraping thread, per scrape."""

    def __init__(self, registry: CollectorRegistry, counts: Counts) -> None:
        self._counts = counts
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """The jobs by state."""
        gauge = GaugeMetricFamily(names.JOBS.name, names.JOBS.help, labels=names.JOBS.labels)
        counts = self._counts()
        for state in JobState:
            gauge.add_metric([state.value], counts.get(state, 0))
        return [gauge]

    def describe(self) -> Iterable[Metric]:
        """Nothing: spares the registry a call while the server is being wired."""
        return ()


class WebhookCounter:
    """Registers itself; every series exists from the start, at 0."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = Counter(*names.WEBHOOKS, registry=registry)
        self._by_outcome = {outcome: counter.labels(outcome.value) for outcome in WebhookOutcome}

    def count(self, outcome: WebhookOutcome) -> None:
        """One try was made."""
        self._by_outcome[outcome].inc()
