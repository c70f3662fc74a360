"""How the contract suite opens and restarts each store of jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, Self

from policy_server.journal.jobs import JobStore
from policy_server.journal.jobs_memory import MemoryJobs


class JobsHarness(Protocol):
    """A store that can be restarted."""

    store: JobStore

    async def restart(self) -> None:
        """Close it and open it again, as a new process would."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...


class InMemory:
    """What is in memory survives what its object survives."""

    def __init__(self, _: Path) -> None:
        self.store: JobStore = MemoryJobs()

    async def restart(self) -> None:
        assert isinstance(self.store, MemoryJobs)
        self.store = self.store.reopen()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


HARNESSES: dict[str, Callable[[Path], JobsHarness]] = {"memory": InMemory}
