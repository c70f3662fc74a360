"""A real model behind the whole gateway, its own capacity, and load above it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from policy_server.load.params import LoadParams
from policy_server.load.results import LoadReport
from policy_server.load.runner import run_load
from policy_server.processes import tied_to_us
from tests.support.envoy_process import free_ports, wait_http_ok
from tests.support.stack import Stack, running_stack, stop

MIX = {"0": 0.12, "1": 0.5, "2": 0.38}
VEGAS: dict[str, object] = {"algorithm": "vegas"}
IMPATIENT = {"P0": {"max_wait_s": 10}, "P1": {"max_wait_s": 2}, "P2": {"max_wait_s": 1}}
"""So that a run of some seconds reaches the refusals that an hour of overload would see. The limit
starts at four times the slots: a small engine has some seconds of work before the first cut."""
ANSWERED_WITHIN_S = 60
CLOSED_LOOP = 4  # clients that ask again at once: enough to keep a small engine busy


@dataclass(frozen=True, slots=True)
class RealModel:
    """`module` serves it on a port; requests go to `path`, each with a prompt of so many tokens
    and, where it generates, at most `tokens` in its answer. `page`: it has one with its load."""

    module: str
    path: str
    prompt_tokens: int
    tokens: int = 1
    stream: bool = False
    page: bool = False


EMBEDDINGS = RealModel("tests.support.minilm_server", "/v1/embeddings", prompt_tokens=100)
CHAT = RealModel(
    "tests.support.llama_server", "/v1/chat/completions", prompt_tokens=8, tokens=16, stream=True,
    page=True,
)  # fmt: skip


@contextlib.asynccontextmanager
async def running_model(directory: Path, model: RealModel = EMBEDDINGS) -> AsyncIterator[str]:
    """The server as a process of its own; its URL."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", model.module, str(port)]
    with (directory / "model.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(*tied_to_us(command), stdout=log, stderr=log)
    try:
        await wait_http_ok(f"http://127.0.0.1:{port}/health", process, 60)
        yield f"http://127.0.0.1:{port}"
    finally:
        await stop(process)


def in_front(
    directory: Path,
    model_url: str,
    limit: dict[str, object],
    model: RealModel = EMBEDDINGS,
    **config: Any,
) -> contextlib.AbstractAsyncContextManager[Stack]:
    """Envoy and the policy server in front of the model."""
    pool: dict[str, object] = {"name": "default", "limit": limit}
    if model.page:
        pool["load_reports"] = {"scrape": [f"{model_url}/metrics"]}
    config["pools"] = [pool]
    return running_stack(directory, config, upstream=model_url)


async def capacity_rps(model_url: str, seconds: float, model: RealModel = EMBEDDINGS) -> float:
    """Requests per second that the model serves while a few are always there; measured for
    `seconds`, or until each of them had an answer."""
    body = _body(model)
    served = 0

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal served
        while True:
            async with session.post(model_url + model.path, data=body) as answer:
                assert answer.status == 200
                await answer.read()
            served += 1

    headers = {"content-type": "application/json"}
    connector = aiohttp.TCPConnector(force_close=True)  # llama.cpp ends one after some requests
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
        clients = [asyncio.create_task(client(session)) for _ in range(CLOSED_LOOP)]
        try:
            await asyncio.sleep(1.0)  # the first answers pay for the arena of the runtime
            began, before = time.monotonic(), served
            await asyncio.sleep(seconds)
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                while served < before + CLOSED_LOOP:
                    await asyncio.sleep(0.05)  # a busy machine
                    _raise_what_ended(clients)
            return (served - before) / (time.monotonic() - began)
        finally:
            for task in clients:
                task.cancel()
            await asyncio.gather(*clients, return_exceptions=True)


def _raise_what_ended(clients: list[asyncio.Task[None]]) -> None:
    for task in clients:
        if task.done():
            task.result()


def _body(model: RealModel) -> str:
    text = "lore" * model.prompt_tokens
    if model is EMBEDDINGS:
        return json.dumps({"model": "m", "input": text})
    messages = [{"role": "user", "content": text}]
    ask = {"model": "m", "messages": messages, "max_tokens": model.tokens, "stream": model.stream}
    return json.dumps(ask)


async def overload(
    url: str,
    times: tuple[float, float, float],
    rate: float,
    model: RealModel = EMBEDDINGS,
) -> LoadReport:
    """Open-loop load. `times`: seconds of load, from when on goodput counts, and the longest wait
    for answers after the last request."""
    seconds, warmup_s, drain_s = times
    return await run_load(
        LoadParams(
            url=url + model.path, rate=rate, seconds=seconds, warmup_s=warmup_s, mix=MIX,
            prompt_tokens=model.prompt_tokens, tokens=model.tokens, stream=model.stream,
            drain_s=drain_s,
        )
    )  # fmt: skip
