"""What SIGHUP may change, and what it may not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from policy_server.config import Config, ConfigError


@dataclass(frozen=True, slots=True)
class Reload:
    """What SIGHUP does: `read` the file; `accepted` hears of the configuration now in force."""

    read: Callable[[], Config]
    accepted: Callable[[Config], None] | None = None


def refuse_fixed_changes(old: Config, new: Config) -> None:
    """What needs a restart or another Envoy configuration can't be reloaded."""
    for key in ("server", "journal", "govern"):
        if getattr(old, key) != getattr(new, key):
            raise ConfigError(
                f"{key}: can't change while running; restart, and regenerate the Envoy side"
            )
    for key in ("enabled", "via", "max_body"):
        if getattr(old.jobs, key) != getattr(new.jobs, key):
            raise ConfigError(
                f"jobs.{key}: can't change while running; restart, and regenerate the Envoy side"
            )
    if new.tenants.source != old.tenants.source:
        raise ConfigError(
            "tenants.from: can't change while running; restart, and regenerate the Envoy side"
        )
    if new.longest_hold_s > old.longest_hold_s:
        raise ConfigError(
            f"classes: Envoy's timeouts fit holds of {old.longest_hold_s:g} s, the new budgets "
            f"allow {new.longest_hold_s:g} s; regenerate the Envoy side and restart"
        )
