"""Accepted jobs as rows. Implements `JobStore` on a `Store`.

    jobs           the record; small, so that looking through many is cheap
    job_contents   what is sent, while it has not ended, and what came back
    job_events     its history

`seq` is the order of acceptance. Counts are kept on the event loop: read once, then moved along
with each acknowledged change.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any

from policy_server.core.request import PRIORITIES
from policy_server.journal.jobs import (
    Accepted,
    Answer,
    DueWebhook,
    Ending,
    Headers,
    Job,
    JobEvent,
    JobRequest,
    JobState,
    KeyClashError,
    NewJob,
    Note,
)
from policy_server.journal.sqlite.jobs_schema import OPEN
from policy_server.journal.sqlite.store import Store

BATCH = 2_000
COLUMNS = (
    "id, tenant, pool, priority, method, path, created_at, expires_at, state, changed_at, attempt,"
    " failures, not_before, status, detail, seats, prompt_tokens, max_tokens, model, streamed,"
    " body_bytes, webhook"
)
_NAMES = tuple(name.strip() for name in COLUMNS.split(","))
_PRIORITY, _STATE, _STREAMED = (_NAMES.index(n) for n in ("priority", "state", "streamed"))
_STATES = {state.value: state for state in JobState}
_MARKS = ", ".join("?" * len(_NAMES))
_ENDED = tuple(state for state in JobState if state.ended)


class SqliteJobs:
    """Jobs in the journal's file. Await `load` once, when the store is open."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open = 0
        self._dispatched: set[str] = set()
        self._ended = dict.fromkeys(_ENDED, 0)

    async def load(self) -> None:
        """Count what is there."""
        counted, dispatched = await self._store.read(_counted)
        self._dispatched = set(dispatched)
        self._open = sum(count for state, count in counted.items() if not state.ended)
        self._ended = {state: counted.get(state, 0) for state in _ENDED}

    # -- writing ------------------------------------------------------------------------------

    async def accept(self, new: NewJob) -> Accepted:
        """See `JobStore`."""
        accepted = await self._store.write_durably(lambda db: _accept(db, new))
        if accepted is None:
            raise KeyClashError(new.key)
        self._open += not accepted.existing
        return accepted

    async def known(self, new: NewJob) -> Accepted | None:
        """See `JobStore`."""
        return await self._store.read(lambda db: _known(db, new))

    def note(self, note: Note) -> None:
        """See `JobStore`."""
        self._store.write(lambda db: _note(db, note))
        if note.state is JobState.DISPATCHED:
            self._dispatched.add(note.id)
        else:
            self._dispatched.discard(note.id)

    async def finish(self, ending: Ending) -> Job | None:
        """See `JobStore`."""
        job = await self._store.write_durably(lambda db: _finish(db, ending))
        self._dispatched.discard(ending.id)
        if job is not None:
            self._open -= 1
            self._ended[job.state] += 1
        return job

    def found(self, job: Job) -> None:
        """See `JobStore`."""
        if job.state.ended:
            self._open -= 1
            self._ended[job.state] += 1
        else:
            self._open += 1

    async def purge(self, ended_before: float, limit: int) -> int:
        """See `JobStore`."""
        if not await self._store.read(lambda db: _old(db, ended_before, 1)):
            return 0
        gone = await self._store.write_durably(lambda db: _purge(db, ended_before, limit))
        for state in gone:
            self._ended[state] -= 1
        return len(gone)

    async def webhook_tried(self, job_id: str, tries: int, next_at: float | None) -> None:
        """See `JobStore`."""
        statement = "UPDATE jobs SET webhook_tries = ?, webhook_at = ? WHERE id = ?"
        await self._store.write_durably(
            lambda db: db.execute(statement, (tries, next_at, job_id)).rowcount
        )

    # -- reading ------------------------------------------------------------------------------

    async def get(self, job_id: str) -> Job | None:
        """See `JobStore`."""
        return await self._store.read(lambda db: _get(db, job_id))

    async def listed(self, tenant: str | None, limit: int) -> list[Job]:
        """See `JobStore`."""
        where, what = ("", ()) if tenant is None else ("WHERE tenant = ?", (tenant,))
        query = f"SELECT {COLUMNS} FROM jobs {where} ORDER BY seq DESC LIMIT ?"
        return await self._store.read(lambda db: _jobs(db, query, (*what, limit)))

    async def request(self, job_id: str) -> JobRequest | None:
        """See `JobStore`."""
        return await self._store.read(lambda db: _request(db, job_id))

    async def answer(self, job_id: str) -> Answer | None:
        """See `JobStore`."""
        return await self._store.read(lambda db: _answer(db, job_id))

    async def history(self, job_id: str) -> list[JobEvent]:
        """See `JobStore`."""
        return await self._store.read(lambda db: _history(db, job_id))

    async def unfinished(self) -> AsyncIterator[Sequence[Job]]:
        """See `JobStore`."""
        query = f"SELECT seq, {COLUMNS} FROM jobs WHERE {OPEN} AND seq > ? ORDER BY seq LIMIT ?"
        last = 0
        while rows := await self._store.read(partial(_rows, query=query, values=(last, BATCH))):
            last = rows[-1][0]
            yield [_job(row[1:]) for row in rows]

    async def overdue(self, now: float, limit: int) -> list[str]:
        """See `JobStore`."""
        query = f"SELECT id FROM jobs WHERE {OPEN} AND state = 'queued'"
        query += " AND expires_at <= ? ORDER BY expires_at LIMIT ?"
        rows = await self._store.read(lambda db: _rows(db, query, (now, limit)))
        return [row[0] for row in rows]

    async def due_webhooks(self, now: float, limit: int) -> list[DueWebhook]:
        """See `JobStore`."""
        query = (
            f"SELECT webhook_tries, {COLUMNS} FROM jobs WHERE webhook_at <= ?"
            " ORDER BY webhook_at LIMIT ?"
        )
        rows = await self._store.read(lambda db: _rows(db, query, (now, limit)))
        return [DueWebhook(_job(row[1:]), row[0]) for row in rows]

    def trouble(self) -> str | None:
        """See `JobStore`."""
        return self._store.error

    def counts(self) -> Mapping[JobState, int]:
        """See `JobStore`."""
        dispatched = min(len(self._dispatched), self._open)
        waiting = {JobState.QUEUED: self._open - dispatched, JobState.DISPATCHED: dispatched}
        return {**waiting, **self._ended}


