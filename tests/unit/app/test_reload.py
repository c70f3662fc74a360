"""What SIGHUP may change: what only Envoy can follow is refused with the key to restart for."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from policy_server.app.reload import Reload, refuse_fixed_changes
from policy_server.app.server import PolicyServer
from policy_server.config import Config, ConfigError


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"server": {"http": "127.0.0.1:9103"}}, "server"),
        ({"journal": {"fsync": "interval"}}, "journal"),
        ({"govern": {"paths": ["/v1"]}}, "govern"),
        ({"tenants": {"from": "metadata:envoy.filters.http.lua/who"}}, "tenants.from"),
        ({"tenants": {"from": "header:x-team"}}, "tenants.from"),
        ({"jobs": {"enabled": False}}, "jobs.enabled"),
        ({"jobs": {"max_body": "1MiB"}}, "jobs.max_body"),
        ({"classes": {"P2": {"max_wait_s": 60}}}, "classes"),
        ({"pools": [{"limit": {"max": 2200}}]}, r"pools\[\].limit.max"),
        (
            {
                "pools": [
                    {"name": "a", "match": {"path_prefix": "/a"}, "limit": {"max": 1100}},
                    {"limit": {"max": 1100}},
                ]
            },
            r"pools\[\].limit.max",
        ),
        ({"pools": [{"backends": {"count": 1}, "no_backend_wait_s": 30}]}, r"pools\[\].backends"),
    ],
)
def test_what_needs_another_envoy_configuration_is_refused(
    changed: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^{named}: .*restart|^{named}: .*regenerate"):
        refuse_fixed_changes(Config(), Config.model_validate(changed))


@pytest.mark.parametrize(
    "changed",
    [
        {"tenants": {"known": ["a"], "weights": {"a": 2}, "max_class": {"a": "P1"}}},
        {"classes": {"P2": {"max_wait_s": 30}}},
        {"pools": [{"limit": {"max": 200}}]},
        {"pools": [{"limit": {"max": 1900}}]},
    ],
)
def test_budgets_weights_and_limits_may_change(changed: dict[str, Any]) -> None:
    refuse_fixed_changes(Config(), Config.model_validate(changed))


PROBED = {"probe": ["http://a:8000/health"]}


def backends(**told: Any) -> Config:
    return Config.model_validate({"pools": [{"backends": told}]})


@pytest.mark.parametrize(
    "told",
    [
        {"probe": ["http://b:9000/health", "http://c:8000/health"]},  # Envoy asks its own hosts
        {"envoy_admin": "http://127.0.0.1:9901"},
        {"count": 3},
        {"probe": ["http://a:8000/health"], "ramp_s": 5},
        {},
    ],
)
def test_who_tells_of_the_back_ends_may_change_while_envoy_checks_them(
    told: dict[str, Any],
) -> None:
    refuse_fixed_changes(backends(**PROBED), backends(**told))


def test_another_health_path_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"backends.probe: .*by /health, not by /ready; restart"):
        refuse_fixed_changes(backends(**PROBED), backends(probe=["http://a:8000/ready"]))


def said_of(server: PolicyServer, wait_s: float, built: Config | None = None) -> str:
    """What `/statusz` warns of after a reload with this budget of P2."""
    config = Config.model_validate({"classes": {"P2": {"max_wait_s": wait_s}}})
    server.reload(Reload(lambda: config, built=built))
    return " ".join(server._problems())


async def test_a_reload_is_judged_by_what_envoy_was_made_from() -> None:
    """Not by the last reload: what was once lowered may be raised again."""
    server = PolicyServer(Config(), "serve")
    assert said_of(server, 20) == ""
    assert said_of(server, 45) == ""
    assert "fit holds of 45 s, the new budgets" in said_of(server, 46)
    assert said_of(server, 45) == ""


async def test_a_replacement_judges_by_what_the_first_one_began_with() -> None:
    lowered = Config.model_validate({"classes": {"P2": {"max_wait_s": 20}}})
    assert said_of(PolicyServer(lowered, "gateway"), 45, built=Config()) == ""


async def test_a_reload_that_can_not_be_kept_holds_and_says_so() -> None:
    server = PolicyServer(Config(), "gateway")

    def full(_: Config) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    config = Config.model_validate({"classes": {"P2": {"max_wait_s": 20}}})
    server.reload(Reload(lambda: config, full))
    (problem,) = server._problems()
    assert "in force, but not kept" in problem
    assert "No space left on device" in problem
    assert said_of(server, 21) == ""
