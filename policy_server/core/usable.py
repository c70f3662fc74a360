"""How much of the learned limit may be used now: all that holds it back, in one place.

    ramp      replicas that are new count less; while there is none, nobody goes
    slew      a rise is spread out, the slot of an answer that failed stays taken for a while
    ceiling   what the back ends themselves ask for

    usable = min(slew(max(1, L · ramp)), ceiling)

Owner: the pool; pure.
"""

from __future__ import annotations

from policy_server.core.limit.ceiling import Ceiling
from policy_server.core.params import PoolParams
from policy_server.core.ramp import Ramp
from policy_server.core.slew import Slew


class Usable:
    """The three of one pool. Seats, monotonic seconds."""

    def __init__(self, params: PoolParams, limit: float) -> None:
        self.ramp = Ramp(params.ramp_s, params.no_backend_wait_s)
        self.slew = Slew(limit)
        self.ceiling = Ceiling()

    def reconfigure(self, params: PoolParams) -> None:
        """New times for replicas; what is known of the back ends stays."""
        self.ramp.reconfigure(params.ramp_s, params.no_backend_wait_s)

    def of(self, limit: float, now: float) -> float:
        """How much of `limit` may be used now, by answers and by slots that failed."""
        ramped = limit * self.ramp.share(now)
        usable = self.slew.usable(ramped if ramped > 1.0 else 1.0, now)
        asked = self.ceiling.seats(now)
        return usable if usable <= asked else asked

    def tell(self, ready: int | None, now: float) -> float:
        """So many back ends are ready; the factor by which the learned limit changes."""
        if self.ramp.ready == 0 and ready:
            self.slew.begin_at(1.0, now)  # not all who waited for it in one instant
        return self.ramp.tell(ready, now)

    def next_step(self, now: float) -> float | None:
        """When more may be used than now; None when nothing is held back."""
        steps = (self.ceiling.ready_at(now), self.slew.next_step(now), self.ramp.next_step(now))
        return min((at for at in steps if at is not None and at > now), default=None)
