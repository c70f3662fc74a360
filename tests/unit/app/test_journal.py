"""What the metrics page says of the journal's disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, generate_latest

from policy_server.app.journal import JournalParts
from policy_server.config import Config


def parts(folder: Path | None) -> tuple[JournalParts, CollectorRegistry]:
    registry = CollectorRegistry()
    return JournalParts(Config(), folder, registry, structlog.get_logger()), registry


def said(registry: CollectorRegistry) -> str:
    text = generate_latest(registry).decode()
    (line,) = (one for one in text.splitlines() if one.startswith("policy_journal_healthy"))
    return line


async def test_a_disk_that_works_is_1_and_a_journal_that_cannot_be_written_is_0(
    tmp_path: Path,
) -> None:
    """Also while no job comes and nothing queues up: an alert goes by it."""
    well, registry = parts(tmp_path)
    well.open()
    await well.journal.flush()
    assert said(registry) == "policy_journal_healthy 1.0"
    await well.journal.close()

    file = tmp_path / "journal.db"
    file.write_bytes(file.read_bytes()[:100] + b"\xff" * 8000)  # damaged
    broken, registry = parts(tmp_path)
    broken.open()
    async with asyncio.timeout(20):
        while said(registry) != "policy_journal_healthy 0.0":  # noqa: ASYNC110 - another thread
            await asyncio.sleep(0.01)
    await broken.journal.close()


def test_a_journal_in_memory_has_no_disk_to_fail() -> None:
    _, registry = parts(None)
    assert said(registry) == "policy_journal_healthy 1.0"
