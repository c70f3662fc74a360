"""SIGKILL and a failing disk at every step of the journal's writer: what was acknowledged is there,
and no half of anything. A step that is added is struck as well, or the test says that it never
came.
"""

# ruff: noqa: ASYNC221, ASYNC240 - the process is what is tested

from __future__ import annotations

import asyncio
import errno
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from policy_server.journal.port import Journal, JournalUnavailableError
from policy_server.journal.sqlite import housekeeping, inspect, writer
from policy_server.journal.sqlite.database import open_to_read
from policy_server.journal.sqlite.housekeeping import Step
from policy_server.journal.sqlite.journal import SqliteJournal
from policy_server.journal.sqlite.store import Store, StoreOptions
from tests.crash import victim
from tests.crash.victim import LINE

READS = {"load", "load_leases", "load_turns", "load_learned", "stats", "flush", "close"}
NTH = {Step.OPEN: (1,), Step.COPY: (1, 2), Step.CHECKPOINT: (1, 2), Step.VACUUM: (1, 2)}


def test_all_that_can_be_written_is_under_way() -> None:
    writes = {name for name in vars(Journal) if not name.startswith("_")} - READS
    used = set(re.findall(r"journal\.(\w+)\(", Path(victim.__file__).read_text()))
    assert writes - used == set()


@pytest.mark.parametrize("step", Step)
async def test_killed_at(step: Step, tmp_path: Path) -> None:
    for nth in NTH.get(step, (1, 2, 17)):
        path = tmp_path / str(nth) / "journal.db"
        command = [sys.executable, "-m", "tests.crash.victim", str(path), step.value, str(nth)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        await check(path, [int(line) for line in done.stdout.split()])


class Fault:
    """Fails one step, the `nth` time it comes, as a full disk does."""

    def __init__(self, step: Step, nth: int) -> None:
        self.left = nth
        self._step = step

    def __call__(self, step: Step) -> None:
        self.left -= step is self._step
        if step is self._step and self.left == 0:
            raise OSError(errno.ENOSPC, "no space left (injected)")


@pytest.mark.parametrize("step", [step for step in Step if step is not Step.ACK])
async def test_a_disk_that_fails_at(
    step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All steps but the acknowledgement: no disk has a part in that one."""
    monkeypatch.setattr(housekeeping, "CHECKPOINT_BYTES", 200_000)
    monkeypatch.setattr(housekeeping, "KEPT_PAGES", 5)
    monkeypatch.setattr(writer, "RETRY_S", 0.01)
    for nth in NTH.get(step, (1, 2, 17)):
        path, fault = tmp_path / str(nth) / "journal.db", Fault(step, nth)
        fsync: Literal["always", "interval"] = "interval" if step is Step.SYNC else "always"
        journal = SqliteJournal(Store(StoreOptions(path, fsync, 0.005, on_step=fault)))
        journal.open()
        assert not [*journal.load(), *journal.load_leases(), *journal.load_turns()]
        n = 0
        while fault.left > 0 or n < 30:
            assert n < 1_000, f"{step} never came"
            victim.advance(journal, n)
            if n % 3 == 0:
                await until_taken(journal, n)
            if n % 40 == 39:
                await asyncio.sleep(0.2)  # idle: time for a checkpoint
            n += 1
        while n % 3:
            victim.advance(journal, n)
            n += 1
        await until_taken(journal, n)
        await journal.close()
        await check(path, list(range(0, n, 3)))


async def until_taken(journal: SqliteJournal, n: int) -> None:
    """A durable write, tried again until the disk takes it."""
    while True:
        try:
            await journal.store.write_durably(victim.durable(n))
        except JournalUnavailableError:
            await asyncio.sleep(0.005)
        except sqlite3.IntegrityError:
            return  # the disk failed once it had it
        else:
            return


def numbers(kind: str, uids: list[str]) -> list[int]:
    return [int(uid[1:]) for uid in uids if uid[0] == kind]


async def check(path: Path, acknowledged: list[int]) -> None:
    if path.exists():
        assert inspect.findings(path) == [] or not acknowledged
    journal = SqliteJournal(Store(StoreOptions(path)))
    journal.open()
    waiting = numbers("u", [place.request.uid for place in journal.load()])
    left = numbers("r", [place.request.uid for place in journal.load()])
    leased = numbers("u", [held.request.uid for held in journal.load_leases()])
    taken = numbers("g", [held.request.uid for held in journal.load_leases()])
    turns, learned = journal.load_turns(), journal.load_learned()
    await journal.close()
    assert len(left) <= 1
    assert taken == list(range(taken[0], taken[0] + len(taken))) if taken else True
    assert len(taken) <= LINE
    if acknowledged:
        assert turns[0].tokens >= acknowledged[-1]
        assert learned["chat"]["limit"] >= acknowledged[-1]
        assert taken[-1] >= acknowledged[-1]
    db = open_to_read(path)
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    kept = [n for (n,) in db.execute("SELECT n FROM kept ORDER BY n")] if "kept" in tables else []
    db.close()
    assert set(acknowledged) <= set(kept)
    assert kept == list(range(0, len(kept) * 3, 3))
    # a window of the line as it was at one moment, in order; who left it holds a lease
    if waiting:
        assert waiting == list(range(waiting[0], waiting[-1] + 1))
        assert len(waiting) <= LINE + 1
    if waiting and waiting[0] > 0:
        assert waiting[0] - 1 in leased
    if acknowledged:
        assert waiting, "who waited at the last acknowledgement has a place"
        assert waiting[-1] >= acknowledged[-1]
