"""Jobs from the acceptance to the end, with a real model server and no Envoy between."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from policy_server.core.events import Admitted
from policy_server.core.request import PATH_KEPT, Request
from policy_server.jobs import attempts
from policy_server.jobs.bounds import Bound
from policy_server.jobs.settings import Webhooks
from policy_server.journal.jobs import (
    Accepted,
    Job,
    JobEvent,
    JobRefusal,
    JobState,
    NewJob,
)
from policy_server.journal.jobs_memory import MemoryJobs
from policy_server.journal.port import JournalUnavailableError
from policy_server.journal.sqlite.jobs import SqliteJobs
from policy_server.journal.sqlite.store import Store, StoreOptions
from tests.support.jobs_stage import BadDisk, model_server, ok, running, stage, stored_answer

pytestmark = pytest.mark.usefixtures("quickly")


class Meanwhile(MemoryJobs):
    """A store in which something happens once, right after a history was read."""

    happens: Callable[[], Awaitable[object]] | None = None

    async def history(self, job_id: str) -> list[JobEvent]:
        told = list(await super().history(job_id))
        if (happens := self.happens) is not None:
            self.happens = None
            await happens()
        return told


async def test_what_came_goes_and_what_is_answered_is_kept() -> None:
    headers = (("authorization", "Bearer x"), ("x-two", "1"), ("x-two", "ü"), ("cookie", "c=d"))
    async with stage(ok) as live:
        job = await live.submit("/a%2Fb?q=%20x", headers=headers, body=b"\0\xff")
        assert (await live.ended(job)).state is JobState.DONE
        answer = await stored_answer(live.store, job.id)
        assert answer is not None
        assert (answer.status, answer.body) == (201, b"\0\xff")
        assert ("x-who", "me") in answer.headers
        (request,) = live.seen
        assert request.raw_path == "/a%2Fb?q=%20x"
        assert request.host == "models.example"
        assert request.headers["authorization"] == "Bearer x"
        assert request.headers.getall("x-two") == ["1", "ü"]
        assert "content-type" not in request.headers
        assert live.driver.admission.inflight() == 0
        kept = await live.store.request(job.id)
        assert kept is None


async def test_what_waits_is_small_and_known_as_its_like_on_the_line_are() -> None:
    """A path may have 60,000 characters; a hundred thousand such jobs are allowed."""
    seen: list[Request] = []
    async with stage(ok) as live:
        live.driver.listen(lambda event, _: seen.append(event.request), Admitted)
        job = await live.ended(await live.submit("/v1/ch%61t" + "x" * 7_000 + "?q"))
        assert job.state is JobState.DONE
        assert len(live.seen[0].path) > 7_000
    assert [request.path for request in seen] == [("/v1/chat" + "x" * 50_000)[:PATH_KEPT]]


async def test_who_asks_for_news_after_what_never_was_hears_all() -> None:
    async with stage(ok) as live:
        job = await live.ended(await live.submit())
        heard = [event.state.value async for event in live.jobs.events(job.id, 999) if event]
        assert heard == ["queued", "dispatched", "done"]
        assert [event async for event in live.jobs.events(job.id, 3)] == []


async def test_an_end_between_two_looks_is_told() -> None:
    store = Meanwhile()
    async with stage(ok, store=store) as live:
        live.driver.admission.hold_jobs()
        job = await live.submit()
        store.happens = lambda: live.jobs.cancel(job.id)
        async with asyncio.timeout(10):
            told = [event.state async for event in live.jobs.events(job.id, 0) if event]
        assert told == [JobState.QUEUED, JobState.CANCELLED]


async def test_secrets_are_sealed_while_it_waits() -> None:
    async with stage(ok, seats=1.0) as live:
        live.driver.admission.hold_jobs()
        job = await live.submit(headers=(("authorization", "Bearer x"), ("a", "b")))
        kept = await live.store.request(job.id)
        assert kept is not None
        assert kept.headers == (("a", "b"),)
        assert b"Bearer" not in kept.sealed


async def test_no_key_is_on_the_disk_in_the_open_while_it_waits_or_after(tmp_path: Path) -> None:
    headers = (
        ("ocp-apim-subscription-key", "APIM-SECRET"),
        ("x-amz-security-token", "AMZ-SECRET"),
        ("x-client-credentials", "CRED-SECRET"),
        ("x-password", "PW-SECRET"),
        ("x-hub-signature-256", "SIGN-SECRET"),
        ("x-org", "TENANT-SECRET"),
        ("accept", "in the open"),
    )
    file = Store(StoreOptions(tmp_path / "journal.db"))
    file.open()
    store = SqliteJobs(file)
    async with model_server(ok) as (url, seen):
        async with running(url, store, tenant_header="x-org") as live:
            live.driver.admission.hold_jobs()
            live.jobs._webhooks = Webhooks(lambda *_: True)
            job = await live.submit(
                "/v1/a?key=QUERY-SECRET&x=1",
                headers=headers,
                webhook="https://hooks.example.com/HOOK-SECRET",
            )
            assert job.path == "/v1/a"
            await file.flush()
            waiting = on_disk(tmp_path)
        async with running(url, store, tenant_header="x-org") as live:
            assert (await live.ended(job)).state is JobState.DONE
        (request,) = seen
        assert request.raw_path == "/v1/a?key=QUERY-SECRET&x=1"
        assert [(n, request.headers[n]) for n, _ in headers] == list(headers)
    await file.close()
    assert b"in the open" in waiting, "it looks at the right file"
    assert b"SECRET" not in waiting
    assert b"SECRET" not in on_disk(tmp_path)


def on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


async def test_a_key_is_for_one_request_its_query_and_type_included() -> None:
    async with stage(ok) as live:
        live.driver.admission.hold_jobs()
        kind = (("content-type", "application/json"),)
        first = await live.submit("/v1?a=1", headers=kind, key="k")
        again = await live.jobs.accept(live.submission("/v1?a=1", headers=kind, key="k"))
        assert isinstance(again, Accepted)
        assert (again.job.id, again.existing) == (first.id, True)
        for path, headers, body in (
            ("/v1?a=2", kind, b"body"),
            ("/v1", kind, b"body"),
            ("/v1?a=1", (("content-type", "text/plain"),), b"body"),
            ("/v1?a=1", kind, b"other"),
        ):
            other = live.submission(path, headers=headers, body=body, key="k")
            assert await live.jobs.accept(other) is JobRefusal.KEY_CLASH


async def test_what_has_ended_is_forgotten_when_it_is_too_much() -> None:
    async def large(_: web.Request) -> web.Response:
        return web.Response(body=bytes(100_000))

    async with stage(large, max_result_bytes=350_000) as live:
        jobs = [await live.submit() for _ in range(5)]
        for job in jobs:
            await live.ended(job)
        assert live.jobs.ended_bytes() > 500_000
        await live.jobs.forget(lambda _: time.time(), old=False)
        assert live.jobs.ended_bytes() <= 350_000
        left = await live.store.listed(None, 9)
        assert [job.id for job in left] == [job.id for job in reversed(jobs[2:])]


async def test_the_webhooks_hear_of_an_end_at_once() -> None:
    rung: list[int] = []
    async with model_server(ok) as (url, _), running(url) as live:
        live.jobs._webhooks = Webhooks(lambda *_: True, lambda: rung.append(1))
        await live.ended(await live.submit(webhook="https://h/"))
        assert rung == [1]
        await live.ended(await live.submit())
        assert rung == [1], "nobody waits for this one's"


async def test_another_key_takes_up_nothing_before_the_secrets_are_given_up() -> None:
    store = MemoryJobs()
    async with model_server(ok) as (url, seen):
        async with running(url, store) as first:
            first.driver.admission.hold_jobs()
            job = await first.submit(headers=(("authorization", "Bearer x"),))
        async with running(url, store, key=b"\1" * 32) as other:
            assert "another key has sealed than this server's (1 of them)" in (
                other.jobs.problem or ""
            )
            assert await other.jobs.accept(other.submission()) is JobRefusal.UNAVAILABLE
        assert (await store.get(job.id)) == job
        async with running(url, store, key=b"\1" * 32, key_lost=True) as other:
            assert other.jobs.problem is None
            assert (await other.ended(job)).state is JobState.FAILED
            other.count = 1  # another request
            assert (await other.ended(await other.submit())).state is JobState.DONE
    assert len(seen) == 1


async def test_one_seat_one_job_at_a_time_in_order() -> None:
    order: list[bytes] = []
    running_now = 0

    async def slow(request: web.Request) -> web.Response:
        nonlocal running_now
        running_now += 1
        assert running_now == 1
        order.append(await request.read())
        await asyncio.sleep(0.005)
        running_now -= 1
        return web.Response()

    async with stage(slow) as live:
        jobs = [await live.submit(body=str(i).encode()) for i in range(10)]
        for job in jobs:
            assert (await live.ended(job)).state is JobState.DONE
    assert order == [str(i).encode() for i in range(10)]


async def test_an_answer_that_breaks_off_is_asked_for_again() -> None:
    async def breaks(request: web.Request) -> web.StreamResponse:
        if len(live.seen) < 3:
            response = web.StreamResponse(headers={"content-length": "100"})
            await response.prepare(request)
            await response.write(b"half")
            assert request.transport is not None
            request.transport.close()
            return response
        return web.Response(body=b"whole")

    async with stage(breaks) as live:
        job = await live.ended(await live.submit())
        answer = await stored_answer(live.store, job.id)
        assert (job.state, job.attempt, job.failures) == (JobState.DONE, 3, 2)
        assert answer is not None
        assert answer.body == b"whole"


async def test_envoys_own_answer_is_no_answer() -> None:
    async def local(_: web.Request) -> web.Response:
        if len(live.seen) < 3:
            return web.Response(status=503, headers={"x-policy-local": "true"})
        return web.Response()

    async with stage(local) as live:
        job = await live.ended(await live.submit())
        assert (job.state, job.status, job.failures) == (JobState.DONE, 200, 0)


async def test_the_last_failure_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "MAX_FAILURES", 3)

    async def fails(_: web.Request) -> web.Response:
        return web.Response(status=500, text="sorry")

    async with stage(fails) as live:
        job = await live.ended(await live.submit())
        assert (job.state, job.status, job.attempt) == (JobState.FAILED, 500, 3)
        answer = await stored_answer(live.store, job.id)
        assert answer is not None
        assert answer.body == b"sorry"


async def test_what_an_earlier_process_left_is_taken_up_in_order() -> None:
    order: list[bytes] = []

    async def note(request: web.Request) -> web.Response:
        order.append(await request.read())
        return web.Response()

    async with model_server(note) as (url, _):
        async with running(url) as first:
            first.driver.admission.hold_jobs()
            jobs = [await first.submit(body=str(i).encode()) for i in range(5)]
        async with running(url, store=first.store.reopen()) as second:
            for job in jobs:
                assert (await second.ended(job)).state is JobState.DONE
    assert order == [str(i).encode() for i in range(5)]


async def test_a_job_on_its_way_at_the_end_runs_again() -> None:
    arrived, go = asyncio.Event(), asyncio.Event()

    async def hold(_: web.Request) -> web.Response:
        arrived.set()
        await go.wait()
        return web.Response()

    async with model_server(hold) as (url, seen):
        async with running(url) as first:
            job = await first.submit()
            await arrived.wait()
        go.set()
        async with running(url, store=first.store.reopen()) as second:
            ended = await second.ended(job)
    assert (ended.state, ended.attempt, len(seen)) == (JobState.DONE, 2, 2)


async def test_a_job_never_outlives_its_token() -> None:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": time.time() + 100}).encode()).decode()
    token = (("authorization", f"Bearer e30.{claims.rstrip('=')}.x"),)
    async with stage(ok) as live:
        job = await live.submit(headers=token)
        assert job.expires_at - job.created_at < 101
        gone = (("authorization", "Bearer e30.eyJleHAiOiAxfQ.x"),)
        refused = await live.jobs.accept(live.submission(headers=gone))
        assert refused is JobRefusal.TOKEN_EXPIRED


async def test_what_waits_too_long_expires_and_what_is_old_is_forgotten() -> None:
    async with stage(ok, result_ttl_s=50.0) as live:
        told: list[Job] = []
        live.jobs.ended = told.append
        live.driver.admission.hold_jobs()
        job = await live.submit()
        await live.jobs.expire(lambda _: job.expires_at - 1)
        await live.jobs.forget(lambda _: job.expires_at - 1, old=True)
        assert live.driver.admission.jobs_waiting() == 1
        await live.jobs.expire(lambda _: job.expires_at)
        assert live.driver.admission.jobs_waiting() == 0
        found = await live.store.get(job.id)
        assert found is not None
        assert found.state is JobState.EXPIRED
        assert [(one.id, one.state) for one in told] == [(job.id, JobState.EXPIRED)]
        await live.jobs.expire(lambda _: job.expires_at + 51)
        await live.jobs.forget(lambda _: job.expires_at + 51, old=True)
        assert await live.store.get(job.id) is None


async def test_a_disk_in_trouble_accepts_nothing_and_loses_no_end() -> None:
    store = BadDisk()
    arrived, go = asyncio.Event(), asyncio.Event()

    async def hold(_: web.Request) -> web.Response:
        arrived.set()
        await go.wait()
        return web.Response()

    async with stage(hold, store=store) as live:
        job = await live.submit()
        waiting = await live.submit()
        await arrived.wait()
        store.down = True
        go.set()
        assert await live.jobs.accept(live.submission()) is JobRefusal.UNAVAILABLE
        await asyncio.sleep(0)
        store.down = False
        for one in (job, waiting):
            assert (await live.ended(one)).state is JobState.DONE
        assert len(live.seen) == 2


class SlowDisk(MemoryJobs):
    """Takes its time to say that it has a job."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def accept(self, new: NewJob) -> Accepted:
        accepted = await super().accept(new)
        await self.go.wait()
        return accepted


