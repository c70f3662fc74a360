"""What the journal costs: decisions per second on disk and in memory, in one run.

The fast path: clients in a closed loop whose requests never wait, so that only the slots in use
are written down. Two policy servers, each behind an Envoy of its own, take turns with the same
clients, so that a busy machine slows both. The waiting path: two seats for many clients, so that
each request waits, is released and ends, all of it journaled.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from tests.bench.client import closed_loop, request
from tests.bench.lab import ALL_CLASSES_LONG, Lab, fixed, running_lab
from tests.bench.meter import cpu_s
from tests.bench.result import Bar, Cell, Part

MIN_FAST, MIN_WAITING = 0.95, 0.8
HUGE, FEW = 100_000, 8
COLUMNS = ("path", "journal", "per second", "CPU µs each", "of memory's")


@dataclass(frozen=True, slots=True)
class JournalCost:
    """`rounds` turns of `seconds` each, of each server, with `clients` in a closed loop."""

    rounds: int = 7
    seconds: float = 4.0
    clients: int = 64


@dataclass(frozen=True, slots=True)
class Rate:
    """Answers per second, and the CPU of the gate's process for each, in microseconds."""

    per_s: float
    cpu_us: float


async def run(plan: JournalCost, directory: Path, say: Callable[[str], None]) -> Part:
    """Both paths."""
    part = Part("journal", "journal: disk against memory (medians of turns, one run)", COLUMNS)
    part.data = {"plan": asdict(plan)}
    for path, limit, least in (("fast", HUGE, MIN_FAST), ("waiting", FEW, MIN_WAITING)):
        folder = directory / path
        folder.mkdir()
        disk, memory = await _both(plan, limit, folder)
        say(f"{path}: memory {memory}  disk {disk}")
        ratio = median(d.per_s / m.per_s for d, m in zip(disk, memory, strict=True))
        for name, turns in (("memory", memory), ("disk", disk)):
            rate = Rate(median(t.per_s for t in turns), median(t.cpu_us for t in turns))
            share = ratio if name == "disk" else 1.0
            row: list[Cell] = [path, name, rate.per_s, rate.cpu_us, share]
            part.rows.append(row)
            part.data[f"{path} {name}"] = [asdict(t) for t in turns]
        part.bars.append(Bar.at_least(f"{path} path on disk against memory", ratio, least))
    return part


async def _both(plan: JournalCost, limit: int, directory: Path) -> tuple[list[Rate], list[Rate]]:
    folders = {name: directory / name for name in ("disk", "memory")}
    for folder in folders.values():
        folder.mkdir()
    config = fixed(limit, classes=ALL_CLASSES_LONG)
    turns: dict[str, list[Rate]] = {"disk": [], "memory": []}
    async with AsyncExitStack() as stack:
        labs = {
            name: await stack.enter_async_context(
                running_lab(folder, config, memory=name == "memory")
            )
            for name, folder in folders.items()
        }
        for number in range(plan.rounds):
            for name in sorted(labs, reverse=bool(number % 2)):
                turns[name].append(await _turn(plan, labs[name]))
    return turns["disk"], turns["memory"]


async def _turn(plan: JournalCost, lab: Lab) -> Rate:
    before = cpu_s(lab.gate.pid)
    loop = await closed_loop(lab.url, plan.clients, request("0"), plan.seconds)
    used = cpu_s(lab.gate.pid) - before
    statuses = loop.replies.statuses
    assert statuses.total() == statuses[200] > 0, f"expected 200 only: {statuses}"
    return Rate(statuses[200] / plan.seconds, 1e6 * used / statuses[200])
