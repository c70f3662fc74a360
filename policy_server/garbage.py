"""Keeps Python's garbage collector from stopping the one loop that decides.

A held request is about a hundred objects, most of them gRPC's. A full collection looks at all of
them: a quarter of a second with 8,000 held, and there is one whenever the heap has grown by a
quarter. Whoever comes or goes in such a pause waits for it, and what is measured meanwhile is
thrown away. Requests leave less than one object each that only a full collection finds (reference
counts and the young generations do the rest), so those are done here, when few are held.
"""

from __future__ import annotations

import gc

YOUNG, MIDDLE = 700, 10  # Python's own defaults
NEVER = 1_000_000_000
EVERY_S = 60.0
FEW = 500  # held requests: some 20 ms
OVERDUE_S = 3600.0  # so that garbage stays bounded where there are always many


class FullCollections:
    """Decides on the full collections of this process once `take_over` was called."""

    def __init__(self, now: float) -> None:
        self._last = now

    def take_over(self) -> None:
        """Everything is loaded: what is there now stays and is never looked at again."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG, MIDDLE, NEVER)

    def tick(self, held: int, now: float) -> bool:
        """Collect if it is time and few requests are held; call about once a second."""
        age_s = now - self._last
        if age_s < EVERY_S or (held > FEW and age_s < OVERDUE_S):
            return False
        gc.collect()
        self._last = now
        return True
