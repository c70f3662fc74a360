"""Jobs when something fails around them: the disk, the clock, a pool, our own code."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from policy_server.core.request import Request
from policy_server.driver import Hold
from policy_server.jobs import disk, dispatcher, service
from policy_server.journal.jobs import Ending, Job, JobRequest, JobState, Note
from policy_server.journal.jobs_memory import MemoryJobs
from policy_server.journal.port import JournalUnavailableError
from policy_server.lasting import lasting
from tests.support.core_builders import P1, pool_params
from tests.support.jobs_stage import BadDisk, Stage, model_server, ok, running, stage, until

pytestmark = pytest.mark.usefixtures("quickly")
FULL = JournalUnavailableError("the disk is full")


@pytest.fixture
async def said() -> list[dict[str, Any]]:
    """What was reported to the loop."""
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    return said


def held(live: Stage, uid: str) -> Any:
    """A request of someone who waits on the line; a `Hold` or a decision."""
    now = time.monotonic()
    return live.driver.submit(Request(uid, "chat", P1, now, now + 15.0, tenant="t"))


# -- reading ------------------------------------------------------------------------------------


async def test_what_can_not_be_read_holds_the_jobs_and_nobody_else() -> None:
    store = BadDisk()
    async with stage(ok, store=store) as live:
        store.fails["request"] = FULL
        jobs = [await live.submit(), await live.submit()]
        await until(lambda: live.jobs.problem)
        await until(lambda: not live.driver.admission.inflight())
        assert "full" in str(live.jobs.problem)
        assert not isinstance(held(live, "line"), Hold)
        assert live.driver.admission.jobs_waiting() == 2 - len(live.jobs._dispatcher._pauses)
        live.driver.complete("line", dispatcher.NEVER_SENT)
        store.fails.clear()
        for job in jobs:
            assert (await live.ended(job)).state is JobState.DONE
        assert live.jobs.problem is None
        assert len(live.seen) == 2


class OneDamaged(MemoryJobs):
    """The page of one job is damaged."""

    damaged = ""

    async def request(self, job_id: str) -> JobRequest | None:
        if job_id == self.damaged:
            raise JournalUnavailableError("damaged")
        return await super().request(job_id)


async def test_one_job_that_can_not_be_read_stops_the_others_for_a_moment_only() -> None:
    store = OneDamaged()
    async with stage(ok, store=store) as live:
        live.driver.pause_jobs()
        lost, other = await live.submit(), await live.submit()
        store.damaged = lost.id
        live.driver.resume_jobs()
        assert (await live.ended(other)).state is JobState.DONE
        await until(lambda: live.jobs._dispatcher._put_off.get(lost.id, 0) > 1)
        assert (await live.ended(await live.submit())).state is JobState.DONE
        store.damaged = ""
        assert (await live.ended(lost)).state is JobState.DONE


async def test_an_odd_error_of_the_store_strands_no_job(said: list[dict[str, Any]]) -> None:
    store = BadDisk()
    async with stage(ok, store=store) as live:
        store.fails["request"] = sqlite3.OperationalError("once")
        job = await live.submit()
        await until(lambda: said)
        store.fails.clear()
        ended = await live.ended(job)
    assert (ended.state, ended.attempt) == (JobState.DONE, 1)
    assert isinstance(said[0]["exception"], sqlite3.OperationalError)


async def test_a_job_whose_request_is_gone_fails() -> None:
    async with stage(ok) as live:
        live.driver.pause_jobs()
        job = await live.submit()
        live.store._kept[job.id].request = None
        live.driver.resume_jobs()
        ended = await live.ended(job)
    assert ended.state is JobState.FAILED
    assert "journal" in ended.detail


# -- writing ------------------------------------------------------------------------------------


async def test_a_full_disk_costs_one_round_of_jobs() -> None:
    store = BadDisk()
    async with stage(ok, store=store, seats=2.0) as live:
        live.driver.pause_jobs()
        jobs = [await live.submit() for _ in range(10)]
        store.fails["finish"] = FULL
        live.driver.resume_jobs()
        await until(lambda: len(live.seen) == 2 and not live.driver.admission.inflight())
        assert not isinstance(held(live, "line"), Hold)
        live.driver.complete("line", dispatcher.NEVER_SENT)
        await asyncio.sleep(0.1)  # so long that many more would have gone
        assert len(live.seen) <= 4
        assert live.driver.admission.jobs_waiting() >= 6
        store.fails.clear()
        for job in jobs:
            assert (await live.ended(job)).attempt == 1
        assert len(live.seen) == 10


class SaysSo(MemoryJobs):
    """A store that knows that its disk is in trouble."""

    says: str | None = None

    def trouble(self) -> str | None:
        return self.says


async def test_while_the_store_is_in_trouble_nothing_is_begun() -> None:
    store = SaysSo()
    async with stage(ok, store=store) as live:
        store.says = "read-only"
        job = await live.submit()
        await until(lambda: live.jobs.problem)
        assert "read-only" in str(live.jobs.problem)
        store.says = None
        assert (await live.ended(job)).attempt == 1
        assert len(live.seen) == 1


async def test_answers_that_can_not_be_written_take_so_much_memory_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(disk, "MAX_UNWRITTEN", 160_000)
    store = BadDisk()
    async with stage(ok, store=store, seats=3.0) as live:
        live.driver.pause_jobs()
        jobs = [await live.submit(body=b"x" * 60_000) for _ in range(3)]
        store.fails["finish"] = FULL
        live.driver.resume_jobs()
        again = []

        def dropped() -> list[Job]:
            kept = [entry.job for entry in store._kept.values()]
            again[:] = [j for j in kept if "could not be written" in j.detail]
            return again

        await until(dropped)
        assert live.jobs._dispatcher._disk._unwritten <= 160_000
        assert [j.state for j in again] == [JobState.QUEUED]
        store.fails.clear()
        for job in jobs:
            assert (await live.ended(job)).state is JobState.DONE
        assert len(live.seen) == 4


class Hangs(MemoryJobs):
    """A disk that takes its time for an end."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def finish(self, ending: Ending) -> Job | None:
        await self.go.wait()
        return await super().finish(ending)


