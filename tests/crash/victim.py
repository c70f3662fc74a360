"""A journal under work that is killed at one of its steps; see `test_journal_steps`.

Prints a line per acknowledged write, then works on until the step strikes. It uses every method of
the journal that writes, so that all of their records are under way when it does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Literal

from policy_server.core.request import Priority, Request
from policy_server.journal.boot import this_boot
from policy_server.journal.port import Held, RequestContext, Turn
from policy_server.journal.sqlite import housekeeping
from policy_server.journal.sqlite.housekeeping import Step
from policy_server.journal.sqlite.journal import SqliteJournal
from policy_server.journal.sqlite.store import Store, StoreOptions

LINE = 5
"""Requests that wait at once; each one that comes lets the oldest go."""
PAD = b"x" * 50_000


class Strike:
    """Kills this process the `nth` time a step comes."""

    def __init__(self, step: Step, nth: int) -> None:
        self._step, self._left = step, nth

    def __call__(self, step: Step) -> None:
        if step is self._step:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)


def request(n: int, kind: str = "u") -> Request:
    return Request(f"{kind}{n}", "chat", Priority.P1, float(n), n + 60.0, arrived_wall=float(n))


def durable(n: int) -> object:
    def op(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE IF NOT EXISTS kept (n INTEGER UNIQUE, pad BLOB)")
        db.execute("INSERT INTO kept VALUES (?, ?)", (n, PAD))
        db.execute("UPDATE kept SET pad = NULL WHERE n < ?", (n - 20,))

    return op


def advance(journal: SqliteJournal, n: int) -> None:
    """One more comes, the oldest goes. Beside the line: a slot taken without a wait, who left, a
    turn, what is learned."""
    journal.lease_granted(Held(request(n, "g"), float(n), this_boot()))
    journal.lease_ended(f"g{n - LINE}")
    journal.append_waiting(request(n, "r"), RequestContext())
    journal.remove(f"r{n - 1}")
    journal.save_turn(Turn("chat", 1, "acme", float(n), 0.0, this_boot()))
    journal.save_learned({"chat": {"limit": float(n)}})
    journal.append_waiting(request(n), RequestContext())
    journal.prolong(request(n))
    if n >= LINE:
        journal.release(Held(request(n - LINE), float(n), this_boot()), None)
        journal.lease_ended(f"u{n - 2 * LINE}")


async def main(path: Path, step: Step, nth: int) -> None:
    housekeeping.CHECKPOINT_BYTES = 200_000
    housekeeping.KEPT_PAGES = 5
    fsync: Literal["always", "interval"] = "interval" if step is Step.SYNC else "always"
    store = Store(StoreOptions(path, fsync, 0.005, on_step=Strike(step, nth)))
    journal = SqliteJournal(store)
    journal.open()
    n = 0
    while True:
        advance(journal, n)
        if n % 3 == 0:
            await store.write_durably(durable(n))
            print(n, flush=True)
        else:
            await asyncio.sleep(0.004)
        if n % 40 == 39:
            await asyncio.sleep(0.2)  # idle: time for a checkpoint
        n += 1


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Step(sys.argv[2]), int(sys.argv[3])))
