"""A proxy of Envoy Gateway under our objects, as its translator builds it (Envoy Gateway 1.9,
internal/gatewayapi and internal/xds/translator).

Every field of our objects is taken out of them as it is translated; what is left over raises.
"""

from __future__ import annotations

from tests.support.mesh.base import Plain, bootstrap, cluster, http2, stdout_log, typed
from tests.support.mesh.envoy_gateway_traffic import (
    backend_traffic,
    client_traffic,
    enabled,
    routes_of,
)
from tests.support.mesh.fields import Fields, breakers, retry, seconds

NODE = {"id": "envoy-default-eg-0", "cluster": "default/eg"}
ASYNC_TIMEOUT = "10s"  # of a gRPC service; ext_proc does not apply it to its stream


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
    override, route, model = backend_traffic(specs["BackendTrafficPolicy"], where)
    manager, listener = client_traffic(specs["ClientTrafficPolicy"])
    per_route = enabled(asked, ask, override)
    manager["route_config"] = routes_of(specs["HTTPRoute"], route, per_route)
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
        service["retry_policy"] = retry(Fields(settings.take("retry"), "retry"))
    protocol = {
        "initial_stream_window_size": 65536,
        "initial_connection_window_size": 1048576,
        "max_concurrent_streams": settings.take("http2", "maxConcurrentStreams"),
        "connection_keepalive": settings.take("http2", "connectionKeepalive"),
    }
    there = cluster(
        name,
        where["grpc"],
        connect_timeout=seconds(settings.take("timeout", "tcp", "connectTimeout")),
        circuit_breakers=breakers(settings.take("circuitBreaker")),
        typed_extension_protocol_options=http2(**protocol),
        per_connection_buffer_limit_bytes=32768,
    )
    settings.close()
    return service, there


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
        return runtime, [_usual_log()], []
    logs, clusters = [], []
    for number, setting in enumerate(spec.take("telemetry", "accessLog", "settings")):
        (sink,) = setting["sinks"]
        if sink == {"type": "File", "file": {"path": "/dev/stdout"}}:
            assert setting.keys() == {"sinks"}
            logs.append(_usual_log())
            continue
        log, there = _log_service(setting, where, f"accesslog_als_{number}_0")
        logs.append(log)
        clusters.append(there)
    return runtime, logs, clusters


def _usual_log() -> Plain:
    """In the default format, of which a few fields are enough here."""
    words = {"method": "METHOD", "path": "PATH"}
    return stdout_log({name: f"%REQ(:{header})%" for name, header in words.items()})


def _log_service(setting: Plain, where: dict[str, int], name: str) -> tuple[Plain, Plain]:
    assert setting["type"] == "Route"
    (expression,) = setting["matches"]
    (sink,) = setting["sinks"]
    assert sink["type"] == "ALS"
    als = Fields(sink["als"], "als")
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
        additional_response_trailers_to_log=als.take("http", "responseTrailers"),
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
    return log, there
