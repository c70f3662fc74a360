"""What one decision costs: against a bare server on the same wiring, and as the room fills.

Throughput: the policy server and a bare grpc.aio server, each behind an Envoy of its own, take
turns with the same clients, so that a busy machine slows both. A full room: with so many requests
waiting, clients in a closed loop are refused as fast as the gate can (`room_full`). The core: one
answer ends, the first in line is admitted, a new request queues; no network, one thread.

All of it is P0: the overload guard refuses the others for less, and that is not the question.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from policy_server.core.admission import Admission
from policy_server.core.params import LimitParams, PoolParams, RoomParams
from policy_server.core.request import Priority, Request
from policy_server.core.samples import Completion
from tests.bench.client import Crowd, closed_loop, request
from tests.bench.lab import ALL_CLASSES_LONG, LONG_S, Lab, fixed, running_lab, silence
from tests.bench.meter import cpu_s
from tests.bench.result import Cell, Part

HUGE = 100_000
COLUMNS = ("what", "per second", "CPU µs each", "of the other")
CORE_LIMIT = 64


@dataclass(frozen=True, slots=True)
class Decision:
    """`rounds` turns of `seconds` each with `clients` in a closed loop; rooms to compare."""

    rounds: int = 5
    seconds: float = 4.0
    clients: int = 64
    rooms: tuple[int, ...] = (100, 10_000)
    cycles: int = 20_000


@dataclass(frozen=True, slots=True)
class Rate:
    """Decisions per second, and the CPU of the gate's process for each, in microseconds."""

    per_s: float
    cpu_us: float


async def run(plan: Decision, directory: Path, say: Callable[[str], None]) -> Part:
    """All three comparisons."""
    part = Part("decision", "decision: what one costs (medians of turns, one run)", COLUMNS)
    ours, bare = await _against_bare(plan, directory)
    _compare(part, ("bare grpc.aio server", bare), ("policy server", ours))
    say(f"bare {bare}  ours {ours}")
    rooms = [(f"refusal, {n} waiting", await _full_room(plan, n, directory)) for n in plan.rooms]
    _compare(part, *rooms)
    say(f"full rooms {rooms}")
    cores = [(f"core turn, {n} waiting", _core_turns(n, plan.cycles)) for n in plan.rooms]
    _compare(part, *cores)
    named = [("bare", bare), ("ours", ours), *rooms, *cores]
    part.data = {"plan": asdict(plan), **{name: asdict(rate) for name, rate in named}}
    return part


def _compare(part: Part, *named: tuple[str, Rate]) -> None:
    """Rows whose last cell is the share of the first one's throughput."""
    first = named[0][1].per_s
    for name, rate in named:
        row: list[Cell] = [name, rate.per_s, rate.cpu_us, rate.per_s / first]
        part.rows.append(row)


async def _against_bare(plan: Decision, directory: Path) -> tuple[Rate, Rate]:
    folders = {name: directory / name for name in ("ours", "bare")}
    for folder in folders.values():
        folder.mkdir(exist_ok=True)
    async with AsyncExitStack() as both:
        ours = await both.enter_async_context(running_lab(folders["ours"], fixed(HUGE)))
        bare = await both.enter_async_context(running_lab(folders["bare"], fixed(HUGE), bare=True))
        turns: dict[str, list[Rate]] = {"ours": [], "bare": []}
        for _ in range(plan.rounds):
            turns["ours"].append(await _turn(plan, ours, 200))
            turns["bare"].append(await _turn(plan, bare, 200))
    return _median(turns["ours"]), _median(turns["bare"])


async def _full_room(plan: Decision, waiting: int, directory: Path) -> Rate:
    """Every seat and every place is taken by P0 for good; each further P0 is refused."""
    config = fixed(1, classes=ALL_CLASSES_LONG, room={"max_requests": waiting})
    async with running_lab(directory, config, upstream=silence) as lab:
        crowd = Crowd(lab.url)
        await crowd.come(waiting + 1, request("0"))
        await lab.until_waiting(waiting)
        turns = [await _turn(plan, lab, 429) for _ in range(plan.rounds)]
        crowd.leave()
    return _median(turns)


async def _turn(plan: Decision, lab: Lab, status: int) -> Rate:
    before = cpu_s(lab.gate.pid)
    loop = await closed_loop(lab.url, plan.clients, request("0"), plan.seconds)
    used = cpu_s(lab.gate.pid) - before
    statuses = loop.replies.statuses
    assert statuses.total() == statuses[status] > 0, f"expected {status} only: {statuses}"
    return Rate(statuses[status] / plan.seconds, 1e6 * used / statuses[status])


def _median(turns: list[Rate]) -> Rate:
    return Rate(median(t.per_s for t in turns), median(t.cpu_us for t in turns))


def _core_turns(waiting: int, cycles: int) -> Rate:
    """One core turn = one answer ends, one waiter goes, one request comes and waits."""
    core = _full_core(waiting)
    full = core.waiting()
    ended = Completion(200, first_byte_s=0.1, last_byte_s=1.0)
    now, first, last = 1.0, 0, CORE_LIMIT + waiting
    began, cpu = time.monotonic(), time.process_time()
    for _ in range(cycles):
        now += 0.001
        core.submit(_request(last, now), now)
        core.complete(str(first), ended, now)
        core.handle_timer(now)
        first, last = first + 1, last + 1
    elapsed, used = time.monotonic() - began, time.process_time() - cpu
    assert core.waiting() == full, f"{core.waiting()} wait, not {full}"
    return Rate(cycles / elapsed, 1e6 * used / cycles)


def _full_core(waiting: int) -> Admission:
    limit = LimitParams("fixed", initial=CORE_LIMIT)
    room = RoomParams(max_requests=waiting + CORE_LIMIT)
    core = Admission((PoolParams("chat", limit, room=room, early_drop=False),), random.Random(1))
    for index in range(CORE_LIMIT + waiting):
        core.submit(_request(index, 1.0), 1.0)
    return core


def _request(index: int, now: float) -> Request:
    return Request(str(index), "chat", Priority.P1, now, now + LONG_S)
