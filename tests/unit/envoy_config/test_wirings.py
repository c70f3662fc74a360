"""What each wiring asks of Envoy, and the traps it has to keep out of."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from policy_server.envoy_config.chain import WIRINGS
from policy_server.envoy_config.options import Wiring
from tests.unit.envoy_config.test_bootstrap import build, gate, manager, seconds


def names(data: dict[str, Any]) -> list[str]:
    return [f["name"] for f in manager(data)["http_filters"]]


def test_every_wiring_has_a_builder() -> None:
    assert WIRINGS.keys() == set(get_args(Wiring))


@pytest.mark.parametrize("wiring", WIRINGS)
def test_a_governed_route_enables_the_whole_chain_and_no_other_does(
    tmp_path: Path, wiring: str
) -> None:
    data = build(tmp_path, wiring=wiring)
    optional = {f["name"] for f in manager(data)["http_filters"] if f.get("disabled")}
    for route in manager(data)["route_config"]["virtual_hosts"][0]["routes"]:
        enabled = set(route.get("typed_per_filter_config", {}))
        tunnel = "connect_matcher" in route["match"] or "upgrade" in str(route["match"])
        asked = optional - {"policy.body"} if tunnel else optional
        own = {"governed": asked, "policy": {"policy.ratelimit"}}
        assert enabled == own.get(route["name"], set())


@pytest.mark.parametrize(
    ("text", "hold_s"), [("", 45), ("classes: {P2: {max_wait_s: 3500}}", 3500)]
)
def test_a_check_may_wait_for_as_long_as_the_longest_hold(
    tmp_path: Path, text: str, hold_s: float
) -> None:
    """Envoy takes max_interval for the time-out of each try, and `timeout` for all of them."""
    service = gate(build(tmp_path, text, wiring="authz"))["grpc_service"]
    back_off = service["retry_policy"]["retry_back_off"]
    assert hold_s < seconds(back_off["max_interval"]) <= hold_s + 60
    assert seconds(service["timeout"]) >= seconds(back_off["max_interval"]) + 60


@pytest.mark.parametrize(("on_outage", "least_s", "most_s"), [("closed", 60, 300), ("open", 0, 1)])
def test_the_retry_window_of_a_check_fits_the_outage(
    tmp_path: Path, on_outage: str, least_s: float, most_s: float
) -> None:
    data = build(tmp_path, wiring="authz", on_outage=on_outage)
    retry = gate(data)["grpc_service"]["retry_policy"]
    first, cap = (
        seconds(retry["retry_back_off"][key]) for key in ("base_interval", "max_interval")
    )
    longest = [min(cap, first * 2**n) for n in range(retry["num_retries"])]
    assert sum(longest) / 2 >= least_s
    assert sum(longest) <= most_s


def test_a_check_gets_what_envoy_knows_and_never_the_body(tmp_path: Path) -> None:
    check = gate(build(tmp_path, "tenants: {from: 'metadata:my.auth/org'}", wiring="authz"))
    assert {"policy.request", "my.auth"} <= set(check["metadata_context_namespaces"])
    assert "with_request_body" not in check
    assert check["status_on_error"] == {"code": "ServiceUnavailable"}


def test_an_ext_authz_chain_has_no_observer(tmp_path: Path) -> None:
    assert "policy.observer" not in names(build(tmp_path, wiring="authz"))
    assert manager(build(tmp_path, wiring="authz"))["access_log"]


def test_a_single_stream_is_open_to_the_end_and_needs_no_log(tmp_path: Path) -> None:
    data = build(tmp_path, wiring="stream")
    modes = gate(data)["processing_mode"]
    assert modes["response_header_mode"] == modes["response_trailer_mode"] == "SEND"
    assert not {"request_body_mode", "response_body_mode"} & modes.keys()
    told = {h["key"]: h["value"] for h in gate(data)["grpc_service"]["initial_metadata"]}
    assert told["x-policy-wiring"] == "stream"
    assert "policy.observer" in names(data)
    assert "access_log" not in manager(data)
