"""The clusters: the policy server (gRPC, and HTTP for `/policy/`) and the model servers."""

from __future__ import annotations

from envoy_data_plane.envoy.config.cluster.v3 import (
    CircuitBreakers,
    CircuitBreakersThresholds,
    Cluster,
    ClusterCommonLbConfig,
    ClusterDiscoveryType,
    ClusterDnsLookupFamily,
    LoadBalancingPolicy,
    LoadBalancingPolicyPolicy,
    OutlierDetection,
)
from envoy_data_plane.envoy.config.core.v3 import (
    DataSource,
    HealthCheck,
    HealthCheckHttpHealthCheck,
    HealthCheckTcpHealthCheck,
    Http1ProtocolOptions,
    Http2ProtocolOptions,
    KeepaliveSettings,
    TransportSocket,
)
from envoy_data_plane.envoy.config.core.v3 import HttpProtocolOptions as CommonOptions
from envoy_data_plane.envoy.config.endpoint.v3 import (
    ClusterLoadAssignment,
    Endpoint,
    LbEndpoint,
    LocalityLbEndpoints,
)
from envoy_data_plane.envoy.extensions.load_balancing_policies.least_request.v3 import (
    LeastRequest,
    LeastRequestSelectionMethod,
)
from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import (
    CertificateValidationContext,
    CommonTlsContext,
    SubjectAltNameMatcher,
    SubjectAltNameMatcherSanType,
    TlsCertificate,
    UpstreamTlsContext,
)
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
    HttpProtocolOptions,
    HttpProtocolOptionsAutoHttpConfig,
    HttpProtocolOptionsExplicitHttpConfig,
)
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher
from envoy_data_plane.envoy.type.v3 import CodecClientType, Percent
from envoy_data_plane.google.protobuf import Any

from policy_server.config import Config, TlsConfig
from policy_server.config_envoy import backends_known, health_path, upstream_ceiling
from policy_server.envoy_config.options import GatewayOptions, Upstream
from policy_server.envoy_config.wire import (
    POLICY_CLUSTER,
    POLICY_HTTP_CLUSTER,
    UPSTREAM_CLUSTER,
    address,
    extension,
    seconds,
)

HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
# Held requests are open streams, and after a crash each of them is a retry.
POLICY_CEILING = 200_000
# Thousands of holds that end in one instant are as many RST_STREAM frames; Envoy's own flood
# guard (10,000) would cut the connection and with it every other hold.
MAX_CONTROL_FRAMES = 200_000
# uvicorn and friends close idle connections after 5 s; a request sent into that close is a 503.
UPSTREAM_IDLE_S = 4.0
HEALTH_INTERVAL_S = 0.1  # the policy server asks every 0.25 s while nobody is ready
CONNECT_TIMEOUT_S = 5.0
# Event streams (`jobs_api.MAX_STREAMS`) and as many calls beside them, each a connection.
API_CEILING = 4000


def policy_cluster(config: Config, options: GatewayOptions) -> Cluster:
    """The policy server's gRPC port: HTTP/2, room for every held request, TLS when configured."""
    http2 = Http2ProtocolOptions(
        max_outbound_control_frames=MAX_CONTROL_FRAMES,
        max_concurrent_streams=POLICY_CEILING,
        connection_keepalive=KeepaliveSettings(interval=seconds(30), timeout=seconds(20)),
    )
    tls = config.server.tls
    return Cluster(
        name=POLICY_CLUSTER,
        type=_discovery([options.policy_host]),
        dns_lookup_family=ClusterDnsLookupFamily.V4_PREFERRED,
        connect_timeout=seconds(0.25 if options.on_outage == "open" else 1),
        load_assignment=_endpoints(POLICY_CLUSTER, [(options.policy_host, options.grpc_port)]),
        circuit_breakers=_breakers(POLICY_CEILING),
        typed_extension_protocol_options=_http2(http2),
        transport_socket=_mutual_tls(tls) if tls else None,
    )


