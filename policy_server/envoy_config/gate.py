"""The gate wiring: ext_proc gate, sampled observer, access log that ends the leases.

The gate sees the request headers only and its stream ends with its answer: a response in flight
never depends on the policy server, and a hold is one message that Envoy can send again after a
crash. How a request ended is told by the access log, matched by `x-policy-uid`; exact first-token
and token times come from the observer, which runs for the sample the gate picked.

Filters are disabled in the chain and enabled by the governed routes, so that what is not governed
never touches the policy server.
"""

from __future__ import annotations

from envoy_data_plane.envoy.config.accesslog.v3 import (
    AccessLog,
    AccessLogFilter,
    AndFilter,
    LogTypeFilter,
    MetadataFilter,
    OrFilter,
)
from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutationRules
from envoy_data_plane.envoy.config.core.v3 import (
    ApiVersion,
    BackoffStrategy,
    RetryPolicy,
)
from envoy_data_plane.envoy.data.accesslog.v3 import AccessLogType
from envoy_data_plane.envoy.extensions.access_loggers.grpc.v3 import (
    CommonGrpcAccessLogConfig,
    HttpGrpcAccessLogConfig,
)
from envoy_data_plane.envoy.extensions.common.matching.v3 import ExtensionWithMatcher
from envoy_data_plane.envoy.extensions.filters.common.matcher.action.v3 import SkipFilter
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ExternalProcessor,
    MetadataOptions,
    MetadataOptionsMetadataNamespaces,
    ProcessingMode,
    ProcessingModeBodySendMode,
    ProcessingModeHeaderSendMode,
)
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.envoy.extensions.matching.common_inputs.network.v3 import (
    DynamicMetadataInput,
    DynamicMetadataInputPathSegment,
)
from envoy_data_plane.envoy.extensions.matching.input_matchers.metadata.v3 import (
    Metadata as MetadataMatch,
)
from envoy_data_plane.envoy.type.matcher.v3 import (
    MetadataMatcher,
    MetadataMatcherPathSegment,
    StringMatcher,
    ValueMatcher,
)
from envoy_data_plane.envoy.type.v3 import HttpStatus, StatusCode
from envoy_data_plane.google.protobuf import Any
from envoy_data_plane.xds.type.matcher.v3 import (
    Matcher,
    MatcherMatcherList,
    MatcherMatcherListFieldMatcher,
    MatcherMatcherListPredicate,
    MatcherMatcherListPredicateSinglePredicate,
    MatcherOnMatch,
)

from policy_server.config import Config
from policy_server.envoy_config.options import GatewayOptions, OnOutage
from policy_server.envoy_config.request_facts import COIN, REQUEST_NAMESPACE, coin_filter
from policy_server.envoy_config.wire import (
    UID_HEADER,
    extension,
    http_filter,
    policy_grpc,
    seconds,
    xds_extension,
)

GATE = "policy.gate"
OBSERVER = "policy.observer"
LOG_NAME = "policy"
# What the gate says of its answer; x-policy-class and x-queue-wait-ms are made from it.
ANSWER_NAMESPACE = "policy"
# The policy server answers at the deadline; this much later something is wrong.
ANSWER_MARGIN_S = 30.0
REQUEST_ATTRIBUTES = ["source.address", "xds.route_name", "xds.cluster_name", "request.size"]
LOAD_REPORT_HEADERS = [
    "endpoint-load-metrics",
    "endpoint-load-metrics-bin",
    "x-aqueduct-rps",
    "x-aqueduct-max-concurrent",
    "x-aquifer-rps",
    "x-aquifer-max-concurrent",
]
_SEND, _SKIP = ProcessingModeHeaderSendMode.SEND, ProcessingModeHeaderSendMode.SKIP


def filters(config: Config, options: GatewayOptions) -> list[HttpFilter]:
    """The gate, its coin, then the observer behind the matcher that reads it."""
    return [
        http_filter(GATE, _gate(config, options), disabled=True),
        coin_filter(),
        http_filter(OBSERVER, _sampled(_observer(options)), disabled=True),
    ]


def _gate(config: Config, options: GatewayOptions) -> ExternalProcessor:
    service = policy_grpc(options.node_id)
    service.retry_policy = resend(options.on_outage)
    return ExternalProcessor(
        grpc_service=service,
        failure_mode_allow=options.on_outage == "open",
        status_on_error=HttpStatus(code=StatusCode.ServiceUnavailable),
        processing_mode=ProcessingMode(
            request_header_mode=_SEND,
            request_body_mode=ProcessingModeBodySendMode.NONE,
            request_trailer_mode=_SKIP,
            response_header_mode=_SKIP,
            response_body_mode=ProcessingModeBodySendMode.NONE,
            response_trailer_mode=_SKIP,
        ),
        message_timeout=seconds(config.longest_hold_s + ANSWER_MARGIN_S),
        request_attributes=REQUEST_ATTRIBUTES,
        metadata_options=MetadataOptions(
            forwarding_namespaces=MetadataOptionsMetadataNamespaces(untyped=_forwarded(config)),
            receiving_namespaces=MetadataOptionsMetadataNamespaces(untyped=[ANSWER_NAMESPACE]),
        ),
        mutation_rules=HeaderMutationRules(allow_envoy=True),  # x-envoy-ratelimited on a 429
        stat_prefix="gate",
    )


