"""What the contract suite needs of an implementation: open it, and open it again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from policy_server.journal.memory import MemoryJournal
from policy_server.journal.port import Journal
from policy_server.journal.sqlite.journal import SqliteJournal
from policy_server.journal.sqlite.store import Store, StoreOptions


class Harness(Protocol):
    """One store under test."""

    def open(self) -> Journal:
        """The first time: empty. Later: what a restarted process would find."""
        ...


class MemoryHarness:
    def __init__(self, directory: Path) -> None:
        self._journal: MemoryJournal | None = None

    def open(self) -> Journal:
        self._journal = self._journal.reopen() if self._journal else MemoryJournal()
        return self._journal


class SqliteHarness:
    def __init__(self, directory: Path) -> None:
        self.path = directory / "journal.db"

    def open(self) -> Journal:
        journal = SqliteJournal(Store(StoreOptions(self.path, lock_wait_s=0.0)))
        journal.open()
        return journal


class SqliteIntervalHarness(SqliteHarness):
    def open(self) -> Journal:
        options = StoreOptions(self.path, "interval", 0.01, lock_wait_s=0.0)
        journal = SqliteJournal(Store(options))
        journal.open()
        return journal


HARNESSES: dict[str, Callable[[Path], Harness]] = {
    "memory": MemoryHarness,
    "sqlite": SqliteHarness,
    "sqlite-interval": SqliteIntervalHarness,
}
"""By name; a new implementation is one line here."""
