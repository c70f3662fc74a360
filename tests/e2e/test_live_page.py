"""The live page in a real browser: idle, under overload, draining, server gone and back."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
from aiohttp.test_utils import TestServer

from policy_server.adapters.http_api import HttpDeps, build_http_app
from policy_server.core.request import Priority
from policy_server.telemetry.status import status_document
from policy_server.telemetry.views import PoolView, ServerView, TenantView
from tests.support import wired
from tests.support.browser import browsing
from tests.support.envoy_process import wait_http_ok
from tests.support.gateway_command import running_gateway
from tests.support.stack import Process, chat, start, stop

CONFIG = {
    "pools": [{"name": "chat", "limit": {"algorithm": "fixed", "initial": 4, "max": 4}}],
    "classes": {"P0": {"max_wait_s": 60}, "P1": {"max_wait_s": 4}, "P2": {"max_wait_s": 60}},
}


@contextlib.asynccontextmanager
async def emulator(directory: Path, port: int) -> AsyncIterator[Process]:
    process = await start(
        *("backend", "--port", str(port), "--max-num-seqs", "4"), log=directory / "backend.log"
    )
    try:
        await wait_http_ok(f"http://127.0.0.1:{port}/health", process)
        yield process
    finally:
        await stop(process)


async def load(directory: Path, url: str, *more: str) -> Process:
    arguments = ("load", "--url", url, "--rate", "20", "--stream", *more)
    return await start(*arguments, log=directory / "load.log")


@contextlib.asynccontextmanager
async def answering(url: str) -> AsyncIterator[None]:
    """While a long answer is under way."""
    headers = {"x-request-priority": "P0"}
    ask = {"url": f"{url}/v1/chat/completions", "headers": headers}
    async with (
        aiohttp.ClientSession() as http,
        http.post(**ask, json=chat(100_000, stream=True)) as answer,
    ):
        assert answer.status == 200
        yield


async def test_what_people_see_from_calm_to_gone_and_back(tmp_path: Path) -> None:
    where = wired.ports()
    config = tmp_path / "policy.yaml"
    config.write_text(json.dumps(CONFIG))
    address = f"http://127.0.0.1:{where['http']}/"
    async with browsing(tmp_path) as browsed, emulator(tmp_path, where["upstream"]):
        page = browsed.page
        async with running_gateway(tmp_path, where, "--config", str(config)) as gateway:
            await page.goto(address)
            await page.get_by_text("no request has come yet").wait_for()
            await page.get_by_text("nobody has come back yet").wait_for()
            await browsed.shots("idle")

            mix = ("--mix", "0:.1,1:.5,2:.4", "--tenants", "acme:.7,<b>bold</b>:.3")
            crowd = await load(tmp_path, gateway.url, "--seconds", "60", "--retry", *mix)
            await page.get_by_text("shedding").wait_for()
            await page.get_by_role("rowheader", name="<b>bold</b>").wait_for()
            await page.get_by_text("let in as promised").wait_for()
            await browsed.until("points.get('chat').some((p) => p.shed_per_s > 0)")
            await browsed.shots("overload")
            await page.reload()
            await browsed.until("(points.get('chat') ?? []).length > 3")  # not from zero

            await stop(crowd)
            async with answering(gateway.url):
                gateway.process.send_signal(signal.SIGTERM)
                await page.get_by_text("not ready: draining").wait_for()
                await browsed.shots("draining")

        await page.get_by_text("does not answer").wait_for()
        await browsed.until("failures >= 3")
        await browsed.shots("gone")
        assert "no answer" in await page.title()
        tries = await page.evaluate("failures")
        async with running_gateway(tmp_path, where, "--config", str(config)):
            await page.get_by_role("button", name="Try now").click()
            await page.get_by_text("no request has come yet").wait_for()
            assert await page.get_by_text("does not answer").is_hidden()
        assert tries < 10  # it backed off while nobody was there
    assert browsed.errors == []
    assert browsed.hosts == {address.split("/")[2]}  # works without any other host


async def test_of_many_tenants_it_shows_those_with_most_whatever_their_names(
    tmp_path: Path,
) -> None:
    """Customer numbers as names: JavaScript lists such keys by size, not as they came."""
    most = {f"{9000 - n}": TenantView({Priority.P1: 100 - n}, inflight=0) for n in range(19)}
    most["in use"] = TenantView({}, inflight=1000)
    pool = PoolView("chat", 4.0, 4, 4, tenants=most)
    server = ServerView(version="1.2.3", uptime_s=1.0, pools=(pool,), config_digest="0" * 64)
    deps = HttpDeps(
        render_metrics=lambda: b"",
        status=lambda: status_document(server, {}),
        history=lambda: {"every_s": 2.0, "pools": {}},
        is_ready=lambda: None,
    )
    async with browsing(tmp_path) as browsed, TestServer(build_http_app(deps)) as api:
        await browsed.page.goto(str(api.make_url("/")))
        names = browsed.page.get_by_role("table", name="Tenants").get_by_role("rowheader")
        await names.first.wait_for()
        assert await names.all_text_contents() == [
            *("in use", "9000", "8999", "8998", "8997", "8996", "8995", "8994")
        ]
    assert browsed.errors == []