def _forwarded(config: Config) -> list[str]:
    """The metadata that classification may read, with the tenant's namespace when it has one."""
    namespaces = [
        REQUEST_NAMESPACE,
        "envoy.filters.http.jwt_authn",
        "envoy.filters.http.ext_authz",
    ]
    kind, _, rest = config.tenants.source.partition(":")
    namespace = rest.split("/", 1)[0]
    if kind == "metadata" and namespace not in namespaces:
        namespaces.append(namespace)
    return namespaces


def resend(on_outage: OnOutage) -> RetryPolicy:
    """How Envoy sends a held request again after a crash of the policy server.

    Waits are drawn from 0 to the back-off, so a try takes 0.25 s on average: 300 tries bridge
    75 s. Fail-open requests wait through the same window, so there it stays below one second.
    """
    closed = on_outage == "closed"
    return RetryPolicy(
        retry_on="unavailable,reset,connect-failure,cancelled,internal",
        num_retries=300 if closed else 4,
        retry_back_off=BackoffStrategy(
            base_interval=seconds(0.1), max_interval=seconds(0.5 if closed else 0.25)
        ),
    )


def _observer(options: GatewayOptions) -> ExternalProcessor:
    uid = f"%DYNAMIC_METADATA({REQUEST_NAMESPACE}:uid)%"
    return ExternalProcessor(
        grpc_service=policy_grpc(options.node_id, {UID_HEADER: uid}),
        observability_mode=True,
        failure_mode_allow=True,  # or a crash of the policy server cuts the answers it watches
        processing_mode=ProcessingMode(
            request_header_mode=_SKIP,
            request_body_mode=ProcessingModeBodySendMode.NONE,
            request_trailer_mode=_SKIP,
            response_header_mode=_SEND,
            response_body_mode=ProcessingModeBodySendMode.STREAMED,
            response_trailer_mode=_SEND,
        ),
        deferred_close_timeout=seconds(0.1),
        stat_prefix="observer",
    )


def _sampled(observer: ExternalProcessor) -> ExtensionWithMatcher:
    """Skips the observer unless the gate's coin said `1`."""
    picked = MatcherMatcherListPredicate(
        single_predicate=MatcherMatcherListPredicateSinglePredicate(
            input=xds_extension(
                "coin",
                DynamicMetadataInput(
                    filter=REQUEST_NAMESPACE, path=[DynamicMetadataInputPathSegment(key="observe")]
                ),
            ),
            custom_match=xds_extension(
                "heads", MetadataMatch(value=ValueMatcher(string_match=StringMatcher(exact="1")))
            ),
        )
    )
    skip = MatcherMatcherListFieldMatcher(
        predicate=MatcherMatcherListPredicate(not_matcher=picked),
        on_match=MatcherOnMatch(action=xds_extension("skip", SkipFilter())),
    )
    return ExtensionWithMatcher(
        xds_matcher=Matcher(matcher_list=MatcherMatcherList(matchers=[skip])),
        extension_config=extension(OBSERVER, observer),
    )


def access_logs(options: GatewayOptions) -> list[AccessLog]:
    """The log that ends each lease, and its heartbeats while the answer is under way."""
    config = HttpGrpcAccessLogConfig(
        common_config=CommonGrpcAccessLogConfig(
            log_name=LOG_NAME,
            grpc_service=policy_grpc(options.node_id),
            transport_api_version=ApiVersion.V3,
            buffer_flush_interval=seconds(0.05),
        ),
        additional_request_headers_to_log=[UID_HEADER, "x-request-id"],
        additional_response_headers_to_log=LOAD_REPORT_HEADERS,
    )
    return [
        AccessLog(
            name="envoy.access_loggers.http_grpc",
            filter=_admitted_or_ended(),
            typed_config=Any.pack(config),
        )
    ]


def _admitted_or_ended() -> AccessLogFilter:
    """Heartbeats of admitted requests only (held ones would flood the log), every end."""
    ended = AccessLogFilter(log_type_filter=LogTypeFilter(types=[AccessLogType.DownstreamEnd]))
    governed = _has_metadata(REQUEST_NAMESPACE, "uid")
    return AccessLogFilter(
        or_filter=OrFilter(
            filters=[
                _has_metadata(ANSWER_NAMESPACE, "class"),
                AccessLogFilter(and_filter=AndFilter(filters=[ended, governed])),
            ]
        )
    )


def _has_metadata(namespace: str, key: str) -> AccessLogFilter:
    return AccessLogFilter(
        metadata_filter=MetadataFilter(
            matcher=MetadataMatcher(
                filter=namespace,
                path=[MetadataMatcherPathSegment(key=key)],
                value=ValueMatcher(present_match=True),
            ),
            match_if_key_not_found=False,
        )
    )


def governed_filters() -> list[str]:
    """The names that a governed route enables."""
    return [GATE, COIN, OBSERVER]
