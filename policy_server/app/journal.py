"""The journal of one server: where it lies, its numbers, and what is said when it is in trouble."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from prometheus_client import CollectorRegistry
from structlog.typing import FilteringBoundLogger

from policy_server.config import Config, ConfigError, JournalConfig
from policy_server.journal.memory import MemoryJournal
from policy_server.journal.port import Journal, JournalError
from policy_server.journal.sqlite.journal import SqliteJournal
from policy_server.journal.sqlite.store import Store, StoreOptions
from policy_server.private_file import open_folder
from policy_server.telemetry.journal_metrics import JournalMetrics

FIX = (
    "Held requests go on, but lose their places at a restart; jobs are refused meanwhile, "
    "and those that were accepted wait"
)
INTERVAL = (
    "fsync: interval: if the machine goes down, the jobs accepted in the last {:g} ms are lost"
)


class JournalParts:
    """`journal` with its metrics. `data_dir` None = in memory."""

    def __init__(
        self,
        config: Config,
        data_dir: Path | None,
        registry: CollectorRegistry,
        log: FilteringBoundLogger,
    ) -> None:
        self._fsync = config.journal.fsync
        self._log = log
        self._error: str | None = None
        self.journal: Journal = MemoryJournal()
        self._metrics = JournalMetrics(
            registry, self._records, lambda: self.journal.stats().healthy
        )
        if data_dir is not None:
            self.journal = self._on_disk(config.journal, config.journal.file_in(data_dir))

    def _on_disk(self, config: JournalConfig, path: Path) -> SqliteJournal:
        if config.fsync == "interval":
            self._log.warning("journal", detail=INTERVAL.format(config.fsync_interval_ms))
        store = Store(
            StoreOptions(
                path,
                config.fsync,
                config.fsync_interval_ms / 1000,
                on_commit=self._metrics.commit,
                on_lost=lambda error: self._log.error("journal", error=error),
            )
        )
        return SqliteJournal(store)

    def open(self) -> None:
        """Take the file over, on the running loop. A disk in trouble is no error.

        Raises ConfigError when a person has to change something first.
        """
        if not isinstance(self.journal, SqliteJournal):
            return
        try:
            self.journal.open()
        except JournalError as error:
            raise ConfigError(f"journal.path: {error}") from None
        with suppress(OSError):
            if exposed := open_folder(self.journal.store.path.parent):
                self._log.warning("journal", detail=exposed)
        self.tick()

    def _records(self) -> Mapping[str, int]:
        stats = self.journal.stats()
        counts = {"waiting": stats.waiting, "leased": stats.leases}
        return {**counts, "unwritten": stats.pending_writes}

    def view(self) -> dict[str, str | float | None]:
        """The journal's section of `/statusz`."""
        stats = self.journal.stats()
        view: dict[str, str | float | None] = {
            "kind": stats.kind,
            "healthy": stats.healthy,
            "error": stats.error,
            "waiting": stats.waiting,
            "leases": stats.leases,
            "unwritten": stats.pending_writes,
        }
        if stats.size_bytes is not None:
            commit_ms = (
                None if stats.last_commit_s is None else round(stats.last_commit_s * 1000, 2)
            )
            view |= {"fsync": self._fsync, "size_bytes": stats.size_bytes}
            view |= {"last_commit_ms": commit_ms}
        return view

    def tick(self) -> None:
        """Once a second: say once that it is in trouble, and once that it is well again."""
        error = self.journal.stats().error
        if error != self._error:
            self._error = error
            if error is None:
                self._log.info("journal", state="well again")
            else:
                self._log.error("journal", error=error, detail=FIX)

    def warning(self) -> str | None:
        """For `/statusz`; None when all is well."""
        error = self.journal.stats().error
        return None if error is None else f"journal: {error}. {FIX}"
