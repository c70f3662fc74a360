"""Which class goes next: guaranteed shares with borrowing and a reserve.

    entitled = waiting classes with N_c < g_c·L
    any entitled:   the most important of them; P0 while N < L + R, others while N < L
    else borrowing: the most important waiting class, while N < L − R

The share is the guard against starvation, the reserve R keeps a few seats free for the entitled
who come next. Seats are held back only from those who borrow while *another* class was heard of
lately: a pool with one class uses its whole limit.

Invariant: nothing is dispatched while N ≥ L + R.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from policy_server.core.limit.vegas import reserve_of
from policy_server.core.params import ClassParams
from policy_server.core.request import Priority

ACTIVE_S = 60.0


class ClassRule:
    """Shares of one pool. Owner: the pool."""

    def __init__(self, classes: Mapping[Priority, ClassParams]) -> None:
        self._shares = [classes[p].share for p in Priority]
        self._heard = [float("-inf")] * len(Priority)

    def note_arrival(self, priority: Priority, now: float) -> None:
        """A request of this class came."""
        self._heard[priority] = now

    def choose(
        self, waiting: Sequence[Priority], seats: Sequence[int], limit: float, now: float
    ) -> Priority | None:
        """The class whose head may go now, of those `waiting` (most important first).

        `seats` are the seats in use per class, `limit` is L in seats.
        """
        total = sum(seats)
        reserve = reserve_of(limit)
        for priority in waiting:
            if seats[priority] < self._shares[priority] * limit:
                bound = limit + reserve if priority is Priority.P0 else limit
                return priority if total < bound else None
        if not waiting:
            return None
        borrower = waiting[0]
        bound = limit - reserve if self._others_active(borrower, now) else limit
        return borrower if total < bound else None

    def _others_active(self, borrower: Priority, now: float) -> bool:
        return any(now - heard < ACTIVE_S for p, heard in enumerate(self._heard) if p != borrower)
