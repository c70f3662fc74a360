"""An Istio gateway proxy under our objects, as istiod builds it (Istio 1.30, pilot/pkg).

Only what our objects use is here; anything else in them raises. istiod's own additions that the
plain Envoy lacks (istio.stats, alpn) are left out.
"""

from __future__ import annotations

from typing import Any

from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.route.v3.route_components_pb2 import VirtualHost
from envoy.extensions.filters.network.http_connection_manager.v3 import (
    http_connection_manager_pb2 as hcm_pb2,
)
from google.protobuf.any_pb2 import Any as AnyMessage

from tests.support.mesh.base import MANAGER, Plain, bootstrap, cluster, http2, stdout_log, typed
from tests.support.mesh.fields import Fields
from tests.support.mesh.protos import merge, parse, plain

ROUTER = "envoy.filters.http.router"
MODEL = "outbound|8000||model.models.svc.cluster.local"
NODE = "router~127.0.0.1~gateway-0.istio-system~istio-system.svc.cluster.local"
ENVIRONMENT = {
    "INSTANCE_IP": "127.0.0.1",
    "POD_NAME": "gateway-0",
    "POD_NAMESPACE": "istio-system",
}
"""What the pod of a gateway says of itself, to Istio's agent and to the Envoy that it starts."""
DECODED_AND_MERGED = {
    "normalize_path": True,
    "merge_slashes": True,
    "path_with_escaped_slashes_action": "UNESCAPE_AND_FORWARD",
}
UNBOUNDED = 4294967295
USUAL_LOG = "envoy"
"""The provider that istiod has by itself. This mesh has `accessLogFile: /dev/stdout`, too."""
Manager = hcm_pb2.HttpConnectionManager


def gateway_proxy(where: dict[str, int], documents: list[Plain], values: list[Plain]) -> Plain:
    """The bootstrap of an ingress gateway with these objects and values applied."""
    (mesh,) = (Fields(one["meshConfig"], "meshConfig") for one in values)
    by_kind = {document["kind"]: document["spec"] for document in documents}
    manager, clusters = _gateway(where), [cluster(MODEL, where["upstream"])]
    if "EnvoyFilter" in by_kind:
        clusters += _apply(by_kind.pop("EnvoyFilter"), manager, where)
    if mesh.has("extensionProviders"):
        providers = _Providers(mesh.take("extensionProviders"), where)
        clusters.append(providers.cluster)
        filters = _custom(by_kind.pop("AuthorizationPolicy"), providers)
        for position, one in enumerate(filters):
            manager.http_filters.insert(position, parse(one, hcm_pb2.HttpFilter))
        # A workload's Telemetry takes the place of the mesh's own log (mergeLogs).
        del manager.access_log[:]
        merge(manager, parse({"access_log": _logs(by_kind.pop("Telemetry"), providers)}, Manager))
    assert mesh.take("pathNormalization", "normalization") == "DECODE_AND_MERGE_SLASHES"
    merge(manager, parse(DECODED_AND_MERGED, Manager))
    assert not by_kind, f"nobody reads {sorted(by_kind)}"
    runtime = mesh.take("defaultConfig", "runtimeValues") if mesh.has("defaultConfig") else {}
    mesh.close()
    return bootstrap(
        where,
        plain(manager),
        clusters,
        node={"id": NODE, "cluster": "istio-ingressgateway"},
        layered_runtime={"layers": [{"name": "global config", "static_layer": _typed(runtime)}]},
    )


def _typed(runtime: dict[str, str]) -> Plain:
    """Values of the mesh are strings; the bootstrap says true and false as such."""
    words = {"true": True, "false": False}
    return {name: words.get(value, value) for name, value in runtime.items()}


