"""A whole Envoy, as a bootstrap file: listener, clusters, admin, limits of Envoy itself.

`chain` says which filters run; everything else here is the same for all wirings.
"""

from __future__ import annotations

from typing import Any as JsonValue

from envoy_data_plane.envoy.config.bootstrap.v3 import (
    Admin,
    Bootstrap,
    BootstrapStaticResources,
    LayeredRuntime,
    RuntimeLayer,
)
from envoy_data_plane.envoy.config.core.v3 import Node
from envoy_data_plane.google.protobuf import Struct

from policy_server.config import Config
from policy_server.envoy_config.chain import whole_chain
from policy_server.envoy_config.clusters import (
    policy_cluster,
    policy_http_cluster,
    upstream_cluster,
)
from policy_server.envoy_config.jobs import jobs_listeners
from policy_server.envoy_config.listener import connection_manager, listener
from policy_server.envoy_config.options import GatewayOptions
from policy_server.envoy_config.overload import OVERLOAD_RUNTIME, overload_manager
from policy_server.envoy_config.plain import plain
from policy_server.envoy_config.routes import route_config, to_upstream
from policy_server.envoy_config.wire import address

RUNTIME = {
    # Must stay off, also where a later Envoy has it on. With it Envoy 1.40 dies of a segmentation
    # fault: it forgets a gRPC client that nobody has used for 50 s, and a filter that goes then
    # (its client left a long hold, or a long single-stream answer ended) is the client's last
    # owner, while the stream still waits for the other side to close.
    "envoy.reloadable_features.ext_proc_graceful_grpc_close": False,
}


def build_bootstrap(config: Config, options: GatewayOptions) -> dict[str, JsonValue]:
    """The bootstrap as plain data, with Envoy's own field names."""
    return plain(_bootstrap(config, options))


def _bootstrap(config: Config, options: GatewayOptions) -> Bootstrap:
    chain = whole_chain(config, options)
    routes = route_config(config, options, chain)
    manager = connection_manager(config, routes, chain.filters, chain.access_logs)
    guards = {**RUNTIME, **OVERLOAD_RUNTIME}
    return Bootstrap(
        node=Node(id=options.node_id, cluster="policy"),
        admin=Admin(address=address("127.0.0.1", options.admin_port)),
        static_resources=BootstrapStaticResources(
            listeners=[
                listener(config, options, manager),
                *jobs_listeners(config, chain, to_upstream(options)),
            ],
            clusters=[
                upstream_cluster(config, options),
                policy_cluster(config, options),
                policy_http_cluster(options),
            ],
        ),
        layered_runtime=LayeredRuntime(
            layers=[RuntimeLayer(name="static", static_layer=Struct.from_dict(guards))]
        ),
        overload_manager=overload_manager(config, options.memory_bytes),
    )
