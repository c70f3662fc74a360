"""One process owns a journal. The lock is the kernel's: it goes with the process, however it dies.

The lock lies in a file of its own beside the journal, so that readers (the command line, the
`sqlite3` shell) can look into the journal of a running server.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from policy_server.journal.port import JournalInUseError

LOCK_WAIT_S = 2.0
"""A predecessor that hands its requests over may need a moment to let go of the journal."""
PAUSE_S = 0.01


def make_folder(folder: Path) -> None:
    """The journal's folder, for its owner only. One that exists is left as it is."""
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


class Lock:
    """Held from the constructor until `release`, or until this process ends."""

    def __init__(self, journal: Path, wait_s: float = LOCK_WAIT_S) -> None:
        """Raises `JournalInUseError` when another process keeps it, OSError when it can't be."""
        self._file = _open(journal.with_name(journal.name + ".lock"))
        try:
            self._take(journal, time.monotonic() + wait_s)
            self._sign()
        except BaseException:
            os.close(self._file)
            raise

    def _take(self, journal: Path, until: float) -> None:
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
                if time.monotonic() >= until:
                    raise JournalInUseError(
                        f"{journal}: in use by process {self._owner()}; stop that one, or give "
                        "this one a --data-dir or journal.path of its own"
                    ) from None
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

    def release(self) -> None:
        """Let another process own the journal."""
        os.close(self._file)


def _open(path: Path) -> int:
    """A file on a disk that is read-only can be locked as well, if it is there."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS or not path.exists():
            raise
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
