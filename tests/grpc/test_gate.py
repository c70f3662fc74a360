"""The gate as Envoy meets it: one stream per request, over a real connection."""

from __future__ import annotations

import asyncio
import json

import grpc
import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse

from policy_server.adapters import ext_proc, grpc_server
from policy_server.core.leases import MAX_NODES
from policy_server.core.outcome import Outcome, ShedReason
from policy_server.core.request import Priority, Request
from tests.grpc.conftest import Wired
from tests.support.ext_proc_messages import request_headers, response_headers
from tests.support.fake_gate import admitted, shed


def wait(_: Request) -> None:
    """Decide later."""


async def ask(wired: Wired, message: ProcessingRequest) -> ProcessingResponse:
    """One whole stream: the message in, the answer out, a clean end."""
    call = wired.process(x_policy_node="envoy-1")
    await call.write(message)
    answer = await call.read()
    assert answer is not grpc.aio.EOF
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    return answer


async def held(wired: Wired, uid: str = "uid-1") -> grpc.aio.StreamStreamCall:
    """A stream whose request waits."""
    wired.gate.decide = wait
    call = wired.process()
    await call.write(request_headers(uid))
    await wired.gate.until(lambda: uid in wired.gate.places)
    return call


async def refusal(call: grpc.aio.StreamStreamCall) -> grpc.StatusCode:
    """How a stream ends that gets no answer: an error, which is never a yes."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call.read()
    return error.value.code()


def observe(answer: ProcessingResponse) -> bytes:
    options = answer.request_headers.response.header_mutation.set_headers
    return next(h.header.raw_value for h in options if h.header.key == "x-policy-observe")


async def test_admitted_at_once(wired: Wired) -> None:
    wired.gate.decide = lambda request: admitted(request, observe=True)
    answer = await ask(wired, request_headers("uid-7", {"x-request-priority": "0"}))
    assert observe(answer) == b"1"
    assert answer.dynamic_metadata["policy"]["class"] == "P0"
    (request,) = wired.gate.submitted
    assert (request.uid, request.node, request.priority) == ("uid-7", "envoy-1", Priority.P0)
    assert wired.gate.leases == {"uid-7"}


@pytest.mark.parametrize("known", [MAX_NODES, 1])
async def test_each_request_is_of_the_envoy_that_its_stream_names(
    known: int, wired: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_server, "MAX_NODES", known)
    monkeypatch.setattr(ext_proc, "Words", None)  # .4 ms: nobody encodes them again
    wired.gate.decide = admitted
    nodes = ("envoy-1", "envoy-2", "", "envoy-1", "envoy-2", "")
    for number, node in enumerate(nodes):
        call = wired.process(x_policy_node=node) if node else wired.process()
        await call.write(request_headers(f"uid-{number}"))
        assert observe(await call.read()) == b"0"
    assert tuple(request.node for request in wired.gate.submitted) == nodes


async def test_shed_at_once(wired: Wired) -> None:
    wired.gate.decide = shed
    answer = await ask(wired, request_headers())
    assert answer.immediate_response.status.code == 429
    assert json.loads(answer.immediate_response.body)["error"]["code"] == "rate_limit_exceeded"


async def test_held_then_admitted(wired: Wired) -> None:
    call = await held(wired)
    wired.gate.resolve("uid-1", admitted(wired.gate.submitted[0], wait_s=1.5))
    answer = await call.read()
    assert answer.dynamic_metadata["policy"]["queue_wait_ms"] == 1500
    assert await call.code() is grpc.StatusCode.OK
    assert wired.gate.leases == {"uid-1"}
    assert wired.desk.holding == 0


async def test_held_then_shed(wired: Wired) -> None:
    call = await held(wired)
    wired.gate.resolve("uid-1", shed(wired.gate.submitted[0], ShedReason.DEADLINE))
    answer = await call.read()
    assert answer.immediate_response.details == "policy_deadline"


@pytest.mark.parametrize("how", ["reset", "half-close"])
async def test_a_client_that_leaves_gives_its_place_back(wired: Wired, how: str) -> None:
    call = await held(wired)
    if how == "reset":
        call.cancel()
    else:
        await call.done_writing()
    await wired.gate.until(lambda: not wired.gate.places)
    assert wired.gate.left == ["uid-1"]
    assert not wired.gate.leases
    if how == "half-close":
        assert await refusal(call) is grpc.StatusCode.ABORTED


async def test_envoys_own_reply_during_a_hold_goes_on(wired: Wired) -> None:
    call = await held(wired)
    await call.write(response_headers("504", observed=False))
    answer = await call.read()
    assert answer.WhichOneof("response") == "response_headers"
    assert await call.code() is grpc.StatusCode.OK
    assert wired.gate.left == ["uid-1"]


async def test_other_messages_during_a_hold_change_nothing(wired: Wired) -> None:
    call = await held(wired)
    odd = ProcessingRequest()
    odd.request_body.body = b"x"
    await call.write(odd)
    await call.write(ProcessingRequest())
    wired.gate.resolve("uid-1", admitted(wired.gate.submitted[0], wait_s=0.1))
    assert (await call.read()).HasField("request_headers")


@pytest.mark.parametrize(
    "kind",
    ["response_headers", "request_body", "response_body", "request_trailers", "response_trailers"],
)
async def test_a_stream_that_begins_otherwise_allocates_nothing(wired: Wired, kind: str) -> None:
    message = ProcessingRequest()
    getattr(message, kind).SetInParent()
    answer = await ask(wired, message)
    assert answer.WhichOneof("response") == kind
    assert not wired.gate.submitted


async def test_an_empty_message_is_never_a_yes(wired: Wired) -> None:
    call = wired.process()
    await call.write(ProcessingRequest())
    assert await refusal(call) is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_stream_without_a_message_is_never_a_yes(wired: Wired) -> None:
    call = wired.process()
    await call.done_writing()
    assert await refusal(call) is grpc.StatusCode.ABORTED
    assert not wired.gate.submitted


async def test_a_newer_stream_takes_the_place_over(wired: Wired) -> None:
    older = await held(wired)
    newer = wired.process()
    await newer.write(request_headers())
    assert await refusal(older) is grpc.StatusCode.ABORTED
    assert list(wired.gate.places) == ["uid-1"]
    wired.gate.resolve("uid-1", admitted(wired.gate.submitted[1], wait_s=0.1))
    assert (await newer.read()).HasField("request_headers")
    assert not wired.gate.left


async def test_a_shutdown_hands_every_hold_back(wired: Wired) -> None:
    calls = [await held(wired, f"uid-{n}") for n in range(3)]
    wired.gate.closing.set()
    for call in calls:
        assert await refusal(call) is grpc.StatusCode.UNAVAILABLE
    assert not wired.gate.left, "their places stay in the journal"
    late = wired.process()
    await late.write(request_headers("uid-late"))
    assert await refusal(late) is grpc.StatusCode.UNAVAILABLE
    assert len(wired.gate.submitted) == 3


async def test_what_is_not_governed_passes(wired: Wired) -> None:
    answer = await ask(wired, request_headers(headers={":method": "GET"}))
    # the second :method is a duplicate, so the joined value is no governed method
    assert observe(answer) == b"0"
    assert not wired.gate.submitted
    assert [outcome for _, _, outcome in wired.gate.counted] == [Outcome.PASSED]


async def test_an_upgrade_is_never_observed(wired: Wired) -> None:
    wired.gate.decide = lambda request: admitted(request, observe=True)
    answer = await ask(wired, request_headers(headers={"upgrade": "websocket"}))
    assert observe(answer) == b"0"
    assert wired.gate.leases


async def test_a_lagging_server_answers_the_lower_classes_cheaply(wired: Wired) -> None:
    wired.gate.lag = True
    answer = await ask(wired, request_headers("low", {"x-request-priority": "1"}))
    assert answer.immediate_response.details == "policy_overloaded"
    assert (await ask(wired, request_headers("top", {"x-request-priority": "0"}))).HasField(
        "request_headers"
    )
    assert [request.uid for request in wired.gate.submitted] == ["top"]


async def test_a_request_without_a_uid_gets_one(wired: Wired) -> None:
    await ask(wired, request_headers(""))
    assert len(wired.gate.submitted[0].uid) == 36
    assert wired.desk.counts.strangers == 1


async def test_one_request_id_many_places(wired: Wired) -> None:
    wired.gate.decide = wait
    calls = []
    for n in range(50):
        call = wired.process()
        await call.write(request_headers(f"uid-{n}", {"x-request-id": "same"}))
        calls.append(call)
    await wired.gate.until(lambda: len(wired.gate.places) == 50)
    for request in list(wired.gate.submitted):
        wired.gate.resolve(request.uid, admitted(request, wait_s=0.1))
    answers = await asyncio.gather(*(call.read() for call in calls))
    assert all(answer.HasField("request_headers") for answer in answers)
    assert len(wired.gate.leases) == 50
