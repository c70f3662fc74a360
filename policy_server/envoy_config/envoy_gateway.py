"""Envoy Gateway: the single stream as an EnvoyExtensionPolicy, or ext_authz as a SecurityPolicy.

Its objects have no access log with heartbeats and no sampled observer, so the gate wiring can't be
had; see envoy/envoy-gateway/README.md. The route is made here as well: its rule `governed` is what
the policies hang on. Timings and bounds are those of the other targets, told in its words.
"""

from __future__ import annotations

from envoy_data_plane.envoy.config.core.v3 import RetryPolicy

from policy_server.config import Config
from policy_server.config_source import ConfigError
from policy_server.envoy_config import authz
from policy_server.envoy_config.access_log import (
    ANSWER_HEADERS_TO_LOG,
    ANSWER_TRAILERS_TO_LOG,
    LOG_NAME,
)
from policy_server.envoy_config.bootstrap import RUNTIME
from policy_server.envoy_config.clusters import POLICY_CEILING
from policy_server.envoy_config.envoy_gateway_traffic import (
    API,
    NO_POLICY_SERVER,
    backend_policy,
    client_policy,
    duration,
    grants,
    own_name,
    route,
    target,
)
from policy_server.envoy_config.gate import REQUEST_ATTRIBUTES, resend
from policy_server.envoy_config.kubernetes import (
    POLICY_SERVER,
    MeshOptions,
    grpc_port,
    kubernetes_object,
    refuse_tls_files,
)
from policy_server.envoy_config.plain import Document
from policy_server.envoy_config.routes import GOVERNED
from policy_server.envoy_config.stream import RESPONSE_ATTRIBUTES
from policy_server.envoy_config.wire import UID_HEADER
from policy_server.envoy_config.wirings import (
    ANSWER_MARGIN_S,
    ANSWER_NAMESPACE,
    forwarded_metadata,
)

# With heartbeats out of reach every entry is an end: of the admitted, whose answer carries
# metadata, and of those that left just before, whose identity no route has removed yet.
ENDED = (
    f"'{authz.EXT_AUTHZ_NAMESPACE}' in metadata.filter_metadata"
    f" || '{UID_HEADER}' in request.headers"
)

# Where settings are given Envoy Gateway leaves its default log out, so it is asked for again.
USUAL_LOG: Document = {"sinks": [{"type": "File", "file": {"path": "/dev/stdout"}}]}


def envoy_gateway_documents(config: Config, options: MeshOptions) -> list[Document]:
    """The objects to apply."""
    if options.wiring == "gate":
        raise ConfigError(
            "--wiring gate: Envoy Gateway can't express it; use --wiring stream, or --wiring authz "
            "when answers under way must not depend on the policy server"
        )
    refuse_tls_files(config, "secure the Service with a BackendTLSPolicy")
    asks = (
        _stream_policy(config, options)
        if options.wiring == "stream"
        else _check_policy(config, options)
    )
    return [
        route(config, options),
        asks,
        client_policy(config, options),
        backend_policy(config, options),
        _proxy(config, options),
        *grants(options, [str(asks["kind"]), "EnvoyProxy"]),
    ]


# -- who asks -------------------------------------------------------------------------------------


def _stream_policy(config: Config, options: MeshOptions) -> Document:
    """ext_proc. Trailers can't be asked for here: the policy server does it in its answer."""
    ask = {
        **_policy_server(config, options, resend(options.on_outage)),
        "messageTimeout": duration(config.longest_hold_s + ANSWER_MARGIN_S),
        "failOpen": options.on_outage == "open",
        "statusOnError": NO_POLICY_SERVER,
        "processingMode": {
            "request": {"attributes": _attributes(REQUEST_ATTRIBUTES)},
            "response": {"attributes": RESPONSE_ATTRIBUTES},
            "allowModeOverride": True,
        },
        "metadata": {
            "accessibleNamespaces": forwarded_metadata(config),
            "writableNamespaces": [ANSWER_NAMESPACE],
        },
    }
    spec = {**_on_governed(), "extProc": [ask]}
    return kubernetes_object(API, "EnvoyExtensionPolicy", own_name(options), spec)


