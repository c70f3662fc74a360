"""What waiting costs in the core, with few and with very many in the room.

    enter    a newcomer is weighed, forecast and gets its place
    turn     an answer ends and the next in line goes
    leave    a client hangs up
    expire   a deadline passes
    memory   of one who waits, all of the core's books included

No network, one thread. The times of one size are medians of short turns that alternate with those
of the other sizes, so a busy machine slows all alike. Bars: flat or logarithmic in the number of
those who wait, and at most 1 KiB each.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from policy_server.core.admission import Admission
from policy_server.core.params import LimitParams, PoolParams, RoomParams
from policy_server.core.request import Priority, Request
from tests.bench.result import Bar, Part
from tests.support.core_builders import OK

LIMIT = 64
TENANTS = 50
LONG_S = 1e6
BATCH = 200
MAX_GROWTH = 3.0  # from the smallest room to the largest: log2 grows 2.5x, caches miss more
MAX_BYTES = 1024.0
ACTIONS = ("enter", "turn", "leave", "expire")
COLUMNS = ("waiting", *(f"{action}, µs" for action in ACTIONS), "bytes each")


@dataclass(frozen=True, slots=True)
class Waiting:
    """Rooms to compare, smallest first; `rounds` turns of `BATCH` of each action."""

    rooms: tuple[int, ...] = (100, 10_000, 100_000)
    rounds: int = 9


class Core:
    """An admission whose room is full of people."""

    def __init__(self, waiting: int) -> None:
        room = RoomParams(max_requests=2 * waiting + LIMIT, tenant_max_requests=2 * waiting + LIMIT)
        limit = LimitParams("fixed", initial=LIMIT)
        params = PoolParams("chat", limit, room=room, early_drop=False)
        self.gate = Admission((params,), random.Random(1))
        self.now, self.number, self.running = 1.0, 0, 0
        self.enter(LIMIT + waiting)

    def enter(self, count: int, budget_s: float = LONG_S) -> list[str]:
        """So many come, over all classes and tenants."""
        uids = []
        for _ in range(count):
            self.now += 1e-5
            self.number += 1
            uids.append(str(self.number))
            priority, tenant = Priority(self.number % 3), f"t{self.number % TENANTS}"
            deadline = self.now + budget_s
            self.gate.submit(
                Request(uids[-1], "chat", priority, self.now, deadline, tenant, prompt_tokens=400),
                self.now,
            )
        return uids

    def turn(self, running: Sequence[str]) -> None:
        """These answers end; the next go."""
        for uid in running:
            self.now += 1e-5
            self.gate.complete(uid, OK, self.now)

    def leave(self, uids: Sequence[str]) -> None:
        """These hang up."""
        for uid in uids:
            self.gate.cancel(uid, self.now)

    def expire(self) -> None:
        """Everything that is due."""
        self.now += 60.0
        while (due := self.gate.next_timer()) is not None and due <= self.now:
            self.gate.handle_timer(self.now)
            self.now += 0.005

    def leased(self) -> list[str]:
        """Who holds a slot."""
        return [lease.request.uid for lease in self.gate.pool("chat").leases]


async def run(plan: Waiting, _directory: Path, say: Callable[[str], None]) -> Part:
    """All rooms, in turns."""
    cores, sizes = {}, {}
    for waiting in plan.rooms:
        cores[waiting], sizes[waiting] = _built(waiting)
        say(f"{waiting} wait, {sizes[waiting]:.0f} bytes each")
    took: dict[int, list[dict[str, float]]] = {waiting: [] for waiting in plan.rooms}
    for _ in range(plan.rounds):
        for waiting, core in cores.items():
            took[waiting].append(_round(core))
    costs = {n: {a: median(r[a] for r in rounds) for a in ACTIONS} for n, rounds in took.items()}
    part = Part("room", "room: what waiting costs in the core", COLUMNS)
    part.rows = [[n, *(costs[n][a] for a in ACTIONS), sizes[n]] for n in plan.rooms]
    few, many = plan.rooms[0], plan.rooms[-1]
    growth = {action: costs[many][action] / costs[few][action] for action in ACTIONS}
    part.bars = [
        Bar.at_most(f"{action}: {many} waiting / {few} waiting", growth[action], MAX_GROWTH)
        for action in ACTIONS
    ]
    part.bars.append(Bar.at_most(f"bytes each, {many} waiting", sizes[many], MAX_BYTES))
    part.data = {"plan": asdict(plan), "costs_us": costs, "bytes": sizes}
    return part


def _built(waiting: int) -> tuple[Core, float]:
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    core = Core(waiting)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return core, grown / (waiting + LIMIT)


def _round(core: Core) -> dict[str, float]:
    """µs per action; afterwards as many wait as before."""
    full = core.gate.waiting()
    took = {}
    began = time.perf_counter()
    come = core.enter(BATCH)
    took["enter"] = time.perf_counter() - began
    began = time.perf_counter()
    core.leave(come)
    took["leave"] = time.perf_counter() - began
    core.enter(LIMIT)
    leased = core.leased()
    began = time.perf_counter()
    core.turn(leased)
    took["turn"] = (time.perf_counter() - began) * BATCH / len(leased)
    core.enter(BATCH, budget_s=1.0)
    began = time.perf_counter()
    core.expire()
    took["expire"] = time.perf_counter() - began
    core.enter(max(0, full - core.gate.waiting()))
    assert abs(core.gate.waiting() - full) <= LIMIT, f"{core.gate.waiting()} wait, not {full}"
    return {action: 1e6 * seconds / BATCH for action, seconds in took.items()}