async def test_a_disk_that_hangs_holds_the_jobs_when_enough_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(disk, "MAX_UNWRITTEN", 160_000)
    store = Hangs()
    async with stage(ok, store=store) as live:
        jobs = [await live.submit(body=b"x" * 60_000) for _ in range(5)]
        await until(lambda: live.jobs.problem)
        await until(lambda: not live.driver.admission.inflight())
        assert len(live.seen) == 3
        store.go.set()
        for job in jobs:
            assert (await live.ended(job)).attempt == 1
        assert len(live.seen) == 5


async def test_an_end_that_meets_an_odd_error_is_written_all_the_same() -> None:
    store = BadDisk()
    async with stage(ok, store=store) as live:
        store.fails["finish"] = sqlite3.OperationalError("once")
        job = await live.submit()
        await until(lambda: live.seen and not live.driver.admission.inflight())
        store.fails.clear()
        assert (await live.ended(job)).state is JobState.DONE
        assert len(live.seen) == 1


async def test_an_answer_that_can_never_be_written_fails_the_job(
    monkeypatch: pytest.MonkeyPatch, said: list[dict[str, Any]]
) -> None:
    class Never(MemoryJobs):
        async def finish(self, ending: Ending) -> Job | None:
            if ending.answer is not None:
                raise sqlite3.DataError("too big")
            return await super().finish(ending)

    monkeypatch.setattr("policy_server.jobs.attempts.MAX_FAILURES", 2)
    async with stage(ok, store=Never()) as live:
        ended = await live.ended(await live.submit())
        assert (ended.state, len(live.seen)) == (JobState.FAILED, 2)
        assert "DataError" in ended.detail
    assert said


async def test_jobs_that_drain_stay_held_when_the_disk_is_well_again() -> None:
    store = SaysSo()
    async with stage(ok, store=store) as live:
        store.says = "full"
        await live.submit()
        await until(lambda: live.jobs.problem)
        live.driver.hand_back()
        store.says = None
        await until(lambda: live.jobs.problem is None)
        assert (live.driver.admission.jobs_waiting(), live.seen) == (1, [])


# -- pools --------------------------------------------------------------------------------------


async def busy_then_ok(live: Stage) -> Job:
    """A job that was refused once and pauses."""
    job = await live.submit()
    await until(lambda: live.jobs._dispatcher._pauses)
    return job


