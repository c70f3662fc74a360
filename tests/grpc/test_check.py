"""ext_authz as Envoy meets it: one Check per request, over a real connection."""

from __future__ import annotations

import asyncio
import json
from typing import cast

import grpc
import pytest
from envoy.service.auth.v3 import external_auth_pb2_grpc
from envoy.service.auth.v3.external_auth_pb2 import CheckRequest, CheckResponse

from policy_server.adapters import job_intake
from policy_server.adapters.grpc_server import build_grpc_server
from policy_server.adapters.ports import JobDesk
from policy_server.core.outcome import Outcome, ShedReason
from policy_server.core.request import Priority, Request
from policy_server.journal.jobs import Accepted, Job, Submission
from tests.grpc.conftest import Wired
from tests.support.check_messages import check_request
from tests.support.fake_gate import FakeGate, admitted, shed
from tests.support.services import services_of


def wait(_: Request) -> None:
    """Decide later."""


async def held(wired: Wired, uid: str = "uid-1", **call: float) -> grpc.aio.UnaryUnaryCall:
    """A Check whose request waits."""
    wired.gate.decide = wait
    check = wired.check(check_request(uid), **call)
    await wired.gate.until(lambda: uid in wired.gate.places)
    return check


async def refusal(call: grpc.aio.UnaryUnaryCall) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code()


def told(response: CheckResponse) -> dict[str, str]:
    return {h.header.key: h.header.value for h in response.ok_response.response_headers_to_add}


async def test_admitted_at_once(wired: Wired) -> None:
    metadata = {"policy.request": {"model": "llama", "stream": True, "max_tokens": 7}}
    message = check_request("uid-7", {"x-request-priority": "0"}, metadata)
    answer = await wired.check(message)
    assert answer.status.code == 0
    assert told(answer) == {"x-policy-class": "P0", "x-queue-wait-ms": "0"}
    assert answer.dynamic_metadata["policy"]["pool"] == "default"
    (request,) = wired.gate.submitted
    assert (request.uid, request.node, request.priority) == ("uid-7", "envoy-1", Priority.P0)
    assert (request.model, request.streamed, request.max_tokens) == ("llama", True, 7)
    assert not request.observable
    assert wired.gate.leases == {"uid-7"}


async def test_a_denial_is_an_answer_and_no_error(wired: Wired) -> None:
    wired.gate.decide = shed
    answer = await wired.check(check_request())
    assert answer.status.code == 8
    assert answer.denied_response.status.code == 429
    headers = {h.header.key: h.header.value for h in answer.denied_response.headers}
    assert headers["retry-after"] == "3"
    assert headers["x-policy-reason"] == "room_full"
    assert json.loads(answer.denied_response.body)["error"]["code"] == "rate_limit_exceeded"


async def test_no_capacity_is_unavailable(wired: Wired) -> None:
    wired.gate.decide = lambda request: shed(request, ShedReason.DRAINING)
    answer = await wired.check(check_request())
    assert (answer.status.code, answer.denied_response.status.code) == (14, 503)


async def test_held_then_admitted(wired: Wired) -> None:
    call = await held(wired)
    wired.gate.resolve("uid-1", admitted(wired.gate.submitted[0], wait_s=1.5))
    assert told(await call)["x-queue-wait-ms"] == "1500"
    assert wired.gate.leases == {"uid-1"}
    assert wired.desk.holding == 0


async def test_the_callers_deadline_shortens_the_wait_and_never_lengthens_it(wired: Wired) -> None:
    for timeout in (None, 1000, 2):
        await wired.check(check_request(f"uid-{timeout}"), timeout=timeout)
    budgets = {request.uid: request.budget_s for request in wired.gate.submitted}
    assert budgets["uid-None"] == budgets["uid-1000"] == 15
    assert 1 < budgets["uid-2"] < 2


async def test_a_client_that_leaves_gives_its_place_back(wired: Wired) -> None:
    call = await held(wired)
    call.cancel()
    await wired.gate.until(lambda: not wired.gate.places)
    assert wired.gate.left == ["uid-1"]
    assert not wired.gate.leases


async def test_a_newer_check_takes_the_place_over(wired: Wired) -> None:
    older = await held(wired)
    newer = wired.check(check_request())
    assert await refusal(older) is grpc.StatusCode.ABORTED
    wired.gate.resolve("uid-1", admitted(wired.gate.submitted[1], wait_s=0.1))
    assert (await newer).status.code == 0
    assert not wired.gate.left


async def test_a_shutdown_hands_every_hold_back(wired: Wired) -> None:
    calls = [await held(wired, f"uid-{n}") for n in range(3)]
    wired.gate.closing.set()
    for call in (*calls, wired.check(check_request("late"))):
        assert await refusal(call) is grpc.StatusCode.UNAVAILABLE
    assert not wired.gate.left, "their places stay in the journal"
    assert len(wired.gate.submitted) == 3


async def test_what_is_not_governed_passes(wired: Wired) -> None:
    answer = await wired.check(check_request(headers={":method": "GET"}))
    assert answer.status.code == 0
    assert answer.HasField("ok_response")
    assert not told(answer)
    assert [outcome for _, _, outcome in wired.gate.counted] == [Outcome.PASSED]


