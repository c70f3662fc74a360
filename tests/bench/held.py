"""Thousands of requests held at once, and what becomes of each of them.

Two requests with endless answers fill a fixed limit of 2, so that everything else waits; then the
limit is raised, or the budgets end, or more important work displaces, or the server drains, or it
is killed. Whatever happens, every client gets one answer, and a 5xx only where the contract
announces it (503 `draining`).
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.bench.client import Crowd, Replies, request
from tests.bench.folders import fresh
from tests.bench.lab import ALL_CLASSES_LONG, NO_RATE_LIMIT, fixed
from tests.bench.meter import rss_bytes
from tests.bench.result import Bar, Cell, Part, shown
from tests.support.envoy_process import wait_http_ok
from tests.support.stack import Stack, running_stack, start, stop

MAX_KIB_PER_HELD = 40.0
FULL, WIDE = 2, 300
"""The limit while they are held, and the one that lets them go."""

ENDLESS_TOKENS = 90_000
"""At the emulator's pace a quarter of an hour."""

ARRIVED_WITHIN_S, ANSWERED_WITHIN_S = 120.0, 150.0
COLUMNS = (
    "what", "held at once", "arrived in s", "came again", "answered in s", "answers",
    "KiB a request",
)  # fmt: skip
KINDS = ("release", "deadline", "displaced", "crash")


@dataclass(frozen=True, slots=True)
class Held:
    """`count` are held at once, `crash` of them when the server is killed.

    `budget_s` is the budget that ends in `deadline`; all of them must arrive within it.
    """

    count: int = 8000
    crash: int = 500
    budget_s: float = 30.0
    kinds: tuple[str, ...] = KINDS


@dataclass(frozen=True, slots=True)
class Filled:
    """A full room: `held` of the `asked` were seen waiting at once."""

    asked: int
    held: int
    arrived_s: float
    came_again: int
    kib: float


@dataclass(frozen=True, slots=True)
class Ending:
    """What the clients of one kind got, and by `wanted` must have got."""

    kind: str
    filled: Filled
    answered_s: float
    replies: Replies
    wanted: Mapping[int, int]

    def bars(self) -> list[Bar]:
        """Everybody answered, as announced."""
        statuses = dict(self.replies.statuses)
        return [
            Bar.at_least(f"{self.kind}: held at once", self.filled.held, self.filled.asked),
            Bar.equal(f"{self.kind}: answers by status", statuses, dict(self.wanted)),
            Bar.equal(f"{self.kind}: malformed refusals", self.replies.malformed, 0),
        ]

    def as_json(self) -> dict[str, object]:
        """The raw figures."""
        replies = self.replies
        return {
            **asdict(self.filled),
            "answered_s": self.answered_s,
            "statuses": dict(replies.statuses),
            "reasons": dict(replies.reasons),
            "malformed": [replies.malformed, replies.example],
        }

    def row(self) -> list[Cell]:
        """One line of the table."""
        said = {str(k): v for k, v in self.replies.statuses.items() if k not in (429, 503)}
        answers = " ".join(f"{key}:{n}" for key, n in {**said, **self.replies.reasons}.items())
        filled = self.filled
        return [
            self.kind, filled.held, filled.arrived_s, filled.came_again, self.answered_s, answers,
            filled.kib,
        ]  # fmt: skip


@dataclass(slots=True)
class Scene:
    """A gateway whose limit is taken; `fresh_bytes` is the policy server's memory before."""

    stack: Stack
    crowd: Crowd
    fresh_bytes: int

    async def fill(self, count: int, priority: str) -> Filled:
        """`count` come and wait."""
        began, held = time.monotonic(), 0
        arriving = asyncio.create_task(self.crowd.come(count, request(priority)))
        while held < count and not self.crowd.replies.total:
            if time.monotonic() - began > ARRIVED_WITHIN_S:
                break  # the bar on how many were held says so
            held = max(held, sum((await self.stack.pool())["waiting"].values()))
            await asyncio.sleep(0.25)
        arrived_s = time.monotonic() - began
        kib = (rss_bytes(self.stack.policy.pid) - self.fresh_bytes) / count / 1024
        await arriving
        return Filled(count, held, arrived_s, self.crowd.came_again, kib)

    async def ending(
        self, kind: str, filled: Filled, wanted: Mapping[int, int], *others: Crowd
    ) -> Ending:
        """Waits until as many answers are there as wanted, of our crowd and the others."""
        began = time.monotonic()
        crowds = (self.crowd, *others)
        missing = sum(wanted.values())
        while missing > sum(c.replies.total for c in crowds):
            if time.monotonic() - began > ANSWERED_WITHIN_S:
                break
            await asyncio.sleep(0.02)
        answered_s = time.monotonic() - began
        replies = Replies()
        for crowd in crowds:
            replies.merge(crowd.replies)
        return Ending(kind, filled, answered_s, replies, wanted)

    def widen(self) -> None:
        """Write the higher limit into the configuration."""
        text = self.stack.config.read_text()
        self.stack.config.write_text(text.replace(f'"initial": {FULL}', f'"initial": {WIDE}'))


