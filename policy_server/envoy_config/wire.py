"""Short forms for the Envoy messages that every builder needs."""

from __future__ import annotations

from datetime import timedelta

import betterproto2
from envoy_data_plane.envoy.config.core.v3 import (
    Address,
    GrpcService,
    GrpcServiceEnvoyGrpc,
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
    SocketAddress,
    TypedExtensionConfig,
)
from envoy_data_plane.envoy.config.route.v3 import FilterConfig
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.google.protobuf import Any
from envoy_data_plane.xds.core.v3 import TypedExtensionConfig as XdsExtensionConfig

from policy_server.envoy_config import options

POLICY_CLUSTER = "policy"
POLICY_HTTP_CLUSTER = "policy_http"
UPSTREAM_CLUSTER = options.UPSTREAM_CLUSTER
UID_HEADER = "x-policy-uid"
OBSERVE_HEADER = "x-policy-observe"
NODE_HEADER = "x-policy-node"
GRPC_TYPE = "application/grpc"
"""How the content type of gRPC calls begins."""


def seconds(value: float) -> timedelta:
    """Seconds as the type that the messages want."""
    return timedelta(seconds=value)


def extension(name: str, config: betterproto2.Message) -> TypedExtensionConfig:
    """A named extension."""
    return TypedExtensionConfig(name=name, typed_config=Any.pack(config))


def xds_extension(name: str, config: betterproto2.Message) -> XdsExtensionConfig:
    """A named extension inside an xDS matcher."""
    return XdsExtensionConfig(name=name, typed_config=Any.pack(config))


def http_filter(name: str, config: betterproto2.Message, disabled: bool = False) -> HttpFilter:
    """One entry of the HTTP filter chain; `disabled` until a route enables it."""
    return HttpFilter(name=name, typed_config=Any.pack(config), disabled=disabled)


def enable(own: betterproto2.Message | None) -> Any:
    """What a route says to turn a filter of the chain on: what it adds to its configuration."""
    return Any.pack(FilterConfig(config=Any.pack(own) if own is not None else Any()))


def address(host: str, port: int) -> Address:
    """A TCP address."""
    return Address(socket_address=SocketAddress(address=host, port_value=port))


def set_header(name: str, value: str) -> HeaderValueOption:
    """Sets the header whatever it was; an empty value (after formatting) sets nothing."""
    return HeaderValueOption(
        header=HeaderValue(key=name, value=value),
        append_action=HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
    )


def policy_grpc(node_id: str, metadata: dict[str, str] | None = None) -> GrpcService:
    """The policy server's gRPC port, told which Envoy is calling; "" = it says so by itself."""
    pairs = {**({NODE_HEADER: node_id} if node_id else {}), **(metadata or {})}
    return GrpcService(
        envoy_grpc=GrpcServiceEnvoyGrpc(
            cluster_name=POLICY_CLUSTER,
            skip_envoy_headers=True,  # nobody reads them, and each costs every call
        ),
        initial_metadata=[HeaderValue(key=key, value=value) for key, value in pairs.items()],
    )
