"""Old places in the clock of the new process.

Monotonic time goes on from one process to the next as long as the machine runs: then the times
hold as they are, whatever was done to the wall clock meanwhile. It starts anew with each boot; of
another boot the ages come from the wall clock:

    age      = max(0, wall_now − arrived_wall)      0 when the clock was set back meanwhile
    arrived  = now − age
    deadline = arrived + budget

The dead (age > budget) are dropped before anything is restored; the order stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from policy_server.core.request import Request
from policy_server.journal.port import Held, Place


def revive(
    places: Iterable[Place], now: float, wall_now: float, boot: str = ""
) -> tuple[list[Place], list[Place]]:
    """Split `places` into (alive with times of this process, dead as they were).

    `now` is monotonic, `wall_now` Unix seconds, both read at the same moment, in `boot`.
    """
    alive: list[Place] = []
    dead: list[Place] = []
    for place in places:
        same = bool(boot) and place.boot == boot and place.request.arrived <= now
        request = place.request if same else _rebased(place.request, now, wall_now)
        if request.deadline > now:
            alive.append(replace(place, request=request))
        else:
            dead.append(place)
    return alive, dead


def _rebased(request: Request, now: float, wall_now: float) -> Request:
    age_s = max(0.0, wall_now - request.arrived_wall)
    arrived = now - age_s
    return replace(request, arrived=arrived, deadline=arrived + request.budget_s)


def alive_leases(leases: Iterable[Held], now: float, boot: str) -> list[Held]:
    """Those of this boot: a machine that went down has cut the answers that it carried."""
    return [held for held in leases if boot and held.boot == boot and held.granted <= now]