def refusing(times: int) -> Any:
    """A model server that is busy so often."""
    left = [times]

    async def answer(_: web.Request) -> web.Response:
        left[0] -= 1
        status = 503 if left[0] >= 0 else 200
        return web.Response(status=status, headers={"retry-after-ms": "200"})

    return answer


async def test_a_pool_that_a_reload_removes_during_a_pause_strands_no_job() -> None:
    async with stage(refusing(2)) as live:
        job = await busy_then_ok(live)
        live.driver.reconfigure([pool_params(1.0, name="other")])
        assert (await live.ended(job)).state is JobState.DONE
        assert (await live.ended(await live.submit())).state is JobState.DONE


async def test_a_pool_with_another_name_after_a_restart_strands_no_job() -> None:
    async with model_server(refusing(1)) as (url, _):
        async with running(url) as first:
            first.driver.pause_jobs()
            job = await first.submit()
        async with running(url, store=first.store.reopen(), pool="renamed") as second:
            assert (await second.ended(job)).attempt == 2


# -- ends and restarts --------------------------------------------------------------------------


async def test_what_can_not_be_judged_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, said: list[dict[str, Any]]
) -> None:
    judge = dispatcher.judge

    def broken(*_: Any) -> Any:
        monkeypatch.setattr(dispatcher, "judge", judge)
        raise OverflowError("a bug")

    monkeypatch.setattr(dispatcher, "judge", broken)
    async with stage(ok) as live:
        ended = await live.ended(await live.submit())
    assert (ended.state, ended.attempt) == (JobState.DONE, 2)
    assert [type(context["exception"]) for context in said] == [OverflowError]


async def test_a_cancelled_job_leaves_its_pause() -> None:
    async with stage(refusing(9)) as live:
        job = await busy_then_ok(live)
        (pause,) = live.jobs._dispatcher._pauses.values()
        await live.jobs.cancel(job.id)
        assert pause.cancelled()
        assert live.jobs._dispatcher._pauses == {}


async def test_a_job_that_is_cancelled_in_the_moment_of_its_dispatch_leaves_no_lease() -> None:
    async with stage(ok) as live:
        live.driver.pause_jobs()
        job = await live.submit()
        await live.store.finish(Ending(job.id, JobState.CANCELLED, time.time()))
        live.driver.resume_jobs()
        assert live.jobs._dispatcher.running == 1
        live.jobs._dispatcher.withdraw(job)
        await until(lambda: not live.driver.admission.inflight())
        assert (live.jobs._dispatcher.running, live.seen) == (0, [])


async def test_a_cancelled_job_is_broken_off() -> None:
    gone = asyncio.Event()

    async def hold(_: web.Request) -> web.Response:
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()
        return web.Response()

    async with stage(hold) as live:
        job = await live.submit()
        await until(lambda: live.seen)
        await live.jobs.cancel(job.id)
        await until(lambda: not live.driver.admission.inflight())
        assert live.jobs._dispatcher.running == 0


async def test_a_restart_tells_what_was_on_its_way_and_keeps_pauses() -> None:
    store = MemoryJobs()
    async with model_server(ok) as (url, seen):
        async with running(url, store=store) as first:
            first.driver.pause_jobs()
            moving, paused, odd = [await first.submit() for _ in range(3)]
        now = time.time()
        store.note(Note(moving.id, JobState.DISPATCHED, now, 1))
        store.note(Note(paused.id, JobState.QUEUED, now, 1, 1, now + 100.0))
        store.note(Note(odd.id, JobState.QUEUED, now + 1e6, 1, 1, now + 1e6 + 0.05))
        async with running(url, store=store.reopen(), seats=4.0) as second:
            states = [event.state for event in await second.store.history(moving.id)]
            assert states[:3] == [JobState.QUEUED, JobState.DISPATCHED, JobState.QUEUED]
            for job in (moving, odd):  # the clock was set back; the pause stays as it was told
                assert (await second.ended(job)).attempt == 2
            assert set(second.jobs._dispatcher._pauses) == {paused.id}
            assert len(seen) == 2


