"""The single stream as Envoy opens it: from the request headers to the end of the answer."""

from __future__ import annotations

import grpc
import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest

from policy_server.core.request import Request
from policy_server.core.samples import LoadReport
from tests.grpc.conftest import Wired
from tests.support.ext_proc_messages import request_headers, response_headers
from tests.support.fake_gate import admitted, shed

DETAILS = "response.code_details"


def wait(_: Request) -> None:
    """Decide later."""


async def opened(wired: Wired, uid: str = "uid-1", **headers: str) -> grpc.aio.StreamStreamCall:
    """A stream whose request was sent."""
    call = wired.process(x_policy_wiring="stream", x_policy_node="envoy-1")
    await call.write(request_headers(uid, headers))
    return call


async def admitted_call(wired: Wired) -> grpc.aio.StreamStreamCall:
    """A stream whose request was admitted."""
    call = await opened(wired)
    assert (await call.read()).HasField("request_headers")
    return call


def head(status: str, details: str = "via_upstream", **headers: str) -> ProcessingRequest:
    message = response_headers(status, observed=False)
    for key, value in headers.items():
        message.response_headers.headers.headers.add(
            key=key.replace("_", "-"), raw_value=value.encode()
        )
    attributes = {DETAILS: details, "upstream.address": "10.0.0.1:8000"}
    message.attributes["envoy.filters.http.ext_proc"].update(attributes)
    return message


async def until_ended(wired: Wired) -> object:
    """How the one lease ended."""
    await wired.gate.until(lambda: wired.gate.completed)
    ((uid, completion),) = wired.gate.completed
    assert uid == "uid-1"
    assert not wired.gate.leases
    return completion


async def test_the_lease_ends_with_the_stream(wired: Wired) -> None:
    call = await admitted_call(wired)
    await call.write(head("200"))
    assert (await call.read()).HasField("response_headers")
    assert wired.gate.leases == {"uid-1"}
    await call.done_writing()
    completion = await until_ended(wired)
    assert (completion.status, completion.client_gone) == (200, False)
    assert 0 <= completion.first_byte_s <= completion.last_byte_s
    assert await call.code() is grpc.StatusCode.OK


async def test_trailers_end_it_too(wired: Wired) -> None:
    call = await admitted_call(wired)
    await call.write(head("200"))
    await call.read()
    trailers = ProcessingRequest()
    trailers.response_trailers.SetInParent()
    await call.write(trailers)
    assert (await call.read()).HasField("response_trailers")
    assert (await until_ended(wired)).status == 200


def trailers(**headers: str) -> ProcessingRequest:
    message = ProcessingRequest()
    message.response_trailers.SetInParent()
    for key, value in headers.items():
        message.response_trailers.trailers.headers.add(
            key=key.replace("_", "-"), raw_value=value.encode()
        )
    return message


@pytest.mark.parametrize(("told", "status"), [("0", 200), ("8", 429), ("14", 503), ("5", 400)])
async def test_a_grpc_call_ends_as_its_trailers_say(wired: Wired, told: str, status: int) -> None:
    call = await admitted_call(wired)
    await call.write(head("200"))
    await call.read()
    await call.write(trailers(grpc_status=told))
    await call.read()
    assert (await until_ended(wired)).status == status


async def test_a_grpc_call_without_a_body_has_its_trailers_as_headers(wired: Wired) -> None:
    call = await admitted_call(wired)
    message = head("200", grpc_status="8")
    message.response_headers.end_of_stream = True
    await call.write(message)
    await call.read()
    assert (await until_ended(wired)).status == 429


async def test_a_load_report_may_stand_in_the_trailers(wired: Wired) -> None:
    call = await admitted_call(wired)
    await call.write(head("200"))
    await call.read()
    await call.write(trailers(endpoint_load_metrics='JSON {"named_metrics": {"queue_size": 3}}'))
    await call.read()
    await until_ended(wired)
    assert wired.gate.reports == [("uid-1", "10.0.0.1:8000", LoadReport(waiting=3.0))]


async def test_an_answer_without_a_body_ends_with_its_headers(wired: Wired) -> None:
    call = await admitted_call(wired)
    message = head("204")
    message.response_headers.end_of_stream = True
    await call.write(message)
    assert (await until_ended(wired)).status == 204


