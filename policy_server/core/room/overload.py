"""For how long a class has been refused: the only thing known about how long it will last.

    age = now − the first refusal, while no PAUSE_S passed without one

A tenant that floods is refused for its own line, so each tenant has its own age. The class ages
only while more than one are refused: by refusals within PAUSE_S of another tenant's.

Owner: the door and the bookings, each its own; pure.
"""

from __future__ import annotations

from collections import OrderedDict

PAUSE_S = 5.0  # without a refusal ends an overload
MAX_TENANTS = 10_000


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


class Overloads:
    """One class, by tenant; those refused longest ago are forgotten past MAX_TENANTS."""

    def __init__(self) -> None:
        self._class = Overload()
        self._latest = (float("-inf"), "")
        self._other_at = float("-inf")  # the last refusal of another tenant than the latest
        self._tenants: OrderedDict[str, Overload] = OrderedDict()

    def __len__(self) -> int:
        """Tenants that are remembered."""
        return len(self._tenants)

    def note(self, tenant: str, now: float) -> None:
        """One of this tenant was refused."""
        own = self._tenants.get(tenant)
        if own is None:
            own = self._tenants[tenant] = Overload()
            if len(self._tenants) > MAX_TENANTS:
                self._tenants.popitem(last=False)
        if tenant != self._latest[1]:
            self._other_at = self._latest[0]
        self._latest = (now, tenant)
        if now - self._other_at <= PAUSE_S:
            self._class.note(now)
        own.note(now)
        self._tenants.move_to_end(tenant)

    def age_s(self, tenant: str, now: float) -> float:
        """Seconds since the overload began that this tenant is in, 0 when there is none."""
        own = self._tenants.get(tenant)
        return max(self._class.age_s(now), 0.0 if own is None else own.age_s(now))