async def run(plan: Held, directory: Path, say: Callable[[str], None]) -> Part:
    """All kinds in turn."""
    part = Part("held", f"held: {plan.count} wait at once, then every one is answered", COLUMNS)
    plays: dict[str, Callable[[Held, Path], Awaitable[list[Ending]]]] = {
        "release": _release,
        "deadline": _deadline,
        "displaced": _displaced_then_drained,
        "crash": _crash,
    }
    for kind in plan.kinds:
        for ending in await plays[kind](plan, directory):
            say("  ".join(f"{c}: {shown(v)}" for c, v in zip(COLUMNS, ending.row(), strict=True)))
            part.rows.append(ending.row())
            part.bars += ending.bars()
            part.data[ending.kind] = ending.as_json()
            if ending.kind == "release":
                kib = ending.filled.kib
                part.bars.append(Bar.at_most("KiB for each held request", kib, MAX_KIB_PER_HELD))
    return part


async def _release(plan: Held, directory: Path) -> list[Ending]:
    async with _scene(directory, _config(plan)) as scene:
        filled = await scene.fill(plan.count, "1")
        scene.widen()
        scene.stack.policy.send_signal(signal.SIGHUP)
        return [await scene.ending("release", filled, {200: plan.count})]


async def _deadline(plan: Held, directory: Path) -> list[Ending]:
    budget = {"max_wait_s": plan.budget_s}
    config = _config(plan, classes={**ALL_CLASSES_LONG, "P1": budget})
    async with _scene(directory, config) as scene:
        filled = await scene.fill(plan.count, "1")
        return [await scene.ending("deadline", filled, {429: plan.count})]


async def _displaced_then_drained(plan: Held, directory: Path) -> list[Ending]:
    """A full room of P2; a quarter of it gives way to P0; then SIGTERM, as `gateway` sends it."""
    pushed = plan.count // 4
    config = _config(plan, room={"max_requests": plan.count})
    async with _scene(directory, config, "--mode", "gateway") as scene:
        filled = await scene.fill(plan.count, "2")
        important = Crowd(scene.stack.url)
        await important.come(pushed, request("0"))
        displaced = await scene.ending("displaced", filled, {429: pushed})
        scene.crowd.recount()
        scene.stack.policy.terminate()
        drained = await scene.ending("draining", filled, {503: plan.count}, important)
        important.leave()
        return [displaced, drained]


async def _crash(plan: Held, directory: Path) -> list[Ending]:
    async with _scene(directory, _config(plan)) as scene:
        filled = await scene.fill(plan.crash, "1")
        scene.stack.policy.kill()
        await scene.stack.policy.wait()
        scene.widen()
        await scene.stack.start_policy()
        return [await scene.ending("crash", filled, {200: plan.crash})]


def _config(plan: Held, **more: Any) -> dict[str, Any]:
    room = {"max_requests": 2 * max(plan.count, plan.crash)}
    return fixed(FULL, **{"classes": ALL_CLASSES_LONG, "room": room, **more})


@contextlib.asynccontextmanager
async def _scene(
    directory: Path, config: Mapping[str, Any], *policy_arguments: str
) -> AsyncIterator[Scene]:
    backend = ("--max-num-seqs", "1000", "--step-ms", "10")
    options = {"gate_rate_per_s": NO_RATE_LIMIT}
    async with running_stack(fresh(directory), config, backend, **options) as stack:
        if policy_arguments:
            await _restart(stack, policy_arguments)
        fresh_bytes = rss_bytes(stack.policy.pid)
        fillers, crowd = Crowd(stack.url), Crowd(stack.url)
        await fillers.come(FULL, request("1", tokens=ENDLESS_TOKENS))
        await stack.until(inflight=FULL)
        try:
            yield Scene(stack, crowd, fresh_bytes)
        finally:
            fillers.leave()
            crowd.leave()


async def _restart(stack: Stack, policy_arguments: tuple[str, ...]) -> None:
    await stop(stack.policy)
    data = str(stack.directory / "data")
    command = ("serve", "--config", str(stack.config), "--data-dir", data, *policy_arguments)
    stack.policy = await start(*command, log=stack.directory / "policy.log")
    await wait_http_ok(f"http://127.0.0.1:{stack.where['http']}/readyz", stack.policy)
