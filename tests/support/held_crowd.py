"""A thousand requests held in a line whose order is known, while the policy server is killed.

Three classes, twenty tenants, budgets of about two minutes. With the whole limit guaranteed to P0
the order is a function of what was asked for: by class, then turns of the tenants, then each
tenant's deadlines, a second apart. The model server writes down in which order they reach it, one
at a time: that is the release log.
"""

# ruff: noqa: ASYNC110 - other processes have no event to wait for

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from policy_server.envoy_config.options import Wiring
from tests.support.echo_upstream import EchoUpstream, running_upstream
from tests.support.envoy_process import running_envoy
from tests.support.stack import Stack, stop
from tests.support.wired import bootstrap_for, connection_manager, ports

CLASSES, TENANTS, EACH = 3, 20, 17
CHAT = "/v1/chat/completions"
LONGEST_S = 120
CONFIG: dict[str, Any] = {
    "pools": [{"name": "default", "limit": {"algorithm": "fixed", "initial": 1}}],
    "classes": {
        name: {"max_wait_s": LONGEST_S, "share": share}
        for name, share in (("P0", 1.0), ("P1", 0.0), ("P2", 0.0))
    },
    "jobs": {"share": 0.0},
}
SENT_PER_S = 300.0


@dataclass(frozen=True)
class Ask:
    """One request of the crowd."""

    priority: int
    tenant: int
    turn: int

    @property
    def name(self) -> str:
        return f"P{self.priority}-t{self.tenant:02}-{self.turn:02}"

    @property
    def headers(self) -> dict[str, str]:
        return {
            "x-request-priority": str(self.priority),
            "x-tenant-id": f"t{self.tenant:02}",
            "prefer": f"wait={LONGEST_S - EACH + self.turn}",
            "x-name": self.name,
        }


def crowd(each: int = EACH) -> list[Ask]:
    """Everyone, in the order in which a server that nothing happens to lets them go."""
    return [
        Ask(priority, tenant, turn)
        for priority in range(CLASSES)
        for turn in range(each)
        for tenant in range(TENANTS)
    ]


@contextlib.asynccontextmanager
async def stage(
    directory: Path, wiring: Wiring = "gate", *, jobs: bool = False
) -> AsyncIterator[tuple[Stack, EchoUpstream]]:
    """Policy server, Envoy, and a model server that writes down who comes. `jobs`: they are taken,
    too."""
    where = ports()
    server = {"grpc": f"127.0.0.1:{where['grpc']}", "http": f"127.0.0.1:{where['http']}"}
    config = directory / "config.yaml"
    via = {"via": f"http://127.0.0.1:{where['jobs']}"} if jobs else {}
    settings = {**CONFIG, "jobs": {**CONFIG["jobs"], **via}}
    config.write_text(json.dumps({"server": server, **settings}))
    bootstrap = bootstrap_for(where, config, wiring=wiring)
    log = connection_manager(bootstrap)["access_log"][0]["typed_config"]["common_config"]
    log["buffer_flush_interval"] = "0.003s"  # the end of each answer is told at once
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=300)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as client,
        running_upstream(where["upstream"]) as upstream,
    ):
        stack = Stack(directory, where, config, client)
        await stack.start_policy()
        try:
            async with running_envoy(bootstrap, directory):
                yield stack, upstream
        finally:
            await stop(stack.policy)


class Crowd:
    """Sends everyone, tenants and classes mixed up, and collects the answers."""

    def __init__(self, stack: Stack, upstream: EchoUpstream, each: int = EACH) -> None:
        self._stack = stack
        self._upstream = upstream
        self.asked = crowd(each)
        self.statuses: Counter[int] = Counter()

    async def _post(self, path: str, headers: dict[str, str]) -> None:
        url = self._stack.url + path
        async with self._stack.client.post(url, headers=headers, data=b"{}") as answer:
            await answer.read()
            self.statuses[answer.status] += 1

    async def gather(self) -> list[asyncio.Task[None]]:
        """The slot is taken, and everyone waits in line and stands in the journal."""
        first = {"x-request-priority": "0", "x-tenant-id": "first"}
        tasks = [asyncio.create_task(self._post("/slow", first))]
        await self._stack.until(waiting=0, inflight=1)
        chance = random.Random(len(self.asked))
        for ask in sorted(self.asked, key=lambda ask: (ask.turn, chance.random())):
            tasks.append(asyncio.create_task(self._post(CHAT, ask.headers)))
            await asyncio.sleep(1 / SENT_PER_S)  # below the rate at which it refuses by itself
        await self._stack.until(waiting=len(self.asked), inflight=1)
        async with asyncio.timeout(20):
            while (await self._stack.status())["journal"]["unwritten"]:
                await asyncio.sleep(0.01)
        return tasks

    def released(self) -> list[str]:
        """Names in the order in which they reached the model server."""
        return [name for r in self._upstream.requests if (name := r.headers.get("x-name"))]

    async def post_one(self) -> None:
        """One more, of nobody's."""
        await self._post(CHAT, {"x-request-priority": "0"})

    async def crash(self, outage_s: float = 1.0, *arguments: str) -> None:
        """SIGKILL, and a new process after a while."""
        await stop(self._stack.policy)
        await asyncio.sleep(outage_s)
        await self._stack.start_policy(*arguments)

    async def restart(self, outage_s: float = 1.0) -> None:
        """SIGTERM, and a new process a while after the old one has ended."""
        self._stack.policy.terminate()
        assert await self._stack.policy.wait() == 0
        await asyncio.sleep(outage_s)
        await self._stack.start_policy()

    async def until_released(self, count: int) -> None:
        """Until so many have gone."""
        async with asyncio.timeout(60):
            while len(self.released()) < count:
                await asyncio.sleep(0.005)
