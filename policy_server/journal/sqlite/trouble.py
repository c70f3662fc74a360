"""What a failing disk says, in words: what is wrong, where, what to do."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

from policy_server.journal.port import JournalError

_FULL = "the disk is full; free some space, the journal goes on by itself"
_READ_ONLY = "can't be written (read-only); make it writable, the journal goes on by itself"
_IO = "the disk reports an input/output error; look at it (dmesg), the journal tries again"
SAYS_MORE = " ('journal verify' says more)"
_WAITS = "look at it (dmesg), the journal goes on by itself"
_DAMAGED = (
    f"damaged{SAYS_MORE}; stop the server, run 'policy-server journal salvage' and start it again"
)
_NO_JOURNAL = (
    "nothing can be read in it; stop the server, move the file and its -wal away, keep both, and "
    "start it again"
)
_FOLDER = "can't be opened; does its folder exist, and may this user write there?"
_BUSY = "locked by another program; close it, the journal tries again"

_BY_CODE = {
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_IOERR: _IO,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _NO_JOURNAL,
    sqlite3.SQLITE_CANTOPEN: _FOLDER,
    sqlite3.SQLITE_PERM: _READ_ONLY,
    sqlite3.SQLITE_AUTH: _READ_ONLY,
    sqlite3.SQLITE_BUSY: _BUSY,
    sqlite3.SQLITE_LOCKED: _BUSY,
    sqlite3.SQLITE_PROTOCOL: _BUSY,
    sqlite3.SQLITE_NOMEM: "no memory left",
}
"""Primary result codes at which the disk or the whole file fails, not one statement."""
_BY_ERRNO = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: _READ_ONLY,
    errno.EACCES: _READ_ONLY,
    errno.EPERM: _READ_ONLY,
    errno.EIO: _IO,
    errno.ENOENT: _FOLDER,
    errno.ENOTDIR: _FOLDER,
    errno.EEXIST: _FOLDER,
    errno.EISDIR: "a folder; give journal.path a file",
}
_MISTAKES = {
    *(errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
    *(errno.ELOOP, errno.ENAMETOOLONG),
}
_FOR_GOOD = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class NotOursError(JournalError):
    """The file belongs to another program."""


def is_trouble(error: BaseException) -> bool:
    """Whether the disk or the file fails, and not just one statement."""
    if isinstance(error, sqlite3.Error):
        return _code(error) in _BY_CODE
    return isinstance(error, OSError)


def is_mistake(error: BaseException) -> bool:
    """Whether it is the path that a person has to mend, rather than the disk."""
    return isinstance(error, OSError) and error.errno in _MISTAKES


def is_damage(error: BaseException) -> bool:
    """Whether trying again is no use: the file itself is broken."""
    return isinstance(error, sqlite3.Error) and _code(error) in _FOR_GOOD


def explained(error: BaseException, path: Path) -> str:
    """One line for people."""
    if isinstance(error, sqlite3.Error):
        advice, detail = _BY_CODE.get(_code(error)), str(error)
    elif isinstance(error, OSError):
        advice, detail = _BY_ERRNO.get(error.errno or 0), error.strerror or str(error)
    else:
        return f"{path}: {error}"
    return f"{path}: {advice} ({detail})" if advice else f"{path}: {detail}"


def hanging(path: Path, seconds: float) -> str:
    """The same of a disk that says nothing."""
    return f"{path}: the disk has not answered for {seconds:g} s; {_WAITS}"


def _code(error: sqlite3.Error) -> int:
    """The primary result code; -1 for what the Python module raises by itself."""
    code: int = getattr(error, "sqlite_errorcode", -1)
    return code if code < 0 else code & 0xFF