def _check_policy(config: Config, options: MeshOptions) -> Document:
    """ext_authz."""
    again = authz.ask_again(config, options.on_outage)
    where = {"route": GOVERNED, "cluster": POLICY_SERVER, "stamped": UID_HEADER}
    ask = {
        "grpc": _policy_server(config, options, again),
        "timeout": duration(authz.all_tries_s(config, options.on_outage)),
        "failOpen": options.on_outage == "open",
        "statusOnError": NO_POLICY_SERVER,
        "contextExtensions": [
            {"name": name, "type": "Value", "value": value} for name, value in where.items()
        ],
    }
    return kubernetes_object(
        API, "SecurityPolicy", own_name(options), {**_on_governed(), "extAuth": ask}
    )


def _policy_server(
    config: Config, options: MeshOptions, again: RetryPolicy | None = None
) -> Document:
    """The backend, with room for every held request."""
    ceiling = dict.fromkeys(
        ("maxConnections", "maxPendingRequests", "maxParallelRequests", "maxParallelRetries"),
        POLICY_CEILING,
    )
    settings: Document = {
        "circuitBreaker": ceiling,
        "http2": {
            "maxConcurrentStreams": POLICY_CEILING,
            "connectionKeepalive": {"interval": "30s", "timeout": "20s"},
        },
        "timeout": {"tcp": {"connectTimeout": "1s" if options.on_outage == "closed" else "250ms"}},
    }
    if again is not None:
        settings["retry"] = _retry(again)
    backend = {
        "name": POLICY_SERVER,
        "namespace": options.namespace,
        "port": grpc_port(config),
    }
    return {"backendRefs": [backend], "backendSettings": settings}


def _retry(policy: RetryPolicy) -> Document:
    """The same retries in Envoy Gateway's words."""
    pause = policy.retry_back_off
    if pause is None or pause.base_interval is None or pause.max_interval is None:
        raise ValueError("a retry policy without a back-off")
    return {
        "numRetries": policy.num_retries,
        "retryOn": {"triggers": policy.retry_on.split(",")},
        "perRetry": {
            "backOff": {
                "baseInterval": duration(pause.base_interval.total_seconds()),
                "maxInterval": duration(pause.max_interval.total_seconds()),
            }
        },
    }


def _on_governed() -> Document:
    return {"targetRefs": [target("HTTPRoute", POLICY_SERVER, sectionName=GOVERNED)]}


def _attributes(wanted: list[str]) -> list[str]:
    """Those that Envoy Gateway lets through: of `xds.` the route only."""
    return [name for name in wanted if not name.startswith("xds.") or "route_" in name]


# -- the proxy itself -----------------------------------------------------------------------------


def _proxy(config: Config, options: MeshOptions) -> Document:
    """For the Gateway's `infrastructure.parametersRef`."""
    layer = "/layered_runtime/layers/0/static_layer"
    spec: Document = {
        "bootstrap": {
            "type": "JSONPatch",
            "jsonPatches": [
                {"op": "add", "path": f"{layer}/{key}", "value": value}
                for key, value in RUNTIME.items()
            ],
        }
    }
    if options.wiring == "authz":
        spec["telemetry"] = {"accessLog": {"settings": [USUAL_LOG, _access_log(config, options)]}}
    return kubernetes_object(API, "EnvoyProxy", own_name(options), spec)


def _access_log(config: Config, options: MeshOptions) -> Document:
    log = {
        **_policy_server(config, options),
        "logName": LOG_NAME,
        "type": "HTTP",
        "http": {
            "requestHeaders": [UID_HEADER, "x-request-id"],
            "responseHeaders": ANSWER_HEADERS_TO_LOG,
            "responseTrailers": ANSWER_TRAILERS_TO_LOG,
        },
    }
    return {"type": "Route", "matches": [ENDED], "sinks": [{"type": "ALS", "als": log}]}