async def test_a_job_whose_client_leaves_while_it_is_written_down_runs() -> None:
    store = SlowDisk()
    async with stage(ok, store=store) as live:
        handing_in = asyncio.create_task(live.jobs.accept(live.submission()))
        async with asyncio.timeout(10):
            while not sum(store.counts().values()):  # noqa: ASYNC110
                await asyncio.sleep(0)
        handing_in.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await handing_in
        store.go.set()
        (job,) = await store.listed(None, 10)
        assert (await live.ended(job)).state is JobState.DONE


def rule(jobs: int = 1_000, size: int = 1_000) -> dict[str, Bound]:
    return {"bound": Bound(1_000, 1_000_000), "tenant_bound": Bound(jobs, size)}


async def test_a_tenant_may_have_so_many_jobs_open() -> None:
    async with stage(ok, **rule(jobs=2)) as live:
        live.driver.admission.hold_jobs()
        first, _ = [await live.submit(key=f"k{n}") for n in range(2)]
        third = live.submission(key="k2")
        assert await live.jobs.accept(third) is JobRefusal.TENANT_LIMIT
        again = await live.jobs.accept(live.submission(key="k0"))
        assert isinstance(again, Accepted), "who has its 202 already is no new job"
        assert again.job.id == first.id
        clash = await live.jobs.accept(live.submission(key="k0", body=b"other"))
        assert clash is JobRefusal.KEY_CLASH
        nobodys = replace(third, request=replace(third.request, tenant="", uid="nobody"))
        assert isinstance(await live.jobs.accept(nobodys), Accepted)
        await live.jobs.cancel(first.id)
        assert isinstance(await live.jobs.accept(third), Accepted)


