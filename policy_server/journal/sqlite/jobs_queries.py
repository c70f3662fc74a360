"""What is asked of the jobs' tables; nothing here writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from itertools import islice

from policy_server.journal.jobs import (
    RECORD_BYTES,
    Accepted,
    AnswerHead,
    DueWebhook,
    Job,
    JobEvent,
    JobRequest,
    JobState,
    KeyClashError,
    NewJob,
    Taken,
)
from policy_server.journal.kept import KeptBytes
from policy_server.journal.sqlite.jobs_rows import (
    COLUMNS,
    headers_of,
    job_of_row,
    jobs_of,
    rows_of,
)
from policy_server.journal.sqlite.jobs_schema import OPEN


def known(db: sqlite3.Connection, new: NewJob) -> Accepted | None:
    """The job that has its uid or its key. Raises `KeyClashError`."""
    found = db.execute("SELECT id FROM jobs WHERE uid = ?", (new.uid,)).fetchone()
    if found is None:
        found = db.execute(
            "SELECT id, digest FROM jobs WHERE owner = ? AND idempotency_key = ?",
            (new.job.owner, new.key),
        ).fetchone()
        if found is not None and found[1] != new.digest:
            raise KeyClashError(new.key)
    job = None if found is None else job_by_id(db, found[0])
    return None if job is None else Accepted(job, existing=True)


def ended_before(db: sqlite3.Connection, before: float, limit: int) -> list[str]:
    """Ids of jobs that ended earlier."""
    query = f"SELECT id FROM jobs WHERE NOT {OPEN} AND changed_at < ? LIMIT ?"
    return [row[0] for row in rows_of(db, query, (before, limit))]


def oldest(db: sqlite3.Connection, surplus: Mapping[str, int], limit: int) -> list[str]:
    """Who has to go of the tenants that keep too much."""
    left, found = dict(surplus), list[str]()
    query = f"SELECT id, tenant, answer_bytes FROM jobs WHERE NOT {OPEN} ORDER BY changed_at"
    for job_id, tenant, size in db.execute(query):
        if left.get(tenant, 0) <= 0:
            continue
        found.append(job_id)
        left[tenant] -= RECORD_BYTES + size
        if left[tenant] <= 0:
            del left[tenant]
        if not left or len(found) >= limit:
            break
    return found


def sealing_key(db: sqlite3.Connection) -> str | None:
    """The fingerprint of the key that seals; None = nothing was sealed yet."""
    found = db.execute("SELECT fingerprint FROM sealing_key").fetchone()
    return None if found is None else found[0]


def due_webhooks(db: sqlite3.Connection, now: float, limit: int, taken: Taken) -> list[DueWebhook]:
    """Ends to tell; see `JobStore`."""
    query = "SELECT id, owner, webhook FROM jobs WHERE webhook_at <= ? ORDER BY webhook_at"
    free = (row[0] for row in db.execute(query, (now,)) if not taken(*row))
    ids = list(islice(free, limit))
    query = f"SELECT webhook_tries, {COLUMNS} FROM jobs WHERE id = ?"
    rows = [db.execute(query, (job_id,)).fetchone() for job_id in ids]
    return [DueWebhook(job_of_row(row[1:]), row[0]) for row in rows]


def stock(db: sqlite3.Connection) -> tuple[dict[JobState, int], list[str], KeptBytes]:
    """What is there: jobs by state, who is on its way, what the ended ones take."""
    rows = rows_of(db, "SELECT state, count(*) FROM jobs GROUP BY state")
    moving = rows_of(db, f"SELECT id FROM jobs WHERE {OPEN} AND state = 'dispatched'")
    counts = {JobState(state): count for state, count in rows}
    return counts, [row[0] for row in moving], kept_bytes(db)


def kept_bytes(db: sqlite3.Connection) -> KeptBytes:
    """What the ended ones take."""
    query = f"SELECT tenant, sum({RECORD_BYTES} + answer_bytes) FROM jobs WHERE NOT {OPEN}"
    return KeptBytes(dict(rows_of(db, query + " GROUP BY tenant")))


def job_by_id(db: sqlite3.Connection, job_id: str) -> Job | None:
    """The record of a job."""
    found = jobs_of(db, f"SELECT {COLUMNS} FROM jobs WHERE id = ?", (job_id,))
    return found[0] if found else None


def request_of(db: sqlite3.Connection, job_id: str) -> JobRequest | None:
    """What is to be sent, while it has not ended."""
    row = db.execute(
        "SELECT authority, headers, sealed, body FROM jobs JOIN job_contents USING (seq)"
        " WHERE id = ? AND body IS NOT NULL",
        (job_id,),
    ).fetchone()
    return None if row is None else JobRequest(row[0], headers_of(row[1]), row[2], row[3])


def answer_head(db: sqlite3.Connection, job_id: str) -> AnswerHead | None:
    """What came back, without its body."""
    row = db.execute(
        "SELECT status, answer_headers, length(answer_body) FROM jobs JOIN job_contents USING (seq)"
        " WHERE id = ? AND answer_body IS NOT NULL",
        (job_id,),
    ).fetchone()
    return None if row is None else AnswerHead(row[0], headers_of(row[1]), row[2])


def answer_part(db: sqlite3.Connection, job_id: str, start: int, size: int) -> bytes | None:
    """Some of the body; no more than that is read from the disk."""
    row = db.execute("SELECT seq FROM jobs WHERE id = ?", (job_id,)).fetchone()
    if row is None:
        return None
    try:
        with db.blobopen("job_contents", "answer_body", row[0], readonly=True) as body:
            body.seek(start)
            return body.read(size)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        return None  # forgotten in this moment


def history_of(db: sqlite3.Connection, job_id: str) -> list[JobEvent]:
    """The acceptance, which is the record itself, and what was noted since."""
    began = db.execute("SELECT seq, created_at FROM jobs WHERE id = ?", (job_id,)).fetchone()
    if began is None:
        return []
    query = "SELECT state, at, detail FROM job_events WHERE job = ? ORDER BY rowid"
    rows = [(JobState.QUEUED.value, began[1], ""), *rows_of(db, query, began[:1])]
    return [JobEvent(n, JobState(state), at, text) for n, (state, at, text) in enumerate(rows, 1)]
