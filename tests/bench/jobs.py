"""What jobs cost: the 202 against one in memory and against a bare fsync, beside requests that are
no jobs, and at the start with a hundred thousand of them in line.

Every job waits: the one seat is taken by an answer that never comes. The figures of two things that
are compared are taken in turns, so that a slow minute of the machine hits both.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import aiohttp

from policy_server.core.request import Priority
from policy_server.jobs.vault import KEY_VARIABLE
from policy_server.journal.jobs import Job, JobRequest, NewJob
from policy_server.journal.sqlite.jobs import _accept
from policy_server.journal.sqlite.store import Store, StoreOptions
from policy_server.load.results import Quantiles
from policy_server.processes import tied_to_us
from tests.bench.client import Connection, Reply, closed_loop, connect, request
from tests.bench.lab import NO_RATE_LIMIT, fixed, silence
from tests.bench.meter import cpu_s, rss_bytes
from tests.bench.plain_envoy import with_trivial_upstream
from tests.bench.result import Bar, Cell, Part
from tests.support.envoy_process import running_envoy, wait_http_ok
from tests.support.stack import start, stop
from tests.support.wired import bootstrap_for, ports

MIN_SHARE_OF_MEMORY = 0.7
MIN_FAST_PATH = 0.95
FSYNC_TIMES, FSYNC_MORE_S = 2.0, 0.010
MAX_RECOVERY_S = 5.0
MAX_BYTES_PER_JOB = 1024
COLUMNS = ("what", "disk, jobs", "memory, or no jobs", "ratio", "bare fsync")
JOB = request("0", prefer="respond-async")
PLAIN = request("0")
HUGE = 100_000


@dataclass(frozen=True, slots=True)
class Jobs:
    """`rounds` of `seconds` each for rates; `rate` a second for the latency."""

    seconds: float = 5.0
    rounds: int = 3
    clients: int = 64
    rate: float = 200.0
    latency_s: float = 15.0
    queued: int = 100_000


@dataclass(frozen=True, slots=True)
class Bench:
    """One running server with its Envoy."""

    url: str
    pid: int


@contextlib.asynccontextmanager
async def running(
    directory: Path, limit: int, *, memory: bool = False, jobs: bool = True
) -> AsyncIterator[Bench]:
    """On free ports. With `limit` 1 nobody ever answers, so that jobs stay in line."""
    _make(directory)
    where = ports()
    server = {"grpc": f"127.0.0.1:{where['grpc']}", "http": f"127.0.0.1:{where['http']}"}
    via = {"jobs": {"via": f"http://127.0.0.1:{where['jobs']}"}} if jobs else {}
    file = directory / "config.yaml"
    file.write_text(json.dumps({"server": server, **fixed(limit), **via}))
    bootstrap = bootstrap_for(where, file, gate_rate_per_s=NO_RATE_LIMIT)
    async with contextlib.AsyncExitStack() as cleanup:
        if limit == 1:
            await cleanup.enter_async_context(silence(where["upstream"]))
        else:
            with_trivial_upstream(bootstrap, where["upstream"])
        process = await (_in_memory(file) if memory else _on_disk(file, directory))
        cleanup.push_async_callback(stop, process)
        await wait_http_ok(f"http://127.0.0.1:{where['http']}/readyz", process)
        await cleanup.enter_async_context(running_envoy(bootstrap, directory))
        yield Bench(f"http://127.0.0.1:{where['gateway']}", process.pid)


def _make(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)


async def _on_disk(file: Path, directory: Path) -> asyncio.subprocess.Process:
    command = ("serve", "--config", str(file), "--data-dir", str(directory / "data"))
    return await start(*command, log=directory / "policy.log")


async def _in_memory(file: Path) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "tests.bench.memory_server", str(file)]
    key = {KEY_VARIABLE: base64.b64encode(bytes(32)).decode()}
    with (file.parent / "memory.log").open("ab") as sink:
        return await asyncio.create_subprocess_exec(
            *tied_to_us(command), stdout=sink, stderr=sink, env={**os.environ, **key}
        )


async def run(plan: Jobs, directory: Path, say: Callable[[str], None]) -> Part:
    """All four."""
    part = Part(
        "jobs", f"jobs: {plan.clients} clients, {plan.rounds} x {plan.seconds:g} s", COLUMNS
    )
    await _accepting(plan, directory, part)
    say(str(part.rows[-1]))
    await _beside(plan, directory, part)
    say(str(part.rows[-1]))
    await _latency(plan, directory, part)
    say(str(part.rows[-1]))
    await _recovery(plan, directory, part)
    part.data["plan"] = asdict(plan)
    return part


async def _rate(bench: Bench, plan: Jobs, what: bytes, status: int) -> float:
    loop = await closed_loop(bench.url, plan.clients, what, plan.seconds)
    return loop.replies.statuses[status] / plan.seconds


async def _accepting(plan: Jobs, directory: Path, part: Part) -> None:
    """202s a second."""
    rates: dict[str, list[float]] = {"disk": [], "memory": []}
    async with (
        running(directory / "disk", 1) as disk,
        running(directory / "memory", 1, memory=True) as memory,
    ):
        for _ in range(plan.rounds):
            rates["disk"].append(await _rate(disk, plan, JOB, 202))
            rates["memory"].append(await _rate(memory, plan, JOB, 202))
    ratio = median(rates["disk"]) / median(rates["memory"])
    part.rows.append(["202s/s", median(rates["disk"]), median(rates["memory"]), ratio, None])
    part.bars.append(Bar.at_least("202s/s against memory", ratio, MIN_SHARE_OF_MEMORY))
    part.data["accepting"] = rates


async def _beside(plan: Jobs, directory: Path, part: Part) -> None:
    """Requests that are no jobs, with jobs on and off. What counts is the policy server's CPU time
    for each: it is the bottleneck, and other load moves it least."""
    rates: dict[str, list[float]] = {"on": [], "off": []}
    costs: dict[str, list[float]] = {"on": [], "off": []}
    async with (
        running(directory / "on", HUGE) as on,
        running(directory / "off", HUGE, jobs=False) as off,
    ):
        for turn in range(2 * plan.rounds):
            order = (("on", on), ("off", off)) if turn % 2 else (("off", off), ("on", on))
            for name, bench in order:
                before = cpu_s(bench.pid)
                rates[name].append(await _rate(bench, plan, PLAIN, 200))
                used = cpu_s(bench.pid) - before
                costs[name].append(1e6 * used / max(1.0, rates[name][-1] * plan.seconds))
    part.rows.append(["plain requests/s", *_both(rates), _ratio(rates), None])
    cheap = median(costs["off"]) / median(costs["on"])
    part.rows.append(["CPU µs of a plain request", *_both(costs), cheap, None])
    part.bars.append(
        Bar.at_least("plain requests a CPU second, against no jobs", cheap, MIN_FAST_PATH)
    )
    part.data["beside"] = {"rates": rates, "costs": costs}


def _both(figures: dict[str, list[float]]) -> list[float]:
    return [median(found) for found in figures.values()]


def _ratio(figures: dict[str, list[float]]) -> float:
    disk, memory = _both(figures)
    return disk / memory


@dataclass(slots=True)
class _Open:
    """An open loop of jobs; latencies count from the scheduled send."""

    latencies: list[float] = field(default_factory=list)
    others: int = 0
    what: bytes = JOB
    wanted: int = 202

    def on_reply(self, connection: Connection, reply: Reply) -> None:
        if reply.status == self.wanted:
            self.latencies.append(time.monotonic() - connection.sent_at)
        else:
            self.others += 1
        self.idle.append(connection)

    idle: list[Connection] = field(default_factory=list)

    async def run(self, url: str, rate: float, seconds: float) -> None:
        rng = random.Random("jobs")
        self.idle = await connect(url, 400, self.on_reply)
        everyone = list(self.idle)
        began = due = time.monotonic()
        while due < began + seconds:
            due += rng.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            connection = self.idle.pop()
            connection.sent_at = due
            connection.send(self.what)
        await asyncio.sleep(1.0)
        for connection in everyone:
            connection.close()


async def _latency(plan: Jobs, directory: Path, part: Part) -> None:
    """p99 of the 202 at a steady rate, and of one bare fsync on the same disk; for comparison, of
    requests that are no jobs, which shows what the machine itself adds."""
    load, plain = _Open(), _Open(what=PLAIN, wanted=200)
    async with running(directory / "plain", HUGE) as bench:
        await plain.run(bench.url, plan.rate, plan.latency_s)
    fsyncs = _fsyncs(directory)
    async with running(directory / "latency", 1) as bench:
        await load.run(bench.url, plan.rate, plan.latency_s)
    fsyncs += _fsyncs(directory)
    p99, fsync = Quantiles.of(load.latencies).p99, Quantiles.of(fsyncs).p99
    p50 = Quantiles.of(load.latencies).p50
    usual = Quantiles.of(plain.latencies)
    part.rows.append([f"plain p50 ms at {plan.rate:g}/s", _ms(usual.p50), None, None, None])
    part.rows.append([f"plain p99 ms at {plan.rate:g}/s", _ms(usual.p99), None, None, None])
    part.rows.append([f"202 p50 ms at {plan.rate:g}/s", _ms(p50), None, None, None])
    part.rows.append([f"202 p99 ms at {plan.rate:g}/s", _ms(p99), None, None, _ms(fsync)])
    wanted = None if fsync is None else FSYNC_TIMES * fsync + FSYNC_MORE_S
    late = None if p99 is None or wanted is None else p99 / wanted
    part.bars.append(Bar.at_most("202 p99 against 2 fsyncs + 10 ms", late, 1.0))
    part.bars.append(Bar.equal("answers other than 202", load.others, 0))


def _fsyncs(directory: Path, count: int = 300) -> list[float]:
    """Seconds that one small write and its fsync take."""
    found = []
    with (directory / "fsync").open("ab", buffering=0) as file:
        for _ in range(count):
            began = time.monotonic()
            file.write(bytes(4096))
            os.fsync(file.fileno())
            found.append(time.monotonic() - began)
            time.sleep(0.002)
    return found


async def _recovery(plan: Jobs, directory: Path, part: Part) -> None:
    """From the start of the process until it serves, with so many jobs in line and with none."""
    figures = {}
    for name, count in (("empty", 0), ("full", plan.queued)):
        folder = directory / name
        folder.mkdir()
        await _fill(folder / "data" / "journal.db", count)
        where = ports()
        server = {"grpc": f"127.0.0.1:{where['grpc']}", "http": f"127.0.0.1:{where['http']}"}
        file = folder / "config.yaml"
        via = {"via": "http://127.0.0.1:9"}
        file.write_text(json.dumps({"server": server, **fixed(1), "jobs": via}))
        began = time.monotonic()
        process = await _on_disk(file, folder)
        await wait_http_ok(f"http://127.0.0.1:{where['http']}/readyz", process)
        seconds = time.monotonic() - began
        queued = await _queued(where["http"])
        figures[name] = (seconds, rss_bytes(process.pid), queued)
        await stop(process)
    (empty_s, empty, _), (full_s, full, queued) = figures["empty"], figures["full"]
    each = (full - empty) / plan.queued
    part.rows.append([f"start → ready s, {plan.queued} queued", full_s, None, None, None])
    part.rows.append(["start → ready s, none", empty_s, None, None, None])
    part.rows.append(["bytes of memory per queued job", each, None, None, None])
    part.bars += [
        Bar.at_most("start with all of them queued in s", full_s, MAX_RECOVERY_S),
        Bar.at_most("bytes per queued job", each, MAX_BYTES_PER_JOB),
        Bar.at_least("queued after the start", queued, plan.queued - 1),
    ]


async def _queued(port: int) -> float:
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://127.0.0.1:{port}/metrics") as answer,
    ):
        lines = (await answer.text()).split("\n")
    states = ('policy_jobs{state="queued"}', 'policy_jobs{state="dispatched"}')
    return sum(float(line.split()[-1]) for line in lines if line.startswith(states))


async def _fill(path: Path, count: int) -> None:
    """A journal with so many jobs that wait, each with a body of a kilobyte."""
    store = Store(StoreOptions(path))
    store.open()
    now = time.time()

    def jobs(begin: int, end: int) -> list[NewJob]:
        made = []
        for number in range(begin, end):
            job = Job(
                f"{number:032x}", f"tenant-{number % 20}", "default", Priority(number % 3),
                "POST", "/v1/chat/completions", now - 100 + number / count, now + 86_400,
                model="emulated-7b", body_bytes=1_000,
            )  # fmt: skip
            content = JobRequest("host", (("content-type", "json"),), b"", bytes(1_000))
            made.append(NewJob(job, content, f"uid-{number}", "", b"x" * 32))
        return made

    for begin in range(0, count, 5_000):
        batch = jobs(begin, min(count, begin + 5_000))
        await store.write_durably(lambda db, batch=batch: [_accept(db, new) for new in batch])
    await store.close()


def _ms(value: float | None) -> Cell:
    return None if value is None else 1000 * value
