"""Single streams where Envoy can be told header modes only, as Envoy Gateway does it.

No trailer mode, no metadata that names the wiring, no observer, no access log: the filter shows the
request headers and allows a mode override, and `serve --wiring stream` asks for the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.echo_upstream import EchoUpstream, running_upstream
from tests.support.envoy_process import running_envoy
from tests.support.stack import Stack, stop
from tests.support.wired import bootstrap_for, connection_manager, http_filter, ports

PATH = "/v1/chat/completions"
P0 = {"x-request-priority": "0"}  # the lower classes may be refused while the server lags
ONE_SLOT = {"pools": [{"limit": {"algorithm": "fixed", "initial": 1}}]}


def header_modes_only(bootstrap: dict[str, Any]) -> dict[str, Any]:
    """The bootstrap, cut down to what the other control plane can express."""
    gate = http_filter(bootstrap, "policy.gate")
    gate["processing_mode"] = {"request_header_mode": "SEND", "response_header_mode": "SKIP"}
    gate["allow_mode_override"] = True
    del gate["grpc_service"]["initial_metadata"]
    del gate["response_attributes"]
    manager = connection_manager(bootstrap)
    assert "access_log" not in manager
    for route in manager["route_config"]["virtual_hosts"][0]["routes"]:
        route.get("typed_per_filter_config", {}).pop("policy.observer", None)
    return bootstrap


@contextlib.asynccontextmanager
async def running(directory: Path) -> AsyncIterator[tuple[Stack, EchoUpstream]]:
    where = ports()
    server = {"grpc": f"127.0.0.1:{where['grpc']}", "http": f"127.0.0.1:{where['http']}"}
    config = directory / "config.yaml"
    config.write_text(json.dumps({"server": server, **ONE_SLOT}))
    bootstrap = header_modes_only(bootstrap_for(where, config, wiring="stream"))
    async with aiohttp.ClientSession() as http, running_upstream(where["upstream"]) as echo:
        stack = Stack(directory, where, config, http)
        await stack.start_policy("--wiring", "stream")
        try:
            async with running_envoy(bootstrap, directory):
                yield stack, echo
        finally:
            await stop(stack.policy)


async def post(stack: Stack, path: str = PATH) -> tuple[int, bytes]:
    async with stack.client.post(stack.url + path, headers=P0) as answer:
        return answer.status, await answer.read()


@pytest.mark.parametrize("path", ["/slow", "/half"])
async def test_the_slot_is_held_to_the_end_of_the_answer(tmp_path: Path, path: str) -> None:
    async with running(tmp_path) as (stack, echo):
        first = asyncio.create_task(post(stack, path))
        await stack.until(inflight=1)
        held = asyncio.create_task(post(stack))
        await stack.until(waiting=1, inflight=1)
        assert len(echo.requests) <= 1
        echo.finish.set()
        assert [(await task)[0] for task in (first, held)] == [200, 200]
        await stack.until(waiting=0, inflight=0)


async def test_a_client_that_leaves_in_mid_answer_frees_its_slot(tmp_path: Path) -> None:
    async with running(tmp_path) as (stack, _):
        async with stack.client.post(f"{stack.url}/half", headers=P0) as answer:
            assert await answer.content.readany() == b"data: {}\n\n"
            await stack.until(inflight=1)
            answer.close()
        await stack.until(waiting=0, inflight=0)
        assert (await post(stack))[0] == 200
