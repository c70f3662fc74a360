"""The journal of held requests on a `Store`: places, and what was learned."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import replace

from policy_server.core.request import Request
from policy_server.journal.boot import this_boot
from policy_server.journal.port import (
    MAX_TURNS,
    Held,
    JournalClosedError,
    JournalError,
    JournalStats,
    Learned,
    Place,
    RequestContext,
    Turn,
)
from policy_server.journal.records import (
    lease_from_json,
    lease_to_json,
    place_from_json,
    place_to_json,
    turn_from_json,
    turn_to_json,
)
from policy_server.journal.sqlite.mirror import Mirror
from policy_server.journal.sqlite.store import Store
from policy_server.journal.sqlite.tail import Tail


class SqliteJournal:
    """Implements `Journal`. `store` must not be open yet; `open` opens it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._places: Mirror[Place] = Mirror("places", place_to_json, place_from_json, steady=True)
        self._leases: Mirror[Held] = Mirror("leases", lease_to_json, lease_from_json)
        self._turns: Mirror[Turn] = Mirror("turns", turn_to_json, turn_from_json)
        self._learned = _LearnedTable()
        self._tail = Tail(store.path)
        self._boot = this_boot()
        self._closed = False
        for table in (self._places, self._leases, self._turns, self._learned):
            store.add(table)

    def open(self) -> None:
        """See `Store.open`."""
        self.store.open()
        self._replay()

    def append_waiting(self, request: Request, context: RequestContext) -> None:
        """See `Journal`."""
        self._check_open()
        if request.uid not in self._places:
            self._places.put(request.uid, Place(request, context, self._boot))
            self.store.touch()

    def prolong(self, request: Request) -> None:
        """See `Journal`."""
        self._check_open()
        place = self._places.get(request.uid)
        if place is not None:
            self._places.put(request.uid, replace(place, request=request, boot=self._boot))
            self.store.touch()

    def remove(self, uid: str) -> None:
        """See `Journal`."""
        self._check_open()
        if self._places.remove(uid):
            self.store.touch()

    def load(self) -> list[Place]:
        """See `Journal`."""
        self._check_open()
        return [place for _, place in self._places.load()]

    def lease_granted(self, held: Held) -> None:
        """See `Journal`."""
        self._check_open()
        self._leases.put(held.request.uid, held)
        self.store.touch(lazily=True)

    def release(self, held: Held, turn: Turn | None) -> None:
        """See `Journal`."""
        self._check_open()
        with contextlib.suppress(ValueError):
            text = turn_to_json(turn) if turn is not None else "null"
            self._tail.add(f"[{lease_to_json(held)},{text}]")
        self._release(held, turn)

    def _release(self, held: Held, turn: Turn | None) -> None:
        self._leases.put(held.request.uid, held)
        if turn is not None:
            self.save_turn(turn)
        self._places.remove(held.request.uid)
        self.store.touch()

    def _replay(self) -> None:
        """Releases that the last process had no time to commit."""
        for record in self._tail.open():
            lease, turn = _pair(record)
            if lease is not None and lease.request.uid in self._places:
                self._release(lease, turn)

    def lease_ended(self, uid: str) -> None:
        """See `Journal`."""
        self._check_open()
        if self._leases.remove(uid):
            self.store.touch(lazily=True)

    def load_leases(self) -> list[Held]:
        """See `Journal`."""
        self._check_open()
        return [held for _, held in self._leases.load()]

    def save_turn(self, turn: Turn) -> None:
        """See `Journal`."""
        self._check_open()
        self._turns.put(json.dumps([turn.pool, turn.line, turn.tenant]), turn)
        if len(self._turns) > MAX_TURNS:
            self._turns.remove_first()

    def load_turns(self) -> list[Turn]:
        """See `Journal`."""
        self._check_open()
        return [turn for _, turn in self._turns.load()]

    def save_learned(self, learned: Learned) -> None:
        """See `Journal`."""
        self._check_open()
        self._learned.put(learned)
        self.store.touch()

    def load_learned(self) -> Learned:
        """See `Journal`."""
        self._check_open()
        return self._learned.all()

    def stats(self) -> JournalStats:
        """See `Journal`."""
        self._check_open()
        store = self.store.stats()
        return JournalStats(
            kind="sqlite",
            healthy=store.healthy,
            waiting=len(self._places),
            leases=len(self._leases),
            pending_writes=store.pending + self._places.pending + self._leases.pending,
            size_bytes=store.size_bytes,
            last_commit_s=store.last_commit_s,
            error=store.error,
        )

    async def flush(self) -> None:
        """See `Journal`."""
        self._check_open()
        await self.store.flush()

    async def close(self) -> None:
        """See `Journal`."""
        if self._closed:
            return
        self._closed, committed = True, False
        with contextlib.suppress(JournalError):
            await self.store.flush()
            committed = True
        self._tail.close(committed=committed)  # before another process may own the journal
        await self.store.close()

    def _check_open(self) -> None:
        if self._closed:
            raise JournalClosedError("the journal is closed")


def _pair(text: str) -> tuple[Held | None, Turn | None]:
    """What `release` stored; a record that is none gives nothing."""
    try:
        lease, turn = json.loads(text)
    except (ValueError, TypeError):
        return None, None
    return lease_from_json(json.dumps(lease)), turn_from_json(json.dumps(turn))


class _LearnedTable:
    """The learned numbers of each pool, one row each. Implements the writer's `Table`."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[str, float]] = {}
        self._written: dict[str, dict[str, float]] = {}
        self._writing: dict[str, dict[str, float]] = {}

    def put(self, learned: Learned) -> None:
        """Replace the numbers of these pools; the dictionaries are never changed afterwards."""
        copy = {pool: dict(numbers) for pool, numbers in learned.items()}
        self._numbers = {**self._numbers, **copy}

    def all(self) -> Learned:
        """By pool, as copies."""
        return {pool: dict(numbers) for pool, numbers in self._numbers.items()}

    def opened(self, db: sqlite3.Connection) -> None:
        """What the file knows, below what was learned since."""
        rows = db.execute("SELECT pool, numbers FROM learned").fetchall()
        found = {pool: numbers for pool, text in rows if (numbers := _numbers(text)) is not None}
        self._written = found
        self._numbers = {**found, **self._numbers}

    def write(self, db: sqlite3.Connection) -> None:
        """The pools whose numbers have moved."""
        now = self._numbers
        self._writing = now
        for pool, numbers in now.items():
            if numbers != self._written.get(pool):
                db.execute(
                    "INSERT OR REPLACE INTO learned VALUES (?, ?)", (pool, json.dumps(numbers))
                )

    def settle(self, written: bool) -> None:
        """Committed or rolled back."""
        if written:
            self._written = self._writing


def _numbers(text: object) -> dict[str, float] | None:
    try:
        record = json.loads(str(text))
        return {str(name): float(value) for name, value in record.items()}
    except (ValueError, TypeError, AttributeError):
        return None
