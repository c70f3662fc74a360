"""Seats that a class keeps free for its calm tenants, so that one flood does not make all wait.

    calm   a tenant whose counter (tenants.py) is below .85 of the heaviest who waits
    ρ_c    of what the class used of late, the part of those tenants who do not wait now
    R_c    = min(.2·L, ln ε / ln ρ_c) seats, ε = .1 %, while the next in line is not calm

While a flood waits, N stands at the limit, and whoever comes must wait for an answer to end,
first in line or not. So the flood stops R_c seats below the limit. In these seats only the calm
come, at ρ times the rate at which seats come free: a walk that reaches the limit with probability
ρ^R. Beside nine calm tenants at .8 of their part, one at ten times its part (scenario 14) made
them wait 2.3 s at p99 without these seats, .5 s with them (worst of eight seeds), at .96 of the
goodput of the best static limit.

Where all who used the class wait themselves, nobody is left to keep a seat for: a burst of all
tenants at once uses the whole limit. An engine of fewer than five seats keeps nothing free.
Owner: the lines; pure.
"""

from __future__ import annotations

import math

NO_SEAT_SHARE = 0.001  # ε: how seldom a calm tenant may find all seats taken
MAX_SHARE = 0.2  # of the limit
FEW = 0.02  # a smaller ρ is chance


def calm_seats(elsewhere: float, limit: float) -> int:
    """R_c: how far below its bound a class stops, from ρ_c, 0..1, and L, seats."""
    if elsewhere < FEW:
        return 0
    most = MAX_SHARE * limit
    wanted = math.log(NO_SEAT_SHARE) / math.log(elsewhere) if elsewhere < 1.0 else most
    return math.floor(min(most, wanted))
