"""A proxy of Envoy Gateway under our objects, as its translator builds it (Envoy Gateway 1.9,
internal/gatewayapi and internal/xds/translator).

Every field of our objects is taken out of them as it is translated; what is left over raises.
"""

from __future__ import annotations

import copy
from typing import Any

from tests.support.mesh.base import Plain, bootstrap, cluster, http2, typed

MODEL = "httproute/default/policy-server/rule/0"
CLUSTER_BOUNDS = {
    "maxConnections": "max_connections",
    "maxPendingRequests": "max_pending_requests",
    "maxParallelRequests": "max_requests",
    "maxParallelRetries": "max_retries",
}
NODE = {"id": "envoy-default-eg-0", "cluster": "default/eg"}
ASYNC_TIMEOUT = "10s"  # of a gRPC service; ext_proc does not apply it to its stream


class Fields:
    """One object's fields; `close` raises when some were not taken."""

    def __init__(self, data: Plain, where: str) -> None:
        self._data = copy.deepcopy(data)
        self._where = where

    def take(self, *path: str) -> Any:
        """The value at a path, which must be there."""
        here = self._data
        for key in path[:-1]:
            here = here[key]
        return here.pop(path[-1])

    def has(self, name: str) -> bool:
        """Whether a field is there."""
        return name in self._data

    def close(self) -> None:
        """Everything was taken."""
        left = _leaves(self._data)
        assert not left, f"{self._where}: nobody reads {left}"


def _leaves(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: inner for key, value in data.items() if (inner := _leaves(value)) != {}}
    return data


def gateway_proxy(where: dict[str, int], documents: list[Plain]) -> Plain:
    """The bootstrap of the Gateway's proxy with these objects applied."""
    specs = {
        document["kind"]: Fields(document["spec"], document["kind"])
        for document in documents
        if document["kind"] != "ReferenceGrant"
    }
    asked = "EnvoyExtensionPolicy" if "EnvoyExtensionPolicy" in specs else "SecurityPolicy"
    ask, policy_cluster = (_ext_proc if asked == "EnvoyExtensionPolicy" else _ext_auth)(
        specs[asked], where
    )
    override, route, model = _backend_traffic(specs["BackendTrafficPolicy"], where)
    manager, listener = _client_traffic(specs["ClientTrafficPolicy"])
    per_route = _enabled(asked, ask, override)
    manager["route_config"] = _routes(specs["HTTPRoute"], route, per_route)
    router = typed("envoy.extensions.filters.http.router.v3.Router", suppress_envoy_headers=True)
    for one in (override, ask):
        one["disabled"] = True
    manager["http_filters"] = [
        override,
        {key: value for key, value in ask.items() if key != "per_route"},
        {"name": "envoy.filters.http.router", "typed_config": router},
    ]
    runtime, logs, log_clusters = _proxy(specs["EnvoyProxy"], where)
    manager["access_log"] = logs
    for spec in specs.values():
        spec.close()
    clusters = [model, policy_cluster, *log_clusters]
    return bootstrap(
        where,
        manager,
        clusters,
        listener=listener,
        node=NODE,
        layered_runtime={"layers": [{"name": "global_config", "static_layer": runtime}]},
    )


# -- who asks -------------------------------------------------------------------------------------


def _ext_proc(spec: Fields, where: dict[str, int]) -> tuple[Plain, Plain]:
    _on_governed(spec)
    (one,) = spec.take("extProc")
    ask = Fields(one, "extProc")
    name = "envoyextensionpolicy/default/policy-server/0"
    service, there = _grpc(ask, name, where)
    ask_mode = {
        side: "SEND" if ask.take("processingMode", side, "attributes") is not None else "SKIP"
        for side in ("request", "response")
    }
    mode = Fields(one["processingMode"], "processingMode")
    config = typed(
        "envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service=service,
        processing_mode={
            "request_header_mode": ask_mode["request"],
            "response_header_mode": ask_mode["response"],
            "request_trailer_mode": "SKIP",
            "response_trailer_mode": "SKIP",
        },
        failure_mode_allow=ask.take("failOpen"),
        message_timeout=ask.take("messageTimeout"),
        request_attributes=mode.take("request", "attributes"),
        response_attributes=mode.take("response", "attributes"),
        metadata_options={
            "forwarding_namespaces": {"untyped": ask.take("metadata", "accessibleNamespaces")},
            "receiving_namespaces": {"untyped": ask.take("metadata", "writableNamespaces")},
        },
        allow_mode_override=ask.take("processingMode", "allowModeOverride"),
        status_on_error={"code": ask.take("statusOnError")},
    )
    ask.close()
    own = "envoy.filters.http.ext_proc/envoyextensionpolicy/default/policy-server/extproc/0"
    return {"name": own, "typed_config": config}, there


