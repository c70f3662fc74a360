"""The port of accepted jobs: what is kept of each, and what a store of them must do.

A job is accepted once, runs at least once, and ends once:

    queued ⇄ dispatched → done | failed | cancelled | expired

Rules for every implementation (tests/unit/journal holds each of them to these):
- `accept` and `finish` return once their record is durable; a store that can't write raises
  `JournalUnavailableError` from them and has then kept nothing of it; or, when the disk fails in
  the moment of the commit, all of it: whoever asks again is told.
- `note` is not waited for; it survives a crash of the process from some milliseconds later. It
  changes nothing about a job that has ended: the first end stands.
- An (owner, key) and a uid name one job for as long as it is kept.
- Bodies stay in the store; a record is small. What was sealed is gone once the job has ended, and
  so is the request's body; the webhook's URL once it was called for the last time.
- A history has at most `MAX_EVENTS` moves: further ones are in the record only. The end is told.
- `unfinished` gives the jobs in the order in which they were accepted.
Times are Unix seconds: they outlive the process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from policy_server.core.request import Priority, Request

Headers = tuple[tuple[str, str], ...]
"""Name (lower case) and value, in the order in which they came; names may repeat."""
MAX_EVENTS = 100
"""Ten tries that were answered make twenty; without an Envoy there is one try after the other."""
PATH_SHOWN = 1024
"""Characters of a path in a list: clients may send 60,000, and a list has a thousand jobs."""
RECORD_BYTES = 1024
"""What a job that has ended takes besides its answer: the record, its history, the indexes."""


class JobState(Enum):
    """Where a job stands (metric label)."""

    QUEUED = "queued"
    DISPATCHED = "dispatched"
    DONE = "done"  # an upstream answer below 500
    FAILED = "failed"  # 5xx or no answer, for as often as it is tried
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self not in _OPEN


_OPEN = frozenset({JobState.QUEUED, JobState.DISPATCHED})


@dataclass(frozen=True, slots=True)
class Job:
    """The record of a job, without its bodies.

    `attempt` counts the dispatches, `failures` those of them that the model server answered with
    an error; `not_before` is when the next one may be. `expires_at`: it is not dispatched later.
    `tenant` is who is charged for it and may be a name for many; `owner` is whose it is ("" = it
    has none, and is found by its id only). `body_bytes`: of its body, and of what its headers take
    beyond some KiB. `path` is without the query: that is among what is
    sealed.
    """

    id: str
    tenant: str
    pool: str
    priority: Priority
    method: str
    path: str
    created_at: float
    expires_at: float
    state: JobState = JobState.QUEUED
    changed_at: float = 0.0
    attempt: int = 0
    failures: int = 0
    not_before: float = 0.0
    status: int | None = None
    detail: str = ""
    seats: int = 1
    prompt_tokens: int = 0
    max_tokens: int = 0
    model: str = ""
    streamed: bool = False
    body_bytes: int = 0
    webhook: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What is sent to the model server. `sealed` holds what may be a secret: headers, the query."""

    authority: str
    headers: Headers
    sealed: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to accept. `uid` is that of the request that brought it, `key` its idempotency key
    ("" = none), `digest` stands for what it asks for: the same key with another one is a clash."""

    job: Job
    request: JobRequest
    uid: str
    key: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class Accepted:
    """`existing`: the job was there already, under the same key or brought by the same request."""

    job: Job
    existing: bool = False


@dataclass(frozen=True, slots=True)
class Submission:
    """A request whose client wants it to be a job, as the gate took it. `request` is what the core
    would know of it; `headers` are all that came, but for those that say how to bring it."""

    request: Request
    method: str
    path: str
    authority: str
    headers: Headers
    body: bytes
    key: str = ""
    webhook: str = ""
    owner: str = ""


class JobRefusal(Enum):
    """Why a job is not accepted."""

    KEY_CLASH = "key_clash"  # the idempotency key has brought another request before
    WEBHOOK = "webhook"  # its webhook may not be called
    TOKEN_EXPIRED = "token_expired"  # noqa: S105 - the bearer token it carries is of no use any more
    UNAVAILABLE = "journal_unavailable"  # nothing can be written down now
    FULL = "room_full"  # as many jobs are open as may be
    TENANT_LIMIT = "tenant_limit"  # the same for this tenant


class WebhookOutcome(Enum):
    """What became of one try to tell an end (metric label)."""

    SENT = "sent"
    FAILED = "failed"  # it is tried again later
    DROPPED = "dropped"  # never again: not allowed any more, 410, or that was the last try


class KeyClashError(Exception):
    """The idempotency key belongs to a job that asks for something else."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model server answered, as it came."""

    status: int
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """An answer without its body, and how large that is."""

    status: int
    headers: Headers
    body_bytes: int


