"""What the engines say of themselves, from the engine to the limit, through the real Envoy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.support.envoy_process import free_ports
from tests.support.stack import Stack, chat, running_stack

PATH = "/v1/chat/completions"
SLOTS = ("--max-num-seqs", "4", "--step-ms", "20")


def config(limit: dict[str, object], **load_reports: object) -> dict[str, Any]:
    """One pool, long budgets; P0, whom a machine that lags serves all the same."""
    pool = {"name": "default", "limit": limit, "load_reports": load_reports}
    budgets = {name: {"max_wait_s": 600} for name in ("P0", "P1", "P2")}
    return {"pools": [pool], "classes": budgets, "default_class": "P0"}


async def post(stack: Stack, tokens: int = 5, stream: bool = False) -> int:
    async with stack.client.post(stack.url + PATH, json=chat(tokens, stream)) as answer:
        await answer.read()
        return answer.status


async def many(stack: Stack, count: int) -> set[int]:
    """The statuses of so many at once."""
    return set(await asyncio.gather(*(post(stack) for _ in range(count))))


@contextlib.asynccontextmanager
async def crowd(stack: Stack) -> AsyncIterator[None]:
    """Ten times as many as the engine has slots ask again and again inside the block."""

    async def worker() -> None:
        while True:
            await post(stack, 20)

    workers = [asyncio.create_task(worker()) for _ in range(40)]
    try:
        yield
    finally:
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def until(stack: Stack, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The default pool in /statusz as soon as the condition holds."""
    async with asyncio.timeout(60):
        while not condition(pool := await stack.pool()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return pool


async def reports(stack: Stack, outcome: str) -> float:
    """`policy_load_reports_total` of this outcome."""
    async with stack.client.get(f"http://127.0.0.1:{stack.where['http']}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    name = f'policy_load_reports_total{{outcome="{outcome}",pool="default"}}'
    return next(float(line.split()[-1]) for line in lines if line.startswith(name))


async def test_an_engine_that_reports_its_queue_in_its_answers_is_cut_to_what_it_takes(
    tmp_path: Path,
) -> None:
    limit = {"algorithm": "vegas", "initial": 24}
    async with running_stack(tmp_path, config(limit), (*SLOTS, "--orca")) as stack:
        async with crowd(stack):
            pool = await until(stack, lambda pool: pool["limit"] < 12)
        assert {change["reason"] for change in pool["changes"]} & {"queue", "delay"}
        assert await reports(stack, "used") > 0
        assert await reports(stack, "invalid") == 0


async def test_pages_are_scraped_and_one_that_breaks_is_counted_and_changes_nothing(
    tmp_path: Path,
) -> None:
    where_else, dead = free_ports(2)
    limit = {"algorithm": "vegas", "initial": 24}

    async def page(_request: web.Request) -> web.Response:
        return web.Response(text="vllm:num_requests_waiting NaN\nvllm:kv_cache_usage_perc 42\n")

    async with liar(where_else, page):
        file = config(limit, orca=False, scrape=[], interval_s=0.2)
        async with running_stack(tmp_path, file, SLOTS) as stack:
            urls = [
                f"http://127.0.0.1:{port}/metrics"
                for port in (stack.where["upstream"], where_else, dead)
            ]
            text = stack.config.read_text()
            stack.config.write_text(text.replace('"scrape": []', f'"scrape": {json.dumps(urls)}'))
            stack.policy.send_signal(signal.SIGHUP)
            async with crowd(stack):
                pool = await until(stack, lambda pool: pool["limit"] < 12)
            assert {change["reason"] for change in pool["changes"]} & {"queue", "delay"}
            shown = {entry["source"]: entry["outcome"] for entry in pool["load_reports"]}
            assert list(shown) == urls
            assert list(shown.values()) == ["used", "invalid", "unreachable"]
            assert await reports(stack, "used") > 0
            warnings = (await stack.status())["warnings"]
            assert [w for w in warnings if urls[1] in w]
            assert [w for w in warnings if urls[2] in w]
            await stack.until(waiting=0, inflight=0)


async def test_a_back_end_that_asks_for_less_gets_less_at_once(tmp_path: Path) -> None:
    said: dict[str, str] = {}
    served: list[float] = []
    inflight = peak = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal inflight, peak
        served.append(time.monotonic())
        inflight += 1
        peak = max(peak, inflight)
        await asyncio.sleep(0.05)
        inflight -= 1
        return web.json_response({}, headers=said)

    (port,) = free_ports(1)
    file = config({"algorithm": "fixed", "initial": 20})
    url = f"http://127.0.0.1:{port}"
    async with liar(port, answer), running_stack(tmp_path, file, upstream=url) as stack:
        said["x-aqueduct-max-concurrent"] = "2"
        assert await post(stack) == 200
        await until(stack, lambda pool: pool["asked"]["seats"] == 2)
        peak = 0
        assert await many(stack, 20) == {200}
        assert peak <= 2

        said.clear()
        said["x-aquifer-rps"] = "10"
        assert await post(stack) == 200
        await until(stack, lambda pool: pool["asked"]["rps"] == 10)
        served.clear()
        began = time.monotonic()
        assert await many(stack, 20) == {200}
        for count, at in enumerate(served, start=1):  # 10/s after a quarter second's worth at once
            assert count <= 10 * (at - began) + 2.5


@contextlib.asynccontextmanager
async def liar(port: int, handler: Callable[[web.Request], Any]) -> AsyncIterator[None]:
    """A back end of the test's own."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield
    finally:
        await runner.cleanup()
