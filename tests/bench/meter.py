"""CPU and memory of a process, from /proc, and samples of anything once a second."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """CPU seconds that the process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def rss_bytes(pid: int) -> int:
    """Resident memory of the process now."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


@dataclass(slots=True)
class CpuMeter:
    """Cores that some processes use between `start` and `shares`."""

    pids: Mapping[str, int]
    _began: float = 0.0
    _before: dict[str, float] = field(default_factory=dict)

    def start(self) -> None:
        """Begin to count."""
        self._began = time.monotonic()
        self._before = {name: cpu_s(pid) for name, pid in self.pids.items()}

    def seconds(self) -> dict[str, float]:
        """CPU seconds of each since `start`."""
        return {name: cpu_s(pid) - self._before[name] for name, pid in self.pids.items()}

    def shares(self) -> dict[str, float]:
        """Mean number of cores that each has used since `start`."""
        elapsed = time.monotonic() - self._began
        return {name: used / elapsed for name, used in self.seconds().items()}


@contextlib.asynccontextmanager
async def sampling(
    look: Callable[[], Awaitable[float | None]], every_s: float = 1.0
) -> AsyncIterator[list[float | None]]:
    """Calls `look` every `every_s` seconds inside the block; the list grows meanwhile."""
    samples: list[float | None] = []

    async def collect() -> None:
        while True:
            try:
                async with asyncio.timeout(5):
                    samples.append(await look())
            except (OSError, TimeoutError, ValueError, aiohttp.ClientError):
                samples.append(None)
            await asyncio.sleep(every_s)

    task = asyncio.create_task(collect())
    try:
        yield samples
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
