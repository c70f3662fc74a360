"""The disk is full, read-only, damaged, someone else's: who waits goes on, `verify` says why."""

# ruff: noqa: ASYNC110, ASYNC221 - a thread and a disk have no event to wait for

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from policy_server.app.journal_command import run_journal
from policy_server.config import Config
from policy_server.core.request import Priority, Request
from policy_server.journal.port import (
    Held,
    JournalInUseError,
    JournalUnavailableError,
    RequestContext,
)
from policy_server.journal.sqlite import inspect
from policy_server.journal.sqlite.housekeeping import Step
from policy_server.journal.sqlite.jobs import SqliteJobs
from policy_server.journal.sqlite.journal import SqliteJournal
from policy_server.journal.sqlite.presence import LOOK_S
from policy_server.journal.sqlite.store import Store, StoreOptions
from policy_server.journal.sqlite.tail import ring_of
from tests.crash.jobs_scenario import new_job
from tests.support.small_disk import SmallDisk, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as mounted:
        yield mounted


def request(n: int) -> Request:
    return Request(f"u{n}", "chat", Priority.P1, float(n), n + 60.0, path="/v1/" + "x" * 400)


def opened(path: Path, disk: SmallDisk | None = None) -> SqliteJournal:
    on_step = disk.on_step if disk is not None else lambda _: None
    journal = SqliteJournal(Store(StoreOptions(path, lock_wait_s=0.0, on_step=on_step)))
    journal.open()
    return journal


async def until_healthy(journal: SqliteJournal, healthy: bool) -> None:
    async with asyncio.timeout(15):
        while journal.stats().healthy is not healthy:
            await asyncio.sleep(0.02)


def uids(journal: SqliteJournal) -> list[str]:
    return [place.request.uid for place in journal.load()]


async def uids_of_a_copy(path: Path, folder: Path) -> list[str]:
    """Who waits there, for a server that can write."""
    shutil.copytree(path.parent, folder, ignore=lambda *_: ["filler"])
    if ring_of(path).exists():
        shutil.copyfile(ring_of(path), ring_of(folder / path.name))
        ring_of(folder / path.name).chmod(0o600)
    journal = opened(folder / path.name)
    found = uids(journal)
    await journal.close()
    return found


def verify(path: Path) -> tuple[int, str]:
    console = Console(record=True, width=400, file=open("/dev/null", "w"))  # noqa: SIM115
    config = Config.model_validate({"journal": {"path": str(path)}})
    return run_journal("verify", config, path.parent, console), console.export_text()


async def test_a_disk_that_fills_up_and_has_room_again_loses_nothing(disk: SmallDisk) -> None:
    path = disk.path / "journal.db"
    journal = opened(path, disk)
    journal.append_waiting(request(0), RequestContext())
    accepted = await journal.store.write_durably(lambda db: db.execute("SELECT 7").fetchone()[0])
    assert accepted == 7
    disk.fill()
    for n in range(1, 2_000):
        journal.append_waiting(request(n), RequestContext())
    await until_healthy(journal, False)
    assert "the disk is full; free some space" in (journal.stats().error or "")
    with pytest.raises(JournalUnavailableError, match="the disk is full"):
        await journal.store.write_durably(lambda _: None)
    for n in range(1, 1_990):
        journal.remove(f"u{n}")
    assert len(uids(journal)) == 11
    disk.free()
    await until_healthy(journal, True)
    await journal.flush()
    await journal.close()
    again = opened(path)
    assert uids(again) == ["u0", *(f"u{n}" for n in range(1_990, 2_000))]
    await again.close()
    assert verify(path) == (0, f"{path}: sound\n")


async def test_a_disk_that_is_full_at_the_start_is_used_once_it_has_room(disk: SmallDisk) -> None:
    path = disk.path / "journal.db"
    before = opened(path, disk)
    before.append_waiting(request(0), RequestContext())
    await before.close()
    disk.fill()
    journal = opened(path, disk)
    journal.load()
    for n in range(1, 2_000):  # more than its last page can take
        journal.append_waiting(request(n), RequestContext())
    await until_healthy(journal, False)
    for n in range(2, 2_000):
        journal.remove(f"u{n}")
    disk.free()
    await until_healthy(journal, True)
    await journal.close()
    assert "u1" in [place.request.uid for place in inspect.places(path)]


