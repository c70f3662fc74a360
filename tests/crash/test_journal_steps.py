"""SIGKILL at every step of the journal's writer: what was acknowledged is there, and no half of
anything.
"""

# ruff: noqa: ASYNC221, ASYNC240 - the process is what is tested

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from policy_server.journal.sqlite import inspect
from policy_server.journal.sqlite.database import open_to_read
from policy_server.journal.sqlite.housekeeping import Step
from policy_server.journal.sqlite.journal import SqliteJournal
from policy_server.journal.sqlite.store import Store, StoreOptions
from tests.crash.victim import LINE

STEPS = [step for step in Step if step is not Step.SYNC]  # `fsync: always` has no sync of its own
NTH = {Step.OPEN: (1,), Step.CHECKPOINT: (1, 2), Step.VACUUM: (1, 2)}


@pytest.mark.parametrize("step", STEPS)
async def test_killed_at(step: Step, tmp_path: Path) -> None:
    for nth in NTH.get(step, (1, 2, 17)):
        path = tmp_path / str(nth) / "journal.db"
        command = [sys.executable, "-m", "tests.crash.victim", str(path), step.value, str(nth)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        await check(path, [int(line) for line in done.stdout.split()])


async def check(path: Path, acknowledged: list[int]) -> None:
    if path.exists():
        assert inspect.findings(path) == [] or not acknowledged
    journal = SqliteJournal(Store(StoreOptions(path)))
    journal.open()
    waiting = [int(place.request.uid[1:]) for place in journal.load()]
    leased = [int(held.request.uid[1:]) for held in journal.load_leases()]
    await journal.close()
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
