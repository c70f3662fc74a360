"""Sends the jobs, each when the room lets it go.

    queued   in the core's line, under the uid of its next attempt; its body stays in the store
    Admitted the dispatcher holds a lease: it loads the job, sends it through Envoy with a passport,
             and gives the lease back when the answer is there
    again    in line at once or after a pause, where its arrival puts it

The lease is this process's own: no access log is needed to end it, and `beat` keeps it alive.
Whatever fails on the way, the job is ended, in line, or in a pause: it is never let go of.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from urllib.parse import unquote

from policy_server.core.events import Admitted, Event
from policy_server.core.request import PATH_KEPT, Kind, Request
from policy_server.core.samples import Completion
from policy_server.driver import NEVER_SENT, Driver
from policy_server.jobs.attempts import MAX_TOLD_S, Standing, judge
from policy_server.jobs.delivery import Courier, Outcome, mistake, over
from policy_server.jobs.disk import Disk
from policy_server.jobs.leaps import LifeClock
from policy_server.jobs.passport import job_of, uid_of
from policy_server.journal.jobs import Ending, Job, JobRequest, JobState, JobStore, Note
from policy_server.journal.port import JournalError, JournalUnavailableError
from policy_server.memory import Memory, Share

BEAT_S = 5.0
RETRY_STORE_S = 1.0
LONGEST_RETRY_S = 60.0
ODD_TRIES = 3
MAX_ON_THE_WAY = 256 * 1024 * 1024
"""Bytes of bodies and answers in memory, of all jobs that are on their way."""
LAST_WRITE_S = 2.0
"""At a stop: for ends that are on their way to the disk."""
CLIENT_GONE = Completion(status=0, client_gone=True)


@dataclass(frozen=True, slots=True)
class Tools:
    """What the dispatcher works with. `noted` hears of each move, `end` brings a job to its end."""

    driver: Driver
    store: JobStore
    courier: Courier
    noted: Callable[[Note], None]
    end: Callable[[Ending], Awaitable[object]]
    life_clock: LifeClock
    wall_clock: Callable[[], float] = time.time


@dataclass(slots=True, eq=False)
class _Run:
    request: Request
    task: asyncio.Task[None] | None = None
    begun: bool = False
    cancelled: bool = False

    @property
    def job_id(self) -> str:
        return job_of(self.request.uid)


class Dispatcher:
    """Owns the jobs between their acceptance and their end. Use it on the driver's event loop."""

    def __init__(self, tools: Tools, *, observable: bool = True) -> None:
        self._t = tools
        self._observable = observable
        self._runs: dict[str, _Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._pauses: dict[str, asyncio.TimerHandle] = {}
        self._put_off: dict[str, int] = {}  # how often in a row it could not be read
        self._disk = Disk(tools.driver, tools.store)
        self._memory = Memory(MAX_ON_THE_WAY)
        self._stopping = asyncio.Event()
        tools.driver.listen(self._on_event, Admitted)

    @property
    def problem(self) -> str | None:
        """Why no job goes, for people; None = they go."""
        return self._disk.problem or self._t.courier.problem

    # -- in line --------------------------------------------------------------------------------

    def enqueue(self, job: Job) -> None:
        """Get a new job in line."""
        self._t.driver.submit_job(self._request(job))

    def restore(self, jobs: list[Job]) -> None:
        """Jobs of an earlier process, in order. Those that it was sending go again."""
        ready = []
        for job in jobs:
            if job.state is JobState.DISPATCHED:
                detail = "the policy server was restarted while it was on its way"
                self._note(job, JobState.QUEUED, detail=detail)
            wait_s = self._pause_s(job)
            if wait_s > 0.0:
                self._later(self._request(job), wait_s)
            else:
                ready.append(self._request(job))
        self._t.driver.restore_jobs(ready)

    def _pause_s(self, job: Job) -> float:
        """What is left of its pause; never more than it was told, wherever the clock is now."""
        told_s = job.not_before - job.changed_at
        return min(job.not_before - self._t.wall_clock(), told_s, MAX_TOLD_S)

    def _later(self, request: Request, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._pauses[job_of(request.uid)] = loop.call_later(wait_s, self._resume, request)

    def _resume(self, request: Request) -> None:
        self._pauses.pop(job_of(request.uid), None)
        if not self._stopping.is_set():
            self._t.driver.submit_job(request)

    def _request(self, job: Job) -> Request:
        """The job as the core sees it; what repeats is kept once."""
        now = self._t.driver.clock()
        age = max(0.0, self._t.wall_clock() - job.created_at)
        return Request(
            uid=uid_of(job.id, job.attempt + 1),
            pool=sys.intern(job.pool),
            priority=job.priority,
            arrived=now - age,
            deadline=now - age + (job.expires_at - job.created_at),
            tenant=sys.intern(job.tenant),
            seats=job.seats,
            kind=Kind.JOB,
            prompt_tokens=job.prompt_tokens,
            max_tokens=job.max_tokens,
            model=sys.intern(job.model),
            path=sys.intern(unquote(job.path.partition("?")[0])[:PATH_KEPT]),
            streamed=job.streamed,
            observable=self._observable,
            node="jobs",
        )

    def _note(self, job: Job, state: JobState, pause_s: float = 0.0, detail: str = "") -> Job:
        """Write a move down; the job after it."""
        now = self._t.wall_clock()
        until = now + pause_s if pause_s else 0.0
        note = Note(job.id, state, now, job.attempt, job.failures, until, detail)
        self._t.store.note(note)
        self._t.noted(note)
        return replace(job, state=state, changed_at=now, not_before=until)

    def withdraw(self, job: Job) -> None:
        """It shall not run any more, wherever it stands."""
        self._put_off.pop(job.id, None)
        pause = self._pauses.pop(job.id, None)
        if pause is not None:
            pause.cancel()
        run = self._runs.get(job.id)
        if run is not None:
            run.cancelled = True
            if run.task is not None and run.begun:  # else it finds by itself that the job has ended
                run.task.cancel()
            return
        self._t.driver.withdraw_job(uid_of(job.id, job.attempt + 1))

    # -- on its way -----------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Jobs on their way."""
        return len(self._runs)

    def _on_event(self, event: Event, now: float) -> None:
        if isinstance(event, Admitted) and event.request.kind is Kind.JOB and not event.resent:
            run = _Run(event.request)
            self._runs[run.job_id] = run
            run.task = asyncio.create_task(self._carry(run))
            self._tasks.add(run.task)
            run.task.add_done_callback(self._tasks.discard)

    async def _carry(self, run: _Run) -> None:
        """One attempt, from the lease to what follows it."""
        run.begun = True
        with self._memory.share() as share:
            await self._carry_within(run, share)

    async def _carry_within(self, run: _Run, share: Share) -> None:
        job, outcome, put_off_s = None, None, None
        try:
            job, content = await self._load(run.job_id, share)
            self._put_off.pop(run.job_id, None)
            if job is not None:
                outcome = await self._attempt(job, content, run.request.uid, share)
        except asyncio.CancelledError:
            if not run.cancelled:
                raise
        except Exception as error:  # it was not sent: the same again, as soon as it can be read
            put_off_s = self._unread(run.job_id, error)
        finally:
            self._runs.pop(run.job_id, None)
            completion = outcome.completion if outcome is not None else NEVER_SENT
            gone = run.cancelled and outcome is None
            self._t.driver.complete(run.request.uid, CLIENT_GONE if gone else completion)
        if run.cancelled:
            return
        if put_off_s is not None:
            self._later(run.request, put_off_s)
        elif job is not None and outcome is not None:
            await self._go_on(job, outcome, run.request)

    async def _load(self, job_id: str, share: Share) -> tuple[Job | None, JobRequest | None]:
        """What is to be sent; no job when it is gone."""
        if not self._disk.allows():
            raise JournalUnavailableError("no job goes for now")
        job = await self._t.store.get(job_id)
        await share.grow(job.body_bytes if job is not None else 0)
        return job, await self._t.store.request(job_id)

    def _unread(self, job_id: str, error: Exception) -> float:
        """For how long a job is put off that can't be read."""
        if not isinstance(error, JournalError):
            _report(error, job_id)
        if self._disk.problem is not None:
            return 0.0  # it is the same for all; in line it stays where it is
        times = self._put_off[job_id] = self._put_off.get(job_id, 0) + 1
        if times == 1:  # after that it is known to be this one, or nothing else waits
            self._disk.unread(job_id, str(error))
        return min(LONGEST_RETRY_S, RETRY_STORE_S * 2.0 ** min(times, 10))

    async def _attempt(
        self, job: Job, content: JobRequest | None, uid: str, share: Share
    ) -> Outcome:
        try:
            if job.state.ended:  # perhaps unsaid
                return over(Ending(job.id, job.state, job.changed_at))
            if content is None:
                detail = "its request is not in the journal any more"
                return over(Ending(job.id, JobState.FAILED, self._t.wall_clock(), detail))
            parcel = self._t.courier.pack(job, content, uid)
            if isinstance(parcel, Outcome):
                return parcel
            self._note(replace(job, attempt=job.attempt + 1), JobState.DISPATCHED)
            return await self._t.courier.deliver(job, parcel, share)
        except Exception as error:  # a mistake of ours must not strand the job
            _report(error, job.id)
            return mistake(error)

    async def _go_on(self, job: Job, outcome: Outcome, request: Request) -> None:
        """End the job, or get it in line again."""
        try:
            await self._follow(job, outcome, request)
        except Exception as error:
            _report(error, job.id)
            try:
                await self._follow(job, mistake(error), request)
            except Exception as again:  # not even that it went wrong can be written down
                _report(again, job.id)
                self._later(request, LONGEST_RETRY_S)

    async def _follow(self, job: Job, outcome: Outcome, request: Request) -> None:
        attempt, now = outcome.attempt, self._t.wall_clock()
        after = replace(job, attempt=job.attempt + 1, failures=job.failures + attempt.failed)
        life = self._t.life_clock.now(job.expires_at - job.created_at)
        standing = Standing(after.failures, after.attempt, now, job.expires_at + now - life)
        following = judge(attempt, standing, random.random())
        ending, pause_s = outcome.final, following.pause_s
        if ending is None and following.state is not None:
            detail = attempt.detail if following.state is not JobState.DONE else ""
            ending = Ending(job.id, following.state, now, detail, outcome.answer)
        detail = f"{attempt.detail}; again in {pause_s:.1f} s"
        if ending is not None:
            if await self._end(ending):
                return
            pause_s, detail = RETRY_STORE_S, "its answer could not be written down; again"
        again = self._request(self._note(after, JobState.QUEUED, pause_s, detail))
        stands = replace(again, arrived=request.arrived, deadline=request.deadline)
        self._later(stands, pause_s)  # where it stood, wherever the clock is now

    async def _end(self, ending: Ending) -> bool:
        """Write the end down, as soon as the disk takes it; whether there was room for so long."""
        with self._disk.writing(ending), contextlib.ExitStack() as failing:
            refused = odd = 0
            while not self._stopping.is_set():
                try:
                    await self._t.end(ending)
                    return True
                except JournalUnavailableError as error:
                    if not self._disk.unwritten(ending, str(error)):
                        return False
                    if not refused:
                        failing.enter_context(self._disk.failing())
                    refused += 1
                except JournalError:
                    return True
                except Exception:
                    odd += 1
                    if odd == ODD_TRIES:
                        raise
                await self._rest(RETRY_STORE_S)
            return True

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    # -- signs of life, the end -----------------------------------------------------------------

    async def beat(self) -> None:
        """Keep the leases of what is on its way. Run as a task."""
        while True:
            await asyncio.sleep(BEAT_S)
            for run in list(self._runs.values()):
                self._t.driver.touch(run.request.uid)

    async def stop(self) -> None:
        """Break off what is on its way: it is in the store, and runs again in the next process."""
        self._stopping.set()
        await self._disk.stop()
        for handle in self._pauses.values():
            handle.cancel()
        for run in list(self._runs.values()):
            if run.task is not None:
                run.task.cancel()
        if self._tasks:
            _, hanging = await asyncio.wait(self._tasks, timeout=LAST_WRITE_S)
            for task in hanging:
                task.cancel()
        await self._t.courier.sender.close()


def _report(error: Exception, job_id: str) -> None:
    """Into the log, with where it came from."""
    context = {"message": f"job {job_id}: an attempt broke off", "exception": error}
    asyncio.get_running_loop().call_exception_handler(context)
