"""What can still be read of a damaged journal, in a new one in its place.

Row by row; what lies between two places that can't be read is halved until nothing is left that
can. The damaged file is kept beside it under another name. Nothing of the
schema is needed but what the file itself says, so one of an earlier version is migrated at the next
start like any other.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from policy_server.journal.jobs import MAX_EVENTS
from policy_server.journal.port import JournalError, JournalUnavailableError
from policy_server.journal.sqlite.database import APPLICATION_ID, NO_OTHER_DISK, open_to_read
from policy_server.journal.sqlite.inspect import damage_of
from policy_server.journal.sqlite.ownership import own
from policy_server.journal.sqlite.trouble import NotOursError, explained, is_damage
from policy_server.private_file import sync_folder

MOST_TRIES = 200_000
"""Places in a table that can't be read, before the rest between them is given up."""
Row = tuple[object, ...]


@dataclass(slots=True)
class Salvaged:
    """`rows` that were saved, by table; `lost`: at most so many were not. `damaged`: where the old
    file is now."""

    damaged: Path
    rows: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)


class _UnreadableError(Exception):
    """A page on the way to the row is broken."""


def salvage(path: Path) -> Salvaged:
    """Replace a damaged journal by what can be read of it.

    Raises `JournalInUseError` while a server has it; another `JournalError` when it is sound, when
    nothing can be read or when the disk fails; OSError where nothing can be written. The file is
    then as it was.
    """
    lock = own(path, wait_s=0.0)
    new = path.with_name(path.name + ".salvaged")
    try:
        found = Salvaged(_free_name(path))
        new.unlink(missing_ok=True)
        with contextlib.closing(_open_damaged(path)) as old:
            _copy(old, new, path, found)
        found.damaged.hardlink_to(path)
        log = path.with_name(path.name + "-wal")
        if log.exists():
            log.rename(found.damaged.with_name(found.damaged.name + "-wal"))
        path.with_name(path.name + "-shm").unlink(missing_ok=True)
        new.replace(path)  # at no moment is there none: a server would begin an empty one
        sync_folder(path.parent)
        return found
    finally:
        new.unlink(missing_ok=True)
        new.with_name(new.name + "-journal").unlink(missing_ok=True)
        lock.release()


def _free_name(path: Path) -> Path:
    names = (path.with_name(f"{path.name}.damaged{number or ''}") for number in count())
    return next(name for name in names if not name.exists())


def _open_damaged(path: Path) -> sqlite3.Connection:
    try:
        db = open_to_read(path)
    except JournalUnavailableError as error:
        if error.__context__ is None or not is_damage(error.__context__):
            raise
        raise JournalUnavailableError(
            f"{path}: nothing can be read in it; move it and its -wal away, keep both, and start "
            "the server"
        ) from None
    db.text_factory = lambda raw: raw.decode("utf-8", "replace")
    try:
        if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise NotOursError(f"{path}: a SQLite file of something else")
        if not damage_of(db):
            raise JournalError(f"{path}: sound, there is nothing to salvage")
    except BaseException:
        db.close()
        raise
    return db


def _copy(old: sqlite3.Connection, new: Path, path: Path, found: Salvaged) -> None:
    """Raises `JournalUnavailableError`."""
    new.touch(0o600)
    into = sqlite3.connect(new, isolation_level=None)
    try:
        into.execute(NO_OTHER_DISK)
        tables = _same_schema(old, into)
        into.execute("BEGIN")
        for table in tables:
            found.rows[table] = _copy_table(_Reader(old, table, found), into)
        for table, number, *_ in into.execute("PRAGMA foreign_key_check").fetchall():
            into.execute(f'DELETE FROM "{table}" WHERE rowid = ?', (number,))  # its job is lost
            found.rows[table] -= 1
            found.lost[table] = found.lost.get(table, 0) + 1
        into.execute("COMMIT")
    except sqlite3.Error as error:
        raise JournalUnavailableError(explained(error, path if is_damage(error) else new)) from None
    finally:
        into.close()


