"""A pulse that only more replicas can serve, live: the gateway, emulators that start and stop, and
an autoscaler that asks the policy server over gRPC as KEDA does.

The simulator's scenario `pulse` at a small scale: one of REPLICAS emulators runs at .4 of what it
carries, then twenty times as much comes for a minute; a new replica takes 28 s to start (the
process is there and answers 503, as a model server that loads). Clients retry as the SDKs do.

    waiting   scaled on the scaler's answers
    load      scaled on the replicas' own load, as a CPU autoscaler would
    no-room   scaled on the scaler's answers, but nobody may wait
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import aiohttp
import grpc

from policy_server.load.params import LoadParams
from policy_server.load.results import LoadReport
from policy_server.load.runner import run_load
from policy_server.simulate.autoscaler import (
    CPU_TARGET,
    SYNC_S,
    Autoscaler,
    Behaviour,
    by_ratio,
    per_replica,
)
from tests.bench.result import Bar, Part
from tests.support.envoy_process import free_ports
from tests.support.gateway_command import running_gateway
from tests.support.keda_client import KedaClient
from tests.support.stack import Process, start, stop
from tests.support.wired import ports

KINDS = ("waiting", "load", "no-room")
COLUMNS = ("scaled on", "P0 served", "all served", "last refusal s", "paid / needed", "5xx")
SLOTS = 4
STEP_S = 0.0107 + 0.0002 * SLOTS  # the emulator's step with a full batch
TOKENS = 60
MIX = {"0": 0.2, "1": 0.5, "2": 0.3}
BASE, TIMES = 0.4, 20.0
_RUNNING = re.compile(r"^vllm:num_requests_running\S* (\S+)", re.M)


@dataclass(frozen=True, slots=True)
class Pulse:
    """Seconds. `before` is for the limit to learn what a replica can do."""

    kinds: tuple[str, ...] = KINDS
    replicas: int = 8
    before_s: float = 20.0
    seconds: float = 60.0
    after_s: float = 20.0
    cold_start_s: float = 28.0
    seed: int = 1

    @property
    def carried_rps(self) -> float:
        """Requests per second of one replica that is always full."""
        return SLOTS / (TOKENS * STEP_S)


@dataclass(slots=True)
class Fleet:
    """The replicas. `asked`: how many there should be, by the second."""

    plan: Pulse
    directory: Path
    ports: list[int]
    http: aiohttp.ClientSession
    replicas: dict[int, tuple[Process, float]] = field(default_factory=dict)
    asked: list[tuple[float, int]] = field(default_factory=list)

    async def follow(self, count: int, cold_start_s: float | None = None) -> None:
        """Start what is missing, stop what is too much."""
        cold_s = self.plan.cold_start_s if cold_start_s is None else cold_start_s
        for port in self.ports:
            if len(self.replicas) >= count:
                break
            if port not in self.replicas:
                flags = ("--port", str(port), "--max-num-seqs", str(SLOTS))
                log = self.directory / f"replica-{port}.log"
                process = await start("backend", *flags, "--cold-start", f"{cold_s:g}", log=log)
                self.replicas[port] = (process, time.monotonic() + cold_s)
        while len(self.replicas) > count:
            await stop(self.replicas.popitem()[1][0])
        self.asked.append((time.monotonic(), count))

    @property
    def ready(self) -> list[int]:
        """Ports of those whose cold start is over."""
        now = time.monotonic()
        return [port for port, (_, at) in self.replicas.items() if at <= now]

    async def load(self) -> float:
        """Running requests per slot, over those that are ready."""
        running = 0.0
        for port in self.ready:
            with contextlib.suppress(aiohttp.ClientError):
                async with self.http.get(f"http://127.0.0.1:{port}/metrics") as answer:
                    found = _RUNNING.search(await answer.text())
                running += float(found[1]) if found else 0.0
        return running / (SLOTS * max(1, len(self.ready)))

    def paid_s(self, since: float) -> float:
        """Replica-seconds from then on."""
        looks = [(max(at, since), count) for at, count in self.asked]
        ends = [at for at, _ in looks[1:]] + [time.monotonic()]
        return sum(count * max(0.0, end - at) for (at, count), end in zip(looks, ends, strict=True))


async def run(plan: Pulse, directory: Path, say: Callable[[str], None]) -> Part:
    """One episode of each kind."""
    title = f"pulse: {plan.replicas} replicas, 20x for {plan.seconds:g} s"
    part = Part("pulse", title, COLUMNS)
    found: dict[str, Mapping[str, float]] = {}
    for kind in plan.kinds:
        folder = directory / kind
        folder.mkdir(parents=True, exist_ok=True)
        found[kind] = await _episode(plan, kind, folder)
        part.rows.append((kind, *found[kind].values()))
        say(f"{kind}: {found[kind]}")
    if "waiting" in found:
        ours = found["waiting"]
        part.bars.append(Bar.equal("5xx of the pulse, scaled on what waits", ours["5xx"], 0.0))
        for other in plan.kinds:
            if other != "waiting":
                name = f"all served, beside {other}"
                part.bars.append(Bar.at_least(name, ours["all"], found[other]["all"]))
    part.data = {"plan": asdict(plan), "found": found}
    return part


async def _episode(plan: Pulse, kind: str, directory: Path) -> Mapping[str, float]:
    where = ports()
    replicas = [where["upstream"], *free_ports(plan.replicas - 1)]
    config = directory / "policy.yaml"
    config.write_text(json.dumps(_config(kind, replicas)))
    more = [w for port in replicas[1:] for w in ("--upstream", f"http://127.0.0.1:{port}")]
    async with (
        aiohttp.ClientSession() as http,
        _fleet(plan, directory, replicas, http) as fleet,
        running_gateway(directory, where, *more, "--config", str(config)) as gateway,
        grpc.aio.insecure_channel(f"127.0.0.1:{where['grpc']}") as channel,
    ):
        scaling = asyncio.create_task(_scale(kind, fleet, channel))
        try:
            base, pulse, began = await _traffic(plan, gateway.url)
        finally:
            scaling.cancel()
            await asyncio.gather(scaling, return_exceptions=True)
        return _figures(plan, base, pulse, fleet.paid_s(began))


def _config(kind: str, replicas: list[int]) -> dict[str, object]:
    probes = [f"http://127.0.0.1:{port}/health" for port in replicas]
    config: dict[str, object] = {"pools": [{"backends": {"probe": probes}}]}
    if kind == "no-room":
        config["classes"] = {name: {"max_wait_s": 0.001} for name in ("P0", "P1", "P2")}
    return config


@contextlib.asynccontextmanager
async def _fleet(
    plan: Pulse, directory: Path, replicas: list[int], http: aiohttp.ClientSession
) -> AsyncIterator[Fleet]:
    fleet = Fleet(plan, directory, replicas, http)
    await fleet.follow(1, cold_start_s=0.0)
    try:
        yield fleet
    finally:
        await fleet.follow(0)


async def _scale(kind: str, fleet: Fleet, channel: grpc.aio.Channel) -> None:
    """The autoscaler: KEDA's look once a second, the HPA's every SYNC_S."""
    waiting = KedaClient(channel, {"waitingPerReplica": "2"})
    busy = KedaClient(channel, {"utilization": "0.8"})
    targets = {client: await client.metric_spec() for client in (waiting, busy)}
    auto = Autoscaler(Behaviour(max_replicas=fleet.plan.replicas), 1, time.monotonic())
    loads: list[float] = []
    synced = time.monotonic()
    while True:
        loads = [*loads[-29:], await fleet.load()]
        if kind != "load":
            auto.wake(await waiting.is_active(), time.monotonic())
        if time.monotonic() - synced >= SYNC_S:
            synced = time.monotonic()
            current, ready = auto.replicas, max(1, len(fleet.ready))
            if kind == "load":
                wanted = [by_ratio(sum(loads) / len(loads), CPU_TARGET, current, ready)]
            else:
                values = {c: (await c.metric(spec.name)).value for c, spec in targets.items()}
                wanted = [
                    per_replica(values[waiting], targets[waiting].value, current),
                    by_ratio(values[busy], targets[busy].value, current, ready),
                ]
            auto.sync([*wanted, 0], synced)
        await fleet.follow(auto.replicas)
        await asyncio.sleep(1.0)


async def _traffic(plan: Pulse, url: str) -> tuple[LoadReport, LoadReport, float]:
    """The base all the time, the pulse on top of it; when the pulse began."""
    whole_s = plan.before_s + plan.seconds + plan.after_s
    base = LoadParams(
        url=url,
        rate=BASE * plan.carried_rps,
        seconds=whole_s,
        mix=MIX,
        tokens=TOKENS,
        retry=True,
        seed=plan.seed,
    )
    under = asyncio.create_task(run_load(base))
    await asyncio.sleep(plan.before_s)
    began = time.monotonic()
    more = replace(base, rate=(TIMES - 1) * base.rate, seconds=plan.seconds, seed=plan.seed + 1)
    pulse = await run_load(replace(more, drain_s=120.0))
    return await under, pulse, began


def _figures(
    plan: Pulse, base: LoadReport, pulse: LoadReport, paid_s: float
) -> Mapping[str, float]:
    total = pulse.overall.total
    refused = [second.second for second in pulse.timeline if second.shed]
    answered_s = (pulse.overall.total.sent + base.overall.total.sent) / plan.carried_rps
    return {
        "P0": pulse.overall.classes["P0"].served_share,
        "all": total.served_share,
        "last refusal": float(max(refused, default=0)),
        "paid / needed": paid_s / answered_s,
        "5xx": float(total.ends["http_5xx"]),
    }
