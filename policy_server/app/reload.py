"""What SIGHUP may change, and what it may not.

Envoy's configuration was made once, from the configuration at the start, whatever was reloaded
since. So that is what a new one is compared with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from policy_server.config import Config, ConfigError
from policy_server.config_envoy import (
    backends_known,
    health_path,
    most_in_flight,
    upstream_ceiling,
)

ANEW = "restart, and regenerate the Envoy side"


@dataclass(frozen=True, slots=True)
class Reload:
    """What SIGHUP does: `read` the file; `accepted` hears of the configuration now in force.

    `built`: what Envoy's configuration was made from, where that is not what this process began
    with.
    """

    read: Callable[[], Config]
    accepted: Callable[[Config], None] | None = None
    built: Config | None = None


def refuse_fixed_changes(built: Config, new: Config) -> None:
    """What needs a restart or another Envoy configuration than that of `built` can't be
    reloaded."""
    for key in ("server", "journal", "govern", "envoy"):
        if getattr(built, key) != getattr(new, key):
            raise ConfigError(f"{key}: can't change while running; {ANEW}")
    for key in ("enabled", "via", "max_body"):
        if getattr(built.jobs, key) != getattr(new.jobs, key):
            raise ConfigError(f"jobs.{key}: can't change while running; {ANEW}")
    if new.tenants.source != built.tenants.source:
        raise ConfigError(f"tenants.from: can't change while running; {ANEW}")
    _refuse_other_health_checks(built, new)
    if new.longest_hold_s > built.longest_hold_s:
        raise ConfigError(
            f"classes: Envoy's timeouts fit holds of {built.longest_hold_s:g} s, the new budgets "
            f"(max_wait_s, no_backend_wait_s) allow {new.longest_hold_s:g} s; {ANEW}"
        )
    _refuse_more_than_envoy_lets_through(built, new)


def _refuse_more_than_envoy_lets_through(built: Config, new: Config) -> None:
    most, ceiling = most_in_flight(new), upstream_ceiling(built)
    if most > ceiling:
        raise ConfigError(
            f"pools[].limit.max: the new limits allow {most} requests at the model servers, "
            f"Envoy's circuit breakers {ceiling}, beyond which it answers 503; choose less, or "
            f"{ANEW}"
        )


def _refuse_other_health_checks(built: Config, new: Config) -> None:
    if backends_known(new) and not backends_known(built):
        raise ConfigError(
            "pools[].backends: Envoy was made without health checks of the model servers and "
            f"would send to those that are not ready; {ANEW}"
        )
    was, path = health_path(built), health_path(new)
    if None not in (was, path) and was != path:
        raise ConfigError(
            f"pools[].backends.probe: Envoy checks the model servers' health by {was}, not by "
            f"{path}; {ANEW}"
        )
