"""Envoy's own words about its hosts."""

from __future__ import annotations

import json

import pytest

from policy_server.signals.cluster_page import ready_hosts


def page(*health: object, name: str = "upstream") -> bytes:
    hosts = [{"address": {}, "health_status": one} for one in health]
    return json.dumps({"cluster_statuses": [{"name": name, "host_statuses": hosts}]}).encode()


HEALTHY = {"eds_health_status": "HEALTHY"}


def test_healthy_hosts_are_counted() -> None:
    assert ready_hosts(page(HEALTHY, HEALTHY), "upstream") == 2


@pytest.mark.parametrize(
    "flag",
    [
        "failed_active_health_check",
        "failed_outlier_check",
        "pending_active_hc",
        "pending_dynamic_removal",
        "excluded_via_immediate_hc_fail",
    ],
)
def test_a_host_that_envoy_would_not_choose_is_not_ready(flag: str) -> None:
    assert ready_hosts(page(HEALTHY, {**HEALTHY, flag: True}), "upstream") == 1
    assert ready_hosts(page({**HEALTHY, flag: False}), "upstream") == 1


@pytest.mark.parametrize("told", ["UNHEALTHY", "DRAINING", "TIMEOUT"])
def test_nor_is_one_that_its_source_calls_unhealthy(told: str) -> None:
    assert ready_hosts(page({"eds_health_status": told}), "upstream") == 0


def test_a_cluster_without_hosts_has_none_ready() -> None:
    assert ready_hosts(b'{"cluster_statuses": [{"name": "upstream"}]}', "upstream") == 0


@pytest.mark.parametrize(
    "broken",
    [b"", b"<html>", b"[]", b"null", b'{"cluster_statuses": 3}', b'{"cluster_statuses":[1]}'],
)
def test_a_page_that_is_none_tells_nothing(broken: bytes) -> None:
    assert ready_hosts(broken, "upstream") is None


def test_another_cluster_tells_nothing() -> None:
    assert ready_hosts(page(HEALTHY, name="other"), "upstream") is None
