"""Jobs in the generated configuration: absent without a way to send them, else closed to others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from policy_server.config import Config
from policy_server.config_jobs import caller_mark, jobs_port, takes_jobs
from policy_server.config_source import ConfigError
from policy_server.envoy_config.bootstrap import build_bootstrap
from policy_server.envoy_config.options import GatewayOptions, Upstream, Wiring

UPSTREAM = (Upstream.parse("http://127.0.0.1:8000"),)


def config(via: str | None = None, **more: Any) -> Config:
    return Config.model_validate({"jobs": {"via": via}, **more})


def built(settings: Config, wiring: Wiring = "gate") -> dict[str, Any]:
    found: Any = build_bootstrap(settings, GatewayOptions(UPSTREAM, wiring=wiring))
    return {x["name"]: x for x in found["static_resources"]["listeners"]}


def manager(listener: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return found


def routes(listener: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = manager(listener)["route_config"]["virtual_hosts"][0]["routes"]
    return found


@pytest.mark.parametrize(
    ("settings", "takes", "port"),
    [
        (config(), False, None),
        (config("http://127.0.0.1:9004"), True, 9004),
        (config("http://localhost:9004"), True, 9004),
        (config("http://envoy.example:9004"), True, None),
        (
            Config.model_validate({"jobs": {"enabled": False, "via": "http://127.0.0.1:1"}}),
            False,
            None,
        ),
    ],
)
def test_where_jobs_go(settings: Config, takes: bool, port: int | None) -> None:
    assert (takes_jobs(settings), jobs_port(settings)) == (takes, port)
    listeners = built(settings)
    assert ("jobs" in listeners) is (port is not None)
    assert any(r["name"] == "jobs" for r in routes(listeners["gateway"])) is takes


@pytest.mark.parametrize("wiring", ["gate", "authz", "stream"])
def test_only_jobs_with_a_passport_pass_on_their_listener(wiring: Wiring) -> None:
    listener = built(config("http://127.0.0.1:9004"), wiring)["jobs"]
    assert listener["address"]["socket_address"]["address"] == "127.0.0.1"
    passed, refused = routes(listener)
    assert passed["match"]["headers"] == [{"name": "x-policy-job", "present_match": True}]
    assert "policy.gate" in passed["typed_per_filter_config"]
    assert passed["response_headers_to_remove"] == ["x-policy-local"]
    (mapper,) = manager(listener)["local_reply_config"]["mappers"]
    (mark,) = mapper["headers_to_add"]
    assert mark["header"] == {"key": "x-policy-local", "value": "%RESPONSE_FLAGS%"}
    assert refused["direct_response"]["status"] == 403
    host = manager(listener)["route_config"]["virtual_hosts"][0]
    assert {"x-policy-job", "x-policy-uid"} <= set(host["request_headers_to_remove"])


def test_who_asks_is_said_by_envoy_alone(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-long-enough-token")
    plain, closed = config(), config(server={"admin_token_file": str(token)})
    for settings in (plain, closed):
        api = next(r for r in routes(built(settings)["gateway"]) if r["name"] == "policy")
        said = {h["header"]["key"]: h["header"]["value"] for h in api["request_headers_to_add"]}
        assert said["x-policy-caller"] == caller_mark(settings)
        assert said["x-policy-tenant"] == "%REQ(x-tenant-id)%"
    assert caller_mark(plain) == "client"
    assert len(caller_mark(closed)) == 64
    with pytest.raises(ConfigError, match="admin_token_file"):
        caller_mark(config(server={"admin_token_file": str(tmp_path / "none")}))
