"""One entry of Envoy's access log → how the answer ended.

The cases, in the order in which they are decided:

    the client hung up            its flags, or code 0 with no upstream failure: `client_gone`;
                                  `reached_upstream` tells a cancelled answer from one never sent
    the upstream answered         its status, whatever it is; of a gRPC call what `grpc-status`
                                  says (`grpc_status`), for its HTTP status is always 200
    the upstream failed           no connection, reset, time-out, overflow of the cluster's own
                                  bounds: Envoy answers 503 or 504, or cuts an answer that began
                                  as 200. No client's doing, so it counts as an upstream error
                                  (`FAILED`) that reached it, although no byte may have
    Envoy answered by itself      413, 408, no route, another filter's denial: `reached_upstream`
                                  is False, the slot was never used
    idle time-out in mid-answer   no one can tell whose fault: like a client that left, no sample
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from policy_server.adapters import grpc_status
from policy_server.adapters.ext_proc_messages import (
    ANSWER_NAMESPACE,
    BODY_NAMESPACE,
    UID_KEY,
    is_stream,
)
from policy_server.adapters.protos import (
    AccessLogCommon,
    DownstreamEnd,
    DownstreamPeriodic,
    Duration,
    HTTPAccessLogEntry,
    NotSet,
)
from policy_server.core.samples import Completion

FAILED = 503
CONTENT_TYPE = "content-type"
CHECKED = "envoy.filters.http.ext_authz"  # the namespace of what a Check answered
_CLIENT_FLAGS = (
    "downstream_connection_termination",
    "downstream_remote_reset",
    "downstream_protocol_error",
)
_UPSTREAM_FLAGS = (
    "no_healthy_upstream",
    "upstream_request_timeout",
    "upstream_remote_reset",
    "upstream_connection_failure",
    "upstream_connection_termination",
    "upstream_overflow",
    "upstream_retry_limit_exceeded",
    "upstream_max_stream_duration_reached",
    "upstream_protocol_error",
    "dns_resolution_failure",
)
_NONE: Mapping[str, str] = {}
_IDLE_FLAGS = ("stream_idle_timeout", "duration_timeout")


class EntryKind(Enum):
    """What an entry is about."""

    END = "end"
    HEARTBEAT = "heartbeat"
    OTHER = "other"


class LogEntry(NamedTuple):
    """What the policy server needs of an entry. `upstream` is the address of the engine that sent
    the `headers` ("" without any)."""

    uid: str
    kind: EntryKind
    completion: Completion
    upstream: str
    headers: Mapping[str, str]


def read_entry(entry: HTTPAccessLogEntry) -> LogEntry:
    """The facts in one entry."""
    common, response = entry.common_properties, entry.response
    headers: Mapping[str, str] = _NONE
    if response.response_trailers or len(response.response_headers) > _typed(entry):
        headers = {**response.response_headers, **response.response_trailers}
    upstream = _upstream(common) if headers else ""
    return LogEntry(_uid(entry), _kind(common), completion_of(entry), upstream, headers)


def _typed(entry: HTTPAccessLogEntry) -> bool:
    """Whether the log tells the answer's type, which is no report of an engine."""
    return CONTENT_TYPE in entry.response.response_headers


def _uid(entry: HTTPAccessLogEntry) -> str:
    """The request's identity: what the answer to its Check said, where Envoy stamps none; else
    the header, or, where the route removed it, the metadata. The header comes last but one, for
    an Envoy that stamps none may log what a client wrote there."""
    facts = entry.common_properties.metadata.filter_metadata
    uid: str = ""
    if CHECKED in facts:
        uid = facts[CHECKED].fields[ANSWER_NAMESPACE].struct_value.fields["uid"].string_value
    uid = uid or entry.request.request_headers.get(UID_KEY, "")
    if not uid and BODY_NAMESPACE in facts:
        uid = facts[BODY_NAMESPACE].fields["uid"].string_value
    return uid


def completion_of(entry: HTTPAccessLogEntry) -> Completion:
    """How the answer ended; see the table above."""
    common, response = entry.common_properties, entry.response
    status = response.response_code.value
    first_byte_s = last_byte_s = None
    reached = common.HasField("time_to_first_upstream_tx_byte")
    if reached:
        first_byte_s, last_byte_s = _times(common)
    else:
        reached = response.response_code_details == "via_upstream"
    upstream_failed = client_gone = stalled = False
    if common.HasField("response_flags"):  # most answers have none
        flags = common.response_flags
        upstream_failed = any(getattr(flags, name) for name in _UPSTREAM_FLAGS)
        client_gone = any(getattr(flags, name) for name in _CLIENT_FLAGS)
        stalled = any(getattr(flags, name) for name in _IDLE_FLAGS) and status < 400
    if not client_gone and not upstream_failed:
        client_gone = stalled or not status
    if upstream_failed and not client_gone:
        reached, status = True, status if status >= 500 else FAILED
    elif reached and (response.response_headers or response.response_trailers):
        status = grpc_status.told_status(
            status, response.response_headers, response.response_trailers
        )
    kind = response.response_headers.get(CONTENT_TYPE, "")
    return Completion(
        *(status if reached else 0, client_gone, reached, first_byte_s, last_byte_s),
        streamed=is_stream(kind),
    )


def _kind(common: AccessLogCommon) -> EntryKind:
    kind = common.access_log_type
    if kind == DownstreamEnd:
        return EntryKind.END
    if kind == DownstreamPeriodic:
        return EntryKind.HEARTBEAT
    if kind != NotSet:
        return EntryKind.OTHER
    return EntryKind.HEARTBEAT if common.intermediate_log_entry else EntryKind.END


def _times(common: AccessLogCommon) -> tuple[float | None, float | None]:
    """Seconds from the first byte sent upstream (there was one) to the first and the last back."""
    sent = common.time_to_first_upstream_tx_byte
    first = last = None
    if common.HasField("time_to_first_upstream_rx_byte"):
        first = _between(sent, common.time_to_first_upstream_rx_byte)
    if common.HasField("time_to_last_upstream_rx_byte"):
        last = _between(sent, common.time_to_last_upstream_rx_byte)
    return first, last


def _between(begin: Duration, end: Duration) -> float:
    seconds, nanos = end.seconds - begin.seconds, end.nanos - begin.nanos
    return max(0.0, float(seconds + nanos * 1e-9))


def _upstream(common: AccessLogCommon) -> str:
    address = common.upstream_remote_address.socket_address
    return f"{address.address}:{address.port_value}" if address.address else ""
