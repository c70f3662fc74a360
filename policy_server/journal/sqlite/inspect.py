"""Looking into a journal without touching it, beside a running server or without one."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from policy_server.journal.port import Held, JournalError, JournalUnavailableError, Place
from policy_server.journal.records import lease_from_json, place_from_json, turn_from_json
from policy_server.journal.sqlite.database import (
    APPLICATION_ID,
    SCHEMA_VERSION,
    open_to_read,
)
from policy_server.journal.sqlite.jobs_inspect import job_findings
from policy_server.journal.sqlite.trouble import SAYS_MORE, explained, is_damage
from policy_server.private_file import open_folder, open_to_all

MAX_FINDINGS = 20
_READERS: dict[str, Callable[[str], object]] = {
    "places": place_from_json,
    "leases": lease_from_json,
    "turns": turn_from_json,
}


@dataclass(frozen=True, slots=True)
class Summary:
    """What a journal holds. Sizes in bytes."""

    schema: int
    rows: dict[str, int]
    file_bytes: int
    log_bytes: int
    free_bytes: int


def summary(path: Path) -> Summary:
    """The journal in numbers. Raises `JournalUnavailableError`."""
    with _reading(path) as db:
        tables = [name for (name,) in db.execute(_TABLES)]
        rows = {name: _one(db, f'SELECT count(*) FROM "{name}"') for name in tables}
        free = _one(db, "PRAGMA freelist_count") * _one(db, "PRAGMA page_size")
        return Summary(_one(db, "PRAGMA user_version"), rows, _size(path), _size(_log(path)), free)


_TABLES = (
    "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    " AND name != 'migrations' ORDER BY name"
)


def places(path: Path) -> list[Place]:
    """Who waits, in order. Raises `JournalUnavailableError`."""
    with _reading(path) as db:
        docs = db.execute("SELECT doc FROM places ORDER BY seq").fetchall()
    return [place for (doc,) in docs if (place := place_from_json(doc)) is not None]


def leases(path: Path) -> list[Held]:
    """The slots in use, oldest first. Raises `JournalUnavailableError`."""
    with _reading(path) as db:
        docs = db.execute("SELECT doc FROM leases ORDER BY seq").fetchall()
    return [lease for (doc,) in docs if (lease := lease_from_json(doc)) is not None]


def findings(path: Path) -> list[str]:
    """What is wrong with the journal, one sentence each; nothing = it is sound."""
    found: list[str] = []
    try:
        with _reading(path) as db:
            found += _identity(db, path)
            if damage := damage_of(db):
                return [*found, *damage]  # what is in a damaged file can't be read to its end
            return [*found, *_unreadable(db), *job_findings(db), *_modes(path)]
    except JournalError as error:
        return [*found, str(error).replace(SAYS_MORE, "")]


def _identity(db: sqlite3.Connection, path: Path) -> list[str]:
    version = _one(db, "PRAGMA user_version")
    if _one(db, "PRAGMA application_id") != APPLICATION_ID:
        return [f"{path} is a SQLite file of something else, or was never opened by a server"]
    if version > SCHEMA_VERSION:
        return [
            f"written by a newer version (schema {version}, this one knows {SCHEMA_VERSION}); "
            "use that version"
        ]
    return []


def damage_of(db: sqlite3.Connection) -> list[str]:
    """What of the file is broken, and what to do; nothing = none of it."""
    rows = _checked(db, str(MAX_FINDINGS)) or _checked(db, "1")  # which ends at the first finding
    if rows == ["ok"]:
        return []
    tables = [name for (name,) in db.execute(_TABLES) if _checked(db, f'"{name}"') != ["ok"]]
    return [
        *(f"damaged: {line}" for text in rows or ["all of it"] for line in text.splitlines()),
        f"damaged tables: {', '.join(tables) or 'none'}",
        "stop the server, run `policy-server journal salvage`, which saves what can be read, and "
        "start it again",
    ]


def _checked(db: sqlite3.Connection, what: str) -> list[str]:
    """What SQLite finds, "ok" if nothing; empty when it gets stuck in the damage."""
    try:
        return [text for (text,) in db.execute(f"PRAGMA integrity_check({what})")]
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
        return []


def _unreadable(db: sqlite3.Connection) -> list[str]:
    found = []
    known = {name for (name,) in db.execute(_TABLES)}
    for table in _READERS.keys() & known:
        docs = db.execute(f"SELECT doc FROM {table}")
        count = sum(_READERS[table](doc) is None for (doc,) in docs)
        if count:
            found.append(f"{table}: {count} records that can't be read; they are left alone")
    return found


def _modes(path: Path) -> list[str]:
    files = (path, _log(path))
    exposed = [f.name for f in files if f.exists() and open_to_all(f.stat().st_mode)]
    found = [f"{name}: everybody on this machine can read it; chmod 600" for name in exposed]
    folder = open_folder(path.parent)
    return [*found, folder] if folder is not None else found


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    db = open_to_read(path)
    try:
        yield db
    except sqlite3.Error as error:
        raise JournalUnavailableError(explained(error, path)) from None
    finally:
        db.close()


def _one(db: sqlite3.Connection, sql: str) -> int:
    value: int = db.execute(sql).fetchone()[0]
    return value


def _log(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
