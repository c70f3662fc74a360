"""The listener and its HTTP connection manager: what clients talk to."""

from __future__ import annotations

from envoy_data_plane.envoy.config.accesslog.v3 import AccessLog
from envoy_data_plane.envoy.config.core.v3 import (
    DataSource,
    Http2ProtocolOptions,
    HttpProtocolOptions,
    TransportSocket,
)
from envoy_data_plane.envoy.config.listener.v3 import Filter, FilterChain, Listener
from envoy_data_plane.envoy.config.route.v3 import RouteConfiguration
from envoy_data_plane.envoy.extensions.filters.http.router.v3 import Router
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpConnectionManagerHcmAccessLogOptions,
    HttpConnectionManagerServerHeaderTransformation,
    HttpConnectionManagerUpgradeConfig,
    HttpFilter,
)
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManagerPathWithEscapedSlashesAction as EscapedSlashes,
)
from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import (
    CommonTlsContext,
    DownstreamTlsContext,
    TlsCertificate,
)
from envoy_data_plane.google.protobuf import Any

from policy_server.config import Config
from policy_server.config_envoy import SILENT_ANSWER_S
from policy_server.core.leases import HEARTBEAT_S
from policy_server.envoy_config.local_reply import local_replies
from policy_server.envoy_config.options import GatewayOptions
from policy_server.envoy_config.request_facts import identity
from policy_server.envoy_config.wire import address, http_filter, seconds

LISTENER = "gateway"
# Envoy and the gate add about a dozen; at the default of 100 that refused a client with 90.
MAX_HEADERS = 1000
UPGRADES = ("websocket", "CONNECT")


def listener(
    config: Config,
    options: GatewayOptions,
    manager: HttpConnectionManager,
) -> Listener:
    """The listener with one filter chain."""
    chain = FilterChain(
        filters=[
            Filter(
                name="envoy.filters.network.http_connection_manager",
                typed_config=Any.pack(manager),
            )
        ],
        transport_socket=_tls(options),
    )
    return Listener(
        name=LISTENER,
        address=address(options.host, options.port),
        filter_chains=[chain],
        per_connection_buffer_limit_bytes=config.body_buffer_bytes,
    )


def connection_manager(
    config: Config,
    routes: RouteConfiguration,
    filters: list[HttpFilter],
    access_logs: list[AccessLog],
) -> HttpConnectionManager:
    """HTTP/1.1 and HTTP/2 with the given filters; the router comes last."""
    router = http_filter("envoy.filters.http.router", Router(suppress_envoy_headers=True))
    return HttpConnectionManager(
        stat_prefix=LISTENER,
        route_config=routes,
        http_filters=[*filters, router],
        early_header_mutation_extensions=[identity()],
        access_log=access_logs,
        access_log_options=HttpConnectionManagerHcmAccessLogOptions(
            access_log_flush_interval=seconds(HEARTBEAT_S)
        ),
        local_reply_config=local_replies(),
        http2_protocol_options=Http2ProtocolOptions(allow_connect=True),
        common_http_protocol_options=HttpProtocolOptions(max_headers_count=MAX_HEADERS),
        upgrade_configs=[HttpConnectionManagerUpgradeConfig(upgrade_type=u) for u in UPGRADES],
        stream_idle_timeout=seconds(config.longest_hold_s + SILENT_ANSWER_S),
        request_headers_timeout=seconds(15),
        use_remote_address=True,
        # Or /x/../v1/…, //v1/… and /v1%2F… are other paths to the routes than to the model server.
        normalize_path=True,
        merge_slashes=True,
        path_with_escaped_slashes_action=EscapedSlashes.UNESCAPE_AND_FORWARD,
        preserve_external_request_id=True,
        always_set_request_id_in_response=True,
        server_header_transformation=HttpConnectionManagerServerHeaderTransformation.PASS_THROUGH,
    )


def _tls(options: GatewayOptions) -> TransportSocket | None:
    if not options.tls_cert or not options.tls_key:
        return None
    certificate = TlsCertificate(
        certificate_chain=DataSource(filename=options.tls_cert),
        private_key=DataSource(filename=options.tls_key),
    )
    context = DownstreamTlsContext(
        common_tls_context=CommonTlsContext(
            tls_certificates=[certificate], alpn_protocols=["h2", "http/1.1"]
        )
    )
    return TransportSocket(name="envoy.transport_sockets.tls", typed_config=Any.pack(context))
