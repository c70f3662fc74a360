"""Lets no job go while the store can't be read or written; held requests go on.

    a job can't be read    no job goes until it can, for `PROBES` looks: then it is this one alone
    an end can't be written, or the store says that it is in trouble: until it is well
    too much is on its way to the disk: until half of that is written

So a full disk costs one round of jobs, and what their answers take in memory is bounded: an answer
that fits no more is dropped, and its job runs again, as it would after a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from policy_server.driver import Driver
from policy_server.journal.jobs import Ending, JobStore, size_of

RETRY_S = 1.0
PROBES = 5
MAX_UNWRITTEN = 256 * 1024 * 1024
"""Bytes of answers that are on their way to the disk."""
EACH = 16 * 1024
"""What an end takes besides its answer, rounded up."""


class Disk:
    """Use it on the driver's event loop. `stop` it in the end."""

    def __init__(self, driver: Driver, store: JobStore) -> None:
        self._driver, self._store = driver, store
        self.problem: str | None = None
        """Why no job goes, for people; None = they go."""
        self._unread = ""
        self._unwritten = 0
        self._failing = 0
        self._watch: asyncio.Task[None] | None = None
        self._stopped = False

    def allows(self) -> bool:
        """Whether a job may go now; looks at the store."""
        trouble = self._store.trouble()
        if trouble is not None:
            self._close(trouble)
        return self.problem is None

    def unread(self, job_id: str, why: str) -> None:
        """This job could not be read."""
        if self.problem is None:
            self._unread = job_id
        self._close(why)

    def unwritten(self, ending: Ending, why: str) -> bool:
        """This end could not be written; whether its answer may stay in memory until it can."""
        self._close(why)
        return ending.answer is None or self._unwritten <= MAX_UNWRITTEN

    @contextlib.contextmanager
    def writing(self, ending: Ending) -> Iterator[None]:
        """While an end is on its way to the disk."""
        size = EACH + size_of(ending.answer)
        self._unwritten += size
        if self._unwritten > MAX_UNWRITTEN:
            self._close("the disk is too slow for the answers of the jobs")
        try:
            yield
        finally:
            self._unwritten -= size

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """While the disk has refused an end and not taken it yet."""
        self._failing += 1
        try:
            yield
        finally:
            self._failing -= 1

    def _close(self, why: str) -> None:
        if self.problem is None and not self._stopped:
            self._driver.pause_jobs()
            self._watch = asyncio.create_task(self._until_well())
        self.problem = f"no job goes for now: {why}"

    async def _until_well(self) -> None:
        looks = 0
        while not await self._well(looks):
            await asyncio.sleep(RETRY_S)
            looks += 1
        self.problem, self._unread = None, ""
        self._driver.resume_jobs()

    async def _well(self, looks: int) -> bool:
        if looks == 0 or self._store.trouble() is not None:
            return False
        if self._failing or self._unwritten > MAX_UNWRITTEN // 2:
            return False
        return not self._unread or looks > PROBES or await self._readable(self._unread)

    async def _readable(self, job_id: str) -> bool:
        try:
            await self._store.get(job_id)
            await self._store.request(job_id)
        except Exception:
            return False
        return True

    async def stop(self) -> None:
        """Look no more; the jobs stay where they are."""
        self._stopped = True
        self._driver.pause_jobs()
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
