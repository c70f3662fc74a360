"""What is sent is what came, and what is kept is what was answered."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import pytest
from aiohttp import web

from policy_server.config_jobs import PASSPORT_HEADER
from policy_server.jobs import attempts, dispatcher, sender
from policy_server.jobs.delivery import answered
from policy_server.jobs.sender import Delivery, Parcel, Sender
from policy_server.journal.jobs import JobState
from policy_server.memory import Memory, Share
from tests.support.jobs_stage import Handler, model_server, running, stage, stored_answer, until

pytestmark = pytest.mark.usefixtures("quickly")


async def sent(handler: Handler) -> Delivery:
    async with model_server(handler) as (url, _):
        one = Sender(url)
        try:
            with Memory(2**26).share() as share:
                return await one.send(Parcel("POST", "/x", "models.example", (), b"body"), share)
        finally:
            await one.close()


@pytest.mark.parametrize(
    ("target", "goes_as"),
    [
        ("/v1/chat?", "/v1/chat"),
        ("/v1/chat?a=1&", "/v1/chat?a=1&"),
        ("/v1/chat??", "/v1/chat??"),
        ("/v1/chat?q=ä#part", "/v1/chat?q=%C3%A4"),
        ("//v1/a/../b%2Fc", "//v1/a/../b%2Fc"),
    ],
)
async def test_the_passport_is_for_what_goes_over_the_wire(target: str, goes_as: str) -> None:
    """Else the gate would refuse the job, again and again, to the end of its time."""
    async with stage(answering(200)) as live:
        job = await live.ended(await live.submit(target))
        assert job.state is JobState.DONE
        (seen,) = live.seen
        assert seen.raw_path == goes_as
        passport = seen.headers[PASSPORT_HEADER]
        assert live.jobs.holder(passport, seen.method, seen.raw_path) is not None


async def test_what_is_no_path_leads_nowhere() -> None:
    async with stage(answering(200)) as live:
        for target in ("@elsewhere.example/x", "http://elsewhere.example/x", ""):
            job = await live.ended(await live.submit(target))
            assert (job.state, job.attempt) == (JobState.FAILED, 0)
            assert "can't be sent" in job.detail
        assert not live.seen


async def test_what_envoy_refuses_as_it_is_is_not_asked_for_ever() -> None:
    """Whatever the two listeners come to disagree about."""
    refusing = answering(431, headers={"x-policy-local": "-"})
    async with stage(refusing) as live:
        job = await live.ended(await live.submit())
        assert (job.state, len(live.seen)) == (JobState.FAILED, attempts.MAX_FAILURES)
        assert "431" in job.detail


def answering(status: int = 200, **more: Any) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, **more)

    return answer


async def test_a_packed_answer_stays_packed() -> None:
    packed = gzip.compress(b"answer")
    got = await sent(answering(body=packed, headers={"content-encoding": "gzip"}))
    assert got.answer.body == packed
    assert ("content-encoding", "gzip") in got.answer.headers


async def test_a_redirect_is_an_answer_and_not_followed() -> None:
    async with stage(answering(307, headers={"location": "/elsewhere"})) as live:
        job = await live.ended(await live.submit())
        assert (job.state, job.status) == (JobState.DONE, 307)
        assert [request.path for request in live.seen] == ["/ok"]


async def test_what_belongs_to_the_connection_or_to_us_is_not_kept() -> None:
    theirs = {"x-policy-class": "P0", "x-own": "1", "keep-alive": "timeout=5", "upgrade": "h2c"}
    got = await sent(answering(headers=theirs))
    names = {name for name, _ in got.answer.headers}
    assert "x-own" in names
    assert not names & {"x-policy-class", "keep-alive", "upgrade", "connection"}


async def test_an_answer_is_kept_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "MAX_JOB_ANSWER_BYTES", 1000)
    async with stage(answering(body=b"x" * 1001)) as live:
        job = await live.ended(await live.submit())
        assert (job.state, len(live.seen)) == (JobState.FAILED, 1)
        assert "larger" in job.detail
    got = await sent(answering(body=b"x" * 1000))
    assert len(got.answer.body) == 1000


async def test_many_large_answers_come_in_one_after_the_other_when_memory_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size, at_once, most = 2 * 1024 * 1024, 8, 0
    bound = 3 * size
    monkeypatch.setattr(dispatcher, "MAX_ON_THE_WAY", bound)
    async with stage(answering(body=bytes(size)), seats=float(at_once)) as live:
        memory = live.jobs._dispatcher._memory
        grow = memory._grow

        async def measured(share: Share, more: int) -> bool:
            nonlocal most
            waited = await grow(share, more)
            most = max(most, memory.used)
            return waited

        monkeypatch.setattr(memory, "_grow", measured)
        jobs = [await live.submit() for _ in range(40)]
        for job in jobs:
            assert (await live.ended(job)).state is JobState.DONE
            answer = await stored_answer(live.store, job.id)
            assert len(answer.body) == size
        assert bound - size < most <= bound + size + 40 * len(b"body")
        await until(lambda: memory.used == 0)


async def test_the_time_of_an_answer_that_waited_for_memory_tells_nothing() -> None:
    async with model_server(answering(body=bytes(100_000))) as (url, _):
        one, memory = Sender(url), Memory(1000)
        with memory.share() as share:
            with memory.share() as other:
                await other.grow(2000)  # over, until it leaves
                sending = asyncio.create_task(
                    one.send(Parcel("POST", "/x", "models.example", (), b""), share)
                )
                await until(lambda: memory._waiting)
            delivery = await sending
        await one.close()
    assert delivery.held_back
    completion = answered(delivery).completion
    assert (completion.status, completion.last_byte_s, completion.timed_here) == (200, None, False)


@pytest.mark.parametrize(
    ("flags", "reached"),
    [
        (None, True),
        ("-", False),
        ("UF,URX", False),
        ("UH", False),
        ("UC", True),
        ("UT", True),
        ("URX,UC", True),
        ("true", False),
    ],
)
async def test_envoys_flags_say_whether_a_model_server_was_reached(
    flags: str | None, reached: bool
) -> None:
    headers = {} if flags is None else {"x-policy-local": flags}
    got = await sent(answering(503, headers=headers))
    assert (got.flags, got.reached) == (flags, reached)


async def test_a_gateway_behind_ours_is_a_model_server_to_us() -> None:
    headers = {"retry-after": "300", "x-policy-reason": "predicted_wait"}
    async with stage(answering(429, headers=headers)) as live:
        job = await live.submit()
        async for event in live.jobs.events(job.id, 2):
            assert event is not None
            assert "again in 300.0 s" in event.detail
            break
        found = await live.store.get(job.id)
        assert (found.failures, len(live.seen)) == (1, 1)


async def crash(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def cut(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-length": "100"})
    await response.prepare(request)
    await response.write(b"half")
    return await crash(request)


async def silent(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    return web.Response()


@pytest.mark.parametrize("handler", [crash, cut, silent, answering(headers={"x": "a" * 70_000})])
async def test_whoever_breaks_its_model_server_is_tried_so_often_and_no_oftener(
    handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "MAX_FAILURES", 3)
    monkeypatch.setattr(sender, "SILENT_S", 0.05)
    async with stage(handler) as live:
        job = await live.ended(await live.submit())
        assert (job.state, len(live.seen)) == (JobState.FAILED, 3)
        assert "no answer" in job.detail


async def test_who_is_not_reached_is_tried_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "MAX_FAILURES", 3)
    async with running("http://127.0.0.1:9") as live:
        job = await live.submit()
        async for event in live.jobs.events(job.id, 9):
            if event is not None:
                break
        found = await live.store.get(job.id)
        assert (found.state.ended, found.failures) == (False, 0)
