"""How much a pool is asked for, as an autoscaler wants to know it.

    waiting       held requests; those for whom no back end is ready yet count as well
    jobs          jobs that wait
    utilization   seats in use / limit. At least 1 while somebody waits and nobody can go: a pool
                  without a back end is full, not idle
    active        anything waits or is under way

The limit, not a CPU, says what a replica can take; it is learned while the pool is busy and kept
while it is not, so the ratio means something in quiet hours too.
"""

from __future__ import annotations

from dataclasses import dataclass

from policy_server.core.pool import Pool


@dataclass(frozen=True, slots=True)
class Demand:
    """One pool at one instant. `inflight` and `limit` in seats, the rest in requests."""

    waiting: int
    jobs: int
    inflight: int
    limit: float
    ready: int | None = None

    @property
    def active(self) -> bool:
        """Whether there is anything to do."""
        return self.waiting > 0 or self.jobs > 0 or self.inflight > 0

    @property
    def utilization(self) -> float:
        """Part of the limit that is used, 0 or more."""
        used = self.inflight / self.limit
        stuck = self.ready == 0 and (self.waiting or self.jobs)
        return max(used, 1.0) if stuck else used


def demand_of(pool: Pool) -> Demand:
    """What the pool is asked for now."""
    return Demand(
        waiting=len(pool.room),
        jobs=len(pool.jobs),
        inflight=pool.leases.seats,
        limit=pool.limit.current,
        ready=pool.usable.ramp.ready,
    )
