"""Istio: the gate as an EnvoyFilter on a gateway, or ext_authz as Istio knows it by itself.

`gate`: one EnvoyFilter puts the filters of the bootstrap in front of the router and what belongs to
them (identity, log, local answers) into the gateway's HTTP connection manager. The routes are the
mesh's, so each filter brings the condition under which a request is governed. Runtime guards are
the mesh's as well: Istio builds each proxy's bootstrap itself, from values, not from EnvoyFilters.

`authz`: an extension provider, an AuthorizationPolicy that asks it, and a Telemetry that sends the
access log. No EnvoyFilter; what that costs stands in envoy/istio/README.md.
"""

from __future__ import annotations

import betterproto2
from envoy_data_plane.envoy.config.route.v3 import VirtualHost
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpConnectionManagerHcmAccessLogOptions,
    HttpFilter,
)

from policy_server.config import Config
from policy_server.config_source import ConfigError
from policy_server.core.leases import HEARTBEAT_S
from policy_server.envoy_config.access_log import (
    ANSWER_HEADERS_TO_LOG,
    ANSWER_TRAILERS_TO_LOG,
    LOG_NAME,
)
from policy_server.envoy_config.authz import EXT_AUTHZ_NAMESPACE, one_try_s
from policy_server.envoy_config.bootstrap import RUNTIME
from policy_server.envoy_config.chain import whole_chain
from policy_server.envoy_config.clusters import policy_cluster
from policy_server.envoy_config.kubernetes import (
    POLICY_SERVER,
    MeshOptions,
    ObjectName,
    envoy_options,
    grpc_port,
    kubernetes_object,
    refuse_tls_files,
)
from policy_server.envoy_config.local_reply import local_replies
from policy_server.envoy_config.matching import only_governed, only_whole
from policy_server.envoy_config.observer import OBSERVER
from policy_server.envoy_config.options import GatewayOptions
from policy_server.envoy_config.plain import Document, plain, plain_any
from policy_server.envoy_config.request_facts import BODY, identity
from policy_server.envoy_config.routes import answer_headers, inner_headers
from policy_server.envoy_config.wire import seconds

CONTEXT = "GATEWAY"
MANAGER = "envoy.filters.network.http_connection_manager"
ROUTER = "envoy.filters.http.router"
NO_STREAM = "--wiring stream: where an EnvoyFilter may be, gate does more; use that"
# Each proxy's node id as Istio's agent makes it, since its log says that. (`%CEL(xds.node.id)%`
# would be the short way; in a gRPC service's metadata it crashes Envoy 1.40.)
NODE = (
    "router~%ENVIRONMENT(INSTANCE_IP)%~%ENVIRONMENT(POD_NAME)%.%ENVIRONMENT(POD_NAMESPACE)%"
    "~%ENVIRONMENT(POD_NAMESPACE)%.svc.cluster.local"
)
PATHS: Document = {"pathNormalization": {"normalization": "DECODE_AND_MERGE_SLASHES"}}
LOG_PROVIDER = f"{POLICY_SERVER}-log"
# Istio's built-in provider: stdout, in the mesh's own format. A Telemetry that names providers
# takes the place of the mesh's default ones and of `accessLogFile`.
USUAL_LOG = "envoy"
# Only an admitted request has metadata of a Check.
ADMITTED = f"'{EXT_AUTHZ_NAMESPACE}' in metadata.filter_metadata"


def istio_documents(config: Config, options: MeshOptions) -> list[Document]:
    """The objects to apply, beside `istio_values`."""
    if options.wiring == "stream":
        raise ConfigError(NO_STREAM)
    if options.wiring == "authz":
        return _asking_objects(config, options)
    return [_envoy_filter(config, options)]


def istio_values(config: Config, options: MeshOptions) -> list[Document]:
    """What belongs into Istio's own configuration, as values of its chart `istiod`.

    `gate`: the runtime guards of its proxies. `authz`: whom to ask; Istio offers no retries here,
    so one time-out is all there is: the longest hold. Both: how paths are read, or `//v1/…` and
    `/v1%2F…` are other paths to the gateway than to the model server.
    """
    if options.wiring == "stream":
        raise ConfigError(NO_STREAM)
    if options.wiring == "gate":
        guards = {name: str(value).lower() for name, value in RUNTIME.items()}
        return [{"meshConfig": {**PATHS, "defaultConfig": {"runtimeValues": guards}}}]
    refuse_tls_files(config, "secure the Service with a DestinationRule of its own")
    return [{"meshConfig": {**PATHS, "extensionProviders": _providers(config, options)}}]


# -- the gate, as an EnvoyFilter ------------------------------------------------------------------


