"""A job's record as a row, and back."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import fields
from operator import attrgetter
from typing import Any

from policy_server.core.request import PRIORITIES
from policy_server.journal.jobs import PATH_SHOWN, Headers, Job, JobState

_NAMES = tuple(field.name for field in fields(Job))
COLUMNS = ", ".join(_NAMES)
"""Named as the record's fields are, in their order."""
SHOWN_COLUMNS = COLUMNS.replace(" path,", f" substr(path, 1, {PATH_SHOWN}),")
"""The same with a path that is short enough for a list of many."""
_VALUES = attrgetter(*_NAMES)
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


def row_of(job: Job) -> list[object]:
    """The record in the order of `COLUMNS`."""
    values = list(_VALUES(job))
    values[_PRIORITY] = int(job.priority)
    values[_STATE] = job.state.value
    return values


def job_of_row(row: Any) -> Job:
    """A row in the order of `COLUMNS`. Raises LookupError for what no version writes."""
    values = list(row)
    values[_PRIORITY] = PRIORITIES[values[_PRIORITY]]
    values[_STATE] = _STATES[values[_STATE]]
    values[_STREAMED] = bool(values[_STREAMED])
    return Job(*values)