@pytest.mark.parametrize("how", ["reset", "half-close"])
async def test_no_answer_at_all_is_a_client_that_left(wired: Wired, how: str) -> None:
    call = await admitted_call(wired)
    if how == "reset":
        call.cancel()
    else:
        await call.done_writing()
    completion = await until_ended(wired)
    assert (completion.status, completion.client_gone) == (0, True)


@pytest.mark.parametrize(
    ("status", "details", "seen"),
    [
        ("503", "upstream_reset_before_response_started{connection_failure}", (503, True)),
        ("413", "request_payload_too_large", (0, False)),
        ("404", "via_upstream", (404, True)),
        ("404", "", (404, True)),
    ],
)
async def test_who_answered_is_told_by_the_details(
    wired: Wired, status: str, details: str, seen: tuple[int, bool]
) -> None:
    call = await admitted_call(wired)
    await call.write(head(status, details))
    await call.read()
    await call.done_writing()
    completion = await until_ended(wired)
    assert (completion.status, completion.reached_upstream) == seen


async def test_a_load_report_is_taken_from_the_headers(wired: Wired) -> None:
    call = await admitted_call(wired)
    report = 'JSON {"named_metrics": {"num_requests_waiting": 3.0}}'
    await call.write(head("200", endpoint_load_metrics=report))
    await call.read()
    assert wired.gate.reports == [("uid-1", "10.0.0.1:8000", LoadReport(waiting=3.0))]


async def test_shed_at_once(wired: Wired) -> None:
    wired.gate.decide = shed
    call = await opened(wired)
    assert (await call.read()).immediate_response.status.code == 429
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_held_then_admitted_then_ended(wired: Wired) -> None:
    wired.gate.decide = wait
    call = await opened(wired)
    await wired.gate.until(lambda: wired.gate.places)
    wired.gate.resolve("uid-1", admitted(wired.gate.submitted[0], wait_s=1.5))
    assert (await call.read()).dynamic_metadata["policy"]["queue_wait_ms"] == 1500
    await call.write(head("200"))
    assert (await call.read()).HasField("response_headers")
    await call.done_writing()
    assert (await until_ended(wired)).status == 200
    assert not wired.gate.left


async def test_envoys_own_reply_during_a_hold_goes_on(wired: Wired) -> None:
    wired.gate.decide = wait
    call = await opened(wired)
    await wired.gate.until(lambda: wired.gate.places)
    await call.write(head("504"))
    assert (await call.read()).HasField("response_headers")
    assert await call.code() is grpc.StatusCode.OK
    assert wired.gate.left == ["uid-1"]
    assert not wired.gate.completed


@pytest.mark.parametrize("how", ["reset", "half-close"])
async def test_a_client_that_leaves_gives_its_place_back(wired: Wired, how: str) -> None:
    wired.gate.decide = wait
    call = await opened(wired)
    await wired.gate.until(lambda: wired.gate.places)
    if how == "reset":
        call.cancel()
    else:
        await call.done_writing()
    await wired.gate.until(lambda: not wired.gate.places)
    assert wired.gate.left == ["uid-1"]


async def test_an_old_stream_does_not_end_the_lease_that_a_newer_one_carries(
    wired: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = await admitted_call(wired)
    asked: list[str] = []
    monkeypatch.setattr(wired.gate, "owns", lambda told: asked.append(told.request.uid))
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK
    assert asked == ["uid-1"]
    assert not wired.gate.completed


async def test_a_stop_lets_answers_go_on_and_hands_holds_back(wired: Wired) -> None:
    carried = await admitted_call(wired)
    wired.gate.decide = wait
    held = await opened(wired, "uid-2")
    await wired.gate.until(lambda: wired.gate.places)
    wired.gate.closing.set()
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await held.read()
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    wired.services.stream.let_go()
    assert await carried.read() is grpc.aio.EOF
    assert await carried.code() is grpc.StatusCode.OK
    assert not wired.gate.completed


async def test_only_streams_beside_an_observer_are_observable(wired: Wired) -> None:
    await admitted_call(wired)
    assert wired.gate.submitted[0].observable


async def test_a_mistake_of_ours_ends_the_lease(
    wired: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    call = await admitted_call(wired)
    monkeypatch.setattr(wired.services.stream, "_take_head", broken)
    await call.write(head("200"))
    assert (await until_ended(wired)).status == 0
    assert await call.code() is grpc.StatusCode.OK
