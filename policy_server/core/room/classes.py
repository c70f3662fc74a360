"""Which line goes next: guaranteed shares with borrowing and a reserve.

A line is a class's held requests, or all jobs. The jobs stand behind every class: somebody is on
the line for a held request, and its predicted wait must not depend on a backlog of jobs.

    entitled = waiting lines whose next request keeps them within g_c·L
    any entitled:   the most important of them; P0 while N + s ≤ L + R, others while N + s ≤ L
    else borrowing: the most important waiting line, while N + s ≤ L − R

with s the seats of the request. An empty engine takes whoever comes. The share is the guard
against starvation, the reserve R keeps a few seats free for the entitled who come next. Seats are
held back only from those who borrow while *another* class was heard of lately: a pool with one
class, or with jobs only, uses its whole limit.

A share is seldom a whole number of seats: on an engine of 7, 5 % is a third of one. Rounding up
would give P2 a seventh of that engine, so the fraction is kept as credit: while a class waits,
g_c·L − N_c accrues over time, and a seat beyond the whole ones costs its missing fraction for one
mean service time. In the long run the class then holds g_c·L seats, no more.

After a cut N stands above L for about a mean service time. So that P0 need not wait that long, R
is then as large as what still has to drain, and shrinks by one with every two slots that come
free: every second freed slot may go to an entitled P0, or to a calm tenant of another entitled
class beside a flood, and N falls all the same.

Invariant: nothing is dispatched while N ≥ L + R.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from policy_server.core.limit.vegas import reserve_of
from policy_server.core.params import ClassParams
from policy_server.core.request import JOBS, LINES, PRIORITIES, Priority

ACTIVE_S = 60.0
MAX_CREDIT_SEATS = 8.0  # × one service time: the largest request's weight


ONE_SEAT = (1,) * LINES


class Heads(NamedTuple):
    """The next request of each line, by line.

    need       its seats
    held_back  by so many seats it stops below the bound of its line, for the calm (calm.py)
    calm       it is of a calm tenant beside a flood
    """

    need: Sequence[int] = ONE_SEAT
    held_back: Sequence[int] = (0,) * LINES
    calm: Sequence[bool] = (False,) * LINES


ORDINARY = Heads()


class ClassRule:
    """Shares of one pool; `jobs_share` is that of all jobs together. Owner: the pool."""

    def __init__(self, classes: Mapping[Priority, ClassParams], jobs_share: float = 0.0) -> None:
        self.reconfigure(classes, jobs_share)
        self._heard = [float("-inf")] * len(PRIORITIES)
        self._credit = [0.0] * LINES  # seat-seconds
        self._service_s: float | None = None
        self._at: float | None = None
        self._ceiling = 0.0  # L + R while a cut drains

    def reconfigure(self, classes: Mapping[Priority, ClassParams], jobs_share: float) -> None:
        """New shares; who was heard of and what still drains stays."""
        self._shares = [*(classes[p].share for p in PRIORITIES), jobs_share]

    def note_cut(self, seats: int) -> None:
        """The limit was cut while `seats` were in use."""
        self._ceiling = float(seats)

    def note_freed(self, seats: int) -> None:
        """Slots came free."""
        self._ceiling -= 0.5 * seats

    def reserve(self, limit: float) -> float:
        """R, seats, as it is now."""
        return max(reserve_of(limit), self._ceiling - limit)

    def note_arrival(self, priority: Priority, now: float) -> None:
        """A request of this class came, and no job."""
        self._heard[priority] = now

    def rest(self, service_s: float | None, now: float) -> None:
        """Nobody waits, so nobody has credit; `accrue` for an empty room, at less cost."""
        self._at, self._service_s = now, service_s
        self._credit = [0.0] * LINES

    def accrue(
        self,
        waiting: Sequence[int],
        seats: Sequence[int],
        limit: float,
        service_s: float | None,
        now: float,
    ) -> None:
        """Bring the credits up to `now`; whoever does not wait has none.

        `service_s` is the mean service time, None while nothing is known of it.
        """
        elapsed = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at, self._service_s = now, service_s
        for line in range(LINES):
            if line not in waiting:
                self._credit[line] = 0.0
                continue
            gained = (self._shares[line] * limit - seats[line]) * elapsed
            credit = max(0.0, self._credit[line] + gained)
            self._credit[line] = min(credit, MAX_CREDIT_SEATS * (service_s or 0.0))

    def choose(
        self,
        waiting: Sequence[int],
        seats: Sequence[int],
        limit: float,
        now: float,
        heads: Heads = ORDINARY,
    ) -> int | None:
        """The line whose head may go now, of those `waiting` (most important first).

        `seats` are the seats in use per line; `limit` is L. What a line keeps free for its calm
        tenants stays theirs: nobody borrows it, another entitled line may use its own.
        """
        if not waiting:
            return None
        total, need, held_back = sum(seats), heads.need, heads.held_back
        if not total:
            return self._first(waiting, seats, need, limit)
        entitled = False
        for line in waiting:
            if not self._entitled(line, seats[line], need[line], limit):
                continue
            entitled = True
            bound = limit
            if line == Priority.P0:
                bound = limit + self.reserve(limit)
            elif heads.calm[line]:
                bound = self._drained(limit)
            if total + need[line] <= bound - held_back[line]:
                return line
            if not held_back[line]:
                return None
        if entitled:
            return None
        line = waiting[0]
        if self._others_active(line, now):
            bound = limit - max(reserve_of(limit), held_back[line])
        else:
            bound = (self._drained(limit) if heads.calm[line] else limit) - held_back[line]
        return line if total + need[line] <= bound else None

    def _drained(self, limit: float) -> float:
        """L, or while a cut drains what it has drained to."""
        return max(limit, self._ceiling)

    def _first(
        self, waiting: Sequence[int], seats: Sequence[int], need: Sequence[int], limit: float
    ) -> int:
        """Of an empty engine."""
        entitled = (x for x in waiting if self._entitled(x, seats[x], need[x], limit))
        return next(entitled, waiting[0])

    def _entitled(self, line: int, seats: int, need: int, limit: float) -> bool:
        missing = seats + need - self._shares[line] * limit
        if missing <= 0.0:
            return True
        if self._service_s is None:
            return missing < need and line != JOBS
        return missing < need and self._credit[line] >= missing * self._service_s

    def _others_active(self, borrower: int, now: float) -> bool:
        return any(now - heard < ACTIVE_S for p, heard in enumerate(self._heard) if p != borrower)
