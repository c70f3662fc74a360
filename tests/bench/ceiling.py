"""Three times what the policy server itself can decide: it must neither hang nor swell.

First the ceiling: clients in a closed loop against a gate without its rate limit, in front of an
upstream that costs nothing, with a limit that never binds. Then three times that for a while
against the gateway as it is shipped, and once more without Envoy's rate limit in front, where only
the loop-lag guard is left (for information: that is no configuration we ship).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from policy_server.envoy_config.options import DEFAULT_GATE_RATE_PER_S
from policy_server.load.results import Quantiles
from tests.bench.client import BROKEN, Connection, Replies, Reply, closed_loop, connect, request
from tests.bench.lab import NO_RATE_LIMIT, Lab, fixed, running_lab
from tests.bench.meter import CpuMeter, rss_bytes, sampling
from tests.bench.result import Bar, Cell, Part
from tests.support.real_model import MIX

P0_SERVED = 0.99
MAX_GROWTH = 0.05
"""Of the resident memory, from the second third of the load to the last."""

MAX_PROBE_S = 2.0
"""A request after the storm is answered within this, or the server hangs."""

HUGE = 100_000
TICK_S = 0.002
CONNECTIONS = 5000
"""When all of them wait for an answer, what is due is not sent: clients are many, not endless.

