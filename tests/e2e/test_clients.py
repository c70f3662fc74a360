"""Real clients with their default settings: served, streamed, refused and served after all.

Each runs as a program of its own (tests/support/clients). What they do with a refusal is the table
in README's "What clients do with a refusal"; here it is held true, client by client.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.clients.recorder import Attempt, Recorder, recording, refusing
from tests.support.clients.run import CLIENTS, run_client
from tests.support.stack import Stack, chat, running_stack

CALM = {"default_class": "P0"}
"""On a machine that lags, the lower classes get the policy server's own 429, which is not the
subject here."""
ONE_SEAT: dict[str, Any] = {
    **CALM,
    "pools": [{"name": "default", "limit": {"algorithm": "fixed", "initial": 1}}],
    "classes": {name: {"max_wait_s": 600} for name in ("P0", "P1", "P2")},
    "room": {"max_requests": 1},
    "retry_after": {"min_s": 2, "max_s": 3},
}
RETRIES = [("urllib3", "retry"), *((name, "plain") for name in CLIENTS if name != "urllib3")]
STREAMS = ["openai-python", "anthropic-python", "openai-node", "litellm"]
SAY_SO = ["openai-python", "anthropic-python", "openai-node", "litellm"]
"""Those that count their retries in `x-stainless-retry-count`."""


@contextlib.asynccontextmanager
async def full(stack: Stack, recorder: Recorder) -> AsyncIterator[None]:
    """One seat taken, one place taken, until the recorder has seen a refusal."""

    async def endless() -> None:
        url = f"{stack.url}/v1/chat/completions"
        with contextlib.suppress(aiohttp.ClientError):
            async with stack.client.post(url, json=chat(100_000, stream=True)) as answer:
                await answer.read()

    crowd = [asyncio.create_task(endless()) for _ in range(2)]

    def leave(attempt: Attempt) -> None:
        if attempt.status == 429:
            for task in crowd:
                task.cancel()

    recorder.on_attempt = leave
    try:
        await stack.until(waiting=1, inflight=1)
        yield
    finally:
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        await stack.until(waiting=0, inflight=0)


@pytest.mark.parametrize("name", CLIENTS)
async def test_it_is_served(tmp_path: Path, name: str) -> None:
    async with running_stack(tmp_path, CALM) as stack, recording(stack.url) as recorder:
        for mode in ("plain", "stream") if name in STREAMS else ("plain",):
            recorder.attempts.clear()
            assert (await run_client(name, recorder.url, mode))["text"]
            assert recorder.statuses == [200]
            assert recorder.attempts[0].response["x-policy-class"] == "P0"


@pytest.mark.parametrize(("name", "mode"), RETRIES)
async def test_refused_once_it_comes_back_when_told_and_is_served(
    tmp_path: Path, name: str, mode: str
) -> None:
    async with running_stack(tmp_path, ONE_SEAT) as stack, recording(stack.url) as recorder:
        for way in (mode, "stream") if name in STREAMS else (mode,):
            recorder.attempts.clear()
            async with full(stack, recorder):
                answer = await run_client(name, recorder.url, way)
            assert answer.get("text"), answer
            assert recorder.statuses == [429, 200]
            refused, served = recorder.attempts
            assert refused.response["x-policy-reason"] == "room_full"
            assert recorder.waits_s[0] >= int(refused.response["retry-after-ms"]) / 1000 - 0.05
            count = served.request.get("x-stainless-retry-count")
            assert count == ("1" if name in SAY_SO else None)
        kept = "".join(await _metric(stack, 'policy_returns_total{kept="yes",pool="default"}'))
        assert kept == (f"{2.0 if name in STREAMS else 1.0}" if name in SAY_SO else "0.0")


@pytest.mark.parametrize(("name", "mode"), [*RETRIES, ("urllib3", "plain")])
async def test_refused_for_good_it_gives_up_and_can_say_why(
    tmp_path: Path, name: str, mode: str
) -> None:
    async with (
        running_stack(tmp_path, ONE_SEAT) as stack,
        recording(stack.url) as recorder,
        full(stack, recorder),
    ):
        recorder.on_attempt = lambda _attempt: None  # the crowd stays
        answer = await run_client(name, recorder.url, mode)
    attempts = {("urllib3", "plain"): 1, ("urllib3", "retry"): 4}.get((name, mode), 3)
    assert recorder.statuses == [429] * attempts
    assert "Please try again in" in answer["message"]


BOTH = {"retry-after": "5", "retry-after-ms": "500"}
TOLD_NOT_TO = {"retry-after": "1", "x-should-retry": "false"}


@pytest.mark.parametrize(("name", "mode"), RETRIES)
async def test_which_header_it_goes_by(name: str, mode: str) -> None:
    async with refusing(BOTH, times=1) as both, refusing(TOLD_NOT_TO, times=1) as not_to:
        await asyncio.gather(run_client(name, both.url, mode), run_client(name, not_to.url, mode))
    by_milliseconds = name in SAY_SO
    assert both.statuses == [429, 200]
    assert (both.waits_s[0] < 5.0) is by_milliseconds
    assert both.waits_s[0] >= (0.5 if by_milliseconds else 5.0) - 0.05
    assert not_to.statuses == ([429] if by_milliseconds else [429, 200])


async def _metric(stack: Stack, series: str) -> list[str]:
    async with stack.client.get(f"http://127.0.0.1:{stack.where['http']}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return [line.rpartition(" ")[2] for line in lines if line.startswith(series)]
