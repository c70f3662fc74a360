"""What Envoy's configuration has of ours, as numbers: what was generated once and can't follow a
reload."""

from __future__ import annotations

from urllib.parse import urlsplit

from policy_server.config import Config

RESERVE = 0.05  # of the limit, at least RESERVE_SEATS: what may go beside it
RESERVE_SEATS = 2.0
BREAKER_ROOM = 2
SILENT_ANSWER_S = 900.0
"""How long a model server may be silent: a long answer that is not streamed."""


def most_in_flight(config: Config) -> int:
    """Requests that the pools may ever have at the model servers: limits at their maximum, and
    the reserve beside them."""
    limits = [pool.limit.max for pool in config.pools]
    return sum(int(most + max(RESERVE_SEATS, RESERVE * most) + 1) for most in limits)


def upstream_ceiling(config: Config) -> int:
    """Envoy's circuit breakers in front of the model servers: what may be in flight, twice."""
    return BREAKER_ROOM * most_in_flight(config)


def backends_known(config: Config) -> bool:
    """Whether any pool asks who is ready: then Envoy has to know it as well."""
    return any(pool.backends.known for pool in config.pools)


def health_path(config: Config) -> str | None:
    """The path that Envoy checks the model servers' health by: that of the pools' first probe.
    None = by a connection."""
    probes = (url for pool in config.pools for url in pool.backends.probe)
    first = next(probes, None)
    return None if first is None else urlsplit(first).path or "/"
