"""What it costs to watch many streams: sampled, as shipped, and all of them to compare.

`streams` answers are live at any time, each a chunk per token, and end after `tokens`, when the
next request takes their place. CPU is the policy server's own, decisions and log included. The
sample must tell the same pace as the whole, for no more messages than its budget.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from policy_server.processes import tied_to_us
from tests.bench import drip
from tests.bench.client import connect_with, request
from tests.bench.lab import Lab, fixed, running_lab
from tests.bench.meter import CpuMeter
from tests.bench.result import Bar, Cell, Part
from tests.support.stack import stop

BUDGET_PER_S = 500
"""The default of `observe.max_messages_per_s`."""
EVERYTHING = 1_000_000
MAX_CORES = 0.5
MAX_SURPLUS = 1.3
"""Messages above the budget: the sampler picks none once they make 1.2 of it. The last one picked
(.06 of it) and a stream's head and end come on top."""
DELIVERED = 0.95
PACE = 0.1
READY_S = 20
COLUMNS = (
    "observed", "chunks/s", "messages/s", "policy CPU", "Envoy CPU", "µs a chunk",
    "streams watched", "time per token told / true",
)  # fmt: skip
_SENT = re.compile(r"ext_proc\.observer\.stream_msgs_sent: (\d+)")


@dataclass(frozen=True, slots=True)
class Watched:
    """`streams` live, `tokens_per_s` each; measured for `seconds` after `warmup_s`."""

    streams: int = 500
    tokens_per_s: float = 30.0
    tokens: int = 300
    seconds: float = 20.0
    warmup_s: float = 12.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One way to observe. `tpot_s` is what the policy server made of it."""

    name: str
    chunks_per_s: float
    messages_per_s: float
    cores: dict[str, float]
    observed: int
    tpot_s: float | None

    def row(self, plan: Watched) -> list[Cell]:
        """One line of the table."""
        return [
            self.name, self.chunks_per_s, self.messages_per_s, self.cores["policy"],
            self.cores["envoy"], 1e6 * self.cores["policy"] / self.chunks_per_s, self.observed,
            self.pace(plan),
        ]  # fmt: skip

    def pace(self, plan: Watched) -> float | None:
        """Time per token as told, of the true one."""
        return None if self.tpot_s is None else self.tpot_s * plan.tokens_per_s


async def run(plan: Watched, directory: Path, say: Callable[[str], None]) -> Part:
    """The sample, then everything."""
    asked = plan.streams * plan.tokens_per_s
    title = f"observer: {plan.streams} live streams, {asked:.0f} chunks/s, {plan.seconds:g} s"
    part = Part("observer", title, COLUMNS)
    found = []
    for name, budget in (("a sample", BUDGET_PER_S), ("everything", EVERYTHING)):
        seen = await _watch(name, plan, budget, directory)
        say(f"{seen}")
        found.append(seen)
        part.rows.append(seen.row(plan))
    sample = found[0]
    pace = sample.pace(plan)
    part.bars = [
        Bar.at_least("chunks that reached the clients", sample.chunks_per_s / asked, DELIVERED),
        Bar.at_most("policy server, cores", sample.cores["policy"], MAX_CORES),
        Bar.at_most("messages of the budget", sample.messages_per_s / BUDGET_PER_S, MAX_SURPLUS),
        Bar.at_most("pace told, off by", None if pace is None else abs(pace - 1), PACE),
    ]
    part.data = {"plan": asdict(plan), "seen": [asdict(seen) for seen in found]}
    return part


async def _watch(name: str, plan: Watched, budget: int, directory: Path) -> Seen:
    config = fixed(2 * plan.streams)
    config["pools"][0]["observe"] = {"max_messages_per_s": budget}
    async with running_lab(directory, config, upstream=lambda port: _dripping(port, plan)) as lab:
        readers = await _readers(lab.url, plan.streams)
        await asyncio.sleep(plan.warmup_s)
        meter = CpuMeter({"policy": lab.gate.pid, "envoy": lab.envoy.pid})
        meter.start()
        began, chunks, sent = time.monotonic(), _chunks(readers), await _messages(lab)
        await asyncio.sleep(plan.seconds)
        elapsed = time.monotonic() - began
        cores = meter.shares()
        chunks, sent = _chunks(readers) - chunks, await _messages(lab) - sent
        signals = (await lab.status())["pools"][0]["signals"]
        for reader in readers:
            reader.close()
    observed, tpot_s = signals["observed_streams"], signals["tpot_s"]
    return Seen(name, chunks / elapsed, sent / elapsed, cores, observed, tpot_s)


class Reader(asyncio.Protocol):
    """A client that reads one stream after another and counts their chunks."""

    def __init__(self) -> None:
        self.chunks = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(REQUEST)

    def data_received(self, data: bytes) -> None:
        self.chunks += data.count(b"data: ")
        if data.endswith(drip.END) and self._transport is not None:
            self._transport.write(REQUEST)

    def close(self) -> None:
        """Leave."""
        if self._transport is not None:
            self._transport.abort()


REQUEST = request("0", stream=True)


def _chunks(readers: list[Reader]) -> int:
    return sum(reader.chunks for reader in readers)


async def _readers(url: str, count: int) -> list[Reader]:
    return await connect_with(url, count, Reader)


async def _messages(lab: Lab) -> int:
    """Messages that Envoy has sent to the observer."""
    url = f"http://127.0.0.1:{lab.where['admin']}/stats?filter=ext_proc.observer.stream_msgs_sent"
    async with lab.http.get(url) as answer:
        found = _SENT.search(await answer.text())
    assert found is not None, "Envoy does not count what it sends to the observer"
    return int(found[1])


@contextlib.asynccontextmanager
async def _dripping(port: int, plan: Watched) -> AsyncIterator[None]:
    arguments = (str(port), str(plan.tokens), str(plan.tokens_per_s))
    command = [sys.executable, "-m", "tests.bench.drip", *arguments]
    process = await asyncio.create_subprocess_exec(*tied_to_us(command))
    try:
        await _listening(port)
        yield
    finally:
        await stop(process)


async def _listening(port: int) -> None:
    async with asyncio.timeout(READY_S):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.02)
