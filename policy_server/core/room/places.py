"""Places that outlive a restart: who waited before it and has not been sent again yet.

Envoy sends the held requests again in any order, over about a second. Until they are back:

    awaited     its ticket stands in line where it stood; when its turn comes, the slot is kept
                for it, so the release goes on in the order of before
    passed by   the returns have ceased: out of line. Who comes later gets its seniority back
    lapsed      past its deadline, or not back `ABSENT_S` after the restart: its client has left

Requests are returning while   now < min(first + LONGEST_S, max(first + FIRST_S, last + QUIET_S))
with `first` the first request of any kind after the restart and `last` the latest return. So a
slot that is kept costs its idle time only while they come.

Owner: the room. A uid is awaited or passed by, never both.
"""

from __future__ import annotations

from policy_server.core.request import Request

FIRST_S = 2.0  # Envoy comes back from a back-off of at most 0.5 s, on a busy machine
QUIET_S = 1.0  # twice that back-off
LONGEST_S = 5.0
ABSENT_S = 60.0  # for so long Envoy tries
SWEEP_S = 1.0


class Places:
    """The places of one pool that wait for their requests."""

    def __init__(self) -> None:
        self.awaiting: dict[str, Request] = {}
        """By uid: in line, their requests not here; read only, as is `passed`."""
        self.passed: dict[str, Request] = {}
        self._start = float("-inf")
        self._first: float | None = None
        self._last = float("-inf")
        self._sweep_at = float("inf")

    def __len__(self) -> int:
        return len(self.awaiting) + len(self.passed)

    @property
    def in_line(self) -> int:
        """Places that are awaited."""
        return len(self.awaiting)

    def keep(self, request: Request, now: float) -> None:
        """`request` waited before the restart that ends now."""
        self.awaiting[request.uid] = request
        self._start, self._first = now, None

    def note_contact(self, now: float) -> None:
        """A request came, whoever's."""
        if self._first is None:
            self._first = now

    def awaited(self, uid: str) -> bool:
        """Whether this ticket stands in line without its request."""
        return uid in self.awaiting

    def back(self, uid: str, now: float) -> bool:
        """The request of an awaited place is here; False when there is no such place."""
        if self.awaiting.pop(uid, None) is None:
            return False
        self._last = now
        return True

    def claim(self, uid: str) -> Request | None:
        """What stood at a place that was passed by."""
        return self.passed.pop(uid, None)

    def forget(self, uid: str) -> None:
        """The ticket of an awaited place is gone."""
        self.awaiting.pop(uid, None)

    def _until(self) -> float:
        first = self._first
        if first is None:
            return self._start + ABSENT_S
        return min(first + LONGEST_S, max(first + FIRST_S, self._last + QUIET_S))

    def pass_by(self, now: float) -> list[str]:
        """Once the returns have ceased: whose tickets are to be taken out of line."""
        if not self.awaiting or now < self._until():
            return []
        uids = list(self.awaiting)
        self.passed.update(self.awaiting)
        self.awaiting.clear()
        self._sweep_at = now + SWEEP_S
        return uids

    def lapsed(self, now: float) -> list[Request]:
        """Those passed by who will not come any more; they are forgotten."""
        if now < self._sweep_at:
            return []
        over = now >= self._start + ABSENT_S
        gone = [r for r in self.passed.values() if over or r.deadline <= now]
        for request in gone:
            del self.passed[request.uid]
        self._sweep_at = now + SWEEP_S if self.passed else float("inf")
        return gone

    def due_at(self) -> float:
        """When `pass_by` or `lapsed` has something to do, monotonic seconds; infinite = never."""
        due = self._until() if self.awaiting else float("inf")
        return min(due, self._sweep_at) if self.passed else due
