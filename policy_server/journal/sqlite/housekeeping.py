"""Checkpoints and vacuuming, at a pace of their own.

    log ≥ `CHECKPOINT_BYTES`, busy   copy it into the file on a thread beside the writer; once all
                                     is copied SQLite begins the log anew by itself
    the same, and nothing waits      checkpoint: the log is emptied and cut
    log > `MAX_LOG_BYTES`            the same, whoever waits
    more than `KEPT_PAGES` free      give some back, then checkpoint, when nothing waits

A reader (the command line) can keep a checkpoint from finishing; the next try then comes after
`PAUSE_S`. But for the copying it runs on the writer's thread, on its connection.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from enum import Enum
from pathlib import Path

CHECKPOINT_BYTES = 1024 * 1024
MAX_LOG_BYTES = 32 * 1024 * 1024
KEPT_PAGES = 256  # 1 MB
VACUUM_PAGES = 1024  # some milliseconds of work
PAUSE_S = 5.0
COPY_PAUSE_S = 0.1
COPY_PASSES = 5
"""What is written meanwhile is left for the next pass; the last ones have little to do."""


class Step(Enum):
    """Where a crash or a fault may strike the writer; tests enumerate these."""

    OPEN = "open"
    BEGIN = "begin"
    APPEND = "append"
    COMMIT = "commit"
    COMMITTED = "committed"
    SYNC = "sync"
    ACK = "ack"
    COPY = "copy"
    CHECKPOINT = "checkpoint"
    VACUUM = "vacuum"


class HouseKeeper:
    """Keeps one journal's files small."""

    def __init__(self, path: Path, on_step: Callable[[Step], None]) -> None:
        self._path = path
        self._log = path.with_name(path.name + "-wal")
        self._on_step = on_step
        self._log_bytes = 0
        self._free_pages = 0
        self._not_before = 0.0
        self._beside = ThreadPoolExecutor(1, "journal-copier")
        self._copying: Future[None] | None = None
        self._copied_at = 0.0

    @property
    def wanted(self) -> bool:
        """Whether there is something to do once nothing waits."""
        return self._log_bytes >= CHECKPOINT_BYTES or self._free_pages > 0

    def work(self, db: sqlite3.Connection, idle: bool) -> None:
        """Do one piece of what is due. Raises what the disk says."""
        self._log_bytes = _size(self._log)
        if time.monotonic() < self._not_before:
            return
        if self._log_bytes > MAX_LOG_BYTES or (idle and self.wanted):
            self._vacuum(db)
            self._checkpoint(db)
        elif self._log_bytes >= CHECKPOINT_BYTES:
            self._copy()

    def _copy(self) -> None:
        if self._copying is not None and not self._copying.done():
            return
        if time.monotonic() < self._copied_at + COPY_PAUSE_S:
            return
        self._copied_at = time.monotonic()
        with suppress(RuntimeError):  # no thread to be had: the writer does it, later
            self._copying = self._beside.submit(_copy, self._path, self._on_step)

    def close(self) -> None:
        """Before the writer closes its connection: the last one to be closed tidies up."""
        self._beside.shutdown()

    def _vacuum(self, db: sqlite3.Connection) -> None:
        if self._free_pages:
            self._on_step(Step.VACUUM)
            # not `execute`: that takes one step of the statement, which is one page
            db.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")

    def _checkpoint(self, db: sqlite3.Connection) -> None:
        self._on_step(Step.CHECKPOINT)
        busy, _, _ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        self._not_before = time.monotonic() + PAUSE_S if busy else 0.0
        free = db.execute("PRAGMA freelist_count").fetchone()[0]
        self._free_pages = free if free > KEPT_PAGES else 0
        self._log_bytes = _size(self._log)

    def sync(self) -> None:
        """Have the kernel write the log down (`fsync: interval`)."""
        self._on_step(Step.SYNC)
        try:
            file = os.open(self._log, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # checkpointed and gone: a checkpoint syncs
        try:
            os.fsync(file)
        finally:
            os.close(file)


def _copy(path: Path, on_step: Callable[[Step], None]) -> None:
    """The log into the file, while the writer goes on. What fails here the writer meets as well."""
    with suppress(sqlite3.Error, OSError), closing(_connect(path)) as db:
        for _ in range(COPY_PASSES):
            on_step(Step.COPY)
            _, pages, copied = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if copied >= pages:
                return


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, isolation_level=None)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