def _same_schema(old: sqlite3.Connection, into: sqlite3.Connection) -> list[str]:
    """What the file says that it is, with nothing in it; the names of its tables."""
    into.execute("PRAGMA auto_vacuum=INCREMENTAL")
    into.execute("PRAGMA secure_delete=ON")
    for pragma in ("application_id", "user_version"):
        into.execute(f"PRAGMA {pragma}={old.execute(f'PRAGMA {pragma}').fetchone()[0]}")
    made = old.execute(
        "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL"
        " AND name NOT LIKE 'sqlite_%' ORDER BY type != 'table', rowid"
    ).fetchall()
    for _, _, statement in made:
        into.execute(statement)
    return [name for kind, name, _ in made if kind == "table"]


def _copy_table(reader: _Reader, into: sqlite3.Connection) -> int:
    about = into.execute(f'PRAGMA table_info("{reader.table}")').fetchall()
    names = [f'"{name}"' for _, name, *_ in about]
    rows = reader.few_rows()
    if reader.has_rowid:
        rows = reader.rows()
        if any(kind == "INTEGER" and key for _, _, kind, _, _, key in about):
            rows = (row[1:] for row in rows)  # a column of its own has the number
        else:
            names.insert(0, "rowid")
    columns, values = ", ".join(names), ", ".join("?" * len(names))
    insert = f'INSERT OR IGNORE INTO "{reader.table}" ({columns}) VALUES ({values})'
    return sum(into.execute(insert, row).rowcount for row in rows)


class _Reader:
    """What can be read of one table."""

    def __init__(self, db: sqlite3.Connection, table: str, found: Salvaged) -> None:
        self.table = table
        self._db = db
        self._found = found
        self._tries = MOST_TRIES
        try:
            db.execute(f'SELECT rowid FROM "{table}" LIMIT 0')
            self.has_rowid = True
        except sqlite3.OperationalError:
            self.has_rowid = False

    def few_rows(self) -> Iterator[Row]:
        """Of a table whose rows have no number: up to the first damage."""
        try:
            yield from self._db.execute(f'SELECT * FROM "{self.table}"')
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            self._lose(1)

    def rows(self) -> Iterator[Row]:
        """Each with its number in front, in no order."""
        due = deque([(0, self._end())])
        while due:
            low, high = due.popleft()
            for up in (True, False):
                while low + 1 < high:
                    try:
                        row = self._next(low, high, up=up)
                    except _UnreadableError:
                        break
                    if row is None:
                        low = high
                        break
                    low, high = (int(str(row[0])), high) if up else (low, int(str(row[0])))
                    yield row
            if low + 2 < high and self._tries:
                self._tries -= 1
                middle = (low + high) // 2
                due += [(low, middle + 1), (middle, high)]
            elif low + 1 < high:
                self._lose(high - low - 1)

    def _next(self, low: int, high: int, *, up: bool) -> Row | None:
        """One at a time: a statement that fails takes the row before along."""
        order = "" if up else " DESC"
        query = (
            f'SELECT rowid, * FROM "{self.table}" NOT INDEXED WHERE rowid > ? AND rowid < ?'
            f" ORDER BY rowid{order} LIMIT 1"
        )
        row: Row | None
        try:
            row = self._db.execute(query, (low, high)).fetchone()
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            raise _UnreadableError from None
        if row is not None and not low < int(str(row[0])) < high:
            raise _UnreadableError  # a page that points to another one's place
        return row

    def _end(self) -> int:
        """Above the number of each row."""
        with contextlib.suppress(_UnreadableError):
            last = self._next(0, 2**63 - 1, up=False)
            return 1 if last is None else int(str(last[0])) + 1
        with contextlib.suppress(sqlite3.Error):
            known = self._db.execute("SELECT max(seq) FROM sqlite_sequence").fetchone()[0]
            return MAX_EVENTS * int(known or 0) + MOST_TRIES
        return MOST_TRIES

    def _lose(self, rows: int) -> None:
        self._found.lost[self.table] = self._found.lost.get(self.table, 0) + rows
