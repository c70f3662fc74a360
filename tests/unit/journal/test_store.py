"""The store's promises: order, groups, errors of one's own, one owner, trouble that passes."""

# ruff: noqa: ASYNC110 - another thread has no event to wait for

from __future__ import annotations

import asyncio
import sqlite3
import stat
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from policy_server.journal.port import (
    Held,
    JournalClosedError,
    JournalError,
    JournalInUseError,
    JournalTooNewError,
    JournalUnavailableError,
    RequestContext,
)
from policy_server.journal.sqlite import housekeeping, inspect, writer
from policy_server.journal.sqlite import store as store_module
from policy_server.journal.sqlite.housekeeping import Step
from policy_server.journal.sqlite.journal import SqliteJournal
from policy_server.journal.sqlite.store import Store, StoreOptions
from tests.support.core_builders import request
from tests.unit.journal.harness import SqliteHarness


class Faults:
    """Strikes at a step: the error is raised there until `strike` is taken away."""

    def __init__(self) -> None:
        self.at: Step | None = None
        self.code = sqlite3.SQLITE_FULL
        self.seen: list[Step] = []

    def __call__(self, step: Step) -> None:
        self.seen.append(step)
        if step is self.at:
            error = sqlite3.OperationalError("injected")
            error.sqlite_errorcode = self.code
            raise error


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
async def store(tmp_path: Path, faults: Faults) -> AsyncIterator[Store]:
    opened = Store(StoreOptions(tmp_path / "new" / "journal.db", lock_wait_s=0.0, on_step=faults))
    opened.open()
    await opened.write_durably(lambda db: db.execute("CREATE TABLE t (n INTEGER UNIQUE)").rowcount)
    yield opened
    await opened.close()


def put(n: int) -> object:
    def op(db: sqlite3.Connection) -> int:
        db.execute("INSERT INTO t VALUES (?)", (n,))
        return n * 10

    return op


def numbers(db: sqlite3.Connection) -> list[int]:
    return [n for (n,) in db.execute("SELECT n FROM t ORDER BY rowid")]


async def test_a_durable_write_gives_its_result_and_is_there_to_read(store: Store) -> None:
    assert await store.write_durably(put(4)) == 40
    assert await store.read(numbers) == [4]


async def test_writes_keep_their_order_whoever_waits_for_them(store: Store) -> None:
    for n in range(50):
        store.write(put(n))
    waited = [store.write_durably(put(n)) for n in range(50, 60)]
    await asyncio.gather(*waited)
    assert await store.read(numbers) == list(range(60))


async def test_many_that_wait_share_few_commits(store: Store) -> None:
    before = store.stats().commits
    await asyncio.gather(*(store.write_durably(put(n)) for n in range(500)))
    assert store.stats().commits - before < 100


