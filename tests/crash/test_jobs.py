"""Killed, or failed by the disk, at every step of a job's life: what was told is true."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from policy_server.journal.jobs import JobState, JobStore
from policy_server.journal.sqlite.housekeeping import Step
from policy_server.journal.sqlite.jobs import SqliteJobs
from policy_server.journal.sqlite.store import Store, StoreOptions
from tests.crash import jobs_scenario
from tests.crash.jobs_scenario import JOBS, answer_of, new_job
from tests.support.jobs_stage import stored_answer

ROOT = Path(__file__).resolve().parents[2]
ENDS = (JobState.DONE, JobState.FAILED, JobState.CANCELLED, JobState.CANCELLED)
READS = {
    "load",
    "get",
    "listed",
    "request",
    "answer_head",
    "answer_part",
    "history",
    "unfinished",
    "overdue",
}
READS |= {"due_webhooks", "counts", "known", "ended_bytes", "trouble", "found"}
FSYNCS = ("always", "interval")


def test_all_that_can_be_written_is_in_the_scenario() -> None:
    writes = {name for name in vars(JobStore) if not name.startswith("_")} - READS
    used = set(re.findall(r"jobs\.(\w+)\(", Path(jobs_scenario.__file__).read_text()))
    assert writes - used == set()


def all_cuts(folder: Path, mode: str, fsync: str) -> dict[int, int]:
    """Run the scenario once per step; step → wait status. No step of the writer may be missing."""
    command = [sys.executable, "-m", "tests.crash.jobs_scenario", str(folder), mode, fsync]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    missing = {step.value for step in Step} - set(json.loads((folder / "seen.json").read_text()))
    missing -= {Step.ACK.value} if mode == "fault" else set()  # no disk has a part in it
    missing -= {Step.SYNC.value} if fsync == "always" else set()  # each commit is synced
    assert missing == set(), f"steps that never came: {missing}"
    ends = json.loads((folder / "ends.json").read_text())
    return {int(step): status for step, status in ends.items()}


def told(folder: Path) -> set[tuple[str, int]]:
    path = folder / "told"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return {(line.split()[0], int(line.split()[1])) for line in lines}


async def check(folder: Path) -> None:
    """What a restart finds is what the outside was told, or more; and every job is whole."""
    said = told(folder)
    store = Store(StoreOptions(folder / "journal.db", lock_wait_s=0.0))
    store.open()
    jobs = SqliteJobs(store)
    await jobs.load()
    order = []
    for number in range(JOBS):
        new = new_job(number)
        job = await jobs.get(new.job.id)
        if job is None:
            forgotten = number == JOBS - 1 and ("ended", number) in said
            assert forgotten or ("accepted", number) not in said, f"job {number} is lost"
            continue
        assert ("forgotten", number) not in said
        request, answer = await jobs.request(job.id), await stored_answer(jobs, job.id)
        history = await jobs.history(job.id)
        assert history[0].state is JobState.QUEUED
        assert history[-1].state is job.state
        if job.state.ended:
            assert job.state is ENDS[number]
            assert request is None
            assert answer == (answer_of(number) if number < 2 else None)
        else:
            assert ("ended", number) not in said, f"the end of job {number} is lost"
            assert request == new.request
            assert answer is None
            order.append(job.id)
        again = await jobs.accept(replace(new_job(number), uid="another"))
        assert again.existing
    due = [one.job.id for one in await jobs.due_webhooks(1e9, 10)]
    if ("hooked", 0) in said:
        assert due == []
    elif ("ended", 0) in said and ("ended", 2) not in said:
        assert due == [new_job(0).job.id], "its webhook is lost"
    found = [job.id async for batch in jobs.unfinished() for job in batch]
    assert found == order
    accepted = {n for what, n in said if what == "accepted"} - {JOBS - 1}
    assert sum(jobs.counts().values()) >= len(accepted)
    await store.close()


@pytest.mark.parametrize("fsync", FSYNCS)
async def test_killed_at_any_step_nothing_that_was_told_is_lost(fsync: str, tmp_path: Path) -> None:
    ends = all_cuts(tmp_path, "kill", fsync)
    last = max(ends)
    assert last > 40, "the scenario has lost its steps"
    for step, status in ends.items():
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        assert killed is (step != last), f"step {step}: {status}"
        await check(tmp_path / str(step))


@pytest.mark.parametrize("fsync", FSYNCS)
async def test_a_disk_that_fails_at_any_step_only_delays(fsync: str, tmp_path: Path) -> None:
    ends = all_cuts(tmp_path, "fault", fsync)
    assert len(ends) > 25
    for step, status in ends.items():
        assert status == 0, f"step {step}"
        folder = tmp_path / str(step)
        assert {("ended", number) for number in range(JOBS)} <= told(folder)
        await check(folder)
