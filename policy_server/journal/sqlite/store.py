"""The store: the door to the journal's file, on the event loop's side.

    write(op)            queue it and go on; it survives kill -9 from some milliseconds later
    write_durably(op)    awaitable: done, synced and on disk (`fsync: interval`: in the kernel's
                         hands); the result of `op`, or the error that it raised
    read(fn)             awaitable: `fn` on the reader's thread, on a connection that can't write
    add(table)           a table that adds its changes to each transaction by itself

`op` gets the connection inside a transaction that it shares with others, runs on the writer
thread, may run again (after trouble, or when a neighbour failed), and must not commit. Writes are
executed in the order in which they were queued. When the disk is in trouble `write_durably` and
`read` raise `JournalUnavailableError` and nothing of that write is kept; what came through `write`
is tried again until the disk takes it. Nothing here waits for the disk on the event loop but
`open`.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, cast

from policy_server.journal.port import (
    JournalClosedError,
    JournalError,
    JournalUnavailableError,
)
from policy_server.journal.sqlite.database import SCHEMA_VERSION, check_version, open_to_read
from policy_server.journal.sqlite.housekeeping import Step
from policy_server.journal.sqlite.trouble import explained, hanging, is_trouble
from policy_server.journal.sqlite.writer import Table, Writer, WriterOptions
from policy_server.journal.sqlite.writes import Write
from policy_server.process_lock import LOCK_WAIT_S

T = TypeVar("T")
Op = Callable[[sqlite3.Connection], T]
HANGS_S = 10.0
"""A commit takes milliseconds; one of many large bodies on a slow disk some seconds."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """`fsync`: `always` = before each acknowledgement; `interval` = every so many seconds."""

    path: Path
    fsync: Literal["always", "interval"] = "always"
    fsync_interval_s: float = 0.05
    lock_wait_s: float = LOCK_WAIT_S
    on_step: Callable[[Step], None] = lambda _: None
    on_commit: Callable[[float], None] = lambda _: None
    """Gets the seconds of each commit, on the writer's thread."""
    on_lost: Callable[[str], None] = lambda _: None
    """Gets what a write said that failed and that nobody waited for, on the writer's thread."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Its state now."""

    healthy: bool
    error: str | None
    pending: int
    size_bytes: int | None
    last_commit_s: float | None
    commits: int


