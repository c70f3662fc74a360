"""What the generator derives from the configuration; the checked-in files are its output."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from policy_server.config import Config, ConfigError, load_config
from policy_server.envoy_config.bootstrap import build_bootstrap
from policy_server.envoy_config.command import Asked, render
from policy_server.envoy_config.options import GatewayOptions, Upstream
from policy_server.envoy_config.plain import to_yaml
from tests.support.generated_config import FOLDER, generated


def build(tmp_path: Path, text: str = "", *upstreams: str, **options: Any) -> dict[str, Any]:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    hosts = tuple(Upstream.parse(url) for url in upstreams or ("http://10.0.0.1:8000",))
    return build_bootstrap(load_config(file, {}), GatewayOptions(hosts, **options))


def manager(data: dict[str, Any]) -> Any:
    listener = data["static_resources"]["listeners"][0]
    return listener["filter_chains"][0]["filters"][0]["typed_config"]


def gate(data: dict[str, Any]) -> Any:
    return next(f for f in manager(data)["http_filters"] if f["name"] == "policy.gate")[
        "typed_config"
    ]


def cluster(data: dict[str, Any], name: str) -> Any:
    return next(c for c in data["static_resources"]["clusters"] if c["name"] == name)


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


@pytest.mark.parametrize("name", sorted(generated()))
def test_the_checked_in_file_is_the_generators_output(name: str) -> None:
    assert (FOLDER / name).read_text("utf-8") == generated()[name], "run: make config"


def test_every_file_is_generated() -> None:
    found = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.yaml")}
    assert {name for name in found if not name.startswith("keda/")} == set(generated())


@pytest.mark.parametrize(
    ("text", "hold_s"),
    [
        ("", 45),
        ("classes: {P2: {max_wait_s: 600}}", 600),
        ("pools: [{backends: {count: 1}, no_backend_wait_s: 900}]", 900),
        ("pools: [{no_backend_wait_s: 900}]", 45),
    ],
)
def test_time_outs_are_above_the_longest_hold(tmp_path: Path, text: str, hold_s: float) -> None:
    data = build(tmp_path, text)
    assert hold_s < seconds(gate(data)["message_timeout"]) <= hold_s + 60
    assert seconds(manager(data)["stream_idle_timeout"]) > hold_s + 60
    routes = manager(data)["route_config"]["virtual_hosts"][0]["routes"]
    assert {route["route"]["timeout"] for route in routes} == {"0s"}


def test_a_hold_that_envoy_cannot_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_wait_s: input should be less than or equal to 3500"):
        build(tmp_path, "classes: {P2: {max_wait_s: 4000}}")


def test_circuit_breakers_follow_the_limits(tmp_path: Path) -> None:
    text = "pools: [{name: a, match: {model: x}, limit: {max: 100}}, {name: b, limit: {max: 200}}]"
    breaker = cluster(build(tmp_path, text), "upstream")["circuit_breakers"]["thresholds"][0]
    assert breaker["max_requests"] >= 2 * (100 + 5 + 200 + 10)
    policy = cluster(build(tmp_path), "policy")["circuit_breakers"]["thresholds"][0]
    assert min(policy.values()) >= 100_000


def test_buffers_hold_twice_the_largest_job(tmp_path: Path) -> None:
    assert buffers(build(tmp_path)) == {32 * 1024**2}
    assert buffers(build(tmp_path, "jobs: {max_body: 40MiB}")) == {80 * 1024**2}


def buffers(data: dict[str, Any]) -> set[int]:
    host = manager(data)["route_config"]["virtual_hosts"][0]
    listener = data["static_resources"]["listeners"][0]
    return {host["request_body_buffer_limit"], listener["per_connection_buffer_limit_bytes"]}


def test_only_governed_routes_turn_the_gate_on(tmp_path: Path) -> None:
    text = "govern: {methods: [POST, put], paths: [/v1/, /v2/]}"
    routes = manager(build(tmp_path, text))["route_config"]["virtual_hosts"][0]["routes"]
    governed = [r["match"] for r in routes if "policy.gate" in r.get("typed_per_filter_config", {})]
    paths = [re.compile(match["safe_regex"]["regex"]) for match in governed]
    for path, own in zip(paths, ("/v1/", "/v2/") * 2, strict=True):
        assert path.fullmatch(f"{own}chat")
        assert path.fullmatch("".join(f"%{ord(c):02x}" for c in own))
        assert not path.fullmatch("/v3/chat")
    assert governed[0]["headers"][0] == {"name": "upgrade", "present_match": True}
    assert governed[2]["headers"][0]["string_match"]["safe_regex"]["regex"] == "POST|PUT"
    assert [route["name"] for route in routes][0::5] == ["policy", "passed"]


@pytest.mark.parametrize(
    ("upstream", "types"), [("http://10.0.0.1", 0), ("h2c://10.0.0.1", 1), ("https://a.test", 1)]
)
def test_only_what_may_be_endless_goes_without_its_body(
    tmp_path: Path, upstream: str, types: int
) -> None:
    """Who could say so of any request would take seats with half a body."""
    routes = manager(build(tmp_path, "", upstream))["route_config"]["virtual_hosts"][0]["routes"]
    asked = [r for r in routes if "policy.gate" in r.get("typed_per_filter_config", {})]
    unread = [r["match"] for r in asked if "policy.body" not in r["typed_per_filter_config"]]
    names = [header["name"] for match in unread for header in match.get("headers", [])]
    assert names.count("upgrade") == 1
    assert names.count("content-type") == types
    assert len(unread) == 2 + types  # and CONNECT


def test_the_tenants_namespace_is_forwarded(tmp_path: Path) -> None:
    data = build(tmp_path, "tenants: {from: 'metadata:my.auth/claims/org'}")
    assert "my.auth" in gate(data)["metadata_options"]["forwarding_namespaces"]["untyped"]


def test_upstreams_by_name_are_resolved_and_by_address_taken(tmp_path: Path) -> None:
    named = cluster(build(tmp_path, "", "https://models.example.com"), "upstream")
    assert named["type"] == "STRICT_DNS"
    assert named["transport_socket"]["typed_config"]["auto_host_sni"] is True
    assert cluster(build(tmp_path, "", "http://10.0.0.1"), "upstream")["type"] == "STATIC"


@pytest.mark.parametrize(
    ("urls", "message"),
    [
        (["ftp://h:1"], "not a URL of http, https or h2c"),
        (["h:8000"], "not a URL of http, https or h2c"),
        (["http://h:99999"], "not a URL"),
        (["http://h:0"], "not a URL"),
        (["http://h/v1"], "only scheme, host and port count"),
        (["http://u:p@h"], "only scheme, host and port count"),
        (["http://a", "https://b"], "mix http and https"),
    ],
)
def test_a_wrong_upstream_is_one_line(tmp_path: Path, urls: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(tmp_path, "", *urls)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_half_a_key_pair_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--tls-cert and --tls-key belong together"):
        build(tmp_path, tls_cert="c.pem")


def test_the_yaml_is_the_data(tmp_path: Path) -> None:
    data = build(tmp_path)
    text = to_yaml(data, "one\ntwo")
    assert text.startswith("# one\n# two\n")
    assert "&id" not in text
    assert yaml.safe_load(text) == data


def names(data: dict[str, Any]) -> set[str]:
    """What Envoy's gRPC streams say of who sends them."""
    log = manager(data)["access_log"][0]["typed_config"]["common_config"]
    observer = next(f for f in manager(data)["http_filters"] if f["name"] == "policy.observer")
    asks = observer["typed_config"]["extension_config"]["typed_config"]
    services = [part["grpc_service"] for part in (gate(data), log, asks)]
    pairs = [pair for one in services for pair in one.get("initial_metadata", [])]
    return {pair["value"] for pair in pairs if pair["key"] == "x-policy-node"}


