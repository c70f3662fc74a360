"""The real model behind the whole gateway, its own capacity, and load above it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from policy_server.load.params import LoadParams
from policy_server.load.results import LoadReport
from policy_server.load.runner import run_load
from policy_server.processes import tied_to_us
from tests.support.envoy_process import free_ports, wait_http_ok
from tests.support.stack import Stack, running_stack, stop

PATH = "/v1/embeddings"
PROMPT_TOKENS = 100
MIX = {"0": 0.12, "1": 0.5, "2": 0.38}
CLOSED_LOOP = 4  # clients that ask again at once: enough to keep one worker busy


@contextlib.asynccontextmanager
async def running_model(directory: Path) -> AsyncIterator[str]:
    """The server as a process of its own; its URL."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "tests.support.minilm_server", str(port)]
    with (directory / "minilm.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(*tied_to_us(command), stdout=log, stderr=log)
    try:
        await wait_http_ok(f"http://127.0.0.1:{port}/health", process, 60)
        yield f"http://127.0.0.1:{port}"
    finally:
        await stop(process)


def in_front(
    directory: Path, model_url: str, limit: dict[str, object], **config: Any
) -> contextlib.AbstractAsyncContextManager[Stack]:
    """Envoy and the policy server in front of the model."""
    config["pools"] = [{"name": "default", "limit": limit}]
    return running_stack(directory, config, upstream=model_url)


async def capacity_rps(model_url: str, seconds: float) -> float:
    """Requests per second that the model serves while a few are always there."""
    body = json.dumps({"model": "m", "input": "lore" * PROMPT_TOKENS})
    served = 0

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal served
        while True:
            async with session.post(model_url + PATH, data=body) as answer:
                assert answer.status == 200
                await answer.read()
            served += 1

    async with aiohttp.ClientSession() as session:
        clients = [asyncio.create_task(client(session)) for _ in range(CLOSED_LOOP)]
        try:
            await asyncio.sleep(1.0)  # the first answers pay for the arena of the runtime
            before = served
            await asyncio.sleep(seconds)
            return (served - before) / seconds
        finally:
            for task in clients:
                task.cancel()
            await asyncio.gather(*clients, return_exceptions=True)


async def overload(
    url: str, rate: float, seconds: float, warmup_s: float, drain_s: float = 60.0
) -> LoadReport:
    """Open-loop load of short texts; goodput is counted from `warmup_s` on."""
    return await run_load(
        LoadParams(
            url=url + PATH, rate=rate, seconds=seconds, warmup_s=warmup_s, mix=MIX,
            prompt_tokens=PROMPT_TOKENS, tokens=1, drain_s=drain_s,
        )
    )  # fmt: skip
