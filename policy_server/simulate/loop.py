"""The virtual clock: a heap of things to do, run in order of time, ties in order of scheduling."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

Action = Callable[[], None]


class Loop:
    """A discrete-event loop; `now` is in virtual seconds from 0."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, Action]] = []
        self._order = 0

    def at(self, when: float, action: Action) -> None:
        """Run `action` at `when`; a moment in the past means now."""
        self._order += 1
        heappush(self._heap, (when if when > self.now else self.now, self._order, action))

    def after(self, delay_s: float, action: Action) -> None:
        """Run `action` in `delay_s` seconds."""
        self.at(self.now + delay_s, action)

    def run(self, until: float) -> None:
        """Run everything that is due up to and including `until`."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, action = heappop(heap)
            self.events += 1
            action()
        self.now = max(self.now, until)
