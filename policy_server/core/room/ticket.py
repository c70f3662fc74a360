"""A place in the room."""

from __future__ import annotations

from dataclasses import dataclass

from policy_server.core.request import Request

Order = tuple[float, int]


@dataclass(frozen=True, slots=True)
class Ticket:
    """A place in the room. `sequence` keeps equal arrivals in the order in which they came."""

    request: Request
    sequence: int
    predicted_wait_s: float | None = None

    @property
    def order(self) -> Order:
        """Sort key: first arrival, then sequence."""
        return (self.request.first_arrived, self.sequence)