Three sockets of Envoy's for each, the trivial upstream's included: below 20,000 open files.
"""

PATIENCE_S = 10.0
COLUMNS = (
    "gate", "offered/s", "x ceiling", "answered/s", "P0 served %", "P0 p50 ms", "p99 ms",
    "answers", "5xx", "broken", "unanswered", "RSS MiB 2nd third", "last third",
    "probe after ms", "policy CPU",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ceiling:
    """`ramp`: clients in the closed loop, one step each; `step_s` seconds for each."""

    seconds: float = 30.0
    times: float = 3.0
    ramp: tuple[int, ...] = (16, 64, 256)
    step_s: float = 4.0


@dataclass(slots=True)
class Flood:
    """An open loop: so many requests a second over many connections."""

    url: str
    rate: float
    replies: dict[str, Replies] = field(default_factory=lambda: {p: Replies() for p in MIX})
    sent: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    unsent: int = 0
    _idle: deque[Connection] = field(default_factory=deque)
    _all: list[Connection] = field(default_factory=list)

    async def run(self, seconds: float) -> float:
        """Send for `seconds`, wait for the answers; the requests per second really sent."""
        rng = random.Random("flood")
        names, weights = list(MIX), list(MIX.values())
        # No body: Envoy closes the connection of a request that it refuses in mid-body, and
        # connecting again would make the clients the bottleneck of this machine.
        wanted = {name: request(name, tokens=0) for name in names}
        self._all = await connect(self.url, CONNECTIONS, self._on_reply)
        self._idle.extend(self._all)
        began, due = time.monotonic(), 0
        while (elapsed := time.monotonic() - began) < seconds:
            while due < elapsed * self.rate:
                due += 1
                priority = rng.choices(names, weights)[0]
                self._send(priority, wanted[priority])
            await asyncio.sleep(TICK_S)
        elapsed = time.monotonic() - began
        await self._settle()
        return self.sent.total() / elapsed

    def served(self, priority: str) -> float:
        """Share of the class that got a 200, of all that were due."""
        sent = self.sent[priority]
        return self.replies[priority].statuses[200] / sent if sent else 0.0

    def statuses(self) -> Counter[int]:
        """All answers by status; 0 = the connection broke."""
        found: Counter[int] = Counter()
        for replies in self.replies.values():
            found += replies.statuses
        return found

    def unanswered(self) -> int:
        """Requests that were still under way when patience ended."""
        return self.sent.total() - self.statuses().total()

    def _send(self, priority: str, what: bytes) -> None:
        while self._idle:
            connection = self._idle.popleft()
            if connection.open:
                self.sent[priority] += 1
                connection.tag, connection.sent_at = priority, time.monotonic()
                connection.send(what)
                return
        self.unsent += 1

    def _on_reply(self, connection: Connection, reply: Reply) -> None:
        self.replies[connection.tag].add(reply)
        if connection.tag == "0" and reply.status == 200:
            self.latencies.append(time.monotonic() - connection.sent_at)
        if reply is not BROKEN:
            self._idle.append(connection)

    async def _settle(self) -> None:
        give_up = time.monotonic() + PATIENCE_S
        while sum(r.total for r in self.replies.values()) < self.sent.total():
            if time.monotonic() > give_up:
                break
            await asyncio.sleep(0.05)
        for connection in self._all:
            connection.close()


@dataclass(frozen=True, slots=True)
class Storm:
    """What one flood did."""

    gate: str
    ceiling: float
    offered: float
    seconds: float
    p0_served: float
    p0_latency: Quantiles
    statuses: dict[int, int]
    reasons: dict[str, int]
    malformed: int
    unanswered: int
    unsent: int
    rss_mib: list[float | None]
    probe_s: float | None
    cores: dict[str, float]

    def thirds(self) -> tuple[float, float]:
        """Mean memory in the second and the last third, MiB."""
        found = [value for value in self.rss_mib if value is not None]
        third = max(1, len(found) // 3)
        middle, last = found[third : 2 * third] or found, found[-third:]
        return sum(middle) / len(middle), sum(last) / len(last)

    def bars(self) -> list[Bar]:
        """It neither hangs nor swells nor forgets who is important."""
        middle, last = self.thirds()
        server_errors = sum(n for status, n in self.statuses.items() if status >= 500)
        return [
            Bar.at_least(f"{self.gate}: P0 served", self.p0_served, P0_SERVED),
            Bar.at_most(f"{self.gate}: memory growth", last / middle - 1, MAX_GROWTH),
            Bar.at_most(f"{self.gate}: probe after the storm in s", self.probe_s, MAX_PROBE_S),
            Bar.equal(f"{self.gate}: 5xx", server_errors, 0),
            Bar.equal(f"{self.gate}: broken connections", self.statuses.get(0, 0), 0),
            Bar.equal(f"{self.gate}: unanswered", self.unanswered, 0),
            Bar.equal(f"{self.gate}: malformed refusals", self.malformed, 0),
        ]

    def row(self) -> list[Cell]:
        """One line of the table."""
        middle, last = self.thirds()
        answered = sum(n for status, n in self.statuses.items() if status)
        told = {str(k): v for k, v in self.statuses.items() if k not in (0, 429, 503)}
        return [
            self.gate, self.offered, self.offered / self.ceiling, answered / self.seconds,
            100 * self.p0_served, _ms(self.p0_latency.p50), _ms(self.p0_latency.p99),
            " ".join(f"{k}:{v}" for k, v in {**told, **self.reasons}.items()),
            sum(n for status, n in self.statuses.items() if status >= 500),
            self.statuses.get(0, 0), self.unanswered, middle, last, _ms(self.probe_s),
            self.cores["policy"],
        ]  # fmt: skip


async def run(plan: Ceiling, directory: Path, say: Callable[[str], None]) -> Part:
    """Find the ceiling, then go three times above it."""
    ceiling, ramp = await find_ceiling(plan, directory, say)
    title = f"ceiling: {plan.times:g}x the policy server's own {ceiling:.0f}/s, {plan.seconds:g} s"
    part = Part("ceiling", title, COLUMNS)
    shipped = await _storm("as shipped", plan, ceiling, DEFAULT_GATE_RATE_PER_S, directory)
    say(f"as shipped: {shipped.row()}")
    naked = await _storm("no rate limit", plan, ceiling, NO_RATE_LIMIT, directory)
    say(f"no rate limit: {naked.row()}")
    part.rows = [shipped.row(), naked.row()]
    part.bars = shipped.bars()
    part.notes = [step["said"] for step in ramp]
    for storm in (shipped, naked):
        if storm.offered < 0.9 * plan.times * ceiling:
            part.notes.append(
                f"{storm.gate}: {storm.offered / ceiling:.1f}x was all that could be sent; "
                f"{storm.unsent} more were due while all {CONNECTIONS} connections waited"
            )
    missed = [f"{b.name} {b.found} ({b.wanted})" for b in naked.bars() if not b.holds]
    part.notes.append("without the rate limit it would miss: " + ("; ".join(missed) or "nothing"))
    storms = [asdict(shipped), asdict(naked)]
    part.data = {"plan": asdict(plan), "ceiling": ceiling, "ramp": ramp, "storms": storms}
    return part


async def find_ceiling(
    plan: Ceiling, directory: Path, say: Callable[[str], None]
) -> tuple[float, list[dict[str, str]]]:
    """The best rate of the ramp, and what each step said."""
    best, steps = 0.0, []
    async with running_lab(directory, fixed(HUGE)) as lab:
        for clients in plan.ramp:
            meter = CpuMeter({"policy": lab.gate.pid, "envoy": lab.envoy.pid})
            meter.start()
            loop = await closed_loop(lab.url, clients, request("0"), plan.step_s)
            rate = loop.replies.statuses[200] / plan.step_s
            cores = meter.shares()
            said = (
                f"{clients} clients in a closed loop: {rate:.0f}/s admitted, policy server "
                f"{cores['policy']:.2f} and Envoy {cores['envoy']:.2f} of a core"
            )
            say(said)
            steps.append({"said": said})
            best = max(best, rate)
    return best, steps


async def _storm(
    gate: str, plan: Ceiling, ceiling: float, gate_rate_per_s: int, directory: Path
) -> Storm:
    async with running_lab(directory, fixed(HUGE), gate_rate_per_s=gate_rate_per_s) as lab:

        async def rss() -> float:
            return rss_bytes(lab.gate.pid) / 2**20

        flood = Flood(lab.url, plan.times * ceiling)
        meter = CpuMeter({"policy": lab.gate.pid, "envoy": lab.envoy.pid})
        async with sampling(rss, plan.seconds / 30) as memory:
            meter.start()
            offered = await flood.run(plan.seconds)
            cores = meter.shares()
        probe_s = await _probe(lab)
    reasons: Counter[str] = Counter()
    for replies in flood.replies.values():
        reasons += replies.reasons
    return Storm(
        gate, ceiling, offered, plan.seconds, flood.served("0"), Quantiles.of(flood.latencies),
        dict(flood.statuses()), dict(reasons), sum(r.malformed for r in flood.replies.values()),
        flood.unanswered(), flood.unsent, memory, probe_s, cores,
    )  # fmt: skip


async def _probe(lab: Lab) -> float | None:
    """Seconds until one more request is answered; None = it hangs."""
    began = time.monotonic()
    answered = asyncio.Event()
    (connection,) = await connect(lab.url, 1, lambda _connection, _reply: answered.set())
    connection.send(request("0"))
    try:
        await asyncio.wait_for(answered.wait(), PATIENCE_S)
    except TimeoutError:
        return None
    finally:
        connection.close()
    return time.monotonic() - began


def _ms(value: float | None) -> float | None:
    return None if value is None else 1000 * value
