"""The whole product in processes of their own: emulator, policy server, Envoy, on free ports.

`policy-server gateway` is the same three under one supervisor; here each can be stopped, killed
and started by the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from policy_server.processes import tied_to_us
from tests.support.envoy_process import running_envoy, wait_http_ok
from tests.support.wired import bootstrap_for, ports

UNTIL_S = 60
Process = asyncio.subprocess.Process


async def start(*arguments: str, log: Path) -> Process:
    """`policy-server …` as a child that dies with us; its stderr goes to `log`."""
    command = [sys.executable, "-m", "policy_server", *arguments]
    with log.open("ab") as sink:
        return await asyncio.create_subprocess_exec(*tied_to_us(command), stdout=sink, stderr=sink)


async def stop(process: Process) -> None:
    """End it now."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


@dataclass
class Stack:
    """One running gateway with its parts."""

    directory: Path
    where: dict[str, int]
    config: Path
    client: aiohttp.ClientSession
    policy: Process = field(init=False)
    backend: Process = field(init=False)
    envoy: Process = field(init=False)

    @property
    def url(self) -> str:
        """Where clients go."""
        return f"http://127.0.0.1:{self.where['gateway']}"

    async def start_policy(self, *arguments: str) -> None:
        """Start the policy server and wait until it is ready."""
        log = self.directory / "policy.log"
        data = str(self.directory / "data")
        command = ("serve", "--config", str(self.config), "--data-dir", data)
        self.policy = await start(*command, *arguments, log=log)
        await wait_http_ok(f"http://127.0.0.1:{self.where['http']}/readyz", self.policy)

    async def forget(self) -> None:
        """Stop the policy server and its journal, so that the next one knows nothing of it.

        What a crash leaves in the journal (places of who never comes back, slots of answers whose
        end nobody told) lapses by itself, in up to a minute: too long to wait for after each case.
        """
        await stop(self.policy)
        for file in (self.directory / "data").glob("journal.db*"):
            file.unlink()

    async def start_backend(self, *arguments: str) -> None:
        """Start the emulator and wait until it is healthy."""
        port = str(self.where["upstream"])
        log = self.directory / "backend.log"
        self.backend = await start("backend", "--port", port, *arguments, log=log)
        await wait_http_ok(f"http://127.0.0.1:{port}/health", self.backend)

    async def status(self) -> dict[str, Any]:
        """`/statusz`."""
        async with self.client.get(f"http://127.0.0.1:{self.where['http']}/statusz") as answer:
            document: dict[str, Any] = await answer.json()
            return document

    async def pool(self) -> dict[str, Any]:
        """The default pool in `/statusz`."""
        found: dict[str, Any] = (await self.status())["pools"][0]
        return found

    async def until(self, waiting: int | None = None, inflight: int | None = None) -> None:
        """Wait until so many requests wait and so many leases are open."""
        pool: dict[str, Any] = {}
        try:
            async with asyncio.timeout(UNTIL_S):
                while True:
                    pool = await self.pool()
                    waits = sum(pool["waiting"].values())
                    inflight_now = pool["inflight"]["requests"]
                    if waiting in (None, waits) and inflight in (None, inflight_now):
                        return
                    await asyncio.sleep(0.02)
        except TimeoutError:
            seen = {key: pool.get(key) for key in ("waiting", "inflight", "outcomes", "sheds")}
            pytest.fail(f"wanted waiting={waiting} inflight={inflight}, last seen {seen}")

    async def control(self, **change: object) -> None:
        """Change the emulator at run time."""
        url = f"http://127.0.0.1:{self.where['upstream']}/control"
        async with self.client.post(url, json=change) as answer:
            assert answer.status == 200, await answer.text()


def chat(tokens: int = 5, stream: bool = False, **more: object) -> dict[str, object]:
    """The body of a chat completion."""
    messages = [{"role": "user", "content": "hello"}]
    return {"model": "m", "messages": messages, "max_tokens": tokens, "stream": stream, **more}


@contextlib.asynccontextmanager
async def running_stack(
    directory: Path,
    config: Mapping[str, Any] | None = None,
    backend: tuple[str, ...] = (),
    *,
    where: dict[str, int] | None = None,
    alter: Callable[[dict[str, Any]], None] = lambda _: None,
    **options: Any,
) -> AsyncIterator[Stack]:
    """Everything running; `config` is the YAML file's content without the ports (`where`).

    `alter` may change Envoy's bootstrap before it starts.
    """
    where = where or ports()
    server = {"grpc": f"127.0.0.1:{where['grpc']}", "http": f"127.0.0.1:{where['http']}"}
    file = directory / "config.yaml"
    file.write_text(json.dumps({"server": server, **(config or {})}))
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=600)
    async with contextlib.AsyncExitStack() as cleanup:
        client = aiohttp.ClientSession(connector=connector, timeout=timeout)
        stack = Stack(directory, where, file, await cleanup.enter_async_context(client))
        await stack.start_backend(*backend)
        cleanup.push_async_callback(lambda: stop(stack.backend))
        await stack.start_policy()
        cleanup.push_async_callback(lambda: stop(stack.policy))
        bootstrap = bootstrap_for(where, file, **options)
        alter(bootstrap)
        stack.envoy = await cleanup.enter_async_context(running_envoy(bootstrap, directory))
        yield stack
