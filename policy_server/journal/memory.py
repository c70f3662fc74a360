"""A journal without a disk: for tests, simulations and a server that may forget its room.

It survives what its object survives, so a test can hand it to a second driver and see what a
restart would do. It holds as many places as the room has waiters; the room's bounds are its own.
"""

from __future__ import annotations

from dataclasses import replace

from policy_server.core.request import Request
from policy_server.journal.boot import this_boot
from policy_server.journal.port import (
    MAX_TURNS,
    Held,
    JournalClosedError,
    JournalStats,
    Learned,
    Place,
    RequestContext,
    Turn,
)


class MemoryJournal:
    """Implements `Journal` with dictionaries (which keep the order of insertion)."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        self._leases: dict[str, Held] = {}
        self._turns: dict[tuple[str, int, str], Turn] = {}
        self._learned: dict[str, dict[str, float]] = {}
        self._closed = False

    def append_waiting(self, request: Request, context: RequestContext) -> None:
        """See `Journal`."""
        self._check_open()
        self._places.setdefault(request.uid, Place(request, context, this_boot()))

    def prolong(self, request: Request) -> None:
        """See `Journal`."""
        self._check_open()
        place = self._places.get(request.uid)
        if place is not None:
            self._places[request.uid] = replace(place, request=request, boot=this_boot())

    def remove(self, uid: str) -> None:
        """See `Journal`."""
        self._check_open()
        self._places.pop(uid, None)

    def load(self) -> list[Place]:
        """See `Journal`."""
        self._check_open()
        return list(self._places.values())

    def lease_granted(self, held: Held) -> None:
        """See `Journal`."""
        self._check_open()
        self._leases[held.request.uid] = held

    def release(self, held: Held, turn: Turn | None) -> None:
        """See `Journal`."""
        self.remove(held.request.uid)
        self.lease_granted(held)
        if turn is not None:
            self.save_turn(turn)

    def lease_ended(self, uid: str) -> None:
        """See `Journal`."""
        self._check_open()
        self._leases.pop(uid, None)

    def load_leases(self) -> list[Held]:
        """See `Journal`."""
        self._check_open()
        return list(self._leases.values())

    def save_turn(self, turn: Turn) -> None:
        """See `Journal`."""
        self._check_open()
        key = turn.pool, turn.line, turn.tenant
        self._turns.pop(key, None)
        self._turns[key] = turn
        if len(self._turns) > MAX_TURNS:
            del self._turns[next(iter(self._turns))]

    def load_turns(self) -> list[Turn]:
        """See `Journal`."""
        self._check_open()
        return list(self._turns.values())

    def save_learned(self, learned: Learned) -> None:
        """See `Journal`."""
        self._check_open()
        self._learned.update({pool: dict(numbers) for pool, numbers in learned.items()})

    def load_learned(self) -> Learned:
        """See `Journal`."""
        self._check_open()
        return {pool: dict(numbers) for pool, numbers in self._learned.items()}

    def stats(self) -> JournalStats:
        """See `Journal`."""
        self._check_open()
        return JournalStats(
            kind="memory", healthy=True, waiting=len(self._places), leases=len(self._leases)
        )

    async def flush(self) -> None:
        """See `Journal`."""
        self._check_open()

    async def close(self) -> None:
        """See `Journal`."""
        self._closed = True

    def reopen(self) -> MemoryJournal:
        """A journal with the same contents, as a file would have after a restart."""
        copy = MemoryJournal()
        copy._places = dict(self._places)
        copy._leases = dict(self._leases)
        copy._turns = dict(self._turns)
        copy._learned = {pool: dict(numbers) for pool, numbers in self._learned.items()}
        return copy

    def _check_open(self) -> None:
        if self._closed:
            raise JournalClosedError("the journal is closed")