def policy_http_cluster(options: GatewayOptions) -> Cluster:
    """The policy server's HTTP API, for `/policy/`."""
    return Cluster(
        name=POLICY_HTTP_CLUSTER,
        type=_discovery([options.policy_host]),
        dns_lookup_family=ClusterDnsLookupFamily.V4_PREFERRED,
        # A burst fills the line of those who connect; a client of it comes again after a second.
        connect_timeout=seconds(CONNECT_TIMEOUT_S),
        circuit_breakers=_breakers(API_CEILING),
        load_assignment=_endpoints(POLICY_HTTP_CLUSTER, [(options.policy_host, options.http_port)]),
    )


def upstream_cluster(config: Config, options: GatewayOptions) -> Cluster:
    """The model servers, one balanced pool: the least loaded of all gets the next request."""
    hosts = options.upstreams
    several = len(hosts) > 1
    return Cluster(
        name=UPSTREAM_CLUSTER,
        type=_discovery([host.host for host in hosts]),
        dns_lookup_family=ClusterDnsLookupFamily.V4_PREFERRED,  # as `localhost` means
        connect_timeout=seconds(CONNECT_TIMEOUT_S),
        load_assignment=_endpoints(UPSTREAM_CLUSTER, [(host.host, host.port) for host in hosts]),
        load_balancing_policy=_least_request() if several else None,
        outlier_detection=_outliers() if several else None,
        health_checks=_health_checks(config, hosts),
        common_lb_config=_never_panic() if backends_known(config) else None,
        circuit_breakers=_breakers(upstream_ceiling(config)),
        typed_extension_protocol_options=_upstream_protocol(hosts[0].scheme),
        transport_socket=_public_tls(options) if hosts[0].scheme == "https" else None,
    )


def _health_checks(config: Config, hosts: tuple[Upstream, ...]) -> list[HealthCheck]:
    """So that a request which was held for a backend goes to one that is there.

    By the path of the pool's own probes, else by a connection: model servers listen when the
    model is loaded. Looked at more often than the policy server looks, so that Envoy knows first.
    """
    if not backends_known(config):
        return []
    check = HealthCheck(
        timeout=seconds(1),
        interval=seconds(0.5),
        no_traffic_interval=seconds(HEALTH_INTERVAL_S),
        unhealthy_interval=seconds(HEALTH_INTERVAL_S),
        unhealthy_edge_interval=seconds(HEALTH_INTERVAL_S),
        unhealthy_threshold=2,
        healthy_threshold=1,
    )
    path = health_path(config)
    if path is None:
        check.tcp_health_check = HealthCheckTcpHealthCheck()
    else:
        check.http_health_check = HealthCheckHttpHealthCheck(path=path)
        if hosts[0].scheme == "h2c":
            check.http_health_check.codec_client_type = CodecClientType.HTTP2
    return [check]


def _never_panic() -> ClusterCommonLbConfig:
    """Never to a host that is known to be away, however many of them there are.

    And at once to one that is back: Envoy holds news of health back for a second after other news,
    and whoever is let go meanwhile gets "no healthy upstream".
    """
    return ClusterCommonLbConfig(
        healthy_panic_threshold=Percent(value=0.0), update_merge_window=seconds(0)
    )


def _discovery(hosts: list[str]) -> ClusterDiscoveryType:
    """Addresses are taken as they are, names are resolved and followed."""
    static = all(Upstream("http", host, 1).is_ip for host in hosts)
    return ClusterDiscoveryType.STATIC if static else ClusterDiscoveryType.STRICT_DNS


def _endpoints(cluster: str, hosts: list[tuple[str, int]]) -> ClusterLoadAssignment:
    return ClusterLoadAssignment(
        cluster_name=cluster,
        endpoints=[
            LocalityLbEndpoints(
                lb_endpoints=[
                    LbEndpoint(endpoint=Endpoint(address=address(host, port)))
                    for host, port in hosts
                ]
            )
        ],
    )


def _breakers(ceiling: int) -> CircuitBreakers:
    threshold = CircuitBreakersThresholds(
        max_connections=ceiling,
        max_pending_requests=ceiling,
        max_requests=ceiling,
        max_retries=ceiling,
    )
    return CircuitBreakers(thresholds=[threshold])


