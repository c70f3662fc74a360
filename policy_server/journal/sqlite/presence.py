"""Is the file that is open still the one that a restart would find?

Who removes it takes its name only: SQLite goes on writing into a file that ends with the process,
and all that was accepted ends with it. So the file is looked for now and then. Where it is gone all
of it is written down anew, from what is open; where another one is in its place, that is somebody's
doing, and left alone. Only the log of the old one must not stay beside it: whoever opens the other
one would take it for that one's.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from policy_server.journal.sqlite.ownership import make_folder

LOOK_S = 1.0


class MovedError(OSError):
    """The file is not where it was. `keeps`: what is open is all there is, and must stay open."""

    def __init__(self, what: str, *, keeps: bool) -> None:
        super().__init__(None, what)
        self.keeps = keeps


class Presence:
    """Of one journal file. Use it on the writer's thread. It keeps the file by a handle that can do
    nothing but that: to close any other would end the locks that SQLite has on it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = path.with_name(path.name + "-wal")
        self._index = path.with_name(path.name + "-shm")
        self._file = -1
        self._log_file: tuple[int, int] | None = None
        self._next = 0.0
        self._moved: MovedError | None = None

    def opened(self) -> None:
        """It was opened just now."""
        self.close()
        self._file, self._moved = os.open(self._path, os.O_PATH | os.O_CLOEXEC), None

    def check(self, db: sqlite3.Connection) -> None:
        """Before a transaction. Raises `MovedError`: open the file again, unless that `keeps`."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + LOOK_S
            self._moved = self._look(db)
        if self._moved is not None:
            raise self._moved

    def _look(self, db: sqlite3.Connection) -> MovedError | None:
        found, ours = _identity(self._path), os.fstat(self._file)
        if found == (ours.st_dev, ours.st_ino):
            self._log_file = _identity(self._log)
            return None
        if found is not None:
            if self._log_file is not None and _identity(self._log) == self._log_file:
                self._unlink_log()
            what = "another file is in its place; restart the server to use that one"
            return MovedError(what, keeps=True)
        try:
            self._write_anew(db)
        except (OSError, sqlite3.Error) as error:
            return MovedError(f"was removed, and can't be written anew: {error}", keeps=True)
        return MovedError("was removed, and is written anew; nothing is lost", keeps=False)

    def _write_anew(self, db: sqlite3.Connection) -> None:
        make_folder(self._path.parent)
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            self._unlink_log()
            db.execute("VACUUM INTO ?", (str(self._path),))
        except BaseException:
            self._path.unlink(missing_ok=True)
            raise

    def close(self) -> None:
        """Let go of it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _unlink_log(self) -> None:
        self._log.unlink(missing_ok=True)
        self._index.unlink(missing_ok=True)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
