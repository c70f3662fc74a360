"""What every store of jobs promises; each case runs against each implementation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from policy_server.core.request import Priority
from policy_server.journal.jobs import (
    MAX_EVENTS,
    PATH_SHOWN,
    RECORD_BYTES,
    Answer,
    Ending,
    Job,
    JobRequest,
    JobState,
    JobStore,
    KeyClashError,
    NewJob,
    Note,
)
from tests.support.jobs_stage import stored_answer
from tests.unit.journal.jobs_harness import HARNESSES, JobsHarness

ANSWER = Answer(200, (("content-type", "x"), ("set-cookie", "a"), ("set-cookie", "b")), b"\0\xff")


@pytest_asyncio.fixture(params=HARNESSES)
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[JobsHarness]:
    async with HARNESSES[request.param](tmp_path) as harness:
        yield harness


@pytest.fixture
def store(harness: JobsHarness) -> JobStore:
    return harness.store


def new(number: int, *, key: str = "", tenant: str = "acme", **facts: object) -> NewJob:
    job = Job(
        id=f"{number:032x}",
        tenant=tenant,
        pool="chat",
        priority=Priority.P2,
        method="POST",
        path="/v1/chat/ä",
        created_at=100.0 + number,
        expires_at=1_000.0 + number,
        changed_at=100.0 + number,
        seats=2,
        prompt_tokens=7,
        max_tokens=9,
        model="llama",
        streamed=True,
        body_bytes=3,
        webhook="",
        owner=tenant,
    )
    job = replace(job, **facts)  # type: ignore[arg-type]
    content = JobRequest("host:1", (("a", "1"), ("a", "ü")), b"sealed", b"\0\xff" + bytes([number]))
    return NewJob(job, content, f"uid-{number}", key, b"digest")


async def filled(store: JobStore, count: int, **facts: object) -> list[Job]:
    return [(await store.accept(new(i, **facts))).job for i in range(count)]  # type: ignore[arg-type]


async def unfinished(store: JobStore) -> list[Job]:
    return [job async for batch in store.unfinished() for job in batch]


async def test_an_accepted_job_is_kept_whole(harness: JobsHarness) -> None:
    given = new(5)
    accepted = await harness.store.accept(given)
    assert (accepted.job, accepted.existing) == (given.job, False)
    for _ in range(2):
        assert await harness.store.get(given.job.id) == given.job
        assert await harness.store.request(given.job.id) == given.request
        assert await stored_answer(harness.store, given.job.id) is None
        await harness.restart()


async def test_what_is_unknown_is_none(store: JobStore) -> None:
    assert await store.get("x") is None
    assert await store.request("x") is None
    assert await stored_answer(store, "x") is None
    assert await store.answer_part("x", 0, 9) is None
    assert await store.history("x") == []
    assert await store.finish(Ending("x", JobState.DONE, 1.0)) is None
    store.note(Note("x", JobState.DISPATCHED, 1.0, 1))
    await store.webhook_tried("x", 1, None)


async def test_a_key_and_a_uid_name_one_job(harness: JobsHarness) -> None:
    first = (await harness.store.accept(new(1, key="k"))).job
    await harness.restart()
    again = await harness.store.accept(replace(new(2, key="k"), digest=b"digest"))
    assert (again.job, again.existing) == (first, True)
    with pytest.raises(KeyClashError):
        await harness.store.accept(replace(new(3, key="k"), digest=b"other"))
    resent = await harness.store.accept(replace(new(4), uid="uid-1"))
    assert (resent.job, resent.existing) == (first, True)
    other = await harness.store.accept(new(5, key="k", tenant="b"))
    assert not other.existing
    assert await harness.store.get(new(2).job.id) is None
    assert sum(harness.store.counts().values()) == 2


async def test_many_at_once_with_one_key_are_one_job(store: JobStore) -> None:
    accepted = await asyncio.gather(*(store.accept(new(i, key="k")) for i in range(20)))
    assert len({one.job.id for one in accepted}) == 1
    assert sum(not one.existing for one in accepted) == 1


async def test_jobs_that_have_not_ended_come_back_in_order(harness: JobsHarness) -> None:
    jobs = await filled(harness.store, 30)
    await harness.store.finish(Ending(jobs[3].id, JobState.DONE, 200.0, answer=ANSWER))
    harness.store.note(Note(jobs[4].id, JobState.DISPATCHED, 200.0, 1))
    harness.store.note(Note(jobs[5].id, JobState.DISPATCHED, 200.0, 1))
    harness.store.note(Note(jobs[5].id, JobState.QUEUED, 201.0, 1, 1, 205.0, "503"))
    await harness.restart()
    found = await unfinished(harness.store)
    assert [job.id for job in found] == [job.id for job in jobs if job.id != jobs[3].id]
    assert found[3] == replace(jobs[4], state=JobState.DISPATCHED, changed_at=200.0, attempt=1)
    assert found[4] == replace(
        jobs[5], changed_at=201.0, attempt=1, failures=1, not_before=205.0, detail="503"
    )


async def test_the_end_keeps_the_answer_and_drops_request_and_secrets(
    harness: JobsHarness,
) -> None:
    (job,) = await filled(harness.store, 1)
    ended = await harness.store.finish(Ending(job.id, JobState.DONE, 300.0, "ok", ANSWER))
    assert ended == replace(job, state=JobState.DONE, changed_at=300.0, detail="ok", status=200)
    for _ in range(2):
        assert await harness.store.get(job.id) == ended
        assert await stored_answer(harness.store, job.id) == ANSWER
        assert await harness.store.request(job.id) is None
        await harness.restart()


async def test_the_first_end_stands(store: JobStore) -> None:
    (job,) = await filled(store, 1)
    assert await store.finish(Ending(job.id, JobState.CANCELLED, 300.0)) is not None
    assert await store.finish(Ending(job.id, JobState.DONE, 301.0, answer=ANSWER)) is None
    store.note(Note(job.id, JobState.QUEUED, 302.0, 1))
    assert await stored_answer(store, job.id) is None
    assert await store.answer_part(job.id, 0, 9) is None
    assert (await store.history(job.id))[-1].state is JobState.CANCELLED


async def test_the_history_tells_all_in_order(harness: JobsHarness) -> None:
    (job,) = await filled(harness.store, 1)
    harness.store.note(Note(job.id, JobState.DISPATCHED, 200.0, 1))
    harness.store.note(Note(job.id, JobState.QUEUED, 201.0, 1, 1, 205.0, "503"))
    await harness.store.finish(Ending(job.id, JobState.FAILED, 300.0, "no"))
    await harness.restart()
    told = [(e.number, e.state, e.at, e.detail) for e in await harness.store.history(job.id)]
    assert told == [
        (1, JobState.QUEUED, 100.0, ""),
        (2, JobState.DISPATCHED, 200.0, ""),
        (3, JobState.QUEUED, 201.0, "503"),
        (4, JobState.FAILED, 300.0, "no"),
    ]


async def test_a_tenants_newest_jobs(store: JobStore) -> None:
    mine = await filled(store, 5)
    other = (await store.accept(new(50, tenant="b"))).job
    assert await store.listed("acme", 3) == [mine[4], mine[3], mine[2]]
    assert await store.listed("b", 3) == [other]
    assert await store.listed("", 3) == []
    assert await store.listed(None, 2) == [other, mine[4]]
    long = (await store.accept(new(77, tenant="long", path="/" + "ä" * 50_000))).job
    (listed,) = await store.listed("long", 3)
    assert listed == replace(long, path=long.path[:PATH_SHOWN])
    assert await store.get(long.id) == long


async def test_what_is_overdue(store: JobStore) -> None:
    jobs = await filled(store, 4)
    await store.finish(Ending(jobs[0].id, JobState.DONE, 300.0))
    assert await store.overdue(1_002.0, 10) == [jobs[1].id, jobs[2].id]
    assert await store.overdue(1_002.0, 1) == [jobs[1].id]
    assert await store.overdue(999.0, 10) == []
    store.note(Note(jobs[1].id, JobState.DISPATCHED, 400.0, 1, 0))
    await store.finish(Ending(jobs[3].id, JobState.DONE, 400.0))  # the disk has both now
    assert await store.overdue(1_002.0, 1) == [jobs[2].id]  # one on its way is in nobody's way


async def test_what_has_ended_long_ago_is_forgotten_with_its_key(harness: JobsHarness) -> None:
    store = harness.store
    job = (await store.accept(new(1, key="k"))).job
    waits = (await store.accept(new(2))).job
    await store.finish(Ending(job.id, JobState.DONE, 300.0, answer=ANSWER))
    assert await store.purge(300.0, 10) == 0
    assert await store.purge(301.0, 10) == 1
    assert await store.get(job.id) is None
    assert await stored_answer(store, job.id) is None
    assert await store.history(job.id) == []
    assert await store.get(waits.id) == waits
    await harness.restart()
    assert not (await harness.store.accept(new(3, key="k"))).existing
    assert not (await harness.store.accept(replace(new(4), uid="uid-1"))).existing


async def test_ends_are_to_be_told_until_they_are(harness: JobsHarness) -> None:
    silent = (await harness.store.accept(new(0))).job
    jobs = [(await harness.store.accept(new(i, webhook="https://h/"))).job for i in (1, 2)]
    assert await harness.store.due_webhooks(1e9, 10) == []
    for number, job in enumerate((silent, *jobs)):
        await harness.store.finish(Ending(job.id, JobState.DONE, 300.0 + number))
    await harness.restart()
    due = await harness.store.due_webhooks(301.0, 10)
    assert [(one.job.id, one.tries) for one in due] == [(jobs[0].id, 0)]
    await harness.store.webhook_tried(jobs[0].id, 1, 400.0)
    assert [one.job.id for one in await harness.store.due_webhooks(399.0, 10)] == [jobs[1].id]
    await harness.restart()
    due = await harness.store.due_webhooks(400.0, 1)
    assert [(one.job.id, one.tries) for one in due] == [(jobs[1].id, 0)]
    await harness.store.webhook_tried(jobs[1].id, 1, None)
    due = await harness.store.due_webhooks(400.0, 10)
    assert [(one.job.id, one.tries) for one in due] == [(jobs[0].id, 1)]
    told = await harness.store.get(jobs[1].id)
    assert told is not None
    assert told.webhook == "", "its secret is of no use any more"


async def test_ends_of_those_that_are_taken_are_left_and_can_be_put_off(
    harness: JobsHarness,
) -> None:
    store = harness.store
    urls = ("https://a/", "https://b/", "https://a/")
    jobs = [
        (await store.accept(new(i, webhook=url, tenant=f"t{i}"))).job for i, url in enumerate(urls)
    ]
    for job in jobs:
        await store.finish(Ending(job.id, JobState.DONE, 300.0))

    def of_a(_id: str, _owner: str, url: str) -> bool:
        return url == "https://a/"

    assert [one.job.id for one in await store.due_webhooks(300.0, 10, of_a)] == [jobs[1].id]
    free = await store.due_webhooks(300.0, 10, lambda i, owner, _: (i, owner) == (jobs[0].id, "t0"))
    assert [one.job.id for one in free] == [jobs[1].id, jobs[2].id]
    await store.webhooks_wait(300.0, 400.0, of_a)
    await harness.restart()
    store = harness.store
    assert [one.job.id for one in await store.due_webhooks(399.0, 10)] == [jobs[1].id]
    assert len(await store.due_webhooks(400.0, 10)) == 3


async def test_the_counts_follow(harness: JobsHarness) -> None:
    jobs = await filled(harness.store, 6)
    harness.store.note(Note(jobs[0].id, JobState.DISPATCHED, 200.0, 1))
    ends = (JobState.DONE, JobState.FAILED, JobState.EXPIRED)
    for job, state in zip(jobs[1:4], ends, strict=True):
        await harness.store.finish(Ending(job.id, state, 300.0))
    await harness.store.finish(Ending(jobs[1].id, JobState.CANCELLED, 300.0))
    expected = {
        JobState.QUEUED: 2,
        JobState.DISPATCHED: 1,
        JobState.DONE: 1,
        JobState.FAILED: 1,
        JobState.CANCELLED: 0,
        JobState.EXPIRED: 1,
    }
    assert dict(harness.store.counts()) == expected
    await harness.restart()
    assert dict(harness.store.counts()) == expected
    await harness.store.purge(1_000.0, 10)
    assert sum(harness.store.counts().values()) == 3


async def test_what_is_known_is_found_without_accepting_it(store: JobStore) -> None:
    assert await store.known(new(1, key="k")) is None
    first = await store.accept(new(1, key="k"))
    for again in (new(1), replace(new(2, key="k"))):  # the same uid, the same key
        found = await store.known(again)
        assert found is not None
        assert (found.job.id, found.existing) == (first.job.id, True)
    with pytest.raises(KeyClashError):
        await store.known(replace(new(2, key="k"), digest=b"other"))
    assert await store.known(new(2, key="k", tenant="b")) is None
    assert await store.known(new(3)) is None
    assert sum(store.counts().values()) == 1


async def test_jobs_belong_to_their_owner_whoever_shares_its_turn(store: JobStore) -> None:
    mine = (await store.accept(new(1, key="k", tenant="(unknown)", owner="a"))).job
    other = await store.accept(new(2, key="k", tenant="(unknown)", owner="b"))
    assert not other.existing
    assert await store.listed("a", 9) == [mine]
    assert await store.listed("(unknown)", 9) == []
    assert await store.known(new(3, key="k", tenant="(unknown)", owner="c")) is None


async def test_a_history_is_bounded_and_tells_the_end(harness: JobsHarness) -> None:
    (job,) = await filled(harness.store, 1)
    for number in range(1, 3 * MAX_EVENTS):
        state = JobState.DISPATCHED if number % 2 else JobState.QUEUED
        harness.store.note(Note(job.id, state, 200.0 + number, number, detail="no Envoy"))
    await harness.store.finish(Ending(job.id, JobState.DONE, 900.0, "ok"))
    await harness.restart()
    told = await harness.store.history(job.id)
    assert len(told) == MAX_EVENTS + 2, "the acceptance, the moves, the end"
    assert [event.number for event in told] == list(range(1, MAX_EVENTS + 3))
    assert (told[-1].state, told[-1].at) == (JobState.DONE, 900.0)
    record = await harness.store.get(job.id)
    assert record is not None
    assert record.attempt == 3 * MAX_EVENTS - 1


async def test_answers_that_are_too_much_are_forgotten_of_who_keeps_the_most(
    harness: JobsHarness,
) -> None:
    answer = Answer(200, (), bytes(10_000))
    one = RECORD_BYTES + 10_000
    for number, tenant in enumerate("aaaaaaaabb"):
        job = (await harness.store.accept(new(number, tenant=tenant))).job
        await harness.store.finish(Ending(job.id, JobState.DONE, 300.0 + number, answer=answer))
    waits = (await harness.store.accept(new(50, tenant="a"))).job
    await harness.restart()
    store = harness.store
    assert store.ended_bytes() == 10 * one
    assert await store.shrink(10 * one, 100) == 0
    assert await store.shrink(6 * one, 3) == 3, "no more than asked for at once"
    assert await store.shrink(6 * one, 100) == 1
    assert [job.id for job in await store.listed("a", 99)] == [
        waits.id,
        *(new(i).job.id for i in (7, 6, 5, 4)),
    ]
    assert len(await store.listed("b", 99)) == 2
    await harness.restart()
    assert harness.store.ended_bytes() == 6 * one
    assert await harness.store.purge(1e9, 100) == 6
    assert harness.store.ended_bytes() == 0
    assert dict(harness.store.counts())[JobState.DONE] == 0


async def test_a_key_takes_over_only_when_no_secret_waits_for_another(
    harness: JobsHarness,
) -> None:
    assert await harness.store.claim_key("one", give_up=False) == 0
    plain = replace(new(1).request, sealed=b"")
    await harness.store.accept(replace(new(1), request=plain))
    assert await harness.store.claim_key("two", give_up=False) == 0
    jobs = [(await harness.store.accept(new(i))).job for i in (2, 3)]
    await harness.restart()
    assert await harness.store.claim_key("two", give_up=False) == 0
    assert await harness.store.claim_key("one", give_up=False) == 2
    await harness.store.finish(Ending(jobs[0].id, JobState.DONE, 300.0))
    assert await harness.store.claim_key("one", give_up=False) == 1
    assert await harness.store.claim_key("one", give_up=True) == 0
    await harness.restart()
    assert await harness.store.claim_key("one", give_up=False) == 0


async def test_a_query_from_before_it_was_sealed_goes_with_the_end(harness: JobsHarness) -> None:
    job = (await harness.store.accept(new(1, path="/v1?key=AIza"))).job
    ended = await harness.store.finish(Ending(job.id, JobState.DONE, 300.0))
    assert ended is not None
    assert ended.path == "/v1"