class Store:
    """One journal file, owned from `open` to `close`. Use it on one event loop."""

    def __init__(self, options: StoreOptions) -> None:
        self._o = options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._reader = ThreadPoolExecutor(1, "journal-reader")
        self._read_db: sqlite3.Connection | None = None
        self._read_of = 0
        self._writer = Writer(
            WriterOptions(
                options.path,
                options.fsync,
                options.fsync_interval_s,
                options.lock_wait_s,
                self._call,
                options.on_step,
                options.on_commit,
                options.on_lost,
            )
        )

    @property
    def path(self) -> Path:
        """The file."""
        return self._o.path

    def add(self, table: Table) -> None:
        """Before `open`: a table that takes part in each transaction."""
        self._writer.state.tables.append(table)

    def touch(self, *, lazily: bool = False) -> None:
        """A table has something to write; `lazily`: it may take half a second."""
        if self._closed or self._loop is None:
            self._check_open()
        self._writer.touch(lazily=lazily)

    def open(self) -> None:
        """Take the file over, on the running event loop; waits for the disk, once.

        Raises `JournalInUseError`, `JournalTooNewError` or another `JournalError` for what a
        person has to mend first. A disk in trouble raises nothing: see `stats().error`.
        """
        self._loop = asyncio.get_running_loop()
        self._writer.start()
        self._writer.tried.wait()
        refused = self._writer.state.refused
        if refused is not None:
            self._closed = True
            self._writer.close()
            self._writer.join()
            raise refused

    # -- writing ------------------------------------------------------------------------------

    def write(self, op: Op[object]) -> None:
        """Queue `op`; nobody waits for it."""
        self._check_open()
        self._writer.put(Write(op))

    def write_durably(self, op: Op[T], *, sync: bool = False) -> asyncio.Future[T]:
        """Queue `op`; the future gets its result once that is on disk.

        `sync`: an fsync even with `fsync: interval`. Raises (through the future) what `op` raised,
        or `JournalUnavailableError`: then nothing of it is kept.
        """
        self._check_open()
        assert self._loop is not None
        future: asyncio.Future[T] = self._loop.create_future()
        state = self._writer.state
        waits = state.error is None or not (state.damaged or time.monotonic() < state.retry_at)
        if (why := self._hangs() if waits else state.error) is not None:
            future.set_exception(JournalUnavailableError(why))
            return future

        def settle(result: object, error: BaseException | None) -> None:
            if future.done():
                return  # who waited has gone; what was written stays written
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(cast("T", result))

        self._writer.put(Write(op, settle, sync))
        return future

    async def flush(self) -> None:
        """Return once everything queued so far is synced."""
        await self.write_durably(lambda _: None, sync=True)

    # -- reading ------------------------------------------------------------------------------

    async def read(self, fn: Op[T]) -> T:
        """`fn` on the reader's thread. It sees every commit that was acknowledged before."""
        self._check_open()
        assert self._loop is not None
        return await self._loop.run_in_executor(self._reader, self._read_now, fn)

    def _read_now(self, fn: Op[T]) -> T:
        try:
            if self._read_of != self._writer.state.opened:
                self._drop_reader()  # the writer has another file now
            if self._read_db is None:
                self._read_of = self._writer.state.opened
                self._read_db = self._reading()
            return fn(self._read_db)
        except sqlite3.Error as error:
            if not is_trouble(error) or error.sqlite_errorcode == sqlite3.SQLITE_READONLY:
                raise
            self._drop_reader()
            raise JournalUnavailableError(explained(error, self._o.path)) from None

    def _reading(self) -> sqlite3.Connection:
        """On a disk that was in trouble from the start the tables are not there yet, or those of
        an earlier version."""
        db = open_to_read(self._o.path)
        with suppress(JournalError):
            if check_version(db, self._o.path) == SCHEMA_VERSION:
                return db
        db.close()
        raise JournalUnavailableError(f"{self._o.path}: the disk has not taken its tables yet")

    def _drop_reader(self) -> None:
        if self._read_db is not None:
            with suppress(sqlite3.Error):
                self._read_db.close()
            self._read_db = None

    # -- state --------------------------------------------------------------------------------

    @property
    def error(self) -> str | None:
        """Why nothing can be written now, for people; None = all is well."""
        return self._writer.state.error or self._hangs()

    def _hangs(self) -> str | None:
        """Says so when the disk keeps the writer for too long, before it has failed."""
        since = self._writer.state.busy_since
        if since is None or time.monotonic() < since + HANGS_S:
            return None
        return hanging(self._o.path, HANGS_S)

    def stats(self) -> StoreStats:
        """Its state now; no disk is asked but for the file's size."""
        state = self._writer.state
        size = 0
        for suffix in ("", "-wal"):
            with suppress(OSError):
                size += self._o.path.with_name(self._o.path.name + suffix).stat().st_size
        return StoreStats(
            healthy=self.error is None,
            error=self.error,
            pending=self._writer.pending(),
            size_bytes=size,
            last_commit_s=state.last_commit_s,
            commits=state.commits,
        )

    async def close(self) -> None:
        """Write what is queued and let go of the file; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._loop is None:
            return
        self._writer.close()
        await asyncio.to_thread(self._writer.join)
        self._reader.submit(self._drop_reader)
        self._reader.shutdown()

    def _check_open(self) -> None:
        if self._closed or self._loop is None:
            raise JournalClosedError("the journal is closed")

    def _call(self, function: Callable[[], None]) -> None:
        """From the writer's thread into the event loop, which may have ended."""
        assert self._loop is not None
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)