async def test_what_one_write_refuses_is_its_own_error(store: Store) -> None:
    class NoRoomError(JournalError):
        pass

    def refuse(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO t VALUES (99)")
        raise NoRoomError("no")

    good, clash, refused, last = (
        store.write_durably(op) for op in (put(1), put(1), refuse, put(2))
    )
    assert await good == 10
    assert await last == 20
    with pytest.raises(sqlite3.IntegrityError):
        await clash
    with pytest.raises(NoRoomError):
        await refused
    assert await store.read(numbers) == [1, 2]
    assert store.stats().healthy


async def test_the_reader_cannot_write(store: Store) -> None:
    with pytest.raises(sqlite3.OperationalError):
        await store.read(lambda db: db.execute("INSERT INTO t VALUES (1)"))


async def test_no_statement_needs_a_temporary_file(store: Store) -> None:
    """Large ones spill; where only the data directory can be written they would fail."""
    kept_in_memory = (2,)
    asked = [store.write_durably, store.read]
    for ask in asked:
        assert await ask(lambda db: db.execute("PRAGMA temp_store").fetchone()) == kept_in_memory


async def test_the_files_are_their_owners_only(store: Store) -> None:
    await store.write_durably(put(1))
    folder = store.path.parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
    assert {"journal.db", "journal.db-wal", "journal.db.lock"} <= modes.keys()
    assert set(modes.values()) == {0o600}


@pytest.mark.parametrize(("mode", "exposed"), [(0o600, False), (0o660, False), (0o604, True)])
async def test_who_else_may_read_it_is_a_finding_but_for_the_group(
    tmp_path: Path, mode: int, exposed: bool
) -> None:
    """Kubernetes gives a volume's files to a group of the pod's own."""
    journal = SqliteHarness(tmp_path).open()
    path = tmp_path / "journal.db"
    path.chmod(mode)
    found = inspect.findings(path)
    await journal.close()
    wanted = ["journal.db: everybody on this machine can read it; chmod 600"]
    assert found == (wanted if exposed else [])


async def test_one_owner_at_a_time(store: Store) -> None:
    second = Store(StoreOptions(store.path, lock_wait_s=0.0))
    with pytest.raises(JournalInUseError, match=r"in use by process \d+; stop that one"):
        second.open()
    await store.close()
    second = Store(StoreOptions(store.path, lock_wait_s=0.0))
    second.open()
    assert await second.read(numbers) == []
    await second.close()


@pytest.mark.parametrize("step", [Step.BEGIN, Step.APPEND, Step.COMMIT])
@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR])
async def test_trouble_fails_who_waits_keeps_the_rest_and_passes(
    store: Store, faults: Faults, step: Step, code: int
) -> None:
    await store.write_durably(put(1))
    faults.at, faults.code = step, code
    store.write(put(2))
    with pytest.raises(JournalUnavailableError, match="journal"):
        await store.write_durably(put(3))
    assert store.stats().error is not None
    with pytest.raises(JournalUnavailableError):  # at once: the disk is not asked every time
        await store.write_durably(put(4))
    faults.at = None
    async with asyncio.timeout(10):
        while not store.stats().healthy:
            await asyncio.sleep(0.02)
    assert await store.write_durably(put(5)) == 50
    assert await store.read(numbers) == [1, 2, 5]


async def test_a_disk_that_hangs_is_told_and_nobody_new_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "HANGS_S", 0.05)
    disk = threading.Event()

    def step(at: Step) -> None:
        if at is Step.COMMIT:
            disk.wait(30.0)

    store = Store(StoreOptions(tmp_path / "journal.db", on_step=step))
    store.open()
    first = store.write_durably(lambda _: 1)
    async with asyncio.timeout(20):
        while store.stats().healthy:
            await asyncio.sleep(0.01)
        assert "the disk has not answered for 0.05 s; look at it" in (store.error or "")
        with pytest.raises(JournalUnavailableError, match="has not answered"):
            await store.write_durably(lambda _: 2)
        assert not first.done()
        disk.set()
        monkeypatch.undo()
        assert await first == 1
        while store.error is not None:
            await asyncio.sleep(0.01)
        assert await store.write_durably(lambda _: 3) == 3
    await store.close()


async def test_a_damaged_file_is_not_touched_again(store: Store, faults: Faults) -> None:
    faults.at, faults.code = Step.COMMIT, sqlite3.SQLITE_CORRUPT
    with pytest.raises(JournalUnavailableError, match="journal verify"):
        await store.write_durably(put(3))
    faults.at = None
    store.write(put(4))
    with pytest.raises(JournalUnavailableError, match="damaged"):
        await store.write_durably(put(5))


async def test_writes_that_are_given_up_are_told(tmp_path: Path, faults: Faults) -> None:
    told: list[str] = []
    options = StoreOptions(tmp_path / "journal.db", on_step=faults, on_lost=told.append)
    store = Store(options)
    store.open()
    faults.at, faults.code = Step.COMMIT, sqlite3.SQLITE_CORRUPT
    store.write(put(1))
    store.write(put(2))
    await store.close()
    assert len(told) == 1
    assert told[0].startswith("2 writes are given up: ")


