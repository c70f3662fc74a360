"""What the core knows about one request: the classified facts, nothing of HTTP or Envoy."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum, IntEnum

from policy_server.core.value import value

UNKNOWN_TENANT = "(unknown)"
"""All tenants that the configuration does not list."""
PATH_KEPT = 256
"""Characters of path and model kept with a request: enough to tell endpoints apart."""
ENDLESS_S = 1e9
"""A caller that says nothing waits for ever; finite, so that any file can hold it."""


class Priority(IntEnum):
    """Priority class; the smaller, the more important."""

    P0 = 0
    P1 = 1
    P2 = 2


PRIORITIES = tuple(Priority)
JOBS = len(PRIORITIES)
"""The line of all jobs; it stands behind those of the classes, whose numbers are theirs."""
LINES = JOBS + 1


class Kind(Enum):
    """How the request waits: its client is held on the line, or it was accepted as a job."""

    HELD = "held"
    JOB = "job"


@value(frozen=True, slots=True)
class Request:
    """One classified request.

    Times are monotonic seconds of the caller's clock except `arrived_wall` (Unix seconds, which
    survives a restart). `deadline` is the last moment at which a dispatch is still useful.
    `seats` is its weight against the limit (≥ 1). `prompt_tokens` is an estimate; 0 = unknown.
    `observable`: its answer can be shown to the observer, if the coin says so.
    `patience_s`: for how long its caller waits at most, whatever its class would allow.
    `extra_s`: the part of its budget that it has only because no back end was ready.

    `returning`: it says that it was refused before. A ticket proves that and more: `seniority_s`
    is for how long before `arrived` it has been trying, and `invited` that it comes no earlier
    than it was told to.

    `or_job`: when it can't go in time it becomes a job, so its client sees no refusal.
    """

    uid: str
    pool: str
    priority: Priority
    arrived: float
    deadline: float
    tenant: str = ""
    seats: int = 1
    kind: Kind = Kind.HELD
    body_bytes: int = 0
    prompt_tokens: int = 0
    max_tokens: int = 0
    model: str = ""
    path: str = ""
    streamed: bool = False
    observable: bool = True
    returning: bool = False
    invited: bool = False
    seniority_s: float = 0.0
    node: str = ""
    arrived_wall: float = 0.0
    or_job: bool = False
    patience_s: float = ENDLESS_S
    extra_s: float = 0.0

    @property
    def line(self) -> int:
        """Whose share it draws on: its class, or `JOBS`."""
        return JOBS if self.kind is Kind.JOB else self.priority

    @property
    def shared(self) -> bool:
        """Whether strangers stand in its tenant's line: nobody may pass the others there."""
        return self.tenant in ("", UNKNOWN_TENANT)

    @property
    def budget_s(self) -> float:
        """Seconds it may wait in all, counted from its arrival."""
        return self.deadline - self.arrived

    @property
    def first_arrived(self) -> float:
        """When it came for the first time, as far as it can prove that; its place in line."""
        return self.arrived - self.seniority_s

    def waiting_up_to(self, wait_s: float) -> Request:
        """The request with `wait_s` seconds in all, if that is more and its caller has them."""
        more_s = min(wait_s, self.patience_s) - self.budget_s
        if more_s <= 0.0:
            return self
        return replace(self, deadline=self.deadline + more_s, extra_s=self.extra_s + more_s)
