"""A job's record as a row, and back."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from policy_server.core.request import PRIORITIES
from policy_server.journal.jobs import Headers, Job, JobState

COLUMNS = (
    "id, tenant, pool, priority, method, path, created_at, expires_at, state, changed_at, attempt,"
    " failures, not_before, status, detail, seats, prompt_tokens, max_tokens, model, streamed,"
    " body_bytes, webhook, owner"
)
"""In the order of the record's fields."""
_NAMES = tuple(name.strip() for name in COLUMNS.split(","))
_PRIORITY, _STATE, _STREAMED = (_NAMES.index(n) for n in ("priority", "state", "streamed"))
_STATES = {state.value: state for state in JobState}
MARKS = ", ".join("?" * len(_NAMES))


def rows_of(db: sqlite3.Connection, query: str, values: tuple[object, ...] = ()) -> list[Any]:
    """All of them."""
    return db.execute(query, values).fetchall()


def jobs_of(db: sqlite3.Connection, query: str, values: tuple[object, ...]) -> list[Job]:
    """The records that a query for `COLUMNS` finds."""
    return [job_of_row(row) for row in rows_of(db, query, values)]


def headers_of(text: str) -> Headers:
    """Headers as they were given. Raises ValueError for what is none."""
    return tuple((name, value) for name, value in json.loads(text))


def row_of(job: Job) -> tuple[object, ...]:
    """The record in the order of `COLUMNS`."""
    return (
        *(job.id, job.tenant, job.pool, int(job.priority), job.method, job.path),
        *(job.created_at, job.expires_at, job.state.value, job.changed_at, job.attempt),
        *(job.failures, job.not_before, job.status, job.detail, job.seats, job.prompt_tokens),
        *(job.max_tokens, job.model, job.streamed, job.body_bytes, job.webhook, job.owner),
    )


def job_of_row(row: Any) -> Job:
    """A row in the order of `COLUMNS`. Raises LookupError for what no version writes."""
    values = list(row)
    values[_PRIORITY] = PRIORITIES[values[_PRIORITY]]
    values[_STATE] = _STATES[values[_STATE]]
    values[_STREAMED] = bool(values[_STREAMED])
    return Job(*values)
