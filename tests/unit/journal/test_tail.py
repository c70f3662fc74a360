"""The ring of the last releases: what a process that was killed leaves behind."""

from __future__ import annotations

from pathlib import Path

from policy_server.core.request import Priority, Request
from policy_server.journal.port import Held, RequestContext
from policy_server.journal.records import lease_to_json
from policy_server.journal.sqlite.journal import SqliteJournal
from policy_server.journal.sqlite.store import Store, StoreOptions
from policy_server.journal.sqlite.tail import SLOT_BYTES, SLOTS, Tail


def records(path: Path) -> list[str]:
    tail = Tail(path)
    found = tail.open()
    tail.close()
    return found


def test_it_keeps_the_last_ones_in_order(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "tail")
    assert tail.open() == []
    for n in range(SLOTS + 3):
        tail.add(f"record {n}")
    assert records(tmp_path / "tail") == [f"record {n}" for n in range(3, SLOTS + 3)]
    again = Tail(tmp_path / "tail")
    again.open()
    again.add("last")
    assert records(tmp_path / "tail")[-1] == "last"


def test_a_torn_or_damaged_record_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tail"
    tail = Tail(path)
    tail.open()
    for text in ("one", "two", "x" * SLOT_BYTES):
        tail.add(text)
    raw = bytearray(path.read_bytes())
    raw[SLOT_BYTES + 14] ^= 1
    path.write_bytes(raw)
    assert records(path) == ["one"]
    path.write_bytes(b"\xff" * 1000)
    assert records(path) == []


async def test_releases_that_were_not_committed_are_made_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    waits = [Request(f"u{n}", "chat", Priority.P1, float(n), n + 60.0) for n in range(3)]
    journal = SqliteJournal(Store(StoreOptions(path)))
    journal.open()
    for request in waits:
        journal.append_waiting(request, RequestContext())
    await journal.close()
    tail = Tail(tmp_path / "journal.db-tail")
    tail.open()
    for record in ("no json", "[{}, null]"):
        tail.add(record)
    tail.close()
    killed = SqliteJournal(Store(StoreOptions(path)))
    killed.open()
    killed._tail.add(_release(waits[0]))  # and then the process is killed
    killed._tail.add(_release(Request("gone", "chat", Priority.P1, 1.0, 60.0)))
    await killed.close()
    after = SqliteJournal(Store(StoreOptions(path)))
    after.open()
    assert [place.request.uid for place in after.load()] == ["u1", "u2"]
    assert [held.request.uid for held in after.load_leases()] == ["u0"]
    await after.close()


def _release(request: Request) -> str:
    return f"[{lease_to_json(Held(request, 5.0, 'boot'))},null]"
