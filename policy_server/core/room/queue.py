"""The waiting requests of one class: fair turns, an order of arrival, an index by deadline.

Every operation is O(log n). A place restored after a restart carries its old arrival time and so
sorts where it stood.
"""

from __future__ import annotations

from collections.abc import Mapping

from sortedcontainers import SortedDict, SortedList

from policy_server.core.room.tenants import FairLines
from policy_server.core.room.ticket import Order, Ticket


class ClassQueue:
    """One class's waiters."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self.fair = FairLines(weights)
        self._by_order: SortedDict[Order, Ticket] = SortedDict()
        self._by_deadline: SortedList[tuple[float, Order]] = SortedList()

    def __len__(self) -> int:
        return len(self._by_order)

    def push(self, ticket: Ticket) -> None:
        """Take a place."""
        self._by_order[ticket.order] = ticket
        self.fair.push(ticket)
        self._by_deadline.add((ticket.request.deadline, ticket.order))

    def remove(self, ticket: Ticket) -> None:
        """Give a place up; KeyError when it holds none."""
        del self._by_order[ticket.order]
        self.fair.remove(ticket)
        self._by_deadline.remove((ticket.request.deadline, ticket.order))

    def head(self) -> Ticket:
        """The next to go; IndexError when empty."""
        return self.fair.head()

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
