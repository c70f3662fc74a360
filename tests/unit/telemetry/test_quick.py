"""The quick histogram tells a scrape what the library's would tell it."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from policy_server.telemetry.names import MetricId
from policy_server.telemetry.quick import QuickHistogram

METRIC = MetricId("policy_wait_seconds", "Time in the room.", ("pool", "class"))
PLAIN = MetricId("policy_decision_seconds", "Time to decide.")
BUCKETS = (0.005, 0.25, 1, 15)
VALUES = (0.0, 0.005, 0.0051, 0.25, 1.0, 14.9, 15.0, 15.1, 1e6)


def told(fill: Callable[[CollectorRegistry], None]) -> list[tuple[str, dict[str, str], float]]:
    registry = CollectorRegistry()
    fill(registry)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return [(s.name, s.labels, s.value) for f in families for s in f.samples]


def quick(registry: CollectorRegistry) -> None:
    family = QuickHistogram(METRIC, BUCKETS, registry)
    family.labels("chat", "P1")
    for value in VALUES:
        family.labels("chat", "P0").observe(value)
        family.labels("web", "P0").observe(value)


def library(registry: CollectorRegistry) -> None:
    family = Histogram(*METRIC, registry=registry, buckets=BUCKETS)
    family.labels("chat", "P1")
    for value in VALUES:
        family.labels("chat", "P0").observe(value)
        family.labels("web", "P0").observe(value)


def test_a_scrape_sees_the_same_as_of_the_library() -> None:
    known = [sample for sample in told(library) if not sample[0].endswith("_created")]
    assert told(quick) == known
    assert ("policy_wait_seconds_count", {"pool": "chat", "class": "P1"}, 0.0) in known


def test_a_family_without_labels_is_one_series() -> None:
    def fill(registry: CollectorRegistry) -> None:
        series = QuickHistogram(PLAIN, BUCKETS, registry).labels()
        series.observe(0.3)

    assert ("policy_decision_seconds_bucket", {"le": "0.25"}, 0.0) in told(fill)
    assert ("policy_decision_seconds_bucket", {"le": "1.0"}, 1.0) in told(fill)
    assert ("policy_decision_seconds_sum", {}, 0.3) in told(fill)
