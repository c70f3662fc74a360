"""A client that leaves, at each moment: its place or its slot is free before the next dispatch."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest

from tests.e2e.contract.test_traffic import JSON, SIZES, body_of, client
from tests.support.live import CHAT, P0, Live

pytestmark = pytest.mark.asyncio(loop_scope="session")


@asynccontextmanager
async def leaver(
    live: Live, version: str, path: str, size: int = 0
) -> AsyncIterator[asyncio.Task[httpx2.Response]]:
    """A request in a connection of its own, which closes at the end of the block."""
    async with client(version) as http:
        post = http.post(live.url_of(path), content=body_of(size), headers=JSON)
        task = asyncio.create_task(post)
        yield task
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("size", [0, SIZES["3 MB"]], ids=["0 B", "3 MB"])
@pytest.mark.parametrize("version", ["http1", "http2"])
async def test_while_it_waits(live: Live, version: str, size: int) -> None:
    first = await live.busy()
    async with leaver(live, version, CHAT, size):
        await live.until(waiting=1, inflight=1)
    await live.until(waiting=0, inflight=1)
    before = len(live.echo.requests)
    live.echo.finish.set()
    assert (await first).status == 200
    await live.until(inflight=0)
    assert len(live.echo.requests) == before, "a request whose client has left was sent on"


@pytest.mark.parametrize("version", ["http1", "http2"])
async def test_just_as_it_is_admitted(live: Live, version: str) -> None:
    first = await live.busy(via="other")
    async with leaver(live, version, CHAT):
        await live.until(waiting=1, inflight=1)
        # With Envoy stopped the admission is written, but nobody reads it before the client left.
        live.envoy.send_signal(signal.SIGSTOP)
        live.echo.finish.set()
        await first
        await live.until(waiting=0, inflight=1)
    live.envoy.send_signal(signal.SIGCONT)
    await live.until(waiting=0, inflight=0)


@pytest.mark.parametrize("version", ["http1", "http2"])
async def test_before_its_answer_begins(live: Live, version: str) -> None:
    async with leaver(live, version, "/slow"):
        await live.until(inflight=1)
        held = live.start_post()
        await live.until(waiting=1)
    assert (await held).status == 200


@pytest.mark.parametrize("version", ["http1", "http2"])
async def test_in_mid_answer(live: Live, version: str) -> None:
    async with (
        client(version) as http,
        http.stream("POST", live.url_of("/half"), headers=P0) as answer,
    ):
        assert answer.status_code == 200
        held = live.start_post()
        await live.until(waiting=1, inflight=1)
    assert (await held).status == 200
