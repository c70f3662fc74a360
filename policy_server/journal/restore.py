"""Old places in the clock of the new process.

Monotonic time starts anew with each boot, so ages come from the wall clock:

    age      = max(0, wall_now − arrived_wall)      0 when the clock was set back meanwhile
    arrived  = now − age
    deadline = arrived + budget

The dead (age > budget) are dropped before anything is restored; the order stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from policy_server.core.request import Request
from policy_server.journal.port import Place


def revive(places: Iterable[Place], now: float, wall_now: float) -> tuple[list[Place], list[Place]]:
    """Split `places` into (alive with times of this process, dead as they were).

    `now` is monotonic, `wall_now` Unix seconds, both read at the same moment.
    """
    alive: list[Place] = []
    dead: list[Place] = []
    for place in places:
        request = _rebased(place.request, now, wall_now)
        if request.deadline > now:
            alive.append(replace(place, request=request))
        else:
            dead.append(place)
    return alive, dead


def _rebased(request: Request, now: float, wall_now: float) -> Request:
    age_s = max(0.0, wall_now - request.arrived_wall)
    arrived = now - age_s
    return replace(request, arrived=arrived, deadline=arrived + request.budget_s)
