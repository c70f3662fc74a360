"""What a wiring brings to the configuration; everything else is the same for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import betterproto2
from envoy_data_plane.envoy.config.accesslog.v3 import AccessLog
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter

from policy_server.config import Config

GATE = "policy.gate"
"""The name of the filter that asks, in every wiring."""
ANSWER_NAMESPACE = "policy"
"""What the policy server says of its answer: class, queue_wait_ms, pool."""
# The policy server answers at the deadline; this much later something is wrong.
ANSWER_MARGIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Wired:
    """The filters in their order, all disabled; what a governed route enables, each with its own
    configuration there (None = none); the logs. `jobs`: the gate's own configuration on the route
    of those who prefer to become jobs; None = that of every governed route does."""

    filters: list[HttpFilter]
    governed: Mapping[str, betterproto2.Message | None]
    access_logs: list[AccessLog]
    jobs: betterproto2.Message | None = None


def forwarded_metadata(config: Config, *own: str) -> list[str]:
    """The metadata that classification may read, with the tenant's namespace when it has one."""
    namespaces = [*own, "envoy.filters.http.jwt_authn", "envoy.filters.http.ext_authz"]
    kind, _, rest = config.tenants.source.partition(":")
    namespace = rest.split("/", 1)[0]
    if kind == "metadata" and namespace not in namespaces:
        namespaces.append(namespace)
    return namespaces
