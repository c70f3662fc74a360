"""How the contract suite opens and restarts each store of jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, Self

from policy_server.journal.jobs import JobStore
from policy_server.journal.jobs_memory import MemoryJobs
from policy_server.journal.sqlite.jobs import SqliteJobs
from policy_server.journal.sqlite.store import Store, StoreOptions


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


class InSqlite:
    """In the journal's file, opened anew by each restart."""

    store: JobStore

    def __init__(self, folder: Path) -> None:
        self._path = folder / "journal.db"

    async def restart(self) -> None:
        await self._file.close()
        await self.__aenter__()

    async def __aenter__(self) -> Self:
        self._file = Store(StoreOptions(self._path, lock_wait_s=0.0))
        self._file.open()
        self.store = SqliteJobs(self._file)
        await self.store.load()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._file.close()


HARNESSES: dict[str, Callable[[Path], JobsHarness]] = {"memory": InMemory, "sqlite": InSqlite}
