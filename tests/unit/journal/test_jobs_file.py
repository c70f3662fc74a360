"""What is in the journal's file of jobs, looked at from outside."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from policy_server.journal.jobs import Answer, Ending, JobState, Note
from policy_server.journal.sqlite import database
from policy_server.journal.sqlite.inspect import findings
from policy_server.journal.sqlite.jobs import SqliteJobs
from policy_server.journal.sqlite.store import Store, StoreOptions
from tests.unit.journal.test_jobs_contract import ANSWER, new


@contextlib.asynccontextmanager
async def opened(path: Path) -> AsyncIterator[tuple[SqliteJobs, Store]]:
    store = Store(StoreOptions(path, lock_wait_s=0.0))
    store.open()
    jobs = SqliteJobs(store)
    await jobs.load()
    yield jobs, store
    await store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def copied_in(path: Path) -> bytes:
    """The file once all of its log is in it."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    return path.read_bytes()


async def test_what_is_forgotten_leaves_nothing_behind(path: Path) -> None:
    async with opened(path) as (jobs, store):
        for number in range(3):
            job = (await jobs.accept(new(number))).job
            jobs.note(Note(job.id, JobState.DISPATCHED, 200.0, 1))
            await jobs.finish(Ending(job.id, JobState.DONE, 300.0, answer=ANSWER))
        assert await jobs.purge(301.0, 2) == 2
        assert await jobs.shrink(0, 10) == 1
        for table in ("jobs", "job_contents", "job_events"):
            query = f"SELECT count(*) FROM {table}"
            assert await store.read(lambda db, q=query: db.execute(q).fetchone()) == (0,), table


async def test_an_end_that_was_denied_and_is_there_is_counted_before_anything_goes(
    path: Path,
) -> None:
    async with opened(path) as (jobs, _):
        for number in range(3):
            job = (await jobs.accept(new(number))).job
            ended = await jobs.finish(Ending(job.id, JobState.DONE, 300.0 + number, answer=ANSWER))
        known = jobs.ended_bytes()
        assert ended is not None
        jobs._kept.add(ended.tenant, -known // 3)  # as if the last end had not been heard of
        jobs.found(ended)
        assert await jobs.shrink(known, 10) == 0
        assert jobs.ended_bytes() == known
        assert await jobs.shrink(known - 1, 10) == 1


@pytest.mark.parametrize("body", [b"x", bytes(100_000)], ids=["small", "large"])
async def test_what_was_sealed_is_gone_from_the_file_after_the_end(path: Path, body: bytes) -> None:
    secret = b"a-sealed-secret-" * 500
    given = new(1, webhook="https://hooks/?token=hook-secret")
    given = replace(given, request=replace(given.request, sealed=secret, body=body))
    async with opened(path) as (jobs, store):
        await jobs.accept(given)
        await jobs.accept(new(2))

        async def in_file(text: bytes) -> bool:
            await store.write_durably(lambda _: None)
            return text in copied_in(path)

        assert await in_file(secret[:16])
        await jobs.finish(Ending(given.job.id, JobState.DONE, 300.0, answer=Answer(200, (), b"")))
        assert not await in_file(secret[:16])
        assert await in_file(b"hook-secret")
        await jobs.webhook_tried(given.job.id, 1, None)
        assert not await in_file(b"hook-secret")


async def test_a_journal_of_before_there_were_owners(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(older(path, monkeypatch)) as db:
        columns = (
            "id, tenant, pool, priority, method, path, created_at, expires_at, state, changed_at,"
            " attempt, failures, not_before, status, detail, seats, prompt_tokens, max_tokens,"
            " model, streamed, body_bytes, webhook, uid, idempotency_key, digest"
        )
        now = time.time()
        for tenant, state, key in (("acme", "done", "k"), ("(unknown)", "queued", "k")):
            values = (
                *(f"{tenant}-id", tenant, "chat", 1, "POST", "/v1?key=AIza", now, now + 60),
                *(state, now, 0, 0, 0.0, None, "", 1, 0, 0, "", 0, 4, "https://h/"),
                *(f"uid-{tenant}", key, b"d"),
            )
            marks = ", ".join("?" * len(values))
            seq = db.execute(f"INSERT INTO jobs ({columns}) VALUES ({marks})", values).lastrowid
            db.execute(
                "INSERT INTO job_contents VALUES (?, 'h', '[]', x'00', x'00', '[]', x'0102')",
                (seq,),
            )
    async with opened(path) as (jobs, _):
        done, waits = await jobs.get("acme-id"), await jobs.get("(unknown)-id")
        assert done is not None
        assert waits is not None
        assert (done.owner, done.path, done.webhook) == ("acme", "/v1", "")
        assert (waits.path, waits.webhook) == ("/v1?key=AIza", "https://h/"), "it is still to go"
        assert [job.id for job in await jobs.listed("acme", 9)] == [done.id]
        assert jobs.ended_bytes() == 1024 + 4
        assert (await jobs.accept(replace(new(1, key="k"), digest=b"d"))).existing
        assert await jobs.claim_key("any", give_up=False) == 0, "which key it was is not known"
        ended = await jobs.finish(Ending(waits.id, JobState.CANCELLED, now))
        assert ended is not None
        assert ended.path == "/v1"
    assert b"AIza" not in copied_in(path)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("UPDATE jobs SET state = 'odd'", "2 records that can't be read"),
        ("UPDATE jobs SET priority = 7", "2 records that can't be read"),
        ("UPDATE jobs SET seats = 'x'", "2 records that can't be read"),
        ("UPDATE jobs SET path = x'ff'", "2 records that can't be read"),
        ("UPDATE job_contents SET headers = '{'", "2 sets of headers that can't be read"),
        ("UPDATE job_contents SET body = NULL", "1 that wait and have lost their request"),
        ("DELETE FROM job_contents", "1 that wait and have lost their request"),
        ("DELETE FROM jobs WHERE state = 'done'", "2 rows of jobs that are forgotten"),
        ("UPDATE job_contents SET sealed = x'00'", "1 that have ended and still keep secrets"),
    ],
)
async def test_what_is_wrong_with_a_job_is_found(path: Path, harm: str, said: str) -> None:
    async with opened(path) as (jobs, _):
        for number in (1, 2):
            await jobs.accept(new(number))
        await jobs.finish(Ending(new(1).job.id, JobState.DONE, 300.0, answer=ANSWER))
        assert findings(path) == [], "beside the server, too"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(harm)
    assert findings(path)[0].startswith(f"jobs: {said}")


async def test_a_folder_that_is_open_to_all_is_found(path: Path) -> None:
    async with opened(path):
        for mode, said in ((0o755, "can look into it"), (0o777, "can put files there")):
            path.parent.chmod(mode)
            (found,) = findings(path)
            assert said in found
            assert f"chmod o-rwx {path.parent}" in found
        path.parent.chmod(0o770)
        assert findings(path) == []


def older(path: Path, monkeypatch: pytest.MonkeyPatch) -> sqlite3.Connection:
    """A file as the version before wrote it."""
    with monkeypatch.context() as before:
        before.setattr(database, "SCHEMA_VERSION", 2)
        return database.open_to_write(path)
