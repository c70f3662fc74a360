"""What SIGHUP may change: what only Envoy can follow is refused with the key to restart for."""

from __future__ import annotations

from typing import Any

import pytest

from policy_server.app.reload import refuse_fixed_changes
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
    ],
)
def test_budgets_weights_and_limits_may_change(changed: dict[str, Any]) -> None:
    refuse_fixed_changes(Config(), Config.model_validate(changed))
