"""The waiting jobs of a pool: by class, fair turns between tenants, then the order of arrival.

Jobs wait apart from the room: its bounds and its predictions are about people on the line. There
may be very many of them, so each costs little: its request, one dictionary entry, one slot in its
tenant's line. Only the first of each line takes part in the fair turns. A job that comes back (its
model server refused it) goes where its arrival puts it, in front of those who came later.

A withdrawn job leaves its line when it comes to the front, or with the others when they are more
than those who wait: nothing is ever searched, and who comes and leaves all day fills no memory.
Owner: the pool.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping

from policy_server.core.request import PRIORITIES, Priority, Request
from policy_server.core.room.tenants import FairLines
from policy_server.core.room.ticket import Ticket

SWEEP_FROM = 64  # withdrawn ones that may stay in a line, however short


class JobLines:
    """The jobs that wait in one pool."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self._turns = [FairLines(weights) for _ in PRIORITIES]
        self._lines: dict[tuple[Priority, str], deque[Request]] = {}
        self._gone: Counter[tuple[Priority, str]] = Counter()
        """Those in the lines who were withdrawn."""
        self.requests: dict[str, Request] = {}
        """By uid, read only."""
        self._counts: Counter[Priority] = Counter()

    def reconfigure(self, weights: Mapping[str, float]) -> None:
        """New weights of the tenants."""
        for turns in self._turns:
            turns.reweigh(weights)

    def __len__(self) -> int:
        return len(self.requests)

    def __contains__(self, uid: str) -> bool:
        return uid in self.requests

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests.values())

    def counts(self) -> list[int]:
        """Waiting jobs per class."""
        return [self._counts[p] for p in PRIORITIES]

    def charge(self, request: Request, tokens: float, now: float) -> None:
        """Charge its tenant `tokens`, see `FairLines`."""
        self._turns[request.priority].charge(request.tenant, tokens, now)

    def correct(self, request: Request, tokens: float, now: float) -> None:
        """Its tenant was charged too little or too much."""
        self._turns[request.priority].correct(request.tenant, tokens, now)

    def push(self, request: Request) -> None:
        """Get in line; ValueError when the uid waits already."""
        if request.uid in self.requests:
            raise ValueError(f"{request.uid} waits already")
        self.requests[request.uid] = request
        self._counts[request.priority] += 1
        key = (request.priority, request.tenant)
        line = self._lines.get(key)
        if line is None:
            self._lines[key] = deque([request])
            self._turns[request.priority].push(_ticket(request))
        elif request.arrived >= line[-1].arrived:
            line.append(request)
        elif request.arrived < line[0].arrived:
            self._turns[request.priority].remove(_ticket(line[0]))
            line.appendleft(request)
            self._turns[request.priority].push(_ticket(request))
        else:
            line.insert(_position(line, request.arrived), request)

    def head(self) -> Request:
        """The next to go; IndexError when none waits."""
        for turns in self._turns:
            if len(turns):
                return turns.head().request
        raise IndexError("no job waits")

    def withdraw(self, uid: str) -> Request | None:
        """Leave the line, to go or for good; None when the uid does not wait here."""
        request = self.requests.pop(uid, None)
        if request is None:
            return None
        self._counts[request.priority] -= 1
        key = (request.priority, request.tenant)
        if self._lines[key][0].uid == uid:
            self._advance(key)
        else:
            self._gone[key] += 1
            self._sweep(key)
        return request

    def _sweep(self, key: tuple[Priority, str]) -> None:
        line = self._lines[key]
        if self._gone[key] > SWEEP_FROM and 2 * self._gone[key] > len(line):
            self._lines[key] = deque(r for r in line if self.requests.get(r.uid) is r)
            del self._gone[key]

    def _advance(self, key: tuple[Priority, str]) -> None:
        """The first of this line has left: the next who still waits takes its turn."""
        line, turns = self._lines[key], self._turns[key[0]]
        turns.remove(_ticket(line[0]))
        line.popleft()
        while line and self.requests.get(line[0].uid) is not line[0]:
            line.popleft()
            self._gone[key] -= 1
        if line:
            turns.push(_ticket(line[0]))
        else:
            del self._lines[key]
            self._gone.pop(key, None)


def _ticket(request: Request) -> Ticket:
    """The stand-in of a line in the turns; equal requests give equal tickets."""
    return Ticket(request, 0)


def _position(line: deque[Request], arrived: float) -> int:
    """Behind all who came at `arrived` or before; searched from the front, where returns go."""
    for index, request in enumerate(line):
        if request.arrived > arrived:
            return index
    return len(line)
