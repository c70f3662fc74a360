"""Jobs on Envoy's side: who may become one, how they come back, who asks for them.

on the gateway's listener   `prefer: respond-async` on a governed route: the gate may ask for the
                            body (ext_authz gets it with the Check)
a listener on loopback      the dispatcher sends each job through here: the gate knows it by its
                            passport; whatever has none is refused. The identity is that of the
                            job's lease, so nothing is stamped
`/policy/`                  the HTTP API, with the caller's tenant in Envoy's words
"""

from __future__ import annotations

from envoy_data_plane.envoy.config.accesslog.v3 import (
    AccessLogFilter,
    ComparisonFilter,
    ComparisonFilterOp,
    StatusCodeFilter,
)
from envoy_data_plane.envoy.config.core.v3 import (
    DataSource,
    HeaderValue,
    HeaderValueOption,
    HttpProtocolOptions,
    RuntimeUInt32,
)
from envoy_data_plane.envoy.config.listener.v3 import Filter, FilterChain, Listener
from envoy_data_plane.envoy.config.route.v3 import (
    DirectResponseAction,
    HeaderMatcher,
    Route,
    RouteAction,
    RouteConfiguration,
    RouteMatch,
    VirtualHost,
)
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ExtProcOverrides,
    ExtProcPerRoute,
)
from envoy_data_plane.envoy.extensions.filters.http.router.v3 import Router
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpConnectionManagerHcmAccessLogOptions,
    HttpConnectionManagerServerHeaderTransformation,
    LocalReplyConfig,
    ResponseMapper,
)
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher
from envoy_data_plane.google.protobuf import Any

from policy_server.config import Config
from policy_server.config_envoy import SILENT_ANSWER_S
from policy_server.config_jobs import (
    CALLER_HEADER,
    LOCAL_HEADER,
    PASSPORT_HEADER,
    TENANT_HEADER,
    caller_mark,
    jobs_port,
)
from policy_server.envoy_config.ratelimit import NAME as RATE_LIMIT
from policy_server.envoy_config.request_facts import BODY
from policy_server.envoy_config.wire import (
    OBSERVE_HEADER,
    UID_HEADER,
    address,
    enable,
    http_filter,
    seconds,
    set_header,
)
from policy_server.envoy_config.wirings import Wired

JOBS, ON_THEIR_WAY, STRANGERS = "jobs", "dispatched", "strangers"
WIRING_KEY = "x-policy-wiring"
HEARTBEAT_S = 5.0
MAX_HEADERS, MAX_HEADERS_KIB = 2000, 256
"""Above what the gateway's listener takes (1000, 60 KiB): what it let in gets some more headers, a
byte that is no UTF-8 becomes three, and an accepted job must not be refused here."""
NOT_AGAIN = frozenset({RATE_LIMIT, BODY})
"""What a job has behind it: the gateway's own protection, and the look into its body."""


def wants_job() -> HeaderMatcher:
    """On a request that prefers to become a job."""
    word = StringMatcher(contains="respond-async", ignore_case=True)
    return HeaderMatcher(name="prefer", string_match=word)


def gate_of_jobs() -> ExtProcPerRoute:
    """The gate on the route of jobs: its streams may have more than one message."""
    said = HeaderValue(key=WIRING_KEY, value="jobs")
    return ExtProcPerRoute(overrides=ExtProcOverrides(grpc_initial_metadata=[said]))


def who_asks(config: Config) -> list[HeaderValueOption]:
    """What Envoy says of a caller of the HTTP API; the same names from outside are gone by then."""
    said = [set_header(CALLER_HEADER, caller_mark(config))]
    kind, _, rest = config.tenants.source.partition(":")
    if kind == "header":
        said.append(set_header(TENANT_HEADER, f"%REQ({rest})%"))
    elif kind == "metadata":
        said.append(set_header(TENANT_HEADER, f"%DYNAMIC_METADATA({rest.replace('/', ':')})%"))
    return said


def jobs_listeners(config: Config, chain: Wired, upstream: RouteAction) -> list[Listener]:
    """The listener of the jobs on their way, when this Envoy has one."""
    port = jobs_port(config)
    if port is None:
        return []
    manager = _manager(_routes(chain, upstream), chain)
    network = Filter(
        name="envoy.filters.network.http_connection_manager", typed_config=Any.pack(manager)
    )
    listener = Listener(
        name=JOBS,
        address=address("127.0.0.1", port),
        filter_chains=[FilterChain(filters=[network])],
        per_connection_buffer_limit_bytes=1024 * 1024,
    )
    return [listener]


def _routes(chain: Wired, upstream: RouteAction) -> RouteConfiguration:
    governed = {name: own for name, own in chain.governed.items() if name not in NOT_AGAIN}
    passport = HeaderMatcher(name=PASSPORT_HEADER, present_match=True)
    refusal = DirectResponseAction(
        status=403, body=DataSource(inline_string="only the policy server's own jobs pass here\n")
    )
    host = VirtualHost(
        name=JOBS,
        domains=["*"],
        routes=[
            Route(
                name=ON_THEIR_WAY,
                match=RouteMatch(prefix="/", headers=[passport]),
                route=upstream,
                typed_per_filter_config={name: enable(own) for name, own in governed.items()},
                response_headers_to_remove=[LOCAL_HEADER],
            ),
            Route(name=STRANGERS, match=RouteMatch(prefix="/"), direct_response=refusal),
        ],
        request_headers_to_remove=[PASSPORT_HEADER, OBSERVE_HEADER, UID_HEADER],
    )
    return RouteConfiguration(name=JOBS, virtual_hosts=[host])


def _manager(routes: RouteConfiguration, chain: Wired) -> HttpConnectionManager:
    """Changes nothing of a job: its headers went through the gateway's listener before."""
    router = http_filter("envoy.filters.http.router", Router(suppress_envoy_headers=True))
    return HttpConnectionManager(
        stat_prefix=JOBS,
        route_config=routes,
        http_filters=[*chain.filters, router],
        access_log=chain.access_logs,
        access_log_options=HttpConnectionManagerHcmAccessLogOptions(
            access_log_flush_interval=seconds(HEARTBEAT_S)
        ),
        local_reply_config=LocalReplyConfig(mappers=[_marked()]),
        common_http_protocol_options=HttpProtocolOptions(max_headers_count=MAX_HEADERS),
        max_request_headers_kb=MAX_HEADERS_KIB,
        stream_idle_timeout=seconds(SILENT_ANSWER_S),
        preserve_external_request_id=True,
        server_header_transformation=HttpConnectionManagerServerHeaderTransformation.PASS_THROUGH,
    )


def _marked() -> ResponseMapper:
    """Says which answers are Envoy's own: no model server was asked, or it broke off; which of the
    two, its flags tell."""
    always = ComparisonFilter(
        op=ComparisonFilterOp.GE,
        value=RuntimeUInt32(default_value=100, runtime_key="policy.jobs.local"),
    )
    return ResponseMapper(
        filter=AccessLogFilter(status_code_filter=StatusCodeFilter(comparison=always)),
        headers_to_add=[set_header(LOCAL_HEADER, "%RESPONSE_FLAGS%")],
    )
