"""What the journal costs: decisions per second on disk and in memory, in one run.

The fast path: clients in a closed loop whose requests never wait, so that only the slots in use
are written down. Two policy servers, each behind an Envoy of its own, take turns with the same
clients, so that a busy machine slows both. The waiting path: two seats for many clients, so that
each request waits, is released and ends, all of it journaled.

What the client measures is what counts; the CPU time of the policy server beside it tells the same
with less noise, since all of this shares the cores of one machine.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from tests.bench.client import closed_loop, request
from tests.bench.lab import ALL_CLASSES_LONG, Lab, fixed, running_lab
from tests.bench.meter import cpu_s
from tests.bench.result import Bar, Part
from tests.bench.turns import Rate, Round, cost, in_turns, middle, scatter, speed

MIN_FAST, MIN_WAITING = 0.95, 0.8
HUGE, FEW = 100_000, 8
COLUMNS = ("path", "journal", "per second", "CPU µs each", "of memory's", "CPU of memory's")


@dataclass(frozen=True, slots=True)
class JournalCost:
    """`rounds` of four turns of `seconds` each, with `clients` in a closed loop. Many short ones:
    what else the machine does lasts for seconds."""

    rounds: int = 25
    seconds: float = 0.8
    clients: int = 64


async def run(plan: JournalCost, directory: Path, say: Callable[[str], None]) -> Part:
    """Both paths."""
    part = Part("journal", "journal: disk against memory (medians of rounds, one run)", COLUMNS)
    part.data = {"plan": asdict(plan)}
    for path, limit, least in (("fast", HUGE, MIN_FAST), ("waiting", FEW, MIN_WAITING)):
        folder = directory / path
        folder.mkdir()
        rounds = await _rounds(plan, limit, folder)
        say(f"{path}: {speed(rounds):.3f} {rounds}")
        disk, memory = middle([r.ours for r in rounds]), middle([r.other for r in rounds])
        part.rows.append([path, "memory", memory.per_s, memory.cpu_us, 1.0, 1.0])
        shares = speed(rounds), cost(rounds)
        part.rows.append([path, "disk", disk.per_s, disk.cpu_us, *shares])
        part.notes.append(f"{path} path: {scatter(rounds)}")
        part.data[path] = [asdict(one) for one in rounds]
        part.bars.append(Bar.at_least(f"{path} path on disk against memory", shares[0], least))
    return part


async def _rounds(plan: JournalCost, limit: int, directory: Path) -> list[Round]:
    config = fixed(limit, classes=ALL_CLASSES_LONG)
    async with AsyncExitStack() as stack:
        labs = [
            await stack.enter_async_context(running_lab(directory, config, memory=memory))
            for memory in (False, True)
        ]
        return await in_turns(plan.rounds, *(partial(_turn, plan, lab) for lab in labs))


async def _turn(plan: JournalCost, lab: Lab) -> Rate:
    before = cpu_s(lab.gate.pid)
    loop = await closed_loop(lab.url, plan.clients, request("0"), plan.seconds)
    used = cpu_s(lab.gate.pid) - before
    statuses = loop.replies.statuses
    assert statuses.total() == statuses[200] > 0, f"expected 200 only: {statuses}"
    return Rate(statuses[200] / plan.seconds, 1e6 * used / statuses[200])