async def test_the_bodies_of_a_tenant_are_bounded() -> None:
    async with stage(ok, **rule(size=10)) as live:
        live.driver.admission.hold_jobs()
        await live.submit(body=b"x" * 7)
        refused = await live.jobs.accept(live.submission(body=b"x" * 4))
        assert refused is JobRefusal.TENANT_LIMIT
        await live.submit(body=b"x" * 3)


@pytest.mark.parametrize(
    "large",
    [{"headers": (("x", "x" * 50_000),)}, {"path": "/" + "x" * 50_000}],
    ids=["head", "path"],
)
async def test_large_heads_count_as_bodies_do(large: dict[str, Any]) -> None:
    async with stage(ok, **rule(size=100_000)) as live:
        live.driver.admission.hold_jobs()
        for _ in range(50):
            await live.submit(headers=(("x", "x" * 2_000),))
        for _ in range(2):
            await live.submit(**large)
        refused = await live.jobs.accept(live.submission(**large))
        assert refused is JobRefusal.TENANT_LIMIT


async def test_one_job_always_fits() -> None:
    async with stage(ok, **rule(size=10)) as live:
        live.driver.admission.hold_jobs()
        job = await live.submit(body=b"x" * 11)
        refused = await live.jobs.accept(live.submission(body=b"x"))
        assert refused is JobRefusal.TENANT_LIMIT
        await live.jobs.cancel(job.id)
        await live.submit(body=b"x" * 11)


