"""The ScaledObjects: fields that KEDA knows, triggers that this server understands, the behaviour
that the README promises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from policy_server.adapters.keda_trigger import read_trigger
from policy_server.telemetry.metrics import Metrics
from policy_server.telemetry.views import PoolView
from tests.support.promql import mistakes, page_of
from tests.support.schema import check_object

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "envoy" / "keda"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
KNOWN_TO_PROMETHEUS = {
    "serverAddress", "query", "threshold", "activationThreshold", "ignoreNullValues",
}  # fmt: skip


def spec(name: str) -> dict[str, Any]:
    data = yaml.safe_load((FOLDER / name).read_text("utf-8"))
    check_object(data, "keda")
    found: dict[str, Any] = data["spec"]
    return found


def test_both_ways_are_there() -> None:
    assert FILES == ["scaledobject-prometheus.yaml", "scaledobject.yaml"]


@pytest.mark.parametrize("name", FILES)
def test_the_behaviour_is_the_one_that_is_promised(name: str) -> None:
    found = spec(name)
    assert (found["minReplicaCount"], found["cooldownPeriod"]) == (0, 300)
    behaviour = found["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behaviour["scaleUp"] == {
        "stabilizationWindowSeconds": 0,
        "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
    }
    assert behaviour["scaleDown"] == {
        "stabilizationWindowSeconds": 300,
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
    }


def test_the_triggers_are_understood_here_and_one_of_them_is_pushed() -> None:
    triggers = spec("scaledobject.yaml")["triggers"]
    read = [read_trigger(one["metadata"], ["default"]) for one in triggers]
    kinds = [(t.metric, t.target, one["metricType"]) for t, one in zip(read, triggers, strict=True)]
    assert kinds == [
        ("waitingPerReplica", 2.0, "AverageValue"),
        ("utilization", 0.8, "Value"),
    ]
    assert triggers[0]["type"] == "external-push"


def test_they_go_to_the_service_of_our_manifests() -> None:
    service = yaml.safe_load((ROOT / "docker/kubernetes/service.yaml").read_text("utf-8"))
    meta = service["metadata"]
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    address = f"{meta['name']}.{meta['namespace']}.svc:{ports['grpc']}"
    for trigger in spec("scaledobject.yaml")["triggers"]:
        assert trigger["metadata"]["scalerAddress"] == address


def prometheus() -> list[dict[str, Any]]:
    """The metadata of the Prometheus triggers."""
    return [trigger["metadata"] for trigger in spec("scaledobject-prometheus.yaml")["triggers"]]


@pytest.mark.parametrize("metadata", prometheus(), ids=lambda metadata: metadata["query"])
def test_prometheus_is_asked_for_metrics_that_there_are(metadata: dict[str, str]) -> None:
    """On the page of a server without any traffic, and one number of each: KEDA takes no more."""
    assert set(metadata) == KNOWN_TO_PROMETHEUS
    quiet = PoolView("default", limit=16.0, inflight_seats=0, inflight_requests=0, waiting={})
    page = page_of(Metrics("1", ["default"], lambda: [quiet]).render().decode())
    assert mistakes(metadata["query"], page) == []
    asked = re.findall(r"policy_\w+", metadata["query"])
    assert asked == re.findall(r'sum\((policy_\w+)\{pool="default"\}\)', metadata["query"])


def test_no_answer_of_prometheus_is_an_error_and_no_zero() -> None:
    """Else the pool goes to zero when the policy server, or its scrape, is gone."""
    assert {metadata["ignoreNullValues"] for metadata in prometheus()} == {"false"}


def test_whatever_keeps_the_scaler_active_wakes_the_prometheus_variant() -> None:
    """Held requests, jobs, and what is under way: as `Demand.active`."""
    woken_by = {
        name
        for metadata in prometheus()
        if metadata["activationThreshold"] == "0"
        for name in re.findall(r"policy_\w+", metadata["query"])
    }
    assert woken_by == {"policy_waiting", "policy_jobs_waiting", "policy_inflight", "policy_limit"}


def test_both_ways_aim_at_the_same() -> None:
    pushed = spec("scaledobject.yaml")["triggers"]
    read = [read_trigger(one["metadata"], ["default"]) for one in pushed]
    asked = spec("scaledobject-prometheus.yaml")["triggers"]
    aims = [(one["metricType"], float(one["metadata"]["threshold"])) for one in asked]
    kinds = [(one["metricType"], t.target) for one, t in zip(pushed, read, strict=True)]
    assert aims[: len(kinds)] == kinds
