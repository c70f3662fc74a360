"""The tickets that were shown already, in memory and in a file that survives a crash.

Single use must outlast a restart, or whoever kept a used ticket could show it again to the next
process. Refusing all tickets of before the start would be simpler, and would cost everybody their
place in the moment after a crash, when places matter most.

The file is a ring of SLOTS records of 16 bytes. A thread of its own writes them into it, so that
a disk that hangs stops no request (a store into a mapped page would stop all threads). What it has
not come to yet when this process is killed is in memory that outlives it (`Tail`). A power cut may
lose the last seconds; the machine's clients are gone then as well.

At the bound: a record is written over only when its ticket has expired. When the oldest has not,
no ticket is honoured until it has (`FULL`): a place lost, never one given twice.

Each server remembers what was shown to *it*: with several servers on one key file a ticket is good
once at each.
"""

from __future__ import annotations

import os
import queue
import struct
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from policy_server import private_file
from policy_server.adapters.tickets import MAX_LIFE_S
from policy_server.core.outcome import TicketOutcome
from policy_server.journal.sqlite.tail import Tail

SLOTS = 65_536
"""546 tickets per second for as long as one lives (120 s); 1 MiB."""
END_S = 2.0
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
        self._tail = Tail(path)
        self._pen: _Pen | None = None
        self._sequence = 0

    def open(self, wall: float) -> None:
        """Take over what the file holds, or make it. Raises `UsedTicketsError`."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            told = _told(self._tail.open(), wall)
            self._restore(dict.fromkeys([*self._read(wall), *told]))
            self._rewrite()
        except (OSError, ValueError) as error:
            what = getattr(error, "strerror", None) or str(error)
            raise UsedTicketsError(
                f"{self._path}: {what}; choose another --data-dir or let this user write there"
            ) from None

    def close(self) -> None:
        """Let go of the file, with all in it unless its disk hangs."""
        if self._pen is not None:
            self._tail.close(committed=self._pen.end())
            self._pen = None

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
        for left in self._path.parent.glob(f"{self._path.name}.*"):
            left.unlink(missing_ok=True)  # of one that was killed here
        size = self._slots * _RECORD.size
        with private_file.draft(self._path) as (file, new):
            os.posix_fallocate(file.fileno(), 0, size)
            file.write(b"".join(self._numbered(record) for record in self._ring))
            file.flush()
            new.replace(self._path)
            self._pen = _Pen(os.dup(file.fileno()))

    def _numbered(self, record: Record) -> bytes:
        self._sequence += 1
        return _RECORD.pack(self._sequence, *record)

    def _store(self, slot: int, record: Record) -> None:
        if self._pen is not None:
            self._tail.add(f"{record[0]} {record[1].hex()}")
            self._pen.write(slot * _RECORD.size, self._numbered(record))


class _Pen(threading.Thread):
    """Writes into a file, in order, and closes it in the end. It starts with the first write."""

    def __init__(self, file: int) -> None:
        super().__init__(name="used-tickets", daemon=True)
        self._file = file
        self._due: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._begun = False
        self._failed = False

    def write(self, offset: int, data: bytes) -> None:
        """Soon."""
        if not self._begun:
            self._begun = True
            self.start()
        self._due.put((offset, data))

    def end(self) -> bool:
        """Write what is due, as far as the disk takes it within `END_S`; whether it took all."""
        if not self._begun:
            os.close(self._file)
            return True
        self._due.put(None)
        self.join(END_S)
        return not self.is_alive() and not self._failed

    def run(self) -> None:
        while (due := self._due.get()) is not None:
            try:
                os.pwrite(self._file, due[1], due[0])
            except OSError:  # the process still knows, and its successor the last ones
                self._failed = True
        os.close(self._file)


def _told(texts: Iterable[str], wall: float) -> list[Record]:
    """What may still be shown again, oldest first; what is no record gives nothing."""
    found = []
    for text in texts:
        with suppress(ValueError):
            expires, nonce = text.split(" ")
            if wall < int(expires) <= wall + MAX_LIFE_S:
                found.append((int(expires), bytes.fromhex(nonce)))
    return found