async def test_all_jobs_together_are_bounded_also_over_a_restart() -> None:
    bound = {"bound": Bound(2, 1_000)}
    async with model_server(ok) as (url, _):
        async with running(url, **bound) as first:
            first.driver.admission.hold_jobs()
            for _ in range(2):
                await first.submit()
            assert await first.jobs.accept(first.submission()) is JobRefusal.FULL
        async with running(url, store=first.store.reopen(), **bound) as second:
            second.count = 10
            for job in await second.store.listed(None, 10):
                await second.ended(job)
            for _ in range(2):  # as many as have ended
                await second.submit()


class SlowToTell(MemoryJobs):
    """A store that can't say at first what is open; `happens` while it does."""

    down = True
    happens: Callable[[], Awaitable[object]] | None = None

    async def unfinished(self) -> AsyncIterator[Sequence[Job]]:
        if self.down:
            raise JournalUnavailableError("full")
        async for batch in super().unfinished():
            if self.happens is not None:
                await self.happens()
            yield batch


async def test_what_ends_before_it_is_taken_up_takes_no_place_of_others() -> None:
    store = SlowToTell()
    bound = {"bound": Bound(1, 1_000)}
    async with model_server(ok) as (url, _):
        async with running(url) as first:
            first.driver.admission.hold_jobs()
            jobs = [await first.submit() for _ in range(2)]
        store.__dict__.update(vars(first.store.reopen()))
        async with running(url, store=store, **bound) as second:
            second.driver.admission.hold_jobs()
            assert await second.jobs.cancel(jobs[0].id) is not None, "nothing is taken up yet"
            store.down, store.happens = False, lambda: second.jobs.cancel(jobs[1].id)
            assert await second.jobs.restore()
            second.count = 10
            await second.submit()
            assert await second.jobs.accept(second.submission()) is JobRefusal.FULL


