"""The observer: a second ext_proc filter that shows a sample of the answers as they pass.

It runs in observability mode, so nothing it does touches the answer. The gate's coin picks the
sample: a matcher in front of the filter skips everything else.
"""

from __future__ import annotations

from envoy_data_plane.envoy.extensions.common.matching.v3 import ExtensionWithMatcher
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ExternalProcessor,
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
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher, ValueMatcher
from envoy_data_plane.xds.type.matcher.v3 import (
    MatcherMatcherListPredicate,
    MatcherMatcherListPredicateSinglePredicate,
)

from policy_server.envoy_config.matching import skip_unless
from policy_server.envoy_config.options import GatewayOptions
from policy_server.envoy_config.request_facts import COIN, REQUEST_NAMESPACE, coin_filter
from policy_server.envoy_config.wire import (
    UID_HEADER,
    extension,
    http_filter,
    policy_grpc,
    seconds,
    xds_extension,
)

OBSERVER = "policy.observer"
WHO_ANSWERS = "upstream.address"
"""The attribute that names the engine, as the access log does at the end."""
SAMPLING_FILTERS = (COIN, OBSERVER)
"""The names that a governed route enables."""
_SEND, _SKIP = ProcessingModeHeaderSendMode.SEND, ProcessingModeHeaderSendMode.SKIP


def sampling_filters(options: GatewayOptions) -> list[HttpFilter]:
    """The gate's coin, then the observer behind the matcher that reads it."""
    return [
        coin_filter(),
        http_filter(OBSERVER, _sampled(_observer(options)), disabled=True),
    ]


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
        response_attributes=[WHO_ANSWERS],
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
    return skip_unless(picked, extension(OBSERVER, observer))