# -- on the writer's thread: each may run again after trouble, in another transaction -------------


def _accept(db: sqlite3.Connection, new: NewJob) -> Accepted | None:
    """The job, or the one that was there; None = the key belongs to another request."""
    job, content = new.job, new.request
    put = db.execute(
        f"INSERT OR IGNORE INTO jobs ({COLUMNS}, uid, idempotency_key, digest)"
        f" VALUES ({_MARKS}, ?, ?, ?)",
        (*_row(job), new.uid, new.key or None, new.digest),
    )
    if not put.rowcount:
        return _existing(db, new)
    db.execute(
        "INSERT INTO job_contents (seq, authority, headers, sealed, body) VALUES (?, ?, ?, ?, ?)",
        (
            put.lastrowid,
            content.authority,
            json.dumps(content.headers),
            content.sealed,
            content.body,
        ),
    )
    return Accepted(job)


def _existing(db: sqlite3.Connection, new: NewJob) -> Accepted | None:
    """The job that the same request has brought, or that has its key."""
    found = db.execute("SELECT id FROM jobs WHERE uid = ?", (new.uid,)).fetchone()
    if found is None:
        found = db.execute(
            "SELECT id, digest FROM jobs WHERE tenant = ? AND idempotency_key = ?",
            (new.job.tenant, new.key),
        ).fetchone()
        if found is None or found[1] != new.digest:
            return None
    job = _get(db, found[0])
    return None if job is None else Accepted(job, existing=True)


def _note(db: sqlite3.Connection, note: Note) -> None:
    moved = db.execute(
        "UPDATE jobs SET state = ?, changed_at = ?, attempt = ?, failures = ?, not_before = ?,"
        f" detail = ? WHERE id = ? AND {OPEN}",
        (
            note.state.value,
            note.at,
            note.attempt,
            note.failures,
            note.not_before,
            note.detail,
            note.id,
        ),
    )
    if moved.rowcount:
        _tell(db, note.id, note.state, note.at, note.detail)


def _finish(db: sqlite3.Connection, ending: Ending) -> Job | None:
    answer = ending.answer
    ended = db.execute(
        "UPDATE jobs SET state = ?, changed_at = ?, detail = ?, status = ?,"
        " webhook_at = CASE WHEN webhook != '' THEN ? END"
        f" WHERE id = ? AND {OPEN}",
        (
            ending.state.value,
            ending.at,
            ending.detail,
            None if answer is None else answer.status,
            ending.at,
            ending.id,
        ),
    )
    if not ended.rowcount:
        return None
    db.execute(
        "UPDATE job_contents SET authority = NULL, headers = NULL, sealed = NULL, body = NULL,"
        " answer_headers = ?, answer_body = ? WHERE seq = (SELECT seq FROM jobs WHERE id = ?)",
        (
            None if answer is None else json.dumps(answer.headers),
            None if answer is None else answer.body,
            ending.id,
        ),
    )
    _tell(db, ending.id, ending.state, ending.at, ending.detail)
    return _get(db, ending.id)