def _http2(http2: Http2ProtocolOptions) -> dict[str, Any]:
    explicit = HttpProtocolOptionsExplicitHttpConfig(http2_protocol_options=http2)
    return {HTTP_OPTIONS: Any.pack(HttpProtocolOptions(explicit_http_config=explicit))}


def _upstream_protocol(scheme: str) -> dict[str, Any]:
    common = CommonOptions(idle_timeout=seconds(UPSTREAM_IDLE_S))
    http1, http2 = Http1ProtocolOptions(), Http2ProtocolOptions()
    if scheme == "https":  # ALPN decides
        chosen = HttpProtocolOptions(
            common_http_protocol_options=common,
            auto_config=HttpProtocolOptionsAutoHttpConfig(
                http_protocol_options=http1, http2_protocol_options=http2
            ),
        )
    else:
        explicit = (
            HttpProtocolOptionsExplicitHttpConfig(http2_protocol_options=http2)
            if scheme == "h2c"
            else HttpProtocolOptionsExplicitHttpConfig(http_protocol_options=http1)
        )
        chosen = HttpProtocolOptions(
            common_http_protocol_options=common, explicit_http_config=explicit
        )
    return {HTTP_OPTIONS: Any.pack(chosen)}


def _least_request() -> LoadBalancingPolicy:
    policy = LeastRequest(selection_method=LeastRequestSelectionMethod.FULL_SCAN)
    name = "envoy.load_balancing_policies.least_request"
    return LoadBalancingPolicy(
        policies=[LoadBalancingPolicyPolicy(typed_extension_config=extension(name, policy))]
    )


def _outliers() -> OutlierDetection:
    """A host that cannot be reached is set aside: with nothing in flight it looks least loaded.

    Only connection failures count; what a model server answers is the limit's business.
    """
    return OutlierDetection(
        split_external_local_origin_errors=True,
        interval=seconds(1),
        consecutive_local_origin_failure=3,
        enforcing_consecutive_local_origin_failure=100,
        enforcing_local_origin_success_rate=0,
        enforcing_consecutive_5xx=0,
        enforcing_consecutive_gateway_failure=0,
        enforcing_success_rate=0,
        base_ejection_time=seconds(5),
        max_ejection_percent=50,
    )


def _public_tls(options: GatewayOptions) -> TransportSocket:
    """TLS to a model server: SNI and certificate name follow each host of the pool."""
    validation = CertificateValidationContext(trusted_ca=DataSource(filename=options.upstream_ca))
    addresses = [host.host for host in options.upstreams if host.is_ip]
    if addresses:  # no name to follow: the certificate must hold the address
        validation.match_typed_subject_alt_names = [
            SubjectAltNameMatcher(
                san_type=SubjectAltNameMatcherSanType.IP_ADDRESS, matcher=StringMatcher(exact=one)
            )
            for one in addresses
        ]
    return _tls_socket(
        UpstreamTlsContext(
            auto_host_sni=not addresses,
            auto_sni_san_validation=not addresses,
            common_tls_context=CommonTlsContext(validation_context=validation),
        )
    )


def _mutual_tls(tls: TlsConfig) -> TransportSocket:
    """TLS to the policy server with Envoy's own certificate; trust is pinned to one private CA."""
    own = TlsCertificate(
        certificate_chain=DataSource(filename=str(tls.client_cert or tls.cert)),
        private_key=DataSource(filename=str(tls.client_key or tls.key)),
    )
    trusted = DataSource(filename=str(tls.server_ca or tls.client_ca or tls.cert))
    return _tls_socket(
        UpstreamTlsContext(
            common_tls_context=CommonTlsContext(
                tls_certificates=[own],
                validation_context=CertificateValidationContext(trusted_ca=trusted),
                alpn_protocols=["h2"],
            )
        )
    )


def _tls_socket(context: UpstreamTlsContext) -> TransportSocket:
    return TransportSocket(name="envoy.transport_sockets.tls", typed_config=Any.pack(context))