def _envoy_filter(config: Config, options: MeshOptions) -> Document:
    spec = {
        "workloadSelector": {"labels": {"istio": options.gateway.name}},
        "configPatches": _patches(config, envoy_options(config, options, NODE)),
    }
    return kubernetes_object(
        "networking.istio.io/v1alpha3", "EnvoyFilter", _in_gateways_namespace(options), spec
    )


def _patches(config: Config, options: GatewayOptions) -> list[Document]:
    chain = whole_chain(config, options)
    manager = HttpConnectionManager(
        early_header_mutation_extensions=[identity()],
        access_log=chain.access_logs,
        access_log_options=HttpConnectionManagerHcmAccessLogOptions(
            access_log_flush_interval=seconds(HEARTBEAT_S)
        ),
        local_reply_config=local_replies(shared=True),
    )
    host = VirtualHost(
        request_headers_to_remove=inner_headers(),
        response_headers_to_add=answer_headers(),
        request_body_buffer_limit=config.body_buffer_bytes,
    )
    in_manager = {"name": MANAGER}
    in_router = {**in_manager, "subFilter": {"name": ROUTER}}
    return [
        _patch("CLUSTER", "ADD", plain(policy_cluster(config, options))),
        *(
            _patch("HTTP_FILTER", "INSERT_BEFORE", plain(_condition(config, one)), in_router)
            for one in chain.filters
        ),
        _patch("NETWORK_FILTER", "MERGE", _named(manager), in_manager),
        _patch("VIRTUAL_HOST", "MERGE", plain(host)),
    ]


def _condition(config: Config, one: HttpFilter) -> HttpFilter:
    """The observer has its own condition already: the gate's coin."""
    if one.name == OBSERVER:
        return HttpFilter(name=one.name, typed_config=one.typed_config)
    return only_whole(config, one) if one.name == BODY else only_governed(config, one)


def _named(manager: betterproto2.Message) -> Document:
    return {"name": MANAGER, "typed_config": plain_any(manager)}


def _patch(
    apply_to: str, operation: str, value: Document, inside: Document | None = None
) -> Document:
    match: Document = {"context": CONTEXT}
    if inside is not None:
        match["listener"] = {"filterChain": {"filter": inside}}
    return {
        "applyTo": apply_to,
        "match": match,
        "patch": {"operation": operation, "value": value},
    }


# -- ext_authz, as Istio offers it ----------------------------------------------------------------


def _providers(config: Config, options: MeshOptions) -> list[Document]:
    service = {"service": options.policy_host, "port": grpc_port(config)}
    asked = {
        **service,
        "timeout": f"{one_try_s(config):g}s",
        "failOpen": options.on_outage == "open",
        "statusOnError": "503",
    }
    log = {
        **service,
        "logName": LOG_NAME,
        "additionalRequestHeadersToLog": ["x-request-id"],  # no uid: clients could write one
        "additionalResponseHeadersToLog": ANSWER_HEADERS_TO_LOG,
        "additionalResponseTrailersToLog": ANSWER_TRAILERS_TO_LOG,
    }
    return [
        {"name": POLICY_SERVER, "envoyExtAuthzGrpc": asked},
        {"name": LOG_PROVIDER, "envoyHttpAls": log},
    ]


def _asking_objects(config: Config, options: MeshOptions) -> list[Document]:
    where = _in_gateways_namespace(options)
    selector = {"matchLabels": {"istio": options.gateway.name}}
    policy = {
        "selector": selector,
        "action": "CUSTOM",
        "provider": {"name": POLICY_SERVER},
        "rules": _governed(config),
    }
    logs = [
        {"providers": [{"name": USUAL_LOG}]},
        {"providers": [{"name": LOG_PROVIDER}], "filter": {"expression": ADMITTED}},
    ]
    return [
        kubernetes_object("security.istio.io/v1", "AuthorizationPolicy", where, policy),
        kubernetes_object(
            "telemetry.istio.io/v1",
            "Telemetry",
            where,
            {"selector": selector, "accessLogging": logs},
        ),
    ]


def _governed(config: Config) -> list[Document]:
    """The configured methods, and upgrades, on the configured paths."""
    paths = [f"{path}*" for path in config.govern.paths]
    upgrade = [{"key": "request.headers[upgrade]", "values": ["*"]}]
    rules: list[Document] = [{"to": [{"operation": {"paths": paths}}], "when": upgrade}]
    if config.govern.methods:
        asked = {"methods": list(config.govern.methods), "paths": paths}
        rules.insert(0, {"to": [{"operation": asked}]})
    return rules


def _in_gateways_namespace(options: MeshOptions) -> ObjectName:
    return ObjectName(options.gateway.namespace, POLICY_SERVER)
