"""The writes of one transaction, each with an error of its own.

Each statement costs the event loop a turn of Python's lock. So the writes run bare, and only when
one of them fails are all of them done once more, with a savepoint around each.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from policy_server.journal.sqlite.trouble import is_trouble


@dataclass(slots=True)
class Write:
    """One operation. `settle(result, error)` is called on the event loop; None = nobody waits."""

    op: Callable[[sqlite3.Connection], object]
    settle: Callable[[object, BaseException | None], None] | None = None
    sync: bool = False  # a real fsync before the acknowledgement, whatever `fsync` says
    result: object = None
    error: BaseException | None = None


def carry_out(db: sqlite3.Connection, batch: Iterable[Write], on_each: Callable[[], None]) -> None:
    """Do them in order, in the transaction that has begun; `on_each` comes before each. What one
    of them refuses is its own error. Raises what the disk says, and then none of it may stay."""
    try:
        for write in batch:
            on_each()
            write.result, write.error = write.op(db), None
    except Exception as error:
        if is_trouble(error):
            raise
        db.execute("ROLLBACK")
        db.execute("BEGIN IMMEDIATE")
        for write in batch:
            on_each()
            _alone(db, write)


def _alone(db: sqlite3.Connection, write: Write) -> None:
    db.execute("SAVEPOINT one")
    try:
        write.result, write.error = write.op(db), None
    except Exception as error:
        if is_trouble(error):
            raise
        write.result, write.error = None, error
        db.execute("ROLLBACK TO one")
    db.execute("RELEASE one")
