"""The writer thread: everything that waits goes into one transaction (group commit).

    queue → BEGIN → each write, then what the tables have to add → COMMIT
          → acknowledgements, one call into the event loop per commit

When only writes that nobody waits for are there, the writer lingers `LINGER_S` for more and
commits without fsync: they have to survive this process, not the machine. A commit with durable
writes is synced (`synchronous=FULL`, which also carries all commits before it), or, with `fsync:
interval`, acknowledged at once and synced within the interval.

Slots taken without a wait are written lazily: what has ended by then is never written at all. The
pause before it is as long as the writer needs to keep their cost at `LAZY_SHARE` of a core.

Trouble (full, read-only, I/O error …): the transaction is rolled back, its durable writes fail,
the others stay, and the next try comes after `RETRY_S`. A damaged file is not touched again. What
can't be written at the start may still be read: who waited is found in it.

Checkpoints and vacuuming: `housekeeping`.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from policy_server.journal.port import (
    JournalError,
    JournalTooNewError,
    JournalUnavailableError,
)
from policy_server.journal.sqlite.database import check_version, open_to_read, open_to_write
from policy_server.journal.sqlite.housekeeping import HouseKeeper, Step
from policy_server.journal.sqlite.ownership import make_folder, own
from policy_server.journal.sqlite.presence import MovedError, Presence
from policy_server.journal.sqlite.trouble import explained, is_damage, is_mistake
from policy_server.journal.sqlite.writes import Write, carry_out
from policy_server.process_lock import ProcessLock

LINGER_S = 0.01
LAZY_S = 0.08
"""At least so long: above the 50 ms in which Envoy tells of an end, so that the lease of a short
answer is never written at all."""
MAX_LAZY_S = 0.5
"""At most so long: what a crash may then not know of is what began in the last half second."""
LAZY_SHARE = 0.01
RETRY_S = 1.0
IDLE_S = 0.05
"""When nothing has come for so long, nothing waits for the house-keeping."""
MAX_KEPT = 20_000
"""Writes that nobody waits for, kept while the disk is in trouble; the oldest go first."""
PROBE = "UPDATE migrations SET applied_at = applied_at"
"""Changes nothing and is written all the same: after trouble it tells whether the disk takes it."""


class Table(Protocol):
    """Adds its changes to each transaction. All methods are called on the writer thread."""

    def opened(self, db: sqlite3.Connection) -> None:
        """The file is open, for the first time or again after trouble; inside no transaction."""
        ...

    def write(self, db: sqlite3.Connection) -> None:
        """Write what has changed since the last time; inside a transaction."""
        ...

    def settle(self, written: bool) -> None:
        """The transaction of the last `write` was committed, or rolled back: write it again."""
        ...


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """`call` runs a function on the event loop; `on_commit(seconds)` runs on the writer thread."""

    path: Path
    fsync: Literal["always", "interval"]
    fsync_interval_s: float
    lock_wait_s: float
    call: Callable[[Callable[[], None]], None]
    on_step: Callable[[Step], None] = lambda _: None
    on_commit: Callable[[float], None] = lambda _: None
    on_lost: Callable[[str], None] = lambda _: None


@dataclass(slots=True)
class WriterState:
    """Read by the event loop; each field is replaced as a whole."""

    error: str | None = None
    damaged: bool = False
    opened: int = 0
    refused: JournalError | None = None  # a newer version's or another program's file
    last_commit_s: float | None = None
    commits: int = 0
    retry_at: float = 0.0
    busy_since: float | None = None
    tables: list[Table] = field(default_factory=list)


class Writer(threading.Thread):
    """Owns the only connection that writes."""

    def __init__(self, options: WriterOptions) -> None:
        super().__init__(name="journal-writer", daemon=True)
        self.state = WriterState()
        self.tried = threading.Event()
        """Set once the file was opened, or could not be."""
        self._o = options
        self._db: sqlite3.Connection | None = None
        self._lock: ProcessLock | None = None
        self._house = HouseKeeper(options.path, options.on_step)
        self._presence = Presence(options.path)
        self._queue: deque[Write] = deque()
        self._wanted = threading.Condition()
        self._changed = False
        self._prompt = False
        self._urgent = False
        self._closing = False
        self._lazy_s = LAZY_S
        self._unsynced_since: float | None = None
        self._full_sync: bool | None = None

    # -- the event loop's side ------------------------------------------------------------------

    def put(self, write: Write) -> None:
        """Queue one write."""
        with self._wanted:
            self._queue.append(write)
            self._urgent = self._urgent or write.settle is not None
            self._prompt = True
            self._wanted.notify()

    def touch(self, *, lazily: bool = False) -> None:
        """A table has something to write."""
        if self._changed and (lazily or self._prompt):
            return
        with self._wanted:
            self._changed = True
            self._prompt = self._prompt or not lazily
            self._wanted.notify()

    def pending(self) -> int:
        """Writes that wait in the queue."""
        return len(self._queue)

    def close(self) -> None:
        """Write what is queued, then end."""
        with self._wanted:
            self._closing = True
            self._wanted.notify()

    # -- the thread -----------------------------------------------------------------------------

    def run(self) -> None:
        """Until `close`."""
        self._changed = self._ready() is None  # then it is tried again
        self.tried.set()
        while (batch := self._next()) is not None:
            self.state.busy_since = time.monotonic()
            try:
                self._turn(batch)
            except Exception as error:  # a mistake of ours: a thread that died would answer no one
                self._trouble(error)
                self._roll_back(batch)
            self.state.busy_since = None
        self._end()

    def _turn(self, batch: list[Write]) -> None:
        idle = not batch and not self._changed
        if not idle:
            began = time.thread_time()
            self._commit(batch)
            self._pace(time.thread_time() - began)
        self._sync_if_due()
        self._keep_house(idle)

    def _next(self) -> list[Write] | None:
        """What to write now, perhaps nothing (time for house-keeping); None = the end."""
        with self._wanted:
            if not self._queue and not self._changed and not self._closing:
                self._wanted.wait(self._patience())
            if not self._prompt and not self._closing and self._changed:
                pause = self._before_sync(self._lazy_s)
                self._wanted.wait_for(lambda: self._prompt or self._closing, pause)
            if not self._urgent and not self._closing:
                pause = self._before_sync(self._linger())
                self._wanted.wait_for(lambda: self._urgent or self._closing, pause)
            if self._closing and not self._queue and not self._changed:
                return None
            batch = list(self._queue)
            self._queue.clear()
            self._urgent = self._prompt = False
            return batch

    def _pace(self, used_s: float) -> None:
        """The pause before the next lazy commit, if that costs what this one did."""
        self._lazy_s = min(MAX_LAZY_S, max(LAZY_S, used_s / LAZY_SHARE))

    def _patience(self) -> float | None:
        if self._unsynced_since is not None:
            return self._before_sync(self._o.fsync_interval_s)
        return IDLE_S if self._house.wanted else None

    def _before_sync(self, pause_s: float) -> float:
        """`pause_s`, but no longer than until what was acknowledged has to be synced."""
        if self._unsynced_since is None:
            return pause_s
        due = self._unsynced_since + self._o.fsync_interval_s
        return min(pause_s, max(0.0, due - time.monotonic()))

    def _linger(self) -> float:
        if not self._queue and not self._changed:
            return 0.0
        return max(LINGER_S, self.state.retry_at - time.monotonic())

    def _ready(self) -> sqlite3.Connection | None:
        """The connection, opened if need be; None in trouble, with the state saying which."""
        state = self.state
        if self._db is not None or state.damaged or state.refused is not None:
            return self._db
        try:
            self._own()
            self._o.on_step(Step.OPEN)
            self._db = open_to_write(self._o.path)
            self._full_sync = True
            self._presence.opened()
            state.opened += 1
            for table in state.tables:
                table.opened(self._db)
        except JournalError as error:
            state.refused, state.error = error, str(error)
        except Exception as error:
            first = not self.tried.is_set()
            if is_mistake(error) and first:
                state.refused = JournalUnavailableError(explained(error, self._o.path))
            self._trouble(error)
            if first and not state.damaged and state.refused is None:
                self._look()
        return self._db

    def _look(self) -> None:
        """What is in the file, for as long as it can't be written."""
        if self._lock is None:
            return
        try:
            with contextlib.closing(open_to_read(self._o.path)) as db:
                check_version(db, self._o.path)
                for table in self.state.tables:
                    table.opened(db)
        except JournalTooNewError as error:
            self.state.refused, self.state.error = error, str(error)
        except (JournalError, sqlite3.Error, OSError) as error:
            if self._o.path.exists():  # else there is nothing to take back
                self.state.damaged = is_damage(error)
                why = explained(error, self._o.path)
                self.state.error = f"{self.state.error}; nor can it be read: {why}"

    def _own(self) -> None:
        if self._lock is None or self._lock.lost:
            make_folder(self._o.path.parent)
            first = not self.tried.is_set()
            self._lock = own(self._o.path, self._o.lock_wait_s if first else 0.0)

    def _commit(self, batch: list[Write]) -> None:
        began = time.monotonic()
        self._changed = False  # before the tables look: what comes later wakes the thread again
        db = self._ready()
        if db is None:
            self._roll_back(batch)
            return
        durable = any(write.settle is not None for write in batch)
        try:
            self._presence.check(db)
            self._transact(db, batch, durable)
        except Exception as error:
            self._trouble(error)
            self._roll_back(batch)
            return
        self._committed(batch, time.monotonic() - began)

    def _transact(self, db: sqlite3.Connection, batch: list[Write], durable: bool) -> None:
        full = (durable and self._o.fsync == "always") or any(write.sync for write in batch)
        if full is not self._full_sync:
            db.execute(f"PRAGMA synchronous={'FULL' if full else 'NORMAL'}")
            self._full_sync = full
        self._o.on_step(Step.BEGIN)
        db.execute("BEGIN IMMEDIATE")
        carry_out(db, batch, lambda: self._o.on_step(Step.APPEND))
        for table in self.state.tables:
            self._o.on_step(Step.APPEND)
            table.write(db)
        if self.state.error is not None:
            db.execute(PROBE)
        self._o.on_step(Step.COMMIT)
        db.execute("COMMIT")
        self._o.on_step(Step.COMMITTED)
        if full:
            self._unsynced_since = None
        elif durable and self._unsynced_since is None:
            self._unsynced_since = time.monotonic()

    def _committed(self, batch: list[Write], seconds: float) -> None:
        state = self.state
        state.error, state.retry_at = None, 0.0
        state.last_commit_s = seconds
        state.commits += 1
        for table in state.tables:
            table.settle(True)
        self._o.on_commit(seconds)
        self._o.on_step(Step.ACK)
        for write in batch:
            if write.settle is None and write.error is not None:
                self._o.on_lost(f"{type(write.error).__name__}: {write.error}")
        self._acknowledge(write for write in batch if write.settle is not None)

    def _acknowledge(self, writes: Iterable[Write]) -> None:
        waited = list(writes)

        def settle() -> None:
            for write in waited:
                if write.settle is not None:
                    write.settle(write.result, write.error)

        if waited:
            self._o.call(settle)

    # -- trouble --------------------------------------------------------------------------------

    def _trouble(self, error: BaseException) -> None:
        state = self.state
        state.error = explained(error, self._o.path)
        state.retry_at = time.monotonic() + RETRY_S
        state.damaged = state.damaged or is_damage(error)
        if self._db is not None and not (isinstance(error, MovedError) and error.keeps):
            with contextlib.suppress(sqlite3.Error):
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
            self._db = None

    def _roll_back(self, batch: list[Write]) -> None:
        """Durable writes fail; the others and the tables' changes stay for the next try."""
        state = self.state
        error = state.refused or JournalUnavailableError(state.error or "closed")
        for table in state.tables:
            table.settle(False)
        waited = [write for write in batch if write.settle is not None]
        for write in waited:
            write.result, write.error = None, error
        self._acknowledge(waited)
        kept = [write for write in batch if write.settle is None]
        for_good = self._closing or state.damaged or state.refused is not None
        lost = len(kept) if for_good else max(0, len(kept) - MAX_KEPT)
        with self._wanted:
            self._queue.extendleft(reversed(kept[lost:]))
            self._changed = not for_good
        if lost:
            self._o.on_lost(f"{lost} writes are given up: {error}")

    # -- when nothing waits ---------------------------------------------------------------------

    def _sync_if_due(self) -> None:
        since = self._unsynced_since
        if since is None or time.monotonic() < since + self._o.fsync_interval_s:
            return
        self._unsynced_since = None
        try:
            self._house.sync()
        except OSError as error:
            self._trouble(error)

    def _keep_house(self, idle: bool) -> None:
        if self._db is None:
            return
        try:
            self._house.work(self._db, idle)
        except (sqlite3.Error, OSError) as error:
            self._trouble(error)

    def _end(self) -> None:
        self._house.close()
        if self._db is not None:
            try:
                if self._unsynced_since is not None:
                    self._house.sync()
                self._db.close()  # checkpoints and removes the log
            except (sqlite3.Error, OSError) as error:
                self._trouble(error)
            self._db = None
        self._presence.close()
        if self._lock is not None:
            self._lock.release()
