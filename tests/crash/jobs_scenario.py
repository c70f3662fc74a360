"""A life of a few jobs in the journal, cut at a chosen step. Run as a program; see `test_jobs`.

    python -m tests.crash.jobs_scenario FOLDER kill|fault always|interval

Every step, each in a fork of its own. Steps are those of the writer's thread (open, begin, append,
commit, committed, sync, ack, checkpoint …) and, on the event loop, the moments between them:
accepted and told, dispatched, answered, recorded, its webhook told, forgotten.
What the outside was told goes to a file, line by line, as a client or a model server would know it.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from policy_server.core.request import Priority
from policy_server.journal.jobs import (
    Answer,
    Ending,
    Job,
    JobRequest,
    JobState,
    NewJob,
    Note,
)
from policy_server.journal.port import JournalUnavailableError
from policy_server.journal.sqlite import housekeeping, writer
from policy_server.journal.sqlite.housekeeping import Step
from policy_server.journal.sqlite.jobs import SqliteJobs
from policy_server.journal.sqlite.store import Store, StoreOptions

JOBS = 4
"""The last one is forgotten in the end; the end of the first is told to a webhook."""
MOST_STEPS = 400


def new_job(number: int) -> NewJob:
    """Job `number`, the same in every run."""
    job = Job(
        id=f"{number:032x}",
        tenant="acme",
        pool="chat",
        priority=Priority.P1,
        method="POST",
        path="/v1/chat",
        created_at=100.0 + number,
        expires_at=1e9,
        changed_at=100.0 + number,
        webhook="https://hook" if number == 0 else "",
    )
    body = bytes([number]) * 5_000
    content = JobRequest("host", (("a", "1"),), b"sealed", body)
    return NewJob(job, content, f"uid-{number}", f"key-{number}", bytes([number]))


def answer_of(number: int) -> Answer:
    """What its model server answers."""
    return Answer(200 + number, (("x", str(number)),), b"answer" * 1_000 + bytes([number]))


class Cut:
    """Counts steps and strikes at the chosen one."""

    def __init__(self, at: int, strike: Callable[[], None]) -> None:
        self.count = 0
        self.seen: set[str] = set()
        self._at = at
        self._strike = strike
        self._lock = threading.Lock()

    def step(self, step: Step | None = None) -> None:
        if step is Step.ACK and self._strike is fault:
            return  # no disk has a part in it
        with self._lock:
            self.seen.add(step.value if step is not None else "between")
            self.count += 1
            due = self.count == self._at
        if due:
            self._strike()


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fault() -> None:
    raise OSError(errno.ENOSPC, "no space left (injected)")


async def live(folder: Path, cut: Cut, mode: str, fsync: Literal["always", "interval"]) -> None:
    """The scenario. In mode `fault` what fails is tried again, as the server does."""
    told = os.open(folder / "told", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    between = cut.step if mode == "kill" else lambda: None

    def tell(what: str, number: int) -> None:
        os.write(told, f"{what} {number}\n".encode())
        between()

    file = folder / "journal.db"
    store = Store(StoreOptions(file, fsync, 0.002, lock_wait_s=0.0, on_step=cut.step))
    store.open()
    jobs = SqliteJobs(store)
    await until_taken(lambda: jobs.claim_key("key", give_up=False))
    for number in range(JOBS):
        new = new_job(number)
        await until_taken(lambda new=new: jobs.accept(new))
        tell("accepted", number)
    jobs.note(Note(new_job(0).job.id, JobState.DISPATCHED, 200.0, 1))
    tell("dispatched", 0)
    await end(jobs, 0, JobState.DONE)
    tell("ended", 0)
    jobs.note(Note(new_job(1).job.id, JobState.DISPATCHED, 201.0, 1))
    tell("dispatched", 1)
    jobs.note(Note(new_job(1).job.id, JobState.QUEUED, 202.0, 1, 1, 203.0, "503"))
    await end(jobs, 1, JobState.FAILED)
    tell("ended", 1)
    await end(jobs, 2, JobState.CANCELLED)
    tell("ended", 2)
    await until_taken(lambda: jobs.webhooks_wait(400.0, 500.0, lambda *_: True))
    await until_taken(lambda: jobs.webhook_tried(new_job(0).job.id, 1, None))
    tell("hooked", 0)
    await end(jobs, 3, JobState.CANCELLED, at=50.0)
    tell("ended", 3)
    while await until_taken(lambda: jobs.purge(100.0, 10)):
        pass
    await until_taken(lambda: jobs.shrink(jobs.ended_bytes(), 10))
    tell("forgotten", 3)
    await until_taken(store.flush)
    for _ in range(50):  # nothing waits: time for the house, on a busy machine, too
        await asyncio.sleep(0.02)
        if Step.VACUUM.value in cut.seen:
            break
    await store.close()


async def end(jobs: SqliteJobs, number: int, state: JobState, at: float = 300.0) -> None:
    answer = None if state is JobState.CANCELLED else answer_of(number)
    ending = Ending(new_job(number).job.id, state, at + number, answer=answer)
    await until_taken(lambda: jobs.finish(ending))


async def until_taken(call: Callable[[], object]) -> object:
    """Ask again for as long as the disk does not take it."""
    while True:
        try:
            return await call()  # type: ignore[misc]
        except JournalUnavailableError:
            await asyncio.sleep(0.005)


def run_one(folder: Path, at: int, mode: str, fsync: Literal["always", "interval"]) -> int:
    """In a fork: the scenario cut at step `at`; its wait status."""
    folder.mkdir()
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    cut = Cut(at, kill if mode == "kill" else fault)
    asyncio.run(live(folder, cut, mode, fsync))
    (folder / "steps").write_text(str(cut.count))
    (folder.parent / "seen.json").write_text(json.dumps(sorted(cut.seen)))
    os._exit(0)


def main() -> None:
    root, mode, fsync = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    housekeeping.CHECKPOINT_BYTES = 1  # so that checkpoints are among the steps
    housekeeping.KEPT_PAGES = 0
    housekeeping.PAUSE_S = 0.002  # a checkpoint that met a reader is made again within the run
    writer.RETRY_S = writer.LINGER_S = writer.IDLE_S = 0.002
    ends = {}
    for at in range(1, MOST_STEPS):
        status = run_one(root / str(at), at, mode, "interval" if fsync == "interval" else "always")
        ends[at] = status
        steps = root / str(at) / "steps"
        if steps.exists() and int(steps.read_text()) < at:
            break  # it was never struck: that was the last step
    (root / "ends.json").write_text(json.dumps(ends))


if __name__ == "__main__":
    main()
