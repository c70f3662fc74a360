"""What jobs cost: the 202 against one in memory and against a bare fsync, beside requests that are
no jobs, and at the start (`recovery`).

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
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from statistics import median

from policy_server.jobs.vault import KEY_VARIABLE
from policy_server.load.results import Quantiles
from policy_server.processes import tied_to_us
from tests.bench.client import Connection, Reply, closed_loop, connect, request
from tests.bench.lab import NO_RATE_LIMIT, fixed, silence
from tests.bench.meter import cpu_s
from tests.bench.plain_envoy import with_trivial_upstream
from tests.bench.recovery import recover
from tests.bench.result import Bar, Part
from tests.bench.turns import Rate, Round, cost, in_turns, middle, scatter, speed
from tests.support.envoy_process import running_envoy, wait_http_ok
from tests.support.stack import start, stop
from tests.support.wired import bootstrap_for, ports

MIN_SHARE_OF_MEMORY = 0.7
MIN_FAST_PATH = 0.95
FSYNC_TIMES, FSYNC_MORE_S = 2.0, 0.010
COLUMNS = ("what", "disk, jobs", "memory, or no jobs", "ratio", "bare fsync")
JOB = request("0", prefer="respond-async")
PLAIN = request("0")
HUGE = 100_000


@dataclass(frozen=True, slots=True)
class Jobs:
    """`rounds` of four turns of `seconds` each for rates; `rate` a second for the latency, in so
    many parts; what is there at the recovery."""

    seconds: float = 0.8
    rounds: int = 15
    clients: int = 64
    rate: float = 200.0
    latency_s: float = 27.0
    parts: int = 9
    queued: int = 100_000
    held: int = 5_000


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
    via = {"jobs": {"via": f"http://127.0.0.1:{where['jobs']}", "max_jobs": 10**9}} if jobs else {}
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
    command = [sys.executable, "-m", "tests.bench.memory_gate", str(file)]
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
    await recover(plan.queued, plan.held, directory, part)
    part.data["plan"] = asdict(plan)
    return part


async def _turn(bench: Bench, plan: Jobs, what: bytes, status: int) -> Rate:
    before = cpu_s(bench.pid)
    loop = await closed_loop(bench.url, plan.clients, what, plan.seconds)
    used, statuses = cpu_s(bench.pid) - before, loop.replies.statuses
    assert statuses.total() == statuses[status] > 0, f"expected {status} only: {statuses}"
    return Rate(statuses[status] / plan.seconds, 1e6 * used / statuses[status])


async def _accepting(plan: Jobs, directory: Path, part: Part) -> None:
    """202s a second."""
    async with (
        running(directory / "disk", 1) as disk,
        running(directory / "memory", 1, memory=True) as memory,
    ):
        turns = [partial(_turn, bench, plan, JOB, 202) for bench in (disk, memory)]
        rounds = await in_turns(plan.rounds, *turns)
    _rows(part, "202s", rounds)
    part.bars.append(Bar.at_least("202s/s against memory", speed(rounds), MIN_SHARE_OF_MEMORY))


async def _beside(plan: Jobs, directory: Path, part: Part) -> None:
    """Requests that are no jobs, with jobs on and off. What counts is the policy server's CPU time
    for each: it is the bottleneck, and other load moves it least."""
    async with (
        running(directory / "on", HUGE) as on,
        running(directory / "off", HUGE, jobs=False) as off,
    ):
        turns = [partial(_turn, bench, plan, PLAIN, 200) for bench in (on, off)]
        rounds = await in_turns(plan.rounds, *turns)
    _rows(part, "plain requests", rounds)
    name = "plain requests a CPU second, against no jobs"
    part.bars.append(Bar.at_least(name, 1 / cost(rounds), MIN_FAST_PATH))


def _rows(part: Part, what: str, rounds: list[Round]) -> None:
    ours, other = middle([r.ours for r in rounds]), middle([r.other for r in rounds])
    part.rows.append([f"{what} a second", ours.per_s, other.per_s, speed(rounds), None])
    part.rows.append([f"{what}: CPU µs each", ours.cpu_us, other.cpu_us, cost(rounds), None])
    part.notes.append(f"{what}: {scatter(rounds)}")
    part.data[what] = [asdict(one) for one in rounds]


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


@dataclass(frozen=True, slots=True)
class _Quantiles:
    """Seconds, of one part: the 202, a request that is no job, one bare fsync."""

    accepted: float
    plain: float
    fsync: float

    @property
    def of_allowed(self) -> float:
        """The 202 as a share of what it may take."""
        return self.accepted / (FSYNC_TIMES * self.fsync + FSYNC_MORE_S)


async def _latency(plan: Jobs, directory: Path, part: Part) -> None:
    """p99 of the 202 at a steady rate, and of one bare fsync on the same disk, part by part; beside
    it requests that are no jobs, which shows what the machine itself adds."""
    found: dict[str, list[_Quantiles]] = {"p50": [], "p99": []}
    others = 0
    async with (
        running(directory / "plain", HUGE) as usual,
        running(directory / "latency", 1) as bench,
    ):
        for _ in range(plan.parts):
            load, plain = _Open(), _Open(what=PLAIN, wanted=200)
            fsyncs = await asyncio.to_thread(_fsyncs, directory)
            await plain.run(usual.url, plan.rate, plan.latency_s / plan.parts)
            await load.run(bench.url, plan.rate, plan.latency_s / plan.parts)
            others += load.others + plain.others
            three = [Quantiles.of(x) for x in (load.latencies, plain.latencies, fsyncs)]
            for name, parts in found.items():
                parts.append(_Quantiles(*(getattr(one, name) or 0.0 for one in three)))
    for name, parts in found.items():
        ours, known, bare = (
            1000 * median(getattr(one, field.name) for one in parts) for field in fields(_Quantiles)
        )
        what = f"202 {name} ms at {plan.rate:g}/s, and of a plain request"
        part.rows.append([what, ours, known, ours / known, bare])
        part.data[f"latency {name}"] = [asdict(one) for one in parts]
    late = median(one.of_allowed for one in found["p99"])
    part.bars.append(Bar.at_most("202 p99 against 2 fsyncs + 10 ms, median of parts", late, 1.0))
    part.bars.append(Bar.equal("answers other than 202 and 200", others, 0))


def _fsyncs(directory: Path, count: int = 200) -> list[float]:
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
