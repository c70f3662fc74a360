"""A whole Envoy, as a bootstrap file: listener, clusters, admin, limits of Envoy itself.

A wiring module (`gate`, `authz`, `stream`) says how the policy server is asked and how it learns of
the end; everything else is the same for all of them.
"""

from __future__ import annotations

import json
from typing import Any as JsonValue

import betterproto2
import yaml
from envoy_data_plane.envoy.config.bootstrap.v3 import (
    Admin,
    Bootstrap,
    BootstrapStaticResources,
    LayeredRuntime,
    RuntimeLayer,
)
from envoy_data_plane.envoy.config.core.v3 import Node
from envoy_data_plane.envoy.config.overload.v3 import OverloadManager, ResourceMonitor
from envoy_data_plane.envoy.extensions.resource_monitors.downstream_connections.v3 import (
    DownstreamConnectionsConfig,
)
from envoy_data_plane.google.protobuf import Any, Struct

from policy_server.config import Config
from policy_server.envoy_config import authz, gate, stream
from policy_server.envoy_config.clusters import (
    policy_cluster,
    policy_http_cluster,
    upstream_cluster,
)
from policy_server.envoy_config.listener import connection_manager, listener
from policy_server.envoy_config.options import GatewayOptions
from policy_server.envoy_config.ratelimit import NAME as RATE_LIMIT
from policy_server.envoy_config.ratelimit import local_rate_limit
from policy_server.envoy_config.request_facts import BODY, UID, body_filter, uid_filter
from policy_server.envoy_config.routes import route_config
from policy_server.envoy_config.wire import address, http_filter

# Bounds Envoy's memory and file descriptors; far above what one policy server lets through.
MAX_CONNECTIONS = 50_000
WIRINGS = {"gate": gate.wired, "authz": authz.wired, "stream": stream.wired}
RUNTIME = {
    # No RST_STREAM when a hold ends; see MAX_CONTROL_FRAMES for what thousands of them do.
    "envoy.reloadable_features.ext_proc_graceful_grpc_close": True,
}


def build_bootstrap(config: Config, options: GatewayOptions) -> dict[str, JsonValue]:
    """The bootstrap as plain data, with Envoy's own field names."""
    data = _bootstrap(config, options).to_dict(casing=betterproto2.Casing.SNAKE)
    return {key: _plain(value) for key, value in data.items()}


def to_yaml(data: dict[str, JsonValue], header: str = "") -> str:
    """The data as YAML, under a comment."""
    comment = "".join(f"# {line}\n" for line in header.splitlines())
    # through JSON, so that no shared object becomes a YAML anchor
    return comment + yaml.safe_dump(json.loads(json.dumps(data)), sort_keys=False, width=100)


def _bootstrap(config: Config, options: GatewayOptions) -> Bootstrap:
    wiring = WIRINGS[options.wiring](config, options)
    enabled = {**dict.fromkeys((UID, RATE_LIMIT, BODY)), **wiring.governed}
    routes = route_config(config, options, enabled)
    filters = [
        uid_filter(),
        http_filter(RATE_LIMIT, local_rate_limit(options.gate_rate_per_s), disabled=True),
        body_filter(),
        *wiring.filters,
    ]
    manager = connection_manager(config, routes, filters, wiring.access_logs)
    return Bootstrap(
        node=Node(id=options.node_id, cluster="policy"),
        admin=Admin(address=address("127.0.0.1", options.admin_port)),
        static_resources=BootstrapStaticResources(
            listeners=[listener(config, options, manager)],
            clusters=[
                upstream_cluster(config, options),
                policy_cluster(config, options),
                policy_http_cluster(options),
            ],
        ),
        layered_runtime=LayeredRuntime(
            layers=[RuntimeLayer(name="static", static_layer=Struct.from_dict(RUNTIME))]
        ),
        overload_manager=OverloadManager(resource_monitors=[_connection_limit()]),
    )


def _connection_limit() -> ResourceMonitor:
    return ResourceMonitor(
        name="envoy.resource_monitors.global_downstream_max_connections",
        typed_config=Any.pack(
            DownstreamConnectionsConfig(max_active_downstream_connections=MAX_CONNECTIONS)
        ),
    )


def _plain(value: JsonValue) -> JsonValue:
    """Repairs what Envoy's JSON reader refuses: the empty `@type` of an empty Any, and
    `consecutive_5_xx`, which is the library's idea of `consecutive_5xx` in snake case."""
    if isinstance(value, dict):
        pairs = ((key.replace("_5_xx", "_5xx"), inner) for key, inner in value.items())
        return {key: _plain(inner) for key, inner in pairs if (key, inner) != ("@type", "")}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
