"""The whole filter chain of a wiring, in its order: what every target builds from."""

from __future__ import annotations

from dataclasses import replace

from policy_server.config import Config
from policy_server.envoy_config import authz, gate, stream
from policy_server.envoy_config.options import GatewayOptions
from policy_server.envoy_config.ratelimit import NAME as RATE_LIMIT
from policy_server.envoy_config.ratelimit import local_rate_limit
from policy_server.envoy_config.request_facts import BODY, UID, body_filter, uid_filter
from policy_server.envoy_config.wire import http_filter
from policy_server.envoy_config.wirings import Wired

WIRINGS = {"gate": gate.wired, "authz": authz.wired, "stream": stream.wired}


def whole_chain(config: Config, options: GatewayOptions) -> Wired:
    """The rate limit, the identity and the facts in front of what the wiring brings."""
    wiring = WIRINGS[options.wiring](config, options)
    rate_limit = local_rate_limit(options.gate_rate_per_s)
    return replace(
        wiring,
        filters=[
            # First, and so without a uid in its metadata: what it refuses stays out of the log.
            http_filter(RATE_LIMIT, rate_limit, disabled=True),
            uid_filter(),
            body_filter(),
            *wiring.filters,
        ],
        governed={**dict.fromkeys((UID, RATE_LIMIT, BODY)), **wiring.governed},
    )
