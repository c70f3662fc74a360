"""Jobs without a disk: for tests, and for a server that may forget them.

As `MemoryJournal` it survives what its object survives: `reopen` is what a restart would find.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from policy_server.journal.jobs import (
    MAX_EVENTS,
    PATH_SHOWN,
    RECORD_BYTES,
    Accepted,
    Answer,
    AnswerHead,
    DueWebhook,
    Ending,
    Job,
    JobEvent,
    JobRequest,
    JobState,
    KeyClashError,
    NewJob,
    Note,
    Taken,
    nobody,
    size_of,
)
from policy_server.journal.kept import KeptBytes

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
        self.job = job
        told = len(self.history)  # the acceptance among them
        if told <= MAX_EVENTS or job.state.ended:
            event = JobEvent(told + 1, job.state, job.changed_at, job.detail)
            self.history = [*self.history, event]

    @property
    def size(self) -> int:
        return RECORD_BYTES + size_of(self.answer)


class MemoryJobs:
    """Implements `JobStore` with dictionaries (which keep the order of insertion)."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._counts = dict.fromkeys(JobState, 0)
        self._bytes = KeptBytes()
        self._key: str | None = None

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
            path=kept.job.path.partition("?")[0],
        )
        self._move(kept, job)
        kept.request, kept.answer = None, ending.answer
        kept.webhook_at = ending.at if job.webhook else None
        self._bytes.add(job.tenant, kept.size)
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

    async def listed(self, owner: str | None, limit: int) -> list[Job]:
        """See `JobStore`."""
        newest = (kept.job for kept in reversed(self._kept.values()))
        found = islice((j for j in newest if owner in (None, j.owner)), limit)
        return [replace(job, path=job.path[:PATH_SHOWN]) for job in found]

    async def request(self, job_id: str) -> JobRequest | None:
        """See `JobStore`."""
        kept = self._kept.get(job_id)
        return None if kept is None else kept.request

    async def answer_head(self, job_id: str) -> AnswerHead | None:
        """See `JobStore`."""
        answer = self._answer(job_id)
        if answer is None:
            return None
        return AnswerHead(answer.status, answer.headers, len(answer.body))

    async def answer_part(self, job_id: str, start: int, size: int) -> bytes | None:
        """See `JobStore`."""
        answer = self._answer(job_id)
        return None if answer is None else answer.body[start : start + size]

    def _answer(self, job_id: str) -> Answer | None:
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
        return self._forget(list(islice(old, limit)))

    async def shrink(self, max_bytes: int, limit: int) -> int:
        """See `JobStore`."""
        left, gone = self._bytes.surplus(max_bytes), list[_Kept]()
        ended = [kept for kept in self._kept.values() if kept.job.state.ended]
        for kept in sorted(ended, key=lambda kept: kept.job.changed_at):
            if left.get(kept.job.tenant, 0) > 0 and len(gone) < limit:
                left[kept.job.tenant] -= kept.size
                gone.append(kept)
        return self._forget(gone)

    def _forget(self, gone: list[_Kept]) -> int:
        for one in gone:
            del self._kept[one.job.id]
            for name in one.names:
                self._names.pop(name, None)
            self._counts[one.job.state] -= 1
            self._bytes.add(one.job.tenant, -one.size)
        return len(gone)

    def ended_bytes(self) -> int:
        """See `JobStore`."""
        return self._bytes.total

    async def claim_key(self, fingerprint: str, *, give_up: bool) -> int:
        """See `JobStore`."""
        if self._key not in (None, fingerprint) and not give_up:
            requests = (kept.request for kept in self._kept.values())
            sealed = sum(r is not None and len(r.sealed) > 0 for r in requests)
            if sealed:
                return sealed
        self._key = fingerprint
        return 0

    async def due_webhooks(self, now: float, limit: int, taken: Taken = nobody) -> list[DueWebhook]:
        """See `JobStore`."""
        free = [k for k in self._due(now) if not taken(k.job.id, k.job.owner, k.job.webhook)]
        return [DueWebhook(kept.job, kept.webhook_tries) for kept in free[:limit]]

    def _due(self, now: float) -> list[_Kept]:
        due = [k for k in self._kept.values() if k.webhook_at is not None and k.webhook_at <= now]
        return sorted(due, key=lambda kept: kept.webhook_at or 0.0)

    async def webhooks_wait(self, now: float, until: float, taken: Taken) -> None:
        """See `JobStore`."""
        for kept in self._due(now):
            if taken(kept.job.id, kept.job.owner, kept.job.webhook):
                kept.webhook_at = until

    async def webhook_tried(self, job_id: str, tries: int, next_at: float | None) -> None:
        """See `JobStore`."""
        kept = self._kept.get(job_id)
        if kept is not None:
            kept.webhook_tries, kept.webhook_at = tries, next_at
            if next_at is None:
                kept.job = replace(kept.job, webhook="")

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
        copy._bytes = self._bytes.copy()
        copy._key = self._key
        return copy


def _names(new: NewJob) -> tuple[tuple[str, str], ...]:
    """Its uid, and its key if it has one."""
    by_uid = ("", new.uid)
    return (by_uid, (f"key of {new.job.owner}", new.key)) if new.key else (by_uid,)
