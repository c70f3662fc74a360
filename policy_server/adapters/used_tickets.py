"""The tickets that were shown already, in memory and in a file that survives a crash.

Single use must outlast a restart, or whoever kept a used ticket could show it again to the next
process. Refusing all tickets of before the start would be simpler, and would cost everybody their
place in the moment after a crash, when places matter most.

The file is a ring of SLOTS records of 16 bytes, mapped into memory: to note a ticket is a store
of 16 bytes, no system call in the path of a request, and the kernel keeps it when this process is
killed. A power cut may lose the last seconds; the machine's clients are gone then as well.

At the bound: a record is written over only when its ticket has expired. When the oldest has not,
no ticket is honoured until it has (`FULL`): a place lost, never one given twice.

Each server remembers what was shown to *it*: with several servers on one key file a ticket is good
once at each.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from policy_server import private_file
from policy_server.adapters.tickets import MAX_LIFE_S
from policy_server.core.outcome import TicketOutcome

SLOTS = 65_536
"""546 tickets per second for as long as one lives (120 s); 1 MiB."""
_RECORD = struct.Struct(">II8s")  # sequence, expiry (Unix seconds), nonce

Record = tuple[int, bytes]
"""Expiry and nonce."""


class UsedTicketsError(Exception):
    """The file can't be used; the message says why and what to do."""


class UsedInMemory:
    """The same without a file, for a server that keeps nothing."""

    def __init__(self, slots: int = SLOTS) -> None:
        self._slots = slots
        self._ring: list[Record] = []
        self._next = 0
        self._nonces: set[bytes] = set()

    def __len__(self) -> int:
        """Tickets remembered."""
        return len(self._nonces)

    def use(self, nonce: bytes, expires: int, wall: float) -> TicketOutcome:
        """Take a ticket: HONOURED the first time, USED after that, FULL when it can't tell."""
        if nonce in self._nonces:
            return TicketOutcome.USED
        slot = self._next
        if slot == len(self._ring):
            self._ring.append((expires, nonce))
        else:
            oldest_expires, oldest = self._ring[slot]
            if oldest_expires > wall:
                return TicketOutcome.FULL
            self._nonces.discard(oldest)
            self._ring[slot] = (expires, nonce)
        self._nonces.add(nonce)
        self._store(slot, (expires, nonce))
        self._next = (slot + 1) % self._slots
        return TicketOutcome.HONOURED

    def _restore(self, records: Iterable[Record]) -> None:
        """Take over what an earlier process noted, oldest first."""
        self._ring = list(records)[-self._slots :]
        self._nonces = {nonce for _, nonce in self._ring}
        self._next = len(self._ring) % self._slots

    def _store(self, slot: int, record: Record) -> None:
        """Keep a record where it survives."""


class UsedInFile(UsedInMemory):
    """The ring in a file."""

    def __init__(self, path: Path, slots: int = SLOTS) -> None:
        super().__init__(slots)
        self._path = path
        self._map: mmap.mmap | None = None
        self._sequence = 0

    def open(self, wall: float) -> None:
        """Take over what the file holds, or make it. Raises `UsedTicketsError`."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._restore(self._read(wall))
            self._rewrite()
        except (OSError, ValueError) as error:
            what = getattr(error, "strerror", None) or str(error)
            raise UsedTicketsError(
                f"{self._path}: {what}; choose another --data-dir or let this user write there"
            ) from None

    def close(self) -> None:
        """Let go of the file."""
        if self._map is not None:
            self._map.close()
            self._map = None

    def _read(self, wall: float) -> list[Record]:
        """What may still be shown again, oldest first; a file that is none gives nothing."""
        if not self._path.exists():
            return []
        raw = self._path.read_bytes()
        whole = raw[: len(raw) - len(raw) % _RECORD.size]
        last = wall + MAX_LIFE_S  # what claims to live longer is no ticket
        found = sorted(r for r in _RECORD.iter_unpack(whole) if wall < r[1] <= last)
        return [(expires, nonce) for _, expires, nonce in found]

    def _rewrite(self) -> None:
        """A new file with what is left; its blocks are reserved, so no store meets a full disk."""
        size = self._slots * _RECORD.size
        with private_file.draft(self._path) as (file, new):
            os.posix_fallocate(file.fileno(), 0, size)
            self._map = mmap.mmap(file.fileno(), size)
            for slot, record in enumerate(self._ring):
                self._store(slot, record)
            new.replace(self._path)

    def _store(self, slot: int, record: Record) -> None:
        if self._map is not None:
            self._sequence += 1
            _RECORD.pack_into(self._map, slot * _RECORD.size, self._sequence, *record)
