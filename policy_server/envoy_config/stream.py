"""The single-stream wiring: one ext_proc stream from the request headers to the end of the answer.

The gate's filter, but it sees the response headers as well and stays open for trailers, whether
any come or not: Envoy closes it when the answer is over. So no access log is needed. The observer
runs beside it for first tokens and pace, as in the gate wiring.

The price: in this wiring an answer in flight depends on its stream. When the policy server dies,
`closed` cuts it, `open` lets it go on. A policy server that is stopped in order lets it go on in
both cases.
"""

from __future__ import annotations

from envoy_data_plane.envoy.config.core.v3 import HeaderValue

from policy_server.config import Config
from policy_server.envoy_config.gate import SEND, gate
from policy_server.envoy_config.observer import SAMPLING_FILTERS, WHO_ANSWERS, sampling_filters
from policy_server.envoy_config.options import GatewayOptions
from policy_server.envoy_config.wire import http_filter
from policy_server.envoy_config.wirings import GATE, Wired

WIRING_HEADER = "x-policy-wiring"
# What Envoy would tell in its access log: whether the answer is its own, and who gave it.
RESPONSE_ATTRIBUTES = ["response.code_details", WHO_ANSWERS]


def wired(config: Config, options: GatewayOptions) -> Wired:
    """The long stream and the observer behind its coin."""
    stream = gate(config, options)
    if stream.processing_mode is not None:
        stream.processing_mode.response_header_mode = SEND
        stream.processing_mode.response_trailer_mode = SEND
    if stream.grpc_service is not None:
        said = HeaderValue(key=WIRING_HEADER, value="stream")
        stream.grpc_service.initial_metadata.append(said)
    stream.response_attributes = RESPONSE_ATTRIBUTES
    return Wired(
        filters=[http_filter(GATE, stream, disabled=True), *sampling_filters(options)],
        governed=dict.fromkeys((GATE, *SAMPLING_FILTERS)),
        access_logs=[],
    )
