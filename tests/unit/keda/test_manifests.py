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
FILES = sorted(path.name for path in FOLDER.glob("scaledobject*.yaml"))
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


# -- the model server -----------------------------------------------------------------------------


def model() -> tuple[dict[str, Any], dict[str, Any]]:
    """Its Service and its Deployment."""
    service, deployment = yaml.safe_load_all((FOLDER / "model.yaml").read_text("utf-8"))
    return service, deployment


def containers() -> dict[str, dict[str, Any]]:
    pod = model()[1]["spec"]["template"]["spec"]
    return {one["name"]: one for one in pod["containers"]}


def test_the_model_server_has_fields_that_kubernetes_knows() -> None:
    for one in model():
        check_object(one, "kubernetes")


def test_it_is_what_the_scaledobjects_scale_and_the_policy_server_probes() -> None:
    service, deployment = model()
    meta = deployment["metadata"]
    for name in FILES:
        assert spec(name)["scaleTargetRef"]["name"] == meta["name"]
    assert "replicas" not in deployment["spec"], "it would undo what KEDA did with every apply"
    assert service["spec"]["clusterIP"] == "None", "one address per pod, and only of the ready"
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    port = service["spec"]["ports"][0]["port"]
    probe = f"http://{service['metadata']['name']}.{meta['namespace']}.svc:{port}/health"
    assert probe in (FOLDER / "README.md").read_text("utf-8")


def test_the_pod_is_not_ready_before_the_warm_up_is_done() -> None:
    """An init container would have to end, or as a sidecar be warm, before the server starts."""
    pod = model()[1]["spec"]["template"]["spec"]
    warm = containers()["warm"]
    assert "initContainers" not in pod
    (script,) = warm["args"]
    assert warm["startupProbe"]["exec"]["command"][-1] == "/tmp/warm"
    assert script.index("policy-server warmup") < script.index("touch /tmp/warm")
    assert {"name": "warm", "mountPath": "/tmp"} in warm["volumeMounts"]


def test_nobody_gives_up_before_the_warm_up_does() -> None:
    """Its last word says what is wrong; a probe that kills it says nothing."""
    warm, server = containers()["warm"], containers()["server"]
    seconds = float(re.findall(r"--seconds (\d+)", warm["args"][0])[0])
    assert window_s(warm["startupProbe"]) > seconds > window_s(server["startupProbe"])


def window_s(probe: dict[str, Any]) -> float:
    """From the start until Kubernetes gives up."""
    period_s, failures = probe["periodSeconds"], probe["failureThreshold"]
    return float(period_s * failures)


def test_no_probe_has_the_default_time_out_of_a_second() -> None:
    """An engine under load and a Python process both take longer than that."""
    for one in containers().values():
        probes = [one[name] for name in one if name.endswith("Probe")]
        assert probes
        assert all(probe["timeoutSeconds"] >= 5 for probe in probes)


def test_a_server_that_was_restarted_is_warmed_again() -> None:
    """The probe goes to the pod's address, whichever container listens there."""
    warm, server = containers()["warm"], containers()["server"]
    (port,) = server["ports"]
    asked = warm["livenessProbe"]["httpGet"]
    assert asked == {**server["readinessProbe"]["httpGet"], "port": port["containerPort"]}
    assert warm["args"][0].index("rm -f /tmp/warm") < warm["args"][0].index("policy-server warmup")
