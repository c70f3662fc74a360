"""0 → 1 → 4 → 0 replicas behind the gateway, asked for as KEDA asks: nobody is lost.

The upstream list is fixed, as a gateway's is; replicas that are not there are simply down. How soon
the first answer comes is a bar of `make bench ARGS=startup`.
"""

# ruff: noqa: ASYNC110 - other processes have no event to wait for

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import grpc
import pytest

from tests.support import wired
from tests.support.envoy_process import free_ports, wait_http_ok
from tests.support.gateway_command import running_gateway
from tests.support.keda_client import KedaClient
from tests.support.stack import Process, chat, start, stop

SLOTS = 16
REPLICAS = 4
ENGINE_QUEUE_BOUND = 8  # requests, of one replica: half of what it runs at once
IN_ENGINE = r"^vllm:num_requests_(?:waiting|running)\S* (\S+)"
METRIC = "waiting-per-replica-default"
WITHIN_S = 60


@dataclass
class Episode:
    """The gateway, its replicas, and what the scaler is told."""

    directory: Path
    url: str
    http: aiohttp.ClientSession
    keda: KedaClient
    ports: list[int]
    replicas: dict[int, Process] = field(default_factory=dict)
    pushed: list[bool] = field(default_factory=list)
    queued: int = 0

    async def start(self, port: int) -> None:
        """A replica, until it answers its health check."""
        flags = ("--port", str(port), "--max-num-seqs", str(SLOTS))
        log = self.directory / f"replica-{port}.log"
        self.replicas[port] = await start("backend", *flags, log=log)
        await wait_http_ok(f"http://127.0.0.1:{port}/health", self.replicas[port])

    async def end(self, port: int) -> None:
        """It is asked to stop, and does."""
        replica = self.replicas.pop(port)
        replica.send_signal(signal.SIGTERM)
        async with asyncio.timeout(WITHIN_S):
            await replica.wait()

    async def ask(self, number: int) -> int:
        """One request: its status."""
        headers = {"x-request-priority": str(number % 3)}
        async with self.http.post(self.url, json=chat(20), headers=headers) as answer:
            await answer.read()
            return answer.status

    def send(self, count: int) -> list[asyncio.Task[int]]:
        """So many at once."""
        return [asyncio.create_task(self.ask(number)) for number in range(count)]

    async def until_waiting(self, count: int) -> None:
        """The scaler counts so many."""
        async with asyncio.timeout(WITHIN_S):
            while (await self.keda.metric(METRIC)).value != count:
                await asyncio.sleep(0.05)

    async def until_pushed(self, active: bool) -> None:
        """The scaler's stream says so."""
        async with asyncio.timeout(WITHIN_S):
            while not self.pushed or self.pushed[-1] is not active:
                await asyncio.sleep(0.02)

    async def until_ready(self, http_port: int, count: int) -> None:
        """The policy server knows so many."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                async with self.http.get(f"http://127.0.0.1:{http_port}/statusz") as answer:
                    (pool,) = (await answer.json())["pools"]
                if pool["backends"]["ready"] == count:
                    return
                await asyncio.sleep(0.05)

    async def follow_stream(self) -> None:
        """As KEDA does."""
        async for active in self.keda.stream_is_active():
            self.pushed.append(active)

    async def watch_queues(self) -> None:
        """The longest line inside any replica: those for whom it has no slot.

        Who has just come is no line: until its next step an engine calls everybody waiting.
        """
        while True:
            for port in list(self.replicas):
                with contextlib.suppress(aiohttp.ClientError):
                    async with self.http.get(f"http://127.0.0.1:{port}/metrics") as answer:
                        page = await answer.text()
                    seen = re.findall(IN_ENGINE, page, re.M)
                    assert len(seen) == 2
                    self.queued = max(self.queued, int(sum(map(float, seen))) - SLOTS)
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def episode(directory: Path, where: dict[str, int]) -> AsyncIterator[Episode]:
    ports = [where["upstream"], *free_ports(REPLICAS - 1)]
    probes = [f"http://127.0.0.1:{port}/health" for port in ports]
    config = directory / "policy.yaml"
    pool = {"backends": {"probe": probes, "ramp_s": 2}, "no_backend_wait_s": 120}
    config.write_text(json.dumps({"pools": [pool]}))
    more = [word for port in ports[1:] for word in ("--upstream", f"http://127.0.0.1:{port}")]
    async with contextlib.AsyncExitStack() as cleanup:
        gateway = await cleanup.enter_async_context(
            running_gateway(directory, where, *more, "--config", str(config))
        )
        connector = aiohttp.TCPConnector(limit=0)
        http = await cleanup.enter_async_context(aiohttp.ClientSession(connector=connector))
        channel = await cleanup.enter_async_context(
            grpc.aio.insecure_channel(f"127.0.0.1:{where['grpc']}")
        )
        keda = KedaClient(channel, {"pool": "default", "waitingPerReplica": "2"})
        made = Episode(directory, f"{gateway.url}/v1/chat/completions", http, keda, ports)
        tasks = [asyncio.create_task(t) for t in (made.follow_stream(), made.watch_queues())]
        try:
            yield made
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for replica in made.replicas.values():
                await stop(replica)


async def test_nobody_is_lost_from_zero_to_four_and_back(tmp_path: Path) -> None:
    where = wired.ports()
    async with episode(tmp_path, where) as fleet:
        keda = fleet.keda
        await fleet.until_pushed(False)
        assert not await keda.is_active()
        assert (await keda.metric_spec()).value == 2.0

        held = fleet.send(40)  # nobody there: all of them wait, and are counted
        await fleet.until_waiting(40)
        await fleet.until_pushed(True)
        assert await keda.is_active()

        await fleet.start(fleet.ports[0])
        answers = await asyncio.wait_for(asyncio.gather(*held), WITHIN_S)
        assert set(answers) == {200}
        assert fleet.queued <= ENGINE_QUEUE_BOUND

        await asyncio.gather(*(fleet.start(port) for port in fleet.ports[1:]))
        await fleet.until_ready(where["http"], REPLICAS)
        more = await asyncio.wait_for(asyncio.gather(*fleet.send(120)), WITHIN_S)
        assert set(more) == {200}
        assert fleet.queued <= ENGINE_QUEUE_BOUND

        await fleet.until_pushed(False)
        for port in fleet.ports:
            await fleet.end(port)
        await fleet.until_ready(where["http"], 0)
        again = fleet.send(5)
        await fleet.until_waiting(5)
        await fleet.start(fleet.ports[-1])
        last = await asyncio.wait_for(asyncio.gather(*again), WITHIN_S)
        assert set(last) == {200}


async def test_a_crash_while_nobody_is_there_loses_nobody(tmp_path: Path) -> None:
    where = wired.ports()
    probe = f"http://127.0.0.1:{where['upstream']}/health"
    config = tmp_path / "policy.yaml"
    config.write_text(json.dumps({"pools": [{"backends": {"probe": [probe]}}]}))
    async with (
        running_gateway(tmp_path, where, "--config", str(config)) as gateway,
        aiohttp.ClientSession() as http,
        grpc.aio.insecure_channel(f"127.0.0.1:{where['grpc']}") as channel,
    ):
        active, _ = await gateway.until_policy_pids(2)
        held = [asyncio.create_task(_status(http, gateway.url)) for _ in range(20)]
        await _until_waiting(channel, 20)
        os.kill(active, signal.SIGKILL)
        await _until_waiting(channel, 20)
        log = tmp_path / "replica.log"
        replica = await start("backend", "--port", str(where["upstream"]), log=log)
        try:
            statuses = await asyncio.wait_for(asyncio.gather(*held), WITHIN_S)
            assert set(statuses) == {200}
        finally:
            await stop(replica)


async def _until_waiting(channel: grpc.aio.Channel, count: int) -> None:
    """The scaler counts so many; meanwhile there may be nobody to ask."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                if (await KedaClient(channel, {}).metric(METRIC)).value == count:
                    return
            await asyncio.sleep(0.05)


