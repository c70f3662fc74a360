"""The journal's port: what the driver asks of a store, whichever store it is.

The journal remembers who waits, so that a restart is not noticed: Envoy re-sends the held
requests, and each finds its old place by its uid. It also keeps what the limit has learned.

Rules for every implementation (tests/unit/journal holds each of them to these):
- Plain methods, but for the two loads, never wait for a disk: they are called on the event loop,
  in the path of a request. What was written is durable once `flush()` returns; order is kept.
- A uid has one place. Appending it again (Envoy re-sent the request) changes nothing.
- Removing a uid that was never appended is fine: a request that goes at once is not journaled.
- `load()` gives the places in the order in which they were taken.
- After `close()` every call but `close()` raises `JournalClosedError`.
- A store that fails raises `JournalUnavailableError` from `flush()`, never from the plain methods:
  held requests must flow on without a disk. `stats().healthy` tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from policy_server.core.request import Request
from policy_server.core.value import value

Learned = Mapping[str, Mapping[str, float]]
"""By pool: limit, baselines, drain rate … as `Admission.learned()` gives them."""


MAX_TURNS = 10_000
"""Tenants whose charges are kept; those that were charged least recently go first."""


class JournalError(Exception):
    """Base of what a journal raises."""


class JournalClosedError(JournalError):
    """Used after `close()`: a mistake of the caller."""


class JournalUnavailableError(JournalError):
    """The store can't take or give data now; the message says which file and what to do."""


class JournalInUseError(JournalError):
    """Another process owns this journal."""


class JournalTooNewError(JournalError):
    """A newer version wrote it; it is left untouched."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What the edges know of a request and the core does not need; kept for the logs."""

    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """A waiting request as it was when it entered the room.

    Its monotonic times belong to the boot in which it was written: see `restore.revive`.
    """

    request: Request
    context: RequestContext
    boot: str = ""


@value(frozen=True, slots=True)
class Held:
    """A lease under way: a slot in use at the engine since `granted` (monotonic, of `boot`)."""

    request: Request
    granted: float
    boot: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """How much a tenant was charged for in a line of a pool: `tokens` as of `epoch`,
    monotonic seconds of `boot`."""

    pool: str
    line: int
    tenant: str
    tokens: float
    epoch: float
    boot: str = ""


@dataclass(frozen=True, slots=True)
class JournalStats:
    """For `/statusz` and metrics. Sizes in bytes, times in seconds; None = does not apply."""

    kind: str
    healthy: bool
    waiting: int
    leases: int = 0
    pending_writes: int = 0
    size_bytes: int | None = None
    last_commit_s: float | None = None
    error: str | None = None


class Journal(Protocol):
    """A store of places, leases, turns and learned numbers. One process owns it at a time."""

    def append_waiting(self, request: Request, context: RequestContext) -> None:
        """`request` starts to wait."""
        ...

    def prolong(self, request: Request) -> None:
        """It may wait longer than it came with, at its place; nothing when it has none."""
        ...

    def remove(self, uid: str) -> None:
        """Its wait is over."""
        ...

    def load(self) -> list[Place]:
        """Who waited, in order; called once, before the first request is taken."""
        ...

    def lease_granted(self, held: Held) -> None:
        """A slot is in use."""
        ...

    def release(self, held: Held, turn: Turn | None) -> None:
        """Who waited goes: its place ends, its lease begins, its tenant had a turn.

        One step that no crash of the process can undo or split.
        """
        ...

    def lease_ended(self, uid: str) -> None:
        """It is free again; nothing when it was not known."""
        ...

    def load_leases(self) -> list[Held]:
        """The slots in use when the last process ended; called once, like `load`."""
        ...

    def save_turn(self, turn: Turn) -> None:
        """What a tenant who waits was charged for in all. Costs no write of its own."""
        ...

    def load_turns(self) -> list[Turn]:
        """What was saved of each tenant last; called once, like `load`."""
        ...

    def save_learned(self, learned: Learned) -> None:
        """Replace what is kept of each pool named in `learned`; other pools keep theirs."""
        ...

    def load_learned(self) -> Learned:
        """What was saved last, by pool."""
        ...

    def stats(self) -> JournalStats:
        """Its state now; cheap."""
        ...

    async def flush(self) -> None:
        """Return once everything written so far is durable."""
        ...

    async def close(self) -> None:
        """Flush and let go of the store; a second call does nothing."""
        ...
