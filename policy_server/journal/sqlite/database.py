"""Opening the file: pragmas, the schema and its versions.

application_id   says that the file is ours
user_version     the number of migrations applied; a higher one is a newer version's journal
migrations       when each of them was applied, for whoever looks into the file
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from policy_server.journal.port import JournalTooNewError, JournalUnavailableError
from policy_server.journal.sqlite.jobs_schema import JOBS, OWNERS
from policy_server.journal.sqlite.trouble import NotOursError, explained

APPLICATION_ID = 0x504C4359  # "PLCY"
BUSY_S = 5.0  # a reader of the command line may hold a lock for a moment
NO_OTHER_DISK = "PRAGMA temp_store=MEMORY"
"""A large statement spills into a file, else, wherever temporary files go: in a hardened container
or on a machine whose /tmp is full that fails."""
CHECKPOINT_WAIT_MS = 200  # for readers, at a checkpoint: the writer waits meanwhile

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE migrations (version INTEGER PRIMARY KEY, applied_at REAL NOT NULL)",
        *(
            f"CREATE TABLE {name} (seq INTEGER PRIMARY KEY AUTOINCREMENT,"
            " key TEXT NOT NULL UNIQUE, doc TEXT NOT NULL)"
            for name in ("places", "leases", "turns")
        ),
        "CREATE TABLE learned (pool TEXT PRIMARY KEY, numbers TEXT NOT NULL) WITHOUT ROWID",
    ),
    JOBS,
    OWNERS,
)
"""One tuple of statements per version; a released one never changes, a change is a new one."""

SCHEMA_VERSION = len(MIGRATIONS)


def open_to_write(path: Path) -> sqlite3.Connection:
    """The owner's connection, with the schema of this version.

    The caller holds the lock. Raises sqlite3.Error, OSError, `NotOursError` or
    `JournalTooNewError`; the file is unharmed by any of them.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)  # SQLite gives its -wal and -shm files the same
    db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, cached_statements=256)
    try:
        _prepare(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    db.execute(NO_OTHER_DISK)
    version = check_version(db, path)
    if version == 0:
        db.execute("PRAGMA auto_vacuum=INCREMENTAL")  # before the first table or never
    mode = db.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise sqlite3.OperationalError(f"the file system allows no write-ahead log (mode {mode})")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("PRAGMA wal_autocheckpoint=0")  # the writer has a pace of its own
    db.execute("PRAGMA journal_size_limit=1048576")
    db.execute("PRAGMA foreign_keys=ON")
    db.execute("PRAGMA secure_delete=ON")  # what is dropped is overwritten, not only unlinked
    db.execute(f"PRAGMA busy_timeout={CHECKPOINT_WAIT_MS}")
    for number in range(version, SCHEMA_VERSION):
        _migrate(db, number)


def check_version(db: sqlite3.Connection, path: Path) -> int:
    """The schema's version; 0 = there is none yet. Raises `NotOursError` or
    `JournalTooNewError`."""
    version = _version(db, path)
    if version > SCHEMA_VERSION:
        raise JournalTooNewError(
            f"{path}: written by a newer version (schema {version}, this one knows "
            f"{SCHEMA_VERSION}); install that version again, or give journal.path another file"
        )
    return version


def _version(db: sqlite3.Connection, path: Path) -> int:
    ours: int = db.execute("PRAGMA application_id").fetchone()[0]
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    empty = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    if empty and version == 0:
        return 0
    if ours != APPLICATION_ID:
        raise NotOursError(
            f"{path}: a SQLite file of something else; give journal.path another file"
        )
    return version


def _migrate(db: sqlite3.Connection, number: int) -> None:
    """Apply migration `number` (from 0) as one transaction."""
    db.execute("BEGIN IMMEDIATE")
    try:
        for statement in MIGRATIONS[number]:
            db.execute(statement)
        db.execute("INSERT INTO migrations VALUES (?, ?)", (number + 1, time.time()))
        db.execute(f"PRAGMA application_id={APPLICATION_ID}")
        db.execute(f"PRAGMA user_version={number + 1}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def open_to_read(path: Path) -> sqlite3.Connection:
    """A connection that can't change anything, beside a running server or without one.

    Raises `JournalUnavailableError` with a sentence for people.
    """
    if not path.exists():
        raise JournalUnavailableError(f"{path}: no such file; is --data-dir the server's?")
    try:
        return _read_only(path, "mode=ro")
    except sqlite3.Error as error:
        # where even a reader's lock file can't be made: a copy, a disk that is read-only or full
        log = path.with_name(path.name + "-wal")
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_CANTOPEN and not log.exists():
            with suppress(sqlite3.Error):
                return _read_only(path, "mode=ro&immutable=1")
        raise JournalUnavailableError(explained(error, path)) from None


def _read_only(path: Path, how: str) -> sqlite3.Connection:
    address = f"file:{_quoted(path)}?{how}"
    db = sqlite3.connect(address, uri=True, timeout=BUSY_S, isolation_level=None)
    try:
        db.execute("PRAGMA query_only=ON")
        db.execute(NO_OTHER_DISK)
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error:
        db.close()
        raise
    return db


def _quoted(path: Path) -> str:
    return str(path.resolve()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