async def test_the_log_stays_bounded_and_free_pages_go_back(store: Store, faults: Faults) -> None:
    blob = b"x" * 100_000

    def fill(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE IF NOT EXISTS b (x BLOB)")
        db.execute("INSERT INTO b VALUES (?)", (blob,))

    await asyncio.gather(*(store.write_durably(fill) for _ in range(100)))
    await store.write_durably(lambda db: db.execute("DELETE FROM b").rowcount)
    async with asyncio.timeout(10):
        while (store.stats().size_bytes or 0) > 3_000_000:
            await asyncio.sleep(0.02)
    assert {Step.CHECKPOINT, Step.VACUUM} <= set(faults.seen)


@pytest.mark.parametrize("trouble", [False, True])
async def test_what_was_acknowledged_is_synced_in_time_whatever_else_can_wait(
    tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch, trouble: bool
) -> None:
    for pause in ("LAZY_S", "MAX_LAZY_S", "LINGER_S", "RETRY_S"):
        monkeypatch.setattr(writer, pause, 600.0)
    options = StoreOptions(tmp_path / "journal.db", "interval", 0.3, on_step=faults)
    journal = SqliteJournal(Store(options))
    journal.open()
    await journal.store.write_durably(lambda _: None)
    faults.at = Step.BEGIN if trouble else None
    journal.lease_granted(Held(request("a"), 1.0))
    async with asyncio.timeout(20):
        while Step.SYNC not in faults.seen:
            await asyncio.sleep(0.01)
    await journal.close()


async def test_where_no_thread_is_to_be_had_the_writer_goes_on(
    store: Store, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "CHECKPOINT_BYTES", 1)
    start = threading.Thread.start

    def starts(thread: threading.Thread) -> None:
        if thread.name.startswith("journal-copier"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starts)
    for n in range(20):
        assert await asyncio.wait_for(store.write_durably(put(n)), 10) == n * 10
    while Step.CHECKPOINT not in faults.seen:
        await asyncio.sleep(0.01)
    assert Step.COPY not in faults.seen
    assert store.stats().healthy


async def test_a_newer_versions_file_is_refused_and_left_alone(store: Store) -> None:
    await store.write_durably(lambda db: db.execute("PRAGMA user_version=999").rowcount)
    await store.close()
    with pytest.raises(JournalTooNewError, match="written by a newer version"):
        Store(StoreOptions(store.path)).open()
    with sqlite3.connect(store.path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (999,)


async def test_another_programs_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (x)")
    with pytest.raises(JournalError, match="something else"):
        Store(StoreOptions(path)).open()


async def test_who_waits_counts_as_unwritten_until_the_commit(tmp_path: Path) -> None:
    committing = threading.Event()

    def step(at: Step) -> None:
        if at is Step.COMMIT:
            committing.wait(10.0)

    journal = SqliteJournal(Store(StoreOptions(tmp_path / "journal.db", on_step=step)))
    journal.open()
    assert journal.stats().pending_writes == 0
    journal.append_waiting(request("a"), RequestContext())
    journal.append_waiting(request("b"), RequestContext())
    assert journal.stats().pending_writes == 2
    committing.set()
    await journal.flush()
    assert journal.stats().pending_writes == 0
    await journal.close()


async def test_a_closed_store_says_so(store: Store) -> None:
    await store.close()
    with pytest.raises(JournalClosedError):
        store.write(put(1))
    with pytest.raises(JournalClosedError):
        await store.read(numbers)


async def test_a_mistake_on_the_writers_thread_ends_one_turn_and_not_the_thread(
    tmp_path: Path,
) -> None:
    mistakes = [KeyError("a mistake")]

    def on_commit(_: float) -> None:
        if mistakes:
            raise mistakes.pop()

    options = StoreOptions(tmp_path / "journal.db", lock_wait_s=0.0, on_commit=on_commit)
    store = Store(options)
    store.open()
    async with asyncio.timeout(20):
        with pytest.raises(JournalUnavailableError, match="a mistake"):
            await store.write_durably(lambda _: None)
        while store.error is not None:
            await asyncio.sleep(0.01)
        await store.write_durably(lambda _: None)
        await store.close()
