"""Which request goes where, and which of them the gate sees.

Governed are the configured methods on the configured paths, and upgrades there (WebSocket,
CONNECT), which take a seat. Everything else passes: the filters that know the policy server are
off by default and a governed route turns them on. Tunnels and gRPC calls, whose request may last
as long as their answer, go to the gate on their headers; everybody else with the whole body.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from envoy_data_plane.envoy.config.core.v3 import HeaderValueOption
from envoy_data_plane.envoy.config.route.v3 import (
    HeaderMatcher,
    RetryPolicy,
    RetryPolicyRetryBackOff,
    RetryPolicyRetryHostPredicate,
    Route,
    RouteAction,
    RouteConfiguration,
    RouteMatch,
    RouteMatchConnectMatcher,
    VirtualHost,
)
from envoy_data_plane.envoy.extensions.retry.host.previous_hosts.v3 import PreviousHostsPredicate
from envoy_data_plane.envoy.type.matcher.v3 import RegexMatcher, StringMatcher
from envoy_data_plane.google.protobuf import Any

from policy_server.config import Config
from policy_server.config_jobs import takes_jobs
from policy_server.envoy_config.jobs import JOBS, wants_job, who_asks
from policy_server.envoy_config.options import GatewayOptions
from policy_server.envoy_config.paths import spellings
from policy_server.envoy_config.ratelimit import NAME as RATE_LIMIT
from policy_server.envoy_config.ratelimit import api_rate_limit
from policy_server.envoy_config.request_facts import BODY
from policy_server.envoy_config.wire import (
    GRPC_TYPE,
    OBSERVE_HEADER,
    POLICY_HTTP_CLUSTER,
    UID_HEADER,
    UPSTREAM_CLUSTER,
    enable,
    seconds,
    set_header,
)
from policy_server.envoy_config.wirings import GATE, Wired

GOVERNED, PASSED, POLICY_API = "governed", "passed", "policy"
SPEAKS_GRPC = ("h2c", "https")
"""Upstreams of these schemes may be gRPC servers; to others gRPC can't be sent on."""
ANSWER_HEADERS = {
    "x-policy-class": "%DYNAMIC_METADATA(policy:class)%",
    "x-queue-wait-ms": "%DYNAMIC_METADATA(policy:queue_wait_ms)%",
}


def route_config(
    config: Config,
    options: GatewayOptions,
    chain: Wired,
) -> RouteConfiguration:
    """The one virtual host; first match wins. Governed routes enable the chain, and the gate in
    its own way on those that prefer to become jobs."""
    upstream = to_upstream(options)
    enabled = {name: enable(own) for name, own in chain.governed.items()}
    unread = {name: own for name, own in enabled.items() if name != BODY}
    on_jobs = {**enabled, GATE: enable(chain.jobs)} if chain.jobs is not None else enabled

    def routes(name: str, matches: Iterable[RouteMatch], turned_on: dict[str, Any]) -> list[Route]:
        return [
            Route(name=name, match=m, route=upstream, typed_per_filter_config=dict(turned_on))
            for m in matches
        ]

    grpc = _asked(config, _is_grpc()) if options.upstreams[0].scheme in SPEAKS_GRPC else []
    api = RouteAction(cluster=POLICY_HTTP_CLUSTER, timeout=seconds(0))
    host = VirtualHost(
        name="gateway",
        domains=["*"],
        routes=[
            Route(
                name=POLICY_API,
                match=RouteMatch(prefix="/policy/"),
                route=api,
                request_headers_to_add=who_asks(config),
                typed_per_filter_config={
                    RATE_LIMIT: enable(api_rate_limit(options.gate_rate_per_s))
                },
            ),
            *routes(GOVERNED, _tunnels(config), unread),
            *routes(JOBS, _asked(config, wants_job()) if takes_jobs(config) else (), on_jobs),
            *routes(GOVERNED, grpc, unread),
            *routes(GOVERNED, _asked(config), enabled),
            Route(name=PASSED, match=RouteMatch(prefix="/"), route=upstream),
        ],
        request_body_buffer_limit=config.body_buffer_bytes,
        request_headers_to_remove=inner_headers(),
        response_headers_to_add=answer_headers(),
    )
    return RouteConfiguration(name="gateway", virtual_hosts=[host])


def inner_headers() -> list[str]:
    """Headers between Envoy and the policy server that no model server gets to see."""
    return [OBSERVE_HEADER, UID_HEADER]


def answer_headers() -> list[HeaderValueOption]:
    """What an admitted client is told, from what the policy server said of its answer."""
    return [set_header(name, value) for name, value in ANSWER_HEADERS.items()]


def _asked(config: Config, *also: HeaderMatcher) -> list[RouteMatch]:
    """Requests of the governed methods on the governed paths; with `also`, those that have this,
    too."""
    if not config.govern.methods:
        return []
    methods = "|".join(re.escape(method) for method in config.govern.methods)
    by_method = HeaderMatcher(
        name=":method", string_match=StringMatcher(safe_regex=RegexMatcher(regex=methods))
    )
    return [_under(path, by_method, *also) for path in config.govern.paths]


def _tunnels(config: Config) -> list[RouteMatch]:
    """Upgrades on the governed paths, whatever their method. The header is there only on what is
    an upgrade: Envoy takes it from everything else."""
    upgrade = HeaderMatcher(name="upgrade", present_match=True)
    matches = [_under(path, upgrade) for path in config.govern.paths]
    if "/" in config.govern.paths:  # CONNECT has no path to compare
        matches.append(RouteMatch(connect_matcher=RouteMatchConnectMatcher()))
    return matches


def _under(path: str, *headers: HeaderMatcher) -> RouteMatch:
    if path == "/":
        return RouteMatch(prefix=path, headers=list(headers))
    return RouteMatch(safe_regex=RegexMatcher(regex=spellings(path)), headers=list(headers))


def _is_grpc() -> HeaderMatcher:
    kind = StringMatcher(prefix=GRPC_TYPE, ignore_case=True)
    return HeaderMatcher(name="content-type", string_match=kind)


def to_upstream(options: GatewayOptions) -> RouteAction:
    """To the model servers."""
    named = not all(upstream.is_ip for upstream in options.upstreams)
    return RouteAction(
        cluster=UPSTREAM_CLUSTER,
        timeout=seconds(0),  # answers of models take minutes; clients hang up when they must
        auto_host_rewrite=True if named else None,
        append_x_forwarded_host=named,
        retry_policy=_retry_unsent(len(options.upstreams)),
    )


def _retry_unsent(hosts: int) -> RetryPolicy:
    """Another try only for what no model server has seen; elsewhere first, if there is one."""
    policy = RetryPolicy(
        retry_on="connect-failure,refused-stream,reset-before-request",
        num_retries=2,
        retry_back_off=RetryPolicyRetryBackOff(
            base_interval=seconds(0.025), max_interval=seconds(0.1)
        ),
    )
    if hosts > 1:
        policy.host_selection_retry_max_attempts = 3
        policy.retry_host_predicate = [
            RetryPolicyRetryHostPredicate(
                name="envoy.retry_host_predicates.previous_hosts",
                typed_config=Any.pack(PreviousHostsPredicate()),
            )
        ]
    return policy
