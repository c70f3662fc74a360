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
from policy_server.core.samples import Completion


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


def test_who_it_is_says_the_header_then_envoy_then_the_answer_to_its_check() -> None:
    logged = entry()
    metadata = logged.common_properties.metadata.filter_metadata
    metadata["envoy.filters.http.ext_authz"].update({"policy": {"uid": "of-the-check"}})
    assert read_entry(logged).uid == "of-the-check"
    metadata["policy.request"].update({"uid": "of-envoy"})
    assert read_entry(logged).uid == "of-envoy"
    logged.request.request_headers["x-policy-uid"] = "of-the-header"
    assert read_entry(logged).uid == "of-the-header"
