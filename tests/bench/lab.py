"""A gate in front of an upstream that costs nothing: Envoy itself answers 200, or nobody ever does.

So what is measured is the gate, not the model server. The gate is the policy server or, to
compare with, a bare grpc.aio server on the same wiring.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from policy_server.processes import tied_to_us
from tests.bench.folders import fresh
from tests.bench.plain_envoy import with_trivial_upstream
from tests.support.envoy_process import running_envoy, wait_http_ok
from tests.support.stack import start, stop
from tests.support.wired import bootstrap_for, ports

Upstream = Callable[[int], contextlib.AbstractAsyncContextManager[None]]
"""Runs on this port inside the block."""

NO_RATE_LIMIT = 1_000_000
LONG_S = 600
ALL_CLASSES_LONG = {name: {"max_wait_s": LONG_S} for name in ("P0", "P1", "P2")}


def fixed(limit: int, **more: Any) -> dict[str, Any]:
    """A configuration with a fixed limit."""
    chosen = {"algorithm": "fixed", "initial": limit, "max": max(1000, limit)}
    return {"pools": [{"name": "default", "limit": chosen}], **more}


@dataclass
class Lab:
    """One running gate behind its Envoy."""

    where: dict[str, int]
    gate: asyncio.subprocess.Process
    envoy: asyncio.subprocess.Process
    http: aiohttp.ClientSession

    @property
    def url(self) -> str:
        """Where clients go."""
        return f"http://127.0.0.1:{self.where['gateway']}"

    async def status(self) -> dict[str, Any]:
        """The policy server's `/statusz`."""
        async with self.http.get(f"http://127.0.0.1:{self.where['http']}/statusz") as answer:
            document: dict[str, Any] = await answer.json()
            return document

    async def until_waiting(self, count: int, timeout_s: float = 120) -> None:
        """Until so many requests are held."""
        give_up = time.monotonic() + timeout_s
        while sum((await self.status())["pools"][0]["waiting"].values()) < count:
            if time.monotonic() > give_up:
                raise TimeoutError(f"{count} requests never waited at once")
            await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def running_lab(
    directory: Path,
    config: Mapping[str, Any],
    *,
    bare: bool = False,
    memory: bool = False,
    upstream: Upstream | None = None,
    gate_rate_per_s: int = NO_RATE_LIMIT,
) -> AsyncIterator[Lab]:
    """Gate and Envoy, ready. `upstream` is what runs on its port instead of Envoy's own answer;
    with `silence` nobody ever answers, so seats stay taken."""
    where, directory = ports(), fresh(directory)
    server = {"grpc": f"127.0.0.1:{where['grpc']}", "http": f"127.0.0.1:{where['http']}"}
    file = directory / "config.yaml"
    file.write_text(json.dumps({"server": server, **config}))
    bootstrap = bootstrap_for(where, file, gate_rate_per_s=gate_rate_per_s)
    async with contextlib.AsyncExitStack() as cleanup:
        if upstream is not None:
            await cleanup.enter_async_context(upstream(where["upstream"]))
        else:
            with_trivial_upstream(bootstrap, where["upstream"])
        if bare:
            gate = await _module("bare_gate", str(where["grpc"]), directory)
        elif memory:
            gate = await _module("memory_gate", str(file), directory)
            await wait_http_ok(f"http://127.0.0.1:{where['http']}/readyz", gate)
        else:
            gate = await _policy(where, file, directory)
        cleanup.push_async_callback(stop, gate)
        envoy = await cleanup.enter_async_context(running_envoy(bootstrap, directory))
        http = await cleanup.enter_async_context(aiohttp.ClientSession())
        if upstream is None:
            await _first_answer(where, http)
        yield Lab(where, gate, envoy, http)


@contextlib.asynccontextmanager
async def silence(port: int) -> AsyncIterator[None]:
    """Takes connections and says nothing."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, "127.0.0.1", port)
    try:
        yield
    finally:
        server.close()


async def _policy(where: dict[str, int], file: Path, directory: Path) -> asyncio.subprocess.Process:
    command = ("serve", "--config", str(file), "--data-dir", str(directory / "data"))
    gate = await start(*command, log=directory / "policy.log")
    await wait_http_ok(f"http://127.0.0.1:{where['http']}/readyz", gate)
    return gate


async def _module(name: str, argument: str, directory: Path) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", f"tests.bench.{name}", argument]
    with (directory / f"{name}.log").open("ab") as sink:
        return await asyncio.create_subprocess_exec(*tied_to_us(command), stdout=sink, stderr=sink)


async def _first_answer(where: dict[str, int], http: aiohttp.ClientSession) -> None:
    """Until one request has come back from the upstream."""
    url = f"http://127.0.0.1:{where['gateway']}/v1/chat/completions"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        async with http.post(url, json={"model": "m"}) as answer:
            if answer.status == 200:
                return
        await asyncio.sleep(0.05)
    raise TimeoutError("no answer through the gate")
