"""The last releases, in memory that outlives the process. (And the last tickets, `used_tickets`.)

The writer commits some milliseconds after the fact; a request that was let go in between would be
awaited after a crash although it has gone, and its tenant's turn would count for nothing. So each
release is first stored in a small mapped file: the kernel keeps it, whatever becomes of us, and
nobody waits for a disk. A ring of fixed slots; a slot counts when its checksum is right.

    slot = sequence (8) · length (2) · checksum (4) · JSON        the first one: the journal's path

After a crash those whose places are still in the journal had not been committed: they are released
again. The others were.

It lies in `MEMORY`, away from the journal: a store into a mapped page of a disk that hangs, or that
is frozen for a snapshot, stops the whole process, all of its threads, until the disk is back. Where
there is no such place it lies beside the journal all the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import struct
import zlib
from pathlib import Path

from policy_server.private_file import MEMORY

PREFIX = "policy-server-ring-"
_NAME_DIGITS = 32
SLOTS = 1024  # many times what is let go between two commits
SLOT_BYTES = 2048  # names of 128 characters fit, whatever their script
_HEAD = struct.Struct("<QHI")
_RING_BYTES = (1 + SLOTS) * SLOT_BYTES
RESERVED_BYTES = 64 * 1024
"""In memory so much is taken at once, as it is needed: most rings stay small."""


def ring_of(journal: Path) -> Path:
    """The ring of this journal in `MEMORY`. Raises OSError without the journal's folder."""
    folder = journal.parent.stat()  # its path may be that of another one in another container
    name = f"{folder.st_dev} {folder.st_ino} {journal.name}"
    return MEMORY / (PREFIX + hashlib.sha256(name.encode()).hexdigest()[:_NAME_DIGITS])


class Tail:
    """One process's ring. `open` may fail: then releases are as safe as the next commit."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal.absolute()
        self._beside = journal.with_name(journal.name + "-tail")
        self._path: Path | None = None
        self._map: mmap.mmap | None = None
        self._file = -1
        self._reserved = 0
        self._sequence = 0

    def open(self) -> list[str]:
        """The records that are there, oldest first. The caller owns the journal."""
        old, found = _found(_last_words(self._beside)), list[tuple[int, str]]()
        with contextlib.suppress(OSError, ValueError):
            found = self._take(ring_of(self._journal), RESERVED_BYTES)
        if self._map is None:
            with contextlib.suppress(OSError, ValueError):
                self._take(self._beside, _RING_BYTES)
            return _texts(old)
        for text in _texts(old):
            self.add(text)
        with contextlib.suppress(OSError):  # on a disk that is read-only it stays
            self._beside.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            _sweep(ring_of(self._journal))
        return _texts(old) + _texts(found)

    def _take(self, path: Path, reserve: int) -> list[tuple[int, str]]:
        """Go on in this file, from what it holds. Raises OSError."""
        file = _opened(path, ours=path.parent == MEMORY)
        try:
            found = _found(os.pread(file, _RING_BYTES, 0))  # to look into the map would fill it
            os.ftruncate(file, _RING_BYTES)
            os.posix_fallocate(file, 0, reserve)
            self._map = mmap.mmap(file, _RING_BYTES)
        except BaseException:
            os.close(file)
            raise
        self._path, self._file, self._reserved = path, file, reserve
        self._sequence = found[-1][0] + 1 if found else 0
        name = os.fsencode(self._journal)
        if len(name) <= SLOT_BYTES:
            self._map[:SLOT_BYTES] = name.ljust(SLOT_BYTES, b"\0")
        return found

    def _reserve(self, end: int) -> bool:
        """Whether memory up to there is ours: no store may meet a full one."""
        while self._reserved < end:
            try:
                more = min(RESERVED_BYTES, _RING_BYTES - self._reserved)
                os.posix_fallocate(self._file, self._reserved, more)
            except OSError:
                return False
            self._reserved += more
        return True

    def add(self, text: str) -> None:
        """Store one record; what is too long for a slot is left out."""
        payload = text.encode()
        if self._map is None or len(payload) > SLOT_BYTES - _HEAD.size:
            return
        start = (1 + self._sequence % SLOTS) * SLOT_BYTES
        if not self._reserve(start + SLOT_BYTES):
            return
        body = start + _HEAD.size
        _HEAD.pack_into(self._map, start, 0, 0, 0)  # torn until its head is back
        self._map[body : body + len(payload)] = payload
        check = zlib.crc32(payload, self._sequence & 0xFFFFFFFF)
        _HEAD.pack_into(self._map, start, self._sequence, len(payload), check)
        self._sequence += 1

    def close(self, *, committed: bool = False) -> None:
        """Let go of the file; `committed`: the journal has all of it, nobody needs it any more."""
        if self._map is None:
            return
        self._map.close()
        self._map = None
        os.close(self._file)
        if committed and self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)


def _opened(path: Path, *, ours: bool) -> int:
    """The file, made if need be; `ours`: nobody else may have had a hand in it."""
    how = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.open(path, how, 0o600)
    try:
        found = os.fstat(file)
        if ours and (found.st_uid != os.geteuid() or found.st_mode & 0o077):
            raise PermissionError(f"{path} is somebody else's")
        fcntl.flock(file, fcntl.LOCK_SH)  # goes with the process; see `_abandoned`
    except BaseException:
        os.close(file)
        raise
    return file


def _last_words(path: Path) -> bytes:
    """The file as it is, where it may not be possible to write it."""
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


def _sweep(mine: Path) -> None:
    """Memory is not given back by itself: away with the rings of journals that are gone."""
    for path in MEMORY.glob(PREFIX + "[0-9a-f]" * _NAME_DIGITS):
        with contextlib.suppress(OSError, ValueError):
            if path != mine and _abandoned(path):
                path.unlink()


def _abandoned(path: Path) -> bool:
    """Whether no process uses this ring and its journal is not there any more."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        whole = os.fstat(file).st_size == _RING_BYTES
        journal = os.pread(file, SLOT_BYTES, 0).rstrip(b"\0")
    finally:
        os.close(file)
    return whole and journal.startswith(b"/") and not os.path.lexists(journal)


def _texts(found: list[tuple[int, str]]) -> list[str]:
    return [text for _, text in found]


def _found(ring: bytes) -> list[tuple[int, str]]:
    """Sequence and text of each record, oldest first."""
    if len(ring) != _RING_BYTES:
        return []
    slots = (_read(ring, start) for start in range(SLOT_BYTES, len(ring), SLOT_BYTES))
    return sorted(slot for slot in slots if slot is not None)


def _read(ring: bytes, start: int) -> tuple[int, str] | None:
    sequence, length, check = _HEAD.unpack_from(ring, start)
    body = start + _HEAD.size
    payload = ring[body : body + min(length, SLOT_BYTES - _HEAD.size)]
    if not length or zlib.crc32(payload, sequence & 0xFFFFFFFF) != check:
        return None
    return sequence, payload.decode("utf-8", "replace")
