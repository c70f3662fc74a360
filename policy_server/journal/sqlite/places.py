"""Who waits, as rows. What a batch adds and takes away again never reaches the disk.

The event loop changes a mirror in memory; the writer takes what has changed since the last commit
and writes it with two statements, whatever their number: each statement costs the event loop a
turn of Python's lock.
"""

from __future__ import annotations

import json
import sqlite3
import threading

from policy_server.journal.port import Place
from policy_server.journal.records import place_from_json, place_to_json

INSERT = (
    "INSERT OR REPLACE INTO places (uid, doc)"
    " SELECT json_extract(value, '$.uid'), value FROM json_each(?)"
)
DELETE = "DELETE FROM places WHERE uid IN (SELECT value FROM json_each(?))"


class PlacesTable:
    """The mirror and its changes. Implements the writer's `Table`."""

    def __init__(self) -> None:
        self.unreadable = 0
        """Rows that no version of this program wrote; they are left alone."""
        self._mirror: dict[str, Place] = {}
        self._changes: dict[str, Place | None] = {}
        self._writing: dict[str, Place | None] = {}
        self._in_file: set[str] = set()  # or on the way there
        self._lock = threading.Lock()
        self._loaded = False

    # -- the event loop's side ------------------------------------------------------------------

    def put(self, place: Place) -> bool:
        """Keep a place; whether it is a new one."""
        uid = place.request.uid
        if uid in self._mirror:
            return False
        with self._lock:
            self._mirror[uid] = place
            self._changes.pop(uid, None)  # so that it goes to the end
            self._changes[uid] = place
        return True

    def remove(self, uid: str) -> bool:
        """Forget a place; whether the file has to hear of it."""
        if uid not in self._mirror:
            return False
        with self._lock:
            del self._mirror[uid]
            self._changes.pop(uid, None)
            if uid in self._in_file:
                self._changes[uid] = None
                return True
        return False

    def load(self) -> list[Place]:
        """In the order in which they were taken; from now on the mirror is what counts."""
        with self._lock:
            self._loaded = True
            return list(self._mirror.values())

    def __len__(self) -> int:
        return len(self._mirror)

    # -- the writer's side ----------------------------------------------------------------------

    def opened(self, db: sqlite3.Connection) -> None:
        """Read who waited; once that was asked for, the mirror knows better than the file."""
        found = self._read(db)
        known = {uid for (uid,) in db.execute("SELECT uid FROM places")}
        with self._lock:
            if not self._loaded:
                self._mirror = {**found, **self._mirror}
            stale: dict[str, Place | None] = {u: None for u in known if u not in self._mirror}
            new = {u: p for u, p in self._mirror.items() if u not in known}
            self._in_file = known
            self._changes = {**stale, **new}

    def _read(self, db: sqlite3.Connection) -> dict[str, Place]:
        found = {}
        for uid, doc in db.execute("SELECT uid, doc FROM places ORDER BY seq"):
            place = place_from_json(doc)
            if place is None:
                self.unreadable += 1
            else:
                found[uid] = place
        return found

    def write(self, db: sqlite3.Connection) -> None:
        """Bring the rows up to the mirror."""
        with self._lock:
            self._writing, self._changes = self._changes, {}
            self._in_file.update(self._writing)
        gone = [uid for uid, place in self._writing.items() if place is None]
        new = [text for place in self._writing.values() if (text := _text(place)) is not None]
        if gone:
            db.execute(DELETE, (json.dumps(gone),))
        if new:
            db.execute(INSERT, (f"[{','.join(new)}]",))

    def settle(self, written: bool) -> None:
        """Committed: done. Rolled back: `opened` compares anew, or it goes with the next one."""
        with self._lock:
            if written:
                gone = [u for u, p in self._writing.items() if p is None and u not in self._mirror]
                self._in_file.difference_update(gone)
            else:
                again = {u: p for u, p in self._writing.items() if u not in self._changes}
                self._changes = {**again, **self._changes}
            self._writing = {}


def _text(place: Place | None) -> str | None:
    try:
        return None if place is None else place_to_json(place)
    except ValueError:
        return None  # it has its place as long as this process lives
