"""Seats that a class keeps free for its calm tenants, so that one flood does not make all wait.

    calm   a tenant whose counter (tenants.py) is below .85 of the heaviest who waits
    ρ_c    share of a contended class's dispatches that went to calm tenants (EWMA)
    R_c    = min(.2·L, ln ε / ln ρ_c) seats, ε = .1 %

While a flood waits, N stands at the limit, and whoever comes must wait for an answer to end,
first in line or not. So the flood stops R_c seats below the limit. In these seats only the calm
come, at ρ times the rate at which seats come free: a walk that reaches the limit with probability
ρ^R. Beside nine calm tenants at .8 of their part, one at ten times its part (scenario 14) made
them wait 2.3 s at p99 without these seats, .5 s with them (worst of eight seeds), at .96 of the
goodput of the best static limit.

A class without calm tenants keeps nothing free, nor does an engine of fewer than five seats.
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

    def seats(self, line: int, limit: float) -> int:
        """R_c: how far below its bound a class stops while its next is not calm."""
        calm, most = self._calm[line], MAX_SHARE * limit
        if calm < FEW:
            return 0
        wanted = math.log(NO_SEAT_SHARE) / math.log(calm) if calm < 1.0 else most
        return math.floor(min(most, wanted))