async def test_jobs_that_come_at_once_pass_no_bound() -> None:
    async with stage(ok, bound=Bound(3, 1_000)) as live:
        live.driver.admission.hold_jobs()
        asked = [live.jobs.accept(live.submission()) for _ in range(10)]
        said = await asyncio.gather(*asked)
        assert said.count(JobRefusal.FULL) == 7


async def test_what_the_disk_refused_counts_for_nothing() -> None:
    store = BadDisk()
    async with stage(ok, store=store, bound=Bound(1, 1_000)) as live:
        live.driver.admission.hold_jobs()
        store.down = True
        for _ in range(3):
            assert await live.jobs.accept(live.submission()) is JobRefusal.UNAVAILABLE
        store.down = False
        await live.submit()


async def test_a_key_that_is_not_ours_fails_the_job_with_the_reason() -> None:
    async with model_server(ok) as (url, seen):
        async with running(url) as first:
            first.driver.admission.hold_jobs()
            job = await first.submit(headers=(("authorization", "x"),))
        kept = first.store._kept[job.id]
        assert kept.request is not None
        kept.request = replace(kept.request, sealed=b"x" * 40)
        async with running(url, store=first.store.reopen()) as second:
            ended = await second.ended(job)
    assert ended.state is JobState.FAILED
    assert "key" in ended.detail
    assert seen == []


async def test_what_can_not_be_sent_fails_and_stops_nobody() -> None:
    async with stage(ok) as live:
        job = await live.submit(headers=(("a", "x\ny"),))
        ended = await live.ended(job)
        assert ended.state is JobState.FAILED
        assert "can't be sent" in ended.detail
        assert (await live.ended(await live.submit())).state is JobState.DONE


async def test_without_an_envoy_the_status_says_so() -> None:
    async with running("http://127.0.0.1:9") as live:
        await live.submit()
        async with asyncio.timeout(10):
            while live.jobs.problem is None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert "jobs.via" in live.jobs.problem


async def test_a_mistake_of_ours_strands_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    async with stage(ok) as live:
        sender = live.jobs._dispatcher._t.courier.sender
        send = sender.send

        async def once_broken(parcel: Any, share: Any) -> Any:
            monkeypatch.setattr(sender, "send", send)
            raise KeyError("a bug")

        monkeypatch.setattr(sender, "send", once_broken)
        ended = await live.ended(await live.submit())
    assert (ended.state, ended.attempt) == (JobState.DONE, 2)
    assert [type(context["exception"]) for context in said] == [KeyError]


@pytest.mark.parametrize(
    "other",
    [
        {"path": "/other"},
        {"path": "/ok?x=1"},
        {"body": b"other"},
        {"headers": (("content-type", "text/plain"),)},
    ],
)
async def test_a_key_stands_for_one_request(other: dict[str, Any]) -> None:
    json_type = (("content-type", "application/json"),)
    async with stage(ok) as live:
        live.driver.pause_jobs()
        job = await live.submit(key="k", headers=json_type)
        same = live.submission(key="k", headers=(*json_type, ("x-request-id", "2")))
        again = await live.jobs.accept(same)
        assert isinstance(again, Accepted)
        assert (again.existing, again.job.id) == (True, job.id)
        clash = live.submission(**{"key": "k", "headers": json_type, **other})
        assert await live.jobs.accept(clash) is JobRefusal.KEY_CLASH