def _gateway(where: dict[str, int]) -> Manager:
    """The connection manager and route of a plain HTTP server with one VirtualService."""
    retry = {"retry_on": "connect-failure,refused-stream,unavailable,cancelled", "num_retries": 2}
    route = {
        "match": {"prefix": "/"},
        "route": {"cluster": MODEL, "timeout": "0s", "retry_policy": retry},
    }
    host = {"name": "*:8080", "domains": ["*"], "routes": [route]}
    filters = {
        "envoy.filters.http.grpc_stats": typed(
            "envoy.extensions.filters.http.grpc_stats.v3.FilterConfig", emit_filter_state=True
        ),
        "envoy.filters.http.fault": typed("envoy.extensions.filters.http.fault.v3.HTTPFault"),
        "envoy.filters.http.cors": typed("envoy.extensions.filters.http.cors.v3.Cors"),
        ROUTER: typed("envoy.extensions.filters.http.router.v3.Router"),
    }
    manager = {
        "stat_prefix": "outbound_0.0.0.0_8080",
        "use_remote_address": True,
        "normalize_path": True,
        "stream_idle_timeout": "0s",
        "upgrade_configs": [{"upgrade_type": "websocket"}],
        "route_config": {"name": "http.8080", "virtual_hosts": [host]},
        "http_filters": [{"name": n, "typed_config": config} for n, config in filters.items()],
        "access_log": [stdout_log()],
    }
    return parse(manager, Manager)


# -- an EnvoyFilter -------------------------------------------------------------------------------


def _apply(spec: Plain, manager: Manager, where: dict[str, int]) -> list[Plain]:
    """Changes `manager` as the patches say; the clusters that they add."""
    assert spec["workloadSelector"] == {"labels": {"istio": "ingressgateway"}}
    clusters = []
    for patch in spec["configPatches"]:
        assert patch["match"]["context"] == "GATEWAY"
        operation, value = patch["patch"]["operation"], patch["patch"]["value"]
        inside = _inside(patch["match"])
        match (patch["applyTo"], operation):
            case ("CLUSTER", "ADD"):
                clusters.append(plain(parse(_resolved(value, where), Cluster)))
            case ("NETWORK_FILTER", "MERGE"):
                assert inside == {"name": MANAGER} == {"name": value["name"]}
                wrapped = parse(value["typed_config"], AnyMessage)
                unpacked = Manager()
                assert wrapped.Unpack(unpacked)
                merge(manager, unpacked)
            case ("HTTP_FILTER", "INSERT_BEFORE"):
                assert inside["name"] == MANAGER
                names = [one.name for one in manager.http_filters]
                position = names.index(inside["subFilter"]["name"])
                manager.http_filters.insert(position, parse(value, hcm_pb2.HttpFilter))
            case ("VIRTUAL_HOST", "MERGE"):
                for host in manager.route_config.virtual_hosts:
                    merge(host, parse(value, VirtualHost))
            case unknown:
                raise AssertionError(f"no patch of ours: {unknown}")
    return clusters


def _inside(match: Plain) -> Plain:
    found: Plain = match.get("listener", {}).get("filterChain", {}).get("filter", {})
    return found


def _resolved(value: Plain, where: dict[str, int]) -> Plain:
    """With the address that the cluster's DNS would say."""
    (endpoint,) = value["load_assignment"]["endpoints"][0]["lb_endpoints"]
    address = endpoint["endpoint"]["address"]["socket_address"]
    assert address == {
        "address": "policy-server.policy.svc.cluster.local",
        "port_value": where["grpc"],
    }
    address["address"] = "127.0.0.1"
    return value


# -- AuthorizationPolicy CUSTOM, Telemetry, and the providers behind them -------------------------


class _Providers:
    """The extension providers of the mesh."""

    def __init__(self, providers: list[Plain], where: dict[str, int]) -> None:
        self._by_name = {provider.pop("name"): provider for provider in providers}
        self._where = where

    def of(self, name: str, kind: str) -> Plain:
        """One provider of that kind; every provider is asked for once."""
        provider = self._by_name.pop(name)
        assert provider.keys() == {kind}
        found: Plain = provider[kind]
        return found

    def grpc(self, provider: Plain, **more: Any) -> Plain:
        """Its gRPC service, on the cluster that istiod has for every Service."""
        host, port = provider.pop("service"), provider.pop("port")
        assert port == self._where["grpc"]
        envoy_grpc = {"cluster_name": f"outbound|{port}||{host}", "authority": host}
        return {"envoy_grpc": envoy_grpc, **more}

    @property
    def cluster(self) -> Plain:
        """The Service's cluster; its port is called grpc, so it speaks HTTP/2."""
        port = self._where["grpc"]
        name = f"outbound|{port}||policy-server.policy.svc.cluster.local"
        bounds = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
        breakers = {"thresholds": [dict.fromkeys(bounds, UNBOUNDED)]}
        protocol = http2(max_concurrent_streams=1073741824)
        return cluster(
            name,
            port,
            connect_timeout="10s",
            circuit_breakers=breakers,
            typed_extension_protocol_options=protocol,
        )


