"""Jobs, as the gate, the HTTP API and the operator see them.

accept   check, seal the secrets, write down, and only then say yes; into the dispatcher's line
ask      records, history, answers: of the tenant who asks, or of all
cancel   the end is written down first, then the job is taken from wherever it stands
sweep    what is overdue expires, what is old is forgotten
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping

from policy_server.driver import Driver
from policy_server.jobs.bounds import OpenJobs
from policy_server.jobs.delivery import Courier
from policy_server.jobs.dispatcher import Dispatcher, Tools
from policy_server.jobs.leaps import LifeClock
from policy_server.jobs.passport import Passports
from policy_server.jobs.sender import Sender
from policy_server.jobs.settings import JobRules, Via, Webhooks
from policy_server.jobs.token import runs_out_at
from policy_server.jobs.vault import Vault, another_key, split_secrets, split_target
from policy_server.jobs.watch import Watchers
from policy_server.journal.jobs import (
    Accepted,
    AnswerHead,
    Ending,
    Job,
    JobEvent,
    JobRefusal,
    JobRequest,
    JobState,
    JobStore,
    KeyClashError,
    NewJob,
    Note,
    Submission,
)
from policy_server.journal.port import JournalError, JournalUnavailableError

ID_BYTES = 16
USUAL_HEAD_BYTES = 4096
"""What a job's record may take beside its body without counting; clients may send fifteen times as
much, and a hundred thousand such jobs would be 6 GB that no bound knows of."""
SWEEP_S = 1.0
SWEEP_BATCH = 1_000
PURGE_EVERY = 5  # sweeps
PURGE_BATCH = 5_000


class Jobs:
    """All jobs of one policy server. Use it on the driver's event loop."""

    def __init__(
        self,
        driver: Driver,
        store: JobStore,
        vault: Vault,
        via: Via,
        rules: JobRules | None = None,
        webhooks: Webhooks | None = None,
    ) -> None:
        self.rules = rules or JobRules()
        self.key_problem: str | None = None
        """Why jobs are not taken up: their secrets need another key, for people."""
        self.ended: Callable[[Job], None] = lambda _: None
        """Hears of each end."""
        self._via = via
        self._store = store
        self._vault = vault
        self._webhooks = webhooks or Webhooks()
        self._passports = Passports()
        self._watchers = Watchers()
        self._open = OpenJobs()
        self._keeping: set[asyncio.Task[Accepted | JobRefusal]] = set()
        self._restored = False
        self._ours: set[str] = set()
        """Open jobs that the dispatcher has, or gets in this moment."""
        self._ended_early: set[str] = set()
        self._life = LifeClock()
        courier = Courier(Sender(via.url), vault, self._passports, self._life)
        self._dispatcher = Dispatcher(
            Tools(driver, store, courier, self._noted, self.end, self._life),
            observable=via.observable,
        )

    @property
    def max_body(self) -> int:
        """The largest body of a job, bytes."""
        return self.rules.max_body

    # -- the gate's side ------------------------------------------------------------------------

    async def accept(self, submission: Submission) -> Accepted | JobRefusal:
        """Write the job down and get it in line; the answer may then be 202."""
        if not self._restored or not self._via.url:
            return JobRefusal.UNAVAILABLE  # what is there already comes first
        now = time.time()
        expires_at = min(now + self.rules.queue_ttl_s, runs_out_at(submission.headers))
        if expires_at <= now:
            return JobRefusal.TOKEN_EXPIRED
        webhook, owner = submission.webhook, submission.owner
        if webhook and not self._webhooks.allowed(webhook, owner):
            return JobRefusal.WEBHOOK
        keeping = asyncio.create_task(self._keep(self._new(submission, now, expires_at)))
        self._keeping.add(keeping)
        keeping.add_done_callback(self._keeping.discard)
        return await asyncio.shield(keeping)  # written down is in line, whoever has left meanwhile

    async def _keep(self, new: NewJob) -> Accepted | JobRefusal:
        full = self._open.refusal(new.job, self.rules.bound, self.rules.tenant_bound)
        accepted: Accepted | None = None
        try:
            if full is not None:  # who asks again for what was accepted is no new job
                known = await self._store.known(new)
                if known is not None:
                    await self._take_up(known.job)
                return known or full
            self._open.add([new.job])
            self._ours.add(new.job.id)
            accepted = await self._store.accept(new)
            if accepted.existing:
                await self._take_up(accepted.job)
        except KeyClashError:
            return JobRefusal.KEY_CLASH
        except JournalError:
            return JobRefusal.UNAVAILABLE
        finally:
            if full is None and (accepted is None or accepted.existing):
                self._open.remove(new.job)
                self._ours.discard(new.job.id)
        if not accepted.existing:
            self._dispatcher.enqueue(accepted.job)
        return accepted

    async def _take_up(self, known: Job) -> None:
        """A job whose acceptance the disk denied, and kept all the same, runs like any other."""
        if known.state.ended or known.id in self._ours:
            return
        job = await self._store.get(known.id)  # it may have ended since
        if job is None or job.state.ended or job.id in self._ours:
            return
        self._store.found(job)
        self._ours.add(job.id)
        self._open.add([job])
        self._dispatcher.restore([job])

    def _new(self, submission: Submission, now: float, expires_at: float) -> NewJob:
        request = submission.request
        path, target = split_target(submission.path)
        plain, secret = split_secrets(submission.headers, self.rules.tenant_header)
        job_id = secrets.token_hex(ID_BYTES)
        job = Job(
            id=job_id,
            tenant=request.tenant,
            pool=request.pool,
            priority=request.priority,
            method=submission.method,
            path=path,
            created_at=now,
            expires_at=expires_at,
            changed_at=now,
            seats=request.seats,
            prompt_tokens=request.prompt_tokens,
            max_tokens=request.max_tokens,
            model=request.model,
            streamed=request.streamed,
            body_bytes=_size(submission),
            webhook=self._vault.seal_url(job_id, submission.webhook),
            owner=submission.owner,
        )
        sealed = self._vault.seal(job_id, (*target, *secret))
        content = JobRequest(submission.authority, plain, sealed, submission.body)
        return NewJob(job, content, request.uid, submission.key, _digest(submission))

    def holder(self, passport: str, method: str, path: str) -> str | None:
        """The uid of the job whose passport this is, None when it is none of ours."""
        return self._passports.holder(passport, method, path, time.time())

    # -- asking ---------------------------------------------------------------------------------

    async def find(self, job_id: str) -> Job | None:
        """The record."""
        return await self._store.get(job_id)

    async def listed(self, owner: str | None, limit: int) -> list[Job]:
        """The newest jobs."""
        return await self._store.listed(owner, limit)

    async def answer_head(self, job_id: str) -> AnswerHead | None:
        """What the model server answered, without its body."""
        return await self._store.answer_head(job_id)

    async def answer_part(self, job_id: str, start: int, size: int) -> bytes | None:
        """Some of its body; None when it is forgotten by now."""
        return await self._store.answer_part(job_id, start, size)

    @property
    def problem(self) -> str | None:
        """What keeps jobs from going, for people; None = nothing."""
        counts = self.counts()
        left = counts[JobState.QUEUED] + counts[JobState.DISPATCHED]
        if left and not self._via.url:
            return f"{left} accepted jobs wait, and nothing says how to send them; set jobs.via"
        return self.key_problem or self._dispatcher.problem

    def counts(self) -> Mapping[JobState, int]:
        """Jobs that are kept, by state."""
        return self._store.counts()

    def ended_bytes(self) -> int:
        """What those that have ended take in the store."""
        return self._store.ended_bytes()

    async def events(self, job_id: str, after: int) -> AsyncIterator[JobEvent | None]:
        """The history from number `after` + 1 on, and what happens next, up to the job's end.

        None comes now and then while nothing happens.
        """
        with self._watchers.watching(job_id) as bell:
            while True:
                bell.clear()
                job = await self._store.get(job_id)  # before its history: an end seen is in there
                history = await self._store.history(job_id)
                if history and after > history[-1].number:
                    after = 0  # of another job, or of before a power cut: rather twice than never
                for event in history:
                    if event.number > after:
                        after = event.number
                        yield event
                        if event.state.ended:
                            return
                if job is None or job.state.ended:
                    return
                if not await bell.rings():
                    yield None

    # -- moving on ------------------------------------------------------------------------------

    async def cancel(self, job_id: str) -> Job | None:
        """End the job; None when it has ended already."""
        job = await self._store.get(job_id)
        ended = await self.end(Ending(job_id, JobState.CANCELLED, time.time(), "on request"))
        if job is None or ended is None or ended.state is not JobState.CANCELLED:
            return None
        self._dispatcher.withdraw(ended)
        return ended

    async def end(self, ending: Ending) -> Job | None:
        """Write an end down and tell it; None when the job had ended before."""
        job = await self._store.finish(ending)
        if job is None and ending.id in self._ours:
            job = await self._ended_unsaid(ending.id)
        if job is not None:
            self._not_open(job)
            self._watchers.ring(job.id)
            self.ended(job)
            if job.webhook:
                self._webhooks.wake()
        return job

    async def _ended_unsaid(self, job_id: str) -> Job | None:
        """The job, when it has ended although the disk denied it."""
        job = await self._store.get(job_id)
        if job is None or not job.state.ended or job_id not in self._ours:
            return None
        self._store.found(job)
        return job

    def _not_open(self, job: Job) -> None:
        if job.id in self._ours:
            self._ours.discard(job.id)
            self._open.remove(job)
        elif not self._restored:  # it ended before it was taken up: it need not be any more
            self._ended_early.add(job.id)

    def _noted(self, note: Note) -> None:
        self._watchers.ring(note.id)

    # -- life -----------------------------------------------------------------------------------

    async def restore(self) -> bool:
        """Take up what an earlier process left; whether the store could say what that is."""
        if self._restored:
            return True
        gc.disable()  # many objects that stay: nothing to find among them
        try:
            if not await self._has_key():
                return False
            await self._store.load()
            async for batch in self._store.unfinished():
                known = (self._ours, self._ended_early)
                new = [job for job in batch if not any(job.id in ids for ids in known)]
                self._ours.update(job.id for job in new)
                self._open.add(new)
                if self._via.url:
                    self._dispatcher.restore(new)
                await asyncio.sleep(0)
        except JournalUnavailableError:
            return False
        finally:
            gc.enable()
        self._ended_early.clear()
        self._restored = True
        return True

    async def _has_key(self) -> bool:
        """Whether what waits can be opened: else all that has secrets would fail for good."""
        if not self._via.url:
            return True  # nothing is opened
        fingerprint, give_up = self._vault.fingerprint, self.rules.key_lost
        jobs = await self._store.claim_key(fingerprint, give_up=give_up)
        self.key_problem = another_key(jobs) if jobs else None
        return not jobs

    async def beat(self) -> None:
        """Keep the leases of what is on its way. Run as a task."""
        await self._dispatcher.beat()

    async def sweep(self) -> None:
        """Expire what is overdue, once a second. Run as a task."""
        while True:
            await asyncio.sleep(SWEEP_S)
            with contextlib.suppress(JournalUnavailableError):  # the store says it itself
                if await self.restore():
                    await self.expire(self._life.now)

    async def tidy(self) -> None:
        """Forget what is old or too much. Run as a task."""
        turn = 0
        while True:
            await asyncio.sleep(SWEEP_S)
            turn += 1
            with contextlib.suppress(JournalUnavailableError):
                if self._restored:
                    await self.forget(self._life.now, old=turn % PURGE_EVERY == 0)

    async def expire(self, now_for: Callable[[float], float]) -> None:
        """End what waits although its time is up. `now_for`: see `LifeClock.now`."""
        odd: Exception | None = None
        for job_id in await self._store.overdue(now_for(self.rules.queue_ttl_s), SWEEP_BATCH):
            try:
                await self._expire(job_id)
            except JournalUnavailableError:
                raise
            except Exception as error:  # the others all the same
                odd = error
        if odd is not None:
            raise odd

    async def _expire(self, job_id: str) -> None:
        job = await self._store.get(job_id)
        if job is None or job.state is not JobState.QUEUED:
            return  # it went, or ended, in this moment
        detail = "its time in the queue was up"
        ended = await self.end(Ending(job_id, JobState.EXPIRED, time.time(), detail))
        if ended is not None:
            self._dispatcher.withdraw(ended)

    async def forget(self, now_for: Callable[[float], float], *, old: bool) -> None:
        """The answers that are too much, and with `old` what ended long ago."""
        rules = self.rules
        if old:
            until = now_for(rules.result_ttl_s) - rules.result_ttl_s
            await self._store.purge(until, PURGE_BATCH)
        await self._store.shrink(rules.max_result_bytes, PURGE_BATCH)

    async def stop(self) -> None:
        """Break off what is on its way; it runs again in the next process."""
        await asyncio.gather(*self._keeping, return_exceptions=True)
        await self._dispatcher.stop()


def _size(submission: Submission) -> int:
    """Bytes of the body, and of an unusually large head."""
    texts = (submission.path, submission.authority, submission.key, submission.webhook)
    head = sum(map(len, texts)) + sum(len(n) + len(v) for n, v in submission.headers)
    return len(submission.body) + max(0, head - USUAL_HEAD_BYTES)


def _digest(submission: Submission) -> bytes:
    """Stands for what a job asks for."""
    digest = hashlib.sha256()
    types = [value for name, value in submission.headers if name == "content-type"]
    for part in (submission.method, submission.path, *types):
        digest.update(part.encode("utf-8", "replace") + b"\0")
    digest.update(submission.body)
    return digest.digest()