def _ext_auth(spec: Fields, where: dict[str, int]) -> tuple[Plain, Plain]:
    _on_governed(spec)
    ask = Fields(spec.take("extAuth"), "extAuth")
    name = "securitypolicy/default/policy-server/0"
    grpc = Fields(ask.take("grpc"), "grpc")
    service, there = _grpc(grpc, name, where)
    grpc.close()
    service["timeout"] = ask.take("timeout")
    extensions = {one["name"]: one["value"] for one in ask.take("contextExtensions")}
    config = typed(
        "envoy.extensions.filters.http.ext_authz.v3.ExtAuthz",
        grpc_service=service,
        transport_api_version="V3",
        failure_mode_allow=ask.take("failOpen"),
        status_on_error={"code": ask.take("statusOnError")},
    )
    ask.close()
    own = "envoy.filters.http.ext_authz/securitypolicy/default/policy-server"
    per_route = typed(
        "envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute",
        check_settings={"context_extensions": extensions},
    )
    return {"name": own, "typed_config": config, "per_route": per_route}, there


def _on_governed(spec: Fields) -> None:
    (target,) = spec.take("targetRefs")
    assert target.pop("group") == "gateway.networking.k8s.io"
    assert target == {"kind": "HTTPRoute", "name": "policy-server", "sectionName": "governed"}


def _grpc(ask: Fields, name: str, where: dict[str, int]) -> tuple[Plain, Plain]:
    """The gRPC service and its cluster."""
    (backend,) = ask.take("backendRefs")
    assert backend == {"name": "policy-server", "namespace": "policy", "port": where["grpc"]}
    authority = f"policy-server.policy:{where['grpc']}"
    service: Plain = {
        "envoy_grpc": {"cluster_name": name, "authority": authority},
        "timeout": ASYNC_TIMEOUT,
    }
    settings = Fields(ask.take("backendSettings"), "backendSettings")
    if settings.has("retry"):
        service["retry_policy"] = _retry(Fields(settings.take("retry"), "retry"))
    protocol = {
        "initial_stream_window_size": 65536,
        "initial_connection_window_size": 1048576,
        "max_concurrent_streams": settings.take("http2", "maxConcurrentStreams"),
        "connection_keepalive": settings.take("http2", "connectionKeepalive"),
    }
    there = cluster(
        name,
        where["grpc"],
        connect_timeout=_seconds(settings.take("timeout", "tcp", "connectTimeout")),
        circuit_breakers=_breakers(settings.take("circuitBreaker")),
        typed_extension_protocol_options=http2(**protocol),
        per_connection_buffer_limit_bytes=32768,
    )
    settings.close()
    return service, there


def _retry(retry: Fields) -> Plain:
    found = {
        "num_retries": retry.take("numRetries"),
        "retry_on": ",".join(retry.take("retryOn", "triggers")),
        "retry_back_off": {
            "base_interval": _seconds(retry.take("perRetry", "backOff", "baseInterval")),
            "max_interval": _seconds(retry.take("perRetry", "backOff", "maxInterval")),
        },
    }
    retry.close()
    return found


def _breakers(bounds: Plain) -> Plain:
    return {"thresholds": [{CLUSTER_BOUNDS[key]: value for key, value in bounds.items()}]}


def _seconds(duration: str) -> str:
    """A Gateway API duration as Envoy writes it."""
    if duration.endswith("ms"):
        return f"{int(duration[:-2]) / 1000:g}s"
    return duration


# -- routes, clients, model servers ---------------------------------------------------------------


def _enabled(asked: str, ask: Plain, override: Plain) -> Plain:
    """What the rules turn on: the route's override everywhere, who asks where it is governed."""
    on = typed("envoy.config.route.v3.FilterConfig", config={})
    return {
        "governed": {override["name"]: on, ask["name"]: ask.get("per_route", on)},
        "passed": {override["name"]: on},
    }


