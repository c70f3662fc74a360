"""The ScaledObjects: fields that KEDA knows, triggers that this server understands, the behaviour
that the README promises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from policy_server.adapters.keda_trigger import read_trigger
from policy_server.telemetry import names
from tests.support.schema import check_object

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "envoy" / "keda"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
KNOWN_TO_PROMETHEUS = {"serverAddress", "query", "threshold", "activationThreshold"}


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


def test_prometheus_is_asked_for_metrics_that_there_are() -> None:
    known = {value.name for value in vars(names).values() if isinstance(value, names.MetricId)}
    for trigger in spec("scaledobject-prometheus.yaml")["triggers"]:
        assert set(trigger["metadata"]) <= KNOWN_TO_PROMETHEUS
        assert set(re.findall(r"policy_\w+", trigger["metadata"]["query"])) <= known
