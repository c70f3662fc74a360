"""The ring of the last releases: what a process that was killed leaves behind."""

from __future__ import annotations

import errno
import json
import os
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from policy_server.core.request import Priority, Request
from policy_server.journal.boot import this_boot
from policy_server.journal.port import Held, RequestContext, Turn
from policy_server.journal.records import lease_to_json
from policy_server.journal.sqlite import tail as tail_module
from policy_server.journal.sqlite.journal import SqliteJournal
from policy_server.journal.sqlite.store import Store, StoreOptions
from policy_server.journal.sqlite.tail import RESERVED_BYTES, SLOT_BYTES, SLOTS, Tail, ring_of


@pytest.fixture(params=["in memory", "beside the journal"])
def path(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A journal, and a ring in either place."""
    memory = tmp_path / "memory"
    if request.param == "in memory":
        memory.mkdir()
    monkeypatch.setattr(tail_module, "MEMORY", memory)
    (tmp_path / "data").mkdir()
    yield tmp_path / "data" / "journal.db"
    if request.param == "in memory":
        assert not (tmp_path / "data" / "journal.db-tail").exists()


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the rings lie, for this test alone."""
    folder = tmp_path / "memory"
    folder.mkdir()
    monkeypatch.setattr(tail_module, "MEMORY", folder)
    return folder


def ring_file(path: Path) -> Path:
    """Where its ring lies."""
    ring = ring_of(path)
    return ring if ring.exists() else path.with_name("journal.db-tail")


def records(path: Path) -> list[str]:
    tail = Tail(path)
    found = tail.open()
    tail.close()
    return found


def test_it_keeps_the_last_ones_in_order(path: Path) -> None:
    tail = Tail(path)
    assert tail.open() == []
    for n in range(SLOTS + 3):
        tail.add(f"record {n}")
    assert records(path) == [f"record {n}" for n in range(3, SLOTS + 3)]
    again = Tail(path)
    again.open()
    again.add("last")
    assert records(path)[-1] == "last"


def test_a_torn_or_damaged_record_counts_for_nothing(path: Path) -> None:
    tail = Tail(path)
    tail.open()
    for text in ("one", "two", "x" * SLOT_BYTES):
        tail.add(text)
    raw = bytearray(ring_file(path).read_bytes())
    raw[2 * SLOT_BYTES + 14] ^= 1
    ring_file(path).write_bytes(raw)
    assert records(path) == ["one"]
    ring_file(path).write_bytes(b"\xff" * 1000)
    assert records(path) == []


@pytest.mark.parametrize("tenant", ["t" * 128, "租" * 128, "5b0c3f4e-9a52-4a7e-8f0e-2f8f6f1c7c11"])
async def test_long_names_are_not_forgotten(path: Path, tenant: str) -> None:
    """A pod of a mesh, a pool called after its model, the longest names of tenants."""
    node = "sidecar~10.244.3.17~chat-7d4b9c6f5d-x2x9k.shop~shop.svc.cluster.local"
    pool = "llama-3-70b-instruct"
    request = Request(str(uuid.uuid4()), pool, Priority.P1, 1.0, 61.0, tenant=tenant, node=node)
    journal = SqliteJournal(Store(StoreOptions(path)))
    journal.open()
    turn = Turn(pool, 1, tenant, 123456.78901234, 123456.78901234, this_boot())
    journal.release(Held(request, 123456.78901234, this_boot()), turn)
    tail = Tail(path)
    (record,) = tail.open()
    assert json.loads(record)[0]["uid"] == request.uid
    tail.close()
    await journal.close()


async def test_no_disk_is_behind_it_and_it_goes_with_a_clean_end(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(Store(StoreOptions(path)))
    journal.open()
    ring = ring_of(path)
    assert ring.parent == Path("/dev/shm")
    assert stat.S_IMODE(ring.stat().st_mode) == 0o600
    await journal.close()
    assert not ring.exists()


def test_it_takes_memory_as_it_needs_it_and_does_without_where_there_is_none(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.db"
    tail = Tail(path)
    tail.open()
    tail.add("one")
    assert ring_of(path).stat().st_blocks * 512 <= 2 * RESERVED_BYTES
    fits = RESERVED_BYTES // SLOT_BYTES - 1

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "no space left (injected)")

    with monkeypatch.context() as disk:
        disk.setattr(os, "posix_fallocate", full)
        for n in range(SLOTS):
            tail.add(f"record {n}")
        tail.close()
    assert records(path) == ["one", *(f"record {n}" for n in range(fits - 1))]


def test_what_lies_beside_the_journal_is_taken_along_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.db"
    monkeypatch.setattr(tail_module, "MEMORY", tmp_path / "none")
    without = Tail(path)
    without.open()
    without.add("one")
    without.close()
    monkeypatch.setattr(tail_module, "MEMORY", tmp_path)
    with monkeypatch.context() as read_only:
        read_only.setattr(Path, "unlink", _refused)
        assert records(path) == ["one"]
        ring_of(path).rename(tmp_path / "away")
    assert records(path) == ["one"]
    assert not path.with_name("journal.db-tail").exists()
    assert records(path) == ["one"], "killed before it was committed"


@pytest.mark.usefixtures("memory")
def test_a_ring_that_others_can_open_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    ring_of(path).write_bytes(b"")
    ring_of(path).chmod(0o666)
    tail = Tail(path)
    tail.open()
    tail.add("one")
    tail.close()
    assert ring_of(path).read_bytes() == b""
    ring_of(path).unlink()
    ring_of(path).symlink_to(tmp_path / "elsewhere")
    assert records(path) == ["one"]
    assert not (tmp_path / "elsewhere").exists()


def test_rings_of_journals_that_are_gone_are_swept(tmp_path: Path, memory: Path) -> None:
    folders = [tmp_path / name for name in ("gone", "used", "kept", "mine")]
    for folder in folders:
        folder.mkdir()
    gone, used, kept, mine = (folder / "journal.db" for folder in folders)
    rings = {path: ring_of(path) for path in (gone, used, kept, mine)}
    running = Tail(used)
    kept.touch()
    for path in (gone, kept):
        records(path)
    running.open()
    records(mine)
    left = {path for path, ring in rings.items() if ring.exists()}
    assert left == {used, kept, mine}
    running.close()


async def test_releases_that_were_not_committed_are_made_again(path: Path) -> None:
    waits = [Request(f"u{n}", "chat", Priority.P1, float(n), n + 60.0) for n in range(3)]
    journal = SqliteJournal(Store(StoreOptions(path)))
    journal.open()
    for request in waits:
        journal.append_waiting(request, RequestContext())
    await journal.close()
    tail = Tail(path)
    tail.open()
    for record in ("no json", "[{}, null]"):
        tail.add(record)
    tail.close()
    killed = SqliteJournal(Store(StoreOptions(path)))
    killed.open()
    killed._tail.add(_release(waits[0]))  # and then the process is killed
    killed._tail.add(_release(Request("gone", "chat", Priority.P1, 1.0, 60.0)))
    await killed.store.close()
    after = SqliteJournal(Store(StoreOptions(path)))
    after.open()
    assert [place.request.uid for place in after.load()] == ["u1", "u2"]
    assert [held.request.uid for held in after.load_leases()] == ["u0"]
    await after.close()


def _refused(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, "read-only (injected)")


def _release(request: Request) -> str:
    return f"[{lease_to_json(Held(request, 5.0, 'boot'))},null]"
