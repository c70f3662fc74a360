"""Envoy Gateway, the objects around the one that asks: the route, what client and backend side must
bear, and who may refer to whom."""

from __future__ import annotations

from policy_server.config import Config
from policy_server.config_envoy import SILENT_ANSWER_S, upstream_ceiling
from policy_server.config_source import ConfigError
from policy_server.envoy_config.clusters import UPSTREAM_IDLE_S
from policy_server.envoy_config.kubernetes import (
    POLICY_SERVER,
    MeshOptions,
    ObjectName,
    kubernetes_object,
)
from policy_server.envoy_config.local_reply import outage_answer
from policy_server.envoy_config.options import Upstream
from policy_server.envoy_config.plain import Document
from policy_server.envoy_config.routes import ANSWER_HEADERS, GOVERNED, PASSED, inner_headers
from policy_server.envoy_config.wire import UID_HEADER

API = "gateway.envoyproxy.io/v1alpha1"
GATEWAY_GROUP = "gateway.networking.k8s.io"
# What Envoy answers when it finds no policy server. Nobody else says 510, so the route's response
# override knows it from a 503 of the policy server itself and from one of a model server.
NO_POLICY_SERVER = 510
# An HTTPRoute takes no more.
MAX_MATCHES = 64
# Held requests are open streams: the default of 100 per connection would stop an HTTP/2 client.
CLIENT_STREAMS = 10_000


def own_name(options: MeshOptions) -> ObjectName:
    """The name of the objects beside the Gateway."""
    return ObjectName(options.gateway.namespace, POLICY_SERVER)


def target(kind: str, name: str, **more: str) -> Document:
    """A policy's reference to what it is for."""
    return {"group": GATEWAY_GROUP, "kind": kind, "name": name, **more}


def duration(seconds: float) -> str:
    """Gateway API durations are whole numbers of a unit."""
    milliseconds = round(seconds * 1000)
    return f"{milliseconds // 1000}s" if milliseconds % 1000 == 0 else f"{milliseconds}ms"


def route(config: Config, options: MeshOptions) -> Document:
    """The way to the model servers; its first rule is what the policies govern."""
    models = [_backend(upstream) for upstream in options.upstreams]
    told = [{"name": name, "value": value} for name, value in ANSWER_HEADERS.items()]
    filters = [
        {"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": inner_headers()}},
        {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"set": told}},
    ]
    spec = {
        "parentRefs": [{"name": options.gateway.name}],
        "rules": [
            {
                "name": GOVERNED,
                "matches": _governed(config),
                "filters": filters,
                "backendRefs": models,
            },
            {
                "name": PASSED,
                "matches": [_path("/")],
                "filters": filters[:1],
                "backendRefs": models,
            },
        ],
    }
    return kubernetes_object(f"{GATEWAY_GROUP}/v1", "HTTPRoute", own_name(options), spec)


def _governed(config: Config) -> list[Document]:
    """The configured methods, and upgrades, on the configured paths."""
    upgrade = [{"type": "RegularExpression", "name": "upgrade", "value": ".*"}]
    matches = []
    for path in config.govern.paths:
        matches += [{**_path(path), "method": method} for method in config.govern.methods]
        matches.append({**_path(path), "headers": upgrade})
    if len(matches) > MAX_MATCHES:
        raise ConfigError(
            f"govern: {len(matches)} pairs of path and method, and an HTTPRoute takes "
            f"{MAX_MATCHES}; name fewer paths"
        )
    return matches


def _path(prefix: str) -> Document:
    return {"path": {"type": "PathPrefix", "value": prefix}}


def _backend(upstream: Upstream) -> Document:
    """`http://service.namespace:port` as a reference to that Service."""
    name, _, rest = upstream.host.partition(".")
    namespace = rest.partition(".")[0]
    if upstream.is_ip or not namespace or upstream.scheme == "https":
        raise ConfigError(
            f"--upstream {upstream.scheme}://{upstream.host}: Envoy Gateway routes to Services; "
            "write http://SERVICE.NAMESPACE:PORT"
        )
    return {"name": name, "namespace": namespace, "port": upstream.port}


