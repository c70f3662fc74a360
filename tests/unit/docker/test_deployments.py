"""compose.yaml and the Kubernetes manifests: fields that exist, and parts that fit each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from policy_server.config import load_config, split_host_port
from policy_server.envoy_config.gate import resend
from policy_server.envoy_config.kubernetes import DEFAULT_NAMESPACE, POLICY_SERVER
from tests.support.container import DOCKER, command, compose, environment, last, manifests
from tests.support.generated_config import everything
from tests.support.schema import check, check_object, schema

POD = manifests()["StatefulSet"]["spec"]["template"]
CONTAINER = POD["spec"]["containers"][0]


# -- compose --------------------------------------------------------------------------------------


def test_the_compose_file_has_fields_that_compose_knows() -> None:
    check(compose(), schema("compose"))


def test_every_file_that_compose_mounts_exists() -> None:
    named = compose()["volumes"]
    for service in compose()["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in named or (DOCKER / source).exists(), volume


@pytest.mark.parametrize("name", compose()["services"])
def test_every_container_is_hardened(name: str) -> None:
    service = compose()["services"][name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_only_clients_come_in_from_outside() -> None:
    ports = [port for one in compose()["services"].values() for port in one.get("ports", [])]
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == ["10000:10000"]


def test_images_of_others_are_pinned() -> None:
    images = [one["image"] for one in compose()["services"].values()]
    assert all(":v" in i or i.rsplit(":")[-1][0].isdigit() for i in images if "/" in i)


def test_the_configurations_are_valid() -> None:
    for file in (DOCKER / "policy.yaml", DOCKER / "kubernetes/policy.yaml"):
        load_config(file, environment())


def test_grafana_finds_its_data_and_its_dashboard() -> None:
    grafana = compose()["services"]["grafana"]
    provisioning = DOCKER / "grafana/provisioning"
    (source,) = read(provisioning / "datasources/prometheus.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = read(provisioning / "dashboards/policy-server.yaml")["providers"]
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in grafana["volumes"]}
    folder = DOCKER / mounted[provider["options"]["path"]]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (folder / Path(home).name).exists()


def test_prometheus_scrapes_services_that_exist() -> None:
    config = read(DOCKER / "prometheus/prometheus.yml")
    jobs = {
        one["job_name"]: one["static_configs"][0]["targets"] for one in config["scrape_configs"]
    }
    _, port = split_host_port(environment()["POLICY_SERVER__HTTP"])
    assert jobs["policy-server"] == [f"gateway:{port}"]
    assert {target.split(":")[0] for (target,) in jobs.values()} <= set(compose()["services"])


# -- Kubernetes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", manifests())
def test_every_manifest_has_fields_that_kubernetes_knows(kind: str) -> None:
    check_object(manifests()[kind], "kubernetes")


def test_every_manifest_is_in_the_namespace_and_in_the_kustomization() -> None:
    folder = DOCKER / "kubernetes"
    kustomization = read(folder / "kustomization.yaml")
    files = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml", "policy.yaml"}
    assert files == set(kustomization["resources"])
    assert (
        kustomization["namespace"]
        == DEFAULT_NAMESPACE
        == manifests()["Namespace"]["metadata"]["name"]
    )
    for kind, one in manifests().items():
        assert kind == "Namespace" or one["metadata"]["namespace"] == DEFAULT_NAMESPACE


def test_service_and_policies_find_the_pod() -> None:
    labels, found = POD["metadata"]["labels"], manifests()
    service = found["Service"]
    assert service["metadata"]["name"] == POLICY_SERVER
    for selector in (
        service["spec"]["selector"],
        found["StatefulSet"]["spec"]["selector"]["matchLabels"],
        found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    monitor = found["ServiceMonitor"]["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["metadata"]["labels"][monitor["jobLabel"]] == POLICY_SERVER


def test_ports_are_those_of_the_configuration_and_of_the_image() -> None:
    config = load_config(DOCKER / "kubernetes/policy.yaml", {})
    wanted = {
        "grpc": split_host_port(config.server.grpc)[1],
        "http": split_host_port(config.server.http)[1],
    }
    assert {one["name"]: one["containerPort"] for one in CONTAINER["ports"]} == wanted
    service = manifests()["Service"]["spec"]
    assert {one["targetPort"]: one["port"] for one in service["ports"]} == wanted
    assert {str(port) for port in wanted.values()} <= set(last("EXPOSE").split())


def test_the_pod_runs_as_the_image_does_and_writes_to_its_volume_only() -> None:
    user, group = last("USER").split(":")
    context = POD["spec"]["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == (int(user), int(group))
    assert context["runAsNonRoot"]
    own = CONTAINER["securityContext"]
    assert own["readOnlyRootFilesystem"]
    assert not own["allowPrivilegeEscalation"]
    (volume,) = command("VOLUME")
    writable = [one["mountPath"] for one in CONTAINER["volumeMounts"] if not one.get("readOnly")]
    assert writable == [volume]
    assert CONTAINER["args"][-2:] == command("CMD")[-2:]


def test_there_is_never_a_second_one() -> None:
    spec = manifests()["StatefulSet"]["spec"]
    (claim,) = spec["volumeClaimTemplates"]
    assert spec["replicas"] == 1
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]


def test_envoy_waits_for_longer_than_the_pod_takes_to_move() -> None:
    """The old one ends in its grace period, a lost node is left after its toleration."""
    policy = resend("closed")
    pause = policy.retry_back_off
    assert pause is not None
    assert pause.max_interval is not None
    window_s = policy.num_retries * pause.max_interval.total_seconds() / 2
    text = (DOCKER / "kubernetes/README.md").read_text("utf-8")
    assert f"about {window_s:.0f} s" in text
    assert POD["spec"]["terminationGracePeriodSeconds"] < window_s / 2
    assert all(one["tolerationSeconds"] < window_s / 2 for one in POD["spec"]["tolerations"])
    probe = CONTAINER["livenessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] < window_s / 2


def test_generated_files_are_up_to_date() -> None:
    for path, text in everything().items():
        assert path.read_text("utf-8") == text, f"{path.name}: run make config"


def read(file: Path) -> Any:
    return yaml.safe_load(file.read_text("utf-8"))