async def test_a_lagging_server_answers_the_lower_classes_cheaply(wired: Wired) -> None:
    wired.gate.lag = True
    answer = await wired.check(check_request("low", {"x-request-priority": "1"}))
    assert answer.denied_response.status.code == 429
    assert (await wired.check(check_request("top", {"x-request-priority": "0"}))).status.code == 0
    assert [request.uid for request in wired.gate.submitted] == ["top"]


async def test_envoys_own_id_stands_in_for_a_missing_uid(wired: Wired) -> None:
    await wired.check(check_request("", request_id="4711"))
    assert wired.gate.submitted[0].uid == "4711"
    await wired.check(check_request("", request_id=""))
    assert len(wired.gate.submitted[1].uid) == 36
    assert wired.desk.counts.strangers == 1


async def test_who_writes_anothers_uid_or_request_id_shares_no_lease(wired: Wired) -> None:
    """Where Envoy overwrites nothing, `x-policy-uid` is whatever a client wrote there."""
    same = {"x-request-id": "one-agent"}
    for envoys_own in ("1", "2", "2"):  # the last one is sent again
        await wired.check(check_request("forged", same, request_id=envoys_own, stamped=False))
    assert [request.uid for request in wired.gate.submitted] == ["1", "2", "2"]
    await wired.check(check_request("of-envoy", same, request_id="3"))
    named = {"policy.request": {"uid": "of-envoys-filter"}}
    await wired.check(check_request("forged", same, named, stamped=False))
    assert [one.uid for one in wired.gate.submitted[3:]] == ["of-envoy", "of-envoys-filter"]


async def test_an_admission_names_its_request_where_envoys_log_could_not(wired: Wired) -> None:
    at_once = await wired.check(check_request("uid-0"))
    call = await held(wired)
    wired.gate.resolve("uid-1", admitted(wired.gate.submitted[1], wait_s=1.5))
    for uid, answer in (("uid-0", at_once), ("uid-1", await call)):
        assert answer.dynamic_metadata["policy"]["uid"] == uid


async def test_an_admission_says_no_name_that_envoys_log_knows(wired: Wired) -> None:
    stamped = {"policy.request": {"uid": "uid-1"}}
    answer = await wired.check(check_request("uid-1", {}, stamped))
    assert "uid" not in answer.dynamic_metadata["policy"]


@pytest.mark.parametrize("raw", [b"\xff\xff\xff", b""])
async def test_what_is_no_check_is_never_a_yes(wired: Wired, raw: bytes) -> None:
    call = wired.channel.unary_unary("/envoy.service.auth.v3.Authorization/Check")(raw)
    assert await refusal(call) is grpc.StatusCode.INVALID_ARGUMENT
    assert wired.desk.counts.broken == 1


async def test_grpc_callers_get_their_status_as_a_header(wired: Wired) -> None:
    wired.gate.decide = shed
    answer = await wired.check(check_request(headers={"content-type": "application/grpc"}))
    headers = {h.header.key: h.header.value for h in answer.denied_response.headers}
    assert (headers["grpc-status"], headers["grpc-retry-pushback-ms"]) == ("8", "2500")


async def test_many_wait_at_once(wired: Wired) -> None:
    calls = [await held(wired, f"uid-{n}") for n in range(50)]
    for request in list(wired.gate.submitted):
        wired.gate.resolve(request.uid, admitted(request, wait_s=0.1))
    answers = await asyncio.gather(*calls)
    assert {answer.status.code for answer in answers} == {0}
    assert len(wired.gate.leases) == 50


def test_an_empty_check_has_no_attributes() -> None:
    assert not CheckRequest().HasField("attributes")


class SlowDisk:
    """Jobs that are written down when the disk is let go."""

    max_body = 1000

    def __init__(self) -> None:
        self.asked: asyncio.Queue[Submission] = asyncio.Queue()
        self.go_on = asyncio.Event()

    async def accept(self, submission: Submission) -> Accepted:
        self.asked.put_nowait(submission)
        await self.go_on.wait()
        job = Job("ab", "", "default", Priority.P1, "POST", submission.path, 1.0, 2.0)
        return Accepted(job)


@pytest.mark.parametrize("prefer", ["respond-async", "respond-async, wait=5"])
async def test_the_bodies_of_jobs_in_memory_are_bounded(
    monkeypatch: pytest.MonkeyPatch, prefer: str
) -> None:
    monkeypatch.setattr(job_intake, "MAX_UNDER_WAY", 250)
    disk, gate = SlowDisk(), FakeGate()
    gate.decide = lambda request: shed(request, ShedReason.DEADLINE)
    _, services = services_of(gate, jobs=cast(JobDesk, disk))
    server = build_grpc_server("127.0.0.1:0", services)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = external_auth_pb2_grpc.AuthorizationStub(channel)

        def check(number: int) -> grpc.aio.UnaryUnaryCall:
            headers = {"prefer": prefer, "content-length": "100"}
            message = check_request(f"uid-{number}", headers)
            message.attributes.request.http.raw_body = bytes(100)
            return stub.Check(message)

        first = [check(1), check(2)]
        async with asyncio.timeout(20):
            await disk.asked.get()
            await disk.asked.get()
            refused = await check(3)
        assert refused.denied_response.status.code == 429
        assert b"overloaded" in refused.denied_response.body.encode()
        disk.go_on.set()
        for call in (*first, check(4)):
            assert (await call).denied_response.status.code == 202
    await server.stop(0)
