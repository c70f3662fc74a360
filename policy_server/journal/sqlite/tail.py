"""The last releases, in memory that outlives the process.

The writer commits some milliseconds after the fact; a request that was let go in between would be
awaited after a crash although it has gone, and its tenant's turn would count for nothing. So each
release is first stored in a small mapped file: the kernel keeps it, whatever becomes of us, and
nobody waits for a disk. A ring of fixed slots; a slot counts when its checksum is right.

    slot = sequence (8) · length (2) · checksum (4) · JSON

After a crash those whose places are still in the journal had not been committed: they are released
again. The others were.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import zlib
from pathlib import Path

SLOTS = 1024  # many times what is let go between two commits
SLOT_BYTES = 512
_HEAD = struct.Struct("<QHI")


class Tail:
    """One process's ring. `open` may fail: then releases are as safe as the next commit."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map: mmap.mmap | None = None
        self._sequence = 0

    def open(self) -> list[str]:
        """The records that are there, oldest first."""
        with contextlib.suppress(OSError, ValueError):
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(file, 0, SLOTS * SLOT_BYTES)  # no store meets a full disk
                self._map = mmap.mmap(file, SLOTS * SLOT_BYTES)
            finally:
                os.close(file)
        found = _found(self._map if self._map is not None else self._last_words())
        self._sequence = found[-1][0] + 1 if found else 0
        return [text for _, text in found]

    def _last_words(self) -> bytes:
        """The file as it is, where it can't be written."""
        with contextlib.suppress(OSError):
            raw = self._path.read_bytes()
            return raw if len(raw) == SLOTS * SLOT_BYTES else b""
        return b""

    def add(self, text: str) -> None:
        """Store one record; what is too long for a slot is left out."""
        payload = text.encode()
        if self._map is None or len(payload) > SLOT_BYTES - _HEAD.size:
            return
        start = self._sequence % SLOTS * SLOT_BYTES
        body = start + _HEAD.size
        _HEAD.pack_into(self._map, start, 0, 0, 0)  # torn until its head is back
        self._map[body : body + len(payload)] = payload
        check = zlib.crc32(payload, self._sequence & 0xFFFFFFFF)
        _HEAD.pack_into(self._map, start, self._sequence, len(payload), check)
        self._sequence += 1

    def close(self) -> None:
        """Let go of the file."""
        if self._map is not None:
            self._map.close()
            self._map = None


def _found(ring: mmap.mmap | bytes) -> list[tuple[int, str]]:
    """Sequence and text of each record, oldest first."""
    slots = (_read(ring, start) for start in range(0, len(ring), SLOT_BYTES))
    return sorted(slot for slot in slots if slot is not None)


def _read(ring: mmap.mmap | bytes, start: int) -> tuple[int, str] | None:
    sequence, length, check = _HEAD.unpack_from(ring, start)
    body = start + _HEAD.size
    payload = ring[body : body + min(length, SLOT_BYTES - _HEAD.size)]
    if not length or zlib.crc32(payload, sequence & 0xFFFFFFFF) != check:
        return None
    return sequence, payload.decode("utf-8", "replace")
