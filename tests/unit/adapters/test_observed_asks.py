"""What a back end asks for is heard from the headers of an observed answer and from the log."""

from __future__ import annotations

from typing import Any

from envoy.data.accesslog.v3.accesslog_pb2 import DownstreamEnd, HTTPAccessLogEntry
from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage
from grpc.aio import EOF

from policy_server.adapters.access_log import AccessLog
from policy_server.adapters.observer import AnswerObserver
from policy_server.core.samples import LoadReport
from policy_server.signals.observer import parser_for
from policy_server.signals.orca import read_report
from tests.support.ext_proc_messages import response_headers
from tests.support.fake_gate import FakeGate


class Call:
    """A gRPC call whose caller sends these messages and no more."""

    def __init__(self, *messages: bytes) -> None:
        self._messages = list(messages)

    async def read(self) -> object:
        return self._messages.pop(0) if self._messages else EOF

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return [("x-policy-uid", "uid-1")]


async def observe(status: str, upstream: str = "", **headers: str) -> FakeGate:
    """A gate after one observed answer of `upstream` that began with these headers."""
    first = response_headers(status)
    if upstream:
        attributes = first.attributes["envoy.filters.http.ext_proc"]
        attributes.fields["upstream.address"].string_value = upstream
    for key, value in headers.items():
        name = key.replace("_", "-")
        first.response_headers.headers.headers.add(key=name, raw_value=value.encode())
    gate, call = FakeGate(), Call()
    call_as_context: Any = call
    await AnswerObserver(gate, parser_for, read_report).follow(first, call_as_context)
    return gate


async def test_an_ask_is_heard_as_the_answer_begins() -> None:
    gate = await observe("200", x_aqueduct_max_concurrent="4")
    assert gate.reports == [("uid-1", "", LoadReport(asked_seats=4.0))]


async def test_an_ask_stands_under_the_address_of_the_engine() -> None:
    gate = await observe("200", "10.0.0.7:8000", x_aqueduct_rps="3")
    assert gate.reports == [("uid-1", "10.0.0.7:8000", LoadReport(asked_rps=3.0))]


async def test_an_ask_is_heard_from_a_refusal_as_well() -> None:
    gate = await observe("503", x_aquifer_rps="2.5")
    assert gate.reports == [("uid-1", "", LoadReport(asked_rps=2.5))]


async def test_a_load_report_is_left_to_the_log_which_knows_the_engine() -> None:
    report = "TEXT num_requests_waiting=3"
    assert not (await observe("200", endpoint_load_metrics=report)).reports
    both = await observe("200", endpoint_load_metrics=report, x_aqueduct_rps="1")
    assert both.reports == [("uid-1", "", LoadReport(asked_rps=1.0))]


async def test_the_log_says_how_old_a_report_is() -> None:
    entry = HTTPAccessLogEntry()
    common = entry.common_properties
    common.access_log_type = DownstreamEnd
    common.time_to_first_upstream_tx_byte.FromMilliseconds(100)
    common.time_to_first_upstream_rx_byte.FromMilliseconds(1_000)
    common.time_to_last_upstream_rx_byte.FromMilliseconds(31_000)
    entry.request.request_headers["x-policy-uid"] = "uid-1"
    entry.response.response_headers["endpoint-load-metrics"] = "TEXT num_requests_waiting=3"
    message = StreamAccessLogsMessage()
    message.http_logs.log_entry.append(entry)
    gate, call = FakeGate(), Call(message.SerializeToString())
    call_as_context: Any = call
    await AccessLog(gate, read_report).stream(None, call_as_context)
    ((_, _, report),) = gate.reports
    assert report == LoadReport(waiting=3.0, age_s=30.0)
