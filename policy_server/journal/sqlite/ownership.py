"""One process owns a journal; readers (the command line, the `sqlite3` shell) may look into it."""

from __future__ import annotations

from pathlib import Path

from policy_server.journal.port import JournalInUseError
from policy_server.process_lock import LOCK_WAIT_S, LockedError, ProcessLock


def make_folder(folder: Path) -> None:
    """The journal's folder, for its owner only. One that exists is left as it is."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def own(journal: Path, wait_s: float = LOCK_WAIT_S) -> ProcessLock:
    """Raises `JournalInUseError` when another process keeps it, OSError when it can't be."""
    try:
        return ProcessLock(journal.with_name(journal.name + ".lock"), wait_s)
    except LockedError as error:
        raise JournalInUseError(
            f"{journal}: in use by process {error.owner}; stop that one, or give "
            "this one a --data-dir or journal.path of its own"
        ) from None
