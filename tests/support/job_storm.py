"""Jobs handed in while the policy server is killed again and again; what came of each of them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests.support import wired
from tests.support.gateway_command import GatewayCommand, running_gateway

CONFIG = {"pools": [{"limit": {"algorithm": "fixed", "initial": 16}}]}
PATH = "/v1/chat/completions"
CLIENTS = 64
PAUSE_S = 0.05
ON_THE_WAY_S = 0.5
"""What Envoy had in hand when the server died still reaches the model server."""
ACME = {"x-tenant-id": "acme"}


def answer_to(number: int) -> bytes:
    """What the model server answers to job `number`: bytes of all kinds, up to 20 kB."""
    seed = hashlib.sha256(str(number).encode()).digest()
    return (seed * 640)[: int.from_bytes(seed[:2]) % 20_000]


@dataclass
class ModelServer:
    """Notes when it began to work on which job."""

    rng: random.Random
    began: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    async def handle(self, request: web.Request) -> web.Response:
        number = json.loads(await request.read())["n"]
        self.began[number].append(time.monotonic())
        await asyncio.sleep(self.rng.uniform(0.002, 0.04))
        return web.Response(body=answer_to(number), headers={"x-n": str(number)})

    @contextlib.asynccontextmanager
    async def running(self, port: int) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_post(PATH, self.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        try:
            yield
        finally:
            await runner.cleanup()


@dataclass
class Report:
    """`wrong` says which promise was broken by which job; `again` = executions beyond the first."""

    accepted: int = 0
    kills: list[float] = field(default_factory=list)
    refused: int = 0
    again: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


class Storm:
    """`jobs` of them, `kills` of the server at random moments of their coming in."""

    def __init__(self, jobs: int, kills: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.model = ModelServer(self.rng)
        self.report = Report()
        self._jobs = jobs
        self._targets = sorted(self.rng.sample(range(jobs), kills))
        self._places: dict[int, str] = {}

    async def run(self, directory: Path) -> Report:
        """All of it, on free ports."""
        where = wired.ports()
        config = directory / "policy.yaml"
        config.write_text(json.dumps(CONFIG))
        timeout = aiohttp.ClientTimeout(total=60)
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            self.model.running(where["upstream"]),
            running_gateway(directory, where, "--config", str(config)) as gateway,
            aiohttp.ClientSession(connector=connector, timeout=timeout) as http,
        ):
            began = time.monotonic()
            killer = asyncio.create_task(self._kill(gateway, http))
            numbers = iter(range(self._jobs))
            await _all(self._submit(gateway, http, numbers) for _ in range(CLIENTS))
            await killer
            await self._until_ended(gateway, http)
            self.report.seconds = time.monotonic() - began
            numbers = iter(range(self._jobs))
            await _all(self._look(gateway, http, numbers) for _ in range(CLIENTS))
        self._judge_executions()
        return self.report

    async def _submit(
        self, gateway: GatewayCommand, http: aiohttp.ClientSession, numbers: Iterable[int]
    ) -> None:
        for number in numbers:
            headers = {
                **ACME,
                "prefer": "respond-async",
                "idempotency-key": f"key-{number}",
                "x-request-priority": "0",
            }
            body = json.dumps({"n": number}).encode()
            while number not in self._places:
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with http.post(gateway.url + PATH, data=body, headers=headers) as answer:
                        await answer.read()
                        if answer.status == 202:
                            self._places[number] = answer.headers["location"]
                            continue
                        assert answer.status in (429, 503), answer.status
                self.report.refused += 1
                await asyncio.sleep(PAUSE_S)
        self.report.accepted = len(self._places)

    async def _kill(self, gateway: GatewayCommand, http: aiohttp.ClientSession) -> None:
        """SIGKILL to whoever serves, once so many jobs are in and it serves again."""
        for target in self._targets:
            while len(self._places) < target:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            await self._serves(gateway, http)
            active = gateway.policy_pids()[0]
            os.kill(active, signal.SIGKILL)
            self.report.kills.append(time.monotonic())

    async def _serves(self, gateway: GatewayCommand, http: aiohttp.ClientSession) -> None:
        async with asyncio.timeout(60):
            while await self._metrics(gateway, http, "/readyz") is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def _metrics(
        self, gateway: GatewayCommand, http: aiohttp.ClientSession, page: str = "/metrics"
    ) -> str | None:
        url = f"http://127.0.0.1:{gateway.ports['http']}{page}"
        with contextlib.suppress(aiohttp.ClientError):
            async with http.get(url) as answer:
                return await answer.text() if answer.status == 200 else None
        return None

    async def _until_ended(self, gateway: GatewayCommand, http: aiohttp.ClientSession) -> None:
        async with asyncio.timeout(120 + self._jobs / 50):
            while True:
                text = await self._metrics(gateway, http) or ""
                lines = [x for x in text.split("\n") if x.startswith("policy_jobs{")]
                open_now = [x for x in lines if "queued" in x or "dispatched" in x]
                if open_now and all(float(x.split()[-1]) == 0.0 for x in open_now):
                    return
                await asyncio.sleep(0.1)

    async def _look(
        self, gateway: GatewayCommand, http: aiohttp.ClientSession, numbers: Iterable[int]
    ) -> None:
        for number in numbers:
            where = gateway.url + self._places[number]
            _, text, _ = await _ask(http, where)
            job: dict[str, Any] = json.loads(text)
            if job["status"] != "done":
                self.report.wrong.append(f"{number}: accepted, and now {job['status']}")
                continue
            status, body, its = await _ask(http, f"{where}/response")
            if (status, body, its) != (200, answer_to(number), str(number)):
                self.report.wrong.append(f"{number}: not the answer of the model server")

    def _judge_executions(self) -> None:
        """A job runs again only when the server died after it was sent."""
        for number in range(self._jobs):
            began = self.model.began[number]
            if not began:
                self.report.wrong.append(f"{number}: done, and never ran")
            self.report.again += max(0, len(began) - 1)
            for before, after in itertools.pairwise(began):
                if not any(before - ON_THE_WAY_S < kill < after for kill in self.report.kills):
                    self.report.wrong.append(f"{number}: ran again without a crash between")


async def _ask(http: aiohttp.ClientSession, where: str) -> tuple[int, bytes, str | None]:
    """Status, body and whose answer it is; Envoy bounds how fast everybody together may ask."""
    while True:
        async with http.get(where, headers=ACME) as answer:
            body = await answer.read()
            if answer.status != 429:
                return answer.status, body, answer.headers.get("x-n")
        await asyncio.sleep(PAUSE_S)


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for one in work:
            group.create_task(one)
