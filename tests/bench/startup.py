"""How long until it serves: after the command, again after kill -9, counted from the kill, and from
zero, counted from the moment at which the first replica answers its health check.

`gateway` keeps a warm standby, so a killed policy server costs what Envoy takes to connect again
and to send the request once more. `serve` alone has none: its row says what a supervisor of
somebody else's would add. Every request sent meanwhile must be answered 200.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import aiohttp
import grpc

from tests.bench.contenders import running_backend
from tests.bench.result import Bar, Cell, Part
from tests.support.envoy_process import free_ports, wait_http_ok
from tests.support.gateway_command import GatewayCommand, running_gateway
from tests.support.keda_client import KedaClient
from tests.support.stack import chat, start, stop
from tests.support.wired import ports

AGAIN_S = 1.0
FROM_ZERO_S = 2.0
HELD = 40
EVERY_S = 0.02
SLOTS = 64
GIVE_UP_S = 20.0
COLUMNS = ("what", "median s", "worst s", "times")


@dataclass(frozen=True, slots=True)
class Startup:
    """`starts` of the command, `kills` for each; a standby gets `settle_s` to warm up. `zeros`: how
    often HELD requests wait for a first replica."""

    starts: int = 3
    kills: int = 3
    zeros: int = 5
    settle_s: float = 2.0


@dataclass(slots=True)
class Times:
    """Seconds of each kind, and what all requests got."""

    ready: list[float] = field(default_factory=list)
    first_answer: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    longest_answer: list[float] = field(default_factory=list)
    serve_alone: list[float] = field(default_factory=list)
    from_zero: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)


async def run(plan: Startup, directory: Path, say: Callable[[str], None]) -> Part:
    """Start, ask, kill, ask."""
    title = f"startup: {plan.starts} starts, {plan.kills} times kill -9 after each"
    part = Part("startup", title, COLUMNS)
    times = Times()
    where = ports()
    async with running_backend(where["upstream"], SLOTS, directory):
        for _ in range(plan.starts):
            await _one_life(plan, directory, {**ports(), "upstream": where["upstream"]}, times)
            times.serve_alone.append(await _serve_alone(directory))
            say(f"{times}")
    for _ in range(plan.zeros):
        await _from_zero(directory, ports(), times)
    part.rows = [
        _row("gateway: start → ready", times.ready),
        _row("gateway: start → first answer", times.first_answer),
        _row("gateway: kill -9 → next answer", times.again),
        _row("longest answer around a kill", times.longest_answer),
        _row("serve alone: start → ready", times.serve_alone),
        _row("first replica ready → first answer", times.from_zero),
    ]
    other = {status: n for status, n in times.statuses.items() if status != 200}
    part.bars = [
        Bar.at_most("serving again after kill -9 in s, the worst", max(times.again), AGAIN_S),
        Bar.at_most(
            "from zero to the first answer in s, the worst", max(times.from_zero), FROM_ZERO_S
        ),
        Bar.equal("answers other than 200", other, {}),
    ]
    part.data = {"plan": asdict(plan), "times": asdict(times)}
    return part


def _row(what: str, seconds: list[float]) -> list[Cell]:
    return [what, median(seconds), max(seconds), len(seconds)]


async def _one_life(plan: Startup, directory: Path, where: dict[str, int], times: Times) -> None:
    began = time.monotonic()
    async with running_gateway(directory, where) as gateway, aiohttp.ClientSession() as client:
        times.ready.append(time.monotonic() - began)
        await _ask(client, gateway.url)
        times.first_answer.append(time.monotonic() - began)
        for _ in range(plan.kills):
            await gateway.until_policy_pids(2)
            await asyncio.sleep(plan.settle_s)
            await _kill(client, gateway, times)


async def _kill(client: aiohttp.ClientSession, gateway: GatewayCommand, times: Times) -> None:
    """Kill while requests come all the time; the first one sent after it tells when it serves."""
    asked: list[asyncio.Task[tuple[int, float]]] = []

    async def ask_all_the_time() -> None:
        while True:
            asked.append(asyncio.create_task(_ask(client, gateway.url)))
            await asyncio.sleep(EVERY_S)

    asking = asyncio.create_task(ask_all_the_time())
    await asyncio.sleep(10 * EVERY_S)
    killed = time.monotonic()
    os.kill(gateway.policy_pids()[0], signal.SIGKILL)
    status, _ = await _ask(client, gateway.url)
    times.again.append(time.monotonic() - killed if status == 200 else GIVE_UP_S)
    await asyncio.sleep(10 * EVERY_S)
    asking.cancel()
    answers = await asyncio.gather(*asked)
    times.longest_answer.append(max(seconds for _, seconds in answers))
    for answer, _ in answers:
        times.statuses[answer] = times.statuses.get(answer, 0) + 1


async def _from_zero(directory: Path, where: dict[str, int], times: Times) -> None:
    """Nobody there: all wait; then a replica comes."""
    port = where["upstream"]
    file = directory / "from-zero.yaml"
    file.write_text(f"pools: [{{backends: {{probe: ['http://127.0.0.1:{port}/health']}}}}]\n")
    async with (
        running_gateway(directory, where, "--config", str(file)) as gateway,
        grpc.aio.insecure_channel(f"127.0.0.1:{where['grpc']}") as channel,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client,
    ):
        sent = time.monotonic()
        held = [asyncio.create_task(_ask(client, gateway.url)) for _ in range(HELD)]
        scaler = KedaClient(channel, {})
        async with asyncio.timeout(GIVE_UP_S):
            while (await scaler.metric("")).value != HELD:  # noqa: ASYNC110
                await asyncio.sleep(EVERY_S)
        async with running_backend(port, SLOTS, directory):
            ready = time.monotonic()
            answers = await asyncio.gather(*held)
    first = sent + min(seconds for _, seconds in answers)
    times.from_zero.append(first - ready)
    for status, _ in answers:
        times.statuses[status] = times.statuses.get(status, 0) + 1


async def _ask(client: aiohttp.ClientSession, url: str) -> tuple[int, float]:
    """Status and seconds of one request; 0 = no answer in time, or a broken connection."""
    began = time.monotonic()
    body, headers = chat(tokens=1), {"x-request-priority": "0"}
    try:
        async with asyncio.timeout(GIVE_UP_S):
            url = f"{url}/v1/chat/completions"
            async with client.post(url, json=body, headers=headers) as answer:
                await answer.read()
                return answer.status, time.monotonic() - began
    except (aiohttp.ClientError, TimeoutError):
        return 0, time.monotonic() - began


async def _serve_alone(directory: Path) -> float:
    grpc_port, http = free_ports(2)
    file = directory / "serve.yaml"
    file.write_text(f"server: {{grpc: '127.0.0.1:{grpc_port}', http: '127.0.0.1:{http}'}}\n")
    began = time.monotonic()
    process = await start("serve", "--config", str(file), log=directory / "serve.log")
    try:
        await wait_http_ok(f"http://127.0.0.1:{http}/readyz", process)
        return time.monotonic() - began
    finally:
        await stop(process)