async def test_a_read_only_disk_is_no_reason_not_to_serve(disk: SmallDisk) -> None:
    path = disk.path / "journal.db"
    before = opened(path)
    before.append_waiting(request(0), RequestContext())
    before.append_waiting(request(1), RequestContext())
    before.release(Held(request(1), 1.0), None)
    await before.close()
    disk.read_only(True)
    journal = opened(path, disk)
    assert uids(journal) == ["u0"], "its place is read where it can't be written"
    assert [held.request.uid for held in journal.load_leases()] == ["u1"]
    journal.append_waiting(request(2), RequestContext())
    assert not journal.stats().healthy
    with pytest.raises(JournalUnavailableError, match="read-only"):
        await journal.flush()
    await journal.close()
    assert [place.request.uid for place in inspect.places(path)] == ["u0"]


async def test_places_that_can_be_neither_written_nor_read_are_told(disk: SmallDisk) -> None:
    path = disk.path / "journal.db"
    before = opened(path)
    before.append_waiting(request(0), RequestContext())
    await before.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"\xff" * (len(whole) - 100))
    disk.read_only(True)
    journal = opened(path, disk)
    assert uids(journal) == []
    error = journal.stats().error or ""
    assert "read-only" in error
    assert "nor can it be read" in error
    await journal.close()


