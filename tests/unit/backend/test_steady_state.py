"""The emulator over real HTTP, saturated, does what its own arithmetic says.

Counted on the server's step counts (seconds of all its steps, not of the wall clock), so that a
busy machine changes nothing; three times as many clients as slots, so that a slot never waits.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from statistics import median

import aiohttp
import pytest

from policy_server.backend.engine import capacity
from policy_server.backend.params import BackendParams, EngineParams
from policy_server.backend.server import Backend, serving

SLOTS, TOKENS, PROMPT = 16, 20, 16
WINDOW = 6 * SLOTS
WINDOWS = 3
PARAMS = EngineParams(max_num_seqs=SLOTS, step_ms=6, seq_ms=0.05)


async def test_saturated_throughput_matches_capacity() -> None:
    async with serving(BackendParams(engine=PARAMS)) as backend:
        busy_s = await saturate(backend)
    rates = [WINDOW / (b - a) for a, b in pairwise(busy_s)]
    assert median(rates) / capacity(PARAMS, TOKENS, PROMPT) == pytest.approx(1.0, abs=0.10)


async def saturate(backend: Backend) -> list[float]:
    """The engine's busy seconds after each window of completions, the warm-up's first."""
    engine = backend.handlers.engine
    busy_s: list[float] = []
    finished = 0

    async def client(http: aiohttp.ClientSession, stream: bool) -> None:
        nonlocal finished
        body = {"prompt": "abcd" * PROMPT, "max_tokens": TOKENS, "stream": stream}
        while len(busy_s) <= WINDOWS:
            async with http.post("/v1/completions", json=body) as response:
                assert response.status == 200
                await response.read()
            finished += 1
            if finished % WINDOW == 0:
                busy_s.append(engine.busy_s)

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(backend.url, connector=connector) as http:
        await asyncio.gather(*(client(http, bool(i % 2)) for i in range(3 * SLOTS)))
    return busy_s[: WINDOWS + 1]
