"""A dictionary in memory and its copy on disk: places, leases, turns of tenants.

The event loop changes the dictionary; the writer takes what has changed since the last commit and
writes it with two statements, whatever their number: each statement costs the event loop a turn of
Python's lock. What a batch adds and takes away again never reaches the disk.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class Mirror(Generic[V]):
    """One table (seq, key, doc). Implements the writer's `Table`. `steady`: a row that changes
    stays where it is in the order; else it goes to the end.

    `to_text` gives a JSON document, ValueError when it can't; `from_text` gives None for what is
    none of its documents. Both run on the writer's thread.
    """

    def __init__(
        self,
        table: str,
        to_text: Callable[[V], str],
        from_text: Callable[[str], V | None],
        *,
        steady: bool = False,
    ) -> None:
        self.unreadable = 0
        """Rows that no version of this program wrote; they are left alone."""
        self._to_text = to_text
        self._from_text = from_text
        self._steady = steady
        rows = "SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?)"
        if steady:
            rows += " WHERE true ON CONFLICT (key) DO UPDATE SET doc = excluded.doc"
        self._insert = f"INSERT{'' if steady else ' OR REPLACE'} INTO {table} (key, doc) {rows}"
        self._delete = f"DELETE FROM {table} WHERE key IN (SELECT value FROM json_each(?))"
        self._select = f"SELECT key, doc FROM {table} ORDER BY seq"
        self._rows: dict[str, V] = {}
        self._changes: dict[str, V | None] = {}
        self._writing: dict[str, V | None] = {}
        self._in_file: set[str] = set()  # or on the way there
        self._lock = threading.Lock()
        self._loaded = False

    # -- the event loop's side ------------------------------------------------------------------

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def pending(self) -> int:
        """Rows that the file does not have, or still has, until the next commit."""
        return len(self._changes) + len(self._writing)

    def get(self, key: str) -> V | None:
        """What is kept under this key."""
        return self._rows.get(key)

    def put(self, key: str, value: V) -> None:
        """Keep `value`."""
        with self._lock:
            if not self._steady:
                self._rows.pop(key, None)
                self._changes.pop(key, None)  # so that it goes to the end
            self._rows[key] = value
            self._changes[key] = value

    def remove(self, key: str) -> bool:
        """Forget a key; whether the file has to hear of it."""
        if key not in self._rows:
            return False
        with self._lock:
            del self._rows[key]
            self._changes.pop(key, None)
            if key in self._in_file:
                self._changes[key] = None
                return True
        return False

    def remove_first(self) -> None:
        """Forget what was put least recently."""
        self.remove(next(iter(self._rows)))

    def load(self) -> list[tuple[str, V]]:
        """In order; from now on the dictionary is what counts, whatever the file says."""
        with self._lock:
            self._loaded = True
            return list(self._rows.items())

    # -- the writer's side ----------------------------------------------------------------------

    def opened(self, db: sqlite3.Connection) -> None:
        """Read the file; once it was loaded, the dictionary knows better than the file."""
        rows = db.execute(self._select).fetchall()
        read = ((key, self._from_text(doc)) for key, doc in rows)
        found = {key: value for key, value in read if value is not None}
        self.unreadable = len(rows) - len(found)
        known = {key for key, _ in rows}
        with self._lock:
            if not self._loaded:
                self._rows = {**found, **self._rows}
            stale: dict[str, V | None] = {k: None for k in found if k not in self._rows}
            new = {k: v for k, v in self._rows.items() if found.get(k) is not v}
            self._in_file = known
            self._changes = {**stale, **new}

    def write(self, db: sqlite3.Connection) -> None:
        """Bring the rows up to the dictionary."""
        with self._lock:
            self._writing, self._changes = self._changes, {}
            self._in_file.update(self._writing)
        gone = [key for key, value in self._writing.items() if value is None]
        new = [text for item in self._writing.items() if (text := self._pair(*item)) is not None]
        if gone:
            db.execute(self._delete, (json.dumps(gone),))
        if new:
            db.execute(self._insert, (f"[{','.join(new)}]",))

    def _pair(self, key: str, value: V | None) -> str | None:
        try:
            key.encode()  # a lone surrogate is no text
            return None if value is None else f"[{json.dumps(key)},{self._to_text(value)}]"
        except ValueError:
            return None  # known as long as this process lives

    def settle(self, written: bool) -> None:
        """Committed: done. Rolled back: `opened` compares anew, or it goes with the next one."""
        with self._lock:
            if written:
                gone = [k for k, v in self._writing.items() if v is None and k not in self._rows]
                self._in_file.difference_update(gone)
            else:
                again = {k: v for k, v in self._writing.items() if k not in self._changes}
                self._changes = {**again, **self._changes}
            self._writing = {}
