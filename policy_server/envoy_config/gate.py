"""The gate wiring: ext_proc gate, sampled observer, access log that ends the leases.

The gate sees the request headers only and its stream ends with its answer: a response in flight
never depends on the policy server, and a hold is one message that Envoy can send again after a
crash. How a request ended is told by the access log, matched by `x-policy-uid`; exact first-token
and token times come from the observer, which runs for the sample the gate picked.

Filters are disabled in the chain and enabled by the governed routes, so that what is not governed
never touches the policy server.
"""

from __future__ import annotations

from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutationRules
from envoy_data_plane.envoy.config.core.v3 import BackoffStrategy, RetryPolicy
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ExternalProcessor,
    MetadataOptions,
    MetadataOptionsMetadataNamespaces,
    ProcessingMode,
    ProcessingModeBodySendMode,
    ProcessingModeHeaderSendMode,
)
from envoy_data_plane.envoy.type.v3 import HttpStatus, StatusCode

from policy_server.config import Config
from policy_server.config_jobs import takes_jobs
from policy_server.envoy_config.access_log import access_logs
from policy_server.envoy_config.jobs import gate_of_jobs
from policy_server.envoy_config.observer import SAMPLING_FILTERS, sampling_filters
from policy_server.envoy_config.options import GatewayOptions, OnOutage
from policy_server.envoy_config.request_facts import REQUEST_NAMESPACE
from policy_server.envoy_config.wire import http_filter, policy_grpc, seconds
from policy_server.envoy_config.wirings import (
    ANSWER_MARGIN_S,
    ANSWER_NAMESPACE,
    GATE,
    Wired,
    forwarded_metadata,
)

REQUEST_ATTRIBUTES = ["xds.route_name", "xds.cluster_name", "request.time"]
"""What a pool may match beside headers and the body, and how old the request is: the policy
server's own queue. Each costs every request."""
SEND, SKIP = ProcessingModeHeaderSendMode.SEND, ProcessingModeHeaderSendMode.SKIP


def wired(config: Config, options: GatewayOptions) -> Wired:
    """The gate, the observer behind its coin, and the log."""
    return Wired(
        filters=[
            http_filter(GATE, gate(config, options), disabled=True),
            *sampling_filters(options),
        ],
        governed=dict.fromkeys((GATE, *SAMPLING_FILTERS)),
        access_logs=access_logs(options, (ANSWER_NAMESPACE, "class")),
        jobs=gate_of_jobs(),
    )


def gate(config: Config, options: GatewayOptions) -> ExternalProcessor:
    """The filter that asks: one message in, one answer out."""
    service = policy_grpc(options.node_id)
    service.retry_policy = resend(options.on_outage)
    return ExternalProcessor(
        grpc_service=service,
        failure_mode_allow=options.on_outage == "open",
        status_on_error=HttpStatus(code=StatusCode.ServiceUnavailable),
        processing_mode=ProcessingMode(
            request_header_mode=SEND,
            request_body_mode=ProcessingModeBodySendMode.NONE,
            request_trailer_mode=SKIP,
            response_header_mode=SKIP,
            response_body_mode=ProcessingModeBodySendMode.NONE,
            response_trailer_mode=SKIP,
        ),
        message_timeout=seconds(config.longest_hold_s + ANSWER_MARGIN_S),
        request_attributes=REQUEST_ATTRIBUTES,
        metadata_options=MetadataOptions(
            forwarding_namespaces=MetadataOptionsMetadataNamespaces(
                untyped=forwarded_metadata(config, REQUEST_NAMESPACE)
            ),
            receiving_namespaces=MetadataOptionsMetadataNamespaces(untyped=[ANSWER_NAMESPACE]),
        ),
        allow_mode_override=takes_jobs(config),  # to ask for the body of a job
        mutation_rules=HeaderMutationRules(allow_envoy=True),  # x-envoy-ratelimited on a 429
        stat_prefix="gate",
    )


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