def _custom(spec: Plain, providers: _Providers) -> list[Plain]:
    """The rules as a shadow RBAC filter, and the ext_authz filter that goes by its finding."""
    assert spec["selector"] == {"matchLabels": {"istio": "ingressgateway"}}
    assert spec["action"] == "CUSTOM"
    name = spec["provider"]["name"]
    provider = providers.of(name, "envoyExtAuthzGrpc")
    prefix = f"istio-ext-authz-{name}"
    policies = {
        f"{prefix}-ns[istio-system]-policy[policy-server]-rule[{i}]": _rule(rule)
        for i, rule in enumerate(spec["rules"])
    }
    found = {
        "filter": "envoy.filters.http.rbac",
        "path": [{"key": "istio_ext_authz_shadow_effective_policy_id"}],
        "value": {"string_match": {"prefix": prefix}},
    }
    ask = typed(
        "envoy.extensions.filters.http.ext_authz.v3.ExtAuthz",
        grpc_service=providers.grpc(provider, timeout=provider.pop("timeout")),
        failure_mode_allow=provider.pop("failOpen"),
        status_on_error={"code": int(provider.pop("statusOnError"))},
        filter_enabled_metadata=found,
        transport_api_version="V3",
    )
    assert not provider, f"nobody reads {sorted(provider)}"
    shadow = typed(
        "envoy.extensions.filters.http.rbac.v3.RBAC",
        shadow_rules={"action": "DENY", "policies": policies},
        shadow_rules_stat_prefix="istio_ext_authz_",
    )
    return [
        {"name": "envoy.filters.http.rbac", "typed_config": shadow},
        {"name": "envoy.filters.http.ext_authz", "typed_config": ask},
    ]


def _rule(rule: Plain) -> Plain:
    (to,) = rule["to"]
    (when,) = rule.get("when") or [None]
    permissions = [
        {"or_rules": {"rules": [_permission(key, value) for value in values]}}
        for key, values in to["operation"].items()
    ]
    principal: Plain = {"any": True}
    if when is not None:
        assert when == {"key": "request.headers[upgrade]", "values": ["*"]}
        principal = {"or_ids": {"ids": [{"header": {"name": "upgrade", "present_match": True}}]}}
    return {
        "permissions": [{"and_rules": {"rules": permissions}}],
        "principals": [{"and_ids": {"ids": [principal]}}],
    }


def _permission(key: str, value: str) -> Plain:
    if key == "methods":
        return {"header": {"name": ":method", "string_match": {"exact": value}}}
    assert key == "paths"
    assert value.endswith("*")
    return {"url_path": {"path": {"prefix": value.removesuffix("*")}}}


def _logs(spec: Plain, providers: _Providers) -> list[Plain]:
    assert spec["selector"] == {"matchLabels": {"istio": "ingressgateway"}}
    logs = []
    for logging in spec["accessLogging"]:
        (named,) = logging["providers"]
        if named["name"] == USUAL_LOG:
            assert logging.keys() == {"providers"}
            logs.append(stdout_log())
        else:
            logs.append(
                _log_service(logging, providers.of(named["name"], "envoyHttpAls"), providers)
            )
    return logs


def _log_service(logging: Plain, provider: Plain, providers: _Providers) -> Plain:
    common = {
        "log_name": provider.pop("logName"),
        "grpc_service": providers.grpc(provider),
        "transport_api_version": "V3",
    }
    config = typed(
        "envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig",
        common_config=common,
        additional_request_headers_to_log=provider.pop("additionalRequestHeadersToLog"),
        additional_response_headers_to_log=provider.pop("additionalResponseHeadersToLog"),
        additional_response_trailers_to_log=provider.pop("additionalResponseTrailersToLog"),
    )
    assert not provider, f"nobody reads {sorted(provider)}"
    expression = typed(
        "envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter",
        expression=logging["filter"]["expression"],
    )
    cel = {"name": "envoy.access_loggers.extension_filters.cel", "typed_config": expression}
    return {
        "name": "envoy.access_loggers.http_grpc",
        "filter": {"extension_filter": cel},
        "typed_config": config,
    }