def _routes(spec: Fields, action: Plain, per_route: dict[str, Plain]) -> Plain:
    assert spec.take("parentRefs") == [{"name": "eg"}]
    routes = [
        _route(Fields(rule, "rule"), match, action, per_route)
        for rule in spec.take("rules")
        for match in rule.pop("matches")
    ]
    # the more conditions, the earlier
    routes.sort(key=lambda route: -len(route["match"].get("headers", [])))
    host = {"name": "default/eg/http/*", "domains": ["*"], "routes": routes}
    return {
        "name": "default/eg/http",
        "virtual_hosts": [host],
        "ignore_port_in_host_matching": True,
    }


def _route(rule: Fields, match: Plain, action: Plain, per_route: dict[str, Plain]) -> Plain:
    name = rule.take("name")
    (backend,) = rule.take("backendRefs")
    assert backend == {"name": "model", "namespace": "models", "port": 8000}
    found: Plain = {
        "name": f"httproute/default/policy-server/{name}",
        "match": _match(Fields(match, "match")),
        "route": action,
        "typed_per_filter_config": per_route[name],
    }
    for one in rule.take("filters"):
        if one.pop("type") == "RequestHeaderModifier":
            found["request_headers_to_remove"] = one["requestHeaderModifier"].pop("remove")
        else:
            told = one["responseHeaderModifier"].pop("set")
            found["response_headers_to_add"] = [_set(header) for header in told]
    rule.close()
    return found


def _match(match: Fields) -> Plain:
    assert match.take("path", "type") == "PathPrefix"
    prefix = match.take("path", "value")
    found: Plain = {"prefix": "/"} if prefix == "/" else {"path_separated_prefix": prefix}
    headers = []
    if match.has("method"):
        headers.append({"name": ":method", "string_match": {"exact": match.take("method")}})
    for header in match.take("headers") if match.has("headers") else []:
        assert header["type"] == "RegularExpression"
        regex = {"safe_regex": {"regex": header["value"]}}
        headers.append({"name": header["name"], "string_match": regex})
    match.close()
    return {**found, "headers": headers} if headers else found


def _set(header: Plain) -> Plain:
    return {
        "header": {"key": header["name"], "value": header["value"]},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }


def _client_traffic(spec: Fields) -> tuple[Plain, Plain]:
    """The connection manager and the listener."""
    (target,) = spec.take("targetRefs")
    assert target == {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "eg"}
    assert spec.take("headers", "requestID") == "PreserveOrGenerate"
    early = [{"append": _set(h)} for h in spec.take("headers", "earlyRequestHeaders", "set")]
    gone = [{"remove": name} for name in spec.take("headers", "earlyRequestHeaders", "remove")]
    mutation = typed(
        "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
        mutations=[*early, *gone],
    )
    manager = {
        "stat_prefix": "http-10080",
        "server_header_transformation": "PASS_THROUGH",
        "use_remote_address": True,
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "UNESCAPE_AND_REDIRECT",
        "common_http_protocol_options": {"headers_with_underscores_action": "REJECT_REQUEST"},
        "http2_protocol_options": {
            "initial_stream_window_size": 65536,
            "initial_connection_window_size": 1048576,
            "max_concurrent_streams": spec.take("http2", "maxConcurrentStreams"),
        },
        "generate_request_id": True,
        "preserve_external_request_id": True,
        "early_header_mutation_extensions": [
            {"name": "envoy.http.early_header_mutation.header_mutation", "typed_config": mutation}
        ],
        "request_timeout": spec.take("timeout", "http", "requestReceivedTimeout"),
        "stream_idle_timeout": spec.take("timeout", "http", "streamIdleTimeout"),
    }
    limit = spec.take("connection", "bufferLimit")
    assert limit.endswith("Mi")
    return manager, {"per_connection_buffer_limit_bytes": int(limit[:-2]) * 2**20}


