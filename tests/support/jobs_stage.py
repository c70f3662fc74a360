"""A server's insides for tests of jobs: one pool, a real model server, no Envoy between."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from policy_server.core.admission import Admission
from policy_server.core.request import Request
from policy_server.driver import Driver
from policy_server.jobs.service import Jobs
from policy_server.jobs.settings import JobRules, Via
from policy_server.jobs.vault import Vault
from policy_server.journal.jobs import Accepted, Answer, Ending, Job, JobRequest, NewJob, Submission
from policy_server.journal.jobs_memory import MemoryJobs
from policy_server.journal.memory import MemoryJournal
from policy_server.journal.port import JournalUnavailableError
from tests.support.core_builders import P1, pool_params

Handler = Callable[[web.Request], Any]


class BadDisk(MemoryJobs):
    """A store whose disk may be in trouble: `down`, or failing where `fails` says."""

    down = False

    def __init__(self) -> None:
        super().__init__()
        self.fails: dict[str, Exception] = {}

    async def accept(self, new: NewJob) -> Accepted:
        self._check("accept")
        return await super().accept(new)

    async def finish(self, ending: Ending) -> Job | None:
        self._check("finish")
        return await super().finish(ending)

    async def get(self, job_id: str) -> Job | None:
        self._check("get")
        return await super().get(job_id)

    async def request(self, job_id: str) -> JobRequest | None:
        self._check("request")
        return await super().request(job_id)

    async def overdue(self, now: float, limit: int) -> list[str]:
        self._check("overdue")
        return await super().overdue(now, limit)

    def _check(self, what: str) -> None:
        if self.down:
            raise JournalUnavailableError("full")
        if what in self.fails:
            raise self.fails[what]


@dataclass
class Stage:
    """A server's insides with one seat, and the model server behind it."""

    jobs: Jobs
    store: Any
    driver: Driver
    url: str
    seen: list[web.Request] = field(default_factory=list)
    count: int = 0

    async def submit(self, path: str = "/ok", **more: Any) -> Job:
        accepted = await self.jobs.accept(self.submission(path, **more))
        assert isinstance(accepted, Accepted)
        return accepted.job

    def submission(self, path: str = "/ok", **more: Any) -> Submission:
        self.count += 1
        now = time.monotonic()
        request = Request(f"uid-{self.count}", "chat", P1, now, now + 15.0, tenant="acme")
        given: dict[str, Any] = {"headers": (("a", "b"),), "body": b"body", **more}
        return Submission(request, "POST", path, "models.example", **given)

    async def ended(self, job: Job) -> Job:
        async with asyncio.timeout(10):
            async for _ in self.jobs.events(job.id, 0):
                pass
        found = await self.store.get(job.id)
        assert found is not None
        return found


@contextlib.asynccontextmanager
async def model_server(handler: Handler) -> AsyncIterator[tuple[str, list[web.Request]]]:
    seen: list[web.Request] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        await request.read()
        seen.append(request)
        return await handler(request)

    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{tail:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", seen
    await runner.cleanup()


@contextlib.asynccontextmanager
async def running(
    url: str, store: Any = None, seats: float = 1.0, pool: str = "chat", **rules: Any
) -> AsyncIterator[Stage]:
    store, vault = store or MemoryJobs(), Vault(rules.pop("key", bytes(32)))
    admission = Admission([pool_params(seats, name=pool)], random.Random(1))
    driver = Driver(admission, MemoryJournal(), time.monotonic, asyncio.get_running_loop())
    jobs = Jobs(driver, store, vault, Via(url), JobRules(**rules))
    await jobs.restore()
    try:
        yield Stage(jobs, store, driver, url)
    finally:
        await jobs.stop()
        await driver.stop()


@contextlib.asynccontextmanager
async def stage(handler: Handler, **more: Any) -> AsyncIterator[Stage]:
    async with model_server(handler) as (url, seen), running(url, **more) as stage:
        stage.seen = seen
        yield stage


async def stored_answer(store: Any, job_id: str) -> Answer | None:
    """What the model server answered, put together from pieces."""
    head, body = await store.answer_head(job_id), b""
    while head is not None and len(body) < head.body_bytes:
        body += await store.answer_part(job_id, len(body), 1 + head.body_bytes // 3)
    return None if head is None else Answer(head.status, head.headers, body)


async def until(happened: Callable[[], object]) -> None:
    """Wait for something that nobody tells."""
    async with asyncio.timeout(10):
        while not happened():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def ok(request: web.Request) -> web.Response:
    return web.Response(status=201, body=await request.read(), headers={"x-who": "me"})
