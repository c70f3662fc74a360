"""The access log service: it tells the policy server how each governed request ended."""

from __future__ import annotations

from envoy_data_plane.envoy.config.accesslog.v3 import (
    AccessLog,
    AccessLogFilter,
    AndFilter,
    LogTypeFilter,
    MetadataFilter,
    OrFilter,
)
from envoy_data_plane.envoy.config.core.v3 import ApiVersion
from envoy_data_plane.envoy.data.accesslog.v3 import AccessLogType
from envoy_data_plane.envoy.extensions.access_loggers.grpc.v3 import (
    CommonGrpcAccessLogConfig,
    HttpGrpcAccessLogConfig,
)
from envoy_data_plane.envoy.type.matcher.v3 import (
    MetadataMatcher,
    MetadataMatcherPathSegment,
    ValueMatcher,
)
from envoy_data_plane.google.protobuf import Any

from policy_server.envoy_config.options import GatewayOptions
from policy_server.envoy_config.request_facts import REQUEST_NAMESPACE
from policy_server.envoy_config.wire import UID_HEADER, policy_grpc, seconds

LOG_NAME = "policy"
MetadataPath = tuple[str, ...]
"""A namespace of dynamic metadata and the keys below it."""
LOAD_REPORT_HEADERS = [
    "endpoint-load-metrics",
    "endpoint-load-metrics-bin",
    "x-aqueduct-rps",
    "x-aqueduct-max-concurrent",
    "x-aquifer-rps",
    "x-aquifer-max-concurrent",
]
ANSWER_TRAILERS_TO_LOG = ["grpc-status", *LOAD_REPORT_HEADERS]
"""A gRPC call says in its trailers how it ended, and its load report stands there, too."""
ANSWER_HEADERS_TO_LOG = [*ANSWER_TRAILERS_TO_LOG, "content-type"]
"""A gRPC answer without a body has no trailers but these. The type tells whether it was streamed:
some engines stream without being asked."""


def access_logs(options: GatewayOptions, admitted: MetadataPath) -> list[AccessLog]:
    """The log that ends each lease, and its heartbeats while the answer is under way.

    `admitted`: dynamic metadata that only an admitted request has.
    """
    config = HttpGrpcAccessLogConfig(
        common_config=CommonGrpcAccessLogConfig(
            log_name=LOG_NAME,
            grpc_service=policy_grpc(_node(options)),
            transport_api_version=ApiVersion.V3,
            buffer_flush_interval=seconds(0.05),
        ),
        additional_request_headers_to_log=[UID_HEADER, "x-request-id"],
        additional_response_headers_to_log=ANSWER_HEADERS_TO_LOG,
        additional_response_trailers_to_log=ANSWER_TRAILERS_TO_LOG,
    )
    return [
        AccessLog(
            name="envoy.access_loggers.http_grpc",
            filter=_admitted_or_ended(admitted),
            typed_config=Any.pack(config),
        )
    ]


def _node(options: GatewayOptions) -> str:
    """A log's stream is of no request, so nothing fills a formatter in. Its first message has
    Envoy's node id."""
    return "" if "%" in options.node_id else options.node_id


def _admitted_or_ended(admitted: MetadataPath) -> AccessLogFilter:
    """Heartbeats of admitted requests only (held ones would flood the log), every end."""
    ended = AccessLogFilter(log_type_filter=LogTypeFilter(types=[AccessLogType.DownstreamEnd]))
    governed = _has_metadata((REQUEST_NAMESPACE, "uid"))
    return AccessLogFilter(
        or_filter=OrFilter(
            filters=[
                _has_metadata(admitted),
                AccessLogFilter(and_filter=AndFilter(filters=[ended, governed])),
            ]
        )
    )


def _has_metadata(where: MetadataPath) -> AccessLogFilter:
    namespace, *keys = where
    return AccessLogFilter(
        metadata_filter=MetadataFilter(
            matcher=MetadataMatcher(
                filter=namespace,
                path=[MetadataMatcherPathSegment(key=key) for key in keys],
                value=ValueMatcher(present_match=True),
            ),
            match_if_key_not_found=False,
        )
    )
