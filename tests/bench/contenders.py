"""The ways to control the load, each started as a user would, and the backend on its own."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urljoin

import aiohttp

from policy_server.load.attempt import Target, send
from policy_server.load.params import LoadParams
from policy_server.load.sse import READ_BUFFER_BYTES
from policy_server.load.workload import Bodies, arrivals
from tests.bench import plain_envoy
from tests.bench.folders import fresh
from tests.support.envoy_process import running_envoy, wait_http_ok
from tests.support.stack import running_stack, start, stop
from tests.support.wired import ports

OURS = "vegas"
CONTENDERS = (OURS, "fixed16", "fixed200", "envoy_gradient", "none")
FIRST_LIMIT = 16

_GENERATED = re.compile(r"^vllm:generation_tokens_total\{[^}]*\} ([0-9.e+]+)$", re.MULTILINE)
_GRADIENT = re.compile(r"gradient_controller\.concurrency_limit: (\d+)")


@dataclass(frozen=True, slots=True)
class Way:
    """A way in, with our limit: the wiring, flags of the emulator, and whether its own page of
    metrics is read."""

    wiring: str = "gate"
    backend: tuple[str, ...] = ()
    scraped: bool = False
    limit: Mapping[str, object] = field(
        default_factory=lambda: {"algorithm": OURS, "initial": FIRST_LIMIT}
    )


@dataclass(slots=True)
class Running:
    """One contender, running. `limit` reads its limit now, None = it has none."""

    url: str
    backend_url: str
    pids: dict[str, int]
    limit: Callable[[], Awaitable[float | None]]


def running_contender(
    contender: str, slots: int, directory: Path
) -> contextlib.AbstractAsyncContextManager[Running]:
    """One of CONTENDERS in front of an emulator with so many slots."""
    if contender in ("envoy_gradient", "none"):
        return _without_us(contender, slots, directory)
    if contender == OURS:
        return running_way(Way(), slots, directory)
    fixed = int(contender.removeprefix("fixed"))
    return running_way(Way(limit={"algorithm": "fixed", "initial": fixed}), slots, directory)


@contextlib.asynccontextmanager
async def running_way(way: Way, slots: int, directory: Path) -> AsyncIterator[Running]:
    """The whole product in front of an emulator with so many slots."""
    where = ports()
    pool: dict[str, object] = {"name": "default", "limit": dict(way.limit)}
    if way.scraped:
        pool["load_reports"] = {"scrape": [f"http://127.0.0.1:{where['upstream']}/metrics"]}
    flags = ("--max-num-seqs", str(slots), *way.backend)
    async with running_stack(
        fresh(directory), {"pools": [pool]}, flags, where=where, wiring=way.wiring
    ) as stack:

        async def read_limit() -> float:
            return float((await stack.pool())["limit"])

        pids = {"policy": stack.policy.pid, "envoy": stack.envoy.pid, "backend": stack.backend.pid}
        backend_url = f"http://127.0.0.1:{stack.where['upstream']}"
        yield Running(stack.url, backend_url, pids, read_limit)


@contextlib.asynccontextmanager
async def _without_us(contender: str, slots: int, directory: Path) -> AsyncIterator[Running]:
    where = ports()
    if contender == "none":
        bootstrap = plain_envoy.plain(where)
    else:
        bootstrap = plain_envoy.adaptive_concurrency(where)
    stats = f"http://127.0.0.1:{where['admin']}/stats?filter=gradient_controller"
    async with (
        running_backend(where["upstream"], slots, directory) as backend,
        running_envoy(bootstrap, directory) as envoy,
        aiohttp.ClientSession() as session,
    ):

        async def read_limit() -> float | None:
            async with session.get(stats) as answer:
                found = _GRADIENT.search(await answer.text())
            return float(found[1]) if found else None

        pids = {"envoy": envoy.pid, "backend": backend.pid}
        url, backend_url = (f"http://127.0.0.1:{where[name]}" for name in ("gateway", "upstream"))
        yield Running(url, backend_url, pids, read_limit)


@contextlib.asynccontextmanager
async def running_backend(
    port: int, slots: int, directory: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The emulator alone, healthy."""
    arguments = ("backend", "--port", str(port), "--max-num-seqs", str(slots))
    process = await start(*arguments, log=directory / "backend.log")
    try:
        await wait_http_ok(f"http://127.0.0.1:{port}/health", process)
        yield process
    finally:
        await stop(process)


async def saturated(params: LoadParams, slots: int, seconds: float) -> float:
    """Tokens per second of an engine whose queue is never empty, by its own counter."""
    asks = arrivals(params)
    bodies = Bodies(params)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector,
        read_bufsize=READ_BUFFER_BYTES,
        headers={"content-type": "application/json"},
    ) as session:
        loop = asyncio.get_running_loop()
        target = Target(session, params.url, loop.time)

        async def client() -> None:
            for ask in asks:  # shared: each client takes the next length
                await send(target, bodies.of(ask), {})

        clients = [asyncio.create_task(client()) for _ in range(slots + slots // 2 + 8)]
        try:
            return await generated_per_s(params.url, min(8.0, seconds / 2), seconds)
        finally:
            for task in clients:
                task.cancel()
            await asyncio.gather(*clients, return_exceptions=True)


async def generated_per_s(url: str, after_s: float, seconds: float) -> float:
    """Tokens per second that the engine makes in the `seconds` that begin in `after_s`.

    Its own count: answers that end in the window would tell less, because the longest of those
    that are under way end after it.
    """
    metrics = urljoin(url, "/metrics")
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession() as session:

        async def generated() -> tuple[float, float]:
            async with session.get(metrics) as answer:
                found = _GENERATED.search(await answer.text())
            assert found is not None, "the emulator does not count its tokens"
            return loop.time(), float(found[1])

        await asyncio.sleep(after_s)
        began, before = await generated()
        await asyncio.sleep(seconds)
        ended, after = await generated()
    return (after - before) / (ended - began)