@pytest.mark.parametrize("end", ["clean", "killed"])
async def test_a_disk_that_can_be_written_again_goes_on_where_it_stood(
    end: str, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", "8m") as disk:
        await written_again(end, disk, tmp_path)


async def written_again(end: str, disk: SmallDisk, tmp_path: Path) -> None:
    path = disk.path / "journal.db"
    if end == "killed":  # what it knew is in the log, and in the ring of the last releases
        command = [sys.executable, "-m", "tests.crash.victim", str(path), Step.COMMIT.value, "9"]
        subprocess.run(command, timeout=60, check=False)
        assert path.with_name("journal.db-wal").stat().st_size
    else:
        before = opened(path)
        before.append_waiting(request(0), RequestContext())
        await before.close()
    expected = await uids_of_a_copy(path, tmp_path / "copy")
    assert expected
    disk.read_only(True)
    journal = opened(path, disk)
    assert uids(journal) == expected
    journal.remove(expected[0])
    journal.append_waiting(request(7_000), RequestContext())
    disk.read_only(False)
    await until_healthy(journal, True)
    await journal.close()
    assert await uids_of_a_copy(path, tmp_path / "again") == [*expected[1:], "u7000"]


@pytest.mark.parametrize(
    ("at", "damage", "told", "advice"),
    [
        (0, b"nonsense" * 20, "file is not a database", "move the file and its -wal away"),
        (100, b"\xff" * 4000, "malformed", "run 'policy-server journal salvage'"),
    ],
)
async def test_a_damaged_file_is_left_as_it_is_and_explained(
    tmp_path: Path, at: int, damage: bytes, told: str, advice: str
) -> None:
    path = tmp_path / "journal.db"
    before = opened(path)
    for n in range(200):
        before.append_waiting(request(n), RequestContext())
    await before.close()
    raw = bytearray(path.read_bytes())
    raw[at : at + len(damage)] = damage
    path.write_bytes(raw)
    code, said = verify(path)
    assert code == 1
    assert told in said
    assert "says more" not in said, "who asks 'journal verify' is not sent there"
    journal = opened(path)
    journal.append_waiting(request(1), RequestContext())
    assert advice in (journal.stats().error or "")
    with pytest.raises(JournalUnavailableError, match=advice):
        await journal.flush()
    await journal.close()
    assert path.read_bytes() == raw


async def test_verify_says_which_part_is_damaged(tmp_path: Path) -> None:
    """SQLite's own check stops with an error at a broken page, and its findings with it."""
    path = tmp_path / "journal.db"
    before = opened(path)
    for n in range(200):
        before.append_waiting(request(n), RequestContext())
    await before.close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    raw = path.read_bytes()
    page = next(at for at in range(4096, len(raw), 4096) if b"u150" in raw[at : at + 4096])
    path.write_bytes(raw[:page] + b"\xaa" * 4096 + raw[page + 4096 :])
    code, said = verify(path)
    assert code == 1
    assert f"Page {page // 4096 + 1}" in said
    assert "damaged tables: places" in said
    assert "run `policy-server journal salvage`" in said


async def test_records_that_nobody_wrote_are_told_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = opened(path)
    rows = [("x", "{}"), ("y", "no json"), ("z", '{"uid": 7, "priority": 99}')]
    for row in rows:
        await journal.store.write_durably(
            lambda db, row=row: db.execute("INSERT INTO places (key, doc) VALUES (?, ?)", row)
        )
    await journal.close()
    again = opened(path)
    again.append_waiting(request(1), RequestContext())
    assert uids(again) == ["u1"]
    await again.close()
    code, said = verify(path)
    assert (code, "places: 3 records that can't be read" in said) == (1, True)


async def test_a_newer_versions_journal_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = opened(path)
    await journal.store.write_durably(lambda db: db.execute("PRAGMA user_version=99").rowcount)
    await journal.close()
    code, said = verify(path)
    assert (code, "written by a newer version (schema 99" in said) == (1, True)


async def test_another_process_owns_it_until_it_dies(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    command = [sys.executable, "-m", "tests.crash.victim", str(path), "sync", "1"]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    with pytest.raises(JournalInUseError, match=f"in use by process {process.pid}; stop that one"):
        opened(path)
    assert verify(path)[0] == 0  # beside the running process
    process.kill()
    await process.wait()
    await opened(path).close()


async def test_a_path_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalUnavailableError, match=r"does its folder exist"):
        opened(tmp_path / "file" / "journal.db")
    with pytest.raises(JournalUnavailableError, match=r"a folder; give journal\.path a file"):
        opened(tmp_path)
    with pytest.raises(JournalUnavailableError, match="no such file"):
        inspect.summary(tmp_path / "none")


@pytest.mark.parametrize("folder_too", [False, True])
async def test_a_file_that_is_removed_under_a_running_server_is_written_anew(
    tmp_path: Path, *, folder_too: bool
) -> None:
    path = tmp_path / "data" / "journal.db"
    journal = opened(path)
    jobs = SqliteJobs(journal.store)
    await jobs.load()
    await jobs.accept(new_job(1))
    journal.append_waiting(request(1), RequestContext())
    await journal.flush()
    if folder_too:
        shutil.rmtree(path.parent)
    else:
        for file in path.parent.glob("journal.db*"):
            file.unlink()
    async with asyncio.timeout(15):
        while not path.exists():
            journal.append_waiting(request(2), RequestContext())
            journal.remove("u2")
            await asyncio.sleep(0.05)
    await until_healthy(journal, True)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(JournalInUseError):
        opened(path)
    assert not (await jobs.accept(new_job(2))).existing
    ids = {new_job(n).job.id for n in (1, 2)}
    assert {job.id for job in await jobs.listed(None, 10)} == ids
    await journal.close()
    assert verify(path)[0] == 0
    again = opened(path)
    assert uids(again) == ["u1"]
    jobs = SqliteJobs(again.store)
    await jobs.load()
    assert {job.id for job in await jobs.listed(None, 10)} == ids
    assert await jobs.request(new_job(1).job.id) == new_job(1).request
    await again.close()


async def test_another_file_in_its_place_is_left_alone_and_nothing_more_is_promised(
    tmp_path: Path,
) -> None:
    path, other = tmp_path / "journal.db", tmp_path / "other.db"
    theirs = opened(other)
    theirs.append_waiting(request(7), RequestContext())
    await theirs.close()
    before = other.read_bytes()
    journal = opened(path)
    jobs = SqliteJobs(journal.store)
    await jobs.load()
    await jobs.accept(new_job(0))
    await asyncio.sleep(LOOK_S)  # it is looked for so often
    other.replace(path)
    await asyncio.sleep(LOOK_S)
    with pytest.raises(JournalUnavailableError, match="another file is in its place"):
        await jobs.accept(new_job(1))
    assert await jobs.request(new_job(0).job.id) == new_job(0).request
    assert path.read_bytes() == before
    await journal.close()
    again = opened(path)
    assert uids(again) == ["u7"]
    await again.close()
