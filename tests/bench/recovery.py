"""Back in service: from the start of the process until it serves, with a hundred thousand jobs in
line and thousands of held places; and what a job that waits costs in memory.

Three starts: with nothing, with the places, with the places and the jobs. The last two differ in
the jobs only.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from policy_server.core.request import Priority, Request
from policy_server.journal.jobs import Job, JobRequest, NewJob
from policy_server.journal.port import RequestContext
from policy_server.journal.sqlite.jobs import _accept
from policy_server.journal.sqlite.journal import SqliteJournal
from policy_server.journal.sqlite.store import Store, StoreOptions
from tests.bench.lab import ALL_CLASSES_LONG, LONG_S, fixed
from tests.bench.meter import rss_bytes
from tests.bench.result import Bar, Part
from tests.support.envoy_process import wait_http_ok
from tests.support.stack import start, stop
from tests.support.wired import ports

MAX_RECOVERY_S = 5.0
MAX_BYTES_PER_JOB = 1024
AT_ONCE = 5_000


@dataclass(frozen=True, slots=True)
class Found:
    """After one start: `waiting` held places and `queued` jobs are in line."""

    seconds: float
    rss_bytes: int
    waiting: int
    queued: int


async def recover(queued: int, held: int, directory: Path, part: Part) -> None:
    """All three starts."""
    empty = await _start(directory / "empty", 0, 0)
    places = await _start(directory / "places", 0, held)
    full = await _start(directory / "full", queued, held)
    each = (full.rss_bytes - places.rss_bytes) / queued
    part.rows += [
        ["start → ready s, nothing there", empty.seconds, None, None, None],
        [f"start → ready s, {held} places", places.seconds, None, None, None],
        [f"start → ready s, {held} places, {queued} jobs", full.seconds, None, None, None],
        ["bytes of memory per queued job", each, None, None, None],
    ]
    part.bars += [
        Bar.at_most("start with all of them in s", full.seconds, MAX_RECOVERY_S),
        Bar.at_most("bytes per queued job", each, MAX_BYTES_PER_JOB),
        Bar.equal("places in line after the start", full.waiting, held),
        Bar.equal("jobs in line or on their way after the start", full.queued, queued),
    ]


async def _start(folder: Path, queued: int, held: int) -> Found:
    folder.mkdir()  # noqa: ASYNC240 - nothing else runs
    await fill(folder / "data" / "journal.db", queued, held)
    where = ports()
    server = {"grpc": f"127.0.0.1:{where['grpc']}", "http": f"127.0.0.1:{where['http']}"}
    more = {"jobs": {"via": "http://127.0.0.1:9"}, "classes": ALL_CLASSES_LONG}
    file = folder / "config.yaml"
    file.write_text(json.dumps({"server": server, **fixed(1), **more}))
    began = time.monotonic()
    command = ("serve", "--config", str(file), "--data-dir", str(folder / "data"))
    process = await start(*command, log=folder / "policy.log")
    try:
        await wait_http_ok(f"http://127.0.0.1:{where['http']}/readyz", process)
        seconds = time.monotonic() - began
        rss = rss_bytes(process.pid)
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://127.0.0.1:{where['http']}/statusz") as answer,
        ):
            status = await answer.json()
    finally:
        await stop(process)
    jobs = status["jobs"]
    waiting = sum(status["pools"][0]["waiting"].values())
    return Found(seconds, rss, waiting, jobs["queued"] + jobs["dispatched"])


async def fill(path: Path, queued: int, held: int) -> None:
    """A journal as a crash leaves it: so many jobs, each with a body of a kilobyte, and so many
    who waited."""
    store = Store(StoreOptions(path))
    journal = SqliteJournal(store)
    journal.open()
    for number in range(held):
        journal.append_waiting(_held(number), RequestContext(f"request-{number}"))
    await journal.flush()
    for begin in range(0, queued, AT_ONCE):
        batch = [_job(number) for number in range(begin, min(queued, begin + AT_ONCE))]
        await store.write_durably(lambda db, batch=batch: [_accept(db, new) for new in batch])
    await journal.close()


def _held(number: int) -> Request:
    now = time.monotonic()
    return Request(
        f"uid-of-one-who-waits-{number:08}", "default", Priority(number % 3), now, now + LONG_S,
        f"tenant-{number % 20}", path="/v1/chat/completions", arrived_wall=time.time(),
    )  # fmt: skip


def _job(number: int) -> NewJob:
    now = time.time()
    job = Job(
        f"{number:032x}", f"tenant-{number % 20}", "default", Priority(number % 3),
        "POST", "/v1/chat/completions", now, now + 86_400,
        model="emulated-7b", body_bytes=1_000,
    )  # fmt: skip
    content = JobRequest("host", (("content-type", "json"),), b"", bytes(1_000))
    return NewJob(job, content, f"uid-{number}", "", b"x" * 32)
