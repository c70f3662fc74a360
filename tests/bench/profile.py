"""Where the time of the policy server goes: py-spy on the gate under load, as a short table.

The loop's thread is sampled while clients in a closed loop are admitted as fast as can be; a sample
counts for the innermost of our own modules on its stack, or for gRPC and the event loop (C code,
which shows no Python frame). What gRPC's own threads use is read from /proc. Needs leave to trace
another process (root, or `kernel.yama.ptrace_scope` 0).
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bench.client import closed_loop, request
from tests.bench.lab import Lab, fixed, running_lab
from tests.bench.meter import TICKS_PER_S
from tests.bench.result import Part

COLUMNS = ("where", "of the whole", "µs a request")
C_CODE = "gRPC, HTTP/2 and the event loop"
THREADS = "gRPC's own threads"
AREAS = {
    "adapters/ext_proc": "reading the request: protobuf, headers",
    "adapters/protos": "reading the request: protobuf, headers",
    "adapters/classify": "classes, tenants, pools",
    "adapters/rules": "classes, tenants, pools",
    "adapters/access_log": "reading the access log",
    "adapters/log_entry": "reading the access log",
    "adapters/observer": "observed answers",
    "signals": "observed answers",
    "adapters": "desk and answers",
    "core": "deciding, leases, limit",
    "driver": "driver: holds, journal, timer",
    "journal": "driver: holds, journal, timer",
    "telemetry": "metrics and log lines",
    "views": "metrics and log lines",
}
"""The beginning of a path below `policy_server/` → what that is; the first match counts."""


@dataclass(frozen=True, slots=True)
class Profile:
    """`clients` in a closed loop for `seconds`, sampled `rate_hz` times a second."""

    clients: int = 64
    seconds: float = 15.0
    warmup_s: float = 5.0
    rate_hz: int = 199


async def run(plan: Profile, directory: Path, say: Callable[[str], None]) -> Part:
    """One profile."""
    part = Part("profile", "profile: the policy server admitting as fast as it can", COLUMNS)
    async with running_lab(directory, fixed(100_000)) as lab:
        await closed_loop(lab.url, plan.clients, request("0"), plan.warmup_s)
        before = _threads(lab.gate.pid)
        recording = asyncio.create_task(_record(plan, lab, directory / "profile.raw"))
        loop = await closed_loop(lab.url, plan.clients, request("0"), plan.seconds)
        used = {name: s - before.get(name, 0.0) for name, s in _threads(lab.gate.pid).items()}
        stacks = await recording
    served = loop.replies.statuses[200]
    main_us = 1e6 * used.pop(lab.gate.pid, 0.0) / served
    other_us = 1e6 * sum(used.values()) / served
    say(f"{served / plan.seconds:.0f}/s, {main_us:.0f} µs in the loop, {other_us:.0f} µs beside it")
    areas = Counter(area for stack, count in stacks for area in [_area(stack)] * count)
    costs = {area: main_us * count / areas.total() for area, count in areas.items()}
    costs[THREADS] = other_us
    whole = main_us + other_us
    for area, cost in sorted(costs.items(), key=lambda item: -item[1]):
        part.rows.append([area, cost / whole, cost])
    part.rows.append(["all", 1.0, whole])
    part.notes = [f"{served / plan.seconds:.0f} requests/s, {areas.total()} samples"]
    part.data = {"plan": asdict(plan), "us": costs, "per_s": served / plan.seconds}
    return part


async def _record(plan: Profile, lab: Lab, file: Path) -> list[tuple[list[str], int]]:
    """Stacks of the loop's thread, outermost frame first, with their counts."""
    beside = Path(sys.executable).parent / "py-spy"
    spy = shutil.which("py-spy") or str(beside)
    command = [spy, "record", "--pid", str(lab.gate.pid), "--rate", str(plan.rate_hz), "--threads"]
    command += ["--duration", str(int(plan.seconds) - 1), "--format", "raw", "--output", str(file)]
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdout=quiet, stderr=quiet)
    if await process.wait():
        raise OSError(f"py-spy may not trace {lab.gate.pid}: run as root, or set ptrace_scope to 0")
    text = await asyncio.to_thread(file.read_text)
    return list(_loop_stacks(text.splitlines()))


def _loop_stacks(lines: Iterable[str]) -> Iterable[tuple[list[str], int]]:
    for line in lines:
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        if "MainThread" in frames[0]:
            yield frames, int(count)


def _area(stack: list[str]) -> str:
    """What the innermost of our own frames belongs to; the entrance alone is the event loop."""
    for frame in reversed(stack):
        _, found, path = frame.partition("(policy_server/")
        if found and not path.startswith(("cli", "app")):
            for begin, area in AREAS.items():
                if path.startswith(begin):
                    return area
    return C_CODE


def _threads(pid: int) -> dict[int, float]:
    """CPU seconds of each thread; the loop's has the process's own number."""
    seconds = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
        seconds[int(task.name)] = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    return seconds