def _backend_traffic(spec: Fields, where: dict[str, int]) -> tuple[Plain, Plain, Plain]:
    """The response override, the routes' action, the model servers' cluster."""
    (target,) = spec.take("targetRefs")
    assert target.pop("group") == "gateway.networking.k8s.io"
    assert target == {"kind": "HTTPRoute", "name": "policy-server"}
    retry = {**_retry(Fields(spec.take("retry"), "retry")), "host_selection_retry_max_attempts": 5}
    action = {
        "cluster": MODEL,
        "timeout": spec.take("timeout", "http", "requestTimeout"),
        "retry_policy": retry,
        "upgrade_configs": [{"upgrade_type": "websocket"}],
    }
    options = typed(
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        common_http_protocol_options={
            "idle_timeout": spec.take("timeout", "http", "connectionIdleTimeout")
        },
        explicit_http_config={"http_protocol_options": {}},
    )
    model = cluster(
        MODEL,
        where["upstream"],
        connect_timeout="10s",
        circuit_breakers=_breakers(spec.take("circuitBreaker")),
        typed_extension_protocol_options={options["@type"].rpartition("/")[2]: options},
    )
    (rule,) = spec.take("responseOverride")
    return _override(Fields(rule, "responseOverride")), action, model


def _override(rule: Fields) -> Plain:
    (code,) = rule.take("match", "statusCodes")
    assert code.pop("type") == "Value"
    assert rule.take("source") == "Local"
    assert rule.take("response", "body", "type") == "Inline"
    content_type = {"name": "Content-Type", "value": rule.take("response", "contentType")}
    policy = typed(
        "envoy.extensions.http.custom_response.local_response_policy.v3.LocalResponsePolicy",
        status_code=rule.take("response", "statusCode"),
        body_format={"text_format": rule.take("response", "body", "inline")},
        response_headers_to_add=[
            _set(header) for header in (content_type, *rule.take("response", "header", "set"))
        ],
    )
    rule.close()
    matches = {"HttpResponseStatusCodeMatchInput": str(code["value"])}
    matches["HttpResponseLocalReplyMatchInput"] = "true"
    predicates = [
        {
            "single_predicate": {
                "input": {"name": kind, "typed_config": typed(f"envoy.type.matcher.v3.{kind}")},
                "value_match": {"exact": value},
            }
        }
        for kind, value in matches.items()
    ]
    action = {"name": "override", "typed_config": policy}
    matcher = {
        "predicate": {"and_matcher": {"predicate": predicates}},
        "on_match": {"action": action},
    }
    config = typed(
        "envoy.extensions.filters.http.custom_response.v3.CustomResponse",
        custom_response_matcher={"matcher_list": {"matchers": [matcher]}},
    )
    name = "envoy.filters.http.custom_response/backendtrafficpolicy/default/policy-server"
    return {"name": name, "typed_config": config}


# -- the proxy ------------------------------------------------------------------------------------


def _proxy(spec: Fields, where: dict[str, int]) -> tuple[Plain, list[Plain], list[Plain]]:
    """Runtime, access logs and their clusters."""
    assert spec.take("bootstrap", "type") == "JSONPatch"
    runtime: Plain = {"re2.max_program_size.error_level": 4294967295}
    for patch in spec.take("bootstrap", "jsonPatches"):
        layer, _, key = patch["path"].rpartition("/")
        assert (patch["op"], layer) == ("add", "/layered_runtime/layers/0/static_layer")
        runtime[key] = patch["value"]
    if not spec.has("telemetry"):
        return runtime, [], []
    (setting,) = spec.take("telemetry", "accessLog", "settings")
    assert setting["type"] == "Route"
    (expression,) = setting["matches"]
    (sink,) = setting["sinks"]
    assert sink["type"] == "ALS"
    als = Fields(sink["als"], "als")
    name = "accesslog_als_0_0"
    service, there = _grpc(als, name, where)
    assert als.take("type") == "HTTP"
    common = {
        "log_name": als.take("logName"),
        "grpc_service": {"envoy_grpc": {"cluster_name": service["envoy_grpc"]["cluster_name"]}},
        "transport_api_version": "V3",
    }
    config = typed(
        "envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig",
        common_config=common,
        additional_request_headers_to_log=als.take("http", "requestHeaders"),
        additional_response_headers_to_log=als.take("http", "responseHeaders"),
    )
    als.close()
    cel = typed(
        "envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter", expression=expression
    )
    log = {
        "name": "envoy.access_loggers.http_grpc",
        "filter": {
            "extension_filter": {
                "name": "envoy.access_loggers.extension_filters.cel",
                "typed_config": cel,
            }
        },
        "typed_config": config,
    }
    return runtime, [log], [there]
