"""Sends the jobs, each when the room lets it go.

    queued   in the core's line, under the uid of its next attempt; its body stays in the store
    Admitted the dispatcher holds a lease: it loads the job, sends it through Envoy with a passport,
             and gives the lease back when the answer is there
    again    in line at once or after a pause, where its arrival puts it

The lease is this process's own: no access log is needed to end it, and `beat` keeps it alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import aiohttp

from policy_server.config_jobs import PASSPORT_HEADER
from policy_server.core.events import Admitted, Event
from policy_server.core.request import Kind, Request
from policy_server.core.samples import Completion
from policy_server.driver import NEVER_SENT, Driver
from policy_server.jobs.attempts import Attempt, Standing, failed, judge
from policy_server.jobs.passport import Passports, job_of, uid_of
from policy_server.jobs.sender import Delivery, Parcel, Sender, TooLargeError
from policy_server.jobs.vault import Vault, VaultError
from policy_server.journal.jobs import Answer, Ending, Job, JobRequest, JobState, JobStore, Note
from policy_server.journal.port import JournalError, JournalUnavailableError

BEAT_S = 5.0
RETRY_STORE_S = 1.0
UNREACHED = Completion(status=503)
CLIENT_GONE = Completion(status=0, client_gone=True)


@dataclass(frozen=True, slots=True)
class Tools:
    """What the dispatcher works with. `noted` hears of each move, `end` brings a job to its end."""

    driver: Driver
    store: JobStore
    sender: Sender
    vault: Vault
    passports: Passports
    noted: Callable[[Note], None]
    end: Callable[[Ending], Awaitable[object]]
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time


@dataclass(slots=True)
class _Outcome:
    """How an attempt went, for the lease and for the job."""

    attempt: Attempt
    completion: Completion
    answer: Answer | None = None
    final: Ending | None = None


@dataclass(slots=True, eq=False)
class _Run:
    uid: str
    task: asyncio.Task[None] | None = None
    cancelled: bool = False
    outcome: _Outcome | None = field(default=None)


class Dispatcher:
    """Owns the jobs between their acceptance and their end. Use it on the driver's event loop."""

    def __init__(self, tools: Tools, *, observable: bool = True) -> None:
        self.problem: str | None = None
        """Why nothing could be sent when it was tried last, for people."""
        self._t = tools
        self._observable = observable
        self._runs: dict[str, _Run] = {}
        self._pauses: dict[str, asyncio.TimerHandle] = {}
        self._stopping = False
        tools.driver.listen(self._on_event, Admitted)

    # -- in line --------------------------------------------------------------------------------

    def enqueue(self, job: Job) -> None:
        """Get a job in line, after its pause if it has one."""
        wait_s = job.not_before - self._t.wall_clock()
        if wait_s > 0.0:
            self._pause(job, wait_s)
        else:
            self._t.driver.submit_job(self._request(job))

    def restore(self, jobs: list[Job]) -> None:
        """Jobs of an earlier process, in order. Those that it was sending go again."""
        now = self._t.wall_clock()
        ready = []
        for job in jobs:
            if job.state is JobState.DISPATCHED:
                note = Note(
                    job.id,
                    JobState.QUEUED,
                    now,
                    job.attempt,
                    job.failures,
                    detail="the policy server was restarted while it was on its way",
                )
                self._t.store.note(note)
                self._t.noted(note)
            if job.not_before > now:
                self._pause(job, job.not_before - now)
            else:
                ready.append(self._request(job))
        self._t.driver.restore_jobs(ready)

    def _pause(self, job: Job, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._pauses[job.id] = loop.call_later(wait_s, self._resume, job)

    def _resume(self, job: Job) -> None:
        self._pauses.pop(job.id, None)
        if not self._stopping:
            self._t.driver.submit_job(self._request(job))

    def _request(self, job: Job) -> Request:
        """The job as the core sees it; what repeats is kept once."""
        now = self._t.clock()
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
            path=sys.intern(job.path.partition("?")[0]),
            streamed=job.streamed,
            observable=self._observable,
            node="jobs",
        )

    def withdraw(self, job: Job) -> None:
        """It shall not run any more, wherever it stands."""
        pause = self._pauses.pop(job.id, None)
        if pause is not None:
            pause.cancel()
        run = self._runs.get(job.id)
        if run is not None:
            run.cancelled = True
            if run.task is not None:
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
            run = _Run(event.request.uid)
            self._runs[job_of(run.uid)] = run
            run.task = asyncio.create_task(self._carry(run))

    async def _carry(self, run: _Run) -> None:
        """One attempt, from the lease to what follows it."""
        job_id = job_of(run.uid)
        job: Job | None = None
        try:
            job, content = await self._load(job_id)
            if job is not None and content is not None:
                run.outcome = await self._attempt(job, content, run)
        except asyncio.CancelledError:
            if not run.cancelled:
                raise
        except Exception as error:  # a mistake of ours must not strand the job
            _report(error, job_id)
            broken = Attempt(None, {}, f"internal: {type(error).__name__}")
            run.outcome = _Outcome(broken, UNREACHED)
        finally:
            self._runs.pop(job_id, None)
            completion = run.outcome.completion if run.outcome is not None else NEVER_SENT
            gone = run.cancelled and run.outcome is None
            self._t.driver.complete(run.uid, CLIENT_GONE if gone else completion)
        if job is not None and run.outcome is not None and not run.cancelled:
            await self._go_on(job, run.outcome)

    async def _load(self, job_id: str) -> tuple[Job | None, JobRequest | None]:
        """What is to be sent, as soon as the disk gives it; None when the job has ended."""
        while True:
            try:
                job = await self._t.store.get(job_id)
                return job, await self._t.store.request(job_id)
            except JournalUnavailableError:
                await asyncio.sleep(RETRY_STORE_S)

    async def _attempt(self, job: Job, content: JobRequest, run: _Run) -> _Outcome:
        t, now = self._t, self._t.wall_clock()
        if now >= job.expires_at:
            return _over(Ending(job.id, JobState.EXPIRED, now, "its time in the queue was up"))
        try:
            secret = t.vault.open(job.id, content.sealed)
        except VaultError as error:
            return _over(Ending(job.id, JobState.FAILED, now, str(error)))
        note = Note(job.id, JobState.DISPATCHED, now, job.attempt + 1, job.failures)
        t.store.note(note)
        t.noted(note)
        ours = (
            (PASSPORT_HEADER, t.passports.issue(run.uid, job.method, job.path, now)),
            ("x-policy-uid", run.uid),
        )
        parcel = Parcel(
            job.method,
            job.path,
            content.authority,
            (*content.headers, *secret, *ours),
            content.body,
        )
        try:
            delivery = await t.sender.send(parcel)
            self.problem = None
            return _answered(delivery)
        except TooLargeError:
            detail = "the answer is larger than 64 MiB"
            ended = Ending(job.id, JobState.FAILED, t.wall_clock(), detail)
            return _over(ended, Completion(status=200))
        except (aiohttp.ClientError, OSError) as error:
            detail = f"no answer: {type(error).__name__}"
            if isinstance(error, aiohttp.ClientConnectorError):
                self.problem = f"jobs can't be sent through jobs.via: {error}; is Envoy there?"
            return _Outcome(Attempt(None, {}, detail), UNREACHED)
        except ValueError:  # the HTTP client refuses it, and would each time
            detail = "it has a header or a path that can't be sent"
            return _over(Ending(job.id, JobState.FAILED, t.wall_clock(), detail))

    async def _go_on(self, job: Job, outcome: _Outcome) -> None:
        """End the job, or get it in line again."""
        now = self._t.wall_clock()
        attempt = outcome.attempt
        failures = job.failures + failed(attempt.status)
        standing = Standing(failures, job.attempt + 1, now, job.expires_at)
        following = judge(attempt, standing, random.random())
        if outcome.final is not None:
            await self._end(outcome.final)
        elif following.state is not None:
            detail = attempt.detail if following.state is not JobState.DONE else ""
            await self._end(Ending(job.id, following.state, now, detail, outcome.answer))
        else:
            pause = following.pause_s
            note = Note(
                job.id,
                JobState.QUEUED,
                now,
                job.attempt + 1,
                failures,
                now + pause,
                f"{attempt.detail}; again in {pause:.1f} s",
            )
            self._t.store.note(note)
            self._t.noted(note)
            again = replace(
                job, attempt=job.attempt + 1, failures=failures, not_before=note.not_before
            )
            self._pause(again, pause)

    async def _end(self, ending: Ending) -> None:
        """Write the end down, as soon as the disk takes it."""
        while not self._stopping:
            try:
                await self._t.end(ending)
                return
            except JournalUnavailableError:
                await asyncio.sleep(RETRY_STORE_S)
            except JournalError:
                return

    # -- signs of life, the end -----------------------------------------------------------------

    async def beat(self) -> None:
        """Keep the leases of what is on its way. Run as a task."""
        while True:
            await asyncio.sleep(BEAT_S)
            for run in list(self._runs.values()):
                self._t.driver.touch(run.uid)

    async def stop(self) -> None:
        """Break off what is on its way: it is in the store, and runs again in the next process."""
        self._stopping = True
        for handle in self._pauses.values():
            handle.cancel()
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._t.sender.close()


def _report(error: Exception, job_id: str) -> None:
    """Into the log, with where it came from."""
    context = {"message": f"job {job_id}: an attempt broke off", "exception": error}
    asyncio.get_running_loop().call_exception_handler(context)


def _over(final: Ending, completion: Completion = NEVER_SENT) -> _Outcome:
    return _Outcome(Attempt(None, {}), completion, final=final)


def _answered(delivery: Delivery) -> _Outcome:
    """A whole answer: a model server's, or Envoy's word that there is none."""
    answer = delivery.answer
    headers = dict(answer.headers)
    if delivery.local:
        return _Outcome(Attempt(None, headers, f"Envoy answered {answer.status}"), UNREACHED)
    completion = Completion(
        answer.status,
        first_byte_s=delivery.first_byte_s,
        last_byte_s=delivery.last_byte_s,
        timed_here=True,
    )
    detail = f"the model server answered {answer.status}"
    return _Outcome(Attempt(answer.status, headers, detail), completion, answer)
