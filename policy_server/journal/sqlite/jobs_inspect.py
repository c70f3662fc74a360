"""Whether the jobs in a journal are whole: what no version writes, and what would strand a job."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from policy_server.journal.sqlite.database import SCHEMA_VERSION
from policy_server.journal.sqlite.jobs_rows import COLUMNS, headers_of, job_of_row
from policy_server.journal.sqlite.jobs_schema import OPEN

_TEXT = ("id", "tenant", "pool", "method", "path", "detail", "model", "webhook", "owner")
_NUMBERS = (
    *("created_at", "expires_at", "changed_at", "attempt", "failures", "not_before", "seats"),
    *("prompt_tokens", "max_tokens", "body_bytes"),
)


def job_findings(db: sqlite3.Connection) -> list[str]:
    """One sentence for each kind of trouble. A journal of an earlier version is migrated first, at
    the next start, and not looked at."""
    if db.execute("PRAGMA user_version").fetchone()[0] != SCHEMA_VERSION:
        return []
    return [f"jobs: {count} {what}" for what, count in _counted(db) if count]


def _counted(db: sqlite3.Connection) -> Iterator[tuple[str, int]]:
    rows = db.execute(f"SELECT {COLUMNS} FROM jobs")
    yield "records that can't be read; the server does not start with them", _broken(rows)
    query = "SELECT headers, answer_headers FROM job_contents"
    texts = (text for row in db.execute(query) for text in row if text is not None)
    yield "sets of headers that can't be read", sum(not _readable(text) for text in texts)
    query = "SELECT count(*) FROM jobs LEFT JOIN job_contents USING (seq) WHERE "
    without = db.execute(f"{query}{OPEN} AND body IS NULL").fetchone()[0]
    yield "that wait and have lost their request; they will fail", without
    orphans = len(db.execute("PRAGMA foreign_key_check").fetchall())
    yield "rows of jobs that are forgotten; they only take space", orphans
    secrets = db.execute(f"{query} NOT {OPEN} AND length(sealed) > 0").fetchone()[0]
    yield "that have ended and still keep secrets", secrets


def _broken(rows: sqlite3.Cursor) -> int:
    names = [column[0] for column in rows.description]
    texts, numbers = ([names.index(n) for n in group] for group in (_TEXT, _NUMBERS))
    broken = 0
    for row in rows:
        try:
            job_of_row(row)
        except (LookupError, TypeError):
            broken += 1
            continue
        whole = all(isinstance(row[i], str) for i in texts)
        broken += not (whole and all(isinstance(row[i], int | float) for i in numbers))
    return broken


def _readable(text: str) -> bool:
    try:
        headers_of(text)
    except (TypeError, ValueError):
        return False
    return True
