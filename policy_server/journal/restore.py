"""Old places in the clock of the new process.

Monotonic time goes on from one process to the next as long as the machine runs: then the times
hold as they are, whatever was done to the wall clock meanwhile. It starts anew with each boot; of
another boot the ages come from the wall clock:

    age      = max(0, wall_now − arrived_wall)      0 when the clock was set back meanwhile
    arrived  = now − age
    deadline = arrived + budget

The dead (age > budget) are dropped before anything is restored; the order stays.

Another boot need not be this machine's: the journal may have moved to another one, while the
Envoys whose answers hold the slots go on. So slots are taken back whatever the boot; those of
answers that are no more are found out within seconds (`core/leases.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from policy_server.core.request import Request
from policy_server.journal.port import Held, Place


@dataclass(frozen=True, slots=True)
class Moment:
    """Monotonic seconds and Unix seconds, read together, in `boot` ("" = not known)."""

    now: float
    wall: float
    boot: str = ""


def revive(places: Iterable[Place], at: Moment) -> tuple[list[Place], list[Place]]:
    """Split `places` into (alive with times of this process, dead as they were)."""
    alive: list[Place] = []
    dead: list[Place] = []
    for place in places:
        known = _same(place.boot, place.request.arrived, at)
        request = place.request if known else _rebased(place.request, at)
        if request.deadline > at.now:
            alive.append(replace(place, request=request))
        else:
            dead.append(place)
    return alive, dead


def _same(boot: str, then: float, at: Moment) -> bool:
    """Whether `then` of `boot` is a time of the clock of now."""
    return bool(boot) and boot == at.boot and then <= at.now


def _rebased(request: Request, at: Moment) -> Request:
    arrived = _since(request.arrived_wall, at)
    return replace(request, arrived=arrived, deadline=arrived + request.budget_s)


def _since(wall: float, at: Moment) -> float:
    return at.now - max(0.0, at.wall - wall)


def revive_leases(leases: Iterable[Held], at: Moment) -> list[Held]:
    """The slots in use, with times of this process."""
    return [
        held if _same(held.boot, held.granted, at) else replace(held, granted=_granted(held, at))
        for held in leases
    ]


def _granted(held: Held, at: Moment) -> float:
    """By the wall clock; now, where nobody wrote that down."""
    request = held.request
    if request.arrived_wall <= 0.0:
        return at.now
    return _since(request.arrived_wall + (held.granted - request.arrived), at)
