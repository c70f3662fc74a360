"""How an answer ended, told from Envoy's access log."""

from __future__ import annotations

import pytest
from envoy.data.accesslog.v3.accesslog_pb2 import (
    AccessLogType,
    DownstreamEnd,
    DownstreamPeriodic,
    HTTPAccessLogEntry,
    UpstreamEnd,
)

from policy_server.adapters.log_entry import EntryKind, completion_of, read_entry
from policy_server.core.outcome import LeaseEnd
from policy_server.core.samples import Completion, how_it_ended


def entry(
    status: int = 200, *flags: str, sent: bool = True, details: str = ""
) -> HTTPAccessLogEntry:
    made = HTTPAccessLogEntry()
    common = made.common_properties
    common.access_log_type = DownstreamEnd
    if sent:
        common.time_to_first_upstream_tx_byte.FromMilliseconds(1000)
    for flag in flags:
        setattr(common.response_flags, flag, True)
    if status:
        made.response.response_code.value = status
    made.response.response_code_details = details
    return made


ANSWERED, CLIENT_LEFT = Completion(200), Completion(200, client_gone=True)


@pytest.mark.parametrize(
    ("logged", "completion"),
    [
        (entry(200), ANSWERED),
        (entry(404), Completion(404)),
        (entry(429), Completion(429)),
        (entry(503, details="via_upstream"), Completion(503)),
        # the client hung up: mid-answer, before the first byte, during the hold
        (entry(200, "downstream_connection_termination"), CLIENT_LEFT),
        (entry(200, "downstream_remote_reset"), CLIENT_LEFT),
        (entry(0, "downstream_connection_termination"), Completion(0, client_gone=True)),
        (
            entry(0, "downstream_connection_termination", sent=False),
            Completion(0, client_gone=True, reached_upstream=False),
        ),
        (entry(0, sent=False), Completion(0, client_gone=True, reached_upstream=False)),
        (entry(503, "upstream_connection_failure", "downstream_remote_reset"),
         Completion(503, client_gone=True)),
        # the upstream failed: no connection, none healthy, cut before and within the answer
        (entry(503, "upstream_connection_failure", sent=False), Completion(503)),
        (entry(503, "no_healthy_upstream", sent=False), Completion(503)),
        (entry(503, "upstream_overflow", sent=False), Completion(503)),
        (entry(503, "upstream_connection_termination"), Completion(503)),
        (entry(504, "upstream_request_timeout"), Completion(504)),
        (entry(200, "upstream_remote_reset"), Completion(503)),
        # Envoy answered by itself
        (entry(413, sent=False), Completion(0, reached_upstream=False)),
        (entry(404, "no_route_found", sent=False), Completion(0, reached_upstream=False)),
        (entry(429, sent=False, details="policy_room_full"),
         Completion(0, reached_upstream=False)),
        # idle: before the answer it is the upstream's, within the answer nobody's
        (entry(504, "stream_idle_timeout"), Completion(504)),
        (entry(200, "stream_idle_timeout"), CLIENT_LEFT),
    ],
)  # fmt: skip
def test_how_it_ended(logged: HTTPAccessLogEntry, completion: Completion) -> None:
    assert completion_of(logged) == completion


def told(status: str, where: str = "response_trailers") -> HTTPAccessLogEntry:
    """A gRPC answer: always HTTP 200."""
    made = entry()
    getattr(made.response, where)["grpc-status"] = status
    return made


@pytest.mark.parametrize("where", ["response_trailers", "response_headers"])
@pytest.mark.parametrize(
    ("status", "how"),
    [
        ("0", LeaseEnd.COMPLETED),
        *((status, LeaseEnd.UPSTREAM_ERROR) for status in ("8", "13", "14", "4")),
        *((status, LeaseEnd.COMPLETED) for status in ("1", "2", "3", "5", "16", "99", "-1", "x")),
    ],
)
def test_a_grpc_answer_ended_as_its_grpc_status_says(
    status: str, how: LeaseEnd, where: str
) -> None:
    completion = completion_of(told(status, where))
    assert how_it_ended(completion) is how
    assert (completion.status == 200) == (status == "0")  # only a 2xx is a latency sample


def test_a_grpc_call_that_never_reached_a_model_server_used_no_slot() -> None:
    refused = entry(200, sent=False, details="policy_room_full")
    refused.response.response_headers["grpc-status"] = "8"
    assert completion_of(refused) == Completion(0, reached_upstream=False)
    left = told("1")
    left.common_properties.response_flags.downstream_remote_reset = True
    assert how_it_ended(completion_of(left)) is LeaseEnd.CLIENT_CANCELLED


def test_times_count_from_the_first_byte_sent_upstream() -> None:
    logged = entry()
    logged.common_properties.time_to_first_upstream_rx_byte.FromMilliseconds(1250)
    logged.common_properties.time_to_last_upstream_rx_byte.FromMilliseconds(3000)
    assert completion_of(logged) == Completion(200, first_byte_s=0.25, last_byte_s=2.0)


@pytest.mark.parametrize(
    ("kind", "streamed"),
    [
        ("text/event-stream", True),
        ("Text/Event-Stream; charset=utf-8", True),
        ("application/x-ndjson", True),
        ("application/json", False),
        ("", False),
    ],
)
def test_whether_it_was_streamed_says_its_type(kind: str, streamed: bool) -> None:
    logged = entry()
    logged.response.response_headers["content-type"] = kind
    assert completion_of(logged).streamed == streamed
    assert read_entry(logged).headers == {}  # no report of the engine
    logged.response.response_headers["x-aqueduct-rps"] = "5"
    assert read_entry(logged).headers["x-aqueduct-rps"] == "5"


@pytest.mark.parametrize(
    ("log_type", "intermediate", "kind"),
    [
        (DownstreamEnd, False, EntryKind.END),
        (DownstreamPeriodic, True, EntryKind.HEARTBEAT),
        (UpstreamEnd, False, EntryKind.OTHER),
        (AccessLogType.Value("NotSet"), False, EntryKind.END),
        (AccessLogType.Value("NotSet"), True, EntryKind.HEARTBEAT),
    ],
)
def test_what_an_entry_is_about(log_type: int, intermediate: bool, kind: EntryKind) -> None:
    logged = entry()
    logged.common_properties.access_log_type = log_type
    logged.common_properties.intermediate_log_entry = intermediate
    assert read_entry(logged).kind is kind


def test_an_empty_entry_is_an_anonymous_end() -> None:
    found = read_entry(HTTPAccessLogEntry())
    assert (found.uid, found.kind, found.upstream) == ("", EntryKind.END, "")


def test_who_it_is_says_the_answer_to_its_check_then_the_header_then_envoy() -> None:
    logged = entry()
    metadata = logged.common_properties.metadata.filter_metadata
    metadata["policy.request"].update({"uid": "of-envoy"})
    assert read_entry(logged).uid == "of-envoy"
    logged.request.request_headers["x-policy-uid"] = "of-the-header"
    assert read_entry(logged).uid == "of-the-header"
    metadata["envoy.filters.http.ext_authz"].update({"policy": {"uid": "of-the-check"}})
    assert read_entry(logged).uid == "of-the-check"
