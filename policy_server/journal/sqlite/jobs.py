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
from contextlib import suppress
from functools import partial

from policy_server.journal.jobs import (
    MAX_EVENTS,
    RECORD_BYTES,
    Accepted,
    AnswerHead,
    DueWebhook,
    Ending,
    Job,
    JobEvent,
    JobRequest,
    JobState,
    KeyClashError,
    NewJob,
    Note,
    Taken,
    nobody,
    size_of,
)
from policy_server.journal.kept import KeptBytes
from policy_server.journal.sqlite import jobs_queries as queries
from policy_server.journal.sqlite.jobs_rows import (
    COLUMNS,
    MARKS,
    SHOWN_COLUMNS,
    job_of_row,
    jobs_of,
    row_of,
    rows_of,
)
from policy_server.journal.sqlite.jobs_schema import BARE_PATH, OPEN
from policy_server.journal.sqlite.store import Store

BATCH = 2_000
_ENDED = tuple(state for state in JobState if state.ended)


class SqliteJobs:
    """Jobs in the journal's file. Await `load` once, when the store is open."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open = 0
        self._dispatched: set[str] = set()
        self._ended = dict.fromkeys(_ENDED, 0)
        self._kept = KeptBytes()
        self._recount = False  # what is kept was changed and could not be counted

    async def load(self) -> None:
        """Count what is there."""
        counted, dispatched, self._kept = await self._store.read(queries.stock)
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
        return await self._store.read(lambda db: queries.known(db, new))

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
            self._kept.add(job.tenant, RECORD_BYTES + size_of(ending.answer))
        return job

    def found(self, job: Job) -> None:
        """See `JobStore`."""
        if job.state.ended:
            self._open -= 1
            self._ended[job.state] += 1
            self._recount = True  # how large its answer is, the file knows
        else:
            self._open += 1

    async def purge(self, ended_before: float, limit: int) -> int:
        """See `JobStore`."""
        old = await self._store.read(lambda db: queries.ended_before(db, ended_before, limit))
        return await self._forget(old)

    async def shrink(self, max_bytes: int, limit: int) -> int:
        """See `JobStore`."""
        if self._recount:
            self._kept, self._recount = await self._store.read(queries.kept_bytes), False
        surplus = self._kept.surplus(max_bytes)
        if not surplus:
            return 0
        return await self._forget(
            await self._store.read(lambda db: queries.oldest(db, surplus, limit))
        )

    async def _forget(self, ids: list[str]) -> int:
        if not ids:
            return 0
        self._recount, known = True, self._recount  # unless it is heard how many it were
        gone = await self._store.write_durably(lambda db: _delete(db, ids))
        self._recount = known
        for state, tenant, size in gone:
            self._ended[state] -= 1
            self._kept.add(tenant, -size)
        return len(gone)

    def ended_bytes(self) -> int:
        """See `JobStore`."""
        return self._kept.total

    async def claim_key(self, fingerprint: str, *, give_up: bool) -> int:
        """See `JobStore`."""
        if await self._store.read(queries.sealing_key) == fingerprint:
            return 0
        return await self._store.write_durably(lambda db: _claim(db, fingerprint, give_up))

    async def webhook_tried(self, job_id: str, tries: int, next_at: float | None) -> None:
        """See `JobStore`."""
        forget = ", webhook = ''" if next_at is None else ""
        statement = f"UPDATE jobs SET webhook_tries = ?, webhook_at = ?{forget} WHERE id = ?"
        await self._store.write_durably(
            lambda db: db.execute(statement, (tries, next_at, job_id)).rowcount
        )

    async def webhooks_wait(self, now: float, until: float, taken: Taken) -> None:
        """See `JobStore`."""
        await self._store.write_durably(lambda db: _wait(db, now, until, taken))

    # -- reading ------------------------------------------------------------------------------

    async def get(self, job_id: str) -> Job | None:
        """See `JobStore`."""
        return await self._store.read(lambda db: queries.job_by_id(db, job_id))

    async def listed(self, owner: str | None, limit: int) -> list[Job]:
        """See `JobStore`."""
        where, what = ("", ()) if owner is None else ("WHERE owner = ?", (owner,))
        query = f"SELECT {SHOWN_COLUMNS} FROM jobs {where} ORDER BY seq DESC LIMIT ?"
        return await self._store.read(lambda db: jobs_of(db, query, (*what, limit)))

    async def request(self, job_id: str) -> JobRequest | None:
        """See `JobStore`."""
        return await self._store.read(lambda db: queries.request_of(db, job_id))

    async def answer_head(self, job_id: str) -> AnswerHead | None:
        """See `JobStore`."""
        return await self._store.read(lambda db: queries.answer_head(db, job_id))

    async def answer_part(self, job_id: str, start: int, size: int) -> bytes | None:
        """See `JobStore`."""
        return await self._store.read(lambda db: queries.answer_part(db, job_id, start, size))

    async def history(self, job_id: str) -> list[JobEvent]:
        """See `JobStore`."""
        return await self._store.read(lambda db: queries.history_of(db, job_id))

    async def unfinished(self) -> AsyncIterator[Sequence[Job]]:
        """See `JobStore`."""
        query = f"SELECT seq, {COLUMNS} FROM jobs WHERE {OPEN} AND seq > ? ORDER BY seq LIMIT ?"
        last = 0
        while rows := await self._store.read(partial(rows_of, query=query, values=(last, BATCH))):
            last = rows[-1][0]
            yield [job_of_row(row[1:]) for row in rows]

    async def overdue(self, now: float, limit: int) -> list[str]:
        """See `JobStore`."""
        query = f"SELECT id FROM jobs WHERE {OPEN} AND state = 'queued'"
        query += " AND expires_at <= ? ORDER BY expires_at LIMIT ?"
        rows = await self._store.read(lambda db: rows_of(db, query, (now, limit)))
        return [row[0] for row in rows]

    async def due_webhooks(self, now: float, limit: int, taken: Taken = nobody) -> list[DueWebhook]:
        """See `JobStore`."""
        return await self._store.read(lambda db: queries.due_webhooks(db, now, limit, taken))

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
        f" VALUES ({MARKS}, ?, ?, ?)",
        (*row_of(job), new.uid, new.key or None, new.digest),
    )
    if not put.rowcount:
        with suppress(KeyClashError):  # raised in here it would cost the neighbours another turn
            return queries.known(db, new)
        return None
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
        query = "SELECT count(*) FROM job_events WHERE job = (SELECT seq FROM jobs WHERE id = ?)"
        if db.execute(query, (note.id,)).fetchone()[0] < MAX_EVENTS:
            _tell(db, note.id, note.state, note.at, note.detail)


def _finish(db: sqlite3.Connection, ending: Ending) -> Job | None:
    answer = ending.answer
    ended = db.execute(
        "UPDATE jobs SET state = ?, changed_at = ?, detail = ?, status = ?, answer_bytes = ?,"
        f" path = {BARE_PATH},"  # one of before queries were sealed
        " webhook_at = CASE WHEN webhook != '' THEN ? END"
        f" WHERE id = ? AND {OPEN}",
        (
            ending.state.value,
            ending.at,
            ending.detail,
            None if answer is None else answer.status,
            size_of(answer),
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
    return queries.job_by_id(db, ending.id)


def _tell(db: sqlite3.Connection, job_id: str, state: JobState, at: float, detail: str) -> None:
    db.execute(
        "INSERT INTO job_events SELECT seq, ?, ?, ? FROM jobs WHERE id = ?",
        (state.value, at, detail, job_id),
    )


def _delete(db: sqlite3.Connection, ids: list[str]) -> list[tuple[JobState, str, int]]:
    """Forget jobs that have ended; state, tenant and bytes of those that there were."""
    query = f"SELECT state, tenant, answer_bytes FROM jobs WHERE id = ? AND NOT {OPEN}"
    found = [(job_id, db.execute(query, (job_id,)).fetchone()) for job_id in ids]
    there = [(job_id, row) for job_id, row in found if row is not None]
    db.executemany("DELETE FROM jobs WHERE id = ?", [(job_id,) for job_id, _ in there])
    return [(JobState(row[0]), row[1], RECORD_BYTES + row[2]) for _, row in there]


def _claim(db: sqlite3.Connection, fingerprint: str, give_up: bool) -> int:
    known = queries.sealing_key(db)
    if known is not None and not give_up:
        query = f"SELECT count(*) FROM jobs JOIN job_contents USING (seq) WHERE {OPEN}"
        sealed: int = db.execute(query + " AND length(sealed) > 0").fetchone()[0]
        if sealed:
            return sealed
    db.execute("DELETE FROM sealing_key")
    db.execute("INSERT INTO sealing_key VALUES (?)", (fingerprint,))
    return 0


def _wait(db: sqlite3.Connection, now: float, until: float, taken: Taken) -> None:
    due = rows_of(db, "SELECT id, owner, webhook FROM jobs WHERE webhook_at <= ?", (now,))
    later = [(until, row[0]) for row in due if taken(*row)]
    db.executemany("UPDATE jobs SET webhook_at = ? WHERE id = ?", later)