def size_of(answer: Answer | None) -> int:
    """Bytes that an answer takes in a store."""
    if answer is None:
        return 0
    return len(answer.body) + sum(len(name) + len(value) for name, value in answer.headers)


@dataclass(frozen=True, slots=True)
class Note:
    """A job moves between `queued` and `dispatched`."""

    id: str
    state: JobState
    at: float
    attempt: int
    failures: int = 0
    not_before: float = 0.0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a job ends. `answer`: the last one that came, if any."""

    id: str
    state: JobState
    at: float
    detail: str = ""
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One line of a job's history; `number` counts from 1."""

    number: int
    state: JobState
    at: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class DueWebhook:
    """A job whose end is to be told; `tries` were made before."""

    job: Job
    tries: int


Taken = Callable[[str, str, str], bool]
"""Id, owner and webhook of a job → whether it is meant. May be called on another thread."""


def nobody(_id: str, _owner: str, _url: str) -> bool:
    """Takes none."""
    return False


class JobStore(Protocol):
    """Keeps jobs. One process owns it at a time; all methods are called on one event loop."""

    async def load(self) -> None:
        """Take stock; once, before anything else."""
        ...

    async def accept(self, new: NewJob) -> Accepted:
        """Keep a job, or find the one that has its key or its uid. Raises `KeyClashError`."""
        ...

    async def known(self, new: NewJob) -> Accepted | None:
        """The job that has its key or its uid, without accepting one. Raises `KeyClashError`."""
        ...

    def note(self, note: Note) -> None:
        """Write a move down; nobody waits for it."""
        ...

    async def finish(self, ending: Ending) -> Job | None:
        """End a job; None when it is unknown or has ended already."""
        ...

    def found(self, job: Job) -> None:
        """Count it: its acceptance, or its end, was denied and is there all the same."""
        ...

    async def get(self, job_id: str) -> Job | None:
        """The record of a job."""
        ...

    async def listed(self, owner: str | None, limit: int) -> list[Job]:
        """The newest jobs of an owner (None = of all), newest first; of their paths the first
        `PATH_SHOWN` characters."""
        ...

    async def request(self, job_id: str) -> JobRequest | None:
        """What is to be sent; None when the job is unknown or has ended."""
        ...

    async def answer_head(self, job_id: str) -> AnswerHead | None:
        """What came back; None when nothing did, or not yet."""
        ...

    async def answer_part(self, job_id: str, start: int, size: int) -> bytes | None:
        """Up to `size` bytes of its body from `start` on; None when it is forgotten by now."""
        ...

    async def history(self, job_id: str) -> list[JobEvent]:
        """What happened so far, in order."""
        ...

    def unfinished(self) -> AsyncIterator[Sequence[Job]]:
        """All jobs that have not ended, in order, in batches."""
        ...

    async def overdue(self, now: float, limit: int) -> list[str]:
        """Jobs that still wait although their time is up; of one on its way its end decides."""
        ...

    async def purge(self, ended_before: float, limit: int) -> int:
        """Forget up to `limit` jobs that ended before; how many there were."""
        ...

    async def shrink(self, max_bytes: int, limit: int) -> int:
        """Forget ended jobs, up to `limit` and the oldest first, until all that are kept take at
        most `max_bytes`: of the tenants who keep the most. How many there were."""
        ...

    def ended_bytes(self) -> int:
        """What the ended jobs take; cheap."""
        ...

    async def claim_key(self, fingerprint: str, *, give_up: bool) -> int:
        """From now on the key with this fingerprint seals. Unless another one did before and jobs
        wait that need it: how many, and nothing changes. `give_up`: it changes all the same."""
        ...

    async def due_webhooks(self, now: float, limit: int, taken: Taken = nobody) -> list[DueWebhook]:
        """Ends to tell now, the oldest first, without those that are taken."""
        ...

    async def webhooks_wait(self, now: float, until: float, taken: Taken) -> None:
        """Of the ends to tell now those that are taken are due at `until`."""
        ...

    async def webhook_tried(self, job_id: str, tries: int, next_at: float | None) -> None:
        """Durable: a try was made; when the next one is due, None = never again."""
        ...

    def trouble(self) -> str | None:
        """Why nothing can be written now, for people; None = nothing is known. Cheap."""
        ...

    def counts(self) -> Mapping[JobState, int]:
        """How many jobs are kept in each state; cheap."""
        ...
