"""The objects for meshes: fields that their API has, and the promises that hold across targets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from policy_server.config import load_config
from policy_server.config_source import ConfigError
from policy_server.envoy_config.bootstrap import RUNTIME
from policy_server.envoy_config.command import Asked, documents
from tests.support.generated_config import FILES, FOLDER
from tests.support.schema import check, check_object, schema

ASKED = [one for one in FILES.values() if one.target not in ("bootstrap", "istio-values")]
CONFIGS = {
    "defaults": "",
    "much": "govern: {methods: [POST, PUT], paths: [/v1/, /v2]}\n"
    "tenants: {from: 'metadata:a/b'}\n"
    "classes: {P2: {max_wait_s: 3500}}\n",
    "little": "govern: {methods: [], paths: [/ws]}\n",
}


def made(tmp_path: Path, text: str, asked: Asked) -> list[dict[str, Any]]:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    found: list[dict[str, Any]] = json.loads(json.dumps(documents(load_config(file, {}), asked)))
    return found


def by_kind(found: list[dict[str, Any]]) -> dict[str, Any]:
    return {document["kind"]: document["spec"] for document in found}


def name_of(asked: Asked) -> str:
    return f"{asked.target}-{asked.wiring}-{asked.on_outage}"


@pytest.mark.parametrize("text", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("asked", ASKED, ids=name_of)
def test_every_object_has_fields_that_its_api_knows(
    tmp_path: Path, text: str, asked: Asked
) -> None:
    for document in made(tmp_path, text, asked):
        check_object(document, "istio", "envoy-gateway")


@pytest.mark.parametrize("on_outage", ["closed", "open"])
@pytest.mark.parametrize("wiring", ["gate", "authz"])
def test_the_values_of_istio_have_fields_that_its_mesh_config_knows(
    tmp_path: Path, wiring: Any, on_outage: Any
) -> None:
    (values,) = made(tmp_path, "", Asked("istio-values", wiring, on_outage))
    check(values, schema("istio-values"))


def test_istio_is_told_every_runtime_guard_in_words(tmp_path: Path) -> None:
    """Its API takes strings, and turns true and false into what they mean."""
    (values,) = made(tmp_path, "", Asked("istio-values"))
    said = values["meshConfig"]["defaultConfig"]["runtimeValues"]
    assert {name: said[name] == "true" for name in said} == RUNTIME


def test_a_mesh_keeps_its_own_access_log(tmp_path: Path) -> None:
    """Where an object that adds a log replaces the default ones, it names them as well."""
    telemetry = by_kind(made(tmp_path, "", Asked("istio", "authz")))["Telemetry"]
    names = [
        provider["name"] for log in telemetry["accessLogging"] for provider in log["providers"]
    ]
    assert names == ["envoy", "policy-server-log"]
    proxy = by_kind(made(tmp_path, "", Asked("envoy-gateway", "authz")))["EnvoyProxy"]
    usual, ours = proxy["telemetry"]["accessLog"]["settings"]
    assert usual == {"sinks": [{"type": "File", "file": {"path": "/dev/stdout"}}]}
    assert [sink["type"] for sink in ours["sinks"]] == ["ALS"]
    stream = by_kind(made(tmp_path, "", Asked("envoy-gateway", "stream")))["EnvoyProxy"]
    assert "telemetry" not in stream


def test_a_field_that_no_api_knows_is_found() -> None:
    text = (FOLDER / "envoy-gateway/stream.yaml").read_text("utf-8")
    (policy,) = (one for one in yaml.safe_load_all(text) if one["kind"] == "EnvoyExtensionPolicy")
    policy["spec"]["extProc"][0]["maxMessageTimeout"] = "1s"
    with pytest.raises(AssertionError, match="maxMessageTimeout"):
        check_object(policy, "envoy-gateway")


@pytest.mark.parametrize("text", CONFIGS.values(), ids=CONFIGS)
def test_a_hold_outlasts_no_time_out_of_envoy_gateway(tmp_path: Path, text: str) -> None:
    stream = by_kind(made(tmp_path, text, Asked("envoy-gateway", "stream")))
    hold_s = load_config(tmp_path / "policy.yaml", {}).longest_hold_s
    authz = by_kind(made(tmp_path, text, Asked("envoy-gateway", "authz")))
    (ask,) = stream["EnvoyExtensionPolicy"]["extProc"]
    check = authz["SecurityPolicy"]["extAuth"]
    again = check["grpc"]["backendSettings"]["retry"]["perRetry"]["backOff"]
    client = stream["ClientTrafficPolicy"]["timeout"]["http"]
    for limit in (
        ask["messageTimeout"],
        check["timeout"],
        again["maxInterval"],
        client["streamIdleTimeout"],
    ):
        assert float(limit.removesuffix("s")) > hold_s
    assert client["requestReceivedTimeout"] == "0s"
    assert stream["BackendTrafficPolicy"]["timeout"]["http"]["requestTimeout"] == "0s"


@pytest.mark.parametrize(("on_outage", "least_s", "most_s"), [("closed", 60, 300), ("open", 0, 1)])
def test_the_retry_window_fits_the_outage(
    tmp_path: Path, on_outage: Any, least_s: float, most_s: float
) -> None:
    found = by_kind(made(tmp_path, "", Asked("envoy-gateway", "stream", on_outage)))
    (ask,) = found["EnvoyExtensionPolicy"]["extProc"]
    retry = ask["backendSettings"]["retry"]
    pause_s = float(retry["perRetry"]["backOff"]["maxInterval"].removesuffix("ms")) / 1000
    assert least_s <= retry["numRetries"] * pause_s / 2 <= most_s
    assert ask["failOpen"] == (on_outage == "open")


def test_nothing_of_ours_in_istio_has_a_name_of_istios(tmp_path: Path) -> None:
    spec = by_kind(made(tmp_path, "", Asked("istio")))["EnvoyFilter"]
    names = [
        patch["patch"]["value"]["name"]
        for patch in spec["configPatches"]
        if patch["applyTo"] == "HTTP_FILTER"
    ]
    assert names[-3:] == ["policy.gate", "policy.coin", "policy.observer"]
    assert all(name.startswith("policy.") for name in names)


def test_only_what_is_governed_is_asked_about(tmp_path: Path) -> None:
    rules = by_kind(made(tmp_path, CONFIGS["much"], Asked("istio", "authz")))
    first, upgrade = rules["AuthorizationPolicy"]["rules"]
    assert first["to"] == [{"operation": {"methods": ["POST", "PUT"], "paths": ["/v1/*", "/v2*"]}}]
    assert upgrade["when"] == [{"key": "request.headers[upgrade]", "values": ["*"]}]
    governed, passed = by_kind(made(tmp_path, CONFIGS["much"], Asked("envoy-gateway", "authz")))[
        "HTTPRoute"
    ]["rules"]
    assert len(governed["matches"]) == 6
    assert passed["matches"] == [{"path": {"type": "PathPrefix", "value": "/"}}]


def test_what_points_into_another_namespace_is_granted(tmp_path: Path) -> None:
    asked = Asked(
        "envoy-gateway",
        "authz",
        upstreams=["http://a.models:8000", "http://b.models:8000", "http://c.default"],
        gateway="default/eg",
        namespace="policy",
    )
    grants = [one for one in made(tmp_path, "", asked) if one["kind"] == "ReferenceGrant"]
    assert {one["metadata"]["namespace"] for one in grants} == {"policy", "models"}
    kinds = {
        (one["metadata"]["namespace"], who["kind"]) for one in grants for who in one["spec"]["from"]
    }
    assert kinds == {
        ("policy", "SecurityPolicy"),
        ("policy", "EnvoyProxy"),
        ("models", "HTTPRoute"),
    }


@pytest.mark.parametrize("upstream", ["http://10.0.0.1", "http://model", "https://a.b:443"])
def test_envoy_gateway_routes_to_services_only(tmp_path: Path, upstream: str) -> None:
    with pytest.raises(ConfigError, match=r"SERVICE\.NAMESPACE"):
        made(tmp_path, "", Asked("envoy-gateway", "authz", upstreams=[upstream]))


@pytest.mark.parametrize("asked", [Asked("istio-values", "authz"), Asked("envoy-gateway", "authz")])
def test_certificate_files_are_refused_where_the_mesh_builds_the_cluster(
    tmp_path: Path, asked: Asked
) -> None:
    text = f"server: {{tls: {{cert: {tmp_path}/c.pem, key: {tmp_path}/k.pem}}}}"
    with pytest.raises(ConfigError, match=r"server.tls: this target"):
        made(tmp_path, text, asked)


@pytest.mark.parametrize("asked", ASKED, ids=name_of)
def test_jobs_are_refused_because_they_could_not_come_back(tmp_path: Path, asked: Asked) -> None:
    with pytest.raises(ConfigError, match=r"jobs.via: .* no way back"):
        made(tmp_path, "jobs: {via: 'http://127.0.0.1:9999'}", asked)
