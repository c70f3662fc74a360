"""The access log as Envoy writes it."""

from __future__ import annotations

from envoy.data.accesslog.v3.accesslog_pb2 import (
    DownstreamEnd,
    DownstreamPeriodic,
    HTTPAccessLogEntry,
    UpstreamEnd,
)
from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage

from policy_server.core.samples import Completion, LoadReport
from tests.grpc.conftest import Wired


def entry(uid: str, kind: int, **headers: str) -> HTTPAccessLogEntry:
    made = HTTPAccessLogEntry()
    made.common_properties.access_log_type = kind
    made.common_properties.time_to_first_upstream_tx_byte.FromMilliseconds(100)
    made.common_properties.upstream_remote_address.socket_address.address = "10.0.0.1"
    made.common_properties.upstream_remote_address.socket_address.port_value = 8000
    made.request.request_headers["x-policy-uid"] = uid
    made.response.response_code.value = 200
    for key, value in headers.items():
        made.response.response_headers[key.replace("_", "-")] = value
    return made


def message(*entries: HTTPAccessLogEntry, node: str = "") -> StreamAccessLogsMessage:
    made = StreamAccessLogsMessage()
    made.identifier.node.id = node
    made.http_logs.log_entry.extend(entries)
    return made


async def test_the_life_of_a_lease(wired: Wired) -> None:
    call = wired.log()
    report = 'JSON {"named_metrics": {"kv_cache_usage_perc": 0.5, "num_requests_waiting": 3.0}}'
    await call.write(message(entry("uid-1", DownstreamPeriodic), node="envoy-1"))
    await call.write(message(entry("uid-1", UpstreamEnd)))
    await call.write(message(entry("uid-1", DownstreamEnd, endpoint_load_metrics=report)))
    await wired.gate.until(lambda: wired.gate.completed)
    assert wired.gate.heartbeats == [("uid-1", "envoy-1")]
    assert wired.gate.completed == [("uid-1", Completion(200))]
    assert wired.gate.reports == [("uid-1", "10.0.0.1:8000", LoadReport(waiting=3.0, kv_used=0.5))]
    assert wired.gate.nodes == ["envoy-1"] * 3
    await call.done_writing()
    assert await call is not None


async def test_the_same_name_as_at_the_gate(wired: Wired) -> None:
    call = wired.log(x_policy_node="pod-7")
    await call.write(message(entry("uid-1", DownstreamPeriodic), node="envoy-1"))
    await wired.gate.until(lambda: wired.gate.heartbeats)
    assert wired.gate.heartbeats == [("uid-1", "pod-7")]


async def test_a_broken_message_costs_only_itself(wired: Wired) -> None:
    raw = wired.channel.stream_unary(
        "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"
    )()
    await raw.write(b"\xff\xff\xff")
    await raw.write(b"")
    await raw.write(message(entry("", DownstreamEnd)).SerializeToString())
    await raw.write(message(entry("uid-1", DownstreamEnd)).SerializeToString())
    await wired.gate.until(lambda: wired.gate.completed)
    assert wired.access_log.counts.broken == 1
    assert wired.access_log.counts.anonymous == 1
    assert [uid for uid, _ in wired.gate.completed] == ["uid-1"]


async def test_a_clients_odd_bytes_cost_no_lease(wired: Wired) -> None:
    odd, other = entry("uid-1", DownstreamEnd), entry("uid-2", DownstreamEnd)
    odd.request.request_id = odd.request.request_headers["x-request-id"] = "0123456789"
    raw = wired.channel.stream_unary(
        "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"
    )()
    sent = message(other, odd, node="envoy-1").SerializeToString()
    await raw.write(sent.replace(b"0123456789", b"\xff\xfe\x80\xc3(\xed\xa0\x80ok"))
    await wired.gate.until(lambda: len(wired.gate.completed) == 2)
    assert wired.gate.completed == [("uid-2", Completion(200)), ("uid-1", Completion(200))]
    assert wired.gate.nodes == ["envoy-1"]
    assert wired.access_log.counts.broken == 0
