"""What the adapters need from the rest: the gate behind them and the parsers of `signals`.

`app` passes the driver as the `Gate` and functions of `signals` as the parsers, so that neither
side imports the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol

from policy_server.core.events import Admitted, Shed
from policy_server.core.outcome import Outcome, ShedReason
from policy_server.core.request import Priority, Request
from policy_server.core.samples import Completion, LoadReport, Usage
from policy_server.driver import Hold
from policy_server.journal.jobs import Accepted, AnswerHead, Job, JobEvent, JobRefusal, Submission


class Gate(Protocol):
    """The single writer around admission. No method blocks or awaits."""

    @property
    def closing(self) -> asyncio.Event:
        """Set when the holds are handed back to Envoy, which re-sends them to the next process."""
        ...

    def submit(self, request: Request) -> Admitted | Shed | Hold:
        """Decide now, or hand out a hold.

        The hold's future is resolved with the decision, or raises when a newer stream took the
        uid over. It is cancelled from this side when the client is gone.
        """
        ...

    def leave(self, hold: Hold) -> None:
        """The client left while it waited. Idempotent; ignored once a newer stream has the uid."""
        ...

    def never_sent(self, admitted: Admitted) -> None:
        """The admission could not be told: give the lease back, if it is still this one's."""
        ...

    def owns(self, admitted: Admitted) -> bool:
        """Whether no newer stream of the request was told the same; False once the lease ended."""
        ...

    def lagging(self) -> bool:
        """Whether the event loop lags so far that the lower classes get the cheap answer."""
        ...

    def knows(self, uid: str) -> bool:
        """Whether it waits, waited before a restart, or was admitted: it was sent again."""
        ...

    def complete(self, uid: str, completion: Completion) -> None:
        """The answer ended. Unknown uids (shed, passed, already ended) are ignored."""
        ...

    def heartbeat(self, uid: str, node: str) -> None:
        """The request is still in flight at this Envoy."""
        ...

    def node_alive(self, node: str) -> None:
        """This Envoy talks."""
        ...

    def tokens(self, uid: str, count: int) -> None:
        """A message of an observed answer passed just now, with `count` (≥ 0) more tokens."""
        ...

    def unreadable(self, uid: str) -> None:
        """An answer was to be observed, and its body tells nothing."""
        ...

    def usage(self, uid: str, usage: Usage) -> None:
        """The token counts that the answer itself carries."""
        ...

    def load_report_for(self, uid: str, source: str, report: LoadReport) -> None:
        """What the engine at address `source` said of itself in the answer to `uid`."""
        ...

    def count(
        self, pool: str, priority: Priority, outcome: Outcome, reason: ShedReason | None = None
    ) -> None:
        """A request that admission never saw; `reason`: why it was shed."""
        ...

    def leased(self, uid: str) -> Admitted | None:
        """The admission of whoever holds a lease under this uid."""
        ...


class JobDesk(Protocol):
    """The jobs behind the gate and the HTTP API."""

    @property
    def max_body(self) -> int:
        """The largest body of a job, bytes."""
        ...

    async def accept(self, submission: Submission) -> Accepted | JobRefusal:
        """Write the job down; what the client may be told then."""
        ...

    def holder(self, passport: str, method: str, path: str) -> str | None:
        """The uid of the dispatched job whose passport this is."""
        ...

    async def find(self, job_id: str) -> Job | None:
        """The record of a job."""
        ...

    async def listed(self, owner: str | None, limit: int) -> list[Job]:
        """The newest jobs of an owner (None = of all)."""
        ...

    async def answer_head(self, job_id: str) -> AnswerHead | None:
        """What the model server answered, without its body."""
        ...

    async def answer_part(self, job_id: str, start: int, size: int) -> bytes | None:
        """Some of its body; None when it is forgotten by now."""
        ...

    def events(self, job_id: str, after: int) -> AsyncIterator[JobEvent | None]:
        """History and news, from number `after` + 1 on; None = nothing new for a while."""
        ...

    async def cancel(self, job_id: str) -> Job | None:
        """End the job; None when it has ended already."""
        ...


class AnswerParser(Protocol):
    """Reads one observed answer, chunk by chunk."""

    def feed(self, chunk: bytes) -> int:
        """Tokens (content events) that this chunk completes."""
        ...

    def finish(self) -> int:
        """Tokens in what is left when the body ends."""
        ...

    def usage(self) -> Usage | None:
        """The token counts that the answer carried so far."""
        ...


ParserFactory = Callable[[str], AnswerParser | None]
"""content-type → a parser, None when there is nothing to learn from such a body."""

ReportReader = Callable[[Mapping[str, str]], LoadReport | None]
"""Response headers → the load report in them."""
