"""Warming up: what counts as settled, and servers that load, compile, never settle or are gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import web

from policy_server.load import warmup
from policy_server.load.warmup import Settling, WarmupParams, warm_up
from tests.support.envoy_process import free_ports


def settling(*rounds: tuple[float, ...]) -> Settling:
    return Settling((16, 256), list(rounds))


def test_one_round_tells_nothing() -> None:
    assert settling().unsettled() == [16, 256]
    assert settling((0.1, 0.2)).unsettled() == [16, 256]


def test_two_alike_are_settled() -> None:
    assert settling((0.1, 0.2), (0.11, 0.19)).unsettled() == []


def test_a_size_that_still_falls_is_not() -> None:
    assert settling((2.0, 0.2), (0.1, 0.2)).unsettled() == [16]
    assert settling((2.0, 0.2), (0.1, 0.2), (0.1, 0.2)).unsettled() == []


def test_nor_is_one_that_rose_above_its_best() -> None:
    assert settling((0.1, 0.2), (0.1, 0.9)).unsettled() == [256]
    assert settling((0.1, 0.2), (0.1, 0.9), (0.1, 0.9)).unsettled() == [256]


def test_milliseconds_are_noise() -> None:
    assert settling((0.001, 0.02), (0.004, 0.01)).unsettled() == []


def test_a_server_is_asked_at_its_chat_endpoint_unless_a_path_is_given() -> None:
    assert WarmupParams("http://h:1/").endpoint == "http://h:1/v1/chat/completions"
    assert WarmupParams("http://h:1/v1/embeddings").endpoint == "http://h:1/v1/embeddings"


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "127.0.0.1:8000"},
        {"sizes": ()},
        {"sizes": (0,)},
        {"max_rounds": 1},
        {"max_s": 0.0},
        {"max_tokens": 0},
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="--"):
        WarmupParams(**{"url": "http://h:1", **wrong})  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def model(handler: Callable[[web.Request], object]) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)  # type: ignore[arg-type]
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    (port,) = free_ports(1)
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "PAUSE_S", 0.01)
    monkeypatch.setattr(warmup, "NOISE_S", 0.2)


async def test_a_server_that_loads_and_then_compiles_is_warm_in_the_end() -> None:
    seen: list[int] = []
    compiled: set[int] = set()

    async def answer(request: web.Request) -> web.Response:
        size = len((await request.json())["messages"][0]["content"])
        seen.append(size)
        if len(seen) <= 3:
            return web.Response(status=503)
        if size not in compiled:
            compiled.add(size)
            await asyncio.sleep(0.6)
        return web.Response()

    lines: list[str] = []
    async with model(answer) as url:
        assert await warm_up(WarmupParams(url, sizes=(16, 64)), lines.append)
    assert set(seen) == {64, 256}
    assert lines[-1].startswith("warm after ")
    assert lines[0].startswith("round 1: 16 tokens 0.6")
    assert len(lines) == 4  # the slow round, two alike, the verdict


async def test_one_that_never_settles_is_given_up_after_so_many_rounds() -> None:
    count = 0

    async def answer(_: web.Request) -> web.Response:
        nonlocal count
        count += 1
        await asyncio.sleep(0.5 if count % 2 else 0.0)
        return web.Response()

    lines: list[str] = []
    async with model(answer) as url:
        params = WarmupParams(url, sizes=(16,), max_rounds=4)
        assert not await warm_up(params, lines.append)
    assert lines[-1].startswith("not warm after 4 rounds: prompts of 16 tokens still move")


async def test_one_that_is_not_there_is_given_up_in_time_and_named() -> None:
    (port,) = free_ports(1)
    lines: list[str] = []
    params = WarmupParams(f"http://127.0.0.1:{port}", max_s=0.3)
    assert not await warm_up(params, lines.append)
    assert lines[-1].startswith("not warm after 0.3 s: ")
    assert str(port) in lines[-1]