async def test_past_the_budget_the_answer_is_503_no_backend(tmp_path: Path) -> None:
    where = wired.ports()
    config = tmp_path / "policy.yaml"
    pool = {"backends": {"count": 0}, "no_backend_wait_s": 2}
    classes = {name: {"max_wait_s": 1} for name in ("P0", "P1", "P2")}
    config.write_text(json.dumps({"pools": [pool], "classes": classes}))
    async with (
        running_gateway(tmp_path, where, "--config", str(config)) as gateway,
        aiohttp.ClientSession() as http,
        http.post(f"{gateway.url}/v1/chat/completions", json=chat(5)) as answer,
    ):
        assert answer.status == 503
        assert answer.headers["x-policy-reason"] == "no_backend"
        assert int(answer.headers["retry-after"]) >= 1
        assert (await answer.json())["error"]["type"] == "server_error"


@pytest.mark.parametrize("wiring", ["authz", "stream"])
async def test_the_other_wirings_hold_as_well(tmp_path: Path, wiring: str) -> None:
    where = wired.ports()
    probe = f"http://127.0.0.1:{where['upstream']}/health"
    config = tmp_path / "policy.yaml"
    config.write_text(json.dumps({"pools": [{"backends": {"probe": [probe]}}]}))
    log = tmp_path / "replica.log"
    async with (
        running_gateway(tmp_path, where, "--wiring", wiring, "--config", str(config)) as gateway,
        aiohttp.ClientSession() as http,
        grpc.aio.insecure_channel(f"127.0.0.1:{where['grpc']}") as channel,
    ):
        held = asyncio.create_task(_status(http, gateway.url))
        await _until_waiting(channel, 1)
        replica = await start("backend", "--port", str(where["upstream"]), log=log)
        try:
            assert await asyncio.wait_for(held, WITHIN_S) == 200
        finally:
            await stop(replica)


async def _status(http: aiohttp.ClientSession, url: str) -> int:
    async with http.post(f"{url}/v1/chat/completions", json=chat(5)) as answer:
        await answer.read()
        return answer.status