def client_policy(config: Config, options: MeshOptions) -> Document:
    """Identity, buffers and patience towards clients."""
    spec = {
        "targetRefs": [target("Gateway", options.gateway.name)],
        "headers": {
            "requestID": "PreserveOrGenerate",
            # Removing comes after setting there, so the prefix x-policy- can't be cleared.
            "earlyRequestHeaders": {
                "set": [{"name": UID_HEADER, "value": "%UNIQUE_ID%"}],
                "remove": [name for name in inner_headers() if name != UID_HEADER],
            },
        },
        # Or /v1%2Fchat is sent back to its client, who may not ask a second time.
        "path": {"escapedSlashesAction": "UnescapeAndForward", "disableMergeSlashes": False},
        "connection": {"bufferLimit": f"{config.body_buffer_bytes // 2**20}Mi"},
        "http2": {"maxConcurrentStreams": CLIENT_STREAMS},
        "timeout": {
            "http": {
                "requestReceivedTimeout": "0s",
                "streamIdleTimeout": duration(config.longest_hold_s + SILENT_ANSWER_S),
            }
        },
    }
    return kubernetes_object(API, "ClientTrafficPolicy", own_name(options), spec)


def backend_policy(config: Config, options: MeshOptions) -> Document:
    """Bounds towards the model servers, and the words of an outage."""
    ceiling = upstream_ceiling(config)
    bounds = ("maxConnections", "maxPendingRequests", "maxParallelRequests", "maxParallelRetries")
    spec = {
        "targetRefs": [target("HTTPRoute", POLICY_SERVER)],
        "circuitBreaker": dict.fromkeys(bounds, ceiling),
        "timeout": {
            "http": {"requestTimeout": "0s", "connectionIdleTimeout": duration(UPSTREAM_IDLE_S)}
        },
        "retry": {
            "numRetries": 2,
            "retryOn": {"triggers": ["connect-failure", "refused-stream", "reset-before-request"]},
            "perRetry": {"backOff": {"baseInterval": "25ms", "maxInterval": "100ms"}},
        },
        "responseOverride": [_outage()],
    }
    return kubernetes_object(API, "BackendTrafficPolicy", own_name(options), spec)


def _outage() -> Document:
    answer = outage_answer()
    return {
        "match": {"statusCodes": [{"type": "Value", "value": NO_POLICY_SERVER}]},
        "source": "Local",
        "response": {
            "statusCode": answer.status,
            "contentType": "application/json",
            "body": {"type": "Inline", "inline": answer.body},
            "header": {
                "set": [{"name": name, "value": value} for name, value in answer.headers.items()]
            },
        },
    }


def grants(options: MeshOptions, kinds: list[str]) -> list[Document]:
    """References across namespaces need the consent of where they point. `kinds`: what of Envoy
    Gateway's refers to the policy server."""
    home = options.gateway.namespace
    who: dict[str, list[tuple[str, str]]] = {
        options.namespace: [(API.partition("/")[0], kind) for kind in kinds]
    }
    for upstream in options.upstreams:
        routes = who.setdefault(str(_backend(upstream)["namespace"]), [])
        if (GATEWAY_GROUP, "HTTPRoute") not in routes:
            routes.append((GATEWAY_GROUP, "HTTPRoute"))
    return [
        kubernetes_object(
            f"{GATEWAY_GROUP}/v1beta1",
            "ReferenceGrant",
            ObjectName(namespace, POLICY_SERVER),
            {
                "from": [{"group": g, "kind": kind, "namespace": home} for g, kind in pairs],
                "to": [{"group": "", "kind": "Service"}],
            },
        )
        for namespace, pairs in who.items()
        if namespace != home
    ]
