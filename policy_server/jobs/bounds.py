"""How many jobs may be open, and how large they may be together. Pure.

A job is open until it has ended; it counts one and the bytes of its body. One always fits: the
largest with large headers would come back for ever. The bounds are in all
and, apart from that, for each tenant; as in the waiting room, the tenant's do not bind requests
without a tenant. At a bound further jobs are refused: those that were accepted stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from policy_server.journal.jobs import Job, JobRefusal


@dataclass(frozen=True, slots=True)
class Bound:
    """So many jobs, so many bytes of their bodies."""

    jobs: int
    body_bytes: int


NO_BOUND = Bound(2**62, 2**62)


@dataclass(slots=True)
class _Sum:
    jobs: int = 0
    body_bytes: int = 0

    def add(self, job: Job, sign: int) -> None:
        self.jobs += sign
        self.body_bytes += sign * job.body_bytes

    def would_pass(self, bound: Bound, job: Job) -> bool:
        if self.jobs + 1 > bound.jobs:
            return True
        return self.jobs > 0 and self.body_bytes + job.body_bytes > bound.body_bytes


class OpenJobs:
    """The sums. Each job is added once and removed once."""

    def __init__(self) -> None:
        self._all = _Sum()
        self._by_tenant: dict[str, _Sum] = {}

    def refusal(self, job: Job, in_all: Bound, of_tenant: Bound) -> JobRefusal | None:
        """Why this one may not be added; None = it may."""
        if self._all.would_pass(in_all, job):
            return JobRefusal.FULL
        own = self._by_tenant.get(job.tenant, _Sum())
        if job.tenant and own.would_pass(of_tenant, job):
            return JobRefusal.TENANT_LIMIT
        return None

    def add(self, jobs: Iterable[Job]) -> None:
        """They are open."""
        for job in jobs:
            self._all.add(job, 1)
            self._by_tenant.setdefault(job.tenant, _Sum()).add(job, 1)

    def remove(self, job: Job) -> None:
        """It has ended, or was not accepted after all."""
        self._all.add(job, -1)
        own = self._by_tenant[job.tenant]
        own.add(job, -1)
        if not own.jobs:
            del self._by_tenant[job.tenant]
