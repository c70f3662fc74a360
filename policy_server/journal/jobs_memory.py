"""Jobs without a disk: for tests, and for a server that may forget them.

As `MemoryJournal` it survives what its object survives: `reopen` is what a restart would find.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from policy_server.journal.jobs import (
    Accepted,
    Answer,
    DueWebhook,
    Ending,
    Job,
    JobEvent,
    JobRequest,
    JobState,
    KeyClashError,
    NewJob,
    Note,
)

BATCH = 1_000


@dataclass(slots=True)
class _Kept:
    job: Job
    request: JobRequest | None
    digest: bytes
    names: tuple[tuple[str, str], ...]
    answer: Answer | None = None
    history: list[JobEvent] = field(default_factory=list)
    webhook_at: float | None = None
    webhook_tries: int = 0

    def move(self, job: Job) -> None:
        event = JobEvent(len(self.history) + 1, job.state, job.changed_at, job.detail)
        self.job, self.history = job, [*self.history, event]


class MemoryJobs:
    """Implements `JobStore` with dictionaries (which keep the order of insertion)."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._counts = dict.fromkeys(JobState, 0)

    async def load(self) -> None:
        """See `JobStore`."""

    async def accept(self, new: NewJob) -> Accepted:
        """See `JobStore`."""
        known = await self.known(new)
        if known is not None:
            return known
        kept = _Kept(new.job, new.request, new.digest, _names(new))
        kept.move(new.job)
        self._kept[new.job.id] = kept
        self._names.update(dict.fromkeys(kept.names, new.job.id))
        self._counts[new.job.state] += 1
        return Accepted(new.job)

    async def known(self, new: NewJob) -> Accepted | None:
        """See `JobStore`."""
        by_uid, *by_key = _names(new)
        for name in (by_uid, *by_key):
            found = self._names.get(name)
            if found is None:
                continue
            if name is not by_uid and self._kept[found].digest != new.digest:
                raise KeyClashError(new.key)
            return Accepted(self._kept[found].job, existing=True)
        return None

    def note(self, note: Note) -> None:
        """See `JobStore`."""
        kept = self._open(note.id)
        if kept is not None:
            job = replace(
                kept.job,
                state=note.state,
                changed_at=note.at,
                attempt=note.attempt,
                failures=note.failures,
                not_before=note.not_before,
                detail=note.detail,
            )
            self._move(kept, job)

    async def finish(self, ending: Ending) -> Job | None:
        """See `JobStore`."""
        kept = self._open(ending.id)
        if kept is None:
            return None
        status = ending.answer.status if ending.answer is not None else None
        job = replace(
            kept.job,
            state=ending.state,
            changed_at=ending.at,
            detail=ending.detail,
            status=status,
        )
        self._move(kept, job)
        kept.request, kept.answer = None, ending.answer
        kept.webhook_at = ending.at if job.webhook else None
        return job

    def _open(self, job_id: str) -> _Kept | None:
        kept = self._kept.get(job_id)
        return None if kept is None or kept.job.state.ended else kept

    def _move(self, kept: _Kept, job: Job) -> None:
        self._counts[kept.job.state] -= 1
        self._counts[job.state] += 1
        kept.move(job)

    def found(self, job: Job) -> None:
        """See `JobStore`."""

    async def get(self, job_id: str) -> Job | None:
        """See `JobStore`."""
        kept = self._kept.get(job_id)
        return None if kept is None else kept.job

    async def listed(self, tenant: str | None, limit: int) -> list[Job]:
        """See `JobStore`."""
        newest = (kept.job for kept in reversed(self._kept.values()))
        return list(islice((j for j in newest if tenant in (None, j.tenant)), limit))

    async def request(self, job_id: str) -> JobRequest | None:
        """See `JobStore`."""
        kept = self._kept.get(job_id)
        return None if kept is None else kept.request

    async def answer(self, job_id: str) -> Answer | None:
        """See `JobStore`."""
        kept = self._kept.get(job_id)
        return None if kept is None else kept.answer

    async def history(self, job_id: str) -> list[JobEvent]:
        """See `JobStore`."""
        kept = self._kept.get(job_id)
        return [] if kept is None else kept.history

    async def unfinished(self) -> AsyncIterator[Sequence[Job]]:
        """See `JobStore`."""
        jobs = iter([k.job for k in self._kept.values() if not k.job.state.ended])
        while batch := list(islice(jobs, BATCH)):
            yield batch

    async def overdue(self, now: float, limit: int) -> list[str]:
        """See `JobStore`."""
        jobs = (k.job for k in self._kept.values())
        late = (j.id for j in jobs if j.state is JobState.QUEUED and j.expires_at <= now)
        return list(islice(late, limit))

    async def purge(self, ended_before: float, limit: int) -> int:
        """See `JobStore`."""
        kept = self._kept.values()
        old = (k for k in kept if k.job.state.ended and k.job.changed_at < ended_before)
        gone = list(islice(old, limit))
        for one in gone:
            del self._kept[one.job.id]
            for name in one.names:
                self._names.pop(name, None)
            self._counts[one.job.state] -= 1
        return len(gone)

    async def due_webhooks(self, now: float, limit: int) -> list[DueWebhook]:
        """See `JobStore`."""
        due = [k for k in self._kept.values() if k.webhook_at is not None and k.webhook_at <= now]
        due.sort(key=lambda kept: kept.webhook_at or 0.0)
        return [DueWebhook(kept.job, kept.webhook_tries) for kept in due[:limit]]

    async def webhook_tried(self, job_id: str, tries: int, next_at: float | None) -> None:
        """See `JobStore`."""
        kept = self._kept.get(job_id)
        if kept is not None:
            kept.webhook_tries, kept.webhook_at = tries, next_at

    def trouble(self) -> str | None:
        """See `JobStore`."""
        return None

    def counts(self) -> Mapping[JobState, int]:
        """See `JobStore`."""
        return self._counts

    def reopen(self) -> MemoryJobs:
        """A store with the same contents, as a file would have after a restart."""
        copy = MemoryJobs()
        copy._kept = {job_id: replace(kept) for job_id, kept in self._kept.items()}
        copy._names = dict(self._names)
        copy._counts = dict(self._counts)
        return copy


def _names(new: NewJob) -> tuple[tuple[str, str], ...]:
    """Its uid, and its key if it has one."""
    by_uid = ("", new.uid)
    return (by_uid, (f"key of {new.job.tenant}", new.key)) if new.key else (by_uid,)
