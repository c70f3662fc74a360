"""Bodies that never end cost their senders, not Envoy's memory nor those who wait."""

# ruff: noqa: ASYNC110 - Envoy has no event to wait for

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import httpx2
import pytest

from policy_server.envoy_config.overload import BODY_FACTOR, MIB, STREAM_BYTES
from tests.support.stack import Stack, chat, running_stack

CHAT = "/v1/chat/completions"
P0 = {"x-request-priority": "0"}
ONE_SLOT = {
    "pools": [{"name": "default", "limit": {"algorithm": "fixed", "initial": 1, "max": 1}}],
    "classes": {name: {"max_wait_s": 120} for name in ("P0", "P1", "P2")},
}
HEAP = 100 * MIB
UPLOADS, BODY, CHUNK = 20, 30 * MIB, MIB // 4
IDLE = 80 * MIB  # of a process that does nothing, its code included
OVERSHOOT = 150 * MIB  # what comes in between two looks at the heap, and lies in pieces


def used(stack: Stack, line: str) -> int:
    """Memory of Envoy's process, bytes: `VmRSS` now, `VmHWM` at most so far."""
    status = Path(f"/proc/{stack.envoy.pid}/status").read_text().splitlines()
    return int(next(x for x in status if x.startswith(line)).split()[1]) * 1024


async def allocated(stack: Stack) -> int:
    """What Envoy has allocated, bytes."""
    async with stack.client.get(f"http://127.0.0.1:{stack.where['admin']}/memory") as page:
        return int((await page.json(content_type=None))["allocated"])


async def half_a_body() -> AsyncIterator[bytes]:
    """Most of what was promised, as over a network, and then nothing more for ever."""
    for _ in range(BODY // CHUNK - 4):
        yield b"x" * CHUNK
        await asyncio.sleep(0.02)
    await asyncio.Event().wait()


async def upload(stack: Stack, version: str) -> None:
    """Begin bodies that never end, again and again."""
    headers = {"content-length": str(BODY), "content-type": "application/json"}
    while True:
        http = httpx2.AsyncClient(http1=version == "http1", http2=version == "http2", timeout=60)
        with contextlib.suppress(httpx2.HTTPError):
            async with http:
                await http.post(stack.url + CHAT, content=half_a_body(), headers=headers)
        await asyncio.sleep(0.05)


async def ask(stack: Stack) -> tuple[int, dict[str, str], str]:
    """One honest request; status 0 when Envoy hangs up."""
    with contextlib.suppress(OSError, aiohttp.ClientError):
        async with stack.client.post(stack.url + CHAT, json=chat(), headers=P0) as answer:
            headers = {name.lower(): value for name, value in answer.headers.items()}
            return answer.status, headers, await answer.text()
    return 0, {}, ""


@pytest.mark.parametrize("version", ["http1", "http2"])
async def test_bodies_that_never_end_are_cut_and_who_waits_stays(
    tmp_path: Path, version: str
) -> None:
    config = {**ONE_SLOT, "envoy": {"max_heap": HEAP}}
    async with running_stack(tmp_path, config, ("--max-num-seqs", "1")) as stack:
        await stack.control(step_ms=100)
        first = asyncio.create_task(stack.client.post(stack.url + CHAT, json=chat(10_000)))
        await stack.until(inflight=1)
        held = [asyncio.create_task(ask(stack)) for _ in range(5)]
        await stack.until(waiting=5)
        uploads = [asyncio.create_task(upload(stack, version)) for _ in range(UPLOADS)]
        async with asyncio.timeout(60):
            while await _shed(stack) < UPLOADS:
                await asyncio.sleep(0.02)
        assert used(stack, "VmHWM") < IDLE + HEAP + OVERSHOOT
        for task in uploads:
            task.cancel()
        await asyncio.gather(*uploads, return_exceptions=True)
        first.cancel()
        await stack.control(step_ms=1)
        assert [status for status, _, _ in await asyncio.gather(*held)] == [200] * 5
        async with asyncio.timeout(20):
            while (await ask(stack))[0] != 200:
                await asyncio.sleep(0.1)


async def _shed(stack: Stack) -> int:
    """Connections and streams that Envoy has cut for their memory."""
    url = f"http://127.0.0.1:{stack.where['admin']}/stats?filter=(shed_load_|memory_stream.)count$"
    async with stack.client.get(url) as page:
        return sum(int(line.rpartition(":")[2]) for line in (await page.text()).splitlines())


async def test_without_memory_the_refusal_says_when_to_come_back(tmp_path: Path) -> None:
    async with running_stack(tmp_path, {"envoy": {"max_heap": HEAP}}) as stack:
        uploads = [asyncio.create_task(upload(stack, "http1")) for _ in range(UPLOADS)]
        told: tuple[int, dict[str, str], str] = (200, {}, "")
        async with asyncio.timeout(60):
            while told[0] in (0, 200):
                told = await ask(stack)
        for task in uploads:
            task.cancel()
        status, headers, body = told
        assert (status, headers["x-policy-reason"], headers["retry-after"]) == (
            *(503, "overloaded", "5"),
        )
        assert headers["content-type"] == "application/json"
        assert '"server_error"' in body


async def test_who_waits_costs_what_the_default_reckons_with(tmp_path: Path) -> None:
    waiting, pad = 300, 100_000
    async with running_stack(tmp_path, ONE_SLOT, ("--max-num-seqs", "1")) as stack:
        await stack.control(step_ms=1000)
        before = await allocated(stack)
        ask_all = [
            asyncio.create_task(
                stack.client.post(stack.url + CHAT, json=chat(1000, pad="x" * pad), headers=P0)
            )
            for _ in range(waiting + 1)
        ]
        await stack.until(waiting=waiting, inflight=1)
        each = (await allocated(stack) - before) / waiting
        assert pad < each < STREAM_BYTES + BODY_FACTOR * pad
        for task in ask_all:
            task.cancel()
        await asyncio.gather(*ask_all, return_exceptions=True)
