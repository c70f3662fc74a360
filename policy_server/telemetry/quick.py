"""A histogram for the path of every request.

The library's takes a lock twice and looks for an exemplar at each observation, .55 µs. Here one
thread writes, so a bisection and two additions do. A scrape sees the same as of the library's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from policy_server.telemetry.names import MetricId


class QuickSeries:
    """One series. `observe` must be called on one thread."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value in the bucket of the least bound that is not below it."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value


class QuickHistogram(Collector):
    """A family of series by their labels. `buckets`: upper bounds, ascending, without infinity."""

    def __init__(
        self, metric: MetricId, buckets: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._metric = metric
        self._bounds = tuple(float(bound) for bound in buckets)
        self._names = [*map(str, self._bounds), "+Inf"]
        self._series: dict[tuple[str, ...], QuickSeries] = {}
        registry.register(self)

    def labels(self, *values: str) -> QuickSeries:
        """The series of these labels; it exists from now on, at 0."""
        return self._series.setdefault(values, QuickSeries(self._bounds))

    def describe(self) -> Iterable[Metric]:
        """The family without series: for the registry's names."""
        return [self._family()]

    def collect(self) -> Iterable[Metric]:
        """For a scrape."""
        family = self._family()
        for values, series in self._series.items():
            buckets = list(zip(self._names, map(float, accumulate(series.counts)), strict=True))
            family.add_metric(values, buckets, series.sum)
        return [family]

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(
            self._metric.name, self._metric.help, labels=self._metric.labels
        )
