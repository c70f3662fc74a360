"""The keys that sign tickets: a file with one per line, the newest signs, the one before verifies.

    UNIX_SECONDS 64_HEX_DIGITS        # when it was made, and the key

The file is made at the first start, readable by its owner only, and gets a new key once a day.
Several servers may share it: each looks for changes about once a second, and a new key signs only
when it is old enough for all of them to have seen it. Changes happen under a lock, as a rename.

Where the file can't be changed (a mounted secret), whoever made it adds the lines.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from policy_server import private_file

ROTATE_S = 86_400.0
SIGNS_AFTER_S = 10.0
"""Several times as long as anyone takes to notice a new key."""
RETIRES_AFTER_S = 300.0
"""Seconds for which a replaced key is accepted: the life of its last ticket, and some."""
KEY_BYTES = 32
MAX_FILE_BYTES = 64 * 1024

_LINE = re.compile(r"([0-9]{1,12}) ([0-9a-fA-F]{64,128})")


class TicketKeyError(Exception):
    """The key file is of no use; the message says why and what to do."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One line. `made` is Unix seconds."""

    made: float
    secret: bytes

    def line(self) -> str:
        """As it stands in the file."""
        return f"{int(self.made)} {self.secret.hex()}\n"


class KeyRing:
    """Which key of some signs, and which are accepted."""

    def __init__(self, keys: list[Key]) -> None:
        self.keys = sorted(keys, reverse=True)

    @classmethod
    def fresh(cls, wall: float) -> KeyRing:
        """One new key; for a server that keeps nothing on disk."""
        return cls([_new(wall)])

    @property
    def newest(self) -> Key:
        """The key made last."""
        return self.keys[0]

    def signing(self, wall: float) -> bytes:
        """The newest that everybody knows by now."""
        known = (key for key in self.keys if key.made <= wall - SIGNS_AFTER_S)
        return next(known, self.keys[-1]).secret

    def accepted(self, wall: float) -> list[bytes]:
        """All that were not replaced too long ago."""
        found, replaced = [], float("inf")
        for key in self.keys:
            if replaced > wall - RETIRES_AFTER_S - SIGNS_AFTER_S:
                found.append(key.secret)
            replaced = key.made
        return found


class KeyFile:
    """The ring in a file. Call `tick` about once a second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version: tuple[int, int, int] | None = None
        self._ring = KeyRing([])
        self._fixed = False
        self._exposed: str | None = None

    def open(self, wall: float) -> None:
        """Read the file, or make it. Raises `TicketKeyError`."""
        try:
            if not self._path.exists():
                with self._locked():
                    if not self._path.exists():
                        self._write([_new(wall)])
            self._read()
        except OSError as error:
            raise TicketKeyError(
                f"{self._path}: {error.strerror or error}; choose another --data-dir or let this "
                "user write there"
            ) from None

    def signing(self, wall: float) -> bytes:
        """See `KeyRing`."""
        return self._ring.signing(wall)

    def accepted(self, wall: float) -> list[bytes]:
        """See `KeyRing`."""
        return self._ring.accepted(wall)

    def tick(self, wall: float) -> str | None:
        """Take up what others changed, and rotate; a sentence when something is wrong.

        The keys in memory stay good meanwhile.
        """
        try:
            self._read()
            if wall - self._ring.newest.made > ROTATE_S and not self._fixed:
                self._rotate(wall)
        except TicketKeyError as error:
            return str(error)
        except OSError as error:
            return f"{self._path}: {error.strerror or error}; tickets go on with the keys as read"
        return self._exposed

    def _rotate(self, wall: float) -> None:
        try:
            with self._locked():
                self._read()
                if wall - self._ring.newest.made > ROTATE_S:
                    self._write([_new(wall), self._ring.newest])
        except PermissionError:
            self._fixed = True  # a mounted secret: its owner rotates it
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            self._fixed = True
        self._read()

    def _read(self) -> None:
        stat = self._path.stat()
        version = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if version != self._version:
            if stat.st_size > MAX_FILE_BYTES:
                raise TicketKeyError(self._problem("is too large"))
            self._ring = KeyRing(self._parse(self._path.read_text("ascii", "replace")))
            self._version = version
        if private_file.open_to_all(stat.st_mode):
            self._exposed = f"everybody on this machine can read {self._path}: chmod 600 it"
        else:
            self._exposed = None

    def _parse(self, text: str) -> list[Key]:
        found = []
        for number, line in enumerate(text.splitlines(), 1):
            match = _LINE.fullmatch(line.strip())
            if match is not None and len(match[2]) % 2 == 0:
                found.append(Key(float(match[1]), bytes.fromhex(match[2])))
            elif line.strip():
                raise TicketKeyError(self._problem(f"line {number} is no key"))
        if not found:
            raise TicketKeyError(self._problem("has no key"))
        return found

    def _problem(self, what: str) -> str:
        return (
            f"{self._path} {what}; wanted are lines of UNIX_SECONDS and 64 hex digits. Remove the "
            "file and a new one is made; tickets given out before are then worth nothing"
        )

    def _write(self, keys: list[Key]) -> None:
        """Replace the file as a whole; it is never readable by others, not even for a moment."""
        text = "".join(key.line() for key in keys)
        private_file.replace(self._path, text.encode())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(
            self._path.with_name(f"{self._path.name}.lock"), os.O_CREAT | os.O_RDWR, 0o600
        )
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _new(wall: float) -> Key:
    return Key(float(int(wall)), secrets.token_bytes(KEY_BYTES))