def test_an_envoy_is_called_what_its_operator_says() -> None:
    own = yaml.safe_load(render(Config(), Asked(node="edge-1")))
    assert (own["node"]["id"], names(own)) == ("edge-1", {"edge-1"})
    assert "--node 'edge-1'" in render(Config(), Asked(node="edge-1"))
    pods = yaml.safe_load(render(Config(), Asked(node="%ENVIRONMENT(HOSTNAME)%")))
    log = manager(pods)["access_log"][0]["typed_config"]["common_config"]["grpc_service"]
    assert "initial_metadata" not in log  # nothing fills it in there; Envoy says its own node.id
    assert names(pods) == {"%ENVIRONMENT(HOSTNAME)%"}
    with pytest.raises(ConfigError, match="--node: a mesh names its proxies by itself"):
        render(Config(), Asked("istio", node="edge-1"))


def test_grpc_answers_tell_how_they_ended_and_how_full_the_engine_is(tmp_path: Path) -> None:
    for wiring in ("gate", "authz"):
        log = manager(build(tmp_path, wiring=wiring))["access_log"][0]["typed_config"]
        for where in ("headers", "trailers"):
            told = log[f"additional_response_{where}_to_log"]
            assert {"grpc-status", "endpoint-load-metrics-bin"} <= set(told)
