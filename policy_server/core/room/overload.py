"""For how long a class has been refused: the only thing known about how long it will last.

    age = now − the first refusal, while no PAUSE_S passed without one

Owner: the door and the bookings, each its own; pure.
"""

from __future__ import annotations

PAUSE_S = 5.0  # without a refusal ends an overload


class Overload:
    """The age of the overload of one class."""

    def __init__(self) -> None:
        self._since = float("inf")
        self._last = float("-inf")

    def note(self, now: float) -> None:
        """One was refused."""
        if now - self._last > PAUSE_S:
            self._since = now
        self._last = now

    def age_s(self, now: float) -> float:
        """Seconds since it began, 0 when there is none."""
        return now - self._since if now - self._last <= PAUSE_S else 0.0
