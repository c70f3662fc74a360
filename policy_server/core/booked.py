"""Slots that are booked, by tenant: who books much stands behind his own bookings.

    served   μ slots a second, by fair turns: each tenant with bookings gets μ/n
    ahead    b_t + min(B − b_t, (b_t + 1)·(n − 1))      of a tenant with b_t of B slots, n tenants

the same turns as in the room (room/room.py `ahead`). With one line for all, whoever floods pushed
the promises made to everybody else into the future. Where all book alike it is that one line.

Kept as in fair queueing by virtual time (Demers, Keshav & Shenker 1989): V rises by μ/n a second,
and a tenant's bookings are gone when V passes its mark F = V + b. All operations O(log n).

Bounds: MAX_LINES tenants; past it newcomers share the line of the strangers. Owner: the bookings.
"""

from __future__ import annotations

from sortedcontainers import SortedList

MAX_LINES = 10_000
STRANGERS = ""
DUST = 1e-9  # of a slot: what rounding leaves of a booking that was served


class Booked:
    """The bookings of one class, in slots."""

    def __init__(self) -> None:
        self._marks: dict[str, float] = {}
        self._order: SortedList[tuple[float, str]] = SortedList()
        self._sum = 0.0  # of the marks
        self._v = 0.0

    def __len__(self) -> int:
        """Tenants with bookings."""
        return len(self._marks)

    def ahead(self, tenant: str) -> float:
        """Slots that are taken before the next one of this tenant."""
        n = len(self._marks)
        if not n:
            return 0.0
        mark = self._marks.get(self._line(tenant))
        own, others = (0.0, n) if mark is None else (mark - self._v, n - 1)
        rest = max(0.0, self._sum - n * self._v - own)
        return own + min(rest, (own + 1.0) * others)

    def add(self, tenant: str, slots: float) -> None:
        """Book so many (> 0) more."""
        line = self._line(tenant)
        before = self._marks.get(line, self._v)
        if line in self._marks:
            self._order.remove((before, line))
            self._sum -= before
        self._marks[line] = before + slots
        self._order.add((before + slots, line))
        self._sum += before + slots

    def serve(self, slots: float) -> None:
        """So many slots came free."""
        while self._order and slots > 0.0:
            n = len(self._order)
            mark, tenant = self._order[0]
            need = (mark - self._v) * n
            if need > slots + DUST:
                self._v += slots / n
                return
            slots -= need
            self._v = mark
            self._sum -= mark
            del self._order[0], self._marks[tenant]
        if not self._order:
            self._v = self._sum = 0.0

    def _line(self, tenant: str) -> str:
        full = len(self._marks) >= MAX_LINES and tenant not in self._marks
        return STRANGERS if full else tenant
