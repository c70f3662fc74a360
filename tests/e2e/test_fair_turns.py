"""Turns between tenants on the running product: a flood waits behind itself.

What is compared is the order in which answers end, never a time. The long measurement is
`make bench ARGS=tenants`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.stack import Stack, chat, running_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")
SEATS = 2
ENDLESS = 100_000
CONFIG: dict[str, Any] = {
    "pools": [{"name": "default", "limit": {"algorithm": "fixed", "initial": SEATS}}],
    "default_class": "P0",
    "classes": {name: {"max_wait_s": 600} for name in ("P0", "P1", "P2")},
}
EMULATOR = ("--max-num-seqs", str(SEATS), "--step-ms", "5", "--seq-ms", "0")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    directory: Path = tmp_path_factory.mktemp("turns")
    async with running_stack(directory, CONFIG, EMULATOR) as running:
        yield running


class Order:
    """Requests of tenants, in the order in which they were answered.

    Nobody is served before `go`: until then all seats are taken.
    """

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.served: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.fillers: list[asyncio.Task[None]] = []

    async def fill(self) -> None:
        await self.stack.until(waiting=0, inflight=0)
        self.fillers = [asyncio.create_task(self._one("filler", ENDLESS)) for _ in range(SEATS)]
        await self.stack.until(waiting=0, inflight=SEATS)

    async def wait(self, tenant: str, times: int) -> None:
        self.tasks += [asyncio.create_task(self._one(tenant, 4)) for _ in range(times)]
        await self.stack.until(waiting=len(self.tasks))

    async def go(self) -> list[str]:
        for filler in self.fillers:
            filler.cancel()
        await asyncio.gather(*self.tasks)
        return self.served

    async def _one(self, tenant: str, tokens: int) -> None:
        url, headers = f"{self.stack.url}/v1/chat/completions", {"x-tenant-id": tenant}
        async with self.stack.client.post(url, json=chat(tokens), headers=headers) as answer:
            await answer.read()
            assert answer.status == 200
        self.served.append(tenant)


async def test_a_small_tenant_is_not_behind_a_flood(stack: Stack) -> None:
    order = Order(stack)
    await order.fill()
    await order.wait("flood", 80)
    await order.wait("small", 8)
    served = await order.go()
    last = len(served) - served[::-1].index("small")
    assert last <= 2 * 8 + 4, "its eight took turns with the first eight of the flood"


async def test_twenty_that_all_want_more_are_served_alike(stack: Stack) -> None:
    order = Order(stack)
    await order.fill()
    for number in range(20):
        await order.wait(f"t{number}", 30 if number == 0 else 8)
    first = Counter((await order.go())[:100])
    assert len(first) == 20
    assert max(first.values()) - min(first.values()) <= 2
