"""The waiting requests of one class, in order of arrival, with an index by deadline.

Every operation is O(log n). A place restored after a restart carries its old arrival time and so
sorts where it stood. `sequence` keeps equal arrivals in the order in which they came.
"""

from __future__ import annotations

from dataclasses import dataclass

from sortedcontainers import SortedDict, SortedList

from policy_server.core.request import Request

Order = tuple[float, int]


@dataclass(frozen=True, slots=True)
class Ticket:
    """A place in the room."""

    request: Request
    sequence: int

    @property
    def order(self) -> Order:
        """Sort key: arrival, then sequence."""
        return (self.request.arrived, self.sequence)


class ClassQueue:
    """One class's waiters."""

    def __init__(self) -> None:
        self._by_order: SortedDict[Order, Ticket] = SortedDict()
        self._by_deadline: SortedList[tuple[float, Order]] = SortedList()

    def __len__(self) -> int:
        return len(self._by_order)

    def push(self, ticket: Ticket) -> None:
        """Take a place."""
        self._by_order[ticket.order] = ticket
        self._by_deadline.add((ticket.request.deadline, ticket.order))

    def remove(self, ticket: Ticket) -> None:
        """Give a place up; KeyError when it holds none."""
        del self._by_order[ticket.order]
        self._by_deadline.remove((ticket.request.deadline, ticket.order))

    def head(self) -> Ticket:
        """The next to go; IndexError when empty."""
        return self._by_order.peekitem(0)[1]

    def newest(self) -> Ticket:
        """The last in line; IndexError when empty."""
        return self._by_order.peekitem(-1)[1]

    def at(self, index: int) -> Ticket:
        """The ticket at a position of the line; IndexError past the end."""
        return self._by_order.peekitem(index)[1]

    def earliest_deadline(self) -> float | None:
        """The next deadline, monotonic seconds."""
        return self._by_deadline[0][0] if self._by_deadline else None

    def expired(self, now: float) -> Ticket | None:
        """One ticket whose deadline has passed."""
        if self._by_deadline and self._by_deadline[0][0] <= now:
            return self._by_order[self._by_deadline[0][1]]
        return None