async def test_what_waits_while_the_server_stops_is_written_and_in_line() -> None:
    class Slow(MemoryJobs):
        async def accept(self, new: Any) -> Any:
            await asyncio.sleep(0.05)
            return await super().accept(new)

    store = Slow()
    async with running("http://127.0.0.1:9", store=store) as live:
        live.driver.pause_jobs()
        accepting = asyncio.create_task(live.jobs.accept(live.submission()))
        await until(lambda: live.jobs._keeping)
        await live.jobs.stop()
        assert sum(store.counts().values()) == 1
        assert (await accepting).job.state is JobState.QUEUED


async def test_a_lease_is_kept_alive_by_the_one_who_holds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatcher, "BEAT_S", 0.005)

    async def hold(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        return web.Response()

    async with stage(hold) as live:
        beat = asyncio.create_task(live.jobs.beat())
        await live.submit()
        await until(lambda: live.seen)
        (lease,) = next(iter(live.driver.admission.pools())).leases
        began = lease.last_seen
        await until(lambda: lease.last_seen > began)
        beat.cancel()


# -- its time -----------------------------------------------------------------------------------


async def test_a_job_whose_time_is_up_is_not_sent() -> None:
    async with stage(ok, queue_ttl_s=0.05) as live:
        live.driver.pause_jobs()
        job = await live.submit()
        await until(lambda: time.time() > job.expires_at)
        live.driver.resume_jobs()
        assert (await live.ended(job)).state is JobState.EXPIRED
        assert live.seen == []


async def test_a_job_whose_token_has_run_out_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage(ok) as live:
        live.driver.pause_jobs()
        job = await live.submit(headers=(("authorization", "Bearer x"),))
        monkeypatch.setattr("policy_server.jobs.delivery.runs_out_at", lambda _: time.time() - 1)
        live.driver.resume_jobs()
        ended = await live.ended(job)
        assert (ended.state, live.seen) == (JobState.EXPIRED, [])
        assert "token" in ended.detail


async def test_what_is_under_way_is_not_expired() -> None:
    class Late(MemoryJobs):
        async def overdue(self, now: float, limit: int) -> list[str]:
            return list(self._kept)  # it went in the moment after the look

    arrived, go = asyncio.Event(), asyncio.Event()

    async def hold(_: web.Request) -> web.Response:
        arrived.set()
        await go.wait()
        return web.Response()

    async with stage(hold, store=Late()) as live:
        job = await live.submit()
        await arrived.wait()
        await live.jobs.expire(lambda _: job.expires_at + 1)
        go.set()
        assert (await live.ended(job)).state is JobState.DONE


class OneOdd(MemoryJobs):
    """One job meets an error each time that it is looked at."""

    odd = ""

    async def get(self, job_id: str) -> Job | None:
        if job_id == self.odd:
            raise sqlite3.OperationalError("odd")
        return await super().get(job_id)

    async def purge(self, ended_before: float, limit: int) -> int:
        raise sqlite3.OperationalError("odd")


async def test_what_one_job_meets_ends_the_expiry_of_no_other(
    monkeypatch: pytest.MonkeyPatch, said: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr("policy_server.lasting.FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(service, "SWEEP_S", 0.001)
    store = OneOdd()
    async with stage(ok, store=store, queue_ttl_s=0.05) as live:
        live.driver.pause_jobs()
        odd, other = await live.submit(), await live.submit()
        store.odd = odd.id
        work = (live.jobs.sweep, live.jobs.tidy)
        tasks = [asyncio.create_task(lasting("work", one)) for one in work]
        await until(lambda: store._kept[other.id].job.state is JobState.EXPIRED)
        await until(lambda: said)
        store.odd = ""
        await until(lambda: store._kept[odd.id].job.state is JobState.EXPIRED)
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()


async def test_a_job_that_comes_back_stands_where_it_stood_wherever_the_clock_is() -> None:
    async with stage(refusing(1)) as live:
        job = await live.submit()
        dispatcher_ = live.jobs._dispatcher
        dispatcher_._t = replace(dispatcher_._t, wall_clock=lambda: time.time() + 1e6)
        await until(lambda: dispatcher_._pauses)
        await until(lambda: live.driver.admission.inflight() == 0)
        (pause,) = dispatcher_._pauses.values()
        assert pause._args is not None
        (again,) = pause._args
        assert time.monotonic() - again.arrived < 100.0
        assert (await live.ended(job)).attempt == 2
