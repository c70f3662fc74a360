"""One process owns a thing on disk. The lock is the kernel's: it goes with the process, however it
dies.

It lies in a file of its own, so that readers can look at the thing while its owner runs.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

LOCK_WAIT_S = 2.0
"""A predecessor that ends, or hands its requests over, may need a moment to let go."""
PAUSE_S = 0.01


class LockedError(Exception):
    """Another process has it; `owner` is that one's id, or `unknown`."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner


class ProcessLock:
    """Held from the constructor until `release`, or until this process ends."""

    def __init__(self, path: Path, wait_s: float = LOCK_WAIT_S) -> None:
        """Makes the file `path`. Raises `LockedError` when another process has it for longer than
        `wait_s` seconds, OSError when the file can't be had."""
        self._file = _open(path)
        try:
            self._take(time.monotonic() + wait_s)
            self._sign()
        except BaseException:
            os.close(self._file)
            raise

    def _take(self, until: float) -> None:
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
                if time.monotonic() >= until:
                    raise LockedError(self._owner()) from None
                time.sleep(PAUSE_S)
            else:
                return

    def _sign(self) -> None:
        """Who holds it, for the message of whoever comes second; a full disk must not matter."""
        with suppress(OSError):
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def _owner(self) -> str:
        return os.pread(self._file, 32, 0).decode("ascii", "replace").strip() or "unknown"

    @property
    def lost(self) -> bool:
        """Whether its file was removed, so that another process may take it as well."""
        return os.fstat(self._file).st_nlink == 0

    def release(self) -> None:
        """Let another process have it."""
        os.close(self._file)


def _open(path: Path) -> int:
    """A file on a disk that is read-only can be locked as well, if it is there."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS or not path.exists():
            raise
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
