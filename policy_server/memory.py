"""How many bytes of bodies and answers are in memory at once.

Whoever wants more than fits waits, so that what it reads from stays where it is (TCP holds the
sender back). One share may always go over: somebody ends, and gives back what it has.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class Memory:
    """`most` bytes in all, and one share over that. Use it on one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._used = 0
        self._over: Share | None = None
        self._waiting: dict[Share, tuple[int, asyncio.Future[None]]] = {}

    @property
    def used(self) -> int:
        """Bytes that are held now."""
        return self._used

    def share(self) -> Share:
        """What one job or one reader holds; a context manager, it gives all back at its end."""
        return Share(self)

    def _fits(self, share: Share, more: int) -> bool:
        if self._used + more <= self._most:
            return True
        if self._over is None:
            self._over = share
        return self._over is share

    def _grant(self, share: Share, more: int) -> None:
        share.held += more
        self._used += more

    async def _grow(self, share: Share, more: int) -> bool:
        if self._fits(share, more):
            self._grant(share, more)
            return False
        granted = asyncio.get_running_loop().create_future()
        self._waiting[share] = more, granted
        try:
            await granted
        finally:
            self._waiting.pop(share, None)
        return True

    def _give_back(self, share: Share, less: int) -> None:
        share.held -= less
        self._used -= less
        for other, (more, granted) in list(self._waiting.items()):  # who waits longest first
            if not granted.done() and self._fits(other, more):
                self._grant(other, more)
                granted.set_result(None)

    def _leave(self, share: Share) -> None:
        if self._over is share:
            self._over = None
        self._give_back(share, share.held)


class Share:
    """The bytes of one job or one reader."""

    def __init__(self, memory: Memory) -> None:
        self.held = 0
        self._memory = memory

    async def grow(self, more: int) -> bool:
        """Take `more` bytes as soon as they are free; whether that took a wait."""
        return await self._memory._grow(self, more)

    def shrink_to(self, held: int) -> None:
        """It was not that much."""
        self._memory._give_back(self, max(0, self.held - held))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._memory._leave(self)