def _tell(db: sqlite3.Connection, job_id: str, state: JobState, at: float, detail: str) -> None:
    db.execute(
        "INSERT INTO job_events SELECT seq, ?, ?, ? FROM jobs WHERE id = ?",
        (state.value, at, detail, job_id),
    )


def _purge(db: sqlite3.Connection, ended_before: float, limit: int) -> list[JobState]:
    old = _old(db, ended_before, limit)
    db.executemany("DELETE FROM jobs WHERE id = ?", [(job_id,) for job_id, _ in old])
    return [JobState(state) for _, state in old]


# -- on the reader's thread ------------------------------------------------------------------------


def _old(db: sqlite3.Connection, ended_before: float, limit: int) -> list[tuple[str, str]]:
    query = f"SELECT id, state FROM jobs WHERE NOT {OPEN} AND changed_at < ? LIMIT ?"
    return db.execute(query, (ended_before, limit)).fetchall()


def _known(db: sqlite3.Connection, new: NewJob) -> Accepted | None:
    found = _existing(db, new)
    if found is None and new.key:
        query = "SELECT 1 FROM jobs WHERE tenant = ? AND idempotency_key = ?"
        if db.execute(query, (new.job.tenant, new.key)).fetchone():
            raise KeyClashError(new.key)
    return found


def _counted(db: sqlite3.Connection) -> tuple[dict[JobState, int], list[str]]:
    rows = db.execute("SELECT state, count(*) FROM jobs GROUP BY state").fetchall()
    moving = db.execute(f"SELECT id FROM jobs WHERE {OPEN} AND state = 'dispatched'").fetchall()
    return {JobState(state): count for state, count in rows}, [row[0] for row in moving]


def _rows(db: sqlite3.Connection, query: str, values: tuple[object, ...]) -> list[Any]:
    return db.execute(query, values).fetchall()


def _get(db: sqlite3.Connection, job_id: str) -> Job | None:
    found = _jobs(db, f"SELECT {COLUMNS} FROM jobs WHERE id = ?", (job_id,))
    return found[0] if found else None


def _jobs(db: sqlite3.Connection, query: str, values: tuple[object, ...]) -> list[Job]:
    return [_job(row) for row in _rows(db, query, values)]


def _request(db: sqlite3.Connection, job_id: str) -> JobRequest | None:
    row = db.execute(
        "SELECT authority, headers, sealed, body FROM jobs JOIN job_contents USING (seq)"
        " WHERE id = ? AND body IS NOT NULL",
        (job_id,),
    ).fetchone()
    return None if row is None else JobRequest(row[0], _headers(row[1]), row[2], row[3])


def _answer(db: sqlite3.Connection, job_id: str) -> Answer | None:
    row = db.execute(
        "SELECT status, answer_headers, answer_body FROM jobs JOIN job_contents USING (seq)"
        " WHERE id = ? AND answer_body IS NOT NULL",
        (job_id,),
    ).fetchone()
    return None if row is None else Answer(row[0], _headers(row[1]), row[2])


def _history(db: sqlite3.Connection, job_id: str) -> list[JobEvent]:
    """The acceptance, which is the record itself, and what was noted since."""
    began = db.execute("SELECT seq, created_at FROM jobs WHERE id = ?", (job_id,)).fetchone()
    if began is None:
        return []
    query = "SELECT state, at, detail FROM job_events WHERE job = ? ORDER BY rowid"
    rows = [(JobState.QUEUED.value, began[1], ""), *_rows(db, query, began[:1])]
    return [JobEvent(n, JobState(state), at, text) for n, (state, at, text) in enumerate(rows, 1)]


def _headers(text: str) -> Headers:
    return tuple((name, value) for name, value in json.loads(text))


def _row(job: Job) -> tuple[object, ...]:
    """The record in the order of `COLUMNS`."""
    return (
        *(job.id, job.tenant, job.pool, int(job.priority), job.method, job.path),
        *(job.created_at, job.expires_at, job.state.value, job.changed_at, job.attempt),
        *(job.failures, job.not_before, job.status, job.detail, job.seats, job.prompt_tokens),
        *(job.max_tokens, job.model, job.streamed, job.body_bytes, job.webhook),
    )


def _job(row: Any) -> Job:
    """A row in the order of `COLUMNS`, which is that of the record's fields."""
    values = list(row)
    values[_PRIORITY] = PRIORITIES[values[_PRIORITY]]
    values[_STATE] = _STATES[values[_STATE]]
    values[_STREAMED] = bool(values[_STREAMED])
    return Job(*values)
