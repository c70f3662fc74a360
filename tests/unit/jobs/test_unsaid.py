"""A disk that fails in the moment of a commit may have kept what it denied."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from policy_server.jobs.bounds import Bound
from policy_server.journal.jobs import Accepted, Job, JobRefusal, JobState
from policy_server.journal.sqlite import writer
from policy_server.journal.sqlite.housekeeping import Step
from policy_server.journal.sqlite.jobs import SqliteJobs
from policy_server.journal.sqlite.store import Store, StoreOptions
from tests.support.jobs_stage import Stage, ok, stage, until

pytestmark = pytest.mark.usefixtures("quickly")
ONE = {"bound": Bound(1, 1_000)}


class Denies:
    """`once`: the next commit is on disk, and its sync fails."""

    once = False

    def step(self, step: Step) -> None:
        if self.once and step is Step.COMMITTED:
            self.once = False
            raise OSError(errno.EIO, "input/output error (injected)")


@contextlib.asynccontextmanager
async def on_disk(folder: Path, **more: Any) -> AsyncIterator[tuple[Stage, Denies]]:
    denies = Denies()
    store = Store(StoreOptions(folder / "journal.db", on_step=denies.step))
    store.open()
    async with stage(ok, store=SqliteJobs(store), **more) as live:
        yield live, denies
    await store.close()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "RETRY_S", 0.01)


def counts(live: Stage) -> dict[JobState, int]:
    return {state: count for state, count in live.store.counts().items() if count}


async def again(live: Stage) -> Job:
    """The repeat of a client that got 503, until it is answered."""
    outcome: Any = JobRefusal.UNAVAILABLE
    while outcome is JobRefusal.UNAVAILABLE:
        outcome = await live.jobs.accept(live.submission(key="k"))
    assert isinstance(outcome, Accepted)
    return outcome.job


async def test_a_job_whose_acceptance_was_denied_runs_when_its_client_asks_again(
    tmp_path: Path,
) -> None:
    async with on_disk(tmp_path, **ONE) as (live, denies):
        denies.once = True
        assert await live.jobs.accept(live.submission(key="k")) is JobRefusal.UNAVAILABLE
        live.driver.pause_jobs()
        job = await again(live)
        assert await live.jobs.accept(live.submission(key="x")) is JobRefusal.FULL
        assert (await again(live)).id == job.id
        assert counts(live) == {JobState.QUEUED: 1}
        live.driver.resume_jobs()
        assert (await live.ended(job)).state is JobState.DONE
        assert len(live.seen) == 1
        assert counts(live) == {JobState.DONE: 1}
        assert (await again(live)).state is JobState.DONE
        await live.submit(key="x")


async def test_an_end_that_was_denied_is_an_end(tmp_path: Path) -> None:
    async with on_disk(tmp_path, **ONE) as (live, denies):
        live.driver.pause_jobs()
        job = await live.submit()
        await live.store._store.flush()
        send = live.jobs._dispatcher._t.courier.sender.send

        async def sent(parcel: Any, share: Any) -> Any:
            delivery = await send(parcel, share)
            await live.store._store.flush()
            denies.once = True
            return delivery

        live.jobs._dispatcher._t.courier.sender.send = sent  # type: ignore[method-assign]
        live.driver.resume_jobs()
        assert (await live.ended(job)).state is JobState.DONE
        await until(lambda: counts(live) == {JobState.DONE: 1})
        live.jobs._dispatcher._t.courier.sender.send = send  # type: ignore[method-assign]
        await until(lambda: not live.jobs.problem)
        assert (await live.ended(await live.submit())).state is JobState.DONE
        assert len(live.seen) == 2


async def test_a_cancel_that_was_denied_takes_no_place_of_others(tmp_path: Path) -> None:
    async with on_disk(tmp_path, **ONE) as (live, denies):
        live.driver.pause_jobs()
        job = await live.submit()
        denies.once = True
        with pytest.raises(Exception, match="input/output"):
            await live.jobs.cancel(job.id)
        await until(lambda: live.store.trouble() is None)
        live.driver.resume_jobs()
        await until(lambda: counts(live) == {JobState.CANCELLED: 1})
        assert live.seen == []
        assert (await live.ended(await live.submit())).state is JobState.DONE
