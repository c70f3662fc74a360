"""Who waits for news of a job: a bell each, rung when something has happened."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

QUIET_S = 5.0
"""After that much silence a watcher looks again, and says that it is still there."""
SETTLE_S = 0.05
"""What happened can be read from the store this much later."""


class Bell:
    """Rings for one watcher. What happened is read from the store: a bell can't miss anything."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def clear(self) -> None:
        """From here on a ring counts."""
        self._rung.clear()

    def ring(self) -> None:
        """Something has happened."""
        self._rung.set()

    async def rings(self) -> bool:
        """Wait for a ring; False after a while without one."""
        try:
            async with asyncio.timeout(QUIET_S):
                await self._rung.wait()
        except TimeoutError:
            return False
        await asyncio.sleep(SETTLE_S)
        return True


class Watchers:
    """The bells by job."""

    def __init__(self) -> None:
        self._bells: dict[str, set[Bell]] = {}

    @contextlib.contextmanager
    def watching(self, job_id: str) -> Iterator[Bell]:
        """A bell for as long as the block runs."""
        bell = Bell()
        self._bells.setdefault(job_id, set()).add(bell)
        try:
            yield bell
        finally:
            bells = self._bells[job_id]
            bells.discard(bell)
            if not bells:
                del self._bells[job_id]

    def ring(self, job_id: str) -> None:
        """Something has happened to this job."""
        for bell in self._bells.get(job_id, ()):
            bell.ring()
