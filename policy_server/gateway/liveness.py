"""Tells a policy server that is stuck from one that is busy.

A process that is stopped, deadlocked or spinning is alive to the kernel and dead to Envoy: held
requests would wait for it until their time is up. So the supervisor asks `/healthz`, which the
event loop answers by itself, and gives up after `misses` questions in a row without an answer:
15 seconds with the defaults, an age for an event loop and short enough that most of those who wait
(P1, P2) are still there for the standby. A question that the supervisor itself was late for says
that the machine stood still, not the policy server, and does not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

_QUESTION = b"GET /healthz HTTP/1.1\r\nhost: liveness\r\nconnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds between questions, seconds for an answer, misses in a row that are too many: a
    stuck process goes on for `misses` times both at most. `own_lag_s`: how late this process may be
    before a miss is its own."""

    every_s: float = 1.0
    within_s: float = 2.0
    misses: int = 5
    own_lag_s: float = 0.5


Ask = Callable[[float], Awaitable[bool]]
"""Whether an answer came within so many seconds."""


async def until_stuck(ask: Ask, patience: Patience) -> None:
    """Returns when `ask` got no answer so many times in a row."""
    clock = asyncio.get_running_loop().time
    missed = 0
    while missed < patience.misses:
        asked = clock()
        await asyncio.sleep(patience.every_s)
        answered = await ask(patience.within_s)
        late = clock() - asked - patience.every_s - patience.within_s > patience.own_lag_s
        missed = 0 if answered or late else missed + 1


def health_of(host: str, port: int) -> Ask:
    """Asks the HTTP port; any answer is one."""

    async def ask(within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                reader, writer = await asyncio.open_connection(host, port)
                try:
                    writer.write(_QUESTION)
                    return bool(await reader.read(1))
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return False

    return ask
