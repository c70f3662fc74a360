"""Seats that a class keeps free for its calm tenants, so that one flood does not make all wait.

    calm   a tenant whose counter (tenants.py) is below .85 of the heaviest who waits, or of the
           mean over the tokens of late; all are while nobody has used anything
    ρ_c    share of a contended class's dispatches that went to calm tenants (EWMA), at most the
           part of what the class used of late that those used who do not wait now
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

from policy_server.core.request import PRIORITIES

NO_SEAT_SHARE = 0.001  # ε: how seldom a calm tenant may find all seats taken
MAX_SHARE = 0.2  # of the limit
MEMORY = 0.005  # slow: what the calm take swings by itself
FEW = 0.02  # a smaller ρ is chance


class CalmReserve:
    """R_c of one pool."""

    def __init__(self) -> None:
        self._calm = [0.0] * len(PRIORITIES)

    def note_dispatch(self, line: int, calm: bool) -> None:
        """A request of a class in which others wait was dispatched."""
        self._calm[line] += MEMORY * (float(calm) - self._calm[line])

    def seats(self, line: int, elsewhere: float, limit: float) -> int:
        """R_c: how far below its bound a class stops while its next is not calm.

        `elsewhere`: the part of its use of late by tenants who do not wait now, 0..1.
        """
        calm, most = min(self._calm[line], elsewhere), MAX_SHARE * limit
        if calm < FEW:
            return 0
        wanted = math.log(NO_SEAT_SHARE) / math.log(calm) if calm < 1.0 else most
        return math.floor(min(most, wanted))
